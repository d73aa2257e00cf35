"""Images of a dataset are found among published features by their names or captions, or the source is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.features.importers.matching import WantedImage, match, names_of
from itrpipe.features.store import FeatureSpec


@dataclass
class Source:
    """Names and captions of features that are never read."""

    names: Sequence[str]
    captions: Sequence[Sequence[str]] | None = None
    path: Path = Path("features")
    spec: FeatureSpec = field(default_factory=lambda: FeatureSpec(1, 1))
    summary: str = ""

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        raise AssertionError("matching reads no features")


def sentences(number: int) -> list[str]:
    return [f"Sentence {letter} of image {number}." for letter in "abcde"]


def image(image_id: str, file: str = "unknown.png", number: int | None = None) -> WantedImage:
    return WantedImage(image_id, file, [] if number is None else sentences(number))


@pytest.mark.parametrize(
    "name",
    [
        "COCO_train2014_000000000009",
        "COCO_train2014_000000000009.jpg",
        "coco_train2014_000000000009.npz",
        "train2014/COCO_train2014_000000000009.jpg.npz",
        r"train2014\COCO_train2014_000000000009.JPG",
        "000000000009.png",
        "000000000009",
        "9",
        " 9 ",
    ],
)
@pytest.mark.parametrize("wanted", [image("9"), image("x", "train2014/COCO_train2014_000000000009.jpg")])
def test_all_ways_to_write_a_coco_number(name: str, wanted: WantedImage) -> None:
    found = match(Source(["10", name, "COCO_train2014_000000000090"]), [wanted])
    assert (found.entries.tolist(), found.by_captions) == ([1], 0)
    assert found.entries.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("flickr30k_000001000092.npz", "1000092.jpg"),
        ("1000092795", "flickr30k-images/1000092795.jpg"),
        ("1000092795.jpg", "1000092795.png"),
        ("a/b.c.jpg", "b.c.npz"),
    ],
)
def test_file_names_stems_and_numbers(name: str, file: str) -> None:
    assert match(Source(["0", name]), [image("x", file)]).entries.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("train_5.jpg", image("5")),  # may count anything
        ("img.1", image("img.2")),  # not a suffix
        ("9", image("90", "COCO_train2014_000000000090.jpg")),
        ("", image("x", "y.jpg")),
    ],
)
def test_names_that_only_resemble_do_not_match(name: str, wanted: WantedImage) -> None:
    with pytest.raises(DataError, match=r"features has 1 images, but none for .* by name \(1 of 1 .* are like "):
        match(Source([name]), [wanted])


def test_missing_images_are_counted_and_the_source_shows_a_name() -> None:
    with pytest.raises(DataError) as caught:
        match(Source(["coco_1.npz", "2"]), [image("1"), image("3"), image("4")])
    assert str(caught.value) == (
        "features has 2 images, but none for '3' by name (2 of 3 images of the dataset not found; names there are like "
        "'coco_1.npz'); use the features of this dataset."
    )


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(DataError, match=r"names '1\.jpg' twice, in entries 0 and 2"):
        match(Source(["1.jpg", "2.jpg", "1.jpg"]), [image("2")])


def test_the_same_name_twice_is_settled_by_captions() -> None:
    source = Source(["1", "2", "1"], [sentences(0), sentences(1), sentences(2)])
    found = match(source, [image("1", number=2), image("2", number=1)])
    assert (found.entries.tolist(), found.by_captions) == ([2, 1], 1)
    with pytest.raises(DataError, match=r"more than one entry for '1' .*\(1 of 1 "):
        match(source, [image("1", number=7)])


def test_a_file_name_in_two_folders_needs_the_folder() -> None:
    source = Source(["train/1.jpg", "val/1.jpg"])
    assert match(source, [image("x", "val/1.jpg")]).entries.tolist() == [1]
    with pytest.raises(DataError, match=r"more than one entry for 'x' \(test/1\.jpg\)"):
        match(source, [image("x", "test/1.jpg")])


def test_exact_names_win_over_derived_ones() -> None:
    assert match(Source(["9", "coco_000000000009.jpg"]), [image("9")]).entries.tolist() == [0]


def test_identifier_and_file_must_not_name_two_entries() -> None:
    """A dataset that numbers its own images must not get those with the same COCO number."""
    with pytest.raises(DataError, match=r"more than one entry for '9' \(COCO_train2014_000000000025\.jpg\)"):
        match(Source(["9", "25"]), [image("9", "COCO_train2014_000000000025.jpg")])


def test_captions_are_compared_without_case_space_and_punctuation() -> None:
    source = Source(["a", "b"], [sentences(0), sentences(1)])
    texts = [text.upper().replace(" ", "\t ").rstrip(".") for text in sentences(1)]
    found = match(source, [WantedImage("x", "y", [*texts, "a sixth one"])])
    assert (found.entries.tolist(), found.by_captions) == ([1], 1)


def test_fewer_captions_than_an_entry_has_are_not_enough() -> None:
    source = Source(["a"], [sentences(0)])
    with pytest.raises(DataError, match="by name or by its captions"):
        match(source, [WantedImage("x", "y", sentences(0)[:4])])


def test_equal_captions_of_two_entries_are_refused() -> None:
    with pytest.raises(DataError, match="more than one entry for 'x'"):
        match(Source(["a", "b"], [sentences(0), sentences(0)]), [image("x", number=0)])


def test_names_that_contradict_the_captions_are_refused() -> None:
    source = Source(["0", "1", "2", "3"], [sentences(number) for number in range(4)])
    shifted = [image(str(number), number=(number + 1) % 4) for number in range(4)]
    with pytest.raises(DataError, match=r"4 of 4 images found by name have other captions .*, first '0'"):
        match(source, shifted)
    few = [image("0", number=0), image("1", number=1), image("2", number=2), image("3", number=0)]
    assert match(source, few).entries.tolist() == [0, 1, 2, 3]


def test_one_entry_for_two_images_is_refused() -> None:
    with pytest.raises(DataError, match=r"one entry, '9', for both '9' and '000000000009'"):
        match(Source(["8", "9"]), [image("9"), image("8"), image("000000000009")])


@given(st.lists(st.integers(0, 10**11), unique=True, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_any_order_is_found(numbers: list[int], random) -> None:
    forms = ["{}", "{:012}", "COCO_val2014_{:012}.jpg", "val2014/coco_val2014_{:012}.npz", "flickr30k_{:012}"]
    source = Source([random.choice(forms).format(number) for number in numbers])
    order = random.sample(range(len(numbers)), len(numbers))
    found = match(source, [image(str(numbers[entry])) for entry in order])
    assert found.entries.tolist() == order


@given(st.text(max_size=30))
def test_every_text_has_names_and_the_first_is_itself(text: str) -> None:
    names = names_of(text)
    assert names[0] == text.strip()
    assert len(set(names)) == len(names)


def test_importers_are_light_to_import() -> None:
    """Plans ask which importer knows a path; that must not load what only reading needs."""
    modules = "precomp, butd_tsv, uniter, arrays, matching"
    heavy = {"h5py", "torch", "PIL", "lmdb", "msgpack", "lz4", "pyarrow", "transformers"}
    code = f"import sys; from itrpipe.features.importers import {modules}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
