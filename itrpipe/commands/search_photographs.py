"""`itrpipe search --photos`: the photographs of a folder that fit a sentence, or look like another one."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.commands.index import AskedModel, Indexed, up_to_date
from itrpipe.commands.search import QUERY, Question, refuse_page, refuse_two_questions, show
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.retrieval.answers import FOLDER, Answer, Answers
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.disk import write_text

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.retrieval.photo_index import PhotoIndex


def search_photographs(
    root: Path,
    photos: Path,
    question: Question,
    asked: AskedModel,
    top: int,
    *,
    device: str = "auto",
    page: Path | None = None,
    no_deps: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the photographs that a model finds; the index is brought up to date before.

    Args:
        root: the data folder.
        photos: folder of the photographs.
        question: a sentence, or the path of an image, also one relative to the folder.
        asked: the model; where it names none, the only one that has indexed the folder.
        top: how many are wanted.
        device: where the query is encoded.
        page: HTML file to write as well.
        no_deps: fail where the index is not up to date.
        dry_run: print the plan and what it will cost, and search nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the query is empty, or the page is there already.
        MissingInputError: there is no such image, folder or model.
        DataError: the image cannot be used.
        ItrpipeError: see `itrpipe.commands.index.up_to_date`.
    """
    refuse_two_questions(question)
    refuse_page(page)
    image = None if question.image is None else _image(photos, question.image)
    if question.caption is not None:
        from itrpipe.datasets.prepared import given_split

        given_split([question.caption], what=QUERY)
    reporter = Reporter(SafeConsole(stderr=as_json))
    indexed = up_to_date(root, photos, asked, reporter, no_deps=no_deps, dry_run=dry_run, whole=False)
    if indexed is None:
        return
    found = _found(photos.resolve(), question, image, indexed, top, device)
    if left_out := len(read_manifest(indexed.folder).failed):
        reporter.say(f"  {quantity(left_out, 'photograph')} could not be read; see `itrpipe index`", style="yellow")
    if page is not None:
        _write_page(page, found, image, reporter)
    if as_json:
        Reporter().say_json(asdict(found))
    else:
        show(found, reporter)


def _image(photos: Path, image: str) -> Path:
    """The file that is searched with.

    Raises:
        MissingInputError: there is none.
        DataError: it cannot be read.
    """
    from itrpipe.datasets.pictures import read_rgb

    path = Path(image).expanduser()
    if not os.path.isfile(path):
        if not os.path.isfile(photos / image):
            raise MissingInputError(f"--image {image} is no file, neither here nor below {photos}; name a photograph")
        path = photos / image
    try:
        read_rgb(path)
    except DataError as error:
        raise DataError(f"--image {image} {error}; give another photograph") from None
    return path


def _found(photos: Path, question: Question, image: Path | None, indexed: Indexed, top: int, device: str) -> Answers:
    from itrpipe.retrieval.photo_index import PhotoIndex

    index = PhotoIndex(indexed.folder)
    query, unknown = _query(photos, question, image, indexed, index, device)
    answers = [
        Answer(rank, score, image_id=file, file=file, caption_id=None, texts=[], mark="")
        for rank, (file, score) in enumerate(index.nearest(query, top), 1)
    ]
    return Answers(
        dataset=str(photos),
        run=indexed.model.called,
        split=FOLDER,
        finds="images",
        caption=question.caption,
        image_id=question.image,
        image_split=None if image is None else "photograph",
        searched=len(index.photographs),
        unknown=unknown,
        answers=answers,
    )


def _query(
    photos: Path, question: Question, image: Path | None, indexed: Indexed, index: PhotoIndex, device: str
) -> tuple[np.ndarray, list[str]]:
    """Embedding [1, D] of the query, and words of it that the model does not know."""
    from itrpipe.features.embeddings import INNER_PRODUCT

    if image is not None and index.measure != INNER_PRODUCT:
        raise UsageError(
            f"{indexed.model.called} compares by {index.measure}, which is defined between an image and a text; search "
            "with a sentence"
        )
    whole = image.resolve() if image is not None else None
    if whole is not None and whole.is_relative_to(photos):
        known = index.vector(whole.relative_to(photos).as_posix())
        if known is not None:
            return known, []
    from itrpipe.retrieval.photo_index import open_embedding

    model = open_embedding(indexed.model.folder, device)
    if image is not None:
        return model.encode_images([image]), []
    assert question.caption is not None
    return model.encode_texts([question.caption]), model.unknown_words(question.caption)


def _write_page(page: Path, found: Answers, image: Path | None, reporter: Reporter) -> None:
    from itrpipe.report.page import search_page
    from itrpipe.report.pictures import Album

    album = Album(Path(found.dataset), {each.file: each.file for each in found.answers})
    pictures = {each.file: album.picture(each.file) for each in found.answers}
    own = None if image is None else Album(image.parent, {image.name: image.name})
    query = None if image is None or own is None else own.picture(image.name)
    for problem in [*album.problems, *(own.problems if own else ())]:
        reporter.say(f"  no picture of {problem}", style="yellow")
    # The page names files, not where they lie on this machine.
    shown = replace(found, dataset=Path(found.dataset).name, image_id=image.name if image else None)
    write_text(page, search_page(shown, pictures, query))
    reporter.say(f"page: {page}")
