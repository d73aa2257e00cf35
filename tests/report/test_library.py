"""`itrpipe.compare` says of embeddings what the report says of the trainings that they are of."""

from __future__ import annotations

from dataclasses import replace

import itrpipe
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from tests.report.test_comparisons import RUNS, SEEDS
from tests.report.toy import Toy


def evaluations(toy: Toy, method: str) -> list[itrpipe.Evaluation]:
    found = []
    for seed in SEEDS:
        folder = toy.made[f"{method}.s{seed}" if seed else method]
        vectors = read_embeddings(folder / EMBEDDINGS, "test")
        found.append(itrpipe.evaluate(vectors.images, vectors.texts, vectors.caption_image, samples=100))
    return found


def test_the_sentence_and_the_numbers_are_those_of_the_report(seeded: Toy) -> None:
    results = seeded.report(RUNS).results
    claim = itrpipe.compare(evaluations(seeded, "triplet-long"), evaluations(seeded, "aoq"), samples=200)
    (reported,) = results["claims"]
    assert {name: each.as_json() for name, each in claim.differences.items()} == reported["own"]
    assert claim.word == reported["result"]
    named = replace(claim, model=reported["model"], baseline="baseline (same epochs)")
    assert results["answers"][0].startswith(str(named))
