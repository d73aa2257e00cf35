"""`itrpipe report` and `itrpipe advise` on the tiny chain."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.analysis import second_round
from itrpipe.analysis.questions import second_round as diagnosis
from itrpipe.config import declared_stages
from itrpipe.datasets.definition import load_definition
from itrpipe.evaluation.metrics import ranks
from itrpipe.evaluation.metrics import rsum as rsum_of
from itrpipe.features.embeddings import read_embeddings
from itrpipe.mining.lists import DIRECTIONS
from itrpipe.stages import report
from itrpipe.storage.artifact import SECOND_ROUND, read_manifest
from itrpipe.storage.integrity import DigestCache
from tests.chains import Invoke, done, sets
from tests.conftest import TINY
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
    assert any("no photographs" in each for each in read_manifest(folder).messages)
    assert (folder / report.PAGE).is_file()


def test_other_declarations_make_another_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are compared with those that are declared."""
    copies = {name: Path(shutil.copy(path, tmp_path)) for name, path in declared_stages().items()}
    monkeypatch.setattr(report, "declared_stages", lambda: copies)

    def digest(name: str) -> str:
        return report.Report().sources(settings(), None, DigestCache(tmp_path / name))["declarations"]

    before = digest("first")
    for name in ("parse", "train"):
        with copies[name].open("a") as file:
            file.write("# more\n")
        assert (digest(name) != before) == (name in report.COMPARED), name


# Advice on a second training


def advise(invoke: Invoke, root: Path, *options: object) -> str:
    small = ("--dataset", "tiny", "--data", root, "--backbone", "vsepp", *sets(*TINY[:-1]))
    return done(invoke("advise", *small, "--make", *options))


def test_it_says_what_the_evaluation_of_round_one_found(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = (chain / "tiny/evaluate").glob("triplet.vsepp-*")
    (second,) = (chain / "tiny/evaluate").glob("aoq.vsepp-*")
    assert SECOND_ROUND not in read_manifest(second).outputs
    written = json.loads((folder / SECOND_ROUND).read_text())
    found = json.loads(advise(invoke, chain, "--no-deps", "--json"))
    assert {name: found[name] for name in written} == written
    assert (written["model"]["images"], written["model"]["captions"], written["model"]["truth"]) == (12, 60, False)
    sides = [written["directions"][name] for name in DIRECTIONS]
    assert [side["candidates"] for side in sides] == [60, 12]
    assert [[each["size"] for each in side["batches"]] for side in sides] == [[16, 32], [16, 32]]
    train = read_embeddings(next((chain / "tiny/train").glob("triplet.vsepp-*")) / "embeddings.h5", "train")
    chosen = sorted(np.random.default_rng(0).permutation(12)[:4].tolist())  # as many as are validated on
    captions = [row for row, image in enumerate(train.caption_image) if image in chosen]
    owners = np.array([chosen.index(train.caption_image[row]) for row in captions])
    rsum = rsum_of(ranks(train.images[chosen] @ train.texts[captions].T, owners))
    assert (written["fit"]["images"], written["fit"]["train"]) == (4, pytest.approx(rsum, abs=1e-3))
    assert written["fit"]["gap"] == pytest.approx(rsum - written["validation"]["best"], abs=1e-3)
    assert found["advice"]["action"] == "collapsed"  # after one epoch
    shown = advise(invoke, chain, "--no-deps", "--verbose")
    assert "next: itrpipe train" in shown
    assert not re.search("FNE|hardest|beats|Expect|mined", shown), "there is nothing to mine"

    monkeypatch.setattr(second_round, "ABOVE_CHANCE", 0.0)
    told = json.loads(advise(invoke, chain, "--no-deps", "--json"))["advice"]
    assert told["action"] == "train"
    shown = advise(invoke, chain, "--no-deps")
    _title, verdict, command, *rest = shown.splitlines()
    assert verdict == told["sentence"]
    assert command.startswith(f"next: {told['command']}")
    for name, key in (("hardest of the dataset", "beaten"), ("correct matches (FNE)", "estimated_false")):
        (line,) = (line for line in rest if line.startswith(name))
        figures = [side["hardest"][key] for side in sides]
        shown_figures = line.removeprefix(name).replace(" %", "").split()
        assert shown_figures == ["–" if each is None else f"{each:.1f}" for each in figures]
    every = advise(invoke, chain, "--no-deps", "--verbose")
    assert set(shown.splitlines()) < set(every.splitlines())


def test_the_temperature_and_the_pairs_of_a_step_are_those_of_the_history(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = next((chain / "tiny/train").glob("triplet.vsepp-*"))
    rows = [
        {"epoch": each, "val_rsum": 9.0, "steps": 4, "best": each < 3, "mean_temperature": each / 50}
        for each in range(4)
    ]
    monkeypatch.setattr(diagnosis.pq, "read_table", lambda path: pa.Table.from_pylist(rows))
    manifest = read_manifest(folder)
    filled = manifest.model_copy(update={"settings": manifest.settings | {"batch_by": "tokens", "accumulate": 2}})
    monkeypatch.setattr(diagnosis, "read_manifest", lambda path: filled)
    model = diagnosis.diagnose(folder)["model"]
    assert (model["temperature"], model["batch_size"]) == (0.04, round(60 * 3 / 16))
