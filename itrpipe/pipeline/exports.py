"""Name the artifacts behind an export, and its card."""

from __future__ import annotations

from itrpipe.stages.base import Artifact

CARD = "README.md"


def fingerprints_of(read: Artifact, *made: Artifact) -> dict[str, str]:
    """Return artifact -> fingerprint of all that one artifact was made from, and of some others."""
    found = {f"{each.stage}/{each.name}": each.fingerprint for each in read.manifest.inputs.values()}
    return found | {f"{each.manifest.stage}/{each.folder.name}": each.manifest.fingerprint for each in made}
