"""AsCL's batches and losses: what is made of captions, that noise is repeatable, and the ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.methods.ascl import method as ascl
from itrpipe.methods.ascl.declaration import Ascl as Loss
from itrpipe.methods.ascl.method import DONE, AsclBatch, AsclMethod
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.ascl.network import AsclEncoder, build, open_encoders
from itrpipe.models.base import ImageBatch, TextBatch

CAPTION_IMAGE = np.array([0, 0, 0, 1, 1, 2, 3, 3])
LENGTHS = np.array([6, 3, 8, 5, 4, 7, 3, 9])
START, END = 1, 2


class Rows:
    """Eight captions of four images; the words of caption c are 10 c + 4, 10 c + 5 and so on."""

    caption_image = CAPTION_IMAGE

    def images(self, rows: np.ndarray) -> ImageBatch:
        generator = torch.Generator().manual_seed(1)
        regions, whole = torch.randn(4, 5, 6, generator=generator), torch.randn(4, 3, generator=generator)
        return ImageBatch(regions[rows], torch.tensor([5, 2, 4, 3])[rows], whole[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        lengths = LENGTHS[rows]
        place = np.arange(lengths.max())
        words = np.where(place == 0, START, 10 * rows[:, None] + place + 3)
        tokens = np.where(place == lengths[:, None] - 1, END, np.where(place < lengths[:, None], words, 0))
        return TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths))


def method(**changed: Any) -> AsclMethod:
    return ascl.build(Loss(**{"max_tokens": 14, **changed}), Rows(), {})


def model(**changed: Any) -> AsclEncoder:
    torch.manual_seed(0)
    sizes = {"text": "random", "embed_dim": 16, "heads": 4, "text_width": 12, "text_heads": 2, "max_words": 12}
    settings = Ascl(**{**sizes, **changed})
    return build(settings, 6, 100, open_encoders(settings, 3)).eval()


def collated(captions: list[int], seed: Any = 0, **changed: Any) -> AsclBatch:
    return method(**changed).collate(np.array(captions), np.random.default_rng(seed))


def sentences(texts: TextBatch) -> list[list[int]]:
    """Tokens between the ends."""
    rows = zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True)
    found = []
    for tokens, length in rows:
        assert (tokens[0], tokens[length - 1]) == (START, END)
        assert not any(tokens[length:])
        found.append(tokens[1 : length - 1])
    return found


def test_positives_are_joined_from_two_captions_of_the_image_or_halves():
    captions, seen = [0, 3, 5, 7], set()
    for seed in range(20):
        batch = collated(captions, seed)
        assert batch.made["positives"] is not None
        for caption, words in zip(captions, sentences(batch.made["positives"].texts), strict=True):
            sources = {word // 10 for word in (each - 4 for each in words)}
            own = sentences(Rows().texts(np.array([caption])))[0]
            if words == own[: max(1, len(own) // 2)]:
                seen.add("half")
                continue
            seen.add("joined")
            assert {CAPTION_IMAGE[source] for source in sources} == {CAPTION_IMAGE[caption]}
            parts = [sentences(Rows().texts(np.array([source])))[0] for source in sources]
            single = sum(CAPTION_IMAGE[caption] == CAPTION_IMAGE) == 1
            expected = [parts[0] * 2] if single else [parts[0] + parts[1], parts[1] + parts[0]]
            assert words in [each[:12] for each in expected]
    assert seen == {"half", "joined"}


@pytest.mark.parametrize(("kind", "wanted"), [("joined", False), ("shortened", True)])
def test_one_kind_of_positives_is_made_where_it_is_asked_for(kind: str, wanted: bool):
    batch = collated([2, 7], positives=kind)
    lengths = [len(words) for words in sentences(batch.made["positives"].texts)]
    assert (lengths == [3, 3]) == wanted


def test_shuffling_is_done_before_the_encoder_where_it_can_matter():
    before = collated([0, 2, 3, 7], noise="shuffle").made["originals"]
    assert before.kinds.tolist() == [DONE] * 4
    assert before.shuffled is not None
    rows, texts = before.shuffled
    assert rows.tolist() == [0, 1, 2, 3]
    assert [sorted(words) for words in sentences(texts)] == sentences(before.texts)
    assert sentences(texts) != sentences(before.texts)
    after = collated([0, 2, 3, 7], noise="shuffle", shuffle_at="states").made["originals"]
    assert (after.kinds.tolist(), after.shuffled) == (["shuffle"] * 4, None)


def test_a_mixture_has_all_kinds():
    kinds = {kind for seed in range(10) for kind in collated([0, 2, 3, 7], seed).made["originals"].kinds}
    assert kinds == {DONE, "gaussian", "cutoff", "dropout"}


def scores_of(encoder: AsclEncoder, captions: list[int]) -> Tensor:
    rows = np.array(captions)
    images = encoder.encode_images(Rows().images(CAPTION_IMAGE[rows]))
    return encoder.score_matrix(images, encoder.encode_texts(Rows().texts(rows)))


def test_without_positives_and_negatives_it_is_cross_entropy_both_ways():
    encoder, captions = model(), [0, 3, 5, 7]
    plain = {"positives": "none", "noise": "none", "temperature": 0.1}
    found = method(**plain).losses(encoder, collated(captions, **plain), 0)
    logits, target = scores_of(encoder, captions) / 0.1, torch.arange(4)
    expected = F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)
    torch.testing.assert_close(found["ascl"], expected)


def test_captions_of_one_image_are_no_negatives_of_it():
    encoder, captions = model(), [0, 1, 5]
    plain = {"positives": "none", "noise": "none"}
    losses = [
        method(**plain, mask_same_image=masked).losses(encoder, collated(captions, **plain), 0)["ascl"].item()
        for masked in (True, False)
    ]
    logits = scores_of(encoder, captions) / 0.05
    logits[0, 1] = logits[1, 0] = float("-inf")
    target = torch.arange(3)
    assert losses[0] == pytest.approx((F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)).item())
    assert losses[0] < losses[1]
