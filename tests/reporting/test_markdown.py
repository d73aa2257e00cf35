"""The results as Markdown, and where a document gets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from itrpipe.reporting.markdown import BEGIN, END, inserted

from itrpipe.evaluation.metrics import random_recalls

BETWEEN = f"{BEGIN.format(asked='scenes')}\nold\n{END}"


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_single_runs_stand_with_their_intervals(toy: Any) -> None:
    report = toy.report()
    head, rule, *found, chance = rows((report.folder / "summary.md").read_text())
    assert chance[0] == "chance (a random order of 30 images and 60 captions)"
    assert chance[-1] == f"{random_recalls(30, 60)['rsum']:.1f}"
    assert len(found) == 2
    assert head[:4] == ["", "i→t R@1", "i→t R@5", "i→t R@10"]
    assert head[-1] == "RSum"
    assert set(rule) == {"---", "---:"}
    runs = json.loads((report.folder / "results.json").read_text())["runs"]
    for row in found:
        run = next(each for each in runs if f"({each['label']})" in row[0])
        assert row[-1].split()[0] == f"{run['metrics']['full']['rsum']['value']:.1f}"


def test_several_seeds_stand_with_their_deviation(seeded: Any) -> None:
    methods = ("triplet", "triplet-long", "aoq")
    report = seeded.report(tuple(f"{method}.vsepp{seed}" for method in methods for seed in ("", ".s1", ".s2")))
    text = (report.folder / "summary.md").read_text()
    _, _, *found = rows(text)
    assert len(found) == 3
    assert all("seeds 0, 1, 2" in row[0] and "±" in row[1] for row in found)
    assert "Across seeds" in text


def test_only_what_stands_between_the_two_lines_changes() -> None:
    document = f"before\n\n{BETWEEN}\n\nafter\n"
    found = inserted(document, "scenes", "| new |\n")
    assert found == f"before\n\n{BEGIN.format(asked='scenes')}\n\n| new |\n\n{END}\n\nafter\n"
    assert inserted(found, "scenes", "| new |\n") == found


@pytest.mark.parametrize("document", ["nothing", BETWEEN.replace(END, ""), BETWEEN.replace("scenes", "coco")])
def test_a_document_that_does_not_ask_is_left_alone(document: str) -> None:
    assert inserted(document, "scenes", "| new |\n") is None


def test_the_command_renews_a_file_and_refuses_others(finished_chain: Path, invoke: Any, tmp_path: Path) -> None:
    root = shutil.copytree(finished_chain / "data", tmp_path / "data")
    readme = tmp_path / "README.md"
    options = ("--dataset", "tiny", "--data", root, "--into", readme)
    assert invoke("report", *options).code == 3
    readme.write_text("nothing")
    outcome = invoke("report", *options)
    assert outcome.code == 4
    assert f"--into {readme} does not say where the table belongs" in outcome.err
    readme.write_bytes(b"\x7fELF\xff\xfe")
    outcome = invoke("report", *options)
    assert outcome.code == 4
    assert f"--into {readme} is not UTF-8 at byte 4; name a Markdown file" in outcome.err
    readme.write_text(BETWEEN.replace("scenes", "tiny"))
    assert invoke("report", *options).code == 0
    assert "RSum" in readme.read_text()
    assert "old" not in readme.read_text()


def test_a_page_of_one_backbone_has_lines_of_its_own(finished_chain: Path, invoke: Any, tmp_path: Path) -> None:
    root = shutil.copytree(finished_chain / "data", tmp_path / "data")
    readme = tmp_path / "README.md"
    readme.write_text(BETWEEN.replace("scenes", "tiny vsepp") + "\n" + BETWEEN.replace("scenes", "tiny"))
    options = ("--dataset", "tiny", "--data", root, "--into", readme)
    assert invoke("report", *options, "--backbone", "vse++").code == 0
    first, second = readme.read_text().split(BEGIN.format(asked="tiny"))
    assert "RSum" in first
    assert second == f"\nold\n{END}"
    outcome = invoke("report", *options, "--backbone", "vsrm")
    assert outcome.code == 4
    assert "--into" in outcome.err
    outcome = invoke("report", "--dataset", "tiny", "--data", root, "--backbone", "vsrm")
    assert outcome.code == 3
    assert "dataset 'tiny' has no evaluation of vsrm, only of vsepp" in outcome.err


def test_models_of_other_backbones_stay_off_the_page(toy: Any, phrases: Any, invoke: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    phrases.add(found, "ssamt")
    assert invoke("report", "--dataset", "toy", "--data", found.root, "--backbone", "ssamt").code == 0
    (results,) = (found.root / "toy" / "report").glob("*/results.json")
    runs = json.loads(results.read_text())["runs"]
    assert [run["label"] for run in runs] == ["ssamt.ssamt"]
