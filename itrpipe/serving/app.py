"""The pages and what they ask for.

`/` searches, `/review` judges candidates, `/data` shows what is odd in a dataset, `/runs` how trainings go.
`/pictures/SIDE/ID` are the photographs, `/reports/NAME` what `itrpipe report` wrote, `/api/…` is JSON for the pages'
own script.
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
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from itrpipe.errors import ItrpipeError
from itrpipe.review.decisions import UNDONE
from itrpipe.serving.decoding import MOST_BYTES
from itrpipe.serving.facts import Facts
from itrpipe.serving.pictures import SIDES, Pictures
from itrpipe.serving.reviewing import ORDER_TITLES, Reviews
from itrpipe.serving.runs import Runs
from itrpipe.serving.searching import Asked, Searches
from itrpipe.serving.security import POLICY, OwnPagesOnly
from itrpipe.serving.why import WordMaps

HERE = Path(__file__).parent
STYLE = HERE.parent / "reporting" / "base.css"
LONGEST_BODY = 64 * 1024
_FRESH = {"Cache-Control": "no-store"}
_REPORT = {
    POLICY: "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; sandbox allow-popups"
}
"""Reports hold their style and their pictures themselves, and no script."""


@dataclass(frozen=True)
class Site:
    """What is served.

    Attributes:
        about: what is looked at: a dataset, or a folder.
        model: name of the model.
        searches: where is searched.
        pictures: the photographs.
        reviews: what is judged; None of photographs without captions, as the following.
        facts: what is odd in the dataset.
        runs: its trainings.
        maps: where the model sees words, of models that tell.
    """

    about: str
    model: str
    searches: Searches
    pictures: Pictures
    reviews: Reviews | None = None
    facts: Facts | None = None
    runs: Runs | None = None
    maps: WordMaps | None = None

    @property
    def pages(self) -> dict[str, str]:
        """Title -> path of the pages that there are."""
        optional = {"Review": self.reviews, "Data": self.facts, "Runs": self.runs}
        return {"Search": "/"} | {title: f"/{title.lower()}" for title, part in optional.items() if part is not None}


def build(site: Site, *, hosts: tuple[str, ...], port: int, token: str = "") -> Starlette:
    """The application.

    Args:
        site: what is served.
        hosts: names that this server goes by.
        port: that it listens at.
        token: that people need where others can reach it.
    """
    pages = _Pages(site)
    routes = [
        Route("/", pages.search),
        Route("/api/search", pages.found),
        Route("/api/photographs", pages.upload, methods=["POST"]),
        Route("/photographs/{key}", pages.photograph),
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
    if site.facts is not None:
        routes += [Route("/data", pages.data), Route("/api/alike", pages.alike)]
    if site.runs is not None:
        routes += [
            Route("/runs", pages.runs),
            Route("/api/runs", pages.trainings),
            Route("/reports/{name}", pages.report),
        ]
    guard = Middleware(OwnPagesOnly, hosts=hosts, port=port, token=token)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={ItrpipeError: _said})


async def _said(request: Request, error: Exception) -> Response:
    """A user's error as one line."""
    return JSONResponse({"error": str(error)}, 400)


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._hard, self._slow = CapacityLimiter(2), CapacityLimiter(1)
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
        return self._page("Review", orders=orders, reviewers=names, file=reviews.file.path)

    async def data(self, request: Request) -> Response:
        facts = self._site.facts
        assert facts is not None
        return self._page("Data", **await run_in_threadpool(lambda: facts.shown))

    async def runs(self, request: Request) -> Response:
        assert self._site.runs is not None
        return self._page("Runs", reports=await run_in_threadpool(self._site.runs.reports))

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
        return await _answered(lambda: self._site.searches.found(asked, start, count), self._hard)

    async def upload(self, request: Request) -> Response:
        content = await _read(request, MOST_BYTES)
        return await _answered(lambda: {"photograph": self._site.searches.uploads.add(content)}, self._hard)

    async def photograph(self, request: Request) -> Response:
        small = self._site.searches.uploads.small(request.path_params["key"])
        return Response(small, media_type="image/jpeg", headers=_FRESH)

    async def why(self, request: Request) -> Response:
        assert self._site.maps is not None
        sentence, image_id = (request.query_params.get(name, "").strip() for name in ("q", "image"))
        gallery, maps = self._site.searches.gallery, self._site.maps
        if image_id not in gallery.rows:
            raise HTTPException(404, "there is no such image")
        split = gallery.places[gallery.rows[image_id]]
        return await _answered(lambda: {"words": maps.of(split, image_id, sentence)}, self._hard)

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

    async def alike(self, request: Request) -> Response:
        facts = self._site.facts
        assert facts is not None
        return await _answered(facts.alike, self._slow)

    async def trainings(self, request: Request) -> Response:
        runs = self._site.runs
        assert runs is not None
        return await _answered(lambda: {"runs": runs.trainings()})

    async def report(self, request: Request) -> Response:
        assert self._site.runs is not None
        page = await run_in_threadpool(self._site.runs.report, request.path_params["name"])
        return FileResponse(page, media_type="text/html", headers=_REPORT)

    async def picture(self, request: Request) -> Response:
        side, image_id = request.path_params["side"], request.path_params["image_id"]
        if side not in SIDES or image_id not in self._site.pictures:
            return PlainTextResponse("there is no such picture", 404)
        # Ids come again in other datasets and folders, so a browser has to ask whether the picture is still the same.
        headers = {"Cache-Control": "private, no-cache", "ETag": f'"{self._site.pictures.digest(image_id)}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        small = await run_in_threadpool(self._site.pictures.small, image_id, side)
        if small is None:
            return PlainTextResponse("this photograph cannot be read", 404)
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
