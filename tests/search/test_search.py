"""`itrpipe search`: the rankings of evaluation for single queries, photographs, the page, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.commands import search as searching
from itrpipe.commands.photographs import photograph_features
from itrpipe.commands.stages import run_stage
from itrpipe.datasets.truth import write_truth
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.store import FeatureSpec
from itrpipe.plan.planning import parse_override
from tests.chains import Invoke, copied, done, only, refused, sets
from tests.conftest import TINY_PHRASES, TINY_PIXELS, TINY_TRAINING, Outcome

SMALL = (*TINY_TRAINING, "train.model.embed_dim=8", "train.model.word_dim=8")
RUNS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "triplet.vsepp": ({"backbone": "vsepp"}, SMALL),
    "triplet.vsepp.s1": ({"backbone": "vsepp", "seed": 1}, (*SMALL, "train.model.measure=order")),
    "triplet.scan": ({"backbone": "scan"}, SMALL),
    "ssamt.ssamt": ({"method": "ssamt"}, (*SMALL, *TINY_PHRASES)),
    "triplet.dual-encoder": ({"backbone": "dual-encoder"}, TINY_PIXELS),
}
CAPTIONS = ("A cat number 16 is on the road 0.", "A bird number 19 is on the roof 3.")


@pytest.fixture(scope="module")
def root(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a trained and evaluated model of every kind. Copy it to change it."""
    found = copied(finished_chain / "data", tmp_path_factory.mktemp("search") / "data")
    for named, small in RUNS.values():
        given = [f"{key}={value}" for key, value in named.items()]
        texts = (*given, *small, "evaluate.bootstrap_samples=100")
        run_stage(found, "tiny", "evaluate", [parse_override(text) for text in texts])
    return found


def search(invoke: Invoke, root: Path, run: str, *options: object) -> Outcome:
    named, small = RUNS[run]
    model = [part for key, value in named.items() for part in (f"--{key}", value)]
    return invoke("search", "--dataset", "tiny", "--data", root, *model, *sets(*small), "--make", *options)


def page_of(path: Path, invoke: Invoke, root: Path, run: str, *options: object) -> Page:
    """The page of a search, which fetches nothing from elsewhere."""
    done(search(invoke, root, run, *options, "--html", path))
    page = Page(path)
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources())
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|@import", path.read_text(encoding="utf-8"))
    return page


def found_by(invoke: Invoke, root: Path, run: str, *options: object) -> dict[str, Any]:
    return json.loads(done(search(invoke, root, run, "--json", *options)))


def scores(found: dict[str, Any]) -> list[float]:
    return [each["score"] for each in found["answers"]]


def marks(found: dict[str, Any]) -> dict[str, str]:
    return {each["image_id"]: each["mark"] for each in found["answers"]}


def rankings(root: Path, run: str, direction: str) -> dict[str, tuple[list[str], list[float]]]:
    """Query -> candidates and scores, as evaluation wrote them."""
    rows = pq.read_table(only(root, f"evaluate/{run}") / "rankings.parquet").to_pylist()
    return {row["query_id"]: (row["candidate_ids"], row["scores"]) for row in rows if row["direction"] == direction}


def caption_ids(root: Path) -> dict[str, str]:
    (path,) = root.glob("tiny/prepare/*/captions.parquet")
    return {row["text"]: row["caption_id"] for row in pq.read_table(path).to_pylist()}


# What is found


@pytest.mark.parametrize("run", RUNS)
def test_a_caption_finds_the_images_that_evaluation_ranks_first(run: str, root: Path, invoke: Invoke) -> None:
    expected = rankings(root, run, "t2i")
    for caption in CAPTIONS:
        ids, ranked = expected[caption_ids(root)[caption]]
        found = found_by(invoke, root, run, caption)
        assert [each["image_id"] for each in found["answers"]] == ids
        assert scores(found) == pytest.approx(ranked, abs=1e-4)
        assert [each["rank"] for each in found["answers"]] == [1, 2, 3, 4]
        assert (found["run"], found["finds"], found["caption"]) == (run, "images", caption)
        number = re.findall(r"number (\d+)", caption)[0]
        assert [each["image_id"] for each in found["answers"] if each["mark"] == "own"] == [f"10{number}"]
        assert all(len(each["texts"]) == 5 for each in found["answers"])


@pytest.mark.parametrize("run", RUNS)
def test_an_image_finds_the_captions_that_evaluation_ranks_first(run: str, root: Path, invoke: Invoke) -> None:
    ids, ranked = rankings(root, run, "i2t")["1017"]
    found = found_by(invoke, root, run, "--image", "1017.jpg", "--top", len(ids))
    assert [each["caption_id"] for each in found["answers"]] == ids
    assert scores(found) == pytest.approx(ranked, abs=1e-4)
    assert [each["mark"] == "own" for each in found["answers"]] == [
        "number 17 " in each["texts"][0] for each in found["answers"]
    ]
    assert (found["searched"], found["image_id"], found["image_split"]) == (20, "1017", "test")


def test_any_sentence_finds_images_and_unknown_words_are_named(root: Path, invoke: Invoke) -> None:
    found = found_by(invoke, root, "triplet.vsepp", "A zebra is on the beach")
    assert len(found["answers"]) == 4
    assert found["unknown"] == ["zebra"]
    assert {each["mark"] for each in found["answers"]} == {""}
    outcome = search(invoke, root, "triplet.vsepp", "A zebra is on the beach", "--top", 2)
    assert "“A zebra is on the beach”: the first 2 of 4 test images ranked by triplet.vsepp\n" in outcome.out
    assert "  unknown  zebra: not among the words that the model knows\n" in outcome.out


@pytest.mark.parametrize("run", ["triplet.vsepp", "ssamt.ssamt"])
def test_a_query_without_a_known_word_is_refused(root: Path, invoke: Invoke, run: str) -> None:
    outcome = search(invoke, root, run, "zzz qqq zzz")
    refused(outcome, 2, run, "(zzz, qqq)")


def test_captions_that_are_known_to_be_true_are_marked(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    copy = copied(root, tmp_path / "data")
    prepared = only(copy, "prepare/files")
    owners = {row["caption_id"]: row["image_id"] for row in pq.read_table(prepared / "captions.parquet").to_pylist()}
    write_truth(prepared, {each: ["1016", "1018"] if own == "1016" else [own] for each, own in owners.items()})
    found = found_by(invoke, copy, "triplet.vsepp", CAPTIONS[0])
    assert marks(found) == {"1016": "own", "1017": "", "1018": "true", "1019": ""}
    found = found_by(invoke, copy, "triplet.vsepp", "--image", "1018", "--top", 20)
    for each in found["answers"]:
        assert each["mark"] == {"1018": "own", "1016": "true"}.get(each["image_id"], "")
    table = search(invoke, copy, "triplet.vsepp", CAPTIONS[0]).out
    assert "  ✓ belongs to the query, ≈ true as well, though it belongs to another\n" in table


def test_a_table_says_rank_score_file_and_captions(root: Path, invoke: Invoke) -> None:
    outcome = search(invoke, root, "triplet.scan", CAPTIONS[0])
    (own,) = (line for line in outcome.out.splitlines() if "1016.jpg" in line)
    assert re.fullmatch(r" +\d +-?\d\.\d{3}  ✓ flickr30k-images/1016\.jpg  A cat number 16 .* …", own)
    assert "  ✓ belongs to the query\n" in outcome.out
    outcome = search(invoke, root, "triplet.scan", "--image", "1016", "--top", 20)
    assert len(re.findall(r"✓ \d+ +A cat number 16 is on the road \d\.\n", outcome.out)) == 5


def test_images_and_captions_of_other_splits(root: Path, invoke: Invoke) -> None:
    found = found_by(invoke, root, "triplet.scan", "--image", "1003", "--split", "val", "--top", 3)
    assert (found["split"], found["image_split"], len(found["answers"])) == ("val", "train", 3)
    assert {each["mark"] for each in found["answers"]} == {""}
    assert {each["image_id"] for each in found["answers"]} <= {"1012", "1013", "1014", "1015"}
    train = found_by(invoke, root, "triplet.scan", "A dog number 0 is on the road 0.", "--split", "train")
    assert (train["searched"], len(train["answers"])) == (12, 10)


def test_a_photograph_is_read_as_the_images_of_the_dataset_were(
    root: Path, finished_chain: Path, invoke: Invoke, tmp_path: Path
) -> None:
    path = tmp_path / "mine.jpg"
    shutil.copy(finished_chain / "source" / "flickr30k-images" / "1016.jpg", path)
    known = found_by(invoke, root, "triplet.dual-encoder", "--image", "1016")
    found = found_by(invoke, root, "triplet.dual-encoder", "--image", path)
    assert [each["caption_id"] for each in found["answers"]] == [each["caption_id"] for each in known["answers"]]
    assert scores(found) == pytest.approx(scores(known), abs=1e-6)
    assert (found["image_id"], found["image_split"]) == (str(path), "photograph")
    assert {each["mark"] for each in found["answers"]} == {""}


def test_features_of_a_photograph_come_from_every_extractor(root: Path, finished_chain: Path, tmp_path: Path) -> None:
    extracted = only(root, "extract/pixels")
    manifest = json.loads((extracted / "manifest.json").read_text())
    small, large = ({"kind": "pixels", "height": side, "width": side, "fit": "stretch"} for side in (8, 16))
    manifest |= {"conf": "scenes+pixels", "settings": {"scenes": {"kind": "scenes"}, "pixels": small}, "outputs": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    photograph = finished_chain / "source" / "flickr30k-images" / "1016.jpg"
    with pytest.raises(DataError, match=r"--image .*1016\.jpg: .* are no drawings of scenes"):
        photograph_features(photograph, tmp_path, "cpu")
    drawing = tmp_path / "drawing.png"
    Image.new("RGB", (192, 144), (90, 120, 200)).save(drawing)
    features = photograph_features(drawing, tmp_path, "cpu")
    assert features.arrays.keys() >= {"regions", "global", "pixels"}
    assert features.arrays["pixels"].shape == (1, 8, 8, 3)
    (tmp_path / "manifest.json").write_text(
        json.dumps(manifest | {"conf": "pixels", "settings": large, "checksum": ""})
    )
    (pixels,) = photograph_features(photograph, tmp_path, "cpu").arrays.values()
    assert pixels.shape == (1, 16, 16, 3)


@pytest.mark.parametrize(
    ("count", "value", "message"),
    [(0, 0.0, "has no region"), (1, np.nan, "regions with the value nan"), (1, 1e6, r"regions with the value 1e\+06")],
)
def test_a_photograph_without_usable_features_is_refused(
    count: int, value: float, message: str, root: Path, finished_chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Detector:
        spec, batch = FeatureSpec(1, 2), 1
        transform = staticmethod(channels_first)
        group = staticmethod(lambda height, width: (height, width))

        def __call__(self, images: object, sizes: np.ndarray) -> dict[str, np.ndarray]:
            return {"regions": np.full((1, 1, 2), value, np.float32), "count": np.array([count])}

    monkeypatch.setattr("itrpipe.features.extractors.pixels.extractor.build", lambda settings, device: Detector())
    extracted = only(root, "extract/pixels")
    with pytest.raises(DataError, match=rf"--image .*1016\.jpg.*{message}"):
        photograph_features(finished_chain / "source" / "flickr30k-images" / "1016.jpg", extracted, "cpu")


def test_a_model_that_is_missing_is_trained_on_the_way(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    copy = copied(root, tmp_path / "data")
    found = found_by(invoke, copy, "triplet.vsepp", CAPTIONS[0], "--seed", 3)
    assert found["run"] == "triplet.vsepp.s3"
    assert only(copy, "train/triplet.vsepp.s3")


# The page


class Page(HTMLParser):
    """Tags with their attributes, and the text beside them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] if data.strip() else []

    def sources(self) -> list[str]:
        return [str(attributes["src"]) for tag, attributes in self.tags if tag == "img"]

    def items(self, kind: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "li" and attributes.get("class") == kind]


def test_a_page_shows_the_images_of_a_sentence(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    page = page_of(tmp_path / "found.html", invoke, root, "triplet.vsepp", CAPTIONS[0])
    assert len(page.sources()) == 4
    assert len(page.items("own")) == 1
    assert f"“{CAPTIONS[0]}”" in page.texts
    assert "The first 4 of 4 test images ranked by triplet.vsepp." in page.texts
    assert page.texts.count("and 3 more") == 4


def test_a_page_shows_the_captions_of_an_image(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    page = page_of(tmp_path / "found.html", invoke, root, "triplet.scan", "--image", "1019", "--top", 20)
    assert len(page.sources()) == 21
    assert len(page.items("own")) == 5
    assert "Captions for 1019" in page.texts


def test_text_of_a_page_is_escaped(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    caption = "<script>alert(1)</script> a dog & <b>beach</b>"
    assert f"“{caption}”" in page_of(tmp_path / "found.html", invoke, root, "triplet.vsepp", caption).texts


def test_a_photograph_stands_on_its_page(root: Path, finished_chain: Path, invoke: Invoke, tmp_path: Path) -> None:
    photograph = tmp_path / "<mine>.jpg"
    shutil.copy(finished_chain / "source" / "flickr30k-images" / "1016.jpg", photograph)
    options = ("--image", photograph, "--top", 1)
    page = page_of(tmp_path / "found.html", invoke, root, "triplet.dual-encoder", *options)
    assert len(page.sources()) == 2
    assert f"Captions for {photograph.name}" in page.texts


def test_a_page_without_photographs_names_them(
    root: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: object) -> Path:
        raise MissingInputError("the source is gone")

    monkeypatch.setattr(searching, "image_root", gone)
    path = tmp_path / "found.html"
    outcome = search(invoke, root, "triplet.vsepp", CAPTIONS[0], "--html", path)
    assert "the page shows no photographs: the source is gone" in outcome.out
    page = Page(path)
    assert page.sources() == []
    assert page.texts.count("no photograph of") == 4


# What is refused


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ((), 2, "neither was given"),
        (("a dog", "--image", "1016"), 2, "and both was given"),
        (("--image", "1017.jpeg"), 3, "'1017.jpeg'"),
        (("--image", "a" * 300), 3, "'aaa"),
        (("a dog \udcff",), 2, "'a dog \\udcff' is not valid UTF-8"),
        (("a dog", "--split", "dev"), 2, "test, val or train"),
        (("a dog", "--seed", 7, "--no-deps"), 2, "is not up to date; run"),
        (("a dog", "--html", "no/folder/page.html"), 3, "no/folder"),
        (("--image", "{photograph}"), 2, "imported (precomp)"),
    ],
)
def test_what_cannot_be_searched_is_told_in_one_line(
    options: tuple[object, ...], code: int, value: str, root: Path, invoke: Invoke, tmp_path: Path
) -> None:
    photograph = tmp_path / "mine.jpg"
    photograph.write_bytes(b"no picture")
    given = [photograph if each == "{photograph}" else each for each in options]
    refused(search(invoke, root, "triplet.vsepp", *given), code, value)


def test_a_photograph_that_cannot_be_read_is_refused(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "mine.jpg"
    path.write_bytes(b"no picture")
    refused(search(invoke, root, "triplet.dual-encoder", "--image", path), 4, f"{path} is none of JPEG")


def test_a_query_longer_than_the_model_reads_is_refused(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.search.model.max_tokens_of", lambda model: 5)
    outcome = search(invoke, root, "triplet.vsepp", "a dog on the road")
    refused(outcome, 2, "'a dog on the road'", "5 tokens")


def test_a_page_is_not_overwritten(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    refused(search(invoke, root, "triplet.vsepp", "a dog", "--html", path), 2, f"--html {path} is there already")
    assert path.read_text() == "mine"


def test_a_page_of_an_earlier_search_is_replaced(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for sentence in ("a dog", "a red cat"):
        assert f"“{sentence}”" in page_of(path, invoke, root, "triplet.vsepp", sentence).texts
