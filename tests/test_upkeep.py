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

from itrpipe.cli.asked import run_stage
from itrpipe.cli.keep import _of_two, collect_garbage, entries, status
from itrpipe.datasets.definition import ModelDefinition, load_definition
from itrpipe.errors import DataError, MissingInputError, UnavailableError
from itrpipe.pipeline.planning import Override
from itrpipe.pipeline.steps import state_of
from itrpipe.storage.artifact import PICTURES, Location, read_manifest
from itrpipe.storage.locks import locked
from tests.definitions import save_definition

Tiny = Callable[..., list[Override]]
SIX_AND_ONE = 7


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


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
    return {entry.name: entry.state for entry in entries(root, "tiny", **options)}


# Status


def test_whole_artifacts_are_listed_in_the_order_of_the_stages(chain: Path) -> None:
    found = entries(chain, "tiny")
    stages = [entry.folder.parent.name for entry in found]
    assert stages == ["prepare", "extract", "train", "train", "mine_negatives", "evaluate", "evaluate"]
    assert {entry.state for entry in found} == {"whole"}
    for entry in found:
        assert entry.bytes == sum(path.stat().st_size for path in entry.folder.rglob("*") if path.is_file())


def test_status_shows_state_size_and_time_in_80_columns(chain: Path, invoke: Callable[..., Any]) -> None:
    definition = load_definition(chain, "tiny")
    (trained,) = (chain / "tiny" / "train").glob("aoq.vsepp-*")
    model = ModelDefinition(method="aoq", trained={"aoq.vsepp": trained.name})
    save_definition(chain, "tiny", definition.model_copy(update={"models": {"a-rather-long-name": model}}))
    outcome = invoke("status", "--dataset", "tiny", "--data", chain)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "a-rather-long-name" in outcome.out
    assert len(re.findall(r"^.{44} whole +[\d.]+ MiB +[\d.]+ s$", outcome.out, re.MULTILINE)) == SIX_AND_ONE


def test_interrupted_running_and_damaged_are_told_apart(chain: Path, interrupted: Path) -> None:
    damaged = only(chain, "tiny/train/aoq.vsepp-*")
    os.truncate(damaged / "model.safetensors", 10)
    assert states(chain)[f"evaluate/{interrupted.name}"] == "interrupted"
    assert states(chain)[f"train/{damaged.name}"] == "damaged"
    with locked(lock_of(interrupted)):
        assert states(chain)[f"evaluate/{interrupted.name}"] == "running"
    assert states(chain)[f"evaluate/{interrupted.name}"] == "interrupted"


def test_what_another_process_makes_is_waited_for_and_not_proposed(
    chain: Path, interrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step: Any = SimpleNamespace(location=lock_of(interrupted))
    assert state_of(step)[0] == "interrupted"
    with locked(lock_of(interrupted)):
        assert state_of(step)[0] == "running"
        status(None, chain, verify=False)
    assert re.search(rf"evaluate/{interrupted.name} +running", capsys.readouterr().out)


def test_a_changed_byte_is_found_by_verifying_only(chain: Path) -> None:
    folder = only(chain, "tiny/extract/precomp-*")
    flip_a_byte(folder / "features.h5")
    assert states(chain)[f"extract/{folder.name}"] == "whole"
    assert states(chain, verify=True)[f"extract/{folder.name}"] == "damaged"


@pytest.mark.parametrize("name", ["manifest.json", "features.h5"])
def test_damage_is_exit_code_four_after_the_table_with_a_remedy_that_works(
    chain: Path, invoke: Callable[..., Any], name: str
) -> None:
    folder = only(chain, "tiny/extract/precomp-*")
    os.truncate(folder / name, 20)
    outcome = invoke("status", "--data", chain)
    assert outcome.code == DataError.exit_code
    assert outcome.out.count("whole") == SIX_AND_ONE - 1
    assert outcome.err.count("\n") == 1
    assert str(folder / name) in outcome.err
    assert outcome.err.count("itrpipe gc") == 1
    assert "itrpipe gc --damaged --dataset tiny" in outcome.err
    assert invoke("gc", "--damaged", "--dataset", "tiny", "--yes", "--data", chain).code == 0
    assert not folder.exists()
    assert invoke("status", "--data", chain).code == 0


def test_what_verifying_found_can_be_removed(chain: Path, invoke: Callable[..., Any]) -> None:
    folder = only(chain, "tiny/extract/precomp-*")
    flip_a_byte(folder / "features.h5")
    assert invoke("status", "--verify", "--data", chain).code == DataError.exit_code
    assert invoke("gc", "--damaged", "--verify", "--dataset", "tiny", "--yes", "--data", chain).code == 0
    assert not folder.exists()


def test_status_of_nothing(data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status(None, data_root, verify=False)
    assert "itrpipe demo" in capsys.readouterr().out
    with pytest.raises(MissingInputError, match="no dataset 'tiny' in"):
        status("tiny", data_root, verify=False)


# Garbage


def test_nothing_is_removed_from_a_finished_chain(chain: Path) -> None:
    assert collect_garbage(chain, "tiny") == []
    assert len(entries(chain, "tiny")) == SIX_AND_ONE


def test_small_copies_of_photographs_are_shown_and_go(chain: Path, invoke: Callable[..., Any]) -> None:
    copy = chain / "tiny" / PICTURES / "320" / "00" / "0.jpg"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"small")
    assert "tiny/pictures" in invoke("status", "--data", chain).out
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny") == [chain / "tiny" / PICTURES]
    assert not copy.exists()


def test_what_the_newest_was_made_from_stays_and_what_is_superseded_goes(chain: Path, tiny: Tiny) -> None:
    older = {entry.name for entry in entries(chain, "tiny")}
    run_stage(chain, "tiny", "evaluate", tiny("aoq", "mine_negatives.num_texts=6"))
    assert collect_garbage(chain, "tiny") == []
    removed = {f"{path.parent.name}/{path.name}" for path in collect_garbage(chain, "tiny", superseded_too=True)}
    assert {name.rpartition("-")[0] for name in removed} == {
        "mine_negatives/exact.triplet.vsepp",
        "train/aoq.vsepp",
        "evaluate/aoq.vsepp",
    }
    assert removed <= older
    assert set(states(chain).values()) == {"whole"}
    assert collect_garbage(chain, "tiny") == []


def test_what_was_never_evaluated_is_unused_and_what_was_is_superseded(
    chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(chain, "tiny", "evaluate", tiny("aoq", "ranking_depth=5"))
    for rate in (0.01, 0.02):
        sets = [each for each in tiny("triplet", f"train.learning_rate={rate}") if each.scope == "train"]
        new = run_stage(chain, "tiny", "train", [*sets, Override(None, "backbone", "vsepp")], conf="triplet")
    capsys.readouterr()
    assert collect_garbage(chain, "tiny", superseded_too=True, ask=lambda question: False) == []
    found = dict(line.split(", ")[0].split() for line in capsys.readouterr().out.splitlines())
    assert {name.rpartition("-")[0]: why for name, why in found.items()} == {
        "evaluate/aoq.vsepp": "superseded",
        "train/triplet.vsepp": "unused",
    }
    assert f"train/{new.name}" not in found
    assert {path.parent.name for path in collect_garbage(chain, "tiny")} == {"train"}


def test_an_input_of_the_newest_stays_although_a_newer_one_of_its_label_exists(chain: Path, tiny: Tiny) -> None:
    old = only(chain, "tiny/train/triplet.vsepp-*")
    overrides = [each for each in tiny("triplet", "train.learning_rate=0.01") if each.scope == "train"]
    backbone = Override(None, "backbone", "vsepp")
    new = run_stage(chain, "tiny", "train", [*overrides, backbone], conf="triplet")
    assert new != old
    assert read_manifest(new).finished >= read_manifest(old).finished
    assert collect_garbage(chain, "tiny") == []
    assert old.exists()
    assert new.exists()


def test_the_newest_is_known_although_many_finish_in_one_second(chain: Path, tiny: Tiny) -> None:
    folders = [
        run_stage(chain, "tiny", "evaluate", tiny("triplet", f"ranking_depth={depth}")) for depth in (3, 4, 5, 6, 7)
    ]
    collect_garbage(chain, "tiny", superseded_too=True)
    assert list((chain / "tiny" / "evaluate").glob("triplet.vsepp-*")) == [folders[-1]]


def test_interrupted_and_damaged_go_but_never_what_is_running(chain: Path, interrupted: Path) -> None:
    damaged = only(chain, "tiny/evaluate/aoq.vsepp-*")
    (damaged / "manifest.json").write_text("{")
    with locked(lock_of(interrupted)):
        assert collect_garbage(chain, "tiny") == [damaged]
        assert interrupted.exists()
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny") == [interrupted]


def test_what_starts_running_while_the_user_is_asked_stays(chain: Path, interrupted: Path) -> None:
    lock = locked(lock_of(interrupted))

    def start_meanwhile(question: str) -> bool:
        lock.__enter__()
        return True

    try:
        collect_garbage(chain, "tiny", ask=start_meanwhile)
        assert interrupted.exists()
    finally:
        lock.__exit__(None, None, None)


def test_it_asks_once_with_number_and_size_and_takes_no_for_an_answer(chain: Path, interrupted: Path) -> None:
    questions: list[str] = []

    def refuse(question: str) -> bool:
        questions.append(question)
        return False

    assert collect_garbage(chain, "tiny", ask=refuse) == []
    assert questions == ["remove 1 folder, 0.0 MiB?"]
    assert interrupted.exists()


def test_the_command_asks_unless_told_yes(
    chain: Path, interrupted: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert invoke("gc", "--dataset", "tiny", "--data", chain).code == 0
    assert interrupted.exists()
    assert invoke("gc", "--dataset", "tiny", "--data", chain, "--yes").code == 0
    assert not interrupted.exists()


def test_garbage_of_a_dataset_that_is_not_there_is_an_error(chain: Path) -> None:
    with pytest.raises(MissingInputError, match="no dataset 'tinny'"):
        collect_garbage(chain, "tinny")


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


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_what_cannot_be_read_now_is_shown_as_such_and_never_removed(
    chain: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    folder = only(chain, "tiny/train/aoq.vsepp-*")
    with monkeypatch.context() as patch:
        refuse(patch, folder / name, code)
        outcome = invoke("status", "--verify", "--data", chain)
        assert outcome.code == UnavailableError.exit_code
        assert f"1 unreadable: {folder / name} cannot be read or written now ({os.strerror(code)}" in outcome.err
        removed = invoke("gc", "--damaged", "--verify", "--yes", "--dataset", "tiny", "--data", chain)
        assert removed.code == 0
        assert f"train/{folder.name}" in removed.out
        assert "left alone" in removed.out
        # Nobody knows what else the unreadable one was made from.
        assert invoke("gc", "--yes", "--dataset", "tiny", "--data", chain).code == UnavailableError.exit_code
    assert set(states(chain, verify=True).values()) == {"whole"}
    assert len(entries(chain, "tiny")) == SIX_AND_ONE


@pytest.mark.parametrize("place", ["tiny", "tiny/train"])
def test_an_unreadable_folder_hides_nothing_else(
    chain: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, chain / place, errno.EACCES)
        outcome = invoke("status", "--data", chain)
        assert outcome.code == UnavailableError.exit_code
        assert outcome.err.count("\n") == 1
    if place != "tiny":
        assert outcome.out.count("whole") == SIX_AND_ONE - 2
    assert len(entries(chain, "tiny")) == SIX_AND_ONE


def test_links_and_folders_of_others_are_left_alone(
    chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: Tiny
) -> None:
    run_stage(chain, "tiny", "evaluate", tiny("triplet", "ranking_depth=3"))
    old = min(chain.glob("tiny/evaluate/triplet.vsepp-*"), key=lambda path: read_manifest(path).finished)
    elsewhere = old.rename(tmp_path / old.name)
    old.symlink_to(elsewhere)
    notes = chain / "tiny" / "evaluate" / "my notes"
    notes.mkdir()
    (notes / "plan.txt").write_text("mine")
    (chain / "tiny" / "evaluate" / "link").symlink_to(notes)
    assert states(chain)["evaluate/my notes"] == "not ours"
    assert states(chain)[f"evaluate/{old.name}"] == "whole"
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
    folder = only(chain, "tiny/evaluate/triplet.vsepp-*")
    replaced = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}.replaced")))
    assert states(chain)[f"evaluate/{replaced.name}"] == "replaced"
    assert collect_garbage(chain, "tiny", damaged_only=True) == []
    assert collect_garbage(chain, "tiny", ask=lambda question: False) == []
    assert collect_garbage(chain, "tiny") == [replaced]
    assert folder.exists()


def test_a_page_over_two_models_replaces_only_an_earlier_one_over_the_same_two() -> None:
    def page(*names: str, evaluation: str = "0123abcd") -> Any:
        settings = {"compare": ["x"], "names": [(f"folder-{name}", name) for name in names]}
        return SimpleNamespace(settings=settings, inputs={f"triplet.vsepp-{evaluation}": None})

    assert _of_two(page("a", "b")) == _of_two(page("b", "a", evaluation="89abcdef"))
    assert _of_two(page("a", "b")) != _of_two(page("a", "c"))
    all_models: Any = SimpleNamespace(settings={"compare": []}, inputs={"x-1": None})
    assert _of_two(all_models) == ()
