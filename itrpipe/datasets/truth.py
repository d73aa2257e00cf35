"""Pairs of an image and a caption that is true of it: the file `truth.parquet` of a dataset, and people's decisions.

Only the embedded dataset `scenes` has the file. Every other dataset takes a caption's own image for the only true
one, which makes its false negatives invisible until people judge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.errors import DataError
from itrpipe.storage.arrays import Ragged
from itrpipe.storage.tables import read_table, rows_of, write_table

TRUTH_FILE = "truth.parquet"
DECIDED = "decided.parquet"
"""Beside mined lists: the pairs of the training set that were decided when they were mined."""
FITS = "fits"
DIFFERS = "differs"
UNSURE = "unsure"
DISPUTED = "disputed"
DOUBTFUL = "doubtful"
"""In `decided.parquet`: unsure or disputed."""
_TEXT = pa.string()
_SCHEMA = pa.schema({"caption_id": _TEXT, "true_image_ids": pa.list_(_TEXT)})
_DECIDED = pa.schema({"image_id": _TEXT, "caption_id": _TEXT, "verdict": _TEXT})
_REMEDY = "run `itrpipe prepare` again"


@dataclass(frozen=True)
class PairSet:
    """Some of the pairs of N images and their captions, which are asked for many pairs at once.

    Attributes:
        codes: ascending caption * N + image of each, int64 [P].
        images: N.
    """

    codes: np.ndarray
    images: int

    @classmethod
    def of(cls, captions: np.ndarray, images: np.ndarray, count: int) -> PairSet:
        """Return the set of pairs of caption rows [P] and image rows [P] of `count` images."""
        return cls(np.unique(captions.astype(np.int64) * count + images), count)

    def has(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Return whether each pair of rows is one of them; bool, of the shape that both broadcast to."""
        return self.places(captions, images) >= 0

    def places(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Return the place of each pair of rows in the set, of the shape that both broadcast to; -1 of other pairs."""
        codes = captions.astype(np.int64) * self.images + images
        if not len(self):
            return np.full(codes.shape, -1)
        places = np.searchsorted(self.codes, codes).clip(max=len(self) - 1)
        is_image = (images >= 0) & (images < self.images)  # or the code would be that of another pair
        is_member = (self.codes[places] == codes) & is_image
        return np.where(is_member, places, -1)

    @cached_property
    def caption_rows(self) -> np.ndarray:
        """Return the caption of each pair, rising."""
        return self.codes // max(self.images, 1)

    @cached_property
    def image_rows(self) -> np.ndarray:
        """Return the image of each pair."""
        return self.codes % max(self.images, 1)

    def lists(self, captions: int) -> dict[str, np.ndarray]:
        """List the pairs by their image and by their caption, -1 behind the last of each.

        Args:
            captions: T.

        Returns:
            `texts_for_images` [N, K] caption rows and `images_for_texts` [T, L] image rows.
        """
        texts = Ragged.of_owners(self.image_rows, self.images, self.caption_rows)
        images = Ragged.of_owners(self.caption_rows, captions, self.image_rows)
        return {
            "texts_for_images": texts.padded(fill=-1, min_width=1),
            "images_for_texts": images.padded(fill=-1, min_width=1),
        }

    def __len__(self) -> int:
        return len(self.codes)


def write_truth(folder: Path, true_images: Mapping[str, Sequence[str]]) -> None:
    """Write the file of true pairs.

    Args:
        folder: the prepared dataset.
        true_images: caption_id -> ids of all images of the same split that the caption describes.
    """
    columns = {"caption_id": list(true_images), "true_image_ids": list(map(list, true_images.values()))}
    pq.write_table(pa.table(columns, schema=_SCHEMA), folder / TRUTH_FILE)


def known_pairs(folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> PairSet | None:
    """Return the correct matches of some images [N] and captions [T]; None where the dataset does not know them.

    Args:
        folder: the prepared dataset.
        image_ids, caption_ids: ids of the images and captions; pairs are returned as rows of these.

    Raises:
        DataError: the file is damaged or lacks a caption.
    """
    path = folder / TRUTH_FILE
    if not path.exists():
        return None
    table = read_table(path, _SCHEMA, _REMEDY)
    rows = rows_of(pa.array(caption_ids.tolist(), pa.string()), table["caption_id"])
    is_missing = rows < 0
    if is_missing.any():
        raise DataError(f"{path} lacks caption {caption_ids[is_missing][0]!r}; {_REMEDY}")
    lists = table["true_image_ids"].combine_chunks().take(pa.array(rows))
    captions = np.repeat(np.arange(len(rows)), lists.value_lengths().to_numpy())
    images = rows_of(lists.flatten(), pa.array(image_ids.tolist(), pa.string()))
    is_listed = images >= 0
    return PairSet.of(captions[is_listed], images[is_listed], len(image_ids))


def rows_of_ids(
    pairs: Iterable[tuple[str, str]], image_ids: np.ndarray, caption_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows [P] of captions and images of pairs of ids of image and caption; -1 of ids that are not there."""
    ids = np.array(list(pairs), dtype=str).reshape(-1, 2)
    captions = rows_of(pa.array(ids[:, 1]), pa.array(caption_ids))
    images = rows_of(pa.array(ids[:, 0]), pa.array(image_ids))
    return captions, images


def pair_set(pairs: Iterable[tuple[str, str]], image_ids: np.ndarray, caption_ids: np.ndarray) -> PairSet:
    """Return pairs of ids of image and caption as rows of these images and captions; those of others are left out."""
    captions, images = rows_of_ids(pairs, image_ids, caption_ids)
    is_listed = (images >= 0) & (captions >= 0)
    return PairSet.of(captions[is_listed], images[is_listed], len(image_ids))


@dataclass(frozen=True)
class Decided:
    """Pairs of rows of a training set that people have judged.

    Attributes:
        fits: captions that fit an image of others.
        differs: captions that do not.
        doubtful: captions of which nobody was sure, or people do not agree.
    """

    fits: PairSet
    differs: PairSet
    doubtful: PairSet

    @classmethod
    def of(cls, verdicts: Mapping[tuple[str, str], str], image_ids: np.ndarray, caption_ids: np.ndarray) -> Decided:
        """Keep the judged pairs of some images and captions.

        Args:
            verdicts: ids of image and caption -> `FITS`, `DIFFERS`, or `UNSURE`, `DISPUTED` and `DOUBTFUL`, which are
                all doubtful.
            image_ids, caption_ids: ids of all images and captions.
        """
        doubtful = []
        pairs = {FITS: [], DIFFERS: [], UNSURE: doubtful, DISPUTED: doubtful, DOUBTFUL: doubtful}
        for pair, verdict in verdicts.items():
            pairs[verdict].append(pair)
        fits = pair_set(pairs[FITS], image_ids, caption_ids)
        differs = pair_set(pairs[DIFFERS], image_ids, caption_ids)
        return cls(fits, differs, pair_set(doubtful, image_ids, caption_ids))

    def answers(self, pairs: PairSet) -> tuple[np.ndarray, np.ndarray]:
        """Look up what people say of pairs: 1 right, 0 wrong, NaN [P]; and whether they judged them, bool [P]."""
        answers = np.full(len(pairs), np.nan)
        is_judged = np.zeros(len(pairs), dtype=bool)
        for judged, answer in ((self.fits, 1.0), (self.differs, 0.0), (self.doubtful, np.nan)):
            places = pairs.places(judged.caption_rows, judged.image_rows)
            places = places[places >= 0]
            answers[places] = answer
            is_judged[places] = True
        return answers, is_judged

    @classmethod
    def read(cls, folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> Decided | None:
        """Read the decided pairs beside mined lists; None where mining read no decisions.

        Raises:
            DataError: the file is damaged.
        """
        path = folder / DECIDED
        if not path.exists():
            return None
        table = read_table(path, _DECIDED, "run `itrpipe mine-negatives` again")
        verdicts = {}
        for row in table.to_pylist():
            verdicts[row["image_id"], row["caption_id"]] = row["verdict"]
        return cls.of(verdicts, image_ids, caption_ids)

    def write(self, folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> None:
        """Write them beside mined lists, by their ids."""
        columns = {"image_id": [], "caption_id": [], "verdict": []}
        for verdict, pairs in ((FITS, self.fits), (DIFFERS, self.differs), (DOUBTFUL, self.doubtful)):
            columns["image_id"] += image_ids[pairs.image_rows].tolist()
            columns["caption_id"] += caption_ids[pairs.caption_rows].tolist()
            columns["verdict"] += [verdict] * len(pairs)
        write_table(folder / DECIDED, pa.table(columns, schema=_DECIDED))
