"""Declaration of VSE++."""

from typing import Literal

from itrpipe.models.declaration import RegionBackbone
from itrpipe.papers import VSEPP


class Vsepp(RegionBackbone):
    """VSE++ on region features: mean-pooled regions and a GRU. Source: VSE++ (Faghri et al., BMVC 2018).

    Attributes:
        measure: score of a pair: inner product of the embeddings, or the order-violation penalty.
        image_norm: scale the image embedding to unit length (off in VSE0).
        absolute_values: take absolute values of both embeddings, as order embeddings do.
    """

    papers = (VSEPP,)

    measure: Literal["cosine", "order"] = "cosine"
    image_norm: bool = True
    absolute_values: bool = False
