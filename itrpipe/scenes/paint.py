"""Pictures of scenes: background, soft shadows, then the objects from far to near, then what hides them.

Noise and things in front of objects make a picture harder to see, and captions no less true. Both are drawn from
streams of the scene's own, so that pictures of different difficulty show the same scene: more occlusion hides the same
objects and others, and more noise is more of the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from itrpipe.scenes.backgrounds import paint_background
from itrpipe.scenes.drawing import Colour, box_around, draw_object, in_pixels, jittered, shaded
from itrpipe.scenes.layout import COLUMNS, HEIGHT, MAX_HIDDEN, ROWS, WIDTH, Box, PlacedObject, Scene, hidden_fraction

PAINT_VERSION = 1
"""Raised with every change that alters pixels, so that files of an older painter are not reused."""
_OVERSAMPLING = 2
_SHADOW_OPACITY = 95
# Share of the box's width, on either side, that casts no shadow: what stands on a stem.
_SHADOW_INSETS = {"tree": 0.22, "umbrella": 0.3, "flower": 0.25}
_SNOWFLAKES = 45
_NIGHT_BRIGHTNESS = 0.88
_LEAST_COVERED, _MOST_COVERED = 0.33, 0.5
_PATCH_TRIES = 24
_MARGIN = 0.012
# With all of it, the shipped detector finds one object in seven.
_NOISE_LEVELS = 30.0  # standard deviation
_LOST_CONTRAST = 0.3
_BLUR = 0.7  # pixels
_GREY = 127.5


@dataclass(frozen=True)
class Difficulty:
    """Hindrances to seeing what pictures show.

    Attributes:
        noise: 0..1; at 1 Gaussian noise of 30 levels, a blur of 0.7 pixels, and 30 % of the contrast lost.
        occlusion: 0..1; probability with which a third to a half of an object is to lie behind fog, leaves or planks.
            These and other objects hide no more than `MAX_HIDDEN` of any, so that one in six, in a crowd, stays as it
            is.
    """

    noise: float = 0.0
    occlusion: float = 0.0


EASY = Difficulty()


def paint(scene: Scene, difficulty: Difficulty = EASY) -> Image.Image:
    """Paint a scene.

    Args:
        scene: the scene; equal scenes give equal pixels.
        difficulty: how hard it is to see.

    Returns:
        RGB image of `WIDTH` x `HEIGHT` (192 x 144) pixels.
    """
    width = WIDTH * _OVERSAMPLING
    height = HEIGHT * _OVERSAMPLING
    rng = Random(f"{scene.paint_seed}/background")
    image = paint_background(scene.setting, scene.horizon, width, height, rng)
    _cast_shadows(image, scene.objects)
    for item in sorted(scene.objects, key=attrgetter("depth")):
        draw_object(image, item, _object_stream(scene, item))
    _hide_parts(image, scene, difficulty.occlusion)
    if scene.setting == "snow":
        rng = Random(f"{scene.paint_seed}/snow")
        draw = ImageDraw.Draw(image)
        for _ in range(_SNOWFLAKES):
            flake = rng.uniform(0, width), rng.uniform(0, height)
            draw.circle(flake, rng.uniform(0.7, 2.0), "white")
    image = image.reduce(_OVERSAMPLING)
    if scene.setting == "night":
        image = image.point(lambda level: int(level * _NIGHT_BRIGHTNESS))
    noise = difficulty.noise
    if not noise:
        return image
    blurred = image.filter(ImageFilter.GaussianBlur(_BLUR * noise))
    levels = np.asarray(blurred, dtype=np.float32)  # [height, width, 3]
    generator = np.random.default_rng(Random(f"{scene.paint_seed}/noise").getrandbits(63))
    grain = generator.standard_normal(levels.shape, dtype=np.float32)
    contrast = 1 - _LOST_CONTRAST * noise
    levels = _GREY + contrast * (levels - _GREY) + _NOISE_LEVELS * noise * grain
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))


def _object_stream(
    scene: Scene,
    item: PlacedObject,
    purpose: str = "",
) -> Random:
    """Return a random stream of one object, named by what it is and where: without another object it looks the same."""
    x0, y0, _, _ = item.box
    return Random(f"{scene.paint_seed}/{purpose}{item.kind}/{x0:.4f}/{y0:.4f}")


def _cast_shadows(image: Image.Image, objects: tuple[PlacedObject, ...]) -> None:
    """Draw blurred ellipses under everything that stands on the ground."""
    width = image.width // 2
    height = image.height // 2
    mask = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(mask)
    for item in objects:
        if item.state == "ground":
            inset = _SHADOW_INSETS.get(item.kind, 0.0) * item.width
            x0, _, x1, _ = item.box
            left = (x0 + inset) * width
            right = (x1 - inset) * width
            base = item.base * height
            shadow = right - left
            box = (
                left + 1,
                base - 0.09 * shadow - 1,
                right + 0.08 * shadow,
                base + 0.07 * shadow + 1,
            )
            draw.ellipse(box, fill=_SHADOW_OPACITY)
    mask = mask.filter(ImageFilter.BoxBlur(1.5))
    image.paste("#0a0a14", (0, 0), mask.resize(image.size))


def _hide_parts(
    image: Image.Image,
    scene: Scene,
    occlusion: float,
) -> None:
    """Paint things in front of objects, each with a probability of `occlusion`."""
    covered = np.zeros((ROWS, COLUMNS), dtype=bool)
    for item in scene.objects:
        rng = _object_stream(scene, item, "patch/")
        if rng.random() >= occlusion:
            continue
        for _ in range(_PATCH_TRIES):
            material, parts = _sample_patch(rng, item)
            raster = Image.new("L", (COLUMNS, ROWS), 0)
            _draw_parts(raster, material, parts, 255)
            cells = np.asarray(raster) > 0
            (hidden,) = hidden_fraction([item], cells)
            if not _LEAST_COVERED <= hidden <= _MOST_COVERED:
                continue
            together = covered | cells
            if max(hidden_fraction(scene.objects, together)) <= MAX_HIDDEN:
                covered = together
                _paint_material(image, material, parts, rng)
                break


def _draw_parts(
    image: Image.Image,
    material: str,
    parts: list[Box],
    fill: int | Colour,
    margin: float = 0.0,
) -> None:
    """Draw planks, or the ellipses that puffs and leaves are, on either side by `margin` pixels wider."""
    canvas = ImageDraw.Draw(image)
    draw = canvas.ellipse
    if material == "planks":
        draw = canvas.rectangle
    for part in parts:
        x0, y0, x1, y1 = in_pixels(part, image)
        draw((x0 - margin, y0 - margin, x1 + margin, y1 + margin), fill=fill)


def _sample_patch(rng: Random, item: PlacedObject) -> tuple[str, list[Box]]:
    """Return the material of something in front of one side of an object, and boxes of its parts."""
    materials = ["fog", "leaves"]
    if item.state == "ground":
        materials.append("planks")  # they stand on the ground
    material = rng.choice(materials)
    sides = ["left", "right", "bottom"]
    if material != "planks":
        sides.append("top")
    side = rng.choice(sides)
    share = rng.uniform(0.3, 0.6)
    x0, y0, x1, y1 = item.box
    match side:
        case "left":
            x1 = x0 + share * item.width
        case "right":
            x0 = x1 - share * item.width
        case "top":
            y1 = y0 + share * item.height
        case "bottom":
            y0 = y1 - share * item.height
    x0 -= _MARGIN
    y0 -= _MARGIN
    x1 += _MARGIN
    y1 += _MARGIN
    width = x1 - x0
    height = y1 - y0
    parts = []
    if material == "planks":  # upright, side by side, of nearly the same height
        count = max(1, round(width / 0.04))
        breadth = width / count
        for index in range(count):
            left = x0 + index * breadth
            right = x0 + (index + 1) * breadth
            parts.append((left, y0 + rng.uniform(0, 0.015), right, y1))
        return material, parts
    # Ellipses that cover the area and overlap.
    pitch = max(0.03, 0.3 * min(width, height))
    columns = max(2, round(width / pitch))
    rows = max(2, round(height / pitch))
    across = 0.5 * width / columns
    up = 0.5 * height / rows
    for row in range(rows):
        for column in range(columns):
            x = x0 + (2 * column + 1 + rng.uniform(-0.5, 0.5)) * across
            y = y0 + (2 * row + 1 + rng.uniform(-0.5, 0.5)) * up
            size = rng.uniform(1.2, 1.9)
            parts.append(box_around(x, y, size * across, size * up))
    rng.shuffle(parts)
    return material, parts


def _paint_material(
    image: Image.Image,
    material: str,
    parts: list[Box],
    rng: Random,
) -> None:
    """Paint the parts of something in front of an object."""
    draw = ImageDraw.Draw(image)
    if material == "fog":
        mask = Image.new("L", image.size, 0)
        _draw_parts(mask, material, parts, 250)
        mask = mask.filter(ImageFilter.BoxBlur(4))
        image.paste(jittered(rng, "#dee2e7"), (0, 0), mask)
    elif material == "leaves":
        _draw_parts(
            image,
            material,
            parts,
            shaded("#427030", 0.45),
            margin=1.5,
        )
        for part in parts:
            leaf = in_pixels(part, image)
            colour = shaded(jittered(rng, "#427030", 14), rng.uniform(0.75, 1.2))
            draw.ellipse(leaf, colour)
            draw.arc(leaf, 20, 160, shaded(colour, 0.7), 2)
    else:
        for part in parts:
            x0, y0, x1, y1 = in_pixels(part, image)
            colour = jittered(rng, "#96704c", 12)
            tip = min(6.0, 0.2 * (y1 - y0))
            plank = [
                (x0, y1),
                (x0, y0 + tip),
                ((x0 + x1) / 2, y0),
                (x1, y0 + tip),
                (x1, y1),
            ]
            draw.polygon(plank, colour, shaded(colour, 0.6))
            for _ in range(2):
                x = rng.uniform(x0 + 3, x1 - 3)
                draw.line((x, y0 + 2 * tip, x, y1 - 3), shaded(colour, 0.85))
