"""Claims of captions, and the scenes that they are true of: exact, so that the false negatives of `scenes` are known.

`describes` is the definition. `true_matches` gives the same answers for all scenes of a split at once: it keeps, per
scene, which objects fulfil a predicate as the bits of one byte, rules most scenes out with a few array
operations, and looks at the rest one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from itrpipe.scenes.layout import PlacedObject, Scene, Triple

BitArray = npt.NDArray[np.uint8]

LOOKS = ("colour", "pattern", "size", "state")


@dataclass(frozen=True)
class Predicate:
    """A claim about one object. None claims nothing.

    Attributes:
        kinds: the kinds it can be: one for a noun, several for a hypernym ("animal").
        colour: of `COLOURS`.
        pattern: of `PATTERNS`.
        size: of the sizes in `World.weights`.
        state: of the states of a `PlacedObject`.
    """

    kinds: tuple[str, ...]
    colour: str | None = None
    pattern: str | None = None
    size: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class LogicalForm:
    """The claim of a caption: there are different objects that fulfil the predicates and stand in the relations.

    Attributes:
        objects: existentially quantified objects; no two of them are the same object of the scene.
        relations: (i, relation, j) over positions in `objects`.
        settings: the settings it can be; empty claims nothing.
        counts: (predicate, n): exactly n objects of the scene fulfil the predicate.
    """

    objects: tuple[Predicate, ...] = ()
    relations: tuple[Triple, ...] = ()
    settings: tuple[str, ...] = ()
    counts: tuple[tuple[Predicate, int], ...] = ()


@dataclass(frozen=True)
class Caption:
    """A sentence with its meaning.

    Attributes:
        text: natural English in lower case, at most 22 words.
        form: what it claims.
        style: "long", "middle", "enumeration", "single" or "general".
    """

    text: str
    form: LogicalForm
    style: str


def fulfils(item: PlacedObject, predicate: Predicate) -> bool:
    """Tell whether everything the predicate says is so of the object."""
    if item.kind not in predicate.kinds:
        return False
    for attribute in LOOKS:
        claim = getattr(predicate, attribute)
        if claim is not None and claim != getattr(item, attribute):
            return False
    return True


def describes(caption: Caption | LogicalForm, scene: Scene) -> bool:
    """Tell whether the caption is true of the scene.

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
    return _can_assign(form, scene, ())


def _can_assign(
    form: LogicalForm,
    scene: Scene,
    assigned: tuple[int, ...],
) -> bool:
    """Extend `assigned` (scene objects for the first quantified ones) to a full assignment, depth first."""
    for first, name, second in form.relations:
        # Other relations were looked at before, or have an object that is not assigned yet.
        is_new = max(first, second) == len(assigned) - 1
        if is_new and (assigned[first], name, assigned[second]) not in scene.relations:
            return False
    if len(assigned) == len(form.objects):
        return True
    predicate = form.objects[len(assigned)]
    for index, item in enumerate(scene.objects):
        if index in assigned or not fulfils(item, predicate):
            continue
        if _can_assign(form, scene, (*assigned, index)):
            return True
    return False


def true_matches(
    captions: Sequence[Caption],
    scenes: Sequence[Scene],
) -> list[npt.NDArray[np.int64]]:
    """Return the scenes that each caption describes.

    Args:
        captions: T captions, not necessarily of these scenes.
        scenes: N scenes.

    Returns:
        T ascending arrays of indices into `scenes`.
    """
    # (attribute, value) -> which objects of each scene have it, as bits; of a setting, whether it is one.  # [N]
    looks: dict[tuple[str, str], BitArray] = defaultdict(lambda: np.zeros(len(scenes), dtype=np.uint8))
    for number, scene in enumerate(scenes):
        looks["setting", scene.setting][number] = 1
        for slot, item in enumerate(scene.objects):
            for attribute in ("kind", *LOOKS):
                looks[attribute, getattr(item, attribute)][number] |= 1 << slot

    @cache  # captions share what they say
    def fulfilling(predicate: Predicate) -> BitArray:
        """Return in bit k of byte n whether object k of scene n fulfils the predicate.  # [N]"""
        bits = np.zeros(len(scenes), dtype=np.uint8)
        for kind in predicate.kinds:
            bits |= looks["kind", kind]
        for attribute in LOOKS:
            value = getattr(predicate, attribute)
            if value is not None:
                bits &= looks[attribute, value]
        return bits

    matches = []
    for caption in captions:
        form = caption.form
        possible = np.full(len(scenes), not form.settings)
        for setting in form.settings:
            possible |= looks["setting", setting] != 0
        for predicate, number in form.counts:
            possible &= np.bitwise_count(fulfilling(predicate)) == number
        for predicate in form.objects:
            possible &= fulfilling(predicate) != 0
        if len(form.objects) > 1:  # of fewer the masks are exact
            for row in np.flatnonzero(possible).tolist():
                possible[row] = describes(form, scenes[row])
        matches.append(np.flatnonzero(possible))
    return matches
