"""Photographs without captions: index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.options import AnyModelOptions, taking


@app.command()
@taking(AnyModelOptions)
def index(
    given: AnyModelOptions,
    photos: Annotated[Path, typer.Option("--photos", metavar="FOLDER", help="Folder of photographs.")],
) -> None:
    """Embed all photographs below a folder, for search --photos.

    The model is a named one, which is trained if it is missing, the folder of one (of itrpipe export or train, or a
    CLIP or SigLIP of transformers), or the hub id of a CLIP or SigLIP.

    The same command again encodes new and changed photographs only, and goes on where it was interrupted. Photographs
    that cannot be read are listed and left out. The folder itself stays as it is; the index lies in the data folder.

    Example: itrpipe index --photos photos --model openai/clip-vit-base-patch32
    """
    from itrpipe.commands.index import index as index_photographs

    index_photographs(given.data, photos, given.asked, **given.how)
