"""`itrpipe serve`: local web pages on which people search, and judge candidates."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import webbrowser
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.commands.review import open_candidates
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import MissingInputError, UnavailableError
from itrpipe.plan.planning import Override
from itrpipe.progress import Reporter
from itrpipe.stages.prepare import image_root

PACKAGES = ("starlette", "uvicorn")
_EVERYWHERE = ("0.0.0.0", "::")
PICTURES = "pictures"
"""Folder of small copies, beside the dataset's artifacts."""


@dataclass(frozen=True)
class Place:
    """Where the server is found.

    Attributes:
        host: address that it listens at.
        port: 0 takes any that is free.
        browser: open it in a browser.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    browser: bool = True


def serve(
    root: Path,
    dataset: str,
    split: str,
    place: Place,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Serves until it is interrupted; what is missing of the list is made first.

    Args:
        root: the data folder.
        dataset: dataset name.
        split: whose pairs are judged, see `itrpipe.commands.review`.
        place: where.
        overrides: values given by the user, of the list.
        no_deps: fail when the list is not there.
        dry_run: print the plan and what it will cost, and serve nothing.

    Raises:
        MissingInputError: the packages are not installed, or the dataset has no photographs.
        UnavailableError: the port is taken.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")
    reporter = Reporter()
    candidates = open_candidates(root, dataset, split, overrides, reporter, no_deps=no_deps, dry_run=dry_run)
    if candidates is None:
        return
    import uvicorn

    from itrpipe.review.decisions import DecisionFile
    from itrpipe.serving.app import build
    from itrpipe.serving.pictures import Pictures
    from itrpipe.serving.reviewing import Reviews
    from itrpipe.serving.searching import Searches
    from itrpipe.serving.security import LOCAL, PARAMETER

    definition = load_definition(root, check_name(dataset))
    folder = image_root(read_manifest(candidates.prepared).settings, candidates.prepared, definition)
    pictures = Pictures(candidates.prepared, folder, root / dataset / PICTURES)
    searches = Searches(candidates.trained, candidates.prepared)
    reviews = Reviews(candidates, DecisionFile.of(root, dataset))
    token = "" if place.host in LOCAL else secrets.token_urlsafe(24)
    with _listening(place) as sock:
        port = sock.getsockname()[1]
        own = tuple(dict.fromkeys((*LOCAL, place.host, socket.gethostname(), socket.getfqdn())))
        app = build(dataset, searches, reviews, pictures, hosts=own, port=port, token=token)
        host = socket.gethostname() if place.host in _EVERYWHERE else place.host
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/{f'?{PARAMETER}={token}' if token else ''}"
        reporter.say(f"{address}  (Ctrl-C ends it)", style="bold")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False))
        if place.browser:
            threading.Timer(0.5, webbrowser.open, (address,)).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[sock])
    reporter.say(f"decisions: {reviews.file.path}")


@contextlib.contextmanager
def _listening(place: Place):
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((place.host, place.port))
        except OSError as error:
            raise UnavailableError(
                f"--port {place.port}: {place.host} cannot be listened at ({error.strerror}); name another --port"
            ) from None
        yield sock
