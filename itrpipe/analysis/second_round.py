"""What the first training tells of a second training: how hard its negatives were, how hard others are, how many false.

All of it comes from the embeddings of the training split and from the history of the training; the test split is not
looked at.

A batch of B pairs offers an anchor B - 1 captions, or the images of these. Drawn with replacement among the M captions
of other images, the hardest of them stands behind k others of the M with probability

    P(k) = ((M - k) / M)^(B - 1) - ((M - k - 1) / M)^(B - 1)

so that what is expected of a batch is a weighted sum over all candidates in the order of their scores, and nothing is
simulated. An image is as often among the M as it has captions. Batches are drawn without replacement, which makes a
difference only where B is no small part of M.

Shapes: A anchors, C candidates of each, N images, T captions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.analysis.questions.false_negatives import DIRECTIONS, TrainingSet
from itrpipe.errors import UsageError
from itrpipe.evaluation.collapse import is_alike, share_of_hubs
from itrpipe.evaluation.metrics import ranks, rsum
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, read_embeddings
from itrpipe.learning.false_negatives import Gaussians, estimate_gaussians, probabilities
from itrpipe.mining.settings import MineSettings
from itrpipe.storage.artifact import HISTORY, Manifest, existing_input, read_manifest
from itrpipe.storage.integrity import checked
from itrpipe.training.settings import no_first_training

ANCHORS, TOP = 500, 10
"""Training pairs that are looked at, and how many of the hardest candidates of the dataset are the top."""
SIZES = (32, 128, 512, 2048)
"""Batch sizes beside the model's own."""
MARGIN, TEMPERATURE = 0.2, 0.07
"""Of the hinge and of the softmax where the method has none."""
_SCHEDULE = ("epochs", "schedule", "decay_every", "decay_at", "learning_rate", "patience", "warmup_updates")
_SEED = 0
_VALUES_AT_ONCE = 1 << 22
_NEGLIGIBLE = 1e-9
"""Probability of standing behind so many candidates, from which on they are not looked at."""
_OF_ONE = ("rank", "beaten", "active")
"""Facts that have no mean over several candidates."""
_PERCENTAGES = ("beaten", "active", "false", "estimated_false", "gradient", "mined_gradient")


@dataclass(frozen=True)
class _Ranked:
    """The hardest candidates of some anchors, hardest first; where there are few, at the end of the anchor's own image.

    Attributes:
        facts: name -> [a, K]: what is measured of each candidate, see `measured`.
        positive: [a, 1] score of the pair.
        copies: [a, K] int64, how often a batch can draw each; 0 for those of the own image.
        total: [a, 1] int64, M.
        log_mass: [a] logarithm of the mean of exp((score - positive) / temperature) over the M.
    """

    facts: Mapping[str, np.ndarray]
    positive: np.ndarray
    copies: np.ndarray
    total: np.ndarray
    log_mass: np.ndarray

    def sums(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Facts [a] of the first candidates, each with a weight [a, c]."""
        return {name: (weights * each[:, : weights.shape[1]]).sum(axis=1) for name, each in self.facts.items()}

    def of_batch(self, size: int, temperature: float) -> dict[str, np.ndarray]:
        """Figures [a] that are expected of the hardest negative of a batch of `size` pairs."""
        behind = np.cumsum(self.copies, axis=1)  # [a, K]
        columns = int((behind - self.copies < _depth(self.total, size)).sum(axis=1).max())
        behind, copies = behind[:, :columns], self.copies[:, :columns]
        left = (1 - (behind - copies) / self.total) ** (size - 1)
        negatives = np.log(size - 1) + self.log_mass  # the positive has 0
        mined = (self.facts["score"][:, 0] - self.positive[:, 0]) / temperature
        shares = {"gradient": np.exp(-np.logaddexp(0.0, -negatives))}
        shares["mined_gradient"] = np.exp(-np.logaddexp(0.0, negatives - mined))
        return self.sums(left - (1 - behind / self.total) ** (size - 1)) | shares

    def of_dataset(self) -> dict[str, dict[str, np.ndarray]]:
        """Figures [a] of the hardest candidate, and means of the top ones, of fewer where there are no more."""
        hardest, there = self.sums(np.ones((len(self.positive), 1), np.float32)), self.copies[:, :TOP] > 0
        del hardest["rank"]
        top = {name: each / there.sum(axis=1) for name, each in self.sums(there).items() if name not in _OF_ONE}
        return {"hardest": hardest, "top": top | {"beaten": top["score"] > self.positive[:, 0]}}


def _depth(total: np.ndarray, size: int) -> np.ndarray:
    """How many of so many candidates have a chance to be the hardest of a batch."""
    return total * (1 - _NEGLIGIBLE ** (1 / (size - 1)))


def diagnose(trained: Path, prepared: Path | None = None) -> dict[str, Any]:
    """Everything that `itrpipe.evaluation.second_round.recommend` reads.

    Args:
        trained: artifact of a trained model with embeddings.
        prepared: dataset that it was trained on; None takes it where the training found it.

    Returns:
        Ready for JSON. `model`: what was trained, on how much. `validation`: RSum by epoch, the `best`, and the points
        `gained` over the last third of the epochs. `fit`: RSum on as many training images as are validated on, the
        `gap` between both, and whether most of these images get the same captions (`alike`). `directions`: for both,
        figures of the `batches` of several sizes, of the `hardest` candidate of the dataset and of its `top` ones, see
        `measured`. Figures are None where they are not known.

    Raises:
        UsageError: the model is no first training, see `itrpipe.training.settings.no_first_training`.
        MissingInputError: the dataset was removed.
        DataError: a file is damaged, or scores are not finite.
    """
    manifest = read_manifest(trained)
    if reason := no_first_training(manifest.settings):
        raise UsageError(f"{trained}: {reason}")
    data = TrainingSet.open(trained, prepared or existing_input(trained, manifest, "prepare"))
    found, settings = data.embeddings, manifest.settings
    own = min(_pairs_in_batch(settings, trained, len(found.texts)), len(found.texts))
    margin = float(settings["loss"].get("margin", MARGIN))
    history = _history(trained)
    temperature = _temperature(history)
    return {
        "model": {
            "run": manifest.label,
            "dataset": manifest.dataset,
            "method": manifest.conf,
            "objective": settings["method"],
            "backbone": settings["backbone"],
            "seed": settings["seed"],
            "images": len(found.images),
            "captions": len(found.texts),
            "most_captions": int(np.bincount(found.caption_image).max()),
            "batch_size": own,
            "images_by_batch": _number(len(found.images) / own),
            "schedule": {name: settings[name] for name in _SCHEDULE},
            "updates": sum(row["steps"] for row in history) // settings.get("accumulate", 1),
            "margin": margin,
            "temperature": _number(temperature),
            "truth": data.matches is not None,
        },
        "validation": validation(history),
        "fit": _fit(manifest, found, trained, history),
        "directions": measured(data, own, margin, temperature),
    }


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
    found = data.embeddings
    if len(np.unique(found.caption_image)) < 2:
        raise UsageError("a training set of one image has no negatives; train on more images")
    pairs = np.sort(np.random.default_rng(_SEED).permutation(len(found.texts))[:anchors])
    sizes = sorted({batch_size, *(size for size in SIZES if size < len(found.texts))})
    guard = {name: MineSettings.model_fields[f"guard_{name}"].default for name in ("prior", "batch_size")}
    rows = (found.images, found.texts, found.caption_image)
    gaussians = estimate_gaussians(*rows, batch_size=guard["batch_size"])
    figures = {}
    for name in DIRECTIONS:
        parts = [
            each.of_dataset() | {size: each.of_batch(size, temperature) for size in sizes}
            for each in _ranked(data, name, pairs, sizes[0], margin, temperature, gaussians, guard["prior"])
        ]
        means = {key: _means([part[key] for part in parts]) for key in parts[0]}
        figures[name] = {
            "candidates": len(found.texts if name == DIRECTIONS[0] else found.images),
            "anchors": len(pairs),
            "positive": _number((found.images[found.caption_image[pairs]] * found.texts[pairs]).sum(axis=1).mean()),
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
        "rsum": [_number(score) for score in scores],
        "best": _number(best),
        "best_epoch": epochs[scores.index(best)],
        "fell": _number(best - scores[-1]),
        "gained": _number(best - max(before)) if before else None,
    }


def _ranked(
    data: TrainingSet,
    direction: str,
    pairs: np.ndarray,
    size: int,
    margin: float,
    temperature: float,
    gaussians: Gaussians,
    prior: float,
) -> Iterator[_Ranked]:
    """Candidates of the pairs [A], captions by row, some pairs at a time, as far as batches of a size draw them."""
    found, of_images = data.embeddings, direction == DIRECTIONS[0]
    sides = (found.images, found.texts) if of_images else (found.texts, found.images)
    anchors = found.caption_image[pairs] if of_images else pairs
    owners = found.caption_image if of_images else np.arange(len(found.images))
    copies = np.bincount(found.caption_image, minlength=len(found.images))
    copies = np.ones(len(found.texts), dtype=np.int64) if of_images else copies
    candidates, usable = np.ascontiguousarray(sides[1]), bool(gaussians.usable())
    height = max(1, _VALUES_AT_ONCE // len(candidates))
    for start in range(0, len(pairs), height):
        part = slice(start, start + height)
        own = found.caption_image[pairs[part]]
        positive = np.einsum("ad,ad->a", found.images[own], found.texts[pairs[part]])[:, None]
        scores = sides[0][anchors[part]] @ candidates.T  # [a, C]
        drawn = np.where(own[:, None] == owners, 0, copies)
        total = drawn.sum(axis=1, keepdims=True)
        depth = max(TOP, int(np.ceil(_depth(total.max(), size))))
        order = np.argsort(np.where(drawn, -scores, np.inf), axis=1)[:, :depth]  # [a, K]
        first = np.take_along_axis(scores, order, axis=1)
        facts = {"rank": np.broadcast_to(np.arange(first.shape[1]), first.shape), "score": first}
        facts |= {"beaten": first > positive, "active": first > positive - margin}
        facts |= {"estimated_false": probabilities(first, gaussians, prior)} if usable else {}
        match = _matches(data, of_images, anchors[part], len(candidates))
        if match is not None:
            facts["false"] = np.take_along_axis(match, order, axis=1)
        excess = np.where(drawn, scores - first[:, :1], -np.inf)  # 0 at most, whose powers are never too large
        mass = (np.exp(excess / temperature) * drawn).sum(axis=1, dtype=np.float64) / total[:, 0]
        log_mass = np.log(mass) + (first[:, 0] - positive[:, 0]) / temperature
        yield _Ranked(facts, positive, np.take_along_axis(drawn, order, axis=1), total, log_mass)


def _matches(data: TrainingSet, of_images: bool, anchors: np.ndarray, candidates: int) -> np.ndarray | None:
    """bool [a, C], which candidates match the anchors, some of which are there more than once."""
    if data.matches is None:
        return None
    captions, images = data.matches.caption_rows, data.matches.image_rows
    mine, theirs = (images, captions) if of_images else (captions, images)
    distinct, rows = np.unique(anchors, return_inverse=True)
    places = np.searchsorted(distinct, mine).clip(max=len(distinct) - 1)
    known = distinct[places] == mine
    table = np.zeros((len(distinct), candidates), dtype=bool)
    table[places[known], theirs[known]] = True
    return table[rows]


def _means(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
    """Means over all anchors, in percent what is one."""
    found: dict[str, float | None] = dict.fromkeys(("false", "estimated_false"))
    for name in parts[0]:
        mean = float(np.concatenate([part[name] for part in parts]).mean(dtype=np.float64))
        found[name] = _number(100 * mean if name in _PERCENTAGES else mean)
    return found


def _pairs_in_batch(settings: Mapping[str, Any], trained: Path, captions: int) -> int:
    """Pairs of a step; the mean number where a batch is full by its tokens."""
    if settings.get("batch_by", "pairs") == "pairs":
        return settings["batch_size"]
    rows = _history(trained)
    return max(2, round(captions * rows[-1]["epoch"] / max(1, sum(row["steps"] for row in rows))))


def _history(trained: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(checked(trained / HISTORY)).to_pylist()


def _temperature(history: Sequence[Mapping[str, Any]]) -> float:
    """Of the epoch that validated best: the mean, where it is learned."""
    best = max(place for place, row in enumerate(history) if row["best"])
    known = [row["mean_temperature"] for row in history[: best + 1] if row.get("mean_temperature")]
    return known[-1] if known else TEMPERATURE


def _fit(
    manifest: Manifest, found: SplitEmbeddings, trained: Path, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """RSum on some training images beside that of the validation, and whether most get the same captions."""
    validated = len(read_embeddings(trained / EMBEDDINGS, "val").images)
    images = min(validated, manifest.settings["validation_images"], len(found.images))
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(found.images))[:images])
    captions = np.flatnonzero(np.isin(found.caption_image, chosen))
    owners = np.searchsorted(chosen, found.caption_image[captions])
    scores = found.images[chosen] @ found.texts[captions].T
    train, first = rsum(ranks(scores, owners)), scores.argmax(axis=1)
    alike = is_alike(share_of_hubs(first.tolist()), len(captions), images)
    best = [row["val_rsum"] for row in history if row["best"]][-1]
    fit = {"train": _number(train), "validation": _number(best), "gap": _number(train - best)}
    return {"images": images, **fit, "alike": alike}


def _number(value: float) -> float | None:
    """Rounded for JSON, which has no NaN."""
    return round(float(value), 4) if np.isfinite(value) else None
