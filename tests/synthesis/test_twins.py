"""Twins of edited captions: which captions of other images say what an edit says, and which are none."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.synthesis.edits import EDITS, Corpus
from itrpipe.synthesis.rules import RuleMaker, Twins
from itrpipe.synthesis.tagged import Image
from tests.synthesis.test_edits import tagged
from tests.synthesis.test_masked import split_of

RED, BLUE = "a red cup on a table", "a blue cup"


@pytest.mark.parametrize(
    ("kind", "text", "others", "expected"),
    [
        ("attribute", RED, [[BLUE], ["a blue cup on a table"]], "a blue cup on a table"),  # has most in common
        ("attribute", RED, [[BLUE, "a red cup"]], None),  # of which the caption is true as well
        ("attribute", RED, [[BLUE, "a cup beside a cup"]], None),  # of several cups another may be red
        ("object", "a red cup", [["a red bowl", "a mug"]], None),  # which is a cup
        ("count", "two dogs", [["three dogs"]], "three dogs"),
        ("count", "two dogs", [["three dogs", "four dogs"]], None),  # nobody knows
        ("attribute", "a red cup", [["a blue cup", "a black cup"]], None),
        ("relation", "a cup on a table", [["a cup under a table"]], "a cup under a table"),
    ],
)
def test_a_twin_says_what_the_edit_says_and_contradicts_the_caption(
    kind: str, text: str, others: list[list[str]], expected: str | None
) -> None:
    texts = [[text], *others]
    captions = [[tagged(each) for each in own] for own in texts]
    every = [each for own in captions for each in own]
    owners = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    option = next(iter(EDITS[kind](captions[0][0], Image(captions[0]), Corpus(every, 1))))
    found = Twins(every, owners, lambda row: Image(captions[row])).of(
        captions[0][0], Image(captions[0]), option, np.random.default_rng(0)
    )
    assert (None if found is None else every[found].text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "others", "expected"),
    [
        ("attribute", "on the grass, a small green cup", ["an orange cup"], ("a green cup", "an orange cup")),
        (
            "exchange",
            "his red cup on a blue table",
            ["a red table", "a blue cup"],
            ("red cup and a blue table", "blue cup and a red table"),
        ),
        ("object", "red cups", ["a red bowl"], ("cups", "bowls")),
        ("ends", "a black dog chases a cat", ["a cat chases a dog"], ("a dog chases a cat", "a cat chases a dog")),
        ("relation", "a cup on a red table", ["a cup under a table"], ("a cup on a table", "a cup under a table")),
        ("count", "two white dogs run", ["three dogs"], ("two dogs", "three dogs")),
    ],
)
def test_what_is_told_of_both_images_is_the_detail_alone(
    kind: str, text: str, others: list[str], expected: tuple[str, str]
) -> None:
    caption = tagged(text)
    options = EDITS[kind](caption, Image([caption]), Corpus([caption, *map(tagged, others)], 1))
    assert next(iter(options)).told() == expected


def test_sentences_without_a_twin_are_left_out_and_sides_have_their_mirror_image() -> None:
    texts = ("a dog left of a cat", "a red cup", "a blue cup", "a sign left of a tree")
    captions = list(map(tagged, texts))
    kinds = ("attribute", "side")
    maker = RuleMaker(split_of(texts, [0, 1, 2, 3]), captions, Corpus(captions, 1), kinds, 2, seed=0, twins=1)
    sentences, drawn = maker.make(range(4), 0)
    ids = maker.split.image_ids.tolist()
    assert [(each.told, each.twin_told, each.twin_image_id) for each in sentences] == [
        ("a dog left of a cat", "a dog right of a cat", ids[0]),
        ("a red cup", "a blue cup", ids[2]),
        ("a blue cup", "a red cup", ids[1]),
    ]
    assert drawn == {"kept": 3, "no twin": 1}  # a mirror makes signs unreadable
