"""Sentences by rules on a whole split: those of VSE-C, and edits of scene graphs, with their twins; no model is needed.

Twins of edited captions are images of which the edit is true and the caption is not. Left and right of an image change
places in its mirror. For other edits captions of other images say, by their scene graphs, what the edit says and
nothing that it took away; of these captions one is taken that has most in common with the edited one. A pair of images
and a pair of sentences then change places: neither can be told by heart.

Source: ours; Thrush et al., "Winoground" (CVPR 2022), for such quadruples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis import blind
from itrpipe.synthesis.blind import Pairs, Trigrams
from itrpipe.synthesis.edits import RULES, Corpus
from itrpipe.synthesis.english import NUMBER_VALUES, RELATIVE, canonical_attribute, contradicting_attributes, may_be
from itrpipe.synthesis.generators import TRAIN, ByRules
from itrpipe.synthesis.sentences import Opened, Sentence, apply_edits, read_parts
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, nouns_of, tagged_captions

_TRIES = 8
"""Captions with equally much in common that are looked at."""


class RuleMaker:
    """Makes sentences by rules.

    A sentence that two rules make, or that a caption of the image is already, is left out.

    Args:
        split: the captions.
        tagged: words and parts of speech of each.
        corpus: what training captions say.
        settings: which rules, how many sentences by each, and whether these have twins.
    """

    def __init__(
        self,
        split: Split,
        tagged: Sequence[TaggedCaption],
        corpus: Corpus,
        settings: ByRules,
    ) -> None:
        self.split = split
        self._tagged = tagged
        self._corpus = corpus
        self._settings = settings
        self._images = [Image(tagged[start:end]) for start, end in pairwise(split.captions_of_image.tolist())]

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `itrpipe.synthesis.sentences.MakeSentences`."""
        settings = self._settings
        split = self.split
        rng = np.random.default_rng([settings.seed, block])
        twin_rng = np.random.default_rng([settings.seed, block, 1])
        sentences: list[Sentence] = []
        drawn: Counter[str] = Counter()
        for row in rows:
            caption = self._tagged[row]
            image_row = int(split.caption_image[row])
            image = self._images[image_row]
            image_texts = {other.text for other in image.captions}
            starts = [token.start for token in caption.tokens]
            written: set[str] = set()
            for rule, find_options in RULES.items():
                if rule not in settings.rules:
                    continue
                options = list(find_options(caption, image, self._corpus))
                count = min(settings.keep, len(options))
                for place in rng.choice(len(options), size=count, replace=False):
                    option = options[place]
                    edits = sorted(option.edits())
                    text = apply_edits(caption.text, starts, edits)
                    twin: tuple[str | None, str | None, str | None] | None = (None, None, None)
                    reason = "kept"
                    if text == caption.text:
                        reason = "identical"
                    elif text in image_texts:
                        reason = "false negative"
                    elif text in written:
                        reason = "duplicate"
                    elif settings.twins:
                        twin = self._twin(row, option, text, twin_rng)
                    if twin is None:
                        reason = "no twin"
                    elif reason == "kept":
                        twin_image_id, detail, twin_detail = twin
                        sentence = Sentence(
                            str(split.caption_ids[row]),
                            str(split.image_ids[image_row]),
                            text,
                            edits,
                            kind=rule,
                            twin_image_id=twin_image_id,
                            detail=detail,
                            twin_detail=twin_detail,
                        )
                        sentences.append(sentence)
                    written.add(text)
                    drawn[reason] += 1
        return sentences, dict(sorted(drawn.items()))

    @cached_property
    def _captions_with(self) -> dict[Statement, set[int]]:
        """Return statement -> rows of the captions that make it."""
        rows: dict[Statement, set[int]] = defaultdict(set)
        for row, caption in enumerate(self._tagged):
            for statement in caption.content:
                rows[statement].add(row)
        return rows

    def _twin(
        self,
        row: int,
        option: Option,
        text: str,
        rng: np.random.Generator,
    ) -> tuple[str, str, str] | None:
        """Find an image that an edited caption is true of, and the caption is false of.

        Captions of other images say what the edit says; of those that have most in common with the caption, one is
        drawn.

        Args:
            row: of the caption.
            option: the edit.
            text: the edited caption.
            rng: draws.

        Returns:
            The id of the image, the detail of the caption, and that of the edit; None where there is no such image.
        """
        caption = self._tagged[row]
        image_of = self.split.caption_image
        image_ids = self.split.image_ids
        if option.sides:
            return str(image_ids[image_of[row]]), caption.text, text
        if not option.new or not self._is_settled(self._images[image_of[row]], option.old):
            return None
        captions_with = self._captions_with
        closest = set.intersection(*(captions_with[statement] for statement in option.new))
        groups = [closest]
        others = caption.content.difference(option.old)
        for statement in sorted(others, key=lambda statement: (len(captions_with[statement]), statement)):
            closer = closest & captions_with[statement]
            if closer:
                groups.append(closer)
                closest = closer
        for group in reversed(groups):
            rows = sorted(group)
            for place in rng.permutation(len(rows))[:_TRIES]:
                image = int(image_of[rows[place]])
                if self._contradicts(self._images[image], option):
                    return str(image_ids[image]), *option.details
        return None

    def _contradicts(self, image: Image, option: Option) -> bool:
        """Return whether captions of an image settle what an edit says, of one thing each, not what it took away."""
        if not image.statements.isdisjoint(option.old):
            return False
        nouns: set[str] = set()
        placed: set[str] = set()
        for statement in option.new:
            nouns.update(nouns_of(statement))
            if statement[0] != "count":
                placed.update(nouns_of(statement))
        gone: set[str] = set()
        for statement in option.old:
            gone.update(nouns_of(statement))
        if not image.has_one(*placed):
            return False
        for noun, other in product(gone - nouns, image.nouns):
            if may_be(noun, other):
                return False
        return self._is_settled(image, option.new)

    def _is_settled(self, image: Image, statements: Sequence[Statement]) -> bool:
        """Return whether enough captions of an image make these statements, and none a rival one: another colour.

        Where several have to agree, sizes and ages are never settled: they are so beside others.
        """
        rivals: set[Statement] = set()
        for kind, word, *noun in statements:
            others = ()
            if kind == "count":
                others = NUMBER_VALUES
            elif kind == "is":
                others = map(canonical_attribute, contradicting_attributes(word))
            for other in others:
                rivals.add((kind, other, *noun))
        if not image.statements.isdisjoint(rivals.difference(statements)):
            return False
        fewest = self._settings.twins
        for statement in statements:
            if fewest != 1 and statement[1] in RELATIVE:
                return False
        named = [statement for statement in statements if statement[0] == NOUN]
        if named:
            statements = named
        return sum(caption.content.issuperset(statements) for caption in image.captions) >= fewest


def open_rule_maker(
    prepared: Path,
    parsed: Path,
    settings: ByRules,
) -> Opened:
    """Open the rules on a whole split, with the words and parts of speech of its scene graphs.

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
    train = dataset.split(TRAIN).share(settings.train_share)
    split = dataset.split(settings.split)
    corpus = Corpus(tagged_captions(parsed, train.caption_ids.tolist()), settings.min_count)
    if settings.split == TRAIN:
        split = train
        tagged = corpus.captions
    else:
        tagged = tagged_captions(parsed, split.caption_ids.tolist())
    guess = None
    if settings.refined:
        guess = partial(guessed, split=split, train=train)
    return Opened(
        RuleMaker(split, tagged, corpus, settings).make,
        split,
        None,
        guess,
    )


def guessed(
    paths: Sequence[Path],
    split: Split,
    train: Split,
) -> np.ndarray:
    """Find the sentences to leave out so that no model without the image can tell the others; bool of each.

    Args:
        paths: files of `write_part`.
        split: the captions that they were made of.
        train: the captions of the training split.
    """
    tables = []
    for table, _ in read_parts(paths):
        tables.append(table.select(["caption_id", "text", "kind"]))
    sentences = pa.concat_tables(tables)
    rows = rows_of(sentences["caption_id"], split.captions["caption_id"].combine_chunks())
    images = train.caption_image if split.name == train.name else None
    trigrams = Trigrams(train.captions["tokens"], images)
    captions = [split.texts[row] for row in rows]
    pairs = Pairs(captions, sentences["text"].to_pylist(), split.caption_image[rows])
    kinds = np.array(sentences["kind"].to_pylist())
    is_guessed = np.ones(len(rows), bool)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        refined_rows = blind.refined(pairs.only(rows), trigrams)
        is_guessed[rows[refined_rows]] = False
    return is_guessed
