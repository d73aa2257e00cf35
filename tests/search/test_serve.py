"""The local server: it answers its own pages alone, finds pictures by their ids, and keeps every answer at once."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import itrpipe
from itrpipe.datasets.decisions import DecisionFile
from itrpipe.errors import DataError, UnavailableError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.review import ReviewCandidates, mined_candidates
from itrpipe.search import serve
from itrpipe.search.gallery import Gallery
from itrpipe.search.photos import PhotoFile
from itrpipe.search.serve import Pictures, Reviews, Searches, Site
from tests.search.served import served

ORIGIN = "http://127.0.0.1:8765"
BOB = "b" * 80
"""The longest name."""


@pytest.fixture
def candidates(finished_chain: Path) -> ReviewCandidates:
    """Those of the lists that the chain mined."""
    return mined_candidates(next((finished_chain / "data" / "tiny" / "mine_negatives").glob("exact.*")))


@pytest.fixture
def pictures(finished_chain: Path, candidates: ReviewCandidates, tmp_path: Path) -> Pictures:
    return Pictures.of_dataset(candidates.prepared, finished_chain / "source", tmp_path / "pictures")


@pytest.fixture
def file(tmp_path: Path) -> DecisionFile:
    return DecisionFile(tmp_path / "decisions.parquet")


@pytest.fixture
def pages(candidates: ReviewCandidates, pictures: Pictures, file: DecisionFile) -> Any:
    model = itrpipe.load(candidates.trained, device="cpu")
    searches = Searches(Gallery.of_dataset(model, candidates.trained))
    searches.gallery.about = "<script>alert(1)</script>"
    return client(Site(searches, pictures, Reviews(candidates, file)))


def mean_colour(images: list[np.ndarray]) -> np.ndarray:
    return np.stack([each.mean(axis=(0, 1)) / 255 for each in images]).astype(np.float32)


def colours(pictures: Pictures, encode: Any = mean_colour) -> Site:
    """A site of three colours, which searches with photographs alone."""
    model: Any = SimpleNamespace(label="mean", measure=INNER_PRODUCT, encode_images=encode)
    names = ["red", "green", "blue"]
    gallery = Gallery("colours", model, np.eye(3, dtype=np.float32), names, names, [""] * 3)
    return Site(Searches(gallery), pictures)


def client(site: Site) -> Any:
    return TestClient(site.app(), base_url=ORIGIN, follow_redirects=False)


def judge(pages: Any, place: Any, answer: str = "fits", **more: Any) -> Any:
    given = {"order": "sample", "reviewer": "ada", "place": place, "answer": answer, **more}
    return pages.post("/api/review", json=given, headers={"Origin": ORIGIN})


def searched(pages: Any, **asked: str) -> dict[str, Any]:
    return pages.get("/api/search", params={"count": "100", **asked}).json()


def drop(pages: Any, content: bytes) -> Any:
    return pages.post("/api/photographs", content=content, headers={"Origin": ORIGIN})


def jpeg(size: tuple[int, int] = (64, 48), colour: int = 0, **more: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (colour, 90, 30)).save(buffer, "JPEG", **more)
    return buffer.getvalue()


# Review


def test_answers_are_kept_at_once_and_can_be_changed(pages: Any, file: DecisionFile) -> None:
    asked = {"order": "sample", "reviewer": "ada"}
    first = pages.get("/api/review", params=asked).json()
    assert (first["progress"]["judged"], first["given"]) == (0, [])
    shown, other = first["candidates"][:2]
    assert shown["caption"] not in shown["own_captions"]
    told = judge(pages, shown["place"]).json()
    assert (told["judged"], told["share"]["decisions"]) == (1, 1)
    assert [row["answer"] for row in file.read().rows.to_pylist()] == ["fits"]
    judge(pages, other["place"], "unsure")
    after = pages.get("/api/review", params=asked).json()
    assert [each["place"] for each in after["candidates"][:3]] == [each["place"] for each in first["candidates"][2:5]]
    assert after["given"] == [{**other, "answer": "unsure"}, {**shown, "answer": "fits"}]
    assert judge(pages, shown["place"], "differs").json()["judged"] == 2
    assert pages.get("/api/review", params=asked).json()["given"][0] == {**shown, "answer": "differs"}
    assert judge(pages, shown["place"], "undone").json()["judged"] == 1
    assert pages.get("/api/review", params=asked).json()["candidates"][0] == shown
    assert pages.get("/api/review", params={**asked, "reviewer": BOB}).json()["candidates"][0] == shown
    told = judge(pages, other["place"], reviewer=BOB).json()
    assert told["agreements"] == [], "ada was unsure"
    judge(pages, other["place"], "differs")
    told = judge(pages, other["place"], reviewer=BOB).json()
    assert [(each["with"], each["pairs"], each["same"]) for each in told["agreements"]] == [("ada", 1, 0.0)]


def test_who_has_no_name_yet_sees_the_first_candidates(pages: Any) -> None:
    found = pages.get("/api/review", params={"order": "sample", "reviewer": ""}).json()
    assert (found["progress"]["judged"], len(found["candidates"])) == (0, 20)


# Search


def test_a_sentence_finds_images_some_at_a_time(pages: Any, candidates: ReviewCandidates) -> None:
    sentence = "A dog is on the road"
    first, rest = (searched(pages, q=sentence, count="12", start=start) for start in ("0", "12"))
    assert (first["searched"], len(first["answers"])) == (20, 12)
    assert searched(pages, q=sentence, count="-1")["answers"] == []
    both = first["answers"] + rest["answers"]
    assert [each["score"] for each in both] == sorted((each["score"] for each in both), reverse=True)
    assert len({each["image"] for each in both}) == 20
    model = itrpipe.load(candidates.trained, device="cpu")
    embeddings = read_embeddings(candidates.trained / EMBEDDINGS, "train")
    own = dict(zip(embeddings.image_ids.tolist(), model.score(embeddings.images[:], [sentence])[:, 0], strict=True))
    of_train = {each["image"]: each["score"] for each in both if each["split"] == "train"}
    assert of_train == pytest.approx(own, abs=1e-6)
    assert all(len(each["captions"]) == 5 for each in both)


def test_images_like_one_are_the_others_and_without_a_query_all_are_shown(
    pages: Any, candidates: ReviewCandidates
) -> None:
    image_id = str(candidates.image_ids[0])
    found = searched(pages, like=image_id)
    assert (found["searched"], len(found["answers"]), len(found["captions"])) == (19, 19, 5)
    assert image_id not in {each["image"] for each in found["answers"]}
    assert len({each["image"] for each in searched(pages)["answers"]}) == 20


def test_the_page_opens_on_sentences_that_find_something(pages: Any) -> None:
    page = pages.get("/").text
    proposed = [part.partition('"')[0] for part in page.split('href="/?q=')[1:]]
    assert len(proposed) == 3
    assert all(pages.get(f"/api/search?q={each}&count=1").status_code == 200 for each in proposed)


def test_a_photograph_finds_images_like_it(pictures: Pictures) -> None:
    pages = client(colours(pictures))
    found = searched(pages, photograph=drop(pages, jpeg((640, 480), 200)).json()["photograph"])
    assert [each["image"] for each in found["answers"]] == ["red", "green", "blue"]
    assert [each["score"] for each in found["answers"]] == pytest.approx([200 / 255, 90 / 255, 30 / 255], abs=0.01)
    assert "Review" not in pages.get("/").text
    assert [pages.get(path).status_code for path in ("/review", "/api/review")] == [404] * 2


def test_what_is_no_photograph_is_refused(pages: Any) -> None:
    large = io.BytesIO()
    Image.new("1", (10_000, 9_000)).save(large, "PNG")
    for content in (jpeg()[:-200], large.getvalue(), jpeg()):  # the features of this model were imported
        answer = drop(pages, content)
        assert (answer.status_code, answer.json().keys()) == (400, {"error"})


def test_photographs_that_are_read_do_not_hold_up_a_search(pictures: Pictures) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(images: list[np.ndarray]) -> np.ndarray:
        begun.set()
        go_on.wait(60)
        return np.zeros((1, 3), dtype=np.float32)

    with served(colours(pictures, slowly)) as address, ThreadPoolExecutor(6) as pool:
        request = Request(f"{address}/api/photographs", jpeg(), {"Origin": address})
        sent = [pool.submit(urlopen, request, timeout=60) for _ in range(6)]
        assert begun.wait(30)
        try:
            answer = urlopen(f"{address}/api/search?like=red&count=5", timeout=20)
            assert (answer.status, answer.headers["server"]) == (200, None)
        finally:
            go_on.set()
        assert [each.result().status for each in sent] == [200] * 6


def is_closed(opened: socket.socket) -> bool:
    """Whether the other side closes it before the timeout."""
    with suppress(ConnectionResetError):
        return opened.recv(1) == b""
    return True


def test_a_request_that_does_not_come_holds_up_neither_others_nor_the_end(
    pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = f"Origin: http://{serve.HOST}"
    lines = ("POST /api/photographs HTTP/1.1", f"Host: {serve.HOST}", origin, "Content-Length: 9")
    beginning = "\r\n".join([*lines, "", ""]).encode()

    def connect(sent: bytes) -> socket.socket:
        opened = socket.create_connection((serve.HOST, port), timeout=30)
        opened.sendall(sent)
        return opened

    with ExitStack() as held:
        with served(colours(pictures)) as address:
            port = int(address.rpartition(":")[2])
            silent = [held.enter_context(connect(b"")) for _ in range(serve.MOST_CONNECTIONS + 40)]
            assert urlopen(f"{address}/api/search?count=5", timeout=20).status == 200
            assert is_closed(silent[0]), "it has waited for longest"
            monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.2)
            for sent in (b"", beginning[:30], beginning + b"half"):
                assert is_closed(held.enter_context(connect(sent)))
            monkeypatch.undo()
            stopped = held.enter_context(connect(beginning + b"half"))
        assert is_closed(stopped)


# Who may ask, and what

GIVEN = {"order": "sample", "reviewer": "ada", "answer": "fits", "place": 0}
CROSS, LINK = {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Dest": "document"}
ASKED: list[tuple[str, dict[str, str], Any, int]] = [
    # By another name
    *(
        ("/review", {"Host": host}, None, 421)
        for host in ("evil.example", "127.0.0.1.evil.example:8765", "", "[::1", "evil.com@127.0.0.1:8765")
    ),
    *(("/review", {"Host": f"127.0.0.1:{port}"}, None, 421) for port in ("08765", "8765/", "8765#", "8765?", "8765.")),
    ("/review", {"Host": "localhost:9000"}, None, 200),  # a tunnel may end at another port
    ("/api/review", {"Host": "localhost:9000", "Origin": "http://localhost:9000"}, "", 400),
    # By other pages
    *((path, CROSS, None, 403) for path in ("/api/search?q=a+dog&count=5", "/pictures/320/none", "/api/review")),
    ("/api/review", {"Sec-Fetch-Site": "same-site"}, None, 403),
    ("/api/search?count=5", {**CROSS, **LINK}, None, 403),
    ("/review", {**CROSS, **LINK}, None, 200),  # a link in a mail
    ("/api/search?count=5", {"Sec-Fetch-Site": "same-origin"}, None, 200),
    *(
        ("/api/review", {"Origin": origin}, GIVEN, 403)
        for origin in ("https://127.0.0.1:8765", "http://evil.example", "null", "", "http://127.0.0.1:9000")
    ),
    *(
        ("/api/review", {"Origin": origin}, GIVEN, 403)
        for origin in ("http://localhost:8765", "http://evil.com@127.0.0.1:8765", f"{ORIGIN}/")
    ),
    ("/api/photographs", {"Origin": "http://evil.example"}, "no picture", 403),
    # What makes no sense
    *(("/api/review", {}, body, 400) for body in ("", "[]", "[" * 60_000, '{"place": "1"}')),
    ("/api/review", {}, "{" + " " * serve.LONGEST_BODY, 413),
    *(("/api/review", {}, {**GIVEN, "place": place}, 400) for place in (-1, 99_999_999, True, 1.0)),
    ("/api/review", {}, {**GIVEN, "reviewer": 5}, 400),
    *(("/api/review", {}, {**GIVEN, "reviewer": name}, 400) for name in ("", "a\0", "a" * 81)),
    ("/api/review", {}, {**GIVEN, "order": "none"}, 400),
    ("/api/review", {}, {**GIVEN, "answer": "perhaps"}, 400),
    *(("/api/photographs", {}, body, 400) for body in ("", "GIF89a")),
    ("/api/photographs", {}, " " * (serve.LARGEST_PHOTOGRAPH + 1), 413),
    *((f"/api/search?count=5&{each}", {}, None, 400) for each in ("photograph=none", "q=qqq+zzz", "like=none")),
    ("/api/search?count=5&q=" + "dog+" * 300, {}, None, 400),
    ("/api/search?count=many", {}, None, 400),
    # What is not there
    *((f"/pictures/{each}", {}, None, 404) for each in ("320/none", "320/../../../etc/passwd", "320//etc/passwd")),
    ("/pictures/320/%2e%2e%2fsecret", {}, None, 404),
    ("/nothing", {}, None, 404),
]


def test_who_may_ask_for_what(pages: Any, file: DecisionFile) -> None:
    for path, headers, given, code in ASKED:
        if given is None:
            answer = pages.get(path, headers=headers)
        else:
            body = given if isinstance(given, str) else json.dumps(given)
            answer = pages.post(path, content=body, headers={"Origin": ORIGIN, **headers})
        assert answer.status_code == code, (path, headers, given)
    assert not file.path.exists()


def test_every_answer_forbids_scripts_of_others(pages: Any) -> None:
    for path in ("/review", "/static/review.js", "/nothing", "/pictures/320/none"):
        found = pages.get(path).headers
        assert {name: found[name.lower()] for name in serve.HEADERS} == serve.HEADERS
    for page in (pages.get("/").text, pages.get("/review").text):
        assert "<script src=" in page
        assert not [each for each in ("<style", "onclick", "<script>alert") if each in page]


# Pictures


def test_pictures_are_found_by_id_alone_and_kept(pages: Any, candidates: ReviewCandidates, tmp_path: Path) -> None:
    one, other = candidates.image_ids[:2].tolist()
    for side in serve.SIDES:
        found = pages.get(f"/pictures/{side}/{one}")
        assert (found.status_code, found.headers["content-type"]) == (200, "image/jpeg")
    assert len(list((tmp_path / "pictures").rglob("*.jpg"))) == 2
    again = {"If-None-Match": found.headers["etag"]}
    assert (pages.get(f"/pictures/320/{one}", headers=again).status_code) == 304
    assert (pages.get(f"/pictures/320/{other}", headers=again).status_code) == 200
    assert pages.get(f"/pictures/321/{one}").status_code == 404


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_photograph_that_changed_is_neither_shown_nor_kept(
    of_folder: bool, finished_chain: Path, candidates: ReviewCandidates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = Path(shutil.copytree(finished_chain / "source", tmp_path / "source")), tmp_path / "kept"
    if of_folder:
        path = next(folder.rglob("*.jpg"))
        image_id = path.relative_to(folder).as_posix()
        photographs = [PhotoFile.of(image_id, path)]
        monkeypatch.setattr(serve, "read_index", lambda index: (photographs, None))
        pictures = Pictures.of_folder(tmp_path, folder, kept)
    else:
        pictures, image_id = Pictures.of_dataset(candidates.prepared, folder, kept), str(candidates.image_ids[0])
        path = next(folder.rglob(f"{image_id}.jpg"))
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


def test_a_port_that_is_taken_is_said() -> None:
    with serve.listening(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"--port {port}"), serve.listening(port):
            pass
