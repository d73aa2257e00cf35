"""Drawing tools: colours, the pattern-filled and shaded shapes, and the pen that draws inside an object's box."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random

import numpy as np
from PIL import Image, ImageDraw

RGB = tuple[int, int, int]
Point = tuple[float, float]

PALETTE: dict[str, RGB] = {
    "red": (212, 38, 40),
    "blue": (45, 95, 215),
    "green": (45, 150, 65),
    "yellow": (246, 208, 50),
    "orange": (240, 130, 30),
    "purple": (132, 62, 172),
    "pink": (245, 145, 185),
    "brown": (135, 85, 45),
    "black": (42, 42, 48),
    "white": (245, 245, 240),
    "grey": (142, 142, 148),
}
WHITE: RGB = (255, 255, 255)
INK: RGB = (20, 20, 20)
_LIGHT_SUM = 640
_DARK_SUM = 150


def shaded(colour: RGB, factor: float) -> RGB:
    """The colour darkened (factor < 1) or lightened (factor > 1)."""
    red, green, blue = (max(0, min(255, int(value * factor))) for value in colour)
    return red, green, blue


def blended(colour: RGB, other: RGB, share: float) -> RGB:
    """Mixture of two colours with `share` (0..1) of the other one."""
    red, green, blue = (int(a * (1 - share) + b * share) for a, b in zip(colour, other, strict=True))
    return red, green, blue


def jittered(rng: Random, colour: RGB, amount: float = 10.0) -> RGB:
    """The colour with every channel moved by up to `amount` levels."""
    red, green, blue = (max(0, min(255, int(value + rng.uniform(-amount, amount)))) for value in colour)
    return red, green, blue


def dark_side(colour: RGB, factor: float) -> RGB:
    """The colour of a part that must stand out from the body: darker, but lighter where the body is black."""
    return shaded(colour, factor) if sum(colour) > _DARK_SUM else blended(colour, WHITE, 0.2)


def _outline_of(colour: RGB) -> RGB:
    return shaded(colour, 0.55) if sum(colour) > 200 else (15, 15, 18)


@lru_cache(maxsize=1)
def _light_field() -> Image.Image:
    """How much darker a shape is towards its lower right: 8-bit opacity of black."""
    y, x = np.mgrid[0:64, 0:64] / 63.0
    return Image.fromarray((np.clip(0.45 * x + 0.75 * y - 0.25, 0, 1) * 105).astype(np.uint8))


class Canvas:
    """An RGB image with shapes that are outlined, patterned and lit from the upper left. Units are pixels."""

    def __init__(self, image: Image.Image, rng: Random) -> None:
        self.image = image
        self.draw = ImageDraw.Draw(image)
        self.rng = rng

    def fill(
        self,
        box: tuple[float, float, float, float],
        outline_mask: Callable[[ImageDraw.ImageDraw, int, int], None],
        colour: RGB,
        *,
        pattern: str = "plain",
        step: int | None = None,
        outline: bool = True,
    ) -> None:
        """Fills a shape.

        Args:
            box: corners of the shape.
            outline_mask: draws the shape with fill 255 on an 8-bit mask of the given width and height.
            colour: base colour.
            pattern: one of `PATTERNS`.
            step: distance of stripes or dots; by default about a third of the shorter side.
            outline: whether a darker line surrounds the shape.
        """
        left, top, right, bottom = (round(value) for value in box)
        width, height = max(2, right - left + 1), max(2, bottom - top + 1)
        mask = Image.new("L", (width, height), 0)
        outline_mask(ImageDraw.Draw(mask), width, height)
        if outline:
            for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                self.image.paste(_outline_of(colour), (left + dx, top + dy), mask)
        if pattern == "plain":
            self.image.paste(colour, (left, top), mask)
        else:
            self.image.paste(self._patterned_tile((width, height), colour, pattern, step), (left, top), mask)
        shadow = Image.composite(_light_field().resize((width, height)), Image.new("L", (width, height), 0), mask)
        self.image.paste((0, 0, 0), (left, top), shadow)

    def _patterned_tile(self, size: tuple[int, int], colour: RGB, pattern: str, step: int | None) -> Image.Image:
        tile = Image.new("RGB", size, colour)
        draw = ImageDraw.Draw(tile)
        contrast = (250, 250, 246) if sum(colour) < _LIGHT_SUM else (120, 120, 130)
        distance = step or max(5, int(min(size) / 3.6))
        if pattern == "striped":
            self._draw_stripes(draw, size, distance, contrast)
        else:
            _draw_dots(draw, size, distance, contrast)
        return tile

    def _draw_stripes(self, draw: ImageDraw.ImageDraw, size: tuple[int, int], step: int, colour: RGB) -> None:
        width, height = size
        offset, slant, thickness = self.rng.randrange(step), 0.3 * height, 0.48 * step
        for start in range(-height - step, width + height, step):
            x = start + offset
            corners = [(x, 0), (x + thickness, 0), (x + thickness - slant, height), (x - slant, height)]
            draw.polygon(corners, fill=colour)


def _draw_dots(draw: ImageDraw.ImageDraw, size: tuple[int, int], step: int, colour: RGB) -> None:
    width, height = size
    radius = max(1.6, 0.27 * step)
    for row in range(-1, height // step + 2):
        for column in range(-1, width // step + 2):
            x = (column + 0.5 * (row % 2)) * step + 0.3 * step
            y = 0.9 * row * step + 0.4 * step
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


class Pen:
    """Draws one object in coordinates of its box: (0, 0) is the upper left corner, (1, 1) the lower right one.

    Everything is drawn as if the object looked to the left, and mirrored when `facing` is 1.
    Lengths that are not coordinates (line widths, radii) are fractions of the height of the box.

    Attributes:
        colour: the object's colour in this image.
        pattern: the object's pattern.
        state, pose, facing: as in `PlacedObject`.
        rng: source of randomness for details.
    """

    def __init__(
        self,
        canvas: Canvas,
        box: tuple[float, float, float, float],
        *,
        colour: RGB,
        pattern: str,
        state: str,
        pose: str,
        facing: int,
    ) -> None:
        self._canvas = canvas
        self._left, self._top = box[0], box[1]
        self._width, self._height = box[2] - box[0], box[3] - box[1]
        self.colour, self.pattern = colour, pattern
        self.state, self.pose, self.facing = state, pose, facing
        self.rng = canvas.rng

    @property
    def aspect(self) -> float:
        """Width over height: multiplies a length in fractions of the width into one of the height."""
        return self._width / self._height

    def _point(self, point: Point) -> Point:
        x = 1 - point[0] if self.facing > 0 else point[0]
        return self._left + x * self._width, self._top + point[1] * self._height

    def _box(self, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
        (left, top), (right, bottom) = self._point((x0, y0)), self._point((x1, y1))
        return min(left, right), top, max(left, right), bottom

    def _step(self, step: float | None) -> int | None:
        return None if step is None else max(6, int(step * self._width))

    def ellipse(
        self,
        x0: float,
        y0: float,
        x1: float,
        y1: float,
        colour: RGB,
        *,
        pattern: str = "plain",
        outline: bool = True,
    ) -> None:
        """Shaded ellipse."""

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.ellipse((0, 0, width - 1, height - 1), fill=255)

        self._canvas.fill(self._box(x0, y0, x1, y1), mask, colour, pattern=pattern, outline=outline)

    def dome(self, x0: float, y0: float, x1: float, y1: float, colour: RGB, *, scallops: int = 0) -> None:
        """Upper half of an ellipse; `scallops` arcs are cut out of its lower edge (an umbrella's canopy)."""

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.pieslice((0, 0, width - 1, (1.84 if scallops else 2.0) * height), 180, 360, fill=255)
            for index in range(scallops):
                start, end = width * index / scallops + 1, width * (index + 1) / scallops - 1
                draw.ellipse((start, 0.8 * height, end, 1.12 * height), fill=0)

        pattern = self.pattern if scallops else "plain"
        self._canvas.fill(self._box(x0, y0, x1, y1), mask, colour, pattern=pattern, outline=bool(scallops))

    def rectangle(
        self,
        x0: float,
        y0: float,
        x1: float,
        y1: float,
        colour: RGB,
        *,
        radius: float = 0.0,
        pattern: str = "plain",
        step: float | None = None,
        outline: bool = True,
    ) -> None:
        """Shaded rectangle with round corners; `step` of the pattern in fractions of the width."""
        corner = int(radius * self._height)

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.rounded_rectangle((0, 0, width - 1, height - 1), corner, fill=255)

        box = self._box(x0, y0, x1, y1)
        self._canvas.fill(box, mask, colour, pattern=pattern, step=self._step(step), outline=outline)

    def polygon(
        self,
        points: Iterable[Point],
        colour: RGB,
        *,
        pattern: str = "plain",
        step: float | None = None,
        outline: bool = True,
    ) -> None:
        """Shaded polygon."""
        corners = [self._point(point) for point in points]
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        left, top = min(xs), min(ys)

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.polygon([(x - left, y - top) for x, y in corners], fill=255)

        box = (left, top, max(xs), max(ys))
        self._canvas.fill(box, mask, colour, pattern=pattern, step=self._step(step), outline=outline)

    def line(self, points: Iterable[Point], colour: RGB, width: float, *, least: int = 1) -> None:
        """Polyline of `width`, never thinner than `least` pixels."""
        pixels = max(least, int(width * self._height))
        self._canvas.draw.line([self._point(point) for point in points], fill=colour, width=pixels, joint="curve")

    def disc(self, centre: Point, radius: float, colour: RGB, *, least: float = 1.0) -> None:
        """Flat disc, never smaller than `least` pixels in radius."""
        x, y = self._point(centre)
        size = max(least, radius * self._height)
        self._canvas.draw.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def ring(self, centre: Point, radius: float, colour: RGB, width: float) -> None:
        """Flat circle of line `width`."""
        x, y = self._point(centre)
        size = radius * self._height
        box = (x - size, y - size, x + size, y + size)
        self._canvas.draw.ellipse(box, outline=colour, width=max(3, int(width * self._height)))

    def spot(self, x0: float, y0: float, x1: float, y1: float, colour: RGB) -> None:
        """Flat ellipse without shading, for details."""
        self._canvas.draw.ellipse(self._box(x0, y0, x1, y1), fill=colour)

    def arc(
        self, x0: float, y0: float, x1: float, y1: float, start: float, end: float, colour: RGB, *, pixels: int = 2
    ) -> None:
        """Part of an ellipse from `start` to `end` degrees, clockwise from three o'clock before mirroring."""
        if self.facing > 0:
            start, end = 180 - end, 180 - start
        self._canvas.draw.arc(self._box(x0, y0, x1, y1), start, end, fill=colour, width=pixels)

    def eye(self, centre: Point, radius: float = 1.8) -> None:
        """White-rimmed eye of `radius` pixels, so that it shows on any fur."""
        self.disc(centre, 0, (250, 250, 250), least=radius + 1)
        self.disc(centre, 0, INK, least=radius)
