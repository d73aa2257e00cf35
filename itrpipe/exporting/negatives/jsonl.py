"""Lines of JSON with a query, its positive and its negatives in full, in the words of tevatron's text format.

A line is a pair of a caption and its image: `query_id`, `query` (a caption) or `query_image` (a path),
`positive_passages` and `negative_passages`, whose entries have `docid`, `title` (empty), `text`, `image`, and those of
negatives `source` (`mined`, or what wrote the sentence), `score`, `rank` and, with a guard,
`false_negative_probability`. What is not there is null.
"""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.exporting.negatives.base import Format, Shard, Table, pieces
from itrpipe.exporting.negatives.mined import Mined, Picks, concatenated
from itrpipe.exporting.negatives.strings import content, half_numbers, joined, lists_of, quoted, ranks

MINED = "mined"


class Jsonl(Format):
    """See above."""

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Direction -> captions that have a line."""
        return {name: self.mined.any_of(name) for name in self.choices.directions}

    @property
    def tables(self) -> list[Table]:
        """A configuration for every direction."""
        extra = ", false_negative_probability" * self.mined.guarded
        about = (
            "query_id, query, query_image, positive_passages and negative_passages: docid, title, text, image; of "
            f"negatives also source, score, rank{extra}"
        )
        return [
            Table(name, f"{name}/*.jsonl", len(rows), len(self.mined.texts) - len(rows), about)
            for name, rows in self.rows.items()
        ]

    def shards(self) -> list[Shard]:
        """Files of lines."""
        return [
            shard
            for name, rows in self.rows.items()
            for shard in self.cut(name, "jsonl", rows, partial(self._write, name))
        ]

    def _write(self, direction: str, rows: np.ndarray, path: Path) -> None:
        with path.open("wb") as stream:
            for part in pieces(rows, self.chunk):
                stream.write(content(self.lines(direction, part)))

    def lines(self, direction: str, captions: np.ndarray) -> pa.Array:
        """The lines of some captions."""
        own, images = pa.array(captions), pa.array(self.mined.owners[captions])
        if direction == "t2i":
            picks, negatives, positives = self.mined.images(captions), self._images, self._images.take(images)
            query = joined(self._caption_ids.take(own), ',"query":', self._texts.take(own), ',"query_image":null')
        else:
            picks, negatives, positives = self.mined.captions(captions), self._captions, self._captions.take(own)
            query = joined(self._image_ids.take(images), ',"query":null,"query_image":', self._paths.take(images))
        return joined(
            '{"query_id":',
            query,
            ',"positive_passages":[{',
            positives,
            '}],"negative_passages":[',
            lists_of(described(picks, negatives, self.choices.writer), picks.found.sum(axis=1)),
            "]}\n",
        )

    @cached_property
    def _image_ids(self) -> pa.Array:
        return quoted(self.mined.image_ids)

    @cached_property
    def _caption_ids(self) -> pa.Array:
        return quoted(self.mined.caption_ids)

    @cached_property
    def _paths(self) -> pa.Array:
        return quoted(self.paths)

    @cached_property
    def _texts(self) -> pa.Array:
        return quoted(self.mined.texts)

    @cached_property
    def _images(self) -> pa.Array:
        """Every image as an entry, without its braces."""
        return joined('"docid":', self._image_ids, ',"title":"","text":"","image":', self._paths)

    @cached_property
    def _captions(self) -> pa.Array:
        """Every caption and sentence as an entry, without its braces."""
        ids, texts = text_ids(self.mined, self.choices.writer), quoted(self.mined.all_texts)
        return joined('"docid":', quoted(ids), ',"title":"","text":', texts, ',"image":null')


def text_ids(mined: Mined, writer: str) -> pa.Array:
    """Ids of the captions, and of the sentences: that of their caption with `/phrases-1`, `/phrases-2` …"""
    if mined.sentences is None:
        return mined.caption_ids
    starts = mined.sentences.starts
    counts = np.diff(starts)
    owners = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(owners)) - np.repeat(starts[:-1], counts) + 1
    written = joined(mined.caption_ids.take(pa.array(owners)), f"/{writer}-", ranks(places))
    return concatenated([mined.caption_ids, written])


def described(picks: Picks, entries: pa.Array, writer: str) -> pa.Array:
    """One JSON object for every negative, row by row.

    Args:
        picks: the negatives.
        entries: of all that can be picked, members of an object.
        writer: of those that were not mined.
    """
    found = picks.found
    places = picks.ranks[found]
    sources = pa.array([f'"{writer}"', f'"{MINED}"']).take(pa.array((places > 0).astype(np.int8)))
    parts: list[pa.Array | str] = ["{", entries.take(pa.array(picks.rows[found])), ',"source":', sources]
    parts += [',"score":', half_numbers(picks.scores[found]), ',"rank":', ranks(places)]
    if picks.probability is not None:
        parts += [',"false_negative_probability":', half_numbers(picks.probability[found])]
    return joined(*parts, "}")
