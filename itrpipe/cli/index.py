"""Index photographs."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.asked import data_option, refuse_incomplete
from itrpipe.cli.options import AnyModelOptions
from itrpipe.cli.photographs import up_to_date


@dataclass(kw_only=True)
class Index(AnyModelOptions):
    """Embed all photographs below a folder, for search --photos.

    The model is a named one, which is trained if it is missing, the folder of one (of itrpipe export or train, or a
    CLIP or SigLIP of transformers), or the hub id of a CLIP or SigLIP.

    The same command again encodes new and changed photographs only, and goes on where it was interrupted. Photographs
    that cannot be read are listed and left out. The folder itself stays as it is; the index lies in the data folder.

    Example: itrpipe index --photos photos --model openai/clip-vit-base-patch32
    """

    photos: Annotated[Path, Option(metavar="FOLDER", help="Folder of photographs.")]

    def run(self) -> None:
        index = up_to_date(self, self.photos, whole=True)
        if index is None:
            return
        index.reporter.say(str(index.folder))
        place = f"--photos {shlex.quote(str(self.photos))}{data_option(self.data)}"
        index.reporter.say(f"next: itrpipe search 'a dog on a beach' {place}")
        refuse_incomplete(index.folder, "photograph", "what is replaced is read by the next run")
