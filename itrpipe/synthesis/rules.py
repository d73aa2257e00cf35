"""Sentences by rules on a whole split: those of VSE-C, and edits of scene graphs; no model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis import blind
from itrpipe.synthesis.blind import Pairs, Trigrams
from itrpipe.synthesis.edits import EDITS, Corpus
from itrpipe.synthesis.sentences import SCHEMA, Opened, Sentence, apply_edits, read_parts
from itrpipe.synthesis.swaps import noun_options, numeral_options, relation_options
from itrpipe.synthesis.tagged import Image, Option, TaggedCaption, tagged_captions
from itrpipe.synthesis.twins import Twins

TRAIN = "train"
_NO_TWIN: tuple[str | None, ...] = (None, None, None)
RULES: dict[str, Callable[[TaggedCaption, Image, Corpus], Iterator[Option]]] = {
    "nouns": lambda caption, image, corpus: noun_options(caption, image.captions, corpus.vocabulary),
    "numerals": lambda caption, image, corpus: numeral_options(caption),
    "relations": lambda caption, image, corpus: relation_options(caption),
    **EDITS,
}
"""What each rule can make of a caption of an image, given what training captions say."""


@dataclass
class RuleMaker:
    """Makes sentences by rules; see `itrpipe.synthesis.sentences.SentenceMaker`.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Attributes:
        split: the captions.
        tagged: words and parts of speech of each.
        corpus: what training captions say.
        rules: some of `RULES`.
        keep: sentences of a caption by each rule, at most.
        seed: of everything random.
        twins: keep those sentences alone that have twins of which so many captions agree; 0: keep all.
    """

    split: Split
    tagged: Sequence[TaggedCaption]
    corpus: Corpus
    rules: Sequence[str]
    keep: int
    seed: int
    twins: int = 0

    def __post_init__(self) -> None:
        starts = self.split.captions_of_image
        self._image = cache(lambda image: Image(self.tagged[slice(*starts[image : image + 2])]))

    @cached_property
    def _twins(self) -> Twins:
        return Twins(self.tagged, self.split.caption_image, self._image, self.twins)

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        rng, of_twins = np.random.default_rng([self.seed, block]), np.random.default_rng([self.seed, block, 1])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption, image = self.tagged[row], int(self.split.caption_image[row])
            own = self._image(image)
            known, written = {each.text for each in own.captions}, set()
            starts = [token.start for token in caption.tokens]
            names = str(self.split.caption_ids[row]), str(self.split.image_ids[image])
            for rule in (name for name in RULES if name in self.rules):
                options = list(RULES[rule](caption, own, self.corpus))
                for place in rng.choice(len(options), size=min(self.keep, len(options)), replace=False):
                    edits = sorted(options[place].edits())
                    text = apply_edits(caption.text, starts, edits)
                    reason = "duplicate" if text in written else "kept"
                    if text in known:
                        reason = "identical" if text == caption.text else "false negative"
                    twin = _NO_TWIN
                    if reason == "kept" and self.twins:
                        twin = self._twin(caption, image, options[place], text, of_twins)
                        reason = "kept" if any(twin) else "no twin"
                    drawn[reason] += 1
                    written.add(text)
                    if reason == "kept":
                        made.append(Sentence(*names, text, edits, None, None, None, None, True, reason, rule, *twin))
        return made, dict(sorted(drawn.items()))

    def _twin(
        self, caption: TaggedCaption, image: int, option: Option, sentence: str, rng: np.random.Generator
    ) -> tuple[str | None, ...]:
        """Id of an image that an edit of a caption is true of, what the caption tells, and what the edit does."""
        if option.sides:
            return str(self.split.image_ids[image]), caption.text, sentence
        row = self._twins.of(caption, self._image(image), option, rng) if option.new else None
        return _NO_TWIN if row is None else (str(self.split.image_ids[self.split.caption_image[row]]), *option.told())


def open_rule_maker(
    prepared: Path,
    parsed: Path,
    min_count: int,
    rules: Sequence[str],
    keep: int,
    seed: int,
    split: str = TRAIN,
    train_share: float = 1.0,
    refined: bool = False,
    twins: int = 0,
) -> Opened:
    """Rules on a whole split, with the words and parts of speech of its scene graphs.

    Args:
        prepared: artifact of the captions.
        parsed: of their scene graphs, made by `itrpipe parse`.
        min_count: fewest occurrences of what is written, in captions of the training split in any case.
        rules, keep, seed, twins: see `RuleMaker`.
        split: whose captions sentences are made of.
        train_share: share of the training images that there are.
        refined: whether sentences that can be told without the image are to be left out.

    Raises:
        UsageError: no noun is frequent enough, or the dataset has no such split.
        MissingInputError: a file is not there.
        DataError: a file is damaged, or captions have no scene graph.
    """
    dataset = PreparedDataset.open(prepared)
    splits = {name: dataset.split(name).share(train_share if name == TRAIN else 1.0) for name in {TRAIN, split}}
    tagged = {name: tagged_captions(parsed, each.caption_ids.tolist(), each.texts) for name, each in splits.items()}
    corpus, own = Corpus(tagged[TRAIN], min_count), splits[split]
    maker = RuleMaker(own, tagged[split], corpus, rules, keep, seed, twins)
    told = partial(guessed, own=own, train=splits[TRAIN]) if refined else None
    return Opened(maker, dict(zip(own.caption_ids.tolist(), own.texts, strict=True)), None, told)


def guessed(paths: Sequence[Path], own: Split, train: Split) -> np.ndarray:
    """Sentences to leave out so that those that stay can be told by no model without the image; bool of each.

    Args:
        paths: files of `write_part`, of kept sentences alone.
        own: the captions that they were made of.
        train: the captions of the training split.
    """
    tables = [table.select(["caption_id", "text", "kind"]) for table, _ in read_parts(paths)]
    every = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    rows = rows_of(every["caption_id"], own.captions["caption_id"].combine_chunks())
    trigrams = Trigrams(train.captions["tokens"], train.caption_image if own.name == train.name else None)
    captions, images = every["caption_id"].to_pylist(), own.caption_image[rows]
    texts = dict(zip(own.caption_ids.tolist(), own.texts, strict=True))
    pairs = Pairs([texts[each] for each in captions], every["text"].to_pylist(), images)
    kinds, out = np.array(every["kind"].to_pylist()), np.ones(len(rows), bool)
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        out[places[blind.refined(pairs.only(places), trigrams)]] = False
    return out
