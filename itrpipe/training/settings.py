"""The settings of trainings, the names of the models that they make, and the model that mines for a training.

Nothing heavy is imported here, because plans are made without torch.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from itrpipe import papers
from itrpipe.config import Outside, Settings, did_you_mean, load_declaration, resolve, unknown, why_unusable
from itrpipe.datasets.definition import DatasetDefinition, ModelDefinition
from itrpipe.engine.run import Device, MapExecution
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.methods.declaration import FirstEpochs, MethodSettings, Mined, method_package, methods
from itrpipe.models.declaration import (
    BACKBONES,
    BackboneSettings,
    backbone_family,
    backbone_names,
    canonical_backbone,
    settings_of,
)
from itrpipe.models.declaration import backbones as backbone_classes
from itrpipe.models.dual_encoder.declaration import Augment, DualEncoder
from itrpipe.papers import Paper
from itrpipe.storage.artifact import LOCAL_MODEL

_MODEL_NAME = re.compile(r"(?:(?P<method>[^.]+)\.)??(?P<backbone>[^.]+)(?:\.s(?P<seed>[0-9]+))?")
FIRST_TRAINING = "triplet"
"""The configuration that reports call first training, and whose models mine negatives."""
TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Programs that can follow a training; each is the name of its package too."""

NOTHING = NO_AVERAGE = "none"
FROZEN_SIDES = {
    NOTHING: (),
    "vision": ("vision",),
    "text": ("text",),
    "both": ("vision", "text"),
}
"""Value of `freeze` -> the encoders that stay as they are."""
EMA = "ema"
WISE_FT = "wise-ft"
AS_TRAINED = "as-trained"
USUAL_PATIENCE = 5

READ_UNTRAINED = frozenset(("backbone", "method", "features", "seed", "score_precision", "min_word_count"))
READ_UNTRAINED |= {"embed_precision", "validation_images", "train_share", "model", "loss"}
"""Settings that count where nothing is trained."""
UNTIMED = frozenset(("seed", "learning_rate", "learning_rate_scaling", "base_batch_size", "schedule", "warmup_updates"))
UNTIMED |= {"decay_every", "decay_at", "decay_factor", "gradient_clip", "weight_decay", "layer_decay", "patience"}
UNTIMED |= {"selection"}
"""Settings that do not decide how long a training takes."""
OF_START = ("backbone", "seed", "features", "train_share")
"""Settings that a training has in common with the one that it starts from."""
INITIAL = "initial"
"""Source of published weights that a training starts from."""
_PUBLISHED = Outside(lambda name, value, cache: {name: cache.digest(Path(value).expanduser())})
TEACHER_OF_PAIRS = "vsrn"
"""Backbone that mines for those without embeddings (AOQ §4.2: the lists of SCAN and BFAN are VSRN's)."""


def _count_or_share(value: Any) -> Any:
    if not isinstance(value, int) and not (isinstance(value, float) and 0 < value < 1):
        raise ValueError("must be a whole number of updates, or below 1 a share of all")
    return value


def _usual_patience(values: Mapping[str, Any]) -> int:
    """Return the default of `patience`, by the schedule."""
    return USUAL_PATIENCE if values.get("schedule") == "step" else 0


class TrainSettings(Settings):
    """Settings that determine the trained weights.

    Attributes:
        backbone: folder in `itrpipe/models/`, or a variant of one that `stages/4_train.toml` declares (`scan-i2t`).
        method: folder in `itrpipe/methods/`.
        features: which features of the dataset; empty for its only ones, and of models that read photographs.
        seed: of initialisation, order and draws.
        start_from: configuration whose trained weights this run starts from, of the same backbone, seed and features;
            empty starts from random weights.
        epochs: passes over all captions.
        batch_size: pairs per step.
        learning_rate: of Adam at the start.
        decay_every: epochs after which the rate is multiplied by `decay_factor`, again and again.
        decay_at: numbers of epochs after each of which that happens instead; empty leaves it to `decay_every`.
        batch_by: what `batch_size` counts: `pairs`, or `tokens`, the words and regions of the pairs.
        accumulate: batches whose mean gradient makes one update.
        optimizer: `adam`, or `adamw`, with weight decay; `adamw-clip` and `adamw-siglip` are `adamw` with the moments
            of these papers.
        weight_decay: of all but `adam`; biases, the scales of norms and all else that is no matrix are spared.
        layer_decay: what each layer of an encoder multiplies the rate by for those below it, down to its embeddings; 1
            trains all at one rate.
        freeze: encoder that stays as it is: `none`, `vision`, `text` or `both`. It reads every caption, or every
            photograph without random changes, once before the training, unless what it makes of them depends on the
            batch.
        adapter: what is trained of the encoders: all of them (`none`), or small adapters in some of their linear
            layers (`lora`), which are merged at the end.
        lora_rank, lora_alpha: r, and alpha, over r the scale of an adapter.
        lora_dropout: of what adapters read.
        lora_targets: names of the linear layers that get adapters; empty for those that make queries and values.
        average: what is validated and saved: the weights as they are (`none`), their exponential average over the
            updates (`ema:0.999`), or what lies between the weights at the start and them (`wise-ft:0.5`).
        schedule: `step` multiplies the rate as `decay_every` says; `linear` lowers it to 0 at the last update, and
            `cosine` too, along half a cosine; `linear-uniter` counts updates from 1, as UNITER's code does. They follow
            `epochs` or `max_updates`, also where `patience` ends the training earlier.
        warmup_updates: updates over which the rate rises first; below 1 a share of all updates.
        learning_rate_scaling: what becomes of the rate where an update has not `base_batch_size` pairs: it grows with
            their number (`linear`, Goyal et al. 2017), with its square root (`sqrt`, Malladi et al. 2022) or stays
            (`none`).
        base_batch_size: batch size that `learning_rate` is for, under the first two.
        max_updates: training ends after so many updates, if its epochs have not ended before; 0 sets no such end.
        gradient_clip: largest global norm of the gradient.
        precision: `bf16` computes the encoders in bfloat16, and of models that score pair by pair the products of
            pairs; weights, what scores are made of these, and losses stay in single precision. `auto` takes
            `bf16` on GPUs of compute capability 8 or higher, else `fp32`, and says which.
        score_precision: of scores for validation and of scores that are written, for models with costly ones.
        embed_precision: of encodings for validation and of embeddings that are written: `fp32`, or `as-trained`, which
            takes that of `precision`; they are stored in single precision all the same.
        min_word_count: words that are rarer in the captions of train and val become `<unk>`; for backbones that read
            phrases in those of train.
        sentences: configuration of `synthesize`, for methods that read synthetic sentences.
        train_share: share of the training images that are used, with all their captions; the same for every seed.
        validate_every: updates after each of which a validation comes, beside that at the end of every epoch; 0: none.
        patience: training ends when what `selection` names has not improved for so many validations in a row; those
            of the first epochs, which some methods train with another loss, do not count. 0: it trains all its epochs.
            Under schedules that fall until a planned end, 0 is the default: the last epochs, at low rates, often
            improve most, and the best validation is kept in any case.
        selection: what the best validation is chosen by: `rsum` (six recalls) or `r1+r5` (four).
        validation_images: validate on the first so many images.
        model: settings of the backbone, see its `declaration.py`.
        loss: settings of the method, see its `declaration.py`.
    """

    backbone: str
    method: str
    features: str
    seed: int = Field(ge=0)
    start_from: str = ""
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2, le=1_000_000)
    learning_rate: float = Field(gt=0)
    decay_every: int = Field(ge=1)
    decay_at: tuple[Annotated[int, Field(ge=1)], ...] = ()
    decay_factor: float = Field(gt=0, le=1)
    batch_by: Literal["pairs", "tokens"] = "pairs"
    accumulate: int = Field(default=1, ge=1, le=1_000_000)
    optimizer: Literal["adam", "adamw", "adamw-clip", "adamw-siglip"] = "adam"
    weight_decay: float = Field(default=0.01, ge=0)
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    freeze: Literal["none", "vision", "text", "both"] = "none"
    adapter: Literal["none", "lora"] = "none"
    lora_rank: int = Field(default=8, ge=1, le=65_536)
    lora_alpha: float = Field(default=8.0, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_targets: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    average: str = NO_AVERAGE
    schedule: Literal["step", "linear", "cosine", "linear-uniter"] = "step"
    warmup_updates: Annotated[int | float, BeforeValidator(_count_or_share)] = Field(default=0, ge=0)
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    base_batch_size: int = Field(default=256, ge=1)
    max_updates: int = Field(default=0, ge=0)
    gradient_clip: float = Field(gt=0)
    precision: Literal["fp32", "bf16", "auto"]
    score_precision: Literal["fp32", "bf16"] = "fp32"
    embed_precision: Literal["fp32", "as-trained"] = "fp32"
    min_word_count: int = Field(ge=1)
    sentences: str = "phrases"
    train_share: float = Field(default=1.0, gt=0, le=1)
    validate_every: int = Field(default=0, ge=0)
    patience: int = Field(default_factory=_usual_patience, ge=0)
    selection: Literal["rsum", "r1+r5"]
    validation_images: int = Field(ge=1)
    model: SerializeAsAny[BackboneSettings] = Field(default_factory=dict)  # pyright: ignore[reportAssignmentType]
    loss: SerializeAsAny[MethodSettings] = Field(default_factory=dict)  # pyright: ignore[reportAssignmentType]

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """Return the classes of `model` and `loss`, as far as there are such a backbone and method."""
        groups: dict[str, type[Settings]] = {}
        backbone = values.get("backbone")
        family = backbone_family(canonical_backbone(backbone)) if isinstance(backbone, str) else ""
        if family in backbone_classes():
            groups["model"] = backbone_classes()[family]
        if values.get("method") in methods():
            groups["loss"] = methods()[values["method"]]
        return groups

    @model_validator(mode="after")
    def _trains_what_there_is(self) -> TrainSettings:
        """Refuse to train encoders in part which are not there, or whose weights would stay random."""
        if isinstance(self.loss, FirstEpochs):
            self.loss.check_epochs(self.epochs)
        if not self.loss.trains:
            return self
        encoders = self.model.encoders()
        is_adapted = self.adapter != NOTHING
        changed = []
        for name, default in {"freeze": NOTHING, "adapter": NOTHING, "layer_decay": 1.0}.items():
            value = getattr(self, name)
            if value != default:
                changed.append(f"{name} = {value}")
        if changed and not encoders:
            raise ValueError(
                f"{changed[0]} is for encoders of layers, and backbone {self.backbone!r} has none; leave it out"
            )
        if not set(self.frozen) <= set(encoders):
            raise ValueError(
                f"freeze = {self.freeze}, but images are features and no pretrained encoder makes them; leave it out"
            )
        if self.freeze == "both" and not getattr(self.model, "embed_dim", 0):
            raise ValueError("freeze = both leaves nothing to train; project both sides with --set model.embed_dim=512")
        if is_adapted and encoders == self.frozen:
            raise ValueError(
                f"freeze = {self.freeze} leaves no encoder for adapter = {self.adapter}; leave one of them out"
            )
        for name in encoders:
            keeps_weights = is_adapted or name in self.frozen
            if keeps_weights and name not in self.model.pretrained() and not self.start_from:
                raise ValueError(
                    f"{changed[0]} keeps the weights of the {name} encoder, which are random; name a pretrained one "
                    f"with --{name}, or a trained configuration with start_from"
                )
        untrained = self.model.untrained()
        if self.average.startswith(WISE_FT) and untrained and not self.start_from:
            raise ValueError(
                f"average = {self.average} lies between a model that works already and the trained one, and "
                f"{untrained}; name a trained configuration with start_from, or leave it out"
            )
        return self

    def outside(self) -> Iterator[tuple[str, Any, Outside]]:
        """Yield published weights and pretrained encoders, which may lie on this machine."""
        published = self.model.published_weights()
        if published:
            yield INITIAL, published, _PUBLISHED
        for name, encoder in self.model.pretrained().items():
            yield name, encoder, LOCAL_MODEL

    def counted(self) -> dict[str, Any]:
        """Return the values as the fingerprint sees them: those that are read, and of plug-ins name and version."""
        values = self.model_dump(mode="json")
        values["model"] = self.model.counted()
        values["loss"] = self.loss.counted()
        for name, value, mark in self.outside():
            seen = mark.seen(value)
            if seen != value:
                values["model"][name] = seen
        for key in self.unused_options():
            *groups, name = key.split(".")
            table = values
            for group in groups:
                table = table[group]
            table.pop(name)
        if not self.loss.trains:
            read = READ_UNTRAINED
            if self.embed_precision == AS_TRAINED:
                read |= {"precision"}
            values = {name: value for name, value in values.items() if name in read}
        packages = {
            "method_package": method_package(self.method),
            "backbone_package": BACKBONES.package(backbone_family(self.backbone)),
        }
        for name, package in packages.items():
            if package:
                values[name] = package
        return values

    def unused_options(self) -> tuple[str, ...]:
        """Return the dotted keys of options that others leave without a use, so that their values change nothing."""
        unused = []
        if self.adapter == NOTHING:
            unused += ["lora_rank", "lora_alpha", "lora_dropout", "lora_targets"]
        unused += [f"loss.{name}" for name in self.loss.unused_options()]
        if not self.loss.trains:
            unused.append("patience")
        unused += [f"model.{name}" for name in self.model.unused_options()]
        if "vision" in self.frozen:
            unused += [f"model.augment.{name}" for name in Augment.model_fields]
        return tuple(unused)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Return the names of the encoders that stay as they are."""
        return FROZEN_SIDES[self.freeze]

    def encoded_once(self) -> dict[str, dict[str, Any]]:
        """Return the frozen encoders that read everything once, and their settings of `encode`."""
        encoders: dict[str, dict[str, Any]] = {}
        if not self.loss.trains:
            return encoders
        for side in self.frozen:
            encoder = self.model.encoder_alone(side)
            if encoder and self.start_from:
                encoder = {f"start_{name}": getattr(self, name) for name in OF_START}
                encoder["start_from"] = self.start_from
            if encoder:
                encoders[side] = encoder
        return encoders

    @property
    def reads_photographs(self) -> bool:
        """Return whether images are the photographs themselves, and no features of them."""
        return self.model.reads() == ("pixels",)

    @property
    def adapts(self) -> bool:
        """Return whether adapters are trained."""
        return self.adapter != NOTHING and self.loss.trains

    @field_validator("average")
    @classmethod
    def _is_average(cls, value: str) -> str:
        kind, number = parsed_average(value)
        if kind == NO_AVERAGE:
            return kind
        return f"{kind}:{number:g}"

    @field_validator("backbone", "method")
    @classmethod
    def _is_known(cls, value: str, info: ValidationInfo) -> str:
        if info.field_name == "method":
            return _known(value, methods(), "method")
        return _known(canonical_backbone(value), backbone_names(), "backbone")

    @field_validator("model", "loss", mode="before")
    @classmethod
    def _bind_group(cls, value: Any, info: ValidationInfo) -> Any:
        group = cls.groups(info.data).get(str(info.field_name))
        if group is None:
            return value
        bound = group.model_validate(value)
        if isinstance(bound, DualEncoder):
            return bound.with_frozen(FROZEN_SIDES[info.data.get("freeze", NOTHING)])
        return bound


class TrainExecution(MapExecution):
    """Settings that change how training is executed, not its results.

    What comes out still differs by rounding, and where a model has dropout by its draws: they depend on the device, the
    processes and the chunks of a batch, as they do on the seed.

    Attributes:
        device: `auto` takes CUDA when there is one.
        threads: CPU threads; 0 leaves the choice to the library.
        encode_block: rows per forward pass when validating and embedding.
        encode_chunk: images or captions that an encoder computes at a time in training; 0 for the whole batch. The
            gradient is the same, in the memory of one chunk and for about a third more time (gradient caching). `auto`
            takes what the free memory of the GPU asks for.
        compile: whether torch compiles the encoders, which takes minutes at the start and may save time at each step;
            `auto` compiles those of transformers on a GPU, from 2,000 steps on.
        prefetch: batches made ahead.
        checkpoint_seconds: time between two checkpoints inside an epoch.
        trackers: of `TRACKERS`, those that get the numbers of the training while it runs.
        track_to: folder for what they keep on this machine; empty for `tracking/` of the dataset.
    """

    device: Device
    threads: int = Field(ge=0, le=4_096)
    encode_block: int = Field(ge=1)
    encode_chunk: int | str
    compile: bool | Literal["auto"]
    prefetch: int = Field(ge=1, le=10_000)
    checkpoint_seconds: float = Field(ge=0)
    trackers: tuple[str, ...] = ()
    track_to: str = ""

    @field_validator("encode_chunk")
    @classmethod
    def _is_chunk(cls, value: int | str) -> int | str:
        if value != "auto" and (isinstance(value, str) or value < 0):
            raise ValueError("give a number of images or captions, 0 for the whole batch, or auto")
        return value

    @field_validator("trackers")
    @classmethod
    def _installed_trackers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            package = importlib.util.find_spec(_known(name, TRACKERS, "tracker"))
            # Any folder of this name counts as a package too, but one without an origin; wandb makes such folders.
            if package is None or package.origin is None:
                raise ValueError(f"{name} is not installed; run `pip install {name}` or leave it out")
        return tuple(dict.fromkeys(value))


def unread(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the dotted keys of settings of a training that its others leave without a use.

    Args:
        settings: of the training, as manifests keep them.

    Returns:
        Nothing of methods that are not installed, or have other settings now.
    """
    try:
        return frozenset(TrainSettings.model_validate(settings).unused_options())
    except ValidationError:
        return frozenset()


def parsed_average(value: str) -> tuple[str, float]:
    """Return kind and number of an average: the decay of `ema:DECAY`, or the share of the trained weights of `wise-ft`.

    Raises:
        ValueError: it is none.
    """
    if value == NO_AVERAGE:
        return value, 0.0
    kind, _, text = value.partition(":")
    with suppress(ValueError):
        number = float(text)
        if (kind == EMA and 0 <= number < 1) or (kind == WISE_FT and 0 <= number <= 1):
            return kind, number
    raise ValueError("give none, ema:DECAY, such as ema:0.999, or wise-ft:SHARE, such as wise-ft:0.5; from 0 to 1")


def cited(settings: Mapping[str, Any]) -> tuple[Paper, ...]:
    """Return the papers that a way of training comes from, by its dumped settings."""
    conditions = (
        (papers.LORA, settings["adapter"] == "lora"),
        (papers.LIT, settings["freeze"] == "vision"),
        (papers.WISE_FT, settings["average"].startswith(WISE_FT)),
    )
    used = []
    for paper, is_used in conditions:
        if is_used:
            used.append(paper)
    return tuple(used)


def _declared(conf: str, backbone: str | None = None) -> dict[str, Any]:
    """Return the values that are declared for a configuration, and for a backbone where it is named."""
    return resolve(load_declaration("train"), conf, backbones=backbone_names(), backbone=backbone).values


def usual_backbone(method: str) -> str:
    """Return the backbone that a configuration is trained on where none is named."""
    return canonical_backbone(_declared(method)["backbone"])


def declared_encoders(method: str) -> dict[str, str]:
    """Return the vision and the text encoder that a configuration declares for its usual backbone, if it does."""
    model = _declared(method, usual_backbone(method)).get("model", {})
    return {name: model[name] for name in ("vision", "text") if name in model}


def run_label(conf: str, backbone: str, seed: int) -> str:
    """Return the name of a training run inside its dataset; a seed of 0 is not named."""
    label = f"{conf}.{backbone}"
    if seed:
        label += f".s{seed}"
    return label


def method_of(conf: str) -> type[MethodSettings]:
    """Return the settings class of the method that a configuration trains with."""
    return methods()[_declared(conf)["method"]]


def trains(settings: Mapping[str, Any]) -> bool:
    """Return whether a model of these settings was trained at all.

    Args:
        settings: of `train`, as manifests keep them.
    """
    method = methods().get(settings["method"])
    return method is None or method.trains  # none of a plug-in that was removed


def began_with(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return hub ids and places of the published weights that a training began with; none of a removed backbone.

    Args:
        settings: of `train`, as manifests keep them.
    """
    backbone = backbone_classes().get(backbone_family(settings.get("backbone", "")))  # given embeddings have none
    if backbone is None:  # of a plug-in that was removed
        return ()
    model = backbone.model_construct(**settings.get("model", {}))
    places = [*model.pretrained().values(), model.published_weights()]
    return tuple(place for place in places if place)


def _known(value: str, known: Iterable[str], what: str) -> str:
    if value not in known:
        raise ValueError(why_unusable(value) or unknown(what, value, sorted(known)))
    return value


class LoopSettings(TrainSettings, TrainExecution):
    """The settings of a training that runs; `precision` and `encode_chunk` are never `auto` here.

    It is made of checked settings by `model_construct`. Without an epoch the model stays as it is.
    """


@dataclass(frozen=True, order=True)
class ModelName:
    """The name of a training run inside its dataset.

    Attributes:
        method: configuration of `train`.
        backbone: canonical.
        seed: of training.
    """

    method: str
    backbone: str
    seed: int

    @property
    def label(self) -> str:
        """Return the name as text, such as `aoq.vsrn.s1`."""
        return run_label(self.method, self.backbone, self.seed)

    def named_by(self, name: str) -> ModelName:
        """Return the model that `[method.]backbone[.sN]` names beside this one, whose values are the defaults.

        Raises:
            ValueError: not of this form, or there is no such method or backbone.
        """
        parts = _MODEL_NAME.fullmatch(name)
        if parts is None:
            raise ValueError(f"{name!r} is not of the form [method.]backbone[.sN], such as vsrn.s1")
        backbone = canonical_backbone(parts["backbone"])
        if is_given(backbone):
            if parts["method"] not in (None, GIVEN) or int(parts["seed"] or 0):
                raise ValueError(f"{name!r}: given embeddings have no other method and no seed; name {backbone} alone")
            return ModelName(GIVEN, backbone, 0)
        if backbone not in backbone_names():
            raise ValueError(unknown("backbone", backbone, sorted(backbone_names())))
        confs = load_declaration("train").confs
        if parts["method"] and parts["method"] not in confs:
            raise ValueError(unknown("method", parts["method"], sorted(confs)))
        return ModelName(parts["method"] or self.method, backbone, int(parts["seed"] or self.seed))

    @classmethod
    def defined_by(cls, definition: ModelDefinition, seed: int) -> ModelName:
        """Return a model that has a name, trained with this seed; a method that trains nothing has none."""
        backbone = definition.settings.get("backbone")
        backbone = canonical_backbone(backbone) if backbone else usual_backbone(definition.method)
        if seed and not method_of(definition.method).trains:
            seed = 0
        return cls(definition.method, backbone, seed)

    def name_of(self, other: ModelName) -> str:
        """Return the shortest name by which `named_by` finds the other; seeds are named unless both are 0."""
        name = other.backbone
        if other.method != self.method:
            name = f"{other.method}.{name}"
        if other.seed or self.seed:
            name += f".s{other.seed}"
        return name


def teacher_of(settings: TrainSettings, mined: Mined, definition: DatasetDefinition) -> tuple[ModelName, str]:
    """Return the model that mines for a training, and its name where the dataset has a model of that name.

    Raises:
        UsageError: there is no model of the teacher's name.
    """
    backbone = settings.backbone if settings.model.embeds else TEACHER_OF_PAIRS
    first = ModelName(FIRST_TRAINING, backbone, settings.seed)
    name = mined.teacher
    if name is None:
        return first, ""
    if name in load_declaration("train").confs and name not in backbone_names():
        return replace(first, method=name), ""
    if name in definition.models:
        return ModelName.defined_by(definition.models[name], settings.seed), name
    has_embeddings = f"{GIVEN}-{name}.train" in definition.embeddings
    try:
        return first.named_by(f"{GIVEN}-{name}" if has_embeddings else name), ""
    except ValueError as error:
        hint = did_you_mean(name, definition.models)
        if hint:
            raise UsageError(f"--negatives-from {name}: no model has this name{hint}") from None
        known = ""
        if definition.models:
            known = f"no model has this name; known: {', '.join(definition.models)}; "
        raise UsageError(f"--negatives-from {name}: {known}{error}") from None


def mining_settings(settings: TrainSettings, mined: Mined, teacher: ModelName) -> dict[str, Any]:
    """Return the settings of mining for a training; features are empty where they are the teacher's usual."""
    features = settings.features
    if is_given(teacher.backbone):
        features = ""
    elif teacher.backbone != settings.backbone:  # else the features of the training are those of its teacher, too
        # Where one reads pixels, another usually cannot.
        reads_pixels = "pixels" in settings_of(teacher.backbone)().reads()
        if reads_pixels != ("pixels" in settings.model.reads()):
            features = ""
    mining = {"backbone": teacher.backbone, "method": teacher.method, "seed": teacher.seed, "features": features}
    if mined.judges:
        mining["judges"] = mined.judges
    return mining
