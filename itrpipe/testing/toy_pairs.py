"""A training set in memory that has everything any backbone or method reads, and in which nothing is related.

Shapes: N images, R regions, T captions, W tokens, P phrases.
"""

from __future__ import annotations

import numpy as np
import torch

from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.learning.sentences import NO_WORD, CaptionMasks, SentenceBank, SpecialTokens
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


class ToyPairs:
    """N images with two captions each; captions stand in the order of their images.

    Args:
        seed: of all features and words.
        images: N.
        uneven: whether images differ in their number of regions.

    Attributes:
        caption_image: [T] int64, row of the image of each caption.
        num_images, num_captions: N and T.
        masks, sentences, ends, max_tokens: as methods read them of `itrpipe.training.data.SplitData`.
    """

    def __init__(self, seed: int = 0, images: int = 12, uneven: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.num_images, self.num_captions = images, CAPTIONS * images
        self.caption_image = np.repeat(np.arange(images), CAPTIONS)
        self._regions = torch.from_numpy(rng.standard_normal((images, REGIONS, IMAGE_DIM), dtype=np.float32))
        self._count = torch.from_numpy(rng.integers(2, REGIONS + 1, images)) if uneven else None
        if self._count is not None:
            self._regions[torch.arange(REGIONS) >= self._count[:, None]] = 0.0
        self._global = torch.from_numpy(rng.standard_normal((images, GLOBAL_DIM), dtype=np.float32))
        self._pixels = torch.from_numpy(rng.integers(0, 256, (images, 3, *FRAME), dtype=np.uint8))
        corners = np.sort(rng.random((images, REGIONS, 2, 2), dtype=np.float32), axis=2)
        self._boxes = torch.from_numpy(corners.reshape(images, REGIONS, 4))
        self._lengths = rng.integers(5, LONGEST + 1, self.num_captions)
        self._tokens = _captions(self._lengths, rng)
        self.ends, self.max_tokens = (1, 1), 4 * LONGEST
        self._phrases = np.arange(PHRASES)[:, None] == np.arange(LONGEST) % PHRASES  # [P, W]
        self.masks = _masks(self._tokens, self._lengths, self.caption_image)
        self.sentences = _sentences(self._tokens, self._lengths)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Everything that is known of the given image rows [B]."""
        count = None if self._count is None else self._count[rows]
        return ImageBatch(self._regions[rows], count, self._global[rows], self._pixels[rows], self._boxes[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens and phrases of the given caption rows [T], cut to the longest of them."""
        lengths = self._lengths[rows]
        width = int(lengths.max())
        real = np.arange(width) < lengths[:, None]
        members = torch.from_numpy(self._phrases[None, :, :width] & real[:, None])
        kinds = torch.arange(PHRASES).expand(len(rows), -1)
        tokens = torch.from_numpy(self._tokens[rows, :width])
        return TextBatch(tokens, torch.from_numpy(lengths), PhraseBatch(kinds, members))

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
        return self._lengths + REGIONS


def _captions(lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    tokens = rng.integers(WORDS.start, WORDS.stop, (len(lengths), LONGEST))
    place = np.arange(LONGEST)
    tokens[:, 0] = START
    return np.where(place == lengths[:, None] - 1, END, np.where(place < lengths[:, None], tokens, 0))


def _masks(tokens: np.ndarray, lengths: np.ndarray, caption_image: np.ndarray) -> CaptionMasks:
    place = np.arange(LONGEST)
    words = np.where((place > 0) & (place < lengths[:, None] - 1), place - 1, NO_WORD)
    specials = SpecialTokens(MASK, (0, START, END, UNKNOWN), (WORDS.start, WORDS.stop))
    single = np.eye(LONGEST - 2, dtype=bool)
    return CaptionMasks(
        tokens, words, caption_image, lambda rows: np.repeat(single[None], len(rows), axis=0), specials, "piece"
    )


def _sentences(tokens: np.ndarray, lengths: np.ndarray) -> SentenceBank:
    owners = np.repeat(np.arange(len(tokens)), 2)
    written = tokens[owners]
    written[:, 1] = WORDS.start + np.arange(len(owners)) % len(WORDS)
    return SentenceBank(written, lengths[owners], 2 * np.arange(len(tokens) + 1))
