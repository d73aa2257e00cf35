"""Benchmarks of hard negatives: published formats on small files, malformed ones, and paths that escape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itrpipe.analysis.questions.benchmarks import MEASURES
from itrpipe.datasets.benchmarks import SUITES, Named, benchmark_names, digests, named, read_benchmark
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.extraction import ImageFiles, decode_image
from itrpipe.storage.artifact import DigestCache
from tests.datasets.sources import refusal

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(path)


def write(name: str, folder: Path, **changed: Any) -> None:
    """A tiny benchmark, of whose files the first record is changed."""
    own = CASES["benchmarks"][name]
    for file in own["images"]:
        image(folder / file)
    for file, records in own["files"].items():
        rows = [dict(record) for record in records for _ in range(record.get("times", 1))]
        rows[0] |= changed
        whole = rows if name == "aro" else dict(enumerate(rows))
        text = "\n".join(map(json.dumps, rows)) if file.endswith(".jsonl") else json.dumps(whole)
        (folder / file).write_text(text)


def refused(folder: Path, name: str, kind: type[ItrpipeError], value: str) -> None:
    """The benchmark in a folder is refused in a line with the value."""
    refusal(kind, value, read_benchmark, Named(name, str(folder)))


def test_every_suite_has_measures_and_a_tiny_one_here() -> None:
    assert {each for suite in SUITES.values() for each in suite.measures} <= MEASURES.keys()
    assert CASES["benchmarks"].keys() == SUITES.keys()


@pytest.mark.parametrize("name", SUITES)
def test_paths_that_escape_are_refused(name: str, tmp_path: Path) -> None:
    image(tmp_path / "outside.png")
    key, used = (CASES["benchmarks"][name][what] for what in ("key", "images"))
    write(name, tmp_path / "own", **{key: "../outside.png"})
    refused(tmp_path / "own", name, DataError, "contains '..'; write a path relative to the images'")
    write(name, tmp_path / "own", **{key: "link.png"})
    (tmp_path / "own" / used[0]).with_name("link.png").symlink_to(tmp_path / "outside.png")
    refused(tmp_path / "own", name, DataError, "links that lead out of")


@pytest.mark.parametrize(("name", "changed", "value"), CASES["refused records"])
def test_malformed_records_are_refused(name: str, changed: dict[str, Any], value: str, tmp_path: Path) -> None:
    write(name, tmp_path / "own", **changed)
    refused(tmp_path / "own", name, DataError, value)


def test_missing_and_doubled_files_and_examples_are_told(tmp_path: Path) -> None:
    write("sugarcrepe", tmp_path)
    refused(tmp_path, "local", MissingInputError, "none of benchmark.jsonl")
    write("sugarcrepe", tmp_path, filename="other.jpg")
    refused(tmp_path, "sugarcrepe", MissingInputError, "no image such as other.jpg")
    (tmp_path / "swap_obj.json").unlink()
    refused(tmp_path, "sugarcrepe", MissingInputError, "none of swap_obj.json is there")
    for content, value in (("[]", "holds no images"), ("3", "is 3, expected a list or an object")):
        (tmp_path / "benchmark.json").write_text(content)
        refused(tmp_path, "local", DataError, value)
    write("local", tmp_path)
    refused(tmp_path, "local", UsageError, "holds 2 data files")
    write("winoground", tmp_path)
    examples = tmp_path / "examples.jsonl"
    examples.write_text(f"{examples.read_text()}\n" * 2)
    refused(tmp_path, "winoground", DataError, "pair 7/0 is given twice")
    write("winoground", tmp_path, image_1="ex_8_img_1")
    refused(tmp_path, "winoground", MissingInputError, "1 of 2 images are not there")
    refused(tmp_path / "none", "winoground", MissingInputError, "--benchmark winoground: ")


def test_names_are_kept_in_one_order() -> None:
    assert benchmark_names(["scenes", "aro=b"]) == ("aro=b", "scenes")
    assert named("local=a=b") == Named("local", "a=b")
    for texts, reason in {
        ("aro=b", "aro=c"): "names aro a second time",
        ("scenes=",): "scenes takes no folder",
        ("aro=",): "are read from files",
        ("arro=b",): "did you mean 'aro'",
    }.items():
        with pytest.raises(ValueError, match=reason):
            benchmark_names(texts)


def test_digests_are_of_the_pairs_and_the_images_that_are_asked_for(tmp_path: Path) -> None:
    def found(name: str) -> dict[str, str]:
        return digests([f"{name}={tmp_path / name}", "scenes"], DigestCache(tmp_path / "sources.json"))

    golden = json.loads(Path(__file__).with_name("golden.json").read_text())["benchmarks"]
    for name in SUITES:
        write(name, tmp_path / name)
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
