"""Negatives, written sentences and curves as the page shows them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings, score_matrix
from itrpipe.mining.lists import PROBABILITY
from itrpipe.report import negatives
from tests.report.toy import HOSTILE, Element, Report, Toy, add, build, change, rewrite, with_sentences

LISTS = ("texts_for_images", "images_for_texts")
GOLDEN = Path(__file__).with_name("golden.json")
"""The numbers of a report with every kind of part, by the place where `results.json` has them."""
LEFT_OUT = ("train-000", "train-007", "train-039")


def section(report: Report, name: str) -> Element:
    (only,) = [each for each in report.page.all("section") if each.attributes["id"] == name]
    return only


def table(report: Report, title: str) -> dict[str, dict[str, Any]]:
    (only,) = [each for each in report.results["tables"] if each["title"] == title]
    return {row["name"]: row["cells"] for row in only["rows"]}


def lists_of(toy: Toy) -> list[dict[str, Any]]:
    return [pq.read_table(toy.made["mining"] / f"{name}.parquet").to_pydict() for name in LISTS]


def test_mined_candidates_are_shown_and_counted_whichever_images_mining_did_without(tmp_path: Path) -> None:
    toy = build(tmp_path / "data", left_out=LEFT_OUT)
    truth = dict(zip(*pq.read_table(toy.made["prepare"] / TRUTH_FILE).to_pydict().values(), strict=True))
    of_images, of_captions = lists_of(toy)
    images, captions = of_images["anchor_id"], of_captions["anchor_id"]
    found = [[captions[row] for row in rows] for rows in of_images["candidate_rows"]]
    hits = {
        "VSE++: captions for images": [
            [own in truth[each] for each in texts] for own, texts in zip(images, found, strict=True)
        ],
        "VSE++: images for captions": [
            [images[row] in truth[own] for row in rows]
            for own, rows in zip(captions, of_captions["candidate_rows"], strict=True)
        ],
    }
    report = toy.report(examples=3)
    for name, cells in table(report, "What was mined").items():
        for top, title in ((1, "hardest also true, %"), (10, "of 10 also true, %")):
            assert cells[title]["value"] == pytest.approx(100 * np.mean([each[:top] for each in hits[name]]))
    shown = section(report, "the-hardest-negatives")
    for article in shown.all("article", "beside"):
        texts = found[images.index(article.all("img")[0].attributes["alt"])][:5]
        said = [
            f"a plain caption of {each[:-2]}" if each[-1] == "1" else f"{HOSTILE} {int(each[6:9])}" for each in texts
        ]
        assert [each.text() for each in article.all("span", "text")][1:] == said  # behind the own caption
    assert not {each.attributes["alt"] for each in shown.all("img")} & set(LEFT_OUT)


def test_the_most_confused_come_first_with_their_own_score(toy: Toy, done: Report) -> None:
    of_images, of_captions = lists_of(toy)
    embeddings = read_embeddings(toy.made["triplet"] / EMBEDDINGS, "train")
    own = score_matrix(embeddings.images, embeddings.texts, embeddings.measure)[embeddings.caption_image, range(80)]
    best = own.reshape(40, 2).max(axis=1)  # of the captions of each image
    articles = section(done, "the-hardest-negatives").all("article")
    assert len(articles) == 8
    for scores, hardest, shown in ((best, of_images, articles[:4]), (own, of_captions, articles[4:])):
        first = np.array([row[0] for row in hardest["scores"]], np.float32)
        for row, article in zip(np.argsort(scores - first, kind="stable"), shown, strict=False):
            own_one, hardest_one, *_ = article.all("li")
            assert own_one.attributes["class"].strip() == "own"
            for line, score in ((own_one, scores[row]), (hardest_one, first[row])):
                assert line.all("span", "score")[0].text() == f"{score:.3f}".replace("-", "−")


def test_lists_of_a_second_model_have_no_own_scores_and_are_not_shown(copy: Toy) -> None:
    change(copy.made["mining"], "exact", settings={"rescore_with": "scan"})
    assert not section(copy.report(), "the-hardest-negatives").all("article")


def test_columns_without_a_number_are_left_out(copy: Toy) -> None:
    path = copy.made["mining"] / "statistics.json"
    statistics = json.loads(path.read_text())
    for right in statistics["right_after_all"].values():
        right |= {"top_1": {"judged": 0, "percent": None}, "top_10": {"judged": 0, "percent": None}}
    rewrite(path, json.dumps(statistics).encode())
    cells = table(copy.report(), "What was mined")["VSE++: captions for images"]
    assert {*cells} == {"median own score", "median mined score", "hardest beats own, %"}


def change_list(toy: Toy, name: str, column: str, change: Callable[[pa.Table], pa.Array]) -> None:
    path = toy.made["mining"] / f"{name}.parquet"
    table = pq.read_table(path)
    columns = dict(zip(table.column_names, table.columns, strict=True)) | {column: change(table)}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(table.schema.metadata), buffer)
    rewrite(path, buffer.getvalue())


def test_candidates_come_with_their_probability_to_be_right(copy: Toy) -> None:
    chances = [0.97, 0.5, 0.004, 0.0]

    def probabilities(table: pa.Table) -> pa.Array:
        rows = [[*chances, *[0.2] * len(row)][: len(row)] for row in table["scores"].to_pylist()]
        return pa.array(rows, table["scores"].type)

    for name in LISTS:
        change_list(copy, name, PROBABILITY, probabilities)
    report = copy.report(examples=2)
    for article in section(report, "the-hardest-negatives").all("article"):
        shown = [each.text() for each in article.all("span", "chance")]
        assert shown[:4] == [f"right with {each}" for each in ("97 %", "50 %", "< 1 %", "0 %")]
    # Of each of the 80 captions one image is likelier right than not; no image is shown twice.
    likely = section(report, "likelier-right-than-not")
    _, of_captions = lists_of(copy)
    hardest = {name: rows[0] for name, rows in zip(*map(of_captions.get, ("anchor_id", "candidate_rows")), strict=True)}
    assert 2 <= len(likely.all("article")) <= 4
    shown = []
    for article in likely.all("article"):
        names = [each.attributes["alt"] for each in article.all("img")]
        pairs = [f"train-{hardest[f'{names[1]}#{number}']:03d}" for number in range(2)]
        assert names[0] in pairs
        assert article.all("span", "label")[1].text("") == names[1]
        assert article.all("span", "chance")[0].text() == "right with 97 %"
        shown += names
    assert len(set(shown)) == len(shown)


def test_judged_lists_without_a_likely_candidate_say_so(copy: Toy) -> None:
    def probabilities(table: pa.Table) -> pa.Array:
        return pa.array([[0.2] * len(row) for row in table["scores"].to_pylist()], table["scores"].type)

    for name in LISTS:
        change_list(copy, name, PROBABILITY, probabilities)
    likely = section(copy.report(), "likelier-right-than-not")
    assert not likely.all("article")
    assert len(likely.all("h3")) == 1


def test_wrong_first_answers_that_may_be_right_are_shown_with_both_images(copy: Toy) -> None:
    pairs = [("test-003", "test-005#1", 0.6), ("test-003", "test-006#1", 0.9), ("test-006", "test-007#1", 0.8)]
    pairs += [("test-001", "test-002#1", 0.7)]
    nothing = {"calibration": {"decisions": 0}, "right_after_all": {"i2t": None, "t2i": None}}
    found = {"by_judges": nothing | {"likely": {"i2t": pairs, "t2i": []}}}
    folder = copy.made["aoq.vsepp"]
    (folder / "corrected.json").write_text(json.dumps(found))
    rewrite(folder / "corrected.json", (folder / "corrected.json").read_bytes())
    shown = section(copy.report(), "likelier-right-than-not")
    titles = [each.text() for each in shown.all("h3")]
    assert titles == ["Wrong first captions in the test split", "Wrong first images in the test split"]
    assert "takes none for right" in shown.all("p", "note")[1].text(), "an empty list says so"
    first, second = shown.all("article")  # whose images are in other pairs, too
    assert [each.attributes["alt"] for each in first.all("img")] == ["test-003", "test-006"]
    assert [each.text() for each in first.all("p", "query")] == ["a plain caption of test-006"]
    assert [each.attributes["alt"] for each in second.all("img")] == ["test-001", "test-002"]
    assert [each.all("span", "chance")[0].text() for each in (first, second)] == ["right with 90 %", "right with 70 %"]


def test_judged_lists_tell_the_share_that_is_right_at_each_rank(copy: Toy) -> None:
    checked = {"value": 0.5, "low": 0.41, "high": 0.6, "decisions": 40}
    unchecked = {"value": 0.25, "low": 0.0, "high": 1.0, "decisions": 0}
    of_images = {"by_rank": {"1": checked, "3-5": unchecked}}
    judged = {"judges": ["captions:/home/ada/minilm"], "knows": True, "reliability": [[0.2, 0.1, 30], [0.8, 0.9, 10]]}
    judged |= {LISTS[0]: of_images, LISTS[1]: {"by_rank": {"1": unchecked}}}
    path = copy.made["mining"] / "statistics.json"
    rewrite(path, json.dumps(json.loads(path.read_text()) | {"judged": judged}).encode())
    report = copy.report()
    captions, images = table(report, "Training candidates right after all, by rank").values()
    first, middle = captions["1, %"], captions["3–5, %"]
    assert (first["value"], first["low"], first["high"]) == pytest.approx((50, 41, 60))
    assert (middle["value"], middle.get("low")) == (25, None)
    assert images.get("3–5, %") is None
    assert "by captions:minilm." in report.page.text()
    assert "on the line, as many are right as the judge says" in report.page.text().lower()


def test_sentences_stand_beside_their_captions_with_their_changes(copy: Toy) -> None:
    report = copy.report((with_sentences(copy), "triplet.vsepp"), examples=12)
    # Of each image: one sentence of the first caption, two of the second, one rejected.
    (cells,) = table(report, "Written sentences").values()
    assert (cells["number"]["value"], cells["kept, %"]["value"]) == (160, 75.0)
    examples = section(report, "written-sentences").all("article")
    assert len(examples) == 12
    for example in examples:
        caption, *lines = example.all("dd", "coloured")
        changes = [[(a.text(), b.text()) for a, b in zip(e.all("del"), e.all("ins"), strict=True)] for e in lines]
        plain = [[("plain", "painted")], [("plain", "grand"), ("caption", "copy")]]
        assert changes == (plain if caption.text().startswith("a plain") else [[("alert", "<b>bad</b>")]])


def test_where_no_sentence_could_be_written_the_table_says_so(copy: Toy) -> None:
    report = copy.report((with_sentences(copy, kept=False), "triplet.vsepp"))
    (cells,) = table(report, "Written sentences").values()
    assert cells["number"]["value"] == 0
    assert not section(report, "written-sentences").all("article")


def test_a_warning_of_several_artifacts_is_shown_once(copy: Toy) -> None:
    for name in ("triplet", "aoq"):
        folder = copy.made[name]
        text = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text(text.replace('"messages": []', '"messages": ["captions are long"]'))
        change(folder, name)
    page = copy.report().page.text()
    assert page.count("captions are long") == 1
    assert page.count(f"train/{copy.made['aoq'].name}, train/") + page.count(f", train/{copy.made['aoq'].name}") == 1


@pytest.mark.parametrize(
    ("caption", "sentence", "edits"),
    [
        ("a man a dog", "a man the dog", [("a", "the")]),
        ("two red cars.", "two buses.", [("red cars", "buses")]),
        ("one two", "three four", [("one", "three"), ("two", "four")]),
        ("same", "same", []),
    ],
)
def test_changes_are_told_by_whole_words(caption: str, sentence: str, edits: list[tuple[str, str]]) -> None:
    found = negatives.edit_parts(caption, sentence)
    assert "".join(each if isinstance(each, str) else each[1] for each in found) == sentence
    assert "".join(each if isinstance(each, str) else each[0] for each in found) == caption
    assert [each for each in found if not isinstance(each, str)] == edits


def numbers_of(value: Any, place: str = "") -> dict[str, Any]:
    """Numbers by the names that lead to them, which say in a failing test what is another one: `value, low, high`."""
    if isinstance(value, dict) and "value" in value and "images" not in value:
        parts = [value[name] for name in ("value", "low", "high", "deviation") if name in value]
        return {place: ", ".join(f"{part:.5g}" for part in parts)}
    if isinstance(value, float):
        return {place: float(f"{value:.5g}")}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {next(row[key] for key in ("label", "model", "title", "name") if row.get(key)): row for row in value}
    if not isinstance(value, dict):
        return {place: value}
    found: dict[str, Any] = {}
    for name, each in value.items():
        found |= numbers_of(each, f"{place}/{name}")
    return found


def test_every_kind_of_part_is_on_the_page_and_its_numbers_are_as_they_were(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    history = [{"mean_gap_median": -0.1, "val_i2t_r1": 10.0, "val_t2i_r1": 8.0}]
    name = add(copy, "ssamt", "ssamt", history=history)
    runs = [f"{each}.vsepp{end}" for each in ("triplet", "triplet-long", "aoq") for end in ("", ".s1", ".s2")]
    report = copy.report((name, with_sentences(copy), *runs), drawn=True)
    assert numbers_of({key: report.results[key] for key in ("runs", "claims", "tables")}) == json.loads(
        GOLDEN.read_text()
    )
    shown = section(report, "training")
    legend = [each.text() for each in shown.all("ul", "legend")[0].all("li")]
    names = [f"VSE++, {each}" for each in ("first training", "baseline (same epochs)", "AOQ")]
    assert legend == ["SSAMT", "UNITER, TAGS, static", *names]
    assert len(shown.all("p", "head")) == 5
