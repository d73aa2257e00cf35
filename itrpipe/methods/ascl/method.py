"""AsCL: contrastive training with captions that say more, less or something else than their image shows.

Of the N captions T of a batch a step makes negatives T^- by noise on their words (Asymmetry-I), positives T^+ by
joining two captions of the image or by keeping half of one (Asymmetry-II and III), and negatives of T^+ by noise in
turn. T and T^- are compared with all N images, and so are T^+ and its negatives.

Noise is put on the states of words, between the text encoder and what compares them with images. A method that compares
words without regard to their order, as AsCL does, cannot tell shuffled states from the original ones: its scores are
the same, and the negative is none. `shuffle_at = input` shuffles the tokens that the encoder reads instead.

The paper prints ratios of exponentials without a logarithm; minimised like that, they would drive positives apart. They
are read as the cross-entropies that they are everywhere else.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-B and II-D. The triplet loss of its Table II is `contrastive = false`. Deviation and rates of
noise, and which half is kept, are in the code of the authors' later method ACF-R only; there one row, one column and
one kind of noise are drawn for a whole batch, here for each caption.

Shapes: N pairs in a batch, T captions, W tokens or words, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.learning.losses import hinge, online_hard_negatives
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.base import Batch, Movable, PairsMethod, TrainingSet, same_image_mask
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.models.base import TextBatch, WordEncoding
from itrpipe.storage.ragged import Ragged

DROP_RATE = 0.5
SHUFFLE, DONE = "shuffle", "before the encoder"


def caption_loss(
    scores: Tensor, generated: Tensor | None = None, temperature: float = 0.05, not_negative: Tensor | None = None
) -> Tensor:
    """Contrastive loss of both directions, a mean over the batch (AsCL Eq. 5; Eq. 6 with T^+ for T):

        L = mean_i - log e^(S(i,i)/t) / sum_n e^(S(n,i)/t)
                   - log e^(S(i,i)/t) / (sum_n e^(S(i,n)/t) + sum_n alpha_in e^(S(i,n^-)/t))

    with alpha_in = 0 where S(i,n^-) > S(i,i), else 1, without gradient through this choice. A caption that is left out
    has the logit -inf; a score of zero would leave e^0 in the sum.

    Args:
        scores: [N, N] S of image i with caption j, positives on the diagonal; single precision, which small t need.
        generated: [N, N] S of image i with the caption made by noise from caption j; None for none.
        temperature: t.
        not_negative: bool [N, N], pairs beside the diagonal that are no negatives, such as captions of the same image;
            for the paper, every one is.

    Relations:
        `caption_triplet_loss` is the paper's ablation.
    """
    logits = scores / temperature
    if not_negative is not None:
        own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        logits = logits.masked_fill(not_negative & ~own, float("-inf"))
    target = torch.arange(len(scores), device=scores.device)
    images = F.cross_entropy(logits.T, target)
    if generated is not None:
        logits = torch.cat([logits, kept_generated(scores, generated) / temperature], dim=1)
    return images + F.cross_entropy(logits, target)


def caption_triplet_loss(
    scores: Tensor, generated: Tensor | None = None, margin: float = 0.2, not_negative: Tensor | None = None
) -> Tensor:
    """Triplet loss of both directions over the hardest negatives, a mean over the batch (AsCL Table II, "w triplet"):

        L = mean_i [margin - S(i,i) + max(max_n S(i,n), max_n S(i,n^-))]+ + [margin - S(i,i) + max_n S(n,i)]+

    Generated captions with alpha = 0, see `caption_loss`, are left out.

    Args:
        scores, generated, not_negative: see `caption_loss`.
        margin: by how much a positive must beat a negative; 0.2 in the code of ACF-R, the paper does not say.
    """
    positive = scores.diagonal()
    hardest_text, hardest_image = online_hard_negatives(scores, not_negative)
    if generated is not None:
        hardest_text = torch.maximum(hardest_text, kept_generated(scores, generated).amax(dim=1))
    return (hinge(positive, hardest_text, margin) + hinge(positive, hardest_image, margin)).mean()


def kept_generated(scores: Tensor, generated: Tensor) -> Tensor:
    """Scores [N, N] of generated captions, -inf where alpha = 0: where they beat the positive of their image.

    Args:
        scores: [N, N], positives on the diagonal.
        generated: [N, N].
    """
    beaten = generated.detach() > scores.detach().diagonal()[:, None]
    return generated.masked_fill(beaten, float("-inf"))


def gaussian(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with normal noise of standard deviation 1 added to every element.

    Args:
        states: [T, W, D].
        lengths: [T] words per caption; here and in the other kinds of noise what is past them may hold anything.
        generator: of random numbers, on any device.
    """
    noise = torch.randn(states.shape, generator=generator, device=generator.device)
    return states + noise.to(states)


def shuffle(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with the words of each caption in a random order; padding stays where it is."""
    keys = _uniform(states.shape[:2], states, generator)
    places = torch.arange(states.shape[1], device=states.device)
    order = torch.where(places < lengths[:, None], keys, 1.0 + places).argsort(dim=1)
    return states.gather(1, order[..., None].expand_as(states))


def cutoff(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with one random word or one random element of all words zero, equally often, in each caption."""
    count, places, width = len(states), torch.arange(states.shape[1], device=states.device), states.shape[2]
    cuts_word = _uniform((count, 1, 1), states, generator) < 0.5
    word = (_uniform((count,), states, generator) * lengths).long().minimum(lengths - 1)
    column = (_uniform((count,), states, generator) * width).long().clamp(max=width - 1)
    columns = torch.arange(width, device=states.device)
    cut = torch.where(cuts_word, (places == word[:, None])[..., None], (columns == column[:, None])[:, None])
    return states.masked_fill(cut, 0.0)


def dropout(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with half the elements zero and the others doubled, in any mode of a model."""
    kept = _uniform(states.shape, states, generator) >= DROP_RATE
    return torch.where(kept, states / (1.0 - DROP_RATE), 0.0)


NOISES: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "gaussian": gaussian,
    "shuffle": shuffle,
    "cutoff": cutoff,
    "dropout": dropout,
}
"""Name -> noise on states [T, W, D] of captions with lengths [T]."""


def add_noise(states: Tensor, lengths: Tensor, kinds: np.ndarray, generator: torch.Generator) -> Tensor:
    """States [T, W, D] with noise of its own kind on each caption.

    Args:
        states, lengths, generator: see `gaussian`.
        kinds: T names of `NOISES`; others leave a caption as it is, for what is done before the encoder.
    """
    for name in sorted(NOISES.keys() & {*kinds}):
        rows = torch.from_numpy(np.flatnonzero(kinds == name)).to(states.device)
        states = states.index_copy(0, rows, NOISES[name](states[rows], lengths[rows], generator))
    return states


def _uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers in 0..1 in single precision, drawn where the generator is, on the device of `like`."""
    return torch.rand(*shape, generator=generator, device=generator.device).to(like.device)


def shuffle_tokens(captions: TextBatch, rng: np.random.Generator) -> TextBatch:
    """Captions from a start to an end token with what is between these in a random order."""
    places = torch.arange(captions.tokens.shape[1])
    inside = (places > 0) & (places < captions.lengths[:, None] - 1)
    edges = torch.where(places > 0, 1.0 + places, -1.0)
    keys = torch.where(inside, torch.from_numpy(rng.random(captions.tokens.shape)), edges)
    return replace(captions, tokens=captions.tokens.gather(1, keys.argsort(dim=1)))


def joined(first: TextBatch, second: TextBatch, ends: tuple[int, int], max_tokens: int) -> TextBatch:
    """Captions of the first with those of the second behind them (Asymmetry-II).

    Args:
        first, second: T captions each.
        ends: how many tokens stand before the words of every caption and how many behind; SigLIP's have no start.
        max_tokens: longest caption that may result, start and end included; words past it are left out.
    """
    before, behind = ends
    inside = first.lengths - behind  # start and words of the first
    lengths = (inside + second.lengths - before).clamp(max=max_tokens)
    places = torch.arange(int(lengths.max()))
    of_second = first.tokens.shape[1] + places - inside[:, None] + before
    columns = torch.where(places < inside[:, None], places, of_second)
    return _recut(torch.cat([first.tokens, second.tokens], dim=1), columns, lengths, first.lengths, behind)


def shortened(captions: TextBatch, ends: tuple[int, int]) -> TextBatch:
    """The first half of the tokens between start and end, rounded down, but at least one (Asymmetry-III).

    A caption without any stays as it is. Of pieces of words, half the pieces are kept.
    """
    inside = captions.lengths - sum(ends)
    lengths = (inside // 2).clamp(min=1).minimum(inside) + sum(ends)
    columns = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    return _recut(captions.tokens, columns, lengths, captions.lengths, ends[1])


def _recut(tokens: Tensor, columns: Tensor, lengths: Tensor, own_lengths: Tensor, behind: int) -> TextBatch:
    """Captions of these lengths of tokens [T, W] at columns [T, w], with their own end tokens last and zeros behind."""
    places, end = torch.arange(columns.shape[1]), lengths[:, None]
    columns = torch.where(places < end - behind, columns, places - end + own_lengths[:, None])
    found = tokens.gather(1, columns.clamp(0, tokens.shape[1] - 1))
    return TextBatch(torch.where(places < end, found, 0), lengths)


class CaptionPositives:
    """Makes a further caption (T^+) of every pair of a batch.

    Args:
        kind: two captions of the image `joined` (Asymmetry-II), the first half of the pair's own, `shortened`
            (Asymmetry-III), or for each pair one of both, as probably the one as the other (`either`).
        data: the training set.
        max_tokens: longest caption that joining makes, start and end included.
        ends: how many tokens stand before the words of every caption and how many behind.
    """

    def __init__(
        self,
        kind: str,
        data: TrainingSet,
        max_tokens: int,
        ends: tuple[int, int] = (1, 1),
    ) -> None:
        self._kind, self._data, self._max_tokens, self._ends = kind, data, max_tokens, ends
        self._captions_of = Ragged.of_owners(data.caption_image, int(data.caption_image.max()) + 1)

    def draw(self, images: np.ndarray, own: TextBatch, rng: np.random.Generator) -> TextBatch:
        """T^+ of pairs.

        Args:
            images: [B] rows of the images.
            own: the captions of the pairs, B of them.
            rng: draws what is joined, and for `either` which of both is taken.
        """
        short = shortened(own, self._ends)
        if self._kind == "shortened":
            return short
        first, second = (self._data.texts(rows) for rows in self.two_captions(images, rng))
        long = joined(first, second, self._ends, self._max_tokens)
        if self._kind == "joined":
            return long
        take_long = torch.from_numpy(rng.random(len(images)) < 0.5)
        lengths = torch.where(take_long, long.lengths, short.lengths)
        width = max(long.tokens.shape[1], short.tokens.shape[1])
        both = [F.pad(each.tokens, (0, width - each.tokens.shape[1])) for each in (long, short)]
        return TextBatch(torch.where(take_long[:, None], *both)[:, : int(lengths.max())], lengths)

    def two_captions(self, images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows of two different captions, [B] each, of the given images [B], all pairs being equally probable.

        An image with one caption gives it twice.
        """
        counts, starts = self._captions_of.counts[images], self._captions_of.offsets[images]
        first = rng.integers(counts)
        other = rng.integers(np.maximum(counts - 1, 1))
        second = np.minimum(other + (other >= first), counts - 1)
        return self._captions_of.values[starts + first], self._captions_of.values[starts + second]


@dataclass(frozen=True)
class Captions(Movable):
    """N captions, and what their negatives are made by.

    Attributes:
        texts: the captions.
        kinds: of noise, N of them; none where no negatives are made.
        shuffled: those rows [n] whose tokens are shuffled before the encoder, ascending, and the captions [n] that this
            gives; None where there are none.
    """

    texts: TextBatch
    kinds: np.ndarray
    shuffled: tuple[Tensor, TextBatch] | None = None


@dataclass(eq=False, kw_only=True)
class AsclBatch(Batch):
    """N images with their captions and with positives made of these.

    Attributes:
        made: `originals`, T, and where they are made `positives`, T^+.
        seed: of the noise.
    """

    made: dict[str, Captions]
    seed: int


class AsclMethod(PairsMethod[Ascl]):
    """Trains with generated positives and negatives."""

    def __init__(self, settings: Ascl, data: TrainingSet, lists: Mapping[str, np.ndarray]) -> None:
        super().__init__(settings, data, lists)
        if settings.positives != "none":
            self._positives = CaptionPositives(settings.positives, data, settings.max_tokens)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> AsclBatch:
        """The captions and their images, and the tokens of what is made of them."""
        images, own = self.data.caption_image[captions], self.data.texts(captions)
        made = {"originals": self._with_negatives(own, rng)}
        if self.settings.positives != "none":
            made["positives"] = self._with_negatives(self._positives.draw(images, own, rng), rng)
        pairs = {"positive": (self.data.images(images), own)}
        return AsclBatch(pairs, torch.from_numpy(images), made=made, seed=int(rng.integers(2**63)))

    def losses(self, model: AsclEncoder, batch: AsclBatch, epoch: int) -> dict[str, Tensor]:
        """`ascl`, 1/2 L_I + 1/2 L_II&III (Eq. 7), or L_I alone where no positives are made ("w/o Pos").

        Both are among the statistics: the `caption_loss` of T, and that of T^+ with their own negatives.
        """
        settings, found = self.settings, {}
        images = model.encode_images(batch.pairs["positive"][0])
        mask = same_image_mask(batch, settings.mask_same_image)
        generator = torch.Generator(batch.images.device).manual_seed(batch.seed)
        for name, captions in batch.made.items():
            texts, generated = model.encode_texts(captions.texts), None
            scores = model.score_matrix(images, texts).float()
            if len(captions.kinds):
                generated = model.score_matrix(images, _noisy(model, texts, captions, generator)).float()
            if settings.contrastive:
                found[name] = caption_loss(scores, generated, settings.temperature, mask)
            else:
                found[name] = caption_triplet_loss(scores, generated, settings.margin, mask)
            batch.statistics[f"loss_of_{name}"] = found[name].detach()
        return {"ascl": torch.stack(list(found.values())).mean()}

    def _with_negatives(self, captions: TextBatch, rng: np.random.Generator) -> Captions:
        """Captions with the noise that is drawn for each."""
        settings = self.settings
        if settings.noise == "none":
            return Captions(captions, np.empty(0))
        offered = np.array(tuple(NOISES) if settings.noise == "mixture" else (settings.noise,))
        kinds = offered[rng.integers(len(offered), size=len(captions.lengths))]
        early = (kinds == SHUFFLE) & (settings.shuffle_at == "input")
        if not early.any():
            return Captions(captions, kinds)
        rows = torch.from_numpy(np.flatnonzero(early))
        shuffled = shuffle_tokens(captions[rows], rng)
        cut = replace(shuffled, tokens=shuffled.tokens[:, : int(shuffled.lengths.max())])
        return Captions(captions, np.where(early, DONE, kinds), (rows, cut))


def _noisy(model: AsclEncoder, texts: WordEncoding, captions: Captions, generator: torch.Generator) -> WordEncoding:
    """The words of the captions with noise on each."""
    words = texts.words
    if captions.shuffled is not None:
        rows, shuffled = captions.shuffled
        # Cut or padded to the width of the batch; what is past a caption's length may hold anything.
        other = model.encode_texts(shuffled).words[:, : words.shape[1]]
        filled = torch.cat([other, words[rows, other.shape[1] :]], dim=1)
        words = words.index_copy(0, rows, filled.to(words.dtype))
    return replace(texts, words=add_noise(words, texts.lengths, captions.kinds, generator))


build = AsclMethod
