"""What keeps the working folder out: imports from the root folder, plots of our own style, models without code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from itrpipe.features.extractors.pretrained import Family, load_config
from itrpipe.features.extractors.resnet.extractor import FAMILIES
from itrpipe.isolation import CURIOUS, away, isolate
from itrpipe.reporting.plots import panel, svg


def test_a_block_runs_in_the_root_folder_and_the_working_folder_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with away():
        assert Path.cwd() == Path("/")
    assert Path.cwd() == tmp_path
    with pytest.raises(KeyError), away():
        raise KeyError
    assert Path.cwd() == tmp_path


def test_a_working_folder_that_has_been_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with away():
        pass


def test_a_process_is_isolated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    isolate()
    once = list(sys.meta_path)
    isolate()
    assert sys.meta_path == once
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_curious_packages_are_imported_from_the_root_folder_and_are_else_as_ever(tmp_path: Path) -> None:
    """In a process of its own, with small packages of these names."""
    for name in CURIOUS:
        (tmp_path / "path" / name).mkdir(parents=True)
        (tmp_path / "path" / name / "__init__.py").write_text("import os\nfolder = os.getcwd()\n")
        (tmp_path / "path" / name / "part.py").write_text("import os\nfolder = os.getcwd()\n")
    code = f"""
import importlib, importlib.resources, os
from itrpipe.isolation import isolate
isolate()
for name in {sorted(CURIOUS)!r}:
    whole, part = importlib.import_module(name), importlib.import_module(name + ".part")
    assert (whole.folder, part.folder, os.getcwd()) == ("/", {str(tmp_path)!r}, {str(tmp_path)!r}), name
    assert type(whole.__loader__).__name__ == type(whole.__spec__.loader).__name__ == "SourceFileLoader"
    assert (importlib.resources.files(name) / "part.py").is_file()
    assert importlib.reload(whole).folder == "/"
try:
    importlib.import_module("torch.absent")
except ModuleNotFoundError:
    print("done")
"""
    path = os.pathsep.join([str(tmp_path / "path"), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_plots_do_not_depend_on_the_settings_of_matplotlib() -> None:
    def drawn() -> str:
        figure, axes = panel()
        axes.plot([0, 1], [1, 0])
        return svg(figure, "name", "a line")

    alone = drawn()
    foreign = {"font.size": 40, "axes.linewidth": 9, "text.usetex": True, "xtick.minor.visible": True, "figure.dpi": 9}
    with matplotlib.rc_context(foreign):
        assert drawn() == alone
        assert matplotlib.rcParams["font.size"] == 40


def test_a_configuration_cannot_name_an_implementation_of_attention(tmp_path: Path) -> None:
    family: Family = FAMILIES["resnet"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "resnet", "attn_implementation": "evil/kernel"}))
    _, config = load_config(tmp_path, FAMILIES)
    assert family.attention is None
    assert config._attn_implementation is None
