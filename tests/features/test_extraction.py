"""Extraction: batches that never depend on history, failed images, what an interrupted run left, and shares."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from itrpipe.engine.run import OthersMissing, SharedExecution, make_parts
from itrpipe.errors import DataError, UnavailableError, UsageError
from itrpipe.features import extraction
from itrpipe.features.extraction import Extraction, ImageFiles, divide, join_features, plan_batches
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.store import FeatureFile, FeatureSpec
from itrpipe.progress import Reporter
from itrpipe.storage.parts import ArrayFile
from tests.maps import made

SIZES = [(8, 8), (8, 12), (12, 8)]
COUNT = 23


class MeanColour:
    """Two regions: the mean colour of an image, and that of its batch, which shows who shared it."""

    spec = FeatureSpec(regions=2, region_dim=3, global_dim=2)
    notes = ()
    batch = 4

    def __init__(self) -> None:
        self.transform = channels_first
        self.seen: list[int] = []

    def group(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
        assert isinstance(images, torch.Tensor)
        assert (sizes == images.shape[2:]).all()
        self.seen.append(len(images))
        own = images.float().mean(dim=(2, 3))
        regions = torch.stack([own, own.mean(dim=0, keepdim=True).expand_as(own)], dim=1)
        black = (own == 0).all(dim=1)
        return {
            "regions": regions.masked_fill(black[:, None, None], 0).numpy(),
            "count": np.where(black, 0, 2).astype(np.int16),
            "global": sizes.astype(np.float32),
        }


@dataclass
class Folder:
    images: ImageFiles
    ids: list[str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    random = np.random.default_rng(0)
    root = tmp_path / "images"
    root.mkdir()
    sizes = np.array([SIZES[row % 3] for row in range(COUNT)])
    for row, (height, width) in enumerate(sizes):
        Image.fromarray(random.integers(1, 256, (height, width, 3), dtype=np.uint8)).save(root / f"{row}.png")
    return Folder(ImageFiles(root, [f"{row}.png" for row in range(COUNT)], sizes), [f"i{row}" for row in range(COUNT)])


@pytest.fixture(autouse=True)
def one_batch_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "BATCHES_PER_PART", 1)


def extracting(
    folder: Folder,
    extractor: MeanColour | None = None,
    *,
    batch: int = 0,
    decoders: int = 2,
    strict: bool = False,
) -> Extraction:
    given = extractor or MeanColour()
    return Extraction("extracting", folder.images, lambda device: given, batch=batch, decoders=decoders, strict=strict)


def extract(folder: Folder, target: Path, extractor: MeanColour | None = None, **options: Any) -> dict[int, str]:
    """Writes a feature file, and its parts into a folder beside it; the images that failed."""
    paths = made(extracting(folder, extractor, **options), parts_of(target)).paths
    return join_features(target, folder.ids, paths, "test")


def parts_of(target: Path) -> Path:
    return target.with_suffix(".parts")


@settings(max_examples=60)
@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=40), st.integers(1, 7))
def test_batches_hold_every_row_once_and_one_group_each(sizes: list[tuple[int, int]], batch: int) -> None:
    batches = plan_batches(np.array(sizes), lambda height, width: (height * width, 0), batch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    areas = [{sizes[row][0] * sizes[row][1] for row in rows} for rows in batches]
    assert all(len(area) == 1 for area in areas)
    assert all(len(rows) <= batch and (np.diff(rows) > 0).all() for rows in batches)
    # As few batches as groups of this size allow.
    of_group = [sum(height * width == area for height, width in sizes) for area in {h * w for h, w in sizes}]
    assert len(batches) == sum(-(-count // batch) for count in of_group)


@pytest.mark.parametrize("decoders", [1, 3])
def test_every_image_gets_its_own_features(folder: Folder, tmp_path: Path, decoders: int) -> None:
    target = tmp_path / "whole.h5"
    assert extract(folder, target, decoders=decoders) == {}
    file = FeatureFile.open(target)
    for row in range(COUNT):
        expected = np.asarray(Image.open(folder.images.root / f"{row}.png"), dtype=np.float32).mean(axis=(0, 1))
        np.testing.assert_allclose(file.arrays["regions"][row, 0], expected, rtol=1e-3)
        np.testing.assert_array_equal(file.arrays["global"][row], folder.images.sizes[row])


def test_the_images_of_one_batch_are_decoded_at_once_each_by_a_thread_of_torch(folder: Folder, tmp_path: Path) -> None:
    together, threads = threading.Barrier(3, timeout=60), set[int]()
    extractor = MeanColour()

    def transform(image: np.ndarray) -> np.ndarray:
        if len(threads) == 0:  # the first three images, of a batch of four
            together.wait()
        threads.add(torch.get_num_threads())
        return channels_first(image)

    extractor.transform = transform
    work = extracting(folder, extractor, decoders=3)
    part = work.parts()[0]
    work.make(work.open(), part, tmp_path / "part.arrays")
    assert threads == {1}
    assert len(ArrayFile(tmp_path / "part.arrays")["rows"].read()) == part.rows == 4


@pytest.mark.parametrize(("cores", "decoders", "expected"), [(3, 0, 3), (64, 0, 32), (3, 5, 5)])
def test_as_many_threads_decode_as_there_are_cores(folder: Folder, cores: int, decoders: int, expected: int) -> None:
    work = extracting(folder, decoders=decoders)
    work.cores = cores
    assert work.open()._pool._max_workers == expected


def test_parts_hold_every_image_once_and_know_only_their_own(folder: Folder) -> None:
    work = extracting(folder)
    parts = work.parts()
    assert [part.rows for part in parts] == [4, 4, 4, 4, 4, 3]
    assert np.sort(np.concatenate([part.content[0] for part in parts])).tolist() == list(range(COUNT))
    for part in parts:
        rows, images = part.content
        assert images.files == [folder.images.files[row] for row in rows]
        np.testing.assert_array_equal(images.sizes, folder.images.sizes[rows])
    assert not {"images", "extractor"} & work.__getstate__().keys()


def test_done_parts_are_not_computed_again_and_the_bytes_are_equal(folder: Folder, tmp_path: Path) -> None:
    target, again = tmp_path / "whole.h5", tmp_path / "again.h5"
    extract(folder, target)
    extract(folder, again)
    parts = sorted(parts_of(again).glob("*.arrays"))
    whole = [path.read_bytes() for path in parts]
    for path in parts[3:]:
        path.unlink()
    extractor = MeanColour()
    extract(folder, again, extractor)
    assert sorted(extractor.seen) == [3, 4, 4]
    assert [path.read_bytes() for path in parts] == whole
    assert again.read_bytes() == target.read_bytes()


def break_images(folder: Folder) -> dict[int, str]:
    """Makes four images unusable and returns a word of each reason."""
    root = folder.images.root
    (root / "2.png").unlink()
    (root / "5.png").write_bytes((root / "5.png").read_bytes()[:50])
    Image.new("RGB", (30, 30)).save(root / "9.png")
    Image.new("RGB", (12, 8)).save(root / "1.png")  # black: the extractor finds nothing
    return {2: "is not there", 5: "truncated", 9: "had 8 x 8 when", 1: "has no region"}


def test_failed_images_are_named_with_a_reason_and_absent_from_the_finished_file(
    folder: Folder, tmp_path: Path
) -> None:
    words, target = break_images(folder), tmp_path / "whole.h5"
    failed = extract(folder, target)
    assert failed.keys() == words.keys()
    assert all(word in failed[row] for row, word in words.items())
    file = FeatureFile.open(target)
    left = [row for row in range(COUNT) if row not in words]
    assert file.image_id.tolist() == [folder.ids[row] for row in left]
    assert (file.arrays["count"] == 2).all()
    np.testing.assert_array_equal(file.arrays["global"], folder.images.sizes[left])
    assert (np.asarray(file.arrays["regions"][:, 0]) > 0).all()


def test_strict_stops_at_the_first_bad_image(folder: Folder, tmp_path: Path) -> None:
    (folder.images.root / "2.png").unlink()
    with pytest.raises(DataError, match=r"2\.png: is not there; restore the file, or leave --strict"):
        extract(folder, tmp_path / "whole.h5", strict=True)


def test_a_path_that_leaves_the_root_is_a_failed_image(folder: Folder, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "outside.png")
    folder.images.files[0] = "../outside.png"
    (folder.images.root / "3.png").unlink()
    (folder.images.root / "3.png").symlink_to(tmp_path / "outside.png")
    failed = extract(folder, tmp_path / "whole.h5")
    assert failed.keys() == {0, 3}
    assert "contains '..'" in failed[0]
    assert "symbolic link" in failed[3]


def test_no_usable_image_is_an_error(folder: Folder, tmp_path: Path) -> None:
    for path in folder.images.root.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"none of the 23 images could be used; the first .*is not there"):
        extract(folder, tmp_path / "whole.h5")


# Damage of what is unfinished


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("where", ["a row", "the header", "the end"])
def test_a_part_that_changed_on_the_disk_is_made_again(folder: Folder, tmp_path: Path, where: str) -> None:
    target, told = tmp_path / "whole.h5", []
    extract(folder, target)
    expected = target.read_bytes()
    path = parts_of(target) / "000002.arrays"
    whole, row = path.read_bytes(), ArrayFile(path)["regions"].read(1, 2)
    if where == "the end":
        path.write_bytes(whole[:-3])
    else:
        flip(path, whole.index(row.tobytes()) + 1 if where == "a row" else whole.index(b"regions"))
    extractor = MeanColour()
    again = made(extracting(folder, extractor), parts_of(target), warn=told.append)
    assert (again.rows, extractor.seen) == (4, [4])
    assert told == [f"1 of 6 parts in {parts_of(target)} were damaged; they are made again"]
    assert path.read_bytes() == whole
    join_features(target, folder.ids, again.paths, "test")
    assert target.read_bytes() == expected


# Shares


def make_share(work: Extraction, folder: Path, share: str) -> OthersMissing:
    with pytest.raises(OthersMissing) as others:
        make_parts(work, folder, SharedExecution(part=share), Reporter(Console(quiet=True)), print)
    return others.value


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_shares_join_to_the_bytes_of_one_go(folder: Folder, tmp_path: Path, count: int) -> None:
    break_images(folder)
    target, shared = tmp_path / "whole.h5", tmp_path / "shared.h5"
    expected = extract(folder, target)
    images, missing = [], []
    for number in range(1, count + 1):
        others = make_share(extracting(folder), parts_of(shared), f"{number}/{count}")
        images.append(others.rows)
        missing.append(others.missing())
    assert sum(images) == COUNT
    assert missing == sorted(missing, reverse=True)
    assert missing[-1] == 0
    assert extract(folder, shared) == expected
    assert shared.read_bytes() == target.read_bytes()


def test_a_job_with_a_share_makes_nothing_of_the_others(folder: Folder, tmp_path: Path) -> None:
    extractor = MeanColour()
    others = make_share(extracting(folder, extractor), tmp_path, "2/4")
    assert [path.name for path in sorted(tmp_path.glob("*.arrays"))] == ["000001.arrays", "000005.arrays"]
    assert sorted(extractor.seen) == [3, 4]
    assert (others.rows, others.missing(), len(others.paths)) == (7, 4, 6)


# What an interrupted run left


def test_failed_images_are_tried_again_by_the_next_run(folder: Folder, tmp_path: Path) -> None:
    path = folder.images.root / "2.png"
    content, target = path.read_bytes(), tmp_path / "whole.h5"
    path.unlink()
    assert extract(folder, target).keys() == {2}
    path.write_bytes(content)
    extractor = MeanColour()
    assert extract(folder, target, extractor) == {}
    assert extractor.seen == [4]
    complete = tmp_path / "complete.h5"
    extract(folder, complete)
    assert target.read_bytes() == complete.read_bytes()
    # So a run that goes on with --strict stops at what the first one left out.
    path.unlink()
    again = tmp_path / "again.h5"
    extract(folder, again)
    with pytest.raises(DataError, match=r"2\.png"):
        extract(folder, again, strict=True)


def test_parts_on_the_disk_are_not_made_again_when_batches_are_cut_otherwise(folder: Folder, tmp_path: Path) -> None:
    """Which images a part holds depends on the extractor's batch size and never on that of a run."""
    target = tmp_path / "whole.h5"
    paths = made(extracting(folder, batch=4), parts_of(target)).paths
    before = [path.read_bytes() for path in paths]
    for path in paths[2:]:
        path.unlink()
    extractor = MeanColour()
    again = made(extracting(folder, extractor, batch=3), parts_of(target))
    assert again.rows == COUNT - 8
    assert sorted(extractor.seen) == [1, 1, 1, 3, 3, 3, 3]
    assert [path.read_bytes() for path in paths[:2]] == before[:2]
    assert [path.read_bytes() for path in paths[2:5]] != before[2:5]
    assert join_features(target, folder.ids, again.paths, "test") == {}
    assert len(FeatureFile.open(target)) == COUNT


def test_a_disk_that_fails_stops_the_run_and_blames_no_image(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from itrpipe.datasets.pictures import read_rgb

    def read(path: Path) -> np.ndarray:
        if path.name == "7.png":
            raise OSError(5, "Input/output error", str(path))
        return read_rgb(path)

    target = tmp_path / "whole.h5"
    with monkeypatch.context() as patch:
        patch.setattr("itrpipe.features.extraction.read_rgb", read)
        with pytest.raises(
            UnavailableError, match=r"7\.png cannot be read or written now \(Input/output error\); .* the same command"
        ):
            extract(folder, target)
    (part,) = [each for each in extracting(folder).parts() if 7 in each.content[0]]
    assert not (parts_of(target) / f"{part.name}.arrays").exists()
    assert extract(folder, target) == {}


def test_features_that_are_not_finite_make_a_failed_image(folder: Folder, tmp_path: Path) -> None:
    class Overflowing(MeanColour):
        def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
            rows = super().__call__(images, sizes)
            rows["global"][sizes[:, 1] == 12] = [1e6, np.nan]
            return rows

    failed = extract(folder, tmp_path / "whole.h5", Overflowing())
    assert failed.keys() == set(range(1, COUNT, 3))
    assert failed[1].startswith("has global with the value 1e+06; float16 from -65504 to 65504")


# Several extractors


def test_a_group_of_datasets_comes_from_the_first_that_has_it() -> None:
    detector, network = FeatureSpec(36, 1024, boxes=True, scores=True), FeatureSpec(49, 2048, global_dim=2048)
    pixels = FeatureSpec(0, 0, pixels=(4, 5))
    parts = divide({"frcnn": detector, "resnet": network, "pixels": pixels})
    assert parts == {"frcnn": detector, "resnet": FeatureSpec(0, 0, 2048), "pixels": pixels}
    assert divide({"resnet": network, "pixels": pixels})["resnet"] == network
    with pytest.raises(UsageError, match=r"resnet\+frcnn: frcnn has regions only"):
        divide({"resnet": network, "frcnn": detector})


def test_an_image_that_one_extractor_refuses_is_not_in_the_file(folder: Folder, tmp_path: Path) -> None:
    class Cautious(MeanColour):
        def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
            rows = super().__call__(images, sizes)
            rows["global"][sizes[:, 1] == 12] = np.inf
            return rows

    specs = divide({"first": MeanColour.spec.only({"regions"}), "second": MeanColour.spec})
    parts: list[Path] = []
    for (name, spec), build in zip(specs.items(), (MeanColour, Cautious), strict=True):
        work = extracting(folder, build())
        work.spec = spec
        parts += made(work, tmp_path / name).paths
    failed = join_features(tmp_path / "both.h5", folder.ids, parts, "both")
    extract(folder, tmp_path / "alone.h5")
    left = [row for row in range(COUNT) if row % 3 != 1]
    assert sorted(failed) == [row for row in range(COUNT) if row % 3 == 1]
    both, alone = (FeatureFile.open(tmp_path / name) for name in ("both.h5", "alone.h5"))
    assert both.image_id.tolist() == [folder.ids[row] for row in left]
    for name, values in both.arrays.items():
        np.testing.assert_array_equal(values, alone.arrays[name][left])
