"""Extract or import the features of a dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.asked import place_of, remembered
from itrpipe.cli.options import DeviceOption, File, PartOption, RunOptions, Text, Texts
from itrpipe.config import kind_of, load_declaration, unknown
from itrpipe.datasets.definition import StageDefinition, check_name, load_definition
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
        definition, named = load_definition(*self.where), self.name is not None
        features, name = self.features, self.name
        if features is None and self.source is None and name in definition.features:
            features = name
        if self.source is not None:
            place = place_of("--from", self.source)
            defined = StageDefinition(conf=_importer_of(self.source, features), source=place)
        elif features is None or (features in definition.features and name in (None, features)):
            name = features or definition.default_features(self.dataset)
            defined = definition.features[name]
        else:
            extractors, parts = load_declaration("extract").confs, features.split("+")
            for part in parts:
                if part not in extractors:
                    raise UsageError(unknown("extractor", part, extractors))
                if part in _importers():
                    raise MissingInputError(f"--features {part} imports files; name them with --from PATH")
            if len(set(parts)) < len(parts):
                raise UsageError(f"--features {features} names an extractor twice; name each once")
            defined = StageDefinition(conf=features)
        name = check_name(name or defined.conf)
        known = definition.features.get(name)
        stage, overrides = remembered("extract", defined, known, overrides)
        readers = []
        if not named and stage != known:
            for trained, model in definition.named_trainings().items():
                folder = self.data / self.dataset / "train" / trained
                read = read_manifest(folder).inputs.get("extract") if folder.is_dir() else None
                if read is not None and read.name.rpartition("-")[0] == name:
                    readers.append(model)
        if readers:
            raise UsageError(
                f"features {name} would change, and model {', '.join(readers)} was trained on them; add --name NAME "
                f"for further features, or --name {name} to replace these"
            )
        return self.run_stage("extract", overrides, conf=name, definition=definition.adding(features={name: stage}))


def _importer_of(source: Path, features: str | None) -> str:
    """Find the importer that reads `source`: as named, else the only one whose layout is there or complete."""
    known = _importers()
    if features is not None:
        if features not in known:
            raise UsageError(f"--from imports files: {unknown('importer --features', features, known)}")
        return features
    found = {}
    for name, kind in known.items():
        layout = IMPORTERS.module(kind).layout(source)
        if layout is not None:
            found[name] = layout
    if not found:
        raise UsageError(
            f"--from {source} is of no format that is recognised; name one with --features {' | '.join(known)}"
        )
    if len(found) == 1:
        return next(iter(found))
    holds = f"--from {source} holds {' and '.join(f'{name} ({layout})' for name, layout in found.items())}"
    complete = [name for name, layout in found.items() if not layout.lacks]
    if len(complete) != 1:
        raise UsageError(f"{holds}; name one with --features {' | '.join(complete or found)}")
    Reporter().say(f"{holds}; {complete[0]} alone is complete and is imported")
    return complete[0]


def _importers() -> dict[str, str]:
    """Return the kind of every configuration of `extract` that imports features."""
    declaration, importers = load_declaration("extract"), {}
    for conf in declaration.confs:
        kind = kind_of(declaration, conf)
        if kind.replace("_", "-") in IMPORTERS.classes:
            importers[conf] = kind
    return importers
