"""Cuts captions into words as the papers do, and gives the words ids for the recurrent text encoders.

A vocabulary is built from captions, or read in the form in which SCAN published its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from itrpipe.datasets.source_files import STRICT, load_json
from itrpipe.storage.arrays import Ragged
from itrpipe.storage.tables import rows_of

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
UNKNOWN_WORDS = "unknown_percent_of_{}_words"
"""Metric of the splits val and test, where the model has a vocabulary of its own."""
_MOST_UNKNOWN = 50
# Captions of this form hold nothing that the Penn Treebank rules treat otherwise than a split at spaces does:
# words of letters, digits and single hyphens, commas before spaces, one full stop at the end.
_WORD = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_PLAIN = re.compile(rf"{_WORD}(?:(?:,? +| +, +){_WORD})* *+\.? *+")
_CONTRACTED = re.compile(r"\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b")


def tokenize(text: str) -> list[str]:
    """Cut a caption into lower-cased words and punctuation marks.

    The conventions are the Penn Treebank's as nltk implements them: `man's` gives `man` and `'s`, double quotes
    become ``` `` ``` and `''`, a final full stop is a word. SCAN, VSRN, BFAN, VSE++ and AOQ call
    `nltk.word_tokenize(caption.lower())`, which first cuts the text into sentences with a trained model. There
    is no sentence splitter here, so a full stop inside a caption of two sentences stays with its word
    (`sits. he`), unless a space precedes it, as it does in Flickr8k.

    Args:
        text: the caption as published.

    Returns:
        The words in order; empty for a caption of white space.
    """
    lowered = text.lower()
    if _PLAIN.fullmatch(lowered) and not _CONTRACTED.search(lowered):
        return lowered.replace(",", " , ").replace(".", " . ").split()
    # Importing any part of nltk imports all of it (0.2 s), so only captions that need it pay.
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer().tokenize(lowered)


def spans(text: str) -> list[tuple[int, int]]:
    """Return the places of the words of `tokenize` in a caption.

    Args:
        text: the caption as published.

    Returns:
        One pair of start and end per word, in characters of `text`, end exclusive, rising and without overlap.
    """
    from nltk.tokenize.destructive import NLTKWordTokenizer

    lowered = text.lower()
    spans = list(NLTKWordTokenizer().span_tokenize(lowered))
    if len(lowered) == len(text):
        return spans
    origin = []  # of each lower-cased character, its place in the caption
    for index, character in enumerate(text):
        origin += [index] * len(character.lower())
    return [(origin[start], origin[end - 1] + 1) for start, end in spans]


@STRICT
class _Published(TypedDict):
    """The published form; JSON has ids as text."""

    word2idx: dict[str, int]
    idx2word: dict[str, str]
    idx: int


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of words whose positions are their ids.

    Attributes:
        words: in the order of their ids; the first four are `SPECIALS`.
    """

    words: tuple[str, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the id of each word."""
        return {word: index for index, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, lists: pa.ListArray, min_count: int = 4) -> Vocabulary:
        """Build a vocabulary of the words that occur often enough, the most frequent first and equals by alphabet.

        SCAN, VSRN, BFAN and VSE++ count over the captions of train and val and keep words of four and more
        occurrences; the order of their ids was an accident of hashing, ours is not.

        Args:
            lists: the words of each caption.
            min_count: fewest occurrences of a word that is kept.

        Source: SCAN, vocabulary of `f30k_precomp` and `coco_precomp`.
        """
        counts = []
        for entry in lists.flatten().value_counts().to_pylist():
            if entry["counts"] >= min_count and entry["values"] not in SPECIALS:
                counts.append((-entry["counts"], entry["values"]))
        words = [word for _, word in sorted(counts)]
        return cls((*SPECIALS, *words))

    def encode_all(self, lists: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of many captions, each between `<start>` and `<end>`.

        A word of a caption that happens to read `<pad>` or like another special is unknown.

        Args:
            lists: the words of each of T captions.

        Returns:
            tokens: int32 [T, W], padded with 0 to the longest caption.
            lengths: int32 [T], `<start>` and `<end>` included, so at least 2.
        """
        # Looked up among the ordinary words alone, whose ids begin after the specials, UNKNOWN being the last of these.
        ordinary = pa.array(self.words[len(SPECIALS) :], type=pa.string())
        ids = rows_of(lists.flatten(), ordinary) + len(SPECIALS)
        counts = np.diff(lists.offsets.to_numpy())
        lengths = counts + 2
        words = Ragged.of_counts(counts, ids).padded(fill=PAD)
        tokens = np.pad(words, ((0, 0), (1, 1))).astype(np.int32)
        tokens[:, 0] = START
        tokens[np.arange(len(lengths)), lengths - 1] = END
        return tokens, lengths

    def encode_split(self, split: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the captions of a split; see `encode_all`."""
        return self.encode_all(split.tokens)

    def save(self, path: Path) -> None:
        """Write the published form, UTF-8."""
        words = {str(index): word for index, word in enumerate(self.words)}
        content = _Published(word2idx=self.ids, idx2word=words, idx=len(words))
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read the published form; the words keep their published ids.

        Raises:
            MissingInputError: the file cannot be opened.
            DataError: the file is damaged, or an entry is missing.
        """
        return cls(tuple(load_json(path, TypeAdapter(_Published))["idx2word"].values()))


def tell_unknown_words(job: Any, split: str, percent: int) -> None:
    """Note how many words of a split's captions the model does not know, and warn where it is more than half.

    Args:
        job: see `itrpipe.stages.base.Job`.
        split: its name.
        percent: share of the words that are unknown.
    """
    job.metrics[UNKNOWN_WORDS.format(split)] = percent
    if percent > _MOST_UNKNOWN:
        job.warn(
            f"{percent} % of the words of {split} captions are unknown to the model, which reads words between blanks "
            "that are frequent in training; where a language has no blanks, train a model with a tokenizer, such as "
            "--backbone dual-encoder --text bert-base-multilingual-cased"
        )
