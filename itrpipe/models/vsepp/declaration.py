"""Declaration of VSE++."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import RegionBackbone
from itrpipe.papers import VSEPP


class Vsepp(RegionBackbone):
    """VSE++ on region features: mean-pooled regions and a GRU. Source: VSE++ (Faghri et al., BMVC 2018)."""

    papers = (VSEPP,)

    measure: Literal["cosine", "order"] = Field(
        default="cosine",
        description="Score of a pair: inner product of the embeddings, or the order-violation penalty.",
    )
    image_norm: bool = Field(default=True, description="Scale the image embedding to unit length (off in VSE0).")
    absolute_values: bool = Field(
        default=False, description="Take absolute values of both embeddings, as order embeddings do."
    )
