"""A site that is served by a thread, as `itrpipe serve` does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from itrpipe.search.serve import Site, listening, server_of


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Serves a site while the block lasts; gives its address."""
    with listening(0) as sock:
        server = server_of(site)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        thread.join()
