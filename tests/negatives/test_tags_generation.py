"""TAGS-DC on the reference numbers of its released code: masks, refills, filters, ranking, and all losses."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from itrpipe.losses.tags import (
    correction_loss,
    discrimination_loss,
    masked_word_loss,
    synthetic_triplet_loss,
    text_positions,
)
from itrpipe.losses.triplet import hinge
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder, UniterImages, UniterTexts
from itrpipe.models.uniter.weights import translate
from itrpipe.negatives.masking import UNLABELLED, MaskTokens, mask_captions, selection_rates
from itrpipe.negatives.synthetic import (
    DUPLICATE,
    FALSE_NEGATIVE,
    IDENTICAL,
    refill,
    reject,
    score_kept,
    select_hardest,
)

REFERENCE = Path(__file__).parents[1] / "reference" / "tags_generation.npz"
CLS, SEP, MASK, TOKENS = 101, 102, 103, 120
MARGIN, TEMPERATURE, KEPT_SENTENCES = 0.2, 1.5, 8


@cache
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE, allow_pickle=False) as file:
        return dict(file)


def tensor(name: str) -> Tensor:
    return torch.from_numpy(reference()[name])


def model() -> UniterEncoder:
    settings = Uniter(embed_dim=48, layers=2, heads=4, feed_forward_dim=96, dropout=0.0, max_words=40)
    encoder = UniterEncoder(settings, 32, TOKENS)
    weights, _ = translate({name.removeprefix("sd/"): tensor(name) for name in reference() if name.startswith("sd/")})
    encoder.load_state_dict(weights)
    return encoder


def word_states(encoder: UniterEncoder, sentences: Tensor) -> Tensor:
    """Last states [n, W, d] of sentences with the image of the reference."""
    numbers = tensor("in/img_pos_feat")
    parts = encoder.image
    regions = parts.region_norm(parts.region(tensor("in/img_feat"))) + parts.box_norm(parts.box(numbers))
    regions = parts.norm(regions + encoder.text.kind.weight[1])
    images = UniterImages(regions[None], torch.tensor([len(regions)]))
    width = sentences.shape[1]
    texts = UniterTexts(encoder.text(sentences), torch.full((len(sentences),), width))
    rows = torch.arange(len(sentences))
    pool = encoder.pool(images, texts)
    sequences = pool.sequences(torch.zeros_like(rows), rows, width + len(regions), padded=False)
    return encoder.encode(pool, sequences, first=width)


def rank_scores(encoder: UniterEncoder, sentences: Tensor) -> Tensor:
    return encoder.rank_score(word_states(encoder, sentences)[:, 0])


def query_gradient(encoder: UniterEncoder) -> Tensor:
    """Gradient of the query weights of the first layer, which stand before those of keys and values."""
    gradient = encoder.layers[0].project.weight.grad
    assert isinstance(gradient, Tensor)
    return gradient[:48]


def refills() -> Tensor:
    return tensor("mlm/refilled_ids")[None]  # [1, 36, 10]


def candidates() -> np.ndarray:
    sizes = reference()["mask/phrase_len"]
    found = np.zeros((1, len(sizes), len(reference()["mask/caption"])), dtype=bool)
    found[0, np.repeat(np.arange(len(sizes)), sizes), reference()["mask/phrase_flat"]] = True
    return found


def test_phrases_are_masked_as_often_as_in_the_release():
    caption, copies = reference()["mask/caption"], 40_000
    assert_close(selection_rates(candidates())[0], reference()["mask/phrase_prob"].astype(float), atol=1e-6, rtol=0)
    words = MaskTokens(MASK, (11, 90))
    masked = mask_captions(caption[None], candidates(), copies, words, np.random.default_rng(5))
    labelled = masked.labels[0] != UNLABELLED
    shown = masked.tokens[0]
    histogram = np.bincount(labelled.sum(axis=1), minlength=9) / copies
    for found, name in (
        (labelled.mean(axis=0), "label_rate"),
        ((shown == MASK).mean(axis=0), "mask_token_rate"),
        ((labelled & (shown == caption)).mean(axis=0), "kept_rate"),
        (histogram, "num_labelled_hist"),
    ):
        assert np.abs(found - reference()[f"mask/{name}"]).max() < 0.01, name


def test_the_masked_words_cost_what_they_cost_in_the_release():
    encoder = model()
    labels = tensor("in/mlm_txt_labels")
    labelled = labels != UNLABELLED
    logits = encoder.masked_word_logits(word_states(encoder, tensor("in/mlm_input_ids"))[labelled])
    assert_close(logits, tensor("mlm/logits_at_labels"), atol=1e-5, rtol=1e-5)
    loss = masked_word_loss(logits, labels[labelled], torch.zeros(len(logits), dtype=torch.int64), 1)
    assert_close(loss, tensor("mlm/loss_per_label").mean(), atol=1e-5, rtol=1e-5)


def test_refills_follow_the_tempered_distribution_of_the_release():
    labels, draws = tensor("in/mlm_txt_labels"), 20_000
    logits = tensor("mlm/logits_at_labels")
    drawing = torch.Generator().manual_seed(3)
    found = refill(tensor("in/mlm_input_ids"), labels, logits, draws, TEMPERATURE, generator=drawing)
    labelled = labels != UNLABELLED
    kept = found.transpose(1, 2)[~labelled]
    assert (kept == tensor("in/mlm_input_ids")[~labelled][:, None]).all()
    drawn = found.transpose(1, 2)[labelled]
    frequencies = torch.stack([row.bincount(minlength=TOKENS) for row in drawn]) / draws
    assert_close(frequencies, tensor("mlm/sampling_probs_at_labels"), atol=0.015, rtol=0)


def test_filters_find_what_the_release_and_the_paper_reject():
    caption = tensor("in/gt_input_ids")
    identical = tensor("filter/identical_to_gt_penalty")[1:] > 0
    later = tensor("filter/later_duplicate_penalty")[1:] > 0
    known_words = tensor("filter/paper_C1_false_negative")[1:]
    plain = reject(refills(), caption)[0]
    assert_close(plain == IDENTICAL, identical)
    assert_close(plain == DUPLICATE, later & ~identical)
    said = tensor("in/sibling_caption_tokens")[None]
    known = said.masked_fill(torch.isin(said, torch.tensor([0, CLS, SEP])), -1).sort(dim=1).values
    filtered = reject(refills(), caption, known)[0]
    assert_close(filtered == FALSE_NEGATIVE, known_words & ~identical)
    assert_close(filtered == DUPLICATE, later & ~known_words)


def test_the_hardest_sentences_are_those_of_the_release():
    encoder, calls = model(), []

    def score(owners: Tensor, sentences: Tensor) -> Tensor:
        calls.append(len(sentences))
        assert (owners == 0).all()
        return rank_scores(encoder, sentences)

    with torch.no_grad():
        reasons = reject(refills(), tensor("in/gt_input_ids"))
        scores = score_kept(score, refills(), reasons)
    assert calls == [int(tensor("istm/correct/effect_num"))]
    kept = reasons[0] == 0
    assert_close(scores[0, kept], tensor("score/correct/logit")[1:][kept], atol=1e-5, rtol=1e-5)
    hardest = select_hardest(scores, KEPT_SENTENCES)
    assert hardest.real.all()
    # The release counts the caption as the first of all sentences.
    assert (hardest.rows[0] + 1).tolist() == reference()["select/phase2_sigmoid_ranked_indices"].tolist()
    assert_close(hardest.take(refills())[0], tensor("dc/syn_ids"))


def test_synthetic_sentences_cost_and_teach_what_they_do_in_the_release():
    encoder = model()
    scores = rank_scores(encoder, tensor("istm/correct/top_ids_logit_ranked"))
    per_sentence = hinge(scores[:1].sigmoid(), scores[1:].sigmoid(), MARGIN)
    assert_close(per_sentence, tensor("istm/correct/loss_per_negative")[0], atol=1e-5, rtol=1e-5)
    real = torch.ones(1, KEPT_SENTENCES, dtype=torch.bool)
    loss = synthetic_triplet_loss(scores[:1], scores[None, 1:], real, MARGIN)
    assert_close(loss, per_sentence.mean())
    loss.backward()
    assert_close(encoder.rank.weight.grad, tensor("istm/correct/grad_rank_output"), atol=1e-5, rtol=1e-5)
    assert_close(query_gradient(encoder), tensor("istm/correct/grad_q0"), atol=1e-5, rtol=1e-5)


def test_wrong_words_cost_and_teach_what_they_do_in_the_release():
    encoder = model()
    sentences, labels = tensor("dc/syn_ids"), tensor("dc/txt_labels")
    states = word_states(encoder, sentences)
    width = sentences.shape[1]
    chosen = text_positions(torch.full((len(sentences),), width), width, specials=True)
    originals = tensor("in/gt_input_ids").expand_as(sentences)
    logits = encoder.word_match_logits(states[chosen])
    assert_close(logits.softmax(dim=1), tensor("dc/disc_p").flatten(0, 1), atol=1e-5, rtol=1e-5)
    anchors = torch.zeros(len(logits), dtype=torch.int64)
    discrimination = discrimination_loss(logits, sentences[chosen], originals[chosen], anchors, 1)
    assert discrimination.item() == pytest.approx(float(reference()["dc/disc_loss_mean"]), abs=1e-5)
    labelled = labels != UNLABELLED
    corrected = encoder.correction_logits(states[labelled])
    anchors = torch.zeros(len(corrected), dtype=torch.int64)
    correction = correction_loss(corrected, labels[labelled], anchors, 1)
    assert correction.item() == pytest.approx(float(reference()["dc/correction_loss_mean"]), abs=1e-5)
    (discrimination + correction).backward()
    assert_close(encoder.word_match.weight.grad, tensor("dc/grad_disc_output"), atol=1e-5, rtol=1e-5)
    assert_close(query_gradient(encoder), tensor("dc/grad_q0"), atol=1e-5, rtol=1e-4)
