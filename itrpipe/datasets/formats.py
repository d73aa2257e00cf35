"""One way to read a dataset of any format: the stem of a reader's file is the name of its format."""

from __future__ import annotations

import difflib
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

from itrpipe.datasets.caption_check import check_annotations
from itrpipe.datasets.hash_split import DEFAULT_FRACTIONS, Fractions
from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.errors import MissingInputError, UsageError

FORMATS = ("caption_table", "coco_captions", "flickr_tokens", "karpathy")


def read_annotations(
    source: Path,
    format: str | None = None,
    *,
    restval: str = "train",
    split_fractions: Fractions = DEFAULT_FRACTIONS,
    split_seed: int = 0,
) -> NotedAnnotations:
    """Read a dataset and check that its images and captions fit together.

    A reader gets the settings that its `read` has parameters for: `restval` matters to Karpathy's files alone,
    the split to formats whose files may come without one.

    Args:
        source: file or folder.
        format: one of `FORMATS`; None tries which of them recognises the source.
        restval: see `karpathy.read`.
        split_fractions: see `caption_table.read`.
        split_seed: see `caption_table.read`.

    Returns:
        Images and captions in the order of the source, and what the user has to know in `notes`.

    Raises:
        MissingInputError: the source is not there, or no format recognises it.
        UsageError: unknown format, or several recognise the source.
        DataError: see the readers and `caption_check.check_annotations`.
    """
    if not source.exists():
        raise MissingInputError(f"{source}: is not there; name a caption file or the folder that holds it")
    module = format_module(format if format is not None else recognise(source))
    settings = {"restval": restval, "split_fractions": split_fractions, "split_seed": split_seed}
    parameters = inspect.signature(module.read).parameters
    annotations = module.read(source, **{key: value for key, value in settings.items() if key in parameters})
    return check_annotations(annotations, source)


_TABLES = (".csv", ".tsv", ".jsonl")
_PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".webp")


def recognise(source: Path) -> str:
    """Return the name of the one format that recognises the source.

    Raises:
        MissingInputError: none does; the message lists what each looks for.
        UsageError: several do; the message names them.
    """
    names = [name for name in FORMATS if format_module(name).recognises(source)]
    if not names:
        if table := _table_of_another_name(source):
            raise MissingInputError(
                f"{table}: a table of captions is called captions{table.suffix} and lies beside the photographs or "
                "above their folder images/; rename it, or move it there"
            )
        if photograph := _photograph_in(source):
            raise MissingInputError(
                f"{source}: holds photographs, such as {photograph.name}, and no captions; write captions.csv beside "
                "them, with the columns file and caption, or search without captions, with a model that is trained on "
                f"others: `itrpipe index --model NAME --photos {source}`"
            )
        looked = "; ".join(f"{name}: {format_module(name).LOOKED_FOR}" for name in FORMATS)
        raise MissingInputError(f"{source}: no known dataset format; looked for {looked}")
    if len(names) > 1:
        raise UsageError(f"{source}: could be {' or '.join(names)}; say which with the setting format")
    return names[0]


def _photograph_in(source: Path) -> Path | None:
    found = source.iterdir() if source.is_dir() else ()
    return next((path for path in found if path.suffix.lower() in _PHOTOGRAPHS), None)


def format_module(name: str) -> ModuleType:
    """Return the reader of a format: a module with `read`, `recognises` and `LOOKED_FOR`.

    Raises:
        UsageError: there is no such format.
    """
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"unknown dataset format {name!r}; there are {', '.join(FORMATS)}{hint}")
    return import_module(f"itrpipe.datasets.{name}")


def _table_of_another_name(source: Path) -> Path | None:
    """A table that may be one of captions, itself or the only one in a folder."""
    found = [source] if source.is_file() else sorted(source.iterdir())
    tables = [path for path in found if path.suffix in _TABLES and path.is_file()]
    return tables[0] if len(tables) == 1 else None
