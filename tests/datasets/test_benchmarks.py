"""Benchmarks of hard negatives: published formats on small files, malformed ones, and paths that escape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itrpipe.datasets.benchmarks import SUITES, Named, benchmark_names, digests, named, read_benchmark
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.evaluation.benchmarks import MEASURES
from itrpipe.features.extraction import ImageFiles, decode_image
from itrpipe.storage.integrity import DigestCache

RELATION = {
    "image_id": "2320917", "image_path": "2320917.bmp", "bbox_x": 0.6, "bbox_y": 2, "bbox_w": 4, "bbox_h": 2.51,
    "relation_name": "on", "true_caption": "the cat is on the mat", "false_caption": "the mat is on the cat",
}  # fmt: skip
EXAMPLE = {
    "id": 7, "image_0": "bare", "image_1": "ex_7_img_1.bmp", "caption_0": "a cup on a mat", "tag": "Noun",
    "caption_1": "a mat on a cup", "secondary_tag": "", "num_main_preds": 1, "collapsed_tag": "Object",
}  # fmt: skip


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(path)


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def a_sugarcrepe(folder: Path, **changed: Any) -> None:
    image(folder / "val2017" / "85329.bmp")
    record = {"filename": "85329.bmp", "caption": "A cat.", "negative_caption": "A dog."}
    for name in SUITES["sugarcrepe"].files:
        written(folder / f"{name}.json", {"0": record | changed})


def an_aro(folder: Path, **changed: Any) -> None:
    image(folder / "images" / "2320917.bmp")
    attribution = RELATION | {"attributes": ["wet", "open"], "relation_name": None}
    written(folder / "visual_genome_relation.json", [RELATION | changed])
    few = [attribution | {"attributes": ["red", "round"]}]
    written(folder / "visual_genome_attribution.json", [*[attribution] * 25, *few * 24])


def a_winoground(folder: Path, **changed: Any) -> None:
    for name in ("bare.png", "ex_7_img_1.bmp"):
        image(folder / "images" / name)
    written(folder / "examples.jsonl", json.dumps(EXAMPLE | changed))


def a_local(folder: Path, **changed: Any) -> None:
    image(folder / "a.bmp")
    record = {"file": "a.bmp", "caption": "a cat", "negative": ["a dog", "two cats"], "category": "noun"}
    rows = record | changed, record | {"negative": "a dog", "category": None}
    written(folder / "benchmark.jsonl", "\n".join(map(json.dumps, rows)))


MAKERS = {"aro": an_aro, "local": a_local, "sugarcrepe": a_sugarcrepe, "winoground": a_winoground}


def refused(folder: Path, name: str, kind: type[ItrpipeError], value: str) -> None:
    """The benchmark in a folder is refused in a line with the value."""
    with pytest.raises(kind) as caught:
        read_benchmark(Named(name, str(folder)))
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_suite_has_measures_and_a_tiny_one_here() -> None:
    measures = {"aro": ("pairs", "macro"), "winoground": ("examples",), "sugarcrepe": ("pairs",), "local": ("pairs",)}
    assert {name: suite.measures for name, suite in SUITES.items()} == measures
    assert {each for own in measures.values() for each in own} <= {*MEASURES}
    assert MAKERS.keys() == SUITES.keys()


@pytest.mark.parametrize("name", MAKERS)
def test_paths_that_escape_are_refused(name: str, tmp_path: Path) -> None:
    image(tmp_path / "outside.png")
    key = {"sugarcrepe": "filename", "aro": "image_path", "winoground": "image_1", "local": "file"}[name]
    MAKERS[name](tmp_path / "own", **{key: "../outside.png"})
    refused(tmp_path / "own", name, DataError, "contains '..'; write a path relative to the images'")
    MAKERS[name](tmp_path / "own", **{key: "link.png"})
    folder = {"sugarcrepe": "val2017", "local": "."}.get(name, "images")
    (tmp_path / "own" / folder / "link.png").symlink_to(tmp_path / "outside.png")
    refused(tmp_path / "own", name, DataError, "leads through a symbolic link")


@pytest.mark.parametrize(
    ("name", "changed", "value"),
    [
        ("sugarcrepe", {"caption": 3}, "add_att.json: record 0 caption is 3, expected text"),
        ("sugarcrepe", {"negative_caption": " "}, "negative_caption is ' ', expected a sentence"),
        ("sugarcrepe", {"caption": "a\0"}, "expected a sentence"),
        ("sugarcrepe", {"filename": "other.jpg"}, "no image such as other.jpg"),
        ("aro", {"bbox_w": 0}, "record 0 bbox_w is 0, expected another value"),
        ("aro", {"bbox_h": 0.5}, "bbox_h is 0.5, expected another value"),
        ("aro", {"bbox_w": 1e300}, "bbox_w is 1e+300, expected another value"),
        ("aro", {"bbox_x": -8193}, "bbox_x is -8193, expected another value"),
        ("aro", {"bbox_y": float("nan")}, "bbox_y is nan, expected"),
        ("aro", {"bbox_x": "1"}, "bbox_x is '1', expected a number"),
        ("aro", {"relation_name": None}, "relation_name is None, expected text"),
        ("winoground", {"image_1": "ex_8_img_1"}, "1 of 2 images are not there"),
        ("winoground", {"collapsed_tag": 1}, "line 1 collapsed_tag is 1, expected text"),
        ("local", {"negative": []}, "line 1 negative is [], expected another value"),
        ("local", {"negative": ["a dog", 3]}, "negative .1 is 3, expected text"),
        ("local", {"category": 3}, "category is 3, expected text"),
        ("local", {"category": " "}, "category is ' ', expected a sentence"),
    ],
)
def test_malformed_records_are_refused(name: str, changed: dict[str, Any], value: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path / "own", **changed)
    refused(tmp_path / "own", name, ItrpipeError, value)


def test_missing_and_doubled_files_and_examples_are_told(tmp_path: Path) -> None:
    a_sugarcrepe(tmp_path)
    refused(tmp_path, "local", MissingInputError, "none of benchmark.jsonl")
    (tmp_path / "swap_obj.json").unlink()
    refused(tmp_path, "sugarcrepe", MissingInputError, "none of swap_obj.json is there")
    for content, value in (([], "holds no images"), (3, "is 3, expected a list or an object")):
        written(tmp_path / "benchmark.json", content)
        refused(tmp_path, "local", DataError, value)
    a_local(tmp_path)
    refused(tmp_path, "local", UsageError, "holds 2 data files")
    a_winoground(tmp_path)
    written(tmp_path / "examples.jsonl", "\n".join([json.dumps(EXAMPLE)] * 2))
    refused(tmp_path, "winoground", DataError, "pair 7/0 is given twice")
    refused(tmp_path / "none", "winoground", MissingInputError, "--benchmark winoground: ")


def test_names_are_kept_in_one_order() -> None:
    assert benchmark_names(["scenes", "aro=b"]) == ("aro=b", "scenes")
    assert named("local=a=b") == Named("local", "a=b")
    for texts, reason in {
        ("aro=b", "aro=c"): "names aro a second time",
        ("scenes=",): "scenes is made and stands alone",
        ("aro=",): "are read from files",
        ("arro=b",): "did you mean 'aro'",
    }.items():
        with pytest.raises(ValueError, match=reason):
            benchmark_names(texts)


def test_digests_are_of_the_pairs_and_the_images_that_are_asked_for(tmp_path: Path) -> None:
    def found(name: str) -> dict[str, str]:
        return digests([f"{name}={tmp_path / name}", "scenes"], DigestCache(tmp_path / "sources.json"))

    golden = json.loads(Path(__file__).with_name("golden.json").read_text())["benchmarks"]
    for name, make in MAKERS.items():
        make(tmp_path / name)
        image(tmp_path / name / "other.png")
        assert found(name) == golden[name]
    Image.new("RGB", (9, 9)).save(tmp_path / "local" / "a.bmp")
    changed = found("local")
    assert [name for name in changed if changed[name] != golden["local"][name]] == ["benchmark local images"]


def test_a_part_of_an_image_is_what_pillow_crops(tmp_path: Path) -> None:
    """Also beyond the image, where it is black: as ARO's code does it."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    boxes = np.array([[1, 2, 5, 5], [6, 4, 10, 9], [-2, 0, 3, 2]])
    sizes = np.stack([boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1)
    images = ImageFiles(tmp_path, ["a.png"] * 3, sizes, boxes=boxes)
    for row, box in enumerate(boxes):
        found = decode_image(images, row, lambda image: image)
        with Image.open(tmp_path / "a.png") as opened:
            np.testing.assert_array_equal(found, np.asarray(opened.crop(tuple(box.tolist()))))
