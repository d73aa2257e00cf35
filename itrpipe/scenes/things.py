"""How vehicles, buildings, plants and things are drawn: one function per kind, collected in `THING_PAINTERS`."""

from __future__ import annotations

import math
from collections.abc import Callable

from itrpipe.scenes.canvas import RGB, WHITE, Pen, Point, blended, dark_side, shaded

_RUBBER: RGB = (30, 30, 34)
_CHROME: RGB = (185, 188, 195)
_GLASS: RGB = (190, 222, 240)
_LAMPLIGHT: RGB = (255, 240, 160)
_BARK: RGB = (112, 74, 44)
_LEAF: RGB = (60, 145, 60)
_STRING: RGB = (72, 72, 78)
_WOOD: RGB = (85, 65, 50)


def _wheel(pen: Pen, centre: Point, radius: float) -> None:
    pen.disc(centre, radius, _RUBBER)
    pen.disc(centre, 0.5 * radius, _CHROME)


def _car(pen: Pen) -> None:
    pen.polygon([(0.20, 0.44), (0.32, 0.04), (0.68, 0.04), (0.84, 0.44)], pen.colour)
    pen.polygon([(0.27, 0.42), (0.36, 0.13), (0.49, 0.13), (0.49, 0.42)], _GLASS, outline=False)
    pen.polygon([(0.53, 0.42), (0.53, 0.13), (0.65, 0.13), (0.76, 0.42)], _GLASS, outline=False)
    pen.rectangle(0.0, 0.40, 1.0, 0.84, pen.colour, radius=0.14)
    pen.line([(0.51, 0.44), (0.51, 0.80)], dark_side(pen.colour, 0.7), 0.0, least=2)
    pen.line([(0.55, 0.54), (0.61, 0.54)], dark_side(pen.colour, 0.6), 0.04, least=2)
    pen.spot(0.01, 0.48, 0.07, 0.60, _LAMPLIGHT)
    pen.spot(0.95, 0.48, 0.99, 0.60, (190, 40, 40))
    for x in (0.22, 0.78):
        _wheel(pen, (x, 0.82), 0.18)


def _bus(pen: Pen) -> None:
    stripe = (250, 250, 245) if sum(pen.colour) < 640 else (90, 90, 90)
    pen.rectangle(0.0, 0.0, 1.0, 0.88, pen.colour, radius=0.08)
    for index in range(4):
        left = 0.06 + 0.235 * index
        pen.rectangle(left, 0.14, left + 0.17, 0.44, _GLASS, radius=0.02, outline=False)
    pen.rectangle(0.01, 0.56, 0.99, 0.62, stripe, outline=False)
    pen.spot(0.0, 0.68, 0.035, 0.76, _LAMPLIGHT)
    for x in (0.22, 0.78):
        _wheel(pen, (x, 0.88), 0.12)


def _bike(pen: Pen) -> None:
    rear, seat, pedals, front = (0.78, 0.67), (0.64, 0.25), (0.53, 0.67), (0.22, 0.67)
    neck, handlebar = (0.34, 0.28), (0.32, 0.20)
    for hub in (front, rear):
        pen.ring(hub, 0.33, _RUBBER, 0.06)
        pen.disc(hub, 0.05, _CHROME)
    for start, end in ((rear, seat), (seat, pedals), (rear, pedals), (seat, neck), (pedals, neck), (handlebar, front)):
        pen.line([start, end], pen.colour, 0.075, least=3)
    pen.line([(0.70, 0.18), (0.57, 0.18)], (25, 25, 28), 0.10, least=5)
    pen.line([handlebar, (0.38, 0.06), (0.28, 0.04)], (60, 60, 66), 0.075, least=3)
    pen.disc(pedals, 0.06, _STRING)


def _tree(pen: Pen) -> None:
    pen.rectangle(0.43, 0.5, 0.57, 1.0, _BARK)
    for x, y, radius in ((0.30, 0.40, 0.30), (0.70, 0.42, 0.30), (0.5, 0.24, 0.34), (0.5, 0.48, 0.32)):
        up = 0.72 * radius
        pen.ellipse(x - radius, y - up, x + radius, y + up, pen.colour, outline=False)
    for _ in range(14):
        x, y = pen.rng.uniform(0.15, 0.85), pen.rng.uniform(0.12, 0.6)
        pen.disc((x, y), 0.012, shaded(pen.colour, pen.rng.choice((0.78, 1.16))), least=1.8)


def _house(pen: Pen) -> None:
    pen.rectangle(0.70, 0.06, 0.80, 0.35, (150, 90, 75))
    pen.rectangle(0.07, 0.38, 0.93, 1.0, pen.colour)
    pen.polygon([(0.0, 0.42), (0.5, 0.02), (1.0, 0.42)], (120, 66, 56))
    pen.rectangle(0.42, 0.66, 0.58, 1.0, (96, 66, 46))
    pen.disc((0.55, 0.84), 0.012, _LAMPLIGHT, least=1.5)
    for left in (0.16, 0.68):
        middle = left + 0.08
        pen.rectangle(left, 0.52, left + 0.16, 0.70, (252, 240, 175))
        pen.line([(middle, 0.52), (middle, 0.70)], (90, 70, 60), 0.0, least=2)
        pen.line([(left, 0.61), (left + 0.16, 0.61)], (90, 70, 60), 0.0, least=2)


def _tent(pen: Pen) -> None:
    pen.line([(0.5, 0.0), (0.5, 0.06)], (90, 70, 50), 0.0, least=3)
    pen.polygon([(0.0, 1.0), (0.5, 0.02), (1.0, 1.0)], pen.colour, pattern=pen.pattern, step=0.13)
    pen.polygon([(0.36, 1.0), (0.5, 0.32), (0.64, 1.0)], (48, 40, 44), outline=False)


def _flower(pen: Pen) -> None:
    pen.line([(0.5, 0.35), (0.5, 1.0)], (50, 130, 55), 0.09 * pen.aspect, least=3)
    pen.ellipse(0.52, 0.62, 0.92, 0.78, _LEAF, outline=False)
    pen.ellipse(0.08, 0.70, 0.48, 0.86, _LEAF, outline=False)
    across, up = 0.21, 0.21 * pen.aspect  # a petal's radius in fractions of the width and of the height
    for petal in range(6):
        angle = petal * math.pi / 3
        x, y = 0.5 + 1.25 * across * math.cos(angle), 0.28 + 1.25 * up * math.sin(angle)
        pen.ellipse(x - across, y - up, x + across, y + up, pen.colour)
    yellowish = pen.colour[0] > 200 and pen.colour[1] > 150 and pen.colour[2] < 120
    pen.disc((0.5, 0.28), 0.8 * up, (150, 90, 40) if yellowish else (250, 200, 60))


def _table(pen: Pen) -> None:
    for left in (0.08, 0.86):
        pen.rectangle(left, 0.15, left + 0.06, 1.0, shaded(pen.colour, 0.8))
    pen.rectangle(0.0, 0.04, 1.0, 0.20, pen.colour, radius=0.05)
    pen.rectangle(0.06, 0.20, 0.94, 0.28, shaded(pen.colour, 0.75), outline=False)


def _chair(pen: Pen) -> None:
    pen.rectangle(0.80, 0.0, 0.94, 1.0, shaded(pen.colour, 0.85))
    pen.rectangle(0.06, 0.58, 0.18, 1.0, shaded(pen.colour, 0.85))
    pen.rectangle(0.76, 0.02, 0.94, 0.58, pen.colour, radius=0.04)
    pen.rectangle(0.0, 0.52, 0.94, 0.66, pen.colour, radius=0.04)


def _box(pen: Pen) -> None:
    across, up = 0.16, 0.22
    pen.polygon([(0.0, up), (across, 0.0), (1.0, 0.0), (1 - across, up)], shaded(pen.colour, 1.15))
    side = [(1 - across, up), (1.0, 0.0), (1.0, 1 - up), (1 - across, 1.0)]
    pen.polygon(side, shaded(pen.colour, 0.7))
    pen.rectangle(0.0, up, 1 - across, 1.0, pen.colour, pattern=pen.pattern)


def _gloss(pen: Pen, x0: float, y0: float, x1: float, y1: float) -> None:
    pen.spot(x0, y0, x1, y1, blended(pen.colour, WHITE, 0.7))


def _ball(pen: Pen) -> None:
    pen.ellipse(0.0, 0.0, 1.0, 1.0, pen.colour, pattern=pen.pattern)
    _gloss(pen, 0.22, 0.16, 0.38, 0.30)


def _balloon(pen: Pen) -> None:
    pen.line([(0.5, 0.62), (0.44, 0.80), (0.5, 1.0)], _STRING, 0.0, least=2)
    pen.polygon([(0.5, 0.57), (0.4, 0.65), (0.6, 0.65)], shaded(pen.colour, 0.8))
    pen.ellipse(0.0, 0.0, 1.0, 0.60, pen.colour, pattern=pen.pattern)
    _gloss(pen, 0.20, 0.09, 0.36, 0.20)


def _kite(pen: Pen) -> None:
    pen.line([(0.5, 0.62), (0.38, 0.75), (0.58, 0.88), (0.5, 1.0)], _STRING, 0.0, least=2)
    for y in (0.75, 0.88):
        for side in (-1, 1):
            bow = [(0.5 + 0.14 * side, y - 0.03), (0.5, y), (0.5 + 0.14 * side, y + 0.03)]
            pen.polygon(bow, shaded(pen.colour, 0.85))
    pen.polygon([(0.5, 0.0), (1.0, 0.26), (0.5, 0.66), (0.0, 0.26)], pen.colour, pattern=pen.pattern)
    spar = dark_side(pen.colour, 0.5)
    pen.line([(0.5, 0.0), (0.5, 0.66)], spar, 0.0, least=2)
    pen.line([(0.0, 0.26), (1.0, 0.26)], spar, 0.0, least=2)


def _umbrella(pen: Pen) -> None:
    pen.line([(0.5, 0.0), (0.5, 0.95)], _WOOD, 0.045, least=3)
    pen.arc(0.36, 1.0 - 0.14 * pen.aspect, 0.5, 1.0, 0, 180, _WOOD, pixels=3)
    pen.dome(0.0, 0.04, 1.0, 0.50, pen.colour, scallops=4)


def _cup(pen: Pen) -> None:
    pen.ring((0.80, 0.48), 0.20, dark_side(pen.colour, 0.75), 0.1)
    pen.polygon([(0.0, 0.06), (0.76, 0.06), (0.70, 1.0), (0.06, 1.0)], pen.colour, pattern=pen.pattern)
    pen.spot(0.0, 0.0, 0.76, 0.16, dark_side(pen.colour, 0.9))
    pen.spot(0.05, 0.03, 0.71, 0.14, dark_side(pen.colour, 0.6))


def _lamp(pen: Pen) -> None:
    foot = (120, 100, 70)
    pen.rectangle(0.44, 0.4, 0.56, 0.94, foot)
    pen.ellipse(0.18, 0.88, 0.82, 1.0, foot)
    pen.spot(0.38, 0.42, 0.62, 0.52, (255, 245, 190))
    pen.polygon([(0.26, 0.0), (0.74, 0.0), (1.0, 0.46), (0.0, 0.46)], pen.colour)


# Drawn the same way round always: their sides and reflections show where the light comes from.
UNMIRRORED = ("box", "ball", "balloon")

THING_PAINTERS: dict[str, Callable[[Pen], None]] = {
    "car": _car,
    "bus": _bus,
    "bike": _bike,
    "tree": _tree,
    "house": _house,
    "tent": _tent,
    "flower": _flower,
    "table": _table,
    "chair": _chair,
    "box": _box,
    "ball": _ball,
    "balloon": _balloon,
    "kite": _kite,
    "umbrella": _umbrella,
    "cup": _cup,
    "lamp": _lamp,
}
