"""Index photographs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from itrpipe.cli.asked import data_option, refuse_incomplete
from itrpipe.cli.help import command
from itrpipe.cli.options import (
    AnyModelOptions,
)
from itrpipe.cli.photographs import up_to_date

if TYPE_CHECKING:
    pass


@command()
def index(
    given: AnyModelOptions, photos: Path = Option(..., "--photos", metavar="FOLDER", help="Folder of photographs.")
) -> None:
    """Embed all photographs below a folder, for search --photos.

    The model is a named one, which is trained if it is missing, the folder of one (of itrpipe export or train, or a
    CLIP or SigLIP of transformers), or the hub id of a CLIP or SigLIP.

    The same command again encodes new and changed photographs only, and goes on where it was interrupted. Photographs
    that cannot be read are listed and left out. The folder itself stays as it is; the index lies in the data folder.

    Example: itrpipe index --photos photos --model openai/clip-vit-base-patch32
    """
    if found := up_to_date(given, photos, whole=True):
        found.reporter.say(str(found.folder))
        place = f"--photos {shlex.quote(str(photos))}{data_option(given.data)}"
        found.reporter.say(f"next: itrpipe search 'a dog on a beach' {place}")
        refuse_incomplete(found.folder, "photograph", "what is replaced is read by the next run")
