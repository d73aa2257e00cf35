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

IMAGE_DIM, GLOBAL_DIM, FRAME = 8, 8, (32, 32)
"""Width of a region feature and of the vector of a whole image; height and width of the pixels."""
START, END, UNKNOWN = 1, 2, 3
WORDS = range(4, 20)
VOCABULARY = WORDS.stop
"""Number of token ids: padding, start, end, unknown and the words."""
MASK = VOCABULARY
"""Token id that models which mask words add to these."""
REGIONS, LONGEST, CAPTIONS, PHRASES = 4, 8, 2, 3


def readable(model: AnyMatcher, **given: Any) -> ToyPairs:
    """A training set of which a model reads the images: their numbers of regions differ, unless it refuses that.

    Args:
        model: is put into evaluation mode.
        given: to `ToyPairs`.
    """
    data = ToyPairs(**given)
    try:
        with torch.no_grad():
            model.eval().encode_images(data.images(np.arange(data.num_images)))
    except DataError:
        return ToyPairs(**given, uneven=False)
    return data


class ToyPairs:
    """N images with two captions each; captions stand in the order of their images.

    Args:
        seed: of all features and words.
        images: N.
        uneven: whether images differ in their number of regions.

    Attributes:
        caption_image: [T] int64, row of the image of each caption.
        num_images, num_captions: N and T.
        limits, masks, sentences: what methods may read beside the pairs, see `itrpipe.methods.declaration.INPUTS`; so
            are `lists()` and `matching`.
    """

    def __init__(self, seed: int = 0, images: int = 12, uneven: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.num_images = images
        self.num_captions = CAPTIONS * images
        self.caption_image = np.repeat(np.arange(images), CAPTIONS)
        regions = torch.from_numpy(rng.standard_normal((images, REGIONS, IMAGE_DIM), dtype=np.float32))
        count = torch.from_numpy(rng.integers(2, REGIONS + 1, images)) if uneven else None
        if count is not None:
            regions[torch.arange(REGIONS) >= count[:, None]] = 0.0
        whole = torch.from_numpy(rng.standard_normal((images, GLOBAL_DIM), dtype=np.float32))
        pixels = torch.from_numpy(rng.integers(0, 256, (images, 3, *FRAME), dtype=np.uint8))
        corners = np.sort(rng.random((images, REGIONS, 2, 2), dtype=np.float32), axis=2)
        self._images = ImageBatch(regions, count, whole, pixels, torch.from_numpy(corners.reshape(images, REGIONS, 4)))
        lengths = rng.integers(5, LONGEST + 1, self.num_captions)
        place = np.arange(LONGEST)
        ends = lengths[:, None] - 1
        words = rng.integers(WORDS.start, WORDS.stop, (self.num_captions, LONGEST))
        words[:, 0] = START
        tokens = np.where(place == ends, END, np.where(place < ends, words, 0))
        members = (np.arange(PHRASES)[:, None] == place % PHRASES) & (place <= ends)[:, None]  # [T, P, W]
        phrases = PhraseBatch(torch.arange(PHRASES).expand(len(tokens), -1), torch.from_numpy(members))
        self._texts = TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), phrases)
        self.limits = TokenLimits(1, 1, 8 * LONGEST)
        words = np.where((place > 0) & (place < ends), place - 1, NO_WORD)
        single = np.eye(LONGEST - 2, dtype=bool)[None]
        specials = SpecialTokens(MASK, (0, START, END, UNKNOWN), (WORDS.start, WORDS.stop))
        known = tokens, words, self.caption_image
        self.masks = CaptionMasks(*known, lambda rows: np.repeat(single, len(rows), axis=0), specials, "piece")
        written = np.repeat(tokens, 2, axis=0)
        written[:, 1] = WORDS.start + np.arange(len(written)) % len(WORDS)
        starts = 2 * np.arange(self.num_captions + 1)
        # The twin of the first sentence of a caption is the mirrored image, that of the second is the next image.
        shown = np.stack([self.caption_image, (self.caption_image + 1) % images], axis=1).ravel()
        told = np.stack([np.repeat(tokens, 2, axis=0), written]), np.stack([np.repeat(lengths, 2)] * 2)
        self.sentences = SentenceBank(written, told[1][0], starts, shown, told, np.arange(len(shown)) % 2)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Everything that is known of the given image rows [B]."""
        return self._images[torch.from_numpy(rows)]

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens and phrases of the given caption rows [T], cut to the longest of them."""
        found = self._texts[torch.from_numpy(rows)]
        width = int(found.lengths.max())
        phrases = found.phrases
        assert phrases is not None
        cut = replace(phrases, tokens=phrases.tokens[..., :width])
        return replace(found, tokens=found.tokens[:, :width], phrases=cut)

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches of image rows and caption rows, [B] each."""
        return self.images(images), self.texts(captions)

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> torch.Tensor:
        """bool [n, P + W], which phrases and words of captions hold for images: of other images the first ones."""
        own = self.caption_image[captions] == images
        holds = np.broadcast_to(own[:, None], (len(captions), num_phrases + num_words)).copy()
        holds[:, [0, num_phrases]] = True
        return torch.from_numpy(holds)

    def lists(self) -> dict[str, np.ndarray]:
        """Mined lists: every image's captions of others, and every caption's other images, the nearest rows first."""
        others = (np.arange(self.num_images)[:, None] + np.arange(1, self.num_images)) % self.num_images  # [N, N - 1]
        lists = {"texts_for_images": CAPTIONS * others, "images_for_texts": others[self.caption_image]}
        chances = {
            f"{PROBABILITY_OF}{name}": np.full(each.shape, 0.1, dtype=np.float32) for name, each in lists.items()
        }
        return lists | chances

    def pair_sizes(self) -> np.ndarray:
        """[T] words of each caption and regions of its image together."""
        return self._texts.lengths.numpy() + REGIONS
