"""A site that is served by a thread, as `itrpipe serve` does it."""

from __future__ import annotations

import threading

import uvicorn

from itrpipe.commands.serve import listening
from itrpipe.serving.app import Site, build
from itrpipe.serving.deadline import WithDeadline


class Served:
    """Runs a site while the block lasts; gives its port."""

    def __init__(self, site: Site) -> None:
        self._listening = listening(0)
        self._server = uvicorn.Server(uvicorn.Config(build(site), http=WithDeadline, log_level="error"))

    def __enter__(self) -> int:
        sock = self._listening.__enter__()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [sock]}, daemon=True)
        self._thread.start()
        return sock.getsockname()[1]

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.__exit__(None, None, None)
