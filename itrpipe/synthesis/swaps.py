"""Sentences of whole training sets by rules: another noun, another number, another relation; no model is needed.

    nouns       `a dog on a mat`   ->  `a horse on a mat`
    numerals    `two dogs`         ->  `three dogs`, `a dog`
    relations   `a dog on a mat`   ->  `a mat on a dog`, `a dog under a mat`

Source: Shi et al., "Learning Visually-Grounded Semantics from Contrastive Adversarial Samples" (VSE-C), COLING 2018.
Words keep their number and articles fit what follows them, which its code does not see to.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, UsageError
from itrpipe.scene_graph.chunks import Chunk, chunks_of
from itrpipe.scene_graph.graph import Token
from itrpipe.scene_graph.stored import SceneGraphFile
from itrpipe.scene_graph.words import plain
from itrpipe.storage.ragged import Ragged
from itrpipe.synthesis import english
from itrpipe.synthesis.english import NOUN_KINDS, NUMBER_VALUES, article_before, plural, singular
from itrpipe.synthesis.sentences import Edit, Opened, Sentence, apply_edits

RULES = ("nouns", "numerals", "relations")
TRAIN = "train"
_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_BEFORE_NOUNS = frozenset({"J", "VBG", "VBN", "R", "CC"})
Option = Callable[[], list[Edit]]
"""A way to change a caption, which is worked out only if it is drawn."""


@dataclass(frozen=True)
class TaggedCaption:
    """A caption with its words and their parts of speech.

    Attributes:
        text: as published.
        tokens: as `itrpipe.scene_graph.build.RulesParser` tags them.
    """

    text: str
    tokens: tuple[Token, ...]

    @cached_property
    def words(self) -> list[str]:
        """Lower case."""
        return [plain(token.text) for token in self.tokens]

    @cached_property
    def tags(self) -> list[str]:
        """Keys of the table TAGS of `itrpipe/scene_graph/words.toml`."""
        return [token.tag for token in self.tokens]

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Noun phrases, prepositions and other words, from left to right."""
        return chunks_of(self.words, self.tags)

    def written(self, chunk: Chunk) -> str:
        """Characters of a chunk."""
        return self.text[self.tokens[chunk.first].start : self.tokens[chunk.last].end]

    def edit(self, first: int, last: int, new: str) -> Edit:
        """Writes something instead of the words from `first` to `last`."""
        old = self.text[self.tokens[first].start : self.tokens[last].end]
        return Edit(first, old, english.like(old, new))


class NounVocabulary:
    """The nouns that captions are given instead of their own: frequent ones that name things.

    Args:
        captions: that are counted; singular and plural of a noun count together.
        min_count: fewest occurrences of a noun.

    Raises:
        UsageError: no noun is frequent enough.
    """

    def __init__(self, captions: Iterable[TaggedCaption], min_count: int) -> None:
        counts = Counter(
            noun_of(token)
            for caption in captions
            for token in caption.tokens
            if token.tag == "N" and _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma)
        )
        frequent = sorted(noun for noun, count in counts.items() if count >= min_count and noun in NOUN_KINDS)
        if not frequent:
            raise UsageError(f"none of {len(counts):,} nouns occurs {min_count} times and is known; lower min_count")
        self.nouns = tuple(frequent)
        self.instead_of = cache(self._instead_of)

    def _instead_of(self, noun: str) -> tuple[str, ...]:
        """The nouns that contradict a noun (lower-case lemma); none for one that is not known."""
        known = noun in NOUN_KINDS
        return tuple(other for other in self.nouns if known and english.contradict(noun, other))


def noun_of(token: Token) -> str:
    """Lemma of a noun; that of `people` is `person`, but `glasses` may well be worn."""
    return singular(token.lemma) if token.lemma == "people" else token.lemma


def noun_options(caption: TaggedCaption, own_words: Collection[str], vocabulary: NounVocabulary) -> Iterator[Option]:
    """Another noun for the head of a noun phrase in plain letters, with the article that fits it.

    Args:
        caption: is changed.
        own_words: lower-case words and lemmas of all captions of the image, which are not written.
        vocabulary: the nouns that are.
    """
    for chunk in caption.chunks:
        head, words = chunk.last, caption.words[chunk.first : chunk.last + 1]
        if chunk.kind == "NP" and caption.tags[head] == "N" and all(map(_LETTERS.fullmatch, words)):
            lemma = noun_of(caption.tokens[head])
            several = caption.words[head] != lemma
            for noun in vocabulary.instead_of(lemma):
                if noun not in own_words and (form := plural(noun) if several else noun) not in own_words:
                    yield partial(_renamed, caption, head, form)


def _renamed(caption: TaggedCaption, at: int, noun: str) -> list[Edit]:
    edits, article = [caption.edit(at, at, noun)], article_before(noun)
    if at > 0 and caption.words[at - 1] in english.ARTICLES and caption.words[at - 1] != article:
        edits.insert(0, caption.edit(at - 1, at - 1, article))
    return edits


def numeral_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another number before a noun, which takes the form that the number asks for."""
    for position, word in enumerate(caption.words):
        value = english.number_value(word)
        noun = _counted_noun(caption.tags, position)
        if value is not None and noun is not None:
            ones = {"one", article_before(caption.words[position + 1])}
            for new, other in NUMBER_VALUES.items():
                if other != value and (other > 1 or new in ones):
                    yield partial(_recounted, caption, position, noun, value, new)


def _recounted(caption: TaggedCaption, at: int, noun: int, old: int, new: str) -> list[Edit]:
    lemma, written = singular(caption.tokens[noun].lemma), caption.words[noun]
    form = lemma if NUMBER_VALUES[new] == 1 else plural(lemma) if old == 1 else written
    edits = [caption.edit(at, at, new)]
    return edits if form == written else [*edits, caption.edit(noun, noun, form)]


def _counted_noun(tags: Sequence[str], position: int) -> int | None:
    """The last noun of the run that a number counts; None where it is part of a longer number or counts none."""
    at = position + 1
    if (position and tags[position - 1] == "CD") or (at < len(tags) and tags[at] == "CD"):
        return None
    while at < len(tags) and tags[at] in _BEFORE_NOUNS:
        at += 1
    end = at
    while end < len(tags) and tags[end] == "N":
        end += 1
    return end - 1 if end > at else None


def relation_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another preposition before a noun phrase, or two noun phrases in each other's place."""
    said = [" ".join(caption.words[chunk.first : chunk.last + 1]) for chunk in caption.chunks]
    for number, (chunk, following) in enumerate(itertools.pairwise(caption.chunks)):
        if chunk.kind == "P" and following.kind == "NP":
            for new in english.contradicting(said[number]):
                yield lambda at=chunk, new=new: [caption.edit(at.first, at.last, new)]
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    groups: dict[int, int] = {}
    for number, chunk in enumerate(caption.chunks):
        if chunk.kind == "NP":
            before = number - 1
            while before >= 0 and said[before] in _JOINED_BY:
                before -= 1
            groups[number] = groups.get(before, number)
    for (first, group), (second, other) in itertools.combinations(groups.items(), 2):
        one, two = caption.chunks[first], caption.chunks[second]
        if group != other and caption.written(one).lower() != caption.written(two).lower():
            yield partial(_swapped, caption, one, two)


def _swapped(caption: TaggedCaption, first: Chunk, second: Chunk) -> list[Edit]:
    one, other = caption.written(first), caption.written(second)
    lowered = one[:1].lower() + one[1:] if caption.tags[first.first] in {"D", "CD", "J"} else one
    return [caption.edit(first.first, first.last, other), Edit(second.first, other, lowered)]


def draw(options: Sequence[Option], most: int, rng: np.random.Generator) -> list[list[Edit]]:
    """Edits of some sentences in random order; of all options if there are few.

    Args:
        options: of one caption.
        most: how many at most.
        rng: source of randomness.
    """
    count = min(most, len(options))
    return [options[row]() for row in rng.choice(len(options), size=count, replace=False)] if count else []


@dataclass
class RuleMaker:
    """Makes sentences by rules; see `itrpipe.synthesis.sentences.SentenceMaker`.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Attributes:
        caption_ids: of the captions of a split.
        image_ids: of each image.
        image_rows: int64 [captions], row of each caption's image.
        tagged: words and parts of speech of the captions.
        vocabulary: the nouns that are written.
        rules: some of `RULES`.
        keep: sentences of a caption by each rule, at most.
        seed: of everything random.
    """

    caption_ids: Sequence[str]
    image_ids: Sequence[str]
    image_rows: np.ndarray
    tagged: Sequence[TaggedCaption]
    vocabulary: NounVocabulary
    rules: Sequence[str]
    keep: int
    seed: int

    @cached_property
    def _of_images(self) -> Ragged:
        """The captions of every image."""
        return Ragged.of_owners(self.image_rows, len(self.image_ids))

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        rng = np.random.default_rng([self.seed, block])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption, image = self.tagged[row], int(self.image_rows[row])
            own = [self.tagged[other] for other in self._of_images[image]]
            known, written = {each.text for each in own}, set()
            starts = [token.start for token in caption.tokens]
            for rule in RULES:
                options = list(self._options(rule, caption, own)) if rule in self.rules else []
                for edits in draw(options, self.keep, rng):
                    text = apply_edits(caption.text, starts, edits)
                    reason = "duplicate" if text in written else "kept"
                    if text in known:
                        reason = "identical" if text == caption.text else "false negative"
                    drawn[reason] += 1
                    written.add(text)
                    if reason == "kept":
                        names = self.caption_ids[row], self.image_ids[image], text, sorted(edits)
                        made.append(Sentence(*names, None, None, None, None, True, reason))
        return made, dict(sorted(drawn.items()))

    def _options(self, rule: str, caption: TaggedCaption, own: Sequence[TaggedCaption]) -> Iterator[Option]:
        """What a rule can make of a caption, given all captions of its image."""
        if rule == "numerals":
            return numeral_options(caption)
        if rule == "relations":
            return relation_options(caption)
        words = {word for each in own for word in each.words}
        words |= {form for each in own for token in each.tokens for form in (token.lemma, noun_of(token))}
        return noun_options(caption, words, self.vocabulary)


def open_rule_maker(
    prepared: Path,
    parsed: Path,
    min_count: int,
    rules: Sequence[str],
    keep: int,
    seed: int,
    split: str = TRAIN,
    train_share: float = 1.0,
) -> Opened:
    """Rules on a whole split, with the words and parts of speech of its scene graphs.

    Args:
        prepared: artifact of the captions.
        parsed: of their scene graphs, made by `itrpipe parse`.
        min_count: fewest occurrences of a noun that is written, in captions of the training split in any case.
        rules, keep, seed: see `RuleMaker`.
        split: whose captions sentences are made of.
        train_share: share of the training images that there are.

    Raises:
        UsageError: no noun is frequent enough, or the dataset has no such split.
        MissingInputError: a file is not there.
        DataError: a file is damaged, or captions have no scene graph.
    """
    dataset = PreparedDataset.open(prepared)
    splits = {name: dataset.split(name).share(train_share if name == TRAIN else 1.0) for name in {TRAIN, split}}
    tagged = {name: tagged_captions(parsed, each.caption_ids.tolist(), each.texts) for name, each in splits.items()}
    nouns, own = NounVocabulary(tagged[TRAIN], min_count), splits[split]
    names = own.caption_ids.tolist(), own.image_ids.tolist(), own.caption_image
    maker = RuleMaker(*names, tagged[split], nouns, rules, keep, seed)
    return Opened(maker, dict(zip(names[0], own.texts, strict=True)), None)


def tagged_captions(parsed: Path, caption_ids: Sequence[str], texts: Sequence[str]) -> list[TaggedCaption]:
    """Captions with the words of their scene graphs.

    Args:
        parsed: artifact of `itrpipe parse`.
        caption_ids: T of them.
        texts: of each.

    Raises:
        MissingInputError: there is no such artifact.
        DataError: it is damaged, or one of the captions has no scene graph.
    """
    wanted, found = set(caption_ids), {}
    for table in SceneGraphFile(parsed).row_groups(("caption_id", "tokens")):
        for row in table.to_pylist():
            if row["caption_id"] in wanted:
                found[row["caption_id"]] = tuple(Token(**each) for each in row["tokens"])
    if missing := [name for name in caption_ids if name not in found]:
        raise DataError(
            f"{parsed}: {len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: "
            f"{missing[0]!r}); run `itrpipe parse` for this dataset"
        )
    return [TaggedCaption(text, found[name]) for name, text in zip(caption_ids, texts, strict=True)]
