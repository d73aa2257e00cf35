"""From a scene to its picture: background, soft shadows, then the objects from far to near, then what hides them."""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw, ImageFilter

from itrpipe.scenes.backgrounds import paint_background
from itrpipe.scenes.canvas import PALETTE, WHITE, Canvas, Pen, jittered
from itrpipe.scenes.creatures import CREATURE_PAINTERS
from itrpipe.scenes.difficulty import Difficulty, add_noise, hide_parts
from itrpipe.scenes.layout import HEIGHT, WIDTH, PlacedObject, Scene
from itrpipe.scenes.things import THING_PAINTERS, UNMIRRORED

PAINTERS = CREATURE_PAINTERS | THING_PAINTERS
PAINT_VERSION = 1
"""Raised with every change that alters pixels, so that files of an older painter are not reused."""
_OVERSAMPLING = 2
_SHADOW_OPACITY = 95
# Share of the box's width, on either side, that casts no shadow: what stands on a stem.
_SHADOW_INSETS = {"tree": 0.22, "umbrella": 0.3, "flower": 0.25}
_SNOWFLAKES = 45
_NIGHT_BRIGHTNESS = 0.88
EASY = Difficulty()


def paint(scene: Scene, difficulty: Difficulty = EASY) -> Image.Image:
    """Paints a scene.

    Args:
        scene: the scene; equal scenes give equal pixels.
        difficulty: how hard it is to see.

    Returns:
        RGB image of `WIDTH` x `HEIGHT` (192 x 144) pixels.
    """
    width, height = WIDTH * _OVERSAMPLING, HEIGHT * _OVERSAMPLING
    image = paint_background(scene.setting, scene.horizon, width, height, Random(f"{scene.paint_seed}/background"))
    _cast_shadows(image, scene.objects)
    for item in sorted(scene.objects, key=lambda placed: placed.depth):
        _paint_object(image, item, scene.paint_seed)
    if difficulty.occlusion > 0:
        hide_parts(image, scene, difficulty.occlusion)
    if scene.setting == "snow":
        _let_it_snow(image, Random(f"{scene.paint_seed}/snow"))
    image = image.reduce(_OVERSAMPLING)
    if scene.setting == "night":
        image = image.point(lambda level: int(level * _NIGHT_BRIGHTNESS))
    return add_noise(image, scene.paint_seed, difficulty.noise) if difficulty.noise > 0 else image


def _cast_shadows(image: Image.Image, objects: tuple[PlacedObject, ...]) -> None:
    """Blurred ellipses under everything that stands on the ground."""
    width, height = image.width // 2, image.height // 2
    mask = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(mask)
    for item in objects:
        if item.state != "ground":
            continue
        inset = _SHADOW_INSETS.get(item.kind, 0.0) * item.width
        left, right, base = (item.box[0] + inset) * width, (item.box[2] - inset) * width, item.base * height
        wide = right - left
        box = (left + 1, base - 0.09 * wide - 1, right + 0.08 * wide, base + 0.07 * wide + 1)
        draw.ellipse(box, fill=_SHADOW_OPACITY)
    image.paste((10, 10, 20), (0, 0), mask.filter(ImageFilter.BoxBlur(1.5)).resize(image.size))


def _paint_object(image: Image.Image, item: PlacedObject, paint_seed: int) -> None:
    # Each object has its own random stream, named by what it is and where: without one of the objects
    # the others look the same.
    rng = Random(f"{paint_seed}/{item.kind}/{item.box[0]:.4f}/{item.box[1]:.4f}")
    x0, y0, x1, y1 = item.box
    pen = Pen(
        Canvas(image, rng),
        (x0 * image.width, y0 * image.height, x1 * image.width, y1 * image.height),
        colour=jittered(rng, PALETTE[item.colour]),
        pattern=item.pattern,
        state=item.state,
        pose=item.pose,
        facing=-1 if item.kind in UNMIRRORED else item.facing,
    )
    PAINTERS[item.kind](pen)


def _let_it_snow(image: Image.Image, rng: Random) -> None:
    draw = ImageDraw.Draw(image)
    for _ in range(_SNOWFLAKES):
        x, y, radius = rng.uniform(0, image.width), rng.uniform(0, image.height), rng.uniform(0.7, 2.0)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=WHITE)
