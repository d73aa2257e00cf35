"""Name the artifacts behind an export, and its card."""

from itrpipe.stages.base import Artifact

CARD = "README.md"


def fingerprints_of(first: Artifact, *others: Artifact) -> dict[str, str]:
    """Return artifact -> fingerprint of some artifacts, and of the inputs of the first one."""
    fingerprints = {}
    for read in first.manifest.inputs.values():
        fingerprints[f"{read.stage}/{read.name}"] = read.fingerprint
    for artifact in (first, *others):
        fingerprints[f"{artifact.manifest.stage}/{artifact.folder.name}"] = artifact.manifest.fingerprint
    return fingerprints
