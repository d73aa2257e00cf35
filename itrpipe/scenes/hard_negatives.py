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
Edit = list[tuple[int, int, str]]
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
    scenes: Sequence[Scene],
    captions: Sequence[Sequence[Caption]],
    most: int = 1,
    seed: int = 0,
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
        kinds = [item.kind for item in scene.objects]
        for first, name, second in scene.relations:
            related.add((kinds[first], name, kinds[second]))
    negatives: list[HardNegative] = []
    for scene, captions_of_scene in zip(scenes, captions, strict=True):
        for category in CATEGORIES:
            rng = Random(f"scenes/hard negatives/{seed}/{scene.image_id}/{category}")
            shuffled = rng.sample(list(captions_of_scene), len(captions_of_scene))
            edited = _edited(rng, reader, scene, shuffled, category, related)
            for caption, negative in islice(edited, most):
                negatives.append(HardNegative(scene.image_id, caption, negative, category))
    return negatives


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
        form = reader.meanings(text)[0].form
        if len(mentions) != len(form.objects) + len(form.counts):
            continue
        match category:
            case "swap_att":
                edits = _swap_colours(mentions)
            case "swap_rel":
                edits = _swap_places(mentions, form, related)
            case "replace_obj":
                edits = _replace_objects(mentions, scene.setting, rng)
            case "replace_att":
                edits = _replace_attributes(mentions, rng)
            case _:
                edits = _replace_numbers(mentions)
        edits = list(edits)
        for edit in rng.sample(edits, len(edits)):
            negative = text
            for start, end, words in sorted(edit, reverse=True):
                negative = negative[:start] + words + negative[end:]
            meanings = reader.meanings(negative)
            is_false = len(meanings) > 0  # a sentence that cannot be read may say anything
            for meaning in meanings:
                is_false &= meaning.certain and not describes(meaning.form, scene)
            if is_false:
                yield caption.text, _ARTICLE_BEFORE_VOWEL.sub("an ", negative)


def _swap_colours(mentions: Mentions) -> Iterator[Edit]:
    coloured = []
    for place, phrase in mentions:
        colours = [adjective for adjective in phrase.adjectives if adjective.attribute == "colour"]
        if len(colours) == 1:
            coloured.append((place, phrase.predicate.kinds, colours[0]))
    for (place, kinds, colour), (other_place, other_kinds, other) in combinations(coloured, 2):
        if other.value in _colours_of(kinds) and colour.value in _colours_of(other_kinds):
            yield [
                (place + colour.start, place + colour.end, other.value),
                (other_place + other.start, other_place + other.end, colour.value),
            ]


def _swap_places(
    mentions: Mentions,
    form: LogicalForm,
    related: Container[tuple[str, str, str]],
) -> Iterator[Edit]:
    if form.counts:
        return
    for first, name, second in form.relations:
        start, phrase = mentions[first]
        other_start, other = mentions[second]
        turned_round = product(other.predicate.kinds, [name], phrase.predicate.kinds)
        if any(triple in related for triple in turned_round):
            yield [
                (start, start + len(phrase.text), other.text),
                (other_start, other_start + len(other.text), phrase.text),
            ]


def _replace_objects(
    mentions: Mentions,
    setting: str,
    rng: Random,
) -> Iterator[Edit]:
    for place, phrase in mentions:
        kind, *other_kinds = phrase.predicate.kinds
        if phrase.number is not None or phrase.noun == NOWHERE or other_kinds:
            continue
        start, end = phrase.noun
        similar: dict[str, None] = {}
        for group in WORLD.similar:
            if kind in group:
                similar |= dict.fromkeys(group)
        similar.pop(kind, None)
        for other in similar:
            rules = KIND_TABLE[other]
            fits = all(rules.allows(adjective.attribute, adjective.value) for adjective in phrase.adjectives)
            garments = ("", SAYINGS.unisex_garment, *SAYINGS.garments.get(other, ()))
            if fits and setting in rules.settings and phrase.garment in garments:
                yield [(place + start, place + end, rng.choice(SAYINGS.nouns[other]))]


def _replace_attributes(mentions: Mentions, rng: Random) -> Iterator[Edit]:
    for place, phrase in mentions:
        for adjective in phrase.adjectives:
            words = SAYINGS.looks[adjective.attribute]
            values = list(words)
            if adjective.attribute == "colour":
                values = _colours_of(phrase.predicate.kinds)
            for value in values:
                if value != adjective.value:
                    yield [(place + adjective.start, place + adjective.end, rng.choice(words[value]))]


def _replace_numbers(mentions: Mentions) -> Iterator[Edit]:
    for place, phrase in mentions:
        start, end = phrase.article
        for value, word in SAYINGS.numbers.items():
            if phrase.number not in (None, value):
                yield [(place + start, place + end, word)]


def _colours_of(kinds: Sequence[str]) -> list[str]:
    """Return the colours that a thing of one of these kinds can have."""
    colours = chain.from_iterable(KIND_TABLE[kind].colours for kind in kinds)
    return list(dict.fromkeys(colours))
