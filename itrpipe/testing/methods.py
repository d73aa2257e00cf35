"""Checks of a method; `check_method` runs them all, and `METHOD_CHECKS` has each by its name."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.methods.base import AnyMatcher, Method
from itrpipe.progress import Reporter
from itrpipe.testing.backbones import BuildModel
from itrpipe.testing.toy_pairs import ToyPairs, readable
from itrpipe.training.recipe import CHECKPOINT, Trainer
from itrpipe.training.settings import LoopSettings

BuildMethod = Callable[[ToyPairs], Method]
LOOP_SETTINGS = LoopSettings.model_construct(
    epochs=2,
    batch_size=6,
    learning_rate=1e-3,
    decay_every=9,
    decay_factor=0.1,
    gradient_clip=2.0,
    max_updates=5,
    patience=0,
    precision="fp32",
    selection="rsum",
    validation_images=6,
    seed=0,
    encode_block=16,
    encode_chunk=0,
    prefetch=1,
    checkpoint_seconds=0,
)
"""Settings of a short training; `LOOP_SETTINGS.model_copy(update={…})` makes others of them."""
_LATE = 1_000
"""An epoch in which every method has left the losses of its first epochs behind."""


def check_method(build: BuildMethod, build_model: BuildModel) -> None:
    """Run all checks of a method with a backbone.

    Args:
        build: returns the method for a training set, which has all that methods read beside the pairs, such as
            `sentences`.
        build_model: returns the backbone, see `check_backbone`.

    Raises:
        AssertionError: one of them fails; it says which.
    """
    for check in METHOD_CHECKS.values():
        check(build, build_model)


def losses_are_finite_numbers(build: BuildMethod, build_model: BuildModel) -> None:
    """Every loss is a finite number in single precision at least, of any batch, also of one image's captions alone."""
    two_images = np.array([0, 3])
    one_image = np.array([0, 1])
    repeated = np.array([4, 5, 4])
    for captions in (np.arange(8), two_images, one_image, repeated):
        for epoch in (0, _LATE):
            method, model = _ready(build, build_model)
            for name, loss in _step(method, model, captions, epoch).items():
                place = f"loss {name!r} of captions {captions.tolist()}"
                assert loss.shape == (), f"{place} has shape {tuple(loss.shape)}"
                assert loss.dtype in (torch.float32, torch.float64), f"{place} is {loss.dtype}"
                assert loss.isfinite(), f"{place} is {loss.item()}"


def one_pair_is_no_error(build: BuildMethod, build_model: BuildModel) -> None:
    """A batch of one pair, which has no negative of its own, gives finite losses in evaluation mode."""
    method, model = _ready(build, build_model)
    losses = _values(_step(method, model.eval(), np.array([3]), _LATE))
    assert all(map(math.isfinite, losses.values())), f"losses of a single pair are {losses}"


def something_is_learned_and_nothing_else(build: BuildMethod, build_model: BuildModel) -> None:
    """Some parameter has a gradient, and every gradient is finite."""
    method, model = _ready(build, build_model)
    losses = _step(method, model, np.arange(8), 0)
    torch.stack(list(losses.values())).sum().backward()
    is_learned = False
    broken = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        is_learned |= bool(parameter.grad.abs().max() > 0)
        if not parameter.grad.isfinite().all():
            broken.append(name)
    assert is_learned, "no parameter has a gradient"
    assert not broken, f"the gradient of {broken[:3]} is not finite"


def equal_draws_give_equal_losses(build: BuildMethod, build_model: BuildModel) -> None:
    """All that is random comes from the generator that is given and from PyTorch's, and from nowhere else."""
    method, model = _ready(build, build_model)
    first = _values(_step(method, model, np.arange(8), _LATE))
    method, model = _ready(build, build_model)
    again = _values(_step(method, model, np.arange(8), _LATE))
    assert first == again, f"equal generators give {first} and {again}"


def nan_weights_give_nan_losses(build: BuildMethod, build_model: BuildModel) -> None:
    """A model whose weights are NaN has a loss that is not finite, which stops training."""
    for epoch in (0, _LATE):
        method, model = _ready(build, build_model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float("nan"))
        losses = _values(_step(method, model, np.arange(8), epoch))
        assert not all(map(math.isfinite, losses.values())), f"a model of NaN has losses {losses}"


def losses_leave_autocast(build: BuildMethod, build_model: BuildModel) -> None:
    """Under bfloat16 autocast losses are single precision."""
    with torch.autocast("cpu", torch.bfloat16):
        method, model = _ready(build, build_model)
        losses = _step(method, model, np.arange(8), 0)
    for loss in losses.values():
        assert loss.dtype == torch.float32, "a loss is bfloat16 under autocast"


def a_killed_training_goes_on_as_if_it_had_not_been(build: BuildMethod, build_model: BuildModel) -> None:
    """Training that stops within an epoch and goes on gives the weights of training that does not, bit for bit."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        without_checkpoints = LOOP_SETTINGS.model_copy(update={"checkpoint_seconds": 3600})
        whole = _trainer(build, build_model, Path(folder) / "whole", without_checkpoints).run()
        stopped_folder = Path(folder) / "stopped"
        trainer = _trainer(build, build_model, stopped_folder)
        method = trainer._method
        losses = method.losses
        step = 0

        def losses_of_two_steps(*args: Any) -> dict[str, Tensor]:
            nonlocal step
            step += 1
            if step == 3:
                raise KeyboardInterrupt
            return losses(*args)

        method.losses = losses_of_two_steps  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(KeyboardInterrupt):
            trainer.run()
        assert (stopped_folder / CHECKPOINT).exists(), "nothing was saved within the first epoch"
        resumed = _trainer(build, build_model, stopped_folder).run().state_dict()
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed[name]), f"{name} differs after going on"


METHOD_CHECKS: dict[str, Callable[[BuildMethod, BuildModel], None]] = {
    check.__name__: check
    for check in (
        losses_are_finite_numbers,
        one_pair_is_no_error,
        something_is_learned_and_nothing_else,
        equal_draws_give_equal_losses,
        nan_weights_give_nan_losses,
        losses_leave_autocast,
        a_killed_training_goes_on_as_if_it_had_not_been,
    )
}
"""Each check by its name, for suites that make one test of each."""


def _ready(build: BuildMethod, build_model: BuildModel) -> tuple[Method, AnyMatcher]:
    """Return a method, and a model in training mode that it is attached to."""
    torch.manual_seed(0)
    model = build_model()
    method = build(readable(model))
    model.train()
    method.attach(model)
    method.start_epoch(0)
    return method, model


def _step(method: Method, model: AnyMatcher, captions: np.ndarray, epoch: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    batch = method.collate(captions, np.random.default_rng(2))
    return method.losses(model, batch, epoch)


def _values(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: loss.item() for name, loss in losses.items()}


def _trainer(
    build: BuildMethod, build_model: BuildModel, work: Path, settings: LoopSettings = LOOP_SETTINGS
) -> Trainer:
    work.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = build_model()
    train: Any = readable(model)
    validation: Any = readable(model, seed=1)
    return Trainer(
        settings,
        model,
        build(train),
        train=train,
        validation=validation,
        device="cpu",
        work=work,
        reporter=Reporter(),
    )
