"""What determines a training run, and what of that can be told before there is one.

Nothing heavy is imported here, because plans are made without torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from itrpipe.config import Settings, did_you_mean, load_declaration, resolve
from itrpipe.engine.execution import MapExecution
from itrpipe.methods.declaration import MethodSettings
from itrpipe.methods.registry import methods
from itrpipe.models.declaration import BackboneSettings
from itrpipe.models.registry import backbone_family
from itrpipe.models.registry import backbones as backbone_classes
from itrpipe.plugins import why_unusable

ROUND_ONE = "triplet"
"""The configuration that reports call round one, and whose models mine negatives."""
TRACKERS = ("tensorboard", "mlflow", "wandb")
"""What can follow a training; each is the name of its package too."""

NEWER = ("validate_every", "weight_decay", "learning_rate_scaling", "base_batch_size")
"""Settings that earlier versions lacked and trained as these say where they have their defaults."""


class TrainSettings(Settings):
    """Settings that determine the trained weights.

    Attributes:
        backbone: folder in `itrpipe/models/`, or a variant of one that `stages/4_train.toml` declares (`scan-i2t`).
        method: folder in `itrpipe/methods/`.
        features: which features of the dataset; empty for its only ones.
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
        optimizer: `adam`, `adamw`, with weight decay, or `adamw-uniter`: likewise, as UNITER's code computes it.
        weight_decay: of `adamw` and `adamw-uniter`; biases and the scales of layer norms are spared.
        schedule: `step` multiplies the rate as `decay_every` says; `linear` lowers it to 0 at the last update, and
            `cosine` too, along half a cosine; `linear-uniter` counts updates from 1, as UNITER's code does.
        warmup_updates: updates over which the rate rises first.
        learning_rate_scaling: what becomes of the rate where an update has not `base_batch_size` pairs: it grows with
            their number (`linear`, Goyal et al. 2017), with its square root (`sqrt`, Malladi et al. 2022) or stays
            (`none`).
        base_batch_size: batch size that `learning_rate` is for, under the first two.
        max_updates: training ends after so many updates, if its epochs have not ended before; 0 sets no such end.
        gradient_clip: largest global norm of the gradient.
        precision: `bf16` computes the encoders in bfloat16, and of models that score pair by pair the products of
            pairs; weights, what scores are made of these, and losses stay in single precision. `auto` measures a
            batch in both when the training starts, takes the faster and says which.
        score_precision: of scores for validation and of scores that are written, for models with costly ones.
        min_word_count: words that are rarer in the captions of train and val become `<unk>`; for backbones that read
            phrases in those of train.
        graphs: configuration of `parse`, for backbones that read phrases and methods that mask them.
        sentences: configuration of `synthesize`, for methods that read synthetic sentences.
        train_share: share of the training images that are used, with all their captions; the same for every seed.
        validate_every: updates after each of which a validation comes, beside that at the end of every epoch; 0: none.
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
    optimizer: Literal["adam", "adamw", "adamw-uniter"] = "adam"
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Literal["step", "linear", "cosine", "linear-uniter"] = "step"
    warmup_updates: int = Field(default=0, ge=0)
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    base_batch_size: int = Field(default=256, ge=1)
    max_updates: int = Field(default=0, ge=0)
    gradient_clip: float = Field(gt=0)
    precision: Literal["fp32", "bf16", "auto"]
    score_precision: Literal["fp32", "bf16"] = "fp32"
    min_word_count: int = Field(ge=1)
    graphs: str = "rules"
    sentences: str = "phrases"
    train_share: float = Field(default=1.0, gt=0, le=1)
    validate_every: int = Field(default=0, ge=0)
    selection: Literal["rsum", "r1+r5"]
    validation_images: int = Field(ge=1)
    model: SerializeAsAny[BackboneSettings] = Field(default_factory=dict)  # pyright: ignore[reportAssignmentType]
    loss: SerializeAsAny[MethodSettings] = Field(default_factory=dict)  # pyright: ignore[reportAssignmentType]

    @model_validator(mode="after")
    def _uses_its_negatives(self) -> TrainSettings:
        self.loss.check_epochs(self.epochs)
        return self

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        return _known(canonical_backbone(value), backbones(), "backbone")

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        return _known(value, methods(), "method")

    @field_validator("model", mode="before")
    @classmethod
    def _bind_model(cls, value: Any, info: ValidationInfo) -> Any:
        return settings_of(info.data["backbone"]).model_validate(value) if "backbone" in info.data else value

    @field_validator("loss", mode="before")
    @classmethod
    def _bind_loss(cls, value: Any, info: ValidationInfo) -> Any:
        return methods()[info.data["method"]].model_validate(value) if "method" in info.data else value


class TrainExecution(MapExecution):
    """Settings that change how training is executed, not what comes out.

    Attributes:
        device: `auto` takes CUDA when there is one.
        threads: CPU threads; 0 leaves the choice to the library.
        encode_block: rows per forward pass when validating and embedding.
        encode_chunk: images or captions that an encoder computes at a time in training; 0 for the whole batch. The
            gradient is the same, in the memory of one chunk and for about a third more time (gradient caching). `auto`
            takes what the free memory of the GPU asks for.
        compile: whether torch compiles the encoders, which takes minutes at the start and may save time at each step.
        prefetch: batches made ahead.
        checkpoint_seconds: time between two checkpoints inside an epoch.
        trackers: of `TRACKERS`, those that get the numbers of the training while it runs.
        track_to: folder for what they keep on this machine; empty for `tracking/` of the dataset.
    """

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=0, le=4_096)
    encode_block: int = Field(ge=1)
    encode_chunk: int | str
    compile: bool
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
            found = importlib.util.find_spec(_known(name, TRACKERS, "tracker"))
            # Any folder of this name counts as a package too, but one without an origin; wandb makes such folders.
            if found is None or found.origin is None:
                raise ValueError(f"{name} is not installed; run `pip install {name}` or leave it out")
        return tuple(dict.fromkeys(value))


def backbones() -> tuple[str, ...]:
    """Every backbone, and the variants of them that have a table in the declaration."""
    known = tuple(backbone_classes())
    variants = (name for name in load_declaration("train").defaults if backbone_family(name) in {*known} - {name})
    return (*known, *variants)


def embeds(backbone: str) -> bool:
    """Whether a backbone makes one vector of an image and one of a caption."""
    return settings_of(canonical_backbone(backbone)).embeds


def reads_phrases(backbone: str) -> bool:
    """Whether a backbone reads the scene graphs of captions."""
    return settings_of(canonical_backbone(backbone)).reads_phrases


def usual_backbone(method: str) -> str:
    """The backbone that a configuration is trained on where none is named."""
    resolved = resolve(load_declaration("train"), method, backbones=backbones())
    return canonical_backbone(resolved.values["backbone"])


def usual_features(method: str, backbone: str, dataset: str) -> str:
    """The features that a model is trained on where none are named; empty for the only ones of the dataset."""
    chosen = canonical_backbone(backbone) or usual_backbone(method)
    declared = resolve(load_declaration("train"), method, backbones=backbones(), backbone=chosen, dataset=dataset)
    return declared.values["features"]


def run_label(conf: str, backbone: str, seed: int) -> str:
    """Name of a training run inside its dataset."""
    return f"{conf}.{backbone}{f'.s{seed}' if seed else ''}"


def canonical_backbone(name: str) -> str:
    """File stem of a backbone given as people write it: `vse++` is `vsepp`."""
    return name.lower().replace("+", "p")


def settings_of(backbone: str) -> type[BackboneSettings]:
    """Settings class of a backbone, by its canonical name."""
    return backbone_classes()[backbone_family(backbone)]


def method_of(conf: str) -> type[MethodSettings]:
    """Settings class of the method that a configuration trains with."""
    return methods()[resolve(load_declaration("train"), conf, backbones=backbones()).values["method"]]


def _known(value: str, known: Iterable[str], what: str) -> str:
    if value not in known:
        hint = did_you_mean(value, known) or f"; known: {', '.join(sorted(known))}"
        raise ValueError(why_unusable(value) or f"there is no {what} of this name{hint}")
    return value
