"""The local server: it answers its own pages alone, finds pictures by their ids, and keeps every answer at once."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image
from starlette.testclient import TestClient

import itrpipe
from itrpipe.artifacts.artifact import read_manifest, write_manifest
from itrpipe.artifacts.locks import unused
from itrpipe.errors import UnavailableError, UsageError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
from itrpipe.review.decisions import DecisionFile
from itrpipe.review.queue import Candidates, mined_candidates
from itrpipe.serving import decoding
from itrpipe.serving.app import LONGEST_BODY, Site, build
from itrpipe.serving.decoding import MOST_BYTES
from itrpipe.serving.facts import Facts, nearest_pairs, repeated
from itrpipe.serving.gallery import Embedded, Gallery, of_dataset
from itrpipe.serving.pictures import SIDES, Pictures
from itrpipe.serving.reviewing import Reviews
from itrpipe.serving.runs import Runs
from itrpipe.serving.searching import Searches
from itrpipe.serving.security import HEADERS, LOCAL, POLICY
from itrpipe.serving.uploads import KEPT, Uploads
from itrpipe.training.checkpoint import Position, save_checkpoint

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


def client(candidates: Candidates, pictures: Pictures, file: DecisionFile, token: str = "", base: str = ORIGIN) -> Any:
    app = build(site(candidates, pictures, file), hosts=LOCAL, port=8765, token=token)
    return TestClient(app, base_url=base, follow_redirects=False)


def site(candidates: Candidates, pictures: Pictures, file: DecisionFile, about: str = "tiny") -> Site:
    gallery = of_dataset(candidates.trained, candidates.prepared, "cpu")
    facts, runs = Facts(candidates.prepared, gallery), Runs(candidates.trained.parents[2], "tiny")
    reviews = Reviews(candidates, file)
    return Site(about, candidates.model, Searches(gallery, Uploads()), pictures, reviews, facts, runs)


@pytest.fixture
def pages(candidates: Candidates, pictures: Pictures, file: DecisionFile) -> Any:
    return client(candidates, pictures, file)


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
    vectors = np.eye(3, dtype=np.float32)
    gallery = Gallery(["red", "green", "blue"], ["test"] * 3, {}, Embedded(vectors, INNER_PRODUCT, MeanColour))
    app = build(Site("colours", "mean", Searches(gallery, Uploads()), pictures), hosts=LOCAL, port=8765)
    pages = TestClient(app, base_url=ORIGIN)
    content = jpeg((640, 480), 200)
    key = drop(pages, content).json()["photograph"]
    found = pages.get("/api/search", params={"photograph": key, "count": "100"}).json()
    assert [each["image"] for each in found["answers"]] == ["red", "green", "blue"]
    assert [each["score"] for each in found["answers"]] == pytest.approx([200 / 255, 90 / 255, 30 / 255], abs=0.01)
    small = pages.get(f"/photographs/{key}")
    assert small.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(small.content)) as image:
        assert image.size == (320, 240)
    assert drop(pages, content).json()["photograph"] == key


def test_photographs_without_an_extractor_are_one_line(pages: Any) -> None:
    key = drop(pages, jpeg()).json()["photograph"]
    answer = pages.get("/api/search", params={"photograph": key, "count": "5"})
    assert (answer.status_code, "were imported" in answer.json()["error"]) == (400, True)


def test_what_is_no_photograph_is_refused(pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, reason in ((b"", "is empty"), (b"GIF89a", "is"), (jpeg()[:-200], "is truncated")):
        answer = drop(pages, content)
        assert (answer.status_code, "give another one" in answer.json()["error"]) == (400, True)
        assert reason in answer.json()["error"]
    assert drop(pages, b" " * (MOST_BYTES + 1)).status_code == 413
    assert drop(pages, jpeg(), "http://evil.example").status_code == 403
    bomb = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(bomb, "PNG")
    bomb = drop(pages, bomb.getvalue())
    assert "more than 64,000,000" in bomb.json()["error"]
    monkeypatch.setattr(decoding, "SECONDS", 0.01)
    assert "more than 0.01 s" in drop(pages, jpeg(colour=9)).json()["error"]
    assert pages.get("/api/search", params={"photograph": "none", "count": "5"}).status_code == 400
    assert pages.get("/photographs/none").status_code == 400


def test_the_last_few_photographs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = decoding.Decoded(np.zeros((1, 1, 3), np.uint8), b"small")
    monkeypatch.setattr("itrpipe.serving.uploads.decode", lambda content: decoded)
    uploads = Uploads()
    keys = [uploads.add(bytes([number])) for number in range(KEPT + 1)]
    assert uploads.small(keys[-1]) == b"small"
    with pytest.raises(UsageError, match="drop it again"):
        uploads.pixels(keys[0])


def test_what_is_odd_is_shown(pages: Any, candidates: Candidates) -> None:
    page = pages.get("/data").text
    assert "None: all of them decode" in page
    for text, images in repeated(of_dataset(candidates.trained, candidates.prepared, "cpu").captions):
        assert str(escape(text)) in page
        assert len(images) > 1
    found = pages.get("/api/alike").json()
    for kind, splits in (("across", 2), ("within", 1)):
        scores = [each["score"] for each in found[kind]]
        assert len(scores) > 5
        assert scores == sorted(scores, reverse=True)
        assert all(len(set(each["images"])) == 2 for each in found[kind])
        assert all(len(set(each["splits"])) == splits for each in found[kind])


def test_captions_of_several_images_are_found_whatever_their_case() -> None:
    captions = {"a": ["A dog.", "a cat"], "b": ["a dog", "A DOG!"], "c": ["a dog", ""], "d": ["A cat", ""]}
    assert repeated(captions) == [("A dog.", ["a", "b", "c"]), ("a cat", ["a", "d"])]


def test_the_nearest_pairs_are_those_of_a_plain_search() -> None:
    random = np.random.default_rng(0)
    vectors, groups = random.standard_normal((700, 8)).astype(np.float32), random.integers(0, 3, 700)
    products = vectors @ vectors.T
    products[np.tril_indices(700)] = -np.inf
    for kind, found in enumerate(nearest_pairs(vectors, groups, 50)):
        own = np.where((groups[:, None] == groups) == bool(kind), products, -np.inf)
        each_best = ((float(row.max()), first, int(row.argmax())) for first, row in enumerate(own[:-1]))
        best = sorted(each_best, reverse=True)[:50]
        assert [pair[:2] for pair in found] == [(first, second) for _, first, second in best]
        assert [pair[2] for pair in found] == pytest.approx([score for score, *_ in best], rel=1e-5)
    assert nearest_pairs(vectors[:1], groups[:1], 5) == ([], [])


def test_trainings_are_drawn_while_they_train(pages: Any, candidates: Candidates, tmp_path: Path) -> None:
    assert "None yet" in pages.get("/runs").text
    found = {each["name"]: each for each in pages.get("/api/runs").json()["runs"]}
    own = found[candidates.trained.name]
    assert (own["state"], own["rows"][-1]["epoch"]) == ("finished", len(own["rows"]))
    assert all(np.isfinite([each["loss"], each["val_rsum"]]).all() for each in own["rows"])

    folder = tmp_path / "data" / "tiny" / "train" / "contrastive.vsepp-00000000.partial" / ".work"
    folder.mkdir(parents=True)
    runs = Runs(tmp_path / "data", "tiny")
    assert [(each["state"], each["rows"]) for each in runs.trainings()] == [("interrupted", [])]
    model = torch.nn.Linear(2, 2)
    position = Position(epoch=1, history=[{"epoch": 1.0, "loss": 0.5, "val_rsum": 120.0, "best": True}])
    save_checkpoint(folder / "checkpoint.safetensors", model, torch.optim.SGD(model.parameters(), 0.1), position)
    (each,) = runs.trainings()
    assert (each["rows"][0]["loss"], each["rows"][0]["val_rsum"]) == (0.5, 120.0)
    with unused(folder.parent):
        assert runs.trainings()[0]["state"] == "running"


def test_reports_are_shown_as_they_are_and_by_name_alone(
    candidates: Candidates, pictures: Pictures, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "tiny" / "report" / "page-0123abcd"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Results</h1>")
    (folder.parent / "secret.html").write_text("secret")
    write_manifest(folder, read_manifest(candidates.trained).model_copy(update={"outputs": {}}))
    gallery = of_dataset(candidates.trained, candidates.prepared, "cpu")
    own = Site("tiny", "vsepp", Searches(gallery, Uploads()), pictures, runs=Runs(tmp_path / "data", "tiny"))
    pages = TestClient(build(own, hosts=LOCAL, port=8765), base_url=ORIGIN)
    assert 'href="/reports/page-0123abcd"' in pages.get("/runs").text
    answer = pages.get("/reports/page-0123abcd")
    assert (answer.status_code, answer.text) == (200, "<h1>Results</h1>")
    assert "script" not in answer.headers[POLICY]
    assert "default-src 'none'" in answer.headers[POLICY]
    for wrong in ("none", "..%2fsecret.html", "secret.html", "page-0123abcd%2f..%2f..%2fsecret.html"):
        assert pages.get(f"/reports/{wrong}").status_code in (400, 404)


def test_a_folder_of_photographs_is_searched_and_nothing_else(candidates: Candidates, pictures: Pictures) -> None:
    gallery = of_dataset(candidates.trained, candidates.prepared, "cpu")
    app = build(Site("photos", "vsepp", Searches(gallery, Uploads()), pictures), hosts=LOCAL, port=8765)
    pages = TestClient(app, base_url=ORIGIN)
    assert "Review" not in pages.get("/").text
    for path in ("/review", "/data", "/runs", "/api/why", "/api/runs"):
        assert pages.get(path).status_code == 404


@pytest.mark.parametrize(
    "asked",
    [
        {"count": "5"},
        {"q": " ", "count": "5"},
        {"q": "qqq zzz", "count": "5"},
        {"like": "none", "count": "5"},
        {"q": "dog " * 300, "count": "5"},
        {"q": "a dog", "count": "many"},
    ],
)
def test_queries_that_cannot_be_answered_are_one_line(pages: Any, asked: dict[str, str]) -> None:
    assert pages.get("/api/search", params=asked).status_code == 400


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1.evil.example:8765", "", "[::1"])
def test_by_another_name_nothing_is_answered(pages: Any, host: str) -> None:
    assert pages.get("/review", headers={"Host": host}).status_code == 421


def test_by_the_address_that_others_reach_it_is_answered(
    candidates: Candidates, pictures: Pictures, file: DecisionFile
) -> None:
    pages = client(candidates, pictures, file, token="secret", base="http://192.168.0.7:8765")
    assert pages.get("/review?token=secret").status_code == 303
    assert pages.get("/review", headers={"Host": "evil.example:8765"}).status_code == 421


def test_other_pages_make_it_do_no_work(pages: Any) -> None:
    for site in ("cross-site", "same-site"):
        for path in ("/api/search?q=a+dog&count=5", "/pictures/320/none", "/api/alike"):
            assert pages.get(path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "image"}).status_code == 403
        opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"}
        assert pages.get("/api/alike", headers=opened).status_code == 403
        assert pages.get("/review", headers=opened).status_code == 200, "a link in a mail"
    assert pages.get("/api/alike", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://127.0.0.1:8765", "http://evil.example", "null", "", "http://127.0.0.1:9000"]
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


def test_who_can_be_reached_by_others_asks_for_its_token(
    candidates: Candidates, pictures: Pictures, file: DecisionFile
) -> None:
    pages = client(candidates, pictures, file, token="secret")
    assert pages.get("/review").status_code == 401
    assert pages.get("/review?token=wrong").status_code == 401
    assert judge(pages, 0).status_code == 401
    welcome = pages.get("/review?token=secret")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/review")
    assert "HttpOnly" in welcome.headers["set-cookie"]
    assert "samesite=lax" in welcome.headers["set-cookie"].lower()
    assert "itrpipe_token_8765" in pages.cookies
    assert pages.get("/review").status_code == 200
    assert pages.get("http://127.0.0.1:8765//evil.example/?token=secret").headers["location"] == "/evil.example/"


def test_pictures_are_found_by_id_alone_and_kept(pages: Any, candidates: Candidates, tmp_path: Path) -> None:
    image_id = str(candidates.image_ids[0])
    for side in SIDES:
        found = pages.get(f"/pictures/{side}/{image_id}")
        assert (found.status_code, found.headers["content-type"]) == (200, "image/jpeg")
    assert len(list((tmp_path / "pictures").rglob("*.jpg"))) == 2
    for wrong in ("320/none", "321/" + image_id, "320/../../../etc/passwd", "320/%2e%2e%2fsecret", "320//etc/passwd"):
        assert pages.get(f"/pictures/{wrong}").status_code == 404


def test_a_photograph_that_cannot_be_read_is_no_error(
    finished_chain: Path, candidates: Candidates, tmp_path: Path
) -> None:
    image_id, folder = str(candidates.image_ids[0]), tmp_path / "images"
    (folder / "flickr30k-images").mkdir(parents=True)
    own = Pictures.of_dataset(candidates.prepared, folder, tmp_path / "kept")
    (folder / own._files[image_id][0]).write_bytes(b"no picture")
    assert own.small(image_id, 320) is None
    assert own.small(str(candidates.image_ids[1]), 320) is None, "not there"


def test_a_picture_that_many_ask_for_is_made_once(candidates: Candidates, pictures: Pictures) -> None:
    image_id = str(candidates.image_ids[0])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: pictures.small(image_id, 320), range(40)))
    assert len(set(found)) == 1
    assert found[0] is not None
    assert found[0].startswith(b"\xff\xd8")


def test_a_browser_asks_whether_a_picture_is_the_same(pages: Any, candidates: Candidates) -> None:
    one, other = (f"/pictures/320/{image_id}" for image_id in candidates.image_ids[:2])
    tag = pages.get(one).headers["etag"]
    again = pages.get(one, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert pages.get(other, headers={"If-None-Match": tag}).status_code == 200


def test_a_large_photograph_is_made_small_upright(tmp_path: Path, candidates: Candidates) -> None:
    folder = tmp_path / "images"
    (folder / "flickr30k-images").mkdir(parents=True)
    own = Pictures.of_dataset(candidates.prepared, folder, tmp_path / "kept")
    image_id = str(candidates.image_ids[0])
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    pixels = np.zeros((400, 800, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / own._files[image_id][0], format="JPEG", exif=exif)
    small = own.small(image_id, 320)
    assert small is not None
    with Image.open(io.BytesIO(small)) as image:
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


def test_names_and_captions_are_escaped(candidates: Candidates, pictures: Pictures, file: DecisionFile) -> None:
    app = build(site(candidates, pictures, file, "<script>alert(1)</script>"), hosts=LOCAL, port=8765)
    for path in ("/", "/review", "/data", "/runs"):
        assert "<script>alert" not in TestClient(app, base_url=ORIGIN).get(path).text


def test_a_port_that_is_taken_is_said() -> None:
    from itrpipe.commands.serve import Place, listening

    with listening(Place(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"--port {port}"), listening(Place(port=port)):
            pass


def test_the_model_is_named(candidates: Candidates, pages: Any) -> None:
    assert read_manifest(candidates.prepared).dataset == "tiny"
    assert candidates.model in pages.get("/review").text
