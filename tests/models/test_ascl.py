"""AsCL: its fusion against a loop over pairs, heads and fragments, and what may not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from itrpipe.encoders.encoder import TEXT, open_encoder
from itrpipe.encoders.texts import Dense
from itrpipe.models.base import TextBatch
from tests.models.toys import built, close, encoded, kept_values, toys


def test_a_word_without_length_has_a_finite_gradient() -> None:
    model = built("ascl")
    images, texts = encoded(model, *toys())
    cut = texts.words.index_fill(1, torch.tensor([1]), 0.0).detach().requires_grad_()
    model.score_matrix(images, replace(texts, words=cut)).sum().backward()
    assert cut.grad is not None
    assert cut.grad.isfinite().all()


def test_tiles_keep_their_inputs_alone_for_the_backward_pass() -> None:
    model = built("ascl")
    sides = encoded(model, *toys(12, 24))
    found_vectors = 12 * 24 * (4 + 8) * 12  # of pairs: one of 12 numbers for each region and word
    assert kept_values(lambda: model.score_matrix(*sides))[1] < found_vectors


def test_a_caption_of_nothing_but_its_ends_keeps_the_last() -> None:
    model = built("ascl", text_ends=False)
    bare = model.encode_texts(TextBatch(torch.tensor([[1, 2, 0]]), torch.tensor([2])))
    assert bare.lengths.tolist() == [1]
    whole = built("ascl").encode_texts(TextBatch(torch.tensor([[1, 2, 0]]), torch.tensor([2])))
    close(bare.words, whole.words[:, 1:])


@pytest.mark.parametrize("tuned", [False, True])
def test_a_pretrained_text_encoder_is_trained_only_where_it_is_asked_for(tuned: bool, saved_encoders: Path) -> None:
    model = built("ascl", text=str(saved_encoders / "bert"), tune_text=tuned).train()
    assert model.text.training == tuned
    model.score_matrix(*encoded(model, *toys())).sum().backward()
    without = {name.partition(".")[0] for name, weights in model.named_parameters() if weights.grad is None}
    assert without == ({"text"} if not tuned else without & {"text"})  # BERT's embedding of positions may have none
    assert any(weights.grad is not None for weights in model.text.parameters()) == tuned


def test_words_are_read_before_a_layer_behind_the_pooling(saved_encoders: Path, tmp_path: Path) -> None:
    encoder, _ = open_encoder(str(saved_encoders / "bert"), sides=(TEXT,))
    assert encoder.texts is not None
    encoder.texts.layers.append(Dense({"in_features": 16, "out_features": 6}))
    encoder.save(tmp_path)
    assert open_encoder(str(tmp_path), sides=(TEXT,))[0].text_width == 6
    assert encoded(built("ascl", text=str(tmp_path)), *toys())[1].words.isfinite().all()
