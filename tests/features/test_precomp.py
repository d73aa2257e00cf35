"""Published `*_precomp` folders: every layout is read, every contradiction is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.importers.matching import Match, WantedImage, match
from itrpipe.features.importers.precomp import importer as precomp
from itrpipe.features.importers.precomp.declaration import Precomp
from itrpipe.features.importers.precomp.importer import PrecompSource
from itrpipe.features.store import FeatureFile, FeatureSpec, write_features

SIZES = {"train": 6, "dev": 3, "test": 2}
REGIONS, DIM, GLOBAL = 4, 5, 3


def captions_of(split: str, row: int) -> list[str]:
    return [f"Image {row} of {split}, caption {number} ." for number in range(5)]


def write_split(folder: Path, split: str, n: int, dtype: str = "f4", *, repeats: int = 1, with_global: bool = True):
    rng = np.random.default_rng([len(split), n])
    features = rng.normal(size=(n, REGIONS, DIM)).astype(dtype)
    np.save(folder / f"{split}_ims.npy", np.repeat(features, repeats, axis=0))
    if with_global:
        np.save(folder / f"{split}_global.npy", rng.normal(size=(n, GLOBAL)).astype(dtype))
    lines = [line for row in range(n) for line in captions_of(split, row)]
    (folder / f"{split}_caps.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / f"{split}_ids.txt").write_text("".join(f"{split}_{row}.jpg\n" for row in range(n)), encoding="utf-8")
    return features


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, n in SIZES.items():
        write_split(tmp_path, split, n)
    return tmp_path


def wanted(split: str, row: int, image_id: str | None = None, file: str = "unknown.png") -> WantedImage:
    return WantedImage(image_id or f"{split}_{row}", file, captions_of(split, row))


EVERYTHING = [wanted(split, row) for split, n in SIZES.items() for row in range(n)]


def open_folder(path: Path) -> PrecompSource:
    return precomp.open_source(path, Precomp(kind="precomp"))


def read_all(source: PrecompSource, images: list[WantedImage], block: int = 4) -> dict[str, np.ndarray]:
    """The images' rows in their order, read as the contract asks: block by block, entries rising."""
    entries = match(source, images).entries
    order = np.argsort(entries)
    sizes = np.ones((block, 2), dtype=np.int64)
    blocks = [
        source.read(part := entries[order[i : i + block]], sizes[: len(part)]) for i in range(0, len(order), block)
    ]
    rows = {name: np.concatenate([arrays[name] for arrays in blocks]) for name in blocks[0]}
    return {name: values[np.argsort(order)] for name, values in rows.items()}


def places(source: PrecompSource, found: Match) -> list[tuple[str, int]]:
    return [(source.splits[position].name, row) for position, row in source.places[found.entries].tolist()]


def expected_row(path: Path, split: str, row: int) -> np.ndarray:
    return np.load(path / f"{split}_ims.npy", allow_pickle=False)[row].astype(np.float16)


def test_a_folder_is_described(folder: Path) -> None:
    assert precomp.layout(folder)
    source = open_folder(folder)
    assert {split.name: split.images for split in source.splits} == SIZES
    assert source.spec == FeatureSpec(REGIONS, DIM, GLOBAL)
    assert (source.path, len(source.names)) == (folder, 11)
    assert source.names[5] == "train_5.jpg"
    assert source.captions is not None
    assert source.captions[5] == tuple(captions_of("train", 5))
    assert source.summary == "precomp folder: train 6, dev 3, test 2 images; 4 regions of width 5"


def test_the_files_are_those_that_are_read(folder: Path) -> None:
    (folder / "vocabulary.txt").write_text("not of this format")
    (folder / "dev_ids.txt").unlink()
    kinds = ("ims.npy", "caps.txt", "ids.txt", "global.npy")
    expected = {f"{split}_{kind}" for split in SIZES for kind in kinds} - {"dev_ids.txt"}
    assert {file.name for file in precomp.files(folder)} == expected


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_every_float_type_is_read(tmp_path: Path, dtype: str) -> None:
    features = write_split(tmp_path, "train", 6, dtype)
    rows = read_all(open_folder(tmp_path), EVERYTHING[:6])
    assert rows["regions"].dtype == np.float16
    np.testing.assert_array_equal(rows["regions"], features.astype(np.float16))
    np.testing.assert_array_equal(rows["count"], [REGIONS] * 6)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_rows_follow_the_dataset_and_not_the_folder(folder: Path, block: int) -> None:
    order = [EVERYTHING[index] for index in (9, 0, 6, 5, 1, 10, 8)]
    rows = read_all(open_folder(folder), order, block)
    for position, image in enumerate(order):
        split, row = image.image_id.split("_")
        np.testing.assert_array_equal(rows["regions"][position], expected_row(folder, split, int(row)))
        stored = np.load(folder / f"{split}_global.npy", allow_pickle=False)[int(row)].astype(np.float16)
        np.testing.assert_array_equal(rows["global"][position], stored)


def test_rows_reach_the_feature_file(folder: Path, tmp_path: Path) -> None:
    source = open_folder(folder)
    entries = match(source, EVERYTHING).entries
    path = tmp_path / "features.h5"
    sizes = np.ones((len(entries), 2), dtype=np.int64)
    slices = [np.arange(len(entries))[start : start + 4] for start in range(0, len(entries), 4)]
    pieces = [(rows, source.read(entries[rows], sizes[rows])) for rows in slices]
    write_features(path, [image.image_id for image in EVERYTHING], source.spec, "precomp", pieces)
    file = FeatureFile.open(path)
    assert file.regions is not None
    np.testing.assert_array_equal(file.regions[file.rows(["test_1"])[0]], expected_row(folder, "test", 1))
    np.testing.assert_array_equal(file.regions[:], read_all(source, EVERYTHING)["regions"])


@pytest.mark.parametrize("ids_repeated", [False, True])
def test_files_that_repeat_every_image_five_times(tmp_path: Path, ids_repeated: bool) -> None:
    features = write_split(tmp_path, "train", 6, repeats=5)
    if ids_repeated:
        ids = [f"train_{row}.jpg\n" for row in range(6) for _ in range(5)]
        (tmp_path / "train_ids.txt").write_text("".join(ids))
    source = open_folder(tmp_path)
    assert (source.splits[0].images, source.splits[0].repeats) == (6, 5)
    images = [wanted("train", row) for row in (4, 2)]
    rows = read_all(source, images)
    np.testing.assert_array_equal(rows["regions"], features[[4, 2]].astype(np.float16))
    assert rows["global"].shape == (2, GLOBAL)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_images_with_another_number_of_captions_than_five(tmp_path: Path, each: int, repeated: bool) -> None:
    features = write_split(tmp_path, "train", 6, repeats=each if repeated else 1)
    (tmp_path / "train_ids.txt").unlink()
    lines = [line for row in range(6) for line in captions_of("train", row)[:each]]
    (tmp_path / "train_caps.txt").write_text("\n".join(lines))
    rows = read_all(open_folder(tmp_path), EVERYTHING[5::-1])
    np.testing.assert_array_equal(rows["regions"], features[::-1].astype(np.float16))


def test_captions_that_are_not_as_many_for_each_image_are_left_out(folder: Path) -> None:
    _drop_a_line("train_caps.txt")(folder)
    with pytest.raises(DataError, match=r"name the images in train_ids\.txt, one a line, and take train_caps"):
        open_folder(folder)
    (folder / "train_caps.txt").unlink()
    assert len(match(open_folder(folder), EVERYTHING[:6]).entries) == 6


def test_rows_that_are_not_repetitions_are_refused(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 6, repeats=5)
    features = np.load(tmp_path / "train_ims.npy", allow_pickle=False)
    features[3, 0, 0] += 1
    np.save(tmp_path / "train_ims.npy", features)
    with pytest.raises(DataError, match="are not 3 times the same image"):
        open_folder(tmp_path)


def test_ids_that_break_the_repetition_are_refused(tmp_path: Path) -> None:
    write_split(tmp_path, "train", 6, repeats=5)
    ids = [f"train_{row}.jpg\n" for row in range(6) for _ in range(5)]
    ids[7] = "other.jpg\n"
    (tmp_path / "train_ids.txt").write_text("".join(ids))
    with pytest.raises(DataError, match=r"train_ids\.txt, line 8: 'other\.jpg'"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("line", "image_id", "file"),
    [
        ("1000092795.jpg", "1000092795.jpg", "x.png"),
        ("1000092795.jpg", "7", "images/1000092795.jpg"),
        ("1000092795", "7", "images/1000092795.jpg"),
        ("391895", "7", "val2014/COCO_val2014_000000391895.jpg"),
        ("COCO_val2014_000000391895.jpg", "391895", "x.png"),
        ("000000391895", "391895", "x.png"),
        ("val2014/COCO_val2014_000000391895.jpg", "7", "COCO_val2014_000000391895.png"),
    ],
)
def test_images_are_found_by_any_of_their_names(tmp_path: Path, line: str, image_id: str, file: str) -> None:
    write_split(tmp_path, "dev", 2)
    (tmp_path / "dev_ids.txt").write_text(f"something else.jpg\n{line}\n")
    found = match(open_folder(tmp_path), [WantedImage(image_id, file, captions_of("dev", 1))])
    assert (found.entries.tolist(), found.by_captions) == ([1], 0)


def test_images_without_ids_are_found_by_their_captions(folder: Path) -> None:
    for split in SIZES:
        (folder / f"{split}_ids.txt").unlink()
    source = open_folder(folder)
    images = [
        WantedImage("first", "x.jpg", [text.upper().replace(" ", "\t ") for text in captions_of("dev", 2)]),
        WantedImage("second", "y.jpg", [text.replace(",", " ,").rstrip(" .") for text in captions_of("test", 0)]),
        WantedImage("third", "z.jpg", [*captions_of("train", 3), "a sixth caption, as some images of COCO have"]),
    ]
    found = match(source, images)
    assert places(source, found) == [("dev", 2), ("test", 0), ("train", 3)]
    assert found.by_captions == 3


def test_captions_are_tried_for_images_without_a_matching_id(folder: Path) -> None:
    images = [wanted("train", 0), wanted("train", 1, image_id="renamed")]
    found = match(open_folder(folder), images)
    assert found.entries.tolist() == [0, 1]
    assert found.by_captions == 1


def test_ids_alone_suffice(folder: Path) -> None:
    for split in SIZES:
        (folder / f"{split}_caps.txt").unlink()
    rows = read_all(open_folder(folder), EVERYTHING)
    np.testing.assert_array_equal(rows["regions"][7], expected_row(folder, "dev", 1))


@pytest.mark.parametrize("ids", [True, False])
def test_test_may_be_a_part_of_testall(tmp_path: Path, ids: bool) -> None:
    features = write_split(tmp_path, "testall", 4)
    write_split(tmp_path, "test", 2)
    for split, rows in (("test", (0, 1)), ("testall", (0, 1, 2, 3))):
        # In the two files the same image may be written in two ways.
        name = "COCO_val2014_{:012}.jpg" if split == "test" else "{}"
        (tmp_path / f"{split}_ids.txt").write_text("".join(name.format(row + 10) + "\n" for row in rows))
        if not ids:
            (tmp_path / f"{split}_ids.txt").unlink()
        lines = [line for row in rows for line in captions_of("coco", row)]
        (tmp_path / f"{split}_caps.txt").write_text("\n".join(lines))
    source = open_folder(tmp_path)
    assert len(source.names) == 4
    images = [wanted("coco", row, image_id=str(row + 10)) for row in (3, 1)]
    found = match(source, images)
    assert places(source, found) == [("testall", 3), ("test", 1)]
    assert found.by_captions == (0 if ids else 2)
    np.testing.assert_array_equal(read_all(source, images)["regions"][0], features[3].astype(np.float16))


def test_ids_that_count_the_images_of_each_split_do_no_harm(folder: Path) -> None:
    for split, n in SIZES.items():
        (folder / f"{split}_ids.txt").write_text("".join(f"{row}\n" for row in range(n)))
    source = open_folder(folder)
    assert len(source.names) == 11
    found = match(source, [wanted("dev", 1, image_id="1"), wanted("test", 0), wanted("train", 0, image_id="0")])
    assert places(source, found) == [("dev", 1), ("test", 0), ("train", 0)]


def test_images_that_are_not_in_the_folder_are_counted_and_named(folder: Path) -> None:
    images = [*EVERYTHING, wanted("other", 1), wanted("other", 2)]
    with pytest.raises(DataError, match=r"has 11 images, but none for 'other_1' .*\(2 of 13 images"):
        match(open_folder(folder), images)


def test_ids_of_another_numbering_are_refused(folder: Path) -> None:
    images = [wanted("train", (row + 1) % 6, image_id=f"train_{row}") for row in range(6)]
    with pytest.raises(DataError, match=r"6 of 6 images found by name have other captions .*first 'train_0'"):
        match(open_folder(folder), images)


def test_a_few_edited_captions_do_no_harm(folder: Path) -> None:
    images = [wanted("train", row) for row in range(5)]
    images.append(WantedImage("train_5", "x.jpg", ["corrected", *captions_of("train", 5)[1:]]))
    assert match(open_folder(folder), images).entries.tolist() == list(range(6))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 70000.0])
@pytest.mark.parametrize("name", ["ims", "global"])
def test_values_that_float16_cannot_hold_are_refused(folder: Path, name: str, bad: float) -> None:
    features = np.load(folder / f"dev_{name}.npy", allow_pickle=False)
    features[1, -1] = bad
    np.save(folder / f"dev_{name}.npy", features)
    source = open_folder(folder)
    with pytest.raises(DataError, match=rf"dev_{name}.npy: features of image 'dev_1.jpg' hold .*\(1 images"):
        read_all(source, EVERYTHING)


def _save(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, array)


def _truncate(folder: Path) -> None:
    path = folder / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-4])


def _zip(folder: Path) -> None:
    with (folder / "train_ims.npy").open("wb") as file:
        np.savez(file, features=np.zeros(3))


def _drop_a_line(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join(lines[:-1]))

    return change


def _forget_names(folder: Path) -> None:
    (folder / "dev_ids.txt").unlink()
    (folder / "dev_caps.txt").unlink()


DAMAGES = [
    (_save("train_ims.npy", np.asfortranarray(np.ones((6, REGIONS, DIM)))), "Fortran order"),
    (_save("train_ims.npy", np.array([[["a", 1]]], dtype=object)), r"train_ims\.npy cannot be read as \.npy"),
    (_save("train_ims.npy", np.zeros((6, REGIONS, DIM), dtype=np.int32)), "has type int32"),
    (_save("train_ims.npy", np.zeros((6, DIM))), r"has shape \(6, 5\); \[images, regions, width\]"),
    (_save("train_ims.npy", np.zeros((6, 0, DIM))), r"has shape \(6, 0, 5\)"),
    (_save("train_ims.npy", np.zeros((7, REGIONS, DIM))), r"train_ims\.npy has 7 rows and train_caps\.txt 30"),
    (
        _save("dev_ims.npy", np.zeros((3, REGIONS, 6))),
        r"has rows of \(4, 5\) and dev_ims\.npy of \(4, 6\)",
    ),
    (_save("dev_global.npy", np.zeros((3, 2))), r"train_global\.npy is 3 and of dev_global\.npy 2"),
    (_save("dev_global.npy", np.zeros((2, GLOBAL))), r"dev_global\.npy has 2 rows"),
    (lambda folder: (folder / "test_global.npy").unlink(), r"of test_global\.npy None"),
    (_truncate, r"train_ims\.npy cannot be read as \.npy"),
    (_zip, r"\.npz archive"),
    (_drop_a_line("dev_caps.txt"), r"dev_ims\.npy has 3 rows and dev_caps\.txt 14 captions"),
    (_drop_a_line("dev_ids.txt"), r"dev_ids\.txt has 2 lines and dev_ims\.npy 3"),
    (_forget_names, r"neither dev_ids\.txt nor dev_caps\.txt"),
    (lambda folder: (folder / "dev_caps.txt").write_bytes(b"caf\xe9\n" * 15), r"dev_caps\.txt: is not UTF-8"),
    (lambda folder: (folder / "dev_ids.txt").write_text("a.jpg\nb.jpg\na.jpg"), r"dev_ids\.txt names 'a\.jpg' twice"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[message for _, message in DAMAGES])
def test_damaged_folders_are_refused_in_one_line(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        match(open_folder(folder), EVERYTHING)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"absent is not a folder"):
        open_folder(tmp_path / "absent")
    with pytest.raises(MissingInputError, match=r"none of train_ims\.npy"):
        open_folder(tmp_path)


def test_other_splits_than_those_of_precomp_folders_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "val_ims.npy", np.zeros((1, 2, 3)))
    assert precomp.layout(tmp_path)
    with pytest.raises(MissingInputError, match=r"none of train_ims\.npy.* but val_ims\.npy; rename"):
        open_folder(tmp_path)


def test_cells_of_a_grid_have_boxes(folder: Path) -> None:
    source = precomp.open_source(folder, Precomp(kind="precomp", grid=(2, 2)))
    assert source.spec.boxes
    boxes = read_all(source, EVERYTHING)["boxes"]
    half = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
    assert boxes.shape == (len(EVERYTHING), REGIONS, 4)
    assert (boxes == np.array(half, dtype=np.float32)).all()
    wide = precomp.open_source(folder, Precomp(kind="precomp", grid=(1, 4)))
    assert read_all(wide, EVERYTHING)["boxes"][0, 1].tolist() == [0.25, 0, 0.5, 1]


def test_without_a_grid_there_are_no_boxes(folder: Path) -> None:
    assert "boxes" not in read_all(open_folder(folder), EVERYTHING)


def test_a_grid_of_another_size_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"grid = \[3, 2\] has 6 cells and the images of .* 4 regions"):
        precomp.open_source(folder, Precomp(kind="precomp", grid=(3, 2)))
