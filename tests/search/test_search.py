"""`itrpipe search`: the rankings of evaluation for single queries, photographs, and the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.cli import search as searching
from itrpipe.datasets.truth import write_truth
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.store import FeatureSpec
from itrpipe.search.photos import photograph_features
from tests.chains import ChainModel, Invoke, copied, done, only, refused, sets
from tests.conftest import Outcome

RUNS = ("triplet.vsepp", "triplet.scan", "ssamt.ssamt", "zero-shot.dual-encoder")
CAPTIONS = {"A cat number 16 is on the road 0.": "1016", "A bird number 19 is on the roof 3.": "1019"}
CAPTION = next(iter(CAPTIONS))


@pytest.fixture
def vsepp(model_of: Callable[[str], ChainModel]) -> ChainModel:
    return model_of("triplet.vsepp")


@pytest.fixture
def scan(model_of: Callable[[str], ChainModel]) -> ChainModel:
    return model_of("triplet.scan")


def search(invoke: Invoke, model: ChainModel, *options: object) -> Outcome:
    split = () if "--split" in options else ("--split", "test")
    return invoke("search", *model.options, "--make", *split, *options)


def found_by(invoke: Invoke, model: ChainModel, *options: object) -> dict[str, Any]:
    return json.loads(done(search(invoke, model, "--json", *options)))


def scores(found: dict[str, Any]) -> list[float]:
    return [each["score"] for each in found["answers"]]


def ids(found: dict[str, Any], kind: str = "image_id") -> list[str]:
    return [each[kind] for each in found["answers"]]


def marks(found: dict[str, Any]) -> dict[str, str]:
    return {each["image_id"]: each["mark"] for each in found["answers"]}


def rankings(model: ChainModel, direction: str) -> dict[str, tuple[list[str], list[float]]]:
    """Query -> candidates and scores, as evaluation wrote them."""
    rows = pq.read_table(only(model.root, f"evaluate/{model.label}") / "rankings.parquet").to_pylist()
    return {row["query_id"]: (row["candidate_ids"], row["scores"]) for row in rows if row["direction"] == direction}


# What is found


@pytest.mark.parametrize("run", RUNS)
def test_it_finds_what_evaluation_ranks_first(run: str, model_of: Callable[[str], ChainModel], invoke: Invoke) -> None:
    model = model_of(run)
    table = pq.read_table(only(model.root, "prepare/files") / "captions.parquet")
    captions = {row["text"]: row["caption_id"] for row in table.to_pylist()}
    expected = rankings(model, "t2i")
    for caption, own in CAPTIONS.items():
        ranked, values = expected[captions[caption]]
        found = found_by(invoke, model, caption)
        assert ids(found) == ranked
        assert scores(found) == pytest.approx(values, abs=1e-4)
        assert (found["run"], found["finds"], found["caption"]) == (run, "images", caption)
        assert [each["rank"] for each in found["answers"]] == [1, 2, 3, 4]
        assert marks(found) == {image_id: "own" if image_id == own else "" for image_id in ranked}
        assert all(len(each["texts"]) == 5 for each in found["answers"])
    ranked, values = rankings(model, "i2t")["1017"]
    found = found_by(invoke, model, "--image", "1017.jpg", "--top", len(ranked))
    assert ids(found, "caption_id") == ranked
    assert scores(found) == pytest.approx(values, abs=1e-4)
    own = ["own" if "number 17 " in each["texts"][0] else "" for each in found["answers"]]
    assert [each["mark"] for each in found["answers"]] == own
    assert (found["searched"], found["image_id"], found["image_split"]) == (20, "1017", "test")


def test_any_sentence_finds_images_and_unknown_words_are_named(vsepp: ChainModel, invoke: Invoke) -> None:
    found = found_by(invoke, vsepp, "A zebra is on the beach")
    assert (len(found["answers"]), found["unknown"], set(marks(found).values())) == (4, ["zebra"], {""})


def test_captions_that_are_known_to_be_true_are_marked(vsepp: ChainModel, invoke: Invoke, tmp_path: Path) -> None:
    copy = replace(vsepp, root=copied(vsepp.root, tmp_path / "data"))
    prepared = only(copy.root, "prepare/files")
    owners = {row["caption_id"]: row["image_id"] for row in pq.read_table(prepared / "captions.parquet").to_pylist()}
    write_truth(prepared, {each: ["1016", "1018"] if own == "1016" else [own] for each, own in owners.items()})
    found = found_by(invoke, copy, CAPTION)
    assert marks(found) == {"1016": "own", "1017": "", "1018": "true", "1019": ""}
    found = found_by(invoke, copy, "--image", "1018", "--top", 20)
    for each in found["answers"]:
        assert each["mark"] == {"1018": "own", "1016": "true"}.get(each["image_id"], "")
    lines = search(invoke, copy, CAPTION).out.splitlines()
    assert sorted(line[17] for line in lines if ".jpg" in line) == [" ", " ", "≈", "✓"]
    assert "≈" in lines[-1]
    (own,) = (line for line in lines if "✓ flickr" in line)
    assert re.fullmatch(r" +\d +-?\d\.\d{3}  ✓ flickr30k-images/1016\.jpg  A cat number 16 .* …", own)


def test_images_and_captions_of_other_splits(scan: ChainModel, invoke: Invoke) -> None:
    found = found_by(invoke, scan, "--image", "1003", "--split", "val", "--top", 3)
    assert (found["split"], found["image_split"], len(found["answers"])) == ("val", "train", 3)
    assert set(marks(found).values()) == {""}
    assert set(ids(found)) <= {"1012", "1013", "1014", "1015"}
    train = found_by(invoke, scan, "A dog number 0 is on the road 0.", "--split", "train")
    assert (train["searched"], len(train["answers"])) == (12, 10)


def test_a_photograph_is_read_as_the_images_of_the_dataset_were(
    model_of: Callable[[str], ChainModel], finished_chain: Path, invoke: Invoke, tmp_path: Path
) -> None:
    model, path, page = model_of("zero-shot.dual-encoder"), tmp_path / "<mine>.jpg", tmp_path / "found.html"
    shutil.copy(finished_chain / "source" / "flickr30k-images" / "1016.jpg", path)
    known = found_by(invoke, model, "--image", "1016")
    found = found_by(invoke, model, "--image", path, "--html", page)
    assert ids(found, "caption_id") == ids(known, "caption_id")
    assert scores(found) == pytest.approx(scores(known), abs=1e-6)
    assert (found["image_id"], found["image_split"]) == (str(path), "photograph")
    assert set(marks(found).values()) == {""}
    assert "Captions for &lt;mine&gt;.jpg" in page.read_text()
    path.write_bytes(b"no picture")
    refused(search(invoke, model, "--image", path), 4, str(path))


PHOTOGRAPH = "source/flickr30k-images/1016.jpg"


def test_features_of_a_photograph_come_from_every_extractor(
    scenes_chain: Path, finished_chain: Path, tmp_path: Path
) -> None:
    manifest = json.loads((only(scenes_chain, "extract/scenes") / "manifest.json").read_text())
    small = {"kind": "frcnn", "weights": "random", "min_regions": 3, "max_regions": 3, "min_score": 0, "nms": 0.3}
    small |= {"proposals": 20, "short_side": 64, "long_side": 96, "precision": "fp32"}
    manifest |= {"conf": "frcnn+scenes", "settings": {"frcnn": small, "scenes": {"kind": "scenes"}}, "outputs": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    with pytest.raises(DataError, match=r"--image .*1016\.jpg: .* are no images of scenes"):
        photograph_features(finished_chain / PHOTOGRAPH, tmp_path, "cpu")
    drawing = tmp_path / "drawing.png"
    Image.new("RGB", (192, 144), (90, 120, 200)).save(drawing)
    features = photograph_features(drawing, tmp_path, "cpu")
    assert features.arrays["regions"].shape == (1, 3, 1024)
    assert features.arrays["global"].shape == (1, 96)
    assert features.rows([str(drawing)]).tolist() == [0]


@pytest.mark.parametrize(("count", "value", "message"), [(0, 0.0, "has no region"), (1, np.nan, "the value nan")])
def test_a_photograph_without_usable_features_is_refused(
    count: int, value: float, message: str, scenes_chain: Path, finished_chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Detector:
        spec, batch = FeatureSpec(1, 2), 1
        transform = staticmethod(channels_first)
        group = staticmethod(lambda height, width: (height, width))

        def __call__(self, images: object, sizes: np.ndarray) -> dict[str, np.ndarray]:
            return {"regions": np.full((1, 1, 2), value, np.float32), "count": np.array([count])}

    monkeypatch.setattr("itrpipe.features.extractors.scenes.extractor.build", lambda settings, device: Detector())
    with pytest.raises(DataError, match=rf"--image .*1016\.jpg.*{message}"):
        photograph_features(finished_chain / PHOTOGRAPH, only(scenes_chain, "extract/scenes"), "cpu")


def test_a_model_that_is_missing_is_trained_on_the_way(vsepp: ChainModel, chain: Path, invoke: Invoke) -> None:
    given = (CAPTION, "--seed", 3, *sets("train.model.measure=order"))
    found = found_by(invoke, replace(vsepp, root=chain), *given)
    assert found["run"] == "triplet.vsepp.s3"
    known = read_embeddings(only(chain, "train/triplet.vsepp.s3") / EMBEDDINGS, "test")
    assert scores(found) == pytest.approx(-np.sort(-known.scores()[:, 0]), abs=1e-4)


# The page


def tags(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    """Those of a page, which fetches nothing from elsewhere."""
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(text := path.read_text(encoding="utf-8"))
    assert not {"script", "link", "iframe"} & {tag for tag, _ in found}
    assert all(str(each["src"]).startswith("data:image/jpeg;base64,") for tag, each in found if tag == "img")
    assert not re.search(r"https?://|url\(|@import", text)
    return found


@pytest.mark.parametrize(
    ("options", "title", "images", "own"),
    [
        (("<script>alert(1)</script> a dog",), "&lt;script&gt;alert(1)&lt;/script&gt; a dog", 4, 0),
        (("--image", "1019", "--top", "20"), "Captions for 1019", 21, 5),
    ],
)
def test_a_page_shows_what_was_found(
    options: tuple[str, ...], title: str, images: int, own: int, scan: ChainModel, invoke: Invoke, tmp_path: Path
) -> None:
    page = tmp_path / "found.html"
    done(search(invoke, scan, *options, "--html", page))
    assert sum(tag == "img" for tag, _ in tags(page)) == images
    assert sum(tag == "li" and each.get("class") == "own" for tag, each in tags(page)) == own
    assert title in page.read_text()
    done(search(invoke, scan, "a cat", "--html", page))
    assert "“a cat”" in page.read_text(), "a page of a search is replaced"


def test_a_page_without_photographs_names_them(
    vsepp: ChainModel, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: object) -> Path:
        raise MissingInputError("the source is gone")

    monkeypatch.setattr(searching, "image_root", gone)
    path = tmp_path / "found.html"
    assert "the source is gone" in done(search(invoke, vsepp, CAPTION, "--html", path))
    assert not [tag for tag, _ in tags(path) if tag == "img"]
    assert path.read_text().count("no picture of") == 4
