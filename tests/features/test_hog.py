"""Histograms of gradients and colours: what they see in drawings whose gradients and colours are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from itrpipe.features.extractors.hog import extractor as hog
from itrpipe.features.extractors.hog.declaration import Hog

GRID, CELL = 3, 16
SIDE = GRID * CELL
GRADIENTS = hog.ORIENTATIONS * hog.PARTS**2
END = GRADIENTS + hog.COLOURS


def extract(*images: np.ndarray) -> dict[str, np.ndarray]:
    """Features of images [H, W, 3] uint8."""
    made = hog.build(Hog(kind="hog", grid=GRID, cell=CELL), "cpu")
    sizes = np.array([image.shape[:2] for image in images], dtype=np.int64)
    return made(torch.from_numpy(np.stack([made.transform(image) for image in images])), sizes)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def ramp(angle: float) -> np.ndarray:
    """Lightness that rises in one direction, in radians from the right, downwards."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    height = columns * math.cos(angle) + rows * math.sin(angle)
    values = 255 * (height - height.min()) / (height.max() - height.min())
    return np.repeat(values[..., None], 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize("orientation", range(hog.ORIENTATIONS))
def test_a_ramp_votes_for_its_orientation(orientation: int) -> None:
    region = extract(ramp(orientation * math.pi / hog.ORIENTATIONS))["regions"][0, 4, :GRADIENTS]
    votes = region.reshape(hog.ORIENTATIONS, -1).sum(1)
    assert votes.argmax() == orientation
    assert votes[orientation] > 0.7 * votes.sum()


def test_opposite_directions_are_one_orientation() -> None:
    one, other = (extract(ramp(angle))["regions"][0, 4, :GRADIENTS] for angle in (0.0, math.pi))
    np.testing.assert_allclose(one, other, atol=0.05)


def test_gradients_have_length_one_and_flat_cells_none() -> None:
    found = extract(noise(0), np.full((SIDE, SIDE, 3), 90, np.uint8))["regions"].astype(float)[..., :GRADIENTS]
    np.testing.assert_allclose(np.linalg.norm(found[0], axis=1), 1, atol=0.03)
    assert not found[1].any()


def test_colours_are_roots_of_shares() -> None:
    half = np.zeros((SIDE, SIDE, 3), np.uint8)
    half[:, : SIDE // 2] = (255, 0, 0)
    colours = extract(half)["regions"].astype(float)[0, :, GRADIENTS:END]
    np.testing.assert_allclose((colours**2).sum(1), 1, atol=0.01)
    left, middle, right = colours[3:6]
    assert (left > 0).sum() == (right > 0).sum() == 1
    assert left.argmax() != right.argmax()
    np.testing.assert_allclose(sorted(middle**2)[-2:], [0.5, 0.5], atol=0.01)


def test_cells_are_regions_row_by_row_with_their_boxes() -> None:
    image = np.full((SIDE, SIDE, 3), 255, np.uint8)
    image[CELL : 2 * CELL, 2 * CELL :] = 0
    found = extract(image)
    dark = found["regions"].astype(float)[0, :, END] < 0.1
    assert np.flatnonzero(dark).tolist() == [5]
    np.testing.assert_allclose(found["boxes"][0, 5], [2 / 3, 1 / 3, 1, 2 / 3], atol=1e-6)
    assert found["count"].tolist() == [GRID * GRID]


def test_images_of_a_batch_are_what_they_are_alone() -> None:
    together, alone = extract(noise(1), noise(2)), extract(noise(2))
    for name, values in alone.items():
        np.testing.assert_array_equal(together[name][1], values[0])


def test_rows_are_as_declared() -> None:
    made, found = hog.build(Hog(kind="hog", grid=GRID, cell=CELL), "cpu"), extract(noise(3))
    assert {name: rows.shape[1:] for name, rows in found.items()} == made.spec.shapes()
    whole = found["global"].astype(float)[0]
    np.testing.assert_allclose((whole**2).sum(), 4, atol=0.2)  # of each of two levels, gradients and colours
