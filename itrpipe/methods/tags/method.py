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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.tags import masked_word_loss, synthetic_triplet_loss
from itrpipe.methods.itm.method import ItmBatch, ItmMethod, images_at, scoring
from itrpipe.methods.masking import MaskedTexts, MaskingSource, masked_texts, masked_word_logits, masked_word_owners
from itrpipe.methods.tags.declaration import Tags
from itrpipe.models.base import TextBatch
from itrpipe.models.uniter.network import UniterEncoder, UniterImages
from itrpipe.negatives import synthetic
from itrpipe.negatives.sentence_bank import SentenceBank


class TagsSource(MaskingSource, Protocol):
    """A training set whose captions can be masked, or have sentences already.

    Attributes:
        sentences: these, for the bank.
        writer: the static generator, in evaluation mode and without gradients.
    """

    sentences: SentenceBank
    writer: UniterEncoder


@dataclass(frozen=True)
class Sentences:
    """n sentences that are trained, those of a caption together, in the order of the captions.

    Attributes:
        texts: the sentences [n].
        owners: int64 [n], number of the caption of each.
        places: int64 [n], which of the m sentences of its caption it is.
        masked: bool [n, W], tokens that the generator wrote; None where that is not known.
    """

    texts: TextBatch
    owners: Tensor
    places: Tensor
    masked: Tensor | None


class TagsBatch(ItmBatch):
    """Hard negatives, and B captions with what sentences are made of.

    Args:
        negatives: the pool of the hard negatives and its pairs.
        masked: the captions with their masked copies; None for the bank.
        known: int64 [B, n], tokens of all captions of each image, see `CaptionMasks.known`; likewise.
        written: sentences of the bank.
    """

    def __init__(
        self,
        negatives: ItmBatch,
        masked: MaskedTexts | None = None,
        known: Tensor | None = None,
        written: Sentences | None = None,
    ) -> None:
        super().__init__(*negatives.pairs["pool"], negatives.rows, negatives.images)
        self.masked, self.known, self.written = masked, known, written

    def to(self, device: torch.device | str) -> TagsBatch:
        """The same batch on a device."""
        masked, written = self.masked, self.written
        if written is not None:
            texts, owners, places = written.texts.to(device), written.owners.to(device), written.places.to(device)
            written = Sentences(texts, owners, places, None)
        masked = None if masked is None else masked.to(device)
        known = None if self.known is None else self.known.to(device)
        return TagsBatch(super().to(device), masked, known, written)


class TagsMethod:
    """Trains with hard negatives and with sentences.

    Args:
        settings: of both.
        data: the training set.

    Raises:
        UsageError: the training set is too small for so many hard negatives.
    """

    means = True

    def __init__(self, settings: Tags, data: TagsSource) -> None:
        self.settings, self._data = settings, data
        self._negatives = ItmMethod(settings, data)
        if settings.generator != "bank":
            self._excluded = data.masks.specials.all if settings.exclude_specials else ()

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> TagsBatch:
        """Hard negatives of the captions and of as many images, and masked copies of the captions."""
        settings, data = self.settings, self._data
        negatives = self._negatives.collate(captions, rng)
        if settings.generator == "bank":
            texts, owners, places = data.sentences.hardest(captions, settings.keep)
            return TagsBatch(negatives, written=Sentences(texts, owners, places, None))
        masked = masked_texts(data, captions, settings.copies, settings.noise, rng)
        return TagsBatch(negatives, masked, data.masks.known(captions))

    def losses(self, model: UniterEncoder, batch: TagsBatch, epoch: int) -> dict[str, Tensor]:
        """`text_anchored`, `image_anchored`, `words` (L_MLM) and `sentences` (L_ISTM), the last two with weights."""
        scores = self._negatives.hard_scores(model, batch, epoch)  # [2 B, 1 + M]
        terms = self._negatives.ranking_terms(scores, batch)
        positive = scores[: len(batch.images), 0]
        images = model.encode_images(self._own_images(batch))
        made = batch.written
        if made is None:
            made, words = self._write(model, images, batch)
            if words is not None:
                terms["words"] = self.settings.weight_words * words
        return terms | self.sentence_terms(model, images, batch, made, positive)

    def sentence_terms(
        self, model: UniterEncoder, images: UniterImages, batch: TagsBatch, made: Sentences, positive: Tensor
    ) -> dict[str, Tensor]:
        """`sentences`: the sentences against their captions.

        Args:
            model: UNITER.
            images: of the B captions.
            batch: takes the statistics.
            made: the sentences.
            positive: [B] raw scores of the captions.
        """
        starts = self.read_sentences(model, images, made, 1)[:, 0]
        return self.ranking_of_sentences(model.rank_score(starts), batch, made, positive)

    def read_sentences(self, model: UniterEncoder, images: UniterImages, made: Sentences, first: int) -> Tensor:
        """Last states [n, first, d] of sentences with the images of their captions."""
        texts = model.encode_texts(made.texts)
        rows = torch.arange(len(made.owners))
        if not len(rows):
            return images.regions.new_zeros(0, first, images.regions.shape[-1])
        return model.read_at(images, texts, made.owners.cpu(), rows, first, lambda each: each)

    def ranking_of_sentences(
        self, scores: Tensor, batch: TagsBatch, made: Sentences, positive: Tensor
    ) -> dict[str, Tensor]:
        """`sentences` of raw scores [n] of the sentences, with its weight."""
        settings = self.settings
        shape = (len(positive), settings.keep)
        real = torch.zeros(shape, dtype=torch.bool, device=scores.device).index_put(
            (made.owners, made.places), torch.ones((), dtype=torch.bool, device=scores.device)
        )
        negatives = torch.zeros(shape, dtype=scores.dtype, device=scores.device).index_put(
            (made.owners, made.places), scores
        )
        gap = (scores.sigmoid() - positive.sigmoid()[made.owners]).detach().float()
        batch.statistics |= {"sentences": gap.new_tensor(len(gap) / len(positive)), **_distribution(gap)}
        loss = synthetic_triplet_loss(positive, negatives, real, settings.margin)
        return {"sentences": settings.weight_sentences * loss}

    def _own_images(self, batch: TagsBatch) -> Any:
        return images_at(batch.pairs["pool"][0], batch.rows.images[: len(batch.images), 0])

    def _write(self, model: UniterEncoder, images: UniterImages, batch: TagsBatch) -> tuple[Sentences, Tensor | None]:
        """The hardest sentences of each caption, and L_MLM; None where a frozen model writes and it weighs nothing."""
        assert batch.masked is not None
        settings, masked, count = self.settings, batch.masked, len(batch.images)
        labels, owners = masked.labels[masked.labelled], masked_word_owners(masked)
        frozen, loss = settings.generator == "static", None
        if not frozen or settings.weight_words:
            logits = masked_word_logits(model, images, masked)
            loss = masked_word_loss(logits, labels, owners, count)
        if frozen:
            with torch.no_grad():
                writer = self._data.writer.to(labels.device)
                logits = masked_word_logits(writer, writer.encode_images(self._own_images(batch)), masked)
        drawn = synthetic.refill(
            masked.copies, masked.labels, logits, settings.draws, settings.temperature, self._excluded
        )
        sentences = drawn.view(count, -1, drawn.shape[-1])  # [B, N, W]
        reasons = synthetic.reject(sentences, masked.captions.tokens, batch.known)
        lengths = masked.captions.lengths

        def score(rows: Tensor, found: Tensor) -> Tensor:
            places = torch.arange(len(rows))
            return model.score_at(images, model.encode_texts(TextBatch(found, lengths[rows])), rows.cpu(), places)

        with scoring(model):
            hardest = synthetic.select_hardest(synthetic.score_kept(score, sentences, reasons), settings.keep)
        batch.statistics |= {
            "masked_word_accuracy": (logits.argmax(dim=1) == labels).float().mean(),
            **{f"{name.replace(' ', '_')}_share": _share(reasons, number) for number, name in _COUNTED},
            "scored_sentences": (reasons == synthetic.KEPT).sum() / count,
        }
        owner, place = hardest.real.nonzero(as_tuple=True)
        number = hardest.rows[owner, place]
        texts = TextBatch(sentences[owner, number], lengths[owner])
        labelled = masked.labelled.view(count, settings.copies, -1)[owner, number // settings.draws]
        return Sentences(texts, owner, place, labelled), loss


_COUNTED = tuple((number, synthetic.REASONS[number]) for number in (synthetic.IDENTICAL, synthetic.FALSE_NEGATIVE))
_QUANTILES = {"gap_lower_quartile": 0.25, "gap_median": 0.5, "gap_upper_quartile": 0.75}


def _share(reasons: Tensor, number: int) -> Tensor:
    return (reasons == number).float().mean()


def _distribution(gap: Tensor) -> dict[str, Tensor]:
    """Quartiles of how much better than their captions sentences score; nothing where there are none."""
    if not len(gap):
        return {}
    found = gap.quantile(gap.new_tensor(list(_QUANTILES.values())))
    return dict(zip(_QUANTILES, found, strict=True))


def build(settings: Tags, data: TagsSource, lists: Mapping[str, np.ndarray]) -> TagsMethod:
    """Makes the method; it reads no mined lists.

    Raises:
        UsageError: the training set is too small for so many hard negatives.
    """
    return TagsMethod(settings, data)
