"""Pixels are those of the usual resize, and the middle of the image is what is cropped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import Resize as TorchvisionResize

from itrpipe.features.extractors.pixels.declaration import Pixels
from itrpipe.features.extractors.pixels.extractor import PixelExtractor, build
from itrpipe.features.store import FeatureFile, write_features

CPU = torch.device("cpu")


def extractor(height: int, width: int, fit: Literal["stretch", "crop"]) -> PixelExtractor:
    return build(Pixels(kind="pixels", height=height, width=width, fit=fit), CPU)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def stripes(sizes: dict[int, int]) -> np.ndarray:
    """A row of grey levels, each so many pixels wide."""
    return np.repeat(np.array([list(sizes)], dtype=np.uint8), list(sizes.values()), axis=1)[..., None].repeat(3, axis=2)


@pytest.mark.parametrize("size", [(33, 57), (96, 40), (5, 4), (1, 1)])
def test_stretch_is_the_resize_that_networks_are_tested_with(size: tuple[int, int]) -> None:
    image = noise(*size)
    resize = TorchvisionResize((24, 32), interpolation=InterpolationMode.BICUBIC)
    expected = np.asarray(resize(Image.fromarray(image)))
    np.testing.assert_array_equal(extractor(24, 32, "stretch").transform(image).transpose(1, 2, 0), expected)


def test_shrinking_averages() -> None:
    checkerboard = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, axis=2)
    shrunk = extractor(8, 8, "stretch").transform(checkerboard)
    np.testing.assert_allclose(shrunk, 127, atol=2)


@pytest.mark.parametrize(("height", "width", "size"), [(20, 20, (20, 60)), (20, 20, (60, 20)), (10, 30, (60, 30))])
def test_crop_keeps_the_middle(height: int, width: int, size: tuple[int, int]) -> None:
    image = noise(*size)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    middle = image[top : top + height, left : left + width]
    np.testing.assert_array_equal(extractor(height, width, "crop").transform(image).transpose(1, 2, 0), middle)


def test_crop_scales_until_the_image_covers() -> None:
    image = stripes({0: 40, 100: 40, 200: 40}).repeat(40, axis=0)  # 40 high, 120 wide
    cropped = extractor(10, 10, "crop").transform(image)
    np.testing.assert_allclose(cropped, 100, atol=12)
    assert (extractor(10, 20, "crop").transform(image)[:, :, [0, -1]] == [0, 200]).all()
    assert (extractor(10, 10, "stretch").transform(image)[:, :, [0, -1]] == [0, 200]).all()


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(["stretch", "crop"]),
)
def test_any_size_becomes_the_one_asked_for(
    size: tuple[int, int], asked: tuple[int, int], fit: Literal["stretch", "crop"]
) -> None:
    made = extractor(*asked, fit).transform(np.full((*size, 3), 77, dtype=np.uint8))
    assert made.shape == (3, *asked)
    assert made.flags.c_contiguous
    assert (made == 77).all()


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 500), st.integers(1, 500))
def test_the_part_that_is_kept_is_the_largest_of_its_shape_in_the_middle(
    height: int, width: int, asked_height: int, asked_width: int
) -> None:
    left, top, right, bottom = extractor(asked_height, asked_width, "crop").transform.part(height, width)
    assert 0 <= left < right <= width * (1 + 1e-12)
    assert 0 <= top < bottom <= height * (1 + 1e-12)
    assert (left + right, top + bottom) == pytest.approx((width, height))
    assert (right - left) / (bottom - top) == pytest.approx(asked_width / asked_height)
    assert right - left == pytest.approx(width) or bottom - top == pytest.approx(height)


def test_features_are_the_transformed_images(tmp_path: Path) -> None:
    pixels = extractor(6, 9, "crop")
    transform = pickle.loads(pickle.dumps(pixels.transform))
    images = [transform(noise(*size)) for size in ((20, 30), (7, 50), (1, 1))]
    assert {pixels.group(*size) for size in ((20, 30), (7, 50), (1, 1))} == {(6, 9)}
    sizes = np.array([(20, 30), (7, 50), (1, 1)])
    rows = pixels(torch.from_numpy(np.stack(images)), sizes)
    write_features(tmp_path / "features.h5", ["a", "b", "c"], pixels.spec, "pixels", [(np.arange(3), rows)])
    stored = FeatureFile.open(tmp_path / "features.h5").pixels
    assert stored is not None
    np.testing.assert_array_equal(stored, np.stack(images).transpose(0, 2, 3, 1))
    listed = pixels([torch.from_numpy(image) for image in images], sizes)
    np.testing.assert_array_equal(listed["pixels"], stored)
    assert pixels.notes == ()
