"""What keeps a local server from other pages that the same browser has open.

A page of the internet may send requests to 127.0.0.1, and by a name that it resolves to 127.0.0.1 also read the answers
(DNS rebinding). So every request has to name this machine as its host, and whatever changes something or costs work has
to come from a page of this server. Pages run no script but the one that is shipped, and load nothing from elsewhere.
"""

from __future__ import annotations

import re

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Of any port, since a tunnel may end at another one than the server listens at.
_OWN = re.compile(r"(127\.0\.0\.1|localhost)(:[1-9][0-9]{0,4})?")
_SAFE = ("GET", "HEAD")
_ELSEWHERE = ("cross-site", "same-site")
"""What browsers call requests of pages that another server has sent."""


class OwnPagesOnly:
    """Refuses requests of other pages before anything else sees them.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on, as it does with the beginning and the end of the server."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = _refused(Request(scope)) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, with_headers)


def _refused(request: Request) -> PlainTextResponse | None:
    headers, host = request.headers, request.headers.get("host", "")
    if not _OWN.fullmatch(host):
        return PlainTextResponse("this server has another name", 421)
    own = request.method in _SAFE or headers.get("origin") == f"http://{host}"
    opened = headers.get("sec-fetch-dest") == "document" and not request.url.path.startswith("/api/")
    if own and (headers.get("sec-fetch-site") not in _ELSEWHERE or opened):
        return None
    return PlainTextResponse("this does not come from a page of this server", 403)
