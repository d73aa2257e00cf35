"""Time and memory of evaluating COCO's 5K test split from given scores, beside a plain sort of them."""

from __future__ import annotations

import numpy as np
from measure import apart, most_memory, paired, show

from itrpipe.evaluation.intervals import fold_figures
from itrpipe.evaluation.metrics import PROTOCOLS, protocol_folds, ranks

IMAGES, CAPTIONS = 5000, 5
MOST_SECONDS, MOST_MEMORY = 10.0, 1.5


def scores_of_a_model() -> tuple[np.ndarray, np.ndarray]:
    """Scores [5000, 25000] in single precision that find about half of the matches."""
    random = np.random.default_rng(0)
    caption_image = np.repeat(np.arange(IMAGES), CAPTIONS)
    scores = random.standard_normal((IMAGES, len(caption_image)), dtype=np.float32)
    scores[caption_image, np.arange(len(caption_image))] += 3.5
    return scores, caption_image


def test_every_metric_under_every_protocol() -> None:
    scores, caption_image = scores_of_a_model()

    def ours() -> None:
        for name in PROTOCOLS:
            protocol_folds(name, scores, caption_image)

    def limit() -> None:
        np.sort(scores[:500], axis=1)  # a tenth of what sorting one direction takes

    seconds, tenth = paired(ours, limit, rounds=3)
    show("5,000 x 25,000 scores, all protocols", seconds, 10 * tenth, "sorting every row once", f"{seconds:.1f} s")
    assert seconds < MOST_SECONDS


def test_metrics_against_one_pass_over_the_scores() -> None:
    scores = np.random.default_rng(0).standard_normal((500, 2_500), dtype=np.float32)
    caption_image = np.repeat(np.arange(500), 5)

    def ours() -> None:
        fold_figures([(ranks(scores, caption_image), caption_image)], 1000, 0.95)

    seconds, limit = paired(ours, lambda: np.sort(scores, axis=1))
    show("metrics and 1,000 bootstrap samples, 500 x 2,500", seconds, limit, "one sort of the rows", f"{seconds:.2f} s")
    assert seconds < 10 * limit


def test_memory_is_that_of_the_scores() -> None:
    ((peak, matrix),) = apart(__file__)
    print(f"\n  peak memory: {peak / matrix:.2f} times the {matrix / 2**20:.0f} MiB of the scores")
    assert peak < MOST_MEMORY * matrix


if __name__ == "__main__":
    before = most_memory()
    scores, caption_image = scores_of_a_model()
    for name in PROTOCOLS:
        protocol_folds(name, scores, caption_image)
    print([most_memory() - before, scores.nbytes])
