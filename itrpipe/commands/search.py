"""`itrpipe search`: the images that a model finds for a sentence, and the captions that it finds for an image."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.commands.beforehand import check_image, check_split, check_words
from itrpipe.commands.photographs import PHOTOGRAPH, find_image
from itrpipe.commands.trained import TrainedRun, make_missing, trained_run
from itrpipe.datasets.definition import EMBEDDED, check_name, load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.plan.planning import Override, Planner
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.retrieval.answers import Answers, lines
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.stages import parse
from itrpipe.stages.base import Need
from itrpipe.stages.checks import check_split_of
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.disk import require_writable, write_text
from itrpipe.training.settings import settings_of

if TYPE_CHECKING:
    from itrpipe.report.pictures import Picture
    from itrpipe.retrieval.searching import Query, Searched
    from itrpipe.scene_graph.graph import SceneGraph

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


def search(
    root: Path,
    dataset: str,
    question: Question,
    method: str,
    overrides: list[Override],
    *,
    split: str = "test",
    top: int = 10,
    page: Path | None = None,
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what a model finds; what is missing of the model is made on the way, unless `no_deps`.

    Args:
        root: the data folder.
        dataset: dataset name.
        question: a sentence or an image.
        method: configuration of `train`.
        overrides: values given by the user.
        split: where is searched.
        top: how many answers are wanted.
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
    refuse_two_questions(question)
    check_split(split)
    refuse_page(page)
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    check_split_of(step, split)
    if question.caption is not None:
        check_words(step, question.caption, QUERY)
    if question.image is not None:
        check_image(step, question.image, reporter, make=not (dry_run or no_deps))
    what = f"search with {step.location.label}"
    if not make_missing(what, [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    trained = trained_run(step)
    found = _found(dataset, trained, question, split, top, reporter)
    if page is not None:
        _write_page(page, found, trained.input("prepare"), root, reporter)
    if as_json:
        Reporter().say_json(asdict(found))
    else:
        show(found, reporter, trained.called if trained.called in planner.definition.models else "MODEL")


def refuse_two_questions(question: Question) -> None:
    """Refuses a search with a sentence and an image, or with neither.

    Raises:
        UsageError: likewise.
    """
    if (question.caption is None) == (question.image is None):
        given = "both" if question.image else "neither"
        raise UsageError(f"search takes a sentence or --image, and {given} was given; give one of them")


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


def _found(dataset: str, trained: TrainedRun, question: Question, split: str, top: int, reporter: Reporter) -> Answers:
    """Asks the model."""
    from itrpipe.retrieval.answering import Search
    from itrpipe.retrieval.searching import SearchModel

    searched = _searched(trained, split)
    query = _query(question, trained, dataset, searched)
    model = SearchModel(trained.folder, trained.called, trained.device)
    return Search(dataset, searched, query, reporter).answers(model, top)


def _searched(trained: TrainedRun, split: str) -> Searched:
    """The split as the model was trained to read it."""
    from itrpipe.retrieval.searching import Searched

    graphs = trained.input("parse") if settings_of(trained.manifest.settings["backbone"]).reads_phrases else None
    return Searched.open(trained.input("prepare"), trained.input("extract"), split, graphs)


def _query(question: Question, trained: TrainedRun, dataset: str, searched: Searched) -> Query:
    """What the user gave as models read it, beside something that only completes the pair."""
    from itrpipe.datasets.prepared import given_split
    from itrpipe.retrieval.searching import Query

    if question.image is not None:
        shown = find_image(trained, dataset, question.image)
        return Query(given_split([PHOTOGRAPH], [shown.image_id], shown.split), shown.features, "captions")
    assert question.caption is not None
    pair = given_split([question.caption], [str(searched.split.image_ids[0])], searched.split.name, QUERY)
    graph = None if searched.graphs is None else _graph(question.caption, searched, searched.graphs)
    return Query(pair, searched.features, "images", graph)


def _graph(caption: str, searched: Searched, folder: Path) -> SceneGraph:
    """The scene graph of a caption: that of the dataset where it has the caption, else by the same parser."""
    from itrpipe.scene_graph.stored import SceneGraphFile

    known = searched.captions_reading(caption)
    if len(known):
        file = SceneGraphFile(folder)
        return file.graph_at(file.caption_ids.index(str(searched.whole.caption_ids[known[0]])))
    settings = read_manifest(folder).settings
    return parse.parse_one(ParseSettings.recorded(settings), caption)


def _write_page(page: Path, found: Answers, prepare: Path, root: Path, reporter: Reporter) -> None:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.report.page import search_page
    from itrpipe.report.pictures import Album

    try:
        folder = image_root(read_manifest(prepare).settings, prepare, load_definition(root, found.dataset))
    except (MissingInputError, DataError) as error:
        reporter.say(f"  the page shows no photographs: {error}", style="yellow")
        folder = None
    prepared = PreparedDataset.open(prepare)
    albums = [Album(folder, dict(zip(prepared.column("image_id"), prepared.column("file"), strict=True)))]
    pictures = {each.image_id: albums[0].picture(each.image_id) for each in found.answers}
    query: Picture | None = None
    if found.image_id is not None:
        if found.image_split == PHOTOGRAPH:
            albums.append(Album(Path(found.image_id).parent, {found.image_id: Path(found.image_id).name}))
        query = albums[-1].picture(found.image_id)
    for problem in (each for album in albums for each in album.problems):
        reporter.say(f"  no picture of {problem}", style="yellow")
    write_text(page, search_page(found, pictures, query))
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
