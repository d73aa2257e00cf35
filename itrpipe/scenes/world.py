"""What exists in the world of `scenes` and which combinations make sense, before anything has a place.

A symbolic scene is a setting and two or three *units* from left to right, or up to five where that is asked for. A
unit is one object, or two objects in a relation (`a woman holds a balloon`, `a cat is on a table`).

All rules are tables: `KIND_TABLE` says what an object of a kind can look like and where it can be,
`PARTNERS` which objects can be in which relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey")
PATTERNS = ("plain", "striped", "dotted")
SIZES = ("small", "medium", "large")
OUTDOOR_SETTINGS = ("park", "beach", "snow", "street", "desert", "night")
INDOOR_SETTINGS = ("kitchen", "room")
SETTINGS = OUTDOOR_SETTINGS + INDOOR_SETTINGS

_DYES = "red blue green yellow orange purple pink white black"
_FURS = "black white brown grey orange"


@dataclass(frozen=True)
class Kind:
    """What an object of one kind can be.

    Attributes:
        height: height of a medium object at full scale, as a fraction of the canvas height.
        aspect: width over height, both in pixels.
        colours: the colours it occurs in, a subset of `COLOURS`.
        patterned: whether it can be striped or dotted.
        sized: whether it occurs in small and large; otherwise it is always medium.
        settings: the settings it occurs in, a subset of `SETTINGS`.
        flies: whether it is in the air when nothing holds it.
    """

    height: float
    aspect: float
    colours: tuple[str, ...]
    patterned: bool = False
    sized: bool = False
    settings: tuple[str, ...] = SETTINGS
    flies: bool = False


def _kind(height: float, aspect: float, colours: str, marks: str = "") -> Kind:
    """Row of `KIND_TABLE`; marks: p patterned, s sized, f flies, o outdoors only, i indoors only."""
    settings = OUTDOOR_SETTINGS if "o" in marks else INDOOR_SETTINGS if "i" in marks else SETTINGS
    return Kind(height, aspect, tuple(colours.split()), "p" in marks, "s" in marks, settings, "f" in marks)


KIND_TABLE: dict[str, Kind] = {
    "man": _kind(0.46, 0.42, _DYES, "p"),
    "woman": _kind(0.43, 0.44, _DYES, "p"),
    "boy": _kind(0.33, 0.46, _DYES, "p"),
    "girl": _kind(0.33, 0.50, _DYES, "p"),
    "dog": _kind(0.20, 1.30, _FURS, "s"),
    "cat": _kind(0.19, 1.20, _FURS, "s"),
    "rabbit": _kind(0.18, 0.85, "white grey brown black"),
    "bird": _kind(0.13, 1.40, "red blue yellow white black green", "f"),
    "car": _kind(0.20, 2.00, "red blue green yellow orange white black grey", "so"),
    "bus": _kind(0.30, 1.65, "red blue green yellow orange white purple", "so"),
    "bike": _kind(0.22, 1.50, "red blue green yellow orange black pink", "o"),
    "tree": _kind(0.54, 0.70, "green orange pink yellow", "so"),
    "house": _kind(0.46, 1.05, "red blue yellow white brown pink green", "so"),
    "tent": _kind(0.28, 1.40, "red blue green yellow orange purple", "pso"),
    "flower": _kind(0.18, 0.62, "red yellow pink purple white orange blue"),
    "table": _kind(0.20, 1.60, "brown white black red blue green", "s"),
    "chair": _kind(0.26, 0.70, "brown white black red blue green yellow"),
    "box": _kind(0.18, 1.15, "brown red blue green yellow purple white", "ps"),
    "ball": _kind(0.13, 1.00, _DYES, "ps"),
    "balloon": _kind(0.24, 0.52, _DYES, "psf"),
    "kite": _kind(0.24, 0.75, _DYES, "psfo"),
    "umbrella": _kind(0.26, 1.00, _DYES, "ps"),
    "cup": _kind(0.11, 1.10, _DYES, "ps"),
    "lamp": _kind(0.24, 0.55, "red blue green yellow white orange", "i"),
}
KINDS = tuple(KIND_TABLE)

PEOPLE = ("man", "woman", "boy", "girl")
ANIMALS = ("dog", "cat", "rabbit", "bird")
VEHICLES = ("car", "bus", "bike")
FLYERS = tuple(name for name, kind in KIND_TABLE.items() if kind.flies)
SUPPORTS = ("table", "box", "chair")
_PLACEABLE = ("cat", "ball", "cup", "lamp", "flower", "bird", "rabbit", "box")
_HOLDABLE = ("umbrella", "balloon", "kite", "cup", "ball", "flower")
_BACKDROPS = ("tree", "house", "bus", "tent", "lamp", "chair", "table", *PEOPLE)
_FOREGROUND = ("dog", "cat", "chair", "box", "car", "bike", "boy", "girl", "rabbit", "table", "flower")
_OVERFLOWN = ("dog", "cat", "chair", "car", "house", "tent", "table", "box", "rabbit", "bus", "boy", "girl", "bike")


def _backdrops_of(main: str) -> tuple[str, ...]:
    """Kinds that still show when they stand behind a `main`: not much lower than it."""
    lowest = 0.9 * KIND_TABLE[main].height
    return tuple(kind for kind in _BACKDROPS if kind != main and KIND_TABLE[kind].height >= lowest)


# relation -> kind of the main object -> kinds its partner can be. Read "main holds partner",
# and for every other relation "partner is on/under/behind/above main".
PARTNERS: dict[str, dict[str, tuple[str, ...]]] = {
    "hold": dict.fromkeys(PEOPLE, _HOLDABLE),
    "on": {main: tuple(kind for kind in _PLACEABLE if kind != main) for main in SUPPORTS},
    "under": {
        "tree": ("dog", "cat", "rabbit", "boy", "girl", "ball", "chair", "box"),
        "table": ("dog", "cat", "rabbit", "ball", "box", "cup"),
        "umbrella": ("dog", "cat", "chair", "rabbit", "ball"),
    },
    "behind": {main: _backdrops_of(main) for main in _FOREGROUND},
    "above": dict.fromkeys(_OVERFLOWN, FLYERS),
}

# How often a unit is of which form; None is a single object.
_UNIT_WEIGHTS: dict[str | None, float] = {
    "hold": 0.26,
    "on": 0.18,
    "under": 0.12,
    "behind": 0.10,
    "above": 0.10,
    None: 0.24,
}
# Kinds that no relation of `PARTNERS` brings in often are single objects more often.
_SINGLE_WEIGHTS = dict.fromkeys(KINDS, 1) | dict.fromkeys(PEOPLE + ANIMALS, 2)
_SINGLE_WEIGHTS |= dict.fromkeys((*VEHICLES, "house", "tent"), 4) | {"tree": 2, "lamp": 6}
_PATTERN_WEIGHTS = (0.50, 0.28, 0.22)
_SIZE_WEIGHTS = (0.30, 0.40, 0.30)
_UNIT_COUNT_WEIGHTS = {2: 0.45, 3: 0.55, 4: 0.80, 5: 1.20}
_COMPANION_PROBABILITY = 0.3
_TOO_WIDE_FOR_COMPANIONS = ("tree", "house", "bus", "table")
MIN_OBJECTS = MIN_UNITS = 2
USUAL_UNITS, MAX_UNITS = 3, 5
_MORE_OBJECTS = 2
USUAL_OBJECTS, MAX_OBJECTS = USUAL_UNITS + _MORE_OBJECTS, MAX_UNITS + _MORE_OBJECTS
"""Of a scene with so many units; the oracle keeps the objects of a scene in eight bits."""


@dataclass(frozen=True)
class SceneObject:
    """One object without a place.

    Attributes:
        kind: of `KINDS`.
        colour: of the colours of its kind.
        pattern: of `PATTERNS`.
        size: of `SIZES`.
    """

    kind: str
    colour: str
    pattern: str = "plain"
    size: str = "medium"


@dataclass(frozen=True)
class Unit:
    """One object, or two in a relation of `PARTNERS` (`relation` and `partner` are both None or both set)."""

    main: SceneObject
    relation: str | None = None
    partner: SceneObject | None = None

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """The one or two objects, the main one first."""
        return (self.main,) if self.partner is None else (self.main, self.partner)


@dataclass(frozen=True)
class SymbolicScene:
    """A setting and its units from left to right.

    Attributes:
        setting: of `SETTINGS`.
        units: from left to right.
        room: largest number of units of this scene and of what edits make of it, `MIN_UNITS` to `MAX_UNITS`; it has at
            most two objects more.
    """

    setting: str
    units: tuple[Unit, ...]
    room: int = USUAL_UNITS

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """All objects, unit after unit."""
        return tuple(thing for unit in self.units for thing in unit.objects)


def is_valid(scene: SymbolicScene) -> bool:
    """Whether the scene keeps every rule of the tables and has at least 2 objects and at most those it has room for."""
    objects = scene.objects
    return (
        MIN_OBJECTS <= len(objects) <= scene.room + _MORE_OBJECTS
        and len(scene.units) <= scene.room
        and all(_fits(thing, scene.setting) for thing in objects)
        and all(_is_possible(unit) for unit in scene.units)
    )


def _fits(thing: SceneObject, setting: str) -> bool:
    kind = KIND_TABLE[thing.kind]
    return (
        setting in kind.settings
        and thing.colour in kind.colours
        and (kind.patterned or thing.pattern == "plain")
        and (kind.sized or thing.size == "medium")
    )


def _is_possible(unit: Unit) -> bool:
    if unit.relation is None or unit.partner is None:
        return unit.relation is None and unit.partner is None
    return unit.partner.kind in PARTNERS[unit.relation].get(unit.main.kind, ())


def sample_object(rng: Random, kind: str) -> SceneObject:
    """Draws the looks of an object of the kind; patterns and sizes other than plain and medium where it has them."""
    row = KIND_TABLE[kind]
    pattern = rng.choices(PATTERNS, _PATTERN_WEIGHTS)[0] if row.patterned else "plain"
    size = rng.choices(SIZES, _SIZE_WEIGHTS)[0] if row.sized else "medium"
    return SceneObject(kind, rng.choice(row.colours), pattern, size)


def sample_single(rng: Random, setting: str) -> Unit:
    """Draws a unit of one object that occurs in the setting."""
    kinds = [kind for kind in KINDS if setting in KIND_TABLE[kind].settings]
    kind = rng.choices(kinds, [_SINGLE_WEIGHTS[kind] for kind in kinds])[0]
    return Unit(sample_object(rng, kind))


def _sample_unit(rng: Random, setting: str) -> Unit:
    relation = rng.choices(list(_UNIT_WEIGHTS), list(_UNIT_WEIGHTS.values()))[0]
    if relation is None:
        return sample_single(rng, setting)
    table = PARTNERS[relation]
    main = rng.choice([kind for kind in table if setting in KIND_TABLE[kind].settings])
    partner = rng.choice([kind for kind in table[main] if setting in KIND_TABLE[kind].settings])
    return Unit(sample_object(rng, main), relation, sample_object(rng, partner))


def sample_scene(rng: Random, room: int = USUAL_UNITS) -> SymbolicScene:
    """Draws a scene; in about a quarter, two objects share a kind so that there is something to count.

    Args:
        rng: source of randomness.
        room: largest number of units. The more of them, the more likely.
    """
    setting = rng.choice(SETTINGS)
    counts = range(MIN_UNITS, room + 1)
    count = rng.choices(counts, [_UNIT_COUNT_WEIGHTS[number] for number in counts])[0]
    units = [_sample_unit(rng, setting) for _ in range(count)]
    if rng.random() < _COMPANION_PROBABILITY:
        _add_companion(rng, units, room)
    while sum(len(unit.objects) for unit in units) > room + _MORE_OBJECTS:
        index = rng.choice([index for index, unit in enumerate(units) if unit.partner is not None])
        units[index] = Unit(units[index].main)
    return SymbolicScene(setting, tuple(units), room)


def _add_companion(rng: Random, units: list[Unit], room: int) -> None:
    """Puts a single object of a kind that is already there into `units` (in place of one when they are full)."""
    kind = rng.choice(units).main.kind
    if kind in _TOO_WIDE_FOR_COMPANIONS:
        return
    companion = Unit(sample_object(rng, kind))
    if len(units) == room:
        units[rng.randrange(room)] = companion
    else:
        units.append(companion)
