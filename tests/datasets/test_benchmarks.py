"""Readers of benchmarks of hard negatives: published formats on small files, malformed ones, and paths that escape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from itrpipe.datasets.benchmarks import aro, local, sugarcrepe, winoground
from itrpipe.datasets.benchmarks.base import Pair
from itrpipe.datasets.benchmarks.named import Named, benchmark_names, digests, named, read_benchmark, readers
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.evaluation.benchmarks import MEASURES
from itrpipe.features.extraction import ImageFiles, decode_batch
from itrpipe.storage.sources import DigestCache


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(path)


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def a_sugarcrepe(folder: Path, **changed: Any) -> Path:
    image(folder / "val2017" / "000000085329.jpg")
    record = {"filename": "000000085329.jpg", "caption": "A cat.", "negative_caption": "A dog."}
    for name in sugarcrepe.CATEGORIES:
        written(folder / f"{name}.json", {"0": record | changed})
    return folder


RELATION = {
    "image_id": "2320917", "image_path": "2320917.jpg", "bbox_x": 1, "bbox_y": 2, "bbox_w": 4, "bbox_h": 3,
    "relation_name": "on", "true_caption": "the cat is on the mat", "false_caption": "the mat is on the cat",
}  # fmt: skip


def an_aro(folder: Path, **changed: Any) -> Path:
    image(folder / "images" / "2320917.jpg")
    attribution = RELATION | {"attributes": ["wet", "open"], "relation_name": None}
    written(folder / "visual_genome_relation.json", [RELATION | changed])
    few = [attribution | {"attributes": ["red", "round"]}]
    written(folder / "visual_genome_attribution.json", [*[attribution] * aro.FEWEST_CASES, *few])
    return folder


EXAMPLE = {
    "id": 7, "image_0": "ex_7_img_0", "image_1": "ex_7_img_1", "caption_0": "a cup on a mat", "tag": "Noun",
    "caption_1": "a mat on a cup", "secondary_tag": "", "num_main_preds": 1, "collapsed_tag": "Object",
}  # fmt: skip


def a_winoground(folder: Path, **changed: Any) -> Path:
    for side in (0, 1):
        image(folder / "images" / f"ex_7_img_{side}.png")
    written(folder / "examples.jsonl", lines(EXAMPLE | changed))
    return folder


def a_local(folder: Path, **changed: Any) -> Path:
    image(folder / "a.png")
    record = {"file": "a.png", "caption": "a cat", "negative": ["a dog", "two cats"], "category": "noun"}
    written(folder / "benchmark.jsonl", lines(record | changed))
    return folder


MAKERS: dict[str, Callable[..., Path]] = {
    "sugarcrepe": a_sugarcrepe,
    "aro": an_aro,
    "winoground": a_winoground,
    "local": a_local,
}


def test_every_reader_is_found_and_has_measures() -> None:
    assert readers() == tuple(sorted(MAKERS))
    for module in (aro, local, sugarcrepe, winoground):
        assert set(module.MEASURES) <= set(MEASURES)


def test_sugarcrepe_has_a_category_for_each_file(tmp_path: Path) -> None:
    found = read_benchmark(Named("sugarcrepe", str(a_sugarcrepe(tmp_path))))
    assert [pair.category for pair in found.pairs] == list(sugarcrepe.CATEGORIES)
    assert found.pairs[0] == Pair("add_att/0", "val2017/000000085329.jpg", "A cat.", "A dog.", "add_att")


def test_aro_has_boxes_and_the_groups_that_count(tmp_path: Path) -> None:
    found = read_benchmark(Named("aro", str(an_aro(tmp_path))))
    captions = RELATION["true_caption"], RELATION["false_caption"]
    box = (1, 2, 5, 5)
    assert found.pairs[0] == Pair("relation/0", "images/2320917.jpg", *captions, "relation", "relation on", box)
    assert {pair.group for pair in found.pairs[1:-1]} == {"attributes wet, open"}
    assert (found.pairs[-1].category, found.pairs[-1].group) == ("attribution", "")


def test_winoground_is_two_pairs_of_a_group(tmp_path: Path) -> None:
    first, second = read_benchmark(Named("winoground", str(a_winoground(tmp_path)))).pairs
    captions = EXAMPLE["caption_0"], EXAMPLE["caption_1"]
    assert first == Pair("7/0", "images/ex_7_img_0.png", *captions, "Object", "7")
    assert second == Pair("7/1", "images/ex_7_img_1.png", *reversed(captions), "Object", "7")


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_local_tables_of_all_kinds_say_the_same(suffix: str, tmp_path: Path) -> None:
    image(tmp_path / "images" / "a.png")
    rows = [("images/a.png", "a cat, asleep", "a dog", "noun"), ("images/a.png", "a cat, asleep", "two cats", "count")]
    records = [dict(zip(("file", "caption", "negative", "category"), row, strict=True)) for row in rows]
    table = "file,caption,negative,category\n" + "".join(f'{a},"{b}",{c},{d}\n' for a, b, c, d in rows)
    content = {"jsonl": lines(*records), "json": records, "csv": table}[suffix]
    written(tmp_path / f"benchmark.{suffix}", content)
    found = local.read(tmp_path).pairs
    assert [(each.file, each.caption, each.negative, each.category) for each in found] == rows
    assert len({each.id for each in found}) == 2


def test_several_negatives_of_a_caption_are_several_pairs(tmp_path: Path) -> None:
    found = local.read(a_local(tmp_path)).pairs
    assert [(each.id, each.negative) for each in found] == [("1.0", "a dog"), ("1.1", "two cats")]
    (bare,) = local.read(a_local(tmp_path, negative="a dog", category=None)).pairs
    assert (bare.id, bare.category) == ("1", "")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("path", ["../outside.jpg", "/etc/hostname", "a\\b.png"])
def test_paths_that_escape_are_refused(name: str, path: str, tmp_path: Path) -> None:
    image(tmp_path / "outside.jpg")
    key = {"sugarcrepe": "filename", "aro": "image_path", "winoground": "image_1", "local": "file"}[name]
    folder = MAKERS[name](tmp_path / "own", **{key: path})
    with pytest.raises(DataError, match="write a path relative to the images' folder"):
        read_benchmark(Named(name, str(folder)))


def test_links_that_lead_outside_are_refused(tmp_path: Path) -> None:
    image(tmp_path / "outside.png")
    folder = a_local(tmp_path / "own", file="link.png")
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(DataError, match="leads through a symbolic link"):
        local.read(folder)


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("sugarcrepe", {"caption": 3}, "add_att.json: record 0: 'caption' is a int, expected str"),
        ("sugarcrepe", {"negative_caption": " "}, "'negative_caption' is ' ', which is no sentence"),
        ("sugarcrepe", {"caption": "\ud800"}, "which is no sentence"),
        ("sugarcrepe", {"filename": "other.jpg"}, "no image such as other.jpg"),
        ("aro", {"bbox_w": 0}, "its box has 0 x 3 pixels"),
        ("aro", {"bbox_w": 1e300}, "its box lies at [1, 2, 1e+300, 3]"),
        ("aro", {"bbox_y": float("nan")}, "its box lies at [1, nan, 4, 3]"),
        ("aro", {"bbox_x": "1"}, "'bbox_x' is a str"),
        ("aro", {"relation_name": None}, "'relation_name' is a NoneType"),
        ("winoground", {"image_1": "ex_8_img_1"}, "1 of 2 images are not there"),
        ("winoground", {"collapsed_tag": 1}, "line 1: 'collapsed_tag' is a int"),
        ("local", {"negative": []}, "'negative' is empty"),
        ("local", {"negative": ["a dog", 3]}, "'negative' is a int, expected text"),
        ("local", {"category": 3}, "'category' is a int, expected text"),
    ],
)
def test_malformed_files_are_one_line(name: str, changed: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "own", **changed)
    with pytest.raises(ItrpipeError) as raised:
        read_benchmark(Named(name, str(folder)))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("jsonl", "", "holds no pair of captions"),
        ("jsonl", "[]", "line 1 is a list"),
        ("jsonl", "{", "line 1 is not valid JSON"),
        ("jsonl", '{"file": "a.png", "caption": "a cat"}', "has no 'negative'"),
        ("csv", "file,caption,negative\na.png,a cat\n", "has not the 3 fields"),
        ("csv", "file,caption,negative\na.png,a cat,a dog,two\n", "has not the 3 fields"),
        ("csv", 'file,caption,negative\na.png,"a cat,a dog\n', "unexpected end of data"),
        ("csv", "file,caption\na.png,a cat\n", "has no 'negative'"),
    ],
)
def test_malformed_tables_are_refused(kind: str, content: str, expected: str, tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    written(tmp_path / f"benchmark.{kind}", content)
    with pytest.raises(DataError, match=expected):
        local.read(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    written(a_local(tmp_path / "two") / "benchmark.json", [])
    with pytest.raises(UsageError, match="holds 2 data files"):
        local.read(tmp_path / "two")
    (a_sugarcrepe(tmp_path / "six") / "swap_obj.json").unlink()
    with pytest.raises(MissingInputError, match=r"swap_obj\.json: cannot be read"):
        sugarcrepe.read(tmp_path / "six")
    with pytest.raises(MissingInputError, match=r"none of benchmark\.jsonl"):
        local.read(tmp_path / "six")
    written(a_winoground(tmp_path / "w") / "examples.jsonl", lines(EXAMPLE, EXAMPLE))
    with pytest.raises(DataError, match="id 7 is given twice"):
        winoground.read(tmp_path / "w")


def test_names_are_kept_in_one_order() -> None:
    assert benchmark_names(["scenes", "aro=b"]) == ("aro=b", "scenes")
    assert named("local=a=b") == Named("local", "a=b")
    with pytest.raises(ValueError, match="names aro a second time"):
        benchmark_names(["aro=b", "aro=c"])


def test_digests_know_the_content_and_not_the_place(tmp_path: Path) -> None:
    def found(folder: Path) -> dict[str, str]:
        return digests([f"local={folder}", "scenes"], DigestCache(tmp_path / "sources.json"))

    first, moved = found(a_local(tmp_path / "one")), found(a_local(tmp_path / "two"))
    assert first == moved
    assert set(first) == {"benchmark local", "benchmark local images", "benchmark scenes"}
    image(tmp_path / "two" / "other.png")
    assert found(tmp_path / "two") == first  # nobody asks for it
    Image.new("RGB", (9, 9)).save(tmp_path / "two" / "a.png")
    changed = found(tmp_path / "two")
    assert [name for name in first if changed[name] != first[name]] == ["benchmark local images"]
    assert found(a_local(tmp_path / "one", caption="a dog"))["benchmark local"] != first["benchmark local"]


def test_a_part_of_an_image_is_what_pillow_crops(tmp_path: Path) -> None:
    """Also beyond the image, where it is black: as ARO's code does it."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    boxes = np.array([[1, 2, 5, 5], [6, 4, 10, 9], [-2, 0, 3, 2]])
    sizes = np.stack([boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]], axis=1)
    batch = decode_batch(ImageFiles(tmp_path, ["a.png"] * 3, sizes, boxes=boxes), np.arange(3), lambda each: each)
    assert not batch.failed
    assert batch.images is not None
    for box, found in zip(boxes, batch.images, strict=True):
        with Image.open(tmp_path / "a.png") as opened:
            np.testing.assert_array_equal(found.numpy(), np.asarray(opened.crop(tuple(box.tolist()))))


def test_one_photograph_of_a_benchmark_is_one_file_however_it_is_spelled(tmp_path: Path) -> None:
    image(tmp_path / "cafe\u0301.png")
    rows = "".join(f"{name},a cat,a dog\n" for name in ("caf\u00e9.png", ".//cafe\u0301.png"))
    written(tmp_path / "benchmark.csv", f"file,caption,negative\n{rows}")
    assert {pair.file for pair in local.read(tmp_path).pairs} == {"cafe\u0301.png"}
