"""Sentences by rules on a whole split: those of VSE-C, and edits of scene graphs, with their twins; no model is needed.

Twins of edited captions are images of which the edit is true and the caption is not. Left and right of an image change
places in its mirror. For other edits captions of other images say, by their scene graphs, what the edit says and
nothing that it took away; of these captions one is taken that has most in common with the edited one. A pair of images
and a pair of sentences then change places: neither can be told by heart.

Source: ours; Thrush et al., "Winoground" (CVPR 2022), for such quadruples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
from itrpipe.synthesis.edits import EDITS, Corpus, noun_options, numeral_options, relation_options
from itrpipe.synthesis.english import NUMBER_VALUES, RELATIVE, contradicting_attributes, may_be, usual_attribute
from itrpipe.synthesis.generators import TRAIN, ByRules
from itrpipe.synthesis.sentences import SCHEMA, Opened, Sentence, apply_edits, read_parts
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, nouns_of, tagged_captions

_TRIES = 8
"""Captions with equally much in common that are looked at."""


class Twins:
    """Finds captions that say what an edit of another caption says.

    Args:
        captions: of the training split, T of them.
        caption_image: [T] row of the image of each.
        image: gives all captions of an image by its row.
        agreeing: captions of an image that have to say what is told of it.
    """

    def __init__(
        self,
        captions: Sequence[TaggedCaption],
        caption_image: np.ndarray,
        image: Callable[[int], Image],
        agreeing: int = 1,
    ) -> None:
        self._captions, self._caption_image, self._image, self._agreeing = captions, caption_image, image, agreeing
        self._saying: dict[Statement, set[int]] = defaultdict(set)
        for row, caption in enumerate(captions):
            for each in caption.content:
                self._saying[each].add(row)

    def of(self, caption: TaggedCaption, own: Image, option: Option, rng: np.random.Generator) -> int | None:
        """Row of a caption that says what an edit of another one says, and is of an image that the other is false of.

        Args:
            caption: the other one.
            own: the captions of its image.
            option: the edit.
            rng: chooses among captions that have equally much in common.
        """
        if not settled(own, option.old, self._agreeing):
            return None
        found = [set.intersection(*(self._saying[each] for each in option.new))]
        for each in sorted(caption.content.difference(option.old), key=lambda each: (len(self._saying[each]), each)):
            if closer := found[-1] & self._saying[each]:
                found.append(closer)
        for rows in map(sorted, reversed(found)):
            for place in rng.permutation(len(rows))[:_TRIES]:
                if contradicts(self._image(int(self._caption_image[rows[place]])), option, self._agreeing):
                    return rows[place]
        return None


def contradicts(image: Image, option: Option, agreeing: int) -> bool:
    """Whether captions of an image settle what an edit says, of one thing each, and say nothing that it took away."""
    placed = {noun for each in option.new if each[0] != "count" for noun in nouns_of(each)}
    gone = {noun for each in option.old for noun in nouns_of(each)}.difference(*map(nouns_of, option.new))
    return (
        image.said.isdisjoint(option.old)
        and image.has_one(*placed)
        and not any(may_be(noun, known) for noun in gone for known in image.nouns)
        and settled(image, option.new, agreeing)
    )


def settled(image: Image, statements: Sequence[Statement], agreeing: int) -> bool:
    """Whether so many captions of an image make these statements, and none a rival one: another colour or number.

    Where several have to agree, sizes and ages are never settled: they are so beside others.
    """
    rivals = {
        (kind, other, noun)
        for kind, word, noun in (each for each in statements if each[0] in ("is", "count"))
        for other in (NUMBER_VALUES if kind == "count" else map(usual_attribute, contradicting_attributes(word)))
    }
    named = [each for each in statements if each[0] == NOUN] or statements
    return (
        (agreeing == 1 or RELATIVE.isdisjoint(word for each in statements for word in each[1:2]))
        and image.said.isdisjoint(rivals.difference(statements))
        and sum(each.content.issuperset(named) for each in image.captions) >= agreeing
    )


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
        settings: which rules, how many sentences by each, and whether these have twins.
    """

    split: Split
    tagged: Sequence[TaggedCaption]
    corpus: Corpus
    settings: ByRules

    def __post_init__(self) -> None:
        starts = self.split.captions_of_image
        self._image = cache(lambda image: Image(self.tagged[slice(*starts[image : image + 2])]))

    @cached_property
    def _twins(self) -> Twins:
        return Twins(self.tagged, self.split.caption_image, self._image, self.settings.twins)

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        seed, keep = self.settings.seed, self.settings.keep
        rng, of_twins = np.random.default_rng([seed, block]), np.random.default_rng([seed, block, 1])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption, image = self.tagged[row], int(self.split.caption_image[row])
            own = self._image(image)
            known, written = {each.text for each in own.captions}, set()
            starts = [token.start for token in caption.tokens]
            names = str(self.split.caption_ids[row]), str(self.split.image_ids[image])
            for rule in (name for name in RULES if name in self.settings.rules):
                options = list(RULES[rule](caption, own, self.corpus))
                for place in rng.choice(len(options), size=min(keep, len(options)), replace=False):
                    edits = sorted(options[place].edits())
                    text = apply_edits(caption.text, starts, edits)
                    reason = "duplicate" if text in written else "kept"
                    if text in known:
                        reason = "identical" if text == caption.text else "false negative"
                    twin = _NO_TWIN
                    if reason == "kept" and self.settings.twins:
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
        return (
            _NO_TWIN if row is None else (str(self.split.image_ids[self.split.caption_image[row]]), *option.details())
        )


def open_rule_maker(prepared: Path, parsed: Path, settings: ByRules) -> Opened:
    """Rules on a whole split, with the words and parts of speech of its scene graphs.

    Args:
        prepared: artifact of the captions.
        parsed: of their scene graphs, made by `itrpipe parse`.
        settings: what is written of whose captions.

    Raises:
        UsageError: no noun is frequent enough, or the dataset has no such split.
        MissingInputError: a file is not there.
        DataError: a file is damaged, or captions have no scene graph.
    """
    dataset, split, share = PreparedDataset.open(prepared), settings.split, settings.train_share
    splits = {name: dataset.split(name).share(share if name == TRAIN else 1.0) for name in {TRAIN, split}}
    tagged = {name: tagged_captions(parsed, each.caption_ids.tolist(), each.texts) for name, each in splits.items()}
    corpus, own = Corpus(tagged[TRAIN], settings.min_count), splits[split]
    maker = RuleMaker(own, tagged[split], corpus, settings)
    guess = partial(guessed, own=own, train=splits[TRAIN]) if settings.refined else None
    return Opened(maker, dict(zip(own.caption_ids.tolist(), own.texts, strict=True)), None, guess)


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
