"""A training set in memory that has everything any backbone or method reads, and in which nothing is related.

Shapes: N images, R regions, T captions, W tokens, P phrases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from itrpipe.errors import DataError
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.learning.sentences import NO_WORD, CaptionMasks, SentenceBank, SpecialTokens
from itrpipe.methods.base import AnyMatcher, TokenLimits
from itrpipe.models.base import ImageBatch, PhraseBatch, TextBatch

IMAGE_DIM = 8
"""Width of a region feature."""
GLOBAL_DIM = 8
"""Width of the vector of a whole image."""
FRAME = (32, 32)
"""Height and width of the pixels."""
START, END, UNKNOWN = 1, 2, 3
WORDS = range(4, 20)
VOCABULARY = WORDS.stop
"""Number of token ids: padding, start, end, unknown and the words."""
MASK = VOCABULARY
"""Token id that models which mask words add to these."""
REGIONS = 4
LONGEST = 8
"""Tokens of the longest caption."""
CAPTIONS = 2
"""Captions of an image."""
PHRASES = 3


def readable(model: AnyMatcher, **options: Any) -> ToyPairs:
    """Return a training set whose images a model reads: their numbers of regions differ, unless it refuses that.

    Args:
        model: is put into evaluation mode.
        options: of `ToyPairs`.
    """
    data = ToyPairs(**options)
    try:
        with torch.no_grad():
            model.eval().encode_images(data.images(np.arange(data.num_images)))
    except DataError:
        return ToyPairs(**options, uneven=False)
    return data


class ToyPairs:
    """N images with two captions each; captions stand in the order of their images.

    Args:
        seed: seed of all features and words.
        images: N.
        uneven: whether images differ in their number of regions.

    Attributes:
        caption_image: [T] int64, row of the image of each caption.
        num_images, num_captions: N and T.
        limits, masks, sentences: inputs that methods may read beside the pairs, as are `lists()` and `matching`; see
            `itrpipe.methods.declaration.INPUTS`.
    """

    def __init__(self, seed: int = 0, images: int = 12, uneven: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.num_images = images
        self.num_captions = CAPTIONS * images
        self.caption_image = np.repeat(np.arange(images), CAPTIONS)
        self._images = _images(rng, images, uneven)

        lengths = rng.integers(5, LONGEST + 1, self.num_captions)
        ends = lengths[:, None] - 1
        words = rng.integers(WORDS.start, WORDS.stop, (self.num_captions, LONGEST))
        words[:, 0] = START
        place = np.arange(LONGEST)
        tokens = np.where(place < ends, words, 0)
        tokens[place == ends] = END
        in_caption = place <= ends
        in_phrase = np.arange(PHRASES)[:, None] == place % PHRASES
        members = in_phrase & in_caption[:, None]  # [T, P, W]
        phrases = PhraseBatch(torch.arange(PHRASES).expand(len(tokens), -1), torch.from_numpy(members))
        self._texts = TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), phrases)

        self.limits = TokenLimits(1, 1, 8 * LONGEST)
        word_numbers = np.where((place > 0) & (place < ends), place - 1, NO_WORD)
        each_word = np.eye(LONGEST - 2, dtype=bool)[None]
        specials = SpecialTokens(MASK, (0, START, END, UNKNOWN), (WORDS.start, WORDS.stop))
        self.masks = CaptionMasks(
            tokens,
            word_numbers,
            self.caption_image,
            lambda rows: np.repeat(each_word, len(rows), axis=0),
            specials,
            "piece",
        )

        # Every caption has two written sentences.
        captions = np.repeat(tokens, 2, axis=0)
        caption_lengths = np.repeat(lengths, 2)
        sentences = captions.copy()
        sentences[:, 1] = WORDS.start + np.arange(len(sentences)) % len(WORDS)
        starts = 2 * np.arange(self.num_captions + 1)
        # The twin of the first sentence of a caption is the mirrored image, that of the second is the next image.
        next_image = (self.caption_image + 1) % images
        twins = np.stack([self.caption_image, next_image], axis=1).ravel()
        kinds = np.arange(len(twins)) % 2
        details = np.stack([captions, sentences]), np.stack([caption_lengths, caption_lengths])
        self.sentences = SentenceBank(sentences, caption_lengths, starts, twins, details, kinds)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Return everything that there is of some image rows [B]."""
        return self._images[torch.from_numpy(rows)]

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Return tokens and phrases of some caption rows [T], cut to the longest of them."""
        texts = self._texts[torch.from_numpy(rows)]
        width = int(texts.lengths.max())
        phrases = texts.phrases
        assert phrases is not None
        phrases = replace(phrases, tokens=phrases.tokens[..., :width])
        return replace(texts, tokens=texts.tokens[:, :width], phrases=phrases)

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Return aligned batches of image rows and caption rows, [B] each."""
        return self.images(images), self.texts(captions)

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> torch.Tensor:
        """Return which phrases and words of captions hold for images, bool [n, P + W]; for others the first of each."""
        is_own = self.caption_image[captions] == images
        holds = np.repeat(is_own[:, None], num_phrases + num_words, axis=1)
        holds[:, [0, num_phrases]] = True
        return torch.from_numpy(holds)

    def lists(self) -> dict[str, np.ndarray]:
        """Return mined lists: captions of others for every image, other images for every caption, next rows first."""
        others = (np.arange(self.num_images)[:, None] + np.arange(1, self.num_images)) % self.num_images  # [N, N - 1]
        lists = {"texts_for_images": CAPTIONS * others, "images_for_texts": others[self.caption_image]}
        probabilities = {}
        for name, rows in lists.items():
            probabilities[f"{PROBABILITY_OF}{name}"] = np.full(rows.shape, 0.1, dtype=np.float32)
        return lists | probabilities

    def pair_sizes(self) -> np.ndarray:
        """Return the words of each caption and the regions of its image together, [T]."""
        return self._texts.lengths.numpy() + REGIONS


def _images(rng: np.random.Generator, images: int, uneven: bool) -> ImageBatch:
    regions = torch.from_numpy(rng.standard_normal((images, REGIONS, IMAGE_DIM), dtype=np.float32))
    count = None
    if uneven:
        count = torch.from_numpy(rng.integers(2, REGIONS + 1, images))
        regions[torch.arange(REGIONS) >= count[:, None]] = 0.0
    whole = torch.from_numpy(rng.standard_normal((images, GLOBAL_DIM), dtype=np.float32))
    pixels = torch.from_numpy(rng.integers(0, 256, (images, 3, *FRAME), dtype=np.uint8))
    corners = np.sort(rng.random((images, REGIONS, 2, 2), dtype=np.float32), axis=2)
    boxes = torch.from_numpy(corners.reshape(images, REGIONS, 4))
    return ImageBatch(regions, count, whole, pixels, boxes)
