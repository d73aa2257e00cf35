"""Extraction: batches that never depend on history, images that fail, and files of several extractors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from itrpipe.errors import DataError, UnavailableError, UsageError
from itrpipe.features import extraction
from itrpipe.features.extraction import Extraction, ImageFiles, divide, join_features, plan_batches
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.store import FeatureFile, FeatureSpec
from tests.maps import made

SIZES = [(8, 8), (8, 12), (12, 8)]
COUNT = 23


class MeanColour:
    """One region, the mean colour of an image; remembers how many images shared a batch."""

    spec = FeatureSpec(regions=1, region_dim=3, global_dim=2)
    notes = ()
    batch = 4

    def __init__(self) -> None:
        self.transform = channels_first
        self.seen: list[int] = []

    def group(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
        assert isinstance(images, torch.Tensor)
        self.seen.append(len(images))
        own = images.float().mean(dim=(2, 3))
        return {
            "regions": own[:, None].numpy(),
            "count": (own > 0).any(dim=1).numpy().astype(np.int16),
            "global": sizes.astype(np.float32),
        }


IDS = [f"i{row}" for row in range(COUNT)]


@pytest.fixture
def images(tmp_path: Path) -> ImageFiles:
    random = np.random.default_rng(0)
    root = tmp_path / "images"
    root.mkdir()
    sizes = np.array([SIZES[row % 3] for row in range(COUNT)])
    for row, (height, width) in enumerate(sizes):
        Image.fromarray(random.integers(1, 256, (height, width, 3), dtype=np.uint8)).save(root / f"{row}.png")
    return ImageFiles(root, [f"{row}.png" for row in range(COUNT)], sizes)


@pytest.fixture(autouse=True)
def one_batch_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "BATCHES_PER_PART", 1)


def extracting(images: ImageFiles, extractor: MeanColour | None = None, **options: Any) -> Extraction:
    given = extractor or MeanColour()
    return Extraction("extracting", images, lambda device: given, **{"decoders": 2, **options})


def extract(images: ImageFiles, target: Path, extractor: MeanColour | None = None, **options: Any) -> dict[int, str]:
    """Writes a feature file, and its parts into a folder beside it; the images that failed."""
    paths = made(extracting(images, extractor, **options), target.with_suffix(".parts")).paths
    return join_features(target, IDS, paths, "test")


@settings(max_examples=60)
@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=40), st.integers(1, 7))
def test_batches_hold_every_row_once_and_one_group_each(sizes: list[tuple[int, int]], batch: int) -> None:
    batches = plan_batches(np.array(sizes), lambda height, width: (height * width, 0), batch)
    expected = []
    for area in sorted({height * width for height, width in sizes}):
        rows = [row for row, (height, width) in enumerate(sizes) if height * width == area]
        expected += [rows[start : start + batch] for start in range(0, len(rows), batch)]
    assert [each.tolist() for each in batches] == expected


def test_parts_are_those_of_any_batch_and_workers_open_their_own(images: ImageFiles) -> None:
    for batch in (0, 3):
        assert [part.rows for part in extracting(images, batch=batch).parts()] == [4, 4, 4, 4, 4, 3]
    work = extracting(images)
    assert work.extractor.batch == 4
    assert not {"images", "extractor"} & work.__getstate__().keys()


def break_images(images: ImageFiles) -> dict[int, str]:
    """Makes some images unusable and returns a word of each reason."""
    root = images.root
    (root / "2.png").unlink()
    (root / "5.png").write_bytes((root / "5.png").read_bytes()[:50])
    Image.new("RGB", (30, 30)).save(root / "9.png")
    Image.new("RGB", (12, 8)).save(root / "1.png")  # black: the extractor finds nothing
    images.files[0] = "../outside.png"
    Image.new("RGB", (8, 8), "red").save(root / images.files[0])
    (root / "3.png").unlink()
    (root / "3.png").symlink_to(root / images.files[0])
    told = ("contains '..'", "has no region", "is not there", "symbolic link", "truncated", "had 8 x 8 when")
    return dict(zip((0, 1, 2, 3, 5, 9), told, strict=True))


@pytest.mark.parametrize("decoders", [1, 3])
def test_every_image_gets_its_own_features_and_failed_ones_are_named(
    images: ImageFiles, tmp_path: Path, decoders: int
) -> None:
    words, target, extractor = break_images(images), tmp_path / "whole.h5", MeanColour()
    failed = extract(images, target, extractor, decoders=decoders, batch=3)
    assert max(extractor.seen) == 3
    assert failed.keys() == words.keys()
    assert all(word in failed[row] for row, word in words.items())
    file = FeatureFile.open(target)
    left = [row for row in range(COUNT) if row not in words]
    assert file.image_id.tolist() == [IDS[row] for row in left]
    np.testing.assert_array_equal(file.arrays["global"], images.sizes[left])
    for row, found in zip(left, file.arrays["regions"], strict=True):
        expected = np.asarray(Image.open(images.root / f"{row}.png"), dtype=np.float32).mean(axis=(0, 1))
        np.testing.assert_allclose(found[0], expected, rtol=1e-3)


def test_no_usable_image_is_an_error(images: ImageFiles, tmp_path: Path) -> None:
    for path in images.root.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"none of the 23 images could be used; the first .*is not there"):
        extract(images, tmp_path / "whole.h5")


def test_failed_images_are_tried_again_by_the_next_run(images: ImageFiles, tmp_path: Path) -> None:
    path = images.root / "2.png"
    content, target = path.read_bytes(), tmp_path / "whole.h5"
    path.unlink()
    assert extract(images, target).keys() == {2}
    path.write_bytes(content)
    extractor = MeanColour()
    assert extract(images, target, extractor) == {}
    assert extractor.seen == [4]


def test_a_disk_that_fails_stops_the_run_and_blames_no_image(
    images: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> np.ndarray:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(extraction, "read_rgb", read)
    with pytest.raises(UnavailableError, match=r"\.png cannot be read or written now \(Input/output error\)"):
        extract(images, tmp_path / "whole.h5")


def test_a_group_of_datasets_comes_from_the_first_that_has_it() -> None:
    detector, network = FeatureSpec(36, 1024, boxes=True), FeatureSpec(49, 2048, global_dim=2048)
    assert divide({"frcnn": detector, "resnet": network}) == {"frcnn": detector, "resnet": FeatureSpec(0, 0, 2048)}
    with pytest.raises(UsageError, match=r"resnet\+frcnn: frcnn has regions only"):
        divide({"resnet": network, "frcnn": detector})


def test_an_image_that_one_extractor_refuses_is_not_in_the_file(images: ImageFiles, tmp_path: Path) -> None:
    class Cautious(MeanColour):
        def __call__(self, images: torch.Tensor | Sequence[torch.Tensor], sizes: np.ndarray) -> dict[str, np.ndarray]:
            rows = super().__call__(images, sizes)
            rows["global"][sizes[:, 1] == 12] = [1e6, np.nan]
            return rows

    specs = divide({"first": MeanColour.spec.only({"regions"}), "second": MeanColour.spec})
    parts: list[Path] = []
    for (name, spec), extractor in zip(specs.items(), (MeanColour(), Cautious()), strict=True):
        work = extracting(images, extractor)
        work.spec = spec
        parts += made(work, tmp_path / name).paths
    failed = join_features(tmp_path / "both.h5", IDS, parts, "both")
    extract(images, tmp_path / "alone.h5")
    left = [row for row in range(COUNT) if row % 3 != 1]
    assert sorted(failed) == [row for row in range(COUNT) if row % 3 == 1]
    assert failed[1].startswith("has global with the value 1e+06; float16 from -65504 to 65504")
    both, alone = (FeatureFile.open(tmp_path / name) for name in ("both.h5", "alone.h5"))
    assert both.image_id.tolist() == [IDS[row] for row in left]
    for name, values in both.arrays.items():
        np.testing.assert_array_equal(values, alone.arrays[name][left])
