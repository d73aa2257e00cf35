"""How objects are drawn: colours, a pen that draws shaded and patterned shapes inside a box, and the kinds it draws.

Most kinds are lists of strokes in drawings.json: `[tool, where, colour, options]`. The tools are the methods of `Pen`.
A colour is `own`, that of the object; `own*F`, darkened (F < 1) or lightened; `dark*F`, which stands out from the body;
`gloss`; `stripe`; or another one as `#rrggbb`. A kind that looks different in a state has a second list for that state
(`bird fly`). Functions draw people, flowers, umbrellas and the leaves of trees, since their shapes are computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw

from itrpipe.scenes.layout import Box, PlacedObject
from itrpipe.scenes.world import PEOPLE

RGB = tuple[int, int, int]
Colour = RGB | str
"""Levels of red, green and blue, or their spelling `#rrggbb`."""

DRAWINGS: dict[str, Any] = json.loads(Path(__file__).with_name("drawings.json").read_bytes())
_STROKES: dict[str, list[list[Any]]] = DRAWINGS["strokes"]
_LEAF, _WOOD = "#3c913c", "#554132"
_LIGHT_SUM = 640
_DARK_SUM = 150
# Drawn the same way round always: their sides and reflections show where the light comes from.
_UNMIRRORED = ("box", "ball", "balloon")


@cache
def rgb(colour: Colour) -> RGB:
    """Levels of a colour."""
    red, green, blue = ImageColor.getrgb(colour)[:3] if isinstance(colour, str) else colour
    return red, green, blue


def _clipped(channels: Sequence[float]) -> RGB:
    red, green, blue = (max(0, min(255, int(value))) for value in channels)
    return red, green, blue


def shaded(colour: Colour, factor: float) -> RGB:
    """The colour darkened (factor < 1) or lightened (factor > 1)."""
    return _clipped([value * factor for value in rgb(colour)])


def blended(colour: Colour, other: Colour, share: float) -> RGB:
    """Mixture of two colours with `share` (0..1) of the other one."""
    return _clipped([a * (1 - share) + b * share for a, b in zip(rgb(colour), rgb(other), strict=True)])


def jittered(rng: Random, colour: Colour, amount: float = 10.0) -> RGB:
    """The colour with every channel moved by up to `amount` levels."""
    return _clipped([value + rng.uniform(-amount, amount) for value in rgb(colour)])


def in_pixels(box: Box, image: Image.Image) -> Box:
    """A box of a scene in pixels of an image."""
    x0, y0, x1, y1 = box
    return x0 * image.width, y0 * image.height, x1 * image.width, y1 * image.height


@cache
def _light_field() -> Image.Image:
    """How much darker a shape is towards its lower right: 8-bit opacity of black."""
    y, x = np.mgrid[0:64, 0:64] / 63.0
    return Image.fromarray((np.clip(0.45 * x + 0.75 * y - 0.25, 0, 1) * 105).astype(np.uint8))


def _patterned(rng: Random, size: tuple[int, int], colour: RGB, pattern: str, step: int) -> Image.Image:
    """A tile of stripes or dots at a distance of `step` pixels."""
    width, height = size
    tile = Image.new("RGB", size, colour)
    draw = ImageDraw.Draw(tile)
    contrast = "#fafaf6" if sum(colour) < _LIGHT_SUM else "#787882"
    if pattern == "striped":
        offset, slant, thickness = rng.randrange(step), 0.3 * height, 0.48 * step
        for x in range(offset - height - step, offset + width + height, step):
            draw.polygon([(x, 0), (x + thickness, 0), (x + thickness - slant, height), (x - slant, height)], contrast)
    else:
        for row in range(-1, height // step + 2):
            for column in range(-1, width // step + 2):
                centre = ((column + 0.5 * (row % 2)) * step + 0.3 * step, 0.9 * row * step + 0.4 * step)
                draw.circle(centre, max(1.6, 0.27 * step), contrast)
    return tile


class Pen:
    """Draws one object in coordinates of its box: (0, 0) is the upper left corner, (1, 1) the lower right one.

    Everything is drawn as if the object looked to the left, and mirrored when it looks to the right. Lengths that are
    not coordinates (widths of lines, radii) are fractions of the height of the box. Shapes are outlined, filled with
    the pattern where they are `patterned`, and lit from the upper left; lines, discs, rings, spots and arcs are flat.

    Args:
        image: RGB, is drawn on.
        item: the object.
        rng: source of randomness for details.

    Attributes:
        colour: the object's colour in this image.
        aspect: multiplies a length in fractions of the width into one of the height.
    """

    def __init__(self, image: Image.Image, item: PlacedObject, rng: Random) -> None:
        self._image, self._draw = image, ImageDraw.Draw(image)
        self._left, self._top, right, bottom = in_pixels(item.box, image)
        self._width, self._height = right - self._left, bottom - self._top
        self._mirrored = item.facing > 0 and item.kind not in _UNMIRRORED
        self.item, self.rng, self.aspect = item, rng, self._width / self._height
        self.colour = jittered(rng, DRAWINGS["palette"][item.colour])

    def _levels(self, colour: Colour) -> RGB:
        """A colour, also one of those that drawings.json names."""
        if not isinstance(colour, str):
            return colour
        name, _, factor = colour.partition("*")
        own, light = self.colour, sum(self.colour)
        match name:
            case "own":
                return shaded(own, float(factor or 1))
            case "dark":  # lighter where the body is black
                return shaded(own, float(factor)) if light > _DARK_SUM else blended(own, "white", 0.2)
            case "gloss":
                return blended(own, "white", 0.7)
            case "stripe":
                return rgb("#fafaf5" if light < _LIGHT_SUM else "#5a5a5a")
        return rgb(colour)

    def _points(self, points: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
        """Points in pixels."""
        across = [1 - x if self._mirrored else x for x, _ in points]
        return [
            (self._left + x * self._width, self._top + y * self._height)
            for x, (_, y) in zip(across, points, strict=True)
        ]

    def _box(self, where: Sequence[float]) -> Box:
        (left, top), (right, bottom) = self._points([where[:2], where[2:]])
        return min(left, right), top, max(left, right), bottom

    def _fill(
        self,
        box: Box,
        draw_mask: Callable[[ImageDraw.ImageDraw, int, int], None],
        colour: Colour,
        *,
        patterned: bool = False,
        step: float | None = None,
        outline: bool = True,
    ) -> None:
        """Fills the shape that `draw_mask` draws with 255 on a mask of the width and height of a box.

        `step` is the distance of stripes or dots as a fraction of the width of the object, by default about a third of
        the shorter side of the shape.
        """
        left, top, right, bottom = (round(value) for value in box)
        size = max(2, right - left + 1), max(2, bottom - top + 1)
        mask = Image.new("L", size, 0)
        draw_mask(ImageDraw.Draw(mask), *size)
        levels = self._levels(colour)
        if outline:
            edge = shaded(levels, 0.55) if sum(levels) > 200 else (15, 15, 18)
            for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                self._image.paste(edge, (left + dx, top + dy), mask)
        filling: RGB | Image.Image = levels
        if patterned and self.item.pattern != "plain":
            distance = max(5, int(min(size) / 3.6)) if step is None else max(6, int(step * self._width))
            filling = _patterned(self.rng, size, levels, self.item.pattern, distance)
        self._image.paste(filling, (left, top), mask)
        shadow = Image.composite(_light_field().resize(size), Image.new("L", size, 0), mask)
        self._image.paste((0, 0, 0), (left, top), shadow)

    def ellipse(self, where: Sequence[float], colour: Colour, **how: Any) -> None:
        """Ellipse in a box x0, y0, x1, y1; `patterned` and `outline` as in `_fill`."""
        self._fill(self._box(where), lambda draw, w, h: draw.ellipse((0, 0, w - 1, h - 1), 255), colour, **how)

    def dome(self, where: Sequence[float], colour: Colour, *, scallops: int = 0) -> None:
        """Upper half of an ellipse; `scallops` arcs are cut out of its lower edge (an umbrella's canopy)."""

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.pieslice((0, 0, width - 1, (1.84 if scallops else 2.0) * height), 180, 360, fill=255)
            for index in range(scallops):
                start, end = width * index / scallops + 1, width * (index + 1) / scallops - 1
                draw.ellipse((start, 0.8 * height, end, 1.12 * height), fill=0)

        self._fill(self._box(where), mask, colour, patterned=bool(scallops), outline=bool(scallops))

    def rectangle(self, where: Sequence[float], colour: Colour, *, radius: float = 0.0, **how: Any) -> None:
        """Rectangle with round corners; `patterned`, `step` and `outline` as in `_fill`."""

        def mask(draw: ImageDraw.ImageDraw, width: int, height: int) -> None:
            draw.rounded_rectangle((0, 0, width - 1, height - 1), int(radius * self._height), 255)

        self._fill(self._box(where), mask, colour, **how)

    def polygon(self, where: Sequence[Sequence[float]], colour: Colour, **how: Any) -> None:
        """Polygon through points; `patterned`, `step` and `outline` as in `_fill`."""
        corners = self._points(where)
        xs, ys = zip(*corners, strict=True)
        left, top = min(xs), min(ys)
        moved = [(x - left, y - top) for x, y in corners]
        self._fill((left, top, max(xs), max(ys)), lambda draw, w, h: draw.polygon(moved, 255), colour, **how)

    def line(self, where: Sequence[Sequence[float]], colour: Colour, *, width: float = 0.0, least: int = 1) -> None:
        """Line through points, never thinner than `least` pixels."""
        self._draw.line(self._points(where), self._levels(colour), max(least, int(width * self._height)), joint="curve")

    def disc(self, where: Sequence[float], colour: Colour, *, radius: float = 0.0, least: float = 1.0) -> None:
        """Disc around a point, never smaller than `least` pixels in radius."""
        self._draw.circle(self._points([where])[0], max(least, radius * self._height), self._levels(colour))

    def ring(self, where: Sequence[float], colour: Colour, *, radius: float, width: float) -> None:
        """Circle of a line around a point."""
        thick = max(3, int(width * self._height))
        self._draw.circle(self._points([where])[0], radius * self._height, outline=self._levels(colour), width=thick)

    def spot(self, where: Sequence[float], colour: Colour) -> None:
        """Flat ellipse in a box, for details."""
        self._draw.ellipse(self._box(where), self._levels(colour))

    def arc(self, where: Sequence[float], colour: Colour, start: float, end: float, pixels: int = 2) -> None:
        """Part of an ellipse from `start` to `end` degrees, clockwise from three o'clock before mirroring."""
        if self._mirrored:
            start, end = 180 - end, 180 - start
        self._draw.arc(self._box(where), start, end, self._levels(colour), pixels)


def draw_object(image: Image.Image, item: PlacedObject, rng: Random) -> None:
    """Draws an object.

    Args:
        image: RGB, is drawn on.
        item: the object.
        rng: source of randomness.
    """
    pen = Pen(image, item, rng)
    strokes = _STROKES.get(f"{item.kind} {item.state}") or _STROKES.get(item.kind, [])
    for tool, where, colour, *options in strokes:
        getattr(pen, tool)(where, colour, **(options[0] if options else {}))
    match item.kind:
        case "tree":  # lighter and darker leaves in its crown
            for _ in range(14):
                place = rng.uniform(0.15, 0.85), rng.uniform(0.12, 0.6)
                pen.disc(place, shaded(pen.colour, rng.choice((0.78, 1.16))), radius=0.012, least=1.8)
        case "flower":
            pen.line([(0.5, 0.35), (0.5, 1.0)], "#328237", width=0.09 * pen.aspect, least=3)
            pen.ellipse((0.52, 0.62, 0.92, 0.78), _LEAF, outline=False)
            pen.ellipse((0.08, 0.70, 0.48, 0.86), _LEAF, outline=False)
            across, up = 0.21, 0.21 * pen.aspect  # a petal's radius in fractions of the width and of the height
            for petal in range(6):
                angle = petal * math.pi / 3
                x, y = 0.5 + 1.25 * across * math.cos(angle), 0.28 + 1.25 * up * math.sin(angle)
                pen.ellipse((x - across, y - up, x + across, y + up), "own")
            red, green, blue = pen.colour
            yellowish = red > 200 and green > 150 and blue < 120
            pen.disc((0.5, 0.28), "#965a28" if yellowish else "#fac83c", radius=0.8 * up)
        case "umbrella":
            pen.line([(0.5, 0.0), (0.5, 0.95)], _WOOD, width=0.045, least=3)
            pen.arc((0.36, 1.0 - 0.14 * pen.aspect, 0.5, 1.0), _WOOD, 0, 180, pixels=3)
            pen.dome((0.0, 0.04, 1.0, 0.50), "own", scallops=4)
        case kind if kind in PEOPLE:
            _person(pen)


def _person(pen: Pen) -> None:
    """A standing person seen from the front; children have bigger heads, women and girls a dress and long hair."""
    skirt, child = pen.item.kind in ("woman", "girl"), pen.item.kind in ("boy", "girl")
    skin, hair = (pen.rng.choice(DRAWINGS[part]) for part in ("skins", "hairs"))
    head, hip = (0.30, 0.66) if child else (0.22, 0.60)
    neck = 0.95 * head
    half = head / pen.aspect  # the head's height in fractions of the width
    if skirt:
        pen.ellipse((0.5 - 0.58 * half, 0.05 * head, 0.5 + 0.58 * half, 1.45 * head), hair, outline=False)
    legs = skin if skirt else jittered(pen.rng, "#3c466e", 15)
    for middle in (0.37, 0.63):
        pen.rectangle((middle - 0.085, hip - 0.01, middle + 0.085, 0.97), legs, outline=not skirt)
        pen.ellipse((middle - 0.12, 0.94, middle + 0.14, 1.0), "#2d2828")
    # The pen mirrors, so the hand that holds something is always the left one here.
    sleeve = shaded(pen.colour, 0.8) if sum(pen.colour) > 140 else "#1c1c20"
    left = {"rest": (0.10, hip - 0.02), "raised": (0.0, neck - 0.02), "forward": (0.0, neck + 0.18)}[pen.item.pose]
    for shoulder, hand in ((0.26, left), (0.74, (0.90, hip - 0.02))):
        pen.line([(shoulder, neck + 0.05), hand], sleeve, width=0.13 * pen.aspect, least=3)
        pen.disc(hand, skin, radius=0.075 * pen.aspect)
    if skirt:
        waist = (neck + hip) / 2
        dress = [(0.30, neck), (0.70, neck), (0.74, waist), (0.90, 0.80), (0.10, 0.80), (0.26, waist)]
        pen.polygon(dress, "own", patterned=True, step=0.22)
    else:
        pen.rectangle((0.23, neck, 0.77, hip), "own", radius=0.04, patterned=True, step=0.22)
    pen.ellipse((0.5 - 0.46 * half, 0.04 * head, 0.5 + 0.46 * half, head), skin)
    width, top, bottom = (0.52, -0.04, 0.36) if skirt else (0.48, 0.0, 0.38)
    pen.dome((0.5 - width * half, top * head, 0.5 + width * half, bottom * head), hair)
    for side in (-1, 1):
        pen.disc((0.5 + 0.17 * side * half, 0.53 * head), "#191919", least=1.5)
    pen.arc((0.5 - 0.18 * half, 0.58 * head, 0.5 + 0.18 * half, 0.82 * head), "#8c3232", 20, 160)
