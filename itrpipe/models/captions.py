"""Captions as token ids: by our own vocabulary of words, or by the tokenizer of a pretrained text encoder."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.encoders.encoder import Encoder, load_tokenizer
from itrpipe.models.declaration import LONGEST
from itrpipe.storage.arrays import Ragged

VOCABULARY = "vocab.json"
TOKENIZER = "tokenizer"

_DROPPED = str.maketrans("-/", "  ", ",.'!?\"()*#:;~")


class Cut(NamedTuple):
    """The captions of a split whose end is not read.

    Attributes:
        count: how many there are.
        limit: how much of a caption is read, such as `77 tokens`.
    """

    count: int
    limit: str


def clean(text: str) -> str:
    """Lower-case a caption and drop punctuation; hyphens and slashes become spaces. Source: ALBEF's and FNE's code."""
    words = text.lower().translate(_DROPPED).replace("<person>", "person").split()
    return " ".join(words)


@dataclass(frozen=True)
class CaptionPart:
    """The part of a caption that a model reads.

    Attributes:
        cleaned: without case and punctuation.
        max_words: words kept.
    """

    cleaned: bool
    max_words: int

    @property
    def uncut(self) -> Self:
        """Return the part that has all words."""
        return replace(self, max_words=LONGEST)

    @classmethod
    def of(cls, settings: Any) -> Self:
        """Take it from the settings of a model, which has some of these options; most models do not clean."""
        return cls(getattr(settings, "clean_captions", False), settings.max_words)

    def texts(self, split: Split) -> list[str]:
        """Return the captions of a split, T of them."""
        texts = split.texts
        if self.cleaned:
            texts = [clean(text) for text in texts]
        too_long = re.compile(rf"\A\s*((?:\S+\s+){{{self.max_words - 1}}}\S+)\s.*", re.DOTALL)
        return [too_long.sub(r"\1", text) for text in texts]

    def words(self, split: Split) -> pa.ListArray:
        """Return the words of the captions of a split: those of cleaned captions, else those that `prepare` cut."""
        if self.cleaned:
            words = [text.split() for text in self.texts(split)]
            return pa.array(words, pa.list_(pa.string()))
        return pc.call_function("list_slice", [split.tokens], pc.ListSliceOptions(0, self.max_words))


@dataclass(frozen=True)
class WordIds:
    """Words of a vocabulary of our own, between start and end.

    Attributes:
        vocabulary: the words.
        part: of a caption that is read.
    """

    vocabulary: Vocabulary
    part: CaptionPart

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Turn the captions of a split into token ids.

        Returns:
            tokens: int32 [T, W], padded to the longest caption.
            lengths: int32 [T].
        """
        return self.vocabulary.encode_all(self.part.words(split))

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """See `PieceIds.cut`."""
        max_words = self.part.max_words
        counts = self.part.uncut.words(split).value_lengths().to_numpy()
        is_cut = counts > max_words
        return Cut(int(is_cut.sum()), f"{max_words} words")


class PieceIds:
    """Pieces of words by the tokenizer of a pretrained text encoder.

    Args:
        tokenizer: of transformers.
        part: of a caption that is read.
        max_tokens: longest caption, start and end included.

    Attributes:
        tokenizer, part: as given.
        max_tokens: as given, if the tokenizer has no lower limit of its own.
    """

    def __init__(self, tokenizer: Any, part: CaptionPart, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.part = part
        self.max_tokens = min(max_tokens, tokenizer.model_max_length)

    @classmethod
    def of(cls, encoder: Encoder, settings: Any) -> Self:
        """Take the tokenizer of a pretrained encoder of captions, for a model of these settings."""
        reader = encoder.texts
        return cls(reader.tokenizer, CaptionPart.of(settings), reader.max_tokens)

    def __len__(self) -> int:
        return len(self.tokenizer)

    def __eq__(self, other: object) -> bool:
        """Return whether the other gives every caption the same ids."""
        if not isinstance(other, PieceIds):
            return NotImplemented
        if self.part != other.part or self.max_tokens != other.max_tokens:
            return False
        return self.tokenizer.get_vocab() == other.tokenizer.get_vocab()

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """See `WordIds.encode_split`."""
        encoded = self.tokenizer(self.part.texts(split), truncation=True, max_length=self.max_tokens)
        ids = Ragged.of_lists(encoded["input_ids"], np.int32)
        return ids.padded(), ids.counts.astype(np.int32)

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """Count the captions of a split whose end is not read.

        Args:
            split: the captions.
            lengths: [T], of `encode_split`.
        """
        max_words = self.part.max_words
        texts = self.part.uncut.texts(split)
        count = 0
        full = []
        for text, length in zip(texts, lengths.tolist(), strict=True):
            if len(text.split()) > max_words:
                count += 1
            elif length == self.max_tokens:  # as long as it may be, or cut to that
                full.append(text)
        if full:
            uncut_ids = self.tokenizer(full, verbose=False)["input_ids"]
            count += sum(len(ids) > self.max_tokens for ids in uncut_ids)
        limit = f"{self.max_tokens} tokens"
        if max_words < self.max_tokens:
            limit = f"{max_words} words or {limit}"
        return Cut(count, limit)


CaptionTokens = Vocabulary | WordIds | PieceIds
"""Turns captions into token ids."""


def ends_of(tokens: CaptionTokens) -> tuple[int, int]:
    """Count the tokens before the words of every caption and those behind; a vocabulary gives both one."""
    if not isinstance(tokens, PieceIds):
        return 1, 1
    is_added = tokens.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return is_added.index(0), is_added[::-1].index(0)


def save_tokens(folder: Path, tokens: CaptionTokens) -> None:
    """Write the files that a trained model needs to read captions: vocab.json, or those of a tokenizer."""
    if isinstance(tokens, PieceIds):
        tokens.tokenizer.save_pretrained(folder / TOKENIZER)
    elif isinstance(tokens, WordIds):
        tokens.vocabulary.save(folder / VOCABULARY)
    else:
        tokens.save(folder / VOCABULARY)


def load_tokens(folder: Path, settings: Any) -> CaptionTokens:
    """Read the files of `save_tokens`.

    Args:
        folder: of the trained model.
        settings: of its backbone.

    Raises:
        MissingInputError: there is nothing of it.
        DataError: a file is damaged.
    """
    if (folder / TOKENIZER).is_dir():
        tokenizer = load_tokenizer(folder / TOKENIZER)
        return PieceIds(tokenizer, CaptionPart.of(settings), settings.max_words)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if settings.opens_encoders:
        return WordIds(vocabulary, CaptionPart.of(settings))
    return vocabulary
