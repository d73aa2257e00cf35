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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError, UsageError
from itrpipe.scene_graph.chunks import Chunk, Chunker
from itrpipe.scene_graph.graph import Token
from itrpipe.scene_graph.stored import SceneGraphFile
from itrpipe.scene_graph.tag import Sentence as TaggedWords
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis import english
from itrpipe.synthesis.english import NOUN_KINDS, NUMBER_VALUES, article_before, plural, singular
from itrpipe.synthesis.sentences import Edit, Opened, Sentence, apply_edits

TRAIN = "train"
_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_COUNTED = re.compile(r"\S+ (?:(?:J|VBG|VBN|R|CC) )*(?:N )+")
"""Parts of speech of a number and of what it counts, the noun last."""
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
        return Chunker(TaggedWords(self.words, self.tags)).chunks()

    def written(self, first: int, last: int) -> str:
        """Characters of the words from `first` to `last`."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def edit(self, first: int, last: int, new: str) -> Edit:
        """Writes something instead of the words from `first` to `last`, with a capital letter where they have one."""
        old = self.written(first, last)
        return Edit(first, old, new[:1].upper() + new[1:] if old[:1].isupper() else new)


class NounVocabulary:
    """The nouns that captions are given instead of their own: frequent ones that name things.

    Args:
        captions: that are counted; singular and plural of a noun count together.
        min_count: fewest occurrences of a noun.

    Raises:
        UsageError: no noun is frequent enough.

    Attributes:
        nouns: by alphabet.
        instead_of: the nouns that contradict a noun (lower-case lemma); none for one that is not known.
    """

    def __init__(self, captions: Iterable[TaggedCaption], min_count: int) -> None:
        counts = Counter(
            noun_of(token)
            for caption in captions
            for token in caption.tokens
            if token.tag == "N" and _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma)
        )
        self.nouns = sorted(noun for noun, count in counts.items() if count >= min_count and noun in NOUN_KINDS)
        if not self.nouns:
            raise UsageError(f"none of {len(counts):,} nouns occurs {min_count} times and is known; lower min_count")
        self.instead_of = cache(
            lambda noun: [other for other in self.nouns if noun in NOUN_KINDS and english.contradict(noun, other)]
        )


def noun_of(token: Token) -> str:
    """Lemma of a noun; that of `people` is `person`, but `glasses` may well be worn."""
    return singular(token.lemma) if token.lemma == "people" else token.lemma


def noun_options(caption: TaggedCaption, own: Iterable[TaggedCaption], vocabulary: NounVocabulary) -> Iterator[Option]:
    """Another noun for the head of a noun phrase in plain letters, with the article that fits it.

    Args:
        caption: is changed.
        own: all captions of the image, whose words and lemmas are not written.
        vocabulary: the nouns that are.
    """
    words = [pair for each in own for pair in zip(each.words, each.tokens, strict=True)]
    said = {form for word, token in words for form in (word, token.lemma, noun_of(token))}
    for chunk in caption.chunks:
        head, words = chunk.last, caption.words[chunk.first : chunk.last + 1]
        if chunk.kind == "NP" and caption.tags[head] == "N" and all(map(_LETTERS.fullmatch, words)):
            lemma = noun_of(caption.tokens[head])
            several = caption.words[head] != lemma
            for noun in vocabulary.instead_of(lemma):
                if noun not in said and (form := plural(noun) if several else noun) not in said:
                    yield partial(_renamed, caption, head, form)


def _renamed(caption: TaggedCaption, at: int, noun: str) -> list[Edit]:
    edits, article = [caption.edit(at, at, noun)], article_before(noun)
    if at and caption.words[at - 1] in english.ARTICLES - {article}:
        edits.insert(0, caption.edit(at - 1, at - 1, article))
    return edits


def numeral_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another number before a noun, which takes the form that the number asks for."""
    for position, word in enumerate(caption.words):
        value = english.number_value(word)
        if value is None or caption.tags[max(position - 1, 0) : position] == ["CD"]:
            continue
        if counted := _COUNTED.match(" ".join([*caption.tags[position:], ""])):
            noun, ones = position + counted[0].count(" ") - 1, {"one", article_before(caption.words[position + 1])}
            for new, other in NUMBER_VALUES.items():
                if other != value and (other > 1 or new in ones):
                    yield partial(_recounted, caption, position, noun, value, new)


def _recounted(caption: TaggedCaption, at: int, noun: int, old: int, new: str) -> list[Edit]:
    lemma, written = singular(caption.tokens[noun].lemma), caption.words[noun]
    form = lemma if NUMBER_VALUES[new] == 1 else plural(lemma) if old == 1 else written
    edits = [caption.edit(at, at, new)]
    return edits if form == written else [*edits, caption.edit(noun, noun, form)]


def relation_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another preposition before a noun phrase, or two noun phrases in each other's place."""
    said = [" ".join(caption.words[chunk.first : chunk.last + 1]) for chunk in caption.chunks]
    for number, (chunk, following) in enumerate(itertools.pairwise(caption.chunks)):
        if chunk.kind == "P" and following.kind == "NP":
            for new in english.contradicting(said[number]):
                yield lambda at=chunk, new=new: [caption.edit(at.first, at.last, new)]
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    phrases: list[tuple[Chunk, int]] = []
    group = joined = 0
    for chunk, words in zip(caption.chunks, said, strict=True):
        if chunk.kind == "NP":
            group += not joined
            phrases.append((chunk, group))
        joined = chunk.kind == "NP" or (joined and words in _JOINED_BY)
    for (one, group), (two, other) in itertools.combinations(phrases, 2):
        first, second = caption.written(one.first, one.last), caption.written(two.first, two.last)
        if group != other and first.lower() != second.lower():
            yield partial(_swapped, caption, one, two)


def _swapped(caption: TaggedCaption, one: Chunk, two: Chunk) -> list[Edit]:
    first, second = caption.written(one.first, one.last), caption.written(two.first, two.last)
    lowered = first[:1].lower() + first[1:] if caption.tags[one.first] in {"D", "CD", "J"} else first
    return [caption.edit(one.first, one.last, second), Edit(two.first, second, lowered)]


RULES: dict[str, Callable[[TaggedCaption, Sequence[TaggedCaption], NounVocabulary], Iterator[Option]]] = {
    "nouns": noun_options,
    "numerals": lambda caption, own, vocabulary: numeral_options(caption),
    "relations": lambda caption, own, vocabulary: relation_options(caption),
}
"""What each rule can make of a caption, given all captions of its image and the nouns that are written."""


@dataclass
class RuleMaker:
    """Makes sentences by rules; see `itrpipe.synthesis.sentences.SentenceMaker`.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Attributes:
        split: the captions.
        tagged: words and parts of speech of each.
        vocabulary: the nouns that are written.
        rules: some of `RULES`.
        keep: sentences of a caption by each rule, at most.
        seed: of everything random.
    """

    split: Split
    tagged: Sequence[TaggedCaption]
    vocabulary: NounVocabulary
    rules: Sequence[str]
    keep: int
    seed: int

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        rng = np.random.default_rng([self.seed, block])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption, image = self.tagged[row], int(self.split.caption_image[row])
            own = self.tagged[slice(*self.split.captions_of_image[image : image + 2])]
            known, written = {each.text for each in own}, set()
            starts = [token.start for token in caption.tokens]
            names = str(self.split.caption_ids[row]), str(self.split.image_ids[image])
            for rule in (RULES[name] for name in RULES if name in self.rules):
                options = list(rule(caption, own, self.vocabulary))
                for place in rng.choice(len(options), size=min(self.keep, len(options)), replace=False):
                    edits = sorted(options[place]())
                    text = apply_edits(caption.text, starts, edits)
                    reason = "duplicate" if text in written else "kept"
                    if text in known:
                        reason = "identical" if text == caption.text else "false negative"
                    drawn[reason] += 1
                    written.add(text)
                    if reason == "kept":
                        made.append(Sentence(*names, text, edits, None, None, None, None, True, reason))
        return made, dict(sorted(drawn.items()))


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
    maker = RuleMaker(own, tagged[split], nouns, rules, keep, seed)
    return Opened(maker, dict(zip(own.caption_ids.tolist(), own.texts, strict=True)), None)


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
    wanted = set(caption_ids)
    found = {
        row["caption_id"]: tuple(Token(**each) for each in row["tokens"])
        for table in SceneGraphFile(parsed).row_groups(("caption_id", "tokens"))
        for row in table.to_pylist()
        if row["caption_id"] in wanted
    }
    if missing := [name for name in caption_ids if name not in found]:
        raise DataError(
            f"{parsed}: {len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: "
            f"{missing[0]!r}); run `itrpipe parse` for this dataset"
        )
    return [TaggedCaption(text, found[name]) for name, text in zip(caption_ids, texts, strict=True)]
