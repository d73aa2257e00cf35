"""What the first training tells of a second one: batches that are drawn, a dataset counted by hand, and the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from itrpipe.analysis import second_round
from itrpipe.analysis.questions.false_negatives import DIRECTIONS, TrainingSet
from itrpipe.analysis.second_round import measured, validation
from itrpipe.evaluation.collapse import is_alike, share_of_hubs
from itrpipe.evaluation.second_round import RISING, RULES, recommend, signals
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.methods.declaration import Mined
from itrpipe.training.settings import is_start_of

FAMILIES, PER_FAMILY, WIDTH, MARGIN = 12, 3, 24, 0.2
IMAGES = FAMILIES * PER_FAMILY
FAMILY = np.repeat(np.arange(FAMILIES), PER_FAMILY)
OWNERS = np.sort(np.concatenate([np.arange(IMAGES), np.arange(IMAGES), np.arange(0, IMAGES, 3)]))
"""Two captions of every image, and three of every third one."""


def training_set(images: np.ndarray, texts: np.ndarray, owners: np.ndarray, true: list[np.ndarray] | None) -> Any:
    ids = np.arange(len(images)).astype(str)
    captions = np.arange(len(texts)).astype(str)
    embeddings = SplitEmbeddings(
        images.astype(np.float32), ids, texts.astype(np.float32), captions, owners, INNER_PRODUCT
    )
    return TrainingSet.of(embeddings, ids, true)


def families() -> Any:
    """Images of a family look alike, and the captions of each are true of all of them."""
    rng = np.random.default_rng(0)
    images = (2 * rng.standard_normal((FAMILIES, WIDTH)))[FAMILY] + 0.8 * rng.standard_normal((IMAGES, WIDTH))
    texts = images[OWNERS] + 2.4 * rng.standard_normal((len(OWNERS), WIDTH))
    images, texts = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (images, texts))
    return training_set(images, texts, OWNERS, [np.flatnonzero(FAMILY[own] == FAMILY) for own in OWNERS])


@pytest.mark.parametrize("size", [2, 9])
def test_expectations_are_means_over_batches_that_are_drawn(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_round, "SIZES", ())
    monkeypatch.setattr(second_round, "_VALUES_AT_ONCE", 700)  # several blocks of anchors
    data, draws, rng = families(), 3_000, np.random.default_rng(1)
    found = measured(data, size, MARGIN)
    scores = data.embeddings.images @ data.embeddings.texts.T
    for direction in DIRECTIONS:
        sums = dict.fromkeys(("rank", "score", "beaten", "active", "false"), 0.0)
        for caption, own in enumerate(OWNERS):
            drawn = rng.choice(np.flatnonzero(own != OWNERS), (draws, size - 1))
            if direction == DIRECTIONS[0]:
                candidates, match = scores[own], FAMILY[OWNERS] == FAMILY[own]
                others = candidates[own != OWNERS]
            else:
                candidates, match = scores[:, caption], FAMILY[own] == FAMILY
                drawn, others = OWNERS[drawn], np.delete(candidates, own)
            hardest = drawn[np.arange(draws), candidates[drawn].argmax(axis=1)]
            best, positive = candidates[hardest], scores[own, caption]
            sums["rank"] += (others[None] > best[:, None]).sum(axis=1).mean()
            sums["score"] += best.mean()
            sums["beaten"] += 100 * (best > positive).mean()
            sums["active"] += 100 * (best > positive - MARGIN).mean()
            sums["false"] += 100 * match[hardest].mean()
        (batch,) = found[direction]["batches"]
        assert batch["size"] == size
        assert found[direction]["anchors"] == len(OWNERS)
        for name, total in sums.items():
            assert batch[name] == pytest.approx(total / len(OWNERS), rel=0.02, abs=0.3), (direction, name)


SCORES = np.array(
    [
        [0.9, 0.8, 0.1, 0.0, 0.0, 0.0],
        [0.1, 0.5, 0.6, 0.4, 0.0, 0.0],
        [0.0, 0.0, 0.7, 0.6, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.3, 0.5, 0.2],
        [0.0, 0.0, 0.1, 0.0, 0.8, 0.0],
        [0.0, 0.7, 0.0, 0.0, 0.0, 0.6],
    ]
)
"""Of six images with their six captions. Caption 1 is true of image 0 too, and caption 4 of image 3."""


def test_six_pairs_are_as_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_round, "SIZES", ())
    true = [np.array(each) for each in ([0], [0, 1], [2], [3], [3, 4], [5])]
    data = training_set(np.eye(6), SCORES.T, np.arange(6), true)
    found = measured(data, 2, MARGIN)["texts_for_images"]
    assert found["positive"] == pytest.approx((0.9 + 0.5 + 0.7 + 0.3 + 0.8 + 0.6) / 6, abs=1e-4)
    hardest = found["hardest"]
    assert hardest["score"] == pytest.approx((0.8 + 0.6 + 0.6 + 0.5 + 0.1 + 0.7) / 6, abs=1e-4)
    assert hardest["beaten"] == 50  # images 1, 3 and 5
    tied = measured(training_set(np.eye(6), np.ones((6, 6)), np.arange(6), None), 2, 0.0)["texts_for_images"]
    assert tied["hardest"]["beaten"] == tied["hardest"]["active"] == 0  # equal scores beat nothing
    assert hardest["active"] == pytest.approx(500 / 6, abs=1e-3)  # all but image 4
    assert hardest["false"] == pytest.approx(200 / 6, abs=1e-3)  # of images 0 and 3
    # The only negative of a batch of two is any of the five: 1 of image 1, 1 of image 3 and 1 of image 5 scores higher.
    (batch,) = found["batches"]
    assert batch["rank"] == pytest.approx(2, abs=1e-3)
    assert batch["beaten"] == pytest.approx(100 * 3 / 30, abs=1e-3)
    assert batch["active"] == pytest.approx(100 * 7 / 30, abs=1e-3)  # 1, 2, 1, 2, 0 and 1 of the images
    assert batch["false"] == pytest.approx(100 * 2 / 30, abs=1e-3)
    images = measured(data, 2, MARGIN)["images_for_texts"]
    assert images["hardest"]["beaten"] == pytest.approx(200 / 6, abs=1e-3)  # captions 1 (image 0) and 3 (image 2)
    assert images["hardest"]["false"] == pytest.approx(200 / 6, abs=1e-3)


def test_where_matches_are_not_known_there_is_the_estimate_alone() -> None:
    known = families()
    unknown = TrainingSet(known.embeddings, None)
    both, one = measured(known, 8, MARGIN), measured(unknown, 8, MARGIN)
    for direction in DIRECTIONS:
        for name in ("hardest", "top"):
            assert one[direction][name]["false"] is None
            assert 0 < one[direction][name]["estimated_false"] == both[direction][name]["estimated_false"] <= 100


@pytest.mark.parametrize("temperature", [0.5, 0.01, 1e-4])
def test_shares_of_the_softmax_are_those_of_the_temperature_however_small(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_round, "SIZES", ())
    with np.errstate(all="raise", under="ignore"):
        found = measured(training_set(np.eye(6), SCORES.T, np.arange(6), None), 2, MARGIN, temperature)
    shares, of_mined = [], []
    for own in range(6):
        others = np.delete(SCORES[own], own)
        terms = (np.append(others, others.max()) - SCORES[own, own]) / temperature
        mean = np.logaddexp.reduce(terms[:-1]) - np.log(5)
        shares.append(100 * np.exp(mean - np.logaddexp(0, mean)))
        of_mined.append(100 * np.exp(terms[-1] - np.logaddexp(mean, terms[-1])))
    (batch,) = found["texts_for_images"]["batches"]
    assert batch["gradient"] == pytest.approx(np.mean(shares), abs=0.01)
    assert batch["mined_gradient"] == pytest.approx(np.mean(of_mined), abs=0.01)


def test_the_temperature_is_that_of_the_epoch_that_validated_best() -> None:
    rows = [
        {"best": True, "mean_temperature": None},
        {"best": True, "mean_temperature": 0.02},
        {"best": False, "mean_temperature": 0.03},
    ]
    assert second_round._temperature(rows) == 0.02
    assert second_round._temperature(rows[:1]) == second_round.TEMPERATURE
    assert second_round._temperature([{"best": True}]) == second_round.TEMPERATURE


def test_what_validation_gained_is_counted_from_the_best_before_the_last_third() -> None:
    rows = [
        {"epoch": epoch, "val_rsum": score} for epoch, score in enumerate((50.0, 100.0, 300.0, 290.0, 310.0, 305.0), 1)
    ]
    found = validation([{"epoch": 0, "val_rsum": 5.0}, *rows])
    assert (found["best"], found["best_epoch"], found["gained"], found["fell"]) == (310, 5, 10, 5)
    assert validation(rows[:1])["gained"] is None


def diagnostics(
    gained: float | None = 0.0,
    schedule: dict[str, Any] | None = None,
    fit: dict[str, Any] | None = None,
    **model: Any,
) -> dict[str, Any]:
    """As `diagnose` returns them, one direction 2 above and one 2 below 10 % in a batch and 60 % in the dataset."""
    steps = {"epochs": 9, "schedule": "step", "decay_every": 6, "decay_at": [4, 5]}
    known = {"method": "triplet", "objective": "triplet", "backbone": "vsepp", "dataset": "mine", "seed": 1}
    known |= {"images": 3000, "captions": 15000, "batch_size": 128, "truth": True, "schedule": steps | (schedule or {})}

    def side(more: float) -> dict[str, Any]:
        batches = [{"size": size, "beaten": share} for size, share in ((32, 1.0), (128, 10 + more), (512, 30.0))]
        return {"batches": batches, "hardest": {"beaten": 60 + more}}

    return {
        "model": known | model,
        "validation": {"gained": gained},
        "fit": {"images": 1000, "validation": 400.0, "gap": 80.0} | (fit or {}),
        "directions": {"texts_for_images": side(2.0), "images_for_texts": side(-2.0)},
    }


COSINE = {"schedule": "cosine"}
LONGER = "--set epochs=18 --set 'decay_at=[8,10]'"
MINED = "--negatives mined --negatives-from triplet"
SHORT = {"warmup_updates": 50, "schedule": "cosine", "learning_rate": 3e-5}


@pytest.mark.parametrize(
    ("given", "start", "action", "command"),
    [
        # What a rate, validation and the training images say, each at either side of its limit.
        ({"updates": 49, "schedule": SHORT}, None, "warm-up", "--method triplet --set warmup_updates=5"),
        ({"updates": 50, "schedule": SHORT}, None, "mine", f"--method contrastive {MINED}"),
        ({"schedule": SHORT}, None, "mine", f"--method contrastive {MINED}"),  # of earlier evaluations
        ({"schedule": SHORT}, 404.0, "lower", "--method triplet --set learning_rate=1e-05"),
        ({}, 404.0, "lower", "--method triplet --set 'learning_rate=…'"),
        ({}, 402.9, "mine", f"--method contrastive {MINED}"),
        ({"gained": RISING + 0.1}, None, "train", f"--method triplet {LONGER}"),
        ({"gained": RISING - 0.1}, None, "mine", f"--method contrastive {MINED}"),
        ({"gained": RISING + 0.1, "schedule": COSINE}, None, "mine", f"--method contrastive {MINED}"),
        ({"gained": None}, None, "train", f"--method triplet {LONGER}"),
        ({"gained": None, "schedule": COSINE}, None, "train", "--method triplet --set epochs=18"),
        ({"fit": {"validation": 179.0, "gap": 322.0}}, None, "by-heart", f"--method contrastive {MINED}"),
        ({"fit": {"validation": 100.0, "gap": 250.2}}, None, "by-heart", f"--method contrastive {MINED}"),
        ({"fit": {"validation": 100.0, "gap": 249.8}}, None, "mine", f"--method contrastive {MINED}"),
        ({"fit": {"validation": 179.0, "gap": 210.0}}, None, "mine", f"--method contrastive {MINED}"),
        ({"fit": {"validation": 560.0, "gap": 30.0}}, None, "mine", f"--method contrastive {MINED}"),
        ({"fit": {"validation": 560.0, "gap": 100.5}}, None, "by-heart", f"--method contrastive {MINED}"),
        # Of collapse, chance being 3.2; and that it comes before all but the rate.
        ({"fit": {"validation": 4.7}}, None, "collapsed", f"--method triplet {LONGER}"),
        ({"fit": {"validation": 4.7, "gap": 400.0}, "gained": 4.0}, None, "collapsed", f"--method triplet {LONGER}"),
        ({"fit": {"validation": 5.0}}, None, "mine", f"--method contrastive {MINED}"),
        ({"fit": {"alike": True}}, None, "collapsed", f"--method triplet {LONGER}"),
        ({"fit": {"alike": True}}, 404.0, "lower", "--method triplet --set 'learning_rate=…'"),
        ({"updates": 49, "schedule": SHORT}, 404.0, "warm-up", "--method triplet --set warmup_updates=5"),
        # Three answers are more among fewer images.
        ({"gained": 9.9, "fit": {"images": 100, "validation": 500.0}}, None, "train", f"--method triplet {LONGER}"),
        ({"gained": 9.9, "fit": {"images": 30, "validation": 500.0}}, None, "mine", f"--method contrastive {MINED}"),
        # Chance is high among few images: a tenth of the way to 600 is less than half as much again.
        ({"fit": {"images": 4, "validation": 440.0}}, None, "collapsed", f"--method triplet {LONGER}"),
        ({"fit": {"images": 4, "validation": 450.0}}, None, "mine", f"--method contrastive {MINED}"),
        # More epochs are not ended by the patience that ended the first ones, and step later.
        (
            {"gained": None, "schedule": {"patience": 3, "decay_at": []}},
            None,
            "train",
            "--method triplet --set epochs=18 --set patience=0 --set decay_every=12",
        ),
    ],
)
def test_the_first_rule_that_holds_is_the_advice(
    given: dict[str, Any], start: float | None, action: str, command: str
) -> None:
    found = diagnostics(**given)
    advice = recommend(found, "", start)
    assert advice.rule.action == action
    assert advice.command == f"itrpipe train --dataset mine --backbone vsepp --seed 1 {command}"
    assert bool(advice.evidence) == (action in ("mine", "by-heart"))
    assert len(advice.sentences) == 1 + bool(advice.control)
    named = recommend(found, "my", start, usual=1).command
    own = command.removeprefix("--method triplet ").replace("from triplet", "from my")
    assert named == f"itrpipe train --dataset mine --name my-{advice.rule.end} --like my {own}"
    assert "--like my --seed 1" in recommend(found, "my", start).command


def test_every_rule_names_the_numbers_that_it_reads() -> None:
    figures = signals(diagnostics(gained=3.5), 404.0)
    assert (figures["batch"], figures["dataset"]) == (10, 60)  # means of both directions
    told = {rule.action: rule.sentence.format(**figures) for rule in RULES}
    numbers = {"train": ["3.5"], "lower": ["400.0", "404.0"], "by-heart": ["480", "400"], "mine": ["128", "10", "60"]}
    for action, parts in numbers.items():
        assert all(part in told[action] for part in parts)


@pytest.mark.parametrize(
    ("schedule", "falls"),
    [
        ({"schedule": "linear"}, True),
        (COSINE, True),
        ({"schedule": "plateau"}, False),
        ({"decay_at": [4, 5]}, False),
        ({"decay_at": [6]}, True),
        ({"decay_at": [9]}, False),
        ({"decay_at": [], "decay_every": 4}, True),
        ({"decay_at": [], "decay_every": 5}, False),
    ],
)
def test_a_rise_under_a_falling_rate_is_no_reason_to_train_longer_but_to_compare(
    schedule: dict[str, Any], falls: bool
) -> None:
    advice = recommend(diagnostics(gained=RISING + 0.1, schedule=schedule), "my", usual=1)
    assert advice.rule.action == ("mine" if falls else "train")
    assert advice.control.startswith("itrpipe train --dataset mine --name my-longer --like my --set epochs=18") == falls
    assert not recommend(diagnostics(gained=RISING - 0.1, schedule=schedule)).control


@pytest.mark.parametrize(
    ("method", "objective", "chosen"),
    [
        ("contrastive-batch", "contrastive", "contrastive"),
        ("clip-finetune", "contrastive", "clip-finetune"),
        ("aoq", "aoq", "contrastive"),
    ],
)
def test_mined_negatives_are_candidates_of_a_contrastive_loss(method: str, objective: str, chosen: str) -> None:
    found = diagnostics(method=method, objective=objective, seed=0)
    mined = f"--method {chosen} --negatives mined --negatives-from {method}"
    assert recommend(found).command == f"itrpipe train --dataset mine --backbone vsepp {mined}"
    own = "" if method == chosen else f"--method {chosen} "
    assert recommend(found, "my").command.endswith(f"--like my {own}--negatives mined --negatives-from my")


@pytest.mark.parametrize(
    ("images", "captions", "settings"),
    [
        (600, 3000, []),
        (240, 1200, ["loss.top_texts=120", "loss.top_images=24"]),
        # Of 300 captions 295 are candidates at least, fewer than are listed.
        (
            240,
            300,
            ["loss.top_texts=30", "loss.top_images=24", "mine_negatives.num_texts=30", "mine_negatives.num_images=24"],
        ),
        (
            60,
            1000,
            ["loss.top_texts=100", "loss.top_images=6", "mine_negatives.num_texts=100", "mine_negatives.num_images=6"],
        ),
        (
            50,
            250,
            ["loss.top_texts=25", "loss.top_images=5", "mine_negatives.num_texts=25", "mine_negatives.num_images=5"],
        ),
    ],
)
def test_lists_are_no_large_part_of_a_small_training_set(images: int, captions: int, settings: list[str]) -> None:
    told = "".join(f" --set {each}" for each in settings)
    command = recommend(diagnostics(images=images, captions=captions, most_captions=5)).command
    assert command.endswith(f"--negatives-from triplet{told}")


@pytest.mark.parametrize("captions", [1, 4, 468, 471, 3000, 15_000])
def test_lists_that_are_proposed_are_short_enough(captions: int) -> None:
    images = max(1, captions // 2)
    mined = Mined(300, 60, None, "vsrn", "")
    shorter = mined.shorter(captions, images)
    assert bool(shorter) == (captions < 3_000)
    proposed = Mined(shorter.get("top_texts", 300), shorter.get("top_images", 60), None, "vsrn", "")
    assert proposed.shorter(captions, images) == {}


def test_what_a_training_began_from_is_the_same_encoders_untrained() -> None:
    model = {"vision": "a", "text": "a", "augment": "none"}
    tuned = {"method": "contrastive", "backbone": "dual-encoder", "features": "pixels", "model": model}
    start = {**tuned, "method": "zero-shot", "model": {**model, "augment": "full"}}
    assert is_start_of(start, tuned)
    assert not is_start_of(tuned, tuned)
    assert not is_start_of({**start, "model": {**model, "vision": "b"}}, tuned)
    assert not is_start_of({**start, "features": "other"}, tuned)


def test_a_model_that_gives_all_images_one_caption_is_seen() -> None:
    images = np.eye(60)
    texts = np.zeros((60, 60))
    texts[:, 0] = 1.0
    first = (images @ texts.T).argmax(axis=1).tolist()
    assert is_alike(share_of_hubs(first), 60, 60)
    assert not is_alike(share_of_hubs(range(60)), 60, 60)
