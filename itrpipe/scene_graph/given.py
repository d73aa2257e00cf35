"""Scene graphs of captions that belong to no dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from itrpipe.errors import UsageError
from itrpipe.scene_graph.declaration import ParseSettings

if TYPE_CHECKING:
    from itrpipe.scene_graph.graph import SceneGraph


def parse_captions(settings: ParseSettings, captions: Sequence[str]) -> list[SceneGraph]:
    """The graphs of captions.

    Args:
        settings: of the parser.
        captions: any, as Unicode.

    Raises:
        UsageError: the graphs come out of a file.
        MissingInputError: the tagger is not installed.
    """
    from itrpipe.scene_graph.parsing import Item

    if settings.file:
        raise UsageError("graphs out of a file belong to the captions of a dataset; leave out --from")
    settings.version()
    parser = settings.parser()
    return [parser.parse(Item(caption)) for caption in captions]
