"""Geometry of scenes: where every object stands, and which relations hold between them.

Coordinates are fractions of the canvas, x to the right and y down. Units share the width from left to
right; the lower an object stands, the nearer it is: bigger, and drawn later. *Contacts* (on, under, hold)
come from the symbolic scene; left, near, behind and above are derived from the boxes, so that they are
true of every pair they look true of. An arrangement that hides too much of an object, or in which a
relation of the symbolic scene does not show, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random

import numpy as np
import numpy.typing as npt

from itrpipe.scenes.world import INDOOR_SETTINGS, KIND_TABLE, SceneObject, SymbolicScene, Unit

WIDTH, HEIGHT = 192, 144
CONTACTS = ("hold", "on", "under")
CLEARLY_LEFT = 0.16
"""Distance of two centres from which captions mention left and right."""
COLUMNS, ROWS = 128, 96
"""Size of the coarse raster on which is measured how much of an object is hidden."""
MAX_HIDDEN = 0.6
"""Most that may be hidden of an object's solid parts."""

_ARRANGEMENT_TRIES = 12
_MARGIN = 0.01
_SIZE_FACTORS = {"small": 0.74, "medium": 1.0, "large": 1.28}
_AIRBORNE_SCALE = 0.9
_USUAL_HOLD = ("forward", 0.02, 0.61, 0.8)
"""Pose, distance from the body, height as a fraction of the body's, and scale of something that is held."""
_HOLDS = {
    "umbrella": ("raised", 0.0, 0.42, 0.95),
    "balloon": ("raised", 0.02, 0.32, 0.9),
    "kite": ("raised", 0.02, 0.32, 0.9),
}
_SURFACES = {
    "table": (0.05, 0.9),
    "box": (0.10, 0.8),
    "chair": (0.55, 0.8),
}
"""Level of the surface of a kind below its top, as a fraction of its height, and scale of what is on it."""

Box = tuple[float, float, float, float]
Cells = npt.NDArray[np.bool_]
"""Part of the raster, [ROWS, COLUMNS]."""
Triple = tuple[int, str, int]


@dataclass(frozen=True)
class PlacedObject(SceneObject):
    """One object of a scene, with a place.

    Attributes:
        box: x0, y0, x1, y1 in 0..1, x0 < x1 and y0 < y1.
        depth: greater is nearer to the viewer and drawn later.
        state: "ground", "on" (another object), "held" or "fly".
        pose: of a person: "raised" or "forward" when the hand at `facing` holds something; otherwise "rest".
        facing: -1 looks to the left, 1 to the right.
    """

    box: Box
    depth: float
    state: str = "ground"
    pose: str = "rest"
    facing: int = 1

    @property
    def width(self) -> float:
        """Return the width in 0..1."""
        x0, _, x1, _ = self.box
        return x1 - x0

    @property
    def height(self) -> float:
        """Return the height in 0..1."""
        _, y0, _, y1 = self.box
        return y1 - y0

    @property
    def centre(self) -> float:
        """Return the horizontal centre in 0..1."""
        x0, _, x1, _ = self.box
        return (x0 + x1) / 2

    @property
    def base(self) -> float:
        """Return the lower edge in 0..1."""
        _, _, _, y1 = self.box
        return y1


@dataclass(frozen=True)
class Scene:
    """One image of the dataset, complete: painting it and judging captions about it need nothing else.

    Attributes:
        image_id: for example "train-000012".
        split: "train", "val" or "test".
        family: number of the family within the split.
        edit: how it was made from another member of the family ("colour", "kind+swap"), or "base".
        setting: one of `SETTINGS`.
        horizon: where the ground (the floor) begins, y in 0..1.
        objects: two to five; up to seven where up to five units are asked for.
        relations: (i, relation, j), "object i is relation object j" ("object i holds object j"); sorted.
        paint_seed: determines the texture, the background's details and the shades of the colours.
    """

    image_id: str
    split: str
    family: int
    edit: str
    setting: str
    horizon: float
    objects: tuple[PlacedObject, ...]
    relations: tuple[Triple, ...]
    paint_seed: int


def arrange(
    rng: Random,
    symbolic: SymbolicScene,
    *,
    image_id: str,
    split: str,
    family: int,
    edit: str,
) -> Scene | None:
    """Give every object of a symbolic scene a place.

    Args:
        rng: source of randomness.
        symbolic: a valid symbolic scene.
        image_id, split, family, edit: copied into the scene.

    Returns:
        A scene in which at most `MAX_HIDDEN` of every object is hidden and every relation of the symbolic
        scene shows; None when no such arrangement was found in a dozen tries (the symbolic scene is crowded).
    """
    contacts: set[Triple] = set()
    planned: set[Triple] = set()
    main = 0
    for unit in symbolic.units:
        if unit.relation:
            triple = (main + 1, unit.relation, main)
            if unit.relation == "hold":
                triple = (main, "hold", main + 1)
            planned.add(triple)
            if unit.relation in CONTACTS:
                contacts.add(triple)
        main += len(unit.objects)
    lowest, highest = 0.40, 0.48
    if symbolic.setting in INDOOR_SETTINGS:
        lowest, highest = 0.48, 0.56
    for _ in range(_ARRANGEMENT_TRIES):
        horizon = rng.uniform(lowest, highest)
        objects = _place_units(rng, symbolic.units, horizon)
        if objects is None:
            continue
        relations = contacts | _derived_relations(objects, contacts)
        if planned <= relations and max(hidden_fraction(objects)) <= MAX_HIDDEN:
            return Scene(
                image_id,
                split,
                family,
                edit,
                symbolic.setting,
                round(horizon, 4),
                objects,
                tuple(sorted(relations)),
                paint_seed=rng.randrange(1 << 30),
            )
    return None


def hidden_fraction(
    objects: Sequence[PlacedObject],
    in_front: Cells | None = None,
) -> list[float]:
    """Measure how much of each object is hidden.

    Args:
        objects: of a scene.
        in_front: raster cells that something before all objects hides.

    Returns:
        Fraction of the solid parts of each that nearer objects and `in_front` hide, in 0..1.
    """
    covered = np.zeros((ROWS, COLUMNS), dtype=bool)
    if in_front is not None:
        covered |= in_front
    fractions = [0.0] * len(objects)
    nearest_first = sorted(
        range(len(objects)),
        key=lambda index: objects[index].depth,
        reverse=True,
    )
    for index in nearest_first:
        item = objects[index]
        cells = np.zeros((ROWS, COLUMNS), dtype=bool)
        x0, y0, _, _ = item.box
        for left, top, right, bottom in KIND_TABLE[item.kind].solid:
            if item.facing > 0:
                left, right = 1 - right, 1 - left
            x_start = round((x0 + left * item.width) * COLUMNS)
            x_end = round((x0 + right * item.width) * COLUMNS)
            y_start = round((y0 + top * item.height) * ROWS)
            y_end = round((y0 + bottom * item.height) * ROWS)
            cells[y_start:y_end, x_start:x_end] = True
        hidden = float((cells & covered).sum())
        fractions[index] = hidden / max(1, int(cells.sum()))
        covered |= cells
    return fractions


def _derived_relations(
    objects: Sequence[PlacedObject],
    contacts: set[Triple],
) -> set[Triple]:
    """Return left, near, behind and above of all pairs that do not touch."""
    touching = {frozenset((first, second)) for first, _, second in contacts}
    relations: set[Triple] = set()
    for i, j in permutations(range(len(objects)), 2):
        if {i, j} in touching:
            continue
        item, other = objects[i], objects[j]
        x0, _, x1, y1 = item.box
        other_x0, other_y0, other_x1, other_y1 = other.box
        overlap = min(x1, other_x1) - max(x0, other_x0)  # negative: a gap
        narrower = min(item.width, other.width)
        if item.centre < other.centre - 0.10:
            relations.add((i, "left", j))
        if item.state == other.state == "ground":
            if -0.13 < overlap < 0.35 * narrower and abs(y1 - other_y1) < 0.22:
                relations.add((i, "near", j))
            if overlap > 0.35 * narrower and y1 < other_y1 - 0.05:
                relations.add((i, "behind", j))
        if item.state == "fly" and overlap > 0.4 * narrower and y1 < other_y0 + 0.06:
            relations.add((i, "above", j))
    return relations


def _full_height(thing: SceneObject) -> float:
    """Return the height at full scale, in fractions of the canvas."""
    return KIND_TABLE[thing.kind].height * _SIZE_FACTORS[thing.size]


def _width(thing: SceneObject, height: float) -> float:
    """Return the width of an object of some height, both in fractions of the canvas."""
    return height * KIND_TABLE[thing.kind].aspect * HEIGHT / WIDTH


def _place(
    rng: Random,
    thing: SceneObject,
    centre: float,
    base: float,
    scale: float,
    state: str = "ground",
) -> PlacedObject:
    height = _full_height(thing) * scale
    width = _width(thing, height)
    box = (centre - width / 2, base - height, centre + width / 2, base)
    facing = rng.choice((-1, 1))
    return PlacedObject(
        **vars(thing),
        box=box,
        depth=base,
        state=state,
        facing=facing,
    )


def _ground_scale(base: float, horizon: float) -> float:
    """Return the scale that perspective gives: full scale about half-way between the horizon and the lower edge."""
    return 0.82 + 0.3 * max(0.0, base - horizon) / (1 - horizon)


def _place_units(
    rng: Random,
    units: tuple[Unit, ...],
    horizon: float,
) -> tuple[PlacedObject, ...] | None:
    """Give each unit a share of the width that grows with its own; None when one does not fit the canvas."""
    widths = []  # room that units ask for, in fractions of the canvas height
    for unit in units:
        widest = max(_width(thing, _full_height(thing)) for thing in unit.objects)
        margin = 0.12
        if unit.relation in ("hold", "under", "behind"):
            margin = 0.24
        widths.append(widest * WIDTH / HEIGHT + margin)
    freedom = 0.7 if len(units) > 1 else 0.5
    objects: list[PlacedObject] = []
    left = 0.0
    for unit, width in zip(units, widths, strict=True):
        share = width / sum(widths)
        slack = max(0.0, share - width * HEIGHT / WIDTH) / 2
        centre = left + share / 2 + rng.uniform(-1, 1) * slack * freedom
        left += share
        group = _place_unit(rng, unit, centre, horizon)
        # A unit moves into the canvas as a whole, so that a hand stays at what it holds.
        edges = np.array([item.box for item in group])
        x0, y0 = edges[:, :2].min(axis=0).tolist()
        x1, y1 = edges[:, 2:].max(axis=0).tolist()
        if max(x1 - x0, y1 - y0) > 1 - 2 * _MARGIN:
            return None
        dx = max(0.0, _MARGIN - x0) - max(0.0, x1 - 1 + _MARGIN)
        dy = max(0.0, _MARGIN - y0) - max(0.0, y1 - 1 + _MARGIN)
        for item in group:
            x0, y0, x1, y1 = item.box
            box = (
                round(x0 + dx, 4),
                round(y0 + dy, 4),
                round(x1 + dx, 4),
                round(y1 + dy, 4),
            )
            depth = round(item.depth + dy, 4)
            objects.append(replace(item, box=box, depth=depth))
    return tuple(objects)


def _place_unit(
    rng: Random,
    unit: Unit,
    centre: float,
    horizon: float,
) -> list[PlacedObject]:
    """Give the objects of a unit their places; those in a relation lie as that asks for."""
    thing, *partners = unit.objects
    kind = thing.kind
    if KIND_TABLE[kind].flies and not (kind == "bird" and rng.random() < 0.3):
        base = rng.uniform(0.25, 0.5)
        main = _place(rng, thing, centre, base, _AIRBORNE_SCALE, "fly")
    else:
        highest = horizon + 0.22
        if unit.relation == "behind":
            highest = 0.80
        base = rng.uniform(highest, 0.95)
        main = _place(rng, thing, centre, base, _ground_scale(base, horizon))
    if not unit.relation:
        return [main]

    (partner,) = partners
    _, top, _, _ = main.box
    scale = main.height / _full_height(main)
    if unit.relation == "behind":
        base = max(horizon + 0.1, main.base - rng.uniform(0.09, 0.16))
        side = rng.choice((-1, 1))
        centre = main.centre + side * rng.uniform(0.2, 0.35) * main.width
        return [main, _place(rng, partner, centre, base, _ground_scale(base, horizon))]
    if unit.relation == "above":
        base = top - rng.uniform(0.02, 0.1)
        centre = main.centre + rng.uniform(-0.2, 0.2) * main.width
        return [main, _place(rng, partner, centre, base, _AIRBORNE_SCALE, "fly")]

    nearer = 0.001
    if unit.relation == "on":
        surface, shrink = _SURFACES[kind]
        # The seat of a chair is beside its back.
        shift = 0.06 * main.facing if kind == "chair" else rng.uniform(-0.2, 0.2)
        base = top + surface * main.height
        other = _place(
            rng,
            partner,
            main.centre + shift * main.width,
            base,
            scale * shrink,
            "on",
        )
    elif unit.relation == "under":
        side = rng.choice((-1, 1))
        # Both are drawn for every kind, so that the kind does not decide about later draws.
        distance = rng.uniform(0.25, 0.45)
        table_distance = rng.uniform(0, 0.1)
        lower, shrink = 0.03, 0.85
        if kind == "umbrella":
            distance = 0.22
            lower, shrink = 0.015, 0.55
        elif kind == "table":  # seen between the legs, below the top
            distance = table_distance
            lower, shrink = 0.01, 0.62
            nearer = -0.001
        centre = main.centre + side * distance * main.width
        other = _place(rng, partner, centre, main.base + lower, scale * shrink)
    else:
        pose, reach, level, shrink = _HOLDS.get(partner.kind, _USUAL_HOLD)
        hand = main.centre + main.facing * (main.width / 2 + reach)
        main = replace(main, pose=pose)
        other = _place(
            rng,
            partner,
            hand,
            top + level * main.height,
            scale * shrink,
            "held",
        )
    return [main, replace(other, depth=main.depth + nearer)]
