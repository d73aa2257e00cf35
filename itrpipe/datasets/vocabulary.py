"""Word ids of the recurrent text encoders: built from captions, or read in the form SCAN published its own in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.datasets.columns import word_lists
from itrpipe.datasets.source_files import load_json_object
from itrpipe.errors import DataError
from itrpipe.storage.integrity import checked

if TYPE_CHECKING:
    from itrpipe.datasets.columns import TokenLists
    from itrpipe.datasets.prepared import Split

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")


class Vocabulary:
    """A fixed list of words whose positions are their ids; the first four are `SPECIALS`."""

    def __init__(self, words: Sequence[str]) -> None:
        """Take the words in the order of their ids, the specials included.

        Raises:
            DataError: the specials are not the first four, or a word occurs twice.
        """
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            first = ", ".join(words[: len(SPECIALS)]) or "nothing"
            raise DataError(f"vocabulary begins with {first}, expected {', '.join(SPECIALS)}; build it again")
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            raise DataError(f"vocabulary holds {len(self.words) - len(self.ids)} words twice; build it again")

    def __len__(self) -> int:
        """Return the number of ids, the specials included."""
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        """Whether the other vocabulary gives every word the same id."""
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        """Return a hash that fits `__eq__`."""
        return hash(self.words)

    @classmethod
    def build(cls, token_lists: TokenLists, min_count: int = 4) -> Vocabulary:
        """Return the words that occur often enough, the most frequent first and equals by alphabet.

        SCAN, VSRN, BFAN and VSE++ count over the captions of train and val and keep words of four and more
        occurrences; the order of their ids was an accident of hashing, ours is not.

        Args:
            token_lists: the words of each caption.
            min_count: fewest occurrences of a word that is kept.

        Source: SCAN, vocabulary of `f30k_precomp` and `coco_precomp`.
        """
        counted = word_lists(token_lists).flatten().value_counts().to_pylist()
        counts = [(-entry["counts"], entry["values"]) for entry in counted if entry["counts"] >= min_count]
        return cls([*SPECIALS, *(word for _, word in sorted(counts) if word not in SPECIALS)])

    def encode_all(self, token_lists: TokenLists) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of many captions, each between `<start>` and `<end>`.

        A word of a caption that happens to read `<pad>` or like another special is unknown.

        Args:
            token_lists: the words of each of T captions.

        Returns:
            tokens: int32 [T, W], padded with 0 to the longest caption.
            lengths: int32 [T], `<start>` and `<end>` included, so at least 2.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        lists = word_lists(token_lists)
        # Looked up among the ordinary words alone, whose ids begin after the specials.
        ordinary = pa.array(self.words[len(SPECIALS) :], type=pa.string())
        found = pc.call_function("index_in", [lists.flatten()], pc.SetLookupOptions(value_set=ordinary))
        ids = found.fill_null(UNKNOWN - len(SPECIALS)).to_numpy() + len(SPECIALS)
        counts = np.diff(lists.offsets.to_numpy())
        return _pad(ids, counts)

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the captions of a split, as `encode_all` does."""
        return self.encode_all(split.tokens)

    def to_json(self) -> dict[str, Any]:
        """Return the published form: `word2idx`, `idx2word` (ids as text, as JSON has it) and `idx`, the size."""
        return {
            "word2idx": dict(self.ids),
            "idx2word": {str(index): word for index, word in enumerate(self.words)},
            "idx": len(self.words),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], path: Path) -> Vocabulary:
        """Return the vocabulary of the published form; the words keep their published ids.

        Args:
            content: as of `to_json`.
            path: where it was read, for errors.

        Raises:
            DataError: an entry is missing, the two tables contradict each other, or ids are not 0, 1, 2, ...
        """
        words, ids, size = content.get("idx2word"), content.get("word2idx"), content.get("idx")
        if not isinstance(words, dict) or not isinstance(ids, dict):
            raise DataError(f"{path}: has no tables word2idx and idx2word; is this a vocabulary?")
        if size != len(words) or set(words) != {str(index) for index in range(len(words))}:
            raise DataError(f"{path}: ids are not 0 to idx - 1 = {size!r} - 1 without gaps; download or build it again")
        ordered = [words[str(index)] for index in range(len(words))]
        if ids != {word: index for index, word in enumerate(ordered)}:
            raise DataError(f"{path}: word2idx and idx2word contradict each other; download or build it again")
        try:
            return cls(ordered)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write the published form, UTF-8."""
        path.write_text(json.dumps(self.to_json(), ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read the published form.

        Raises:
            MissingInputError: the file cannot be opened.
            DataError: see `from_json`.
        """
        return cls.from_json(load_json_object(checked(path)), path)


def _pad(ids: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write the flat ids of all captions into a padded table with start and end: [T, W] and [T], both int32."""
    lengths = counts + 2
    width = int(lengths.max(initial=2))
    tokens = np.full((len(counts), width), PAD, dtype=np.int32)
    rows = np.arange(len(counts))
    tokens[rows, 0] = START
    tokens[rows, lengths - 1] = END
    # Flat position of each word: words of the captions before it, shifted to where its row begins.
    first = np.cumsum(counts, dtype=np.int64) - counts
    shift = rows.astype(np.int64) * width + 1 - first
    tokens.reshape(-1)[np.arange(len(ids), dtype=np.int64) + np.repeat(shift, counts)] = ids
    return tokens, lengths
