"""Negatives, coloured words, word maps and curves as the page shows them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.errors import DataError
from itrpipe.report import negatives, words
from itrpipe.report.pictures import Picture
from itrpipe.report.words import MIDDLE, TONES, Coloured, Line
from tests.report.toy import HOSTILE, Element, Report, Toy, add, build, change, with_sentences

LISTS = ("texts_for_images", "images_for_texts")
NUMBERS = "051699568ddc7c3c"
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
        assert [each.text() for each in article.all("span", "text")] == said
    assert not {each.attributes["alt"] for each in shown.all("img")} & set(LEFT_OUT)


def estimates(toy: Toy, anchor: str = "") -> list[dict[str, Any]]:
    """Two anchors of each list; the first has a likely false negative."""
    images, captions = (each["anchor_id"] for each in lists_of(toy))
    return [
        {"direction": direction, "anchor_id": anchor or anchors[number], "rank": rank, "candidate_id": candidate}
        | {"similarity": 0.9 - 0.1 * rank, "probability": scale * chance, "true_match": None}
        for direction, anchors, candidates in ((LISTS[0], images, captions), (LISTS[1], captions, images))
        for number, scale in enumerate((1.0, 0.1))
        for rank, (candidate, chance) in enumerate(zip(candidates[-4:], (0.97, 0.5, 0.004, 0.0), strict=True))
    ]


def test_candidates_come_with_their_probability_to_be_right(copy: Toy) -> None:
    name = add(copy, "fne", "vsepp", files={"false_negatives.parquet": estimates(copy)})
    report = copy.report((name, "triplet.vsepp"), examples=2)
    shown = [[each.text() for each in one.all("span", "chance")] for one in report.page.all("article")]
    shown = [each for each in shown if each]
    assert shown[0] == shown[2] == [f"likely also right: {each}" for each in ("97 %", "50 %", "< 1 %", "0 %")]
    assert shown[1][0] == shown[3][0] == "likely also right: 10 %"


def test_an_anchor_of_another_dataset_is_refused(copy: Toy) -> None:
    name = add(copy, "fne", "vsepp", files={"false_negatives.parquet": estimates(copy, "elsewhere")})
    with pytest.raises(DataError, match="elsewhere"):
        copy.report((name, "triplet.vsepp"))


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
    found = negatives.edited(caption, sentence)
    assert "".join(each if isinstance(each, str) else each.text for each in found) == sentence
    assert "".join(each if isinstance(each, str) else each.was for each in found) == caption
    assert [(each.was, each.text) for each in found if not isinstance(each, str)] == edits


# -- Words

TEXT = "A black-and-white <b>dog</b> leaps, twice."
SPANS = [each.span() for each in re.finditer(r"\w+", TEXT)]
WORDS = [0.1, 0.5, 0.2, 0.5, 0.0, 0.9, 0.0, 0.6, -0.004]
PHRASES = [("object", (5,), 0.8, True), ("attribute", (1, 2, 3, 5), 0.4, True), ("relation", (5, 7), -0.35, False)]


def run(file: str, rows: Any, name: str = "one") -> Any:
    return SimpleNamespace(name=name, settings={"method": name}, wrote={file: rows}.get)


def picture(run: Any, image: str) -> Picture:
    return Picture(image, "data:", 40, 20)


def coloured(line: Line) -> list[Coloured]:
    return [each for each in line.parts if isinstance(each, Coloured)]


def said(line: Line) -> str:
    return "".join(each if isinstance(each, str) else each.text for each in line.parts)


def scored(image: str, own: list[float] = WORDS, **changed: Any) -> list[dict[str, Any]]:
    matched = image == "own"
    given = [("word", (k,), score, k != 7 or matched) for k, score in enumerate(own)]
    return [
        {"example": 0, "caption_id": "c", "image_id": image, "matched": matched, "text": TEXT, "kind": kind}
        | {"tokens": list(tokens), "starts": [SPANS[k][0] for k in tokens], "ends": [SPANS[k][1] for k in tokens]}
        | {"score": score, "holds": holds, "pair_score": 0.5, **changed}
        for kind, tokens, score, holds in (*given, *PHRASES)
    ]


def test_words_are_coloured_by_their_scores_under_own_and_wrong_images() -> None:
    rows = scored("wrong") + scored("own", [each + 0.1 for each in WORDS])
    shown = words.scored_words([run("phrases.parquet", rows)], 4, picture)
    assert shown is not None
    ((own, wrong),) = shown.captions
    assert [each.picture.image_id for each in (own, wrong)] == ["own", "wrong"]
    caption, *phrases = wrong.lines
    assert said(caption) == TEXT
    low, high = np.percentile([row["score"] for row in rows], [5, 95])
    tones = [round(float(np.clip((each - low) / (high - low), 0, 1)) * (TONES - 1)) for each in WORDS]
    assert [each.tone for each in coloured(caption)] == tones
    assert [each.unsaid for each in coloured(caption)] == [number == 7 for number in range(len(WORDS))]
    assert [said(each).strip() for each in phrases] == ["dog", "black-and-white dog", "dog leaps"]
    assert [each.label for each in wrong.lines] == ["one", "objects", "attributes", "relations"]
    assert all(each.numbered for line in phrases for each in coloured(line))


def test_two_models_stand_beside_each_other_with_captions_of_both_first() -> None:
    """Equal scores have no colour, and punctuation is no word."""
    both, flat = scored("own"), scored("own", score=0.2)
    dot = {**both[0], "tokens": [9], "starts": [len(TEXT) - 1], "ends": [len(TEXT)], "score": 99.0}
    rows = {"a": [*scored("own", caption_id="d"), *both, dot], "b": flat, "c": flat}
    shown = words.scored_words([run("phrases.parquet", own, name) for name, own in rows.items()], 1, picture)
    assert shown is not None
    ((seen,),) = shown.captions
    assert [each.label for each in seen.lines][::4] == ["a", "b"]
    assert len(coloured(seen.lines[0])) == len(WORDS)
    assert max(each.tone for each in coloured(seen.lines[0])) == TONES - 1
    assert {each.tone for each in coloured(seen.lines[4])} == {MIDDLE}


SENTENCE, CORRECTED = "a red cat sings", "a blue dog sings"


@pytest.mark.parametrize("corrected", [CORRECTED, None])
def test_wrong_words_are_coloured_numbered_and_replaced(corrected: str | None) -> None:
    """`red` is found wrong and spoilt, `cat` is wrong and restored, `sings` is wrong and not found."""
    parts = []
    for number, (chance, old, new) in enumerate(
        zip((0.05, 0.62, 0.97, 0.31), re.finditer(r"\w+", SENTENCE), re.finditer(r"\w+", CORRECTED), strict=True)
    ):
        parts.append({"start": old.start(), "end": old.end(), "mismatch": chance, "flagged": chance > 0.5})
        parts[-1] |= {"corrected_start": new.start(), "corrected_end": new.end(), "restored": number in (0, 2)}
        parts[-1] |= {"wrong": number > 1}
    row = {"image_id": "own", "caption": "a red dog runs", "caption_score": 0.9, "sentence_score": 0.25}
    row |= {"sentence": SENTENCE, "corrected": corrected, "corrected_score": 0.5, "words": parts}
    shown = words.wrong_words([run("word_corrections.parquet", [row])], 4, picture)
    assert shown is not None
    ((seen,),) = shown.captions
    lines = [(each.label, said(each), each.score) for each in seen.lines]
    middle = [("corrected", CORRECTED, 0.5)] if corrected else []
    assert lines == [("written", SENTENCE, 0.25), *middle, ("caption", "a red dog runs", 0.9)]
    written = coloured(seen.lines[0])
    assert [each.tone for each in written] == [4, 1, 0, 3]
    assert [each.value for each in written if each.numbered] == [0.62, 0.97]
    assert [each.unsaid for each in written] == [False, False, True, True]
    if corrected:
        assert [(each.bold, each.unsaid) for each in coloured(seen.lines[1])][1:3] == [(True, True), (True, False)]


MAPPED = "a small dog under an old red roof by the sea"
PEAK = {"small": 0.1, "dog": 1.0, "old": 0.3, "red": 0.4, "roof": 0.5, "sea": 0.2, "under": 5.0, "the": 6.0}


def mapped() -> list[dict[str, Any]]:
    """Zero but for one patch of 2 x 4, whose place is the word's number, and one of the own image below zero."""
    found = []
    for matched, image in ((True, "own"), (False, "wrong")):
        for number, word in enumerate(re.finditer(r"\w+", MAPPED)):
            values = np.zeros(8)
            values[number % 8] = PEAK.get(word[0], 0.01) * (1.0 if matched else 0.5)
            values[number % 8 - 1] = -0.2 * values[number % 8] * matched
            row = {"example": 0, "caption_id": "c", "image_id": image, "matched": matched, "text": MAPPED}
            row |= {"start": word.start(), "end": word.end(), "rows": 2, "columns": 4, "area": [0.0, 0.25, 1.0, 0.75]}
            found.append(
                {**row, "values": values.tolist(), "word_score": PEAK.get(word[0], 0.0) / 8, "score": -matched}
            )
    return found


def test_content_words_that_vary_most_are_drawn_where_and_as_strongly_as_they_find_something() -> None:
    """The 95th percentile of the 16 values of a word lies a quarter of the way from the second to the highest."""
    shown = words.word_maps([run("word_maps.parquet", mapped())], 4, picture)
    assert shown is not None
    ((text, (own, wrong)),) = shown.captions
    assert (text, own.matched, wrong.matched, len(shown.pictures)) == (MAPPED, True, False, 2)
    for seen, heat in ((own, 3), (wrong, 2)):
        (line,) = seen.lines
        maps: Any = line.parts
        assert [each.text for each in maps] == ["dog", "old", "red", "roof"]
        assert [*maps[0].shapes] == [("M2 0h1v1h-1" if place == heat else "") for place in range(words.HEATS - 1)]
        assert maps[0].transform == "translate(0 5) scale(10 5)"
        assert maps[0].value == 1 / 8


def test_function_words_are_shown_where_there_are_no_others() -> None:
    rows = [row for row in mapped() if row["text"][row["start"] : row["end"]] in ("a", "an", "the", "by")]
    assert len(words.chosen_words(rows[:4])) == 4


SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(arrays.arrays(np.int64, SIDES, elements=st.integers(0, words.HEATS - 1)))
def test_outlines_cover_every_patch_with_its_heat_once(heats: np.ndarray) -> None:
    painted = np.zeros_like(heats)
    for heat, shape in enumerate(words.outlines(heats), 1):
        drawn = re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)", shape)
        assert "".join("M{} {}h{}v1h-{}".format(*each) for each in drawn) == shape
        for left, top, width, back in (tuple(map(int, each)) for each in drawn):
            assert width == back
            painted[top, left : left + width] += heat
    np.testing.assert_array_equal(painted, heats)


def test_every_kind_of_part_is_on_the_page_and_its_numbers_are_as_they_were(seeded: Toy, tmp_path: Path) -> None:
    """Rows of words and maps are those above, of images of the toy. Where a number is to change, so is the digest."""
    copy = seeded.copy(tmp_path / "data")
    real = {"own": "test-004", "wrong": "test-009"}
    files = {"phrases.parquet": scored("own") + scored("wrong"), "word_maps.parquet": mapped()}
    files = {name: [{**row, "image_id": real[row["image_id"]]} for row in rows] for name, rows in files.items()}
    history = [{"mean_gap_median": -0.1, "val_i2t_r1": 10.0, "val_t2i_r1": 8.0}]
    name = add(copy, "ssamt", "ssamt", files=files, history=history)
    runs = [f"{each}.vsepp{end}" for each in ("triplet", "triplet-long", "aoq") for end in ("", ".s1", ".s2")]
    report = copy.report((name, with_sentences(copy), *runs), drawn=True)
    numbers = json.dumps([report.results[key] for key in ("runs", "claims", "tables")], sort_keys=True)
    rounded = re.sub(r"\d+\.\d+(e-\d+)?", lambda match: f"{float(match[0]):.5g}", numbers)
    assert hashlib.sha256(rounded.encode()).hexdigest()[:16] == NUMBERS
    shown = section(report, "words")
    assert shown.all("dd", "coloured")[0].text("") == TEXT
    assert len(shown.all("image")) == 2
    assert len(shown.all("ul", "heats")[0].all("path")) == 4
    shown = section(report, "training")
    legend = [each.text() for each in shown.all("ul", "legend")[0].all("li")]
    names = [f"VSE++, {each}" for each in ("first training", "baseline (same epochs)", "AOQ")]
    assert legend == ["SSAMT", "UNITER, TAGS, static", *names]
    assert len(shown.all("p", "head")) == 5
