"""What a report says of runs whose settings are not those that the declarations give them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from itrpipe.reporting.departures import Departure, listed, shown
from itrpipe.reporting.epochs import different_epochs

MANY = {f"key{number}": Departure(number, None) for number in range(5)}


def change(folder: Path, conf: str = "", **settings: Any) -> None:
    """Gives an artifact another configuration and other settings."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"] |= settings
    path.write_text(json.dumps(manifest | {"conf": conf or manifest["conf"], "checksum": ""}))


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the toys' dataset one that the declarations speak of."""
    monkeypatch.setattr("itrpipe.reporting.departures.DATASET_SELECTORS", ("toy",))


def test_a_dataset_of_ones_own_has_no_settings_that_are_not_as_declared(
    copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.reporting.departures.DATASET_SELECTORS", ("scenes",))
    report = copy.report()
    assert all(run["not_as_declared"] == {} for run in report.results["runs"])
    assert not report.page.all("dl", "differing")
    assert "†" not in (report.folder / "summary.txt").read_text()


@pytest.fixture
def copy(toy: Any, tmp_path: Path) -> Any:
    """The first training as it is declared, and AOQ of one epoch."""
    found = toy.copy(tmp_path / "data")
    change(found.made["triplet"], "triplet", epochs=30)
    change(found.made["aoq"], "aoq", epochs=1)
    return found


def test_a_run_that_departs_is_marked_wherever_it_stands(copy: Any) -> None:
    report = copy.report()
    runs = {run["label"]: run for run in report.results["runs"]}
    assert runs["aoq.vsepp"]["not_as_declared"] == {"epochs": {"value": 1, "declared": 20}}
    assert runs["triplet.vsepp"]["not_as_declared"] == {}
    (listing,) = report.page.all("dl", "differing")
    assert (listing.all("dt")[0].text(), listing.all("dd")[0].text()) == (
        "VSE++, AOQ (epochs 1)",
        "epochs 1 instead of 20",
    )
    rows = report.page.all("figure", "best-marked")[0].all("tbody")[0].all("tr")
    notes = [row.all("span", "label")[0].text("") for row in rows]
    assert notes[:-1] == ["triplet.vsepp", "aoq.vsepp; epochs 1 instead of 20"], "the last row is chance"
    text = (report.folder / "summary.txt").read_text()
    assert len(re.findall("^VSE\\+\\+, AOQ † ", text, re.MULTILINE)) == 4
    assert "\n  VSE++, AOQ: epochs 1 instead of 20\n" in text
    assert "first training †" not in text
    assert "aoq.vsepp; epochs 1 instead of 20" in (report.folder / "summary.md").read_text()


def test_backbones_that_a_method_was_not_trained_on_vanish_from_narrow_pages(
    toy: Any, add_words: Any, tmp_path: Path
) -> None:
    copy = toy.copy(tmp_path / "data")
    name = add_words(copy, "tags-dc", {"discrimination": {}}, [])
    (figure,) = copy.report((name, "triplet.vsepp")).page.all("figure", "overview-marked")
    cells = [row.all("td") for row in figure.all("tbody")[0].all("tr")]
    assert sorted(len([cell for cell in row if "unmeasured" in cell.attributes.get("class", "")]) for row in cells) == [
        1,
        1,
    ]


def test_runs_as_declared_have_no_mark(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    change(copy.made["triplet"], "triplet", epochs=30)
    report = copy.report()
    assert "†" not in (report.folder / "summary.txt").read_text()
    assert not report.page.all("dl", "differing")


def test_what_a_model_was_trained_with_counts_too(copy: Any) -> None:
    change(copy.made["mining"], "exact", window={"absolute_margin": 0.05})
    change(copy.made["triplet"], epochs=2)
    runs = {run["label"]: run["not_as_declared"] for run in copy.report().results["runs"]}
    assert runs["triplet.vsepp"] == {"epochs": {"value": 2, "declared": 30}}
    assert set(runs["aoq.vsepp"]) == {
        "epochs",
        "mining num_texts",
        "mining num_images",
        "mining precision",
        "mining window.absolute_margin",
        "first training epochs",
    }
    assert runs["aoq.vsepp"]["mining window.absolute_margin"] == {"value": 0.05, "declared": None}


def test_a_departure_that_the_model_shares_is_said_once(copy: Any) -> None:
    change(copy.made["triplet"], epochs=1)
    runs = {run["label"]: run["not_as_declared"] for run in copy.report().results["runs"]}
    assert list(runs["aoq.vsepp"]) == ["epochs"]


def test_a_configuration_without_declared_settings_is_named(copy: Any) -> None:
    change(copy.made["aoq"], backbone="vsepq")
    report = copy.report()
    (message,) = [each for each in report.manifest.messages if "declared" in each]
    assert message.startswith("aoq.vsepp is not compared with what is declared: train aoq: backbone = 'vsepq'")
    assert {run["label"]: run["not_as_declared"] for run in report.results["runs"]}["aoq.vsepp"] == {}


def test_columns_stay_below_each_other_whatever_the_names(copy: Any) -> None:
    for name, conf in (("triplet", "triplet"), ("aoq", "aoq")):
        change(copy.made[name], conf, backbone="scan-i2t-avg", seed=2)
        change(copy.made[f"{name}.vsepp"], backbone="scan-i2t-avg", seed=2)
    text = (copy.report().folder / "summary.txt").read_text()
    assert "SCAN i2t avg, AOQ, seed 2 †\n" in text
    blocks = [block for block in text.split("\n\n") if "---" in block or block.startswith("with all correct")]
    assert len(blocks) == 5
    for block in blocks:
        ends = [[found.start() for found in re.finditer(r"\.\d", line)] for line in block.splitlines()]
        rows = [each[:7] for each in ends if len(each) >= 4]
        assert rows
        assert all(each == rows[0] for each in rows)
    assert max(map(len, text.splitlines())) <= 80


def test_long_lists_are_cut_and_values_are_plain() -> None:
    assert listed(MANY, 2) == "key0 0 instead of none, key1 1 instead of none, 3 more"
    assert listed(MANY, 5).endswith("key4 4 instead of none")
    assert [shown(value) for value in ([10, 20], [], None, "", "/far/away/bert.pt", "a/b", 0.3)] == [
        "10 20",
        "none",
        "none",
        "empty",
        "bert.pt",
        "a/b",
        "0.3",
    ]


def run(name: str, *epochs: int | None) -> Any:
    return SimpleNamespace(name=name, method=name, members=[SimpleNamespace(epochs=each) for each in epochs])


def test_different_epochs_are_said() -> None:
    first, removed = run("first training", 6), run("gone", None)
    pairs = [(run("AOQ", 1), first), (run("FNE", 6), first), (run("longer", 12), first), (run("ITM", 12), first)]
    assert different_epochs([*pairs, (removed, first), (run("AOQ", 1), removed)]) == (
        "Trained for 1 epoch, first training for 6: AOQ. Trained for 12 epochs, first training for 6: longer; ITM."
    )
    assert different_epochs([(run("one", 6, 8), run("two", 6, 6))]) == "Trained for 6 and 8 epochs, two for 6: one."
    assert different_epochs([(run(f"m{number}", 2), first) for number in range(6)]).endswith("m3; and 2 more.")


def test_epochs_count_those_of_the_model_that_training_started_from(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    path, start = copy.made["aoq"] / "manifest.json", json.loads((copy.made["triplet"] / "manifest.json").read_text())
    manifest = json.loads(path.read_text())
    record = {"stage": "train", "name": copy.made["triplet"].name, "fingerprint": start["fingerprint"]}
    path.write_text(json.dumps(manifest | {"inputs": manifest["inputs"] | {"start": record}, "checksum": ""}))
    report = copy.report()
    assert {run["label"]: run["epochs"] for run in report.results["runs"]} == {"triplet.vsepp": [3], "aoq.vsepp": [6]}
    sentence = "Trained for 6 epochs, first training for 3: VSE++, AOQ."
    assert sentence in (report.folder / "summary.txt").read_text()
    assert sentence in [each.text() for each in report.page.all("p", "finding")]
