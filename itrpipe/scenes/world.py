"""What exists in the world of `scenes`, which combinations make sense, and how a scene is edited; nothing has a place.

A symbolic scene is a setting and two or three *units* from left to right, or up to five where that is asked for. A
unit is one object, or two objects in a relation (`a woman holds a balloon`, `a cat is on a table`). An edit gives the
same scene but for one detail, which is what a hard negative is.

All rules are tables: `KIND_TABLE` (kinds.json) says what an object of a kind can look like and where it can be,
`PARTNERS` which objects can be in which relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey")
PATTERNS = ("plain", "striped", "dotted")
SIZES = ("small", "medium", "large")
OUTDOOR_SETTINGS = ("park", "beach", "snow", "street", "desert", "night")
INDOOR_SETTINGS = ("kitchen", "room")
SETTINGS = OUTDOOR_SETTINGS + INDOOR_SETTINGS


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
        weight: how often it is drawn as a single object; kinds that few relations bring in have more.
        solid: parts that hide what is behind them, as x0, y0, x1, y1 in fractions of its box when it looks to the
            left. One can see between the legs of a table.
    """

    height: float
    aspect: float
    colours: tuple[str, ...]
    patterned: bool = False
    sized: bool = False
    settings: tuple[str, ...] = SETTINGS
    flies: bool = False
    weight: int = 1
    solid: tuple[tuple[float, float, float, float], ...] = ((0.0, 0.0, 1.0, 1.0),)

    def allows(self, attribute: str, value: str) -> bool:
        """Whether an object of this kind can have a colour, a pattern or a size."""
        if attribute == "colour":
            return value in self.colours
        return value in ("plain", "medium") or (self.patterned if attribute == "pattern" else self.sized)


KIND_TABLE = TypeAdapter(dict[str, Kind]).validate_json(Path(__file__).with_name("kinds.json").read_bytes())
KINDS = tuple(KIND_TABLE)

PEOPLE = ("man", "woman", "boy", "girl")
ANIMALS = ("dog", "cat", "rabbit", "bird")
VEHICLES = ("car", "bus", "bike")
FLYERS = tuple(name for name, kind in KIND_TABLE.items() if kind.flies)
SUPPORTS = ("table", "box", "chair")
# Kinds that are easily mistaken for each other: what the edit "kind" exchanges.
SIMILAR_KINDS = (
    PEOPLE,
    ("dog", "cat", "rabbit"),
    VEHICLES,
    ("tree", "house", "tent"),
    SUPPORTS,
    ("ball", "cup", "flower"),
    ("balloon", "kite", "umbrella"),
    ("lamp", "cup", "flower"),
    FLYERS,
)
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
_UNIT_WEIGHTS = {"hold": 0.26, "on": 0.18, "under": 0.12, "behind": 0.10, "above": 0.10, None: 0.24}
_PATTERN_WEIGHTS = (0.50, 0.28, 0.22)
_SIZE_WEIGHTS = (0.30, 0.40, 0.30)
_UNIT_COUNT_WEIGHTS = {2: 0.45, 3: 0.55, 4: 0.80, 5: 1.20}
_COMPANION_PROBABILITY = 0.3
_TOO_WIDE_FOR_COMPANIONS = ("tree", "house", "bus", "table")
MIN_OBJECTS = MIN_UNITS = 2
USUAL_UNITS, MAX_UNITS = 3, 5
_MORE_OBJECTS = 2
MAX_OBJECTS = MAX_UNITS + _MORE_OBJECTS
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
        and all(
            scene.setting in KIND_TABLE[thing.kind].settings
            and all(KIND_TABLE[thing.kind].allows(look, getattr(thing, look)) for look in ("colour", "pattern", "size"))
            for thing in objects
        )
        and all(
            unit.partner.kind in PARTNERS[unit.relation].get(unit.main.kind, ())
            for unit in scene.units
            if unit.relation is not None and unit.partner is not None
        )
    )


def _sample_object(rng: Random, kind: str) -> SceneObject:
    """Draws the looks of an object of the kind; patterns and sizes other than plain and medium where it has them."""
    row = KIND_TABLE[kind]
    pattern = rng.choices(PATTERNS, _PATTERN_WEIGHTS)[0] if row.patterned else "plain"
    size = rng.choices(SIZES, _SIZE_WEIGHTS)[0] if row.sized else "medium"
    return SceneObject(kind, rng.choice(row.colours), pattern, size)


def _sample_unit(rng: Random, setting: str, relation: str | None = None) -> Unit:
    """Draws a unit of kinds that occur in the setting."""

    def occurring(kinds: Iterable[str]) -> list[str]:
        return [kind for kind in kinds if setting in KIND_TABLE[kind].settings]

    if relation is None:
        kinds = occurring(KINDS)
        return Unit(_sample_object(rng, rng.choices(kinds, [KIND_TABLE[kind].weight for kind in kinds])[0]))
    table = PARTNERS[relation]
    main = rng.choice(occurring(table))
    partner = rng.choice(occurring(table[main]))
    return Unit(_sample_object(rng, main), relation, _sample_object(rng, partner))


def sample_scene(rng: Random, room: int = USUAL_UNITS) -> SymbolicScene:
    """Draws a scene; in about a quarter, two objects share a kind so that there is something to count.

    Args:
        rng: source of randomness.
        room: largest number of units. The more of them, the more likely.
    """
    setting = rng.choice(SETTINGS)
    counts = range(MIN_UNITS, room + 1)
    count = rng.choices(counts, [_UNIT_COUNT_WEIGHTS[number] for number in counts])[0]
    forms, weights = list(_UNIT_WEIGHTS), list(_UNIT_WEIGHTS.values())
    units = [_sample_unit(rng, setting, rng.choices(forms, weights)[0]) for _ in range(count)]
    if rng.random() < _COMPANION_PROBABILITY:
        kind = rng.choice(units).main.kind
        if kind not in _TOO_WIDE_FOR_COMPANIONS:
            companion = Unit(_sample_object(rng, kind))
            if len(units) == room:
                units[rng.randrange(room)] = companion
            else:
                units.append(companion)
    while sum(len(unit.objects) for unit in units) > room + _MORE_OBJECTS:
        index = rng.choice([index for index, unit in enumerate(units) if unit.partner is not None])
        units[index] = Unit(units[index].main)
    return SymbolicScene(setting, tuple(units), room)


# Edits: each draws where and how it changes a scene, and gives None where there is nothing of its sort to change.


def _spliced(scene: SymbolicScene, first: int, last: int, *units: Unit) -> SymbolicScene:
    """The scene with other units in the place of those from `first` to before `last`."""
    return replace(scene, units=(*scene.units[:first], *units, *scene.units[last:]))


def _with_object(scene: SymbolicScene, index: int, **looks: str) -> SymbolicScene:
    """The scene with other looks of the object at `index` of `scene.objects`."""
    for number, unit in enumerate(scene.units):
        if index < len(unit.objects):
            part = ("main", "partner")[index]
            changed = replace(unit, **{part: replace(unit.objects[index], **looks)})
            return _spliced(scene, number, number + 1, changed)
        index -= len(unit.objects)
    raise IndexError(index)


def _pick(rng: Random, scene: SymbolicScene) -> tuple[int, SceneObject, Kind]:
    """A random object: its place in `scene.objects`, itself, and the row of its kind."""
    index = rng.randrange(len(scene.objects))
    return index, scene.objects[index], KIND_TABLE[scene.objects[index].kind]


def _other(rng: Random, values: tuple[str, ...], current: str) -> str:
    return rng.choice([value for value in values if value != current])


def _edit_colour(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index, thing, kind = _pick(rng, scene)
    return _with_object(scene, index, colour=_other(rng, kind.colours, thing.colour))


def _edit_kind(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Another kind of the same group, which keeps the looks that the new kind can have."""
    index, thing, old = _pick(rng, scene)
    groups = [group for group in SIMILAR_KINDS if thing.kind in group]
    if not groups:
        return None
    fresh = _sample_object(rng, _other(rng, rng.choice(groups), thing.kind))
    new = KIND_TABLE[fresh.kind]
    return _with_object(
        scene,
        index,
        kind=fresh.kind,
        colour=thing.colour if thing.colour in new.colours else fresh.colour,
        pattern=thing.pattern if old.patterned and new.patterned else fresh.pattern,
        size=thing.size if old.sized and new.sized else fresh.size,
    )


def _edit_pattern(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index, thing, kind = _pick(rng, scene)
    return _with_object(scene, index, pattern=_other(rng, PATTERNS, thing.pattern)) if kind.patterned else None


def _edit_size(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Small becomes large and the other way round: neighbouring sizes are hardly told apart."""
    index, thing, kind = _pick(rng, scene)
    return _with_object(scene, index, size="large" if thing.size == "small" else "small") if kind.sized else None


def _edit_setting(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    return replace(scene, setting=_other(rng, SETTINGS, scene.setting))


def _edit_swap(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Two units change places."""
    if len(scene.units) < 2:
        return None
    units = list(scene.units)
    first, second = rng.sample(range(len(units)), 2)
    units[first], units[second] = units[second], units[first]
    return replace(scene, units=tuple(units))


def _edit_break(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """The objects of a unit stand side by side instead of in their relation."""
    pairs = [index for index, unit in enumerate(scene.units) if unit.partner is not None]
    if not pairs or len(scene.units) == scene.room:
        return None
    index = rng.choice(pairs)
    apart = [Unit(thing) for thing in scene.units[index].objects]
    rng.shuffle(apart)
    return _spliced(scene, index, index + 1, *apart)


def _edit_exchange(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Two objects exchange their colours."""
    first, second = rng.sample(range(len(scene.objects)), 2)
    one, two = scene.objects[first], scene.objects[second]
    return _with_object(_with_object(scene, first, colour=two.colour), second, colour=one.colour)


def _edit_drop(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index = rng.randrange(len(scene.units))
    unit = scene.units[index]
    return _spliced(scene, index, index + 1, *([] if unit.partner is None else [Unit(unit.main)]))


def _edit_add(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index = rng.randint(0, len(scene.units))
    return _spliced(scene, index, index, _sample_unit(rng, scene.setting))


_EDITS: dict[str, tuple[float, Callable[[Random, SymbolicScene], SymbolicScene | None]]] = {
    "colour": (0.24, _edit_colour),
    "kind": (0.18, _edit_kind),
    "pattern": (0.10, _edit_pattern),
    "size": (0.06, _edit_size),
    "setting": (0.10, _edit_setting),
    "swap": (0.10, _edit_swap),
    "break": (0.08, _edit_break),
    "exchange": (0.06, _edit_exchange),
    "drop": (0.04, _edit_drop),
    "add": (0.04, _edit_add),
}
EDIT_NAMES = tuple(_EDITS)
# Most objects have no pattern and no size: a few draws keep such edits about as frequent as their weights say.
_TRIES_PER_EDIT = 8


def edit_scene(rng: Random, scene: SymbolicScene) -> tuple[SymbolicScene, str]:
    """Draws one edit of the scene.

    Args:
        rng: source of randomness.
        scene: a valid scene.

    Returns:
        A valid scene that differs from `scene`, and which of `EDIT_NAMES` made it.
    """
    weights = [weight for weight, _ in _EDITS.values()]
    while True:  # ends: every object has another colour, so the edit "colour" always succeeds
        name = rng.choices(EDIT_NAMES, weights)[0]
        for _ in range(_TRIES_PER_EDIT):
            edited = _EDITS[name][1](rng, scene)
            if edited is not None and edited != scene and is_valid(edited):
                return edited, name
