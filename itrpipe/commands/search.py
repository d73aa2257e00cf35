"""`itrpipe search`: images or photographs for a sentence, captions for an image, photographs like another one."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.commands.index import AskedModel, up_to_date
from itrpipe.commands.photographs import find_image
from itrpipe.commands.trained import check_split, make_missing, trained_run
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.plan.planning import Override, Planner
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need
from itrpipe.stages.checks import check_split_of
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.disk import require_writable, write_text

if TYPE_CHECKING:
    from itrpipe.search.gallery import Answers

QUERY = "the query"
_GENERATOR, _HEAD = b'<meta name="generator" content="itrpipe search">', 1024
"""In the first bytes of a page that a search wrote."""
_CAPTIONS_SHOWN = 2
"""Captions on the page with an image."""


@dataclass(frozen=True)
class Question:
    """What is searched with, and how the answer is given.

    Attributes:
        caption: any sentence; finds images.
        image: id or file name of an image of the dataset, or path of a photograph; finds captions, or photographs.
        top: how many answers are wanted.
        page: HTML file to write as well.
        as_json: print one JSON object to standard output, and everything else to standard error.
    """

    caption: str | None
    image: str | None
    top: int = 10
    page: Path | None = None
    as_json: bool = False

    def check(self) -> None:
        """Refuses what cannot be asked, before anything is made.

        Raises:
            UsageError: not one of sentence and image is given, the sentence is empty, or the page is there already.
            MissingInputError, UnavailableError: the page cannot be written there.
        """
        if (self.caption is None) == (self.image is None):
            given = "both" if self.image else "neither"
            raise UsageError(f"search takes a sentence or --image, and {given} was given; give one of them")
        if self.page is not None:
            if os.path.lexists(self.page) and not _is_own(self.page):
                raise UsageError(f"--html {self.page} is there already; name another file, or remove it")
            require_writable(self.page, "--html")
        if self.caption is not None:
            from itrpipe.datasets.prepared import given_split

            given_split([self.caption], what=QUERY)


def _is_own(page: Path) -> bool:
    """Whether a search wrote a page, so that another may replace it."""
    if not stat.S_ISREG(page.lstat().st_mode):
        return False
    with page.open("rb") as file:
        return _GENERATOR in file.read(_HEAD)


def search(
    root: Path,
    dataset: str,
    question: Question,
    method: str,
    overrides: list[Override],
    *,
    split: str = "test",
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Prints what a model finds; what is missing of the model is made on the way, unless `no_deps`.

    Args:
        root: the data folder.
        dataset: dataset name.
        question: a sentence or an image.
        method: configuration of `train`.
        overrides: values given by the user.
        split: where is searched.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and search nothing.

    Raises:
        UsageError: see `Question.check`; or the model knows no word of the sentence, or cannot read a photograph.
        MissingInputError: there is no such image, or what the model was trained on was removed.
        DataError: a photograph cannot be used.
    """
    question.check()
    check_split(split)
    reporter = Reporter(SafeConsole(stderr=question.as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    check_split_of(step, split)
    what = f"search with {step.location.label}"
    if not make_missing(what, [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import Stored, load

    trained, own = trained_run(step), None
    image = None if question.image is None else find_image(trained, dataset, question.image)
    model = load(trained.folder, device=trained.device)
    model.label, progress = trained.called, not model.embeds
    gallery = Gallery.of_dataset(model, trained.folder, split)
    if image is None:
        assert question.caption is not None
        found = gallery.images_for(question.caption, question.top, progress)
    else:
        asked, own = Stored(image.features, [image.image_id]), image.file
        found = gallery.captions_for(asked, image.split, question.top, progress)
    folder = None
    if question.page is not None:
        prepare = trained.input("prepare")
        try:
            folder = image_root(read_manifest(prepare).settings, prepare, load_definition(root, dataset))
        except (MissingInputError, DataError) as error:
            reporter.say(f"  the page shows no photographs: {error}", style="yellow")
    _show(question, found, reporter, folder, own)


def search_photographs(
    root: Path,
    photos: Path,
    question: Question,
    asked: AskedModel,
    *,
    device: str = "auto",
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Prints the photographs of a folder that a model finds; the index is brought up to date before.

    Args:
        root: the data folder.
        photos: folder of the photographs.
        question: a sentence, or the path of an image, also one relative to the folder.
        asked: the model; where it names none, the only one that has indexed the folder.
        device: where the query is encoded.
        no_deps: fail where the index is not up to date.
        dry_run: print the plan and what it will cost, and search nothing.

    Raises:
        UsageError: see `Question.check`; or the model compares no two images.
        MissingInputError: there is no such image, folder or model.
        DataError: the image cannot be used.
        ItrpipeError: see `itrpipe.commands.index.up_to_date`.
    """
    question.check()
    image = None if question.image is None else _photograph(photos, question.image)
    reporter = Reporter(SafeConsole(stderr=question.as_json))
    indexed = up_to_date(root, photos, asked, reporter, no_deps=no_deps, dry_run=dry_run, whole=False)
    if indexed is None:
        return
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import load

    (index, opened), folder = indexed, photos.resolve()
    model = load(opened.folder, device=device)
    model.label = opened.called
    gallery, own = Gallery.of_folder(model, folder, index), None
    if image is None:
        assert question.caption is not None
        found = gallery.images_for(question.caption, question.top)
    else:
        own = str(image.resolve())
        known = own.removeprefix(f"{folder}/")
        found = gallery.photographs_like(known if known in gallery.rows else image, question.top, str(question.image))
    if left_out := len(read_manifest(index).failed):
        reporter.say(f"  {quantity(left_out, 'photograph')} could not be read; see `itrpipe index`", style="yellow")
    _show(question, found, reporter, folder, own)


def _photograph(photos: Path, image: str) -> Path:
    """The file that is searched with.

    Raises:
        MissingInputError: there is none.
    """
    for path in (Path(image).expanduser(), photos / image):
        if os.path.isfile(path):
            return path
    raise MissingInputError(f"--image {image} is no file, neither here nor below {photos}; name a photograph")


def _show(question: Question, found: Answers, reporter: Reporter, folder: Path | None, own: str | None) -> None:
    """Prints what was found, and writes the page.

    Args:
        question: what was asked.
        found: the answers.
        reporter: shows them.
        folder: of the photographs; None where it is gone.
        own: file that was searched with, relative to the folder or not.
    """
    if question.page is not None:
        _write_page(question.page, found, reporter, folder, own)
    if question.as_json:
        Reporter().say_json(asdict(found))
        return
    split = f" ({found.image_split})" if found.image_split else ""
    asked = f"“{found.caption}”" if found.caption is not None else f"{found.image_id}{split}"
    reporter.say(f"{asked}: the first {len(found.answers)} of {found.how}", style="bold")
    if found.unknown:
        words = ", ".join(found.unknown)
        reporter.say(f"  unknown  {words}: not among the words that the model knows", style="yellow")
    for line in found.lines():
        reporter.say(line)


def _write_page(page: Path, found: Answers, reporter: Reporter, folder: Path | None, own: str | None) -> None:
    """Writes a file that needs no script, no network and no server; it names photographs, not where they are."""
    from itrpipe.report.page import page_environment
    from itrpipe.report.pictures import Album

    album = Album(folder, {each.image_id: each.file for each in found.answers})
    pictures = {each.image_id: album.picture(each.image_id) for each in found.answers}
    query, problems = None, album.problems
    if own is not None:
        path = Path(own) if folder is None else folder / own
        asked = Album(path.parent if path.is_absolute() else None, {path.name: path.name})
        query, problems = asked.picture(path.name), [*problems, *asked.problems]
    for problem in problems:
        reporter.say(f"  no picture of {problem}", style="yellow")
    name = None if found.image_id is None else Path(found.image_id).name
    shown = replace(found, dataset=Path(found.dataset).name, image_id=name)
    template = page_environment().get_template("search.html.j2")
    write_text(
        page, template.render(found=shown, title=shown.title, pictures=pictures, query=query, shown=_CAPTIONS_SHOWN)
    )
    reporter.say(f"page: {page}")
