"""Training that mines again with its own weights: which lists it gets, interruption, damage, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.methods.contrastive.method import ContrastiveMethod
from itrpipe.negatives.lists import PROBABILITY_OF
from itrpipe.training import loop
from itrpipe.training.refresh import Refreshing
from itrpipe.training.saved import MODEL

Invoke = Callable[..., Any]
GIVEN = ["train", "--method", "contrastive", "--backbone", "vsepp", "--negatives", "mined", "--batches", "neighbours"]
SETS = ["train.batch_size=20", "train.epochs=3", "train.min_word_count=1", "train.learning_rate=0.01"]
SETS += ["train.model.embed_dim=8", "train.model.word_dim=8", "train.checkpoint_seconds=0"]
SETS += ["mine_negatives.num_texts=5", "mine_negatives.num_images=3", "mine_negatives.guard_batch_size=2"]
SETS += ["loss.top_texts=5", "loss.top_images=3", "loss.refresh_every=2", "triplet.loss.sum_epochs=0"]
FIRST_STEP_AFTER = 7
"""Three steps are an epoch, and the third epoch begins with other lists."""


def command(root: Path, *more: str) -> list[object]:
    return [*GIVEN, "--dataset", "tiny", "--data", root, *(f"--set={each}" for each in SETS), *more]


def trained(root: Path) -> Path:
    (folder,) = (each for each in root.glob("tiny/train/contrastive.vsepp-*") if each.name[-8:].isalnum())
    return folder


def interrupt(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, call: int) -> None:
    """Lets a method be interrupted at the beginning of this call, counted over trainings with lists alone."""
    calls, method = [0], getattr(target, name)

    def interrupted(self: Any, *given: Any) -> Any:
        calls[0] += not isinstance(self, loop.Trainer) or isinstance(self._method, ContrastiveMethod)
        if calls[0] == call:
            raise KeyboardInterrupt
        return method(self, *given)

    monkeypatch.setattr(target, name, interrupted)


def test_lists_are_those_of_exact_mining_with_the_weights_of_the_epoch(
    defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refresh = Refreshing._make, ContrastiveMethod.refresh
    seen: list[tuple[np.ndarray, ...]] = []
    given: list[dict[str, np.ndarray]] = []

    def kept(self: Refreshing, path: Path, data: Any, images: np.ndarray, texts: np.ndarray, measure: str) -> None:
        seen.append((images, texts, data.caption_image))
        make(self, path, data, images, texts, measure)

    monkeypatch.setattr(Refreshing, "_make", kept)
    monkeypatch.setattr(ContrastiveMethod, "refresh", lambda self, lists: (given.append(lists), refresh(self, lists)))
    outcome = invoke(*command(defined, "--weigh", "guard"))
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("mining again with the weights as they are") == 1
    ((images, texts, owners),) = seen
    scores = images @ texts.T
    scores[owners, np.arange(len(texts))] = -np.inf
    first, last = given
    np.testing.assert_array_equal(last["texts_for_images"], np.argsort(-scores, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(last["images_for_texts"], np.argsort(-scores.T, axis=1, kind="stable")[:, :3])
    assert last[f"{PROBABILITY_OF}texts_for_images"].shape == last["texts_for_images"].shape
    assert (last["texts_for_images"] != first["texts_for_images"]).any()


def test_lists_are_mined_again_before_every_such_epoch(defined: Path, invoke: Invoke) -> None:
    given = [str(each).replace("refresh_every=2", "refresh_every=1") for each in command(defined)]
    assert invoke(*given).out.count("mining again with the weights as they are") == 2


@pytest.mark.parametrize(
    ("target", "name", "call"),
    [
        (loop.Trainer, "_step", FIRST_STEP_AFTER),
        (loop.Trainer, "_step", FIRST_STEP_AFTER + 1),
        (Refreshing, "_make", 1),
    ],
    ids=["after mining", "inside the epoch", "while mining"],
)
def test_an_interrupted_run_goes_on_to_the_same_weights(
    target: Any, name: str, call: int, defined: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(defined, tmp_path / "other"))
    assert invoke(*command(other)).code == 0
    with monkeypatch.context() as patched:
        interrupt(patched, target, name, call)
        assert invoke(*command(defined)).code == 130
    assert invoke(*command(defined)).code == 0
    for file in (MODEL, "history.parquet"):
        assert trained(other).joinpath(file).read_bytes() == trained(defined).joinpath(file).read_bytes()


@pytest.mark.parametrize("gone", [False, True])
def test_lists_that_were_damaged_since_are_not_gone_on_with(
    gone: bool, defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, loop.Trainer, "_step", FIRST_STEP_AFTER + 1)
        assert invoke(*command(defined)).code == 130
    (lists,) = defined.glob("tiny/train/contrastive.vsepp-*.partial/.work/refreshed/*.arrays")
    content = lists.read_bytes()
    lists.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if gone:
        lists.unlink()
    outcome = invoke(*command(defined))
    assert outcome.code == 4
    assert len(outcome.err.strip().splitlines()) == 1
    assert f"remove {lists.parents[2]} and run the same command again" in outcome.err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--set=train.batch_by=tokens"], "batches of tokens are counted before training begins"),
        (["--set=mine_negatives.rescore_with=bfan"], "leave rescore_with out"),
    ],
)
def test_what_cannot_be_mined_again_is_refused_in_the_plan(
    more: list[str], reason: str, defined: Path, invoke: Invoke
) -> None:
    outcome = invoke(*command(defined, *more))
    assert outcome.code == 2
    assert reason in outcome.err
    assert not list(defined.glob("tiny/*/*-*"))


def test_only_a_model_with_embeddings_mines_again(defined: Path, invoke: Invoke) -> None:
    given = [each if each != "vsepp" else "scan" for each in command(defined)]
    outcome = invoke(*given)
    assert outcome.code == 2
    assert "has no embeddings" in outcome.err
