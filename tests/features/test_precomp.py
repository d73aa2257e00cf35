"""`*_precomp` folders: splits that share images, repeated images, and folders that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.errors import DataError, UsageError
from itrpipe.features.importers.matching import WantedImage, match
from itrpipe.features.importers.precomp.declaration import Precomp
from itrpipe.features.importers.precomp.importer import PrecompSource, layout, open_source
from tests.features.layouts import LAYOUTS, images, precomp
from tests.features.test_importers import assert_equal, imported

LAYOUT = LAYOUTS["precomp"]


def opened(path: Path, grid: tuple[int, int] | tuple[()] = ()) -> PrecompSource:
    return open_source(path, Precomp(kind="precomp", grid=grid))


def write(folder: Path, name: str, content: Any) -> None:
    if isinstance(content, np.ndarray):
        np.save(folder / name, content)
    else:
        (folder / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("ids", ["none", "of images", "of captions"])
def test_images_have_any_number_of_captions(tmp_path: Path, each: int, repeated: bool, ids: str) -> None:
    """Old files repeat every image for each of its captions, and their ids too."""
    made = [image | {"captions": image["captions"][:each]} for image in images(ragged=False)]
    precomp(tmp_path, made, repeats=each if repeated else 1, ids=ids != "none")
    if ids == "of captions":
        for split, part in (("train", made[:3]), ("dev", made[3:5]), ("test", made[5:])):
            write(tmp_path, f"{split}_ids.txt", [image["name"] for image in part for _ in range(each)])
    assert opened(tmp_path).summary == "precomp folder: train 3, dev 2, test 1 images; 4 regions of width 7"
    assert_equal(LAYOUT, imported(LAYOUT, tmp_path, made[::-1]), made[::-1])


@pytest.mark.parametrize("ids", [True, False])
def test_test_may_be_a_part_of_testall(tmp_path: Path, ids: bool) -> None:
    made = images(ragged=False)
    precomp(tmp_path, made, ids=ids)
    for file in tmp_path.glob("train_*"):
        file.replace(file.with_name(file.name.replace("train", "testall")))
        file.with_name(file.name.replace("train", "dev")).unlink()
    if ids:  # the same image may be written in two ways
        write(tmp_path, "test_ids.txt", ["COCO_val2014_000000000009.jpg"])
    write(tmp_path, "test_caps.txt", made[0]["captions"])
    source = opened(tmp_path)
    assert len(source.names) == 3
    found = match(source, [WantedImage(image["name"], "x", image["captions"]) for image in made[:3]])
    assert (found.entries.tolist(), found.by_captions) == ([0, 1, 2], 0 if ids else 3)
    rows = source.read(found.entries, np.ones((3, 2)))["regions"]
    np.testing.assert_array_equal(rows, [made[number]["regions"] for number in (5, 1, 2)])


def test_ids_that_count_the_images_of_each_split_do_no_harm(tmp_path: Path) -> None:
    precomp(tmp_path, images(ragged=False))
    for split, count in (("train", 3), ("dev", 2), ("test", 1)):
        write(tmp_path, f"{split}_ids.txt", map(str, range(count)))
    wanted = [WantedImage("1", "x", images()[4]["captions"]), WantedImage("0", "x", images()[0]["captions"])]
    assert match(opened(tmp_path), wanted).entries.tolist() == [4, 0]


def save(name: str, content: Any) -> Callable[[Path], Any]:
    return lambda folder: write(folder, name, content)


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def unequal(folder: Path) -> None:
    regions = np.repeat(np.load(folder / "train_ims.npy"), 5, axis=0)
    regions[7, 0, 0] += 1
    np.save(folder / "train_ims.npy", regions)


REFUSED = [
    (save("train_ims.npy", np.zeros((3, 4, 7), "i4")), "train_ims.npy"),
    (save("train_ims.npy", np.zeros((3, 7))), "train_ims.npy"),
    (save("train_ims.npy", np.zeros((3, 0, 7))), "train_ims.npy"),
    (save("train_ims.npy", np.zeros((4, 4, 7))), "train_"),
    (save("train_ims.npy", np.array([[["a"]]])), "train_ims.npy"),
    (unequal, "train_ims.npy"),
    (save("dev_ims.npy", np.zeros((2, 4, 6))), "shapes"),
    (save("dev_global.npy", np.zeros((2, 4))), "shapes"),
    (save("dev_global.npy", np.zeros((3, 3))), "dev_global.npy"),
    (remove("test_global.npy"), "shapes"),
    (save("dev_caps.txt", ["a"] * 9), "dev_caps.txt"),
    (save("dev_ids.txt", []), "dev_ids.txt"),
    (save("dev_ids.txt", ["a"]), "dev_ids.txt"),
    (save("dev_ids.txt", ["a", " a "]), "dev_ids.txt"),
    (save("dev_ids.txt", ["a", "b", "a", "b"]), "dev_ids.txt"),
    (lambda folder: (folder / "dev_caps.txt").write_bytes(b"caf\xe9\n" * 10), "dev_caps.txt"),
]


@pytest.mark.parametrize(("damage", "where"), REFUSED)
def test_folders_that_contradict_themselves_are_refused(tmp_path: Path, damage: Any, where: str) -> None:
    precomp(tmp_path, images(ragged=False))
    damage(tmp_path)
    with pytest.raises(DataError, match=where) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_images_without_names_and_captions_are_not_complete(tmp_path: Path) -> None:
    precomp(tmp_path, images(ragged=False), ids=False)
    assert str(layout(tmp_path)) == "train_ims.npy and 8 more"
    remove("dev_caps.txt")(tmp_path)
    assert str(layout(tmp_path)) == "train_ims.npy and 7 more, without dev_ids.txt or dev_caps.txt"
    for file in tmp_path.glob("*_ims.npy"):
        file.rename(file.with_name(f"x{file.name}"))
    assert str(layout(tmp_path)) == "xdev_ims.npy, xtest_ims.npy, xtrain_ims.npy, without train_ims.npy"


def test_a_grid_of_another_size_is_refused(tmp_path: Path) -> None:
    precomp(tmp_path, images(ragged=False))
    with pytest.raises(UsageError, match=r"\[3, 2\]"):
        opened(tmp_path, (3, 2))
    boxes = opened(tmp_path, (1, 4)).read(np.arange(2), np.ones((2, 2)))["boxes"]
    assert boxes[1, 1].tolist() == [0.25, 0, 0.5, 1]
