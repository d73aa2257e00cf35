"""What looks at photographs and pairs: search, index, serve, review."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from itrpipe.cli.asked import Asked, called, data_option, device_of, refuse_incomplete, train_settings
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    AnyModelOptions,
    AskingOptions,
    GuardOption,
    JsonOption,
    MakeOption,
    Split,
    Text,
    overrides_of,
)
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition, redefine
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.pipeline.planning import EVERYWHERE, Override, refuse_unused
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import Artifact, check_split
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import MANIFEST, PICTURES, folders_in, is_finished, read_manifest
from itrpipe.storage.disk import require_writable, write_text
from itrpipe.training.settings import settings_of

if TYPE_CHECKING:
    from itrpipe.review import Candidates
    from itrpipe.search.gallery import Answers, Gallery

CONF, STAGE, CONFIG = "photographs", "index", "config.json"
PACKAGES = ("starlette", "uvicorn")
TRAIN = "train"
_LONGEST = 48
"""Characters of a name of a folder in the name of an artifact."""
_GENERATOR, _HEAD = b'<meta name="generator" content="itrpipe search">', 1024
"""In the first bytes of a page that a search wrote."""


@dataclass
class SearchOptions(AnyModelOptions):
    """The same for what asks a model, and trains none unless it is told to."""

    no_deps: MakeOption = True


@dataclass
class Question:
    """What is searched with, and how the answer is given."""

    caption: Annotated[Text, typer.Argument(metavar="[SENTENCE]", help="Sentence to find images for.")] = None
    image: Text = option(
        None, "--image", "Captions for this image or photograph; of --photos those like it.", metavar="ID|FILE"
    )
    top: int = option(10, "--top", "How many answers.", metavar="K", min=1)
    html: Path | None = option(None, "--html", "Also write a page with the photographs.", metavar="FILE")
    as_json: JsonOption = False

    def check(self) -> None:
        """Refuses what cannot be asked, before anything is made.

        Raises:
            UsageError: not one of sentence and image is given, the sentence is empty, or the page is there already.
            UnavailableError: the page cannot be written there.
        """
        if (self.caption is None) == (self.image is None):
            given = "both" if self.image else "neither"
            raise UsageError(f"search takes a sentence or --image, and {given} was given; give one of them")
        if self.html is not None:
            if os.path.lexists(self.html) and not _is_own(self.html):
                raise UsageError(f"--html {self.html} is there already; name another file, or remove it")
            require_writable(self.html, "--html")
        if self.caption is not None:
            from itrpipe.datasets.prepared import given_split

            given_split([self.caption], what="the query")


def _is_own(page: Path) -> bool:
    """Whether a search wrote a page, so that another may replace it."""
    if not stat.S_ISREG(page.lstat().st_mode):
        return False
    with page.open("rb") as file:
        return _GENERATOR in file.read(_HEAD)


SplitOption = Annotated[Split | None, typer.Option("--split", help="Where to search: test, val or train.")]
PhotosOption = Annotated[
    Path | None, typer.Option("--photos", metavar="FOLDER", help="Folder of photographs, which need no captions.")
]


@command()
def search(given: SearchOptions, question: Question, photos: PhotosOption = None, split: SplitOption = None) -> None:
    """Find images for a sentence, captions for an image, or photographs like another one.

    Models with embeddings search those that training wrote; all others score the query with every image or caption of
    --split, the test split if none is named. An image is named by its id or file; a photograph that is no part of the
    dataset is read by the extractor of the dataset's features. Right answers are marked where the query is an image of
    the split, or a caption of it word for word.

    --photos FOLDER searches photographs without captions, of which no dataset is made, by their index, see itrpipe
    index. --model may be left out where one model has indexed the folder.

    Example: itrpipe search "two dogs on a beach" --backbone vsrn
    """
    question.check()
    if photos is not None:
        _refuse_with_photos({"--split": split})
        _search_photographs(given, photos, question)
        return
    _refuse_opened(given)
    asked = given.asked("train", as_json=question.as_json)
    step, own = asked.plan("train", given.method), None
    check_split(step, split or "test")
    if not asked.made("search with"):
        return
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import Stored, load
    from itrpipe.search.photos import find_image

    trained, device = Artifact.of(step.location.folder), device_of(step)
    image = question.image and find_image(trained.folder, question.image, device)
    model = load(trained.folder, device=device)
    model.label, progress = called(step), not model.embeds
    gallery = Gallery.of_dataset(model, trained.folder, split or "test")
    if image:
        stored, own = Stored(image.features, [image.image_id]), image.file
        found = gallery.captions_for(stored, image.split, question.top, progress)
    else:
        found = gallery.images_for(str(question.caption), question.top, progress)
    folder = None
    if question.html is not None:
        prepared = trained.input("prepare")
        try:
            folder = image_root(prepared.manifest.settings, prepared.folder, load_definition(*given.where))
        except (MissingInputError, DataError) as error:
            asked.reporter.say(f"  the page shows no photographs: {error}", style="yellow")
    _show(question, found, asked.reporter, folder, own)


def _refuse_with_photos(values: dict[str, Any]) -> None:
    for name in (name for name, value in values.items() if value is not None):
        raise UsageError(f"{name} is for a dataset; leave it out with --photos")


def _refuse_opened(given: AnyModelOptions) -> None:
    if given.opened is not None:
        raise UsageError(f"--model {given.opened} is no named model; add --photos FOLDER to search photographs with it")


def _search_photographs(given: SearchOptions, photos: Path, question: Question) -> None:
    """Prints the photographs of a folder that a model finds; the index is brought up to date before."""
    image, own = question.image and _photograph(photos, question.image), None
    indexed = up_to_date(given, photos, as_json=question.as_json)
    if indexed is None:
        return
    gallery, reporter = indexed.gallery(given.device), indexed.reporter
    if image:
        own = str(image.resolve())
        known = own.removeprefix(f"{photos.resolve()}/")
        found = gallery.photographs_like(known if known in gallery.rows else image, question.top, str(question.image))
    else:
        found = gallery.images_for(str(question.caption), question.top)
    if left_out := len(read_manifest(indexed.folder).failed):
        reporter.say(f"  {quantity(left_out, 'photograph')} could not be read; see `itrpipe index`", style="yellow")
    _show(question, found, reporter, photos.resolve(), own)


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
    if question.html is not None:
        page, problems = found.page(folder, own)
        write_text(question.html, page)
        for line in (*(f"  no picture of {problem}" for problem in problems), f"page: {question.html}"):
            reporter.say(line)
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


@command()
def index(
    given: AnyModelOptions, photos: Path = Option(..., "--photos", metavar="FOLDER", help="Folder of photographs.")
) -> None:
    """Embed all photographs below a folder, for search --photos.

    The model is a named one, which is trained if it is missing, the folder of one (of itrpipe export or train, or a
    CLIP or SigLIP of transformers), or the hub id of a CLIP or SigLIP.

    The same command again encodes new and changed photographs only, and goes on where it was interrupted. Photographs
    that cannot be read are listed and left out. The folder itself stays as it is; the index lies in the data folder.

    Example: itrpipe index --photos photos --model openai/clip-vit-base-patch32
    """
    if found := up_to_date(given, photos, whole=True):
        found.reporter.say(str(found.folder))
        place = f"--photos {shlex.quote(str(photos))}{data_option(given.data)}"
        found.reporter.say(f"next: itrpipe search 'a dog on a beach' {place}")
        refuse_incomplete(found.folder, "photograph", "what is replaced is read by the next run")


@dataclass
class Indexed:
    """Photographs that a model has embedded.

    Attributes:
        photos: their folder.
        folder: artifact of the index.
        model: folder of the model.
        called: its name in the names of artifacts.
        reporter: shows what is done with them.
    """

    photos: Path
    folder: Path
    model: Path
    called: str
    reporter: Reporter

    def gallery(self, device: str | None) -> Gallery:
        """All that can be searched."""
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import load

        model = load(self.model, device=device or "auto")
        model.label = self.called
        return Gallery.of_folder(model, self.photos, self.folder)


def up_to_date(given: AnyModelOptions, photos: Path, *, as_json: bool = False, whole: bool = False) -> Indexed | None:
    """Makes what is missing: the model, and the embeddings of photographs that are new or have changed.

    Args:
        given: the options; where they name no model, the only one that has indexed the folder is meant.
        photos: the folder.
        as_json: standard output is for JSON.
        whole: the index is what was asked for: it is made even with --no-deps, and its plan always shown.

    Returns:
        The index; None after a dry run.

    Raises:
        MissingInputError: there is no such folder, no photograph in it, or no such model.
        UsageError: no model is named and the folder has no single index, or the model has no embeddings.
        ItrpipeError: the model cannot be trained or opened.
    """
    from itrpipe.search.photos import list_photographs

    list_photographs(photos, given.data)  # which refuses a folder without any
    photos = photos.resolve()
    dataset = dataset_of(photos)
    told = overrides_of(given.settings, {"device": given.device}) + given.placed
    model = _model(given, photos, [item for item in told if item.scope not in (None, STAGE, CONF)], as_json)
    if model is None:
        return None
    folder, name = model

    def with_photographs(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"photographs": StageDefinition(conf=CONF, source=str(photos))})

    told = [item for item in told if item.scope in (None, STAGE, CONF, EVERYWHERE)]
    known = load_definition(given.data, dataset)
    asked = Asked(given.data, dataset, told, as_json=as_json, **given.how, definition=with_photographs(known))
    step = asked.plan(STAGE, CONF, model=str(folder), called=name)
    if not asked.made(STAGE, whole=whole):
        return None
    if known.photographs is None:
        redefine(given.data, dataset, with_photographs)
    return Indexed(photos, step.location.folder, folder, name, asked.reporter)


def dataset_of(photos: Path) -> str:
    """Name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def _model(given: AnyModelOptions, photos: Path, of_training: list[Override], as_json: bool) -> tuple[Path, str] | None:
    """The model, trained if it is missing, and its name; None where a dry run would train it.

    Raises:
        UsageError: none is named, and not one alone has indexed the folder.
    """
    from itrpipe.search.photos import no_embeddings, refuse_imported

    opened, name = given.opened, ""
    if opened is None and not given.trained:
        folders = filter(is_finished, folders_in(given.data / dataset_of(photos) / STAGE))
        made = sorted(map(read_manifest, folders), key=lambda each: each.finished)
        newest = {manifest.settings["called"]: manifest.settings for manifest in made}
        if len(newest) != 1:
            has = f"is indexed by {', '.join(sorted(newest))}" if newest else "is not indexed yet"
            raise UsageError(f"--photos {photos} {has}; name a model with --model")
        ((name, settings),) = newest.items()
        opened = settings["model"]
    if opened is not None:
        refuse_unused(item for item in of_training if item.scope != EVERYWHERE)
        return _opened(opened, name)
    known = given.known
    told = [*(known.of_training() if known else []), *overrides_of(None, given.told("method")), *of_training]
    asked = Asked(*given.where, told, as_json=as_json, **given.how)
    step = asked.plan("train", given.method)
    if not settings_of(train_settings(step).backbone).embeds:
        raise no_embeddings(asked.label)
    extract, seed = step.inputs["extract"], train_settings(step).seed
    refuse_imported(passes_of(extract.need.conf, extract.settings), f"{asked.label} on {extract.need.conf}")
    name = f"{given.dataset}.{known.name if known else asked.label}{f'.s{seed}' if known and seed else ''}"
    if step.state != "up to date" and not asked.made("train"):
        asked.reporter.say(f"{photos}: {STAGE} follows when the model is trained")
        return None
    return step.location.folder.resolve(), name


def _opened(model: str, name: str) -> tuple[Path, str]:
    """A model in a folder, or of the hub, which is fetched where it is not there yet."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        from itrpipe.search.model import fetch

        return fetch(model), name or _slug(model.replace("/", "--"))
    folder = folder.resolve()
    if not any((folder / file).is_file() for file in (MANIFEST, CONFIG)):
        raise MissingInputError(f"--model {model} holds no model: it has no {CONFIG}; name the folder of one")
    return folder, name or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}"


def _slug(name: str) -> str:
    """A name as a part of one that folders can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "folder"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


PairsOption = Annotated[
    Split | None, typer.Option("--split", help="train: pairs of mined lists; test or val: of an evaluation.")
]


@dataclass
class ReviewOptions(AskingOptions):
    """Whose pairs are reviewed."""

    guard: GuardOption = None


@command()
def review(
    given: ReviewOptions,
    split: PairsOption = None,
    order: str = Option("sample", "--order", help="sample, guard (random ones), doubtful or harmful; see below."),
    merge: list[Path] | None = Option(None, "--merge", metavar="FILE", help="Add decisions of others; repeatable."),
    as_json: JsonOption = False,
) -> None:
    """Show judgements of hard candidates, and how many are false negatives.

    \b
    Orders (--order):
      sample    at random: estimates the share of false negatives
      guard     at random among those that mining's guard takes for false negatives: its precision
      doubtful  the guard's probability nearest to one half first
      harmful   what scores farthest above its caption's own image first

    Decisions are in decisions.parquet next to the dataset's artifacts, one row for each judgement. Mining, evaluation
    and training read them with --decisions.

    Example: itrpipe review --backbone vsepp --merge from-ada.parquet
    """
    from itrpipe.review import DecisionFile, lines, read_decisions, reviewed

    file = DecisionFile.of(*given.where)
    merged = file.merge(map(read_decisions, merge)) if merge and not given.dry_run else 0
    asked = given.asked("mine_negatives", as_json=as_json)
    if merge:
        told = f"{quantity(merged, 'judgement')} added of {quantity(len(merge), 'file')}"
        asked.reporter.say(f"{file.path}: {told}")
    candidates = _candidates(asked, split)
    if candidates is None:
        return
    found = reviewed(candidates, order, file.read())
    if as_json:
        Reporter().say_json(found)
        return
    for line in (*lines(found), f"  decisions: {file.path}"):
        asked.reporter.say(line)


def _candidates(asked: Asked, split: str | None) -> Candidates | None:
    """The pairs that may be judged; None after a dry run."""
    from itrpipe.review import mined_candidates, ranked_candidates

    mined = split in (None, TRAIN)
    step = asked.plan("mine_negatives") if mined else asked.plan("evaluate", split=str(split))
    if not asked.made("review"):
        return None
    return (mined_candidates if mined else ranked_candidates)(step.location.folder)


@dataclass
class ServeOptions(SearchOptions):
    """What is served."""

    guard: GuardOption = None


@command()
def serve(
    given: ServeOptions,
    photos: PhotosOption = None,
    split: PairsOption = None,
    port: int = Option(8765, "--port", min=0, max=65535, help="0: any that is free."),
    no_browser: bool = Option(False, "--no-browser", help="Print the address alone."),
) -> None:
    """Open local pages to search and to judge the hardest candidates.

    Search finds images for a sentence or a photograph. Review shows candidates that may be false negatives: y fits, n
    does not, s unsure, u undo; every answer is written to decisions.parquet at once, see itrpipe review, and the page
    goes on where its reviewer stopped.

    --photos FOLDER searches photographs without captions, as itrpipe search does. The pages answer on this machine
    only; `ssh -L 8765:127.0.0.1:8765 MACHINE` shows those of another one. This takes `pip install 'itrpipe[serve]'`.

    Example: itrpipe serve --backbone vsepp --guard fne
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")
    from itrpipe.review import DecisionFile
    from itrpipe.search import serve as pages
    from itrpipe.search.gallery import Gallery
    from itrpipe.search.model import load
    from itrpipe.training.data import Sources

    if photos is not None:
        _refuse_with_photos({"--split": split, "--guard": given.guard})
        if indexed := up_to_date(given, photos):
            small = given.data / dataset_of(indexed.photos) / PICTURES
            pictures = pages.Pictures.of_folder(indexed.folder, indexed.photos, small)
            site = pages.Site(pages.Searches(indexed.gallery(given.device)), pictures)
            pages.run(site, port, not no_browser, indexed.reporter.say)
        return
    _refuse_opened(given)
    asked = given.asked("mine_negatives")
    candidates = _candidates(asked, split)
    if candidates is None:
        return
    prepared, trained = candidates.prepared, Artifact.of(candidates.trained)
    folder = image_root(read_manifest(prepared).settings, prepared, load_definition(*given.where))
    pictures = pages.Pictures.of_dataset(prepared, folder, given.data / given.dataset / PICTURES)
    model = load(trained.folder, device=given.device or "auto")
    # Models that score pairs search one split alone, since they read every image beside every sentence.
    alone = None if model.embeds else "test" if split in (None, TRAIN) else split
    searches = pages.Searches(Gallery.of_dataset(model, trained.folder, alone))
    reviews = pages.Reviews(candidates, DecisionFile.of(*given.where))
    sources = Sources(prepared, trained.input("extract").folder)
    pages.run(pages.Site(searches, pictures, reviews, sources), port, not no_browser, asked.reporter.say)
    asked.reporter.say(f"decisions: {reviews.file.path}")
