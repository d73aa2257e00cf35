"""The tables beside recall: precision over all correct matches, alignment, recall by the length of captions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from itrpipe.storage import artifact as artifacts

RECALLS = {f"{side}_r{k}": 10.0 * number + k for number, side in enumerate(("i2t", "t2i")) for k in (1, 5, 10)}
PRECISION = {
    f"{side}_{name}": 50.0 * number + place
    for number, side in enumerate(("i2t", "t2i"))
    for place, name in enumerate(("map_at_r", "r_precision", "r1"))
}
ECCV = {"package": "eccv_caption 0.1.0", "cxc": RECALLS, "eccv_caption": PRECISION}


def section_of(report: Any, name: str) -> Any:
    (found,) = [each for each in report.page.all("section") if each.attributes["id"] == name]
    return found


def rows_of(table: Any) -> dict[str, list[Any]]:
    return {row.all("th")[0].text(): row.all("td") for row in table.all("tbody")[0].all("tr")}


def file_of(toy: Any, run: str, name: str) -> Any:
    return json.loads((toy.made[run] / name).read_text())


def rebuilt(folder: Path, changed: dict[str, Any | None]) -> None:
    """Changes files of a finished evaluation, or takes them away, and records them as evaluation does."""
    manifest = json.loads((folder / artifacts.MANIFEST).read_text())
    for name, content in changed.items():
        if content is None:
            (folder / name).unlink()
            del manifest["outputs"][name]
        else:
            (folder / name).write_text(json.dumps(content))
            size, digest = (folder / name).stat().st_size, artifacts.file_digest(folder / name)
            manifest["outputs"][name] = {"bytes": size, "sha256": digest}
    (folder / artifacts.MANIFEST).write_text(json.dumps({**manifest, "checksum": ""}))


def test_precision_stands_below_the_results_with_its_intervals(toy: Any, done: Any) -> None:
    *_, table = section_of(done, "results").all("figure", "precision-marked")
    assert table.all("caption")[0].text() == "All correct matches gathered"
    rows = rows_of(table)
    assert len(rows) == 2
    measured = {"AOQ": "aoq.vsepp", "first training": "triplet.vsepp"}
    for name, cells in rows.items():
        (run,) = [run for word, run in measured.items() if word in name]
        oracle = file_of(toy, run, "metrics.json")["oracle"]
        keys = [f"{side}_{key}" for side in ("i2t", "t2i") for key in ("map_at_r", "r_precision")]
        assert [cell.text() for cell in cells] == [f"{oracle[key]['value']:.1f}" for key in keys]
        spans = [f"{oracle[key]['low']:.1f}–{oracle[key]['high']:.1f}" for key in keys]
        assert [cell.all("span")[0].text("") for cell in cells] == spans
        assert [cell.attributes["data-heading"] for cell in cells][:2] == ["i→t mAP@R", "i→t R-P"]
        assert all(0 < oracle[key]["low"] <= oracle[key]["value"] <= oracle[key]["high"] <= 100 for key in keys)
    text = (done.folder / "summary.txt").read_text()
    block = text.partition("all correct matches gathered, in percent")[2].splitlines()
    assert block[1].split() == ["run", *["i→t", "mAP@R", "i→t", "R-P", "t→i", "mAP@R", "t→i", "R-P"]]
    oracle = file_of(toy, "triplet.vsepp", "metrics.json")["oracle"]
    assert block[3].split()[-4:] == [f"{oracle[key]['value']:.1f}" for key in keys]
    assert max(map(len, text.splitlines())) <= 80


def test_distances_of_embeddings_have_a_section(toy: Any, done: Any) -> None:
    (table,) = section_of(done, "alignment").all("figure", "numbers")
    found = file_of(toy, "aoq.vsepp", "alignment.json")
    (cells,) = [cells for name, cells in rows_of(table).items() if "AOQ" in name]
    assert [cell.text() for cell in cells] == [
        f"{found[name]['mean']:.3f}" for name in ("image_text", "text_text", "images", "texts")
    ]
    assert cells[2].all("span")[0].text("") == f"variance {found['images']['variance']:.4f}"
    assert found["image_text"]["mean"] < found["images"]["mean"]
    runs = {each["label"]: each for each in done.results["runs"]}
    assert runs["aoq.vsepp"]["alignment"] == found
    assert runs["aoq.vsepp"]["query_length"] == file_of(toy, "aoq.vsepp", "query_length.json")
    assert runs["aoq.vsepp"]["eccv_caption"] is None


def test_recall_by_length_has_a_section_with_dashes_for_empty_buckets(toy: Any, done: Any) -> None:
    (table,) = section_of(done, "query-length").all("figure", "numbers")
    buckets = file_of(toy, "aoq.vsepp", "query_length.json")
    first, counts = buckets[0], [each["captions"] for each in buckets]
    (cells,) = [cells for name, cells in rows_of(table).items() if "AOQ" in name]
    assert [cell.text() for cell in cells] == [f"{each['t2i_r1']:.1f}" if each["captions"] else "–" for each in buckets]
    assert 0 in counts
    assert sum(counts) == 60
    assert cells[0].all("span")[0].text("") == f"{first['t2i_r5']:.1f}, {first['t2i_r10']:.1f}"
    headings = [each.text() for each in table.all("thead")[0].all("tr")[1].all("th")]
    bounds = ("up to 7", "8 to 9", "10 to 11", "12 to 14", "from 15")
    assert headings == ["run", *(f"{own} ({count})" for own, count in zip(bounds, counts, strict=True))]
    anchors = [each.attributes["href"] for each in done.page.all("a")]
    assert {"#alignment", "#query-length"} <= set(anchors)


def test_evaluations_of_older_versions_have_no_such_tables(toy: Any, tmp_path: Path) -> None:
    copied = toy.copy(tmp_path / "data")
    for run in ("aoq.vsepp", "triplet.vsepp"):
        metrics = file_of(copied, run, "metrics.json")
        metrics["oracle"] = {name: each for name, each in metrics["oracle"].items() if "_map" not in name}
        metrics["oracle"] = {name: each for name, each in metrics["oracle"].items() if "_precision" not in name}
        changed = {"metrics.json": metrics, "alignment.json": None, "query_length.json": None}
        rebuilt(copied.made[run], changed)
    report = copied.report()
    assert not report.page.all("figure", "precision-marked")
    assert not {"alignment", "query-length"} & {each.attributes["id"] for each in report.page.all("section")}
    assert not {"#alignment", "#query-length"} & {each.attributes["href"] for each in report.page.all("a")}
    assert "all correct matches gathered" not in (report.folder / "summary.txt").read_text()
    assert [each["alignment"] for each in report.results["runs"]] == [None, None]


def test_matches_of_eccv_caption_and_cxc_have_tables_of_their_own(toy: Any, tmp_path: Path) -> None:
    copied = toy.copy(tmp_path / "data")
    rebuilt(copied.made["aoq.vsepp"], {"eccv_caption.json": ECCV})
    report = copied.report()
    tables = section_of(report, "results").all("figure", "precision-marked")
    assert [each.all("caption")[0].text() for each in tables] == ["All correct matches gathered", "ECCV Caption", "CxC"]
    for table, expected in zip(tables[1:], ([0, 1, 2, 50, 51, 52], [1, 5, 10, 11, 15, 20]), strict=True):
        (cells,) = rows_of(table).values()
        assert [cell.text() for cell in cells] == [f"{value:.1f}" for value in expected]
    (run,) = [each for each in report.results["runs"] if each["eccv_caption"]]
    assert run["label"] == "aoq.vsepp"
    assert run["eccv_caption"] == ECCV
    assert "eccv caption, in percent" in (report.folder / "summary.txt").read_text()
