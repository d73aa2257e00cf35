"""The report of small runs: its numbers are those of the artifacts, its page is safe, self-contained and honest."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.evaluation.metrics import random_recalls
from itrpipe.report.page import BEGIN, END, insert_tables, percent
from itrpipe.report.pictures import most_moved
from itrpipe.storage import artifact as artifacts
from tests.report.toy import HOSTILE, Element, Report, Toy, add, change, rewrite, with_sentences

BETWEEN = f"{BEGIN.format(asked='scenes')}\nold\n{END}"


def metrics_of(toy: Toy, run: str) -> Any:
    return json.loads((toy.made[run] / "metrics.json").read_text())


def rows_of(figure: Element) -> dict[str, list[str]]:
    (body,) = figure.all("tbody")
    return {row.all("th")[0].text(): [cell.text() for cell in row.all("td")] for row in body.all("tr")}


def test_the_first_table_has_the_metrics_and_the_difference_to_the_baseline(toy: Toy, done: Report) -> None:
    shown = rows_of(done.page.all("figure", "numbers")[0])
    values = {run: metrics_of(toy, run)["full"] for run in ("aoq.vsepp", "triplet.vsepp")}
    for name, run in (("VSE++, first training", "triplet.vsepp"), ("VSE++, AOQ", "aoq.vsepp")):
        expected = [f"{values[run][metric]['value']:.1f}" for metric in ("rsum", "i2t_r1", "t2i_r1")]
        assert shown[name][:3] == expected
    gain = values["aoq.vsepp"]["rsum"]["value"] - values["triplet.vsepp"]["rsum"]["value"]
    assert shown["VSE++, AOQ"][3:] == [f"+{gain:.1f}", "one seed is too few"]
    assert shown["VSE++, first training"][3:] == ["–", "baseline"]
    assert "A verdict takes three seeds" in done.page.all("figcaption")[1].text()
    assert shown["chance"][0] == f"{random_recalls(30, 60)['rsum']:.1f}"
    assert len(shown["chance"]) <= 8
    assert len(done.page.all("figure", "evidence")) == 1


def test_of_many_models_the_best_come_first(copy: Toy) -> None:
    found = copy.report(("triplet.vsepp", "aoq.vsepp", add(copy, "ssamt", "vsepp", conf="ssamt")))
    (table,) = found.page.all("header")[0].all("figure", "numbers")
    assert list(rows_of(table)) == ["VSE++, AOQ", "VSE++, SSAMT", "VSE++, first training", "chance"]
    assert "one seed is too few: VSE++, AOQ, VSE++, SSAMT." in found.results["answers"][0]


def test_a_difference_is_that_of_the_rows_or_names_its_seeds(seeded: Toy) -> None:
    """The baseline has two seeds more than the model."""
    first = [f"triplet.vsepp{end}" for end in ("", ".s1", ".s2")]
    compared = seeded.report((*first, "aoq.vsepp.s1"), compare=[seeded.made[name].name for name in first])
    assert [run["seed"] for run in compared.results["runs"]] == [1, 1]
    rows = rows_of(compared.page.all("figure", "numbers")[0])
    before, after = rows["VSE++, first training"], rows["VSE++, AOQ"]
    difference = float(after[0]) - float(before[0])
    assert float(after[3]) == pytest.approx(difference, abs=0.11)
    assert "seeds compared: 1" in compared.page.all("p", "meta")[0].text()

    whole = seeded.report((*first, "aoq.vsepp.s1"))
    rows = rows_of(whole.page.all("figure", "numbers")[0])
    assert rows["VSE++, first training"][0] != before[0]
    assert rows["VSE++, AOQ"][3] == f"{after[3]} over 1 seed"


def test_no_number_is_bold_where_nothing_is_shown(done: Report) -> None:
    assert done.page.all("td")
    assert not done.page.all("td", "marked")


def test_a_percentage_stays_on_one_line(done: Report) -> None:
    page = (done.folder / "index.html").read_text()
    assert "95\N{NO-BREAK SPACE}%" in page
    assert not re.search(r"\d %", page)


def test_the_page_asks_for_nothing_from_outside_and_its_anchors_lead_somewhere(done: Report) -> None:
    content = (done.folder / "index.html").read_text()
    assert not any(done.page.all(tag) for tag in ("script", "link", "iframe", "object", "base"))
    assert not any(each in content for each in ("@import", "http:", "https:"))
    links = [(key, value) for each in done.page.node.iter() for key, value in each.attrib.items()]
    assert not [key for key, _ in links if key.startswith("on")]
    sources = [value for key, value in links if key in ("src", "href", "xlink:href", "srcset")]
    assert all(value.startswith(("data:image/jpeg;base64,", "#")) for value in sources)
    identifiers = [value for key, value in links if key == "id"]
    assert len(set(identifiers)) == len(identifiers)
    wanted = [each[1:] for each in sources if each[0] == "#" and not each.endswith("-")]  # `-` closes a photograph
    wanted += [piece.partition(")")[0] for piece in content.split("url(#")[1:]]
    assert content.count("url(") == content.count("url(#")
    assert len(wanted) > 7
    assert set(wanted) <= set(identifiers)
    assert HOSTILE in done.page.text(without="svg")


def test_pictures_are_small_and_come_before_what_is_folded(done: Report) -> None:
    for each in done.page.all("img"):
        picture = Image.open(io.BytesIO(base64.b64decode(each.attributes["src"].partition(",")[2], validate=True)))
        assert picture.size == (int(each.attributes["width"]), int(each.attributes["height"]))
        assert max(picture.size) <= 288
    sections = done.page.all("section")
    folded = [bool(each.all("details")) for each in sections]
    assert folded == sorted(folded)
    assert sections[0].all("img")
    assert all(each.all("figure") or each.all("h3") for each in sections)


def test_queries_moved_furthest_are_shown_with_their_ranks(toy: Toy, done: Report) -> None:
    before, after = (
        {row["query_id"]: row["rank"] + 1 for row in pq.read_table(toy.made[run] / "rankings.parquet").to_pylist()}
        for run in ("triplet.vsepp", "aoq.vsepp")
    )
    beside = done.page.all("section")[0].all("article", "beside")
    assert len(beside) == 4
    for article in beside:
        name = article.all("img")[0].attributes["alt"]
        line = article.all("p", "place-line")[0].text("")
        assert line == f"Own caption at rank {after[name]}, in the baseline {before[name]}"
        row = int(name.rpartition("-")[2])
        for each in article.all("li"):
            own = each.all("span", "text")[0].text() in (f"{HOSTILE} {row}", f"a plain caption of {name}")
            assert own == ("own" in each.attributes["class"].split()) == ("✓" in each.text(""))


def test_examples_move_furthest_first_up_and_then_down() -> None:
    before, after = np.array([9, 0, 3, 1, 5]), np.array([0, 9, 1, 1, 50])
    assert most_moved(before, after, 4) == [0, 2, 1, 4]
    assert most_moved(before, before, 4) == []


def test_a_removed_artifact_is_named_and_nothing_is_made_up(copy: Toy, done: Report) -> None:
    shutil.rmtree(copy.made["mining"])
    found = copy.report()
    name = f"mine_negatives/{copy.made['mining'].name}"
    assert name in found.page.all("p", "missing")[0].text("")
    assert found.results["removed"] == [name]
    assert not [each for each in found.results["tables"] if each["title"] == "What was mined"]
    assert found.results["claims"] == done.results["claims"]


def test_a_missing_photograph_becomes_a_placeholder_and_a_warning(copy: Toy, done: Report) -> None:
    name = done.page.all("img")[0].attributes["alt"]
    rewrite(copy.made["prepare"] / "images" / f"{name}.png", b"", f"images/{name}.png")
    found = copy.report()
    assert name not in {each.attributes["alt"] for each in found.page.all("img")}
    assert found.page.all("span", "placeholder")
    assert len(found.manifest.messages) == 1


def test_published_scores_stand_below_the_measured_ones(copy: Toy) -> None:
    aoq = {"run": "aoq.vsepp", "rsum": 486.3, "where": "AOQ Table 2", "note": "of two models"}
    published = [aoq, {"run": "ssamt.vsrn", "rsum": 500.0, "where": "x"}, {**aoq, "protocol": "coco-1k"}]
    found = copy.report(published=published, title="A <b>title</b>")
    row, _ = found.page.all("figure", "numbers")[0].all("tr", "quoted")
    assert [cell.text() for cell in row.all("td")][:2] == ["486.3", "–"]
    assert row.all("span", "label")[0].text("") == "AOQ Table 2; of two models"
    assert "ssamt.vsrn" in found.manifest.messages[0]
    expected = json.loads((found.folder / "expected.json").read_text())
    rsum = metrics_of(copy, "aoq.vsepp")["full"]["rsum"]["value"]
    assert [each["verdict"] for each in expected["runs"]] == ["FAIL", "missing", "missing"]
    assert expected["runs"][0]["headline"]["measured"] == rsum
    assert found.page.all("h1")[0].text() == "A <b>title</b>"


def test_one_run_alone_is_compared_with_nothing_and_has_no_drawing(copy: Toy) -> None:
    found = copy.report(("aoq.vsepp",))
    assert not found.page.all("figure", "evidence")
    assert found.results["claims"] == []
    assert "No baseline was evaluated" in found.results["answers"][0]


def test_pictures_in_two_splits_are_said_under_the_headline(copy: Toy) -> None:
    change(copy.made["prepare"], metrics={"leaks": 2})
    assert "2 pictures are in two splits" in copy.report().page.text("")


def test_models_at_chance_have_collapsed(copy: Toy) -> None:
    for run, word, told in (
        ("aoq.vsepp", "learned little", ["Learned little", "AOQ ("]),
        ("triplet.vsepp", "both at chance", ["Both at chance", "AOQ (", "first training ("]),
    ):
        metrics = metrics_of(copy, run)
        metrics["full"]["rsum"]["low"] = 0.0
        rewrite(copy.made[run] / "metrics.json", json.dumps(metrics).encode())
        found = copy.report(examples=len(told))
        assert rows_of(found.page.all("figure", "numbers")[0])["VSE++, AOQ"][-1] == word
        assert all(each in found.results["answers"][0] for each in told)


def test_what_is_to_be_known_before_the_answer_is_used_stands_below_it(copy: Toy) -> None:
    rows = [{"val_rsum": score} for score in (100.0, 200.0, 300.0)]
    schedule = {"schedule": "step", "decay_every": 9, "decay_at": [], "epochs": 3, "patience": 0}
    rising = add(copy, "triplet", "vsrn", trained={**schedule, "validation_images": 9}, history=rows)
    found = copy.report(("triplet.vsepp", "aoq.vsepp", rising))
    first = found.page.all("header")[0].text()
    longer, mined, tested = found.results["notes"][0]
    parts = (found.results["answers"][0], longer, mined, tested, "against baseline")
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert "VSRN, first training: validation gained 100.0" in longer
    assert "AOQ" not in longer
    statistics = json.loads((copy.made["mining"] / "statistics.json").read_text())
    assert f"{statistics['hardest_text_beats_own_caption_percent']:.1f} %" in mined
    recalls = metrics_of(copy, "triplet.vsepp")["full"]  # of the model that mined
    assert f"a wrong caption first for {100 - recalls['i2t_r1']['value']:.1f} % of the images" in tested


def test_of_several_seeds_the_notes_are_means(seeded: Toy) -> None:
    first = ("triplet.vsepp", "triplet.vsepp.s1")
    mined, tested = seeded.report((*first, "aoq.vsepp", "aoq.vsepp.s1")).results["notes"][0]
    beaten = []
    for name in ("mining", "mining.s1"):
        statistics = json.loads((seeded.made[name] / "statistics.json").read_text())
        beaten.append(statistics["hardest_text_beats_own_caption_percent"])
    assert f"in {np.mean(beaten):.1f} % of the pairs" in mined
    assert mined.endswith("by VSE++ and its other seeds, mean of 2.")
    recalls = [metrics_of(seeded, run)["full"]["i2t_r1"]["value"] for run in first]
    assert f"a wrong caption first for {100 - np.mean(recalls):.1f} % of the images" in tested


def test_costs_and_epochs_count_all_that_a_model_was_made_from(copy: Toy) -> None:
    start = artifacts.read_manifest(copy.made["triplet"])
    record = {"stage": "train", "name": copy.made["triplet"].name, "fingerprint": start.fingerprint}
    record |= {"digest": "", "files": {}, "made": {}}
    change(copy.made["aoq"], "aoq", inputs={"start": record})
    report = copy.report()
    *_, cost = report.page.all("figure", "numbers")
    times = {name: cells[1] for name, cells in rows_of(cost).items()}
    assert times == {"VSE++, AOQ": "3.75 s", "VSE++, first training": "1.25 s"}
    assert {run["label"]: run["epochs"] for run in report.results["runs"]} == {"triplet.vsepp": [3], "aoq.vsepp": [6]}


def test_epochs_that_training_cost_are_means_over_seeds(copy: Toy) -> None:
    runs = [add(copy, "ssamt", "vsepp", seed=seed, history=({},) * epochs) for seed, epochs in enumerate((2, 6))]
    *_, cost = copy.report(tuple(runs)).page.all("figure", "numbers")
    assert rows_of(cost)["VSE++, SSAMT"][0] == "4"


def test_settings_that_are_not_declared_are_told(copy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.report.names.DATASET_SELECTORS", ("toy",))
    change(copy.made["triplet"], "triplet", settings={"epochs": 2})
    change(copy.made["aoq"], "aoq", settings={"epochs": 1})
    change(copy.made["mining"], "exact", settings={"window": {"absolute_margin": 0.05}})
    report = copy.report()
    runs = {run["label"]: run["not_as_declared"] for run in report.results["runs"]}
    assert runs["triplet.vsepp"] == {"epochs": {"value": 2, "declared": 30}}
    assert runs["aoq.vsepp"]["epochs"] == {"value": 1, "declared": 20}
    assert runs["aoq.vsepp"]["mining window.absolute_margin"] == {"value": 0.05, "declared": None}
    assert runs["aoq.vsepp"]["first training epochs"] == {"value": 2, "declared": 30}
    assert "epochs 1 instead of 20" in report.page.all("figure", "numbers")[0].text("")


def test_an_ensemble_has_all_its_models_behind_it(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    report = copy.report((add(copy, "aoq", "vsepp", inputs={"train_2": copy.made["aoq.s1"]}),))
    (run,) = report.results["runs"]
    assert run["name"] == "VSE++ + VSE++ seed 1, AOQ"
    assert [each.partition("-")[0] for each in run["models"]] == ["aoq.vsepp", "aoq.vsepp.s1"]
    assert f"train/{copy.made['triplet.s1'].name}" in report.page.text()


def test_only_what_stands_between_the_two_lines_changes() -> None:
    found = insert_tables(f"before\n\n{BETWEEN}\n\nafter\n", "scenes", "| new |\n")
    assert found == f"before\n\n{BEGIN.format(asked='scenes')}\n\n| new |\n\n{END}\n\nafter\n"
    assert insert_tables(found, "scenes", "| new |\n") == found
    for document in ("nothing", BETWEEN.replace(END, ""), BETWEEN.replace("scenes", "coco")):
        assert insert_tables(document, "scenes", "| new |\n") is None


def test_the_command_renews_a_file_and_refuses_others(finished_chain: Path, invoke: Any, tmp_path: Path) -> None:
    root = shutil.copytree(finished_chain / "data", tmp_path / "data")
    readme = tmp_path / "README.md"
    options = ("--dataset", "tiny", "--data", root, "--into", readme)
    assert invoke("report", *options).code == 3
    for content in (b"nothing", b"\x7fELF\xff\xfe"):
        readme.write_bytes(content)
        assert invoke("report", *options).code == 4
    readme.write_text(BETWEEN.replace("scenes", "tiny vsepp") + "\n" + BETWEEN.replace("scenes", "tiny"))
    assert invoke("report", *options, "--backbone", "vse++").code == 0
    first, second = readme.read_text().split(BEGIN.format(asked="tiny"))
    assert "RSum" in first
    assert second == f"\nold\n{END}"
    assert invoke("report", *options[:4], "--backbone", "vsrm").code == 3


def test_percentages_reach_their_ends_only_exactly() -> None:
    shown = [percent(each) for each in (0.0, 1.0, 1e-6, 0.9999, 0.5, 0.01)]
    assert shown == ["0 %", "100 %", "< 1 %", "> 99 %", "50 %", "1 %"]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 768, 1280, 1920)
"""CSS pixels of a phone, a tablet, a window and a large one."""
SECONDS = 120
FRAMES = """<!doctype html><meta charset="utf-8"><pre id="findings"></pre>
<script>
const widths = WIDTHS, found = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 900px`;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement, size = each => each.getBoundingClientRect();
    page.querySelectorAll("details").forEach(each => each.open = true);
    const wide = [...page.body.querySelectorAll("*")].filter(each => size(each).right > root.clientWidth + 0.5);
    const photo = page.querySelector(".opens a"), shown = () => Math.round(size(photo.firstChild).width);
    const go = hash => { frame.contentWindow.location.hash = hash; return shown(); };
    const bad = [
      ...[...page.images].filter(each => !each.naturalWidth),
      ...wide.filter(each => !each.closest("svg, pre, .spoken")),
      ...[...page.querySelectorAll("figure svg")].filter(each => !size(each).width),
      ...[...page.links].filter(each => !page.getElementById(each.hash.slice(1))),
    ];
    found.push({
      opened: [shown(), go(photo.hash), go(photo.nextSibling.hash)], images: page.images.length,
      overflow: root.scrollWidth - root.clientWidth,
      bad: bad.map(each => `${each.tagName} ${each.className} ${each.textContent}`),
    });
    if (found.length === widths.length) document.getElementById("findings").textContent = JSON.stringify(found);
  };
  frame.src = "index.html";
  document.body.append(frame);
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_a_browser_shows_the_whole_page(copy: Toy, tmp_path: Path) -> None:
    """With photographs, drawings, mined lists, sentences and hostile captions."""
    assert BROWSER is not None
    report = copy.report(("triplet.vsepp", "aoq.vsepp", with_sentences(copy)), drawn=True)
    shutil.copy(report.folder / "index.html", tmp_path)
    (tmp_path / "frames.html").write_text(FRAMES.replace("WIDTHS", json.dumps(WIDTHS)))
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    given = ["--allow-file-access-from-files", "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    given += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frames.html").as_uri()]
    done = subprocess.run([BROWSER, *quiet, *given], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    written = re.search(r'<pre id="findings">(.+?)</pre>', done.stdout, re.DOTALL)
    assert written is not None, "the page did not load"
    found = json.loads(unescape(written[1]))
    assert len(found) == len(WIDTHS)
    for page in found:
        assert (page["bad"], page["overflow"]) == ([], 0)
        assert page["images"] == len(report.page.all("img")) > 10
        small, large, again = page["opened"]
        assert 110 <= small == again < large / 2


# -- Colours and plots
