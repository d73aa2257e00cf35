"""Tar shards of images as webdataset reads them, with captions and negatives beside every image.

A sample is an image: `KEY.jpg` (or `.png`, where all files are such), `KEY.txt` (its captions, one a line) and
`KEY.json`: `image_id`, `file`, `captions`, each with `caption_id`, `text`, `negatives` (images: `image_id`, `file`)
and, where sentences were written, `sentences` (`text`); `negatives` of the image (captions: `caption_id`, `text`).
Every negative has `source`, `score`, `rank` and, with a guard, `false_negative_probability`.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from itrpipe.artifacts.disk import is_unavailable, unavailable
from itrpipe.datasets.paths import ImageRoot
from itrpipe.errors import DataError, MissingInputError
from itrpipe.exporting.negatives.base import Format, Shard, Table, pieces
from itrpipe.exporting.negatives.jsonl import described
from itrpipe.exporting.negatives.strings import joined, lists_of, quoted

_ENDINGS = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png", ".webp": "webp"}
"""Ending of a file -> that of its member."""


class Webdataset(Format):
    """See above."""

    shard_rows, chunk = 1_000, 1_000

    @property
    def tables(self) -> list[Table]:
        """One table of all images."""
        about = f"KEY.{self._ending} (the image), KEY.txt (captions, one a line), KEY.json (ids, captions, negatives)"
        return [Table("default", "*.tar", len(self.mined.image_ids), 0, about)]

    def shards(self) -> list[Shard]:
        """Tar files."""
        return self.cut("", "tar", np.arange(len(self.mined.image_ids)), self._write)

    def _write(self, rows: np.ndarray, path: Path) -> None:
        with path.open("wb") as stream:
            for part in pieces(rows, self.chunk):
                start, stop = int(part[0]), int(part[-1]) + 1
                facts, texts = self.facts(start, stop).to_pylist(), self._lines(start, stop).to_pylist()
                for image, fact, text in zip(range(start, stop), facts, texts, strict=True):
                    photograph = self._photograph(image)
                    members = ((self._ending, photograph), ("json", fact.encode()), ("txt", text.encode()))
                    for suffix, content in members:
                        _add(stream, f"{image:09}.{suffix}", content)
            stream.write(bytes(2 * tarfile.BLOCKSIZE))

    @cached_property
    def _ending(self) -> str:
        """One for all images: `datasets` refuses shards whose samples differ in it, and decoders look at the bytes."""
        found = {_ENDINGS.get(PurePosixPath(file).suffix.lower()) for file in self.mined.files.to_pylist()}
        return (found.pop() if len(found) == 1 else None) or "jpg"

    def _photograph(self, image: int) -> bytes:
        """The bytes of a file, as they were when the dataset was prepared."""
        file, root = self.mined.files[image].as_py(), self.choices.images
        path = self._root.resolve(file, f"image {self.mined.image_ids[image].as_py()}")
        try:
            content = path.read_bytes()
        except OSError as error:
            if is_unavailable(error):
                raise unavailable(error, path) from None
            raise MissingInputError(f"{path} cannot be read ({error.strerror}); restore it below {root}") from None
        if hashlib.sha256(content).hexdigest() != self.mined.digests[image].as_py():
            raise DataError(f"{path} is not the image that was prepared; restore it, or run `itrpipe prepare` again")
        return content

    @cached_property
    def _root(self) -> ImageRoot:
        return ImageRoot(self.choices.images, self.choices.images)

    def facts(self, start: int, stop: int) -> pa.Array:
        """The JSON of consecutive images."""
        mined, every = self.mined, pa.array(np.arange(start, stop))
        captions = np.arange(mined.starts[start], mined.starts[stop])
        picks = mined.images(captions)
        images = lists_of(described(picks, self._images, ""), picks.found.sum(axis=1))
        parts: list[pa.Array | str] = ["{", self._captions.take(pa.array(captions)), ',"negatives":[', images, "]"]
        if mined.sentences is not None:
            parts += [',"sentences":[', self._sentences(captions), "]"]
        own = lists_of(joined(*parts, "}"), np.diff(mined.starts[start : stop + 1]))
        picked = mined.of_images(start, stop)
        negatives = lists_of(described(picked, self._captions, ""), picked.found.sum(axis=1))
        return joined("{", self._images.take(every), ',"captions":[', own, '],"negatives":[', negatives, "]}")

    def _sentences(self, captions: np.ndarray) -> pa.Array:
        sentences, counts = self.mined.sentences, self.mined.sentence_counts[captions]
        assert sentences is not None
        first = np.repeat(sentences.starts[captions], counts)
        place = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        texts = quoted(sentences.texts.take(pa.array(first + place)))
        return lists_of(joined('{"text":', texts, f',"source":"{self.choices.writer}"}}'), counts)

    def _lines(self, start: int, stop: int) -> pa.Array:
        """The captions of consecutive images, one a line."""
        first, last = self.mined.starts[start], self.mined.starts[stop]
        texts = self.mined.texts.slice(first, last - first).to_pylist()
        plain = pa.array([" ".join(text.split()) for text in texts], pa.string())
        return lists_of(plain, np.diff(self.mined.starts[start : stop + 1]), "\n")

    @cached_property
    def _images(self) -> pa.Array:
        return joined('"image_id":', quoted(self.mined.image_ids), ',"file":', quoted(self.mined.files))

    @cached_property
    def _captions(self) -> pa.Array:
        return joined('"caption_id":', quoted(self.mined.caption_ids), ',"text":', quoted(self.mined.texts))


def _add(stream: io.BufferedWriter, name: str, content: bytes) -> None:
    """Writes a member of a tar file, with nothing in it that depends on when and by whom."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(content), 0o644
    stream.write(header.tobuf(tarfile.USTAR_FORMAT))
    stream.write(content)
    stream.write(bytes(-len(content) % tarfile.BLOCKSIZE))
