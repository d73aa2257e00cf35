"""Synthetic sentences: what became of them, and captions beside the hardest ones with their changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from itrpipe.reporting.sections.synthetic.section import Change, edited

from itrpipe.errors import DataError

BY_MODEL = {"maker": "model", "method": "pretrain", "backbone": "uniter", "seed": 1}


@pytest.fixture(scope="module")
def written(toy: Any, add_sentences: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, tuple[str, ...]]:
    """Two seeds that learned from the same sentences, and the first training, which learned from none."""
    found = toy.copy(tmp_path_factory.mktemp("synthetic") / "data")
    return found, (*(add_sentences(found, "tags-static", BY_MODEL, seed) for seed in (0, 1)), "triplet.vsepp")


@pytest.fixture(scope="module")
def shown(written: tuple[Any, tuple[str, ...]]) -> Any:
    """The report over them."""
    found, names = written
    return found.report(names, examples=12)


def section_of(report: Any) -> Any:
    (section,) = [each for each in report.page.all("section") if each.attributes["id"] == "synthetic"]
    return section


def test_the_table_counts_what_became_of_all_sentences(shown: Any) -> None:
    (row,) = section_of(shown).all("tbody")[0].all("tr")
    assert row.all("th")[0].text() == "TAGS, written by UNITER, pretrained, seed 1"
    assert row.all("span", "label")[0].text("") == "2 runs trained with them"
    cells = {cell.attributes["data-heading"]: cell.text() for cell in row.all("td")}
    # Of each image: one sentence of the first caption, two of the second, one rejected.
    assert cells["number"] == "160"
    assert (cells["kept"], cells["same as caption"], cells["twice"]) == ("75.0", "25.0", "0.0")
    assert cells["places changed"] == "1.3"
    assert cells["beat their caption"] == "33.3"


def test_examples_show_the_hardest_first_with_their_changes(shown: Any) -> None:
    examples = section_of(shown).all("article")
    assert len(examples) == 12
    for example in examples:
        (score,) = example.all("p", "query")[0].all("span", "score")
        assert score.text() == "2.00"
        caption = example.all("p", "query")[0].text()
        changes = [
            [(old.text(), new.text()) for old, new in zip(each.all("del"), each.all("ins"), strict=True)]
            for each in example.all("li")
        ]
        beating = [bool(each.all("span", "beats")) for each in example.all("li")]
        if caption.startswith("a plain caption"):
            assert changes == [[("plain", "painted")], [("plain", "grand"), ("caption", "copy")]]
            assert beating == [True, False]
        else:
            assert changes == [[("alert", "<b>bad</b>")]]
            assert beating == [False]
    assert {len(example.all("li")) for example in examples} == {1, 2}


def test_a_sentence_reads_as_its_caption_with_the_new_words(shown: Any) -> None:
    for example in section_of(shown).all("article"):
        caption = example.all("p", "query")[0].text()
        for each in example.all("li"):
            (text,) = each.all("span", "text")
            (parts,) = [[part if isinstance(part, str) else part.tag for part in text.children]]
            assert all(part in ("del", "ins", " ") or part in caption for part in parts)


def test_other_seeds_show_other_captions(written: tuple[Any, tuple[str, ...]], shown: Any) -> None:
    found, names = written
    captions = [
        [each.text() for each in section_of(report).all("p", "query")]
        for report in (shown, found.report(names, examples=12, seed=3))
    ]
    assert captions[0] != captions[1]


def test_without_sentences_there_is_no_section(done: Any) -> None:
    assert "synthetic" not in [each.attributes["id"] for each in done.page.all("section")]


def test_removed_sentences_are_named(written: tuple[Any, tuple[str, ...]], tmp_path: Path) -> None:
    found, names = written
    copy = found.copy(tmp_path / "data")
    shutil.rmtree(copy.made["phrases"])
    section = section_of(copy.report(names))
    assert f"synthesize/{copy.made['phrases'].name} was removed" in section.all("p", "missing")[0].text("")
    assert not section.all("table")
    assert not section.all("article")


def test_sentences_of_unknown_captions_are_an_error(toy: Any, add_sentences: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    name = add_sentences(copy, "tags-static", {**BY_MODEL, "split": "test"})  # those of the training split
    with pytest.raises(DataError, match="which its dataset does not have; write them again"):
        copy.report((name,))


@pytest.mark.parametrize(
    ("caption", "sentence", "edits", "expected"),
    [
        ("a red car", "a blue car", [(1, "red", "blue")], ["a ", Change("red", "blue"), " car"]),
        # The second `a`, which only what follows tells from the first.
        ("a man a dog", "a man the dog", [(2, "a", "the")], ["a man ", Change("a", "the"), " dog"]),
        ("a a a", "a b a", [(1, "a", "b")], ["a ", Change("a", "b"), " a"]),
        # Of two words at once, given in another order, the last without an end.
        ("one two", "three four", [(1, "two", "four"), (0, "one", "three")], None),
        ("same", "same", [], ["same"]),
    ],
)
def test_changes_are_found_where_both_texts_agree(
    caption: str, sentence: str, edits: list[tuple[int, str, str]], expected: list[Any] | None
) -> None:
    given = [{"position": position, "old": old, "new": new} for position, old, new in edits]
    found = edited(caption, sentence, given)
    assert found == (expected or [Change("one", "three"), " ", Change("two", "four")])
    assert "".join(each if isinstance(each, str) else each.new for each in found) == sentence
    assert "".join(each if isinstance(each, str) else each.old for each in found) == caption


def test_edits_of_another_caption_are_refused() -> None:
    with pytest.raises(ValueError, match="is not what its edits make"):
        edited("a red car", "a blue bus", [{"position": 1, "old": "red", "new": "blue"}])
