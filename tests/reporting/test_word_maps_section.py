"""Word maps in the report: which runs, captions and words are shown, and what is drawn over the photographs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from itrpipe.reporting.sections.word_maps.section import TONES, chosen_words, outlines, place_of

from itrpipe.errors import DataError

TEXT = "a small dog under an <i>old</i> red roof by the sea"
WORDS = ["a", "small", "dog", "under", "an", "old", "red", "roof", "by", "the", "sea"]
PEAK = {"small": 0.1, "dog": 1.0, "old": 0.3, "red": 0.4, "roof": 0.5, "sea": 0.2, "under": 5.0, "the": 6.0}
OWN, WRONG = "test-000", "test-003"


def values_of(word: str, matched: bool) -> list[float]:
    """Zero but for one patch of 2 x 4, its place that of the word's number."""
    values = np.zeros(8)
    values[WORDS.index(word) % 8] = PEAK.get(word, 0.01) * (1.0 if matched else 0.5)
    return values.tolist()


def rows_of(
    caption: str, example: int = 0, wrong: str = WRONG, text: str = TEXT, images: int = 2, **changed: Any
) -> list[dict[str, Any]]:
    found = []
    for matched, image in ((True, OWN), (False, wrong))[:images]:
        for word in WORDS:
            start = re.search(rf"\b{word}\b", text)
            assert start is not None
            row = {"example": example, "caption_id": caption, "image_id": image, "matched": matched, "text": text}
            row |= {"start": start.start(), "end": start.end(), "rows": 2, "columns": 4, "area": [0.0, 0.25, 1.0, 0.75]}
            row |= {"values": values_of(word, matched), "word_score": PEAK.get(word, 0.0) / 8, "score": 0.456 - matched}
            found.append({**row, **changed})
    return found


def section_of(page: Any) -> Any:
    (found,) = [each for each in page.all("section") if each.attributes.get("id") == "word-maps"]
    return found


@pytest.fixture(scope="module")
def report(toy: Any, add_word_maps: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two runs with maps and one without; the second run has another wrong image for one caption."""
    found = toy.copy(tmp_path_factory.mktemp("maps") / "data")
    first = add_word_maps(found, "fne-memory-only", rows_of("test-000#0") + rows_of("test-000#1", 1, "test-005"))
    second = add_word_maps(found, "fne", rows_of("test-000#0") + rows_of("test-000#1", 1))
    add_word_maps(found, "fne", rows_of("test-000#0"), seed=1)
    return found.report((first, second, f"{second}.s1", "triplet.vsepp"))


@pytest.fixture(scope="module")
def section(report: Any) -> Any:
    return section_of(report.page)


def test_two_methods_are_shown_with_the_same_captions_side_by_side(section: Any) -> None:
    articles = section.all("article", "mapped")
    assert len(articles) == 2
    runs = [[each.text() for each in strip.all("strong")] for strip in articles[0].all("div", "heat-strip")]
    assert runs == [["dual encoder, FNE"], ["dual encoder, FNE, memory only"]] * 2
    assert [each.all("p", "which")[0].text("b") for each in articles[0].all("div", "seen")] == [
        "✓ own image",
        "a wrong image",
    ]
    scores = [each.text().rpartition(" ")[2] for each in articles[0].all("p", "under-run")]
    assert scores == ["−0.54", "−0.54", "0.46", "0.46"]


def test_a_run_with_a_wrong_image_of_its_own_has_it_to_itself(section: Any) -> None:
    pairs = section.all("article", "mapped")[1].all("div", "mapped-pair")
    names = [pair.all("svg", "photo")[0].attributes["aria-label"] for pair in pairs]
    assert names == [OWN, WRONG, "test-005"]
    assert [len(pair.all("div", "heat-strip")) for pair in pairs] == [2, 1, 1]
    assert pairs[2].all("strong")[0].text() == "dual encoder, FNE, memory only"


def test_the_content_words_that_vary_most_are_shown_in_their_order(section: Any) -> None:
    for strip in section.all("div", "heat-strip"):
        words = [each.all("span", "word")[0].text() for each in strip.all("li")]
        assert words == ["dog", "old", "red", "roof"]
    first = section.all("div", "heat-strip")[0]
    assert [each.all("span", "score")[0].text() for each in first.all("li")] == ["0.12", "0.04", "0.05", "0.06"]
    labels = [each.all("svg")[0].attributes["aria-label"] for each in first.all("li")]
    assert labels[0] == f"“dog” over {OWN}: highest upper centre"
    assert labels[1] == f"“old” over {OWN}: highest lower centre"


def test_patches_are_drawn_where_they_lie_and_as_strongly_as_the_word_finds_something(section: Any) -> None:
    """The 95th percentile of the 16 values of a word lies a quarter of the way from the second to the highest."""
    pairs = section.all("article", "mapped")[0].all("div", "mapped-pair")
    own, wrong = (pair.all("div", "heat-strip")[0].all("li")[0] for pair in pairs)
    (group,) = own.all("g")
    width, height = (float(part) for part in own.all("svg")[0].attributes["viewbox"].split()[2:])
    moved, scaled = re.fullmatch(r"translate\((.*)\) scale\((.*)\)", group.attributes["transform"]).groups()  # pyright: ignore
    assert [float(part) for part in moved.split()] == pytest.approx([0, height / 4], rel=1e-3)
    assert [float(part) for part in scaled.split()] == pytest.approx([width / 4, height / 4], rel=1e-3)
    (path,) = own.all("path")
    assert (path.attributes["class"], path.attributes["d"]) == ("heat-4", "M2 0h1v1h-1")
    (path,) = wrong.all("path")  # 0.5 of 0.625
    assert (path.attributes["class"], path.attributes["d"]) == ("heat-3", "M2 0h1v1h-1")


def test_a_photograph_is_on_the_section_once(section: Any) -> None:
    stored = section.all("svg", "store")[0].all("image")
    assert [each.attributes["href"][:23] for each in stored] == ["data:image/jpeg;base64,"] * 3
    keys = {each.attributes["id"] for each in stored}
    assert {each.attributes["href"] for each in section.all("use")} == {f"#{key}" for key in keys}
    assert len(keys) == 3
    assert not section.all("img")


def test_the_section_is_linked_and_captions_stay_text(report: Any, section: Any) -> None:
    assert [each.text() for each in report.page.all("a") if each.attributes["href"] == "#word-maps"] == ["Word maps"]
    assert section.all("p", "query")[0].text() == TEXT
    assert not section.all("i")


def test_so_many_captions_are_shown_as_are_asked_for_and_one_run_is_not_named(
    toy: Any, add_word_maps: Any, tmp_path: Any
) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_word_maps(found, "fne", rows_of("test-000#0") + rows_of("test-000#1", 1, images=1))
    for count in (1, 2):
        section = section_of(found.report((name, "triplet.vsepp"), examples=count).page)
        articles = section.all("article", "mapped")
        assert len(articles) == count
        assert not section.all("strong")
    assert len(articles[1].all("div", "mapped-pair")) == 1


@pytest.mark.parametrize("changed", [{"columns": 5}, {"start": 60, "end": 70}, {"start": 5, "end": 5}])
def test_words_without_place_or_map_are_refused(
    changed: dict[str, Any], toy: Any, add_word_maps: Any, tmp_path: Any
) -> None:
    found = toy.copy(tmp_path / "data")
    name = add_word_maps(found, "fne", rows_of("test-000#0", **changed))
    with pytest.raises(DataError, match="a word of caption test-000#0 has no place or map; evaluate again"):
        found.report((name, "triplet.vsepp"))


def test_runs_without_maps_have_no_such_section(done: Any) -> None:
    assert not [each for each in done.page.all("section") if each.attributes["id"] == "word-maps"]
    assert not [each for each in done.page.all("a") if each.attributes["href"] == "#word-maps"]


def test_function_words_are_shown_where_there_are_no_others() -> None:
    rows = [row for row in rows_of("c") if row["text"][row["start"] : row["end"]] in ("a", "an", "the", "by")]
    assert len(chosen_words(rows[:4])) == 4


@given(
    arrays.arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, TONES - 1)),
    st.integers(1, 3),
)
def test_outlines_cover_every_patch_with_its_tone_once(cells: np.ndarray, size: int) -> None:
    tones = cells.repeat(size, axis=0).repeat(size, axis=1)[: cells.size + 1, : cells.size + 1]
    painted = np.zeros_like(tones)
    for tone, shape in enumerate(outlines(tones, size), 1):
        drawn = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)", shape)
        assert "".join("M{} {}h{}v{}h-{}".format(*each) for each in drawn) == shape
        for left, top, width, height, back in (tuple(map(int, each)) for each in drawn):
            assert width == back
            assert (painted[top : top + height, left : left + width] == 0).all()
            painted[top : top + height, left : left + width] = tone
    np.testing.assert_array_equal(painted, tones)


@pytest.mark.parametrize(
    ("row", "column", "said"), [(0, 0, "upper left"), (2, 4, "lower right"), (1, 2, "centre"), (1, 0, "middle left")]
)
def test_places_are_told_in_thirds(row: int, column: int, said: str) -> None:
    values = np.zeros((3, 5))
    values[row, column] = 1
    assert place_of(values) == said


def test_large_maps_are_drawn_in_means_of_patches(toy: Any, add_word_maps: Any, tmp_path: Any) -> None:
    """Of 17 columns two at a time are one cell; the last stands alone, as does the lower row."""
    values = np.zeros((3, 17))
    values[:2, 4], values[2, 16] = 1.0, 0.5
    found = toy.copy(tmp_path / "data")
    name = add_word_maps(found, "fne", rows_of("test-000#0", rows=3, columns=17, values=values.ravel().tolist()))
    strip = section_of(found.report((name, "triplet.vsepp")).page).all("div", "heat-strip")[0]
    shapes = {path.attributes["class"]: path.attributes["d"] for path in strip.all("li")[0].all("path")}
    assert shapes == {"heat-4": "M4 0h2v2h-2M16 2h1v1h-1"}
