"""Negatives, coloured words, word maps and curves as the page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.errors import DataError
from itrpipe.report import negatives
from itrpipe.report.negatives import edited
from itrpipe.report.words import HEATS, MIDDLE, TONES, chosen_words, outlines, pieces
from tests.report.toy import Element, Report, Toy, add, build, seal, write_sentences

LISTS = ("texts_for_images", "images_for_texts")
LEFT_OUT = ("train-000", "train-007", "train-039")


def section(report: Report, name: str) -> Element:
    (only,) = [each for each in report.page.all("section") if each.attributes["id"] == name]
    return only


def spoken(element: Element) -> str:
    """The text with its blanks, without what only screen readers say."""

    def parts(node: Any) -> Iterator[str]:
        yield from (
            () if node.get("class") == "spoken" else (node.text or "", *(part for each in node for part in parts(each)))
        )
        yield node.tail or ""

    return "".join(parts(element.node)).removesuffix(element.node.tail or "")


# -- Mined lists


def written_lists(toy: Toy) -> dict[str, Any]:
    return {name: pq.read_table(toy.made["mining"] / f"{name}.parquet").to_pydict() for name in LISTS}


def test_mined_candidates_are_shown_and_counted_whichever_images_mining_did_without(tmp_path: Path) -> None:
    toy = build(tmp_path / "data", left_out=LEFT_OUT)
    truth = dict(zip(*pq.read_table(toy.made["prepare"] / TRUTH_FILE).to_pydict().values(), strict=True))
    lists = written_lists(toy)
    images, captions = (lists[name]["anchor_id"] for name in LISTS)
    hits = {
        "captions for images": [[own in truth[captions[row]] for row in rows] for own, rows in _pairs(lists[LISTS[0]])],
        "images for captions": [[images[row] in truth[own] for row in rows] for own, rows in _pairs(lists[LISTS[1]])],
    }
    report = toy.report(examples=3)
    (table,) = [each for each in report.results["tables"] if each["title"] == "What was mined"]
    for row in table["rows"]:
        own = hits[row["name"].partition(": ")[2]]
        for top, title in ((1, "hardest is right, %"), (10, "right of 10, %")):
            assert row["cells"][title]["value"] == pytest.approx(100 * np.mean([each[:top] for each in own]))
    assert any(map(any, hits["images for captions"]))
    shown = section(report, "the-hardest-negatives")
    for article in shown.all("article", "beside"):
        name = article.all("img")[0].attributes["alt"]
        rows = dict(_pairs(lists[LISTS[0]]))[name][:5]
        said = [each.text() for each in article.all("span", "text")]
        assert said == [_caption(captions[row]) for row in rows]
    names = {each.attributes["alt"] for each in shown.all("img")}
    assert names
    assert not names & set(LEFT_OUT)


def _pairs(mined: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return list(zip(mined["anchor_id"], mined["candidate_rows"], strict=True))


def _caption(identifier: str) -> str:
    name, _, number = identifier.partition("#")
    if number == "1":
        return f"a plain caption of {name}"
    return f"{Toy.hostile} {int(name.rpartition('-')[2])}"


def test_places_behind_the_end_of_a_list_do_not_count() -> None:
    """Taken as a row number, -1 would be the last caption."""

    class LastIsTrue:
        def has(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
            return np.broadcast_to(captions % 5 == 4, np.broadcast_shapes(captions.shape, images.shape))

    candidates = np.array([[4, 1, -1, -1], [2, -1, -1, -1]])
    shares = negatives._shares(np.arange(2), candidates, LISTS[0], LastIsTrue())
    np.testing.assert_allclose(shares, [50.0, 100 / 3])


# -- Estimated false negatives


def estimates(toy: Toy, anchor: str = "") -> list[dict[str, Any]]:
    """Two anchors of each list; the first has a likely false negative."""
    images, captions = (written_lists(toy)[name]["anchor_id"] for name in LISTS)
    found = []
    for direction, anchors, candidates in ((LISTS[0], images, captions), (LISTS[1], captions, images)):
        for number, scale in enumerate((1.0, 0.1)):
            found += [
                {
                    "direction": direction,
                    "anchor_id": anchor or anchors[number],
                    "rank": rank,
                    "candidate_id": candidate,
                }
                | {"similarity": 0.9 - 0.1 * rank, "probability": scale * chance, "true_match": None}
                for rank, (candidate, chance) in enumerate(zip(candidates[-4:], (0.97, 0.5, 0.004, 0.0), strict=True))
            ]
    return found


FIGURES = {
    "drawn": {name: {"drawn": None, "hardest": None, "anchors": 60, "roc_area": None} for name in LISTS},
    "hardest": {name: {"likely_percent": 5.0, "roc_area": None, "roc_area_of_similarity": None} for name in LISTS},
}


def test_candidates_come_with_their_probability_to_be_right(copy: Toy) -> None:
    files = {"false_negatives.json": FIGURES, "false_negatives.parquet": estimates(copy)}
    report = copy.report((add(copy, "fne", "vsepp", files=files), "triplet.vsepp"), examples=2)
    shown = [[each.text() for each in one.all("span", "chance")] for one in report.page.all("article")]
    shown = [each for each in shown if each]
    assert shown[0] == shown[2] == [f"likely also right: {each}" for each in ("97 %", "50 %", "< 1 %", "0 %")]
    assert shown[1][0] == shown[3][0] == "likely also right: 10 %"
    (table,) = [t for t in report.results["tables"] if t["title"] == "Estimated false negatives, captions for images"]
    assert table["rows"][0]["cells"]["Hardest of the training set likely, %"] == {"value": 5.0}
    assert table["rows"][0]["cells"]["Candidates of a step area"] is None


def test_an_anchor_of_another_dataset_is_refused(copy: Toy) -> None:
    files = {"false_negatives.json": FIGURES, "false_negatives.parquet": estimates(copy, "elsewhere")}
    name = add(copy, "fne", "vsepp", files=files)
    with pytest.raises(DataError, match="elsewhere"):
        copy.report((name, "triplet.vsepp"))


# -- Written sentences


def with_sentences(toy: Toy, **settings: Any) -> str:
    given = {"maker": "model", "method": "pretrain", "backbone": "uniter", "seed": 1, **settings}
    read = {"prepare": toy.made["prepare"]}
    written = seal(toy.root, "synthesize", "phrases", given, read, write_sentences("train"))
    return add(toy, "tags", conf="tags-static", inputs={"synthesize": written})


def test_sentences_stand_beside_their_captions_with_their_changes(copy: Toy) -> None:
    report = copy.report((with_sentences(copy), "triplet.vsepp"), examples=12)
    (table,) = [each for each in report.results["tables"] if each["title"] == "Written sentences"]
    (row,) = table["rows"]
    assert row["name"] == "TAGS, written by UNITER, pretrained, seed 1"
    cells = {name: cell and cell["value"] for name, cell in row["cells"].items()}
    # Of each image: one sentence of the first caption, two of the second, one rejected.
    assert (cells["number"], cells["kept, %"], cells["same as caption, %"]) == (160, 75.0, 25.0)
    assert cells["beat their caption, %"] == pytest.approx(100 / 3, abs=0.01)
    examples = section(report, "written-sentences").all("article")
    assert len(examples) == 12
    for example in examples:
        caption, *lines = example.all("dd", "coloured")
        changes = [[(a.text(), b.text()) for a, b in zip(e.all("del"), e.all("ins"), strict=True)] for e in lines]
        plain = [[("plain", "painted")], [("plain", "grand"), ("caption", "copy")]]
        assert changes == (plain if spoken(caption).startswith("a plain") else [[("alert", "<b>bad</b>")]])


@pytest.mark.parametrize(
    ("caption", "sentence", "edits"),
    [
        ("a red car", "a blue car", [("red", "blue")]),
        ("a man a dog", "a man the dog", [("a", "the")]),
        ("two red cars.", "two buses.", [("red cars", "buses")]),
        ("one two", "three four", [("one", "three"), ("two", "four")]),
        ("same", "same", []),
    ],
)
def test_changes_are_told_by_whole_words(caption: str, sentence: str, edits: list[tuple[str, str]]) -> None:
    found = edited(caption, sentence)
    assert "".join(each if isinstance(each, str) else each.text for each in found) == sentence
    assert "".join(each if isinstance(each, str) else each.was for each in found) == caption
    assert [(each.was, each.text) for each in found if not isinstance(each, str)] == edits


# -- Coloured words

TEXT = "A black-and-white <b>dog</b> leaps, twice."
SPANS = [each.span() for each in re.finditer(r"\w+", TEXT)]
WORDS = [0.1, 0.5, 0.2, 0.5, 0.0, 0.9, 0.0, 0.6, -0.004]
PHRASES = [("object", (5,), 0.8, True), ("attribute", (1, 2, 3, 5), 0.4, True), ("relation", (5, 7), -0.35, False)]


def scored(image: str, matched: bool, words: list[float] = WORDS, **changed: Any) -> list[dict[str, Any]]:
    given = [("word", (k,), score, k != 7 or matched) for k, score in enumerate(words)]
    return [
        {"example": 0, "caption_id": "test-004#1", "image_id": image, "matched": matched, "text": TEXT, "kind": kind}
        | {"tokens": list(tokens), "starts": [SPANS[k][0] for k in tokens], "ends": [SPANS[k][1] for k in tokens]}
        | {"score": score, "holds": holds, "pair_score": 0.5, **changed}
        for kind, tokens, score, holds in (*given, *PHRASES)
    ]


def test_words_are_coloured_by_their_scores_under_own_and_wrong_images(copy: Toy) -> None:
    rows = scored("test-009", False) + scored("test-004", True, [each + 0.1 for each in WORDS])
    name = add(copy, "ssamt", "ssamt", files={"phrases.parquet": rows})
    shown = section(copy.report((name, "aoq.vsepp")), "words")
    own, wrong = shown.all("article")
    assert [each.all("img")[0].attributes["alt"] for each in (own, wrong)] == ["test-004", "test-009"]
    caption, *phrases = wrong.all("dd", "coloured")
    assert spoken(caption) == TEXT
    words = caption.all("span", "fragment")
    numbers = np.array([row["score"] for row in rows], dtype=np.float32)
    low, high = np.percentile(numbers, [5, 95])
    tones = [int(re.findall(r"tone-(\d)", each.attributes["class"])[0]) for each in words]
    assert tones == [round(float(np.clip((each - low) / (high - low), 0, 1)) * (TONES - 1)) for each in WORDS]
    assert ["unsaid" in each.attributes["class"] for each in words] == [number == 7 for number in range(len(WORDS))]
    assert [spoken(each).strip() for each in phrases] == ["dog0.80", "black-and-white dog0.40", "dog leaps−0.35"]
    assert [each.text() for each in wrong.all("dt")] == ["SSAMT", "objects", "attributes", "relations"]


def test_two_models_stand_beside_each_other_and_equal_scores_have_no_colour(copy: Toy) -> None:
    flat = [{**row, "score": 0.2} for row in scored("test-004", True)]
    names = [
        add(copy, "ssamt", "ssamt", files={"phrases.parquet": scored("test-004", True)}),
        add(copy, "ssamt", "ssamt", conf="ssamt-local", files={"phrases.parquet": flat}),
        add(copy, "ssamt", "ssamt", conf="ssamt-global", files={"phrases.parquet": flat}),
    ]
    (article,) = section(copy.report(tuple(names)), "words").all("article")
    labels = [each.text() for each in article.all("dt") if each.text().startswith("SSAMT")]
    assert labels == ["SSAMT", "SSAMT without L2, L3"]
    tones = {each.attributes["class"].split()[1] for each in article.all("dd", "coloured")[4].all("span", "fragment")}
    assert tones == {f"tone-{MIDDLE}"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6))
def test_pieces_are_the_caption(gaps: list[tuple[int, int]]) -> None:
    words, place = [], 0
    for gap, length in gaps:
        words.append((place + gap, place + gap + length, f"{len(words)}"))
        place += gap + length
    text = "x" * (place + 2)
    spans = {word: text[start:end] for start, end, word in words}
    found = pieces(text, [*words][::-1])
    assert "".join(spans.get(each, each) for each in found) == text
    assert [each for each in found if each in spans] == list(spans)


SENTENCE, CORRECTED = "a red cat sings", "a blue dog sings"


def judged(corrected: str | None = CORRECTED, **changed: Any) -> dict[str, Any]:
    """`red` is found wrong and spoilt, `cat` is wrong and restored, `sings` is wrong and not found."""
    words = []
    for number, chance in enumerate((0.05, 0.62, 0.97, 0.31)):
        (start, end), (first, last) = (
            (text.index(said := text.split()[number]), text.index(said) + len(said)) for text in (SENTENCE, CORRECTED)
        )
        words.append(
            {"start": start, "end": end, "mismatch": chance, "flagged": chance > 0.5, "wrong": number > 1}
            | {"corrected_start": first, "corrected_end": last, "restored": number in (0, 2), **changed}
        )
    row = {"example": 0, "caption_id": "test-000#0", "image_id": "test-000", "caption": "a red <b>dog</b> runs"}
    scores = {"caption_score": 0.995, "sentence_score": 0.25, "corrected_score": 0.5 if corrected else None}
    return {**row, "sentence": SENTENCE, "corrected": corrected, **scores, "words": words}


@pytest.mark.parametrize("corrected", [CORRECTED, None])
def test_wrong_words_are_coloured_numbered_and_replaced(copy: Toy, corrected: str | None) -> None:
    name = add(copy, "tags-dc", files={"word_corrections.parquet": [judged(corrected)]})
    (article,) = section(copy.report((name, "triplet.vsepp")), "words").all("article")
    labels = [each.text() for each in article.all("dt")]
    assert labels == ["written", *(["corrected"] if corrected else []), "caption"]
    written, *others = article.all("dd", "coloured")
    words = written.all("span", "fragment")
    assert [each.attributes["class"].split()[1] for each in words] == ["tone-4", "tone-1", "tone-0", "tone-3"]
    assert [each.text() for each in written.all("span", "value")] == ["0.62", "0.97"]
    assert ["unsaid" in each.attributes["class"] for each in words] == [False, False, True, True]
    assert spoken(others[-1]) == "a red <b>dog</b> runs"
    if corrected:
        assert spoken(others[0]) == CORRECTED
        bold = [each for each in others[0].all("span", "fragment") if "bold" in each.attributes["class"]]
        assert [each.text() for each in bold] == ["blue", "dog"]


# -- Word maps

MAPPED = "a small dog under an <i>old</i> red roof by the sea"
PEAK = {"small": 0.1, "dog": 1.0, "old": 0.3, "red": 0.4, "roof": 0.5, "sea": 0.2, "under": 5.0, "the": 6.0}


def mapped(caption: str = "test-000#0", wrong: str = "test-003", **changed: Any) -> list[dict[str, Any]]:
    """Zero but for one patch of 2 x 4, whose place is the word's number."""
    found = []
    for matched, image in ((True, "test-000"), (False, wrong)):
        for number, word in enumerate(re.findall(r"(?<!<)(?<!/)\b\w+\b(?!>)", MAPPED)):
            values = np.zeros(8)
            values[number % 8] = PEAK.get(word, 0.01) * (1.0 if matched else 0.5)
            start = re.search(rf"\b{word}\b", MAPPED)
            assert start is not None
            row = {"example": 0, "caption_id": caption, "image_id": image, "matched": matched, "text": MAPPED}
            row |= {"start": start.start(), "end": start.end(), "rows": 2, "columns": 4, "area": [0.0, 0.25, 1.0, 0.75]}
            row |= {"values": values.tolist(), "word_score": PEAK.get(word, 0.0) / 8, "score": 0.456 - matched}
            found.append({**row, **changed})
    return found


def test_content_words_that_vary_most_are_drawn_where_and_as_strongly_as_they_find_something(copy: Toy) -> None:
    """The 95th percentile of the 16 values of a word lies a quarter of the way from the second to the highest."""
    name = add(copy, "fne", "dual-encoder", files={"word_maps.parquet": mapped()})
    (article,) = section(copy.report((name, "triplet.vsepp")), "words").all("article", "mapped")
    own, wrong = article.all("ul", "heats")
    for strip in (own, wrong):
        assert [each.all("span", "under")[0].all("span")[1].text() for each in strip.all("li")[1:]] == [
            "dog",
            "old",
            "red",
            "roof",
        ]
    labels = [each.all("svg")[0].attributes["aria-label"] for each in own.all("li")[1:3]]
    assert labels == ["“dog” over test-000", "“old” over test-000"]
    for strip, heat in ((own, "heat-4"), (wrong, "heat-3")):
        (path,) = strip.all("li")[1].all("path")
        assert (path.attributes["class"], path.attributes["d"]) == (heat, "M2 0h1v1h-1")
    width, height = (float(part) for part in own.all("svg")[0].attributes["viewBox"].split()[2:])
    transform = own.all("li")[1].all("g")[0].attributes["transform"]
    moved, scaled = (list(map(float, each.split())) for each in re.findall(r"\(([^)]*)\)", transform))
    assert moved == pytest.approx([0, height / 4], rel=1e-3)
    assert scaled == pytest.approx([width / 4, height / 4], rel=1e-3)


def test_function_words_are_shown_where_there_are_no_others() -> None:
    rows = [row for row in mapped() if row["text"][row["start"] : row["end"]] in ("a", "an", "the", "by")]
    assert len(chosen_words(rows[:4])) == 4


@given(arrays.arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, HEATS - 1)))
def test_outlines_cover_every_patch_with_its_heat_once(heats: np.ndarray) -> None:
    painted = np.zeros_like(heats)
    for heat, shape in enumerate(outlines(heats), 1):
        drawn = re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)", shape)
        assert "".join("M{} {}h{}v1h-{}".format(*each) for each in drawn) == shape
        for left, top, width, back in (tuple(map(int, each)) for each in drawn):
            assert width == back
            assert (painted[top, left : left + width] == 0).all()
            painted[top, left : left + width] = heat
    np.testing.assert_array_equal(painted, heats)


# -- Curves


def test_curves_of_models_have_one_name_on_the_whole_page(seeded: Toy, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    runs = tuple(f"{method}.vsepp{end}" for method in ("triplet", "aoq") for end in ("", ".s1", ".s2"))
    name = add(copy, "tags", history=[{"mean_gap_median": -0.1}])
    shown = section(copy.report((*runs, name), drawn=True), "training")
    legend = [each.text() for each in shown.all("ul", "legend")[0].all("li")]
    assert legend == ["UNITER, TAGS", "VSE++, first training", "VSE++, AOQ"]
    assert [each.text() for each in shown.all("h4")] == [
        "Loss per pair",
        "RSum on the validation split",
        "R@1 on the validation split, image to text",
        "R@1 on the validation split, text to image",
        "Score of written sentences less their caption's",
    ]
