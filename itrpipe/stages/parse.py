"""The stage of `itrpipe parse`: the scene graph of every caption, by rules or from a file made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.scene_graph.settings import ParseSettings, parser_version
from itrpipe.scene_graph.words import MOST_LETTERS, MOST_WORDS, parsed_part
from itrpipe.stages.base import Job, Need, Stage, prepare_need
from itrpipe.storage.artifact import DigestCache

if TYPE_CHECKING:
    import pyarrow as pa


LIMIT = f"{MOST_WORDS} words or a word of more than {MOST_LETTERS} letters"


class ParseStage(Stage):
    """Finds the scene graph of every caption."""

    settings = ParseSettings

    def label(self, conf: str, settings: ParseSettings) -> str:
        """Return the configuration's name, or `foreign` for graphs from a file, with the tagger."""
        if settings.file:
            conf = "foreign"
        return f"{conf}.{settings.tagger}"

    def needs(self, settings: ParseSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the captions."""
        return {"prepare": prepare_need(definition)}

    def sources(
        self, settings: ParseSettings, definition: StageDefinition | None, cache: DigestCache
    ) -> dict[str, str]:
        """Return the parser's version, because another version may give other graphs, and the digest of a file.

        Raises:
            MissingInputError: the tagger is not installed, or the file is not there.
        """
        version = parser_version(settings.tagger, settings.file)
        return {"parser": version, **super().sources(settings, definition, cache)}

    def run(self, job: Job) -> None:
        """Write scene_graphs.parquet."""
        import numpy as np
        import pyarrow as pa

        from itrpipe.datasets.prepared import PreparedDataset
        from itrpipe.scene_graph.build import Parsing, RulesParser, parsed_row_groups
        from itrpipe.scene_graph.foreign import read_foreign
        from itrpipe.scene_graph.graph import Item
        from itrpipe.scene_graph.stored import ELEMENTS, SCENE_GRAPHS_FILE, flattened, write_graphs

        prepared = PreparedDataset.open(job.inputs["prepare"].folder)
        captions = pa.concat_tables([prepared.split(name).captions for name in prepared.splits])
        texts = captions["text"].to_pylist()
        if job.settings.file:
            file = Path(job.settings.file).expanduser()
            items = read_foreign(file, captions["caption_id"].to_pylist(), texts)
        else:
            items = [Item(text) for text in texts]
        distinct: dict[Item, int] = {}
        for item in items:
            distinct.setdefault(item, len(distinct))
        made = job.made(Parsing(list(distinct), partial(RulesParser, job.settings.tagger)))
        if made.rows:
            job.metrics["captions/s"] = round(made.rows / made.seconds, 1)
        rows = np.fromiter((distinct[item] for item in items), dtype=np.int64, count=len(items))
        counts = Counter(cut=sum(parsed_part(text) != text for text in texts))

        def counted() -> Iterator[pa.Table]:
            for table in parsed_row_groups(made.paths, captions, rows):
                for name in ELEMENTS:
                    lengths = flattened(table, name)[0].counts
                    counts[name] += int(lengths.sum())
                    if name == "objects":
                        counts["empty"] += int((lengths == 0).sum())
                counts.update(table["status"].to_pylist())
                yield table

        write_graphs(job.folder / SCENE_GRAPHS_FILE, counted())
        total = len(items)
        job.metrics["captions"] = total
        job.metrics["distinct"] = len(distinct)
        for name in ELEMENTS:
            job.metrics[f"{name}/caption"] = round(counts[name] / total, 3)
        for name in ("empty", "partial", "failed"):
            job.metrics[f"{name} %"] = round(100 * counts[name] / total, 3)
        if counts["cut"]:
            have = "caption has" if counts["cut"] == 1 else "captions have"
            job.warn(f"{counts['cut']:,} {have} more than {LIMIT}; only what comes before is parsed")
        if counts["failed"]:
            job.warn(f"{quantity(counts['failed'], 'caption')} could not be analysed, with empty graphs")


def print_graph(settings: Any, text: str, reporter: Reporter) -> None:
    """Print the graph of one caption as a tree.

    Args:
        settings: of the parser.
        text: the caption.
        reporter: prints.

    Raises:
        UsageError: the graphs come out of a file.
        MissingInputError: the tagger is not installed.
    """
    from itrpipe.scene_graph.build import graph_tree, parse_captions

    reporter.console.print(graph_tree(parse_captions(settings, [text])[0]))
    if parsed_part(text) != text:
        reporter.say(f"warning: the caption has more than {LIMIT}; only what comes before is parsed", style="yellow")
