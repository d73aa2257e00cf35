"""Wrong words in the report: the table of accuracies, and sentences whose words a model judged and corrected."""

from __future__ import annotations

import re
from typing import Any

import pytest

from itrpipe.errors import DataError

CAPTION, SENTENCE, CORRECTED = "a red <b>dog</b> runs", "a red cat sings", "a blue dog sings"
ADDED = ("mask", "correction_masked")
"""Figures that older evaluations do not have."""
MISMATCH = (0.05, 0.62, 0.97, 0.31)


def rows_of(caption: str = "test-000#0", corrected: str | None = CORRECTED, **changed: Any) -> dict[str, Any]:
    """`red` is found wrong and spoilt, `cat` is wrong and restored, `sings` is wrong and not found."""
    words = []
    for number, chance in enumerate(MISMATCH):
        spans = []
        for text in (SENTENCE, CORRECTED):
            said = text.split()[number]
            spans.append((text.index(said), text.index(said) + len(said)))
        words.append(
            {
                "start": spans[0][0],
                "end": spans[0][1],
                "mismatch": chance,
                "flagged": chance > 0.5,
                "wrong": number > 1,
                "corrected_start": spans[1][0],
                "corrected_end": spans[1][1],
                "restored": number in (0, 2),
            }
            | changed
        )
    row = {"example": 0, "caption_id": caption, "image_id": caption[:8], "caption": CAPTION, "sentence": SENTENCE}
    scores = {"caption_score": 0.995, "sentence_score": 0.25, "corrected_score": 0.5 if corrected else None}
    return {**row, "corrected": corrected, **scores, "words": words}


FLUENCY = {"name": "gpt2", "sentences": 2, "captions": 51.1, "written": 87.6, "corrected": 70.9}


def figures_of(first: float, corrects: bool = True) -> dict[str, Any]:
    told = {
        name: {"percent": first - 10 * number, "words": 1000 * (number + 1)}
        for number, name in enumerate(("all", "matching", "mismatching"))
    }
    return {
        "captions": 500,
        "mask": "phrases",
        "drawn": {"kept": 4321},
        "discrimination": told,
        "correction": {"percent": first - 30, "words": 3000} if corrects else None,
        "correction_masked": {"percent": first - 25, "words": 4000} if corrects else None,
        "below_caption": {"percent": None, "sentences": 0},
    }


def section_of(page: Any) -> Any:
    (found,) = [each for each in page.all("section") if each.attributes.get("id") == "wrong-words"]
    return found


@pytest.fixture(scope="module")
def report(toy: Any, add_words: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that corrects and, before it by name, an older one that does not."""
    found = toy.copy(tmp_path_factory.mktemp("words") / "data")
    both = [rows_of(), rows_of("test-001#0")]
    first = add_words(found, "tags-dc", {**figures_of(95.25), "fluency": FLUENCY}, both)
    older = {name: each for name, each in figures_of(85.5, False).items() if name not in ADDED}
    second = add_words(found, "tags-discriminate", older, [rows_of("test-002#0", None)])
    return found.report((second, first, "triplet.vsepp"))


@pytest.fixture(scope="module")
def section(report: Any) -> Any:
    return section_of(report.page)


def test_the_table_has_every_figure_with_its_count(section: Any) -> None:
    rows = {row.all("th")[0].text(): row.all("td") for row in section.all("tbody")[0].all("tr")}
    assert list(rows) == ["UNITER, TAGS-DC", "UNITER, TAGS-D"]
    cells = rows["UNITER, TAGS-DC"]
    assert [cell.text() for cell in cells] == ["95.2", "85.2", "75.2", "65.2", "70.2", "–"]
    counts = [cell.all("span", "interval")[0].text() for cell in cells[:5]]
    assert counts == ["of 1,000", "of 2,000", "of 3,000", "of 3,000", "of 4,000"]
    assert [cell.text() for cell in rows["UNITER, TAGS-D"]] == ["85.5", "75.5", "65.5", "–", "–", "–"]
    notes = [each.text() for each in section.all("span", "label")]
    measured = "perplexity by gpt2: captions 51.1, written 87.6, 70.9 corrected"
    assert notes == [f"tags-dc.uniter, phrases masked; {measured}", "tags-discriminate.uniter, words masked"]
    heads = [each.text() for each in section.all("thead")[0].all("th")]
    assert heads[:3] == ["Rightly judged", "Corrected", "Below caption"]


def test_words_are_coloured_and_flagged_ones_carry_their_number(section: Any) -> None:
    articles = section.all("article", "example")
    assert len(articles) == 2  # those of TAGS-DC
    sentence = articles[0].all("span", "coloured")[0]
    assert re.sub(r"\(not .*?\)|[\d.]+", "", sentence.text("i")) == SENTENCE
    words = sentence.all("span", "fragment")
    assert [each.text() for each in words] == SENTENCE.split()
    assert [each.attributes["class"].split()[1] for each in words] == ["tone-4", "tone-1", "tone-0", "tone-3"]
    assert [each.text() for each in sentence.all("span", "value")] == ["0.62", "0.97"]
    assert ["unsaid" in each.attributes["class"] for each in words] == [False, False, True, True]
    assert [len(each.all("span", "spoken")) for each in words] == [0, 0, 1, 1]


def test_replaced_words_are_bold_and_others_than_the_captions_underlined(section: Any) -> None:
    written, corrected, caption = (each for each in section.all("article", "example")[0].all("dd") if not scored(each))
    assert re.sub(r"\(not .*?\)", "", corrected.text("i")) == CORRECTED
    assert [each.text() for each in corrected.all("strong")] == ["blue", "dog"]
    assert ["unsaid" in each.attributes.get("class", "") for each in corrected.all("strong")] == [True, False]
    assert [each.text() for each in corrected.all("span", "unsaid")] == ["sings"]
    assert caption.text() == CAPTION
    assert not caption.all("b")
    assert written.all("span", "coloured")
    scores = [each.text() for each in section.all("article", "example")[0].all("dd", "score")]
    assert scores == ["25 %", "50 %", "> 99 %"]


def scored(element: Any) -> bool:
    return "score" in element.attributes.get("class", "")


def test_a_run_that_does_not_correct_shows_no_correction(toy: Any, add_words: Any, tmp_path: Any) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_words(found, "tags-discriminate", figures_of(85.5, False), [rows_of(corrected=None)])
    (article,) = section_of(found.report((name, "triplet.vsepp")).page).all("article", "example")
    assert [each.text() for each in article.all("dt")] == ["written", "caption"]


def test_the_section_is_linked_and_its_numbers_are_in_the_other_files(report: Any) -> None:
    assert [each.text() for each in report.page.all("a") if each.attributes["href"] == "#wrong-words"] == [
        "Wrong words"
    ]
    runs = {run["label"]: run["words"] for run in report.results["runs"]}
    assert runs["tags-dc.uniter"] == {**figures_of(95.25), "fluency": FLUENCY}
    assert runs["triplet.vsepp"] is None
    lines = (report.folder / "summary.txt").read_text().splitlines()
    (line,) = [each.split() for each in lines if each.startswith("UNITER, TAGS-DC") and len(each.split()) == 8]
    assert line[2:] == ["95.2", "85.2", "75.2", "65.2", "70.2", "-"]
    heads = lines[lines.index("wrong words: found and corrected, in percent") + 1 :][:2]
    assert [each.split() for each in heads] == [
        ["rightly", "judged", "corrected", "below"],
        ["run", "all", "own", "wrong", "wrong", "masked", "caption"],
    ]
    assert max(map(len, lines)) <= 80


def test_words_that_do_not_lie_in_their_sentence_are_refused(toy: Any, add_words: Any, tmp_path: Any) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_words(found, "tags-dc", figures_of(90.0), [rows_of(start=3, end=5)])
    with pytest.raises(DataError, match="words of caption test-000#0 do not lie in their sentence"):
        found.report((name, "triplet.vsepp"))


def test_runs_that_judged_no_words_have_no_such_section(done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "wrong-words"]
    assert not [each for each in done.page.all("a") if each.attributes["href"] == "#wrong-words"]
