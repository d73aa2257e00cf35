"""Averages of weights against loops and formulas, and what the loop validates and saves of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itrpipe.training.loop import BEST, CHECKPOINT, Trainer
from itrpipe.training.optimizers import weight_average
from itrpipe.training.saved import load_weights
from itrpipe.training.settings import parsed_average
from tests.training.interrupting import interrupt
from tests.training.test_adapters import limited, opened, scores, step
from tests.training.test_loop_promises import SETTINGS, Pairs, Toy, trainer

KINDS = ["ema:0.7", "wise-ft:0.4"]
GATHERED = {"accumulate": 2, "schedule": "linear", "batch_size": 4}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_adapters_add_is_interpolated_as_a_whole(saved_encoders: Path, share: float) -> None:
    """(1 - a) W_0 + a (W_0 + B A) = W_0 + a B A."""
    plain = opened(saved_encoders)
    model = limited(opened(saved_encoders), adapter="lora", lora_targets=("q_proj",), lora_alpha=8.0, lora_rank=8)
    average = weight_average(f"wise-ft:{share}", model)
    step(model)
    place = "vision.network.vision_model.encoder.layers.0.self_attn.q_proj"
    layer: Any = model.get_submodule(place)
    added = (layer.lora_B["default"].weight @ layer.lora_A["default"].weight).detach()
    assert added.abs().max() > 1e-3
    with average.applied():
        between = layer.get_base_layer().weight + layer.get_delta_weight("default")
        torch.testing.assert_close(between, plain.get_parameter(f"{place}.weight") + share * added)
        if not share:
            torch.testing.assert_close(scores(model.eval()), scores(plain.eval()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("text", ["ema", "ema:1", "ema:x", "wise-ft:1.5", "wise-ft:nan", "swa:0.5", ""])
def test_other_averages_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give none, ema:DECAY"):
        parsed_average(text)


@pytest.mark.parametrize("average", KINDS)
def test_the_averaged_model_is_validated_and_saved_and_the_raw_one_trained(tmp_path: Path, average: str) -> None:
    """Every validation sees the average, the best is chosen by it, and updates are those of a run without."""
    plain = trainer(tmp_path / "plain", optimizer="adam")
    plain.run()
    run = trainer(tmp_path / "averaged", optimizer="adam", average=average)
    torch.manual_seed(SETTINGS.seed)
    first = Toy().state_dict()
    names = [name for name, _ in run._model.named_parameters()]
    kind, number = parsed_average(average)
    kept, seen = {name: first[name].clone() for name in names}, []
    update, validate = run._update, run.validate

    def follow() -> None:
        update()
        for name, each in run._model.named_parameters():
            kept[name] = number * kept[name] + (1 - number) * each.detach() if kind == "ema" else each.detach().clone()

    def look() -> dict[str, float]:
        own = {name: (1 - number) * first[name] + number * kept[name] for name in names} if kind != "ema" else kept
        for name, each in run._model.named_parameters():
            torch.testing.assert_close(each.detach(), own[name])
        metrics = validate()
        seen.append((metrics["rsum"], {name: each.clone() for name, each in run._model.state_dict().items()}))
        return metrics

    run._update, run.validate = follow, look  # pyright: ignore[reportAttributeAccessIssue]
    torch.manual_seed(SETTINGS.seed)
    Toy()
    model = run.run()
    assert len(seen) == SETTINGS.epochs
    best = max(seen, key=lambda each: each[0])
    assert [row["val_rsum"] for row in run.position.history] == [score for score, _ in seen]
    assert all(torch.equal(value, best[1][name]) for name, value in model.state_dict().items())
    losses = [[row["loss"] for row in each.position.history] for each in (plain, run)]
    assert losses[0] == losses[1]
    stored = Toy()
    load_weights(tmp_path / "averaged" / BEST, stored, unfinished=True)
    assert all(torch.equal(value, best[1][name]) for name, value in stored.state_dict().items())


@pytest.mark.parametrize("changes", [{}, *({"average": kind} for kind in KINDS), GATHERED])
@pytest.mark.parametrize("validate_every", [0, 2])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    tmp_path: Path, changes: dict[str, Any], validate_every: int
) -> None:
    values = {"checkpoint_seconds": 0.0, "optimizer": "adamw", "validate_every": validate_every, **changes}
    whole = trainer(tmp_path / "whole", **values)
    whole.run()
    interrupt(trainer(tmp_path / "broken", **values), 4)
    resumed = trainer(tmp_path / "broken", **values)
    resumed.run()
    assert resumed.position.history == whole.position.history
    written = [
        [(tmp_path / folder / name).read_bytes() for name in (BEST, CHECKPOINT)] for folder in ("whole", "broken")
    ]
    assert written[0] == written[1]


def test_the_rate_of_the_history_is_that_of_the_top(saved_encoders: Path, tmp_path: Path) -> None:
    """Groups are trained at shares of it."""
    model = opened(saved_encoders)
    settings = SETTINGS.model_copy(update={"optimizer": "adamw", "layer_decay": 0.5, "learning_rate": 0.01})
    data = Pairs(0)
    method: Any = SimpleNamespace(means=True)
    run = Trainer(settings, model, method, data, data, "cpu", tmp_path, SimpleNamespace())  # pyright: ignore
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    run._update()
    assert run._learning_rate == 0.01
    assert {group["lr"] for group in run._optimizer.param_groups} == {0.01, 0.005, 0.0025, 0.00125}
