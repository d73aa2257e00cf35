"""The pages and what they ask for.

`/` searches, `/review` judges candidates, `/pictures/SIDE/ID` are the photographs, `/api/…` is JSON for the pages' own
script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from itrpipe.errors import ItrpipeError
from itrpipe.review.decisions import UNDONE
from itrpipe.serving.pictures import SIDES, Pictures
from itrpipe.serving.reviewing import ORDER_TITLES, Reviews
from itrpipe.serving.searching import Asked, Searches
from itrpipe.serving.security import OwnPagesOnly
from itrpipe.serving.why import WordMaps

HERE = Path(__file__).parent
STYLE = HERE.parent / "report" / "templates" / "base.css"
LONGEST_BODY = 64 * 1024
LARGEST_PHOTOGRAPH = 24 * 2**20
"""Bytes of a photograph that is dropped on the page."""
_FRESH = {"Cache-Control": "no-store"}


@dataclass(frozen=True)
class Site:
    """What is served.

    Attributes:
        about: what is looked at: a dataset, or a folder.
        model: name of the model.
        searches: where is searched.
        pictures: the photographs.
        reviews: what is judged; None of photographs without captions.
        maps: where the model sees words, of models that tell.
    """

    about: str
    model: str
    searches: Searches
    pictures: Pictures
    reviews: Reviews | None = None
    maps: WordMaps | None = None

    @property
    def pages(self) -> dict[str, str]:
        """Title -> path of the pages that there are."""
        return {"Search": "/"} | ({"Review": "/review"} if self.reviews is not None else {})


def build(site: Site) -> Starlette:
    """The application."""
    pages = _Pages(site)
    routes = [
        Route("/", pages.search),
        Route("/api/search", pages.found),
        Route("/api/photographs", pages.upload, methods=["POST"]),
        Route("/pictures/{side:int}/{image_id:path}", pages.picture),
        Route("/favicon.ico", lambda request: Response(status_code=204)),
        Route("/base.css", lambda request: FileResponse(STYLE, media_type="text/css")),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    if site.maps is not None:
        routes += [Route("/api/why", pages.why)]
    if site.reviews is not None:
        routes += [Route("/review", pages.review), Route("/api/review", pages.upcoming)]
        routes += [Route("/api/review", pages.answer, methods=["POST"])]
    said = {ItrpipeError: _said, ClientDisconnect: _said}
    return Starlette(routes=routes, middleware=[Middleware(OwnPagesOnly)], exception_handlers=said)


async def _said(request: Request, error: Exception) -> Response:
    """A user's error as one line."""
    return JSONResponse({"error": str(error)}, 400)


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        # Each kind of work has threads of its own, so that none has to wait for another kind.
        self._searching, self._decoding, self._reading = CapacityLimiter(2), CapacityLimiter(2), CapacityLimiter(1)
        self._templates = Environment(
            loader=FileSystemLoader(HERE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    async def search(self, request: Request) -> Response:
        gallery = self._site.searches.gallery
        told = {"photographs": gallery.reads_photographs, "compares": gallery.compares_images}
        return self._page("Search", maps=self._site.maps is not None, **told)

    async def review(self, request: Request) -> Response:
        reviews = self._site.reviews
        assert reviews is not None
        orders = {name: ORDER_TITLES[name] for name in reviews.orders}
        names = await run_in_threadpool(lambda: reviews.reviewers)
        return self._page("Review", orders=orders, reviewers=names, file=reviews.file.path.name)

    def _page(self, title: str, **values: Any) -> Response:
        name = title.lower()
        shared = {"about": self._site.about, "model": self._site.model, "pages": self._site.pages}
        template = self._templates.get_template(f"{name}.html.j2")
        return HTMLResponse(template.render(title=title, script=name, **shared, **values))

    async def found(self, request: Request) -> Response:
        asked = Asked(*(request.query_params.get(name, "").strip() for name in ("q", "like", "photograph")))
        try:
            start, count = (int(request.query_params.get(name, "0")) for name in ("start", "count"))
        except ValueError:
            raise HTTPException(400, "start and count are numbers") from None
        return await _answered(lambda: self._site.searches.found(asked, start, count), self._searching)

    async def upload(self, request: Request) -> Response:
        content = await _read(request, LARGEST_PHOTOGRAPH)
        return await _answered(lambda: {"photograph": self._site.searches.add(content)}, self._reading)

    async def why(self, request: Request) -> Response:
        assert self._site.maps is not None
        sentence, image_id = (request.query_params.get(name, "").strip() for name in ("q", "image"))
        gallery, maps = self._site.searches.gallery, self._site.maps
        if image_id not in gallery.rows:
            raise HTTPException(404, "there is no such image")
        split = gallery.places[gallery.rows[image_id]]
        return await _answered(lambda: {"words": maps.of(split, image_id, sentence)}, self._searching)

    async def upcoming(self, request: Request) -> Response:
        reviews = self._site.reviews
        assert reviews is not None
        order, reviewer = (request.query_params.get(name, "") for name in ("order", "reviewer"))
        return await _answered(
            lambda: {"candidates": reviews.upcoming(order, reviewer), "progress": reviews.progress(order, reviewer)}
        )

    async def answer(self, request: Request) -> Response:
        reviews, given = self._site.reviews, await _body(request)
        assert reviews is not None
        order, reviewer, answer = (str(given.get(name, "")) for name in ("order", "reviewer", "answer"))
        place = given.get("place")
        if place is None and answer == UNDONE:
            return await _answered(lambda: reviews.undo(order, reviewer))
        if not isinstance(place, int):
            raise HTTPException(400, "place is no number")
        return await _answered(lambda: reviews.answer(order, reviewer, place, answer))

    async def picture(self, request: Request) -> Response:
        side, image_id = request.path_params["side"], request.path_params["image_id"]
        if side not in SIDES or image_id not in self._site.pictures:
            return PlainTextResponse("there is no such picture", 404)
        # Ids come again in other datasets and folders, so a browser has to ask whether the picture is still the same.
        headers = {"Cache-Control": "private, no-cache", "ETag": f'"{self._site.pictures.digest(image_id)}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        small = await run_sync(self._site.pictures.small, image_id, side, limiter=self._decoding)
        return Response(small, media_type="image/jpeg", headers=headers)


async def _answered(work: Callable[[], dict[str, Any]], limiter: CapacityLimiter | None = None) -> Response:
    """An answer, made by a thread; with a limiter by one of few, so that many who wait leave threads to the others."""
    return await run_sync(lambda: JSONResponse(work(), headers=_FRESH), limiter=limiter)


async def _read(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: it is too long.
    """
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > most:
            raise HTTPException(413, f"more than {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        HTTPException: it is too long, or none.
    """
    body = await _read(request, LONGEST_BODY)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "no JSON object")
    return found
