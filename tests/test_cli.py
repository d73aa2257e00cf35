"""The command line: light help, exit codes, and errors of one line without a traceback."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from itrpipe import __version__
from itrpipe.cli import app, doctor, entry
from itrpipe.cli.commands import PANELS, SHARED
from itrpipe.cli.names import LISTS, everything, principal
from itrpipe.config import load_declaration
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import (
    DataError,
    DiskFullError,
    IncompleteError,
    ItrpipeError,
    LockedError,
    MissingInputError,
    UnavailableError,
    UsageError,
)
from tests.chains import Invoke, done, refused

GROUP = cast(Any, typer.main.get_command(app))
COMMANDS: Mapping[str, Any] = {name: GROUP.get_command(None, name) for name in GROUP.commands}
HEAVY = {"torch", "pyarrow", "numpy", "h5py", "PIL", "transformers"}

# Help


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = "import sys\nfrom itrpipe.cli import main\ntry: main()\nexcept SystemExit: print('LOADED', *sys.modules)"
    told = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    loaded = told.stdout.partition("LOADED")[2].split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert ("itrpipe.pipeline" in loaded) == ("train" in arguments), "a command alone imports what it needs"


def test_help_lists_every_command_and_the_chain(invoke: Invoke) -> None:
    out = done(invoke("--help"))
    assert set(COMMANDS) <= set(re.findall(r"^  ([\w-]+) ", out, re.MULTILINE))
    assert "itrpipe demo" in out
    assert done(invoke("--version")) == f"itrpipe {__version__}\n"


def test_without_arguments_it_says_where_one_stands(
    invoke: Invoke, finished_chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITRPIPE_DATA", str(tmp_path / "nothing"))
    out = done(invoke())
    assert "holds no dataset yet" in out
    assert "itrpipe demo" in out
    for command in ("export", "export-negatives", "explain", "review", "search", "serve"):
        given = {"search": ["a dog"], "explain": ["--image", "x", "--caption", "y"]}.get(command, [])
        refused(invoke(command, *given, *(["--to", tmp_path / "out"] if "export" in command else [])), 2)
        assert not (tmp_path / "nothing").exists(), "a command that only asks makes nothing"
    for command in ([], ["status"]):
        out = done(invoke("--data", finished_chain / "data", *command))
        assert re.search(r"^  mine_negatives/exact", out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_one_summary_options_that_are_described_and_an_example_that_parses(
    name: str, invoke: Invoke
) -> None:
    (about,) = (names[name] for names in PANELS.values() if name in names)
    assert about == COMMANDS[name].get_short_help_str(limit=1_000)
    assert about == str(COMMANDS[name].help).partition("\n")[0]
    for parameter in COMMANDS[name].params:
        assert parameter.param_type_name != "option" or getattr(parameter, "help", None), parameter.name
    (example,) = re.findall(r"Example: itrpipe (.+)", done(invoke(name, "--help")))
    command, *arguments = shlex.split(example)
    assert command == name
    COMMANDS[command].make_context(command, arguments)


def test_shared_options_stand_behind_those_of_the_command(invoke: Invoke) -> None:
    out = done(invoke("train", "--help"))
    places = [out.index(f"\n{title}:\n") for title in ("Options", *SHARED)]
    assert places == sorted(places)
    assert out.index("--negatives-from") < out.index("--method <") < out.index("--dataset <") < out.index("--dry-run ")


@pytest.mark.parametrize("what", LISTS)
def test_lists_have_everything_in_a_line_each(what: str, invoke: Invoke) -> None:
    assert f"itrpipe list {what}" in done(invoke("list"))
    lines = done(invoke("list", what)).splitlines()
    assert [line.split()[0] for line in lines] == [name for name, _ in everything(what)]
    assert all(len(line.split()) > 2 for line in lines)
    assert "did you mean" in invoke("list", what[:-1]).err


@pytest.mark.parametrize("what", ["methods", "backbones"])
def test_help_of_train_names_the_principal_ones_with_one_line(what: str, invoke: Invoke) -> None:
    lines = done(invoke("train", "--help")).splitlines()
    assert 5 < len(principal(what)) <= 12
    assert any(f"`itrpipe list {what}` has all {len(everything(what))}" in line for line in lines)
    for name, _ in principal(what):
        described = [line for line in lines if line.startswith(f"  {name} ")]
        assert described
        assert all(len(line.split()) > 2 for line in described), described


def test_help_of_extract_names_every_extractor_and_importer_with_one_line(invoke: Invoke) -> None:
    lines = done(invoke("extract", "--help")).splitlines()
    for conf in load_declaration("extract").confs:
        (described,) = [line for line in lines if line.split()[:1] == [conf]]
        assert len(described.split()) > 4, described


def test_threads_spin_long_only_where_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    counts = []
    for load in (0.0, cores / 2, 2.0 * cores):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        counts.append(int(entry.spin_count()))
    assert counts[0] > counts[1] == counts[2]


def test_few_compiled_products_are_kept_unless_the_user_says_how_many(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    monkeypatch.setenv(own, "64")
    monkeypatch.setenv(other, "")
    monkeypatch.delenv(other)
    assert invoke("--version").code == 0
    assert (os.environ[own], os.environ[other]) == ("64", "32")


# Mistakes of the user: those that need no arrangement of their own are in test_refusals.py


def test_the_longest_names_and_largest_numbers_are_taken(defined: Path, precomp_dataset: Any, invoke: Invoke) -> None:
    where = ("--dataset", "tiny", "--data", defined)
    seed = ("--seed", 2**63 - 1, "--set", f"seed={2**63 - 1}")  # given twice alike
    done(invoke("extract", "--from", precomp_dataset.features, "--name", "x" * 100, *where))
    done(invoke("train", *seed, "-b", "vsepp", "--features", "x" * 100, *where, "--dry-run"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
def test_a_page_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, data_root: Path, invoke: Invoke
) -> None:
    for page in ("/proc/found.html", f"/tmp/{'x' * 250}.html"):
        refused(invoke("search", "a dog", "--html", page, "--data", data_root), 8, f"{page} cannot be ")
        assert not data_root.exists()
    invoke("search", "a dog", "--html", tmp_path / "a.html", "--data", data_root, "--no-deps")
    assert not (tmp_path / "a.html").exists(), "looking whether a page can be written leaves nothing"


PATHS = [
    ("prepare", "--source"),
    ("extract", "--from"),
    ("extract", "--ids"),
    ("parse", "--from"),
    ("index", "--photos"),
    ("search", "a dog", "--html"),
    ("evaluate", "--decisions"),
    ("evaluate", "--embeddings"),
    ("evaluate", "--owners"),
    ("evaluate", "--embeddings", "x", "y"),
    ("mine-negatives", "--candidates"),
    ("review", "--merge"),
    ("report", "--into"),
    ("export", "--to"),
    ("export-negatives", "--to"),
    ("run", "demo", "--source"),
    ("status", "--data"),
]


@pytest.mark.parametrize("arguments", PATHS, ids=" ".join)
def test_no_option_takes_a_link_to_itself_or_a_pipe_for_a_path(
    arguments: tuple[str, ...], tmp_path: Path, invoke: Invoke
) -> None:
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    for wrong in (loop, loop / "in", pipe):
        command = (*arguments[:-1], wrong) if arguments[-1] == "y" else (*arguments, wrong)
        refused(invoke(*command), 2, str(wrong))


def test_the_home_folder_is_known_by_its_short_name(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/data holds no dataset" in invoke("status", "--data=~/data").out


# What is remembered of a dataset


def test_what_prepare_was_told_is_remembered_when_it_was_made(
    data_root: Path, precomp_dataset: Any, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(precomp_dataset.folder.parent)
    arguments = ["prepare", "--dataset", "mine", "--data", data_root]
    first = [*arguments, "--source", "source", "--set", "bad_images=refuse", "--set", "workers=1"]
    done(invoke(*first, "--dry-run"))
    assert load_definition(data_root, "mine").prepare is None
    done(invoke(*first))
    known = load_definition(data_root, "mine").prepare
    assert known is not None
    assert (known.conf, known.source) == ("files", str(precomp_dataset.folder))
    assert known.settings == {"bad_images": "refuse"}
    assert "up to date" in done(invoke(*arguments))
    refused(invoke(*arguments, "--set", "bad_images=keep"), 2, "bad_images = 'keep'")
    assert load_definition(data_root, "mine").prepare == known


@pytest.mark.parametrize(
    ("command", "code"), [("prepare --source", 3), ("extract --from", 2), ("extract --features scenes", 4)]
)
def test_what_fails_is_not_remembered_instead_of_what_works(
    defined: Path, tmp_path: Path, invoke: Invoke, command: str, code: int
) -> None:
    """Remembered, the detector of scenes would make every later `train` ask which features are meant."""
    (tmp_path / "empty").mkdir()
    known = load_definition(defined, "tiny")
    empty = [] if "scenes" in command else [tmp_path / "empty"]
    refused(invoke(*command.split(), *empty, "--dataset", "tiny", "--data", defined), code)
    assert load_definition(defined, "tiny") == known


def test_folders_and_pipes_among_the_images_are_left_out_or_refused(
    data_root: Path, precomp_dataset: Any, invoke: Invoke
) -> None:
    """The hash over all images must neither fail on them nor wait for a writer."""
    for name in ("1001.jpg", "1002.jpg"):
        (precomp_dataset.images / name).unlink()
    (precomp_dataset.images / "1001.jpg").mkdir()
    os.mkfifo(precomp_dataset.images / "1002.jpg")
    prepare = ["prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root]
    refused(invoke(*prepare, "--strict"), 4, "2 of 20 images", "1001.jpg", "--set bad_images=drop")
    assert load_definition(data_root, "mine").prepare is None
    refused(invoke(*prepare), 7, "2 images ", "1001.jpg", "is not a regular file", "manifest.json")
    # What is finished is finished, and the code says again that it is not everything.
    again = invoke(*prepare)
    assert (again.code, "up to date" in again.out) == (7, True)


def test_a_data_folder_that_is_a_file(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "file").touch()
    outcome = invoke("prepare", "--train", 1, "--val", 1, "--test", 1, "--data", tmp_path / "file")
    refused(outcome, outcome.code)


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_damaged_definition_stops_and_a_damaged_cache_does_not(chain: Path, content: str, invoke: Invoke) -> None:
    for name, code in (("sources.json", 0), ("dataset.json", 4)):
        (chain / "tiny" / name).write_text(content)
        outcome = invoke("prepare", "--dataset", "tiny", "--data", chain)
        assert outcome.code == code, outcome.err
    refused(outcome, 4, str(chain / "tiny" / "dataset.json"), "remove it")


# Exit codes


def test_exit_codes_are_distinct_and_documented() -> None:
    errors = [UsageError, MissingInputError, DataError, DiskFullError, LockedError, IncompleteError, UnavailableError]
    assert [error.exit_code for error in (ItrpipeError, *errors)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert set(ItrpipeError.__subclasses__()) == set(errors)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LockedError("what, where [and] how to help"), 6, "error: what, where [and] how to help\n"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on where it stopped\n"),
    ],
)
def test_errors_become_one_line_and_their_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("itrpipe.cli.status.folders_in", fail)
    outcome = invoke("status")
    assert (outcome.code, outcome.err) == (code, said)


# Doctor


def test_doctor_is_content_here(invoke: Invoke, data_root: Path) -> None:
    out = done(invoke("doctor", "--data", data_root))
    assert "everything required is here" in out
    assert "uninstall" not in out
    assert all(part in out for part in ("device", "memory", "GiB free", "stages"))
    assert not data_root.exists()


def test_doctor_names_what_is_missing_and_refuses_two_builds_of_faiss(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, known = doctor.metadata.requires("itrpipe") or [], doctor._version
    with monkeypatch.context() as patch:
        patch.setattr(doctor.metadata, "requires", lambda _: [*needed, "no-such-package>=1"])
        outcome = invoke("doctor")
        assert (outcome.code, "MISSING: pip install no-such-package" in outcome.out) == (1, True)
    monkeypatch.setattr(doctor, "_version", lambda name: "1.15.1" if name.startswith("faiss-gpu") else known(name))
    outcome = invoke("doctor")
    assert outcome.code == 1
    assert "pip uninstall faiss-gpu-cuvs faiss-gpu faiss-gpu-cu12 faiss-cpu, then install one" in outcome.out
