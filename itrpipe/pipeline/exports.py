"""Name the artifacts behind an export, and its card."""

from itrpipe.stages.base import Artifact

CARD = "README.md"


def fingerprints_of(first: Artifact, *others: Artifact) -> dict[str, str]:
    """Return artifact -> fingerprint of some artifacts, and of all that the first one was made from."""
    found = {f"{each.stage}/{each.name}": each.fingerprint for each in first.manifest.inputs.values()}
    for each in (first, *others):
        found[f"{each.manifest.stage}/{each.folder.name}"] = each.manifest.fingerprint
    return found
