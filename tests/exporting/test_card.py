"""The picture of a card."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from itrpipe.exporting.card import PICTURE, write_picture


def test_a_picture_holds_photographs_side_by_side_at_one_height(tmp_path: Path) -> None:
    colours = {"red": (40, 20), "lime": (30, 30), "blue": (10, 40)}
    files = []
    for colour, size in colours.items():
        stream = io.BytesIO()
        Image.new("RGB", size, colour).save(stream, "PNG")
        files.append(stream.getvalue())
    write_picture(tmp_path, files)
    strip = Image.open(tmp_path / PICTURE)
    assert strip.size == (40 + 6 + 20 + 6 + 5, 20)
    for place, expected in ((20, (255, 0, 0)), (43, (255, 255, 255)), (56, (0, 255, 0)), (74, (0, 0, 255))):
        np.testing.assert_allclose(strip.convert("RGB").getpixel((place, 10)), expected, atol=12)
