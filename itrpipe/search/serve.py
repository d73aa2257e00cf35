"""Local pages: `/` searches, `/review` judges candidates.

`/pictures/SIDE/ID` are the photographs, `/api/…` is JSON for the pages' own scripts.

A page of the internet may send requests to 127.0.0.1, and by a name that it resolves to 127.0.0.1 also read the answers
(DNS rebinding). So every request has to name this machine as its host, and whatever changes something or costs work has
to come from a page of this server. Pages run no script but the one that is shipped, and load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import h11
import numpy as np
import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from itrpipe.datasets.decisions import DecisionFile
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import DECODER_ERRORS, decode_rgb, read_image, refusal
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset, given_split
from itrpipe.errors import DataError, ItrpipeError, UnavailableError, UsageError
from itrpipe.report.page import page_environment
from itrpipe.report.pictures import shrink
from itrpipe.review import CALIBRATION, DOUBTFUL, HARMFUL, SAMPLE, Queue, ReviewCandidates, agreements, findings
from itrpipe.search.gallery import Gallery
from itrpipe.search.model import best
from itrpipe.search.photos import PhotoFile, read_index
from itrpipe.storage.disk import make_folder, write_bytes

HERE = Path(__file__).parent
STYLE = HERE.parent / "report" / "templates" / "base.css"
HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Ids come again in other datasets and folders, so a browser has to ask whether a picture is still the same.
    "Cache-Control": "no-cache",
}
# Of any port, since a tunnel may end at another one than the server listens at.
_OWN = re.compile(r"(127\.0\.0\.1|localhost)(:[1-9][0-9]{0,4})?")
LONGEST_BODY = 64 * 1024
LARGEST_PHOTOGRAPH = 24 * 2**20
"""Bytes of a photograph that is dropped on the page."""
REQUEST_SECONDS = 60.0
"""Time in which a request has to be there; a photograph may come through a slow tunnel."""
SHUTDOWN_SECONDS = 3
"""Time in which answers that are under way have to be sent when the server ends."""
MOST_CONNECTIONS = 64
"""Connections at a time; a browser opens six. Each is an open file, of which some systems allow a process 256."""
LONGEST_SENTENCE = 1_000
LONGEST_NAME = 80
MOST = 200
"""Images at a time."""
RANKINGS_KEPT = 64
"""Queries whose rankings are kept, so that a page that loads on is not ranked again."""
AT_ONCE = 20
"""Candidates that a page asks for, so that the next ones are there before their turn."""
SIDES = (320, 1_280)
"""Longest sides of pictures in pixels: of a grid, and of one photograph alone."""
ORDER_TITLES = {
    CALIBRATION: "calibration: spread over the judge's score",
    SAMPLE: "sample: at random",
    DOUBTFUL: "doubtful: nearest to a probability of one half first",
    HARMFUL: "harmful: farthest above the caption's own picture first",
}
_PROPOSALS = ("people at a table", "an animal", "a street at night")
"""Sentences that are proposed where there are no captions."""


class Connection(H11Protocol):
    """A connection on which each request has to arrive in time, and which makes room where there are too many.

    Attributes:
        deadline: what closes the connection; None while an answer is made.
    """

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin to wait for a request, and give up the connection that has waited for longest if need be."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = {}
            for other in self.connections:
                if isinstance(other, Connection) and other.deadline and not other.transport.is_closing():
                    waiting[other.deadline] = other.transport
            waiting[min(waiting)].abort()

    def data_received(self, data: bytes) -> None:
        """Take some of a request."""
        super().data_received(data)
        self._watch()

    def shutdown(self) -> None:
        """Wait for an answer that is under way, and for no request."""
        super().shutdown()
        if self.deadline:
            self.transport.abort()

    def _watch(self) -> None:
        """Set the deadline as long as the rest of a request is missing."""
        arrives = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self.deadline and not arrives:
            self.deadline.cancel()
            self.deadline = None
        elif arrives and not self.deadline:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)


async def own_pages_only(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Refuse a request of another page before anything else sees it, or answer it."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    fetch_site = request.headers.get("sec-fetch-site")
    changes_nothing = request.method in ("GET", "HEAD")
    is_document = request.headers.get("sec-fetch-dest") == "document"
    opens_page = is_document and not request.url.path.startswith("/api/")
    is_from_elsewhere = fetch_site in ("cross-site", "same-site") and not opens_page
    if not _OWN.fullmatch(host):
        response: Response = PlainTextResponse("this server has another name", 421)
    elif is_from_elsewhere or not (changes_nothing or origin == f"http://{host}"):
        response = PlainTextResponse("this does not come from a page of this server", 403)
    else:
        response = await answer(request)
    response.headers.update(HEADERS)
    return response


@dataclass
class Pictures:
    """Small copies of photographs, made once and kept: a JPEG for each content and size.

    Photographs are found by their ids alone, so that no path comes from a request.

    Attributes:
        files: id -> path below the root, and the digest of the photograph that is meant: 64 hexadecimal digits.
        digest: makes it of a file's path below the root, its path, and its bytes.
        root: finds the photographs.
        kept: folder for the small copies.
    """

    files: Mapping[str, tuple[str, str]]
    digest: Callable[[str, Path, bytes], str]
    root: ImageRoot
    kept: Path

    @classmethod
    def of_dataset(cls, prepared: Path, root: Path, kept: Path) -> Pictures:
        """Find the pictures of a prepared dataset, by the digests of their bytes.

        Raises:
            DataError: the digest of an image is none.
        """
        dataset = PreparedDataset.open(prepared, tokens=False)
        source = prepared / IMAGES_FILE
        columns = (dataset.column(name) for name in ("image_id", "file", "sha256"))
        files = {}
        for image_id, file, digest in zip(*columns, strict=True):
            if not re.fullmatch("[0-9a-f]{64}", digest):
                raise DataError(f"{source}: image {image_id} has no digest; prepare the dataset again")
            files[image_id] = file, digest
        images = ImageRoot(root, source)
        return cls(files, lambda file, path, content: hashlib.sha256(content).hexdigest(), images, kept)

    @classmethod
    def of_folder(cls, index: Path, root: Path, kept: Path) -> Pictures:
        """Find the pictures of an indexed folder: another size or time of a file is another photograph."""
        photographs, _ = read_index(index)
        files = {photograph.file: (photograph.file, photograph.digest) for photograph in photographs}
        images = ImageRoot(root, root)
        return cls(files, lambda file, path, content: PhotoFile.of(file, path).digest, images, kept)

    def small(self, image_id: str, side: int) -> bytes:
        """Return the JPEG of the small copy of a known photograph, its longest side one of `SIDES`.

        Raises:
            DataError: it cannot be read, or is another one by now.
        """
        file, digest = self.files[image_id]
        kept = self.kept / f"{side}" / digest[:2] / f"{digest}.jpg"
        with contextlib.suppress(FileNotFoundError):
            return kept.read_bytes()
        try:
            path = self.root.resolve(file, f"image {image_id}")
            content = read_image(path)
            if self.digest(file, path, content) != digest:
                raise DataError("has changed since `prepare` or `index`; run that again")
            small, _ = shrink(content, side)
        except DECODER_ERRORS as error:
            raise DataError(f"image {image_id} {refusal(error)}") from None
        make_folder(kept.parent)
        write_bytes(kept, small)
        return small


class Searches:
    """Ranks the images of a gallery.

    Args:
        gallery: where is searched.

    Attributes:
        gallery: as given.
    """

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self._rankings: OrderedDict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._ranking = threading.Lock()
        self._reading = threading.Lock()

    def add(self, content: bytes) -> str:
        """Rank the images by a photograph, of which nothing else is kept, and return the key of the ranking.

        Raises:
            UsageError: the photograph cannot be used, or the model cannot search with one.
        """
        key = hashlib.sha256(content).hexdigest()
        with self._reading:  # one at a time, so that large ones do not fill the memory
            try:
                scores = self.gallery.by_image(decode_rgb(content))
            except DataError as error:
                reason = str(error).removeprefix("image 0").removeprefix(":").strip()
                raise UsageError(f"the photograph {reason}; give another one") from None
        with self._ranking:
            self._keep("photograph", key, scores)
        return key

    def ranked(self, kind: str, value: str, start: int, count: int) -> dict[str, Any]:
        """Return some of the images that fit a query best.

        Args:
            kind: `q` for a sentence, `like` for images like one, or `photograph` for those like one that was added;
                anything else shows the images in an order at random.
            value: the sentence, id or key.
            start: rank of the first answer, from 0.
            count: how many are wanted.

        Raises:
            UsageError: the model cannot answer the query, or there is no such image.
        """
        gallery = self.gallery
        unknown = []
        with self._ranking:
            if (kind, value) not in self._rankings:
                self._keep(kind, value, self._scores(kind, value))
            self._rankings.move_to_end((kind, value))
            order, scores = self._rankings[kind, value]
            if kind == "q":
                unknown = gallery.model.unknown_words(value)
        start = max(0, start)
        stop = start + max(0, min(count, MOST))
        answers = []
        for row in order[start:stop].tolist():
            answers.append(
                {
                    "image": gallery.image_ids[row],
                    "split": gallery.splits[row],
                    "score": float(scores[row]),
                    "captions": gallery.captions_of(row),
                }
            )
        page: dict[str, Any] = {"answers": answers, "searched": len(order), "unknown": unknown}
        if kind == "like":
            page["captions"] = gallery.captions_of(gallery.rows[value])
        return page

    def _keep(self, kind: str, value: str, scores: np.ndarray) -> None:
        order = best(scores, len(scores))
        if kind == "like":
            order = order[order != self.gallery.rows[value]]
        self._rankings[kind, value] = order, scores
        if len(self._rankings) > RANKINGS_KEPT:
            self._rankings.popitem(last=False)

    def _scores(self, kind: str, value: str) -> np.ndarray:
        if kind == "photograph":
            raise UsageError("this photograph is not remembered any more; drop it again")
        if kind == "like":
            if value not in self.gallery.rows:
                raise UsageError(f"image {value}: the model was trained without one of this id")
            return self.gallery.by_image(value)
        if kind != "q":
            return np.random.default_rng(0).random(len(self.gallery.image_ids))
        if len(value) > LONGEST_SENTENCE:
            raise UsageError(f"the query has more than {LONGEST_SENTENCE:,} characters; give a sentence")
        given_split([value], what="the query")
        return self.gallery.by_sentence(value)


class Posted(BaseModel, extra="forbid", strict=True):
    """An answer as a page sends it; see `Reviews.answer`."""

    order: str
    reviewer: str
    place: int
    answer: Literal["fits", "differs", "unsure", "undone"]


class Reviews:
    """The candidates of one list with the decisions on them.

    Args:
        candidates: what is judged.
        file: where decisions are kept.
    """

    def __init__(self, candidates: ReviewCandidates, file: DecisionFile) -> None:
        self.candidates = candidates
        self.file = file
        split = PreparedDataset.open(candidates.prepared, tokens=False).split(candidates.split)
        self._texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
        self._queue = cache(partial(Queue, candidates))
        self._lock = threading.Lock()

    @property
    def orders(self) -> dict[str, str]:
        """Return the orders that the list can be judged in: name -> title."""
        titles = {}
        for order, title in ORDER_TITLES.items():
            with contextlib.suppress(UsageError):
                self._queue(order)
                titles[order] = title
        return titles

    def shown(self, order: str, reviewer: str) -> dict[str, Any]:
        """Return the next candidates of a reviewer, or of one who has no name yet, and the last that they answered.

        Raises:
            UsageError: there is no such order, or the list does not have what it takes.
        """
        queue = self._queue(order)
        answered = {}
        if reviewer:
            answered = self.file.read().answers.get(_name(reviewer), {})
        latest = list(reversed(answered))
        earlier = []
        for pair, place in zip(latest, self.candidates.places(latest).tolist(), strict=True):
            if place >= 0 and len(earlier) < AT_ONCE:
                earlier.append(self._shown(place) | {"answer": answered[pair]})
        candidates = [self._shown(place) for place in queue.upcoming(answered, AT_ONCE)]
        return {"candidates": candidates, "given": earlier, "progress": self.progress(reviewer)}

    def answer(self, order: str, reviewer: str, place: int, answer: str) -> dict[str, Any]:
        """Write an answer, one of `itrpipe.datasets.decisions.ANSWERS`, and return the progress.

        Raises:
            UsageError: there is no such candidate or order.
        """
        if not 0 <= place < len(self.candidates):
            raise UsageError(f"candidate {place}: there are {len(self.candidates):,}")
        queue = self._queue(order)
        with self._lock:
            self.file.add([queue.judgement(place, _name(reviewer), answer)])
        return self.progress(reviewer)

    def progress(self, reviewer: str) -> dict[str, Any]:
        """Return how much a reviewer has judged, and what all answers tell."""
        decisions = self.file.read()
        places = self.candidates.places(decisions.answers.get(reviewer, {}))
        agreed = []
        for names, agreement in agreements(decisions).items():
            if reviewer in names:
                (other,) = set(names) - {reviewer}
                agreed.append({"with": other, **agreement._asdict()})
        return {
            "judged": int((places >= 0).sum()),
            "pairs": len(self.candidates),
            "agreements": agreed,
            **findings(self.candidates, decisions),
        }

    def _shown(self, place: int) -> dict[str, Any]:
        candidates = self.candidates
        image_row = candidates.pairs.image_rows[place]
        caption_row = candidates.pairs.caption_rows[place]
        image_id, caption_id = candidates.ids(place)
        own_image = candidates.image_ids[candidates.owners[caption_row]]
        own_captions = candidates.caption_ids[candidates.owners == image_row]
        probability = None
        if candidates.probability is not None:
            probability = float(candidates.probability[place])
        return {
            "place": place,
            "image": image_id,
            "caption": self._texts[caption_id],
            "own_captions": [self._texts[str(caption)] for caption in own_captions],
            "own_image": str(own_image),
            "rank": int(candidates.ranks[place]),
            "score": float(candidates.scores[place]),
            "probability": probability,
        }


def _name(reviewer: str) -> str:
    """Return the name of a reviewer without blanks around it.

    Raises:
        UsageError: it is empty or too long.
    """
    name = reviewer.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"reviewer {name[:LONGEST_NAME]!r}: give a name of 1 to {LONGEST_NAME} printable characters")
    return name


@dataclass
class Site:
    """The pages that are served.

    Attributes:
        searches: where is searched.
        pictures: the photographs.
        reviews: what is judged; None of photographs without captions.
    """

    searches: Searches
    pictures: Pictures
    reviews: Reviews | None = None

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self._search),
            Route("/api/search", self._answers),
            Route("/api/photographs", self._upload, methods=["POST"]),
            Route("/pictures/{side:int}/{image_id:path}", self._picture),
            Route("/favicon.ico", lambda request: Response(status_code=204)),
            Route("/base.css", lambda request: FileResponse(STYLE, media_type="text/css")),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]
        if self.reviews is not None:
            routes += [
                Route("/review", self._review),
                Route("/api/review", self._upcoming),
                Route("/api/review", self._answer, methods=["POST"]),
            ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=own_pages_only)],
            exception_handlers={ItrpipeError: _in_one_line, ClientDisconnect: _in_one_line},
        )

    def _page(self, name: str, **values: Any) -> Response:
        gallery = self.searches.gallery
        pages = {"Search": "/"}
        if self.reviews is not None:
            pages["Review"] = "/review"
        template = page_environment(HERE).get_template(f"{name}.html.j2")
        page = template.render(
            title=name.capitalize(),
            script=name,
            about=Path(gallery.about).name,
            model=gallery.model.label,
            pages=pages,
            **values,
        )
        return HTMLResponse(page)

    def _search(self, request: Request) -> Response:
        proposals = []  # sentences to begin with: captions of images that are shown first
        for answer in self.searches.ranked("", "", 0, 3)["answers"]:
            if answer["captions"]:
                proposals.append(min(answer["captions"], key=len))
        compares = self.searches.gallery.compares_images
        return self._page("search", compares=compares, proposals=proposals or _PROPOSALS)

    def _answers(self, request: Request) -> Response:
        parameters = request.query_params
        kind = value = ""
        for name in ("q", "like", "photograph"):
            value = parameters.get(name, "").strip()
            if value:
                kind = name
                break
        try:
            start = int(parameters.get("start", "0"))
            count = int(parameters.get("count", "0"))
        except ValueError:
            raise HTTPException(400, "start and count are numbers") from None
        return JSONResponse(self.searches.ranked(kind, value, start, count))

    async def _upload(self, request: Request) -> Response:
        content = await _body(request, LARGEST_PHOTOGRAPH)
        key = await run_in_threadpool(self.searches.add, content)
        return JSONResponse({"photograph": key})

    def _review(self, request: Request) -> Response:
        reviews = self.reviews
        assert reviews is not None
        reviewers = list(reviews.file.read().answers)
        return self._page("review", orders=reviews.orders, reviewers=reviewers, file=reviews.file.path.name)

    def _upcoming(self, request: Request) -> Response:
        assert self.reviews is not None
        order = request.query_params.get("order", "")
        reviewer = request.query_params.get("reviewer", "")
        return JSONResponse(self.reviews.shown(order, reviewer))

    async def _answer(self, request: Request) -> Response:
        assert self.reviews is not None
        content = await _body(request, LONGEST_BODY)
        try:
            posted = Posted.model_validate_json(content)
        except ValidationError:
            raise HTTPException(400, "no JSON object with order, reviewer, place and answer") from None
        progress = await run_in_threadpool(self.reviews.answer, **dict(posted))
        return JSONResponse(progress)

    def _picture(self, request: Request) -> Response:
        side = request.path_params["side"]
        image_id = request.path_params["image_id"]
        if side not in SIDES or image_id not in self.pictures.files:
            return PlainTextResponse("there is no such picture", 404)
        _, digest = self.pictures.files[image_id]
        etag = f'"{digest}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        picture = self.pictures.small(image_id, side)
        return Response(picture, media_type="image/jpeg", headers={"ETag": etag})


async def _in_one_line(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _body(request: Request, most: int) -> bytes:
    """Read the body of a request.

    Raises:
        HTTPException: it is too long.
    """
    parts = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length > most:
            raise HTTPException(413, f"more than {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


def run(site: Site, port: int, browser: bool, say: Callable[[str], object]) -> None:
    """Listen until it is interrupted.

    Args:
        site: what is served.
        port: 0 takes any that is free.
        browser: open the pages in a browser.
        say: is told the address.

    Raises:
        UnavailableError: the port is taken.
    """
    with listening(port) as sock:
        address = f"http://{HOST}:{sock.getsockname()[1]}/"
        say(f"{address}  (Ctrl-C ends it)")
        if browser:
            threading.Timer(0.5, webbrowser.open, (address,)).start()
        with contextlib.suppress(KeyboardInterrupt):
            server_of(site).run(sockets=[sock])


def server_of(site: Site) -> uvicorn.Server:
    """Return the server that answers the requests of a socket."""
    config = uvicorn.Config(
        site.app(),
        http=Connection,
        ws="none",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        backlog=MOST_CONNECTIONS // 2,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Open a socket that listens on this machine, so that who comes before the server has begun waits for it.

    Raises:
        UnavailableError: the port is taken.
    """
    # Of a socket that does not name its protocol, asyncio leaves answers in two packets, 40 ms apart.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
            sock.listen()
        except OSError as error:
            raise UnavailableError(
                f"--port {port}: {HOST} cannot be listened at ({error.strerror}); name another --port"
            ) from None
        yield sock
