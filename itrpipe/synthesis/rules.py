"""Sentences by rules on a whole split: those of VSE-C, and edits of scene graphs, with their twins; no model is needed.

Twins of edited captions are images of which the edit is true and the caption is not. Left and right of an image change
places in its mirror. For other edits captions of other images say, by their scene graphs, what the edit says and
nothing that it took away; of these captions one is taken that has most in common with the edited one. A pair of images
and a pair of sentences then change places: neither can be told by heart.

Source: ours; Thrush et al., "Winoground" (CVPR 2022), for such quadruples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis import blind
from itrpipe.synthesis.blind import Pairs, Trigrams
from itrpipe.synthesis.edits import RULES, Corpus
from itrpipe.synthesis.english import NUMBER_VALUES, RELATIVE, contradicting_attributes, may_be, usual_attribute
from itrpipe.synthesis.generators import TRAIN, ByRules
from itrpipe.synthesis.sentences import Opened, Sentence, apply_edits, read_parts
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


class RuleMaker:
    """Makes sentences by rules; see `itrpipe.synthesis.sentences.SentenceMaker`.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Args:
        split: the captions.
        tagged: words and parts of speech of each.
        corpus: what training captions say.
        settings: which rules, how many sentences by each, and whether these have twins.
    """

    def __init__(self, split: Split, tagged: Sequence[TaggedCaption], corpus: Corpus, settings: ByRules) -> None:
        self.split, self._tagged, self._corpus, self._settings = split, tagged, corpus, settings
        starts = split.captions_of_image
        self._image = cache(lambda image: Image(tagged[slice(*starts[image : image + 2])]))

    @cached_property
    def _twins(self) -> Twins:
        return Twins(self._tagged, self.split.caption_image, self._image, self._settings.twins)

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        settings, image_ids = self._settings, self.split.image_ids
        rng, of_twins = np.random.default_rng([settings.seed, block]), np.random.default_rng([settings.seed, block, 1])
        made: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption, image = self._tagged[row], int(self.split.caption_image[row])
            own = self._image(image)
            known, written = {each.text for each in own.captions}, set()
            starts = [token.start for token in caption.tokens]
            caption_id, image_id = str(self.split.caption_ids[row]), str(image_ids[image])
            for rule in (name for name in RULES if name in settings.rules):
                options = list(RULES[rule](caption, own, self._corpus))
                for place in rng.choice(len(options), size=min(settings.keep, len(options)), replace=False):
                    option = options[place]
                    edits = sorted(option.edits())
                    text = apply_edits(caption.text, starts, edits)
                    reason = "duplicate" if text in written else "kept"
                    if text in known:
                        reason = "identical" if text == caption.text else "false negative"
                    written.add(text)
                    twin: tuple[str | None, ...] = (None, None, None)
                    if reason == "kept" and settings.twins:
                        found = self._twins.of(caption, own, option, of_twins) if option.new else None
                        if option.sides:
                            twin = image_id, caption.text, text
                        elif found is None:
                            reason = "no twin"
                        else:
                            twin = str(image_ids[self.split.caption_image[found]]), *option.details
                    drawn[reason] += 1
                    if reason == "kept":
                        columns = caption_id, image_id, text, edits, None, None, None, None, True, reason, rule
                        made.append(Sentence(*columns, *twin))
        return made, dict(sorted(drawn.items()))


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
    dataset = PreparedDataset.open(prepared)
    train, own = dataset.split(TRAIN).share(settings.train_share), dataset.split(settings.split)
    corpus = Corpus(tagged_captions(parsed, train.caption_ids.tolist()), settings.min_count)
    if settings.split == TRAIN:
        own, tagged = train, corpus.captions
    else:
        tagged = tagged_captions(parsed, own.caption_ids.tolist())
    guess = partial(guessed, own=own, train=train) if settings.refined else None
    return Opened(RuleMaker(own, tagged, corpus, settings), own, None, guess)


def guessed(paths: Sequence[Path], own: Split, train: Split) -> np.ndarray:
    """Sentences to leave out so that those that stay can be told by no model without the image; bool of each.

    Args:
        paths: files of `write_part`, of kept sentences alone.
        own: the captions that they were made of.
        train: the captions of the training split.
    """
    every = pa.concat_tables([table.select(["caption_id", "text", "kind"]) for table, _ in read_parts(paths)])
    rows = rows_of(every["caption_id"], own.captions["caption_id"].combine_chunks())
    trigrams = Trigrams(train.captions["tokens"], train.caption_image if own.name == train.name else None)
    texts = [own.texts[row] for row in rows]
    pairs = Pairs(texts, every["text"].to_pylist(), own.caption_image[rows])
    kinds, out = np.array(every["kind"].to_pylist()), np.ones(len(rows), bool)
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        out[places[blind.refined(pairs.only(places), trigrams)]] = False
    return out
