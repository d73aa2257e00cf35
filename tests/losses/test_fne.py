"""False-negative elimination against reference numbers, and what its parts promise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.losses.fne import (
    Gaussians,
    SamplingRules,
    SimilarityStatistics,
    draw,
    drawn_hinges,
    false_negative_probability,
    hardest_only,
    retained_pairs,
    sampling_weights,
)

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
CASES = ["warm", "full", "full_wide_pos", "full_wide_neg", "empty"]
PRIOR = 1e-4


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def posterior() -> dict[str, np.ndarray]:
    return arrays("fne_posterior")


@pytest.fixture(scope="module")
def statistics() -> dict[str, np.ndarray]:
    return arrays("fne_statistics")


def gaussians(mean=(0.66, 0.35), variance=(0.006, 0.009), count=(1000.0, 2000.0)) -> Gaussians:
    return Gaussians(*(torch.tensor(values, dtype=torch.float32) for values in (mean, variance, count)))


def of_case(reference: dict[str, np.ndarray], case: str) -> Gaussians:
    mean, variance = ([float(reference[f"{case}/{name}_{side}"]) for side in ("pos", "neg")] for name in ("mu", "var"))
    count = float(reference[f"{case}/count_pos"])
    return gaussians(mean, variance, (count, 2 * count))


@pytest.mark.parametrize("case", CASES)
def test_weights_match_reference(posterior, case):
    similarities, excluded = torch.from_numpy(posterior["sims"]), torch.from_numpy(posterior["mask"])
    positive = torch.from_numpy(posterior["pos_sims"])[:, 0]
    rules = SamplingRules(
        prior=1 / float(posterior["inv_prior"]),
        alpha=float(posterior["alpha"]),
        posterior_threshold=1 - float(posterior["keep_false_margin"]),
        posterior_scale=float(posterior["posterior_scale"]),
        min_count=int(posterior["min_count"]),
        window=float(posterior["margin"]),
    )
    weights = sampling_weights(similarities, positive, excluded, of_case(posterior, case), rules)
    np.testing.assert_allclose(weights, posterior[f"{case}/weights"], atol=1e-6)
    np.testing.assert_array_equal(weights.argmax(dim=1)[:, None], posterior[f"{case}/argmax_index"])


@pytest.mark.parametrize("case", ["full", "full_wide_pos", "full_wide_neg"])
def test_probabilities_match_reference(posterior, case):
    distributions = of_case(posterior, case)
    found = false_negative_probability(torch.from_numpy(posterior["sims"]), distributions, PRIOR)
    # The reference divides densities in single precision, which is itself 2e-6 off the exact quotient at most.
    np.testing.assert_allclose(found, posterior[f"{case}/posterior"], atol=1e-6, rtol=5e-6)
    curve = false_negative_probability(torch.from_numpy(posterior["curve/s"]), distributions, PRIOR)
    expected = posterior[f"curve/{case}/posterior"]
    known = np.isfinite(expected)  # the ratio of two densities is 0/0 far from both means
    assert known.mean() > 0.8
    np.testing.assert_allclose(curve[torch.from_numpy(known)], expected[known], atol=1e-6, rtol=5e-6)
    assert curve.isfinite().all()


def test_running_statistics_match_reference(statistics):
    running = SimilarityStatistics()
    for batch in range(len(statistics["img"])):
        scores = torch.from_numpy(statistics["img"][batch]) @ torch.from_numpy(statistics["txt"][batch]).T
        running.update(scores, ties="first")  # batch 4 holds one image twice
        found = running.gaussians()
        for k, side in enumerate(("pos", "neg")):
            assert found.count[k] == statistics[f"count_{side}"][batch]
            assert found.mean[k].item() == pytest.approx(statistics[f"avg_{side}"][batch], abs=1e-5)
            assert found.variance[k].item() == pytest.approx(statistics[f"var_{side}"][batch], abs=1e-5)


def test_a_single_pair_has_a_mean_and_no_variance(statistics):
    running = SimilarityStatistics()
    running.update(torch.from_numpy(statistics["one/img"]) @ torch.from_numpy(statistics["one/txt"]).T)
    found = running.gaussians()
    assert found.mean[0].item() == pytest.approx(float(statistics["one/avg_pos"]), abs=1e-6)
    assert found.variance[0].isnan()
    assert found.variance[1].item() == pytest.approx(float(statistics["one/var_neg"]), abs=1e-5)
    assert found.count.tolist() == [1, 2]
    assert (false_negative_probability(torch.rand(5), found, PRIOR) == 0).all()


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


def test_a_reset_forgets_everything_and_updates_carry_no_gradient():
    running = SimilarityStatistics()
    running.update(torch.eye(4).requires_grad_())
    assert not running.total.requires_grad
    running.reset()
    assert all((sums == 0).all() for sums in running.state_dict().values())


@settings(max_examples=60)
@given(
    means=st.tuples(st.floats(0.3, 0.9), st.floats(-0.2, 0.3)),
    variances=st.tuples(st.floats(1e-4, 0.05), st.floats(1e-4, 0.05)),
    prior=st.floats(1e-6, 0.5),
)
def test_probabilities_are_bayes_rule_and_monotone_on_request(means, variances, prior):
    values = np.linspace(-1, 1, 81)
    densities = [
        np.exp(-((values - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        for mean, variance in zip(means, variances, strict=True)
    ]
    similarities = torch.from_numpy(values)
    distributions = Gaussians(
        torch.tensor(means, dtype=torch.float64), torch.tensor(variances, dtype=torch.float64), torch.tensor([9.0, 9.0])
    )
    found = false_negative_probability(similarities, distributions, prior).numpy()
    mixture = prior * densities[0] + (1 - prior) * densities[1]
    known = mixture > 1e-250
    np.testing.assert_allclose(found[known], prior * densities[0][known] / mixture[known], atol=1e-9)
    rising = false_negative_probability(similarities, distributions, prior, monotone=True).numpy()
    assert (np.diff(rising) >= -1e-9).all()
    between = (values >= means[1]) & (values <= means[0])
    np.testing.assert_allclose(rising[between], found[between], atol=1e-9)


def test_probabilities_wait_for_their_samples():
    similarities = torch.linspace(0, 1, 9)
    few, enough = gaussians(count=(200.0, 400.0)), gaussians(count=(201.0, 402.0))
    assert (false_negative_probability(similarities, few, PRIOR, min_count=200) == 0).all()
    assert (false_negative_probability(similarities, enough, PRIOR, min_count=200) > 0).any()


def test_a_row_without_candidates_draws_nothing_and_costs_nothing():
    similarities = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.9, 0.2]])
    excluded = torch.tensor([[True, True, True], [False, True, False]])
    weights = sampling_weights(similarities, similarities[:, 0], excluded, gaussians(), SamplingRules())
    assert weights.tolist() == [[0, 0, 0], [0, 0, 1]]  # below the window, so the hardest
    without = SamplingRules(fallback=False)
    assert not sampling_weights(similarities, similarities[:, 0], excluded, gaussians(), without).any()
    anywhere = SamplingRules(window=None)
    assert (sampling_weights(similarities, similarities[:, 0], excluded, gaussians(), anywhere) > 0).sum() == 2
    drawn, found = draw(weights)
    assert found.tolist() == [False, True]
    assert drawn[1] == 2
    positive = torch.tensor([0.5, 0.5], requires_grad=True)
    hinges = drawn_hinges(positive, similarities.gather(1, drawn[:, None])[:, 0], found, 0.4)
    assert hinges.tolist() == pytest.approx([0.0, 0.1])
    hinges.sum().backward()
    assert positive.grad.tolist() == [0, -1]


def test_hardest_only_takes_the_most_similar_that_is_not_excluded():
    similarities = torch.tensor([[-0.9, -0.1, -0.5], [0.3, 0.2, 0.1]])
    excluded = torch.tensor([[False, True, False], [True, True, True]])
    assert hardest_only(similarities, excluded).tolist() == [[0, 0, 1], [0, 0, 0]]


def test_draws_follow_the_weights():
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.5, 0.0])
    drawn, found = draw(weights.repeat(40_000, 1))
    assert found.all()
    shares = drawn.bincount(minlength=5) / len(drawn)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)
    assert shares[[0, 4]].sum() == 0
