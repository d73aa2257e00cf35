"""Twins of edited captions: images of which the edit is true and the caption is not.

Left and right of an image change places in its mirror. For other edits captions of other images say, by their scene
graphs, what the edit says and nothing that it took away; of these captions one is taken that has most in common with
the edited one. A pair of images and a pair of sentences then change places: neither can be told by heart.

Source: ours; Thrush et al., "Winoground" (CVPR 2022), for such quadruples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from itrpipe.synthesis.english import may_be
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, nouns_of

_TRIES = 8
"""Captions with equally much in common that are looked at."""


class Twins:
    """Finds captions that say what an edit of another caption says.

    Args:
        captions: of the training split, T of them.
        caption_image: [T] row of the image of each.
        image: gives all captions of an image by its row.
    """

    def __init__(
        self, captions: Sequence[TaggedCaption], caption_image: np.ndarray, image: Callable[[int], Image]
    ) -> None:
        self._captions, self._caption_image, self._image = captions, caption_image, image
        self._saying: dict[Statement, set[int]] = defaultdict(set)
        for row, caption in enumerate(captions):
            for each in _content(caption):
                self._saying[each].add(row)

    def of(self, caption: TaggedCaption, option: Option, rng: np.random.Generator) -> int | None:
        """Row of a caption that says what an edit of another one says, and is of an image that the other is false of.

        Args:
            caption: the other one.
            option: the edit.
            rng: chooses among captions that have equally much in common.
        """
        found = [set.intersection(*(self._saying[each] for each in option.new))]
        for each in sorted(_content(caption).difference(option.old), key=lambda each: (len(self._saying[each]), each)):
            if closer := found[-1] & self._saying[each]:
                found.append(closer)
        for rows in map(sorted, reversed(found)):
            for place in rng.permutation(len(rows))[:_TRIES]:
                if contradicts(self._image(int(self._caption_image[rows[place]])), option):
                    return rows[place]
        return None


def contradicts(image: Image, option: Option) -> bool:
    """Whether the captions of an image say what an edit says, of one thing each, and nothing that it took away."""
    placed = {noun for each in option.new if each[0] != "count" for noun in nouns_of(each)}
    gone = {noun for each in option.old for noun in nouns_of(each)}.difference(*map(nouns_of, option.new))
    return (
        image.said.isdisjoint(option.old)
        and image.has_one(*placed)
        and not any(may_be(noun, known) for noun in gone for known in image.nouns)
    )


def _content(caption: TaggedCaption) -> set[Statement]:
    """What a caption says and names."""
    return {*caption.sure, *((NOUN, noun) for noun in caption.nouns)}
