"""The eight settings: sky and ground with grain, and what is always there (a sea, house fronts, a tiled wall)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from itrpipe.scenes.canvas import RGB, blended, jittered

FloatArray = npt.NDArray[np.float32]

_CLOUD: RGB = (245, 248, 252)
_CACTUS: RGB = (70, 125, 70)
_NOISE_HEIGHT, _NOISE_WIDTH = 640, 832


@dataclass(frozen=True)
class _Tones:
    """Colours of a setting, and the standard deviation of the ground's grain in levels."""

    sky_top: RGB
    sky_bottom: RGB
    ground_top: RGB
    ground_bottom: RGB
    grain: float


_TONES: dict[str, _Tones] = {
    "park": _Tones((110, 170, 240), (205, 228, 250), (120, 180, 85), (70, 140, 50), 6.0),
    "beach": _Tones((120, 190, 245), (220, 238, 250), (238, 215, 160), (215, 185, 120), 5.0),
    "snow": _Tones((170, 185, 205), (215, 222, 232), (240, 244, 250), (215, 224, 238), 2.5),
    "street": _Tones((165, 190, 220), (225, 230, 235), (125, 125, 130), (88, 88, 94), 5.0),
    "desert": _Tones((250, 205, 140), (252, 232, 190), (232, 165, 95), (195, 120, 60), 5.0),
    "night": _Tones((12, 16, 52), (40, 48, 105), (48, 78, 62), (26, 48, 40), 4.0),
    "kitchen": _Tones((205, 228, 228), (225, 238, 236), (235, 235, 230), (215, 215, 210), 2.0),
    "room": _Tones((230, 205, 175), (238, 218, 192), (176, 122, 74), (142, 94, 54), 3.0),
}


class _Backdrop:
    """The image of a background while it is drawn; all lengths in pixels."""

    def __init__(self, image: Image.Image, horizon: int, rng: Random, brightness: float) -> None:
        self.image = image
        self.draw = ImageDraw.Draw(image)
        self.width, self.height = image.size
        self.horizon = horizon
        self.rng = rng
        self.brightness = brightness

    @property
    def ground_height(self) -> int:
        """From the horizon to the lower edge."""
        return self.height - self.horizon

    def cloud(self, x: float, y: float, size: float) -> None:
        """Four overlapping flat puffs."""
        for dx, dy, part in ((-1.0, 0.2, 0.7), (0.0, 0.0, 1.0), (1.0, 0.2, 0.75), (0.4, 0.35, 0.8)):
            across, up = size * part, 0.55 * size * part
            left, top = x + dx * size, y + dy * size
            self.draw.ellipse((left - across, top - up, left + across, top + up), fill=_CLOUD)

    def clouds(self) -> None:
        """One to three clouds."""
        for _ in range(self.rng.randint(1, 3)):
            y = self.rng.uniform(0.05, 0.6) * self.horizon
            self.cloud(self.rng.uniform(0, self.width), y, self.rng.uniform(14, 26))

    def ground_point(self, below: float) -> tuple[float, float]:
        """A random point at least `below` pixels under the horizon."""
        return self.rng.uniform(-20, self.width), self.rng.uniform(self.horizon + below, self.height)


@lru_cache(maxsize=1)
def _noise_field() -> FloatArray:
    """Fine and coarse Gaussian noise of about unit scale, always the same; images cut windows out of it."""
    generator = np.random.default_rng(0)
    fine = generator.normal(0, 1, (_NOISE_HEIGHT, _NOISE_WIDTH))
    coarse = np.kron(generator.normal(0, 1, (_NOISE_HEIGHT // 4, _NOISE_WIDTH // 4)), np.ones((4, 4)))
    return (0.6 * fine + 0.8 * coarse).astype(np.float32)


def _noise(rng: Random, height: int, width: int) -> FloatArray:
    field = _noise_field()
    top, left = rng.randrange(field.shape[0] - height), rng.randrange(field.shape[1] - width)
    return field[top : top + height, left : left + width, None]  # [height, width, 1]


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
    tones, line = _TONES[setting], int(horizon * height)
    brightness = rng.uniform(-10, 10)
    sky = _gradient(line, tones.sky_top, tones.sky_bottom)
    ground = _gradient(height - line, tones.ground_top, tones.ground_bottom)
    grain = _noise(rng, height, width) * tones.grain
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
        draw.ellipse(box, fill=jittered(rng, (88, 150, 80), 8))
    grass = tuple(int(value + scene.brightness) for value in (120, 180, 85))
    draw.rectangle((0, line, scene.width, line + 22), fill=grass)
    for _ in range(160):
        x, y = scene.ground_point(10)
        blade = 2 + 5 * (y - line) / scene.ground_height
        draw.line((x, y, x + rng.uniform(-2, 2), y - blade), fill=jittered(rng, (58, 125, 45), 12), width=1)


def _beach(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    draw.ellipse((0.8 * width, 8, 0.8 * width + 34, 42), fill=(255, 235, 120))
    scene.clouds()
    depth = rng.randint(18, 34)
    shore = line + depth
    sea = _gradient(depth, (40, 120, 190), (95, 185, 215))
    scene.image.paste(_image(np.broadcast_to(sea, (depth, width, 3))), (0, line))
    for x in range(0, width, 12):
        draw.arc((x - 2, shore - 5, x + 14, shore + 5), 0, 180, fill=(245, 250, 252), width=3)
    for _ in range(14):
        x, y = rng.uniform(0, width), rng.uniform(line + 2, shore - 4)
        draw.line((x, y, x + rng.uniform(8, 18), y), fill=(180, 220, 240), width=1)


def _snow(scene: _Backdrop) -> None:
    draw, rng, line = scene.draw, scene.rng, scene.horizon
    for start in range(-10, scene.width, 46):
        size, x = rng.uniform(18, 34), start + rng.uniform(-8, 8)
        top = (x + 0.5 * size, line - size)
        draw.polygon([(x, line + 6), top, (x + size, line + 6)], fill=(130, 150, 150))
        cap = line - 0.45 * size
        draw.polygon([(x + 0.28 * size, cap), top, (x + 0.72 * size, cap)], fill=(240, 244, 250))
    draw.ellipse((-60, line - 8, 0.6 * scene.width, line + 60), fill=(242, 246, 252))
    draw.ellipse((0.5 * scene.width, line - 4, scene.width + 80, line + 50), fill=(240, 244, 250))


def _street(scene: _Backdrop) -> None:
    draw, line, width = scene.draw, scene.horizon, scene.width
    scene.clouds()
    x = -10.0
    while x < width:
        x = _house_front(scene, x)
    draw.rectangle((0, line, width, line + 12), fill=(175, 172, 168))
    draw.line((0, line + 13, width, line + 13), fill=(120, 118, 116), width=2)
    y = line + 0.52 * scene.ground_height
    for left in range(-20, width, 60):
        stripe = [(left, y), (left + 34, y), (left + 31, y + 7), (left - 4, y + 7)]
        draw.polygon(stripe, fill=(235, 225, 130))


def _house_front(scene: _Backdrop, x: float) -> float:
    """One building with lit and dark windows; returns where the next one begins."""
    rng, line = scene.rng, scene.horizon
    wide, top = rng.uniform(28, 52), line - rng.uniform(0.25, 0.8) * line
    wall = jittered(rng, (150, 145, 155), 22)
    scene.draw.rectangle((x, top, x + wide, line), fill=wall)
    for y in range(int(top + 6), line - 6, 12):
        for left in range(int(x + 5), int(x + wide - 6), 11):
            window = blended(wall, (250, 240, 180), 0.55 if rng.random() < 0.5 else 0.1)
            scene.draw.rectangle((left, y, left + 5, y + 6), fill=window)
    return x + wide + rng.uniform(0, 6)


def _desert(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    draw.ellipse((0.1 * width, 14, 0.1 * width + 44, 58), fill=(255, 240, 190))
    for leftmost, rightmost in ((-80, 60), (120, 300)):
        x, size = rng.uniform(leftmost, rightmost), rng.uniform(120, 220)
        dune = [(x, line + 2), (x + 0.55 * size, line - 0.2 * size), (x + size, line + 2)]
        draw.polygon(dune, fill=jittered(rng, (222, 160, 100), 8))
    for _ in range(9):
        x, y = scene.ground_point(14)
        draw.arc((x, y, x + rng.uniform(50, 110), y + 14), 190, 340, fill=(178, 108, 55), width=2)
    _cactus(scene, rng.choice((rng.uniform(12, 30), rng.uniform(width - 40, width - 24))))


def _cactus(scene: _Backdrop, x: float) -> None:
    draw, line = scene.draw, scene.horizon
    for x0, y0, x1, y1, radius in (
        (0, -34, 9, 10, 4),  # trunk
        (-9, -24, -4, -8, 2),  # left arm
        (-8, -12, 0, -8, 0),
        (13, -28, 18, -14, 2),  # right arm
        (9, -17, 16, -13, 0),
    ):
        draw.rounded_rectangle((x + x0, line + y0, x + x1, line + y1), radius, fill=_CACTUS)


def _night(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for _ in range(60):
        x, y, size = rng.uniform(0, width), rng.uniform(0, 0.95 * line), rng.uniform(0.6, 1.9)
        draw.ellipse((x - size, y - size, x + size, y + size), fill=(240, 238, 205))
    _crescent(scene, int(rng.uniform(0.1, 0.85) * width), 12, 40)
    hills = [(0, line + 3), (0.2 * width, line - 18), (0.45 * width, line)]
    hills += [(0.7 * width, line - 26), (width, line + 3)]
    draw.polygon(hills, fill=(24, 32, 62))


def _crescent(scene: _Backdrop, x: int, y: int, size: int) -> None:
    """A moon whose dark part shows the sky, not a disc of another colour."""
    mask = Image.new("L", (size, size), 0)
    draw = ImageDraw.Draw(mask)
    draw.ellipse((0, 0, size - 1, size - 1), fill=255)
    draw.ellipse((0.32 * size, -0.1 * size, 1.22 * size, 0.85 * size), fill=0)
    scene.image.paste((246, 240, 205), (x, y), mask)


def _kitchen(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for x in range(rng.randint(-24, 0), width, 24):
        draw.line((x, 0, x, line), fill=(185, 208, 210), width=2)
    for y in range(rng.randint(-24, 0), line, 24):
        draw.line((0, y, width, y), fill=(185, 208, 210), width=2)
    draw.rectangle((0, line - 8, width, line), fill=(120, 130, 135))
    rows, middle = 6, width / 2
    for row in range(rows):
        top, bottom = ((edge / rows) ** 1.35 for edge in (row, row + 1))
        y0, y1 = line + scene.ground_height * top, line + scene.ground_height * bottom
        far, near = 26 + 26 * top, 26 + 26 * bottom
        for column in range(-9, 10):
            if (column + row) % 2:
                tile = [(middle + column * far, y0), (middle + (column + 1) * far, y0)]
                tile += [(middle + (column + 1) * near, y1), (middle + column * near, y1)]
                draw.polygon(tile, fill=(95, 105, 125))


def _room(scene: _Backdrop) -> None:
    draw, rng, line, width = scene.draw, scene.rng, scene.horizon, scene.width
    for x in range(rng.randint(-26, 0), width, 26):
        draw.rectangle((x, 0, x + 10, line), fill=(224, 194, 160))
    _window(scene, rng.uniform(0.1, 0.7) * width)
    draw.rectangle((0, line - 9, width, line), fill=(245, 238, 225))
    boards = 7
    for board in range(boards):
        y0, y1 = (line + scene.ground_height * (edge / boards) ** 1.25 for edge in (board, board + 1))
        draw.line((0, y0, width, y0), fill=(112, 74, 42), width=2)
        for x in range(rng.randint(-70, 0), width, 90):
            draw.line((x, y0, x, y1), fill=(112, 74, 42), width=2)


def _window(scene: _Backdrop, x: float) -> None:
    draw, frame = scene.draw, (120, 85, 55)
    top, bottom = 0.15 * scene.horizon, 0.62 * scene.horizon
    draw.rectangle((x, top, x + 74, bottom), fill=frame)
    draw.rectangle((x + 5, top + 5, x + 69, bottom - 5), fill=(165, 205, 235))
    draw.polygon(
        [(x + 12, bottom - 5), (x + 42, top + 5), (x + 54, top + 5), (x + 24, bottom - 5)], fill=(188, 219, 242)
    )
    draw.line((x + 37, top, x + 37, bottom), fill=frame, width=4)
    draw.line((x, (top + bottom) / 2, x + 74, (top + bottom) / 2), fill=frame, width=3)


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
