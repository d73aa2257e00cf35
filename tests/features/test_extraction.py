"""The extraction loop: batches that never depend on history, failed images, resuming, and shards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UnavailableError, UsageError
from itrpipe.features.extraction import ImageFiles, extract_images, plan_batches
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.passes import Target, divide, find_shards, merge, open_shards, shard_target, without_failed
from itrpipe.features.shard import Shard, parse_shard
from itrpipe.features.store import FeatureFile, FeatureSpec, FeatureWriter

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


def extract(
    folder: Folder,
    target: Target,
    batches: Sequence[np.ndarray],
    extractor: MeanColour | None = None,
    *,
    workers: int = 0,
    strict: bool = False,
    count: Callable[[int], None] = lambda count: None,
) -> dict[int, str]:
    extractor = extractor or MeanColour()
    target.create(folder.ids, extractor.spec, "test")
    journal = target.read_journal()
    with FeatureWriter(target.path) as writer:
        extract_images(
            folder.images,
            extractor,
            batches,
            writer,
            journal,
            slots=target.slots(COUNT),
            datasets=frozenset(extractor.spec.shapes()),
            workers=workers,
            device=torch.device("cpu"),
            strict=strict,
            on_done=count,
        )
    return journal.failed


def whole(tmp_path: Path) -> Target:
    return Target(tmp_path / "whole.h5", tmp_path / "whole.json", np.arange(COUNT))


def batches_of(folder: Folder, batch: int = 4) -> list[np.ndarray]:
    return plan_batches(folder.images.sizes, MeanColour().group, batch)


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


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_gets_its_own_features(folder: Folder, tmp_path: Path, workers: int) -> None:
    target = whole(tmp_path)
    assert extract(folder, target, batches_of(folder), workers=workers) == {}
    file = FeatureFile.open(target.path)
    for row in range(COUNT):
        expected = np.asarray(Image.open(folder.images.root / f"{row}.png"), dtype=np.float32).mean(axis=(0, 1))
        np.testing.assert_allclose(file.regions[row, 0], expected, rtol=1e-3)
        np.testing.assert_array_equal(file.global_[row], folder.images.sizes[row])


def test_done_batches_are_not_computed_again_and_the_bytes_are_equal(folder: Folder, tmp_path: Path) -> None:
    batches, target = batches_of(folder), whole(tmp_path)
    extract(folder, target, batches)
    expected = target.path.read_bytes()

    interrupted = Target(tmp_path / "again.h5", tmp_path / "again.json", target.rows)
    extract(folder, interrupted, batches[:3])
    extractor = MeanColour()
    extract(folder, interrupted, batches, extractor)
    assert extractor.seen == [len(rows) for rows in batches[3:]]
    assert interrupted.path.read_bytes() == expected


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
    words, target = break_images(folder), whole(tmp_path)
    failed = extract(folder, target, batches_of(folder), workers=1)
    assert failed.keys() == words.keys()
    assert all(word in failed[row] for row, word in words.items())
    file = FeatureFile.open(without_failed(target.path, failed))
    left = [row for row in range(COUNT) if row not in words]
    assert file.image_id.tolist() == [folder.ids[row] for row in left]
    assert (file.count == 2).all()
    np.testing.assert_array_equal(file.global_, folder.images.sizes[left])
    assert (np.asarray(file.regions[:, 0]) > 0).all()
    assert without_failed(target.path, {}) == target.path


def test_strict_stops_at_the_first_bad_image(folder: Folder, tmp_path: Path) -> None:
    (folder.images.root / "2.png").unlink()
    with pytest.raises(DataError, match=r"2\.png: is not there; restore the file, or leave --strict"):
        extract(folder, whole(tmp_path), batches_of(folder), strict=True)


def test_a_path_that_leaves_the_root_is_a_failed_image(folder: Folder, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "outside.png")
    folder.images.files[0] = "../outside.png"
    (folder.images.root / "3.png").unlink()
    (folder.images.root / "3.png").symlink_to(tmp_path / "outside.png")
    failed = extract(folder, whole(tmp_path), batches_of(folder))
    assert failed.keys() == {0, 3}
    assert "contains '..'" in failed[0]
    assert "symbolic link" in failed[3]


def test_no_usable_image_is_an_error(folder: Folder, tmp_path: Path) -> None:
    for path in folder.images.root.iterdir():
        path.unlink()
    target = whole(tmp_path)
    failed = extract(folder, target, batches_of(folder))
    with pytest.raises(DataError, match="none of the 23 images could be used"):
        without_failed(target.path, failed)


# Damage of what is unfinished


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(bytes(content))


def test_rows_that_changed_on_the_disk_are_made_again(folder: Folder, tmp_path: Path) -> None:
    target = whole(tmp_path)
    extract(folder, target, batches_of(folder))
    expected = target.path.read_bytes()
    file = FeatureFile.open(target.path)
    offset = expected.index(np.asarray(file.regions[7]).tobytes())
    flip(target.path, offset + 1)
    journal = target.read_journal()
    checked: list[int] = []
    assert journal.forget_damaged(FeatureFile.open(target.path).arrays(), checked.append) == 1
    assert sum(checked) == COUNT
    assert np.flatnonzero(~journal.done).tolist() == [7]
    with FeatureWriter(target.path) as writer:
        journal.save(writer)
    extract(folder, target, batches_of(folder))
    assert target.path.read_bytes() == expected


def test_the_structure_of_a_feature_file_cannot_change_unseen(folder: Folder, tmp_path: Path) -> None:
    target = whole(tmp_path)
    extract(folder, target, batches_of(folder))
    content = target.path.read_bytes()
    flip(target.path, content.index(b"i22"))
    with pytest.raises(DataError, match=r"whole\.h5 is damaged; remove"):
        target.read_journal()


def test_a_damaged_shard_is_not_joined(folder: Folder, tmp_path: Path) -> None:
    batches, spec = batches_of(folder), MeanColour.spec
    for number in (1, 2):
        part, own = shard_target(tmp_path, Shard(number, 2), "test", batches)
        part.path.parent.mkdir(parents=True)
        extract(folder, part, own)
    part, _ = shard_target(tmp_path, Shard(2, 2), "test", batches)
    content = part.path.read_bytes()
    flip(part.path, content.index(np.asarray(FeatureFile.open(part.path).regions[3]).tobytes()))
    finished = open_shards(tmp_path, find_shards(tmp_path), "test", folder.ids, spec, batches)
    target = whole(tmp_path)
    target.create(folder.ids, spec, "test")
    with FeatureWriter(target.path) as writer:
        finished[0].copy(writer, lambda count: None)
        with pytest.raises(DataError, match=r"2-of-2.test\.h5 does not match its checksums from row \d+"):
            finished[1].copy(writer, lambda count: None)


# Shards


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", " 1/2", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="i/n"):
        parse_shard(text)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_shards_join_to_the_bytes_of_one_go(folder: Folder, tmp_path: Path, count: int) -> None:
    break_images(folder)
    batches, target = batches_of(folder), whole(tmp_path)
    expected = extract(folder, target, batches)
    for number in range(1, count + 1):
        part, own = shard_target(tmp_path, Shard(number, count), "test", batches)
        if own:
            extract(folder, part, own)
        else:
            part.journal.parent.mkdir(parents=True, exist_ok=True)
    joined = Target(tmp_path / "joined.h5", tmp_path / "joined.json", target.rows)
    joined.create(folder.ids, MeanColour.spec, "test")
    failed: dict[int, str] = {}
    with FeatureWriter(joined.path) as writer:
        for part in open_shards(tmp_path, find_shards(tmp_path), "test", folder.ids, MeanColour.spec, batches):
            part.copy(writer, lambda rows: None)
            failed |= part.failed
    assert failed == expected
    assert joined.path.read_bytes() == target.path.read_bytes()


def test_missing_unfinished_and_foreign_shards_are_refused(folder: Folder, tmp_path: Path) -> None:
    batches, target = batches_of(folder), whole(tmp_path)
    target.create(folder.ids, MeanColour.spec, "test")
    first, own = shard_target(tmp_path, Shard(1, 2), "test", batches)
    extract(folder, first, own)
    with pytest.raises(MissingInputError, match="shard 2/2 is not finished; run the same command with --shard 2/2"):
        find_shards(tmp_path)
    second, own = shard_target(tmp_path, Shard(2, 2), "test", batches)
    extract(folder, second, own[:1])

    def join(parts: list[np.ndarray]) -> None:
        open_shards(tmp_path, find_shards(tmp_path), "test", folder.ids, MeanColour.spec, parts)

    with pytest.raises(MissingInputError, match="shard 2/2 is not finished"):
        join(batches)
    extract(folder, second, own)
    join(batches)
    with pytest.raises(DataError, match="another batch size"):
        join(batches_of(folder, batch=3))
    (tmp_path / "shards" / "1-of-3").mkdir()
    with pytest.raises(DataError, match="shards of 2 and of 3"):
        find_shards(tmp_path)


def test_a_shard_begun_with_another_batch_size_is_refused_even_if_it_is_as_large(
    folder: Folder, tmp_path: Path
) -> None:
    """Its rows would be taken for those of other images."""
    first, own = shard_target(tmp_path, Shard(1, 2), "test", batches_of(folder, batch=1))
    extract(folder, first, own[:3])
    second, own = shard_target(tmp_path, Shard(1, 2), "test", batches_of(folder, batch=2))
    assert second.path == first.path
    with pytest.raises(DataError, match="another batch size"):
        extract(folder, second, own)


# What an interrupted run left


def test_failed_images_are_tried_again_by_the_next_run(folder: Folder, tmp_path: Path) -> None:
    path = folder.images.root / "2.png"
    content, batches, target = path.read_bytes(), batches_of(folder), whole(tmp_path)
    path.unlink()
    assert extract(folder, target, batches[:5]).keys() == {2}
    path.write_bytes(content)
    extractor = MeanColour()
    assert extract(folder, target, batches, extractor) == {}
    complete = Target(tmp_path / "complete.h5", tmp_path / "complete.json", target.rows)
    extract(folder, complete, batches)
    assert target.path.read_bytes() == complete.path.read_bytes()
    # So a run that goes on with --strict stops at what the first one left out.
    path.unlink()
    again = Target(tmp_path / "again.h5", tmp_path / "again.json", target.rows)
    extract(folder, again, batches[:5])
    with pytest.raises(DataError, match=r"2\.png"):
        extract(folder, again, batches, strict=True)


def test_rows_on_the_disk_are_not_written_again_when_batches_are_cut_otherwise(folder: Folder, tmp_path: Path) -> None:
    target = whole(tmp_path)
    extract(folder, target, batches_of(folder, batch=4)[:2])
    before = FeatureFile.open(target.path).arrays()["regions"][:, 1].copy()
    done = target.read_journal().done.copy()
    counted: list[int] = []
    extract(folder, target, batches_of(folder, batch=3), count=counted.append)
    np.testing.assert_array_equal(FeatureFile.open(target.path).arrays()["regions"][done, 1], before[done])
    assert sum(counted) == COUNT - done.sum()


def test_a_disk_that_fails_stops_the_run_and_blames_no_image(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from itrpipe.datasets.pictures import read_rgb

    def read(path: Path) -> np.ndarray:
        if path.name == "7.png":
            raise OSError(5, "Input/output error", str(path))
        return read_rgb(path)

    target, batches = whole(tmp_path), batches_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr("itrpipe.features.extraction.read_rgb", read)
        with pytest.raises(
            UnavailableError, match=r"7\.png cannot be read or written now \(Input/output error\); .* the same command"
        ):
            extract(folder, target, batches)
    assert target.read_journal().failed == {}
    assert extract(folder, target, batches) == {}


def test_features_that_are_not_finite_make_a_failed_image(folder: Folder, tmp_path: Path) -> None:
    class Overflowing(MeanColour):
        def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
            rows = super().__call__(images, sizes)
            rows["global"][sizes[:, 1] == 12] = [1e6, np.nan]
            return rows

    failed = extract(folder, whole(tmp_path), batches_of(folder), Overflowing())
    assert failed == dict.fromkeys(range(1, COUNT, 3), "has features that are not finite or too large for float16")


@pytest.mark.skipif(sys.platform != "linux", reason="decoding processes are forked on Linux only")
def test_a_decoding_process_that_is_killed_is_one_line(folder: Folder, tmp_path: Path) -> None:
    class Killed(MeanColour):
        def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)
            time.sleep(1)
            return super().__call__(images, sizes)

    with pytest.raises(ItrpipeError, match=r"a decoding process died .*`--set workers=0`"):
        extract(folder, whole(tmp_path), batches_of(folder, batch=1), Killed(), workers=2)


# Several extractors


def test_a_group_of_datasets_comes_from_the_first_that_has_it() -> None:
    detector, network = FeatureSpec(36, 1024, boxes=True, scores=True), FeatureSpec(49, 2048, global_dim=2048)
    pixels = FeatureSpec(0, 0, pixels=(4, 5))
    parts = divide({"frcnn": detector, "resnet": network, "pixels": pixels})
    assert parts == {"frcnn": detector, "resnet": FeatureSpec(0, 0, 2048), "pixels": pixels}
    assert merge(parts) == FeatureSpec(36, 1024, 2048, boxes=True, scores=True, pixels=(4, 5))
    assert divide({"resnet": network, "pixels": pixels})["resnet"] == network
    with pytest.raises(UsageError, match=r"resnet\+frcnn: frcnn has regions only"):
        divide({"resnet": network, "frcnn": detector})
