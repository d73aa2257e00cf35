"""A deadline for requests, which uvicorn has for the pause between two of them alone."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 60.0
"""Time from the first byte of a request, or the beginning of a connection, to the last byte of its body."""


class WithDeadline(H11Protocol):
    """Closes connections whose request is not whole in time, since each holds one of the files of the process."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Waits for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        unfinished = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if unfinished and self._closing is None:
            self._closing = self.loop.call_later(SECONDS, self.transport.abort)
        elif self._closing is not None and not unfinished:
            self._closing.cancel()
            self._closing = None
