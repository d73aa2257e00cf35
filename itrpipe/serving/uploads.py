"""Photographs that people drop on the page: the last few, in memory alone."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

import numpy as np

from itrpipe.errors import DataError, UsageError
from itrpipe.serving.decoding import Decoded, decode

KEPT = 4
"""Photographs that are remembered; a query that was ranked is remembered longer."""
AT_ONCE = 2
"""Photographs that are decoded at a time."""


class Uploads:
    """Remembers photographs by a digest of their bytes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Decoded] = OrderedDict()
        self._lock, self._decoders = threading.Lock(), threading.Semaphore(AT_ONCE)

    def add(self, content: bytes) -> str:
        """Decodes a photograph and returns its key.

        Raises:
            UsageError: it cannot be used.
        """
        key = hashlib.sha256(content).hexdigest()[:32]
        with self._lock:
            if key in self._known:
                return key
        try:
            with self._decoders:
                decoded = decode(content)
        except DataError as error:
            raise UsageError(f"the photograph {error}; give another one") from None
        with self._lock:
            self._known[key] = decoded
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return key

    def pixels(self, key: str) -> np.ndarray:
        """A photograph [H, W, 3] uint8 RGB.

        Raises:
            UsageError: it is not remembered any more.
        """
        return self._decoded(key).pixels

    def small(self, key: str) -> bytes:
        """JPEG of a small copy.

        Raises:
            UsageError: likewise.
        """
        return self._decoded(key).small

    def _decoded(self, key: str) -> Decoded:
        with self._lock:
            found = self._known.get(key)
        if found is None:
            raise UsageError("this photograph is not remembered any more; drop it again")
        return found
