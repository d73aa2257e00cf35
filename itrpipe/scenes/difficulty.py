"""What makes pictures of scenes hard to see, and captions no less true: noise, and things in front of objects.

Both are drawn from streams of the scene's own, so that pictures of different difficulty show the same scene: more
occlusion hides the same objects and others, and more noise is more of the same noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from itrpipe.scenes.canvas import RGB, jittered, shaded
from itrpipe.scenes.layout import Box, PlacedObject, Scene
from itrpipe.scenes.visibility import COLUMNS, MAX_HIDDEN, ROWS, Cells, hidden_fraction

_LEAST_COVERED, _MOST_COVERED = 0.33, 0.5
_PATCH_TRIES = 24
_MARGIN = 0.012
# With all of it, the shipped detector finds one object in seven.
_NOISE_LEVELS = 30.0  # standard deviation
_LOST_CONTRAST = 0.3
_BLUR = 0.7  # pixels
_GREY = 127.5
_FOG: RGB = (222, 226, 231)
_LEAF: RGB = (66, 112, 48)
_PLANK: RGB = (150, 112, 76)


@dataclass(frozen=True)
class Difficulty:
    """How hard pictures are to see.

    Attributes:
        noise: 0..1; at 1 Gaussian noise of 30 levels, a blur of 0.7 pixels, and 30 % of the contrast lost.
        occlusion: 0..1; probability with which a third to a half of an object is to lie behind fog, leaves or planks.
            These and other objects hide no more than `MAX_HIDDEN` of any, so that one in six, in a crowd, stays as it
            is.
    """

    noise: float = 0.0
    occlusion: float = 0.0


@dataclass(frozen=True)
class _Patch:
    """A thing in front of an object.

    Attributes:
        material: of `_PAINTERS`.
        parts: boxes of the planks, or of the ellipses that puffs and leaves are, in fractions of the canvas.
    """

    material: str
    parts: tuple[Box, ...]

    def draw(self, draw: ImageDraw.ImageDraw, width: int, height: int, fill: int | RGB, grown: float = 0.0) -> None:
        """Draws the silhouette, on either side by so many pixels wider."""
        for x0, y0, x1, y1 in self.parts:
            box = (x0 * width - grown, y0 * height - grown, x1 * width + grown, y1 * height + grown)
            (draw.rectangle if self.material == "planks" else draw.ellipse)(box, fill=fill)


def hide_parts(image: Image.Image, scene: Scene, occlusion: float) -> None:
    """Paints things in front of objects.

    Args:
        image: the painted scene, of any size.
        scene: the scene.
        occlusion: as in `Difficulty`.
    """
    covered: Cells = np.zeros((ROWS, COLUMNS), dtype=bool)
    for item in scene.objects:
        rng = Random(f"{scene.paint_seed}/patch/{item.kind}/{item.box[0]:.4f}/{item.box[1]:.4f}")
        if rng.random() >= occlusion:
            continue
        for _ in range(_PATCH_TRIES):
            patch = _sample_patch(rng, item)
            cells = _cells(patch)
            together = covered | cells
            if (
                _LEAST_COVERED <= hidden_fraction([item], cells)[0] <= _MOST_COVERED
                and max(hidden_fraction(scene.objects, together)) <= MAX_HIDDEN
            ):
                covered = together
                _PAINTERS[patch.material](image, patch, rng)
                break


def add_noise(image: Image.Image, paint_seed: int, noise: float) -> Image.Image:
    """Blurs the image, takes contrast from it and adds Gaussian noise.

    Args:
        image: RGB.
        paint_seed: of the scene.
        noise: as in `Difficulty`.

    Returns:
        Another image of the same size.
    """
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(_BLUR * noise)), dtype=np.float32)
    generator = np.random.default_rng(Random(f"{paint_seed}/noise").getrandbits(63))
    grain = generator.standard_normal(blurred.shape, dtype=np.float32)  # [height, width, 3]
    levels = _GREY + (1 - _LOST_CONTRAST * noise) * (blurred - _GREY) + _NOISE_LEVELS * noise * grain
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


def _cells(patch: _Patch) -> Cells:
    """Raster cells that the patch covers.  # [ROWS, COLUMNS]"""
    raster = Image.new("L", (COLUMNS, ROWS), 0)
    patch.draw(ImageDraw.Draw(raster), COLUMNS, ROWS, 255)
    return np.asarray(raster) > 0


def _sample_patch(rng: Random, item: PlacedObject) -> _Patch:
    """Something in front of one side of an object; planks only where they can stand on the ground."""
    material = rng.choice(("fog", "leaves", "planks") if item.state == "ground" else ("fog", "leaves"))
    side = rng.choice(("left", "right", "bottom") if material == "planks" else ("left", "right", "bottom", "top"))
    share = rng.uniform(0.3, 0.6)
    x0, y0, x1, y1 = item.box
    cut = {
        "left": (x0, y0, x0 + share * item.width, y1),
        "right": (x1 - share * item.width, y0, x1, y1),
        "top": (x0, y0, x1, y0 + share * item.height),
        "bottom": (x0, y1 - share * item.height, x1, y1),
    }[side]
    area = (cut[0] - _MARGIN, cut[1] - _MARGIN, cut[2] + _MARGIN, cut[3] + _MARGIN)
    return _Patch(material, _planks(rng, area) if material == "planks" else _cluster(rng, area))


def _planks(rng: Random, area: Box) -> tuple[Box, ...]:
    """Upright planks side by side, of nearly the same height."""
    x0, y0, x1, y1 = area
    count = max(1, round((x1 - x0) / 0.04))
    width = (x1 - x0) / count
    return tuple(
        (x0 + index * width, y0 + rng.uniform(0, 0.015), x0 + (index + 1) * width, y1) for index in range(count)
    )


def _cluster(rng: Random, area: Box) -> tuple[Box, ...]:
    """Ellipses that cover the area and overlap."""
    x0, y0, x1, y1 = area
    pitch = max(0.03, 0.3 * min(x1 - x0, y1 - y0))
    columns, rows = max(2, round((x1 - x0) / pitch)), max(2, round((y1 - y0) / pitch))
    across, up = 0.5 * (x1 - x0) / columns, 0.5 * (y1 - y0) / rows
    ellipses = []
    for row in range(rows):
        for column in range(columns):
            x = x0 + (2 * column + 1 + rng.uniform(-0.5, 0.5)) * across
            y = y0 + (2 * row + 1 + rng.uniform(-0.5, 0.5)) * up
            size = rng.uniform(1.2, 1.9)
            ellipses.append((x - size * across, y - size * up, x + size * across, y + size * up))
    rng.shuffle(ellipses)
    return tuple(ellipses)


def _paint_fog(image: Image.Image, patch: _Patch, rng: Random) -> None:
    mask = Image.new("L", image.size, 0)
    patch.draw(ImageDraw.Draw(mask), *image.size, 250)
    image.paste(jittered(rng, _FOG), (0, 0), mask.filter(ImageFilter.BoxBlur(4)))


def _paint_leaves(image: Image.Image, patch: _Patch, rng: Random) -> None:
    draw = ImageDraw.Draw(image)
    patch.draw(draw, *image.size, shaded(_LEAF, 0.45), grown=1.5)
    for part in patch.parts:
        colour = shaded(jittered(rng, _LEAF, 14), rng.uniform(0.75, 1.2))
        _Patch("leaves", (part,)).draw(draw, *image.size, colour)
        x0, y0, x1, y1 = (edge * side for edge, side in zip(part, 2 * image.size, strict=True))
        draw.arc((x0, y0, x1, y1), 20, 160, fill=shaded(colour, 0.7), width=2)


def _paint_planks(image: Image.Image, patch: _Patch, rng: Random) -> None:
    draw = ImageDraw.Draw(image)
    for part in patch.parts:
        colour = jittered(rng, _PLANK, 12)
        x0, y0, x1, y1 = (edge * side for edge, side in zip(part, 2 * image.size, strict=True))
        tip = min(6.0, 0.2 * (y1 - y0))
        draw.polygon(
            [(x0, y1), (x0, y0 + tip), ((x0 + x1) / 2, y0), (x1, y0 + tip), (x1, y1)],
            fill=colour,
            outline=shaded(colour, 0.6),
        )
        for _ in range(2):
            x = rng.uniform(x0 + 3, x1 - 3)
            draw.line((x, y0 + 2 * tip, x, y1 - 3), fill=shaded(colour, 0.85))


_PAINTERS: dict[str, Callable[[Image.Image, _Patch, Random], None]] = {
    "fog": _paint_fog,
    "leaves": _paint_leaves,
    "planks": _paint_planks,
}
