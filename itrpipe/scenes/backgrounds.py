"""The eight settings: sky and ground with grain, and what is always there (a sea, house fronts, a tiled wall)."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from itrpipe.scenes.drawing import DRAWINGS, Colour, blended, jittered, rgb

FloatArray = npt.NDArray[np.float32]

_BOARD, _FRAME, _TILE = "#704a2a", "#785537", "#b9d0d2"
_NOISE_HEIGHT, _NOISE_WIDTH = 640, 832


@cache
def _noise_field() -> FloatArray:
    """Fine and coarse Gaussian noise of about unit scale, always the same; images cut windows out of it."""
    generator = np.random.default_rng(0)
    fine = generator.normal(0, 1, (_NOISE_HEIGHT, _NOISE_WIDTH))
    coarse = np.kron(generator.normal(0, 1, (_NOISE_HEIGHT // 4, _NOISE_WIDTH // 4)), np.ones((4, 4)))
    return (0.6 * fine + 0.8 * coarse).astype(np.float32)


def _gradient(height: int, top: Colour, bottom: Colour) -> FloatArray:
    """Vertical gradient.  # [height, 1, 3]"""
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    high, low = (np.asarray(rgb(colour), np.float32) for colour in (top, bottom))
    return (high * (1 - share) + low * share).astype(np.float32)


def _image(levels: FloatArray) -> Image.Image:
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


def _draw_details(setting: str, image: Image.Image, line: int, rng: Random, brightness: float) -> None:
    """Draws what is always there in a setting.

    Args:
        setting: one of `SETTINGS`.
        image: with sky and ground, is drawn on; all lengths are pixels.
        line: y of the horizon.
        rng: source of randomness.
        brightness: levels by which the image is brighter than its colours.
    """
    draw, (width, height) = ImageDraw.Draw(image), image.size
    ground_height = height - line
    if setting == "beach":
        draw.ellipse((0.8 * width, 8, 0.8 * width + 34, 42), "#ffeb78")
    if setting in ("park", "beach", "street"):
        for _ in range(rng.randint(1, 3)):  # clouds, each of four overlapping flat puffs
            y = rng.uniform(0.05, 0.6) * line
            x, size = rng.uniform(0, width), rng.uniform(14, 26)
            for dx, dy, part in DRAWINGS["puffs"]:
                across, up = size * part, 0.55 * size * part
                left, top = x + dx * size, y + dy * size
                draw.ellipse((left - across, top - up, left + across, top + up), "#f5f8fc")
    match setting:
        case "park":
            for x in range(-20, width, 34):
                size = rng.uniform(14, 30)
                box = (x - size, line - 0.8 * size, x + 1.3 * size, line + 0.8 * size)
                draw.ellipse(box, jittered(rng, "#589650", 8))
            grass = tuple(int(value + brightness) for value in rgb("#78b455"))
            draw.rectangle((0, line, width, line + 22), grass)
            for _ in range(160):
                x, y = rng.uniform(-20, width), rng.uniform(line + 10, height)
                blade = 2 + 5 * (y - line) / ground_height
                draw.line((x, y, x + rng.uniform(-2, 2), y - blade), jittered(rng, "#3a7d2d", 12), 1)
        case "beach":
            depth = rng.randint(18, 34)
            shore = line + depth
            sea = _gradient(depth, "#2878be", "#5fb9d7")
            image.paste(_image(np.broadcast_to(sea, (depth, width, 3))), (0, line))
            for x in range(0, width, 12):
                draw.arc((x - 2, shore - 5, x + 14, shore + 5), 0, 180, "#f5fafc", 3)
            for _ in range(14):
                x, y = rng.uniform(0, width), rng.uniform(line + 2, shore - 4)
                draw.line((x, y, x + rng.uniform(8, 18), y), "#b4dcf0", 1)
        case "snow":
            for start in range(-10, width, 46):
                size, x = rng.uniform(18, 34), start + rng.uniform(-8, 8)
                top, cap = (x + 0.5 * size, line - size), line - 0.45 * size
                draw.polygon([(x, line + 6), top, (x + size, line + 6)], "#829696")
                draw.polygon([(x + 0.28 * size, cap), top, (x + 0.72 * size, cap)], "#f0f4fa")
            draw.ellipse((-60, line - 8, 0.6 * width, line + 60), "#f2f6fc")
            draw.ellipse((0.5 * width, line - 4, width + 80, line + 50), "#f0f4fa")
        case "street":
            x = -10.0
            while x < width:  # house after house, with lit and dark windows
                wide, top = rng.uniform(28, 52), line - rng.uniform(0.25, 0.8) * line
                wall = jittered(rng, "#96919b", 22)
                draw.rectangle((x, top, x + wide, line), wall)
                for y in range(int(top + 6), line - 6, 12):
                    for left in range(int(x + 5), int(x + wide - 6), 11):
                        window = blended(wall, "#faf0b4", 0.55 if rng.random() < 0.5 else 0.1)
                        draw.rectangle((left, y, left + 5, y + 6), window)
                x += wide + rng.uniform(0, 6)
            draw.rectangle((0, line, width, line + 12), "#afaca8")
            draw.line((0, line + 13, width, line + 13), "#787674", 2)
            y = line + 0.52 * ground_height
            for left in range(-20, width, 60):
                draw.polygon([(left, y), (left + 34, y), (left + 31, y + 7), (left - 4, y + 7)], "#ebe182")
        case "desert":
            draw.ellipse((0.1 * width, 14, 0.1 * width + 44, 58), "#fff0be")
            for leftmost, rightmost in ((-80, 60), (120, 300)):
                x, size = rng.uniform(leftmost, rightmost), rng.uniform(120, 220)
                dune = [(x, line + 2), (x + 0.55 * size, line - 0.2 * size), (x + size, line + 2)]
                draw.polygon(dune, jittered(rng, "#dea064", 8))
            for _ in range(9):
                x, y = rng.uniform(-20, width), rng.uniform(line + 14, height)
                draw.arc((x, y, x + rng.uniform(50, 110), y + 14), 190, 340, "#b26c37", 2)
            x = rng.choice((rng.uniform(12, 30), rng.uniform(width - 40, width - 24)))
            for x0, y0, x1, y1, radius in DRAWINGS["cactus"].values():
                draw.rounded_rectangle((x + x0, line + y0, x + x1, line + y1), radius, "#467d46")
        case "night":
            for _ in range(60):
                place = rng.uniform(0, width), rng.uniform(0, 0.95 * line)
                draw.circle(place, rng.uniform(0.6, 1.9), "#f0eecd")
            # The dark part of the moon shows the sky, it is no disc of another colour.
            size = 40
            moon = Image.new("L", (size, size), 0)
            mask = ImageDraw.Draw(moon)
            mask.ellipse((0, 0, size - 1, size - 1), 255)
            mask.ellipse((0.32 * size, -0.1 * size, 1.22 * size, 0.85 * size), 0)
            image.paste("#f6f0cd", (int(rng.uniform(0.1, 0.85) * width), 12), moon)
            draw.polygon([(x * width, line + y) for x, y in DRAWINGS["peaks"]], "#18203e")
        case "kitchen":
            for x in range(rng.randint(-24, 0), width, 24):
                draw.line((x, 0, x, line), _TILE, 2)
            for y in range(rng.randint(-24, 0), line, 24):
                draw.line((0, y, width, y), _TILE, 2)
            draw.rectangle((0, line - 8, width, line), "#788287")
            rows, middle = 6, width / 2
            for row in range(rows):
                (y0, far), (y1, near) = (
                    (line + ground_height * down, 26 + 26 * down)
                    for down in ((edge / rows) ** 1.35 for edge in (row, row + 1))
                )
                for column in range(-9, 10):
                    if (column + row) % 2:
                        tile = [(middle + column * far, y0), (middle + (column + 1) * far, y0)]
                        tile += [(middle + (column + 1) * near, y1), (middle + column * near, y1)]
                        draw.polygon(tile, "#5f697d")
        case "room":
            for x in range(rng.randint(-26, 0), width, 26):
                draw.rectangle((x, 0, x + 10, line), "#e0c2a0")
            x, top, bottom = rng.uniform(0.1, 0.7) * width, 0.15 * line, 0.62 * line
            draw.rectangle((x, top, x + 74, bottom), _FRAME)  # of a window
            draw.rectangle((x + 5, top + 5, x + 69, bottom - 5), "#a5cdeb")
            glint = [(x + 12, bottom - 5), (x + 42, top + 5), (x + 54, top + 5), (x + 24, bottom - 5)]
            draw.polygon(glint, "#bcdbf2")
            draw.line((x + 37, top, x + 37, bottom), _FRAME, 4)
            draw.line((x, (top + bottom) / 2, x + 74, (top + bottom) / 2), _FRAME, 3)
            draw.rectangle((0, line - 9, width, line), "#f5eee1")
            boards = 7
            for board in range(boards):
                y0, y1 = (line + ground_height * (edge / boards) ** 1.25 for edge in (board, board + 1))
                draw.line((0, y0, width, y0), _BOARD, 2)
                for x in range(rng.randint(-70, 0), width, 90):
                    draw.line((x, y0, x, y1), _BOARD, 2)


def paint_background(setting: str, horizon: float, width: int, height: int, rng: Random) -> Image.Image:
    """Paints a setting without objects.

    Args:
        setting: one of `SETTINGS`.
        horizon: y of the horizon in 0..1.
        width, height: size in pixels.
        rng: source of randomness.

    Returns:
        RGB image of that size.
    """
    tones, line = DRAWINGS["settings"][setting], int(horizon * height)
    brightness = rng.uniform(-10, 10)
    sky = _gradient(line, *tones["sky"])
    ground = _gradient(height - line, *tones["ground"])
    top, left = rng.randrange(_NOISE_HEIGHT - height), rng.randrange(_NOISE_WIDTH - width)
    grain = _noise_field()[top : top + height, left : left + width, None] * tones["grain"]  # [height, width, 1]
    levels = np.concatenate([sky + 0.25 * grain[:line], ground + grain[line:]]) + np.float32(brightness)
    image = _image(levels)
    _draw_details(setting, image, line, rng, brightness)
    return image
