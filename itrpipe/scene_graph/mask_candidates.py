"""Which words of a caption are masked together, for all captions of a dataset as flat arrays.

A candidate is what one element of the scene graph adds of its own: the predicate of a relation, the words of an
attribute, or an object with its compound words. (The phrases of `phrase_arrays` say more: an attribute there comes with
its object, and a relation with both of its.) Candidates are of words as `tokenise` counts them; `words_at` finds them
again in captions that were cut in any other way.

Source: TAGS-DC, section 2.1.1: objects, relations and attributes of the scene graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.errors import DataError
from itrpipe.scene_graph.label_sets import offsets, ragged
from itrpipe.scene_graph.stored import SceneGraphFile

KINDS = ("relations", "attributes", "objects")
NO_WORD = -1


@dataclass(frozen=True)
class MaskCandidates:
    """T captions.

    Attributes:
        caption_ids: T of them, in the order of the file.
        word_starts: int64 [T + 1], the words of caption t are those from `word_starts[t]` to `word_starts[t + 1]`.
        spans: int32 [words, 2], first character of every word in its caption, and one more than its last.
        candidate_starts: int64 [T + 1], likewise of the candidates; of a caption relations, attributes, objects.
        token_starts: int64, one more than there are candidates, likewise of the words of a candidate.
        tokens: int16, word numbers within the caption.
    """

    caption_ids: list[str]
    word_starts: np.ndarray
    spans: np.ndarray
    candidate_starts: np.ndarray
    token_starts: np.ndarray
    tokens: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> MaskCandidates:
        """Reads the artifact of `itrpipe parse`; elements whose words are not in the caption are left out.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is damaged.
        """
        file = SceneGraphFile(folder)
        parts = [_flatten(table) for table in file.row_groups(("tokens", *KINDS))]
        word_counts, spans, counts, sizes, tokens = (np.concatenate(part) for part in zip(*parts, strict=True))
        return cls(file.caption_ids, offsets(word_counts), spans, offsets(counts), offsets(sizes), tokens)

    def __len__(self) -> int:
        return len(self.caption_ids)

    def rows(self, caption_ids: Sequence[str]) -> np.ndarray:
        """Rows int64 of captions, for `batch` and `words_at`.

        Raises:
            DataError: one of them has no graph.
        """
        position = {name: row for row, name in enumerate(self.caption_ids)}
        missing = [name for name in caption_ids if name not in position]
        if missing:
            raise DataError(
                f"{len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: {missing[0]!r}); "
                "run `itrpipe parse` for this dataset"
            )
        return np.array([position[name] for name in caption_ids], dtype=np.int64)

    def batch(self, rows: np.ndarray) -> np.ndarray:
        """Candidates bool [B, P, W] of the captions of the given rows [B], padded to the largest counts."""
        counts = np.diff(self.candidate_starts)[rows]
        widths = np.diff(self.word_starts)[rows]
        found = np.zeros((len(rows), int(counts.max(initial=0)), int(widths.max(initial=0))), dtype=bool)
        candidates = ragged(self.candidate_starts[rows], counts)
        sizes = np.diff(self.token_starts)[candidates]
        caption = np.repeat(np.arange(len(rows)), counts)
        number = ragged(np.zeros_like(counts), counts)
        tokens = self.tokens[ragged(self.token_starts[candidates], sizes)]
        found[np.repeat(caption, sizes), np.repeat(number, sizes), tokens] = True
        return found

    def words_at(self, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which word each piece of a caption is part of, however the caption was cut into pieces.

        Args:
            rows: int64 [B], of captions.
            starts, ends: int [B, n], characters of the pieces, end exclusive; equal where there is no piece.

        Returns:
            int64 [B, n], the first word that shares a character with the piece; `NO_WORD` where none does.
        """
        counts = np.diff(self.word_starts)[rows]
        real = np.arange(int(counts.max(initial=0))) < counts[:, None]
        spans = np.zeros((*real.shape, 2), dtype=np.int64)
        spans[real] = self.spans[ragged(self.word_starts[rows], counts)]
        shares = (starts[..., None] < spans[:, None, :, 1]) & (spans[:, None, :, 0] < ends[..., None])  # [B, n, W]
        if not real.shape[1]:
            return np.full(starts.shape, NO_WORD, dtype=np.int64)
        return np.where(np.any(shares, axis=2), shares.argmax(axis=2), NO_WORD)


def _flatten(table: pa.Table) -> tuple[np.ndarray, ...]:
    """Arrays of C captions: word counts [C], spans of words, candidates of each [C], words of each, all of these."""
    words = table["tokens"].combine_chunks()
    structs = words.flatten()
    spans = np.stack([structs.field(name).to_numpy() for name in ("start", "end")], axis=1)
    lists = [table[name].combine_chunks() for name in KINDS]
    caption = np.concatenate([np.repeat(np.arange(len(table)), _lengths(each)) for each in lists])
    positions = pa.concat_arrays([each.flatten().field("token_ids") for each in lists])
    sizes, starts = _lengths(positions), positions.offsets.to_numpy()[:-1].astype(np.int64)
    order = np.argsort(caption, kind="stable")
    order = order[sizes[order] > 0]
    tokens = positions.values.to_numpy()[ragged(starts[order], sizes[order])]
    return _lengths(words), spans, np.bincount(caption[order], minlength=len(table)), sizes[order], tokens


def _lengths(lists: pa.ListArray) -> np.ndarray:
    return np.diff(lists.offsets.to_numpy().astype(np.int64))
