"""Whether a second training is worth it: how hard its negatives were, how hard others are, how many of them false.

All of it comes from the embeddings of the training split and from the history of the training; the test split is not
looked at.

A batch of B pairs offers an anchor B - 1 captions, or the images of these. Drawn with replacement among the M captions
of other images, the hardest of them stands behind k others of the M with probability

    P(k) = ((M - k) / M)^(B - 1) - ((M - k - 1) / M)^(B - 1)

so that what is expected of a batch is a weighted sum over all candidates in the order of their scores, and nothing is
simulated. An image is as often among the M as it has captions. Batches are drawn without replacement, which makes a
difference only where B is no small part of M.

Shapes: A anchors, C candidates of each, K of these, hardest first, N images, T captions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.analysis.questions.false_negatives import DIRECTIONS, TrainingSet, number
from itrpipe.errors import UsageError
from itrpipe.evaluation.metrics import is_alike, ranks, rsum, share_of_hubs
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, SplitScores, read_embeddings
from itrpipe.mining.lists import slices
from itrpipe.mining.settings import MineSettings
from itrpipe.storage.artifact import HISTORY, SECOND_ROUND, existing_input, read_manifest
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import checked
from itrpipe.training.settings import no_first_training

ANCHORS, TOP = 500, 10
"""Training pairs that are looked at, and how many of the hardest candidates of the dataset are the top."""
SIZES = (32, 128, 512, 2048)
"""Batch sizes beside the model's own."""
MARGIN, TEMPERATURE = 0.2, 0.07
"""Of the hinge and of the softmax where the method has none."""
_SCHEDULE = ("epochs", "schedule", "decay_every", "decay_at", "learning_rate", "patience")
_SEED = 0
_VALUES_AT_ONCE = 1 << 22
_NEGLIGIBLE = 1e-9
"""Probability of standing behind so many candidates, from which on they are not looked at."""
_OF_ONE = ("rank", "beaten", "active")
"""Facts that have no mean over several candidates."""
_PERCENTAGES = ("beaten", "active", "false", "estimated_false", "gradient", "mined_gradient")
_rounded = partial(number, digits=4)


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models that are a first training."""
    return evaluation.is_single and not no_first_training(evaluation.manifest.settings)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes second_round.json, about the training split whichever is evaluated."""
    write_json(evaluation.folder / SECOND_ROUND, diagnose(evaluation.trained, evaluation.prepare))


def diagnose(trained: Path, prepared: Path | None = None) -> dict[str, Any]:
    """Everything that `itrpipe.analysis.second_round.recommend` reads.

    Args:
        trained: artifact of a first training, see `itrpipe.training.settings.no_first_training`.
        prepared: dataset that it was trained on; None takes it where the training found it.

    Returns:
        Ready for JSON. `model`: what was trained, on how much. `validation`: RSum by epoch, the `best`, and the points
        `gained` over the last third of the epochs. `fit`: RSum on as many training images as are validated on, the
        `gap` between both, and whether most of these images get the same captions (`alike`). `directions`: for both,
        figures of the `batches` of several sizes, of the `hardest` candidate of the dataset and of its `top` ones, see
        `measured`. Figures are None where they are not known.

    Raises:
        MissingInputError: the dataset was removed.
        DataError: a file is damaged, or scores are not finite.
    """
    manifest = read_manifest(trained)
    data = TrainingSet.open(trained, prepared or existing_input(trained, manifest, "prepare"))
    found, settings = data.embeddings, manifest.settings
    history = pq.read_table(checked(trained / HISTORY)).to_pylist()
    images, captions, steps = len(found.images), len(found.texts), sum(row["steps"] for row in history)
    own = settings["batch_size"]
    if settings.get("batch_by", "pairs") != "pairs":  # full by its tokens: the mean number of pairs
        own = max(2, round(captions * history[-1]["epoch"] / max(1, steps)))
    own = min(own, captions)
    best = [row for row in history if row["best"]][-1]
    margin, temperature = float(settings["loss"].get("margin", MARGIN)), best.get("mean_temperature") or TEMPERATURE
    validated = min(len(read_embeddings(trained / EMBEDDINGS, "val").images), settings["validation_images"], images)
    return {
        "model": {
            "run": manifest.label,
            "dataset": manifest.dataset,
            "method": manifest.conf,
            "objective": settings["method"],
            "backbone": settings["backbone"],
            "seed": settings["seed"],
            "images": images,
            "captions": captions,
            "most_captions": int(np.bincount(found.caption_image).max()),
            "batch_size": own,
            "images_by_batch": _rounded(images / own),
            "schedule": {name: settings[name] for name in _SCHEDULE},
            "margin": margin,
            "temperature": _rounded(temperature),
            "truth": data.matches is not None,
        },
        "validation": validation(history),
        "fit": _fit(found, validated, best["val_rsum"]),
        "directions": measured(data, own, margin, temperature),
    }


def _fit(found: SplitEmbeddings, images: int, best: float) -> dict[str, Any]:
    """RSum on some training images beside the best of the validation, and whether most get the same captions."""
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(found.images))[:images])
    captions = np.flatnonzero(np.isin(found.caption_image, chosen))
    scores = found.images[chosen] @ found.texts[captions].T
    train = rsum(ranks(scores, np.searchsorted(chosen, found.caption_image[captions])))
    alike = is_alike(share_of_hubs(scores.argmax(axis=1).tolist()), len(captions), images)
    fit = {"train": _rounded(train), "validation": _rounded(best), "gap": _rounded(train - best)}
    return {"images": images, **fit, "alike": alike}


def measured(
    data: TrainingSet, batch_size: int, margin: float, temperature: float = TEMPERATURE, anchors: int = ANCHORS
) -> dict[str, Any]:
    """How hard negatives are, of a fixed sample of training pairs.

    Args:
        data: embeddings of the training split, compared by inner product.
        batch_size: of the model; that and `SIZES` are looked at, as far as there are so many pairs.
        margin: of the hinge.
        temperature: of the softmax.
        anchors: pairs in the sample.

    Returns:
        Direction -> `candidates` (captions, or images), `positive` (mean score of the pairs), and `batches` (list, by
        `size`), `hardest` and `top`, each with

        - `rank`: candidates ahead of it (of batches);
        - `score`: its mean score;
        - `beaten`: % of the pairs that score below it, below the mean of the `top`;
        - `active`: % of the pairs whose hinge it makes active (not of the `top`);
        - `false`: % that are correct matches, None where these are not known;
        - `estimated_false`: the same by the probability of FNE, as the guard of mining estimates it; None where the
          model ranks hardly any pair above the others of its batch;
        - `gradient`, of batches: % of the softmax that negatives hold, by their expected mass;
        - `mined_gradient`, of batches: % of what negatives hold that the dataset's hardest would hold beside them.

    Raises:
        UsageError: there is one image, which has no negatives.
    """
    from itrpipe.learning.false_negatives import estimate_gaussians, probabilities

    found = data.embeddings
    if len(np.unique(found.caption_image)) < 2:
        raise UsageError("a training set of one image has no negatives; train on more images")
    pairs = np.sort(np.random.default_rng(_SEED).permutation(len(found.texts))[:anchors])
    sizes = sorted({batch_size, *(size for size in SIZES if size < len(found.texts))})
    prior, at_once = (MineSettings.model_fields[f"guard_{name}"].default for name in ("prior", "batch_size"))
    gaussians = estimate_gaussians(found.images, found.texts, found.caption_image, batch_size=at_once)
    estimate = partial(probabilities, gaussians=gaussians, prior=prior) if gaussians.usable() else None
    figures = {}
    for name in DIRECTIONS:
        parts = [*_figures(data, name, pairs, sizes, margin, temperature, estimate)]
        means = {key: _means([part[key] for part in parts]) for key in parts[0]}
        figures[name] = {
            "candidates": len(found.texts if name == DIRECTIONS[0] else found.images),
            "anchors": len(pairs),
            "positive": _rounded((found.images[found.caption_image[pairs]] * found.texts[pairs]).sum(axis=1).mean()),
            "batches": [{"size": size, **means[size]} for size in sizes],
            "hardest": means["hardest"],
            "top": {"size": TOP, **means["top"]},
        }
    return figures


def validation(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a training's validations say.

    Args:
        history: a row for each validation, with `epoch` and `val_rsum`.

    Returns:
        `epochs` and `rsum` of every validation, the `best` RSum, its `best_epoch`, `fell`: by how much the last one is
        below it, and `gained`: by how much it is above the best of the validations before the last third of the epochs;
        None where there are none.
    """
    epochs, scores = ([row[name] for row in history] for name in ("epoch", "val_rsum"))
    before = [score for epoch, score in zip(epochs, scores, strict=True) if 0 < epoch <= 2 * epochs[-1] / 3]
    best = max(scores)
    return {
        "epochs": epochs,
        "rsum": [_rounded(score) for score in scores],
        "best": _rounded(best),
        "best_epoch": epochs[scores.index(best)],
        "fell": _rounded(best - scores[-1]),
        "gained": _rounded(best - max(before)) if before else None,
    }


def _figures(
    data: TrainingSet,
    direction: str,
    pairs: np.ndarray,
    sizes: Sequence[int],
    margin: float,
    temperature: float,
    estimate: Callable[[np.ndarray], np.ndarray] | None,
) -> Iterator[dict[Any, dict[str, float]]]:
    """Figures of every pair [A], captions by row: by size of the batch, and of the `hardest` and the `top`."""
    found, of_images = data.embeddings, direction == DIRECTIONS[0]
    queries, candidates, owners = found.images, found.texts, found.caption_image
    own, each = owners[pairs], np.ones(len(owners), dtype=np.int64)  # how often a batch can draw a candidate
    rows, anchors = pairs, own
    if not of_images:
        queries, candidates, owners, each = found.texts, found.images, np.arange(len(found.images)), np.bincount(owners)
        rows, anchors = own, pairs
    for part in slices(len(pairs), max(1, _VALUES_AT_ONCE // len(candidates))):
        matrix = queries[anchors[part]] @ candidates.T  # [a, C]
        for scores, row, image, anchor in zip(matrix, rows[part], own[part], anchors[part], strict=True):
            drawn, positive = np.where(image == owners, 0, each), scores[row]
            total = drawn.sum()
            depth = max(TOP, int(np.ceil(_depth(total, sizes[0]))))
            order = np.argsort(np.where(drawn, -scores, np.inf))[: min(depth, np.count_nonzero(drawn))]  # [K]
            first = scores[order]
            facts = {
                "rank": np.arange(len(first)),
                "score": first,
                "beaten": first > positive,
                "active": first > positive - margin,
                "estimated_false": None if estimate is None else estimate(first),
                "false": data.is_match(*((order, anchor) if of_images else (anchor, order))),
            }
            known = {name: values for name, values in facts.items() if values is not None}
            top = {name: values[:TOP].mean(dtype=np.float64) for name, values in known.items() if name not in _OF_ONE}
            figures: dict[Any, dict[str, float]] = {
                "hardest": {name: values[0] for name, values in known.items() if name != "rank"},
                "top": {**top, "beaten": top["score"] > positive},
            }
            # Logarithms of the mean mass of a negative, and of the mass of the hardest; that of the positive is 0.
            mined = (first[0] - positive) / temperature
            excess = np.where(drawn, scores - first[0], -np.inf)  # 0 at most, whose powers are never too large
            mass = np.log((np.exp(excess / temperature) * drawn).sum(dtype=np.float64) / total) + mined
            behind = np.append(0, np.cumsum(drawn[order]))
            for size in sizes:
                ahead = behind[: 1 + np.count_nonzero(behind[:-1] < _depth(total, size))]
                chances = -np.diff((1 - ahead / total) ** (size - 1))
                negatives = np.log(size - 1) + mass
                figures[size] = {name: chances @ values[: len(chances)] for name, values in known.items()}
                figures[size]["gradient"] = np.exp(-np.logaddexp(0.0, -negatives))
                figures[size]["mined_gradient"] = np.exp(-np.logaddexp(0.0, negatives - mined))
            yield figures


def _depth(total: int, size: int) -> float:
    """How many of so many candidates have a chance to be the hardest of a batch."""
    return total * (1 - _NEGLIGIBLE ** (1 / (size - 1)))


def _means(parts: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Means over all anchors, in percent what is one."""
    found: dict[str, float | None] = dict.fromkeys(("false", "estimated_false"))
    for name in parts[0]:
        mean = float(np.mean([part[name] for part in parts], dtype=np.float64))
        found[name] = _rounded(100 * mean if name in _PERCENTAGES else mean)
    return found
