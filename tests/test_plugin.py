"""A package of somebody else brings a method, a backbone and an extractor: `tests/plugin`, installed as pip does it."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from itrpipe import plugins
from itrpipe.testing import IMAGE_DIM, VOCABULARY, check_backbone, check_method
from tests.chains import copied, only, sets
from tests.commands import Command

SMALL = ("epochs=2", "batch_size=16", "min_word_count=1", "model.embed_dim=16", "validation_images=8")
TINY = ("--dataset", "tiny", "--data")
MODEL = ("--method", "smooth", "--backbone", "mean-words", *sets(*(f"train.{value}" for value in SMALL)))
FEW = sets("evaluate.bootstrap_samples=100")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(Path(__file__).parent / "plugin", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "--target", folder / "site", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def refused(code: int, said: str, packages: Path, *command: object) -> None:
    found, printed = Command(*command, packages=[packages]).wait()
    assert (found, printed.count("\n")) == (code, 1), printed
    assert said in printed


def test_a_method_and_a_backbone_of_others_go_through_the_whole_chain(
    site: Path, finished_chain: Path, tmp_path: Path
) -> None:
    root = copied(finished_chain / "data", tmp_path / "data")

    def run(*command: object) -> str:
        return Command(*command, *TINY, root, packages=[site]).finish()

    evaluate = ("evaluate", *MODEL, "--features", "precomp", *FEW)
    run(*evaluate)
    settings = json.loads((only(root, "train/smooth.mean-words") / "manifest.json").read_text())["settings"]
    assert (settings["loss"]["temperature"], settings["model"]["embed_dim"]) == (0.1, 16)
    assert run(*evaluate).count("up to date") >= 3
    assert "smooth maximum" in run("report", *sets("bootstrap_samples=100"))
    run("export", *MODEL, "--features", "precomp", *FEW, "--to", tmp_path / "exported")
    assert (tmp_path / "exported" / "README.md").is_file()
    table = site / "itrpipe_example" / "smooth" / "train.toml"
    declared = table.read_text()
    table.write_text(f"{declared}\n# A comment more.\n")
    told = run("report", *sets("bootstrap_samples=100"), "--dry-run")
    table.write_text(declared)
    assert "declarations of itrpipe_example.smooth changed" in told


def test_its_configurations_are_shown_and_spelled_for_the_user(site: Path) -> None:
    def run(*command: str) -> str:
        return Command(*command, packages=[site]).finish()

    shown = run("show", "train", "smooth-soft", "--backbone", "mean-words")
    assert "train.toml [conf.smooth-soft]" in shown
    assert "train.toml [defaults.mean-words.scenes]" in shown
    assert "triplet loss with a soft maximum over the negatives" in " ".join(run("train", "--help").split())
    assert "mean-colours       mean colours of the cells of a grid" in run("extract", "--help")
    found = run("doctor")
    for said in ("methods smooth", "backbones mean-words", "extractors mean-colours"):
        assert f"{said}, itrpipe-example 0.1" in found
    refused(2, "did you mean 'smooth'?", site, "train", "--method", "smoth", "--dry-run")
    refused(2, "did you mean 'mean-colours'", site, "extract", "--features", "mean-colour", "--dry-run")


@pytest.mark.parametrize(("features", "regions"), [("mean-colours", 16), ("mean-colours-fine+hog", 64)])
def test_an_extractor_of_others_makes_features_alone_and_beside_ours(
    site: Path, finished_chain: Path, tmp_path: Path, features: str, regions: int
) -> None:
    root = copied(finished_chain / "data", tmp_path / "data")
    extract = ("extract", "--features", features, *sets("workers=0"), *TINY, root)
    Command(*extract, packages=[site]).finish()
    made = only(root, f"extract/{features}")
    with h5py.File(made / "features.h5") as file:
        stored = np.asarray(file["regions"])
        assert stored.shape[1:] == (regions, 3)
        assert 0 < stored.mean() < 1
        np.testing.assert_allclose(np.asarray(file["boxes"])[0, -1, 2:], 1)
    if "+" not in features:
        assert json.loads((made / "manifest.json").read_text())["settings"]["cells"] == 4
        Command("train", *MODEL, "--features", features, *TINY, root, packages=[site]).finish()


@pytest.mark.parametrize("command", [("train", *MODEL), ("extract", "--features", "mean-colours")])
def test_another_version_is_another_model_and_makes_other_features(
    site: Path, finished_chain: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    newer = copied(site, tmp_path / "newer")
    (metadata,) = newer.glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 0.1", "Version: 0.2"))
    given = (*command, *TINY, finished_chain / "data", "--dry-run")
    start = f"{command[0]}/{'smooth.mean-words' if command[0] == 'train' else 'mean-colours'}-"
    plans = [Command(*given, packages=[folder]).finish() for folder in (site, newer)]
    names = [word for plan in plans for word in plan.split() if word.startswith(start)]
    assert len(names) == len(set(names)) == 2


def test_both_pass_the_checks_of_ours(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    words, smooth = (f"itrpipe_example.{name}" for name in ("mean_words", "smooth"))
    network, words = importlib.import_module(f"{words}.network"), importlib.import_module(f"{words}.declaration")
    method, smooth = importlib.import_module(f"{smooth}.method"), importlib.import_module(f"{smooth}.declaration")

    def model() -> Any:
        return network.build(words.MeanWords(embed_dim=8), IMAGE_DIM, VOCABULARY)

    check_backbone(model)
    check_method(lambda data: method.build(smooth.Smooth(), data), model)


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


BROKEN = "broken.declaration"
KIND = "from itrpipe.methods.declaration import MethodSettings as Kind\n"
OWN = '[conf.worse]\nmethod = "worse"\n'


@pytest.mark.parametrize(
    ("name", "declaration", "module", "table", "reason"),
    [
        ("worse", "import torch_of_tomorrow\n", BROKEN, OWN, "No module named 'torch_of_tomorrow'"),
        ("worse", "raise SystemError('no\\x1b[31m licence')\n", BROKEN, OWN, "no\\x1b[31m licence"),
        ("worse", "class Own(BaseException): pass\nraise Own\n", BROKEN, OWN, "Own"),
        ("worse", KIND, "broken-one.declaration", OWN, "AttributeError"),
        ("worse", "Kind = 3\n", BROKEN, OWN, "broken.declaration:Kind is no class of settings"),
        ("worse", KIND, BROKEN, "", "its configurations are missing: there is no "),
        ("worse", KIND, BROKEN, "[conf.worse\n", "TOMLDecodeError"),
        ("worse", KIND, BROKEN, "conf = 5\n", "conf"),
        ("worse", KIND, BROKEN, OWN + "other = 1\n[execution]\ndevice = 'cpu'\n", "execution"),
        ("worse", KIND, BROKEN, OWN + "[conf.triplet]\nmethod = 'worse'\n", "[conf.triplet]"),
        ("triplet", KIND, BROKEN, OWN, "itrpipe has one of this name itself"),
    ],
)
def test_a_package_that_cannot_be_used_is_told_by_what_lists_and_asks_for_it_and_stops_nothing_else(
    name: str, declaration: str, module: str, table: str, reason: str, site: Path, tmp_path: Path
) -> None:
    packages = [broken_package(tmp_path, name, declaration, module, table), site]
    for listing in (("doctor",), ("list", "methods")):
        listed = "".join(Command(*listing, packages=packages).finish().split("\n"))
        assert reason in listed
        assert "(broken 1.0 brings it)" in listed
    Command("show", "train", "smooth", packages=packages).finish()
    code, shown = Command("show", "train", name, packages=packages).wait()
    if name == "triplet":
        assert code == 0
    else:
        assert (code, reason in shown, len(shown.splitlines())) == (2, True, 1)


@pytest.mark.parametrize(
    ("declaration", "reason"),
    [
        ("import time; time.sleep(600)", "is not imported after 2 seconds"),
        ("raise KeyboardInterrupt", "ends or interrupts the process"),
        ("import os; os._exit(0)", "ends or interrupts the process"),
    ],
)
def test_a_package_neither_ends_nor_holds_up_the_process_that_looks_for_it(
    declaration: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(broken_package(tmp_path, "worse", declaration, BROKEN, OWN)))
    monkeypatch.setattr(plugins, "IMPORT_SECONDS", 2.0)
    (found,) = (each for each in plugins.find_plugins({}) if each.name == "worse")
    assert f"broken.declaration:Kind {reason}" in found.problem


def test_what_a_network_raises_when_it_is_imported_is_one_line(site: Path, chain: Path, tmp_path: Path) -> None:
    found = copied(site, tmp_path / "site")
    (found / "itrpipe_example" / "smooth" / "method.py").write_text("raise SystemExit\n")
    (found / "itrpipe_example" / "mean_words" / "train.toml").unlink()  # methods say what a backbone is trained with
    code, printed = Command("train", *MODEL, "--features", "precomp", *TINY, chain, packages=[found]).wait()
    assert (code, "SystemExit" in printed, "Traceback" in printed) == (2, True, False)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("sentences", "names sentences, which its settings do not ask for; derive Smooth from ReadsSentences of"),
        ("lists", "names lists, which its settings do not ask for; derive Smooth from ReadsLists of"),
        ("captions", "names captions, which no training has; it may name lists, "),
    ],
)
def test_a_method_that_names_an_input_which_it_does_not_declare_is_refused_before_data_are_read(
    argument: str, said: str, site: Path, chain: Path, tmp_path: Path
) -> None:
    found = copied(site, tmp_path / "site")
    with (found / "itrpipe_example" / "smooth" / "method.py").open("a") as file:
        file.write(f"\n\ndef build(settings, data, {argument}):\n    return SmoothMethod(settings, data)\n")
    code, printed = Command("train", *MODEL, "--features", "precomp", *TINY, chain, packages=[found]).wait()
    assert (code, said in printed.splitlines()[-1], "Traceback" in printed) == (2, True, False)
