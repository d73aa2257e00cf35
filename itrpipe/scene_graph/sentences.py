"""Scene graphs of written sentences, for models that read phrases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.errors import UsageError
from itrpipe.progress import Reporter
from itrpipe.scene_graph.declaration import ParseSettings
from itrpipe.storage.artifact import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

    from itrpipe.scene_graph.parsing import ParsedGraphs


class SentenceParser:
    """Parses sentences as the captions of a dataset were parsed.

    Args:
        captions, manifest: artifact of `parse`.
        work: folder for what is parsed; an interrupted run goes on with it.
        reporter: shows the progress.

    Raises:
        UsageError: the graphs of the captions came out of a file, or another version of the parser made them.
        MissingInputError: the parser is not installed.
    """

    def __init__(self, captions: Path, manifest: Manifest, work: Path, reporter: Reporter) -> None:
        settings = ParseSettings.recorded(manifest.settings)
        if settings.file:
            raise UsageError(
                f"{captions} holds graphs out of a file, and written sentences are in none; evaluate without "
                "--discriminate and --benchmark, or a model trained on graphs of `itrpipe parse` without --from"
            )
        if (version := settings.version()) != (before := manifest.sources["parser"]):
            raise UsageError(
                f"{captions} was made by the parser {before}, and this is {version}; train the model again, or "
                "evaluate without --discriminate and --benchmark"
            )
        self._settings, self._work, self._reporter = settings, work, reporter

    def __call__(self, sentences: pa.Table) -> Path:
        """Writes the graphs of sentences with caption_id, image_id and text, and returns the folder of the file."""
        from itrpipe.scene_graph.parsing import Item, ParsedGraphs, Parsing
        from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, write_graphs

        texts = list(dict.fromkeys(sentences["text"].to_pylist()))
        folder = self._work / hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        work = Parsing([Item(text) for text in texts], self._settings.parser)
        made = make_parts(work, folder / "parts", MapExecution(), self._reporter, self._reporter.say)
        write_graphs(folder / SCENE_GRAPHS_FILE, _row_groups(sentences, texts, ParsedGraphs(made.paths)))
        return folder


def _row_groups(sentences: pa.Table, texts: list[str], graphs: ParsedGraphs) -> Iterator[pa.Table]:
    """Rows of a file of scene graphs; `graphs` has one for each of the texts."""
    import numpy as np
    import pyarrow as pa

    from itrpipe.scene_graph.stored import ROW_GROUP, SCHEMA

    place = {text: row for row, text in enumerate(texts)}
    for start in range(0, len(sentences), ROW_GROUP):
        own = sentences.slice(start, ROW_GROUP).combine_chunks()
        found = graphs.take(np.array([place[text] for text in own["text"].to_pylist()], dtype=np.int64))
        yield pa.Table.from_arrays([own["caption_id"], own["image_id"], *found.columns], schema=SCHEMA)
