"""Contrastive training: its candidates and weights against the formulas written out, and what it refuses."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.datasets.truth import PairSet
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.contrastive import method as contrastive
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.contrastive.method import ContrastiveMethod
from itrpipe.mining.filters import DuplicateCaptions
from tests.methods.toys import WIDTH, KnownPairs, Lookup

IMAGES = 8
CAPTION_IMAGE = KnownPairs(IMAGES).caption_image
TEXTS, SENTENCES = len(CAPTION_IMAGE), 100
"""Sentence s of caption c is row 100 + 2 c + s of the table of captions."""
BATCH = np.array([0, 3, 4, 9, 12])


class Rows(KnownPairs):
    """Two sentences of every caption are rows of the table of captions too."""

    def __init__(self) -> None:
        super().__init__(IMAGES)
        generator = torch.Generator().manual_seed(3)
        self.text_table = F.normalize(torch.randn(SENTENCES + 2 * TEXTS, WIDTH, generator=generator), dim=1)
        tokens = SENTENCES + np.arange(2 * TEXTS)[:, None]
        shown = np.stack([CAPTION_IMAGE, (CAPTION_IMAGE + 2) % IMAGES], axis=1).ravel()
        told = np.stack([np.repeat(np.arange(TEXTS), 2)[:, None], tokens]), np.ones((2, 2 * TEXTS), dtype=np.int64)
        starts, kinds = 2 * np.arange(TEXTS + 1), np.arange(2 * TEXTS) % 2
        self.sentences = SentenceBank(tokens, told[1][0], starts, shown, told, kinds)

    @property
    def scores(self) -> Tensor:
        """[N, all captions and sentences]."""
        return self.image_table @ self.text_table.T


CHANCES = ((7 * np.arange(IMAGES)[:, None] + 3 * np.arange(TEXTS)) % 10 / 10).astype(np.float16)
"""[N, T] what judges say of every pair."""


def lists() -> dict[str, np.ndarray]:
    """Every foreign text and image of every anchor, with probabilities."""
    found = KnownPairs(IMAGES).lists()
    chances = {
        "texts_for_images": np.take_along_axis(CHANCES, found["texts_for_images"], axis=1),
        "images_for_texts": np.take_along_axis(CHANCES.T, found["images_for_texts"], axis=1),
    }
    return found | {f"{PROBABILITY_OF}{name}": each for name, each in chances.items()}


def made(data: Rows | None = None, inputs: Any = None, **given: Any) -> tuple[Any, Lookup]:
    data = data or Rows()
    options = {"top_texts": 14, "top_images": 7, "learn_temperature": False, "temperature": 0.5} | given
    inputs = {"lists": lists(), "sentences": data.sentences} | (inputs or {})
    method, model = contrastive.build(Contrastive(**options), data, **inputs), Lookup(data)  # pyright: ignore
    method.attach(model)
    method.start_epoch(0)
    return method, model


def step(method: ContrastiveMethod, model: Lookup, captions: np.ndarray = BATCH, seed: int = 0) -> tuple[Any, float]:
    torch.manual_seed(1)
    batch = method.collate(captions, np.random.default_rng(seed))
    return batch, method.losses(model, batch, 5)["contrastive"].item()


def one_match() -> dict[str, np.ndarray]:
    """Caption 4 of the batch is true of the image of caption 3, as far as is known."""
    found = {"texts_for_images": np.full((IMAGES, 1), -1), "images_for_texts": np.full((TEXTS, 1), -1)}
    found["texts_for_images"][CAPTION_IMAGE[3]] = 4
    return found


def test_known_matches_are_dropped():
    rows = Rows()
    scores = rows.scores[CAPTION_IMAGE[BATCH]][:, BATCH] / 0.5
    of_images = scores.masked_fill(torch.from_numpy((BATCH[:, None] == 3) & (BATCH == 4)), float("-inf"))
    own = torch.arange(len(BATCH))
    expected = (F.cross_entropy(of_images, own) + F.cross_entropy(scores.T, own)) / 2
    assert step(*made(rows, {"matches": one_match()}, weigh="truth"))[1] == pytest.approx(expected.item(), rel=1e-5)


def anchors_of(batch: Any, side: str) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """Of each anchor of a batch its own pair and the pairs with its candidates: the rows of an image and a caption."""
    drawn = batch.candidates[side]
    further = drawn.drawn.tokens[:, 0] if side == "texts_for_images" else drawn.images
    found = []
    for place, caption in enumerate(BATCH.tolist()):
        image = int(CAPTION_IMAGE[caption])
        mine = further if drawn.anchors is None else further[drawn.anchors[place]]
        if side == "texts_for_images":
            pairs = [(image, row) for row in [*BATCH.tolist(), *mine.tolist()]]
        else:
            pairs = [(row, caption) for row in [*CAPTION_IMAGE[BATCH].tolist(), *mine.tolist()]]
        found.append(((image, caption), [(i, t) for i, t in pairs if i != CAPTION_IMAGE[t]]))
    return found


@pytest.mark.parametrize("objective", ["hardest", "sum"])
def test_soft_margins_are_one_minus_p_of_the_margin(objective: str) -> None:
    rows = Rows()
    batch, loss = step(*made(rows, negatives=["mined"], objective=objective, judged="soft", margin=0.5))
    expected = 0.0
    for side in ("texts_for_images", "images_for_texts"):
        for own, pairs in anchors_of(batch, side):
            violations = [
                max(0.0, 0.5 * (1 - float(CHANCES[pair])) - float(rows.scores[own] - rows.scores[pair]))
                for pair in pairs
            ]
            expected += (max(violations) if objective == "hardest" else sum(violations)) / len(BATCH)
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("judged", ["drop", "weigh", "soft"])
def test_what_judges_say_counts_for_mined_candidates_and_those_of_the_batch(judged: str, shared: bool) -> None:
    rows = Rows()
    given = {"negatives": ["mined"], "mined_texts": 2, "top_texts": 8, "top_images": 4, "shared": shared}
    batch, loss = step(*made(rows, judged=judged, **given))
    expected = 0.0
    for side in ("texts_for_images", "images_for_texts"):
        for own, pairs in anchors_of(batch, side):
            likelihood, agreed, targets = math.exp(rows.scores[own] / 0.5), rows.scores[own] / 0.5, 1.0
            for pair in pairs:
                chance = float(CHANCES[pair])
                weight = {"drop": float(chance <= 0.5), "weigh": 1 - chance, "soft": 1.0}[judged]
                likelihood += weight * math.exp(rows.scores[pair] / 0.5)
                target = chance if judged == "soft" else 0.0
                agreed, targets = agreed + target * rows.scores[pair] / 0.5, targets + target
            expected += (math.log(likelihood) - float(agreed) / targets) / len(BATCH) / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def test_candidates_behind_those_that_judges_call_right_are_drawn() -> None:
    method, _ = made(negatives=["mined"], judged="drop", top_texts=3, mined_texts=3, shared=False)
    drawn = method.collate(BATCH, np.random.default_rng(0)).candidates["texts_for_images"]
    images = CAPTION_IMAGE[BATCH]
    for place, image in enumerate(images):
        others = np.flatnonzero(image != CAPTION_IMAGE)
        expected = others[CHANCES[image, others] <= 0.5][:3]
        assert set(drawn.drawn.tokens[drawn.anchors[place], 0].tolist()) == {*expected.tolist()} - {*BATCH.tolist()}


def test_an_epoch_of_neighbours_joins_no_pair_that_judges_call_right() -> None:
    without = lists()
    right = without[f"{PROBABILITY_OF}texts_for_images"] > 0.5
    without["texts_for_images"] = np.where(right, -1, without["texts_for_images"])
    without["texts_for_images"] = -np.sort(-without["texts_for_images"], axis=1)  # the last ones behind the end
    judged = lists()
    judged["texts_for_images"] = judged["texts_for_images"][:, ::-1]
    judged[f"{PROBABILITY_OF}texts_for_images"] = judged[f"{PROBABILITY_OF}texts_for_images"][:, ::-1]
    options = {"batches": "neighbours", "neighbour_group": 4}
    orders = [
        made(inputs={"lists": each}, judged=use, **options)[0].order(0, 0)
        for each, use in ((judged, "drop"), (without, "keep"), (judged, "keep"))
    ]
    assert np.array_equal(orders[0], orders[1])  # pyright: ignore
    assert not np.array_equal(orders[0], orders[2])  # pyright: ignore


@pytest.mark.parametrize("by", ["decision", "equal texts"])
def test_what_is_known_to_fit_is_no_negative_in_either_direction(by: str) -> None:
    rows = Rows()
    texts = [str(row) for row in range(TEXTS)]
    texts[3] = texts[4]
    decided = PairSet.of(np.array([4, 3]), CAPTION_IMAGE[[3, 4]], IMAGES)
    known: dict[str, Any] = {"decided": decided}
    if by != "decision":
        known = {"duplicates": lambda: DuplicateCaptions(texts, CAPTION_IMAGE)}
    scores = rows.scores[CAPTION_IMAGE[BATCH]][:, BATCH] / 0.5
    pair = (BATCH[:, None] == 3) & (BATCH == 4)
    left = scores.masked_fill(torch.from_numpy(pair | pair.T), float("-inf"))
    own = torch.arange(len(BATCH))
    expected = (F.cross_entropy(left, own) + F.cross_entropy(left.T, own)) / 2
    assert step(*made(rows, known, drop_duplicates=by != "decision"))[1] == pytest.approx(expected.item(), rel=1e-5)


def test_equal_texts_of_many_images_take_little_memory() -> None:
    """Of 3,000 images with one text there are nine million pairs."""
    rows = Rows()
    rows.caption_image = np.arange(3_000)
    tracemalloc.start()
    method = contrastive.build(
        Contrastive(drop_duplicates=True),
        rows,  # pyright: ignore
        duplicates=lambda: DuplicateCaptions(["one"] * 3_000, rows.caption_image),
    )
    known = method.collate(np.arange(8), np.random.default_rng(0)).candidates["texts_for_images"].known["decided"]
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert len(known[0]) == 8 * 7


@pytest.mark.parametrize(
    ("objective", "loss"), [("infonce", lambda each: F.softplus(each / 0.5)), ("sum", lambda each: (0.2 + each).relu())]
)
def test_all_four_scores_of_twins_count(objective: str, loss: Callable[[Tensor], Tensor]) -> None:
    rows = Rows()
    method, model = made(rows, objective=objective, twins=4.0, twin_weight=3.0)
    batch = method.collate(BATCH, np.random.default_rng(0))
    assert batch.twins is not None
    pairs = batch.twins[0].regions.flatten().long(), batch.twins[1].tokens.flatten()
    (images, others), (captions, edits) = (each.chunk(2) for each in pairs)
    assert images.tolist() == CAPTION_IMAGE[captions].tolist()
    assert (edits - SENTENCES).div(2, rounding_mode="floor").tolist() == captions.tolist()
    steps = ((others - images) % IMAGES).tolist()
    assert steps == [2 if odd else 1 for odd in (edits % 2).tolist()]  # toys' mirror images are the next ones
    assert set(steps) == {1, 2}
    own, wrong, turned, right = (rows.scores[i, t] for i in (images, others) for t in (captions, edits))
    costs = torch.stack([loss(bad - good) for bad in (wrong, turned) for good in (own, right)])
    found = method.losses(model, batch, 5)["twins"].item()
    assert found == pytest.approx(3 * costs.mean().item(), rel=1e-5)


def test_temperature_and_bias_are_learned_and_clamped():
    method, model = made(objective="sigmoid", learn_temperature=True, temperature=0.02, bias=-3.0, largest_scale=50.0)
    method._state.log_scale.data += 1.0
    batch = method.collate(BATCH, np.random.default_rng(0))
    method.losses(model, batch, 0)["contrastive"].backward()
    assert method._state.log_scale.grad is not None
    assert method._state.bias.grad is not None
    assert batch.statistics["temperature"].item() == pytest.approx(1 / 50)
    assert not made(objective="sum")[0]._state.log_scale.requires_grad
    assert not made(objective="infonce")[0]._state.log_scale.requires_grad
    assert not made(objective="infonce", learn_temperature=True)[0]._state.bias.requires_grad


def test_the_gradient_of_true_matches_is_counted():
    rows = Rows()
    method, model = made(rows, {"matches": one_match()})
    batch = method.collate(BATCH, np.random.default_rng(0))
    method.losses(model, batch, 0)["contrastive"].backward()
    scores = rows.scores[CAPTION_IMAGE[BATCH]][:, BATCH].clone().requires_grad_()
    F.cross_entropy(scores / 0.5, torch.arange(len(BATCH))).backward()
    assert scores.grad is not None
    sizes = scores.grad.abs().fill_diagonal_(0)
    assert batch.statistics["text_match_share"].item() == pytest.approx((sizes[1, 2] / sizes.sum()).item(), rel=1e-4)
    assert batch.statistics["image_match_share"].item() == 0


def test_an_epoch_of_neighbours_has_every_caption_once_and_depends_on_seed_and_epoch():
    method, _ = made(batches="neighbours", neighbour_group=4)
    orders = [method.order(*place) for place in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(sorted(order) == list(range(TEXTS)) for order in orders)  # pyright: ignore
    assert np.array_equal(orders[0], orders[3])  # pyright: ignore
    assert len({tuple(order) for order in orders}) == 3  # pyright: ignore
    assert made()[0].order(0, 0) is None


def test_a_title_names_judges_and_what_follows_from_them() -> None:
    chosen = Contrastive(weigh="fne", judged="drop", judges=("graphs", "captions"))
    assert chosen.choices()["weights"] == "fne, captions+graphs judge, drop"
    assert Contrastive().choices()["weights"] == ""
