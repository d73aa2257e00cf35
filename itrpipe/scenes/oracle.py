"""Which captions are true of which scenes: exact, so that the false negatives of `scenes` are known.

`describes` is the definition. `Oracle` gives the same answers for all scenes of a split at once: it keeps, per
scene, which objects fulfil a predicate as the bits of one byte, rules most scenes out with a few array
operations, and searches only the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from itrpipe.scenes.forms import Caption, LogicalForm, Predicate
from itrpipe.scenes.layout import RELATIONS, PlacedObject, Scene
from itrpipe.scenes.world import MAX_OBJECTS

BoolArray = npt.NDArray[np.bool_]
BitArray = npt.NDArray[np.uint8]

_POPULATION = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)


def fulfils(item: PlacedObject, predicate: Predicate) -> bool:
    """Whether everything the predicate says is so of the object."""
    return (
        item.kind in predicate.kinds
        and predicate.colour in (None, item.colour)
        and predicate.pattern in (None, item.pattern)
        and predicate.size in (None, item.size)
        and predicate.state in (None, item.state)
    )


def describes(caption: Caption | LogicalForm, scene: Scene) -> bool:
    """Whether the caption is true of the scene.

    Args:
        caption: a caption, or its logical form alone.
        scene: any scene.

    Returns:
        True when the setting fits, every count is exact, and different objects of the scene can be assigned to
        the quantified objects so that all predicates and relations hold.
    """
    form = caption.form if isinstance(caption, Caption) else caption
    if form.settings and scene.setting not in form.settings:
        return False
    for predicate, number in form.counts:
        if sum(fulfils(item, predicate) for item in scene.objects) != number:
            return False
    candidates = [
        [index for index, item in enumerate(scene.objects) if fulfils(item, predicate)] for predicate in form.objects
    ]
    return all(candidates) and _can_assign(form, candidates, frozenset(scene.relations), ())


def _can_assign(
    form: LogicalForm,
    candidates: list[list[int]],
    relations: frozenset[tuple[int, str, int]],
    assigned: tuple[int, ...],
) -> bool:
    """Extends `assigned` (scene objects for the first quantified ones) to a full assignment, depth first."""
    position = len(assigned)
    if position == len(candidates):
        return True
    for index in candidates[position]:
        if index in assigned:
            continue
        extended = (*assigned, index)
        consistent = all(
            (extended[first], name, extended[second]) in relations
            for first, name, second in form.relations
            if max(first, second) == position
        )
        if consistent and _can_assign(form, candidates, relations, extended):
            return True
    return False


class Oracle:
    """Judges captions against a fixed list of scenes (N of them)."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self._scenes = list(scenes)
        self._relation_sets = [frozenset(scene.relations) for scene in self._scenes]
        self._settings = np.array([scene.setting for scene in self._scenes], dtype=object)
        self._looks = _look_table(self._scenes)
        self._reach = _reach_table(self._scenes)
        self._bits: dict[Predicate, BitArray] = {}
        self._in_settings: dict[tuple[str, ...], BoolArray] = {}
        self._related: dict[tuple[Predicate, str, Predicate], BoolArray] = {}

    def matches(self, form: LogicalForm) -> BoolArray:
        """Truth of a logical form in every scene.  # [N]"""
        possible = self._setting_mask(form.settings).copy()
        for predicate, number in form.counts:
            possible &= _POPULATION[self._fulfilling(predicate)] == number
        for predicate in form.objects:
            possible &= self._fulfilling(predicate) != 0
        for first, name, second in form.relations:
            possible &= self._relation_mask(form.objects[first], name, form.objects[second])
        if len(form.objects) <= 1 or (len(form.objects) == 2 and len(form.relations) == 1):
            return possible  # the masks are exact: nothing is left to assign
        for index in np.flatnonzero(possible):
            possible[index] = self._search(form, int(index))
        return possible

    def _search(self, form: LogicalForm, index: int) -> bool:
        """Exact answer for one scene that the masks could not rule out; setting and counts are already right."""
        bits = [int(self._fulfilling(predicate)[index]) for predicate in form.objects]
        candidates = [[slot for slot in range(MAX_OBJECTS) if value >> slot & 1] for value in bits]
        return _can_assign(form, candidates, self._relation_sets[index], ())

    def _setting_mask(self, settings: tuple[str, ...]) -> BoolArray:
        if settings not in self._in_settings:
            fits = np.isin(self._settings, settings) if settings else np.ones(len(self._scenes), dtype=bool)
            self._in_settings[settings] = fits
        return self._in_settings[settings]

    def _fulfilling(self, predicate: Predicate) -> BitArray:
        """Bit k of byte n: object k of scene n fulfils the predicate.  # [N]"""
        if predicate not in self._bits:
            bits = np.zeros(len(self._scenes), dtype=np.uint8)
            for kind in predicate.kinds:
                bits |= self._look("kind", kind)
            for attribute in ("colour", "pattern", "size", "state"):
                value = getattr(predicate, attribute)
                if value is not None:
                    bits &= self._look(attribute, value)
            self._bits[predicate] = bits
        return self._bits[predicate]

    def _look(self, attribute: str, value: str) -> BitArray:
        nowhere = np.zeros(len(self._scenes), dtype=np.uint8)
        return self._looks.get((attribute, value), nowhere)

    def _relation_mask(self, first: Predicate, name: str, second: Predicate) -> BoolArray:
        """Scenes with an object that fulfils `first` in the relation to one that fulfils `second`.  # [N]"""
        key = (first, name, second)
        if key not in self._related:
            sources, targets = self._fulfilling(first), self._fulfilling(second)
            found = np.zeros(len(self._scenes), dtype=bool)
            for slot in range(MAX_OBJECTS):
                found |= (sources >> slot & 1).astype(bool) & ((self._reach[name][:, slot] & targets) != 0)
            self._related[key] = found
        return self._related[key]


def _look_table(scenes: list[Scene]) -> dict[tuple[str, str], BitArray]:
    """(attribute, value) -> which objects of each scene have it, as bits.  # [N] each"""
    table: dict[tuple[str, str], BitArray] = {}
    for number, scene in enumerate(scenes):
        for slot, item in enumerate(scene.objects):
            for attribute in ("kind", "colour", "pattern", "size", "state"):
                key = (attribute, getattr(item, attribute))
                if key not in table:
                    table[key] = np.zeros(len(scenes), dtype=np.uint8)
                table[key][number] |= 1 << slot
    return table


def _reach_table(scenes: list[Scene]) -> dict[str, BitArray]:
    """Relation -> for every object the objects it has the relation to, as bits.  # [N, MAX_OBJECTS] each"""
    table = {name: np.zeros((len(scenes), MAX_OBJECTS), dtype=np.uint8) for name in RELATIONS}
    for number, scene in enumerate(scenes):
        for first, name, second in scene.relations:
            table[name][number, first] |= 1 << second
    return table


def true_matches(captions: Sequence[Caption], scenes: Sequence[Scene]) -> list[npt.NDArray[np.int64]]:
    """The scenes that each caption describes.

    Args:
        captions: T captions, not necessarily of these scenes.
        scenes: N scenes.

    Returns:
        T ascending arrays of indices into `scenes`.
    """
    oracle = Oracle(scenes)
    return [np.flatnonzero(oracle.matches(caption.form)).astype(np.int64) for caption in captions]
