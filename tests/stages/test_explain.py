"""Which words are wrong, of a tiny TAGS-DC: `itrpipe explain`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.cli.ask import coloured
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model
from tests.chains import TAGS, Invoke, copied, done, only, refused, sets
from tests.conftest import Outcome

IMAGE, CAPTION = "test-000001.jpg", "a zyzzyva is on the beach"


def explain(invoke: Invoke, root: Path, *options: object, image: str = IMAGE, caption: str = CAPTION) -> Outcome:
    given = ("--data", root, "--image", image, "--caption", caption, *sets(*TAGS))
    return invoke("explain", *given, "--make", *options)


def test_the_words_of_a_caption_have_the_probabilities_of_the_model(tags_chain: Path, invoke: Invoke) -> None:
    saved = load_model(only(tags_chain, "train/tags-dc.uniter"))
    assert isinstance(saved.model, UniterEncoder)
    split = PreparedDataset.open(only(tags_chain, "prepare/scenes")).split("test")
    features = FeatureFile.open(only(tags_chain, "extract/scenes") / FEATURES)
    said = split.texts[7]
    found = json.loads(done(explain(invoke, tags_chain, "--json", caption=said)))
    data = open_split(split, features, saved.tokens, saved.settings)
    texts = data.texts(np.array([7]))
    with torch.no_grad():
        images, encoded = saved.model.encode_images(data.images(np.array([1]))), saved.model.encode_texts(texts)
        first = torch.zeros(1, dtype=torch.int64)
        states = saved.model.read_at(images, encoded, first, first, int(texts.lengths[0]), lambda each: each)[0]
        expected = saved.model.word_match_logits(states).softmax(dim=1)[:, 0]
    assert [word["text"] for word in found["words"]] == said.split()
    for place, word in enumerate(found["words"], 1):
        assert said[word["start"] : word["end"]] == word["text"]
        assert word["mismatch"] == pytest.approx(expected[place].item(), abs=1e-5)
        assert word["flagged"] == (word["mismatch"] > 0.5) == (word["correction"] is not None)
        assert word["known"] == (word["text"].lower() in saved.vocabulary.ids)
    written = read_scores(only(tags_chain, "evaluate/tags-dc.uniter") / SCORES, "test").matrix[1, 7]
    assert found["score"] == pytest.approx(1 / (1 + np.exp(-written)), abs=1e-3)
    assert (found["run"], found["split"], found["caption"]) == ("tags-dc.uniter", "test", said)


def decide(monkeypatch: pytest.MonkeyPatch, wrong: set[int], written: int) -> None:
    """Makes the heads find tokens of these ids wrong, and nothing else, and correct all of them to one."""
    kept: list[torch.Tensor] = []
    embed = UniterEncoder.encode_texts

    def remember(self: UniterEncoder, texts: Any) -> Any:
        kept[:] = [texts.tokens]
        return embed(self, texts)

    def judge(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        bad = torch.isin(kept[0], torch.tensor(sorted(wrong)))
        return torch.stack([bad.float() * 6 - 3, torch.zeros_like(bad, dtype=torch.float32)], dim=-1)

    def correct(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(states), self.text.word.num_embeddings)
        logits[:, written], logits[:, :4] = 1.0, 2.0  # special tokens are likelier, and never written
        return logits

    monkeypatch.setattr(UniterEncoder, "encode_texts", remember)
    monkeypatch.setattr(UniterEncoder, "word_match_logits", judge)
    monkeypatch.setattr(UniterEncoder, "correction_logits", correct)


def test_wrong_words_carry_their_number_and_are_replaced(
    tags_chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = load_model(only(tags_chain, "train/tags-dc.uniter")).vocabulary.ids
    decide(monkeypatch, {ids["on"], ids["beach"]}, ids["a"])
    out = done(explain(invoke, tags_chain))
    assert out.startswith("test-000001 (test), tags-dc.uniter\n")
    assert "  caption    a zyzzyva is on (0.95) the beach (0.95)\n" in out
    assert "  corrected  a zyzzyva is a the a\n" in out
    decide(monkeypatch, set(), 5)
    out = done(explain(invoke, tags_chain, image=f"images/{IMAGE}"))
    assert "  caption    a zyzzyva is on the beach\n" in out
    assert "  unknown    zyzzyva" in out


def test_words_are_coloured_in_steps() -> None:
    words = [
        {"text": "a", "start": 0, "end": 1, "mismatch": 0.1, "flagged": False},
        {"text": "b", "start": 2, "end": 3, "mismatch": 1.0, "flagged": True},
    ]
    text = coloured("a b!", words)
    assert text.plain == "a b (1.00)!"
    assert [str(span.style) for span in text.spans] == ["bold black on #f2a65a"]


def test_what_was_removed_since_is_named_or_planned_with_its_cost(
    tags_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    assert explain(invoke, tags_chain, "--dry-run").out.count("up to date") == 6
    root = copied(tags_chain, tmp_path / "data")
    trained = only(root, "train/tags-dc.uniter")
    only(root, "extract/scenes").rename(tmp_path / "extracted")
    refused(explain(invoke, root), 3, f"train/{trained.name} was made from", "run `itrpipe extract")
    shutil.move(tmp_path / "extracted", root / "scenes" / "extract")
    shutil.rmtree(trained)
    planned = done(explain(invoke, root, "--dry-run"))
    assert "+ train/tags-dc.uniter" in planned
    quiet = explain(invoke, root, "--dry-run", "--json")
    assert (quiet.code, quiet.out) == (0, "")
    assert "+ train/tags-dc.uniter" in quiet.err
