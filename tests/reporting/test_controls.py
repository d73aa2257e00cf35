"""Fine-tuned encoders against the model that they began with, and better negatives against those of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from itrpipe.datasets.definition import load_definition

MINED = {"negatives": ["batch", "mined"]}
PUBLISHED = ("zero-shot", 1.6)


@pytest.fixture
def tuned(toy: Any, tmp_path: Path, add_encoder: Any) -> Any:
    """Adds dual encoders to a dataset, and reports on the last ones of each name."""
    copy = toy.copy(tmp_path / "data")

    def add(*models: tuple[str, float, dict[str, Any]]) -> Any:
        made = [add_encoder(copy, method, noise, **settings) for method, noise, settings in models]
        names = sorted(load_definition(copy.root, "toy").named_trainings().items())
        return copy.report(tuple(made), names=names)

    return add


def answer(report: Any) -> str:
    return report.page.all("p", "answer")[0].text("")


def test_the_published_model_is_the_control_of_fine_tuning_and_needs_no_second_seed(tuned: Any) -> None:
    report = tuned((*PUBLISHED, {}), ("clip-finetune", 0.9, {}))
    assert answer(report).startswith("Dual encoder, fine-tuned CLIP differs from zero-shot by +")
    assert "with one seed" in answer(report)


def test_one_published_model_stands_beside_every_seed(tuned: Any) -> None:
    report = tuned((*PUBLISHED, {}), *(("clip-finetune", 0.7, {"seed": seed}) for seed in range(4)))
    assert answer(report).startswith("Dual encoder, fine-tuned CLIP is better than zero-shot by ")
    assert "4 seeds" in answer(report)


def test_better_negatives_are_judged_by_the_same_training_with_those_of_the_batch(tuned: Any) -> None:
    report = tuned(
        (*PUBLISHED, {}),
        ("clip-finetune", 0.9, {"named": "tuned"}),
        ("clip-finetune", 0.8, {"named": "mined", "loss": MINED}),
    )
    assert answer(report).startswith("Dual encoder, fine-tuned CLIP (mined) differs from fine-tuned CLIP (tuned) by +")


def test_a_published_model_that_no_training_reaches_is_named(tuned: Any) -> None:
    models = (("clip-finetune", 2.4, {"named": "tuned"}), ("clip-finetune", 2.2, {"named": "mined", "loss": MINED}))
    assert "No model that was trained here reaches zero-shot, which has " in answer(
        tuned(("zero-shot", 1.2, {}), *models)
    )


def test_a_model_of_another_size_is_no_control_of_better_negatives(tuned: Any) -> None:
    smaller = {"named": "small", "model": {"vision": "clip", "text": "clip", "embed_dim": 64}}
    models = (("clip-finetune", 0.9, {"named": "tuned"}), ("clip-finetune", 0.8, {"named": "mined", "loss": MINED}))
    found = answer(tuned(("clip-finetune", 0.5, smaller), *models))
    assert found.startswith("Dual encoder, fine-tuned CLIP (mined) differs from fine-tuned CLIP (tuned) by +")


def test_the_batch_alone_for_longer_is_a_control_of_better_negatives_too(tuned: Any) -> None:
    mined = ("clip-finetune", 1.6, {"named": "mined", "loss": MINED, "epochs": 3})
    short = ("clip-finetune", 2.4, {"named": "tuned", "epochs": 3})
    longer = {"named": "longer", "epochs": 6, "schedule": "linear", "warmup_updates": 7}
    found = answer(tuned(short, ("clip-finetune", 0.9, longer), mined))
    assert found.startswith("Dual encoder, fine-tuned CLIP (mined) differs from fine-tuned CLIP (longer) by −")
    shorter = {"named": "shorter", "epochs": 2}
    found = answer(tuned(short, ("clip-finetune", 0.9, shorter), mined))
    assert found.startswith("Dual encoder, fine-tuned CLIP (mined) differs from fine-tuned CLIP (tuned) by +")


@pytest.mark.parametrize(
    "other", [{"model": {"vision": "siglip", "text": "siglip"}}, {"loss": {"objective": "sigmoid"}}]
)
def test_another_encoder_or_objective_is_no_control(tuned: Any, other: dict[str, Any]) -> None:
    report = tuned(("clip-finetune", 0.9, other), ("clip-finetune", 0.8, {"loss": MINED}))
    assert "no baseline is there" in answer(report)


def test_the_published_model_alone_is_no_control_of_better_negatives(tuned: Any) -> None:
    report = tuned((*PUBLISHED, {}), ("clip-finetune", 0.8, {"loss": MINED, "named": "mined"}))
    assert "a claim takes a baseline that was trained as well" in answer(report)


def test_a_report_on_fine_tuning_alone_asks_nothing_of_negatives(tuned: Any) -> None:
    report = tuned((*PUBLISHED, {}), ("clip-finetune", 0.9, {}))
    assert "Differences to the first training" not in [each.text() for each in report.page.all("h2")]
    assert "No difference" not in (report.folder / "summary.txt").read_text()
    assert (
        report.page.all("p", "question")[0].text()
        == "How often are the right image and the right caption of toy found?"
    )


def test_models_at_chance_have_collapsed_and_nothing_else_is_concluded(tuned: Any) -> None:
    tuned_alone, published = ("clip-finetune", 95.0, {"named": "tuned"}), ("zero-shot", 91.0, {})
    assert "has collapsed: its RSum of" in answer(tuned(tuned_alone))
    assert "better features" in answer(tuned(tuned_alone))
    assert answer(tuned(published, tuned_alone)).startswith("All models have collapsed: ")
    sound = ("clip-finetune", 0.9, {"model": {"vision": "clip", "text": "clip", "embed_dim": 64}})
    assert answer(tuned(sound, tuned_alone)).endswith("train longer or use better features.")
    assert "see that the embeddings belong to these images" in answer(tuned(published))


def test_of_trainings_of_one_method_the_best_is_told_by_the_mean_of_its_seeds(tuned: Any) -> None:
    small = {"model": {"vision": "clip", "text": "clip", "embed_dim": 64}}
    models = [
        ("clip-finetune", noise, {"seed": seed, **more}) for seed in (0, 1) for noise, more in ((3, {}), (1, small))
    ]
    report = tuned(*models)
    first, second = sorted(run["metrics"]["full"]["rsum"]["value"] for run in report.results["runs"])[2:]
    name, mean = "ual encoder, fine-tuned CLIP (model.embed_dim 64)", (first + second) / 2
    said = f"D{name}, the most of 2, reaches an RSum of {mean:.1f} of 600 on average of 2 seeds, and chance "
    assert answer(report).startswith(said)
    text = " ".join((report.folder / "summary.txt").read_text().split())
    assert text.count(f" d{name}, seed 1 ") == 2, "every row of recalls says which"
