"""Probabilities of false negatives against reference numbers and Bayes' rule, and their running statistics."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
import torch

from itrpipe.learning.false_negatives import (
    Gaussians,
    SimilarityStatistics,
    estimate_gaussians,
    false_negative_probability,
    probabilities,
    retained_pairs,
)
from tests.methods.toys import gaussians, of_case, reference

PRIOR = 1e-4


@pytest.mark.parametrize("case", ["full", "full_wide_pos", "full_wide_neg"])
def test_probabilities_match_reference(case):
    posterior = reference("fne_posterior")
    distributions = of_case(posterior, case)
    found = false_negative_probability(posterior["sims"], distributions, PRIOR)
    # The reference divides densities in single precision, which is itself 2e-6 off the exact quotient at most.
    np.testing.assert_allclose(found, posterior[f"{case}/posterior"], atol=1e-6, rtol=5e-6)
    curve = false_negative_probability(posterior["curve/s"], distributions, PRIOR)
    expected = posterior[f"curve/{case}/posterior"]
    known = expected.isfinite()  # the ratio of two densities is 0/0 far from both means
    assert known.float().mean() > 0.8
    np.testing.assert_allclose(curve[known], expected[known], atol=1e-6, rtol=5e-6)
    assert curve.isfinite().all()


def test_running_statistics_match_reference():
    statistics = reference("fne_statistics")
    running = SimilarityStatistics()
    for batch in range(len(statistics["img"])):
        scores = statistics["img"][batch] @ statistics["txt"][batch].T
        running.update(scores, ties="first")  # batch 4 holds one image twice
        found = running.gaussians()
        for k, side in enumerate(("pos", "neg")):
            assert found.count[k] == statistics[f"count_{side}"][batch]
            assert found.mean[k].item() == pytest.approx(statistics[f"avg_{side}"][batch].item(), abs=1e-5)
            assert found.variance[k].item() == pytest.approx(statistics[f"var_{side}"][batch].item(), abs=1e-5)


def test_equal_scores_keep_no_pair_or_the_first():
    scores = torch.tensor([[0.5, 0.1, 0.1], [0.1, 0.9, 0.2], [0.1, 0.9, 0.3]])
    assert retained_pairs(scores).tolist() == [True, False, False]
    assert retained_pairs(scores, ties="first").tolist() == [True, True, False]
    same = torch.eye(3, dtype=torch.bool)
    same[1, 2] = same[2, 1] = True
    assert retained_pairs(scores, same).tolist() == [True, True, True]
    assert retained_pairs(scores[:1, :1]).tolist() == [False]


def test_all_mismatches_of_retained_pairs_count_once_for_their_row_and_once_for_their_column():
    scores = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.3], [0.5, 0.85, 0.7]])  # pairs 0 and, by its row, 2 not
    assert retained_pairs(scores).tolist() == [True, False, False]
    running = SimilarityStatistics()
    assert running.update(scores, source="all") == 1
    samples = np.array([0.2, 0.4, 0.1, 0.5])
    found = running.gaussians()
    assert found.count.tolist() == [1, 4]
    assert found.mean[1].item() == pytest.approx(samples.mean(), abs=1e-6)
    assert found.variance[1].item() == pytest.approx(samples.var(ddof=1), abs=1e-6)


def test_hardest_mismatches_count_zero_at_least_on_request():
    scores = torch.tensor([[0.9, -0.2], [-0.4, 0.8]])
    for floor, mean in ((True, 0.0), (False, -0.3)):
        running = SimilarityStatistics()
        running.update(scores, floor=floor)
        assert running.gaussians().mean[1].item() == pytest.approx(mean)
    alone = torch.ones(2, 2, dtype=torch.bool)
    running.update(scores, alone, floor=False)
    assert running.gaussians().count.tolist() == [2, 4]


def test_probabilities_wait_for_their_samples():
    similarities = torch.linspace(0, 1, 9)
    few, enough = gaussians(count=(200.0, 400.0)), gaussians(count=(201.0, 402.0))
    assert (false_negative_probability(similarities, few, PRIOR, min_count=200) == 0).all()
    assert (false_negative_probability(similarities, enough, PRIOR, min_count=200) > 0).any()


def test_one_batch_of_everything_gives_the_statistics_of_all_scores():
    rng, owners = np.random.default_rng(0), np.repeat(np.arange(60), 3)
    images = rng.standard_normal((60, 16)).astype(np.float32)
    texts = images[owners] + 0.4 * rng.standard_normal((180, 16)).astype(np.float32)
    running, scores = SimilarityStatistics(), torch.from_numpy(images[owners] @ texts.T)
    for masked, same in ((False, None), (True, torch.from_numpy(owners[:, None] == owners))):
        running.reset()
        running.update(scores, same, floor=False)
        found = estimate_gaussians(images, texts, owners, batch_size=1000, mask_same_image=masked)
        for mine, other in zip(astuple(found), astuple(running.gaussians()), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    few = estimate_gaussians(images, texts, owners, batch_size=9)
    assert few.mean[1] < found.mean[1]  # the hardest of fewer are less hard


def test_probabilities_rise_with_the_score_and_are_zero_behind_the_end_of_a_list():
    gaussians = Gaussians(torch.tensor([0.7, 0.4]), torch.tensor([0.004, 0.02]), torch.tensor([100.0, 200.0]))
    scores = np.linspace(1, -1, 50, dtype=np.float32).reshape(5, 10)
    found = probabilities(scores, gaussians, 0.01)
    assert found.shape == (5, 10)
    assert (np.diff(found.reshape(-1)) <= 0).all()  # though the wider Gaussian is that of mismatches
    scores[2, 4:] = -np.inf
    assert (probabilities(scores, gaussians, 0.01)[2, 4:] == 0).all()
    unusable = SimilarityStatistics().gaussians()
    assert (probabilities(scores, unusable, 0.01) == 0).all()
