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

from itrpipe.scenes import grammar
from itrpipe.scenes.edits import SIMILAR_KINDS
from itrpipe.scenes.forms import Caption, LogicalForm
from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import describes
from itrpipe.scenes.reader import LOOK_PATTERN, LOOKS, CaptionReader
from itrpipe.scenes.world import KIND_TABLE

_ARTICLE_BEFORE_VOWEL = re.compile(r"\ba (?=[aeiou])")
_AN = re.compile(r"\ban\b")
_VALUES = {
    "pattern": grammar.PATTERN_WORDS,
    "size": grammar.SIZE_WORDS,
}


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


class _Word(NamedTuple):
    """An adjective: where it stands, and what it says."""

    span: tuple[int, int]
    text: str
    attribute: str
    value: str


@dataclass(frozen=True)
class _Mention:
    """A noun phrase of a sentence.

    Attributes:
        span: of the whole phrase.
        number, noun: spans of the number word or article and of the noun; (-1, -1) where there is none.
        kinds: that the noun can be.
        garment: that is worn; empty: none.
        looks: the adjectives.
        value: what the number word says; None after an article.
    """

    span: tuple[int, int]
    number: tuple[int, int]
    noun: tuple[int, int]
    kinds: tuple[str, ...]
    garment: str
    looks: tuple[_Word, ...]
    value: int | None


@dataclass(frozen=True)
class _Sentence:
    """A caption that is edited.

    Attributes:
        text: with `a` for every `an`.
        mentions: its noun phrases, in their order.
        form: what it claims; its objects are those mentions without a number.
        scene: that it describes.
        related: kinds in a relation, somewhere among the scenes.
        rng: of the draw.
    """

    text: str
    mentions: tuple[_Mention, ...]
    form: LogicalForm
    scene: Scene
    related: frozenset[tuple[str, str, str]]
    rng: Random

    def with_words(self, *changes: tuple[tuple[int, int], str]) -> str:
        """The text with other words in some places."""
        text = self.text
        for (start, end), words in sorted(changes, reverse=True):
            text = text[:start] + words + text[end:]
        return text


def hard_negatives(scenes: Sequence[Scene], captions: Sequence[Sequence[Caption]], seed: int = 0) -> list[HardNegative]:
    """Makes hard negatives of captions, at most one for every scene and category.

    Args:
        scenes: N scenes.
        captions: of each scene.
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
    found = []
    for scene, own in zip(scenes, captions, strict=True):
        for category, edit in _EDITS.items():
            rng = Random(f"scenes/hard negatives/{seed}/{scene.image_id}/{category}")
            drawn = (caption.text for caption in rng.sample(list(own), len(own)))
            made = (
                HardNegative(scene.image_id, text, negative, category)
                for text in drawn
                for negative in _negatives(reader, edit, text, scene, related, rng)
            )
            found += [first] if (first := next(made, None)) else []
    return found


def _negatives(
    reader: CaptionReader,
    edit: Callable[[_Sentence], Iterator[str]],
    caption: str,
    scene: Scene,
    related: frozenset[tuple[str, str, str]],
    rng: Random,
) -> Iterator[str]:
    """Sentences that an edit makes of a caption and that are false of the scene, in the order of the draw."""
    text = _AN.sub("a", caption)
    mentions = tuple(_mention(reader, match) for match in reader.noun_phrases(text))
    form = reader.readings(text)[0].form
    if len(mentions) != len(form.objects) + len(form.counts):
        return
    made = list(edit(_Sentence(text, mentions, form, scene, related, rng)))
    for each in rng.sample(made, len(made)):
        readings = reader.readings(each)
        if readings and all(reading.certain and not describes(reading.form, scene) for reading in readings):
            yield _ARTICLE_BEFORE_VOWEL.sub("an ", each)


def _mention(reader: CaptionReader, match: re.Match[str]) -> _Mention:
    understood = reader.understand(match[0])
    start = match.start()
    looks = tuple(
        _Word((start + word.start(), start + word.end()), word[0], *LOOKS[word[0]])
        for word in LOOK_PATTERN.finditer(match[0])
    )
    kinds, garment = understood.predicate.kinds, match["garment"] or ""
    return _Mention(match.span(), match.span("article"), match.span("noun"), kinds, garment, looks, understood.number)


def _swapped_colours(sentence: _Sentence) -> Iterator[str]:
    coloured = [
        (mention, words[0])
        for mention in sentence.mentions
        if len(words := [word for word in mention.looks if word.attribute == "colour"]) == 1
    ]
    for (first, one), (second, other) in combinations(coloured, 2):
        if _can_be(first.kinds, "colour", other.value) and _can_be(second.kinds, "colour", one.value):
            yield sentence.with_words((one.span, other.text), (other.span, one.text))


def _swapped_places(sentence: _Sentence) -> Iterator[str]:
    if sentence.form.counts:
        return
    for first, name, second in sentence.form.relations:
        one, other = sentence.mentions[first], sentence.mentions[second]
        if any((kind, name, partner) in sentence.related for kind in other.kinds for partner in one.kinds):
            texts = (sentence.text[slice(*each.span)] for each in (other, one))
            yield sentence.with_words(*zip((one.span, other.span), texts, strict=True))


def _replaced_objects(sentence: _Sentence) -> Iterator[str]:
    for mention in sentence.mentions:
        if mention.value is not None or mention.noun == (-1, -1) or len(mention.kinds) != 1:
            continue
        own = mention.kinds[0]
        similar = dict.fromkeys(kind for group in SIMILAR_KINDS if own in group for kind in group if kind != own)
        for kind in similar:
            if sentence.scene.setting in KIND_TABLE[kind].settings and _fits(kind, mention):
                yield sentence.with_words((mention.noun, sentence.rng.choice(grammar.NOUNS[kind])))


def _replaced_attributes(sentence: _Sentence) -> Iterator[str]:
    for mention in sentence.mentions:
        for word in mention.looks:
            for value, words in _alternatives(mention.kinds, word.attribute):
                if value != word.value:
                    yield sentence.with_words((word.span, sentence.rng.choice(words)))


def _replaced_numbers(sentence: _Sentence) -> Iterator[str]:
    for mention in sentence.mentions:
        if mention.value is not None:
            others = (word for value, word in grammar.NUMBER_WORDS.items() if value != mention.value)
            yield from (sentence.with_words((mention.number, word)) for word in others)


def _alternatives(kinds: Sequence[str], attribute: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Values that things of one of these kinds can have, with the words for each."""
    if attribute != "colour":
        yield from _VALUES[attribute].items()
        return
    for colour in dict.fromkeys(colour for kind in kinds for colour in KIND_TABLE[kind].colours):
        yield colour, (colour,)


def _can_be(kinds: Sequence[str], attribute: str, value: str) -> bool:
    """Whether a thing of one of these kinds can have that attribute."""
    return any(
        value in row.colours if attribute == "colour" else row.patterned if attribute == "pattern" else row.sized
        for row in map(KIND_TABLE.__getitem__, kinds)
    )


def _fits(kind: str, mention: _Mention) -> bool:
    """Whether everything that is said of a thing can be so of one of another kind."""
    worn = ("", grammar.UNISEX_GARMENT, *grammar.GARMENTS.get(kind, ()))
    return mention.garment in worn and all(_can_be((kind,), word.attribute, word.value) for word in mention.looks)


_EDITS: dict[str, Callable[[_Sentence], Iterator[str]]] = {
    "swap_att": _swapped_colours,
    "swap_rel": _swapped_places,
    "replace_obj": _replaced_objects,
    "replace_att": _replaced_attributes,
    "count": _replaced_numbers,
}
CATEGORIES = tuple(_EDITS)
