"""`itrpipe search`: the images that a model finds for a sentence, and the captions that it finds for an image."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.artifacts.disk import require_writable, write_text
from itrpipe.commands.beforehand import check_image, check_split, check_words
from itrpipe.commands.photographs import PHOTOGRAPH, find_image
from itrpipe.commands.trained import TrainedRun, make_missing, train_settings, trained_run
from itrpipe.datasets.definition import EMBEDDED, check_name, load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.printable import printable_json
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.reporting.answers import Answers, lines
from itrpipe.scene_graph.declaration import ParseSettings
from itrpipe.stages import parse
from itrpipe.stages.base import Need
from itrpipe.stages.checks import check_split_of
from itrpipe.stages.prepare import image_root
from itrpipe.training.named_models import Model
from itrpipe.training.settings import embeds, reads_phrases

if TYPE_CHECKING:
    from itrpipe.analysis.searching import Query, Searched
    from itrpipe.reporting.thumbnails import Picture
    from itrpipe.scene_graph.graph import SceneGraph

INDEXES = ("flat", "ivf")
CANDIDATES = 128
"""Candidates of a prefilter, where their number is not given."""
QUERY = "the query"
_GENERATOR, _HEAD = b'<meta name="generator" content="itrpipe search">', 1024
"""In the first bytes of a page that a search wrote."""


@dataclass(frozen=True)
class Question:
    """What is searched with; one of the two.

    Attributes:
        caption: any sentence; finds images.
        image: id or file name of an image of the dataset, or path of a photograph; finds captions.
    """

    caption: str | None
    image: str | None


@dataclass(frozen=True)
class Way:
    """How is searched.

    Attributes:
        split: where.
        top: how many answers are wanted.
        index: `flat` or `ivf`; None is `flat` where an index is searched.
        prefilter: `[method.]backbone[.sN]` of a model with embeddings that chooses the candidates.
        candidates: how many it chooses; None is `CANDIDATES`, or `top` if that is more.
    """

    split: str = "test"
    top: int = 10
    index: str | None = None
    prefilter: str | None = None
    candidates: int | None = None

    @property
    def chosen(self) -> int:
        """Candidates that a prefilter chooses."""
        return self.candidates or max(CANDIDATES, self.top)


def search(
    root: Path,
    dataset: str,
    question: Question,
    method: str,
    overrides: list[Override],
    way: Way,
    *,
    page: Path | None = None,
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what a model finds; what is missing of the model is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        question: a sentence or an image.
        method: configuration of `train`.
        overrides: values given by the user.
        way: how is searched.
        page: HTML file to write as well.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and search nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: options exclude each other, the query is empty or too long, or the page is there already.
        MissingInputError: there is no such image, no folder for the page, or what the model was trained on was removed.
        UnavailableError: the page cannot be written there.
        DataError: a photograph cannot be used.
    """
    _refuse_contradictions(question, way)
    check_split(way.split)
    refuse_page(page)
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    first = None if way.prefilter is None else _planned_prefilter(planner, step, way.prefilter)
    planner.refuse_unused_overrides()
    _refuse_unread_ways(step, first, way)
    check_split_of(step, way.split)
    if question.caption is not None:
        check_words(step, question.caption, QUERY)
    if question.image is not None:
        check_image(step, question.image, reporter, dry_run=dry_run)
    steps = [step] if first is None else [step, first]
    names = " and ".join(each.location.label for each in steps)
    if not make_missing(f"search with {names}", steps, dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    trained, prefilter = trained_run(step), None if first is None else trained_run(first)
    found = _found(dataset, trained, prefilter, question, way, reporter)
    if page is not None:
        _write_page(page, found, trained.input("prepare"), root, reporter)
    if as_json:
        Reporter().say(printable_json(asdict(found)))
    else:
        show(found, reporter, trained.called if trained.called in planner.definition.models else "MODEL")


def refuse_two_questions(question: Question) -> None:
    """Refuses a search with a sentence and an image, or with neither, or with a sentence without a word.

    Raises:
        UsageError: likewise.
    """
    if (question.caption is None) == (question.image is None):
        given = "both" if question.image else "neither"
        raise UsageError(f"search takes a sentence or --image, and {given} was given; give one of them")
    if question.caption is not None and not question.caption.strip():
        raise UsageError(f"{QUERY} has no word; give a sentence")


def _refuse_contradictions(question: Question, way: Way) -> None:
    refuse_two_questions(question)
    if way.index not in (None, *INDEXES):
        raise UsageError(f"--index {way.index} is none of {', '.join(INDEXES)}; leave it out")
    if way.candidates is not None and way.prefilter is None:
        raise UsageError("--candidates is how many --prefilter chooses; name a model with --prefilter, such as vsrn")
    if way.candidates is not None and way.candidates < way.top:
        raise UsageError(f"--candidates {way.candidates} are fewer than --top {way.top}; give as many at least")


def refuse_page(page: Path | None) -> None:
    """Refuses a page that cannot be written, or one that is there already and that no search wrote.

    Raises:
        UsageError, MissingInputError, UnavailableError: likewise.
    """
    if page is None:
        return
    if os.path.lexists(page) and not _is_own(page):
        raise UsageError(f"--html {page} is there already; name another file, or remove it")
    require_writable(page, "--html")


def _is_own(page: Path) -> bool:
    """Whether a search wrote a page, so that another may replace it."""
    if not stat.S_ISREG(page.lstat().st_mode):
        return False
    with page.open("rb") as file:
        return _GENERATOR in file.read(_HEAD)


def _planned_prefilter(planner: Planner, step: Step, name: str) -> Step:
    """The training of the model that chooses candidates, on the features of the other one."""
    settings = train_settings(step)
    try:
        model = Model(step.need.conf, settings.backbone, settings.seed).named_by(name)
    except ValueError as error:
        raise UsageError(f"--prefilter {error}") from None
    same = {"backbone": model.backbone, "seed": model.seed, "features": settings.features}
    return planner.plan(Need("train", model.method, same), requested=False)


def _refuse_unread_ways(step: Step, first: Step | None, way: Way) -> None:
    backbone = train_settings(step).backbone
    if embeds(backbone):
        if first is not None:
            raise UsageError(
                f"--prefilter {way.prefilter} is for models that score pairs; {backbone} has embeddings and needs none"
            )
        return
    if first is not None and not embeds(train_settings(first).backbone):
        raise UsageError(f"--prefilter {way.prefilter} scores pairs itself; name a model with embeddings, such as vsrn")
    if first is None and way.index is not None:
        raise UsageError(
            f"--index {way.index} is for models with embeddings; {backbone} scores pairs, of which --prefilter makes "
            "fewer"
        )


def _found(
    dataset: str,
    trained: TrainedRun,
    prefilter: TrainedRun | None,
    question: Question,
    way: Way,
    reporter: Reporter,
) -> Answers:
    """Asks the model."""
    from itrpipe.analysis.answering import Search
    from itrpipe.analysis.searching import SearchModel

    searched = _searched(trained, way.split)
    query = _query(question, trained, dataset, searched)
    models = [SearchModel(run.folder, run.called, trained.device) for run in (trained, prefilter) if run is not None]
    asked = Search(dataset, searched, query, "ivf" if way.index == "ivf" else "flat", reporter)
    return asked.answers(models[0], way.top, models[1] if prefilter else None, way.chosen)


def _searched(trained: TrainedRun, split: str) -> Searched:
    """The split as the model was trained to read it."""
    from itrpipe.analysis.searching import Searched

    graphs = trained.input("parse") if reads_phrases(trained.manifest.settings["backbone"]) else None
    return Searched.open(trained.input("prepare"), trained.input("extract"), split, graphs)


def _query(question: Question, trained: TrainedRun, dataset: str, searched: Searched) -> Query:
    """What the user gave as models read it, beside something that only completes the pair."""
    from itrpipe.analysis.searching import Query
    from itrpipe.datasets.given import given_pair

    if question.image is not None:
        shown = find_image(trained, dataset, question.image)
        return Query(given_pair(shown.split, shown.image_id, PHOTOGRAPH), shown.features, "captions")
    assert question.caption is not None
    pair = given_pair(searched.split.name, str(searched.split.image_ids[0]), question.caption, QUERY)
    graph = None if searched.graphs is None else _graph(question.caption, searched, searched.graphs)
    return Query(pair, searched.features, "images", graph)


def _graph(caption: str, searched: Searched, folder: Path) -> SceneGraph:
    """The scene graph of a caption: that of the dataset where it has the caption, else by the same parser."""
    from itrpipe.scene_graph.stored import SceneGraphFile

    known = searched.captions_reading(caption)
    if len(known):
        file = SceneGraphFile(folder)
        return file.graphs_at([file.caption_ids.index(str(searched.whole.caption_ids[known[0]]))])[0]
    settings = read_manifest(folder).settings
    return parse.parse_one(ParseSettings.model_validate(settings), caption)


def _write_page(page: Path, found: Answers, prepare: Path, root: Path, reporter: Reporter) -> None:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.reporting.search_page import render
    from itrpipe.reporting.thumbnails import Album

    try:
        folder = image_root(read_manifest(prepare).settings, prepare, load_definition(root, found.dataset))
    except (MissingInputError, DataError) as error:
        reporter.say(f"  the page shows no photographs: {error}", style="yellow")
        folder = None
    prepared = PreparedDataset.open(prepare)
    albums = [Album(folder, dict(zip(prepared.image_ids(), prepared.files(), strict=True)))]
    pictures = {each.image_id: albums[0].picture(each.image_id) for each in found.answers}
    query: Picture | None = None
    if found.image_id is not None:
        if found.image_split == PHOTOGRAPH:
            albums.append(Album(Path(found.image_id).parent, {found.image_id: Path(found.image_id).name}))
        query = albums[-1].picture(found.image_id)
    for problem in (each for album in albums for each in album.problems):
        reporter.say(f"  no picture of {problem}", style="yellow")
    write_text(page, render(found, pictures, query))
    reporter.say(f"page: {page}")


def show(found: Answers, reporter: Reporter, model: str = "") -> None:
    """Prints what was found, and how a `model` searches photographs that have no captions."""
    split = f" ({found.image_split})" if found.image_split else ""
    asked = f"“{found.caption}”" if found.caption is not None else f"{found.image_id}{split}"
    reporter.say(f"{asked}: the first {len(found.answers)} of {found.how}", style="bold")
    if found.unknown:
        words = ", ".join(found.unknown)
        reporter.say(f"  unknown  {words}: not among the words that the model knows", style="yellow")
    for line in lines(found):
        reporter.say(line)
    if found.finds == "images" and not found.of_folder and found.dataset != EMBEDDED:
        reporter.say(
            f"  searched: {found.split} images alone; `itrpipe search SENTENCE --photos FOLDER --model {model}` finds "
            "among all of a folder",
            style="dim",
        )
