"""TSV files of the bottom-up-attention tools: both layouts are read back, damaged lines are refused."""

from __future__ import annotations

import base64
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.butd_tsv import importer as butd_tsv
from itrpipe.features.importers.butd_tsv.declaration import ButdTsv
from itrpipe.features.importers.butd_tsv.importer import COLUMNS, TsvSource
from itrpipe.features.importers.matching import WantedImage, match
from itrpipe.features.store import FeatureSpec, write_features

DIM = 7
WIDTH, HEIGHT = 640, 480
SIZE = np.array([[HEIGHT, WIDTH]])


def entry(name: str, regions: int, seed: int = 0) -> dict[str, object]:
    """The values of one line, arrays not yet in base64."""
    rng = np.random.default_rng([regions, seed])
    corners = np.sort(rng.uniform(size=(regions, 2, 2)), axis=1).reshape(regions, 4)
    return {
        "image_id": name,
        "img_id": name,
        "image_w": WIDTH,
        "image_h": HEIGHT,
        "img_w": WIDTH,
        "img_h": HEIGHT,
        "num_boxes": regions,
        "boxes": (corners * [WIDTH, HEIGHT, WIDTH, HEIGHT]).astype("<f4"),
        "features": rng.normal(size=(regions, DIM)).astype("<f4"),
        "objects_id": rng.integers(1600, size=regions).astype("<i8"),
        "objects_conf": rng.uniform(size=regions).astype("<f4"),
        "attrs_id": rng.integers(400, size=regions).astype("<i8"),
        "attrs_conf": rng.uniform(size=regions).astype("<f4"),
    }


def encoded(value: object) -> str:
    return base64.b64encode(value.tobytes()).decode() if isinstance(value, np.ndarray) else str(value)


def write(path: Path, entries: list[dict[str, object]], columns: int, line_end: str = "\r\n", wrap: str = "{}") -> None:
    """Writes a file as the tools do, whose csv writer ends lines with CR and LF."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator=line_end)
        for values in entries:
            row = [(values[name], encoded(values[name])) for name in COLUMNS[columns]]
            writer.writerow([wrap.format(text) if isinstance(value, np.ndarray) else text for value, text in row])


def open_tsv(path: Path) -> TsvSource:
    return butd_tsv.open_source(path, ButdTsv(kind="butd_tsv"))


def read(source: TsvSource, entries: list[int]) -> dict[str, np.ndarray]:
    return source.read(np.array(entries, dtype=np.int64), np.repeat(SIZE, len(entries), axis=0))


def assert_row(rows: dict[str, np.ndarray], position: int, values: dict) -> None:
    regions = values["num_boxes"]
    assert rows["count"][position] == regions
    np.testing.assert_array_equal(rows["regions"][position, :regions], values["features"].astype("f2"))
    fractions = values["boxes"] / np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    np.testing.assert_allclose(rows["boxes"][position, :regions], fractions, atol=1e-6)
    for name, column in (("labels", "objects_id"), ("scores", "objects_conf")):
        if name in rows:
            np.testing.assert_array_equal(rows[name][position, :regions], values[column])
    for name, column in (("attributes", "attrs_id"), ("attribute_scores", "attrs_conf")):
        if name in rows:
            np.testing.assert_array_equal(rows[name][position, :regions], values[column])
    for name in rows.keys() - {"count"}:
        assert not rows[name][position, regions:].any()


ENTRIES = [entry(name, regions) for name, regions in (("9", 36), ("25", 10), ("30", 100), ("34", 36), ("36", 11))]


@pytest.mark.parametrize("columns", [6, 10])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("wrap", ["{}", "b'{}'", 'b"{}"'])
def test_both_layouts_are_read_back(tmp_path: Path, columns: int, line_end: str, wrap: str) -> None:
    path = tmp_path / "features.tsv"
    with path.open("w", newline="") as file:  # csv would quote what holds quotes
        for values in ENTRIES:
            texts = [(values[name], encoded(values[name])) for name in COLUMNS[columns]]
            row = [wrap.format(text) if isinstance(value, np.ndarray) else text for value, text in texts]
            file.write("\t".join(row) + line_end)
    source = open_tsv(path)
    labelled = columns == 10
    assert source.names == ["9", "25", "30", "34", "36"]
    assert source.captions is None
    assert source.spec == FeatureSpec(100, DIM, boxes=True, labels=labelled, scores=labelled, attributes=labelled)
    rows = read(source, [0, 2, 4])
    assert set(rows) == set(source.spec.shapes())
    for position, number in enumerate((0, 2, 4)):
        assert_row(rows, position, ENTRIES[number])


@pytest.mark.parametrize("columns", [6, 10])
def test_the_tools_own_writer_is_read_and_rows_reach_the_feature_file(tmp_path: Path, columns: int) -> None:
    write(tmp_path / "features.tsv", ENTRIES, columns)
    source = open_tsv(tmp_path / "features.tsv")
    pieces = [(np.array(rows), read(source, rows)) for rows in ([0, 1, 2], [3, 4])]
    write_features(tmp_path / "features.h5", source.names, source.spec, "butd_tsv", pieces)


def test_lines_may_lack_padding_their_end_or_be_blank(tmp_path: Path) -> None:
    path = tmp_path / "features.tsv"
    write(path, ENTRIES, 6, "\n")
    path.write_text("\n" + path.read_text().replace("=\n", "\n").replace("=\n", "\n\r\n").rstrip("\n="))
    rows = read(open_tsv(path), list(range(5)))
    for position, values in enumerate(ENTRIES):
        assert_row(rows, position, values)


def test_a_folder_joins_its_files(tmp_path: Path) -> None:
    write(tmp_path / "b.tsv.1.TSV", ENTRIES[2:], 6)
    write(tmp_path / "a.tsv", ENTRIES[:3], 6)
    (tmp_path / "notes.txt").write_text("not features")
    source = open_tsv(tmp_path)
    assert [path.name for path in butd_tsv.files(tmp_path)] == ["a.tsv", "b.tsv.1.TSV"]
    assert source.names == ["9", "25", "30", "34", "36"]
    assert "5 images in 2 files; 10 to 100 regions of width 7; 1 images come twice" in source.summary
    rows = read(source, [1, 2, 3, 4])
    for position, values in enumerate(ENTRIES[1:]):
        assert_row(rows, position, values)
    found = match(source, [WantedImage("x", "val2014/COCO_val2014_000000000034.jpg", [])])
    assert found.entries.tolist() == [3]


def test_two_lines_of_one_image_must_be_equal(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", ENTRIES, 6)
    write(tmp_path / "b.tsv", [entry("30", 100, seed=1)], 6)
    with pytest.raises(DataError, match=r"b\.tsv has other features of image '30' than .*a\.tsv"):
        open_tsv(tmp_path)


def test_opening_does_not_read_the_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the first line tells where the others end."""
    wide = [entry(str(number), 36) for number in range(40)]
    for number, values in enumerate(wide):
        values["features"] = np.full((36, 2048), number, dtype="<f4")
    write(tmp_path / "features.tsv", wide, 10)
    read_bytes, pread = [0], butd_tsv.os.pread

    def counted(*arguments: int) -> bytes:
        content = pread(*arguments)
        read_bytes[0] += len(content)
        return content

    monkeypatch.setattr(butd_tsv.os, "pread", counted)
    assert open_tsv(tmp_path / "features.tsv").names == [str(number) for number in range(40)]
    assert read_bytes[0] < (tmp_path / "features.tsv").stat().st_size / 4


def test_another_picture_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "features.tsv", ENTRIES, 6)
    source = open_tsv(tmp_path / "features.tsv")
    scaled = source.read(np.array([1]), np.array([[241, 320]]))  # half as large, rounded
    assert_row(scaled, 0, ENTRIES[1])
    with pytest.raises(DataError, match=r"image '25' is 640 x 480 pixels there and 480 x 640 in the dataset"):
        source.read(np.array([0, 1]), np.array([[480, 640], [640, 480]]))
    with pytest.raises(DataError, match="another picture"):
        source.read(np.array([0]), np.array([[480, 655]]))


def _set(column: str, value: object) -> Callable[[dict], None]:
    return lambda values: values.__setitem__(column, value)


def _bad_feature(value: float) -> Callable[[dict], None]:
    return lambda values: values["features"].__setitem__((3, 2), value)


def _bad_box(box: list[float]) -> Callable[[dict], None]:
    return lambda values: values["boxes"].__setitem__(5, box)


AT_OPENING = [
    (6, _set("num_boxes", "many"), r"line 2: num_boxes is 'many', not a number of regions"),
    (
        6,
        _set("num_boxes", 12),
        r"line 2 \(image '25'\) has .* characters of features, and 448 for 12 regions of width 7",
    ),
    (6, _set("features", np.zeros((10, DIM - 1), "<f4")), r"line 2 \(image '25'\) .*: it is cut off"),
    (6, _set("image_id", ""), r"line 2 has no image name"),
    (6, _set("boxes", "a\tb"), r"line 2"),
    (6, _set("boxes", "a\nb"), r"line 2 has 5 columns and should have 6"),
]
AT_READING = [
    (6, _bad_feature(np.nan), "features of image '25' hold nan, which float16 cannot store"),
    (6, _bad_feature(1e6), "features of image '25' hold 1000000.0, which float16 cannot store"),
    (6, _bad_box([0, 0, 700, 10]), r"region 5 of image '25' has the box \(0, 0, 1.094"),
    (6, _bad_box([300, 0, 200, 10]), "region 5 of image '25' has the box"),
    (6, _bad_box([np.inf, 0, 200, 10]), "region 5 of image '25' has the box"),
    (6, _set("image_w", "wide"), "image_w of image '25' is 'wide'"),
    (6, _set("image_h", 0), "image_h of image '25' is '0'"),
    (6, _set("boxes", np.zeros((9, 4), "<f4")), "boxes of image '25' have 144 bytes and should have 160"),
    (6, _set("boxes", "?" * 216), "boxes of image '25' are not base64"),
    (10, _set("objects_id", np.zeros(10, "<i4")), "objects_id of image '25' have 40 bytes and should have 80"),
    (10, _set("objects_id", np.full(10, 40000)), "objects_id of image '25' hold 40000"),
    (10, _set("attrs_conf", np.full(10, np.nan, "<f4")), "attrs_conf of image '25' hold nan, which float32"),
]


@pytest.mark.parametrize(("columns", "damage", "message"), AT_OPENING + AT_READING)
def test_damage_is_named(tmp_path: Path, columns: int, damage: Callable[[dict], None], message: str) -> None:
    entries = [entry(name, regions) for name, regions in (("9", 36), ("25", 10), ("30", 40))]
    damage(entries[1])
    path = tmp_path / "features.tsv"
    lines = ["\t".join(encoded(values[name]) for name in COLUMNS[columns]) + "\n" for values in entries]
    path.write_text("".join(lines))
    with pytest.raises(DataError, match=message) as caught:
        read(open_tsv(path), [1])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_boxes_that_tools_clip_one_pixel_late_are_clipped(tmp_path: Path) -> None:
    values = entry("9", 10)
    _bad_box([-0.5, 0, 640.5, 481])(values)
    write(tmp_path / "features.tsv", [values], 6)
    np.testing.assert_array_equal(read(open_tsv(tmp_path / "features.tsv"), [0])["boxes"][0, 5], [0, 0, 1, 1])


def test_an_interrupted_extraction_is_noticed_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "features.tsv"
    write(path, ENTRIES, 6)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"line 5 \(image '36'\) .* it is cut off; remove the line"):
        open_tsv(path)


def test_headers_other_columns_and_empty_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.tsv"
    path.write_text("\t".join(COLUMNS[6]) + "\n")
    with pytest.raises(DataError, match=r"line 1: num_boxes is 'num_boxes', .* if it is a header"):
        open_tsv(path)
    path.write_text("a\tb\tc\n")
    with pytest.raises(DataError, match="line 1 has 3 columns and should have 6 or 10"):
        open_tsv(path)
    path.write_text("\n\n")
    with pytest.raises(DataError, match="no line with regions"):
        open_tsv(path)
    with pytest.raises(MissingInputError, match=r"is not a \.tsv file or a folder"):
        open_tsv(tmp_path / "absent.tsv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match=r"is not a \.tsv file or a folder"):
        open_tsv(tmp_path / "empty")


def test_images_without_regions_have_a_count_of_zero(tmp_path: Path) -> None:
    write(tmp_path / "features.tsv", [entry("1", 0), entry("2", 3), entry("3", 0)], 10)
    rows = read(open_tsv(tmp_path / "features.tsv"), [0, 1, 2])
    assert rows["count"].tolist() == [0, 3, 0]
    assert not rows["regions"][[0, 2]].any()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), columns=st.sampled_from([6, 10]), cut=st.booleans())
def test_random_damage_is_an_error_or_harmless(tmp_path: Path, data: st.DataObject, columns: int, cut: bool) -> None:
    path = tmp_path / "features.tsv"
    entries = [entry(name, regions) for name, regions in (("9", 2), ("25", 1), ("30", 3))]
    write(path, entries, columns)
    content = bytearray(path.read_bytes())
    # The first line tells how wide features are, so of a file that ends in it nothing can be known.
    position = data.draw(st.integers(content.index(b"\n") + 1 if cut else 0, len(content) - 1))
    if cut:
        del content[position:]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        source = open_tsv(path)
        rows = read(source, list(range(len(source.names))))
    except DataError:
        return
    assert np.isfinite(rows["regions"]).all()
    assert ((rows["boxes"] >= 0) & (rows["boxes"] <= 1)).all()
    if cut:
        for position in range(len(source.names)):
            assert_row(rows, position, entries[position])
