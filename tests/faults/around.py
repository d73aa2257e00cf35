"""What happens around a command: nobody reads what it prints, its model is a damaged copy, several ask it at once."""

from __future__ import annotations

import http.client
import os
import random
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import quote

from tests.faults.bits import DAMAGED, flip, places_in
from tests.faults.chain import BY_NAME, DATA, Chain, identities
from tests.faults.kills import Place, places
from tests.faults.server import LIMIT, Child, run, unread
from tests.faults.trials import Findings, Trial

PIPE = "pipe in its place"
_LOADED = ("model.safetensors", "vocab.json", "config.json", "manifest.json")


def pipes(chain: Chain) -> list[Trial]:
    """Every command with a closed pipe as its output: it has to make all that it makes otherwise."""
    return [Trial("pipes", str(place), partial(_unread, place=place)) for place in places(chain)]


def copies(chain: Chain) -> list[Trial]:
    """A trained folder that was copied under another name, with a flipped bit or a pipe in each file that is loaded."""
    return [
        Trial("copies", f"{file} with another {place}", partial(_copied, chain=chain, file=file, place=place))
        for file in _LOADED
        for place in (*reversed(places_in(file)), PIPE)
    ]


def requests(chain: Chain) -> list[Trial]:
    """Several at once that ask for a picture of which no small copy was made yet."""
    return [Trial("requests", f"{count} at once", partial(_asked, chain=chain, count=count)) for count in (8, 2)]


def _unread(folder: Path, draw: random.Random, found: Findings, *, place: Place) -> None:
    found.tried += 1
    place.begin(folder)
    before = identities(folder)
    found.succeeded(run(place.arguments, folder, unread))
    place.finish(folder, before | identities(folder), found)


def _copied(folder: Path, draw: random.Random, found: Findings, *, chain: Chain, file: str, place: str) -> None:
    found.tried += 1
    copy = _model(folder, chain)
    if place == PIPE:
        (copy / file).unlink()
        os.mkfifo(copy / file)
    else:
        flip(copy / file, place, draw)
    outcome = run(["index", "--photos", str(chain.places["source"]), "--model", str(copy)], folder)
    found.refused(outcome, (DAMAGED,), file)


def _asked(folder: Path, draw: random.Random, found: Findings, *, chain: Chain, count: int) -> None:
    model, photos = _model(folder, chain), chain.places["source"]
    found.succeeded(run(["index", "--photos", str(photos), "--model", str(model)], folder))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = ["--photos", str(photos), "--model", str(model), "--port", str(port), "--no-browser"]
    child = Child(["serve", *shared], folder)
    with ThreadPoolExecutor(count) as pool:
        for photograph in sorted(photos.rglob("*.jpg")):
            found.tried += 1
            path = f"/pictures/320/{quote(photograph.relative_to(photos).as_posix())}"
            codes = set(pool.map(_status, [port] * count, [path] * count))
            if codes != {200}:
                found.note("differing", f"{path} was answered by {codes}")
    os.kill(child.pid, signal.SIGINT)
    found.succeeded(child.wait())


def _model(folder: Path, chain: Chain) -> Path:
    """A copy of a trained model under another name."""
    chain.start(BY_NAME["search"], folder)
    (trained,) = folder.glob(f"{DATA}/scenes/train/aoq.vsepp-*")
    return Path(shutil.copytree(trained, trained.with_name("best")))


def _status(port: int, path: str) -> int:
    """What a server answers, as soon as it listens."""
    until = time.monotonic() + LIMIT
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
