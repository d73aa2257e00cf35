"""`itrpipe.evaluate` and `itrpipe.compare` over plain vectors: examples, types of numbers, and refusals."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import itrpipe
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation import compare, results
from itrpipe.evaluation.metrics import precision_of_matches

UNITS, OWNERS = np.eye(3), [0, 1, 2]
RANDOM = np.random.default_rng(0)
IMAGES, IMAGE_OF_TEXT = RANDOM.normal(size=(60, 8)), np.arange(120) // 2


def evaluations(noise: float, seeds: int = 3) -> list[itrpipe.Evaluation]:
    random = np.random.default_rng(int(10 * noise))
    texts = [IMAGES[IMAGE_OF_TEXT] + noise * random.normal(size=(120, 8)) for _ in range(seeds)]
    return [itrpipe.evaluate(IMAGES, each, IMAGE_OF_TEXT, samples=100) for each in texts]


@pytest.mark.parametrize(("module", "examples"), [(results, 6), (compare, 4)])
def test_examples_run(module: Any, examples: int) -> None:
    globs = {"np": np, "evaluate": itrpipe.evaluate, "Evaluation": itrpipe.Evaluation}
    outcome = doctest.testmod(module, extraglobs=globs, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (outcome.failed, outcome.attempted) == (0, examples)


def test_tensors_and_all_kinds_of_numbers_are_taken_in_single_precision() -> None:
    texts = IMAGES[IMAGE_OF_TEXT] + RANDOM.normal(size=(120, 8))
    whole = itrpipe.evaluate(IMAGES.astype(np.float32), texts.astype(np.float32), IMAGE_OF_TEXT.tolist(), samples=100)
    given = torch.from_numpy(IMAGES).requires_grad_(), torch.from_numpy(texts), torch.from_numpy(IMAGE_OF_TEXT).int()
    tensors = itrpipe.evaluate(*given, samples=100)
    assert tensors.intervals == whole.intervals
    assert tensors.owners.dtype == np.int64


def test_precision_counts_all_texts_of_an_image_and_chance_is_that_of_so_many_rows() -> None:
    (found,) = evaluations(1.0, seeds=1)
    texts = IMAGES[IMAGE_OF_TEXT] + np.random.default_rng(10).normal(size=(120, 8))
    scores = IMAGES.astype(np.float32) @ texts.astype(np.float32).T
    average, r_precision = precision_of_matches(scores, IMAGE_OF_TEXT, np.arange(120))
    assert found.metrics["i2t_map_at_r"] == pytest.approx(100 * average.mean())
    assert found.metrics["i2t_r_precision"] == pytest.approx(100 * r_precision.mean())
    assert found.metrics["t2i_map_at_r"] == pytest.approx(found.metrics["t2i_r1"])  # of one match each
    assert found.chance["t2i_r1"] == pytest.approx(100 / 60)


@pytest.mark.parametrize(
    ("images", "texts", "owners", "message"),
    [
        (UNITS[0], UNITS, OWNERS, r"images are float64 \[3\] and not vectors"),
        (UNITS, UNITS.astype(int), OWNERS, r"texts are int64 \[3, 3\] and not vectors"),
        (UNITS, UNITS[:, :2], OWNERS, "do not fit each other"),
        (UNITS, UNITS, OWNERS[:2], "2 caption rows do not fit"),
        (UNITS, UNITS, [0, 1, 5], r"image rows 0\.\.5, but 3 images"),
        (UNITS, UNITS, [0, 1, -1], "text 2 has the owner -1"),
        (UNITS, UNITS, [0, 2, 2], "1 of 3 images have no text, such as image 1"),
        (UNITS * np.nan, UNITS, OWNERS, "3 of 3 image embeddings hold NaN"),
        (UNITS * 1e30, UNITS * 1e30, OWNERS, "longest vectors have norms 1e[+]30"),
    ],
)
def test_arrays_that_cannot_be_evaluated_are_refused(images: Any, texts: Any, owners: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        itrpipe.evaluate(images, texts, owners)


@pytest.mark.parametrize("options", [{"samples": 99}, {"level": 1.0}, {"level": float("nan")}])
def test_options_that_no_interval_can_have_are_refused(options: dict[str, Any]) -> None:
    found = evaluations(1.0)
    calls: list[Callable[..., object]] = [lambda **given: itrpipe.evaluate(UNITS, UNITS, OWNERS, **given)]
    calls.append(lambda **given: itrpipe.compare(found, found, **given))
    for call in calls:
        with pytest.raises(UsageError, match=f"{next(iter(options))} "):
            call(**options)


def test_several_models_are_corrected_together_and_keep_their_names() -> None:
    baseline, better, same = evaluations(1.5), evaluations(1.2), evaluations(1.51)
    alone = itrpipe.compare(baseline, better)
    p_value = alone.differences["rsum"].p_value
    level = 1 - 1.5 * p_value  # passes alone, and not as the smaller of two
    names = {"mined": better, "longer": same}
    assert itrpipe.compare(baseline, better, level=level).significant
    claims = itrpipe.compare(baseline, names, level=level)
    assert list(claims) == [each.model for each in claims.values()] == ["mined", "longer"]
    assert not claims["mined"].significant
    assert str(claims["mined"]).startswith("Mined against the baseline: no measurable difference, RSum +")


def test_without_a_training_the_images_decide_and_at_chance_nothing_is_said() -> None:
    (baseline,), (better,) = evaluations(3.0, seeds=1), evaluations(0.5, seeds=1)
    assert itrpipe.compare(baseline, better).word == "one seed is too few"
    assert itrpipe.compare([baseline] * 2, [better] * 2).word == "two seeds are too few"
    claim = itrpipe.compare(baseline, better, trained=False)
    assert (claim.word, claim.significant) == ("better", True)
    assert itrpipe.compare(better, baseline, trained=False).word == "worse"
    (random,) = evaluations(1e6, seeds=1)
    assert itrpipe.compare(random, random, trained=False).word == "both at chance"
    assert itrpipe.compare(random, better, trained=False).word == "better"


def test_evaluations_that_cannot_be_paired_are_refused() -> None:
    found, other = evaluations(1.0), itrpipe.evaluate(UNITS, UNITS, OWNERS)
    for baseline, model, message in (
        (found, found[0], "the baseline has 3 evaluations and the model 1"),
        ([], [], "the baseline has 0 evaluations and the model 0"),
        (found[0], {"mined": other}, "mined and the baseline were evaluated on 3 and 120 texts"),
        ([found[0], other, other], found, "on 3 and 120 texts"),
    ):
        with pytest.raises(DataError, match=message):
            itrpipe.compare(baseline, model)


def test_a_claim_needs_neither_torch_nor_files() -> None:
    code = "import sys, itrpipe; itrpipe.compare; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {"torch", "h5py", "pyarrow", "pydantic", "itrpipe.report", "itrpipe.stages"} & {*loaded}
    assert len([name for name in loaded if name.startswith("itrpipe")]) <= 12
