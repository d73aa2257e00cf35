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
from collections.abc import Container, Iterator, Sequence
from itertools import chain, combinations, islice, product
from random import Random
from typing import NamedTuple

from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import Caption, LogicalForm, describes
from itrpipe.scenes.readback import NOWHERE, CaptionReader, NounPhrase
from itrpipe.scenes.sayings import SAYINGS
from itrpipe.scenes.world import KIND_TABLE, WORLD

_ARTICLE_BEFORE_VOWEL = re.compile(r"\ba (?=[aeiou])")
_AN = re.compile(r"\ban\b")
CATEGORIES = ("swap_att", "swap_rel", "replace_obj", "replace_att", "count")
Changes = list[tuple[int, int, str]]
"""Words that stand instead of the characters from one to before another."""
Mentions = list[tuple[int, NounPhrase]]
"""The noun phrases of a caption, in their order, each with its first character; `a` stands there for every `an`."""


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


def hard_negatives(
    scenes: Sequence[Scene], captions: Sequence[Sequence[Caption]], most: int = 1, seed: int = 0
) -> list[HardNegative]:
    """Make hard negatives of captions.

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
    related = set()
    for scene in scenes:
        for first, name, second in scene.relations:
            related.add((scene.objects[first].kind, name, scene.objects[second].kind))
    found: list[HardNegative] = []
    for scene, own in zip(scenes, captions, strict=True):
        for category in CATEGORIES:
            rng = Random(f"scenes/hard negatives/{seed}/{scene.image_id}/{category}")
            drawn = _edited(rng, reader, scene, rng.sample(list(own), len(own)), category, related)
            for caption, negative in islice(drawn, most):
                found.append(HardNegative(scene.image_id, caption, negative, category))
    return found


def _edited(
    rng: Random,
    reader: CaptionReader,
    scene: Scene,
    captions: Sequence[Caption],
    category: str,
    related: Container[tuple[str, str, str]],
) -> Iterator[tuple[str, str]]:
    """Yield captions with edits of a category that make them false of their scene, in a random order.

    Args:
        rng: source of randomness.
        reader: of the captions.
        scene: that they describe.
        captions: are edited one after the other.
        category: of the edits.
        related: kinds in a relation, somewhere among the scenes.
    """
    for caption in captions:
        text = _AN.sub("a", caption.text)
        mentions = reader.noun_phrases(text)
        form = reader.readings(text)[0].form
        if len(mentions) != len(form.objects) + len(form.counts):
            continue
        match category:
            case "swap_att":
                edits = _swapped_colours(mentions)
            case "swap_rel":
                edits = _swapped_places(mentions, form, related)
            case "replace_obj":
                edits = _replaced_objects(mentions, scene.setting, rng)
            case "replace_att":
                edits = _replaced_attributes(mentions, rng)
            case _:
                edits = _replaced_numbers(mentions)
        edits = list(edits)
        for changes in rng.sample(edits, len(edits)):
            negative = text
            for start, end, words in sorted(changes, reverse=True):
                negative = negative[:start] + words + negative[end:]
            readings = reader.readings(negative)
            if readings and all(reading.certain and not describes(reading.form, scene) for reading in readings):
                yield caption.text, _ARTICLE_BEFORE_VOWEL.sub("an ", negative)


def _swapped_colours(mentions: Mentions) -> Iterator[Changes]:
    coloured = []
    for at, phrase in mentions:
        colours = [look for look in phrase.looks if look.attribute == "colour"]
        if len(colours) == 1:
            coloured.append((at, phrase.predicate.kinds, colours[0]))
    for (at, kinds, look), (there, others, other) in combinations(coloured, 2):
        if _can_be(kinds, "colour", other.value) and _can_be(others, "colour", look.value):
            yield [
                (at + look.start, at + look.end, other.value),
                (there + other.start, there + other.end, look.value),
            ]


def _swapped_places(
    mentions: Mentions, form: LogicalForm, related: Container[tuple[str, str, str]]
) -> Iterator[Changes]:
    if form.counts:
        return
    for first, name, second in form.relations:
        at, one = mentions[first]
        there, other = mentions[second]
        turned = product(other.predicate.kinds, [name], one.predicate.kinds)
        if any(triple in related for triple in turned):
            yield [(at, at + len(one.text), other.text), (there, there + len(other.text), one.text)]


def _replaced_objects(mentions: Mentions, setting: str, rng: Random) -> Iterator[Changes]:
    for at, phrase in mentions:
        own, *others = phrase.predicate.kinds
        if phrase.number is not None or phrase.noun == NOWHERE or others:
            continue
        start, end = phrase.noun
        similar = dict.fromkeys(kind for group in WORLD.similar if own in group for kind in group)
        for kind in similar:
            worn = ("", SAYINGS.unisex_garment, *SAYINGS.garments.get(kind, ()))
            fits = all(_can_be((kind,), look.attribute, look.value) for look in phrase.looks)
            if kind != own and fits and setting in KIND_TABLE[kind].settings and phrase.garment in worn:
                yield [(at + start, at + end, rng.choice(SAYINGS.nouns[kind]))]


def _replaced_attributes(mentions: Mentions, rng: Random) -> Iterator[Changes]:
    for at, phrase in mentions:
        for look in phrase.looks:
            table = SAYINGS.looks[look.attribute]
            values = table
            if look.attribute == "colour":  # of things of one of these kinds
                values = dict.fromkeys(chain(*(KIND_TABLE[kind].colours for kind in phrase.predicate.kinds)))
            for value in values:
                if value != look.value:
                    yield [(at + look.start, at + look.end, rng.choice(table[value]))]


def _replaced_numbers(mentions: Mentions) -> Iterator[Changes]:
    for at, phrase in mentions:
        start, end = phrase.article
        if phrase.number is not None:
            for value, word in SAYINGS.numbers.items():
                if value != phrase.number:
                    yield [(at + start, at + end, word)]


def _can_be(kinds: Sequence[str], attribute: str, value: str) -> bool:
    """Tell whether a thing of one of these kinds can have that attribute."""
    return any(KIND_TABLE[kind].allows(attribute, value) for kind in kinds)
