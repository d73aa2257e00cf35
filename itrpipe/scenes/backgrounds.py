"""The eight settings: sky and ground with grain, and what is always there (a sea, house fronts, a tiled wall)."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from itrpipe.scenes.drawing import DRAWINGS, Colour, blended, box_around, jittered, rgb
from itrpipe.scenes.world import INDOOR_SETTINGS

FloatArray = npt.NDArray[np.float32]

_BOARD, _TILE = "#704a2a", "#b9d0d2"
_NOISE_HEIGHT, _NOISE_WIDTH = 640, 832


@cache
def _noise_field() -> FloatArray:
    """Return fine and coarse Gaussian noise of about unit scale, always the same; images cut windows out of it."""
    generator = np.random.default_rng(0)
    fine = generator.normal(0, 1, (_NOISE_HEIGHT, _NOISE_WIDTH))
    coarse = generator.normal(0, 1, (_NOISE_HEIGHT // 4, _NOISE_WIDTH // 4))
    coarse = np.kron(coarse, np.ones((4, 4)))
    return (0.6 * fine + 0.8 * coarse).astype(np.float32)


def _gradient(
    height: int,
    top: Colour,
    bottom: Colour,
) -> FloatArray:
    """Return a vertical gradient.  # [height, 1, 3]"""
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    high = np.asarray(rgb(top), np.float32)
    low = np.asarray(rgb(bottom), np.float32)
    return (high * (1 - share) + low * share).astype(np.float32)


def _image(levels: FloatArray) -> Image.Image:
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


def _draw_shapes(
    name: str,
    image: Image.Image,
    line: int,
    x: float = 0.0,
) -> None:
    """Draw shapes of drawings.json: `[tool, places, colour, options]`.

    A place is `[a, b, c, d]`: a widths of the image and b pixels to the right, and c heights of the sky and d pixels
    down, so that shapes keep their size where the horizon lies at another height.

    Args:
        name: of the shapes.
        image: is drawn on.
        line: y of the horizon, in pixels.
        x: where they begin, in pixels.
    """
    draw = ImageDraw.Draw(image)
    for tool, places, colour, *options in DRAWINGS["details"][name]:
        points = [(x + a * image.width + b, c * line + d) for a, b, c, d in places]
        style = options[0] if options else {}
        getattr(draw, tool)(points, fill=colour, **style)


# The functions below draw what is always there in a setting. Their arguments are the setting, the image with sky and
# ground, the y of the horizon in pixels, and a source of randomness.


def _draw_sky(
    setting: str,
    image: Image.Image,
    line: int,
    rng: Random,
) -> None:
    draw = ImageDraw.Draw(image)
    width = image.width
    if setting in ("beach", "desert"):
        _draw_shapes(f"{setting} sun", image, line)
    if setting in ("park", "beach", "street"):
        for _ in range(rng.randint(1, 3)):  # clouds, each of four overlapping flat puffs
            y = rng.uniform(0.05, 0.6) * line
            x = rng.uniform(0, width)
            size = rng.uniform(14, 26)
            for dx, dy, part in DRAWINGS["puffs"]:
                puff = box_around(
                    x + dx * size,
                    y + dy * size,
                    size * part,
                    0.55 * size * part,
                )
                draw.ellipse(puff, "#f5f8fc")
    if setting == "night":
        for _ in range(60):
            star = rng.uniform(0, width), rng.uniform(0, 0.95 * line)
            draw.circle(star, rng.uniform(0.6, 1.9), "#f0eecd")
        # The dark part of the moon shows the sky, it is no disc of another colour.
        moon = Image.new("L", (40, 40), 0)
        mask = ImageDraw.Draw(moon)
        mask.ellipse((0, 0, 39, 39), 255)
        mask.ellipse((12.8, -4, 48.8, 34), 0)
        left = int(rng.uniform(0.1, 0.85) * width)
        image.paste("#f6f0cd", (left, 12), moon)


def _draw_land(
    setting: str,
    image: Image.Image,
    line: int,
    rng: Random,
    brightness: float,
) -> None:
    """Draw what is outdoors; the image is brighter than its colours by `brightness` levels."""
    draw = ImageDraw.Draw(image)
    width, height = image.size
    match setting:
        case "park":
            for x in range(-20, width, 34):
                size = rng.uniform(14, 30)
                bush = (x - size, line - 0.8 * size, x + 1.3 * size, line + 0.8 * size)
                draw.ellipse(bush, jittered(rng, "#589650", 8))
            red, green, blue = (int(level + brightness) for level in rgb("#78b455"))
            draw.rectangle((0, line, width, line + 22), (red, green, blue))
            for _ in range(160):
                x = rng.uniform(-20, width)
                y = rng.uniform(line + 10, height)
                blade = 2 + 5 * (y - line) / (height - line)
                tip = x + rng.uniform(-2, 2)
                draw.line((x, y, tip, y - blade), jittered(rng, "#3a7d2d", 12), 1)
        case "beach":
            depth = rng.randint(18, 34)
            shore = line + depth
            sea = _gradient(depth, "#2878be", "#5fb9d7")
            sea = np.broadcast_to(sea, (depth, width, 3))
            image.paste(_image(sea), (0, line))
            for x in range(0, width, 12):
                draw.arc((x - 2, shore - 5, x + 14, shore + 5), 0, 180, "#f5fafc", 3)
            for _ in range(14):
                x = rng.uniform(0, width)
                y = rng.uniform(line + 2, shore - 4)
                draw.line((x, y, x + rng.uniform(8, 18), y), "#b4dcf0", 1)
        case "snow":
            for start in range(-10, width, 46):
                size = rng.uniform(18, 34)
                x = start + rng.uniform(-8, 8)
                top = (x + 0.5 * size, line - size)
                cap = line - 0.45 * size
                mountain = [(x, line + 6), top, (x + size, line + 6)]
                snow = [(x + 0.28 * size, cap), top, (x + 0.72 * size, cap)]
                draw.polygon(mountain, "#829696")
                draw.polygon(snow, "#f0f4fa")
            _draw_shapes("hills", image, line)
        case "street":
            x = -10.0
            while x < width:  # house after house
                x += _draw_house(draw, x, line, rng)
            _draw_shapes("pavement", image, line)
            y = line + 0.52 * (height - line)
            for left in range(-20, width, 60):
                stripe = [
                    (left, y),
                    (left + 34, y),
                    (left + 31, y + 7),
                    (left - 4, y + 7),
                ]
                draw.polygon(stripe, "#ebe182")
        case "desert":
            for leftmost, rightmost in ((-80, 60), (120, 300)):
                x = rng.uniform(leftmost, rightmost)
                size = rng.uniform(120, 220)
                top = (x + 0.55 * size, line - 0.2 * size)
                dune = [(x, line + 2), top, (x + size, line + 2)]
                draw.polygon(dune, jittered(rng, "#dea064", 8))
            for _ in range(9):
                x = rng.uniform(-20, width)
                y = rng.uniform(line + 14, height)
                draw.arc(
                    (x, y, x + rng.uniform(50, 110), y + 14),
                    190,
                    340,
                    "#b26c37",
                    2,
                )
            at_left = rng.uniform(12, 30)
            at_right = rng.uniform(width - 40, width - 24)
            x = rng.choice((at_left, at_right))
            _draw_shapes("cactus", image, line, x)
        case "night":
            _draw_shapes("peaks", image, line)


def _draw_house(
    draw: ImageDraw.ImageDraw,
    x: float,
    line: int,
    rng: Random,
) -> float:
    """Draw a house with lit and dark windows; return where the next one begins, in pixels to the right."""
    width = rng.uniform(28, 52)
    top = line - rng.uniform(0.25, 0.8) * line
    wall = jittered(rng, "#96919b", 22)
    draw.rectangle((x, top, x + width, line), wall)
    for y in range(int(top + 6), line - 6, 12):
        for left in range(int(x + 5), int(x + width - 6), 11):
            light = 0.1
            if rng.random() < 0.5:
                light = 0.55
            draw.rectangle((left, y, left + 5, y + 6), blended(wall, "#faf0b4", light))
    return width + rng.uniform(0, 6)


def _draw_room(
    setting: str,
    image: Image.Image,
    line: int,
    rng: Random,
) -> None:
    draw = ImageDraw.Draw(image)
    width, height = image.size
    depth = height - line
    if setting == "kitchen":
        for x in range(rng.randint(-24, 0), width, 24):
            draw.line((x, 0, x, line), _TILE, 2)
        for y in range(rng.randint(-24, 0), line, 24):
            draw.line((0, y, width, y), _TILE, 2)
        _draw_shapes("rail", image, line)
        middle = width / 2
        rows = 6
        for row in range(rows):
            far = (row / rows) ** 1.35
            near = ((row + 1) / rows) ** 1.35
            y0 = line + depth * far
            y1 = line + depth * near
            # Tiles are wider the nearer they are.
            above = 26 + 26 * far
            below = 26 + 26 * near
            for column in range(-9, 10):
                if (column + row) % 2:
                    tile = [
                        (middle + column * above, y0),
                        (middle + (column + 1) * above, y0),
                        (middle + (column + 1) * below, y1),
                        (middle + column * below, y1),
                    ]
                    draw.polygon(tile, "#5f697d")
    else:
        for x in range(rng.randint(-26, 0), width, 26):
            draw.rectangle((x, 0, x + 10, line), "#e0c2a0")
        _draw_shapes("window", image, line, rng.uniform(0.1, 0.7) * width)
        _draw_shapes("skirting", image, line)
        boards = 7
        for board in range(boards):
            y0 = line + depth * (board / boards) ** 1.25
            y1 = line + depth * ((board + 1) / boards) ** 1.25
            draw.line((0, y0, width, y0), _BOARD, 2)
            for x in range(rng.randint(-70, 0), width, 90):
                draw.line((x, y0, x, y1), _BOARD, 2)


def paint_background(
    setting: str,
    horizon: float,
    width: int,
    height: int,
    rng: Random,
) -> Image.Image:
    """Paint a setting without objects.

    Args:
        setting: one of `SETTINGS`.
        horizon: y of the horizon in 0..1.
        width, height: size in pixels.
        rng: source of randomness.

    Returns:
        RGB image of that size.
    """
    tones = DRAWINGS["settings"][setting]
    line = int(horizon * height)
    brightness = rng.uniform(-10, 10)
    sky = _gradient(line, *tones["sky"])
    ground = _gradient(height - line, *tones["ground"])
    top = rng.randrange(_NOISE_HEIGHT - height)
    left = rng.randrange(_NOISE_WIDTH - width)
    noise = _noise_field()[top : top + height, left : left + width, None]  # [height, width, 1]
    grain = noise * tones["grain"]
    levels = np.concatenate([sky + 0.25 * grain[:line], ground + grain[line:]])
    image = _image(levels + np.float32(brightness))
    if setting in INDOOR_SETTINGS:
        _draw_room(setting, image, line, rng)
    else:
        _draw_sky(setting, image, line, rng)
        _draw_land(setting, image, line, rng, brightness)
    return image
