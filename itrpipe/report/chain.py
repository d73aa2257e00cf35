"""The chain behind an evaluation: every artifact it was made from.

A manifest names its inputs, and artifacts of one dataset are siblings, so the chain is followed from folder to
folder. An artifact that was removed since stays in the chain as a name without content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError
from itrpipe.exporting.places import command_without_places
from itrpipe.storage.artifact import STATISTICS, Manifest, check_artifact, open_artifact, read_manifest
from itrpipe.storage.disk import read_json


@dataclass(frozen=True)
class ChainArtifact:
    """One link of the chain.

    Attributes:
        stage, name, fingerprint: as the manifest of what was made from it says.
        folder: where it lies or lay.
        manifest: None when the folder was removed, or made again with another result.
        manifests: folder -> its manifest, or None where there is no folder. Artifacts that share it look at the files
            of each folder once.
    """

    stage: str
    name: str
    fingerprint: str
    folder: Path
    manifest: Manifest | None
    manifests: dict[Path, Manifest | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def path(self) -> str:
        """Return stage and name, as messages write it."""
        return f"{self.stage}/{self.name}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that it was made with; none when it was removed."""
        return {} if self.manifest is None else self.manifest.settings

    @cached_property
    def opened(self) -> Path:
        """Return the folder, once its files are as its manifest says.

        Raises:
            DataError: one of them is damaged.
        """
        open_artifact(self.folder)
        return self.folder

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Return what a mining or a generator wrote about its result.

        Raises:
            DataError: a file of it is damaged.
        """
        return read_json(self.opened / STATISTICS)

    @cached_property
    def inputs(self) -> dict[str, ChainArtifact]:
        """Return the artifacts that it was made from, by the names of its inputs; none where it was removed.

        Raises:
            DataError: one is damaged, or its folder holds another artifact.
        """
        inputs = {}
        if self.manifest is None:
            return inputs
        for name, record in self.manifest.inputs.items():
            folder = self.folder.parent.parent / record.stage / record.name
            if folder not in self.manifests:
                self.manifests[folder] = check_artifact(folder) if folder.exists() else None
            manifest = self.manifests[folder]
            if manifest is not None and record.digest and manifest.digest != record.digest:
                manifest = None  # made again since: it tells nothing about what was read
            if manifest is not None and manifest.fingerprint != record.fingerprint:
                raise DataError(f"{folder} is another artifact than {self.path} was made from; remove it and rerun")
            inputs[name] = ChainArtifact(
                record.stage,
                record.name,
                record.fingerprint,
                folder,
                manifest,
                self.manifests,
            )
        return inputs

    def chain(self) -> Iterator[ChainArtifact]:
        """Yield everything this was made from, then itself; an artifact read twice comes twice."""
        for upstream in self.inputs.values():
            yield from upstream.chain()
        yield self


def commands_of(artifacts: Iterable[ChainArtifact]) -> list[str]:
    """Return the command lines that made artifacts, each once, in the order in which they finished, without places."""
    manifests = [artifact.manifest for artifact in artifacts if artifact.manifest is not None]
    manifests.sort(key=lambda manifest: manifest.finished)
    return list(dict.fromkeys(command_without_places(manifest.command) for manifest in manifests))


def commands_behind(folders: Iterable[Path]) -> list[str]:
    """Return the command lines that made artifacts and all that these were made from and is still there."""
    artifacts = []
    for folder in folders:
        manifest = read_manifest(folder)
        artifacts += ChainArtifact(
            manifest.stage,
            folder.name,
            manifest.fingerprint,
            folder,
            manifest,
        ).chain()
    return commands_of(artifacts)
