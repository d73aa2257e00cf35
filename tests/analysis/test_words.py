"""How well a model tells wrong words, of a tiny UNITER that nothing taught: what is masked, drawn and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.analysis.words import (
    DRAWS,
    ReadTokens,
    WordReader,
    WordTest,
    has_word_heads,
    itm_probability,
    word_maxima,
)
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.learning.sentences import NO_WORD, UNLABELLED, CaptionMasks
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.captions import CaptionPart, CaptionTokens, PieceIds
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import build
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.synthesis.language_model import LanguageModel
from itrpipe.training.data import open_split
from itrpipe.training.saved import SavedModel

CAPTION = "A cat number 16 is on the road 0."
SIZES = Uniter(embed_dim=8, layers=1, heads=2, feed_forward_dim=16, max_words=20)


def split_of(root: Path) -> Split:
    return PreparedDataset.open(next(root.glob("tiny/prepare/files-*"))).split("test")


def graphs_of(root: Path) -> Path:
    return next(root.glob("tiny/parse/rules.hanta-*/"))


def saved_of(settings: Uniter, tokens: CaptionTokens, size: int, **loss: Any) -> SavedModel:
    """An untrained model that reads these tokens, and the settings it would have been trained with."""
    torch.manual_seed(0)
    method = TagsDc.model_validate({"mask": "words", **loss})
    config = {"backbone": "uniter", "model": settings.model_dump(), "loss": method.model_dump()}
    return SavedModel(build(settings, 6, size).eval(), tokens, config)


def examined(root: Path, saved: SavedModel) -> WordTest:
    features = FeatureFile.open(next(root.glob("tiny/extract/boxed-*/")) / FEATURES)
    graphs = graphs_of(root) if saved.config["loss"]["mask"] == "phrases" else None
    data = open_split(split_of(root), features, saved.tokens, saved.settings)
    return WordTest(saved, data, "cpu", graphs)


def word_test(root: Path, **loss: Any) -> WordTest:
    """Of a model with a vocabulary of its own."""
    words = Vocabulary.build(split_of(root).tokens, 1)
    return examined(root, saved_of(SIZES, words, len(words), **loss))


def test_figures_count_words_that_are_found_and_corrected(boxed_chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two masked words one is written as the caption has it; this one the head knows, if it is asked."""
    test = word_test(boxed_chain, compare="off")
    read, asked_at = test._reader.read, []

    def mask_two(self: CaptionMasks, rows: np.ndarray, width: int, copies: int, *given: Any) -> Any:
        own = np.repeat(self.tokens[rows, :width], copies, axis=0)
        return own, np.where(np.isin(np.arange(width), (2, 4)), own, UNLABELLED)

    def write(masked: torch.Tensor, labels: torch.Tensor, *given: Any) -> torch.Tensor:
        sentences = masked[:, None].repeat(1, DRAWS, 1)
        sentences[:, :, 4] = 5 + (sentences[:, :, 4] + torch.arange(DRAWS)) % 20
        return sentences

    def answer(images: Any, image_rows: Any, rows: np.ndarray, tokens: np.ndarray, asked: Any = False) -> Any:
        asked = np.broadcast_to(asked, tokens.shape)
        asked_at.append(np.unique(asked.nonzero()[1]).tolist())
        places, own = np.arange(tokens.shape[1]), test._reader.captions.tokens[rows, : tokens.shape[1]]
        found = read(images, image_rows, rows, tokens, asked)
        mismatch = np.where(np.isin(places, (1, 2, 4)), 0.9, 0.0) * np.ones(tokens.shape)
        scores = np.where((tokens == own).all(axis=1), 0.0, np.arange(len(tokens)) - 0.5).astype(np.float32)
        corrections = np.where(asked & (places == 2), own, 5 + own % 20)
        return found._replace(scores=scores, mismatch=mismatch, corrections=corrections)

    monkeypatch.setattr(CaptionMasks, "draw", mask_two)
    monkeypatch.setattr("itrpipe.analysis.words.synthetic.refill", write)
    monkeypatch.setattr(test._reader, "read", answer)
    figures = test.run()
    kept, words = figures["drawn"]["kept"], figures["discrimination"]["all"]["words"]
    assert kept > 0
    assert asked_at == [[2, 4], []]  # of the sentences, and of the captions
    # Two words of the caption are taken for wrong, and so is the one that is.
    right = {
        "matching": (words - 3 * kept, words - kept),
        "mismatching": (kept, kept),
        "all": (words - 2 * kept, words),
    }
    shares = {name: {"percent": pytest.approx(100 * one / of), "words": of} for name, (one, of) in right.items()}
    assert figures["discrimination"] == shares
    assert figures["correction"] == {"percent": 0.0, "words": kept}
    assert figures["correction_masked"] == {"percent": 50.0, "words": 2 * kept}
    assert figures["below_caption"] == {"percent": pytest.approx(100 / kept), "sentences": kept}


def test_phrases_are_masked_where_the_model_was_trained_on_phrases(boxed_chain: Path) -> None:
    test = word_test(boxed_chain, mask="phrases")
    graphs = MaskCandidates.read(graphs_of(boxed_chain))
    known, drawn = test._reader.captions, Counter[str]()
    images = test._reader.embed(test._data.images(known.split.caption_image))
    owners, tokens, masked = test._write(np.arange(20), images, known.tokens, np.random.default_rng(0), drawn)
    assert len(tokens) == drawn["kept"] > 0
    assert ((tokens != known.tokens[owners]) <= masked).all()
    rows = graphs.rows(known.split.caption_ids.tolist())[owners]
    candidates = graphs.batch(rows)[:, :, : masked.shape[1] - 2]
    masked = masked[:, 1 : 1 + candidates.shape[2]]
    inside = candidates & (candidates <= masked[:, None]).all(axis=2, keepdims=True)
    assert (inside.any(axis=1) == masked).all()  # whole phrases, and nothing else
    assert (candidates.sum(axis=2) > 1).any()
    figures = test.run()
    assert figures["mask"] == "phrases"


def test_words_are_drawn_and_compared_as_in_training(boxed_chain: Path) -> None:
    """At a temperature near zero, all draws of a copy are one sentence, which is kept once."""
    found = {
        name: word_test(boxed_chain, **loss).run()["drawn"]
        for name, loss in (
            ("usual", {}),
            ("cold", {"temperature": 1e-4, "compare": "off"}),
            ("off", {"compare": "off"}),
        )
    }
    repeated = 20 * 4 * (DRAWS - 1)
    assert found["cold"]["duplicate"] >= repeated / 2
    assert found["usual"].get("duplicate", 0) < repeated / 4
    assert found["usual"]["false negative"] > 0
    assert "false negative" not in found["off"]


def test_sentences_that_the_image_is_known_to_show_do_not_count(
    boxed_chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the captions of every image say all words, nothing that is written is surely wrong."""
    test = word_test(boxed_chain)
    every = torch.arange(len(test._reader.captions.pieces))
    monkeypatch.setattr(CaptionMasks, "known", lambda self, rows: every.repeat(len(rows), 1))
    figures = test.run()
    assert figures["drawn"].keys() <= {"identical", "false negative"}
    assert figures["below_caption"] == {"percent": None, "sentences": 0}
    assert figures["discrimination"]["all"] == {"percent": None, "words": 0}


def test_a_language_model_reads_every_caption_its_sentence_and_the_correction(
    boxed_chain: Path, saved_gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.analysis.words.THRESHOLD", 0.0)  # every word is replaced
    model = LanguageModel(str(saved_gpt2))
    read: list[list[str]] = []
    perplexities = model.perplexities
    monkeypatch.setattr(model, "perplexities", lambda texts: read.append(texts) or perplexities(texts))
    fluency = word_test(boxed_chain).run(captions=20, language_model=model)["fluency"]
    captions, written, corrected = read
    assert fluency["sentences"] == len(captions) == len(written) == len(corrected) > 10
    assert set(captions) <= set(split_of(boxed_chain).texts)
    assert not set(written) & set(captions)
    for kind, texts in zip(("captions", "written", "corrected"), list(read), strict=True):
        assert fluency[kind] == pytest.approx(np.mean(perplexities(texts)), abs=0.01)
    silent = word_test(boxed_chain, weight_correction=0.0).run(captions=20, language_model=model)
    assert silent["fluency"]["corrected"] is None


def test_a_word_in_pieces_is_wrong_where_one_of_its_pieces_is(boxed_chain: Path, saved_encoders: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(saved_encoders / "bert")
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    settings = SIZES.model_copy(update={"tokenizer": "bert"})
    saved = saved_of(settings, PieceIds(tokenizer, CaptionPart.of(settings), 20), len(tokenizer))
    assert has_word_heads(saved)
    split = split_of(boxed_chain)
    reader = WordReader(saved, split, "cpu")
    row = np.array([split.texts.index(CAPTION)])
    tokens = reader.captions.tokens[row]
    mismatch = np.where(tokens == tokenizer.convert_tokens_to_ids("##6"), 0.9, 0.1).astype(np.float32)
    corrections = np.full_like(tokens, tokenizer.convert_tokens_to_ids("##9"))
    (found,) = reader.corrected(row, tokens, ReadTokens(np.zeros(1, np.float32), mismatch, corrections))
    words = [CAPTION[start:end] for start, end in found.sentence.spans]
    assert dict(zip(words, found.flagged.tolist(), strict=True)) == {word: word == "16" for word in words}
    assert found.corrected.text == CAPTION.replace("16", "19")
    figures = examined(boxed_chain, saved).run()
    assert figures["discrimination"]["all"]["words"] == 11 * figures["drawn"]["kept"] > 0


def test_a_word_in_pieces_has_the_highest_value_and_any_score_is_a_probability() -> None:
    values = np.array([[0.9, 0.1, 0.2, 0.8], [0.9, 0.3, 0.0, 0.0]])
    words = np.array([[NO_WORD, 0, 1, 1], [NO_WORD, 0, NO_WORD, NO_WORD]])
    np.testing.assert_array_equal(word_maxima(values, words), [[0.1, 0.8], [0.3, 0.0]])
    assert [itm_probability(score) for score in (0.0, 800.0, -800.0, 2.0)] == pytest.approx([0.5, 1, 0, 0.880797])
