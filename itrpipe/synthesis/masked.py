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
        settings, captions, split = self.settings, self.captions, self.captions.split
        rng = np.random.default_rng([settings.seed, block])
        chosen = np.arange(rows.start, rows.stop)
        width = int(captions.lengths[chosen].max())
        masked = self.masks.draw(chosen, width, settings.copies, settings.noise, rng)
        arrays = *masked, captions.tokens[chosen, :width], split.caption_image[chosen], captions.lengths[chosen]
        copies, labels, originals, images, lengths = (torch.from_numpy(array).to(self.device) for array in arrays)

        texts = TextBatch(copies, lengths.repeat_interleave(settings.copies))
        embedded, images = self.model.embed(images)
        logits = self.model.mlm_logits(embedded, images.repeat_interleave(settings.copies), texts, labels != UNLABELLED)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        specials = self.masks.specials.all
        drawn = synthetic.refill(
            copies, labels, logits, settings.draws, settings.temperature, specials, generator
        )  # [T K, L, W]
        likely = synthetic.log_probabilities(drawn, labels, logits)
        own = synthetic.log_probabilities(originals.repeat_interleave(settings.copies, 0)[:, None], labels, logits)
        sentences = drawn.view(len(chosen), -1, width)

        def score(owners: Tensor, found: Tensor) -> Tensor:
            return self.model.rank(embedded, images[owners], TextBatch(found, lengths[owners]))

        written = self.masks.known(chosen)
        if written is not None:
            written = written.to(self.device)
        reasons = synthetic.reject(sentences, originals, written)
        scores = synthetic.score_kept(score, sentences, reasons)  # -inf where nothing was scored
        reasons = synthetic.mark_outranked(reasons, *synthetic.select_hardest(scores, settings.keep))
        positive = self.model.rank(embedded, images, TextBatch(originals, lengths)).float().tolist()
        likely, own = (values.expand_as(likely).reshape(reasons.shape) for values in (likely, own))

        tensors = sentences, reasons, scores, likely, own
        sentences, reasons, scores, likely, own = (tensor.cpu().numpy() for tensor in tensors)
        owner, number = np.nonzero(reasons == synthetic.KEPT)
        order = np.lexsort((number, -scores[owner, number], owner))
        found = []
        for row, place in zip(owner[order].tolist(), number[order].tolist(), strict=True):
            caption = int(chosen[row])
            text, _, edits = respell(captions, caption, sentences[row, place])
            names = str(split.caption_ids[caption]), str(split.image_ids[split.caption_image[caption]])
            probabilities = float(likely[row, place]), float(own[row, place])
            found.append(Sentence(*names, text, edits, float(scores[row, place]), positive[row], *probabilities))
        counts = Counter(synthetic.REASONS[reason] for reason in reasons.ravel().tolist())
        return found, dict(sorted(counts.items()))


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
        self._load, self._device = images, device

    def embed(self, images: Tensor) -> tuple[RegionEncoding, Tensor]:
        """Encode images of rows [n], each once, and return the number int64 [n] of each row among them."""
        rows, numbers = images.unique(return_inverse=True)
        return self._model.encode_images(self._load(rows.cpu().numpy()).to(self._device)), numbers

    def mlm_logits(self, images: RegionEncoding, numbers: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        """Predict the tokens at masked positions; the vocabulary is looked at for these alone.

        Args:
            images: of `embed`.
            numbers: int64 [S], image of each caption.
            texts: S masked captions.
            labelled: bool [S, W], the M positions that are asked for.

        Returns:
            [M, V], caption by caption and from left to right.
        """
        model, captions = self._model, torch.arange(len(numbers))
        read = model.encode_texts(texts)
        # [S, W, d]
        states = model.read_at(images, read, numbers, captions, texts.tokens.shape[1], lambda states: states)
        return model.masked_word_logits(states[labelled])

    def rank(self, images: RegionEncoding, numbers: Tensor, texts: TextBatch) -> Tensor:
        """Return rank logits float32 [n] of n captions, each with an image of `embed`; higher for a better match."""
        model = self._model
        bytes_of_a_text = 4 * _PARTS_OF_A_WORD * model.settings.embed_dim * texts.tokens.shape[1]
        scores = []
        for part in torch.arange(len(numbers)).split(max(1, _RANKED // bytes_of_a_text)):
            read = model.encode_texts(TextBatch(texts.tokens[part], texts.lengths[part]))
            scores.append(model.score_at(images, read, numbers[part], torch.arange(len(part))))
        return torch.cat(scores).float()
