"""Image processors: both halves against the whole, and the place of the frame in the image against coordinates."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.features.extractors.pretrained import Grid
from itrpipe.features.extractors.pretrained_pixels import Framing, load_preprocessing

# One of each class, and each way of resizing and cropping that published checkpoints use.
PROCESSORS: dict[str, Callable[[], Any]] = {
    "vit": lambda: transformers.ViTImageProcessor(size={"height": 64, "width": 48}),
    "beit": lambda: transformers.BeitImageProcessor(size=64),
    "beit_crop": lambda: transformers.BeitImageProcessor(size=72, do_center_crop=True, crop_size=64),
    "deit": lambda: transformers.DeiTImageProcessor(size=73, crop_size=64),
    "clip": lambda: transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size=64),
    "clip_margin": lambda: transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size=81),
    "dinov2": lambda: transformers.BitImageProcessor(size={"shortest_edge": 73}, crop_size=64, resample=3),
    "siglip": lambda: transformers.SiglipImageProcessor(size={"height": 64, "width": 64}),
    "convnext": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875),
    "convnext_stretch": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 384}),
    "unscaled": lambda: transformers.ViTImageProcessor(size=64, do_rescale=False),
    "unnormalised": lambda: transformers.ViTImageProcessor(size=64, do_normalize=False),
    "odd_scale": lambda: transformers.ViTImageProcessor(size=64, rescale_factor=1 / 127.5),
    "nearest": lambda: transformers.ViTImageProcessor(size=64, resample=0),
    "lanczos": lambda: transformers.SiglipImageProcessor(size={"height": 64, "width": 64}, resample=1),
    "no_resize": lambda: transformers.BitImageProcessor(do_resize=False, crop_size=64),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(folder: Path, processor: Any) -> Path:
    processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (61, 50), (82, 73), (3, 40)])
def test_the_two_halves_equal_the_processor(name: str, height: int, width: int, tmp_path: Path) -> None:
    processor = PROCESSORS[name]()
    preprocessing = load_preprocessing(saved(tmp_path, processor))
    image = photo(height, width)
    frame = preprocessing.transform(image)
    whole = processor(image, do_rescale=False, do_normalize=False, input_data_format="channels_last")["pixel_values"]
    assert frame.dtype == np.uint8
    assert frame.flags.c_contiguous
    assert frame.shape == (3, *preprocessing.frame)
    assert np.array_equal(frame, whole[0])
    found = preprocessing.normalization(torch.from_numpy(frame)[None])
    expected = processor(image, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375)])
def test_dinov3_is_rounded_to_bytes_and_says_so(height: int, width: int, tmp_path: Path) -> None:
    processor = transformers.DINOv3ViTImageProcessor(size={"height": 64, "width": 64})
    preprocessing = load_preprocessing(saved(tmp_path, processor))
    assert "rounded to 8 bits" in preprocessing.notes[0]
    image = photo(height, width)
    found = preprocessing.normalization(torch.from_numpy(preprocessing.transform(image))[None])
    error = (found - processor(image, return_tensors="pt")["pixel_values"]).abs() * preprocessing.normalization.std
    assert 0.1 < error.max() <= 1  # in levels of 0..255


def test_the_transform_travels_to_other_processes(tmp_path: Path) -> None:
    transform = load_preprocessing(saved(tmp_path, PROCESSORS["clip"]())).transform
    packed = pickle.dumps(transform)
    assert len(packed) < 5_000
    assert np.array_equal(pickle.loads(packed)(photo(50, 70)), transform(photo(50, 70)))


def coordinates(height: int, width: int) -> np.ndarray:
    """An image [H, W, 3] float32 whose pixels hold the x and y of their middle, as fractions."""
    y, x = np.mgrid[:height, :width]
    return np.stack(((x + 0.5) / width, (y + 0.5) / height, x * 0), 2).astype(np.float32)


@settings(max_examples=25)
@given(
    height=st.integers(48, 400),
    width=st.integers(48, 400),
    name=st.sampled_from([name for name in PROCESSORS if name not in ("no_resize", "nearest", "convnext_stretch")]),
)
def test_boxes_are_where_the_pixels_come_from(
    height: int, width: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    processor = PROCESSORS[name]()
    preprocessing = load_preprocessing(saved(tmp_path_factory.mktemp(name), processor))
    frame_height, frame_width = preprocessing.frame
    frame = np.asarray(
        processor(coordinates(height, width), do_rescale=False, do_normalize=False, input_data_format="channels_last")[
            "pixel_values"
        ][0]
    )
    grid = Grid(8, 6, frame_height // 8, frame_width // 6)  # often it does not reach the end of the frame
    boxes = preprocessing.framing.boxes(grid.cells(preprocessing.frame), np.array([[height, width]]))[0]
    assert boxes.dtype == np.float32
    looked_at = 0
    for box, (row, column) in zip(boxes, np.ndindex(8, 6), strict=True):
        # Near the image's edges resizing blends in what lies beyond, and margins are black.
        if box.min() > 0.08 and box.max() < 0.92:
            rows = slice(row * grid.cell_height, (row + 1) * grid.cell_height)
            columns = slice(column * grid.cell_width, (column + 1) * grid.cell_width)
            middle = frame[:2, rows, columns].mean((1, 2))
            assert np.abs(middle - (box[:2] + box[2:]) / 2).max() < 2e-3
            looked_at += 1
    assert looked_at >= 6


def test_boxes_of_a_cropped_landscape() -> None:
    # 200 x 100 becomes 128 x 64, of which columns 32 to 96 are kept.
    boxes = Framing(64, (64, 64)).boxes(Grid(1, 2, 64, 32).cells((64, 64)), np.array([[100, 200], [200, 100]]))
    assert boxes[0].tolist() == [[0.25, 0, 0.5, 1], [0.5, 0, 0.75, 1]]
    assert boxes[1].tolist() == [[0, 0.25, 0.5, 0.75], [0.5, 0.25, 1, 0.75]]


def test_boxes_end_at_the_image_where_the_frame_has_a_margin() -> None:
    # A crop of 96 around 64 x 64 pixels: a margin of 16 on all sides, a quarter of the image.
    boxes = Framing((64, 64), (96, 96)).boxes(Grid(1, 3, 96, 32).cells((96, 96)), np.array([[10, 10]]))
    assert boxes[0].tolist() == [[0, 0, 0.25, 1], [0.25, 0, 0.75, 1], [0.75, 0, 1, 1]]


def test_a_stretched_frame_is_the_whole_image() -> None:
    boxes = Framing((32, 64), None).boxes(Grid(1, 2, 32, 32).cells((32, 64)), np.array([[7, 1000]]))
    assert boxes[0].tolist() == [[0, 0, 0.5, 1], [0.5, 0, 1, 1]]


def test_pixels_beyond_the_last_whole_cell_are_in_no_box() -> None:
    # 384 pixels hold 27 patches of 14, 378 pixels.
    boxes = Framing((384, 384), None).boxes(Grid(27, 27, 14, 14).cells((384, 384)), np.array([[100, 100]]))
    assert boxes[0, -1, 3] == pytest.approx(378 / 384)


@pytest.mark.parametrize(
    "processor",
    [
        transformers.CLIPImageProcessor(do_center_crop=False),
        transformers.ViTImageProcessor(do_resize=False),
        transformers.ViTImageProcessor(size={"shortest_edge": 64, "longest_edge": 128}),
        transformers.ViTImageProcessor(do_center_crop=True),
        transformers.ViTImageProcessor(size=64, do_pad=True, pad_size={"height": 80, "width": 80}),
        transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, do_center_crop=True, crop_size=50),
    ],
)
def test_processors_without_one_size_are_refused(processor: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="different sizes") as caught:
        load_preprocessing(saved(tmp_path, processor))
    assert str(tmp_path) in str(caught.value)


def test_unknown_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Siglip2ImageProcessor is not supported"):
        load_preprocessing(saved(tmp_path, transformers.Siglip2ImageProcessor()))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        json.dumps({"image_processor_type": "Unheard"}),
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": "x"}),
    ],
)
def test_damaged_settings_are_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="download the model again") as caught:
        load_preprocessing(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
