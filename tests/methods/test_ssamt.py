"""SSAMT: its losses against hinges written out, which negatives it takes, and which labels it asks for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itrpipe.methods.ssamt import method as ssamt
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.methods.ssamt.method import phrase_loss, two_way_loss
from itrpipe.models.base import ImageBatch, PhraseBatch, TextBatch
from itrpipe.models.ssamt.declaration import Ssamt as SsamtModel
from itrpipe.models.ssamt.network import build
from itrpipe.models.uniter.network import initialise


def hinge(value: float) -> float:
    return max(0.0, value)


def test_the_loss_of_both_directions_holds_each_side_against_its_own():
    texts, wrong_texts = torch.tensor([0.5, 0.1]), torch.tensor([0.45, 0.3])
    regions, wrong_regions = torch.tensor([0.2, 0.6]), torch.tensor([0.3, 0.1])
    expected = (hinge(0.1 - 0.05) + hinge(0.1 + 0.2) + hinge(0.1 + 0.1) + hinge(0.1 - 0.5)) / 2
    value = two_way_loss((texts, wrong_texts), (regions, wrong_regions), 0.1)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_phrase_loss_compares_the_means_of_two_sets():
    fragments = torch.tensor([[0.5, 0.3, 0.9, 9.0]], requires_grad=True)
    matching = torch.tensor([[True, True, False, True]])
    real = torch.tensor([[True, True, True, False]])
    loss = phrase_loss(fragments, matching, real, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.2 - 0.4 + 0.9)
    assert fragments.grad is not None
    torch.testing.assert_close(fragments.grad, torch.tensor([[-0.5, -0.5, 1.0, 0.0]]))


def test_pairs_with_one_sort_of_phrases_do_not_count():
    fragments = torch.tensor([[0.5, 0.1], [0.5, 0.3], [0.2, 0.2]], requires_grad=True)
    matching = torch.tensor([[True, False], [True, True], [False, False]])
    real = torch.ones(3, 2, dtype=torch.bool)
    first = phrase_loss(fragments[:1], matching[:1], real[:1], 0.5).item()
    assert first == pytest.approx(0.1)
    assert phrase_loss(fragments, matching, real, 0.5).item() == pytest.approx(first)
    nothing = phrase_loss(fragments[1:], matching[1:], real[1:], 0.5)
    nothing.backward()
    assert nothing.item() == 0.0
    assert fragments.grad is not None
    assert not fragments.grad.any()


CAPTION_IMAGE = np.array([0, 0, 1, 2, 3, 3])
WORDS, PHRASES = 4, 2


class Rows:
    """Six captions of four images, each with an object (its token 0) and an attribute (its tokens 1 and 2)."""

    caption_image = CAPTION_IMAGE

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.regions = torch.randn(4, 3, 8, generator=generator)
        self.tokens = torch.randint(4, 20, (6, WORDS), generator=generator)
        self.holds = torch.rand(4, 6, PHRASES + WORDS, generator=generator) < 0.5
        self.asked: list[tuple[list[int], list[int]]] = []

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        count = len(captions)
        members = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool).expand(count, -1, -1)
        phrases = PhraseBatch(torch.tensor([0, 1]).expand(count, -1), members)
        texts = TextBatch(self.tokens[captions], torch.full((count,), WORDS), phrases)
        return ImageBatch(self.regions[images]), texts

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> torch.Tensor:
        assert (num_phrases, num_words) == (PHRASES, WORDS)
        self.asked.append((images.tolist(), captions.tolist()))
        return self.holds[images, captions]


def model(phase: str = "inter"):
    torch.manual_seed(0)
    settings = SsamtModel(embed_dim=16, heads=2, feed_forward_dim=16, dropout=0.0, phase=phase)  # pyright: ignore
    made = build(settings, 8, 20)
    initialise(made, 0.3)
    return made


def losses(rows: Rows, captions: list[int], epoch: int = 0, **settings: object):
    phase = str(settings.get("phase", "inter"))
    method = ssamt.build(Ssamt(**settings), rows, {})  # pyright: ignore
    batch = method.collate(np.array(captions), np.random.default_rng(0))
    return method.losses(model(phase), batch, epoch)


def test_without_its_weight_the_phrase_loss_asks_for_no_labels():
    rows = Rows()
    assert set(losses(rows, [0, 2, 3], weight_phrase=0.0)) == {"global", "local"}
    assert not rows.asked


def test_dropping_stopwords_leaves_out_words_of_no_phrase():
    rows = Rows()
    rows.holds[:, :, -1] = True  # the last word of every caption is in no phrase
    rows.holds[:, :, :-1] = False
    assert losses(rows, [0, 2, 3])["phrase"].item() > 0
    assert losses(rows, [0, 2, 3], label_stopwords="drop")["phrase"].item() == 0.0


@pytest.mark.parametrize("negatives", ["softmax", "top-k"])
def test_drawn_negatives_are_never_of_the_same_image_and_vary(negatives):
    rows, captions = Rows(), [0, 1, 2, 3, 4, 5]
    method = ssamt.build(Ssamt(negatives=negatives, temperature=1.0, top_k=3), rows, {})
    scores = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    same = torch.from_numpy(CAPTION_IMAGE[captions][:, None] == CAPTION_IMAGE[captions])
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        text, image = method._negatives(scores, same)
        assert not same[torch.arange(6), text].any()
        assert not same[image, torch.arange(6)].any()
        if negatives == "top-k":
            best = scores.masked_fill(same, -1).topk(3, dim=1).indices
            assert (best == text[:, None]).any(dim=1).all()
        seen.add((tuple(text.tolist()), tuple(image.tolist())))
    assert len(seen) > 5


@pytest.mark.parametrize("negatives", ["hardest", "softmax", "top-k"])
def test_a_batch_without_negatives_trains_nothing(negatives):
    rows = Rows()
    found = losses(rows, [0, 1], negatives=negatives, margin_global=0.3)
    assert found["global"].item() == pytest.approx(2 * 0.3, abs=1e-6)
