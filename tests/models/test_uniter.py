"""UNITER against reference numbers; its compact sequences, tiles and heads; and published state dicts of any form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter import network as uniter
from itrpipe.models.uniter.network import load_published
from itrpipe.testing import ToyPairs
from tests.models.toys import PUBLISHED, built, close, encoded, recorded

STATE = {name[3:]: tensor for name, tensor in recorded("uniter_forward").items() if name.startswith("sd/")}


def loaded(state: dict[str, Tensor], folder: Path, **options: Any) -> tuple[Any, str]:
    """A model with published weights, and the line that is said of them."""
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / "published.safetensors")
    made = built("uniter", **PUBLISHED | options)
    return made, load_published(made, folder / "published.safetensors")


@torch.no_grad()
def test_states_and_heads_match_the_reference(tmp_path: Path) -> None:
    reference = recorded("uniter_forward")
    model, _ = loaded(STATE, tmp_path)
    lengths, count, rows = reference["in/txt_lens"], reference["in/num_bbs"], torch.arange(4)
    images = ImageBatch(reference["in/img_feat"], count, boxes=reference["in/img_pos_feat"][..., :4])
    sides = encoded(model, images, TextBatch(reference["in/input_ids"], lengths))
    states = model.read_at(*sides, rows, rows, 40, lambda states: states)
    real = torch.arange(40) < (lengths + count)[:, None]
    close(states[real], reference["out/sequence_output"][real[:, :15]])
    close(model.pair_logits(states[:, 0], model.match), reference["out/itm_logits"])
    for row, length in enumerate(lengths):
        close(model.masked_word_logits(states[row, :length]), reference["out/mlm_logits"][row, :length])


def test_tiles_are_full_and_hold_little_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(uniter._TILE_SIZES, "cpu", 12 * 20_000)
    count, lengths = torch.randint(10, 100, (50,)), torch.randint(7, 30, (200,))
    rows, columns = (torch.randint(0, len(of), (3000,)) for of in (count, lengths))
    room = [len(pairs) * longest for pairs, longest, _ in built("uniter")._tiles(count, lengths, rows, columns)]
    positions = (count[rows] + lengths[columns]).sum()
    assert 0.94 * sum(room) < positions <= sum(room)
    assert max(room) <= 20_000
    assert len(room) < 2.5 * positions / 20_000


def test_dropout_of_embeddings_falls_on_every_pair_anew_and_before_the_first_layer() -> None:
    model = built("uniter", dropout=0.3, initial_deviation=0.4).train()
    for layer in model.layers:
        layer.dropout = 0.0
    data, rows = ToyPairs(uneven=False), torch.zeros(6, dtype=torch.int64)
    images, texts = encoded(model, data.images(rows[:1].numpy()), data.texts(rows[:1].numpy()))
    torch.manual_seed(3)
    scores = model.score_at(images, texts, rows, rows)
    torch.manual_seed(3)
    states = torch.cat([texts.words, images.regions], dim=1).expand(6, -1, -1).contiguous()
    close(scores, model.rank_score(model.layers(F.dropout(states, 0.3))[:, 0]))
    assert len(scores.unique()) == 6


def test_weight_decay_spares_biases_and_layer_norms_but_two() -> None:
    model = built("uniter")
    expected = {name for name, _ in model.named_parameters() if re.search(r"bias$|norm\.weight$", name)}
    assert model.undecayed() == expected - {"image.region_norm.weight", "image.box_norm.weight"}


SPELLINGS = {
    "bert": lambda name: name.replace("uniter", "bert"),
    "gamma": lambda name: re.sub(r"(?<=LayerNorm\.)weight$", "gamma", name),
    "beta": lambda name: re.sub(r"(?<=LayerNorm\.)bias$", "beta", name),
    "data parallel": lambda name: f"module.{name}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings_load_alike(spelling: str, tmp_path: Path) -> None:
    expected = loaded(STATE, tmp_path)[0].state_dict()
    other = loaded({SPELLINGS[spelling](name): tensor.double() for name, tensor in STATE.items()}, tmp_path)[0]
    for name, tensor in other.state_dict().items():
        close(tensor, expected[name], 0)


def test_heads_of_tags_load_and_start_from_others_where_missing(tmp_path: Path) -> None:
    more = {"disc_output.weight": torch.ones(2, 48), "disc_output.bias": torch.ones(2)}
    more |= {"rank_output.weight": torch.full((1, 48), 0.5), "rank_output.bias": torch.tensor([0.25])}
    predictions = {name: tensor + 1.0 for name, tensor in STATE.items() if name.startswith("cls.predictions")}
    more |= {name.replace("cls.", "correction_output."): tensor for name, tensor in predictions.items()}
    for state, rank, word_match, correction in (
        (STATE, STATE["itm_output.weight"][1:], STATE["itm_output.weight"], STATE["cls.predictions.bias"]),
        (
            STATE | more,
            *(more[f"{name}_output.weight"] for name in ("rank", "disc")),
            predictions["cls.predictions.bias"],
        ),
    ):
        model, _ = loaded(state, tmp_path)
        assert torch.equal(model.rank.weight, rank)
        assert torch.equal(model.word_match.weight, word_match)
        assert torch.equal(model.correction.bias, correction)
        assert torch.equal(model.masked_word.bias, STATE["cls.predictions.bias"])


def test_weights_of_bert_leave_the_image_side_as_it_was(tmp_path: Path) -> None:
    wanted = ("uniter.embeddings", "uniter.encoder", "uniter.pooler", "cls.")
    state = {name.replace("uniter", "bert"): tensor for name, tensor in STATE.items() if name.startswith(wanted)}
    model, said = loaded(state | {"cls.seq_relationship.weight": torch.zeros(2, 48)}, tmp_path)
    assert torch.equal(model.image.region.weight, built("uniter", **PUBLISHED).image.region.weight)
    assert "not in this file: correction, image, match, rank, word_match" in said
    assert "not used: 2 weights such as 'cls.predictions.decoder.weight'" in said
