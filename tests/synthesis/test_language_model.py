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
from itrpipe.synthesis.language_model import LanguageModel, fluency
from tests.synthesis.test_sentences import joined, sentence

TEXTS = ["a dog runs on the road", "dog", "the road runs a dog on the road a dog runs on a", "a cat", ""]


def test_perplexities_are_those_of_every_text_alone(saved_gpt2: Path) -> None:
    network = transformers.GPT2LMHeadModel.from_pretrained(saved_gpt2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved_gpt2)
    seen: list[int] = []
    found = LanguageModel(str(saved_gpt2)).perplexities(TEXTS, seen.append)
    for text, perplexity in zip(TEXTS[:4], found, strict=False):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]][:10]])
        with torch.no_grad():
            assert perplexity == pytest.approx(math.exp(network(ids, labels=ids).loss), rel=1e-5)
    assert np.isnan(found[4])
    assert len(set(found[:4].tolist())) == 4
    assert sum(seen) == 5


def test_kept_sentences_are_read_with_their_captions(saved_gpt2: Path, tmp_path: Path) -> None:
    first = [sentence(0, 0, text=TEXTS[0]), sentence(0, 0, text=TEXTS[1]), sentence(1, 0, "outranked", text=TEXTS[3])]
    file = joined(tmp_path, (first, {"kept": 2, "outranked": 1}), ([sentence(2, 0, text=TEXTS[2])], {"kept": 1}))
    captions, model = {"c0": "a dog", "c1": "a cat", "c2": "the road"}, LanguageModel(str(saved_gpt2))
    found = fluency(file, captions, model, 10, 0)
    assert (found["sentences"], found["captions"]) == (3, 2)
    assert found["perplexity"] == pytest.approx(model.perplexities(TEXTS[:3]).mean(), abs=0.01)
    assert found["caption_perplexity"] == pytest.approx(model.perplexities(["a dog", "the road"]).mean(), abs=0.01)
    assert len({fluency(file, captions, model, 1, seed)["perplexity"] for seed in range(20)}) == 3
    assert fluency(file, captions, model, 1, 4) == fluency(file, captions, model, 1, 4)
    nothing = fluency(joined(tmp_path, ([], {"identical": 3})), captions, model, 5, 0)
    assert nothing == {"sentences": 0, "captions": 0, "perplexity": None, "caption_perplexity": None}


def test_what_is_no_gpt2_is_one_line(saved_gpt2: Path, saved_encoders: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="model type 'bert' is not supported, supported are gpt2"):
        LanguageModel(str(saved_encoders / "bert"))
    with pytest.raises(MissingInputError, match="is not a folder"):
        LanguageModel(str(tmp_path / "nowhere"))
    folder = Path(shutil.copytree(saved_gpt2, tmp_path / "gpt2"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    with pytest.raises(DataError, match=r"gpt2.*download the model again"):
        LanguageModel(str(folder))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(DataError, match="cannot be read as weights"):
        LanguageModel(str(folder))
