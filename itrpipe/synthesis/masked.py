"""Sentences of whole training sets by a masked language model that sees the image: masked, refilled, filtered, ranked.

Source: TAGS-DC, sections 2.1 and 2.2; there the sentences of a caption are made anew in every training step.

Shapes: T captions of a block, K masked copies of each, L draws for each copy, N = K L, S masked captions, n sentences,
W tokens, M labelled positions, V token ids, d width of a state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import UNLABELLED, CaptionMasks
from itrpipe.models.base import ImageBatch, RegionEncoding, TextBatch
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.synthesis.generators import ByModel
from itrpipe.synthesis.sentences import Sentence
from itrpipe.synthesis.tokens import TokenCaptions, respell

_RANKED = 1 << 28
"""Bytes that the words of sentences take while they are ranked."""
_PARTS_OF_A_WORD = 8
"""Vectors of width d that are in memory for every word: its embedding, queries, keys and values, and temporaries."""


@dataclass(frozen=True)
class ModelMaker:
    """Makes sentences with a model.

    Attributes:
        captions: of the training set.
        model: writes and ranks.
        masks: of the captions.
        settings: how.
        device: where the model is.
    """

    captions: TokenCaptions
    model: UniterSentences
    masks: CaptionMasks
    settings: ByModel
    device: torch.device | str = "cpu"

    @torch.inference_mode()
    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `itrpipe.synthesis.sentences.MakeSentences`; the sentences of a caption come hardest first.

        Masks, refills, filters and ranks in one pass of the model over the masked copies and one over the rest.
        """
        settings = self.settings
        captions = self.captions
        split = captions.split
        rng = np.random.default_rng([settings.seed, block])
        chosen = np.arange(rows.start, rows.stop)
        width = int(captions.lengths[chosen].max())
        masked, labels = self.masks.draw(chosen, width, settings.copies, settings.noise, rng)
        copies = torch.from_numpy(masked).to(self.device)
        labels = torch.from_numpy(labels).to(self.device)
        originals = torch.from_numpy(captions.tokens[chosen, :width]).to(self.device)
        lengths = torch.from_numpy(captions.lengths[chosen]).to(self.device)
        image_rows = torch.from_numpy(split.caption_image[chosen]).to(self.device)

        texts = TextBatch(copies, lengths.repeat_interleave(settings.copies))
        embedded, images = self.model.embed(image_rows)
        logits = self.model.mlm_logits(
            embedded,
            images.repeat_interleave(settings.copies),
            texts,
            labels != UNLABELLED,
        )
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        drawn = synthetic.refill(
            copies,
            labels,
            logits,
            settings.draws,
            settings.temperature,
            self.masks.specials.all,
            generator,
        )  # [T K, L, W]
        probabilities = synthetic.log_probabilities(drawn, labels, logits)
        repeated = originals.repeat_interleave(settings.copies, 0)[:, None]
        caption_probabilities = synthetic.log_probabilities(repeated, labels, logits).expand_as(probabilities)
        sentences = drawn.view(len(chosen), -1, width)

        def score(owners: Tensor, tokens: Tensor) -> Tensor:
            return self.model.rank(embedded, images[owners], TextBatch(tokens, lengths[owners]))

        known = self.masks.known(chosen)
        if known is not None:
            known = known.to(self.device)
        reasons = synthetic.reject(sentences, originals, known)
        scores = synthetic.score_kept(score, sentences, reasons)  # -inf where nothing was scored
        hardest = synthetic.select_hardest(scores, settings.keep)
        reasons = synthetic.mark_outranked(reasons, *hardest).cpu().numpy()
        positive = self.model.rank(embedded, images, TextBatch(originals, lengths)).float().tolist()

        sentences = sentences.cpu().numpy()
        scores = scores.cpu().numpy()
        probabilities = probabilities.reshape(reasons.shape).cpu().numpy()
        caption_probabilities = caption_probabilities.reshape(reasons.shape).cpu().numpy()
        owners, numbers = np.nonzero(reasons == synthetic.KEPT)
        order = np.lexsort((numbers, -scores[owners, numbers], owners))
        made = []
        for row, number in zip(owners[order].tolist(), numbers[order].tolist(), strict=True):
            caption = int(chosen[row])
            text, _, edits = respell(captions, caption, sentences[row, number])
            sentence = Sentence(
                str(split.caption_ids[caption]),
                str(split.image_ids[split.caption_image[caption]]),
                text,
                edits,
                float(scores[row, number]),
                positive[row],
                float(probabilities[row, number]),
                float(caption_probabilities[row, number]),
            )
            made.append(sentence)
        counts = Counter(synthetic.REASONS[reason] for reason in reasons.ravel().tolist())
        return made, dict(sorted(counts.items()))


class UniterSentences:
    """A trained UNITER on the images of a training set, which writes words and ranks sentences.

    Args:
        model: is moved to the device and set to evaluation mode.
        images: int64 rows [B] of the training images to their features.
        device: where it computes.
    """

    def __init__(
        self,
        model: UniterEncoder,
        images: Callable[[np.ndarray], ImageBatch],
        device: torch.device | str = "cpu",
    ) -> None:
        self._model = model.to(device).eval()
        self._load = images
        self._device = device

    def embed(self, images: Tensor) -> tuple[RegionEncoding, Tensor]:
        """Encode images of rows [n], each once, and return the number int64 [n] of each row among them."""
        rows, numbers = images.unique(return_inverse=True)
        batch = self._load(rows.cpu().numpy()).to(self._device)
        return self._model.encode_images(batch), numbers

    def mlm_logits(
        self,
        images: RegionEncoding,
        numbers: Tensor,
        texts: TextBatch,
        labelled: Tensor,
    ) -> Tensor:
        """Predict the tokens at masked positions; the vocabulary is looked at for these alone.

        Args:
            images: of `embed`.
            numbers: int64 [S], image of each caption.
            texts: S masked captions.
            labelled: bool [S, W], the M positions that are asked for.

        Returns:
            [M, V], caption by caption and from left to right.
        """
        model = self._model
        encoded = model.encode_texts(texts)
        captions = torch.arange(len(numbers))
        width = texts.tokens.shape[1]
        states = model.read_at(
            images,
            encoded,
            numbers,
            captions,
            width,
            lambda states: states,
        )  # [S, W, d]
        return model.masked_word_logits(states[labelled])

    def rank(
        self,
        images: RegionEncoding,
        numbers: Tensor,
        texts: TextBatch,
    ) -> Tensor:
        """Return rank logits float32 [n] of n captions, each with an image of `embed`; higher for a better match."""
        model = self._model
        bytes_of_a_text = 4 * _PARTS_OF_A_WORD * model.settings.embed_dim * texts.tokens.shape[1]
        scores = []
        for part in torch.arange(len(numbers)).split(max(1, _RANKED // bytes_of_a_text)):
            encoded = model.encode_texts(TextBatch(texts.tokens[part], texts.lengths[part]))
            scores.append(model.score_at(images, encoded, numbers[part], torch.arange(len(part))))
        return torch.cat(scores).float()
