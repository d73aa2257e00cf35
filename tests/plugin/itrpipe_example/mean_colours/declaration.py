"""What the extractor declares; read without torch."""

from pydantic import Field

from itrpipe.features.declaration import REGIONS, FeatureSettings


class MeanColours(FeatureSettings):
    """Mean colours of the cells of a grid."""

    holds = REGIONS

    cells: int = Field(default=4, ge=1, le=32, description="Cells in a row and in a column.")
