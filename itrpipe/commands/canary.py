"""`itrpipe evaluate --canary`: whether a model's recall comes from its images, told by taking the images away."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.artifacts.artifact import existing_input, read_manifest
from itrpipe.artifacts.disk import write_json
from itrpipe.artifacts.files import METRICS
from itrpipe.artifacts.integrity import read_checked_json
from itrpipe.commands.trained import evaluated_model
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.results import FULL
from itrpipe.features.given_source import GIVEN, NOT_HERE
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate

if TYPE_CHECKING:
    from itrpipe.analysis.canary import TrainedModel
    from itrpipe.evaluation.chance import Chance
    from itrpipe.training.encode import Rows

CANARY = "canary.json"
SEED = 0
BLOCK = 256
"""Images or captions per forward pass."""
LARGEST_DIFFERENCE = 0.1
"""Between scores that training wrote and those of the saved model, in standard deviations of the scores; a GPU's
half precision stays far below."""


def refuse_ensembles(ensemble_with: list[str] | None, rerank: int | None) -> None:
    """Call before anything is computed.

    Raises:
        UsageError: several models, or re-ranked scores, are to be tested.
    """
    if ensemble_with or rerank:
        option = "--ensemble-with" if ensemble_with else "--rerank"
        raise UsageError(f"--canary tests the scores of one model as they are; leave {option} out and test each model")


def refuse_given(method: str) -> None:
    """Call before anything is computed.

    Raises:
        UsageError: embeddings are to be tested whose model is not here.
    """
    if method == GIVEN:
        raise UsageError(f"--canary scores other images, and {NOT_HERE}; leave it out")


def release_canary(folder: Path, device: str | None, reporter: Reporter) -> None:
    """Scores the evaluated split with images exchanged and with noise for images, and compares recall with chance.

    Writes canary.json into the folder of the evaluation, whose own files stay as they are.

    Args:
        folder: artifact of `evaluate`, of a single model.
        device: `auto`, `cpu` or `cuda`; None is `auto`.
        reporter: prints the recalls.

    Raises:
        DataError: a recall is not within `LIMIT` standard deviations of chance, or the saved model does not give the
            scores that were evaluated.
        MissingInputError: what the model was trained on was removed.
    """
    from itrpipe.analysis.canary import ExchangedImages, NoiseImages
    from itrpipe.evaluation.chance import LIMIT

    manifest = read_manifest(folder)
    trained, split = existing_input(folder, manifest, "train"), manifest.settings["split"]
    opened = evaluated_model(folder, device)
    difference = _difference(opened, trained, folder, manifest.settings)
    found = {
        name: _chances(opened, rows, name, reporter)
        for name, rows in (
            ("exchanged", ExchangedImages(opened.data, SEED)),
            ("noise", NoiseImages(opened.data, SEED, BLOCK)),
        )
    }
    failures = _failures(difference, found)
    facts = {"split": split, "images": opened.data.num_images, "captions": opened.data.num_captions, "seed": SEED}
    telling = can_fail(folder, found["exchanged"])
    facts |= {
        "passed": not failures,
        "telling": telling,
        "difference": {"value": difference, "limit": LARGEST_DIFFERENCE},
    }
    write_json(folder / CANARY, {**facts, **{name: _as_json(chances) for name, chances in found.items()}})
    if failures:
        raise DataError(
            f"the canary died: {'; '.join(failures)}; {folder / CANARY} holds all of it; do not report this run before "
            "you know why"
        )
    reporter.say(f"  canary: passed, every recall is within {LIMIT:g} standard deviations of chance", style="green")
    if not telling:
        reporter.say(
            "  so is the recall of the model itself, and a leak could not have shown: take more images or train longer",
            style="yellow",
        )


def _chances(opened: TrainedModel, rows: Rows, name: str, reporter: Reporter) -> dict[str, Chance]:
    """Recalls with these images, beside chance."""
    from itrpipe.evaluation.chance import chance_of_recalls

    with reporter.task(f"scoring, images {name}", rows.num_images * rows.num_captions, "pairs") as task:
        scores = opened.scores(rows, BLOCK, task.advance)
    chances = chance_of_recalls(scores, opened.data.caption_image)
    _say(name, chances, reporter)
    return chances


def _difference(opened: TrainedModel, trained: Path, evaluated: Path, settings: Mapping[str, Any]) -> float:
    """Largest difference, in standard deviations, between scores that were evaluated and those of the saved model.

    Of the first images with all their captions, so that own pairs are among them.
    """
    import numpy as np

    from itrpipe.analysis.canary import FirstRows

    stored = evaluate.read_split(trained, evaluated, settings["backbone"], settings["split"])
    split = opened.data.split
    if (
        stored.image_ids.tolist() != split.image_ids.tolist()
        or stored.caption_ids.tolist() != split.caption_ids.tolist()
    ):
        raise DataError(
            f"{trained}: its scores of split {settings['split']} are of other images or captions than {split.name} of "
            "the dataset; train the model again"
        )
    first = FirstRows(opened.data, BLOCK)
    written = stored.scores()
    fresh = opened.scores(first, BLOCK)
    deviation = float(written.std(dtype=np.float64)) or 1.0
    return float(np.abs(written[: first.num_images, : first.num_captions] - fresh).max()) / deviation


def _failures(difference: float, found: Mapping[str, Mapping[str, Chance]]) -> list[str]:
    failures = []
    if difference > LARGEST_DIFFERENCE:
        failures.append(
            f"the saved model gives other scores than those evaluated, by {difference:.2g} of their standard deviations"
        )
    for name, chances in found.items():
        off = {metric: each for metric, each in chances.items() if not each.holds}
        if off:
            metric, worst = max(off.items(), key=lambda item: abs(item[1].value - item[1].mean))
            what = "every image replaced by another one" if name == "exchanged" else "noise in the place of every image"
            failures.append(
                f"with {what} {metric.replace('_r', ' R@')} is {worst.value:.2f} %, where chance gives "
                f"{worst.low:.2f} to {worst.high:.2f} %"
            )
    return failures


def can_fail(folder: Path, chances: Mapping[str, Chance]) -> bool:
    """Whether a recall of the evaluation is above what passes for chance, so that taking the images away must show.

    Args:
        folder: artifact of `evaluate`, whose scores are of all images and captions.
        chances: recall -> what passes for chance.
    """
    measured = read_checked_json(folder / METRICS)[FULL]
    return any(measured[metric]["value"] > each.high for metric, each in chances.items())


def _say(name: str, chances: Mapping[str, Chance], reporter: Reporter) -> None:
    from itrpipe.evaluation.chance import LIMIT

    if name == "exchanged":
        titles = [metric.replace("_r", " R@") for metric in chances]
        reporter.say("  canary            " + "".join(f"{title:>10}" for title in titles))
    for title, numbers in (
        (f"images {name}", [each.value for each in chances.values()]),
        ("  chance", [each.mean for each in chances.values()]),
        (f"  ± {LIMIT:g} deviations", [each.high - each.mean for each in chances.values()]),
    ):
        reporter.say(f"  {title:<18}" + "".join(f"{number:>10.2f}" for number in numbers))


def _as_json(chances: Mapping[str, Chance]) -> dict[str, dict[str, float | bool]]:
    return {
        metric: {"value": each.value, "chance": each.mean, "low": each.low, "high": each.high, "holds": each.holds}
        for metric, each in chances.items()
    }
