"""AsCL: contrastive training with captions that say more, less or something else than their image shows.

Of the N captions T of a batch a step makes negatives T^- by noise on their words (Asymmetry-I), positives T^+ by
joining two captions of the image or by keeping half of one (Asymmetry-II and III), and negatives of T^+ by noise in
turn. T and T^- are compared with all N images, and so are T^+ and its negatives.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-B and II-D. The triplet loss of its Table II is `contrastive = false`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.ascl import ascl_loss, caption_loss, caption_triplet_loss
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.base import Batch, same_image_mask
from itrpipe.methods.itm.method import PoolSource
from itrpipe.models.ascl.network import AsclEncoder, AsclImages
from itrpipe.models.base import ImageBatch, TextBatch, WordEncoding
from itrpipe.negatives import asymmetry
from itrpipe.negatives.asymmetry import Tokens
from itrpipe.negatives.caption_positives import CaptionPositives, batch_of, tokens_of

SHUFFLE, DONE = "shuffle", "before the encoder"


@dataclass(frozen=True)
class Captions:
    """N captions, and what their negatives are made by.

    Attributes:
        texts: the captions.
        kinds: of noise, N of them; empty where no negatives are made.
        shuffled: those rows [n] whose tokens are shuffled before the encoder, ascending, and the captions [n] that this
            gives; None where there are none.
    """

    texts: TextBatch
    kinds: Sequence[str]
    shuffled: tuple[Tensor, TextBatch] | None

    def to(self, device: torch.device | str) -> Captions:
        """The same on a device."""
        shuffled = None
        if self.shuffled is not None:
            rows, texts = self.shuffled
            shuffled = rows.to(device), texts.to(device)
        return Captions(self.texts.to(device), self.kinds, shuffled)


class AsclBatch(Batch):
    """N images with their captions and with positives made of these.

    Args:
        images: of the pairs.
        originals: T.
        positives: T^+, or None.
        rows: [N] row of each image in the training set.
        seed: of the noise.
    """

    def __init__(
        self, images: ImageBatch, originals: Captions, positives: Captions | None, rows: Tensor, seed: int
    ) -> None:
        super().__init__({"positive": (images, originals.texts)}, rows)
        self.originals, self.positives, self.seed = originals, positives, seed

    def to(self, device: torch.device | str) -> AsclBatch:
        """The same batch on a device."""
        positives = None if self.positives is None else self.positives.to(device)
        rows = self.images.to(device, non_blocking=True)
        return AsclBatch(self.pairs["positive"][0].to(device), self.originals.to(device), positives, rows, self.seed)


class AsclMethod:
    """Trains with generated positives and negatives.

    Args:
        settings: what is generated, and the loss.
        data: the training set.
    """

    means = True

    def __init__(self, settings: Ascl, data: PoolSource) -> None:
        self._settings, self._data, self._positives = settings, data, None
        if settings.positives != "none":
            self._positives = CaptionPositives(settings.positives, data, settings.max_tokens)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> AsclBatch:
        """The captions and their images, and the tokens of what is made of them."""
        images = self._data.caption_image[captions]
        own = tokens_of(self._data.texts(captions))
        originals = self._with_negatives(own, rng)
        positives = None
        if self._positives is not None:
            positives = self._with_negatives(self._positives.draw(images, own, rng), rng)
        seed = int(rng.integers(2**63))
        return AsclBatch(self._data.images(images), originals, positives, torch.from_numpy(images), seed)

    def losses(self, model: AsclEncoder, batch: AsclBatch, epoch: int) -> dict[str, Tensor]:
        """`ascl` (Eq. 7); what it is the mean of is among the statistics."""
        images = model.encode_images(batch.pairs["positive"][0])
        mask = same_image_mask(batch, self._settings.mask_same_image)
        generator = torch.Generator(batch.images.device).manual_seed(batch.seed)
        sides = {"originals": batch.originals, "positives": batch.positives}
        found = {
            name: self._loss(model, images, captions, mask, generator)
            for name, captions in sides.items()
            if captions is not None
        }
        batch.statistics |= {f"loss_of_{name}": loss.detach() for name, loss in found.items()}
        return {"ascl": ascl_loss(*found.values())}

    def _with_negatives(self, captions: Tokens, rng: np.random.Generator) -> Captions:
        """Captions with the noise that is drawn for each."""
        settings, count = self._settings, len(captions.lengths)
        if settings.noise == "none":
            return Captions(batch_of(captions), (), None)
        kinds = np.array(tuple(asymmetry.NOISES) if settings.noise == "mixture" else (settings.noise,))
        drawn = kinds[rng.integers(len(kinds), size=count)]
        early = np.flatnonzero((drawn == SHUFFLE) & (settings.shuffle_at == "input"))
        if not len(early):
            return Captions(batch_of(captions), drawn.tolist(), None)
        drawn = np.where(np.isin(np.arange(count), early), DONE, drawn)
        some = Tokens(captions.tokens[early], captions.lengths[early])
        shuffled = torch.from_numpy(early), batch_of(asymmetry.shuffle_tokens(some, rng))
        return Captions(batch_of(captions), drawn.tolist(), shuffled)

    def _loss(
        self,
        model: AsclEncoder,
        images: AsclImages,
        captions: Captions,
        mask: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        settings = self._settings
        texts = model.encode_texts(captions.texts)
        scores = model.score_matrix(images, texts).float()
        generated = None
        if captions.kinds:
            generated = model.score_matrix(images, _noisy(model, texts, captions, generator)).float()
        if settings.contrastive:
            return caption_loss(scores, generated, settings.temperature, mask)
        return caption_triplet_loss(scores, generated, settings.margin, mask)


def _noisy(model: AsclEncoder, texts: WordEncoding, captions: Captions, generator: torch.Generator) -> WordEncoding:
    """The words of the captions with noise on each."""
    words = texts.words
    if captions.shuffled is not None:
        rows, shuffled = captions.shuffled
        # Cut or padded to the width of the batch; what is past a caption's length may hold anything.
        other = model.encode_texts(shuffled).words[:, : words.shape[1]]
        filled = torch.cat([other, words[rows, other.shape[1] :]], dim=1)
        words = words.index_copy(0, rows, filled.to(words.dtype))
    return replace(texts, words=asymmetry.add_noise(words, texts.lengths, captions.kinds, generator))


def build(settings: Ascl, data: PoolSource, lists: Mapping[str, np.ndarray]) -> AsclMethod:
    """Makes the method; it reads no mined lists."""
    return AsclMethod(settings, data)
