"""Perplexity by a tiny GPT-2: the numbers of transformers, sentence by sentence, and what is read of a file."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.synthesis.edits import Edit
from itrpipe.synthesis.language_model import LanguageModel, fluency
from itrpipe.synthesis.sentences import Sentence, SentenceFile, join_parts, write_part

TEXTS = ["a dog runs on the road", "dog", "the road runs a dog on the road a dog runs on a", "a cat", ""]


@pytest.fixture
def gpt2(saved_gpt2: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return Path(shutil.copytree(saved_gpt2, tmp_path / "gpt2"))


def test_perplexities_are_those_of_every_text_alone(gpt2: Path) -> None:
    network = transformers.GPT2LMHeadModel.from_pretrained(gpt2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    seen: list[int] = []
    found = LanguageModel(str(gpt2)).perplexities(TEXTS, seen.append)
    for text, perplexity in zip(TEXTS[:4], found, strict=False):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]][:10]])
        with torch.no_grad():
            loss = network(ids, labels=ids).loss
        assert perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert np.isnan(found[4])
    assert len(set(found[:4].tolist())) == 4
    assert sum(seen) == 5


def test_kept_sentences_are_read_with_their_captions(gpt2: Path, tmp_path: Path) -> None:
    def sentence(caption: str, text: str, kept: bool) -> Sentence:
        reason = "kept" if kept else "outranked"
        return Sentence(caption, "i", text, [Edit(0, "a", "b")], 0.0, 0.0, -1.0, -1.0, kept, reason)

    first = [sentence("c0", TEXTS[0], True), sentence("c0", TEXTS[1], True), sentence("c1", TEXTS[3], False)]
    parts = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    write_part(parts[0], first, {"kept": 2, "outranked": 1})
    write_part(parts[1], [sentence("c2", TEXTS[2], True)], {"kept": 1})
    join_parts(parts, tmp_path)
    file, captions = SentenceFile(tmp_path), {"c0": "a dog", "c1": "a cat", "c2": "the road"}
    model = LanguageModel(str(gpt2))
    found = fluency(file, captions, model, 10, 0)
    assert (found["sentences"], found["captions"]) == (3, 2)
    assert found["perplexity"] == pytest.approx(model.perplexities(TEXTS[:3]).mean(), abs=0.01)
    assert found["caption_perplexity"] == pytest.approx(model.perplexities(["a dog", "the road"]).mean(), abs=0.01)
    fewer = [fluency(file, captions, model, 1, seed)["perplexity"] for seed in range(20)]
    assert len(set(fewer)) == 3
    assert fluency(file, captions, model, 1, 4) == fluency(file, captions, model, 1, 4)


def test_no_sentence_has_no_perplexity(gpt2: Path, tmp_path: Path) -> None:
    write_part(tmp_path / "part.parquet", [], {"identical": 3})
    join_parts([tmp_path / "part.parquet"], tmp_path)
    found = fluency(SentenceFile(tmp_path), {"c0": "a dog"}, LanguageModel(str(gpt2)), 5, 0)
    assert found == {"sentences": 0, "captions": 0, "perplexity": None, "caption_perplexity": None}


def test_what_is_no_gpt2_is_one_line(gpt2: Path, saved_encoders: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="model type 'bert' is not supported, supported are gpt2"):
        LanguageModel(str(saved_encoders / "bert"))
    with pytest.raises(MissingInputError, match="is not a folder"):
        LanguageModel(str(tmp_path / "nowhere"))
    config = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    with pytest.raises(DataError, match="has shape"):
        LanguageModel(str(gpt2))
    (gpt2 / "config.json").write_text(json.dumps(config))
    (gpt2 / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(DataError, match="cannot be read as weights"):
        LanguageModel(str(gpt2))
