"""Scene graphs of captions that belong to no dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from itrpipe.errors import UsageError
from itrpipe.scene_graph.declaration import BackendSettings, ForeignSettings

if TYPE_CHECKING:
    from itrpipe.scene_graph.graph import SceneGraph


def parse_captions(settings: BackendSettings, captions: Sequence[str]) -> list[SceneGraph]:
    """The graphs of captions.

    Args:
        settings: of the parser.
        captions: any, as Unicode.

    Raises:
        UsageError: the graphs come out of a file.
        MissingInputError: the backend is not installed.
    """
    from itrpipe.scene_graph.parsing import Item

    if isinstance(settings, ForeignSettings):
        raise UsageError("graphs out of a file belong to the captions of a dataset; choose a backend that parses")
    settings.version()
    parser = settings.parser()
    return [parser.parse(Item(caption)) for caption in captions]
