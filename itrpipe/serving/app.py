"""The pages and what they ask for.

`/` searches, `/review` judges candidates. `/pictures/SIDE/ID` are the photographs, `/api/…` is JSON for the
pages' own script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from itrpipe.errors import ItrpipeError
from itrpipe.serving.pictures import SIDES, Pictures
from itrpipe.serving.reviewing import Reviews
from itrpipe.serving.searching import Searches
from itrpipe.serving.security import OwnPagesOnly

HERE = Path(__file__).parent
STYLE = HERE.parent / "reporting" / "page.css"
LONGEST_BODY = 64 * 1024
PAGES = {"Search": "/", "Review": "/review"}
_DAY = {"Cache-Control": "private, max-age=86400, immutable"}


def build(
    dataset: str,
    searches: Searches,
    reviews: Reviews,
    pictures: Pictures,
    *,
    hosts: tuple[str, ...],
    port: int,
    token: str = "",
) -> Starlette:
    """The application.

    Args:
        dataset: its name.
        searches: where is searched.
        reviews: what is judged.
        pictures: its photographs.
        hosts: names that this server goes by.
        port: that it listens at.
        token: that people need where others can reach it.
    """
    pages = _Pages(dataset, searches, reviews, pictures)
    routes = [
        Route("/", pages.search),
        Route("/api/search", pages.found),
        Route("/review", pages.review),
        Route("/api/review", pages.upcoming),
        Route("/api/review", pages.answer, methods=["POST"]),
        Route("/pictures/{side:int}/{image_id:path}", pages.picture),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/page.css", lambda request: FileResponse(STYLE, media_type="text/css")),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    guard = Middleware(OwnPagesOnly, hosts=hosts, port=port, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={ItrpipeError: _said})


async def _said(request: Request, error: Exception) -> Response:
    """A user's error as one line."""
    return JSONResponse({"error": str(error)}, 400)


class _Pages:
    def __init__(self, dataset: str, searches: Searches, reviews: Reviews, pictures: Pictures) -> None:
        self._dataset, self._searches, self._reviews, self._pictures = dataset, searches, reviews, pictures
        self._templates = Environment(
            loader=FileSystemLoader(HERE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    async def search(self, request: Request) -> Response:
        return self._page("Search")

    async def review(self, request: Request) -> Response:
        return self._page("Review", orders=self._reviews.orders, file=self._reviews.file.path)

    def _page(self, title: str, **values: Any) -> Response:
        name = title.lower()
        shared = {"dataset": self._dataset, "model": self._reviews.candidates.model, "pages": PAGES}
        template = self._templates.get_template(f"{name}.html.j2")
        return HTMLResponse(template.render(title=title, script=name, **shared, **values))

    async def found(self, request: Request) -> Response:
        sentence, like = (request.query_params.get(name, "") for name in ("q", "like"))
        try:
            start, count = (int(request.query_params.get(name, "0")) for name in ("start", "count"))
        except ValueError:
            raise HTTPException(400, "start and count are numbers") from None
        return await _answered(lambda: self._searches.found(sentence, like, start, count))

    async def upcoming(self, request: Request) -> Response:
        order, reviewer = (request.query_params.get(name, "") for name in ("order", "reviewer"))
        return await _answered(
            lambda: {
                "candidates": self._reviews.upcoming(order, reviewer),
                "progress": self._reviews.progress(order, reviewer),
            }
        )

    async def answer(self, request: Request) -> Response:
        given = await _body(request)
        order, reviewer, answer = (str(given.get(name, "")) for name in ("order", "reviewer", "answer"))
        place = given.get("place")
        if not isinstance(place, int):
            raise HTTPException(400, "place is no number")
        return await _answered(lambda: self._reviews.answer(order, reviewer, place, answer))

    async def picture(self, request: Request) -> Response:
        side, image_id = request.path_params["side"], request.path_params["image_id"]
        if side not in SIDES or image_id not in self._pictures:
            return PlainTextResponse("there is no such picture", 404)
        path = await run_in_threadpool(self._pictures.small, image_id, side)
        if path is None:
            return PlainTextResponse("this photograph cannot be read", 404)
        return FileResponse(path, media_type="image/jpeg", headers=_DAY)


async def _answered(work: Callable[[], dict[str, Any]]) -> Response:
    return JSONResponse(await run_in_threadpool(work), headers={"Cache-Control": "no-store"})


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        HTTPException: it is too long, or none.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, "too long")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "no JSON object")
    return found
