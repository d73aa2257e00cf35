"""Hard negatives of captions: the same sentence but for one detail, and false of its image by the oracle.

    hard_negatives(test.scenes, test.captions)

Words of a caption are exchanged where they stand, and the sentence is read back as a logical form by the inverse of the
grammar. It is kept if that form is all that it claims, and does not describe the scene. So every sentence is one that
the grammar could have written, and differs from its caption in the words of one edit.

Sentences that could be told from captions without the image are not made: things get colours, patterns and sizes that
their kind can have, kinds stay in settings where they occur, and a relation is turned round only between kinds that are
in it somewhere among the scenes (a ball never holds a man).

| category | edit |
|---|---|
| `swap_att` | two things exchange their colours |
| `swap_rel` | subject and object of a relation exchange their places |
| `replace_obj` | another kind that is easily mistaken for it |
| `replace_att` | another colour, pattern or size |
| `count` | another number |

Source: ours; the names of categories, but for `swap_rel` and `count`, are those of SugarCrepe (Hsieh et al., 2023).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import NamedTuple

from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import Caption, LogicalForm, describes
from itrpipe.scenes.readback import NOWHERE, CaptionReader, NounPhrase
from itrpipe.scenes.sayings import SAYINGS
from itrpipe.scenes.world import KIND_TABLE, WORLD

_ARTICLE_BEFORE_VOWEL = re.compile(r"\ba (?=[aeiou])")
_AN = re.compile(r"\ban\b")
Changes = list[tuple[int, int, str]]
"""What stands instead of the characters from one to before another."""


class HardNegative(NamedTuple):
    """A caption and a sentence that is false of its image.

    Attributes:
        image_id: of the scene.
        caption, negative: the sentences.
        category: one of `CATEGORIES`.
    """

    image_id: str
    caption: str
    negative: str
    category: str


@dataclass(frozen=True)
class _Sentence:
    """A caption that is edited, with `a` for every `an`.

    Attributes:
        mentions: its noun phrases, in their order, each with its first character.
        form: what it claims; its objects are those mentions without a number.
        scene: that it describes.
        related: kinds in a relation, somewhere among the scenes.
        rng: of the draw.
    """

    mentions: list[tuple[int, NounPhrase]]
    form: LogicalForm
    scene: Scene
    related: frozenset[tuple[str, str, str]]
    rng: Random


def hard_negatives(
    scenes: Sequence[Scene], captions: Sequence[Sequence[Caption]], most: int = 1, seed: int = 0
) -> list[HardNegative]:
    """Makes hard negatives of captions.

    Args:
        scenes: N scenes.
        captions: of each scene.
        most: of every scene and category.
        seed: of the draws, which depend on the scene and the category beside it, and on nothing else.

    Returns:
        In the order of the scenes, for each in the order of `CATEGORIES`. Which caption is edited is drawn; categories
        that none of the captions has words for, such as numbers, are left out.
    """
    reader = CaptionReader()
    related = frozenset(
        (scene.objects[first].kind, name, scene.objects[second].kind)
        for scene in scenes
        for first, name, second in scene.relations
    )
    found: list[HardNegative] = []
    for scene, own in zip(scenes, captions, strict=True):
        for category, edit in _EDITS.items():
            rng = Random(f"scenes/hard negatives/{seed}/{scene.image_id}/{category}")
            negatives: list[HardNegative] = []
            for caption in rng.sample(list(own), len(own)):
                text = _AN.sub("a", caption.text)
                mentions, form = reader.noun_phrases(text), reader.readings(text)[0].form
                if len(mentions) != len(form.objects) + len(form.counts):
                    continue
                edits = list(edit(_Sentence(mentions, form, scene, related, rng)))
                for changes in rng.sample(edits, len(edits)):
                    negative = text
                    for start, end, words in sorted(changes, reverse=True):
                        negative = negative[:start] + words + negative[end:]
                    readings = reader.readings(negative) if len(negatives) < most else ()
                    if readings and all(each.certain and not describes(each.form, scene) for each in readings):
                        negative = _ARTICLE_BEFORE_VOWEL.sub("an ", negative)
                        negatives.append(HardNegative(scene.image_id, caption.text, negative, category))
            found += negatives
    return found


def _swapped_colours(sentence: _Sentence) -> Iterator[Changes]:
    coloured = []
    for at, phrase in sentence.mentions:
        colours = [look for look in phrase.looks if look.attribute == "colour"]
        if len(colours) == 1:
            coloured.append((phrase.predicate.kinds, at + colours[0].start, at + colours[0].end, colours[0].value))
    for (kinds, start, end, colour), (others, first, last, other) in combinations(coloured, 2):
        if _can_be(kinds, "colour", other) and _can_be(others, "colour", colour):
            yield [(start, end, other), (first, last, colour)]


def _swapped_places(sentence: _Sentence) -> Iterator[Changes]:
    if sentence.form.counts:
        return
    for first, name, second in sentence.form.relations:
        (at, one), (there, other) = sentence.mentions[first], sentence.mentions[second]
        kinds = other.predicate.kinds, one.predicate.kinds
        if any((kind, name, partner) in sentence.related for kind in kinds[0] for partner in kinds[1]):
            yield [(at, at + len(one.text), other.text), (there, there + len(other.text), one.text)]


def _replaced_objects(sentence: _Sentence) -> Iterator[Changes]:
    for at, phrase in sentence.mentions:
        kinds, (start, end) = phrase.predicate.kinds, phrase.noun
        if phrase.number is not None or phrase.noun == NOWHERE or len(kinds) != 1:
            continue
        similar = dict.fromkeys(kind for group in WORLD.similar if kinds[0] in group for kind in group)
        for kind in similar:
            fits = all(_can_be((kind,), look.attribute, look.value) for look in phrase.looks)
            worn = ("", SAYINGS.unisex_garment, *SAYINGS.garments.get(kind, ()))
            occurs = sentence.scene.setting in KIND_TABLE[kind].settings
            if kind != kinds[0] and occurs and fits and phrase.garment in worn:
                yield [(at + start, at + end, sentence.rng.choice(SAYINGS.nouns[kind]))]


def _replaced_attributes(sentence: _Sentence) -> Iterator[Changes]:
    for at, phrase in sentence.mentions:
        for look in phrase.looks:
            table = SAYINGS.looks[look.attribute]
            values = list(table)
            if look.attribute == "colour":  # of things of one of these kinds
                values = list(
                    dict.fromkeys(each for kind in phrase.predicate.kinds for each in KIND_TABLE[kind].colours)
                )
            for value in values:
                if value != look.value:
                    yield [(at + look.start, at + look.end, sentence.rng.choice(table[value]))]


def _replaced_numbers(sentence: _Sentence) -> Iterator[Changes]:
    for at, phrase in sentence.mentions:
        start, end = phrase.article
        if phrase.number is not None:
            for value, word in SAYINGS.numbers.items():
                if value != phrase.number:
                    yield [(at + start, at + end, word)]


def _can_be(kinds: Sequence[str], attribute: str, value: str) -> bool:
    """Return whether a thing of one of these kinds can have that attribute."""
    return any(KIND_TABLE[kind].allows(attribute, value) for kind in kinds)


_EDITS: dict[str, Callable[[_Sentence], Iterator[Changes]]] = {
    "swap_att": _swapped_colours,
    "swap_rel": _swapped_places,
    "replace_obj": _replaced_objects,
    "replace_att": _replaced_attributes,
    "count": _replaced_numbers,
}
CATEGORIES = tuple(_EDITS)
