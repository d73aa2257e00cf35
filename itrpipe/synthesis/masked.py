"""Sentences of whole training sets by a masked language model that sees the image: masked, refilled, filtered, ranked.

Source: TAGS-DC, sections 2.1 and 2.2; there the sentences of a caption are made anew in every training step.

Shapes: T captions of a block, K masked copies of each, L draws for each copy, N = K L, S masked captions, n sentences,
W tokens, M labelled positions, V token ids, d width of a state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.prepared import Split
from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import UNLABELLED, CaptionMasks
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.captions import CaptionTokens
from itrpipe.models.uniter.network import UniterEncoder, UniterImages
from itrpipe.synthesis.generators import ByModel
from itrpipe.synthesis.masks import caption_masks, token_captions
from itrpipe.synthesis.sentences import Opened, Sentence
from itrpipe.synthesis.tokens import TokenCaptions, respell

_PARTS_OF_A_WORD = 8
"""Vectors of width d that are in memory for every word: its embedding, queries, keys and values, and temporaries."""


@dataclass(frozen=True)
class ModelMaker:
    """Makes sentences with a model; see `itrpipe.synthesis.sentences.SentenceMaker`.

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
        """See `SentenceMaker`; of every caption the kept ones, hardest first, then the others if they are wanted.

        Masks, refills, filters and ranks in one pass of the model over the masked copies and one over the rest.
        """
        settings, known, chosen = self.settings, self.captions, np.arange(rows.start, rows.stop)
        split, excluded = known.split, self.masks.specials.all if settings.exclude_specials else ()
        rng, width = np.random.default_rng([settings.seed, block]), int(known.lengths[chosen].max())
        masked = self.masks.draw(chosen, width, settings.copies, settings.noise, rng)
        arrays = *masked, known.tokens[chosen, :width], split.caption_image[chosen], known.lengths[chosen]
        copies, labels, captions, images, lengths = (torch.from_numpy(each).to(self.device) for each in arrays)
        texts = TextBatch(copies, lengths.repeat_interleave(settings.copies))
        embedded, images = self.model.embed(images)
        logits = self.model.mlm_logits(embedded, images.repeat_interleave(settings.copies), texts, labels != UNLABELLED)
        generator = torch.Generator(self.device).manual_seed(int(rng.integers(2**63)))
        drawn = synthetic.refill(
            copies, labels, logits, settings.draws, settings.temperature, excluded, generator
        )  # [T K, L, W]
        likely = synthetic.log_probabilities(drawn, labels, logits)
        own = synthetic.log_probabilities(captions.repeat_interleave(settings.copies, 0)[:, None], labels, logits)
        sentences = drawn.view(len(chosen), -1, width)

        def score(owners: Tensor, found: Tensor) -> Tensor:
            return self.model.rank(embedded, images[owners], TextBatch(found, lengths[owners]))

        written = self.masks.known(chosen)
        reasons = synthetic.reject(sentences, captions, None if written is None else written.to(self.device))
        scores = synthetic.score_kept(score, sentences, reasons)  # -inf where nothing was scored
        reasons = synthetic.mark_outranked(reasons, *synthetic.select_hardest(scores, settings.keep))
        positive = self.model.rank(embedded, images, TextBatch(captions, lengths)).float().tolist()
        repeated = synthetic.repeated_later(sentences)
        likely, own = (each.expand_as(likely).reshape(reasons.shape) for each in (likely, own))
        sentences, reasons, scores, likely, own, repeated = (
            each.cpu().numpy() for each in (sentences, reasons, scores, likely, own, repeated)
        )
        kept = reasons == synthetic.KEPT
        owner, number = np.nonzero(kept | (~repeated & settings.write_rejected))
        order = np.lexsort((number, -scores[owner, number], ~kept[owner, number], owner))
        found = []
        for row, at in zip(owner[order].tolist(), number[order].tolist(), strict=True):
            caption, raw = int(chosen[row]), float(scores[row, at])
            text, _, edits = respell(known, caption, sentences[row, at])
            names = str(split.caption_ids[caption]), str(split.image_ids[split.caption_image[caption]])
            numbers = raw if np.isfinite(raw) else None, positive[row], float(likely[row, at]), float(own[row, at])
            found.append(
                Sentence(*names, text, edits, *numbers, bool(kept[row, at]), synthetic.REASONS[reasons[row, at]])
            )
        counts = Counter(synthetic.REASONS[reason] for reason in reasons.ravel().tolist())
        return found, dict(sorted(counts.items()))


class UniterSentences:
    """A trained UNITER on the images of a training set, which writes words and ranks sentences.

    Args:
        model: is moved to the device and set to evaluation mode.
        images: int64 rows [B] of the training images to their features.
        device: where it computes.
        memory: bytes that the words of sentences take while they are ranked.
    """

    def __init__(
        self,
        model: UniterEncoder,
        images: Callable[[np.ndarray], ImageBatch],
        device: torch.device | str = "cpu",
        memory: int = 1 << 28,
    ) -> None:
        self._model, self._load, self._device = model.to(device).eval(), images, device
        self._memory = memory

    def embed(self, images: Tensor) -> tuple[UniterImages, Tensor]:
        """Images of rows [n] of the training set, each once, and the number int64 [n] of each row among them."""
        rows, numbers = images.unique(return_inverse=True)
        return self._model.encode_images(self._load(rows.cpu().numpy()).to(self._device)), numbers

    def mlm_logits(self, images: UniterImages, numbers: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        """What stands at masked positions; the vocabulary is looked at for these alone.

        Args:
            images: of `embed`.
            numbers: int64 [S], image of each caption.
            texts: S masked captions.
            labelled: bool [S, W], the M positions that are asked for.

        Returns:
            [M, V], caption by caption and from left to right.
        """
        model, places = self._model, (numbers, torch.arange(len(numbers)))
        read = model.encode_texts(texts)
        states = model.read_at(images, read, *places, texts.tokens.shape[1], lambda each: each)  # [S, W, d]
        return model.masked_word_logits(states[labelled])

    def rank(self, images: UniterImages, numbers: Tensor, texts: TextBatch) -> Tensor:
        """Raw rank logits float32 [n] of n captions, each with an image of `embed`; higher for a better match."""
        each = 4 * _PARTS_OF_A_WORD * self._model.settings.embed_dim * texts.tokens.shape[1]
        scores = [
            self._model.score_at(
                images,
                self._model.encode_texts(TextBatch(texts.tokens[part], texts.lengths[part])),
                numbers[part],
                torch.arange(len(part)),
            )
            for part in torch.arange(len(numbers)).split(max(1, self._memory // each))
        ]
        return torch.cat(scores).float()


def model_maker(
    model: UniterEncoder,
    tokens: CaptionTokens,
    split: Split,
    images: Callable[[np.ndarray], ImageBatch],
    graphs: Path | None,
    settings: ByModel,
    device: str,
    memory: int,
) -> Opened:
    """Make what writes sentences for the captions of a split with a trained model.

    Args:
        model: writes and ranks.
        tokens: reads captions for it.
        split: of the captions.
        images: rows int64 [B] of the split's images -> their features.
        graphs: artifact of `parse`; None where single words are masked.
        settings: how sentences are made.
        device: `cpu` or `cuda`.
        memory: bytes, see `UniterSentences`.

    Raises:
        UsageError: the tokenizer has no mask.
        DataError: scene graphs are damaged, or of other captions.
    """
    captions = token_captions(split, tokens, model.text.max_tokens)
    writer = UniterSentences(model, images, device, memory)
    masks = caption_masks(captions, tokens, graphs, settings.compare)
    return Opened(ModelMaker(captions, writer, masks, settings, device), split, len(captions.pieces))
