"""Edits of symbolic scenes: the same scene but for one detail, which is what a hard negative is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from itrpipe.scenes.world import (
    FLYERS,
    KIND_TABLE,
    PATTERNS,
    PEOPLE,
    SETTINGS,
    SUPPORTS,
    VEHICLES,
    SceneObject,
    SymbolicScene,
    Unit,
    is_valid,
    sample_object,
    sample_single,
)

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


def _pick(rng: Random, scene: SymbolicScene) -> tuple[int, SceneObject]:
    """A random object and its place in `scene.objects`."""
    index = rng.randrange(len(scene.objects))
    return index, scene.objects[index]


def _with_object(scene: SymbolicScene, index: int, thing: SceneObject) -> SymbolicScene:
    """The scene with the object at `index` of `scene.objects` replaced."""
    units = list(scene.units)
    for number, unit in enumerate(units):
        if index < len(unit.objects):
            units[number] = replace(unit, main=thing) if index == 0 else replace(unit, partner=thing)
            break
        index -= len(unit.objects)
    return replace(scene, units=tuple(units))


def _other(rng: Random, values: tuple[str, ...], current: str) -> str:
    return rng.choice([value for value in values if value != current])


def _edit_colour(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index, thing = _pick(rng, scene)
    colour = _other(rng, KIND_TABLE[thing.kind].colours, thing.colour)
    return _with_object(scene, index, replace(thing, colour=colour))


def _edit_kind(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Another kind of the same group, which keeps the looks that the new kind can have."""
    index, thing = _pick(rng, scene)
    groups = [group for group in SIMILAR_KINDS if thing.kind in group]
    if not groups:
        return None
    fresh = sample_object(rng, _other(rng, rng.choice(groups), thing.kind))
    old, new = KIND_TABLE[thing.kind], KIND_TABLE[fresh.kind]
    if thing.colour in new.colours:
        fresh = replace(fresh, colour=thing.colour)
    if old.patterned and new.patterned:
        fresh = replace(fresh, pattern=thing.pattern)
    if old.sized and new.sized:
        fresh = replace(fresh, size=thing.size)
    return _with_object(scene, index, fresh)


def _edit_pattern(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index, thing = _pick(rng, scene)
    if not KIND_TABLE[thing.kind].patterned:
        return None
    return _with_object(scene, index, replace(thing, pattern=_other(rng, PATTERNS, thing.pattern)))


def _edit_size(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Small becomes large and the other way round: neighbouring sizes are hardly told apart."""
    index, thing = _pick(rng, scene)
    if not KIND_TABLE[thing.kind].sized:
        return None
    return _with_object(scene, index, replace(thing, size="large" if thing.size == "small" else "small"))


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
    return replace(scene, units=(*scene.units[:index], *apart, *scene.units[index + 1 :]))


def _edit_exchange(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    """Two objects exchange their colours."""
    first, second = rng.sample(range(len(scene.objects)), 2)
    one, two = scene.objects[first], scene.objects[second]
    scene = _with_object(scene, first, replace(one, colour=two.colour))
    return _with_object(scene, second, replace(two, colour=one.colour))


def _edit_drop(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index = rng.randrange(len(scene.units))
    kept = () if scene.units[index].partner is None else (Unit(scene.units[index].main),)
    return replace(scene, units=(*scene.units[:index], *kept, *scene.units[index + 1 :]))


def _edit_add(rng: Random, scene: SymbolicScene) -> SymbolicScene | None:
    index = rng.randint(0, len(scene.units))
    added = sample_single(rng, scene.setting)
    return replace(scene, units=(*scene.units[:index], added, *scene.units[index:]))


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
