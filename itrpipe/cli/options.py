"""Options that several commands share, each declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, is_given


def was_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, on the command line or in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _trust(trusted: bool) -> bool:
    from itrpipe.storage.integrity import trust_large_files

    trust_large_files(trusted)
    return trusted


DatasetOption = Annotated[str, typer.Option("--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name of the dataset.")]
# Whether it can be read is for the commands to say, with their own exit code.
DataOption = Annotated[
    Path,
    typer.Option("--data", envvar="ITRPIPE_DATA", help="Folder of all artifacts.", readable=False),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="[STAGE.]KEY=VALUE", help="Override a setting; repeatable.")
]
NoDepsOption = Annotated[
    bool, typer.Option("--no-deps/--make", help="Fail where something upstream is missing, or make it.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it will cost.")]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", callback=_trust, help="Read files of 4 MiB and more without hashing them first."),
]
NamedOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="A model that `itrpipe train --name NAME` was told of."),
]
MethodOption = Annotated[str, typer.Option("--method", "-m", help="Training method; `itrpipe list methods` has all.")]
BackboneOption = Annotated[
    str | None,
    typer.Option("--backbone", "-b", help="Model; `itrpipe list backbones` has all."),
]
FeaturesOption = Annotated[
    str | None,
    typer.Option(
        "--features",
        "-f",
        metavar="NAME",
        help="Features to read; default: the only ones, or pixels for dual-encoder.",
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of training.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        help="Processes of every step that has parts; 0: what suits it, or the cluster.",
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="Where parts are made: local, or ray (itrpipe[ray]) on a cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Ray cluster, such as auto; without it one of this machine alone."),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Make one of N shares; the job that makes the last part joins them.",
    ),
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        help="Processes that train together, one per GPU: torchrun for this machine.",
    ),
]
PhotosOption = Annotated[
    Path | None, typer.Option("--photos", metavar="FOLDER", help="Folder of photographs, which need no captions.")
]
DecisionsOption = Annotated[
    Path | None,
    typer.Option("--decisions", metavar="FILE", help="What people decided on pairs, see itrpipe review."),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")]


_NO_OPTION = {"option": False}
"""Marks a field of shared options that is none itself."""


@dataclass(frozen=True)
class RunOptions:
    """What every command takes that runs a plan."""

    dataset: DatasetOption = "scenes"
    settings: SetOption = None
    data: DataOption = Path("data")
    no_deps: NoDepsOption = False
    workers: WorkersOption = None
    engine: EngineOption = None
    address: AddressOption = None
    trust: TrustOption = False
    dry_run: DryRunOption = False

    @property
    def where(self) -> tuple[Path, str]:
        """The data folder and the dataset."""
        return self.data, self.dataset

    @property
    def how(self) -> dict[str, Any]:
        """What is done with the plan."""
        return {"dry_run": self.dry_run, "no_deps": self.no_deps}

    def overrides(self, **named: Any) -> list:
        """The options of this name that were given, `--set` assignments, and where parts are made."""
        return overrides_of(self.settings, named) + self.placed

    @property
    def placed(self) -> list:
        """Where every step makes its parts."""
        return placed(self.workers, self.engine, self.address)


@dataclass(frozen=True)
class TrainedOptions(RunOptions):
    """What commands take beside that where a trained model is used."""

    features: FeaturesOption = None
    seed: SeedOption = None
    device: DeviceOption = None

    @property
    def model(self) -> dict[str, Any]:
        """The settings that name the model."""
        return {"features": self.features, "seed": self.seed}


@dataclass(frozen=True)
class ModelOptions(TrainedOptions):
    """What commands take beside that where the model has a method and a backbone."""

    named: NamedOption = None
    method: MethodOption = "triplet"
    backbone: BackboneOption = None
    known: Any = field(default=None, metadata=_NO_OPTION)  # an itrpipe.commands.named.NamedModel
    given: frozenset[str] = field(default=frozenset(), metadata=_NO_OPTION)
    reads_model: ClassVar[bool] = True

    @property
    def model(self) -> dict[str, Any]:
        """The settings that name the model, but for its method."""
        return {"backbone": self.backbone, **super().model}

    def overrides(self, *, of_training: bool = False, **named: Any) -> list:
        """What a named model was told, and the options of this command on top.

        Args:
            of_training: whether the requested step is the training itself.
            named: options by the settings that they are.
        """
        told = () if self.known is None else self.known.of_training() if of_training else self.known.of_reader()
        return [*told, *super().overrides(**named)]

    def completed(self, context: typer.Context) -> ModelOptions:
        """The options with which of them were given, and with what the model of `--model` was told.

        Its dataset counts where no other was given. Where a dataset alone was named, its only named model is meant.

        Args:
            context: tells which options were given.

        Raises:
            UsageError: there are several such models, or an option contradicts it.
            MissingInputError: there is none.
        """
        given = self._told(context)
        if self.reads_model and "dataset" in given and not given & _NO_SINGLE_MODEL:
            from itrpipe.commands.named import only_model
            from itrpipe.progress import Reporter, SafeConsole

            usual = self.method == ModelOptions.method
            self = replace(self, named=only_model(self.data, self.dataset, None if usual else self.method))
            if self.named is not None:
                told = f"model {self.named}, the only one of {self.dataset} that has a name"
                Reporter(SafeConsole(stderr=True)).say(told)
        if self.named is None:
            method = GIVEN if is_given(self.backbone or "") and "method" not in given else self.method
            backbone = GIVEN if method == GIVEN and self.backbone is None else self.backbone
            return replace(self, given=given, method=method, backbone=backbone)
        from itrpipe.commands.named import find_model

        known = find_model(self.data, self.dataset if "dataset" in given else None, self.named)
        for option, own in (("method", known.method), ("backbone", known.backbone)):
            if option in given:
                raise UsageError(f"--model {self.named} has {option} {own}; leave --{option} out")
        naming = {key: value for key, value in known.naming.items() if key not in given}
        return replace(self, dataset=known.dataset, method=known.method, known=known, given=given, **naming)

    def require_model(self) -> None:
        """Refuses to take the drawings for granted where nothing is named and models of other datasets have names.

        Raises:
            UsageError: likewise.
        """
        from itrpipe.commands.named import refuse_unnamed

        if not self.given & {"dataset", "seed", *_NO_SINGLE_MODEL}:
            refuse_unnamed(self.data)

    def _told(self, context: typer.Context) -> frozenset[str]:
        """Which options were given."""
        return frozenset(each.name for each in fields(self) if was_given(context, each.name))


@dataclass(frozen=True)
class TrainingOptions(ModelOptions):
    """The same where the model may be a new one."""

    reads_model: ClassVar[bool] = False


_OF_TRAINING = frozenset(("method", "backbone", "features", "seed"))
"""Options that say which model is trained."""
_NO_SINGLE_MODEL = frozenset(("named", "method", "backbone", "features", "embeddings"))
"""Options beside which the only named model of a dataset is not meant."""


@dataclass(frozen=True)
class AnyModelOptions(ModelOptions):
    """The same where --model may also be the folder or hub id of a model, for photographs without captions."""

    named: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME|FOLDER|ID",
            help="A model that `itrpipe train --name NAME` was told of; for --photos also the folder or hub id of one.",
        ),
    ] = None

    def completed(self, context: typer.Context) -> ModelOptions:
        """The options as `ModelOptions` completes them; a folder or hub id stays in `named`, and `known` is None.

        Raises:
            UsageError, MissingInputError: likewise.
        """
        try:
            return super().completed(context)
        except MissingInputError:
            if self.named is None or not (Path(self.named).expanduser().is_dir() or "/" in self.named):
                raise
        told = self._told(context)
        for option in sorted(told & _OF_TRAINING):
            raise UsageError(f"--model {self.named} is trained already; leave --{option} out")
        return replace(self, given=told)

    @property
    def asked(self) -> Any:
        """The model that photographs are asked of, an `itrpipe.commands.index.AskedModel`."""
        from itrpipe.commands.index import AskedModel

        overrides = overrides_of(self.settings, {"device": self.device}) + self.placed
        if self.named is not None and self.known is None:
            return AskedModel(opened=self.named, overrides=overrides)
        trained = self.known is not None or self.given & _OF_TRAINING
        naming = {**self.model, "device": self.device} if trained else {}
        return AskedModel(
            known=self.known,
            method=self.method if trained else None,
            dataset=self.dataset,
            overrides=overrides,
            naming=naming,
        )


@dataclass(frozen=True)
class GivenOptions(ModelOptions):
    """What commands take beside that where embeddings from files may stand in the place of a trained model."""

    embeddings: Annotated[
        Path | None,
        typer.Option(
            "--embeddings",
            metavar="IMAGES [CAPTIONS]",
            help="Embeddings of any model: files of images and captions, or one file or folder of both.",
        ),
    ] = None
    captions: Annotated[
        Path | None, typer.Argument(metavar="CAPTIONS", help="Of --embeddings: file of the captions.")
    ] = None
    owners: Annotated[
        Path | None,
        typer.Option(
            "--owners", metavar="FILE", help="Of --embeddings: row number or id of the image of every caption."
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", help="Of --embeddings: for those of several models side by side.")
    ] = None
    measure: Annotated[
        str | None, typer.Option("--measure", help="Of --embeddings: cosine (default), inner-product or order.")
    ] = None

    def defined(self, split: str) -> tuple[GivenOptions, DatasetDefinition | None]:
        """The options, and what --embeddings defines; without it None.

        Args:
            split: that the files are of.

        Raises:
            ItrpipeError: see `define_embeddings`; or other options name a model too.
        """
        from itrpipe.commands.given import ALONE, define_embeddings, named

        files = named(self.embeddings, self.captions, self.owners, self.name, self.measure)
        if files is None:
            return self, None
        naming = {"named": "model", **{option: option for option in ("method", "backbone", "features", "seed")}}
        for option in naming.keys() & self.given:
            raise UsageError(
                f"--{naming[option]} names a trained model and --embeddings another one; leave one of them out"
            )
        dataset = self.dataset if "dataset" in self.given else ALONE
        definition, backbone = define_embeddings(self.data, dataset, split, files)
        return replace(self, dataset=dataset, method=GIVEN, backbone=backbone), definition


_LEADING = ("named", "method", "backbone")


def taking(options: type[RunOptions], **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command shared options, which it gets as its first argument, beside its own ones.

    Args:
        options: the shared ones.
        defaults: of shared options that have others in this command.
    """
    hints, keyword = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    values = {
        each.name: defaults.get(each.name, each.default) for each in fields(options) if each.metadata != _NO_OPTION
    }
    shared = [inspect.Parameter(name, keyword, default=value, annotation=hints[name]) for name, value in values.items()]
    # As users read them: which model, what of it, where, and how it is run.
    last = [each.name for each in fields(RunOptions)]
    shared.sort(key=lambda each: last.index(each.name) if each.name in last else -1)

    def with_shared(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            given = options(**{each.name: values.pop(each.name) for each in shared})
            if isinstance(given, ModelOptions):
                given = given.completed(context)
            command(given, **values)

        types = get_type_hints(command, include_extras=True)
        own = [
            each.replace(kind=keyword, annotation=types[name])
            for name, each in list(inspect.signature(command).parameters.items())[1:]
        ]
        leading = [each for each in shared if each.name in _LEADING]
        context = inspect.Parameter("context", keyword, annotation=typer.Context)
        parameters = [context, *leading, *own, *(each for each in shared if each not in leading)]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return with_shared


def resolved(path: Path | None) -> str | None:
    """A file by its whole path."""
    return None if path is None else str(path.resolve())


def whole_path(model: str | None) -> str | None:
    """A hub id as it is, a folder by its whole path: later commands may run in another folder."""
    folder = Path(model).expanduser() if model else None
    return str(folder.resolve()) if folder and folder.is_dir() else model


def mapping(assignments: list[str] | None, ids: Path | None) -> dict[str, Any]:
    """The options of the importer of arrays as settings."""
    given: dict[str, Any] = {"ids": None if ids is None else str(ids)}
    for text in assignments or []:
        dataset, equals, array = text.partition("=")
        if not (dataset and equals):
            raise UsageError(f"--map {text!r} is not of the form NAME=ARRAY, such as regions=features")
        if given.setdefault(f"map.{dataset}", array) != array:
            raise UsageError(f"--map gives {dataset} twice; name one array")
    return given


def placed(workers: int | None, engine: str | None, address: str | None, part: str | None = None) -> list:
    """Where every step of a plan makes its parts, and which share of them.

    Raises:
        UsageError: there is an address and no engine that has one.
    """
    from itrpipe.plan.overrides import EVERYWHERE, Override

    if address and engine != "ray":
        raise UsageError(f"--address {address} is that of a Ray cluster; add --engine ray")
    named = {"workers": workers, "engine": engine, "address": address, "part": part}
    return [Override(EVERYWHERE, key, value) for key, value in named.items() if value is not None]


def overrides_of(assignments: list[str] | None, named: dict[str, Any]) -> list:
    """`--set` assignments and the named options that were given, as overrides of the requested step.

    Raises:
        UsageError: a setting is given twice with different values.
    """
    from itrpipe.plan.planning import Override, parse_override

    given = [Override(None, key, value) for key, value in named.items() if value is not None]
    overrides = [*given, *map(parse_override, assignments or [])]
    seen: dict[tuple, str] = {}
    for item in overrides:
        # By what they look like, because NaN is no number that equals itself.
        if seen.setdefault((item.scope, item.key), repr(item.value)) != repr(item.value):
            raise UsageError(f"{item.key} is given twice with different values")
    return overrides
