"""Extract or import the features of a dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.options import DeviceOption, File, PartOption, RunOptions, Text, Texts
from itrpipe.cli.request import place_of, remembered
from itrpipe.config import kind_of, load_declaration, unknown
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import IMPORTERS
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import read_manifest


@dataclass
class Extract(RunOptions):
    """Write visual features of every image as features.h5.

    An extractor computes them from the images; several, joined as in frcnn+resnet, fill one file. An importer reads
    files that others have made: --from recognises it, --features names it.

    In a job array: --part 1/8 ... --part 8/8 on one file system; the job that makes the last part joins them all.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """

    strict: Annotated[bool, Option("--strict", help="Stop at the first image that cannot be used.")] = False
    ids: Annotated[File, Option(help="arrays: text file of image ids, one a line.")] = None
    device: DeviceOption = None
    part: PartOption = None
    features: Annotated[
        Text, Option("--features", "-f", help="Extractor or importer, several as A+B, or features' name.")
    ] = None
    source: Annotated[File, Option("--from", help="Import these files instead of extracting.")] = None
    name: Annotated[Text, Option(help="Name of the features, for several versions side by side.")] = None
    arrays: Annotated[Texts, Option("--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file.")] = None

    def run(self) -> Path:
        arrays = {}
        for text in self.arrays or ():
            dataset, equals, array = text.partition("=")
            if not (dataset and equals):
                raise UsageError(f"--map {text!r} is not of the form NAME=ARRAY, such as regions=features")
            if arrays.setdefault(f"map.{dataset}", array) != array:
                raise UsageError(f"--map gives {dataset} twice; name one array")
        overrides = self.overrides("strict", "ids", "device", "part", **arrays)
        definition = load_definition(*self.where)
        features = self.features
        name = self.name
        if features is None and self.source is None and name in definition.features:
            features = name
        if self.source is not None:
            place = place_of("--from", self.source)
            defined = StageDefinition(conf=_importer_of(self.source, features), source=place)
        elif features is None or (features in definition.features and name in (None, features)):
            name = features or definition.default_features(self.dataset)
            defined = definition.features[name]
        else:
            extractors = load_declaration("extract").confs
            parts = features.split("+")
            for part in parts:
                if part not in extractors:
                    raise UsageError(unknown("extractor", part, extractors))
                if part in _importers():
                    raise MissingInputError(f"--features {part} imports files; name them with --from PATH")
            if len(set(parts)) < len(parts):
                raise UsageError(f"--features {features} names an extractor twice; name each once")
            defined = StageDefinition(conf=features)
        name = check_name(name or defined.conf)
        before = definition.features.get(name)
        defined, overrides = remembered("extract", defined, before, overrides)
        if self.name is None and defined != before:
            self._refuse_change(name, definition)
        return self.run_stage("extract", overrides, conf=name, definition=definition.adding(features={name: defined}))

    def _refuse_change(self, name: str, definition: DatasetDefinition) -> None:
        """Refuse other features of a name if named models were trained on those that have it.

        Raises:
            UsageError: there are such models.
        """
        readers = []
        for trained, model in definition.named_trainings().items():
            folder = self.data / self.dataset / "train" / trained
            if not folder.is_dir():
                continue
            extracted = read_manifest(folder).inputs.get("extract")
            if extracted is not None and extracted.name.rpartition("-")[0] == name:
                readers.append(model)
        if readers:
            raise UsageError(
                f"features {name} would change, and model {', '.join(readers)} was trained on them; add --name NAME "
                f"for further features, or --name {name} to replace these"
            )


def _importer_of(source: Path, features: str | None) -> str:
    """Return the importer that reads `source`: the named one, else the only one with a layout, or a complete one."""
    importers = _importers()
    if features is not None:
        if features not in importers:
            raise UsageError(f"--from imports files: {unknown('importer --features', features, importers)}")
        return features
    layouts = {}
    for name, kind in importers.items():
        layout = IMPORTERS.module(kind).layout(source)
        if layout is not None:
            layouts[name] = layout
    if not layouts:
        raise UsageError(
            f"--from {source} is of no format that is recognised; name one with --features {' | '.join(importers)}"
        )
    if len(layouts) == 1:
        return next(iter(layouts))
    described = [f"{name} ({layout})" for name, layout in layouts.items()]
    holds = f"--from {source} holds {' and '.join(described)}"
    complete = [name for name, layout in layouts.items() if not layout.lacks]
    if len(complete) != 1:
        raise UsageError(f"{holds}; name one with --features {' | '.join(complete or layouts)}")
    Reporter().say(f"{holds}; {complete[0]} alone is complete and is imported")
    return complete[0]


def _importers() -> dict[str, str]:
    """Return the kind of every configuration of `extract` that imports features."""
    declaration = load_declaration("extract")
    importers = {}
    for conf in declaration.confs:
        kind = kind_of(declaration, conf)
        if kind.replace("_", "-") in IMPORTERS.classes:
            importers[conf] = kind
    return importers
