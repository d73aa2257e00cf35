"""The eight settings: sky and ground with grain, and what is always there (a sea, house fronts, a tiled wall)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from itrpipe.scenes.drawing import RGB, TONES, blended, jittered, rgb

FloatArray = npt.NDArray[np.float32]

_CLOUD: RGB = (245, 248, 252)
_CACTUS: RGB = (70, 125, 70)
_BOARD: RGB = (112, 74, 42)
_FRAME: RGB = (120, 85, 55)
_TILE: RGB = (185, 208, 210)
_NOISE_HEIGHT, _NOISE_WIDTH = 640, 832


class _Backdrop:
    """The image of a background while it is drawn; all lengths in pixels."""

    def __init__(self, image: Image.Image, horizon: int, rng: Random, brightness: float) -> None:
        self.image, self.draw = image, ImageDraw.Draw(image)
        self.width, self.height = image.size
        self.horizon, self.ground_height = horizon, self.height - horizon
        self.rng, self.brightness = rng, brightness

    def clouds(self) -> None:
        """One to three clouds, each of four overlapping flat puffs."""
        for _ in range(self.rng.randint(1, 3)):
            y = self.rng.uniform(0.05, 0.6) * self.horizon
            x, size = self.rng.uniform(0, self.width), self.rng.uniform(14, 26)
            for dx, dy, part in ((-1.0, 0.2, 0.7), (0.0, 0.0, 1.0), (1.0, 0.2, 0.75), (0.4, 0.35, 0.8)):
                across, up = size * part, 0.55 * size * part
                left, top = x + dx * size, y + dy * size
                self.draw.ellipse((left - across, top - up, left + across, top + up), _CLOUD)

    def ground_point(self, below: float) -> tuple[float, float]:
        """A random point at least `below` pixels under the horizon."""
        return self.rng.uniform(-20, self.width), self.rng.uniform(self.horizon + below, self.height)


@cache
def _noise_field() -> FloatArray:
    """Fine and coarse Gaussian noise of about unit scale, always the same; images cut windows out of it."""
    generator = np.random.default_rng(0)
    fine = generator.normal(0, 1, (_NOISE_HEIGHT, _NOISE_WIDTH))
    coarse = np.kron(generator.normal(0, 1, (_NOISE_HEIGHT // 4, _NOISE_WIDTH // 4)), np.ones((4, 4)))
    return (0.6 * fine + 0.8 * coarse).astype(np.float32)


def _gradient(height: int, top: RGB, bottom: RGB) -> FloatArray:
    """Vertical gradient.  # [height, 1, 3]"""
    share = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    levels = np.asarray(top, np.float32) * (1 - share) + np.asarray(bottom, np.float32) * share
    return levels.astype(np.float32)


def _image(levels: FloatArray) -> Image.Image:
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


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
    tones, line = TONES[setting], int(horizon * height)
    brightness = rng.uniform(-10, 10)
    sky = _gradient(line, *map(rgb, tones["sky"]))
    ground = _gradient(height - line, *map(rgb, tones["ground"]))
    top, left = rng.randrange(_NOISE_HEIGHT - height), rng.randrange(_NOISE_WIDTH - width)
    grain = _noise_field()[top : top + height, left : left + width, None] * tones["grain"]  # [height, width, 1]
    levels = np.concatenate([sky + 0.25 * grain[:line], ground + grain[line:]]) + np.float32(brightness)
    backdrop = _Backdrop(_image(levels.astype(np.float32)), line, rng, brightness)
    _DETAILS[setting](backdrop)
    return backdrop.image


def _park(scene: _Backdrop) -> None:
    draw, rng, line = scene.draw, scene.rng, scene.horizon
    scene.clouds()
    for x in range(-20, scene.width, 34):
        size = rng.uniform(14, 30)
        box = (x - size, line - 0.8 * size, x + 1.3 * size, line + 0.8 * size)
        draw.ellipse(box, jittered(rng, (88, 150, 80), 8))
    grass = tuple(int(value + scene.brightness) for value in (120, 180, 85))
    draw.rectangle((0, line, scene.width, line + 22), grass)
    for _ in range(160):
        x, y = scene.ground_point(10)
        blade = 2 + 5 * (y - line) / scene.ground_height
        draw.line((x, y, x + rng.uniform(-2, 2), y - blade), jittered(rng, (58, 125, 45), 12), 1)


def _beach(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    draw.ellipse((0.8 * width, 8, 0.8 * width + 34, 42), (255, 235, 120))
    scene.clouds()
    depth = rng.randint(18, 34)
    shore = line + depth
    sea = _gradient(depth, (40, 120, 190), (95, 185, 215))
    scene.image.paste(_image(np.broadcast_to(sea, (depth, width, 3))), (0, line))
    for x in range(0, width, 12):
        draw.arc((x - 2, shore - 5, x + 14, shore + 5), 0, 180, (245, 250, 252), 3)
    for _ in range(14):
        x, y = rng.uniform(0, width), rng.uniform(line + 2, shore - 4)
        draw.line((x, y, x + rng.uniform(8, 18), y), (180, 220, 240), 1)


def _snow(scene: _Backdrop) -> None:
    draw, rng, line = scene.draw, scene.rng, scene.horizon
    for start in range(-10, scene.width, 46):
        size, x = rng.uniform(18, 34), start + rng.uniform(-8, 8)
        top, cap = (x + 0.5 * size, line - size), line - 0.45 * size
        draw.polygon([(x, line + 6), top, (x + size, line + 6)], (130, 150, 150))
        draw.polygon([(x + 0.28 * size, cap), top, (x + 0.72 * size, cap)], (240, 244, 250))
    draw.ellipse((-60, line - 8, 0.6 * scene.width, line + 60), (242, 246, 252))
    draw.ellipse((0.5 * scene.width, line - 4, scene.width + 80, line + 50), (240, 244, 250))


def _street(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    scene.clouds()
    x = -10.0
    while x < width:  # house after house, with lit and dark windows
        wide, top = rng.uniform(28, 52), line - rng.uniform(0.25, 0.8) * line
        wall = jittered(rng, (150, 145, 155), 22)
        draw.rectangle((x, top, x + wide, line), wall)
        for y in range(int(top + 6), line - 6, 12):
            for left in range(int(x + 5), int(x + wide - 6), 11):
                window = blended(wall, (250, 240, 180), 0.55 if rng.random() < 0.5 else 0.1)
                draw.rectangle((left, y, left + 5, y + 6), window)
        x += wide + rng.uniform(0, 6)
    draw.rectangle((0, line, width, line + 12), (175, 172, 168))
    draw.line((0, line + 13, width, line + 13), (120, 118, 116), 2)
    y = line + 0.52 * scene.ground_height
    for left in range(-20, width, 60):
        draw.polygon([(left, y), (left + 34, y), (left + 31, y + 7), (left - 4, y + 7)], (235, 225, 130))


def _desert(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    draw.ellipse((0.1 * width, 14, 0.1 * width + 44, 58), (255, 240, 190))
    for leftmost, rightmost in ((-80, 60), (120, 300)):
        x, size = rng.uniform(leftmost, rightmost), rng.uniform(120, 220)
        dune = [(x, line + 2), (x + 0.55 * size, line - 0.2 * size), (x + size, line + 2)]
        draw.polygon(dune, jittered(rng, (222, 160, 100), 8))
    for _ in range(9):
        x, y = scene.ground_point(14)
        draw.arc((x, y, x + rng.uniform(50, 110), y + 14), 190, 340, (178, 108, 55), 2)
    x = rng.choice((rng.uniform(12, 30), rng.uniform(width - 40, width - 24)))
    for x0, y0, x1, y1, radius in (
        (0, -34, 9, 10, 4),  # trunk of a cactus
        (-9, -24, -4, -8, 2),  # left arm
        (-8, -12, 0, -8, 0),
        (13, -28, 18, -14, 2),  # right arm
        (9, -17, 16, -13, 0),
    ):
        draw.rounded_rectangle((x + x0, line + y0, x + x1, line + y1), radius, _CACTUS)


def _night(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for _ in range(60):
        place = rng.uniform(0, width), rng.uniform(0, 0.95 * line)
        draw.circle(place, rng.uniform(0.6, 1.9), (240, 238, 205))
    # The dark part of the moon shows the sky, it is no disc of another colour.
    size = 40
    moon = Image.new("L", (size, size), 0)
    mask = ImageDraw.Draw(moon)
    mask.ellipse((0, 0, size - 1, size - 1), 255)
    mask.ellipse((0.32 * size, -0.1 * size, 1.22 * size, 0.85 * size), 0)
    scene.image.paste((246, 240, 205), (int(rng.uniform(0.1, 0.85) * width), 12), moon)
    peaks = [(0, 3), (0.2, -18), (0.45, 0), (0.7, -26), (1, 3)]
    draw.polygon([(x * width, line + y) for x, y in peaks], (24, 32, 62))


def _kitchen(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for x in range(rng.randint(-24, 0), width, 24):
        draw.line((x, 0, x, line), _TILE, 2)
    for y in range(rng.randint(-24, 0), line, 24):
        draw.line((0, y, width, y), _TILE, 2)
    draw.rectangle((0, line - 8, width, line), (120, 130, 135))
    rows, middle = 6, width / 2
    for row in range(rows):
        (y0, far), (y1, near) = (
            (line + scene.ground_height * down, 26 + 26 * down)
            for down in ((edge / rows) ** 1.35 for edge in (row, row + 1))
        )
        for column in range(-9, 10):
            if (column + row) % 2:
                tile = [(middle + column * far, y0), (middle + (column + 1) * far, y0)]
                tile += [(middle + (column + 1) * near, y1), (middle + column * near, y1)]
                draw.polygon(tile, (95, 105, 125))


def _room(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for x in range(rng.randint(-26, 0), width, 26):
        draw.rectangle((x, 0, x + 10, line), (224, 194, 160))
    x, top, bottom = rng.uniform(0.1, 0.7) * width, 0.15 * line, 0.62 * line
    draw.rectangle((x, top, x + 74, bottom), _FRAME)  # of a window
    draw.rectangle((x + 5, top + 5, x + 69, bottom - 5), (165, 205, 235))
    glint = [(x + 12, bottom - 5), (x + 42, top + 5), (x + 54, top + 5), (x + 24, bottom - 5)]
    draw.polygon(glint, (188, 219, 242))
    draw.line((x + 37, top, x + 37, bottom), _FRAME, 4)
    draw.line((x, (top + bottom) / 2, x + 74, (top + bottom) / 2), _FRAME, 3)
    draw.rectangle((0, line - 9, width, line), (245, 238, 225))
    boards = 7
    for board in range(boards):
        y0, y1 = (line + scene.ground_height * (edge / boards) ** 1.25 for edge in (board, board + 1))
        draw.line((0, y0, width, y0), _BOARD, 2)
        for x in range(rng.randint(-70, 0), width, 90):
            draw.line((x, y0, x, y1), _BOARD, 2)


_DETAILS: dict[str, Callable[[_Backdrop], None]] = {
    "park": _park,
    "beach": _beach,
    "snow": _snow,
    "street": _street,
    "desert": _desert,
    "night": _night,
    "kitchen": _kitchen,
    "room": _room,
}
