"""Declaration of histograms of gradients and colours; read without torch."""

from pydantic import Field

from itrpipe.features.declaration import REGIONS, FeatureSettings


class Hog(FeatureSettings):
    """Histograms of gradients and colours in the cells of a grid, which need no weights.

    Attributes:
        grid: cells on each side; the regions are these.
        cell: pixels of a cell's side, after the image was resized to `grid * cell` on both sides.
    """

    holds = REGIONS | {"global"}

    grid: int = Field(ge=1, le=16)
    cell: int = Field(ge=8, le=128, multiple_of=4)
