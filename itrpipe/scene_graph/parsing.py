"""Parses captions in several processes, a chunk at a time, so that an interrupted run keeps the chunks it has."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from itrpipe.artifacts.disk import CHECKSUM, STAMP_HERE, check_stamp, stamped, write_bytes
from itrpipe.errors import ItrpipeError
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import Backend, SceneGraph, analyse
from itrpipe.scene_graph.stored import GRAPH_SCHEMA, graphs_table

CHUNK = 1024
OPEN_CHUNKS = 64


class Item(NamedTuple):
    """What a graph is made from.

    Attributes:
        text: the caption.
        given: its elements as another tool found them, as JSON; empty when they are to be found here.
    """

    text: str
    given: str = ""


class Parser(Protocol):
    """Makes graphs; equal items always have equal graphs.

    Attributes:
        version: what a graph depends on beside the item.
    """

    version: str

    def parse(self, item: Item) -> SceneGraph:
        """The graph of one caption."""
        ...


class BackendParser:
    """A parser that extracts graphs from the links that a backend finds."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.version = backend.version

    def parse(self, item: Item) -> SceneGraph:
        """The graph of one caption."""
        return extract_graph(item.text, analyse(self._backend, item.text))


class Parts:
    """The graphs of many items, in one Arrow file per chunk of `CHUNK`.

    Args:
        folder: exists; a file in it is whole, and a chunk that has one is not parsed again.
        items: all different.

    Raises:
        DataError: from `take`, when a file is not as it was written.
    """

    def __init__(self, folder: Path, items: Sequence[Item]) -> None:
        self.folder = folder
        self.items = items
        self._open = lru_cache(maxsize=OPEN_CHUNKS)(self._read)

    def pending(self) -> list[int]:
        """Numbers of the chunks that are still to be parsed."""
        return [number for number in range(-(-len(self.items) // CHUNK)) if not self.path(number).exists()]

    def path(self, number: int) -> Path:
        """File of a chunk."""
        return self.folder / f"{number:06}.arrow"

    def chunk(self, number: int) -> Sequence[Item]:
        """Items of a chunk."""
        return self.items[number * CHUNK : (number + 1) * CHUNK]

    def take(self, rows: np.ndarray) -> pa.Table:
        """Graphs of some items in the order asked for, as rows of `GRAPH_SCHEMA`.

        Args:
            rows: numbers of items, int64, at least one.
        """
        order = np.argsort(rows, kind="stable")
        chunks, starts = np.unique(rows[order] // CHUNK, return_index=True)
        tables = [
            self._open(int(number)).take(pa.array(rows[own] % CHUNK))
            for number, own in zip(chunks, np.split(order, starts[1:]), strict=True)
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables(tables).combine_chunks().take(pa.array(back))

    def _read(self, number: int) -> pa.Table:
        path = self.path(number)
        check_stamp(path, "remove it and run the same command again", path.read_bytes())
        # Mapped, so that the pages of a chunk that is not looked at cost no memory.
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all().replace_schema_metadata(None)


def parse_pending(
    parts: Parts, build: Callable[[], Parser], workers: int, on_done: Callable[[int], None] = lambda count: None
) -> None:
    """Parses every pending chunk and writes its file.

    Args:
        parts: what is to be parsed, and where to.
        build: makes the parser; called once in every process, so it can be pickled.
        workers: processes; 1 parses in this one. The bytes are the same for any number.
        on_done: called with the number of captions of every chunk that is done.

    Raises:
        ItrpipeError: a process died.
        DiskFullError: no space is left.
    """
    pending = parts.pending()
    if not pending:
        return
    if min(workers, len(pending)) == 1:
        parser = build()
        for number in pending:
            on_done(_parse_chunk(parser, parts.path(number), parts.chunk(number)))
        return
    with _pool(min(workers, len(pending)), build) as pool:
        tasks = [pool.submit(_parse_in_worker, parts.path(number), parts.chunk(number)) for number in pending]
        for task in as_completed(tasks):
            on_done(task.result())


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parse_chunk(parser: Parser, path: Path, items: Sequence[Item]) -> int:
    graphs = [_parse_noted(parser, item) for item in items]
    sink = pa.BufferOutputStream()
    schema = GRAPH_SCHEMA.with_metadata({CHECKSUM: STAMP_HERE})
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(graphs_table(graphs, parser.version).cast(schema))
    write_bytes(path, stamped(sink.getvalue().to_pybytes()))
    return len(items)


def _parse_noted(parser: Parser, item: Item) -> SceneGraph:
    try:
        return parser.parse(item)
    except Exception as error:
        error.add_note(f"while parsing the caption {item.text!r}")
        raise


@contextmanager
def _pool(workers: int, build: Callable[[], Parser]) -> Iterator[ProcessPoolExecutor]:
    # Spawned, not forked: this process may run threads of Arrow, which a fork would leave without their owners.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin_worker, initargs=(build,))
    try:
        yield pool
    except BrokenProcessPool:
        raise ItrpipeError(
            "a parsing process died, perhaps for lack of memory; run the same command again, it goes on where it "
            "stopped, and with --set workers=1 takes least memory"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_build: Callable[[], Parser] | None = None
_parser: Parser | None = None


def _begin_worker(build: Callable[[], Parser]) -> None:
    global _build
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one stops it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _build = build


def _end_with_parent() -> None:
    """A killed parent closes no queue, so its workers would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _parse_in_worker(path: Path, items: Sequence[Item]) -> int:
    global _parser
    if _parser is None:  # not made when the process begins: an error there would reach nobody
        assert _build is not None
        _parser = _build()
    return _parse_chunk(_parser, path, items)
