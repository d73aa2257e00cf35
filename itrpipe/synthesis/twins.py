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

from itrpipe.synthesis.english import NUMBER_VALUES, RELATIVE, contradicting_attributes, may_be, usual_attribute
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, nouns_of

_TRIES = 8
"""Captions with equally much in common that are looked at."""


class Twins:
    """Finds captions that say what an edit of another caption says.

    Args:
        captions: of the training split, T of them.
        caption_image: [T] row of the image of each.
        image: gives all captions of an image by its row.
        agreeing: captions of an image that have to say what is told of it.
    """

    def __init__(
        self,
        captions: Sequence[TaggedCaption],
        caption_image: np.ndarray,
        image: Callable[[int], Image],
        agreeing: int = 1,
    ) -> None:
        self._captions, self._caption_image, self._image, self._agreeing = captions, caption_image, image, agreeing
        self._saying: dict[Statement, set[int]] = defaultdict(set)
        for row, caption in enumerate(captions):
            for each in caption.content:
                self._saying[each].add(row)

    def of(self, caption: TaggedCaption, own: Image, option: Option, rng: np.random.Generator) -> int | None:
        """Row of a caption that says what an edit of another one says, and is of an image that the other is false of.

        Args:
            caption: the other one.
            own: the captions of its image.
            option: the edit.
            rng: chooses among captions that have equally much in common.
        """
        if not settled(own, option.old, self._agreeing):
            return None
        found = [set.intersection(*(self._saying[each] for each in option.new))]
        for each in sorted(caption.content.difference(option.old), key=lambda each: (len(self._saying[each]), each)):
            if closer := found[-1] & self._saying[each]:
                found.append(closer)
        for rows in map(sorted, reversed(found)):
            for place in rng.permutation(len(rows))[:_TRIES]:
                if contradicts(self._image(int(self._caption_image[rows[place]])), option, self._agreeing):
                    return rows[place]
        return None


def contradicts(image: Image, option: Option, agreeing: int) -> bool:
    """Whether captions of an image settle what an edit says, of one thing each, and say nothing that it took away."""
    placed = {noun for each in option.new if each[0] != "count" for noun in nouns_of(each)}
    gone = {noun for each in option.old for noun in nouns_of(each)}.difference(*map(nouns_of, option.new))
    return (
        image.said.isdisjoint(option.old)
        and image.has_one(*placed)
        and not any(may_be(noun, known) for noun in gone for known in image.nouns)
        and settled(image, option.new, agreeing)
    )


def settled(image: Image, statements: Sequence[Statement], agreeing: int) -> bool:
    """Whether so many captions of an image make these statements, and none a rival one: another colour or number.

    Where several have to agree, sizes and ages are never settled: they are so beside others.
    """
    rivals = {
        (kind, other, noun)
        for kind, word, noun in (each for each in statements if each[0] in ("is", "count"))
        for other in (NUMBER_VALUES if kind == "count" else map(usual_attribute, contradicting_attributes(word)))
    }
    named = [each for each in statements if each[0] == NOUN] or statements
    return (
        (agreeing == 1 or RELATIVE.isdisjoint(word for each in statements for word in each[1:2]))
        and image.said.isdisjoint(rivals.difference(statements))
        and sum(each.content.issuperset(named) for each in image.captions) >= agreeing
    )
