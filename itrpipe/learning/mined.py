"""Mined lists: on disk, and as sources of the negatives of a batch.

On disk there is one Parquet file for each direction, every anchor with its hardest candidates.
`texts_for_images.parquet` has a row per image, `images_for_texts.parquet` a row per caption:

    anchor_id       string                     image_id or caption_id
    candidate_rows  fixed_size_list<int32>[K]  hardest first; row k of the other file is the candidate; int64 where
                                               there are more than 2^31 of them
    scores          fixed_size_list<float16>[K]
    false_negative_probability  fixed_size_list<float16>[K], 0..1, only where mining was told to guard (`--guard fne`)

The two files name each other's candidates: candidate row r of an image is row r of `images_for_texts`,
whose `anchor_id` is the caption.

A training draws some candidates of every anchor of a batch (`MinedCandidates`), asks what mining knew of the candidates
that a batch has (`known_pairs`), or lets captions that the lists connect share a batch (`neighbours_order`).

Shapes: A anchors with lists, K candidates of each, B anchors in a batch, n drawn for each, C candidates of the batch,
N images, T captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.storage.disk import on_disk, reading
from itrpipe.storage.integrity import checked
from itrpipe.storage.ragged import Ragged, runs

FILES = {"texts_for_images": "texts_for_images.parquet", "images_for_texts": "images_for_texts.parquet"}
PROBABILITY = "false_negative_probability"
PROBABILITY_OF = "false_negatives/"
"""What stands before a direction where methods are given its probabilities beside its candidates."""
_ANCHORS_AT_ONCE = 8_192
_ROUNDS = 40
"""How often a caption asks for a leader; with groups of eight, one of eight candidates leads."""


@dataclass(frozen=True)
class MinedList:
    """One direction of a mining run.

    Attributes:
        anchor_ids: [A] strings.
        candidates: [A, K] int32 or int64 rows of the other direction's anchors, hardest first.
        scores: [A, K] float16.
        false_negative_probability: [A, K] float16, 0..1, or None where mining did not estimate it.
    """

    anchor_ids: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    false_negative_probability: np.ndarray | None = None


class ListWriter:
    """Writes one direction, some anchors at a time, each time as a row group.

    Args:
        folder: that the file is written to.
        direction: a key of `FILES`.
        width: K.
        guarded: whether each candidate has a probability to be a false negative.
        wide: rows of the other side need 64 bits.
    """

    def __init__(self, folder: Path, direction: str, width: int, *, guarded: bool = False, wide: bool = False) -> None:
        self._path, self._width = folder / FILES[direction], width
        fields = [("anchor_id", pa.string()), ("candidate_rows", pa.list_(pa.int64() if wide else pa.int32(), width))]
        fields += [(name, pa.list_(pa.float16(), width)) for name in ("scores", *((PROBABILITY,) if guarded else ()))]
        self._schema = pa.schema(fields)
        self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd")

    def write(
        self, anchor_ids: list[str], candidates: np.ndarray, scores: np.ndarray, probability: np.ndarray | None = None
    ) -> None:
        """Writes the next anchors; see `MinedList`.

        Raises:
            DiskFullError: no space is left.
        """
        columns: list[pa.Array] = [pa.array(anchor_ids, pa.string())]
        for values, field in zip((candidates, scores, probability), list(self._schema)[1:], strict=False):
            assert values is not None
            values = pa.array(values.reshape(-1), field.type.value_type)
            columns.append(pa.FixedSizeListArray.from_arrays(values, self._width))
        table = pa.Table.from_arrays(columns, schema=self._schema)
        with on_disk(self._path):
            self._writer.write_table(table, row_group_size=max(1, len(table)))

    def __enter__(self) -> ListWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        with on_disk(self._path):
            self._writer.close()


def read_list(folder: Path, direction: str, most: int | None = None) -> MinedList:
    """Reads one direction, some anchors at a time.

    Args:
        folder: holds the file.
        direction: a key of `FILES`.
        most: candidates of each anchor to keep, the hardest; None keeps all.

    Raises:
        DataError: the file is truncated or not a mined list.
    """
    path = folder / FILES[direction]
    with (
        reading(path, "mined lists", "run `itrpipe mine-negatives` again"),
        pq.ParquetFile(checked(path)) as file,
    ):
        width = file.schema_arrow.field("candidate_rows").type.list_size

        def column(name: str) -> np.ndarray:
            batches = (batch[0] for batch in file.iter_batches(_ANCHORS_AT_ONCE, columns=[name]))
            tables = (each.flatten().to_numpy(zero_copy_only=False).reshape(-1, width) for each in batches)
            return np.concatenate([each[:, :most].copy() for each in tables])  # what is cut off does not stay in memory

        ids = np.asarray(file.read(["anchor_id"])["anchor_id"].to_pylist(), dtype=str)
        chances = column(PROBABILITY) if PROBABILITY in file.schema_arrow.names else None
        return MinedList(ids, column("candidate_rows"), column("scores"), chances)


def require_probabilities(lists: Mapping[str, np.ndarray], direction: str, judges: str) -> None:
    """Refuses lists that do not say how likely each candidate is a false negative.

    Args:
        lists: as `PairsMethod` has them.
        direction: a key of `FILES`.
        judges: option that reads these probabilities.

    Raises:
        UsageError: likewise.
    """
    if PROBABILITY_OF + direction not in lists:
        raise UsageError(
            f"loss.{judges} needs lists that say how likely each candidate is a false negative; mine them with "
            "`itrpipe mine-negatives --guard fne`"
        )


class MinedCandidates:
    """Draws from the mined lists of one direction, each candidate of an anchor at most once.

    Args:
        lists: direction -> [A, K] rows of candidates, hardest first; a missing one is negative and stands behind the
            last.
        direction: a key of `FILES`.
        top: draw among the first so many, or all of a shorter list.
        skip: leave out the first so many of these.

    Raises:
        UsageError: no anchor has a candidate left.
    """

    def __init__(self, lists: Mapping[str, np.ndarray], direction: str, top: int, skip: int = 0) -> None:
        self._lists = lists[direction][:, skip:top]
        if not (self._lists >= 0).any():
            raise UsageError(f"{direction}: no anchor has a candidate left; loosen what mine-negatives was given")

    def draw(self, anchors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows [B, n] of candidates; -1 where an anchor has fewer.

        Args:
            anchors: [B] rows.
            count: n.
            rng: source of randomness.
        """
        offered = self._lists[anchors]
        order = np.where(offered >= 0, rng.random(offered.shape, dtype=np.float32), np.inf)
        if count < offered.shape[1]:
            places = np.argpartition(order, count - 1, axis=1)[:, :count]
            offered = np.take_along_axis(offered, places, axis=1)
        return np.where(offered >= 0, offered, -1)


def known_pairs(lists: np.ndarray, values: np.ndarray, candidates: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """The values of those pairs of lists that a batch has.

    Args:
        lists: [B, K] rows of candidates of the anchors of the batch, below 0 where there are none.
        values: [B, K] of these.
        candidates: [C] rows of the candidates of the batch, in any order and also several times.

    Returns:
        Places of anchors and of candidates in the batch, int64 [n], and the values of these pairs, float32 [n].
    """
    rows, inverse = np.unique(candidates, return_inverse=True)
    place = np.searchsorted(rows, lists).clip(max=len(rows) - 1)
    anchors, columns = np.nonzero(rows[place] == lists)
    found = Ragged.of_owners(inverse, len(rows)).take(place[anchors, columns])
    pair = found.owners()
    known = values[anchors, columns].astype(np.float32)
    return torch.from_numpy(anchors[pair]), torch.from_numpy(found.values), torch.from_numpy(known[pair])


def neighbours_order(
    texts_for_images: np.ndarray, caption_image: np.ndarray, group: int, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Every caption once, neighbours behind each other.

    Some captions, drawn at random, lead a group. Others join the group of a leader that is in the list of their image,
    while it has room; a group has no two captions of one image. Groups, and captions without one, come in random order.
    Nothing loops over captions.

    Args:
        texts_for_images: [N, K] caption rows, hard negatives of each image; below 0 where there are none.
        caption_image: [T] row of the image of each caption.
        group: captions of a group, at most.
        share: of the captions that may be in one, 0..1; the others stay alone.
        rng: source of randomness.

    Returns:
        int64 [T], caption rows.
    """
    total, images = len(caption_image), int(caption_image.max()) + 1
    order = rng.permutation(total)
    in_groups = round(share * total)
    leaders, waiting = np.split(order[:in_groups], [-(-in_groups // group)])
    leader_of = np.arange(total)
    room = np.zeros(total, dtype=np.int64)
    room[leaders] = group - 1
    members = np.sort(leaders * images + caption_image[leaders])  # which groups have a caption of which images
    for _ in range(_ROUNDS):
        places = rng.integers(texts_for_images.shape[1], size=len(waiting))
        asked = texts_for_images[caption_image[waiting], places]
        leading = np.flatnonzero((asked >= 0) & (room[asked] > 0))
        pairs, first = np.unique(asked[leading] * images + caption_image[waiting[leading]], return_index=True)
        new = members[np.searchsorted(members, pairs).clip(max=len(members) - 1)] != pairs
        pairs, joining = pairs[new], leading[first[new]]
        # Those who ask one leader stand together, since pairs are sorted by leaders; there is room for the first ones.
        _, counts = np.unique(asked[joining], return_counts=True)
        fits = runs(np.zeros_like(counts), counts) < room[asked[joining]]
        joining = joining[fits]
        leader_of[waiting[joining]] = asked[joining]
        np.subtract.at(room, asked[joining], 1)
        members = np.sort(np.concatenate([members, pairs[fits]]))
        waiting = np.delete(waiting, joining)
    return np.argsort(rng.random(total)[leader_of], kind="stable")
