"""Options that several commands share, each declared once.

Fields of these classes are options, and the class of a command inherits those that it takes. Typer reads the types of
the fields when the command is called, so that no module of a command postpones its annotations.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from typer import Option

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.request import Request, absolute_judges, absolute_path
from itrpipe.config import EVERYWHERE, Override, parse_override
from itrpipe.datasets.definition import EMBEDDED, load_definition
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.pipeline.models import NAMING, NamedModel, datasets_of, find_model, models_of
from itrpipe.storage.artifact import trust_large_files

Text = str | None
Texts = list[str] | None
Number = int | None
File = Path | None
Split = Literal["test", "val", "train"]


DatasetOption = Annotated[
    str,
    Option("--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name of the dataset; not given: the only one there is."),
]
# Whether it can be read is for the commands to say, with their own exit code.
DataOption = Annotated[Path, Option(envvar="ITRPIPE_DATA", help="Folder of all artifacts.", readable=False)]
SetOption = Annotated[Texts, Option("--set", "-s", metavar="[STAGE.]KEY=VALUE", help="A setting; repeatable.")]
MakeOption = Annotated[bool, Option("--no-deps/--make", help="Fail where something upstream is missing, or make it.")]
BackboneOption = Annotated[Text, Option("--backbone", "-b", help="Model; `itrpipe list backbones` has all.")]
DeviceOption = Annotated[Text, Option(help="auto, cpu or cuda.")]
MethodOption = Annotated[str, Option("--method", "-m", help="Training method; `itrpipe list methods` has all.")]
AddressOption = Annotated[Text, Option(help="Ray cluster, such as auto; default: this machine.")]
PartOption = Annotated[Text, Option(metavar="I/N", help="Make one of N shares; the last job joins.")]
DevicesOption = Annotated[Number, Option(min=1, help="Processes that train together, one per GPU.")]
DecisionsOption = Annotated[File, Option(metavar="FILE", help="Judgements, see itrpipe review.")]
LanguageModelOption = Annotated[Text, Option(metavar="ID|FOLDER", callback=absolute_path, help="GPT-2 for perplexity.")]
JudgesOption = Annotated[
    Texts,
    Option(
        "--judge",
        metavar="JUDGE",
        callback=absolute_judges,
        help="Says how likely each candidate is right after all, such as captions; repeatable.",
    ),
]
ColumnOption = Annotated[
    Texts, Option(metavar="WHAT=COLUMN", help="Table: column of image, captions, id, split or group; repeatable.")
]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON object.")]


@dataclass
class DataOptions(BaseCommand):
    """Options of every command that plans something."""

    settings: SetOption = None
    data: DataOption = Path("data")
    trust: Annotated[
        bool,
        Option("--trust", help="Read files of 4 MiB and more without hashing them first.", callback=trust_large_files),
    ] = False
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan and what it will cost.")] = False


@dataclass
class PlanOptions(DataOptions):
    """Options of every command that plans something for one dataset."""

    dataset: DatasetOption = EMBEDDED

    def complete(self) -> None:
        """Take the only dataset of the data folder where none was given."""
        if "dataset" in self.given:
            return
        datasets = self._datasets()
        if len(datasets) == 1:
            self.dataset = datasets[0]
        elif datasets:
            self.dataset = ""

    def _datasets(self) -> list[str]:
        """Return the datasets of the data folder that have captions."""
        return [name for name in datasets_of(self.data) if load_definition(self.data, name).prepare]

    @property
    def where(self) -> tuple[Path, str]:
        """Return the data folder and the dataset.

        Raises:
            UsageError: there are several, and none was named.
        """
        if not self.dataset:
            raise UsageError(f"{self.data} has datasets {', '.join(self._datasets())}; choose with --dataset")
        return self.data, self.dataset


@dataclass
class PlacedOptions(DataOptions):
    """Options of every command whose plan has parts."""

    workers: Annotated[Number, Option(help="Worker processes; 0 chooses automatically.", min=0)] = None
    engine: Annotated[Text, Option(help="Where parts are made: local, or ray on a cluster.")] = None
    address: AddressOption = None

    @property
    def placed(self) -> list[Override]:
        """Return the overrides for where every step makes its parts.

        Raises:
            UsageError: there is an address and no engine that has one.
        """
        if self.address and self.engine != "ray":
            raise UsageError(f"--address {self.address} is that of a Ray cluster; add --engine ray")
        options = {"workers": self.workers, "engine": self.engine, "address": self.address}
        return [Override(EVERYWHERE, key, value) for key, value in options.items() if value is not None]


@dataclass
class RunOptions(PlacedOptions, PlanOptions):
    """Options of every command that runs a stage of a dataset."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Names of the options of a class that are settings of every stage."""
    no_deps: MakeOption = False
    known: NamedModel | None = field(default=None, init=False)

    @property
    def how(self) -> dict[str, Any]:
        """Return the arguments of a `Request` that these options give."""
        return {"dry_run": self.dry_run, "no_deps": self.no_deps, "model": self.known}

    def overrides(self, *names: str, read: bool = True, **settings: Any) -> list[Override]:
        """Return overrides: the settings of a named model, and on top the options of this command and `--set`.

        Args:
            names: options of this command that are settings of the step.
            read: the step reads the model; else it trains it.
            settings: further ones; None for one that is not the step's.
        """
        overrides = []
        if self.known:
            overrides += self.known.overrides(read=read)
        overrides += overrides_of(self.settings, {**self.chosen(*self.shared, *names), **settings})
        return overrides + self.placed

    def run_stage(
        self, stage: str, overrides: list[Override], *, conf: str | None = None, definition: Any = None
    ) -> Path:
        """Plan a stage of the dataset and run missing steps, see `Request.run_stage`."""
        request = Request(*self.where, overrides, definition=definition, **self.how)
        return request.run_stage(stage, conf)

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return the values of some options by name."""
        return {name: getattr(self, name) for name in names}


@dataclass
class TrainedOptions(RunOptions):
    """Options of every command that uses a trained model."""

    shared = ("features", "seed", "device")
    features: Annotated[
        Text, Option("--features", "-f", help="Features to read; default: the only ones.", metavar="NAME")
    ] = None
    seed: Annotated[Number, Option(help="Seed of training.")] = None
    device: DeviceOption = None


OF_TRAINING = ("method", "backbone", "features", "seed")
"""Options that choose the model that is trained."""


@dataclass
class ModelOptions(TrainedOptions):
    """Options of every command that uses a model of a method and a backbone."""

    shared = (*TrainedOptions.shared, "method", "backbone")
    named: Annotated[
        Text,
        Option("--model", help="A saved model (`itrpipe train --name NAME`).", metavar="NAME"),
    ] = None
    method: MethodOption = "triplet"
    backbone: BackboneOption = None

    def request(self, stage: str, *, as_json: bool = False, **settings: Any) -> Request:
        """Request a training, or the artifact of a later stage that reads one."""
        self.choose()
        if stage == "train":  # whose method is its configuration
            settings["method"] = None
        overrides = self.overrides(read=stage != "train", **settings)
        return Request(*self.where, overrides, as_json=as_json, takes_finished=True, **self.how)

    def complete(self) -> None:
        """Take the settings of the model of `--model`, and its dataset where no other was given.

        Raises:
            UsageError: there are several such models, or an option contradicts it.
            MissingInputError: there is none.
        """
        super().complete()
        if self.named is None:
            if is_given(self.backbone or "") and "method" not in self.given:
                self.method = GIVEN
            if self.method == GIVEN:
                self.backbone = self.backbone or GIVEN
            return
        dataset = self.dataset if "dataset" in self.given else None
        model = find_model(self.data, dataset, self.named)
        for option in ("method", "backbone"):
            if option in self.given:
                raise UsageError(f"--model {self.named} has {option} {getattr(model, option)}; leave --{option} out")
        self._take(model)

    def choose(self) -> None:
        """Take the only named model of the dataset where no option names one, or else its only embeddings.

        Raises:
            UsageError: several have one.
        """
        if self.named or self.given.intersection(OF_TRAINING) or self.method != ModelOptions.method:
            return
        definition = load_definition(*self.where)
        models = definition.models or models_of(definition)
        if len(models) > 1:
            raise UsageError(f"dataset {self.dataset} has models {', '.join(models)}; choose with --model")
        if models:
            ((self.named, model),) = models.items()
            self._take(NamedModel(self.named, self.dataset, model))

    def _take(self, model: NamedModel) -> None:
        """Take the settings of a named model."""
        self.known = model
        self.dataset = model.dataset
        self.method = model.method
        settings = {**model.definition.settings, "backbone": model.backbone}
        for key in NAMING:
            if key in settings and key not in self.given:
                setattr(self, key, settings[key])


@dataclass
class AskingOptions(ModelOptions):
    """Options of every command that reads a trained model, and trains none without --make."""

    no_deps: MakeOption = True


def named_columns(options: Iterable[str] | None) -> dict[str, Any]:
    """Return the settings of `prepare` that name columns of a table.

    Raises:
        UsageError: an option is not of the form WHAT=COLUMN, or is given twice.
    """
    settings = {}
    for option in options or ():
        what, _, column = option.partition("=")
        if what not in ColumnSettings.model_fields or not column:
            known = ", ".join(f"{name}=COLUMN" for name in ColumnSettings.model_fields)
            raise UsageError(f"--column {option!r} is none of {known}")
        key = f"columns.{what}"
        if what == "captions":
            settings.setdefault(key, []).append(column)
        elif settings.setdefault(key, column) != column:
            raise UsageError(f"--column {what} is given twice with different values")
    return settings


def overrides_of(assignments: Iterable[str] | None, named: dict[str, Any]) -> list[Override]:
    """Return given options and `--set` assignments as overrides of the requested step.

    Raises:
        UsageError: a setting is given twice with different values.
    """
    overrides = []
    for key, value in named.items():
        if isinstance(value, Path):
            value = str(value.resolve())
        if value is not None and value is not False:
            overrides.append(Override(None, key, value))
    overrides += map(parse_override, assignments or ())
    texts = {}
    for override in overrides:
        # Values are compared by their text, because NaN does not equal itself.
        text = repr(override.value)
        if texts.setdefault((override.scope, override.key), text) != text:
            raise UsageError(f"{override.key} is given twice with different values")
    return overrides
