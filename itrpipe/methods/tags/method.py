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
from itrpipe.methods.base import OwnedTexts, TrainingSet, mean_of_chosen, scoring
from itrpipe.methods.itm.method import HardNegativesMethod, ItmBatch
from itrpipe.methods.pretrain.method import MaskedTexts, masked_texts, masked_word_logits, word_loss
from itrpipe.methods.tags.declaration import Tags
from itrpipe.models.base import ImageBatch, RegionEncoding, TextBatch
from itrpipe.models.uniter.network import UniterEncoder

ChosenTags = TypeVar("ChosenTags", bound=Tags)
_QUARTILES = ("gap_lower_quartile", "gap_median", "gap_upper_quartile")


def synthetic_triplet_loss(
    positive: Tensor,
    negatives: Tensor,
    real: Tensor,
    margin: float,
) -> Tensor:
    """Compute the triplet loss of an image with its caption and sentences made of it, s being the sigmoid of a score:

        L_ISTM = mean_t [margin - s(I, T) + s(I, T_t)]+

    Args:
        positive: [T] scores of the pairs.
        negatives: [T, m] scores of the image of each with its sentences; anything where there is none.
        real: bool [T, m], which sentences there are.
        margin: alpha, in units of s.

    References:
        TAGS-DC, Eq. 7.
    """
    positive = positive.float().sigmoid()[:, None]
    hinges = hinge(positive, negatives.float().sigmoid(), margin)
    return mean_of_chosen(hinges, real).mean()


@dataclass(eq=False, kw_only=True)
class TagsBatch(ItmBatch):
    """Hard negatives, and B captions with what sentences are made of; with the `sentences` of the bank instead.

    Attributes:
        masked: the captions with their masked copies; None for the bank.
        known: int64 [B, n], tokens of all captions of each image, see `CaptionMasks.known`; None for the bank.
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
        """Build the batch of hard negatives of captions and of as many images, and masked copies of the captions."""
        settings = self.settings
        batch = TagsBatch(**vars(super().collate(captions, rng)))
        if settings.generator == "bank":
            assert self._bank is not None
            batch.sentences = OwnedTexts(*self._bank.take(captions, settings.keep))
        else:
            assert self._masks is not None
            batch.masked = masked_texts(
                self.data,
                self._masks,
                captions,
                settings.copies,
                settings.noise,
                rng,
            )
            batch.known = self._masks.known(captions)
        return batch

    def losses(
        self,
        model: UniterEncoder,
        batch: TagsBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `text_anchored`, `image_anchored`, `words` (L_MLM) and `sentences` (L_ISTM), the last two weighted."""
        settings = self.settings
        count = len(batch.images)
        rows = self.hard_rows(model, batch, epoch)
        scores = self.pair_scores(model, batch, rows)  # [2 B, 1 + M]
        terms = self.ranking_terms(scores, batch)
        positive = scores[:count, 0]
        pool, _ = batch.pairs["pool"]
        own_images = pool[batch.rows.images[:count, 0]]
        images = model.encode_images(own_images)
        sentences = batch.sentences
        if sentences is None:
            sentences = self._write(model, own_images, images, batch, terms)
        owners = sentences.owners
        width = sentences.texts.tokens.shape[1] if self.reads_words else 1
        states = images.regions.new_zeros(0, width, images.regions.shape[-1])  # [n, width, d]
        if len(owners):
            texts = model.encode_texts(sentences.texts)
            states = model.read_at(
                images,
                texts,
                owners,
                torch.arange(len(owners)),
                width,
                lambda states: states,
            )

        sentence_scores = model.rank_score(states[:, 0])
        place = (owners, sentences.places)
        table = sentence_scores.new_zeros(count, settings.keep)
        negatives = table.index_put(place, sentence_scores)
        real = table.index_put(place, torch.ones_like(sentence_scores)) > 0
        loss = synthetic_triplet_loss(positive, negatives, real, settings.margin)
        terms["sentences"] = settings.weight_sentences * loss

        # By how much sentences score better than their captions.
        of_captions = positive.sigmoid()[owners]
        gap = (sentence_scores.sigmoid() - of_captions).detach().float()
        batch.statistics["sentences"] = gap.new_tensor(len(gap) / count)
        if len(gap):
            quartiles = gap.quantile(gap.new_tensor([0.25, 0.5, 0.75]))
            batch.statistics |= dict(zip(_QUARTILES, quartiles, strict=True))
        return terms | self.word_terms(model, batch, sentences, states)

    def word_terms(
        self,
        model: UniterEncoder,
        batch: TagsBatch,
        sentences: OwnedTexts,
        states: Tensor,
    ) -> dict[str, Tensor]:
        """Return losses of the words of the sentences, whose last states are [n, W, d]: none; see `reads_words`."""
        return {}

    def _write(
        self,
        model: UniterEncoder,
        own_images: ImageBatch,
        images: RegionEncoding,
        batch: TagsBatch,
        terms: dict[str, Tensor],
    ) -> OwnedTexts:
        """Write the hardest sentences of each caption.

        The loss of its words is among the terms afterwards, unless a frozen model writes and they weigh nothing.
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
            terms["words"] = settings.weight_words * word_loss(
                logits,
                labels,
                masked.owners(),
                count,
            )
        if frozen:
            assert self._writer is not None
            with torch.no_grad():
                writer = self._writer.to(labels.device)
                logits = masked_word_logits(writer, writer.encode_images(own_images), masked)
        drawn = synthetic.refill(
            masked.copies,
            masked.labels,
            logits,
            settings.draws,
            settings.temperature,
            self._masks.specials.all if settings.exclude_specials else (),
        )
        sentences = drawn.view(count, -1, drawn.shape[-1])  # [B, N, W]
        reasons = synthetic.reject(sentences, masked.captions.tokens, batch.known)
        lengths = masked.captions.lengths

        def score(rows: Tensor, tokens: Tensor) -> Tensor:
            texts = model.encode_texts(TextBatch(tokens, lengths[rows]))
            return model.score_at(images, texts, rows.cpu(), torch.arange(len(rows)))

        with scoring(model):
            scores = synthetic.score_kept(score, sentences, reasons)
            rows, real = synthetic.select_hardest(scores, settings.keep)
        is_right = logits.argmax(dim=1) == labels
        batch.statistics |= {
            "masked_word_accuracy": is_right.float().mean(),
            "identical_share": (reasons == synthetic.IDENTICAL).float().mean(),
            "false_negative_share": (reasons == synthetic.FALSE_NEGATIVE).float().mean(),
            "scored_sentences": (reasons == synthetic.KEPT).sum() / count,
        }
        owners, places = real.nonzero(as_tuple=True)
        numbers = rows[owners, places]
        texts = TextBatch(sentences[owners, numbers], lengths[owners])
        labelled = masked.labelled.view(count, settings.copies, -1)
        return OwnedTexts(
            texts,
            owners,
            places,
            labelled[owners, numbers // settings.draws],
        )


build = TagsMethod
