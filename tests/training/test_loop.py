"""What the loop promises, kept by a model with dropout and BatchNorm on validation data unlike the training data."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.methods.base import Batch, Method
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.methods.triplet.method import TripletMethod
from itrpipe.models.base import EmbeddingModel, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.progress import Reporter
from itrpipe.storage.disk import file_digest
from itrpipe.testing import IMAGE_DIM, LOOP_SETTINGS, VOCABULARY, ToyPairs
from itrpipe.training import recipe
from itrpipe.training.encoding import SplitEncoder
from itrpipe.training.optimizers import optimizer_of
from itrpipe.training.recipe import BEST, BETTER, CHECKPOINT, Trainer
from itrpipe.training.saved import load_checkpoint, load_weights
from itrpipe.training.settings import parsed_average

IMAGES, CPU = 10, torch.device("cpu")
SETTINGS = LOOP_SETTINGS.model_copy(
    update={
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 0.05,
        "gradient_clip": 100.0,
        "max_updates": 0,
        "validation_images": IMAGES,
        "encode_block": 4,
        "checkpoint_seconds": 1e9,
        "optimizer": "spy",
    }
)
"""Twenty pairs, of which three batches are an epoch."""
Change = dict[str, Any]


class Pairs(ToyPairs):
    """Ten random images, two captions of each."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, IMAGES)


class Toy(EmbeddingModel):
    """Two projections, one with BatchNorm and dropout; remembers in which mode it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(IMAGE_DIM, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.text = nn.EmbeddingBag(VOCABULARY, 8, mode="mean", padding_idx=0)
        self.modes: list[tuple[bool, bool]] = []

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return ImageEncoding(nn.functional.normalize(self.image(images.regions[:, 0]), dim=1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        return TextEncoding(nn.functional.normalize(self.text(texts.tokens), dim=1))


class SpySgd(torch.optim.SGD):
    """Keeps the gradients that it was given, and the weights that it has made."""

    def __init__(self, model: Any, rate: float) -> None:
        super().__init__([{"params": [*model.parameters()]}], rate)
        self.seen: list[list[Tensor]] = []
        self.made: list[list[Tensor]] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore
        weights = [each for group in self.param_groups for each in group["params"]]
        self.seen.append([each.grad.clone() for each in weights])
        super().step()
        self.made.append([each.detach().clone() for each in weights])


@pytest.fixture(autouse=True)
def spy(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(settings: Any, model: Any, *given: Any) -> torch.optim.Optimizer:
        if settings.optimizer == "spy":
            return SpySgd(model, settings.learning_rate)
        return optimizer_of(settings, model, *given)

    monkeypatch.setattr(recipe, "optimizer_of", chosen)


def trainer(work: Path, method: object = None, sum_epochs: int = 0, **values: object) -> Trainer:
    settings = SETTINGS.model_copy(update=values)
    work.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    data = Pairs(0)
    chosen: Any = method or TripletMethod(Triplet(max_violation=False, sum_epochs=sum_epochs), data, data.limits)  # pyright: ignore
    return Trainer(settings, Toy(), chosen, data, Pairs(1), "cpu", work, Reporter())  # pyright: ignore


def trained(work: Path, method: object = None, **values: object) -> Trainer:
    run = trainer(work, method, **values)
    run.run()
    return run


def interrupt(run: Trainer, after: int) -> None:
    """Trains until so many steps are taken, and not a step further, as if the process had been killed."""
    step, left = run._step, iter(range(after))

    def counted(*arguments: Any) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(*arguments)

    run._step = counted  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyboardInterrupt):
        run.run()


def gradients(run: Trainer) -> list[list[Tensor]]:
    """Those of the batches of the first epoch, with the weights as they are."""
    model, found = run._model.train(), []
    for step, rows in enumerate(run._batches(0)):
        model.zero_grad()
        batch = run._method.collate(rows, np.random.default_rng([0, 0, step]))
        sum(run._method.losses(model, batch, 0).values()).backward()  # pyright: ignore
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return found


def seen_with(work: Path, **values: object) -> tuple[Trainer, list[list[Tensor]]]:
    """A training of one epoch that hardly moves, without dropout, and the gradients of its updates."""
    run = trainer(work, epochs=1, learning_rate=1e-12, **values)
    run._model.get_submodule("image.2").p = 0.0  # pyright: ignore
    run.run()
    return run, run._optimizer.seen  # pyright: ignore


def test_the_norm_is_that_of_pytorch_and_gradients_are_clipped_before_the_update(tmp_path: Path) -> None:
    run, seen = seen_with(tmp_path, gradient_clip=0.01)
    norms, expected = (
        [torch.stack([each.norm() for each in step]).norm().item() for step in steps]
        for steps in (seen, gradients(run))
    )
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    assert run.position.history[0]["gradient_norm"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_partial_update_is_the_mean_of_its_own_batches(tmp_path: Path) -> None:
    """Of three batches, two make the first update and one the second; Adam would hide a wrong divisor."""
    run, (first, second) = seen_with(tmp_path, accumulate=2)
    for found, last, one, two, three in zip(first, second, *gradients(run), strict=True):
        torch.testing.assert_close(found, (one + two) / 2, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(last, three, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("images", [IMAGES, 4])
def test_the_first_images_of_the_validation_split_are_validated(tmp_path: Path, images: int) -> None:
    run = trained(tmp_path, epochs=1, validation_images=images)
    encoder, val = SplitEncoder(run._model, CPU, 100), Pairs(1)
    owners = val.caption_image[: 2 * images]
    (shown,), (texts,) = encoder.images(val, np.arange(images)), encoder.texts(val, np.arange(2 * images))
    row, expected = (
        run.position.history[0],
        metrics(ranks((shown.embedding @ texts.embedding.T).numpy(), owners)),
    )
    assert {name: row[f"val_{name}"] for name in expected} == pytest.approx(expected)
    four = expected["i2t_r1"] + expected["i2t_r5"] + expected["t2i_r1"] + expected["t2i_r5"]
    assert row["val_r1+r5"] == pytest.approx(four)


def scripted(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[float, float]]) -> None:
    """Validation gives these sums of all six and of both last recalls, epoch by epoch."""
    left = iter(rows)

    def scores(_: object) -> dict[str, float]:
        rsum, tens = next(left)
        return {"rsum": rsum, "i2t_r10": tens / 2, "t2i_r10": tens / 2}

    monkeypatch.setattr(recipe, "metrics", scores)


@pytest.mark.parametrize(
    ("selection", "sums", "best"),
    [
        ("rsum", [(300, 200), (290, 100), (100, 50)], [True, False, False]),
        ("r1+r5", [(300, 200), (290, 100), (100, 50)], [True, True, False]),
        ("rsum", [(248.48484848484847, 2), (248.4848484848485, 2), (10, 2)], [True, False, False]),  # summed otherwise
    ],
)
def test_the_first_of_the_best_epochs_is_chosen_by_what_the_settings_say(
    selection: str, sums: Any, best: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, sums)
    assert [row["best"] for row in trained(tmp_path, selection=selection).position.history] == best


def test_the_best_weights_may_lie_inside_an_epoch_and_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [(10, 2), (20, 2), (40, 2), (30, 2)])
    run, kept = trainer(tmp_path, epochs=2, validate_every=2), []
    finish = run._validate_and_save

    def finishing() -> None:
        kept.append({name: each.clone() for name, each in run._model.state_dict().items()})
        finish()

    monkeypatch.setattr(run, "_validate_and_save", finishing)
    found, stored = run.run().state_dict(), Toy()
    load_weights(tmp_path / BEST, stored, run.position.best_digest)
    for name, each in stored.state_dict().items():
        assert torch.equal(each, kept[2][name])
        assert torch.equal(each, found[name])
    assert not torch.equal(kept[2]["text.weight"], kept[3]["text.weight"])
    best = run.position.history[run.position.best_row]
    assert (best["val_rsum"], best["epoch"]) == (40, 1.333)


def test_validations_inside_an_epoch_change_nothing_but_what_is_chosen(tmp_path: Path) -> None:
    plain, run = (trained(tmp_path / str(every), epochs=2, validate_every=every) for every in (0, 2))
    epochs, parts = plain.position.history, run.position.history
    for each in (plain, run):
        load_checkpoint(each._work / CHECKPOINT, each._parts, each._frozen, each._optimizer)  # the last weights
    for name, value in plain._model.state_dict().items():
        assert torch.equal(value, run._model.state_dict()[name]), name
    assert [row["epoch"] for row in epochs] == [1, 2]
    assert [(row["epoch"], row["steps"]) for row in parts] == [(0.667, 2), (1, 1), (1.333, 1), (2, 2)]
    # A row tells of what was trained since the one before, and of the weights of then.
    lost = [row["loss"] * pairs for row, pairs in zip(parts, (16, 4, 8, 12), strict=True)]
    assert [lost[0] + lost[1], lost[2] + lost[3]] == pytest.approx([20 * row["loss"] for row in epochs])
    assert [parts[1]["val_rsum"], parts[3]["val_rsum"]] == [row["val_rsum"] for row in epochs]
    cut = trained(tmp_path / "c", epochs=2, validate_every=2, max_updates=5)
    assert [row["epoch"] for row in cut.position.history] == [0.667, 1, 1.333, 1.667]


def test_steps_are_in_training_mode_and_validations_in_evaluation_mode(tmp_path: Path) -> None:
    for every, steps in ((0, [3, 3]), (2, [2, 1, 1, 2])):
        model: Any = trained(tmp_path / str(every), epochs=2, validate_every=every)._model
        passes = [(mode, len(list(group))) for mode, group in groupby(model.modes)]
        assert passes == [each for count in steps for each in (((True, True), count), ((False, False), 3))]
        assert not model.training


class Drawing(Method[Any]):
    """A method that keeps what it drew for each step; its loss at step n is n, a mean over its pairs or their sum."""

    def __init__(self, means: bool = True) -> None:
        super().__init__(None, Pairs(0))
        self.means, self.step, self.drawn = means, 0, []

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        self.drawn.append(float(rng.random()))
        return super().collate(captions, rng)

    def losses(self, model: Toy, batch: Batch, epoch: int) -> dict[str, Tensor]:
        self.step += 1
        images, texts = batch.pairs["positive"]
        scores = model.score_pairs(model.encode_images(images), model.encode_texts(texts))
        return {"pull": scores.mean() * 0 + self.step}


def test_short_epochs_print_the_first_and_the_last_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.training.recipe.PLAIN_INTERVAL_SECONDS", 3600.0)
    trained(tmp_path, epochs=4)
    assert re.findall(r"^  epoch (\d):", capsys.readouterr().out, re.MULTILINE) == ["1", "4"]


def test_every_step_draws_for_itself_and_another_seed_draws_otherwise(tmp_path: Path) -> None:
    methods = [Drawing() for _ in range(3)]
    for number, (method, seed) in enumerate(zip(methods, (0, 0, 1), strict=True)):
        trained(tmp_path / str(number), method, seed=seed)
    first, again, other = (method.drawn for method in methods)
    assert len(first) == len(set(first)) == 9
    assert first == again
    assert not set(first) & set(other)


@pytest.mark.parametrize(("means", "expected"), [(True, 8 * 1 + 8 * 2 + 4 * 3), (False, 1 + 2 + 3)])
def test_the_history_has_the_loss_of_a_pair(tmp_path: Path, means: bool, expected: int) -> None:
    (row,) = trained(tmp_path, Drawing(means), epochs=1).position.history
    assert row["loss_pull"] == row["loss"] == pytest.approx(expected / 20)


class Breaking(Drawing):
    """A method whose loss, or the gradient of it, stops being finite at the fifth step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def losses(self, model: Toy, batch: Batch, epoch: int) -> dict[str, Tensor]:
        found = super().losses(model, batch, epoch)
        if self.step < 5:
            return {**found, "other": found["pull"] * 0}
        if self.how == "loss":
            return {**found, "other": found["pull"] * float("nan")}
        zero = model.text.weight.sum() * 0
        return {**found, "other": zero.abs().sqrt() * 0}  # the root's slope at zero is infinite, and 0 times that NaN


@pytest.mark.parametrize(("how", "name"), [("loss", "loss_other"), ("gradient", "gradient_norm")])
def test_the_error_names_the_loss_that_was_not_finite_first_and_the_step(tmp_path: Path, how: str, name: str) -> None:
    with pytest.raises(DataError, match=rf"^{name} is nan in epoch 2 \(first at step 2\); lower --set"):
        trained(tmp_path, Breaking(how))


def test_bfloat16_is_close_to_single_precision_and_not_equal(tmp_path: Path) -> None:
    rows = [trained(tmp_path / each, epochs=1, precision=each).position.history[0] for each in ("fp32", "bf16")]
    assert rows[0]["loss"] != rows[1]["loss"]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=0.05)
    seen: list[torch.dtype] = []

    def look(part: nn.Module, given: object, found: Tensor) -> None:
        if not part.training:
            seen.append(found.dtype)

    for asked in ("fp32", "as-trained"):
        run = trainer(tmp_path / f"embed {asked}", epochs=1, precision="bf16", embed_precision=asked)
        run._model.get_submodule("image.0").register_forward_hook(look)
        run.run()
    assert seen == [torch.float32] * 3 + [torch.bfloat16] * 3


def test_scores_of_pairs_and_encodings_in_bfloat16_are_near_those_in_single_precision() -> None:
    torch.manual_seed(0)
    model, data = scan.build(Scan(embed_dim=16, word_dim=8), IMAGE_DIM, VOCABULARY).eval(), Pairs(1)

    def scores(block: int, captions: list[int], images: int, *precisions: str) -> np.ndarray:
        encoder = SplitEncoder(model, CPU, block, *precisions)
        return encoder.scores(encoder.images(data, np.arange(images)), encoder.texts(data, np.array(captions)))

    every, chosen = [*range(2 * IMAGES)], [7, 3, 18, 3, 0]
    exact = scores(4, every, IMAGES)
    for rough in (scores(4, every, IMAGES, "bf16"), scores(4, every, IMAGES, "fp32", "bf16")):
        assert rough.dtype == np.float32
        assert 0 < np.abs(rough - exact).max() < 0.02
    np.testing.assert_allclose(scores(3, chosen, 6), exact[:6, chosen], atol=1e-6)


# Ends, and what is told of them

FLAT = {"learning_rate": 1e-12, "patience": 2, "epochs": 6}
"""The first validation is the best."""


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({}, "3"),
        ({"validate_every": 2}, "1.333"),
        ({"sum_epochs": 2}, "4"),
        ({"sum_epochs": 6}, "3"),
        ({"patience": 5}, ""),
    ],
)
def test_training_ends_where_validation_is_flat(
    tmp_path: Path, changes: Change, epochs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [(10, 2)] * 20)
    run = trained(tmp_path, **FLAT | changes)
    assert run.ended_early() == (f"ended after {epochs} epochs: validation has not risen for 2" if epochs else "")
    assert trained(tmp_path, **FLAT | changes).position == run.position


def test_a_rate_that_never_rises_to_its_height_is_told(tmp_path: Path) -> None:
    run = trainer(tmp_path, schedule="cosine", warmup_updates=1000)
    assert "warmup_updates = 1,000, and all epochs together have 9 updates" in run.never_warm()
    assert "at 1 % of its height" in run.never_warm()
    assert not trainer(tmp_path, schedule="cosine", warmup_updates=9).never_warm()
    assert not trainer(tmp_path, schedule="cosine", warmup_updates=0.9).never_warm()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epochs": 1},
        {"epochs": 5, "max_updates": 7},
        {"accumulate": 3},
        {"accumulate": 2, "epochs": 2, "validate_every": 2},
        {"batch_by": "tokens", "batch_size": 60},
        {"epochs": 0},
    ],
)
def test_a_training_has_as_many_updates_as_it_planned(tmp_path: Path, changes: Change) -> None:
    run = trained(tmp_path, **changes)
    assert run.position.updates == run._total_updates


# Interruptions


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({"optimizer": "adamw-clip", "validate_every": 2}, [4]),
        ({"accumulate": 2, "schedule": "linear", "batch_size": 4, "precision": "bf16"}, [4]),
        ({"average": "wise-ft:0.5", "validate_every": 2}, [3, 5]),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path, changes: Change, stops: list[int]) -> None:
    values = {"checkpoint_seconds": 0.0, **changes}
    whole = trained(tmp_path / "whole", **values)
    for stop in stops:
        interrupt(trainer(tmp_path / str(stop), **values), stop)
        resumed = trained(tmp_path / str(stop), **values)
        assert resumed.position == whole.position
        for name in (BEST, CHECKPOINT):
            assert (tmp_path / str(stop) / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("before", [True, False], ids=["before the checkpoint", "behind it"])
def test_a_kill_between_best_weights_and_checkpoint_leaves_a_pair_that_fits(tmp_path: Path, before: bool) -> None:
    """Whether or not the validation that is repeated is as good again, as on another machine."""
    scores = [(10.0, 10.0), (20.0, 20.0)]
    with pytest.MonkeyPatch.context() as patched:
        scripted(patched, scores)
        run = trainer(tmp_path, epochs=3)
        save, saves = recipe.save_checkpoint, iter(range(1))

        def killed(*arguments: Any) -> None:
            is_first = next(saves, None) is not None
            if is_first or not before:
                save(*arguments)
            if not is_first:
                raise KeyboardInterrupt

        patched.setattr(recipe, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    with pytest.MonkeyPatch.context() as patched:
        scripted(patched, [(5.0, 5.0)] * 3)
        trained(tmp_path, epochs=3)
    assert not (tmp_path / BETTER).exists()


@pytest.mark.parametrize("name", [CHECKPOINT, BEST])
@pytest.mark.parametrize("share", [0.01, 0.99, None])
def test_unfinished_work_that_is_damaged_is_refused_in_one_line(tmp_path: Path, name: str, share: float | None) -> None:
    trained(tmp_path, epochs=1)
    content = bytearray((tmp_path / name).read_bytes())
    content[int((share or 0) * len(content))] ^= 16
    (tmp_path / name).write_bytes(content if share else content[:-100])
    with pytest.raises(DataError, match=rf"{name} .*; remove .* and run the same command again$"):
        trained(tmp_path, epochs=1)


def test_files_of_other_trainings_are_refused_in_one_line(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1, optimizer="adam")
    other = torch.optim.Adam(nn.Linear(4, 2).parameters())
    with pytest.raises(DataError, match=r"as a checkpoint of this run \(.*again$"):
        load_checkpoint(tmp_path / CHECKPOINT, {"model": nn.Linear(4, 2)}, nn.ModuleList(), other)
    with pytest.raises(DataError, match=r"as the weights of this model \(.*again$"):
        load_weights(tmp_path / BEST, nn.Linear(4, 3), file_digest(tmp_path / BEST))


# Averages of weights


@pytest.mark.parametrize("text", ["ema", "ema:1", "ema:x", "wise-ft:1.5", "wise-ft:nan", "swa:0.5", ""])
def test_other_averages_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give none, ema:DECAY"):
        parsed_average(text)


def test_the_averaged_model_is_validated_and_saved_and_the_raw_one_trained(tmp_path: Path) -> None:
    expected = [each.detach().clone() for each in trainer(tmp_path / "first")._model.parameters()]
    plain, run = (trained(tmp_path / each, epochs=1, average=each) for each in ("none", "ema:0.7"))
    made: list[list[Tensor]] = run._optimizer.made  # pyright: ignore
    assert all(map(torch.equal, made[-1], plain._optimizer.made[-1]))  # pyright: ignore
    for after in made:
        expected = [0.7 * old + 0.3 * new for old, new in zip(expected, after, strict=True)]
    load_weights(tmp_path / "ema:0.7" / BEST, stored := Toy(), run.position.best_digest)
    for model in (run._model, stored):
        torch.testing.assert_close(list(model.parameters()), [nn.Parameter(each) for each in expected])
    assert run.validate()["rsum"] == run.position.history[0]["val_rsum"] != plain.position.history[0]["val_rsum"]


def test_an_average_has_the_statistics_of_its_own_weights_and_leaves_those_of_training(tmp_path: Path) -> None:
    plain, run = (trained(tmp_path / each, epochs=1, average=each) for each in ("none", "ema:0.99"))
    of_plain, of_average = (each._model.get_submodule("image") for each in (plain, run))
    layer, norm, _ = of_average.children()
    vectors = [layer(run._train.images(rows // 2).regions[:, 0]).detach() for rows in run._batches(0)]
    for found, each in ((norm.running_mean, torch.mean), (norm.running_var, torch.var)):
        expected = torch.stack([each(rows, dim=0) for rows in vectors]).mean(dim=0)
        torch.testing.assert_close(found, expected)
    states = [load_file(tmp_path / each / CHECKPOINT) for each in ("none", "ema:0.99")]
    for name in (name for name in states[0] if "running" in name or "tracked" in name):
        assert torch.equal(states[0][name], states[1][name]), name
    assert norm.momentum == list(of_plain.children())[1].momentum
