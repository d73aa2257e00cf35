"""`itrpipe serve`: local web pages on which people search and judge candidates."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from itrpipe.commands.index import AskedModel, dataset_of, up_to_date
from itrpipe.commands.review import TRAIN, open_candidates
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import MissingInputError
from itrpipe.plan.planning import Override
from itrpipe.progress import Reporter
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import PICTURES, existing_input, read_manifest

PACKAGES = ("starlette", "uvicorn")


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
        split: whose pairs are judged, see `itrpipe.commands.review`.
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
    from itrpipe.search.opening import load
    from itrpipe.training.data import Sources

    prepared, trained = candidates.prepared, candidates.trained
    folder = image_root(read_manifest(prepared).settings, prepared, load_definition(root, check_name(dataset)))
    pictures = pages.Pictures.of_dataset(prepared, folder, root / dataset / PICTURES)
    model = load(trained, device=device)
    alone = None if model.embeds else "test" if split == TRAIN else split
    searches = pages.Searches(Gallery.of_dataset(model, trained, alone))
    reviews = pages.Reviews(candidates, DecisionFile.of(root, dataset))
    sources = Sources(prepared, existing_input(trained, read_manifest(trained), "extract"))
    pages.run(pages.Site(dataset, searches, pictures, reviews, sources), port, browser, reporter.say)
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
    from itrpipe.search.opening import load

    (index, opened), folder = indexed, photos.resolve()
    pictures = pages.Pictures.of_folder(index, folder, root / dataset_of(folder) / PICTURES)
    searches = pages.Searches(Gallery.of_folder(load(opened.folder, device=device), index))
    pages.run(pages.Site(folder.name, searches, pictures), port, browser, reporter.say)


def _require_packages() -> None:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")
