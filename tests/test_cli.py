"""The command line: light help, exit codes, and errors of one line without a traceback."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main

from itrpipe import __version__
from itrpipe.cli import app, entry
from itrpipe.cli import keep as doctor
from itrpipe.cli.help import LISTS, PANELS, SHARED, everything, principal
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
from itrpipe.storage.artifact import read_manifest

COMMANDS: Mapping[str, Any] = cast(Any, typer.main.get_command(app)).commands
HEAVY = {"torch", "pyarrow", "numpy", "h5py", "PIL", "transformers"}
Invoke = Callable[..., Any]


def assert_one_line(outcome: Any, error: type[ItrpipeError], *parts: object, code: int | None = None) -> None:
    """Checks exit code and message, and that the message is all there is on standard error."""
    assert outcome.code == (code or error.exit_code), outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for part in parts:
        assert str(part) in outcome.err


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


# Help


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = "import sys\nfrom itrpipe.cli import main\ntry: main()\nexcept SystemExit: print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    loaded = done.stdout.partition("LOADED")[2].split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert ("itrpipe.pipeline" in loaded) == ("train" in arguments), "a command alone imports what it needs"


def test_help_lists_every_command_and_the_chain(invoke: Invoke) -> None:
    outcome = invoke("--help")
    assert outcome.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", outcome.out, re.MULTILINE), name
    assert "itrpipe demo" in outcome.out


def test_without_arguments_it_says_where_one_stands(
    invoke: Invoke, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITRPIPE_DATA", str(tmp_path / "nothing"))
    outcome = invoke()
    assert outcome.code == 0
    assert "holds no dataset yet" in outcome.out
    assert "itrpipe demo" in outcome.out
    for command in ("advise", "export", "export-negatives", "explain", "review", "search", "serve"):
        given = {"search": ["a dog"], "explain": ["--image", "x", "--caption", "y"]}.get(command, [])
        outcome = invoke(command, *given, *(["--to", tmp_path / "out"] if "export" in command else []))
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), command
        assert not list(tmp_path.glob("nothing/scenes/*/*")), "what only asks makes nothing"
    monkeypatch.setenv("ITRPIPE_DATA", str(chain))
    outcome = invoke()
    assert re.search(r"^  mine_negatives/exact", outcome.out, re.MULTILINE)
    unread = invoke("report", "--dataset", "tiny", "--set", "train.epochs=3", "--dry-run")
    assert_one_line(unread, UsageError, "train.epochs", "is read by no step")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    (about,) = (about for names in PANELS.values() for own, (_, about) in names.items() if own == name)
    assert about == COMMANDS[name].get_short_help_str(limit=1_000)
    assert about == str(COMMANDS[name].help).partition("\n")[0]


def test_shared_options_stand_behind_those_of_the_command(invoke: Invoke) -> None:
    out = invoke("train", "--help").out
    places = [out.index(f"\n{title}:\n") for title in ("Options", *SHARED)]
    assert places == sorted(places)
    assert out.index("--negatives-from") < out.index("--method <") < out.index("--dataset <") < out.index("--dry-run ")


def test_lists_are_listed_where_none_is_named(invoke: Invoke) -> None:
    outcome = invoke("list")
    assert outcome.code == 0, outcome.err
    assert [line.split()[:3] for line in outcome.out.splitlines()] == [["itrpipe", "list", name] for name in LISTS]


@pytest.mark.parametrize("what", LISTS)
def test_lists_have_everything_in_a_line_each(what: str, invoke: Invoke) -> None:
    lines = invoke("list", what).out.splitlines()
    assert [line.split()[0] for line in lines] == [name for name, _ in everything(what)]
    assert all(len(line.split()) > 2 for line in lines)
    assert "did you mean" in invoke("list", what[:-1]).err


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").out == f"itrpipe {__version__}\n"


def test_threads_spin_long_only_where_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    counts = []
    for load in (0.0, cores / 2, 2.0 * cores):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        counts.append(int(entry.spin_count()))
    assert counts[0] > counts[1] == counts[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_parses(name: str, invoke: Invoke) -> None:
    outcome = invoke(name, "--help")
    assert outcome.code == 0
    (example,) = re.findall(r"Example: itrpipe (.+)", outcome.out)
    command, *arguments = shlex.split(example)
    assert command == name
    COMMANDS[command].make_context(command, arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_synthesize_takes_the_split_as_an_option(data_root: Path, invoke: Invoke) -> None:
    named = invoke("synthesize", "--by", "vse-c", "--split", "test", "--data", data_root, "--dry-run")
    given = invoke("synthesize", "--by", "vse-c", "--set", "split=test", "--data", data_root, "--dry-run")
    assert (named.code, named.out) == (0, given.out)
    assert "synthesize/vse-c.test-" in named.out
    assert "'dev'" in invoke("synthesize", "--split", "dev", "--data", data_root).err


@pytest.mark.parametrize("what", ["methods", "backbones"])
def test_help_of_train_names_the_principal_ones_with_one_line(what: str, invoke: Invoke) -> None:
    lines = invoke("train", "--help").out.splitlines()
    assert 5 < len(principal(what)) <= 12
    assert any(f"`itrpipe list {what}` has all {len(everything(what))}" in line for line in lines)
    for name, _ in principal(what):
        described = [line for line in lines if line.startswith(f"  {name} ")]
        assert described, name
        assert all(len(line.split()) > 2 for line in described), described


def test_help_of_extract_names_every_extractor_and_importer_with_one_line(invoke: Invoke) -> None:
    from itrpipe.config import load_declaration

    lines = invoke("extract", "--help").out.splitlines()
    for conf in load_declaration("extract").confs:
        (described,) = [line for line in lines if line.split()[:1] == [conf]]
        assert len(described.split()) > 4, described


def test_the_installed_command_runs(cli: Invoke) -> None:
    done = cli("show", "train", "aoq", "--backbone", "vsrn")
    assert (done.returncode, done.stderr) == (0, "")
    assert "loss.alpha" in done.stdout


# Mistakes of the user


REFUSED = [
    # What click reads
    ("evalute", 2, "No such command 'evalute'. Did you mean 'evaluate'?; see `itrpipe --help`"),
    ("--nothing", 2, "No such option: --nothing; see `itrpipe --help`"),
    ("train --epochz 3", 2, "No such option: --epochz; see `itrpipe train --help`"),
    ("search 'a dog' --top 0", 2, "Invalid value for '--top': "),
    ("index", 2, "Missing option '--photos'; see `itrpipe index --help`"),
    ("evaluate --split tset", 2, "'tset' is not one of 'test', 'val', 'train'"),
    # What is empty, as an unset variable
    *((each, 2, "empty value") for each in ("index --photos ''", "index --photos=", "train --name ' '", "train -d ''")),
    *((each, 2, "empty value") for each in ("report --compare '' x", "search ''", "status --data ''")),
    # Names that there are not
    ("train --method aqo", 2, "did you mean 'aoq'"),
    ("train --backbone vsnr", 2, "did you mean 'vsrn'"),
    ("show trian", 2, "did you mean 'train'"),
    ("show nosuch", 2, "known: prepare, extract, parse, train, mine-negatives,"),
    ("show train aqo", 2, "did you mean 'aoq'"),
    ("run dmeo", 2, "did you mean 'demo'"),
    ("extract --features scnes", 2, "did you mean 'scenes'"),
    ("extract --features scenes --from .", 2, "'scenes'"),
    (f"train --dataset {'x' * 300}", 2, "100 at most"),
    ("train --dataset ../x", 2, "'../x'"),
    # Values of settings
    ("train --device tpu", 2, "device = 'tpu'"),
    ("train --seed -1", 2, "seed = -1 (from command line)"),
    ("train --set epoch=3", 2, "did you mean 'epochs'"),
    ("train --set loss.margn=1", 2, "'loss.margn' of method 'triplet' (from command line)"),
    ("train --method tags-dc --set train.loss.copie=1", 2, "did you mean 'loss.copies'"),
    ("train --set epochs", 2, "'epochs' is not of the form key=value"),
    ("train --seed 1 --set seed=2", 2, "seed is given twice"),
    ("train --set learning_rate=-inf", 2, "finite number"),
    ("train --set train.epochs={}", 2, "--set train.epochs={} is an empty table, which sets nothing"),
    ("train --set loss={margin={}}", 2, "--set loss.margin={} is an empty table"),
    ("train --set 'epochs=3\nbatch_size=4'", 2, "epochs = '3"),
    (f"train --set seed=1{'0' * 30}", 2, "it should be 9,223,372,036,854,775,807 at most"),
    (f"train --set seed={'9' * 5000}", 2, "has thousands of digits"),
    (f"train --set epochs={'[' * 5000}", 2, "lists in lists in lists"),
    ("train --set 'decay_at=[1, 99999999999]'", 2, "decay_at = [1, 99999999999]"),
    ("train --set word_dim=99999999999", 2, "65536"),
    ("prepare --set workers=100000", 2, "4096"),
    ("extract --map regions", 2, "--map 'regions'"),
    ("extract --map a=b --map a=c", 2, "--map gives a twice"),
    ("export --to /", 2, "--to / exists and is not empty"),
    ("prepare --dataset scenes --source .", 2, "takes no --source"),
    # What is not there
    ("train --dataset nope", 3, "'nope'"),
    ("evaluate --dataset nope", 3, "'nope'"),
    ("report --dataset nope", 3, "itrpipe evaluate --dataset nope"),
    ("status --dataset nope", 3, "no dataset 'nope'"),
    ("gc --dataset nope", 3, "no dataset 'nope'"),
    ("prepare --dataset nope", 3, "--source"),
    ("prepare --dataset nope --source /no/where", 3, "--source /no/where does not exist"),
    ("extract --dataset nope", 3, "'nope'"),
    ("extract --dataset nope --features precomp", 3, "--from"),
    ("extract --from /no/where", 3, "--from /no/where does not exist"),
]


@pytest.mark.parametrize(("line", "code", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_told_in_one_line(line: str, code: int, said: str, data_root: Path, invoke: Invoke) -> None:
    known = [] if "--data" in line or line.startswith(("evalute", "--nothing")) else ["--data", data_root]
    outcome = invoke(*shlex.split(line), *known)
    assert_one_line(outcome, ItrpipeError, said, code=code)
    assert not list(data_root.rglob("*.partial"))


def test_the_longest_names_and_largest_numbers_are_taken(defined: Path, precomp_dataset: Any, invoke: Invoke) -> None:
    name = "x" * 100
    extract = ("extract", "--dataset", "tiny", "--from", precomp_dataset.features, "--data", defined, "--name")
    outcome = invoke(*extract, name)
    assert outcome.code == 0, outcome.err
    assert_one_line(invoke(*extract, f"{name}x"), UsageError, "100 at most")
    seed = ("train", "--seed", 2**63 - 1, "--backbone", "vsepp", "--features", name, "--dataset", "tiny")
    small = ("epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1")
    sets = [part for text in small for part in ("--set", text)]
    outcome = invoke(*seed, "--data", defined, *sets)
    assert outcome.code == 0, outcome.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files")
@pytest.mark.parametrize("page", ["/proc/found.html", f"/tmp/{'x' * 250}.html"])
def test_a_page_that_cannot_be_written_is_refused_before_the_search(page: str, data_root: Path, invoke: Invoke) -> None:
    outcome = invoke("search", "a dog", "--html", page, "--data", data_root)
    assert_one_line(outcome, UnavailableError, f"{page} cannot be ")
    assert not data_root.exists()
    assert not outcome.out


def test_looking_whether_a_page_can_be_written_leaves_nothing(tmp_path: Path, data_root: Path, invoke: Invoke) -> None:
    (tmp_path / "pages").mkdir()
    invoke("search", "a dog", "--html", tmp_path / "pages" / "a.html", "--data", data_root, "--no-deps")
    assert not list((tmp_path / "pages").iterdir())


def test_settings_given_twice_alike_are_one(data_root: Path, invoke: Invoke) -> None:
    outcome = invoke("train", "--seed", 1, "--set", "seed=1", "--dry-run", "--data", data_root)
    assert outcome.code == 0, outcome.err
    twice = ("--set", "learning_rate=nan", "--set", "learning_rate=nan")
    assert_one_line(invoke("train", *twice, "--data", data_root), UsageError, "finite number")


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
        assert_one_line(invoke(*command), UsageError, str(wrong))


def test_the_home_folder_is_known_by_its_short_name(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/data holds no dataset" in invoke("status", "--data=~/data").out


def test_a_source_that_fails_is_not_remembered_instead_of_one_that_works(
    defined: Path, tmp_path: Path, invoke: Invoke
) -> None:
    known = load_definition(defined, "tiny")
    empty = tmp_path / "empty"
    empty.mkdir()
    invoke("prepare", "--dataset", "tiny", "--source", empty, "--data", defined)
    assert load_definition(defined, "tiny") == known
    invoke("extract", "--dataset", "tiny", "--from", empty, "--data", defined)
    assert load_definition(defined, "tiny") == known


def test_the_detector_of_scenes_is_refused_for_photographs_and_not_remembered(defined: Path, invoke: Invoke) -> None:
    """Remembered, it would make every later `train` ask which features are meant."""
    outcome = invoke("extract", "--dataset", "tiny", "--features", "scenes", "--data", defined)
    assert_one_line(outcome, DataError, "photographs", "--from PATH")
    assert list(load_definition(defined, "tiny").features) == ["precomp"]


def test_what_prepare_was_told_is_remembered(
    data_root: Path, precomp_dataset: Any, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(precomp_dataset.folder.parent)
    arguments = ["prepare", "--dataset", "mine", "--data", data_root]
    assert invoke(*arguments, "--source", "source", "--set", "bad_images=refuse", "--set", "workers=1").code == 0
    known = load_definition(data_root, "mine").prepare
    assert known is not None
    assert (known.conf, known.source, known.settings) == (
        "files",
        str(precomp_dataset.folder),
        {"bad_images": "refuse"},
    )
    assert "up to date" in invoke(*arguments).out
    assert_one_line(invoke(*arguments, "--set", "bad_images=keep"), UsageError, "bad_images = 'keep'")
    assert load_definition(data_root, "mine").prepare == known


def test_a_dry_run_remembers_no_source(data_root: Path, precomp_dataset: Any, invoke: Invoke) -> None:
    arguments = ["prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root]
    assert invoke(*arguments, "--dry-run").code == 0
    assert load_definition(data_root, "mine").prepare is None


def test_an_image_that_does_not_decode_is_left_out_and_listed_or_refused(
    data_root: Path, precomp_dataset: Any, invoke: Invoke
) -> None:
    os.truncate(precomp_dataset.images / "1003.jpg", 200)
    prepare = ["prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root]
    assert_one_line(invoke(*prepare, "--strict"), DataError, "1 of 20 images", "1003.jpg", "--set bad_images=drop")
    assert load_definition(data_root, "mine").prepare is None
    outcome = invoke(*prepare)
    assert_one_line(outcome, IncompleteError, "1 image ", "1003.jpg", "truncated", "manifest.json")
    assert "train 11 images / 55 captions" in outcome.out
    manifest = read_manifest(only(data_root, "mine/prepare/*-*/manifest.json").parent)
    assert list(manifest.failed) == ["1003"]
    # What is finished is finished, and the code says again that it is not everything.
    again = invoke(*prepare)
    assert "up to date" in again.out
    assert again.code == IncompleteError.exit_code


def test_folders_and_pipes_among_the_images_are_left_out(data_root: Path, precomp_dataset: Any, invoke: Invoke) -> None:
    """The hash over all images must neither fail on them nor wait for a writer."""
    for name in ("1002.jpg", "1003.jpg"):
        (precomp_dataset.images / name).unlink()
    (precomp_dataset.images / "1002.jpg").mkdir()
    os.mkfifo(precomp_dataset.images / "1003.jpg")
    outcome = invoke("prepare", "--dataset", "mine", "--source", precomp_dataset.folder, "--data", data_root)
    assert_one_line(outcome, IncompleteError, "2 images", "is not a regular file")


def test_data_folder_that_is_a_file(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "file").write_text("")
    outcome = invoke("prepare", "--train", 1, "--val", 1, "--test", 1, "--data", tmp_path / "file")
    assert outcome.code in {error.exit_code for error in ItrpipeError.__subclasses__()}
    assert outcome.err.count("\n") == 1


# Damage


def run_train(root: Path, invoke: Invoke) -> Any:
    sets = ["epochs=1", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1", "seed=5"]
    options = [f"--set={text}" for text in sets]
    return invoke("train", "--backbone", "vsepp", "--dataset", "tiny", "--data", root, *options)


@pytest.mark.parametrize(("stage", "name"), [("prepare", "captions.parquet"), ("extract", "features.h5")])
def test_garbage_of_the_right_size_in_an_input(chain: Path, stage: str, name: str, invoke: Invoke) -> None:
    path = only(chain, f"tiny/{stage}/*-*/{name}")
    path.write_bytes(bytes(path.stat().st_size))
    assert_one_line(run_train(chain, invoke), DataError, path)
    assert not list(chain.glob("tiny/train/*s5-????????"))


@pytest.mark.parametrize("name", ["dataset.json", "sources.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_damaged_file_of_the_dataset_itself(chain: Path, name: str, content: str, invoke: Invoke) -> None:
    (chain / "tiny" / name).write_text(content)
    outcome = invoke("prepare", "--dataset", "tiny", "--data", chain)
    if outcome.code:
        assert_one_line(outcome, DataError, chain / "tiny" / name, "remove it")
    else:
        assert name == "sources.json"


# Exit codes


def test_exit_codes_are_distinct_and_documented() -> None:
    errors = [
        ItrpipeError,
        UsageError,
        MissingInputError,
        DataError,
        DiskFullError,
        LockedError,
        IncompleteError,
        UnavailableError,
    ]
    assert [error.exit_code for error in errors] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert set(ItrpipeError.__subclasses__()) == set(errors[1:])


@pytest.mark.parametrize("error", [UsageError, MissingInputError, DataError, DiskFullError, LockedError])
def test_errors_become_one_line_and_their_exit_code(
    error: type[ItrpipeError], monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error("what, where [and] how to help")

    monkeypatch.setattr("itrpipe.cli.keep.folders_in", fail)
    outcome = invoke("status")
    assert (outcome.code, outcome.err) == (error.exit_code, "error: what, where [and] how to help\n")


def test_an_interrupt_is_exit_code_130_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("itrpipe.cli.keep.folders_in", interrupt)
    outcome = invoke("status")
    assert outcome.code == 130
    assert outcome.err == "interrupted; the same command goes on where it stopped\n"


# Doctor


def test_doctor_is_content_here(invoke: Invoke, data_root: Path) -> None:
    outcome = invoke("doctor", "--data", data_root)
    assert outcome.code == 0
    assert "everything required is here" in outcome.out
    for part in ("device", "memory", "GiB free", "stages"):
        assert part in outcome.out
    assert not data_root.exists()


def test_doctor_names_what_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = doctor.requires("itrpipe") or []
    monkeypatch.setattr(doctor, "requires", lambda _: [*needed, "no-such-package>=1"])
    outcome = invoke("doctor")
    assert outcome.code == 1
    assert "MISSING: pip install no-such-package" in outcome.out


def test_doctor_refuses_two_builds_of_faiss(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "1.15.1" if name.startswith("faiss-gpu") else known(name))
    outcome = invoke("doctor")
    assert outcome.code == 1
    assert "pip uninstall faiss-gpu-cuvs faiss-gpu faiss-gpu-cu12 faiss-cpu, then install one" in outcome.out
