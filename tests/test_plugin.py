"""A package of somebody else brings a method, a backbone and an extractor: `tests/plugin`, installed as pip does it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

import itrpipe

PLUGIN = Path(__file__).parent / "plugin"
# Several commands in one process, since importing torch takes longer than most of them.
SEVERAL = """import contextlib, io, json, sys
from itrpipe.cli import main
ended = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, said, complained, code = ["itrpipe", *arguments], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code or 0
    ended.append([code, said.getvalue(), complained.getvalue()])
print(json.dumps(ended))
"""
PACKAGES = str(Path(itrpipe.__file__).parents[1])
SMALL = ("epochs=2", "batch_size=16", "min_word_count=1", "model.embed_dim=16", "validation_images=8")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "--target", folder / "site", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def run_with(*folders: Path) -> Run:
    """Runs Python with these folders of packages beside itrpipe."""

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([*map(str, folders), PACKAGES])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        arguments = [sys.executable, *map(str, command)]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)

    return run


def several_with(*folders: Path) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Runs commands of itrpipe one after the other in one process, each given as its arguments."""

    def run(*commands: Sequence[object]) -> list[subprocess.CompletedProcess[str]]:
        given = [list(map(str, each)) for each in commands]
        done = run_with(*folders)("-c", SEVERAL, json.dumps(given))
        assert done.returncode == 0, done.stderr
        ended = json.loads(done.stdout.splitlines()[-1])
        return [subprocess.CompletedProcess(each, *end) for each, end in zip(given, ended, strict=True)]

    return run


def trained(root: Path, *more: str) -> tuple[object, ...]:
    given = [part for value in SMALL for part in ("--set", f"train.{value}")]
    features = () if "--features" in more else ("--features", "precomp")
    named = ("--method", "smooth", "--backbone", "mean-words", *features)
    return ("evaluate", "--dataset", "tiny", "--data", root, *named, *given, *more)


@pytest.mark.slow
def test_a_method_and_a_backbone_of_others_go_through_the_whole_chain(
    site: Path, finished_chain: Path, tmp_path: Path
) -> None:
    root, run = shutil.copytree(finished_chain / "data", tmp_path / "data"), several_with(site)
    few = ("--set", "evaluate.bootstrap_samples=100")
    report = ("report", "--dataset", "tiny", "--data", root, "--set", "bootstrap_samples=100")
    made, again, told = run(trained(root, *few), trained(root, *few), report)
    assert made.returncode == 0, made.stderr
    (manifest,) = (root / "tiny" / "train").glob("smooth.mean-words-*/manifest.json")
    settings = json.loads(manifest.read_text())["settings"]
    assert (settings["loss"]["temperature"], settings["model"]["embed_dim"]) == (0.1, 16)
    assert again.stdout.count("up to date") >= 3
    assert told.returncode == 0, told.stderr
    assert "smooth maximum" in told.stdout
    table = site / "itrpipe_example" / "smooth" / "train.toml"
    declared = table.read_text()
    table.write_text(f"{declared}\n# A comment more.\n")
    (done,) = run((*report, "--dry-run"))
    assert "declarations of itrpipe_example.smooth changed" in done.stdout
    table.write_text(declared)
    out = tmp_path / "exported"
    (done,) = run(("export", *trained(root, "--to", str(out))[1:], *few))
    assert done.returncode == 0, done.stderr
    assert (out / "README.md").is_file()


def test_its_configurations_are_shown_and_spelled_for_the_user(site: Path) -> None:
    shown, train, extract, misspelt, found = several_with(site)(
        ("show", "train", "smooth-soft", "--backbone", "mean-words"),
        ("train", "--help"),
        ("extract", "--help"),
        ("train", "--method", "smoth", "--dry-run"),
        ("doctor",),
    )
    assert shown.returncode == 0, shown.stderr
    assert "train.toml [conf.smooth-soft]" in shown.stdout
    assert "train.toml [defaults.mean-words.scenes]" in shown.stdout
    assert "triplet loss with a soft maximum over the negatives" in " ".join(train.stdout.split())
    assert "mean-colours       mean colours of the cells of a grid" in extract.stdout
    assert misspelt.returncode == 2
    assert "did you mean 'smooth'?" in misspelt.stderr
    for said in ("methods smooth", "backbones mean-words", "extractors mean-colours"):
        assert f"{said}, itrpipe-example 0.1" in found.stdout


def test_an_extractor_of_others_makes_features_alone_and_beside_ours(
    site: Path, finished_chain: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(finished_chain / "data", tmp_path / "data")
    tiny = ("--dataset", "tiny", "--data", root)
    kinds = {"mean-colours": 16, "mean-colours-fine+pixels": 64}
    *extracted, used, misspelt = several_with(site)(
        *(("extract", *tiny, "--features", features, "--set", "workers=0") for features in kinds),
        trained(root, "--features", "mean-colours"),
        ("extract", *tiny, "--features", "mean-colour"),
    )
    for (features, regions), done in zip(kinds.items(), extracted, strict=True):
        assert done.returncode == 0, done.stderr
        (path,) = (root / "tiny" / "extract").glob(f"{features}-????????/features.h5")
        with h5py.File(path) as file:
            stored = np.asarray(file["regions"])
            assert stored.shape[1:] == (regions, 3)
            assert 0 < stored.mean() < 1
            np.testing.assert_allclose(file["boxes"][0, -1, 2:], 1)
    (manifest,) = (root / "tiny" / "extract").glob("mean-colours-????????/manifest.json")
    assert json.loads(manifest.read_text())["settings"]["cells"] == 4
    assert used.returncode == 0, used.stderr
    assert "did you mean 'mean-colours'" in misspelt.stderr


@pytest.fixture
def newer(site: Path, tmp_path: Path) -> Path:
    """The folder of packages with a later version of the package."""
    folder = shutil.copytree(site, tmp_path / "newer")
    (information,) = folder.glob("*.dist-info")
    text = (information / "METADATA").read_text()
    (information / "METADATA").write_text(text.replace("Version: 0.1", "Version: 0.2"))
    return folder


def test_another_version_is_another_model(site: Path, newer: Path, finished_chain: Path) -> None:
    names = []
    for folder in (site, newer):
        (done,) = several_with(folder)(trained(finished_chain / "data", "--dry-run"))
        assert done.returncode == 0, done.stderr
        names += [word for word in done.stdout.split() if word.startswith("train/smooth.mean-words-")][:1]
    assert len(set(names)) == 2


def test_features_of_another_version_are_others(site: Path, newer: Path, finished_chain: Path) -> None:
    given = (
        "extract",
        "--dataset",
        "tiny",
        "--data",
        finished_chain / "data",
        "--features",
        "mean-colours",
        "--dry-run",
    )
    plans = [several_with(folder)(given)[0].stdout for folder in (site, newer)]
    names = [word for plan in plans for word in plan.split() if word.startswith("extract/mean-colours-")]
    assert len(names) == len(set(names)) == 2


def test_both_pass_the_checks_of_ours(site: Path) -> None:
    code = """
from itrpipe.methods.declaration import method_module, methods
from itrpipe.models.registry import backbones, network_module
from itrpipe.testing import IMAGE_DIM, VOCABULARY, check_backbone, check_method

def model():
    return network_module("mean-words").build(backbones()["mean-words"](embed_dim=8), IMAGE_DIM, VOCABULARY)

check_backbone(model)
check_method(lambda data: method_module("smooth").build(methods()["smooth"](), data, {}), model)
"""
    done = run_with(site)("-c", code)
    assert done.returncode == 0, done.stderr


def broken_package(folder: Path, name: str, declaration: str, module: str, table: str) -> Path:
    """A package with one entry point, as pip leaves it."""
    (folder / "broken").mkdir(parents=True)
    (folder / "broken" / "__init__.py").touch()
    (folder / "broken" / "declaration.py").write_text(declaration)
    if table:
        (folder / "broken" / "train.toml").write_text(table)
    information = folder / "broken-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[itrpipe.methods]\n{name} = {module}:Kind\n")
    return folder


KIND = "from itrpipe.methods.declaration import MethodSettings as Kind\n"
OWN = '[conf.worse]\nmethod = "worse"\n'


@pytest.mark.parametrize(
    ("name", "declaration", "module", "table", "reason"),
    [
        ("worse", "import torch_of_tomorrow\n", "broken.declaration", OWN, "No module named 'torch_of_tomorrow'"),
        ("worse", "raise SystemError('no\\x1b[31m licence')\n", "broken.declaration", OWN, "no\\x1b[31m licence"),
        ("worse", "raise SystemExit(3)\n", "broken.declaration", OWN, "SystemExit: 3"),
        ("worse", "class Own(BaseException): pass\nraise Own\n", "broken.declaration", OWN, "Own"),
        ("worse", KIND, "broken-one.declaration", OWN, "AttributeError"),
        ("worse", "Kind = 3\n", "broken.declaration", OWN, "broken.declaration:Kind is no class of settings"),
        ("worse", KIND, "broken.declaration", "", "its configurations are missing"),
        ("worse", KIND, "broken.declaration", "[conf.worse\n", "TOMLDecodeError"),
        ("worse", KIND, "broken.declaration", "conf = 5\n", "conf"),
        ("worse", KIND, "broken.declaration", OWN + "other = 1\n[execution]\ndevice = 'cpu'\n", "execution"),
        ("worse", KIND, "broken.declaration", OWN + "[conf.triplet]\nmethod = 'worse'\n", "[conf.triplet]"),
        ("triplet", KIND, "broken.declaration", OWN, "itrpipe has one of this name itself"),
    ],
)
def test_a_package_that_cannot_be_used_is_told_by_what_lists_and_asks_for_it_and_stops_nothing_else(
    name: str, declaration: str, module: str, table: str, reason: str, site: Path, tmp_path: Path
) -> None:
    commands = (
        ("doctor",),
        ("list", "methods"),
        ("show", "train", name),
        ("show", "train", "smooth"),
        ("show", "train"),
    )
    found, listed, shown, *others = several_with(broken_package(tmp_path, name, declaration, module, table), site)(
        *commands
    )
    assert (found.returncode, listed.returncode, [each.returncode for each in others]) == (0, 0, [0, 0])
    assert reason in "".join(found.stdout.split("\n"))
    assert reason in listed.stdout
    assert all("(broken 1.0 brings it)" in each.stdout for each in (found, listed))
    if name == "triplet":
        assert shown.returncode == 0
    else:
        assert (shown.returncode, reason in shown.stderr, len(shown.stderr.splitlines())) == (2, True, 1)


def test_what_a_network_raises_when_it_is_imported_is_one_line(
    site: Path, finished_chain: Path, tmp_path: Path
) -> None:
    found = shutil.copytree(site, tmp_path / "site")
    (found / "itrpipe_example" / "smooth" / "method.py").write_text("raise SystemExit\n")
    root = shutil.copytree(finished_chain / "data", tmp_path / "data")
    (done,) = several_with(found)(trained(root))
    assert (done.returncode, "SystemExit" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("folder", "table", "shown"),
    [
        ("smooth", "train.toml", ("train", "smooth")),
        ("mean_colours", "extract.toml", ("extract", "mean-colours")),
        ("mean_words", "train.toml", ()),  # methods declare what a backbone is trained with
    ],
)
def test_tables_that_were_not_packaged_are_named(
    folder: str, table: str, shown: tuple[str, ...], site: Path, tmp_path: Path
) -> None:
    found = shutil.copytree(site, tmp_path / "site")
    path = found / "itrpipe_example" / folder / table
    path.unlink()
    told, *done = several_with(found)(("doctor",), *((("show", *shown),) if shown else ()))
    assert told.returncode == 0
    reason = f"its configurations are missing: there is no {path}; the package has to bring it as package data"
    assert (reason in "".join(told.stdout.split("\n"))) == bool(shown)
    for each in done:
        assert each.returncode == 2
        assert f"{shown[1]!r} cannot be used: {reason} (itrpipe-example 0.1 brings it)" in each.stderr
