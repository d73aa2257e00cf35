"""TAGS: hard negatives, and negative sentences that are made of the captions in the same step.

Of every caption of a batch the model itself, trained along by masked words (L_MLM), writes K L sentences with the
caption's image before it; those that may be true are dropped, and the m that score highest are trained against the
caption (L_ISTM). The hard negatives of `itrpipe.methods.itm.method` are trained beside them. With the static generator
(§3.2) a frozen model writes, from fresh masks and with fresh draws; the model in training ranks what it wrote.

A step runs every masked copy once for its L refills, scores no sentence twice, and takes the caption's own score from
the pairs of the hard negatives.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, sections 2.1 to 2.3. Its released code scores a garbled caption in L_ISTM.

Shapes: B captions, K masked copies of each, L refills of a copy, N = K L, m sentences of a caption that are trained,
n of all captions, W tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from itrpipe.learning import sentences as synthetic
from itrpipe.learning.losses import hinge
from itrpipe.learning.sentences import CaptionMasks, SentenceBank
from itrpipe.methods.base import OwnedTexts, TrainingSet, scoring
from itrpipe.methods.itm.method import HardNegativesMethod, ItmBatch
from itrpipe.methods.pretrain.method import MaskedTexts, masked_texts, masked_word_logits, word_loss
from itrpipe.methods.tags.declaration import Tags
from itrpipe.models.base import ImageBatch, RegionEncoding, TextBatch
from itrpipe.models.uniter.network import UniterEncoder

ChosenTags = TypeVar("ChosenTags", bound=Tags)


def synthetic_triplet_loss(positive: Tensor, negatives: Tensor, real: Tensor, margin: float) -> Tensor:
    """Triplet loss of an image with its caption and sentences made of it, s being the sigmoid of the model's score:

        L_ISTM = mean_t [margin - s(I, T) + s(I, T_t)]+

    Args:
        positive: [T] scores of the pairs.
        negatives: [T, m] scores of the image of each with its sentences; anything where there is none.
        real: bool [T, m], which sentences there are.
        margin: alpha, in units of s.

    References:
        TAGS-DC, Eq. 7.
    """
    violation = hinge(positive.float().sigmoid()[:, None], negatives.float().sigmoid(), margin)
    counted = torch.where(real, violation, 0.0).sum(dim=1)
    return (counted / real.sum(dim=1).clamp(min=1)).mean()


@dataclass(eq=False, kw_only=True)
class TagsBatch(ItmBatch):
    """Hard negatives, and B captions with what sentences are made of; with the `sentences` of the bank instead.

    Attributes:
        masked: the captions with their masked copies; None for the bank.
        known: int64 [B, n], tokens of all captions of each image, see `CaptionMasks.known`; likewise.
    """

    masked: MaskedTexts | None = None
    known: Tensor | None = None


class TagsMethod(HardNegativesMethod[ChosenTags]):
    """Trains with hard negatives and with sentences.

    Raises:
        UsageError: the training set is too small for so many hard negatives.

    Attributes:
        reads_words: whether `word_terms` reads the last states of all words, not of the first token alone.
    """

    reads_words = False

    def __init__(
        self,
        settings: ChosenTags,
        data: TrainingSet,
        masks: CaptionMasks | None = None,
        sentences: SentenceBank | None = None,
        writer: UniterEncoder | None = None,
    ) -> None:
        super().__init__(settings, data)
        self._masks = masks
        self._bank = sentences
        self._writer = writer

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> TagsBatch:
        """Hard negatives of the captions and of as many images, and masked copies of the captions."""
        settings = self.settings
        data = self.data
        batch = TagsBatch(**vars(super().collate(captions, rng)))
        if settings.generator == "bank":
            assert self._bank is not None
            batch.sentences = OwnedTexts(*self._bank.take(captions, settings.keep))
        else:
            assert self._masks is not None
            batch.masked = masked_texts(data, self._masks, captions, settings.copies, settings.noise, rng)
            batch.known = self._masks.known(captions)
        return batch

    def losses(self, model: UniterEncoder, batch: TagsBatch, epoch: int) -> dict[str, Tensor]:
        """`text_anchored`, `image_anchored`, `words` (L_MLM) and `sentences` (L_ISTM), the last two with weights."""
        scores = self.pair_scores(model, batch, self.hard_rows(model, batch, epoch))  # [2 B, 1 + M]
        terms = self.ranking_terms(scores, batch)
        positive = scores[: len(batch.images), 0]
        own_images = batch.pairs["pool"][0][batch.rows.images[: len(positive), 0]]
        images = model.encode_images(own_images)
        made = batch.sentences
        if made is None:
            made = self._write(model, own_images, images, batch, terms)
        rows = torch.arange(len(made.owners))
        first = made.texts.tokens.shape[1] if self.reads_words else 1
        states = images.regions.new_zeros(0, first, images.regions.shape[-1])  # [n, first, d]
        if len(rows):
            states = model.read_at(images, model.encode_texts(made.texts), made.owners, rows, first, lambda each: each)

        scores = model.rank_score(states[:, 0])
        place = (made.owners, made.places)
        table = scores.new_zeros(len(positive), self.settings.keep)
        negatives = table.index_put(place, scores)
        real = table.index_put(place, torch.ones_like(scores)) > 0
        loss = synthetic_triplet_loss(positive, negatives, real, self.settings.margin)
        terms["sentences"] = self.settings.weight_sentences * loss
        gap = (scores.sigmoid() - positive.sigmoid()[made.owners]).detach().float()
        batch.statistics["sentences"] = gap.new_tensor(len(gap) / len(positive))
        if len(gap):  # quartiles of how much better than their captions sentences score
            batch.statistics |= dict(zip(_QUARTILES, gap.quantile(gap.new_tensor([0.25, 0.5, 0.75])), strict=True))
        return terms | self.word_terms(model, batch, made, states)

    def word_terms(self, model: UniterEncoder, batch: TagsBatch, made: OwnedTexts, states: Tensor) -> dict[str, Tensor]:
        """Losses of the words of the sentences, whose last states are [n, W, d]: none; see `reads_words`."""
        return {}

    def _write(
        self,
        model: UniterEncoder,
        own_images: ImageBatch,
        images: RegionEncoding,
        batch: TagsBatch,
        terms: dict[str, Tensor],
    ) -> OwnedTexts:
        """The hardest sentences of each caption.

        Its words are among the terms afterwards, unless a frozen model writes and they weigh nothing.
        """
        assert batch.masked is not None
        assert self._masks is not None
        settings = self.settings
        masked = batch.masked
        count = len(batch.images)
        labels = masked.labels[masked.labelled]
        frozen = settings.generator == "static"
        if not frozen or settings.weight_words:
            logits = masked_word_logits(model, images, masked)
            terms["words"] = settings.weight_words * word_loss(logits, labels, masked.owners(), count)
        if frozen:
            assert self._writer is not None
            with torch.no_grad():
                writer = self._writer.to(labels.device)
                logits = masked_word_logits(writer, writer.encode_images(own_images), masked)
        excluded = self._masks.specials.all if settings.exclude_specials else ()
        drawn = synthetic.refill(masked.copies, masked.labels, logits, settings.draws, settings.temperature, excluded)
        sentences = drawn.view(count, -1, drawn.shape[-1])  # [B, N, W]
        reasons = synthetic.reject(sentences, masked.captions.tokens, batch.known)
        lengths = masked.captions.lengths

        def score(rows: Tensor, found: Tensor) -> Tensor:
            places = torch.arange(len(rows))
            return model.score_at(images, model.encode_texts(TextBatch(found, lengths[rows])), rows.cpu(), places)

        with scoring(model):
            rows, real = synthetic.select_hardest(synthetic.score_kept(score, sentences, reasons), settings.keep)
        batch.statistics |= {
            "masked_word_accuracy": (logits.argmax(dim=1) == labels).float().mean(),
            "identical_share": (reasons == synthetic.IDENTICAL).float().mean(),
            "false_negative_share": (reasons == synthetic.FALSE_NEGATIVE).float().mean(),
            "scored_sentences": (reasons == synthetic.KEPT).sum() / count,
        }
        owner, place = real.nonzero(as_tuple=True)
        number = rows[owner, place]
        texts = TextBatch(sentences[owner, number], lengths[owner])
        labelled = masked.labelled.view(count, settings.copies, -1)[owner, number // settings.draws]
        return OwnedTexts(texts, owner, place, labelled)


_QUARTILES = ("gap_lower_quartile", "gap_median", "gap_upper_quartile")


build = TagsMethod
