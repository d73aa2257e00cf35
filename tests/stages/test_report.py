"""`itrpipe report` on the tiny chain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from itrpipe.config import declared_stages
from itrpipe.datasets.definition import load_definition
from itrpipe.stages import report
from itrpipe.storage.artifact import DigestCache, read_manifest
from tests.chains import Invoke
from tests.definitions import save_definition

PUBLISHED = {"run": "aoq.vsepp", "where": "a table", "rsum": 400.0}


def settings(**more: Any) -> report.ReportSettings:
    given = {"title": "", "examples": 2, "seed": 0, "bootstrap_samples": 100, "interval_level": 0.95}
    return report.ReportSettings.model_validate({**given, **more})


def page_of(invoke: Invoke, root: Path) -> Path:
    outcome = invoke("report", "--dataset", "tiny", "--data", root, "--set", "bootstrap_samples=100")
    assert outcome.code == 0, outcome.err
    folder = Path(outcome.out.split("report: ")[1].split()[0]).parent
    assert read_manifest(folder).stage == "report"
    return folder


@pytest.mark.slow
def test_it_writes_a_page_its_tables_as_text_and_its_numbers(chain: Path, invoke: Invoke) -> None:
    folder = page_of(invoke, chain)
    files = (report.PAGE, report.SUMMARY, report.MARKDOWN)
    assert {path.name for path in folder.iterdir()} == {*files, report.RESULTS, "manifest.json"}
    numbers = json.loads((folder / report.RESULTS).read_text())
    assert [run["label"] for run in numbers["runs"]] == ["triplet.vsepp", "aoq.vsepp"]
    rsum = numbers["runs"][1]["metrics"]["full"]["rsum"]["value"]
    assert all(f"{rsum:.1f}" in (folder / name).read_text() for name in files)
    assert page_of(invoke, chain) == folder
    # Photographs that are gone are told, and the page is made all the same.
    known = load_definition(chain, "tiny")
    assert known.prepare is not None
    moved = known.prepare.model_copy(update={"source": str(chain / "nowhere")})
    save_definition(chain, "tiny", known.model_copy(update={"prepare": moved}))
    shutil.rmtree(folder)
    folder = page_of(invoke, chain)
    assert any("no images" in each for each in read_manifest(folder).messages)
    assert (folder / report.PAGE).is_file()


def test_other_declarations_make_another_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are compared with those that are declared."""
    copies = {name: Path(shutil.copy(path, tmp_path)) for name, path in declared_stages().items()}
    monkeypatch.setattr(report, "declared_stages", lambda: copies)

    def digest(name: str) -> str:
        return report.ReportStage().sources(settings(), None, DigestCache(tmp_path / name))["declarations"]

    before = digest("first")
    for name in ("parse", "train"):
        with copies[name].open("a") as file:
            file.write("# more\n")
        assert (digest(name) != before) == (name in report.COMPARED), name
