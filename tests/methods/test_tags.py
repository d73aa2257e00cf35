"""TAGS and TAGS-DC: losses written out term by term, and steps against numbers of the released code."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import UNLABELLED
from itrpipe.methods.base import OwnedTexts
from itrpipe.methods.itm.method import PairRows
from itrpipe.methods.pretrain.method import MaskedTexts
from itrpipe.methods.tags import method as tags
from itrpipe.methods.tags.declaration import Tags
from itrpipe.methods.tags.method import TagsBatch, TagsMethod
from itrpipe.methods.tags_dc import method as tags_dc
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.methods.tags_dc.method import discrimination_loss
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.testing import VOCABULARY, ToyPairs
from tests.methods.toys import built, reference, reference_uniter, small_uniter


def test_hopeless_words_cost_a_bounded_amount():
    logits = torch.tensor([[80.0, -80.0]], requires_grad=True)
    zero = torch.zeros(1, dtype=torch.int64)
    loss = discrimination_loss(logits, zero == 0, zero, 1, 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-10), rel=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


SMALL = {"sampled_negatives": 3, "hard_negatives": 2, "copies": 5, "draws": 6, "keep": 4}
HEADS = {"weight_discrimination": 2.0, "weight_correction": 3.0}


def method(**changed: object) -> TagsMethod:
    return built(tags.build, Tags(**{**SMALL, **changed}), ToyPairs(uneven=False))  # pyright: ignore


def method_with_heads(**changed: object) -> TagsMethod:
    return built(tags_dc.build, TagsDc(**{**SMALL, **HEADS, **changed}), ToyPairs(uneven=False))  # pyright: ignore


def step(trained: TagsMethod, model: UniterEncoder, batch: TagsBatch) -> tuple[dict[str, Tensor], OwnedTexts]:
    """The losses of a batch, and the sentences that were trained."""
    seen: list[OwnedTexts] = []
    word_terms = trained.word_terms

    def keeping(model: UniterEncoder, batch: TagsBatch, made: OwnedTexts, states: Tensor) -> dict[str, Tensor]:
        seen.append(made)
        return word_terms(model, batch, made, states)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "word_terms", keeping)
        losses = trained.losses(model, batch, epoch=0)
    assert len(seen) == 1
    return losses, seen[0]


def test_losses_and_gradients_match_the_reference(monkeypatch: pytest.MonkeyPatch):
    """Of the caption and image of the reference with its masks; the refills are those that were recorded."""
    arrays = reference("tags_generation")

    def recorded(masked: Tensor, labels: Tensor, logits: Tensor, draws: int, temperature: float, excluded: object):
        assert (draws, temperature) == (6, 1.5)
        assert_close(logits, arrays["mlm/logits_at_labels"], atol=1e-5, rtol=1e-5)
        return arrays["mlm/refilled_ids"].view(6, 6, 10)

    monkeypatch.setattr(synthetic, "refill", recorded)
    images = ImageBatch(arrays["in/img_feat"][None], None, boxes=arrays["in/img_pos_feat"][None, :, :4])
    texts, one = TextBatch(arrays["in/gt_input_ids"], torch.tensor([10])), torch.zeros(2, 2, dtype=torch.int64)
    masked = MaskedTexts(texts, arrays["in/mlm_input_ids"], arrays["in/mlm_txt_labels"])
    batch = TagsBatch({"pool": (images, texts)}, torch.tensor([0]), rows=PairRows(one, one), masked=masked)
    weights = dict.fromkeys(("words", "sentences", "discrimination", "correction"), 1.0)
    sizes = {"sampled_negatives": 1, "hard_negatives": 1, "copies": 6, "draws": 6, "keep": 8}
    trained = method_with_heads(**sizes, **{f"weight_{name}": weight for name, weight in weights.items()})
    model = reference_uniter(arrays)
    losses, made = step(trained, model, batch)
    for name, expected in (
        ("words", arrays["mlm/loss_per_label"].mean()),
        ("sentences", arrays["istm/correct/loss_per_negative"].mean()),
        ("discrimination", arrays["dc/disc_loss_mean"]),
        ("correction", arrays["dc/correction_loss_mean"]),
    ):
        assert_close(losses[name], expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(made.texts.tokens, arrays["dc/syn_ids"])
    assert made.masked is not None
    assert torch.equal(made.masked, arrays["dc/txt_labels"] != UNLABELLED)
    assert batch.statistics["scored_sentences"] == arrays["istm/correct/effect_num"]
    assert_close(batch.statistics["masked_word_accuracy"], arrays["mlm/corrects"].mean())
    queries = model.get_parameter("layers.0.project.weight")  # of the first layer, above those of keys and values
    for loss, head, name in (
        (losses["sentences"], model.rank.weight, "istm/correct/grad_rank_output"),
        (losses["discrimination"] + losses["correction"], model.word_match.weight, "dc/grad_disc_output"),
    ):
        of_head, of_queries = torch.autograd.grad(loss, [head, queries], retain_graph=True)
        assert_close(of_head, arrays[name], atol=1e-5, rtol=1e-5)
        assert_close(of_queries[:48], arrays[f"{name.rpartition('/')[0]}/grad_q0"], atol=1e-5, rtol=1e-4)


def captions_again(masked: Tensor, labels: Tensor, logits: Tensor, draws: int, *rest: object) -> Tensor:
    """A refill that writes what the caption has."""
    return torch.where(labels != UNLABELLED, labels, masked)[:, None].expand(-1, draws, -1).contiguous()


@pytest.mark.parametrize("build", [method, method_with_heads])
def test_without_a_sentence_nothing_is_trained_with_them(
    build: Callable[..., TagsMethod], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(synthetic, "refill", captions_again)
    trained, model = build(noise=False), small_uniter()
    batch = trained.collate(np.array([1, 3]), np.random.default_rng(0))
    losses, made = step(trained, model, batch)
    assert len(made.owners) == 0
    assert batch.statistics["identical_share"] == 1
    assert batch.statistics["sentences"] == 0
    for name in losses.keys() - {"text_anchored", "image_anchored", "words"}:
        assert losses[name] == 0
    torch.stack(list(losses.values())).sum().backward()
    for name, weights in model.named_parameters():
        assert weights.grad is None or weights.grad.isfinite().all(), name


def test_specials_are_drawn_only_on_request():
    model = small_uniter()
    with torch.no_grad():
        model.masked_word.bias[[0, VOCABULARY]] = 20.0  # all but certain
    for exclude, some in ((True, False), (False, True)):
        trained = method(exclude_specials=exclude)
        batch = trained.collate(np.array([1, 4]), np.random.default_rng(0))
        _, made = step(trained, model, batch)
        inner = made.texts.tokens[made.masked]
        assert bool(((inner == 0) | (inner == VOCABULARY)).any()) is some
