"""Sentences of a tiny training set, by a model made of a table and by rules, over interruptions too."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from itrpipe.models.base import TextBatch
from itrpipe.negatives.caption_masks import SpecialTokens
from itrpipe.negatives.masking import MASK_RATE
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.synthesis.by_model import ModelMaker, ModelSettings
from itrpipe.synthesis.by_rules import RuleCaptions, RuleMaker
from itrpipe.synthesis.captions import TokenCaptions
from itrpipe.synthesis.edits import Edit, apply_edits
from itrpipe.synthesis.make import Writing
from itrpipe.synthesis.opened import Opened, SentenceMaker
from itrpipe.synthesis.rules import RULES, NounVocabulary, TaggedCaption
from itrpipe.synthesis.sentences import SENTENCES_FILE, SentenceFile, join_parts
from itrpipe.synthesis.statistics import synthesis_statistics
from tests.maps import made

TEXTS = ("a red dog runs", "the dogs run fast", "two cats sleep", "a blue car", "a car is blue here")
IMAGE_ROWS = np.array([0, 0, 1, 2, 2])
PIECES = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "red", "dog", "##s", "run", "the", "fast", "two", "cat", "sleep"]
PIECES += ["blue", "car", "is", "here", "bird", "tree", "[MASK]"]
SPECIALS = SpecialTokens(len(PIECES) - 1, (0, 1, 2, 3), (4, len(PIECES) - 1))


def token_captions() -> TokenCaptions:
    width = 8
    tokens, words = np.zeros((len(TEXTS), width), dtype=np.int64), np.full((len(TEXTS), width), -1)
    lengths, spans = [], []
    for row, text in enumerate(TEXTS):
        ids, owners, places, at = [1], [-1], [], 0
        for number, word in enumerate(text.split()):
            start = text.index(word, at)
            at = start + len(word)
            places.append((start, at))
            stem = word.removesuffix("s") if word not in PIECES else word
            pieces = [PIECES.index(stem)] + ([PIECES.index("##s")] if stem != word else [])
            ids += pieces
            owners += [number] * len(pieces)
        ids.append(2)
        tokens[row, : len(ids)] = ids
        words[row, : len(owners)] = owners
        lengths.append(len(ids))
        spans.append(np.array(places))
    ids = [f"c{row}" for row in range(len(TEXTS))]
    return TokenCaptions(ids, TEXTS, ["i0", "i1", "i2"], IMAGE_ROWS, tokens, np.array(lengths), words, spans, PIECES)


class TableModel:
    """Writes any word with a fixed probability, and prefers sentences by a fixed worth of their words."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(len(PIECES), generator=generator)
        self.worth = torch.randn(len(PIECES), generator=generator)
        self.worth[0] = 0.0  # padding
        self.ranked: list[int] = []
        self.passes = 0

    def mlm_logits(self, images: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        self.passes += 1
        assert len(images) == len(texts.tokens) == len(texts.lengths)
        return self.logits.expand(int(labelled.sum()), -1)

    def rank(self, images: Tensor, texts: TextBatch) -> Tensor:
        self.ranked.append(len(images))
        assert (texts.tokens[torch.arange(len(images)), texts.lengths - 1] == 2).all()
        return self.worth[texts.tokens].sum(dim=1) + images


def phrases(rows: np.ndarray) -> np.ndarray:
    """The first word, and the second with the third."""
    found = np.zeros((len(rows), 2, 5), dtype=bool)
    found[:, 0, 0] = found[:, 1, 1] = found[:, 1, 2] = True
    return found


def maker(settings: ModelSettings, model: TableModel | None = None, with_phrases: bool = True) -> ModelMaker:
    candidates = phrases if with_phrases else None
    return ModelMaker(token_captions(), model or TableModel(), candidates, settings, SPECIALS)


def run(made_by: SentenceMaker, folder: Path, block_size: int = 2) -> SentenceFile:
    join_parts(made(writing(made_by, block_size), folder / "parts").paths, folder)
    return SentenceFile(folder)


def writing(made_by: SentenceMaker, block_size: int = 2) -> Writing:
    return Writing(lambda: Opened(made_by, {f"c{row}": text for row, text in enumerate(TEXTS)}, None), block_size)


def rows_of(file: SentenceFile) -> list[dict]:
    return [row for table in file.row_groups() for row in table.to_pylist()]


@pytest.mark.parametrize("with_phrases", [True, False])
def test_a_model_makes_new_sentences_of_each_caption(tmp_path: Path, with_phrases: bool) -> None:
    model, settings = TableModel(), ModelSettings(copies=4, draws=5, keep=3)
    file = run(maker(settings, model, with_phrases), tmp_path)
    assert model.passes == 3  # one for each block
    assert sum(file.drawn.values()) == len(TEXTS) * 20
    kept = Counter(row["caption_id"] for row in rows_of(file))
    assert set(kept) == {f"c{row}" for row in range(len(TEXTS))}
    assert max(kept.values()) == 3
    assert file.drawn["kept"] == len(file) == sum(kept.values())
    captions = token_captions()
    for row in rows_of(file):
        caption = int(row["caption_id"][1:])
        starts = captions.spans[caption][:, 0].tolist()
        edits = [Edit(**edit) for edit in row["edits"]]
        assert row["kept"]
        assert apply_edits(TEXTS[caption], starts, edits) == row["text"] != TEXTS[caption]
        assert row["image_id"] == f"i{IMAGE_ROWS[caption]}"
        if with_phrases:
            assert {edit.position for edit in edits} <= {0, 1, 2}
        siblings = np.flatnonzero(IMAGE_ROWS[caption] == IMAGE_ROWS)
        own = {word for other in siblings for word in TEXTS[other].split()}
        assert not {word for edit in edits for word in edit.new.split()} <= own
        assert "[" not in row["text"]


def test_scores_and_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    model, settings = TableModel(), ModelSettings(copies=4, draws=6, keep=5, noise=False)
    rows = rows_of(run(maker(settings, model), tmp_path))
    log_softmax = model.logits.log_softmax(dim=0)
    captions = token_captions()
    one_word = [row for row in rows if [edit["position"] for edit in row["edits"]] == [0] and row["caption_id"] == "c2"]
    assert one_word
    alone = []
    for row in one_word:
        new, old = PIECES.index(row["edits"][0]["new"]), PIECES.index("two")
        base = model.worth[captions.tokens[2]].sum() + 1
        assert row["positive_score"] == pytest.approx(base.item(), abs=1e-5)
        assert row["score"] == pytest.approx((base + model.worth[new] - model.worth[old]).item(), abs=1e-5)
        # The first word is a phrase of its own, unless the other phrase was masked as well.
        if math.isclose(row["caption_log_probability"], log_softmax[old].item(), rel_tol=1e-5):
            assert row["log_probability"] == pytest.approx(log_softmax[new].item(), rel=1e-5)
            alone.append(row)
    assert alone
    scores: dict[str, list[float]] = {}
    for row in rows:
        scores.setdefault(row["caption_id"], []).append(row["score"])
    assert all(each == sorted(each, reverse=True) for each in scores.values())


def test_every_block_draws_words_of_its_own() -> None:
    def first_words(rows: np.ndarray) -> np.ndarray:
        return phrases(rows)[:, :1]  # all that can be masked, so that the words alone are left to chance

    def drawn(block: int, seed: int = 0) -> list[str]:
        settings = ModelSettings(copies=1, draws=6, noise=False, compare="off", seed=seed)
        of_model = ModelMaker(token_captions(), TableModel(), first_words, settings, SPECIALS)
        return [each.text for each in of_model.make(range(3, 4), block)[0]]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(0) != drawn(0, seed=1)


def test_a_piece_that_goes_on_is_written_behind_the_word_before_it() -> None:
    class OnlyPlurals(TableModel):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.full((len(PIECES),), -50.0)
            self.logits[PIECES.index("##s")] = 0.0

    settings = ModelSettings(copies=30, draws=1, compare="off")
    sentences, _ = maker(settings, OnlyPlurals(), with_phrases=False).make(range(3, 4), 0)
    written = {sentence.text: list(sentence.edits) for sentence in sentences}
    assert written["as car"] == [Edit(0, "a blue", "as")]
    assert written["s blue car"] == [Edit(0, "a", "s")]
    assert written["a blues"] == [Edit(1, "blue car", "blues")]


def test_rejected_sentences_are_written_once_where_they_are_wanted(tmp_path: Path) -> None:
    settings = ModelSettings(copies=5, draws=8, keep=2, write_rejected=True)
    rows = rows_of(run(maker(settings), tmp_path / "all"))
    kept = rows_of(run(maker(replace(settings, write_rejected=False)), tmp_path / "kept"))
    assert [row for row in rows if row["kept"]] == kept
    reasons = Counter(row["reason"] for row in rows)
    assert reasons["outranked"] > 0
    assert reasons["false negative"] > 0
    assert reasons["duplicate"] == 0
    assert all((row["score"] is None) == (row["reason"] in {"identical", "false negative"}) for row in rows)
    for row in rows:
        if row["reason"] == "false negative":
            siblings = np.flatnonzero(IMAGE_ROWS[int(row["caption_id"][1:])] == IMAGE_ROWS)
            pieces = {PIECES[token].removeprefix("##") for token in token_captions().tokens[siblings].flat}
            new = {word for edit in row["edits"] for word in edit["new"].split()}
            assert {word if word in pieces else word.rstrip("s") for word in new} <= pieces | {""}  # "dog", "##s"
    for caption in range(len(TEXTS)):
        outranked = [
            row["score"] for row in rows if row["caption_id"] == f"c{caption}" and row["reason"] == "outranked"
        ]
        best = [row["score"] for row in kept if row["caption_id"] == f"c{caption}"]
        assert not outranked or max(outranked) <= min(best)


def test_without_the_filter_no_sentence_is_a_false_negative(tmp_path: Path) -> None:
    settings = ModelSettings(copies=5, draws=8)
    with_filter = run(maker(settings), tmp_path / "with").drawn
    without = run(maker(replace(settings, compare="off")), tmp_path / "without").drawn
    assert with_filter["false negative"] > 0
    assert "false negative" not in without
    assert without["kept"] > with_filter["kept"]


@pytest.mark.parametrize("by_rules", [False, True])
def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path: Path, by_rules: bool) -> None:
    def fresh() -> SentenceMaker:
        return rule_maker() if by_rules else maker(ModelSettings(copies=3, draws=4))

    run(fresh(), tmp_path / "whole")
    folder, work = tmp_path / "interrupted", writing(fresh())
    last = work.parts()[2]
    (folder / "parts").mkdir(parents=True)
    work.make(work.open(), last, folder / "parts" / f"{last.name}.parquet")
    assert made(writing(fresh()), folder / "parts").rows == len(TEXTS) - last.rows
    run(fresh(), folder)
    assert (folder / SENTENCES_FILE).read_bytes() == (tmp_path / "whole" / SENTENCES_FILE).read_bytes()
    other = maker(ModelSettings(copies=3, draws=4, seed=1))
    assert other.make(range(2), 0) != maker(ModelSettings(copies=3, draws=4)).make(range(2), 0)


def test_only_sentences_that_are_left_are_scored(tmp_path: Path) -> None:
    model = TableModel()
    file = run(maker(ModelSettings(copies=4, draws=5, keep=2), model), tmp_path, block_size=len(TEXTS))
    assert model.ranked == [file.drawn["kept"] + file.drawn["outranked"], len(TEXTS)]


def rule_maker(
    rules: tuple[str, ...] = RULES, keep: int = 4, texts: tuple[str, ...] = TEXTS, images: np.ndarray = IMAGE_ROWS
) -> RuleMaker:
    parser = RulesParser("lexicon")
    tagged = [TaggedCaption(text, parser.analyse(text).tokens) for text in texts]
    captions = RuleCaptions([f"c{row}" for row in range(len(texts))], ["i0", "i1", "i2"], images, tagged)
    return RuleMaker(captions, NounVocabulary(tagged, 1), rules, keep, seed=3)


def test_rules_make_sentences_that_no_model_scored(tmp_path: Path) -> None:
    file = run(rule_maker(), tmp_path)
    rows = rows_of(file)
    assert all(row["kept"] and row["score"] is None and row["log_probability"] is None for row in rows)
    assert all(row["text"] not in TEXTS for row in rows)
    assert {"a red cat runs", "a red car runs"} <= {row["text"] for row in rows}
    assert len({(row["caption_id"], row["text"]) for row in rows}) == len(rows) == file.drawn["kept"]
    found = synthesis_statistics(file, len(TEXTS))
    assert found["gap"] is None
    assert found["sentences"] == len(rows)
    numbers = rows_of(run(rule_maker(("numerals",), keep=2), tmp_path / "numbers"))
    assert {row["caption_id"] for row in numbers} <= {"c0", "c2", "c3", "c4"}
    assert max(Counter(row["caption_id"] for row in numbers).values()) == 2


def test_rules_leave_out_what_another_caption_of_the_image_says() -> None:
    texts, same, different = ("a dog", "two dogs"), np.array([0, 0]), np.array([0, 1])
    found, drawn = rule_maker(("numerals",), 99, texts, same).make(range(1), 0)
    assert "two dogs" not in {sentence.text for sentence in found}
    assert drawn == {"false negative": 1, "kept": len(found)}
    others, _ = rule_maker(("numerals",), 99, texts, different).make(range(1), 0)
    assert {sentence.text for sentence in others} == {"two dogs", *(sentence.text for sentence in found)}


def test_the_defaults_are_those_of_the_paper() -> None:
    settings = ModelSettings()
    assert (settings.copies, settings.draws, settings.keep, settings.temperature) == (20, 20, 31, 1.5)
    assert MASK_RATE == 0.15


def test_rules_write_no_noun_that_another_caption_of_the_image_has() -> None:
    texts = ("a dog on grass", "a cat on grass", "a horse runs")
    together, _ = rule_maker(("nouns",), 99, texts, np.array([0, 0, 1])).make(range(1), 0)
    apart, _ = rule_maker(("nouns",), 99, texts, np.array([0, 1, 2])).make(range(1), 0)
    assert "a cat on grass" not in {each.text for each in together}
    assert {"a cat on grass", "a horse on grass"} <= {each.text for each in apart}
    assert not any("cat" in each.text for each in together)


def test_blocks_draw_for_themselves() -> None:
    """Whatever was made before, as a resumed run has not."""
    texts, images = ("two dogs run",) * 2, np.array([0, 1])

    def drawn(maker: RuleMaker, row: int, block: int) -> list[str]:
        return [each.text for each in maker.make(range(row, row + 1), block)[0]]

    maker = rule_maker(("numerals",), 3, texts, images)
    first, second = drawn(maker, 0, 0), drawn(maker, 0, 1)
    assert first != second
    assert drawn(maker, 1, 0) == drawn(rule_maker(("numerals",), 3, texts, images), 0, 0) == first
