"""`itrpipe review`: what was decided so far, and the decisions of several people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.commands.beforehand import check_split
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.datasets.definition import check_name
from itrpipe.plan.planning import Override, Planner
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need

if TYPE_CHECKING:
    from itrpipe.review import Candidates, Decisions

TRAIN = "train"


@dataclass(frozen=True)
class Review:
    """What is looked at.

    Attributes:
        split: whose pairs: `train` of mined lists, another one of the rankings of an evaluation.
        order: in which they are judged, see `itrpipe.review`.
        merge: files of others.
    """

    split: str = TRAIN
    order: str = "sample"
    merge: Sequence[Path] = ()


def review(
    root: Path,
    dataset: str,
    wanted: Review,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what was decided on the pairs of a list; what is missing of the list is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        wanted: what is looked at.
        overrides: values given by the user, of the list.
        no_deps: fail when the list is not there.
        dry_run: print the plan and what it will cost, and judge and merge nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: there is no such order or split.
        MissingInputError: a file to merge is not there.
        DataError: a file is damaged.
    """
    from itrpipe.review import DecisionFile, check_order, read_decisions

    check_order(wanted.order)
    reporter = Reporter(SafeConsole(stderr=as_json))
    file = DecisionFile.of(root, check_name(dataset))
    merged = file.merge(map(read_decisions, wanted.merge)) if wanted.merge and not dry_run else 0
    if wanted.merge:
        reporter.say(f"{file.path}: {quantity(merged, 'judgement')} added of {quantity(len(wanted.merge), 'file')}")
    candidates = open_candidates(root, dataset, wanted.split, overrides, reporter, no_deps=no_deps, dry_run=dry_run)
    if candidates is None:
        return
    found = reviewed(candidates, wanted.order, file.read())
    if as_json:
        Reporter().say_json(found)
        return
    for line in lines(found):
        reporter.say(line)
    reporter.say(f"  decisions: {file.path}")


def open_candidates(
    root: Path,
    dataset: str,
    split: str,
    overrides: list[Override],
    reporter: Reporter,
    *,
    no_deps: bool,
    dry_run: bool,
) -> Candidates | None:
    """The pairs that may be judged; None after a dry run.

    Raises:
        UsageError: there is no such split.
    """
    from itrpipe.review import mined_candidates, ranked_candidates

    check_split(split)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    stage = "mine_negatives" if split == TRAIN else "evaluate"
    wanted = {} if split == TRAIN else {"split": split}
    step = planner.plan(Need(stage, default_conf(planner.definition, dataset, stage), wanted))
    planner.refuse_unused_overrides()
    what = f"review {step.location.label}"
    if not make_missing(what, [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return None
    return (mined_candidates if split == TRAIN else ranked_candidates)(step.location.folder)


def reviewed(candidates: Candidates, order: str, decisions: Decisions) -> dict[str, Any]:
    """What was decided on some candidates, in figures ready for JSON."""
    from itrpipe.review import RANDOM, Queue

    queue = Queue(candidates, order)
    return {
        "list": candidates.source,
        "order": order,
        "pairs": len(queue),
        "decisions": summary(decisions),
        "sample": queue.sampled(decisions)._asdict() if order in RANDOM else None,
    }


def summary(decisions: Decisions) -> dict[str, Any]:
    """How much was decided, by whom, and how well these agree."""
    from itrpipe.review import ANSWERS, DISPUTED

    names = (*ANSWERS[:3], DISPUTED)
    return {
        "judgements": len(decisions),
        "pairs": {name: len(decisions.verdicts.of(name)) for name in names},
        "reviewers": {name: len(decisions.of(name)) for name in decisions.reviewers},
        "agreements": [
            {"reviewers": list(both), **agreement._asdict()} for both, agreement in decisions.agreements().items()
        ],
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What was decided, a line for each fact."""
    decided, whole = found["decisions"], found["pairs"]
    pairs = decided["pairs"]
    yield f"{found['list']}: {quantity(whole, 'pair')} in the order {found['order']}"
    counts = ", ".join(f"{count:,} {_WORDS[name]}" for name, count in pairs.items() if count)
    yield f"  {quantity(decided['judgements'], 'judgement')}{f': {counts}' if counts else ''}"
    for name, count in decided["reviewers"].items():
        yield f"  {name}: {quantity(count, 'pair')}"
    for each in decided["agreements"]:
        both = " and ".join(each["reviewers"])
        kappa = "not defined, since both always said the same"
        if each["kappa"] is not None:
            kappa = f"{each['kappa']:.2f} ({each['low']:.2f} to {each['high']:.2f})"
        yield f"  {both} agree on {100 * each['same']:.0f} % of {each['pairs']:,} pairs; Cohen's kappa: {kappa}"
    if found["sample"] and found["sample"]["judged"]:
        share = found["sample"]
        interval = f"{100 * share['low']:.1f} to {100 * share['high']:.1f}"
        value = "nobody was sure" if share["value"] is None else f"{100 * share['value']:.1f} %"
        yield f"  false negatives among all of them: {value} ({interval}) of {share['judged']:,} judged"


_WORDS = {"fits": "pairs fit", "differs": "do not", "unsure": "unsure", "disputed": "disputed"}
