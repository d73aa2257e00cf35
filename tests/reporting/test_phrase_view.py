"""The view of words and phrases: captions stay as they are, colours follow the scores, and every number can be read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import itrpipe.reporting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from itrpipe.reporting.sections.words.section import TONES, Fragment, Scale, pieces

from itrpipe.errors import DataError

TEXT = "A black-and-white <b>dog</b> leaps over a fence, twice."
"""Its words: A 0, black 1, and 2, white 3, b 4, dog 5, b 6, leaps 7, over 8, a 9, fence 10, twice 11."""
WORDS = [0.1, 0.5, 0.2, 0.5, 0.0, 0.9, 0.0, 0.6, 0.3, 0.1, 0.7, -0.004]
PHRASES = [
    ("object", (5,), 0.8, True),
    ("object", (10,), -0.35, False),
    ("attribute", (1, 2, 3, 5), 0.4, True),
    ("relation", (5, 7, 8, 10), 0.75, False),
]
CAPTION, OWN, WRONG = "test-004#1", "test-004", "test-009"


def both(read: Any, text: str = TEXT, caption: str = CAPTION, wrong: str = WRONG, example: int = 0) -> list[Any]:
    """A caption with its own image, where everything holds, and with a wrong one."""
    held = [(kind, tokens, score + 0.1, True) for kind, tokens, score, _ in PHRASES]
    return [
        read(caption, wrong, text, False, WORDS, PHRASES, (10, 7), example),
        read(caption, caption.partition("#")[0], text, True, [each + 0.1 for each in WORDS], held, (), example),
    ]


@pytest.fixture(scope="module")
def one(toy: Any, phrases: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of one run with scores of one caption."""
    found = toy.copy(tmp_path_factory.mktemp("one") / "data")
    return found.report((phrases.add(found, "ssamt", reads=both(phrases.Read)), "aoq.vsepp"))


def section(report: Any) -> Any:
    (only,) = [each for each in report.page.all("section") if each.attributes["id"] == "words"]
    return only


def shown_text(element: Any) -> str:
    """The text with its blanks, without what only screen readers say."""
    if isinstance(element, str):
        return element
    if "spoken" in element.attributes.get("class", "").split():
        return ""
    return "".join(map(shown_text, element.children))


def fragments(element: Any) -> list[tuple[str, str, bool]]:
    return [
        (shown_text(each), each.attributes["title"], "unsaid" in each.attributes["class"].split())
        for each in element.all("span", "fragment")
    ]


def test_captions_stay_as_they_are_with_their_own_image_first(one: Any) -> None:
    (article,) = section(one).all("article", "runs-1")
    assert [shown_text(each) for each in article.all("p", "coloured")] == [TEXT, TEXT]
    assert [each.attributes["alt"] for each in article.all("img")] == [OWN, WRONG]
    assert [shown_text(each) for each in article.all("p", "which")] == ["✓ own image", "a wrong image"]
    assert article.attributes["aria-label"] == TEXT


def test_every_word_has_its_number_and_what_does_not_hold_is_underlined(one: Any) -> None:
    own, wrong = section(one).all("p", "coloured")
    expected = [f"{score:.2f}" if abs(score) >= 0.005 else "0.00" for score in WORDS]
    spoken = [each.text("") for each in wrong.all("span", "spoken")]
    for k, (word, title, unsaid) in enumerate(fragments(wrong)):
        assert unsaid == (k in (7, 10))
        number = expected[k] + (", not said of this image" if unsaid else "")
        assert (word, title, spoken[k]) == (re.findall(r"\w+", TEXT)[k], number, f"({number})")
    assert [title for _, title, _ in fragments(own)] == [f"{score + 0.1:.2f}" for score in WORDS]


def test_phrases_are_shown_by_kind_with_their_numbers(one: Any) -> None:
    _, wrong = section(one).all("dl", "chips")
    assert [each.text() for each in wrong.all("dt")] == ["objects", "attributes", "relations"]
    assert [[text for text, _, _ in fragments(each)] for each in wrong.all("dd")] == [
        ["dog 0.80", "fence −0.35"],
        ["black-and-white dog 0.40"],
        ["dog leaps over fence 0.75"],
    ]
    assert [unsaid for _, _, unsaid in fragments(wrong)] == [False, True, False, True]


def test_colours_run_from_the_5th_to_the_95th_percentile(one: Any) -> None:
    numbers = [*WORDS, *(score for _, _, score, _ in PHRASES)]
    numbers += [each + 0.1 for each in numbers]
    low, high = np.percentile(np.array(numbers, dtype=np.float32), [5, 95])
    (scale,) = section(one).all("ul", "scales")
    ends = [each.text("") for each in scale.all("span", "ends")]
    assert ends == [f"≤ {low:.2f}".replace("-", "−"), f"≥ {high:.2f}"]
    swatches = scale.all("span", "swatches")[0].children
    assert [each.attributes["class"] for each in swatches] == [f"tone-{k}" for k in range(TONES)]
    _, wrong = section(one).all("p", "coloured")
    tones = [int(re.findall(r"tone-(\d)", each.attributes["class"])[0]) for each in wrong.all("span", "fragment")]
    assert tones == [round(float(np.clip((each - low) / (high - low), 0, 1)) * (TONES - 1)) for each in WORDS]


def test_two_methods_stand_beside_each_other_on_scales_of_their_own(toy: Any, phrases: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    reads = both(phrases.Read)
    flat = [phrases.Read(each.caption_id, each.image_id, TEXT, each.matched, [0.2] * 12) for each in reads]
    other = both(phrases.Read, "a cat", "test-006#1", example=1)
    other = [phrases.Read(each.caption_id, each.image_id, "a cat", each.matched, [0.1, 0.9]) for each in other]
    runs = [phrases.add(found, "ssamt-global", reads=reads), phrases.add(found, "ssamt-local", 1, reads=reads)]
    runs += [phrases.add(found, "ssamt", 1, reads=reads), phrases.add(found, "ssamt-local", reads=flat)]
    runs += [phrases.add(found, "ssamt", reads=[*other, *reads])]
    shown = section(found.report(tuple(runs)))
    assert [each.text("") for each in shown.all("span", "scale-name")] == ["SSAMT", "SSAMT without L3"]
    first, second = shown.all("article", "runs-2")  # what both have comes first, though it is the second example
    assert [each.attributes["aria-label"] for each in (first, second)] == [TEXT, "a cat"]
    names = [[each.text("") for each in pair.all("strong")] for pair in first.all("div", "pair")]
    assert names == [["SSAMT", "SSAMT without L3"]] * 2
    assert [each.text("") for each in second.all("strong")] == ["SSAMT", "SSAMT"]
    flat_tones = {each.attributes["class"] for each in first.all("p", "coloured")[1].all("span", "fragment")}
    assert flat_tones == {f"fragment tone-{TONES // 2}"}
    assert len(section(found.report(tuple(runs), examples=1)).all("article")) == 1


def test_runs_with_different_wrong_images_show_both(toy: Any, phrases: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    runs = (
        phrases.add(found, "ssamt", reads=both(phrases.Read)),
        phrases.add(found, "ssamt-local", reads=both(phrases.Read, wrong="test-010")),
    )
    (article,) = section(found.report(runs)).all("article")
    assert [each.attributes["alt"] for each in article.all("img")] == [OWN, WRONG, "test-010"]
    pairs = [[each.text("") for each in pair.all("strong")] for pair in article.all("div", "pair")]
    assert pairs == [["SSAMT", "SSAMT without L3"], ["SSAMT"], ["SSAMT without L3"]]


def test_no_examples_are_shown_when_none_are_wanted(toy: Any, phrases: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    report = found.report((phrases.add(found, "ssamt", reads=both(phrases.Read)),), examples=0)
    assert not [each for each in report.page.all("section") if each.attributes["id"] == "words"]


def test_without_the_dataset_the_words_remain(toy: Any, phrases: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    name = phrases.add(found, "ssamt", reads=both(phrases.Read))
    shutil.rmtree(found.made["prepare"])
    shown = section(found.report((name,)))
    assert [each.text("") for each in shown.all("span", "placeholder")] == [
        f"no photograph of {each}" for each in (OWN, WRONG)
    ]
    assert [shown_text(each) for each in shown.all("p", "coloured")] == [TEXT, TEXT]


def test_an_image_that_the_dataset_lacks_is_refused(toy: Any, phrases: Any, tmp_path: Path) -> None:
    found = toy.copy(tmp_path / "data")
    name = phrases.add(found, "ssamt", reads=both(phrases.Read, wrong="elsewhere"))
    with pytest.raises(DataError, match=r"names image elsewhere, which .* does not have; evaluate again"):
        found.report((name,))


def test_words_that_overlap_are_refused(toy: Any, phrases: Any, tmp_path: Path) -> None:
    class Overlapping(phrases.Read):
        def rows(self) -> list[dict[str, Any]]:
            rows = super().rows()
            rows[1]["starts"] = [0]
            return rows

    found = toy.copy(tmp_path / "data")
    name = phrases.add(found, "ssamt", reads=both(Overlapping))
    with pytest.raises(DataError, match=r"words of caption test-004#1 do not lie in it .*; evaluate again"):
        found.report((name,))


def test_punctuation_marks_are_no_words(one: Any, toy: Any, phrases: Any, tmp_path: Path) -> None:
    class WithMarks(phrases.Read):
        def rows(self) -> list[dict[str, Any]]:
            first, *others = super().rows()
            spans = [each.span() for each in re.finditer(r"[^\w\s]", self.text)]
            marks = [{**first, "tokens": [20 + k], "starts": [a], "ends": [b]} for k, (a, b) in enumerate(spans)]
            return [first, *({**each, "score": 9.0, "holds": False} for each in marks), *others]

    found = toy.copy(tmp_path / "data")
    report = found.report((phrases.add(found, "ssamt", reads=both(WithMarks)), "aoq.vsepp"))
    assert "9.00" not in section(report).text("")
    assert section(report) == section(one)


@given(st.text(max_size=40), st.data())
def test_pieces_put_the_caption_together_again(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    spans = data.draw(st.permutations(list(zip(cuts[::2], cuts[1::2], strict=False))))
    words = [(start, end, Fragment(text[start:end], 0.0, 0, True)) for start, end in spans]
    found = pieces(text, words)
    assert "".join(each if isinstance(each, str) else each.text for each in found) == text
    assert [each for each in found if not isinstance(each, str)] == [
        word for *_, word in sorted(words, key=lambda w: w[0])
    ]
    assert "" not in found


@pytest.mark.parametrize("spans", [[(0, 3), (2, 4)], [(0, 0)], [(3, 6)], [(-1, 2)]])
def test_pieces_refuse_words_outside_or_over_each_other(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="characters"):
        pieces("words", [(start, end, Fragment("", 0.0, 0, True)) for start, end in spans])


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(-20, 20), st.floats(-20, 20))
def test_tones_rise_with_the_score(first: float, second: float, one: float, other: float) -> None:
    scale = Scale("", min(first, second), max(first, second))
    assert scale.tone(min(one, other)) <= scale.tone(max(one, other))
    if scale.low < scale.high:
        assert (scale.tone(scale.low), scale.tone(scale.high)) == (0, TONES - 1)
    else:
        assert scale.tone(one) == TONES // 2


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, 0..1. Source: WCAG 2.2."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_is_readable_on_every_tone_and_the_two_ends_differ_in_blue_and_yellow(mode: int) -> None:
    folder = Path(itrpipe.reporting.__file__).parent
    css = "".join((folder / name).read_text() for name in ("base.css", "page.css"))
    (ink,) = re.findall(r"--ink: (#\w{6})", css)[mode : mode + 1]
    tones = re.findall(r"--tone-\d: (#\w{6})", css)[mode * TONES : (mode + 1) * TONES]
    assert len(re.findall(r"\.tone-\d \{", css)) == len(tones) == TONES
    for tone in tones:
        low, high = sorted((luminance(ink), luminance(tone)))
        assert (high + 0.05) / (low + 0.05) >= 4.5
    # Red-green blindness leaves the difference between blue and the mean of red and green.
    blues = [int(tone[5:], 16) - (int(tone[1:3], 16) + int(tone[3:5], 16)) / 2 for tone in tones]
    assert blues == sorted(blues)
    assert min(np.diff(blues)) >= 10
