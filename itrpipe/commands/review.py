"""`itrpipe review` and `itrpipe serve`: what people decided on pairs, and the pages on which they search and decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.commands.index import AskedModel, dataset_of, up_to_date
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import check_split, make_missing
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import MissingInputError
from itrpipe.plan.planning import Override, Planner
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import PICTURES, existing_input, read_manifest

if TYPE_CHECKING:
    from itrpipe.review import Candidates, Decisions

TRAIN = "train"
PACKAGES = ("starlette", "uvicorn")


def review(
    root: Path,
    dataset: str,
    overrides: list[Override],
    *,
    split: str = TRAIN,
    order: str = "sample",
    merge: Sequence[Path] = (),
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what was decided on the pairs of a list; what is missing of the list is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        overrides: values given by the user, of the list.
        split: whose pairs: `train` of mined lists, another one of the rankings of an evaluation.
        order: in which they are judged, see `itrpipe.review`.
        merge: files of others.
        no_deps: fail when the list is not there.
        dry_run: print the plan and what it will cost, and judge and merge nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: there is no such order or split.
        MissingInputError: a file to merge is not there.
        DataError: a file is damaged.
    """
    from itrpipe.review import DecisionFile, read_decisions

    reporter = Reporter(SafeConsole(stderr=as_json))
    file = DecisionFile.of(root, check_name(dataset))
    merged = file.merge(map(read_decisions, merge)) if merge and not dry_run else 0
    if merge:
        reporter.say(f"{file.path}: {quantity(merged, 'judgement')} added of {quantity(len(merge), 'file')}")
    candidates = open_candidates(root, dataset, split, overrides, reporter, no_deps=no_deps, dry_run=dry_run)
    if candidates is None:
        return
    found = reviewed(candidates, order, file.read())
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
    """What was decided on some candidates, by whom, and how well these agree, in figures ready for JSON."""
    from itrpipe.review import RANDOM, Queue

    queue = Queue(candidates, order)
    return {
        "list": candidates.source,
        "order": order,
        "pairs": len(queue),
        "decisions": {
            "judgements": len(decisions),
            "pairs": {name: len(decisions.verdicts.of(name)) for name in _WORDS},
            "reviewers": {name: len(decisions.of(name)) for name in decisions.reviewers},
            "agreements": [
                {"reviewers": list(both), **agreement._asdict()} for both, agreement in decisions.agreements().items()
            ],
        },
        "sample": queue.sampled(decisions)._asdict() if order in RANDOM else None,
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


def serve(
    root: Path,
    dataset: str,
    split: str,
    overrides: list[Override],
    device: str = "auto",
    *,
    port: int = 8765,
    browser: bool = True,
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Serves a dataset until it is interrupted; what is missing of the list of candidates is made first.

    Models that score pairs search one split alone, since they read every image beside every sentence.

    Args:
        root: the data folder.
        dataset: dataset name.
        split: whose pairs are judged, `train` of mined lists, another one of the rankings of an evaluation.
        overrides: values given by the user, of the list.
        device: where queries are encoded.
        port: 0 takes any that is free.
        browser: open the pages in a browser.
        no_deps: fail when the list is not there.
        dry_run: print the plan and what it will cost, and serve nothing.

    Raises:
        MissingInputError: the packages are not installed, or the dataset has no photographs.
        UnavailableError: the port is taken.
    """
    _require_packages()
    reporter = Reporter()
    candidates = open_candidates(root, dataset, split, overrides, reporter, no_deps=no_deps, dry_run=dry_run)
    if candidates is None:
        return
    from itrpipe.review import DecisionFile
    from itrpipe.search import serve as pages
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import load
    from itrpipe.training.data import Sources

    prepared, trained = candidates.prepared, candidates.trained
    folder = image_root(read_manifest(prepared).settings, prepared, load_definition(root, check_name(dataset)))
    pictures = pages.Pictures.of_dataset(prepared, folder, root / dataset / PICTURES)
    model = load(trained, device=device)
    alone = None if model.embeds else "test" if split == TRAIN else split
    searches = pages.Searches(Gallery.of_dataset(model, trained, alone))
    reviews = pages.Reviews(candidates, DecisionFile.of(root, dataset))
    sources = Sources(prepared, existing_input(trained, read_manifest(trained), "extract"))
    pages.run(pages.Site(searches, pictures, reviews, sources), port, browser, reporter.say)
    reporter.say(f"decisions: {reviews.file.path}")


def serve_photographs(
    root: Path,
    photos: Path,
    asked: AskedModel,
    device: str = "auto",
    *,
    port: int = 8765,
    browser: bool = True,
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Serves a folder of photographs until it is interrupted; their index is brought up to date first.

    Args:
        root: the data folder.
        photos: the folder.
        asked: the model; where it names none, the only one that has indexed the folder.
        device: where queries are encoded.
        port, browser: as for `serve`.
        no_deps: fail where the index is not up to date.
        dry_run: print the plan and what it will cost, and serve nothing.

    Raises:
        MissingInputError: the packages are not installed.
        UnavailableError: the port is taken.
        ItrpipeError: see `itrpipe.commands.index.up_to_date`.
    """
    _require_packages()
    reporter = Reporter()
    indexed = up_to_date(root, photos, asked, reporter, no_deps=no_deps, dry_run=dry_run, whole=False)
    if indexed is None:
        return
    from itrpipe.search import serve as pages
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import load

    (index, opened), folder = indexed, photos.resolve()
    model = load(opened.folder, device=device)
    model.label = opened.called
    pictures = pages.Pictures.of_folder(index, folder, root / dataset_of(folder) / PICTURES)
    searches = pages.Searches(Gallery.of_folder(model, folder, index))
    pages.run(pages.Site(searches, pictures), port, browser, reporter.say)


def _require_packages() -> None:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")
