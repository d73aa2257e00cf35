"""Name the artifacts behind an export, and draw an example for its card."""

from collections.abc import Sequence
from pathlib import Path

from itrpipe.errors import MissingInputError
from itrpipe.stages.base import Artifact
from itrpipe.stages.prepare import image_root

CARD = "README.md"


def fingerprints_of(first: Artifact, *others: Artifact) -> dict[str, str]:
    """Return artifact -> fingerprint of some artifacts, and of all that the first one was made from."""
    found = {f"{each.stage}/{each.name}": each.fingerprint for each in first.manifest.inputs.values()}
    for each in (first, *others):
        found[f"{each.manifest.stage}/{each.folder.name}"] = each.manifest.fingerprint
    return found


def draw_example(work: Path, prepared: Artifact, files: Sequence[str]) -> bool:
    """Write small copies of photographs side by side into an export; tells whether all of them can be read."""
    from itrpipe.datasets.pictures import DECODER_ERRORS, read_image
    from itrpipe.exporting.card import write_picture
    from itrpipe.report.pictures import shrink

    try:
        root = image_root(prepared.folder)
        pictures = [shrink(read_image(root / file))[0] for file in files]
    except (MissingInputError, *DECODER_ERRORS):
        return False
    write_picture(work, pictures)
    return True
