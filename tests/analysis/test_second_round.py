"""What the first training tells of a second one: batches that are drawn, a dataset counted by hand, and the rule."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from itrpipe.analysis import second_round
from itrpipe.analysis.false_negatives import DIRECTIONS, TrainingSet
from itrpipe.analysis.second_round import measured, validation
from itrpipe.evaluation.collapse import is_alike, share_of_hubs
from itrpipe.evaluation.second_round import RISING, beaten_by_size, recommend, signals
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
    gained: float | None = 0.0, batch: float = 10.0, dataset: float = 60.0, false: float = 5.0, truth: bool = True
) -> dict[str, Any]:
    """As `diagnose` returns them, one direction 2 above and one 2 below what is given."""
    model = {"method": "triplet", "objective": "triplet", "backbone": "vsepp", "dataset": "mine", "seed": 1}
    model |= {"images": 3000, "captions": 15000, "batch_size": 128, "truth": truth}
    model |= {"schedule": {"epochs": 9, "schedule": "step", "decay_every": 6, "decay_at": [4, 5]}}
    name, other = ("false", "estimated_false") if truth else ("estimated_false", "false")

    def side(more: float) -> dict[str, Any]:
        facts = {"active": 50.0, name: false + more, other: None}
        batches = [
            {"size": size, "beaten": share, **facts} for size, share in ((32, 1.0), (128, batch + more), (512, 30.0))
        ]
        return {"batches": batches, "hardest": {"beaten": dataset + more, **facts}, "top": facts}

    return {
        "model": model,
        "validation": {"gained": gained},
        "fit": {"images": 1000, "validation": 400.0, "gap": 80.0},
        "directions": {"texts_for_images": side(2.0), "images_for_texts": side(-2.0)},
    }


@pytest.mark.parametrize(
    ("given", "action", "command"),
    [
        ({"gained": RISING + 0.1}, "train", "--method triplet --set epochs=18 --set 'decay_at=[8,10]'"),
        ({"gained": None}, "train", "--method triplet --set epochs=18 --set 'decay_at=[8,10]'"),
        ({"false": 50.0}, "mine", "--method contrastive --negatives mined --negatives-from triplet"),
        ({"truth": False}, "mine", "--method contrastive --negatives mined --negatives-from triplet"),
    ],
)
def test_the_rule_reads_convergence_alone(given: dict[str, Any], action: str, command: str) -> None:
    advice = recommend(diagnostics(**given))
    assert advice.action == action
    assert advice.command == f"itrpipe train --dataset mine --backbone vsepp --seed 1 {command}"
    assert any("60 %" in sentence and "512" in sentence for sentence in advice.sentences)
    assert ("as FNE estimates" in " ".join(advice.sentences)) == (given.get("truth") is False)


@pytest.mark.parametrize(
    ("schedule", "falls"),
    [
        ({"schedule": "linear"}, True),
        ({"schedule": "cosine"}, True),
        ({"schedule": "plateau"}, False),
        ({"schedule": "step", "decay_at": [4, 5]}, False),
        ({"schedule": "step", "decay_at": [6]}, True),
        ({"schedule": "step", "decay_at": [9]}, False),
        ({"schedule": "step", "decay_at": [], "decay_every": 4}, True),
        ({"schedule": "step", "decay_at": [], "decay_every": 5}, False),
    ],
)
def test_a_rise_under_a_falling_rate_is_no_reason_to_train_longer(schedule: dict[str, Any], falls: bool) -> None:
    found = diagnostics(gained=RISING + 0.1)
    found["model"]["schedule"] |= schedule
    assert signals(found).falls == falls
    advice = recommend(found)
    assert advice.action == ("mine" if falls else "train")
    assert ("while the learning rate fell" in " ".join(advice.sentences)) == falls


def test_contrastive_round_one_goes_on_with_its_own_lists() -> None:
    found = diagnostics()
    found["model"] |= {"method": "contrastive-batch", "objective": "contrastive", "seed": 0}
    assert recommend(found).command == (
        "itrpipe train --dataset mine --backbone vsepp --method contrastive --negatives mined "
        "--negatives-from contrastive-batch"
    )


@pytest.mark.parametrize(("updates", "action"), [(30, "warm-up"), (50, "mine")])
def test_a_rate_that_never_rose_comes_before_everything_else(updates: int, action: str) -> None:
    found = diagnostics()
    found["model"] |= {"updates": updates}
    found["model"]["schedule"] |= {"warmup_updates": 50, "schedule": "cosine"}
    advice = recommend(found, "my")
    assert advice.action == action
    if action == "warm-up":
        assert "ended after 30 updates, at 60 % of the rate" in advice.sentences[0]
        assert advice.command.endswith("--name my-warm --like my --seed 1 --set warmup_updates=3")
        assert "--seed" not in recommend(found, "my", usual=1).command, "the name stands for it"
        found["model"]["seed"] = 0
        assert "--like my --seed 0 --set" in recommend(found, "my", usual=1).command


@pytest.mark.parametrize(
    ("images", "captions", "settings"),
    [
        (600, 3000, []),
        (240, 1200, ["loss.top_texts=120", "loss.top_images=24"]),
        (240, 300, ["loss.top_texts=30", "loss.top_images=24"]),
        (
            50,
            250,
            ["loss.top_texts=25", "loss.top_images=5", "mine_negatives.num_texts=25", "mine_negatives.num_images=5"],
        ),
    ],
)
def test_lists_are_no_large_part_of_a_small_training_set(images: int, captions: int, settings: list[str]) -> None:
    found = diagnostics()
    found["model"] |= {"images": images, "captions": captions, "most_captions": 5}
    if images == 240 and captions == 300:  # 295 captions are candidates at least, fewer than are listed
        settings = [*settings, "mine_negatives.num_texts=30", "mine_negatives.num_images=24"]
    told = "".join(f" --set {each}" for each in settings)
    assert recommend(found).command.endswith(f"--negatives-from triplet{told}")


@pytest.mark.parametrize("captions", [1, 4, 468, 471, 3000, 15_000])
def test_lists_that_are_proposed_are_short_enough(captions: int) -> None:
    images = max(1, captions // 2)
    mined = Mined(300, 60, None, "vsrn", "")
    shorter = mined.shorter(captions, images)
    assert bool(shorter) == (captions < 3_000)
    proposed = Mined(shorter.get("top_texts", 300), shorter.get("top_images", 60), None, "vsrn", "")
    assert proposed.shorter(captions, images) == {}


@pytest.mark.parametrize(("start", "action"), [(None, "mine"), (399.0, "mine"), (401.0, "mine"), (404.0, "lower")])
def test_fine_tuning_that_did_harm_wants_a_lower_rate(start: float | None, action: str) -> None:
    found = diagnostics()
    found["model"] |= {"method": "clip-finetune", "objective": "contrastive"}
    found["model"]["schedule"] |= {"learning_rate": 3e-5}
    advice = recommend(found, "my", start)
    assert advice.action == action
    if action == "lower":
        assert "validation is at 400.0 RSum, and at 404.0 of the model that it began from" in advice.sentences[0]
        assert advice.command.endswith("--name my-lower --like my --seed 1 --set learning_rate=1e-05")
    assert ("not above the 401.0 of the model" in " ".join(advice.sentences)) == (start == 401.0)


def test_validation_that_fell_is_told_with_its_best_epoch() -> None:
    found = diagnostics()
    found["validation"] |= {"best_epoch": 2.0, "fell": 15.1}
    assert "best after epoch 2, whose weights are kept, and fell by 15.1 RSum since" in " ".join(
        recommend(found).sentences
    )
    found["validation"] |= {"fell": 1.0}
    assert "fell by" not in " ".join(recommend(found).sentences)


def test_what_a_training_began_from_is_the_same_encoders_untrained() -> None:
    model = {"vision": "a", "text": "a", "augment": "none"}
    tuned = {"method": "contrastive", "backbone": "dual-encoder", "features": "pixels", "model": model}
    start = {**tuned, "method": "zero-shot", "model": {**model, "augment": "full"}}
    assert is_start_of(start, tuned)
    assert not is_start_of(tuned, tuned)
    assert not is_start_of({**start, "model": {**model, "vision": "b"}}, tuned)
    assert not is_start_of({**start, "features": "other"}, tuned)


@pytest.mark.parametrize(("images", "action"), [(1000, "train"), (100, "train"), (30, "mine")])
def test_the_fewer_images_validate_the_more_a_rise_has_to_be(images: int, action: str) -> None:
    found = diagnostics(gained=9.9)  # among 30 images less than three answers
    found["fit"] |= {"images": images, "validation": 500.0}
    advice = recommend(found)
    assert advice.action == action
    assert "gained 9.9" in " ".join(advice.sentences)
    assert ("is little for so few images" in " ".join(advice.sentences)) == (action == "mine")


def test_signals_are_means_of_both_directions() -> None:
    found = signals(diagnostics(batch=12.0, false=7.0, truth=False))
    assert (found.batch_beaten, found.dataset_beaten, found.top_false, found.estimated) == (12, 60, 7, True)
    assert found.larger == {512: 30}
    assert beaten_by_size(diagnostics()) == {32: 1, 128: 10, 512: 30}


@pytest.mark.parametrize(
    ("validation", "gap", "alike", "collapsed"),
    [(4.7, 0.0, False, True), (4.7, 400.0, False, True), (5.0, 0.0, False, False), (400.0, 80.0, True, True)],
)
def test_a_model_that_has_collapsed_is_told_so_and_nothing_else(
    validation: float, gap: float, alike: bool, collapsed: bool
) -> None:
    found = diagnostics(truth=False)
    found["fit"] |= {"validation": validation, "gap": gap, "alike": alike}  # chance is 3.2
    advice = recommend(found, "my")
    assert (advice.action == "collapsed") == collapsed
    assert (len(advice.sentences) == 1, advice.evidence == "", "-longer" in advice.command) == (collapsed,) * 3
    assert not (collapsed and re.search("FNE|mine", advice.sentences[0]))


def test_a_model_that_gives_all_images_one_caption_is_seen() -> None:
    images = np.eye(60)
    texts = np.zeros((60, 60))
    texts[:, 0] = 1.0
    first = (images @ texts.T).argmax(axis=1).tolist()
    assert is_alike(share_of_hubs(first), 60, 60)
    assert not is_alike(share_of_hubs(range(60)), 60, 60)


@pytest.mark.parametrize(("gained", "schedule", "said"), [(9.0, "cosine", True), (1.0, "cosine", False)])
def test_the_control_that_a_sentence_asks_for_has_its_command(gained: float, schedule: str, said: bool) -> None:
    found = diagnostics(gained=gained)
    found["model"]["schedule"] |= {"schedule": schedule, "epochs": 4}
    advice = recommend(found, "my")
    assert advice.action == "mine"
    assert any("trained for twice as long" in sentence for sentence in advice.sentences) == said
    longer = "itrpipe train --dataset mine --name my-longer --like my --seed 1 --set epochs=8"
    assert advice.control == (longer if said else "")


@pytest.mark.parametrize(
    ("validation", "gap", "said"), [(179.0, 322.0, True), (179.0, 210.0, False), (560.0, 30.0, False)]
)
def test_what_knows_its_training_images_by_heart_is_told_of_more_images(
    validation: float, gap: float, said: bool
) -> None:
    found = diagnostics()
    found["fit"] |= {"validation": validation, "gap": gap}
    advice = recommend(found)
    assert (f"by heart: RSum {validation + gap:.0f} on them" in advice.sentences[0]) == said
    assert any(sentence.startswith("Mine: " if not said else "Of mining: ") for sentence in advice.sentences)
    assert advice.leads == ("next" if not said else "to mine all the same")


@pytest.mark.parametrize(
    ("gained", "method", "objective", "command"),
    [
        (0.0, "triplet", "triplet", "--name my-mined --like my --seed 1 --method contrastive --negatives mined"),
        (0.0, "clip-finetune", "contrastive", "--name my-mined --like my --seed 1 --negatives mined"),
        (None, "triplet", "triplet", "--name my-longer --like my --seed 1 --set epochs=18 --set 'decay_at=[8,10]'"),
    ],
)
def test_a_model_with_a_name_is_gone_on_with_by_its_name(
    gained: float | None, method: str, objective: str, command: str
) -> None:
    found = diagnostics(gained=gained)
    found["model"] |= {"method": method, "objective": objective}
    from_itself = "" if gained is None else " --negatives-from my"
    assert recommend(found, "my").command == f"itrpipe train --dataset mine {command}{from_itself}"


def test_more_epochs_are_not_ended_by_the_patience_that_ended_the_first_ones() -> None:
    found = diagnostics(gained=None)
    found["model"]["schedule"] |= {"patience": 3}
    assert recommend(found).command.endswith("--set epochs=18 --set patience=0 --set 'decay_at=[8,10]'")
