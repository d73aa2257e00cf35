"""`itrpipe serve`: local web pages on which people search and judge candidates."""

from __future__ import annotations

import contextlib
import socket
import threading
import webbrowser
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.commands.index import AskedModel, dataset_of, up_to_date
from itrpipe.commands.review import TRAIN, open_candidates
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import MissingInputError, UnavailableError
from itrpipe.features.declaration import feature_settings, passes_of
from itrpipe.plan.planning import Override
from itrpipe.progress import Reporter
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import PICTURES, existing_input, read_manifest
from itrpipe.training.settings import settings_of

if TYPE_CHECKING:
    from itrpipe.review.queue import Candidates
    from itrpipe.serving.app import Site
    from itrpipe.serving.gallery import Gallery
    from itrpipe.serving.why import WordMaps
    from itrpipe.storage.artifact import Manifest

SCENES = "scenes"
PACKAGES = ("starlette", "uvicorn")
_SERVER: dict[str, Any] = {
    "log_level": "warning",
    "server_header": False,
    "ws": "none",
    "proxy_headers": False,
}
HOST = "127.0.0.1"


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
    from itrpipe.engine.work import resolve_device
    from itrpipe.review.decisions import DecisionFile
    from itrpipe.serving.app import Site
    from itrpipe.serving.pictures import Pictures
    from itrpipe.serving.reviewing import Reviews
    from itrpipe.serving.searching import Searches

    definition = load_definition(root, check_name(dataset))
    folder = image_root(read_manifest(candidates.prepared).settings, candidates.prepared, definition)
    pictures = Pictures.of_dataset(candidates.prepared, folder, root / dataset / PICTURES)
    gallery, maps = _gallery(candidates, split, resolve_device(device))
    reviews = Reviews(candidates, DecisionFile.of(root, dataset))
    _run(Site(dataset, candidates.model, Searches(gallery), pictures, reviews, maps), port, browser, reporter)
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
    from itrpipe.retrieval.photo_index import PhotoIndex
    from itrpipe.serving.app import Site
    from itrpipe.serving.gallery import of_folder
    from itrpipe.serving.pictures import Pictures
    from itrpipe.serving.searching import Searches

    folder = photos.resolve()
    index = PhotoIndex(indexed.folder)
    pictures = Pictures.of_folder(index.photographs, folder, root / dataset_of(folder) / PICTURES)
    searches = Searches(of_folder(index, indexed.model.folder, device))
    _run(Site(folder.name, indexed.model.called, searches, pictures), port, browser, reporter)


def _require_packages() -> None:
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")


def _gallery(candidates: Candidates, split: str, device: str) -> tuple[Gallery, WordMaps | None]:
    """What is searched, and where the model sees words.

    Models that score pairs search one split alone, since they read every image beside every sentence.
    """
    from itrpipe.serving.gallery import of_dataset, of_pairs

    trained, manifest = candidates.trained, read_manifest(candidates.trained)
    if settings_of(manifest.settings["backbone"]).embeds:
        extract = read_manifest(existing_input(trained, manifest, "extract"))
        parts = passes_of(extract.conf, feature_settings(extract.settings).model_validate(extract.settings))
        # The extractor of scenes reads drawings alone.
        reads = not any(part.imported or part.kind == SCENES for part in parts.values())
        gallery = of_dataset(trained, candidates.prepared, device, reads_photographs=reads)
        return gallery, _maps(trained, manifest, device)
    from itrpipe.retrieval.searching import Searched, SearchModel
    from itrpipe.scene_graph.settings import ParseSettings

    reads = settings_of(manifest.settings["backbone"]).reads_phrases
    graphs = existing_input(trained, manifest, "parse") if reads else None
    known = None if graphs is None else read_manifest(graphs).settings
    parser = None if known is None else ParseSettings.recorded(known)
    extracted, name = existing_input(trained, manifest, "extract"), "test" if split == TRAIN else split
    searched = Searched.open(candidates.prepared, extracted, name, graphs)
    return of_pairs(SearchModel(trained, manifest.label, device), searched, parser), None


def _maps(trained: Path, manifest: Manifest, device: str) -> WordMaps | None:
    if "word-maps" not in settings_of(manifest.settings["backbone"]).answers:
        return None
    from itrpipe.serving.why import WordMaps
    from itrpipe.training.data import Sources

    prepare, extract = (existing_input(trained, manifest, name) for name in ("prepare", "extract"))
    maps = WordMaps(trained, Sources(prepare, extract), device)
    return maps if maps.defined else None


def _run(site: Site, port: int, browser: bool, reporter: Reporter) -> None:
    """Listens until it is interrupted."""
    import uvicorn

    from itrpipe.serving.app import build
    from itrpipe.serving.deadline import WithDeadline

    with listening(port) as sock:
        address = f"http://{HOST}:{sock.getsockname()[1]}/"
        reporter.say(f"{address}  (Ctrl-C ends it)", style="bold")
        threading.Thread(target=site.searches.warm, daemon=True).start()
        server = uvicorn.Server(uvicorn.Config(build(site), http=WithDeadline, **_SERVER))
        if browser:
            threading.Timer(0.5, webbrowser.open, (address,)).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[sock])


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket that listens on this machine, so that who comes before the server has begun waits for it.

    Raises:
        UnavailableError: the port is taken.
    """
    # Of a socket that does not name its protocol, asyncio leaves answers in two packets, 40 ms apart.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
            sock.listen()
        except OSError as error:
            raise UnavailableError(
                f"--port {port}: {HOST} cannot be listened at ({error.strerror}); name another --port"
            ) from None
        yield sock
