"""What keeps a local server from other pages that the same browser has open.

A page of the internet may send requests to 127.0.0.1, and by a name that it resolves to 127.0.0.1 also read the answers
(DNS rebinding). So every request has to name this server as its host; whatever changes something or costs work has to
come from a page of this server; and a server that others can reach asks for a token. Pages run no script but the one
that is shipped, and load nothing from elsewhere.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
PARAMETER = "token"
POLICY = "Content-Security-Policy"
HEADERS = {
    POLICY: "default-src 'none'; img-src 'self' blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_SAFE = ("GET", "HEAD")
_ELSEWHERE = ("cross-site", "same-site")
"""What browsers call requests of pages that another server has sent."""


class OwnPagesOnly:
    """Refuses requests of other pages, and of people without the token, before anything else sees them.

    Args:
        app: what answers.
        hosts: names of this server, as browsers send them, without a port.
        port: that it listens at.
        token: that others need; empty where only this machine can reach the server.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], port: int, token: str) -> None:
        self._app, self._hosts, self._port, self._token = app, {each.lower() for each in hosts}, port, token
        self._cookie = f"itrpipe_token_{port}"  # browsers send cookies to every port of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on; of anything but requests only the beginning and the end of the server."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(request)
        if refused is not None:
            await refused(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)

    def _refused(self, request: Request) -> PlainTextResponse | RedirectResponse | None:
        # The address that a connection came in by is no name that somebody could let resolve to this machine.
        here = (request.scope.get("server") or ("",))[0]
        headers = request.headers
        if not self._is_own(f"http://{headers.get('host', '')}", here):
            return PlainTextResponse("this server has another name", 421)
        own = request.method in _SAFE or self._is_own(headers.get("origin", ""), here)
        opened = headers.get("sec-fetch-dest") == "document" and not request.url.path.startswith("/api/")
        if not own or (headers.get("sec-fetch-site") in _ELSEWHERE and not opened):
            return PlainTextResponse("this does not come from a page of this server", 403)
        if not self._token:
            return None
        given = request.query_params.get(PARAMETER)
        if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
            answer = RedirectResponse(f"/{request.url.path.lstrip('/')}", 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return answer
        if hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._token.encode()):
            return None
        return PlainTextResponse("open the address that `itrpipe serve` printed, with its token", 401)

    def _is_own(self, address: str, here: str) -> bool:
        try:
            parts = urlsplit(address)
            named = parts.scheme == "http" and bool(parts.hostname) and parts.hostname in {*self._hosts, here}
            return named and (parts.port or 80) == self._port
        except ValueError:
            return False
