"""Drawing of objects: colours, and a pen that draws shaded and patterned shapes inside a box.

Kinds are lists of strokes in drawings.json: `[tool, where, colour, options]`. `Pen.shape` and `Pen.mark` name tools and
options.

- A place x, y is in fractions of the width and of the height of the box, and a length in fractions of the height.
  `[a, b]` for such a number is a of its own side and b of the other one: heads stay round in boxes of any shape.
- A hand is elsewhere in every pose: `where` then has a place for each.
- A colour is `own`, that of the object; `own*F`, darkened (F < 1) or lightened; `dark*F`, which stands out from the
  body; `gloss`, `stripe`, `sleeve` or `pollen`, which follow from it; `skin`, `hair` or `legs` of a person; or another
  one as `#rrggbb`.
- A kind that looks different in a state has a second list for that state (`bird fly`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
Length = float | list[float]
"""A fraction of one side of a box, or also of the other one."""

DRAWINGS: dict[str, Any] = json.loads(Path(__file__).with_name("drawings.json").read_bytes())
_SHAPES = ("polygon", "ellipse", "rectangle", "dome")
_LIGHT_SUM = 640
_DARK_SUM = 150
# Drawn the same way round always: their sides and reflections show where the light comes from.
_UNMIRRORED = ("box", "ball", "balloon")


@cache
def rgb(colour: Colour) -> RGB:
    """Return the levels of a colour."""
    if isinstance(colour, str):
        red, green, blue, *_ = ImageColor.getrgb(colour)
        return red, green, blue
    return colour


def _clipped(levels: np.ndarray) -> RGB:
    red, green, blue = levels.clip(0, 255).astype(int).tolist()
    return red, green, blue


def shaded(colour: Colour, factor: float) -> RGB:
    """Return the colour darkened (factor < 1) or lightened (factor > 1)."""
    return _clipped(np.array(rgb(colour)) * factor)


def blended(
    colour: Colour,
    other: Colour,
    share: float,
) -> RGB:
    """Return a mixture of two colours with `share` (0..1) of the other one."""
    levels = np.array(rgb(colour)) * (1 - share)
    return _clipped(levels + np.array(rgb(other)) * share)


def jittered(
    rng: Random,
    colour: Colour,
    amount: float = 10.0,
) -> RGB:
    """Return the colour with every channel moved by up to `amount` levels."""
    shifts = [rng.uniform(-amount, amount) for _ in range(3)]
    return _clipped(np.array(rgb(colour)) + shifts)


def in_pixels(box: Box, image: Image.Image) -> Box:
    """Return a box of a scene in pixels of an image."""
    x0, y0, x1, y1 = box
    return x0 * image.width, y0 * image.height, x1 * image.width, y1 * image.height


def box_around(
    x: float,
    y: float,
    across: float,
    up: float,
) -> Box:
    """Return the box around a centre, half of its width and half of its height away."""
    return x - across, y - up, x + across, y + up


@cache
def _light_field() -> Image.Image:
    """Return how much darker a shape is towards its lower right: 8-bit opacity of black."""
    y, x = np.mgrid[0:64, 0:64] / 63.0
    darkness = np.clip(0.45 * x + 0.75 * y - 0.25, 0, 1)
    return Image.fromarray((darkness * 105).astype(np.uint8))


def _pattern_tile(
    rng: Random,
    size: tuple[int, int],
    colour: RGB,
    pattern: str,
    step: int,
) -> Image.Image:
    """Return a tile of stripes or dots at a distance of `step` pixels."""
    width, height = size
    tile = Image.new("RGB", size, colour)
    draw = ImageDraw.Draw(tile)
    contrast = "#787882"
    if sum(colour) < _LIGHT_SUM:
        contrast = "#fafaf6"
    if pattern == "striped":
        offset = rng.randrange(step)
        slant = 0.3 * height
        thickness = 0.48 * step
        for x in range(offset - height - step, offset + width + height, step):
            stripe = [
                (x, 0),
                (x + thickness, 0),
                (x + thickness - slant, height),
                (x - slant, height),
            ]
            draw.polygon(stripe, contrast)
        return tile
    radius = max(1.6, 0.27 * step)
    for row in range(-1, height // step + 2):
        y = 0.9 * row * step + 0.4 * step
        for column in range(-1, width // step + 2):
            x = (column + 0.5 * (row % 2)) * step + 0.3 * step
            draw.circle((x, y), radius, contrast)
    return tile


class Pen:
    """Draws one object in coordinates of its box: (0, 0) is the upper left corner, (1, 1) the lower right one.

    Everything is drawn as if the object looked to the left, and mirrored when it looks to the right. Lengths that are
    not coordinates (widths of lines, radii) are fractions of the height of the box.

    Args:
        image: RGB, is drawn on.
        item: the object.
        rng: source of randomness for details.

    Attributes:
        colour: the object's colour in this image.
    """

    def __init__(
        self,
        image: Image.Image,
        item: PlacedObject,
        rng: Random,
    ) -> None:
        self._image = image
        self._draw = ImageDraw.Draw(image)
        self._left, self._top, right, bottom = in_pixels(item.box, image)
        self._width = right - self._left
        self._height = bottom - self._top
        self._mirrored = item.facing > 0 and item.kind not in _UNMIRRORED
        self._pattern = item.pattern
        self._rng = rng
        self.colour = jittered(rng, DRAWINGS["palette"][item.colour])
        self._parts: dict[str, Colour] = {}
        if item.kind in PEOPLE:
            self._parts["skin"] = rng.choice(DRAWINGS["skins"])
            self._parts["hair"] = rng.choice(DRAWINGS["hairs"])
        if item.kind in ("man", "boy"):
            self._parts["legs"] = jittered(rng, "#3c466e", 15)

    def _levels(self, colour: Colour) -> RGB:
        """Return a colour, also one of those that drawings.json names."""
        if not isinstance(colour, str):
            return colour
        name, _, factor = colour.partition("*")
        body = self.colour
        light = sum(body)
        match name:
            case "own":
                return shaded(body, float(factor or 1))
            case "dark" if light > _DARK_SUM:
                return shaded(body, float(factor))
            case "dark":
                return blended(body, "white", 0.2)
            case "gloss":
                return blended(body, "white", 0.7)
            case "stripe" if light < _LIGHT_SUM:
                return rgb("#fafaf5")
            case "stripe":
                return rgb("#5a5a5a")
            case "sleeve" if light > 140:
                return shaded(body, 0.8)
            case "sleeve":
                return rgb("#1c1c20")
            case "pollen":
                red, green, blue = body
                is_yellowish = red > 200 and green > 150 and blue < 120
                if is_yellowish:
                    return rgb("#965a28")
                return rgb("#fac83c")
        return rgb(self._parts.get(name, colour))

    def _down(self, length: Length) -> float:
        """Return a length, or the y of a place, in fractions of the height."""
        if isinstance(length, list):
            return length[0] + length[1] * (self._width / self._height)
        return length

    def _points(self, places: Sequence[Sequence[Length]]) -> list[tuple[float, float]]:
        """Return places in pixels."""
        points = []
        for x, y in places:
            if isinstance(x, list):
                x = x[0] + x[1] / (self._width / self._height)
            if self._mirrored:
                x = 1 - x
            y = self._down(y)
            points.append((self._left + x * self._width, self._top + y * self._height))
        return points

    def _box(self, where: Sequence[Length]) -> Box:
        (left, top), (right, bottom) = self._points([where[:2], where[2:]])
        return min(left, right), top, max(left, right), bottom

    def shape(
        self,
        tool: str,
        where: Sequence[Any],
        colour: Colour,
        *,
        patterned: bool = False,
        step: float | None = None,
        outline: bool = True,
        radius: float = 0.0,
        scallops: int = 0,
    ) -> None:
        """Draw a shape that is filled, and lit from the upper left.

        Args:
            tool: `polygon`, `ellipse`, `rectangle`, or `dome`, the upper half of an ellipse.
            where: the corners of a polygon, else a box x0, y0, x1, y1.
            colour: as in drawings.json.
            patterned: whether it has the pattern of the object.
            step: distance of stripes or dots as a fraction of the width of the object, by default about a third of the
                shorter side of the shape.
            outline: whether it has a darker edge.
            radius: of a rectangle's corners.
            scallops: arcs that are cut out of the lower edge of a dome, an umbrella's canopy.
        """
        corners: list[tuple[float, float]] = []
        if tool == "polygon":
            corners = self._points(where)
            xs, ys = zip(*corners, strict=True)
            box = min(xs), min(ys), max(xs), max(ys)
        else:
            box = self._box(where)
        x0, y0, _, _ = box
        left, top, right, bottom = map(round, box)
        width = max(2, right - left + 1)
        height = max(2, bottom - top + 1)
        size = (width, height)

        mask = Image.new("L", size, 0)
        draw = ImageDraw.Draw(mask)
        whole = (0, 0, width - 1, height - 1)
        match tool:
            case "polygon":
                draw.polygon([(x - x0, y - y0) for x, y in corners], 255)
            case "ellipse":
                draw.ellipse(whole, 255)
            case "rectangle":
                draw.rounded_rectangle(whole, int(radius * self._height), 255)
            case "dome":
                lower = 1.84 if scallops else 2.0
                draw.pieslice((0, 0, width - 1, lower * height), 180, 360, fill=255)
                for index in range(scallops):
                    start = width * index / scallops + 1
                    end = width * (index + 1) / scallops - 1
                    draw.ellipse((start, 0.8 * height, end, 1.12 * height), fill=0)

        filling: RGB | Image.Image = self._levels(colour)
        if outline:
            edge = (15, 15, 18)
            if sum(filling) > 200:
                edge = shaded(filling, 0.55)
            for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                self._image.paste(edge, (left + dx, top + dy), mask)
        if patterned and self._pattern != "plain":
            distance = max(5, int(min(size) / 3.6))
            if step is not None:
                distance = max(6, int(step * self._width))
            filling = _pattern_tile(self._rng, size, filling, self._pattern, distance)
        self._image.paste(filling, (left, top), mask)
        unlit = Image.new("L", size, 0)
        shadow = Image.composite(_light_field().resize(size), unlit, mask)
        self._image.paste("black", (left, top), shadow)

    def mark(
        self,
        tool: str,
        where: Sequence[Any],
        colour: Colour,
        *,
        width: Length = 0.0,
        radius: Length = 0.0,
        least: float = 1,
        start: float = 0,
        end: float = 0,
        pixels: int = 2,
    ) -> None:
        """Draw something flat.

        Args:
            tool: `line`, `disc`, `ring` (a circle), `spot` (an ellipse), or `arc` (part of an ellipse).
            where: points of a line, the centre of a disc or ring, or the box x0, y0, x1, y1 of a spot or arc.
            colour: as in drawings.json.
            width: of a line or ring.
            radius: of a disc or ring.
            least: least width of a line, or radius of a disc, in pixels.
            start, end: of an arc, in degrees clockwise from three o'clock before mirroring.
            pixels: width of an arc.
        """
        levels = self._levels(colour)
        match tool:
            case "line":
                thickness = max(least, int(self._down(width) * self._height))
                self._draw.line(
                    self._points(where),
                    levels,
                    int(thickness),
                    joint="curve",
                )
            case "disc":
                (centre,) = self._points([where])
                size = max(least, self._down(radius) * self._height)
                self._draw.circle(centre, size, levels)
            case "ring":
                (centre,) = self._points([where])
                size = self._down(radius) * self._height
                thickness = max(3, int(self._down(width) * self._height))
                self._draw.circle(
                    centre,
                    size,
                    outline=levels,
                    width=thickness,
                )
            case "spot":
                self._draw.ellipse(self._box(where), levels)
            case "arc":
                if self._mirrored:
                    start, end = 180 - end, 180 - start
                self._draw.arc(self._box(where), start, end, levels, pixels)


def draw_object(
    image: Image.Image,
    item: PlacedObject,
    rng: Random,
) -> None:
    """Draw an object.

    Args:
        image: RGB, is drawn on.
        item: the object.
        rng: source of randomness.
    """
    pen = Pen(image, item, rng)
    strokes = DRAWINGS["strokes"]
    for tool, where, colour, *options in strokes.get(f"{item.kind} {item.state}", strokes[item.kind]):
        if isinstance(where, dict):
            where = where[item.pose]
        draw = pen.mark
        if tool in _SHAPES:
            draw = pen.shape
        style = options[0] if options else {}
        draw(tool, where, colour, **style)
    if item.kind == "tree":  # lighter and darker leaves in its crown
        for _ in range(14):
            place = rng.uniform(0.15, 0.85), rng.uniform(0.12, 0.6)
            colour = shaded(pen.colour, rng.choice((0.78, 1.16)))
            pen.mark("disc", place, colour, radius=0.012, least=1.8)
