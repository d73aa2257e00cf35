"""Options that several commands share, each declared once.

Fields of these classes are options. What the class of one command adds is a setting of the stage that it runs, which
gets it under its name when it was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from itrpipe.cli.asked import Asked
from itrpipe.cli.datasets import ALONE, define_embeddings, given_files, whole_file
from itrpipe.cli.help import option
from itrpipe.cli.named import NamedModel, datasets_of, find_model
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.pipeline.planning import EVERYWHERE, Override, parse_override
from itrpipe.storage.integrity import trust_large_files

Text = str | None
Texts = list[str] | None
Number = int | None
File = Path | None
Measure = Literal["cosine", "inner-product", "order"]
Split = Literal["test", "val", "train"]


def _trust(trusted: bool) -> bool:
    trust_large_files(trusted)
    return trusted


DatasetOption = Annotated[
    str,
    typer.Option(
        "--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name of the dataset; not given: the only one there is."
    ),
]
# Whether it can be read is for the commands to say, with their own exit code.
DataOption = Annotated[
    Path, typer.Option("--data", envvar="ITRPIPE_DATA", help="Folder of all artifacts.", readable=False)
]
SetOption = Annotated[Texts, typer.Option("--set", "-s", metavar="[STAGE.]KEY=VALUE", help="A setting; repeatable.")]
MakeOption = Annotated[
    bool, typer.Option("--no-deps/--make", help="Fail where something upstream is missing, or make it.")
]
MethodOption = Annotated[str, typer.Option("--method", "-m", help="Training method; `itrpipe list methods` has all.")]
AddressOption = Annotated[Text, typer.Option("--address", help="Ray cluster, such as auto; default: this machine.")]
PartOption = Annotated[Text, typer.Option("--part", metavar="I/N", help="Make one of N shares; the last job joins.")]
DevicesOption = Annotated[Number, typer.Option("--devices", min=1, help="Processes that train together, one per GPU.")]
DecisionsOption = Annotated[File, typer.Option("--decisions", metavar="FILE", help="Judgements, see itrpipe review.")]
LanguageModelOption = Annotated[
    Text, typer.Option("--language-model", metavar="ID|FOLDER", callback=whole_file, help="GPT-2 for perplexity.")
]
GuardOption = Annotated[Text, typer.Option("--guard", help="fne: how likely each candidate is a false negative.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass
class DataOptions:
    """What every command takes that plans something."""

    settings: SetOption = None
    data: DataOption = Path("data")
    trust: bool = option(False, "--trust", "Read files of 4 MiB and more without hashing them first.", callback=_trust)
    dry_run: bool = option(False, "--dry-run", "Print the plan and what it will cost.")
    given: frozenset[str] = field(default=frozenset(), init=False)
    """Names of the options that were given."""

    def completed(self, given: frozenset[str]) -> Any:
        """The options, with the names of those that were given."""
        self.given = given
        return self


@dataclass
class PlanOptions(DataOptions):
    """The same for one dataset."""

    dataset: DatasetOption = EMBEDDED

    def completed(self, given: frozenset[str]) -> Any:
        """The options with which of them were given; where no dataset was, the only one of the data folder counts."""
        if "dataset" not in given and (known := self._datasets()):
            self.dataset = known[0] if len(known) == 1 else ""
        return super().completed(given)

    def _datasets(self) -> list[str]:
        """Datasets of the data folder that have captions."""
        return [name for name in datasets_of(self.data) if load_definition(self.data, name).prepare]

    @property
    def where(self) -> tuple[Path, str]:
        """The data folder and the dataset.

        Raises:
            UsageError: there are several, and none was named.
        """
        if not self.dataset:
            raise UsageError(f"{self.data} has datasets {', '.join(self._datasets())}; choose with --dataset")
        return self.data, self.dataset


@dataclass
class PlacedOptions(DataOptions):
    """What commands take beside that whose plan has parts."""

    workers: Number = option(None, "--workers", "Worker processes; 0 chooses automatically.", min=0)
    engine: Text = option(None, "--engine", "Where parts are made: local, or ray on a cluster.")
    address: AddressOption = None

    @property
    def placed(self) -> list[Override]:
        """Where every step makes its parts.

        Raises:
            UsageError: there is an address and no engine that has one.
        """
        if self.address and self.engine != "ray":
            raise UsageError(f"--address {self.address} is that of a Ray cluster; add --engine ray")
        named = {"workers": self.workers, "engine": self.engine, "address": self.address}
        return [Override(EVERYWHERE, key, value) for key, value in named.items() if value is not None]


@dataclass
class RunOptions(PlacedOptions, PlanOptions):
    """What commands take that run a stage of a dataset."""

    no_deps: MakeOption = False

    @property
    def how(self) -> dict[str, Any]:
        """What is done with the plan."""
        return {"dry_run": self.dry_run, "no_deps": self.no_deps}

    def told(self, *without: str) -> dict[str, Any]:
        """The settings that were given by options of their own."""
        shared = {each.name for each in fields(GivenOptions)} - {*_OF_TRAINING, "device"}
        own = [each.name for each in fields(self) if each.name not in {*shared, *without}]
        values = {name: _plain(getattr(self, name)) for name in own}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def overrides(self, *without: str, **more: Any) -> list[Override]:
        """What the options say of the requested step, `--set` assignments, and where parts are made.

        Args:
            without: settings that are not the step's.
            more: settings beside those of the options.
        """
        return overrides_of(self.settings, {**self.told(*without), **more}) + self.placed


def _plain(value: Any) -> Any:
    return str(value.resolve()) if isinstance(value, Path) else value


@dataclass
class TrainedOptions(RunOptions):
    """What commands take beside that where a trained model is used."""

    features: Text = option(None, "--features", "-f", "Features to read; default: the only ones.", metavar="NAME")
    seed: Number = option(None, "--seed", "Seed of training.")
    device: Text = option(None, "--device", "auto, cpu or cuda.")


_OF_TRAINING = ("method", "backbone", "features", "seed")
"""Options that say which model is trained."""


@dataclass
class ModelOptions(TrainedOptions):
    """What commands take beside that where the model has a method and a backbone."""

    named: Text = option(None, "--model", "A saved model (`itrpipe train --name NAME`).", metavar="NAME")
    method: MethodOption = "triplet"
    backbone: Text = option(None, "--backbone", "-b", "Model; `itrpipe list backbones` has all.")
    known: NamedModel | None = field(default=None, init=False)

    def overrides(self, *without: str, of_training: bool = False, **more: Any) -> list[Override]:
        """What a named model was told, and the options of this command on top.

        Args:
            without: settings that are not the step's.
            of_training: whether the requested step is the training itself.
            more: settings beside those of the options.
        """
        told = () if self.known is None else self.known.of_training() if of_training else self.known.of_reader()
        return [*told, *super().overrides(*without, *(["method"] if of_training else []), **more)]

    def asked(self, stage: str, *, as_json: bool = False, **more: Any) -> Asked:
        """What the command asks of a training, or of what a later stage makes with it."""
        self.choose()
        overrides = self.overrides(of_training=stage == "train", **more)
        return Asked(*self.where, overrides, as_json=as_json, asks=True, **self.how)

    def completed(self, given: frozenset[str]) -> Any:
        """The options with which of them were given, and with what the model of `--model` was told.

        Its dataset counts where no other was given.

        Raises:
            UsageError: there are several such models, or an option contradicts it.
            MissingInputError: there is none.
        """
        super().completed(given)
        if self.named is None:
            if is_given(self.backbone or "") and "method" not in given:
                self.method = GIVEN
            if self.method == GIVEN:
                self.backbone = self.backbone or GIVEN
            return self
        known = find_model(self.data, self.dataset if "dataset" in given else None, self.named)
        for name, own in (("method", known.method), ("backbone", known.backbone)):
            if name in given:
                raise UsageError(f"--model {self.named} has {name} {own}; leave --{name} out")
        return self._meaning(known)

    def choose(self) -> None:
        """Where no option names a model, takes the only one of the dataset that has a name.

        Raises:
            UsageError: several have one.
        """
        if self.named or self.given.intersection(_OF_TRAINING) or self.method != ModelOptions.method:
            return
        if len(models := load_definition(*self.where).models) > 1:
            raise UsageError(f"dataset {self.dataset} has models {', '.join(models)}; choose with --model")
        if models:
            ((self.named, model),) = models.items()
            self._meaning(NamedModel(self.named, self.dataset, model))

    def _meaning(self, known: NamedModel) -> Any:
        """The options with what a named model was told."""
        self.known = known
        naming = {key: value for key, value in known.naming.items() if key not in self.given}
        return self.naming(dataset=known.dataset, method=known.method, **naming)

    def naming(self, **model: Any) -> Any:
        """The options with another model."""
        for name, value in model.items():
            setattr(self, name, value)
        return self


@dataclass
class AskingOptions(ModelOptions):
    """The same for what asks a trained model, and trains none unless it is told to."""

    no_deps: MakeOption = True


@dataclass
class AnyModelOptions(ModelOptions):
    """The same where --model may also be the folder or hub id of a model, for photographs without captions."""

    def completed(self, given: frozenset[str]) -> Any:
        """The options as `ModelOptions` completes them; a folder or hub id stays in `named`, and `known` is None.

        Raises:
            UsageError, MissingInputError: likewise.
        """
        try:
            return super().completed(given)
        except MissingInputError:
            if self.named is None or not (Path(self.named).expanduser().is_dir() or "/" in self.named):
                raise
        for name in sorted(given.intersection(_OF_TRAINING)):
            raise UsageError(f"--model {self.named} is trained already; leave --{name} out")
        return self

    @property
    def opened(self) -> str | None:
        """The folder or hub id of a model."""
        return self.named if self.known is None else None

    @property
    def trained(self) -> bool:
        """Whether options name a training."""
        return self.known is not None or (self.opened is None and not self.given.isdisjoint(_OF_TRAINING))


@dataclass
class GivenOptions(ModelOptions):
    """What commands take beside that where embeddings from files may stand in the place of a trained model."""

    embeddings: File = option(None, "--embeddings", "Files of any model's embeddings.", metavar="IMAGES [CAPTIONS]")
    captions: Annotated[File, typer.Argument(metavar="CAPTIONS", help="With --embeddings: of the captions.")] = None
    owners: File = option(None, "--owners", "With --embeddings: row or id of each caption's image.", metavar="FILE")
    name: Text = option(None, "--name", "With --embeddings: for those of several models, NAME@1 for a seed.")
    measure: Measure | None = option(None, "--measure", "With --embeddings: cosine (default), inner-product or order.")

    def defined(self, split: str) -> DatasetDefinition | None:
        """What --embeddings defines, which the options name now; without it None, and the model is chosen.

        Args:
            split: that the files are of.

        Raises:
            UsageError: what belongs to --embeddings was given without it, or other options name a model too.
            ItrpipeError: see `define_embeddings`.
        """
        if self.embeddings is None:
            for name in ("captions", "owners", "name", "measure"):
                if (value := getattr(self, name)) is not None:
                    option = "" if name == "captions" else f"--{name} "
                    raise UsageError(f"{option}{value} belongs to --embeddings; add it, or leave this out")
            self.choose()
            return None
        for name in ("named", *_OF_TRAINING):
            if name in self.given:
                option = "model" if name == "named" else name
                raise UsageError(f"--{option} and --embeddings both name a model; leave one of them out")
        dataset = self.dataset if "dataset" in self.given else ALONE
        files = given_files(self.embeddings, self.captions, self.owners)
        definition, backbone = define_embeddings(self.data, dataset, split, files, self.name, self.measure)
        self.naming(dataset=dataset, method=GIVEN, backbone=backbone)
        return definition


def overrides_of(assignments: Iterable[str] | None, named: dict[str, Any]) -> list[Override]:
    """`--set` assignments and the named options that were given, as overrides of the requested step.

    Raises:
        UsageError: a setting is given twice with different values.
    """
    given = [Override(None, key, value) for key, value in named.items() if value is not None]
    overrides = [*given, *map(parse_override, assignments or [])]
    seen: dict[tuple, str] = {}
    for item in overrides:
        # By what they look like, because NaN is no number that equals itself.
        if seen.setdefault((item.scope, item.key), repr(item.value)) != repr(item.value):
            raise UsageError(f"{item.key} is given twice with different values")
    return overrides
