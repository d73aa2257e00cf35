"""How people and animals are drawn: one function per kind, collected in `CREATURE_PAINTERS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from itrpipe.scenes.canvas import INK, RGB, Pen, dark_side, jittered, shaded

_SKINS: tuple[RGB, ...] = ((250, 215, 185), (232, 185, 145), (195, 140, 100), (130, 88, 62))
_HAIRS: tuple[RGB, ...] = ((60, 40, 30), (30, 28, 30), (190, 140, 60), (150, 75, 35))
_TROUSERS: RGB = (60, 70, 110)
_SHOES: RGB = (45, 40, 40)
_PINK: RGB = (230, 120, 130)
_BEAK: RGB = (245, 170, 40)


def _person(pen: Pen, *, skirt: bool, child: bool) -> None:
    """A standing person seen from the front; children have bigger heads, women and girls a dress and long hair."""
    skin, hair = pen.rng.choice(_SKINS), pen.rng.choice(_HAIRS)
    head = 0.30 if child else 0.22
    neck, hip = 0.95 * head, 0.66 if child else 0.60
    half = head / pen.aspect  # the head's height in fractions of the width
    if skirt:
        pen.ellipse(0.5 - 0.58 * half, 0.05 * head, 0.5 + 0.58 * half, 1.45 * head, hair, outline=False)
    _legs(pen, hip, skin if skirt else jittered(pen.rng, _TROUSERS, 15), outline=not skirt)
    _arms(pen, neck, hip, skin)
    if skirt:
        waist = (neck + hip) / 2
        dress = [(0.30, neck), (0.70, neck), (0.74, waist), (0.90, 0.80), (0.10, 0.80), (0.26, waist)]
        pen.polygon(dress, pen.colour, pattern=pen.pattern, step=0.22)
    else:
        pen.rectangle(0.23, neck, 0.77, hip, pen.colour, radius=0.04, pattern=pen.pattern, step=0.22)
    pen.ellipse(0.5 - 0.46 * half, 0.04 * head, 0.5 + 0.46 * half, head, skin)
    _hair_and_face(pen, head, half, hair, long=skirt)


def _legs(pen: Pen, hip: float, colour: RGB, *, outline: bool) -> None:
    for side in (-1, 1):
        middle = 0.5 + 0.13 * side
        pen.rectangle(middle - 0.085, hip - 0.01, middle + 0.085, 0.97, colour, outline=outline)
        pen.ellipse(middle - 0.12, 0.94, middle + 0.14, 1.0, _SHOES)


def _arms(pen: Pen, neck: float, hip: float, skin: RGB) -> None:
    """Two sleeves with hands. The pen mirrors, so the hand that holds something is always the left one here."""
    sleeve = shaded(pen.colour, 0.8) if sum(pen.colour) > 140 else (28, 28, 32)
    for side in (-1, 1):
        hand = (0.5 + 0.40 * side, hip - 0.02)
        if pen.pose != "rest" and side == -1:
            hand = (0.0, neck - 0.02 if pen.pose == "raised" else neck + 0.18)
        pen.line([(0.5 + 0.24 * side, neck + 0.05), hand], sleeve, 0.13 * pen.aspect, least=3)
        pen.disc(hand, 0.075 * pen.aspect, skin)


def _hair_and_face(pen: Pen, head: float, half: float, hair: RGB, *, long: bool) -> None:
    width, top, bottom = (0.52, -0.04, 0.36) if long else (0.48, 0.0, 0.38)
    pen.dome(0.5 - width * half, top * head, 0.5 + width * half, bottom * head, hair)
    for side in (-1, 1):
        pen.disc((0.5 + 0.17 * side * half, 0.53 * head), 0, (25, 25, 25), least=1.5)
    smile = (0.5 - 0.18 * half, 0.58 * head, 0.5 + 0.18 * half, 0.82 * head)
    pen.arc(*smile, 20, 160, (140, 50, 50))


def _paws(pen: Pen, centres: tuple[float, ...], half_width: float, top: float) -> None:
    for centre in centres:
        pen.rectangle(centre - half_width, top, centre + half_width, 1.0, shaded(pen.colour, 0.85))


def _dog(pen: Pen) -> None:
    pen.line([(0.90, 0.42), (0.99, 0.16)], shaded(pen.colour, 0.75), 0.08, least=3)
    _paws(pen, (0.26, 0.40, 0.72, 0.84), 0.045, 0.62)
    pen.rectangle(0.20, 0.36, 0.92, 0.74, pen.colour, radius=0.18)
    pen.rectangle(0.02, 0.28, 0.22, 0.48, dark_side(pen.colour, 0.9), radius=0.07)
    pen.ellipse(0.08, 0.06, 0.42, 0.54, pen.colour)
    pen.ellipse(0.30, 0.10, 0.44, 0.50, dark_side(pen.colour, 0.6))
    pen.spot(0.0, 0.28, 0.06, 0.37, INK)
    pen.eye((0.19, 0.24))
    pen.line([(0.36, 0.55), (0.24, 0.60)], (210, 40, 40), 0.0, least=3)


def _cat(pen: Pen) -> None:
    pen.line([(0.86, 0.60), (0.97, 0.30), (0.90, 0.06)], dark_side(pen.colour, 0.8), 0.09, least=3)
    _paws(pen, (0.30, 0.42, 0.70, 0.82), 0.035, 0.70)
    pen.ellipse(0.22, 0.42, 0.92, 0.86, pen.colour)
    pen.polygon([(0.04, 0.22), (0.07, 0.0), (0.21, 0.16)], pen.colour)
    pen.polygon([(0.28, 0.14), (0.39, 0.0), (0.43, 0.22)], pen.colour)
    pen.ellipse(0.02, 0.10, 0.44, 0.58, pen.colour)
    for x in (0.14, 0.31):
        pen.eye((x, 0.31), 1.6)
    pen.spot(0.19, 0.39, 0.25, 0.45, _PINK)
    for side in (-1, 1):
        pen.line([(0.22 + 0.07 * side, 0.45), (0.22 + 0.25 * side, 0.41)], (150, 150, 150), 0.0)


def _rabbit(pen: Pen) -> None:
    for x in (0.20, 0.36):
        pen.ellipse(x - 0.07, 0.0, x + 0.07, 0.42, pen.colour)
        pen.spot(x - 0.03, 0.06, x + 0.03, 0.34, (240, 170, 180))
    pen.ellipse(0.84, 0.66, 1.0, 0.84, (250, 250, 250))
    pen.ellipse(0.25, 0.48, 0.93, 0.98, pen.colour)
    pen.ellipse(0.06, 0.30, 0.52, 0.68, pen.colour)
    pen.ellipse(0.22, 0.86, 0.50, 1.0, dark_side(pen.colour, 0.9))
    pen.ellipse(0.60, 0.84, 0.94, 1.0, dark_side(pen.colour, 0.9))
    pen.eye((0.22, 0.45), 1.6)
    pen.spot(0.05, 0.49, 0.13, 0.55, _PINK)


def _bird(pen: Pen) -> None:
    flying = pen.state == "fly"
    down = 0.12 if flying else -0.10  # room for the raised wing, or for the legs
    wing = dark_side(pen.colour, 0.75)
    pen.polygon([(0.75, 0.50 + down), (1.0, 0.30 + down), (1.0, 0.62 + down)], dark_side(pen.colour, 0.8))
    pen.ellipse(0.22, 0.30 + down, 0.86, 0.86 + down, pen.colour)
    pen.ellipse(0.10, 0.14 + down, 0.40, 0.60 + down, pen.colour)
    pen.polygon([(0.12, 0.30 + down), (0.0, 0.40 + down), (0.13, 0.46 + down)], _BEAK)
    pen.eye((0.21, 0.32 + down), 1.5)
    if flying:
        pen.polygon([(0.42, 0.60), (0.62, 0.0), (0.80, 0.05), (0.70, 0.67)], wing)
        return
    pen.ellipse(0.42, 0.32, 0.78, 0.60, wing)
    for x in (0.46, 0.58):
        pen.line([(x, 0.75), (x, 1.0)], (235, 150, 40), 0.0, least=2)


CREATURE_PAINTERS: dict[str, Callable[[Pen], None]] = {
    "man": partial(_person, skirt=False, child=False),
    "woman": partial(_person, skirt=True, child=False),
    "boy": partial(_person, skirt=False, child=True),
    "girl": partial(_person, skirt=True, child=True),
    "dog": _dog,
    "cat": _cat,
    "rabbit": _rabbit,
    "bird": _bird,
}
