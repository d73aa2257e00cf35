"""`itrpipe advise`: whether a second training is worth it, told by the first training alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from itrpipe.commands.trained import data_option, make_missing, train_settings, trained_run
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import UsageError
from itrpipe.evaluation.tables import Number, Row, Table, as_lines
from itrpipe.plan.planning import Override, Planner
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need
from itrpipe.training.settings import no_first_training

_DIRECTIONS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_ROWS = {
    "rank": ("candidates ahead of it", 0, ""),
    "score": ("its score", 3, ""),
    "beaten": ("beats the pair", 1, " %"),
    "active": ("comes within the margin", 1, " %"),
    "false": ("is a correct match", 1, " %"),
    "estimated_false": ("the same by FNE's estimate", 1, " %"),
    "gradient": ("softmax: negatives", 1, " %"),
    "mined_gradient": ("of these, one mined", 1, " %"),
}


def advise(
    root: Path,
    dataset: str,
    method: str,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what to do after a first training, the command, and what tells so; trains the first training first.

    Args:
        root: the data folder.
        dataset: dataset name.
        method: configuration of `train`, of a first training.
        overrides: values given by the user.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and advise nothing.
        verbose: print every figure.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the model has no embeddings, or has learned from more than the negatives of its batches.
        MissingInputError: the dataset was removed.
    """
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    if reason := no_first_training(train_settings(step).model_dump()):
        raise UsageError(f"{step.location.label}: {reason}")
    if not make_missing(
        f"advise on {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run
    ):
        return
    from itrpipe.analysis.questions.second_round import diagnose
    from itrpipe.analysis.second_round import recommend

    trained = trained_run(step)
    found = diagnose(trained.folder)
    named = load_definition(root, dataset).named_trainings().get(trained.folder.name, "")  # of what was just trained
    advice = recommend(found, named)
    if as_json:
        Reporter().say_json({"advice": advice._asdict(), **found})
        return
    reporter.say(f"{dataset}: is a second training worth it after {trained.label}?", style="bold")
    reporter.say(advice.sentence, style="bold green")
    reporter.say(f"next: {advice.command}{data_option(root)}")
    if advice.action != "collapsed":  # else negatives tell nothing
        for line in (*_lines(found, verbose=verbose), advice.evidence):
            reporter.say(line)


def _lines(found: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    """What the advice was told by: three rows, or a table of each direction."""
    size, truth = found["model"]["batch_size"], found["model"]["truth"]
    false = "false" if truth else "estimated_false"
    sides = {title: found["directions"][name] for name, title in _DIRECTIONS.items()}
    own = [next(each for each in side["batches"] if each["size"] == size) for side in sides.values()]
    hardest = [side["hardest"] for side in sides.values()]
    rows = {
        "hardest of a batch": [each["beaten"] for each in own],
        "hardest of the dataset": [each["beaten"] for each in hardest],
        "correct matches" if truth else "correct matches (FNE)": [each[false] for each in hardest],
    }
    shown = [Row(title, [Number.of(each, unit=" %") for each in cells]) for title, cells in rows.items()]
    title = "Pairs beaten by their hardest negative, and correct matches among these"
    yield from ("", *as_lines(Table(title, [*sides], shown, head="")), "")
    for title, side in sides.items() if verbose else ():
        columns = {f"batch {each['size']:,}": each for each in side["batches"]}
        columns |= {"dataset": side["hardest"], f"its top {side['top']['size']}": side["top"]}
        cells = {key: [each.get(key) for each in columns.values()] for key in _ROWS}
        table = [
            Row(name, [Number.of(value, digits=digits, unit=unit) for value in cells[key]])
            for key, (name, digits, unit) in _ROWS.items()
        ]
        yield from (*as_lines(Table(f"Hardest of {side['candidates']:,} {title}", [*columns], table, head="")), "")
