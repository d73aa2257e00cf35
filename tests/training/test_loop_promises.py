"""What the loop promises, kept by a model with dropout and BatchNorm on validation data unlike the training data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.evaluation import protocols
from itrpipe.evaluation.ranks import ranks
from itrpipe.methods.base import Batch
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.methods.triplet.method import TripletMethod
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.progress import Reporter
from itrpipe.stages import train as train_stage
from itrpipe.testing import IMAGE_DIM, LOOP_SETTINGS, VOCABULARY, ToyPairs
from itrpipe.training import loop
from itrpipe.training.data import epoch_batches
from itrpipe.training.encoding import Encoder
from itrpipe.training.loop import BEST, CHECKPOINT, Trainer
from itrpipe.training.optimizers import OPTIMIZERS
from itrpipe.training.saved import load_checkpoint, load_weights

IMAGES = 10
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


class Pairs(ToyPairs):
    """Ten random images, two captions of each."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, IMAGES)


class Toy(DualEncoder):
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
    """Keeps the gradients that it was given."""

    def __init__(self, model: nn.Module, rate: float, _: float) -> None:
        super().__init__(model.parameters(), rate)
        self.seen: list[list[Tensor]] = []

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore
        held = [each.grad for group in self.param_groups for each in group["params"]]
        self.seen.append([torch.zeros(()) if each is None else each.clone() for each in held])
        super().step()


@pytest.fixture(autouse=True)
def spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "spy", SpySgd)


def trainer(work: Path, train: Pairs | None = None, method: object = None, **values: object) -> Trainer:
    settings = SETTINGS.model_copy(update=values)
    work.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    data = train or Pairs(0)
    chosen = method or TripletMethod(Triplet(max_violation=False), data, {})
    return Trainer(settings, Toy(), chosen, data, Pairs(1), "cpu", work, Reporter())  # pyright: ignore


def seen_by(run: Trainer) -> list[list[Tensor]]:
    optimizer = run._optimizer
    assert isinstance(optimizer, SpySgd)
    return optimizer.seen


def without_dropout(run: Trainer) -> None:
    for part in run._model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0


def gradients(run: Trainer) -> list[list[Tensor]]:
    """Those of the batches of the first epoch, with the weights as they are."""
    model, found = run._model.train(), []
    for step, rows in enumerate(run._batches(0)):
        model.zero_grad()
        batch = run._method.collate(rows, np.random.default_rng([0, 0, step]))
        sum(run._method.losses(model, batch, 0).values()).backward()  # pyright: ignore
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return found


def hand_metrics(model: Toy, data: Pairs) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        images = model.encode_images(data.images(np.arange(data.num_images))).embedding
        texts = model.encode_texts(data.texts(np.arange(data.num_captions))).embedding
    return protocols.metrics(ranks((images @ texts.T).numpy(), data.caption_image))


def test_the_norm_is_that_of_pytorch_and_gradients_are_clipped_before_the_update(tmp_path: Path) -> None:
    run = trainer(tmp_path, epochs=1, gradient_clip=0.01, learning_rate=1e-12)
    without_dropout(run)
    run.run()
    norms = [torch.linalg.vector_norm(torch.stack([each.norm() for each in step])).item() for step in seen_by(run)]
    assert max(norms) == pytest.approx(0.01, rel=1e-3)
    expected = [torch.stack([each.norm() for each in step]).norm().item() for step in gradients(run)]
    assert run.position.history[0]["gradient_norm"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_partial_update_is_the_mean_of_its_own_batches(tmp_path: Path) -> None:
    """Of three batches, two make the first update and one the second; Adam would hide a wrong divisor."""
    run = trainer(tmp_path, epochs=1, accumulate=2, learning_rate=1e-12)
    without_dropout(run)
    run.run()
    expected = gradients(run)
    first, second = seen_by(run)
    for found, one, two in zip(first, expected[0], expected[1], strict=True):
        torch.testing.assert_close(found, (one + two) / 2, rtol=1e-4, atol=1e-6)
    for found, three in zip(second, expected[2], strict=True):
        torch.testing.assert_close(found, three, rtol=1e-4, atol=1e-6)


# Validation and the choice of an epoch


@pytest.mark.parametrize("images", [IMAGES, 4])
def test_the_first_images_of_the_validation_split_are_validated(tmp_path: Path, images: int) -> None:
    run = trainer(tmp_path, epochs=1, validation_images=images)
    model, val = run.run(), Pairs(1)
    assert isinstance(model, Toy)
    val.num_images, val.num_captions, val.caption_image = images, 2 * images, val.caption_image[: 2 * images]
    row, expected = run.position.history[0], hand_metrics(model, val)
    assert {name: row[f"val_{name}"] for name in expected} == pytest.approx(expected)
    four = expected["i2t_r1"] + expected["i2t_r5"] + expected["t2i_r1"] + expected["t2i_r5"]
    assert row["val_r1+r5"] == pytest.approx(four)


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
    run = trainer(tmp_path, selection=selection)
    run.run()
    assert [row["best"] for row in run.position.history] == best


def scripted(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[float, float]]) -> None:
    """Validation gives these sums of all six and of both last recalls, epoch by epoch."""
    left = iter(rows)

    def metrics(_: object) -> dict[str, float]:
        rsum, tens = next(left)
        return {"rsum": rsum, "i2t_r10": tens / 2, "t2i_r10": tens / 2}

    monkeypatch.setattr(loop.protocols, "metrics", metrics)


def test_the_best_weights_are_given_back_and_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [(10, 2), (30, 2), (20, 2)])
    run = trainer(tmp_path)
    kept = []
    finish = run._validate_and_save

    def finishing() -> None:
        kept.append({name: each.clone() for name, each in run._model.state_dict().items()})
        finish()

    monkeypatch.setattr(run, "_validate_and_save", finishing)
    model = run.run()
    stored = Toy()
    load_weights(tmp_path / BEST, stored, unfinished=True)
    for name, each in model.state_dict().items():
        torch.testing.assert_close(each, kept[1][name], rtol=0, atol=0)
        torch.testing.assert_close(each, stored.state_dict()[name], rtol=0, atol=0)
    assert not torch.equal(kept[1]["text.weight"], kept[2]["text.weight"])
    assert [row["best"] for row in run.position.history] == [True, True, False]


def test_validations_inside_an_epoch_change_nothing_but_what_is_chosen(tmp_path: Path) -> None:
    made, rows = [], {}
    for every in (0, 2):
        each = trainer(tmp_path / str(every), epochs=2, validate_every=every)
        each.run()
        load_checkpoint(each._work / CHECKPOINT, each._parts, each._optimizer)  # the last weights
        rows[each] = each.position.history
        made.append(each)
    plain, run = made
    for name, value in plain._model.state_dict().items():
        assert torch.equal(value, run._model.state_dict()[name]), name
    assert [row["epoch"] for row in rows[plain]] == [1, 2]
    assert [row["epoch"] for row in rows[run]] == [0.667, 1, 1.333, 2]  # three steps an epoch
    assert [row["steps"] for row in rows[run]] == [2, 1, 1, 2]
    # A row tells of what was trained since the one before, and of the weights of then.
    pairs = [16, 4, 8, 12]
    for number, first in ((0, 0), (1, 2)):
        parts = [row["loss"] * count for row, count in zip(rows[run], pairs, strict=True)][first : first + 2]
        assert sum(parts) / 20 == pytest.approx(rows[plain][number]["loss"])
        assert rows[run][first + 1]["val_rsum"] == rows[plain][number]["val_rsum"]
    cut = trainer(tmp_path / "c", epochs=2, validate_every=2, max_updates=5)
    cut.run()
    assert [row["epoch"] for row in cut.position.history] == [0.667, 1, 1.333, 1.667]
    model = run._model
    assert isinstance(model, Toy)
    # Training mode again after each of them: two steps, a validation, one step, and so on.
    trained = [len(list(group)) for mode, group in groupby(model.modes) if mode[0]]
    assert trained == [2, 1, 1, 2]


def test_the_best_weights_may_lie_inside_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [(10, 2), (20, 2), (40, 2), (30, 2)])
    run = trainer(tmp_path, epochs=2, validate_every=2)
    run.run()
    assert run.position.best_row == 2
    job = SimpleNamespace(metrics={}, timings={}, settings=SimpleNamespace(epochs=2, loss=SimpleNamespace(trains=True)))
    train_stage._record(job, run)  # pyright: ignore
    assert (job.metrics["validation_rsum"], job.metrics["best_epoch"]) == (40, 1.333)


# Modes and generators


def test_training_is_in_training_mode_and_validation_in_evaluation_mode(tmp_path: Path) -> None:
    run = trainer(tmp_path, epochs=2)
    model = run.run()
    assert isinstance(model, Toy)
    steps, blocks = [(True, True)] * 3, [(False, False)] * 3
    assert model.modes == [*steps, *blocks, *steps, *blocks]
    assert not model.training


class Drawing:
    """A method that keeps what it drew for each step."""

    means = True

    def __init__(self) -> None:
        self.drawn: list[float] = []
        self.data = Pairs(0)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        self.drawn.append(float(rng.random()))
        images = self.data.caption_image[captions]
        return Batch({"positive": self.data.pairs(images, captions)}, torch.from_numpy(images))

    def losses(self, model: Toy, batch: Batch, epoch: int) -> dict[str, Tensor]:
        images, texts = batch.pairs["positive"]
        return {"pull": -model.score_pairs(model.encode_images(images), model.encode_texts(texts)).mean()}


def test_every_step_draws_for_itself_and_another_seed_draws_otherwise(tmp_path: Path) -> None:
    methods = [Drawing() for _ in range(3)]
    for number, (method, seed) in enumerate(zip(methods, (0, 0, 1), strict=True)):
        trainer(tmp_path / str(number), method=method, seed=seed).run()
    first, again, other = (method.drawn for method in methods)
    assert len(first) == len(set(first)) == 9
    assert first == again
    assert not set(first) & set(other)


class Rising(Drawing):
    """A method whose loss at step n is n, a mean over its pairs or their sum."""

    def __init__(self, means: bool) -> None:
        super().__init__()
        self.means, self.step = means, 0

    def losses(self, model: Toy, batch: Batch, epoch: int) -> dict[str, Tensor]:
        self.step += 1
        return {"pull": super().losses(model, batch, epoch)["pull"] * 0 + self.step}


@pytest.mark.parametrize(("means", "expected"), [(True, 8 * 1 + 8 * 2 + 4 * 3), (False, 1 + 2 + 3)])
def test_the_history_has_the_loss_of_a_pair(tmp_path: Path, means: bool, expected: int) -> None:
    run = trainer(tmp_path, method=Rising(means), epochs=1)
    run.run()
    (row,) = run.position.history
    assert row["loss_pull"] == row["loss"] == pytest.approx(expected / 20)


def test_a_run_that_ends_with_its_updates_makes_the_batches_of_those_epochs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    batches = epoch_batches

    def counting(*given: object) -> list[np.ndarray]:
        made.append(given[3])
        return batches(*given)  # pyright: ignore

    monkeypatch.setattr(loop, "epoch_batches", counting)
    run = trainer(tmp_path, epochs=1000, max_updates=5)
    assert made == [0]
    run.run()
    assert max(made) == 1
    assert run.position.updates == 5
    assert [row["steps"] for row in run.position.history] == [3, 2]


def test_scores_of_chosen_captions_are_those_of_these_captions() -> None:
    torch.manual_seed(0)
    data, encoder = Pairs(1), Encoder(Toy().eval(), torch.device("cpu"), 4)
    whole = encoder.scores(data, IMAGES, np.arange(data.num_captions))
    chosen = np.array([7, 3, 18, 3, 0])
    np.testing.assert_allclose(encoder.scores(data, 6, chosen), whole[:6, chosen], atol=1e-6)


# What is not finite


class Breaking(Drawing):
    """A method whose loss, or the gradient of it, stops being finite at the fifth step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.step = how, 0

    def losses(self, model: Toy, batch: Batch, epoch: int) -> dict[str, Tensor]:
        self.step += 1
        found = super().losses(model, batch, epoch)
        if self.step < 5:
            return {**found, "other": found["pull"] * 0}
        if self.how == "loss":
            return {**found, "other": found["pull"] * float("nan")}
        zero = model.text.weight.sum() * 0
        return {**found, "other": zero.abs().sqrt() * 0}  # the root's slope at zero is infinite, and 0 times that NaN


def test_the_error_names_the_first_loss_and_step_and_the_gradient(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"is nan in epoch 2 \(loss_other first at step 2, .*the gradient of image.0.weight.*; lower --set",
    ):
        trainer(tmp_path / "loss", method=Breaking("loss")).run()
    with pytest.raises(DataError, match=r"gradient_norm is nan in epoch 2 \(.*gradient of text.weight at step 2"):
        trainer(tmp_path / "gradient", method=Breaking("gradient")).run()
