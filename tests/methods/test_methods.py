"""Methods put batch, scores and loss together as the papers say, checked against the formulas written out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from itrpipe.methods import registry
from itrpipe.methods.aoq import method as aoq
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.registry import method_module, methods
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.negatives.sentence_bank import SentenceBank
from tests.methods.toys import KnownPairs, Lookup

CAPTION_IMAGE = KnownPairs().caption_image


def hinge(value: float) -> float:
    return max(0.0, value)


def score(rows: KnownPairs, image: int, text: int) -> float:
    return float(rows.image_table[image] @ rows.text_table[text])


def test_every_folder_declares_a_method_and_builds_it():
    folders = {path.parent.name for path in Path(registry.__file__).parent.glob("*/__init__.py")}
    assert {name.replace("-", "_") for name in methods()} == folders
    assert (methods()["triplet"], methods()["aoq"]) == (Triplet, Aoq)
    for name in methods():
        assert callable(method_module(name).build)


@pytest.mark.parametrize("variant", ["offline-triplet", "quintuplet", "adaptive-quintuplet"])
def test_aoq_scores_the_pairs_of_the_paper(variant):
    rows = KnownPairs()
    settings = Aoq(variant=variant, top_texts=10, top_images=5)
    method = aoq.build(settings, rows, rows.lists())
    captions = np.array([0, 3, 5, 10])
    batch = method.collate(captions, np.random.default_rng(0))
    drawn = method._negatives.draw(captions, np.random.default_rng(0))

    expected = 0.0
    for k, text in enumerate(captions):
        image = CAPTION_IMAGE[text]
        positive = score(rows, image, text)
        online_text = max(score(rows, image, other) for other in captions if other != text)
        online_image = max(score(rows, CAPTION_IMAGE[other], text) for other in captions if other != text)
        a, b = score(rows, image, drawn.text[k]), score(rows, drawn.image[k], text)
        c = score(rows, drawn.image[k], drawn.text[k])
        d = score(rows, drawn.image_of_text[k], drawn.text_of_image[k])
        u = w = 1.0
        if variant == "adaptive-quintuplet":
            u, w = 1.5 - (a - online_text) / 0.3, 1.5 - (b - online_image) / 0.3
        expected += u * hinge(0.2 - positive + online_text) + w * hinge(0.2 - positive + online_image)
        expected += hinge(a - positive) + hinge(b - positive)
        if variant != "offline-triplet":
            expected += hinge(c - positive) + hinge(d - positive)

    losses = method.losses(Lookup(rows), batch, epoch=0)
    assert set(losses) == {"aoq"}
    assert losses["aoq"].item() == pytest.approx(expected, abs=1e-5)


def test_the_first_epochs_of_aoq_are_the_plain_sum_over_all_negatives():
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])
    method = aoq.build(Aoq(top_texts=10, top_images=5, sum_epochs=2), rows, rows.lists())
    plain = triplet.build(Triplet(max_violation=False), rows, {})
    batch = method.collate(captions, np.random.default_rng(0))
    expected = plain.losses(Lookup(rows), plain.collate(captions, np.random.default_rng(0)), epoch=0)
    assert method.losses(Lookup(rows), batch, epoch=1)["triplet"].item() == expected["triplet"].item()
    assert "aoq" in method.losses(Lookup(rows), batch, epoch=2)


def test_triplet_turns_to_hardest_negatives_after_its_sum_epochs():
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])
    warm = triplet.build(Triplet(sum_epochs=1), rows, {})
    hardest = triplet.build(Triplet(), rows, {})
    batch = warm.collate(captions, np.random.default_rng(0))
    first, second = (warm.losses(Lookup(rows), batch, epoch)["triplet"].item() for epoch in (0, 1))
    assert second == hardest.losses(Lookup(rows), batch, epoch=0)["triplet"].item()
    assert first > second


class RowsWithSentences(KnownPairs):
    """Caption c has c % 3 sentences, which are rows of the table of captions as well."""

    def __init__(self) -> None:
        super().__init__()
        counts = np.arange(len(CAPTION_IMAGE)) % 3
        owners = np.repeat(np.arange(len(CAPTION_IMAGE)), counts)
        written = (owners + 5 + np.arange(len(owners)) % 4) % len(CAPTION_IMAGE)
        starts = np.concatenate([[0], np.cumsum(counts)])
        self.sentences = SentenceBank(written[:, None], np.ones_like(written), starts)
        self.of_caption = [written[start:end].tolist() for start, end in pairwise(starts)]


def test_the_hardest_synthetic_sentence_of_a_caption_is_a_further_negative_of_its_image():
    rows, captions = RowsWithSentences(), np.array([0, 4, 5, 11])
    method = triplet.build(Triplet(synthetic_sentences=2, synthetic_weight=0.5, margin=1.0), rows, {})
    batch = method.collate(captions, np.random.default_rng(0))
    assert batch.sentences is not None
    assert batch.sentences.owners.tolist() == [1, 2, 2, 3, 3]
    losses = method.losses(Lookup(rows), batch, epoch=0)
    expected = 0.0
    for caption in captions:
        image = int(CAPTION_IMAGE[caption])
        costs = [hinge(1 - score(rows, image, caption) + score(rows, image, each)) for each in rows.of_caption[caption]]
        expected += max(costs, default=0.0)
    assert expected > 0
    assert losses["synthetic"].item() == pytest.approx(0.5 * expected, abs=1e-5)
    plain = triplet.build(Triplet(margin=1.0), rows, {})
    without = plain.losses(Lookup(rows), plain.collate(captions, np.random.default_rng(0)), epoch=0)
    assert without.keys() == {"triplet"}
    assert losses["triplet"].item() == without["triplet"].item()


def test_fewer_sentences_than_there_are_are_drawn_at_random():
    rows = RowsWithSentences()
    method = triplet.build(Triplet(synthetic_sentences=1), rows, {})
    seen: set[int] = set()
    for seed in range(20):
        sentences = method.collate(np.array([5, 0]), np.random.default_rng(seed)).sentences
        assert sentences is not None
        assert sentences.owners.tolist() == [0]
        seen |= set(sentences.texts.tokens[:, 0].tolist())
    assert seen == set(rows.of_caption[5])


def test_captions_without_sentences_are_trained_without():
    rows = RowsWithSentences()
    method = triplet.build(Triplet(synthetic_sentences=2), rows, {})
    batch = method.collate(np.array([0, 3]), np.random.default_rng(0))
    assert batch.sentences is None
    assert method.losses(Lookup(rows), batch, epoch=0).keys() == {"triplet"}


def test_two_captions_of_one_image_stop_being_negatives_on_request():
    rows = KnownPairs()
    captions = np.array([0, 1, 5])
    values = {}
    for masked in (False, True):
        method = triplet.build(Triplet(max_violation=False, mask_same_image=masked), rows, {})
        values[masked] = method.losses(Lookup(rows), method.collate(captions, np.random.default_rng(0)), 0)["triplet"]
    same = [(0, 1), (1, 0)]
    removed = sum(
        hinge(0.2 - score(rows, 0, own) + score(rows, 0, other))
        + hinge(0.2 - score(rows, 0, other) + score(rows, 0, other))
        for own, other in same
    )
    assert removed > 0
    assert (values[False] - values[True]).item() == pytest.approx(removed, abs=1e-5)


def test_the_backbones_own_loss_is_added_with_its_weight():
    rows = KnownPairs()
    method = triplet.build(Triplet(auxiliary_weight=0.5), rows, {})
    batch = method.collate(np.array([0, 3]), np.random.default_rng(0))
    assert method.losses(Lookup(rows, auxiliary=3.0), batch, 0)["auxiliary"].item() == 1.5
    off = triplet.build(Triplet(auxiliary_weight=0.0), rows, {})
    assert "auxiliary" not in off.losses(Lookup(rows, auxiliary=3.0), batch, 0)


@pytest.mark.parametrize(
    ("variant", "option", "value"),
    [
        ("quintuplet", "online_term", False),
        ("offline-triplet", "online_term", False),
        ("quintuplet", "quintuplet_pairs", "online"),
        ("adaptive-quintuplet", "weight_by", "positive"),
    ],
)
def test_options_of_table_3_reach_the_loss_and_only_their_own_variant(variant, option, value):
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])

    def loss(**options):
        method = aoq.build(Aoq(variant=variant, top_texts=10, top_images=5, **options), rows, rows.lists())
        batch = method.collate(captions, np.random.default_rng(0))
        return method.losses(Lookup(rows), batch, epoch=0)["aoq"].item()

    assert loss(**{option: value}) != pytest.approx(loss(), abs=1e-4)
    other = "quintuplet" if variant == "adaptive-quintuplet" else "adaptive-quintuplet"
    with pytest.raises(ValidationError, match=f"{option} = {value} is an option of variant"):
        Aoq(variant=other, **{option: value})
