"""Training that mines again with its own weights: which lists it gets, interruption, damage, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.contrastive.method import ContrastiveMethod
from itrpipe.training import loop
from itrpipe.training.encoding import Refreshing
from itrpipe.training.saved import MODEL
from tests.chains import Invoke, copied, done, interrupted, refused, same_files, sets

GIVEN = ["train", "--method", "contrastive", "--backbone", "vsepp", "--negatives", "mined", "--batches", "neighbours"]
SETS = ["train.batch_size=20", "train.epochs=3", "train.min_word_count=1", "train.learning_rate=0.01"]
SETS += ["train.model.embed_dim=8", "train.model.word_dim=8", "train.checkpoint_seconds=0"]
SETS += ["mine_negatives.num_texts=5", "mine_negatives.num_images=3", "mine_negatives.guard_batch_size=2"]
SETS += ["loss.top_texts=5", "loss.top_images=3", "loss.refresh_every=2", "triplet.loss.sum_epochs=0"]
FIRST_STEP_AFTER = 7
"""Three steps are an epoch, and the third epoch begins with other lists."""


def command(root: Path, *more: str) -> list[object]:
    return [*GIVEN, "--dataset", "tiny", "--data", root, *sets(*SETS), *more]


def stopped(call: int, target: type = loop.Trainer, name: str = "_step") -> AbstractContextManager[object]:
    """An interruption at the beginning of this call of a method, counted over trainings with lists alone."""

    def has_lists(caller: Any) -> bool:
        return not isinstance(caller, loop.Trainer) or isinstance(caller._method, ContrastiveMethod)

    return interrupted(call, target, name, has_lists)


def test_lists_are_those_of_exact_mining_with_the_weights_of_the_epoch(
    defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refresh = Refreshing._make, ContrastiveMethod.refresh
    seen: list[tuple[np.ndarray, ...]] = []
    given: list[dict[str, np.ndarray]] = []

    def kept(self: Refreshing, path: Path, data: Any, images: np.ndarray, texts: np.ndarray, measure: str) -> None:
        assert path.name == "epoch-2.arrays"  # every second epoch
        seen.append((images, texts, data.caption_image))
        make(self, path, data, images, texts, measure)

    monkeypatch.setattr(Refreshing, "_make", kept)
    monkeypatch.setattr(ContrastiveMethod, "refresh", lambda self, lists: (given.append(lists), refresh(self, lists)))
    out = done(invoke(*command(defined, "--weigh", "guard")))
    assert out.count("mining again with the weights as they are") == 1
    ((images, texts, owners),) = seen
    scores = images @ texts.T
    scores[owners, np.arange(len(texts))] = -np.inf
    first, last = given
    np.testing.assert_array_equal(last["texts_for_images"], np.argsort(-scores, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(last["images_for_texts"], np.argsort(-scores.T, axis=1, kind="stable")[:, :3])
    assert last[f"{PROBABILITY_OF}texts_for_images"].shape == last["texts_for_images"].shape
    assert (last["texts_for_images"] != first["texts_for_images"]).any()


def test_an_interrupted_run_goes_on_to_the_same_weights(defined: Path, invoke: Invoke, tmp_path: Path) -> None:
    """While it mines again, after that, and inside the epoch with the new lists."""
    other = copied(defined, tmp_path / "other")
    done(invoke(*command(other)))
    for stop in (stopped(1, Refreshing, "_make"), stopped(1), stopped(2)):
        with stop:
            assert invoke(*command(defined)).code == 130
    done(invoke(*command(defined)))
    same_files("train/contrastive.vsepp", (other, defined), MODEL, "history.parquet")


def test_lists_that_were_damaged_since_are_not_gone_on_with(
    defined: Path, invoke: Invoke, flipped: Callable[[Path], None]
) -> None:
    with stopped(FIRST_STEP_AFTER + 1):
        assert invoke(*command(defined)).code == 130
    (lists,) = defined.glob("tiny/train/contrastive.vsepp-*.partial/.work/refreshed/*.arrays")
    for damage in (flipped, Path.unlink):
        damage(lists)
        refused(invoke(*command(defined)), 4, f"remove {lists.parents[2]}")
