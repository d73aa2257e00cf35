"""TAGS-DC on the reference numbers of its released code: masks, refills and filters."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from itrpipe.learning.sentences import (
    UNLABELLED,
    SpecialTokens,
    mask_captions,
    refill,
    selection_rates,
)

REFERENCE = Path(__file__).parents[1] / "reference" / "tags_generation.npz"
CLS, SEP, MASK, TOKENS = 101, 102, 103, 120
TEMPERATURE = 1.5


@cache
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE, allow_pickle=False) as file:
        return dict(file)


def tensor(name: str) -> Tensor:
    return torch.from_numpy(reference()[name])


def candidates() -> np.ndarray:
    sizes = reference()["mask/phrase_len"]
    found = np.zeros((1, len(sizes), len(reference()["mask/caption"])), dtype=bool)
    found[0, np.repeat(np.arange(len(sizes)), sizes), reference()["mask/phrase_flat"]] = True
    return found


def test_phrases_are_masked_as_often_as_in_the_release():
    caption, copies = reference()["mask/caption"], 40_000
    assert_close(selection_rates(candidates())[0], reference()["mask/phrase_prob"].astype(float), atol=1e-6, rtol=0)
    specials = SpecialTokens(MASK, (), (11, 90))
    masked = mask_captions(caption[None], candidates(), copies, specials, True, np.random.default_rng(5))
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
