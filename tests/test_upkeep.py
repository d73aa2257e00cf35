"""`itrpipe status` and `itrpipe gc`: every state is told apart, and nothing that is needed is removed."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from itrpipe.config import Override
from itrpipe.datasets.definition import ModelDefinition, load_definition
from itrpipe.errors import DataError, UnavailableError
from itrpipe.pipeline.folders import _compared, collect_garbage, list_folders
from itrpipe.pipeline.steps import state_of
from itrpipe.storage.artifact import PICTURES, Location
from itrpipe.storage.locks import locked
from tests.chains import Invoke, copied, done, only, run_stage
from tests.conftest import tiny
from tests.definitions import save_definition

LABELS = ["prepare", "extract", "train", "train", "mine_negatives", "evaluate", "evaluate"]


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    os.truncate(path, 20)


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def lock_of(folder: Path) -> Location:
    label, _, digits = folder.name.removesuffix(".partial").rpartition("-")
    return Location(folder.parents[2], folder.parents[1].name, folder.parent.name, label, digits)


@pytest.fixture
def interrupted(chain: Path) -> Path:
    """The partial folder of an evaluation that was killed."""
    folder = chain / "tiny" / "evaluate" / "triplet.vsepp-00000000.partial"
    (folder / ".work").mkdir(parents=True)
    (folder / "rankings.parquet").write_bytes(b"half")
    return folder


def states(root: Path, **options: Any) -> dict[str, str]:
    return {entry.name: entry.state for entry in list_folders(root, "tiny", **options)}


def train(root: Path, rate: float) -> Path:
    """A first training that nothing reads."""
    sets = [each for each in tiny("triplet", f"train.learning_rate={rate}") if each.scope == "train"]
    return run_stage(root, "tiny", "train", [*sets, Override(None, "backbone", "vsepp")], conf="triplet")


def names(folders: list[Path]) -> set[str]:
    return {f"{path.parent.name}/{path.name.rpartition('-')[0]}" for path in folders}


# Status


def test_artifacts_are_listed_in_the_order_of_the_stages_with_state_size_and_time_in_80_columns(
    chain: Path, invoke: Invoke
) -> None:
    found = list_folders(chain, "tiny")
    assert [(entry.folder.parent.name, entry.state) for entry in found] == [(label, "whole") for label in LABELS]
    for entry in found:
        assert entry.bytes == sum(path.stat().st_size for path in entry.folder.rglob("*") if path.is_file())
    model = ModelDefinition(method="aoq", trained={"aoq.vsepp": only(chain, "train/aoq.vsepp").name})
    named = {"models": {"a-rather-long-name": model}}
    save_definition(chain, "tiny", load_definition(chain, "tiny").model_copy(update=named))
    out = done(invoke("status", "--dataset", "tiny", "--data", chain))
    assert max(map(len, out.splitlines())) <= 80
    assert "a-rather-long-name" in out
    assert len(re.findall(r"^.{44} whole +[\d.]+ MiB +[\d.]+ s$", out, re.MULTILINE)) == len(LABELS)
    assert collect_garbage(chain, "tiny") == []


def test_interrupted_running_and_damaged_are_told_apart(chain: Path, interrupted: Path, invoke: Invoke) -> None:
    damaged = only(chain, "train/aoq.vsepp")
    cut_off(damaged / "model.safetensors")
    step: Any = SimpleNamespace(location=lock_of(interrupted))
    with locked(lock_of(interrupted)):
        assert states(chain)[f"evaluate/{interrupted.name}"] == state_of(step)[0] == "running"
        assert re.search(rf"evaluate/{interrupted.name} +running", invoke("status", "--data", chain).out)
    assert states(chain)[f"evaluate/{interrupted.name}"] == state_of(step)[0] == "interrupted"
    assert states(chain)[f"train/{damaged.name}"] == "damaged"


@pytest.mark.parametrize(
    ("name", "damage", "verify"),
    [
        ("manifest.json", cut_off, []),
        ("manifest.json", replace_by_a_pipe, []),
        ("features.h5", cut_off, []),
        ("features.h5", flip_a_byte, ["--verify"]),
    ],
)
def test_damage_is_exit_code_four_after_the_table_with_a_remedy_that_works(
    chain: Path, invoke: Invoke, name: str, damage: Callable[[Path], None], verify: list[str]
) -> None:
    folder = only(chain, "extract/precomp")
    damage(folder / name)
    assert states(chain)[f"extract/{folder.name}"] == ("whole" if verify else "damaged")
    outcome = invoke("status", *verify, "--data", chain)
    assert outcome.code == DataError.exit_code
    assert outcome.out.count("whole") == len(LABELS) - 1
    assert outcome.err.count("\n") == 1
    assert str(folder / name) in outcome.err
    (remedy,) = re.findall("`itrpipe (gc [^`]*)`", outcome.err)
    assert folder.exists()
    done(invoke(*remedy.split(), "--yes", "--data", chain))
    assert not folder.exists()
    done(invoke("status", "--data", chain))


# Garbage


def test_small_copies_of_photographs_are_shown_and_go(chain: Path, invoke: Invoke) -> None:
    copy = chain / "tiny" / PICTURES / "320" / "00" / "0.jpg"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"small")
    assert "tiny/pictures" in invoke("status", "--data", chain).out
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny") == [chain / "tiny" / PICTURES]
    assert not copy.exists()


def test_what_the_newest_was_made_from_stays_and_what_is_superseded_goes(chain: Path) -> None:
    older = {entry.folder for entry in list_folders(chain, "tiny")}
    run_stage(chain, "tiny", "evaluate", tiny("aoq", "mine_negatives.num_texts=6"))
    assert collect_garbage(chain, "tiny") == []
    removed = collect_garbage(chain, "tiny", superseded_too=True)
    assert names(removed) == {"mine_negatives/exact.triplet.vsepp", "train/aoq.vsepp", "evaluate/aoq.vsepp"}
    assert set(removed) <= older
    assert set(states(chain).values()) == {"whole"}
    assert collect_garbage(chain, "tiny") == []


def test_what_was_never_evaluated_is_unused_and_what_was_is_superseded(
    chain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = only(chain, "train/triplet.vsepp")
    run_stage(chain, "tiny", "evaluate", tiny("aoq", "ranking_depth=5"))
    first = train(chain, 0.01)
    assert collect_garbage(chain, "tiny") == [], "an input of the newest stays, and so does the newest of its label"
    train(chain, 0.02)
    capsys.readouterr()
    assert collect_garbage(chain, "tiny", superseded_too=True, ask=lambda question: False) == []
    found = dict(line.split(", ")[0].split() for line in capsys.readouterr().out.splitlines())
    assert {name.rpartition("-")[0]: why for name, why in found.items()} == {
        "evaluate/aoq.vsepp": "superseded",
        "train/triplet.vsepp": "unused",
    }
    assert collect_garbage(chain, "tiny") == [first]
    assert old.exists()


def test_the_newest_is_known_although_many_finish_in_one_second(chain: Path) -> None:
    *_, last = [run_stage(chain, "tiny", "evaluate", tiny("triplet", f"ranking_depth={depth}")) for depth in (3, 4, 5)]
    collect_garbage(chain, "tiny", superseded_too=True)
    assert only(chain, "evaluate/triplet.vsepp") == last


def test_interrupted_and_damaged_go_but_never_what_is_running(chain: Path, interrupted: Path) -> None:
    damaged = only(chain, "evaluate/aoq.vsepp")
    (damaged / "manifest.json").write_text("{")
    with locked(lock_of(interrupted)):
        assert collect_garbage(chain, "tiny") == [damaged]
    lock = locked(lock_of(interrupted))

    def start_meanwhile(question: str) -> bool:
        lock.__enter__()
        return True

    try:
        collect_garbage(chain, "tiny", ask=start_meanwhile)
        assert interrupted.exists(), "it began while the user was asked"
    finally:
        lock.__exit__(None, None, None)
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny") == [interrupted]


def test_it_asks_once_with_number_and_size_and_takes_no_for_an_answer(
    chain: Path, interrupted: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr("typer.confirm", questions.append)
    done(invoke("gc", "--dataset", "tiny", "--data", chain))
    assert questions == ["remove 1 folder, 0.0 MiB?"]
    assert interrupted.exists()
    done(invoke("gc", "--dataset", "tiny", "--data", chain, "--yes"))
    assert not interrupted.exists()


# What cannot be read now, and what is not ours


def refuse(patch: pytest.MonkeyPatch, path: Path, code: int) -> None:
    """Lets the disk give an error for one file or folder, as for a user without permission."""

    def failing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Path, *arguments: Any, **options: Any) -> Any:
            if self == path or path in self.parents:
                raise OSError(code, os.strerror(code), str(self))
            return method(self, *arguments, **options)

        return call

    for name in ("open", "stat", "iterdir"):
        patch.setattr(Path, name, failing(getattr(Path, name)))


@pytest.mark.parametrize(
    ("name", "code"),
    [("manifest.json", errno.EACCES), ("manifest.json", errno.ESTALE), ("model.safetensors", errno.EIO)],
)
def test_what_cannot_be_read_now_is_shown_as_such_and_never_removed(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    folder = only(chain, "train/aoq.vsepp")
    with monkeypatch.context() as patch:
        refuse(patch, folder / name, code)
        outcome = invoke("status", "--verify", "--data", chain)
        assert outcome.code == UnavailableError.exit_code
        assert f"1 unreadable: {folder / name} cannot be read or written now ({os.strerror(code)}" in outcome.err
        removed = done(invoke("gc", "--damaged", "--verify", "--yes", "--dataset", "tiny", "--data", chain))
        assert f"train/{folder.name}" in removed
        assert "left alone" in removed
        # Nobody knows what else the unreadable one was made from.
        assert invoke("gc", "--yes", "--dataset", "tiny", "--data", chain).code == UnavailableError.exit_code
    assert list(states(chain, verify=True).values()) == ["whole"] * len(LABELS)


@pytest.mark.parametrize(("place", "seen"), [("tiny", 0), ("tiny/train", len(LABELS) - 2)])
def test_an_unreadable_folder_hides_nothing_else(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, place: str, seen: int
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, chain / place, errno.EACCES)
        outcome = invoke("status", "--data", chain)
    assert (outcome.code, outcome.err.count("\n")) == (UnavailableError.exit_code, 1)
    assert outcome.out.count("whole") == seen


def test_links_and_folders_of_others_are_left_alone(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = only(chain, "evaluate/triplet.vsepp")
    run_stage(chain, "tiny", "evaluate", tiny("triplet", "ranking_depth=3"))
    elsewhere = old.rename(tmp_path / old.name)
    old.symlink_to(elsewhere)
    notes = chain / "tiny" / "evaluate" / "my notes"
    notes.mkdir()
    (notes / "plan.txt").write_text("mine")
    (chain / "tiny" / "evaluate" / "link").symlink_to(notes)
    assert (states(chain)["evaluate/my notes"], states(chain)[f"evaluate/{old.name}"]) == ("not ours", "whole")
    capsys.readouterr()
    assert collect_garbage(chain, "tiny", superseded_too=True) == []
    printed = capsys.readouterr().out
    assert printed.count("left alone") == 3
    assert "no stage made it" in printed
    assert "a link; remove it by hand" in printed
    assert (elsewhere / "metrics.json").exists()
    assert (notes / "plan.txt").read_text() == "mine"


def test_a_removal_that_was_killed_leaves_no_half_artifact_and_is_finished_later(
    chain: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            collect_garbage(chain, "tiny")
    assert not interrupted.exists()
    (hidden,) = interrupted.parent.glob(".*.removed")
    assert set(states(chain).values()) == {"whole"}
    assert collect_garbage(chain, "tiny") == []
    assert not hidden.exists()


def test_what_was_replaced_goes_when_it_is_asked_for(chain: Path) -> None:
    folder = only(chain, "evaluate/triplet.vsepp")
    replaced = copied(folder, folder.with_name(f"{folder.name}.replaced"))
    assert states(chain)[f"evaluate/{replaced.name}"] == "replaced"
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny") == [replaced]
    assert folder.exists()


def test_a_page_over_two_models_replaces_only_an_earlier_one_over_the_same_two() -> None:
    def page(*names: str, evaluation: str = "0123abcd") -> Any:
        settings = {"compare": ["x"], "names": [(f"folder-{name}", name) for name in names]}
        return SimpleNamespace(settings=settings, inputs={f"triplet.vsepp-{evaluation}": None})

    assert _compared(page("a", "b")) == _compared(page("b", "a", evaluation="89abcdef"))
    assert _compared(page("a", "b")) != _compared(page("a", "c"))
    assert _compared(SimpleNamespace(settings={"compare": []}, inputs={"x-1": None})) == ()  # pyright: ignore
