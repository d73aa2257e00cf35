"""Negatives drawn from lists that were mined over the whole training set.

Source: AOQ (Chen et al., ECCV 2020), section 3.2: for an anchor the negative is sampled uniformly from the
top h of its list, and sampled again while the two drawn items correspond to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import UsageError

MAX_REDRAWS = 20


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

    Raises:
        UsageError: the lists are shorter than asked for, or an anchor has no candidate left. Where filters made a
            list shorter, negatives are drawn from what is left of its top.
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
        self._text_limits = _limits("texts_for_images", texts_for_images, top_texts)
        self._image_limits = _limits("images_for_texts", images_for_texts, top_images)
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
        rank = _ranks(rng, self._top_texts, self._text_limits, images)
        text = self._texts_for_images[images, rank]
        if self._coupled:
            image_rank = rank * self._top_images // self._top_texts
            if self._image_limits is not None:
                image_rank = np.minimum(image_rank, self._image_limits[captions] - 1)
        else:
            image_rank = _ranks(rng, self._top_images, self._image_limits, captions)
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
            ranks = _ranks(rng, self._top_texts, self._text_limits, anchors[clash])
            text[clash] = self._texts_for_images[anchors[clash], ranks]
        return text


def _limits(direction: str, lists: np.ndarray, top: int) -> np.ndarray | None:
    """How many candidates each anchor [A] draws from, or None where all draw from `top`; a missing one is negative."""
    counts = np.minimum((lists >= 0).sum(axis=1), top)
    if not counts.all():
        raise UsageError(
            f"{(counts == 0).sum():,} of {len(counts):,} anchors of {direction} have no candidate left: "
            "loosen the window that mine-negatives was given"
        )
    return None if (counts == top).all() else counts


def _ranks(rng: np.random.Generator, top: int, limits: np.ndarray | None, anchors: np.ndarray) -> np.ndarray:
    """Uniform ranks [B] below what each anchor has."""
    return rng.integers(top, size=len(anchors)) if limits is None else rng.integers(limits[anchors])
