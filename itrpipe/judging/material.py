"""The images and captions that judges read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.storage.arrays import Ragged, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from itrpipe.features.extraction import ImageFiles
    from itrpipe.features.photographs import GivenPhotographs


@dataclass(frozen=True)
class Material:
    """Images and captions of a split, and what is known of them. A judge needs some of it.

    Shapes: N images, T captions, D width of a vector.

    Attributes:
        captions: T texts.
        owners: [T] row of the image that each belongs to, -1 for nobody's.
        num_images: N.
        photographs: N; None where nobody looks at them.
        graphs: T rows of `itrpipe.scene_graph.stored.GRAPH_SCHEMA`, for `graphs`.
        vectors: of images and captions by the mining model, for `fne`.
        encoded: unit vectors by the judge's own encoder where they are made already: "text" [T, D], "vision" [N, D].
    """

    captions: Sequence[str]
    owners: np.ndarray
    num_images: int
    photographs: ImageFiles | GivenPhotographs | None = None
    graphs: pa.Table | None = None
    vectors: tuple[Rows, Rows] | None = None
    encoded: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def groups(self) -> np.ndarray:
        """Return the group of each caption, [T] int64: its image's row, and behind these one for each of nobody's."""
        groups = self.owners.astype(np.int64)
        without_owner = np.flatnonzero(groups < 0)
        groups[without_owner] = self.num_images + np.arange(len(without_owner))
        return groups

    @cached_property
    def captions_of(self) -> Ragged:
        """Return the rows of the captions of each group."""
        count = self.num_images + int((self.owners < 0).sum())
        return Ragged.of_owners(self.groups, count)

    def require_captions(self, images: np.ndarray) -> None:
        """Refuse rows of images without captions.

        Raises:
            UsageError: there is one, so that its captions cannot be compared with others.
        """
        without_captions = images[self.captions_of.counts[images] == 0]
        if len(without_captions):
            raise UsageError(
                f"image {without_captions[0]} has no captions of its own, which this judge reads; leave its pairs out, "
                "or choose a judge that looks at photographs, such as itm:ID"
            )
