"""Negatives drawn from lists that were mined over the whole training set.

Source: AOQ (Chen et al., ECCV 2020), section 3.2: for an anchor the negative is sampled uniformly from the
top h of its list, and sampled again while the two drawn items correspond to each other. Candidates that
mining took for false negatives (FNE) can be drawn less often or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import UsageError

MAX_REDRAWS = 20
LEAST_WEIGHT = 1e-3
"""Weight of a candidate that is a match for certain, so that an anchor with no others still has a negative."""


@dataclass(frozen=True)
class FalseNegativeGuard:
    """What is known of false negatives among the candidates.

    Attributes:
        of_texts: [N, K1] probability of each candidate of `texts_for_images` to be a true match, 0..1.
        of_images: [T, K2] likewise of `images_for_texts`.
        drop_above: leave out candidates with a higher probability P; None draws from all, with weight 1 - P.
    """

    of_texts: np.ndarray
    of_images: np.ndarray
    drop_above: float | None = None

    def apply(self, lists: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Lists [A, K] without what is left out, and the weights [A, K] of the rest, None where all are alike."""
        if self.drop_above is None:
            return lists, np.maximum(1 - probability.astype(np.float32), LEAST_WEIGHT)
        goes = probability > self.drop_above
        order = np.argsort(goes, axis=1, kind="stable")
        return np.take_along_axis(np.where(goes, -1, lists), order, axis=1), None


@dataclass(frozen=True)
class OfflineQuintuplets:
    """Rows of the training set that one batch of positives is compared with.

    Attributes:
        text: [B] hard negative text of each image.
        image: [B] hard negative image of each text.
        text_of_image: [B] a text of `image`, picked at random among its own.
        image_of_text: [B] the image of `text`.
        corresponding: number of rows in which `text` still is a text of `image` after every redraw.
    """

    text: np.ndarray
    image: np.ndarray
    text_of_image: np.ndarray
    image_of_text: np.ndarray
    corresponding: int


class OfflineNegatives:
    """Draws offline hard negatives for batches of captions.

    Args:
        texts_for_images: [N, K1] caption rows, hardest first, for every image of the training set.
        images_for_texts: [T, K2] image rows, hardest first, for every caption.
        caption_image: [T] row of the image that each caption describes.
        top_texts: draw texts among the first so many of a list (h of the paper, 300).
        top_images: draw images among the first so many (h / 5 in the paper, 60).
        coupled: tie the rank of the image to the rank of the text, n and n * top_images // top_texts, as the
            released code does; otherwise the two are independent, as the paper reads.
        redraw: sample the text again while it corresponds to the drawn image (the paper; the code does not).
        guard: how likely the candidates are false negatives and what follows from that; None draws from all alike.

    Raises:
        UsageError: the lists are shorter than asked for, or an anchor has no candidate left. Where filters or the guard
            made a list shorter, negatives are drawn from what is left of its top.
    """

    def __init__(
        self,
        texts_for_images: np.ndarray,
        images_for_texts: np.ndarray,
        caption_image: np.ndarray,
        *,
        top_texts: int,
        top_images: int,
        coupled: bool = False,
        redraw: bool = True,
        guard: FalseNegativeGuard | None = None,
    ) -> None:
        for name, asked, lists in (
            ("top_texts", top_texts, texts_for_images),
            ("top_images", top_images, images_for_texts),
        ):
            if asked > lists.shape[1]:
                raise UsageError(
                    f"{name} = {asked} but the mined lists hold {lists.shape[1]}; "
                    f"lower --set aoq.{name}=… or raise --set mine_negatives.{name.replace('top', 'num')}=…"
                )
        of_texts = of_images = None
        if guard is not None:
            texts_for_images, of_texts = guard.apply(texts_for_images, guard.of_texts)
            images_for_texts, of_images = guard.apply(images_for_texts, guard.of_images)
        self._text_ranks = RankSampler("texts_for_images", texts_for_images, top_texts, of_texts)
        self._image_ranks = RankSampler("images_for_texts", images_for_texts, top_images, of_images)
        self._texts_for_images = texts_for_images
        self._images_for_texts = images_for_texts
        self._caption_image = caption_image
        self._top_texts, self._top_images = top_texts, top_images
        self._coupled, self._redraw = coupled, redraw
        order = np.argsort(caption_image, kind="stable")
        counts = np.bincount(caption_image, minlength=len(texts_for_images))
        self._own_captions, self._own_count = order, counts
        self._own_start = np.concatenate([[0], np.cumsum(counts)[:-1]])

    def draw(self, captions: np.ndarray, rng: np.random.Generator) -> OfflineQuintuplets:
        """Draws the offline negatives of a batch.

        Args:
            captions: [B] rows of the positive captions.
            rng: source of randomness.
        """
        images = self._caption_image[captions]
        rank = self._text_ranks.draw(rng, images)
        text = self._texts_for_images[images, rank]
        if self._coupled:
            image_rank = self._image_ranks.clip(rank * self._top_images // self._top_texts, captions)
        else:
            image_rank = self._image_ranks.draw(rng, captions)
        image = self._images_for_texts[captions, image_rank]
        if self._redraw:
            text = self._draw_again(text, image, images, rng)
        picked = (rng.random(len(image)) * self._own_count[image]).astype(np.int64)
        return OfflineQuintuplets(
            text=text,
            image=image,
            text_of_image=self._own_captions[self._own_start[image] + picked],
            image_of_text=self._caption_image[text],
            corresponding=int((self._caption_image[text] == image).sum()),
        )

    def _draw_again(
        self, text: np.ndarray, image: np.ndarray, anchors: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Replaces texts that describe the drawn image, a bounded number of times."""
        text = text.copy()
        for _ in range(MAX_REDRAWS):
            clash = np.flatnonzero(self._caption_image[text] == image)
            if not len(clash):
                break
            ranks = self._text_ranks.draw(rng, anchors[clash])
            text[clash] = self._texts_for_images[anchors[clash], ranks]
        return text


class RankSampler:
    """Draws places in the mined lists of one direction.

    Args:
        direction: name of the lists, for messages.
        lists: [A, K] rows of candidates; a missing one is negative and stands behind the last.
        top: draw among the first so many.
        weights: [A, K] of the candidates, above 0; None weighs all alike.

    Raises:
        UsageError: an anchor has no candidate.
    """

    def __init__(self, direction: str, lists: np.ndarray, top: int, weights: np.ndarray | None = None) -> None:
        counts = np.minimum((lists >= 0).sum(axis=1), top)
        if not counts.all():
            raise UsageError(
                f"{(counts == 0).sum():,} of {len(counts):,} anchors of {direction} have no candidate left: "
                "loosen the window that mine-negatives was given, or raise loss.drop_above"
            )
        self._top, self._limits = top, None if (counts == top).all() else counts
        self._cumulative = None
        if weights is not None:
            self._cumulative = np.cumsum(np.where(lists < 0, 0, weights)[:, :top], axis=1, dtype=np.float32)

    def draw(self, rng: np.random.Generator, anchors: np.ndarray) -> np.ndarray:
        """Ranks [B] for the given anchors [B]."""
        if self._cumulative is not None:
            sums = self._cumulative[anchors]
            drawn = rng.random(len(anchors)) * sums[:, -1]
            return self.clip((sums <= drawn[:, None]).sum(axis=1), anchors)
        if self._limits is None:
            return rng.integers(self._top, size=len(anchors))
        return rng.integers(self._limits[anchors])

    def clip(self, ranks: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Ranks [B], lowered to the last one that each anchor [B] has."""
        return np.minimum(ranks, (self._top if self._limits is None else self._limits[anchors]) - 1)
