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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.errors import UsageError
from itrpipe.learning.losses import excluded_pairs, hardest_triplet, infonce
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.base import Batch, Method, TokenLimits, TrainingSet, same_image_mask
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.models.base import Tensors, TextBatch
from itrpipe.storage.arrays import Ragged

DROP_RATE = 0.5
DONE = "before the encoder"


def caption_loss(
    scores: Tensor,
    generated: Tensor | None,
    not_negative: Tensor | None,
    settings: Ascl,
) -> Tensor:
    """Compute the contrastive loss of both directions, a mean over the batch (AsCL Eq. 5; Eq. 6 with T^+ for T):

        L = mean_i - log e^(S(i,i)/t) / sum_n e^(S(n,i)/t)
                   - log e^(S(i,i)/t) / (sum_n e^(S(i,n)/t) + sum_n alpha_in e^(S(i,n^-)/t))

    with alpha_in = 0 where S(i,n^-) > S(i,i), else 1, without gradient through this choice. Or, where it is not to be
    `contrastive`, the triplet loss over the hardest negatives (Table II, "w triplet"; alpha_in = 0 leaves n^- out):

        L = mean_i [margin - S(i,i) + max_n S(n,i)]+ + [margin - S(i,i) + max(max_n S(i,n), max_n S(i,n^-))]+

    So it is an objective of `itrpipe.learning.losses` with the generated captions as further candidates of the images.

    Args:
        scores: [N, N] S of image i with caption j, positives on the diagonal; single precision, which small t need.
        generated: [N, N] S of image i with the caption made by noise from caption j; None for none.
        not_negative: bool [N, N], pairs beside the diagonal that are no negatives, such as captions of the same image;
            for the paper, every one is. They are left out: a score of zero would leave e^0 in the sum.
        settings: which of both, t, and the margin: 0.2 in the code of ACF-R, the paper does not say.
    """
    positive = scores.diagonal()
    excluded = excluded_pairs(scores, not_negative)
    candidates = scores
    excluded_of_images = excluded
    if generated is not None:
        beaten = generated.detach() > positive.detach()[:, None]  # alpha = 0
        candidates = torch.cat([scores, generated], dim=1)
        excluded_of_images = torch.cat([excluded, beaten], dim=1)
    objective = partial(hardest_triplet, margin=settings.margin)
    if settings.contrastive:
        objective = partial(infonce, temperature=settings.temperature)
    of_images = torch.where(excluded_of_images, float("-inf"), 0.0)
    of_captions = torch.where(excluded.T, float("-inf"), 0.0)
    return objective(positive, scores.T, of_captions) + objective(positive, candidates, of_images)


def gaussian(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Add normal noise of standard deviation 1 to every element of states [T, W, D].

    Args:
        states: [T, W, D].
        lengths: [T] words per caption; here and in the other kinds of noise what is past them may hold anything.
        generator: of random numbers, on the device of the states.
    """
    noise = torch.randn(states.shape, generator=generator, device=states.device)
    return states + noise


def shuffle(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Put the states [T, W, D] of the words of each caption into a random order; padding stays where it is."""
    places = torch.arange(states.shape[1], device=states.device)
    is_word = places < lengths[:, None]
    drawn = _uniform(generator, *states.shape[:2])
    keys = torch.where(is_word, drawn, 1.0 + places)
    order = keys.argsort(dim=1)
    return states.gather(1, order[..., None].expand_as(states))


def cutoff(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Set one random word, or as often one random element of all words, of each caption's states [T, W, D] to zero."""
    count, words, width = states.shape
    cuts_word = _uniform(generator, count, 1, 1) < 0.5
    word = (_uniform(generator, count) * lengths).long()
    column = (_uniform(generator, count) * width).long()
    is_word = F.one_hot(word, words)[:, :, None] > 0
    is_column = F.one_hot(column, width)[:, None] > 0
    cut = torch.where(cuts_word, is_word, is_column)
    return states.masked_fill(cut, 0.0)


def dropout(states: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Set half the elements of states [T, W, D] to zero and double the others, in any mode of a model."""
    stays = _uniform(generator, *states.shape) >= DROP_RATE
    return torch.where(stays, states / (1.0 - DROP_RATE), 0.0)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw single-precision numbers in 0..1 without 1."""
    return torch.rand(*shape, generator=generator, device=generator.device)


NOISES: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "gaussian": gaussian,
    "shuffle": shuffle,
    "cutoff": cutoff,
    "dropout": dropout,
}
"""Name -> noise on states [T, W, D] of captions with lengths [T]."""


def add_noise(
    states: Tensor,
    lengths: Tensor,
    kinds: np.ndarray,
    generator: torch.Generator,
) -> Tensor:
    """Add noise of its own kind to the states [T, W, D] of each caption.

    Args:
        states, lengths, generator: see `gaussian`.
        kinds: T names of `NOISES`; others leave a caption as it is, for what is done before the encoder.
    """
    for name in sorted(NOISES):
        rows = torch.from_numpy(np.flatnonzero(kinds == name))
        rows = rows.to(states.device)
        noisy = NOISES[name](states[rows], lengths[rows], generator)
        states = states.index_copy(0, rows, noisy)
    return states


def shuffle_tokens(captions: TextBatch, rng: np.random.Generator) -> TextBatch:
    """Put what stands between the start and end token of captions into a random order."""
    places = torch.arange(captions.tokens.shape[1])
    inside = (places > 0) & (places < captions.lengths[:, None] - 1)
    edges = torch.where(places > 0, 1.0 + places, -1.0)
    drawn = torch.from_numpy(rng.random(captions.tokens.shape))
    order = torch.where(inside, drawn, edges).argsort(dim=1)
    return replace(captions, tokens=captions.tokens.gather(1, order))


def generated_positives(
    kind: str,
    data: TrainingSet,
    captions_of: Ragged,
    captions: np.ndarray,
    limits: TokenLimits,
    rng: np.random.Generator,
) -> TextBatch:
    """Make a further caption (T^+) of each of these.

    Args:
        kind: two captions of the image `joined` (Asymmetry-II), any two being equally probable, and the only one of an
            image twice; the first half of the caption, `shortened` (Asymmetry-III): of its tokens without start and
            end, rounded down, but at least one if there is one; or for each caption one of both, as probably the one as
            the other (`either`).
        data: the training set.
        captions_of: rows of the captions of each image.
        captions: rows [B].
        limits: of the longest caption that joining makes, start and end included; words past it are left out.
        rng: draws what is joined, and for `either` which of both is made.
    """
    first_rows = second_rows = captions
    joins = np.full(len(captions), kind == "joined")
    if kind != "shortened":
        images = data.caption_image[captions]
        counts = captions_of.counts[images]
        starts = captions_of.offsets[images]
        first = rng.integers(counts)
        second = rng.integers(np.maximum(counts - 1, 1))
        second = np.minimum(second + (second >= first), counts - 1)
        if kind == "either":
            joins = rng.random(len(captions)) < 0.5
        first_rows = np.where(joins, captions_of.values[starts + first], captions)
        second_rows = captions_of.values[starts + second]
    return _join_texts(data.texts(first_rows), data.texts(second_rows), torch.from_numpy(joins), limits)


def _join_texts(
    first: TextBatch,
    second: TextBatch,
    joins: Tensor,
    limits: TokenLimits,
) -> TextBatch:
    """Join captions with others where `joins` bool [B] says so, and shorten them elsewhere.

    The result has the first words of the one and behind them the first words of the other, between the ends of the one.
    """
    before, behind, longest = limits
    ends = before + behind
    room = longest - ends
    words = first.lengths - ends
    further_words = second.lengths - ends
    half = (words // 2).clamp(min=1).minimum(words)
    kept = torch.where(joins, words.clamp(max=room), half)
    added = torch.where(joins, further_words.minimum(room - kept), 0)
    lengths = kept + added + ends

    # Columns of what is gathered, in the tokens of the one and behind them those of the other.
    tokens = torch.cat([first.tokens, second.tokens], dim=1)
    places = torch.arange(int(lengths.max()))
    second_begins = (before + kept)[:, None]
    end_begins = lengths[:, None] - behind
    in_second = first.tokens.shape[1] + before + places - second_begins
    in_end = places - end_begins + (first.lengths - behind)[:, None]
    columns = torch.where(places < second_begins, places, in_second)
    columns = torch.where(places < end_begins, columns, in_end)
    gathered = tokens.gather(1, columns.clamp(max=tokens.shape[1] - 1))
    is_token = places < end_begins + behind
    return TextBatch(torch.where(is_token, gathered, 0), lengths, in_training=True)


@dataclass(frozen=True)
class NoisyCaptions(Tensors):
    """N captions with the noise that makes their negatives.

    Attributes:
        texts: the captions.
        kinds: of noise, N of them; None where no negatives are made.
        shuffled: rows [n] of captions whose tokens are shuffled before the encoder, ascending, and the captions [n]
            that this gives; None where there are none.
    """

    texts: TextBatch
    kinds: np.ndarray | None = None
    shuffled: tuple[Tensor, TextBatch] | None = None


@dataclass(eq=False, kw_only=True)
class AsclBatch(Batch):
    """N images with their captions and with positives made of these.

    Attributes:
        made: `originals`, T, and where they are made `positives`, T^+.
        seed: of the noise.
    """

    made: dict[str, NoisyCaptions]
    seed: int


class AsclMethod(Method[Ascl]):
    """Trains with generated positives and negatives.

    Raises:
        UsageError: joining makes longer captions than the text encoder reads.
    """

    def __init__(self, settings: Ascl, data: TrainingSet, limits: TokenLimits) -> None:
        super().__init__(settings, data)
        if settings.max_tokens > limits.longest:
            raise UsageError(
                f"loss.max_tokens = {settings.max_tokens}, but the text encoder reads {limits.longest} tokens at most; "
                f"give --set loss.max_tokens={limits.longest} or less"
            )

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> AsclBatch:
        """Build the batch of the captions and their images, and the tokens of what is made of them."""
        kind = self.settings.positives
        batch = super().collate(captions, rng)
        _, texts = batch.pairs["positive"]
        made = {"originals": self._with_noise(texts, rng)}
        if kind != "none":
            limits = TokenLimits(1, 1, self.settings.max_tokens)
            positives = generated_positives(
                kind,
                self.data,
                self.captions_of,
                captions,
                limits,
                rng,
            )
            made["positives"] = self._with_noise(positives, rng)
        return AsclBatch(**vars(batch), made=made, seed=int(rng.integers(2**63)))

    def losses(
        self,
        model: AsclEncoder,
        batch: AsclBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `ascl`: 1/2 L_I + 1/2 L_II&III (Eq. 7), or L_I alone where no positives are made ("w/o Pos").

        Both are among the statistics: the `caption_loss` of T, and that of T^+ with their own negatives.
        """
        losses = []
        image_batch, _ = batch.pairs["positive"]
        images = model.encode_images(image_batch)
        mask = same_image_mask(batch, self.settings.mask_same_image)
        generator = torch.Generator(batch.images.device).manual_seed(batch.seed)
        for name, captions in batch.made.items():
            texts = model.encode_texts(captions.texts)
            scores = model.score_matrix(images, texts).float()
            negatives = None
            if captions.kinds is not None:
                words = texts.words
                if captions.shuffled is not None:
                    rows, shuffled = captions.shuffled
                    shuffled_words = model.encode_texts(shuffled).words
                    # Narrower than the batch; what is past a caption's length may hold anything.
                    rest = words[rows, shuffled_words.shape[1] :]
                    filled = torch.cat([shuffled_words, rest], dim=1)
                    words = words.index_copy(0, rows, filled)
                noisy_words = add_noise(words, texts.lengths, captions.kinds, generator)
                noisy = replace(texts, words=noisy_words)
                negatives = model.score_matrix(images, noisy).float()
            loss = caption_loss(scores, negatives, mask, self.settings)
            losses.append(loss)
            batch.statistics[f"loss_of_{name}"] = loss.detach()
        return {"ascl": torch.stack(losses).mean()}

    def _with_noise(
        self,
        captions: TextBatch,
        rng: np.random.Generator,
    ) -> NoisyCaptions:
        """Draw the noise of each caption."""
        noise = self.settings.noise
        if noise == "none":
            return NoisyCaptions(captions)
        kinds_offered = np.array(list(NOISES) if noise == "mixture" else [noise])
        kinds = kinds_offered[rng.integers(len(kinds_offered), size=len(captions.lengths))]
        early = (kinds == "shuffle") & (self.settings.shuffle_at == "input")
        if not early.any():
            return NoisyCaptions(captions, kinds)
        rows = torch.from_numpy(np.flatnonzero(early))
        shuffled = shuffle_tokens(captions[rows], rng)
        longest = int(shuffled.lengths.max())
        shuffled = replace(shuffled, tokens=shuffled.tokens[:, :longest])
        return NoisyCaptions(captions, np.where(early, DONE, kinds), (rows, shuffled))


build = AsclMethod
