"""VSRN: reasoning over image regions by graph layers and a GRU, matched with a GRU over words.

Source: Li et al., "Visual Semantic Reasoning for Image-Text Matching", ICCV 2019. Where the published code and
the paper differ the code is followed, since all published weights come from it: the region l2-norms run over
the R regions of each channel (`region_l2_axis`), and affinities are divided by R, without a softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.models.base import (
    DualEncoder,
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    l2_normalise,
    smallest_count,
)
from itrpipe.models.text import GruTextEncoder
from itrpipe.models.vectors import at_least_single
from itrpipe.models.vsepp.network import image_projection
from itrpipe.models.vsrn.captioner import RegionCaptioner
from itrpipe.models.vsrn.declaration import Vsrn


class GraphLayer(nn.Module):
    """One residual graph layer over the regions of an image, regions as rows:

        out = v + BatchNorm(W(((theta(v) phi(v)^T) / R) g(v)))

    `relations` holds theta, phi and g, stacked in this order along its output, so that one matrix product
    serves the three (published as `theta`, `phi`, `g`; `output` is `W.0`, `norm` is `W.1`). The scale and the
    shift of the BatchNorm start at zero: the layer starts as the identity.

    Args:
        dim: width D of a region.

    Source: VSRN §3.2, Eq. 2-4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.relations = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor) -> Tensor:
        """Regions [B, R, D] after one exchange along all pairs of regions of an image."""
        theta, phi, g = self.relations(regions).chunk(3, dim=-1)  # each [B, R, D]
        affinity = theta @ phi.transpose(1, 2) / regions.shape[1]  # [B, R, R]
        mixed = self.output(affinity @ g)  # [B, R, D]
        return regions + self.norm(mixed.flatten(0, 1)).view_as(regions)


class RegionReasoning(nn.Module):
    """Image encoder of VSRN: projection, graph layers, GRU over the regions in file order.

    Args:
        settings: the options of the model.
        image_dim: width D_in of the region features.
    """

    def __init__(self, settings: Vsrn, image_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.l2_dim = 1 if settings.region_l2_axis == "regions" else 2
        self.fc = image_projection(image_dim, settings.embed_dim)
        self.graph = nn.Sequential(*(GraphLayer(settings.embed_dim) for _ in range(settings.graph_layers)))
        self.rnn = nn.GRU(settings.embed_dim, settings.embed_dim, batch_first=True)
        self.norm = nn.BatchNorm1d(settings.embed_dim) if settings.final_batch_norm else nn.Identity()

    def forward(self, regions: Tensor) -> ImageEncoding:
        """Unit vectors [B, D] and reasoned regions [B, R, D] of region features [B, R, D_in]."""
        regions = self.fc(regions.to(self.fc.weight.dtype))  # [B, R, D]
        if self.settings.region_norm:
            regions = l2_normalise(regions, self.l2_dim)
        regions = l2_normalise(self.graph(regions), self.l2_dim)
        _, last_hidden = self.rnn(regions)  # [1, B, D]
        return ImageEncoding(l2_normalise(at_least_single(self.norm(last_hidden[0])), dim=-1), regions)


class VsrnEncoder(DualEncoder):
    """VSRN with its optional captioning branch, which only training uses.

    Args:
        settings: the options of the model.
        image_dim: width D_in of the region features.
        vocabulary_size: number of token ids.
    """

    def __init__(self, settings: Vsrn, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.image = RegionReasoning(settings, image_dim)
        self.text = GruTextEncoder(vocabulary_size, settings.word_dim, settings.embed_dim)
        self.captioner = RegionCaptioner(settings, vocabulary_size) if settings.captioner else None

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Embeddings [B, D] of unit length and reasoned regions [B, R, D].

        Raises:
            DataError: an image has fewer regions than the batch is wide; the graph, its BatchNorm and the
                GRU mix all R rows, so padding would change the image.
        """
        fewest, width = smallest_count(images), images.regions.shape[1]
        if fewest < width:
            raise DataError(
                f"an image has {fewest} of {width} regions, but vsrn needs the same number for every image: "
                "extract a fixed number of regions, or train vsepp, which leaves out missing ones"
            )
        return self.image(images.regions)

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        return TextEncoding(self.text(texts))

    def auxiliary_loss(self, images: ImageEncoding, texts: TextBatch) -> Tensor | None:
        """Captioning loss of caption k given the regions of image k, or None without a captioner."""
        if self.captioner is None:
            return None
        assert images.regions is not None
        # The decoder's many small steps cost more in bfloat16 than in single precision.
        with torch.autocast(images.regions.device.type, enabled=False):
            return self.captioner(images.regions.to(self.captioner.output.weight.dtype), texts)


def build(settings: Vsrn, image_dim: int, vocabulary_size: int) -> DualEncoder:
    """Make a VSRN model with fresh weights."""
    return VsrnEncoder(settings, image_dim, vocabulary_size)
