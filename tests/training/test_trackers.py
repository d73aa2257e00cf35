"""Real trackers show a resumed run as one; `train --track` leaves the artifact as it is without."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from itrpipe.storage.disk import read_json
from itrpipe.training.saved import Position
from itrpipe.training.tracking import RECORD, RUNNING_LOSS, TrackedRun, metric_name, tracking_with

STEPS = 3
CHOSEN = {"learning_rate": 0.01, "decay_at": [1, 2], "start_from": None, "loss.max_violation": True}
HISTORY = [{"epoch": k + 1, "steps": STEPS, "loss": 1 / (k + 1), "val_r1+r5": 10.0 * k, "best": True} for k in range(3)]
STEPS_OF_EPOCHS = [STEPS, 2 * STEPS, 3 * STEPS]


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")


def follow(name: str, folder: Path, first: int, last: int) -> TrackedRun:
    """Tracks epochs `first` to `last` of the history as a process of its own would, with one running loss in each."""
    (folder / "work").mkdir(parents=True, exist_ok=True)
    run = TrackedRun("triplet.vsepp-12345678", "itrpipe-tiny", folder / "tracking", CHOSEN, folder / "work")
    warnings: list[str] = []
    tracking = tracking_with([name], run, warnings.append)
    with tracking.following(Position(history=HISTORY[:first])):
        for epoch in range(first, last):
            totals = {"steps": torch.tensor(1.0), "pairs": torch.tensor(4.0), "loss_triplet": torch.tensor(2.0 + epoch)}
            tracking.send_step(Position(epoch, 1, history=HISTORY[:epoch]), totals)
            tracking.send_epochs(HISTORY[: epoch + 1])
    assert warnings == []
    return run


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.training.tracking.INTERVAL_SECONDS", 0.0)


@needs("tensorboard")
def test_tensorboard_shows_a_resumed_run_as_one_and_a_repeated_one_once(tmp_path: Path) -> None:
    run = follow("tensorboard", tmp_path, 0, 2)
    follow("tensorboard", tmp_path, 2, 3)
    folder = run.folder / run.name
    epochs = list(zip(STEPS_OF_EPOCHS, [0.0, 10.0, 20.0], strict=True))
    running = [(1, 0.5), (STEPS + 1, 0.75), (2 * STEPS + 1, 1.0)]
    assert scalars(folder, "val/r1_r5") == epochs
    assert scalars(folder, RUNNING_LOSS) == running
    # The artifact was removed, and with it the record of what was sent; the same run is trained again.
    (run.work / RECORD).unlink()
    follow("tensorboard", tmp_path, 0, 3)
    assert scalars(folder, "val/r1_r5") == epochs
    assert scalars(folder, RUNNING_LOSS) == running


@needs("mlflow")
def test_mlflow_keeps_a_resumed_run_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = follow("mlflow", tmp_path, 0, 2)
    follow("mlflow", tmp_path, 2, 3)
    client = mlflow.MlflowClient(f"sqlite:///{run.folder / 'mlflow.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name == run.project]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.name, "FINISHED")
    assert found.data.params == {key: str(value) for key, value in CHOSEN.items()}
    kept = client.get_metric_history(found.info.run_id, "val/r1_r5")
    assert [(each.step, each.value) for each in kept] == list(zip(STEPS_OF_EPOCHS, [0.0, 10.0, 20.0], strict=True))


@needs("wandb")
def test_wandb_gets_a_resumed_run_under_its_first_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = follow("wandb", tmp_path, 0, 2)
    first = read_json(run.work / RECORD)["trackers"]["wandb"]
    follow("wandb", tmp_path, 2, 3)
    assert read_json(run.work / RECORD)["trackers"]["wandb"] == first | {"epochs": 3, "step": 3 * STEPS}
    assert {path.name for path in run.folder.rglob("*.wandb")} == {f"run-{first['run']}.wandb"}


@needs("wandb")
def test_wandb_reads_no_settings_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb  # pyright: ignore[reportMissingImports]

    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    run = follow("wandb", Path("tracked"), 0, 1)
    assert wandb.setup().settings.base_url != "http://127.0.0.1:9"
    assert list((tmp_path / run.folder).rglob("*.wandb"))
    assert Path.cwd() == tmp_path


# The command line


def train_arguments(root: Path, *more: str) -> list[str]:
    sets = ["epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1", "device=cpu"]
    chosen = ["train", "--method", "triplet", "--backbone", "vsepp", "--dataset", "tiny", "--data", str(root)]
    return [*chosen, *(f"--set={each}" for each in sets), *more]


def artifact(root: Path) -> Path:
    (found,) = root.glob("tiny/train/triplet.vsepp-*")
    return found


@needs("tensorboard")
def test_track_writes_the_same_artifact_and_tracks_beside_it(
    chain: Path, finished_chain: Path, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    shutil.rmtree(artifact(chain))
    done = invoke(*train_arguments(chain, "--track", "tensorboard"))
    assert done.code == 0, done.err
    assert f"followed by tensorboard in {chain / 'tiny' / 'tracking'}" in done.out
    made, alone = artifact(chain), artifact(finished_chain / "data")
    assert made.name == alone.name
    for file in ("history.parquet", "model.safetensors"):
        assert (made / file).read_bytes() == (alone / file).read_bytes()
    folder = chain / "tiny" / "tracking" / made.name
    (row,) = pq.read_table(made / "history.parquet").to_pylist()
    for column, value in row.items():
        assert scalars(folder, metric_name(column)) == [(row["steps"], pytest.approx(float(value), rel=1e-6))]

    status = invoke("status", "--dataset", "tiny", "--data", chain)
    assert status.code == 0
    assert "tracking" not in status.out
    assert invoke("gc", "--dataset", "tiny", "--data", chain, "--yes").code == 0
    assert list(folder.glob("events*"))
    assert artifact(chain) == made

    shutil.rmtree(made)
    elsewhere = tmp_path / "elsewhere"
    assert invoke(*train_arguments(chain, "--track=tensorboard", f"--set=execution.track_to={elsewhere}")).code == 0
    assert list((elsewhere / made.name).glob("events*"))


def test_an_unknown_tracker_is_named_before_anything_runs(defined: Path, invoke: Callable[..., Any]) -> None:
    done = invoke(*train_arguments(defined, "--track", "tensorbord"))
    assert done.code == 2
    assert "did you mean 'tensorboard'?" in done.err
    done = invoke(*train_arguments(defined, "--track", "x"))
    assert "known: mlflow, tensorboard, wandb" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not list(defined.glob("tiny/*/*"))


@pytest.mark.parametrize("found", [None, ModuleSpec("wandb", None)], ids=["nothing", "a folder of this name"])
def test_a_tracker_that_is_not_installed_is_named_before_anything_runs(
    defined: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: found if name == "wandb" else find(name, *more)
    )
    done = invoke(*train_arguments(defined, "--track", "wandb"))
    assert done.code == 2
    assert "wandb is not installed; run `pip install wandb` or leave it out" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not list(defined.glob("tiny/*/*"))
