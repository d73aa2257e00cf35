"""Lines of JSON with the ids of documents, and the documents, as tevatron trains retrievers of images and texts.

Queries are a caption (`query_text`) or an image (`query_image`, a path); documents lie in two tables of `docid`, `text`
and `image`: `images` for captions, `captions` (and sentences) for images. tevatron reads no images out of
`positive_passages`; for texts alone that is the format `jsonl`.
"""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.exporting.negatives.base import Format, Shard, Table, pieces
from itrpipe.exporting.negatives.jsonl import text_ids
from itrpipe.exporting.negatives.mined import Picks
from itrpipe.exporting.negatives.strings import content, half_numbers, joined, lists_of, quoted, ranks

DOCUMENTS = {"t2i": "images", "i2t": "captions"}


class Tevatron(Format):
    """See above."""

    @cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        return {name: self.mined.any_of(name) for name in self.choices.directions}

    @property
    def tables(self) -> list[Table]:
        """A configuration for the queries of every direction, and one for its documents."""
        extra = ", false_negative_probability" * self.mined.guarded
        about = (
            "query_id, query_text, query_image, positive_document_ids, negative_document_ids; beside the last, "
            f"negative_scores, negative_ranks{extra}"
        )
        found = [
            Table(name, f"{name}/*.jsonl", len(rows), len(self.mined.texts) - len(rows), f"{about}; documents: {each}")
            for name, rows in self._rows.items()
            for each in (DOCUMENTS[name],)
        ]
        counts = {"t2i": len(self.paths), "i2t": len(self._texts)}
        named = [(DOCUMENTS[name], counts[name]) for name in self._rows]
        return found + [Table(name, f"{name}/*.jsonl", count, 0, "docid, text, image") for name, count in named]

    def shards(self) -> list[Shard]:
        """Files of lines."""
        found: list[Shard] = []
        for name, rows in self._rows.items():
            found += self.cut(name, "jsonl", rows, partial(self._write, name))
            documents = np.arange(len(self.paths) if name == "t2i" else len(self._texts))
            found += self.cut(DOCUMENTS[name], "jsonl", documents, partial(self._write_documents, name))
        return found

    def _write(self, direction: str, rows: np.ndarray, path: Path) -> None:
        with path.open("wb") as stream:
            for part in pieces(rows, self.chunk):
                stream.write(content(self._lines(direction, part)))

    def _write_documents(self, direction: str, rows: np.ndarray, path: Path) -> None:
        every = pa.array(rows)
        if direction == "t2i":
            entries = (self._image_ids.take(every), ',"text":null,"image":', self._paths.take(every))
        else:
            entries = (self._text_ids.take(every), ',"text":', self._texts.take(every), ',"image":null')
        path.write_bytes(content(joined('{"docid":', *entries, "}\n")))

    def _lines(self, direction: str, captions: np.ndarray) -> pa.Array:
        own, images = pa.array(captions), pa.array(self.mined.owners[captions])
        if direction == "t2i":
            picks, ids, positives = self.mined.images(captions), self._image_ids, self._image_ids.take(images)
            query = (self._text_ids.take(own), ',"query_text":', self._texts.take(own), ',"query_image":null')
        else:
            picks, ids, positives = self.mined.captions(captions), self._text_ids, self._text_ids.take(own)
            query = (self._image_ids.take(images), ',"query_text":null,"query_image":', self._paths.take(images))
        named = '],"negative_document_ids":['
        return joined(
            '{"query_id":', *query, ',"positive_document_ids":[', positives, named, *_facts(picks, ids), "]}\n"
        )

    @cached_property
    def _image_ids(self) -> pa.Array:
        return quoted(self.mined.image_ids)

    @cached_property
    def _text_ids(self) -> pa.Array:
        return quoted(text_ids(self.mined, self.choices.writer))

    @cached_property
    def _paths(self) -> pa.Array:
        return quoted(self.paths)

    @cached_property
    def _texts(self) -> pa.Array:
        return quoted(self.mined.all_texts)


def _facts(picks: Picks, ids: pa.Array) -> list[pa.Array | str]:
    """Lists of ids, scores, ranks and probabilities of negatives, without the outer brackets."""
    found = picks.found
    lengths = found.sum(axis=1)
    parts: list[pa.Array | str] = [lists_of(ids.take(pa.array(picks.rows[found])), lengths)]
    parts += ['],"negative_scores":[', lists_of(half_numbers(picks.scores[found]), lengths)]
    parts += ['],"negative_ranks":[', lists_of(ranks(picks.ranks[found]), lengths)]
    if picks.probability is not None:
        parts += ['],"false_negative_probability":[', lists_of(half_numbers(picks.probability[found]), lengths)]
    return parts
