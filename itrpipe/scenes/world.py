"""Kinds of objects in the world of `scenes`, combinations of them that make sense, and edits; nothing has a place.

A symbolic scene is a setting and two or three *units* from left to right, or up to five where that is asked for. A
unit is one object, or two objects in a relation (`a woman holds a balloon`, `a cat is on a table`). An edit gives the
same scene but for one detail, which is what a hard negative is.

All rules are tables of world.json: what an object of a kind can look like and where it can be, which kinds are alike,
and which objects can be in which relation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "grey")
INDOOR_SETTINGS = ("kitchen", "room")
SETTINGS = ("park", "beach", "snow", "street", "desert", "night", *INDOOR_SETTINGS)


@dataclass(frozen=True)
class Kind:
    """Rules for objects of one kind.

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
        """Return whether an object of this kind can have a colour, a pattern or a size."""
        if attribute == "colour":
            return value in self.colours
        if attribute == "pattern":
            return value == "plain" or self.patterned
        return value == "medium" or self.sized


@dataclass(frozen=True)
class World:
    """The tables of world.json.

    Attributes:
        kinds: of each kind, what an object of it can be.
        similar: groups of kinds that are easily mistaken for each other: what the edit "kind" exchanges.
        partners: relation -> kind of the main object -> kinds its partner can be. Read "main holds partner", and for
            every other relation "partner is on/under/behind/above main". What is behind is not much lower, so that it
            still shows.
        weights: how often units have a relation (or none), objects a pattern and a size, scenes so many units, and how
            often edits are made.
    """

    kinds: dict[str, Kind]
    similar: tuple[tuple[str, ...], ...]
    partners: dict[str, dict[str, tuple[str, ...]]]
    weights: dict[str, dict[str, float]]


WORLD = TypeAdapter(World).validate_json(Path(__file__).with_suffix(".json").read_bytes())
KIND_TABLE = WORLD.kinds
KINDS = tuple(KIND_TABLE)
PATTERNS = tuple(WORLD.weights["pattern"])
PEOPLE = ("man", "woman", "boy", "girl")

_COMPANION_PROBABILITY = 0.3
_TRIES_PER_EDIT = 8
_TOO_WIDE_FOR_COMPANIONS = ("tree", "house", "bus", "table")
MIN_OBJECTS = MIN_UNITS = 2
USUAL_UNITS, MAX_UNITS = 3, 5
_MORE_OBJECTS = 2
MAX_OBJECTS = MAX_UNITS + _MORE_OBJECTS
"""Objects of a scene with so many units; the oracle keeps the objects of a scene in eight bits."""


@dataclass(frozen=True)
class SceneObject:
    """One object without a place.

    Attributes:
        kind: of `KINDS`.
        colour: of the colours of its kind.
        pattern: of `PATTERNS`.
        size: of the sizes in `World.weights`.
    """

    kind: str
    colour: str
    pattern: str
    size: str


@dataclass(frozen=True)
class Unit:
    """One object, or two in a relation.

    Attributes:
        objects: the main one, and its partner where there is a relation.
        relation: of `World.partners`; empty for a single object.
    """

    objects: tuple[SceneObject, ...]
    relation: str = ""


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
        """Return all objects, unit after unit."""
        objects: list[SceneObject] = []
        for unit in self.units:
            objects += unit.objects
        return tuple(objects)


def is_valid(scene: SymbolicScene) -> bool:
    """Tell whether the scene keeps every rule of the tables and has two objects at least, and room for all."""
    if len(scene.units) > scene.room:
        return False
    if not MIN_OBJECTS <= len(scene.objects) <= scene.room + _MORE_OBJECTS:
        return False
    for thing in scene.objects:
        kind = KIND_TABLE[thing.kind]
        if scene.setting not in kind.settings:
            return False
        for attribute in ("colour", "pattern", "size"):
            if not kind.allows(attribute, getattr(thing, attribute)):
                return False
    for unit in scene.units:
        if unit.relation:
            main, partner = unit.objects
            partners = WORLD.partners[unit.relation]
            if partner.kind not in partners.get(main.kind, ()):
                return False
    return True


def _weighted_choice(rng: Random, name: str) -> str:
    """Draw a value of a table of `World.weights`."""
    weights = WORLD.weights[name]
    return rng.choices(list(weights), list(weights.values()))[0]


def _sample_object(rng: Random, kind: str) -> SceneObject:
    """Draw the looks of an object; it is plain and medium unless its kind has patterns and sizes."""
    rules = KIND_TABLE[kind]
    pattern = "plain"
    if rules.patterned:
        pattern = _weighted_choice(rng, "pattern")
    size = "medium"
    if rules.sized:
        size = _weighted_choice(rng, "size")
    return SceneObject(kind, rng.choice(rules.colours), pattern, size)


def _occurring(kinds: Iterable[str], setting: str) -> list[str]:
    return [kind for kind in kinds if setting in KIND_TABLE[kind].settings]


def _sample_unit(
    rng: Random,
    setting: str,
    relation: str = "",
) -> Unit:
    """Draw a unit of kinds that occur in the setting."""
    if not relation:
        kinds = _occurring(KINDS, setting)
        weights = [KIND_TABLE[kind].weight for kind in kinds]
        kind = rng.choices(kinds, weights)[0]
        return Unit((_sample_object(rng, kind),))
    partners = WORLD.partners[relation]
    main = rng.choice(_occurring(partners, setting))
    partner = rng.choice(_occurring(partners[main], setting))
    return Unit((_sample_object(rng, main), _sample_object(rng, partner)), relation)


def sample_scene(
    rng: Random,
    room: int,
    alike: float,
) -> SymbolicScene:
    """Draw a scene; in about a quarter, two objects share a kind so that there is something to count.

    Args:
        rng: source of randomness.
        room: largest number of units. The more of them, the more likely.
        alike: probability, in 0..1, of two to five objects of one kind, each number as likely; a unit of something
            else joins up to four of them.
    """
    setting = rng.choice(SETTINGS)
    if alike and rng.random() < alike:
        kinds = [kind for kind in _occurring(KINDS, setting) if kind not in _TOO_WIDE_FOR_COMPANIONS]
        kind = rng.choice(kinds)
        count = rng.randint(2, MAX_UNITS)
        units = [Unit((_sample_object(rng, kind),)) for _ in range(count)]
        other = _sample_unit(rng, setting)
        if count < MAX_UNITS and other.objects[0].kind != kind:
            units.insert(rng.randint(0, count), other)
        return SymbolicScene(setting, tuple(units), max(room, len(units)))
    counts = range(MIN_UNITS, room + 1)
    weights = [WORLD.weights["units"][str(count)] for count in counts]
    count = rng.choices(counts, weights)[0]
    units = []
    for _ in range(count):
        relation = _weighted_choice(rng, "relation")
        units.append(_sample_unit(rng, setting, relation))
    if rng.random() < _COMPANION_PROBABILITY:
        kind = rng.choice(units).objects[0].kind
        if kind not in _TOO_WIDE_FOR_COMPANIONS:
            companion = Unit((_sample_object(rng, kind),))
            if len(units) < room:
                units.append(companion)
            else:
                units[rng.randrange(room)] = companion
    while sum(len(unit.objects) for unit in units) > room + _MORE_OBJECTS:
        pairs = [index for index, unit in enumerate(units) if unit.relation]
        index = rng.choice(pairs)
        units[index] = Unit(units[index].objects[:1])
    return SymbolicScene(setting, tuple(units), room)


def _other(
    rng: Random,
    values: tuple[str, ...],
    current: str,
) -> str:
    return rng.choice([value for value in values if value != current])


def _edited(
    rng: Random,
    scene: SymbolicScene,
    edit: str,
) -> SymbolicScene:
    """Draw where and how an edit changes a scene; return the scene itself if it has nothing that the edit changes."""
    units = list(scene.units)
    match edit:
        case "setting":
            return replace(scene, setting=_other(rng, SETTINGS, scene.setting))
        case "add":
            place = rng.randint(0, len(units))
            units.insert(place, _sample_unit(rng, scene.setting))
        case "drop":  # one object of a unit, or the unit
            index = rng.randrange(len(units))
            unit = units.pop(index)
            if unit.relation:
                units.insert(index, Unit(unit.objects[:1]))
        case "swap":  # two units change places
            if len(units) > 1:
                first, second = rng.sample(range(len(units)), 2)
                units[first], units[second] = units[second], units[first]
        case "break":  # the objects of a unit stand side by side instead of in their relation
            pairs = [index for index, unit in enumerate(units) if unit.relation]
            if pairs and len(units) < scene.room:
                index = rng.choice(pairs)
                apart = [Unit((thing,)) for thing in units[index].objects]
                rng.shuffle(apart)
                units[index : index + 1] = apart
        case _:
            objects = list(scene.objects)
            if edit == "exchange":  # two objects exchange their colours
                first, second = rng.sample(range(len(objects)), 2)
                colour = objects[first].colour
                objects[first] = replace(objects[first], colour=objects[second].colour)
                objects[second] = replace(objects[second], colour=colour)
            else:
                index = rng.randrange(len(objects))
                objects[index] = _edited_object(rng, objects[index], edit)
            for index, unit in enumerate(units):
                size = len(unit.objects)
                units[index] = replace(unit, objects=tuple(objects[:size]))
                objects = objects[size:]
    return replace(scene, units=tuple(units))


def _edited_object(
    rng: Random,
    thing: SceneObject,
    attribute: str,
) -> SceneObject:
    """Draw another colour, pattern, size or kind of an object that can have one."""
    rules = KIND_TABLE[thing.kind]
    if attribute == "colour":
        return replace(thing, colour=_other(rng, rules.colours, thing.colour))
    if attribute == "pattern" and rules.patterned:
        return replace(thing, pattern=_other(rng, PATTERNS, thing.pattern))
    if attribute == "size" and rules.sized:
        # Neighbouring sizes are hardly told apart.
        size = "large" if thing.size == "small" else "small"
        return replace(thing, size=size)
    groups = [group for group in WORLD.similar if thing.kind in group]
    if attribute != "kind" or not groups:
        return thing
    kind = _other(rng, rng.choice(groups), thing.kind)
    other = _sample_object(rng, kind)
    # It keeps the looks that the other kind can have.
    other_rules = KIND_TABLE[kind]
    if thing.colour in other_rules.colours:
        other = replace(other, colour=thing.colour)
    if rules.patterned and other_rules.patterned:
        other = replace(other, pattern=thing.pattern)
    if rules.sized and other_rules.sized:
        other = replace(other, size=thing.size)
    return other


def edit_scene(rng: Random, scene: SymbolicScene) -> tuple[SymbolicScene, str]:
    """Draw one edit of the scene.

    Args:
        rng: source of randomness.
        scene: a valid scene.

    Returns:
        A valid scene that differs from `scene`, and which edit of `World.weights` made it.
    """
    while True:  # ends: every object has another colour, so the edit "colour" always succeeds
        edit = _weighted_choice(rng, "edit")
        # Most objects have no pattern and no size: a few draws keep such edits about as frequent as their weights say.
        for _ in range(_TRIES_PER_EDIT):
            edited = _edited(rng, scene, edit)
            if edited != scene and is_valid(edited):
                return edited, edit
