"""`itrpipe train`: trains a backbone with a method and embeds every split with the best weights.

Round one is `--method triplet`; round two (`--method aoq`) also reads the lists mined with a round-one model.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from itrpipe.config import Settings, did_you_mean, load_declaration, resolve
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.methods.settings import Aoq, MethodSettings, methods
from itrpipe.models.settings import BackboneSettings, backbone_family
from itrpipe.models.settings import backbones as backbone_classes
from itrpipe.stages.base import Job, Need, no_sources, prepare_need

if TYPE_CHECKING:
    import torch

    from itrpipe.datasets.vocabulary import Vocabulary
    from itrpipe.methods.base import Method
    from itrpipe.models.base import DualEncoder
    from itrpipe.training.data import SplitData
    from itrpipe.training.encode import AnyMatcher
    from itrpipe.training.loop import LoopSettings, Trainer

SCHEMA_VERSION = 1
TEACHER_METHOD = "triplet"
DEFAULT_TEACHER = "vsrn"  # AOQ §4.2: the lists of SCAN and BFAN are VSRN's
HISTORY = "history.parquet"
sources = no_sources


class TrainSettings(Settings):
    """Settings that determine the trained weights.

    Attributes:
        backbone: file stem in `itrpipe/models/`, or a variant of one that `stages/4_train.toml` declares (`scan-i2t`).
        method: file stem in `itrpipe/methods/`.
        features: which features of the dataset; empty for its only ones.
        seed: of initialisation, order and draws.
        start_from: configuration whose trained weights this run starts from, of the same backbone, seed and features;
            empty starts from random weights.
        epochs: passes over all captions.
        batch_size: pairs per step.
        learning_rate: of Adam at the start.
        decay_every: epochs after which the rate is multiplied by `decay_factor`, again and again.
        batch_by: what `batch_size` counts: `pairs`, or `tokens`, the words and regions of the pairs.
        accumulate: batches whose mean gradient makes one update.
        schedule: `step` multiplies the rate as `decay_every` says; `linear` raises it over `warmup_updates` and lowers
            it to 0 at the last update.
        warmup_updates: of schedule `linear`.
        max_updates: training ends after so many updates, if its epochs have not ended before; 0 sets no such end.
        gradient_clip: largest global norm of the gradient.
        precision: `bf16` computes the encoders in bfloat16 (weights and loss stay in single precision).
        score_precision: of scores for validation and of scores that are written, for models with costly ones.
        min_word_count: words that are rarer in the captions of train and val become `<unk>`; for backbones that read
            phrases in those of train.
        graphs: configuration of `parse`, for backbones that read phrases.
        train_share: share of the training images that are used, with all their captions; the same for every seed.
        selection: what the best epoch is chosen by, on the validation split: `rsum` (six recalls) or `r1+r5` (four).
        validation_images: validate on the first so many images.
        model: settings of the backbone, see `itrpipe/models/settings.py`.
        loss: settings of the method, see `itrpipe/methods/settings.py`.
    """

    backbone: str
    method: str
    features: str
    seed: int = Field(ge=0)
    start_from: str = ""
    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    decay_every: int = Field(ge=1)
    decay_factor: float = Field(gt=0, le=1)
    batch_by: Literal["pairs", "tokens"] = "pairs"
    accumulate: int = Field(default=1, ge=1)
    schedule: Literal["step", "linear"] = "step"
    warmup_updates: int = Field(default=0, ge=0)
    max_updates: int = Field(default=0, ge=0)
    gradient_clip: float = Field(gt=0)
    precision: Literal["fp32", "bf16"]
    score_precision: Literal["fp32", "bf16"] = "fp32"
    min_word_count: int = Field(ge=1)
    graphs: str = "rules"
    train_share: float = Field(default=1.0, gt=0, le=1)
    selection: Literal["rsum", "r1+r5"]
    validation_images: int = Field(ge=1)
    model: SerializeAsAny[BackboneSettings]
    loss: SerializeAsAny[MethodSettings]

    @model_validator(mode="after")
    def _uses_its_negatives(self) -> TrainSettings:
        if isinstance(self.loss, Aoq) and self.epochs <= self.loss.sum_epochs:
            raise ValueError(
                f"epochs = {self.epochs} all fall within loss.sum_epochs = {self.loss.sum_epochs}, so the offline "
                "negatives would never be used; raise epochs or give --set aoq.loss.sum_epochs=0"
            )
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
        return _settings_of(info.data["backbone"]).model_validate(value) if "backbone" in info.data else value

    @field_validator("loss", mode="before")
    @classmethod
    def _bind_loss(cls, value: Any, info: ValidationInfo) -> Any:
        return methods()[info.data["method"]].model_validate(value) if "method" in info.data else value


class Execution(Settings):
    """Settings that change how training is executed, not what comes out.

    Attributes:
        device: `auto` takes CUDA when there is one.
        threads: CPU threads; 0 leaves the choice to the library.
        encode_block: rows per forward pass when validating and embedding.
        prefetch: batches made ahead.
        checkpoint_seconds: time between two checkpoints inside an epoch.
    """

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=0)
    encode_block: int = Field(ge=1)
    prefetch: int = Field(ge=1)
    checkpoint_seconds: float = Field(ge=0)


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `TrainSettings`."""
    return TrainSettings


def backbones() -> tuple[str, ...]:
    """Every backbone, and the variants of them that have a table in the declaration."""
    known = tuple(backbone_classes())
    variants = (name for name in load_declaration("train").defaults if "-" in name and backbone_family(name) in known)
    return (*known, *variants)


def embeds(backbone: str) -> bool:
    """Whether a backbone makes one vector of an image and one of a caption."""
    return _settings_of(canonical_backbone(backbone)).embeds


def reads_phrases(backbone: str) -> bool:
    """Whether a backbone reads the scene graphs of captions."""
    return _settings_of(canonical_backbone(backbone)).reads_phrases


def usual_backbone(method: str) -> str:
    """The backbone that a configuration is trained on where none is named."""
    resolved = resolve(load_declaration("train"), method, backbones=backbones())
    return canonical_backbone(resolved.values["backbone"])


def canonical_backbone(name: str) -> str:
    """File stem of a backbone given as people write it: `vse++` is `vsepp`."""
    return name.lower().replace("+", "p")


def label(conf: str, settings: TrainSettings) -> str:
    """`method.backbone`, with the seed when it is not 0."""
    return run_label(conf, settings.backbone, settings.seed)


def run_label(conf: str, backbone: str, seed: int) -> str:
    """Name of a training run inside its dataset."""
    return f"{conf}.{backbone}{f'.s{seed}' if seed else ''}"


def needs(settings: TrainSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Captions, features, the weights to start from and, for AOQ, the mined lists of the teacher.

    Raises:
        UsageError: the method does not train this backbone.
    """
    phases = {getattr(part, "phase", None) for part in (settings.model, settings.loss)}
    if len(phases) > 1:
        raise UsageError(
            f"method {settings.method!r} does not train backbone {settings.backbone!r}: ssamt-intra and ssamt train "
            "ssamt, and nothing else does; leave --backbone out or name another --method"
        )
    wanted = {"prepare": prepare_need(definition), "extract": Need("extract", settings.features)}
    if isinstance(settings.loss, Aoq):
        own = settings.backbone if settings.model.embeds else DEFAULT_TEACHER
        teacher = {
            "backbone": settings.loss.teacher or own,
            "method": TEACHER_METHOD,
            "seed": settings.seed,
            "features": settings.features,
        }
        wanted["mine_negatives"] = Need("mine_negatives", "exact", teacher)
    if settings.model.reads_phrases:
        wanted["parse"] = Need("parse", settings.graphs)
    if settings.start_from:
        same = {name: getattr(settings, name) for name in ("backbone", "seed", "features", "train_share")}
        wanted["start"] = Need("train", settings.start_from, same)
    return wanted


def run(job: Job) -> None:
    """Trains, keeps the weights that validated best, and embeds every split with them."""
    import torch

    from itrpipe.models.base import DualEncoder
    from itrpipe.training.loop import Trainer
    from itrpipe.training.saved import build_model, save_model, start_from

    if job.execution.threads:
        torch.set_num_threads(job.execution.threads)
    torch.manual_seed(job.settings.seed)
    splits, vocabulary = _load_splits(job)
    for split in ("train", "val"):
        if split not in splits:
            raise MissingInputError(f"dataset {job.dataset!r} has no {split} split, which training needs")
    image_dim = splits["train"].image_dim
    model = build_model(job.settings.model_dump(), image_dim, len(vocabulary))
    if "start" in job.inputs:
        start_from(job.inputs["start"].folder, model, job.settings.model_dump(), vocabulary)
    method = _build_method(job, splits["train"])
    trainer = Trainer(
        _loop_settings(job),
        model,
        method,
        splits["train"],
        splits["val"],
        resolve_device(job.execution.device),
        job.work,
        job.reporter,
    )
    model = trainer.run()
    save_model(job.folder, model, vocabulary, job.settings.model_dump(mode="json"), image_dim)
    _write_history(job, trainer.position.history)
    if isinstance(model, DualEncoder):
        _write_embeddings(job, model, splits, trainer.device)
    else:
        _write_scores(job, model, splits, trainer.device)
    _record(job, trainer)


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`.

    Raises:
        UsageError: CUDA was asked for and is not there.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _settings_of(backbone: str) -> type[BackboneSettings]:
    return backbone_classes()[backbone_family(backbone)]


def _known(value: str, known: Iterable[str], what: str) -> str:
    if value not in known:
        hint = did_you_mean(value, known) or f"; known: {', '.join(sorted(known))}"
        raise ValueError(f"there is no {what} of this name{hint}")
    return value


def _load_splits(job: Job) -> tuple[dict[str, SplitData], Vocabulary]:
    from itrpipe.training.splits import Sources, load_phrase_splits, load_splits

    settings = job.settings
    folders = {name: job.inputs[name].folder for name in ("prepare", "extract", "parse") if name in job.inputs}
    sources = Sources(**folders, train_share=settings.train_share)
    if sources.parse is None:
        return load_splits(sources, settings.min_word_count, job.warn)
    words = {"max_words": settings.model.max_words, "with_phrases": settings.model.phrases}
    return load_phrase_splits(sources, settings.min_word_count, job.warn, **words)


def _build_method(job: Job, train: SplitData) -> Method:
    from itrpipe.errors import DataError
    from itrpipe.negatives.lists import FILES, read_list

    lists = {}
    if "mine_negatives" in job.inputs:
        folder = job.inputs["mine_negatives"].folder
        mined = {direction: read_list(folder, direction) for direction in FILES}
        for direction, ids in (
            ("texts_for_images", train.split.image_ids),
            ("images_for_texts", train.split.caption_ids),
        ):
            if not np.array_equal(mined[direction].anchor_ids, ids):
                raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists = {direction: each.candidates for direction, each in mined.items()}
    module = importlib.import_module(f"itrpipe.methods.{job.settings.method.replace('-', '_')}")
    return module.build(job.settings.loss, train, lists)


def _loop_settings(job: Job) -> LoopSettings:
    from itrpipe.training.loop import LoopSettings

    values = {**job.settings.model_dump(), **job.execution.model_dump()}
    return LoopSettings(**{field.name: values[field.name] for field in dataclasses.fields(LoopSettings)})


def _write_history(job: Job, history: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(history), job.folder / HISTORY)


def _write_embeddings(job: Job, model: DualEncoder, splits: Mapping[str, SplitData], device: torch.device) -> None:
    from itrpipe.features.embeddings import EMBEDDINGS
    from itrpipe.training.encode import write_split

    path = job.folder / EMBEDDINGS
    path.unlink(missing_ok=True)
    total = sum(data.num_images + data.num_captions for data in splits.values())
    with job.reporter.task("embedding all splits", total, "rows") as task:
        for data in splits.values():
            write_split(path, model, data, device, job.execution.encode_block, task.advance)


def _write_scores(job: Job, model: AnyMatcher, splits: Mapping[str, SplitData], device: torch.device) -> None:
    """Scores of val and test; those of the training split would be a matrix that nothing reads."""
    from itrpipe.features.scores import SCORES, SplitScores, write_scores
    from itrpipe.training.encode import score_split

    path = job.folder / SCORES
    path.unlink(missing_ok=True)
    scored = {name: data for name, data in splits.items() if name != "train"}
    pairs = sum(data.num_images * data.num_captions for data in scored.values())
    with job.reporter.task("scoring val and test", pairs, "pairs") as task:
        for name, data in scored.items():
            rows, block = np.arange(data.num_captions), job.execution.encode_block
            precision = job.settings.score_precision
            matrix = score_split(model, data, device, block, data.num_images, rows, precision, task.advance)
            split = data.split
            write_scores(path, name, SplitScores(matrix, split.image_ids, split.caption_ids, split.caption_image))


def _record(job: Job, trainer: Trainer) -> None:
    """Numbers that tables show."""
    position, best = trainer.position, trainer.position.history[trainer.position.best_epoch]
    job.metrics |= {
        "validation_rsum": round(best["val_rsum"], 2),
        "best_epoch": position.best_epoch + 1,
        "epochs": job.settings.epochs,
    }
    if trainer.trained_seconds:
        job.metrics["data_wait_percent"] = round(100 * trainer.waited_seconds / trainer.trained_seconds, 2)
    job.timings["training"] = round(trainer.trained_seconds, 3)
    job.timings["waiting_for_data"] = round(trainer.waited_seconds, 3)
