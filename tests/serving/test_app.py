"""The local server: it answers its own pages alone, finds pictures by their ids, and keeps every answer at once."""

from __future__ import annotations

import io
import os
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import itrpipe
from itrpipe.commands.serve import listening
from itrpipe.errors import DataError, UnavailableError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.retrieval.photo_folder import PhotoFile
from itrpipe.review.decisions import DecisionFile
from itrpipe.review.queue import Candidates, mined_candidates
from itrpipe.serving.app import LARGEST_PHOTOGRAPH, LONGEST_BODY, Site, build
from itrpipe.serving.gallery import Embedded, Gallery, of_dataset
from itrpipe.serving.pictures import SIDES, Pictures
from itrpipe.serving.reviewing import Reviews
from itrpipe.serving.searching import Searches
from itrpipe.serving.security import HEADERS
from tests.serving.served import Served

ORIGIN = "http://127.0.0.1:8765"


@pytest.fixture
def candidates(finished_chain: Path) -> Candidates:
    """Those of the lists that the chain mined."""
    return mined_candidates(next((finished_chain / "data" / "tiny" / "mine_negatives").glob("exact.*")))


@pytest.fixture
def pictures(finished_chain: Path, candidates: Candidates, tmp_path: Path) -> Pictures:
    return Pictures.of_dataset(candidates.prepared, finished_chain / "source", tmp_path / "pictures")


@pytest.fixture
def file(tmp_path: Path) -> DecisionFile:
    return DecisionFile(tmp_path / "decisions.parquet")


def site(candidates: Candidates, pictures: Pictures, file: DecisionFile, about: str = "tiny") -> Site:
    gallery = of_dataset(candidates.trained, candidates.prepared, "cpu")
    return Site(about, candidates.model, Searches(gallery), pictures, Reviews(candidates, file))


def colours(pictures: Pictures) -> Site:
    """A site of three colours, which searches with photographs alone."""
    scoring = Embedded(np.eye(3, dtype=np.float32), INNER_PRODUCT, MeanColour)  # type: ignore[arg-type]
    return Site("colours", "mean", Searches(Gallery(["red", "green", "blue"], ["test"] * 3, {}, scoring)), pictures)


@pytest.fixture
def pages(candidates: Candidates, pictures: Pictures, file: DecisionFile) -> Any:
    return client(site(candidates, pictures, file))


def client(site: Site) -> Any:
    return TestClient(build(site), base_url=ORIGIN, follow_redirects=False)


def judge(pages: Any, place: Any, answer: str = "fits", origin: str = ORIGIN, **more: Any) -> Any:
    given = {"order": "sample", "reviewer": "ada", "place": place, "answer": answer, **more}
    return pages.post("/api/review", json=given, headers={"Origin": origin})


def test_answers_are_kept_at_once_and_the_next_ones_follow(pages: Any, file: DecisionFile) -> None:
    asked = {"order": "sample", "reviewer": "ada"}
    first = pages.get("/api/review", params=asked).json()
    assert first["progress"]["judged"] == 0
    shown = first["candidates"][0]
    assert {"caption", "own_captions", "own_image", "score", "rank"} <= shown.keys()
    assert shown["caption"] not in shown["own_captions"]
    told = judge(pages, shown["place"]).json()
    assert (told["judged"], told["share"]["judged"]) == (1, 1)
    assert [row["answer"] for row in file.read().rows.to_pylist()] == ["fits"]
    following = pages.get("/api/review", params=asked).json()["candidates"]
    assert [each["place"] for each in following[:3]] == [each["place"] for each in first["candidates"][1:4]]
    assert judge(pages, shown["place"], "undone").json()["judged"] == 0
    assert pages.get("/api/review", params=asked).json()["candidates"][0] == shown
    assert pages.get("/api/review", params={**asked, "reviewer": "bob"}).json()["candidates"][0] == shown


def test_two_reviewers_see_how_they_agree(pages: Any) -> None:
    for reviewer, answers in (("ada", ("fits", "differs")), ("bob", ("fits", "fits"))):
        for place, answer in enumerate(answers):
            told = judge(pages, place, answer, reviewer=reviewer).json()
    assert [(each["with"], each["pairs"], each["same"]) for each in told["agreements"]] == [("ada", 2, 0.5)]


def test_a_sentence_finds_images_some_at_a_time(pages: Any, candidates: Candidates) -> None:
    asked = {"q": "A dog is on the road", "count": "12"}
    first = pages.get("/api/search", params=asked).json()
    assert (first["searched"], len(first["answers"])) == (20, 12)
    assert pages.get("/api/search", params={**asked, "count": "-1"}).json()["answers"] == []
    rest = pages.get("/api/search", params={**asked, "start": "12"}).json()["answers"]
    scores = [each["score"] for each in (*first["answers"], *rest)]
    assert scores == sorted(scores, reverse=True)
    assert len({each["image"] for each in (*first["answers"], *rest)}) == 20
    model = itrpipe.load(candidates.trained, device="cpu")
    embeddings = read_embeddings(candidates.trained / EMBEDDINGS, "train")
    own = dict(zip(embeddings.image_ids.tolist(), model.score(embeddings.images[:], [asked["q"]])[:, 0], strict=True))
    for each in (*first["answers"], *rest):
        if each["split"] == "train":
            assert each["score"] == pytest.approx(own[each["image"]], abs=1e-6)
            assert len(each["captions"]) == 5


def test_images_like_one_are_the_others(pages: Any, candidates: Candidates) -> None:
    image_id = str(candidates.image_ids[0])
    found = pages.get("/api/search", params={"like": image_id, "count": "100"}).json()
    assert (found["searched"], len(found["answers"])) == (19, 19)
    assert image_id not in {each["image"] for each in found["answers"]}


def drop(pages: Any, content: bytes, origin: str = ORIGIN) -> Any:
    return pages.post("/api/photographs", content=content, headers={"Origin": origin})


def jpeg(size: tuple[int, int] = (64, 48), colour: int = 0, **more: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (colour, 90, 30)).save(buffer, "JPEG", **more)
    return buffer.getvalue()


class MeanColour:
    """Embeds a photograph as its mean colour."""

    def encode_images(self, images: list[np.ndarray]) -> np.ndarray:
        return np.stack([each.mean(axis=(0, 1)) / 255 for each in images]).astype(np.float32)


def test_a_photograph_finds_images_like_it(pictures: Pictures) -> None:
    pages = client(colours(pictures))
    key = drop(pages, jpeg((640, 480), 200)).json()["photograph"]
    found = pages.get("/api/search", params={"photograph": key, "count": "100"}).json()
    assert [each["image"] for each in found["answers"]] == ["red", "green", "blue"]
    assert [each["score"] for each in found["answers"]] == pytest.approx([200 / 255, 90 / 255, 30 / 255], abs=0.01)


def test_what_is_no_photograph_is_refused(pages: Any) -> None:
    large = io.BytesIO()
    Image.new("1", (10_000, 9_000)).save(large, "PNG")
    for content in (b"", b"GIF89a", jpeg()[:-200], large.getvalue()):
        answer = drop(pages, content)
        assert (answer.status_code, answer.json().keys()) == (400, {"error"})
    assert drop(pages, b" " * (LARGEST_PHOTOGRAPH + 1)).status_code == 413
    assert drop(pages, jpeg(), "http://evil.example").status_code == 403
    assert drop(pages, jpeg()).status_code == 400, "the features of this model were imported"


def test_photographs_that_are_read_do_not_hold_up_a_search(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(model: MeanColour, images: list[np.ndarray]) -> np.ndarray:
        begun.set()
        go_on.wait(60)
        return np.zeros((1, 3), dtype=np.float32)

    monkeypatch.setattr(MeanColour, "encode_images", slowly)
    with Served(colours(pictures)) as port, ThreadPoolExecutor(6) as pool:
        origin = {"Origin": f"http://127.0.0.1:{port}"}
        sent = [pool.submit(asked, port, "POST", "/api/photographs", jpeg(colour=row), origin) for row in range(6)]
        assert begun.wait(30)
        try:
            assert asked(port, "GET", "/api/search?like=red&count=5") == 200
        finally:
            go_on.set()
        assert [each.result() for each in sent] == [200] * 6


def asked(port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> int:
    """The status of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, headers or {})
    return connection.getresponse().status


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET / HTTP/1.1\r\nHost: ",),
        (b"GET / HTTP/1.1\r\n", *[b"Accept: *\r\n"] * 5),
        (b"POST /api/photographs HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Length: 9\r\n\r\n", b"no"),
        (b"GET / HTTP/1.1\r\nHost: {0}\r\n\r\n", b"GET / HTTP/1.1\r\nHost: "),
    ],
    ids=["headers", "slow headers", "body", "a second request"],
)
def test_half_a_request_is_given_up_and_keeps_nobody_out(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr("itrpipe.serving.deadline.SECONDS", 3)
    with Served(colours(pictures)) as port:
        many = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(250)]
        for part in parts:
            for each in many:
                each.sendall(part.replace(b"{0}", b"127.0.0.1:%d" % port))
        assert asked(port, "GET", "/") == 200
        for each in many:
            while each.recv(65_536):
                pass
            each.close()


def test_a_folder_of_photographs_is_searched_and_nothing_else(pictures: Pictures) -> None:
    pages = client(colours(pictures))
    assert "Review" not in pages.get("/").text
    for path in ("/review", "/api/why", "/data", "/runs"):
        assert pages.get(path).status_code == 404


def test_without_a_query_all_images_are_shown(pages: Any) -> None:
    found = pages.get("/api/search", params={"count": "100"}).json()
    assert len({each["image"] for each in found["answers"]}) == found["searched"] == 20


@pytest.mark.parametrize(
    "asked",
    [
        {"photograph": "none", "count": "5"},
        {"q": "qqq zzz", "count": "5"},
        {"like": "none", "count": "5"},
        {"q": "dog " * 300, "count": "5"},
        {"q": "a dog", "count": "many"},
    ],
)
def test_queries_that_cannot_be_answered_are_one_line(pages: Any, asked: dict[str, str]) -> None:
    assert pages.get("/api/search", params=asked).status_code == 400


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8765",
        "",
        "[::1",
        "evil.com@127.0.0.1:8765",
        "127.0.0.1:08765",
        *(f"127.0.0.1:8765{more}" for more in "/#?."),
    ],
)
def test_by_another_name_nothing_is_answered(pages: Any, host: str) -> None:
    assert pages.get("/review", headers={"Host": host}).status_code == 421


def test_a_tunnel_may_end_at_another_port(pages: Any) -> None:
    own = {"Host": "localhost:9000", "Origin": "http://localhost:9000"}
    assert pages.get("/review", headers=own).status_code == 200
    assert pages.post("/api/review", content=b"", headers=own).status_code == 400, "read, and no answer"


def test_other_pages_make_it_do_no_work(pages: Any) -> None:
    for site in ("cross-site", "same-site"):
        for path in ("/api/search?q=a+dog&count=5", "/pictures/320/none", "/api/review"):
            assert pages.get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "image"}).status_code == 403
        opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"}
        assert pages.get("/api/search?count=5", headers=opened).status_code == 403
        assert pages.get("/review", headers=opened).status_code == 200, "a link in a mail"
    assert pages.get("/api/search?count=5", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://127.0.0.1:8765",
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1:9000",
        "http://localhost:8765",
        "http://evil.com@127.0.0.1:8765",
        "http://127.0.0.1:8765/",
    ],
)
def test_other_pages_change_nothing(pages: Any, file: DecisionFile, origin: str) -> None:
    assert judge(pages, 0, origin=origin).status_code == 403
    assert not file.path.exists()


def test_every_answer_forbids_scripts_of_others(pages: Any) -> None:
    for path in ("/review", "/static/review.js", "/nothing", "/pictures/320/none"):
        found = pages.get(path).headers
        assert {name: found[name.lower()] for name in HEADERS} == HEADERS
    page = pages.get("/review").text
    assert "<script src=" in page
    assert "<style" not in page
    assert "onclick" not in page


def test_pictures_are_found_by_id_alone_and_kept(pages: Any, candidates: Candidates, tmp_path: Path) -> None:
    image_id = str(candidates.image_ids[0])
    for side in SIDES:
        found = pages.get(f"/pictures/{side}/{image_id}")
        assert (found.status_code, found.headers["content-type"]) == (200, "image/jpeg")
    assert len(list((tmp_path / "pictures").rglob("*.jpg"))) == 2
    for wrong in ("320/none", "321/" + image_id, "320/../../../etc/passwd", "320/%2e%2e%2fsecret", "320//etc/passwd"):
        assert pages.get(f"/pictures/{wrong}").status_code == 404


def in_a_dataset(folder: Path, candidates: Candidates, kept: Path) -> tuple[Pictures, str, Path]:
    """Pictures of a dataset whose photographs are copied, the id of one, and its file."""
    pictures = Pictures.of_dataset(candidates.prepared, folder, kept)
    image_id = str(candidates.image_ids[0])
    return pictures, image_id, folder / pictures._files[image_id][0]


def in_a_folder(folder: Path, candidates: Candidates, kept: Path) -> tuple[Pictures, str, Path]:
    path = next(folder.rglob("*.jpg"))
    name = path.relative_to(folder).as_posix()
    return Pictures.of_folder([PhotoFile.of(name, path.stat())], folder, kept), name, path


@pytest.mark.parametrize("arranged", [in_a_dataset, in_a_folder])
def test_a_photograph_that_changed_is_neither_shown_nor_kept(
    arranged: Callable[..., tuple[Pictures, str, Path]], finished_chain: Path, candidates: Candidates, tmp_path: Path
) -> None:
    folder, kept = Path(shutil.copytree(finished_chain / "source", tmp_path / "source")), tmp_path / "kept"
    pictures, image_id, path = arranged(folder, candidates, kept)
    content, status = path.read_bytes(), path.stat()
    for other in (jpeg(), b"no picture", None):
        path.unlink()
        if other is not None:
            path.write_bytes(other)
        with pytest.raises(DataError, match=f"image {image_id}"):
            pictures.small(image_id, 320)
        path.touch()
    assert not kept.exists()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert pictures.small(image_id, 320).startswith(b"\xff\xd8")


def test_a_browser_asks_whether_a_picture_is_the_same(pages: Any, candidates: Candidates) -> None:
    one, other = (f"/pictures/320/{image_id}" for image_id in candidates.image_ids[:2])
    tag = pages.get(one).headers["etag"]
    again = pages.get(one, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert pages.get(other, headers={"If-None-Match": tag}).status_code == 200


def test_a_large_photograph_is_made_small_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    (tmp_path / "a.jpg").write_bytes(jpeg((800, 400), exif=exif))
    own = Pictures.of_folder([PhotoFile.of("a.jpg", (tmp_path / "a.jpg").stat())], tmp_path, tmp_path / "kept")
    with Image.open(io.BytesIO(own.small("a.jpg", 320))) as image:
        assert image.size == (160, 320)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        (b"{" + b" " * LONGEST_BODY, 413),
        (b'{"place": "1"}', 400),
        (b'{"place": -1, "order": "sample", "reviewer": "ada", "answer": "fits"}', 400),
        (b'{"place": 99999999, "order": "sample", "reviewer": "ada", "answer": "fits"}', 400),
        (b'{"place": 0, "order": "none", "reviewer": "ada", "answer": "fits"}', 400),
        (b'{"place": 0, "order": "sample", "reviewer": " ", "answer": "fits"}', 400),
        (b'{"place": 0, "order": "sample", "reviewer": "a\\u0000", "answer": "fits"}', 400),
        (b'{"place": 0, "order": "sample", "reviewer": "ada", "answer": "perhaps"}', 400),
    ],
)
def test_what_makes_no_sense_is_refused(pages: Any, file: DecisionFile, given: bytes, code: int) -> None:
    found = pages.post("/api/review", content=given, headers={"Origin": ORIGIN})
    assert found.status_code == code
    assert not file.path.exists()


def test_names_are_escaped(candidates: Candidates, pictures: Pictures, file: DecisionFile) -> None:
    pages = client(site(candidates, pictures, file, "<script>alert(1)</script>"))
    for path in ("/", "/review"):
        assert "<script>alert" not in pages.get(path).text


def test_who_has_no_name_yet_sees_the_first_candidates_and_keeps_nothing(pages: Any, file: DecisionFile) -> None:
    found = pages.get("/api/review", params={"order": "sample", "reviewer": ""}).json()
    assert (found["progress"]["judged"], len(found["candidates"])) == (0, 20)
    assert judge(pages, 0, reviewer="").status_code == 400
    assert not file.path.exists()


def test_a_port_that_is_taken_is_said() -> None:
    with listening(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"--port {port}"), listening(port):
            pass
