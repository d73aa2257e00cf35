"""Parquet with the columns anchor, positive, negative_1 …, as the trainers of sentence-transformers read them.

A row is a pair of a caption and its image. Images are columns of the type `datasets.Image` that name files. Trainers
take every column for an input, and only rows with all negatives, so other columns come on request and rows with fewer
are left out, as `sentence_transformers.util.mine_hard_negatives` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.exporting.negatives.base import Format, Shard, Table, pieces
from itrpipe.exporting.negatives.mined import Picks

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""What `datasets.Image` stores."""
_SIDES = {"t2i": ("caption", "image"), "i2t": ("image", "caption")}


class SentenceTransformers(Format):
    """See above."""

    @cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        return {name: self.mined.complete(name) for name in self.choices.directions}

    @property
    def tables(self) -> list[Table]:
        """A configuration for every direction."""
        found = []
        for name, rows in self._rows.items():
            anchor, other = _SIDES[name]
            last = self._width(name)
            about = f"anchor ({anchor}), positive ({other}), negative_1 … negative_{last} ({other}s, hardest first)"
            if name == "i2t" and self.choices.writer:
                about += f"; from negative_{self.mined.negatives + 1} on sentences by {self.choices.writer}"
            about += (
                "; anchor_id, positive_id, negative_ids, negative_ranks, negative_scores" * self.choices.with_scores
            )
            about += ", false_negative_probability" * (self.choices.with_scores and self.mined.guarded)
            left_out = len(self.mined.texts) - len(rows)
            found.append(Table(name, f"{name}/*.parquet", len(rows), left_out, about))
        return found

    def shards(self) -> list[Shard]:
        """Parquet files."""
        return [
            shard
            for name, rows in self._rows.items()
            for shard in self.cut(name, "parquet", rows, partial(self._write, name))
        ]

    def _width(self, direction: str) -> int:
        return self.mined.negatives + (self.mined.most_sentences if direction == "i2t" else 0)

    def _write(self, direction: str, rows: np.ndarray, path: Path) -> None:
        schema = self._schema(direction)
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            for part in pieces(rows, self.chunk):
                writer.write_table(pa.Table.from_arrays(list(self._columns(direction, part)), schema=schema))

    def _schema(self, direction: str) -> pa.Schema:
        text, image = pa.string(), IMAGE
        anchor, other = (text, image) if direction == "t2i" else (image, text)
        names = [f"negative_{number + 1}" for number in range(self._width(direction))]
        fields: list[tuple[str, pa.DataType]] = [("anchor", anchor), ("positive", other)]
        fields += [(name, other) for name in names]
        images = [name for name, kind in fields if kind == image]
        if self.choices.with_scores:
            fields += [("anchor_id", text), ("positive_id", text), ("negative_ids", pa.list_(text))]
            fields += [("negative_ranks", pa.list_(pa.int32())), ("negative_scores", pa.list_(pa.float32()))]
        if self.choices.with_scores and self.mined.guarded:
            fields += [("false_negative_probability", pa.list_(pa.float32()))]
        features = {"info": {"features": {name: {"_type": "Image"} for name in images}}}
        return pa.schema(fields, metadata={"huggingface": json.dumps(features)})

    def _columns(self, direction: str, captions: np.ndarray) -> Iterator[pa.Array]:
        mined, images = self.mined, pa.array(self.mined.owners[captions])
        texts, pictures = mined.texts.take(pa.array(captions)), _pictures(self.paths.take(images))
        yield from (texts, pictures) if direction == "t2i" else (pictures, texts)
        picks = mined.images(captions) if direction == "t2i" else mined.captions(captions)
        for rows in picks.rows.T:
            found = pa.array(np.ascontiguousarray(rows))
            yield _pictures(self.paths.take(found)) if direction == "t2i" else self._all_texts.take(found)
        if self.choices.with_scores:
            own = mined.caption_ids.take(pa.array(captions)), mined.image_ids.take(images)
            yield from own if direction == "t2i" else own[::-1]
            yield from self._facts(picks, mined.image_ids if direction == "t2i" else mined.caption_ids)

    @cached_property
    def _all_texts(self) -> pa.Array:
        return self.mined.all_texts

    def _facts(self, picks: Picks, ids: pa.Array) -> Iterator[pa.Array]:
        """Ids, ranks, scores and probabilities of negatives; null for what was written and not mined."""
        written = (picks.ranks == 0).reshape(-1)
        lengths = np.full(len(picks.rows), picks.rows.shape[1])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))

        def lists(values: pa.Array) -> pa.Array:
            return pa.ListArray.from_arrays(offsets, values)

        yield lists(ids.take(pa.array(picks.rows.reshape(-1), mask=written)))
        yield lists(pa.array(picks.ranks.reshape(-1), mask=written))
        yield lists(pa.array(picks.scores.astype(np.float32).reshape(-1), mask=written))
        if picks.probability is not None:
            yield lists(pa.array(picks.probability.astype(np.float32).reshape(-1), mask=written))


def _pictures(paths: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([pa.nulls(len(paths), pa.binary()), paths], fields=list(IMAGE))
