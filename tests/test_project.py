"""`itrpipe.Project`: the commands as methods, by the same plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from itrpipe import Project
from itrpipe.config import parse_override
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.project import Result
from itrpipe.storage.disk import read_json
from tests.chains import Invoke, copied, done, sets
from tests.conftest import TINY

OVERRIDES = [parse_override(text) for text in TINY]
SETTINGS = {override.name: override.value for override in OVERRIDES}
OF_TRAINING = {name: value for name, value in SETTINGS.items() if name.startswith("train.")}


@pytest.fixture
def project(finished_chain: Path, tmp_path: Path) -> Project:
    return Project(copied(finished_chain / "data", tmp_path / "data"), "tiny")


@pytest.fixture
def evaluated(project: Project) -> Result:
    return project.evaluate(method="triplet", backbone="vsepp", **SETTINGS)


def test_a_method_plans_what_its_command_plans(project: Project, evaluated: Result, invoke: Invoke) -> None:
    where = ("-d", "tiny", "--data", project.data, "-m", "triplet", "-b", "vsepp")
    printed = done(invoke("evaluate", *where, *sets(*TINY)))
    assert str(evaluated.folder) in printed
    assert "missing" not in printed


def test_metrics_of_an_evaluation_have_the_names_of_itrpipe_evaluate(evaluated: Result) -> None:
    figures = read_json(evaluated.folder / "metrics.json")["full"]
    assert evaluated.metrics["rsum"] == figures["rsum"]["value"]
    assert {"i2t_r1", "t2i_r10"} <= evaluated.metrics.keys()


def test_a_result_is_shown_as_its_command_shows_it(evaluated: Result) -> None:
    summary = (evaluated.folder / "summary.txt").read_text(encoding="utf-8")
    assert str(evaluated) == summary.rstrip()
    assert "RSum" in evaluated._repr_html_()


def test_a_report_is_its_page_in_a_notebook(project: Project, evaluated: Result) -> None:
    shown = project.report()._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "&lt;title&gt;" in shown


def test_a_training_shows_its_curve_and_its_tables(project: Project) -> None:
    trained = project.train("triplet", backbone="vsepp", **OF_TRAINING)
    assert trained.table("history").num_rows == trained.metrics["epochs"]
    assert "<svg" in trained._repr_html_()
    with pytest.raises(MissingInputError, match="histories"):
        trained.table("histories")


def test_keywords_are_options_or_settings(project: Project) -> None:
    planned = project.run("show", "evaluate", backbone="vsepp", ranking_depth=7)
    assert planned is None
    with pytest.raises(UsageError, match="unknown setting 'epoch'"):
        project.train("triplet", backbone="vsepp", epoch=1)
    assert project.run("list", "extractors") is None
    with pytest.raises(UsageError, match="no command 'trian'"):
        project.run("trian")
    with pytest.raises(UsageError, match="devices"):
        project.train("triplet", devices=2)


def test_the_manifest_has_the_command_that_makes_the_same(project: Project) -> None:
    made = project.evaluate(method="triplet", backbone="vsepp", ranking_depth=3, **SETTINGS)
    assert "--set ranking_depth=3" in made.manifest.command
    assert made.manifest.command.startswith("itrpipe evaluate ")


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """Worker processes do not run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import itrpipe\n"
        "print('begun')\n"
        "itrpipe.Project('data').prepare(train=60, val=4, test=4, workers=2)\n"
        "print('ended')\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("begun") == ended.stdout.count("ended") == 1
