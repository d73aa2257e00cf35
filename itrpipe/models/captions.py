"""Captions as token ids: by our own vocabulary of words, or by the tokenizer of a pretrained text encoder."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.encoders.encoder import load_tokenizer
from itrpipe.models.declaration import LONGEST
from itrpipe.storage.arrays import Ragged

VOCABULARY = "vocab.json"
TOKENIZER = "tokenizer"

_DROPPED = str.maketrans("-/", "  ", ",.'!?\"()*#:;~")


class Cut(NamedTuple):
    """Captions of which the end is not read.

    Attributes:
        count: of them.
        limit: how much of a caption is read, such as `77 tokens`.
    """

    count: int
    limit: str


def clean(text: str) -> str:
    """A caption in lower case without punctuation, hyphens and slashes as spaces. Source: ALBEF's and FNE's code."""
    return " ".join(text.lower().translate(_DROPPED).replace("<person>", "person").split())


@dataclass(frozen=True)
class Reading:
    """Part of a caption that is read.

    Attributes:
        cleaned: without case and punctuation.
        max_words: words kept.
    """

    cleaned: bool
    max_words: int

    @property
    def whole(self) -> Reading:
        """The same of all words."""
        return replace(self, max_words=LONGEST)

    @classmethod
    def of(cls, settings: Any) -> Reading:
        """Take it from the settings of a model, which has some of these options; most models do not clean."""
        return cls(getattr(settings, "clean_captions", False), settings.max_words)

    def texts(self, split: Split) -> list[str]:
        """The captions of a split, T of them."""
        texts = split.texts
        if self.cleaned:
            texts = [clean(text) for text in texts]
        longer = re.compile(rf"\A\s*((?:\S+\s+){{{self.max_words - 1}}}\S+)\s.*", re.DOTALL)
        return [longer.sub(r"\1", text) for text in texts]

    def words(self, split: Split) -> pa.ListArray:
        """The words of the captions of a split: those of cleaned captions, else those that `prepare` cut."""
        if self.cleaned:
            return pa.array([text.split() for text in self.texts(split)], pa.list_(pa.string()))
        return pc.call_function("list_slice", [split.tokens], pc.ListSliceOptions(0, self.max_words))


@dataclass(frozen=True)
class WordIds:
    """Words of a vocabulary of our own, between start and end.

    Attributes:
        vocabulary: the words.
        reading: what of a caption is read.
    """

    vocabulary: Vocabulary
    reading: Reading

    def __len__(self) -> int:
        """Number of token ids."""
        return len(self.vocabulary)

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of the captions of a split.

        Returns:
            tokens: int32 [T, W], padded to the longest caption.
            lengths: int32 [T].
        """
        return self.vocabulary.encode_all(self.reading.words(split))

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """See `PieceIds.cut`."""
        words = self.reading.whole.words(split).value_lengths().to_numpy()
        return Cut(int((words > self.reading.max_words).sum()), f"{self.reading.max_words} words")


class PieceIds:
    """Pieces of words by the tokenizer of a pretrained text encoder.

    Args:
        tokenizer: of transformers.
        reading: what of a caption is read.
        max_tokens: longest caption, start and end included.

    Attributes:
        tokenizer, reading: as given.
        max_tokens: likewise, if the tokenizer has no lower limit of its own.
    """

    def __init__(self, tokenizer: Any, reading: Reading, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.reading = reading
        self.max_tokens = min(max_tokens, tokenizer.model_max_length)

    @classmethod
    def of(cls, encoder: Any, settings: Any) -> PieceIds:
        """Return those of a pretrained encoder of captions, for a model of these settings."""
        reader = encoder.texts
        return cls(reader.tokenizer, Reading.of(settings), reader.max_tokens)

    def __len__(self) -> int:
        """Number of token ids."""
        return len(self.tokenizer)

    def __eq__(self, other: object) -> bool:
        """Return whether the other gives every caption the same ids."""
        if not isinstance(other, PieceIds):
            return NotImplemented
        same = (self.reading, self.max_tokens) == (other.reading, other.max_tokens)
        return same and self.tokenizer.get_vocab() == other.tokenizer.get_vocab()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """See `WordIds.encode_split`."""
        found = self.tokenizer(self.reading.texts(split), truncation=True, max_length=self.max_tokens)
        ids = Ragged.of_lists(found["input_ids"], np.int32)
        return ids.padded(), ids.counts.astype(np.int32)

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """The captions of a split of which the end is not read.

        Args:
            split: the captions.
            lengths: [T], of `encode_split`.
        """
        words = self.reading.max_words
        most = f"{self.max_tokens} tokens"
        texts = self.reading.whole.texts(split)
        longer = np.array([len(text.split()) > words for text in texts], dtype=bool)
        full = [texts[row] for row in np.flatnonzero(~longer & (lengths == self.max_tokens))]
        count = int(longer.sum())
        if full:
            again = self.tokenizer(full, verbose=False)["input_ids"]
            count += sum(len(ids) > self.max_tokens for ids in again)
        if words < self.max_tokens:
            most = f"{words} words or {most}"
        return Cut(count, most)


CaptionTokens = Vocabulary | WordIds | PieceIds
"""Turns captions into token ids."""


def ends_of(tokens: CaptionTokens) -> tuple[int, int]:
    """Count the tokens before the words of every caption and those behind; a vocabulary gives both one."""
    if not isinstance(tokens, PieceIds):
        return 1, 1
    added = np.array(tokens.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"], dtype=bool)
    words = np.flatnonzero(~added)
    return int(words[0]), int(len(added) - 1 - words[-1])


def save_tokens(folder: Path, tokens: CaptionTokens) -> None:
    """Writes what a trained model needs to read captions: vocab.json, or the files of a tokenizer."""
    if isinstance(tokens, PieceIds):
        tokens.tokenizer.save_pretrained(folder / TOKENIZER)
    elif isinstance(tokens, WordIds):
        tokens.vocabulary.save(folder / VOCABULARY)
    else:
        tokens.save(folder / VOCABULARY)


def load_tokens(folder: Path, settings: Any) -> CaptionTokens:
    """Read what `save_tokens` wrote.

    Args:
        folder: of the trained model.
        settings: of its backbone.

    Raises:
        MissingInputError: there is nothing of it.
        DataError: a file is damaged.
    """
    if (folder / TOKENIZER).is_dir():
        return PieceIds(load_tokenizer(folder / TOKENIZER), Reading.of(settings), settings.max_words)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if settings.opens_encoders:
        return WordIds(vocabulary, Reading.of(settings))
    return vocabulary
