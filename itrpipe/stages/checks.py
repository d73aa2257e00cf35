"""What can be told of a step before anything is made for it, and would else fail only after what it reads is made."""

from __future__ import annotations

import importlib.util
from typing import cast

from itrpipe.config import COMMAND_LINE
from itrpipe.datasets.benchmarks import named
from itrpipe.datasets.captions import SPLITS
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, passes_of
from itrpipe.features.hub import local_config, require_reachable
from itrpipe.mining.settings import MineSettings
from itrpipe.models.declaration import GivenEmbeddings
from itrpipe.stages.base import Planned
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.settings import TrainSettings

_READ = {"regions": "regions", "boxes": "the boxes of regions", "global": "global vectors", "pixels": "pixels"}
_REMEDIES = {
    "regions": "name features with regions by --features, such as those of butd",
    "boxes": "name features with boxes by --features, such as those of butd; where regions are the cells of a grid, "
    "say of which by --set precomp.grid=[6,6]",
    "global": "name features with global vectors by --features, such as those of vit",
    "pixels": "give --features pixels",
}


def check_training(step: Planned) -> None:
    """Refuses features that a model cannot read, encoders that cannot be fetched, and options that change nothing.

    Args:
        step: of `train`.

    Raises:
        UsageError: one of them, or an option that changes nothing was given.
        DataError: given embeddings are of other images and captions.
    """
    settings = cast(TrainSettings, step.settings)
    if isinstance(settings.model, GivenEmbeddings):
        _refuse_other_rows(step, settings, settings.model)
        return
    _refuse_other_features(step, settings)
    check_read(step)
    for name, model in settings.model.pretrained().items():
        if model:
            _require_encoder(step, name, model, getattr(settings.model, f"{name}_revision", "main"))
    _refuse_half(settings.model.joint())
    if settings.adapts and importlib.util.find_spec("peft") is None:
        raise UsageError(
            f"{step.need.conf}: adapter = {settings.adapter} needs peft, which is not installed; run `pip install "
            "'itrpipe[lora]'` or leave it out"
        )
    if settings.loss.refreshes():
        _refuse_refreshing(step, settings)


def check_extraction(step: Planned) -> None:
    """Refuses extractors whose model is neither here nor on the hub.

    Args:
        step: of `extract`.

    Raises:
        MissingInputError: likewise.
    """
    for part in passes_of("", step.settings).values():
        for model, revision in part.from_hub().items():
            require_reachable(model, revision)


def check_language_model(step: Planned) -> None:
    """Refuses a language model that is neither here nor on the hub.

    Args:
        step: of a stage with a setting `language_model`.

    Raises:
        MissingInputError: likewise.
    """
    if model := getattr(step.settings, "language_model", ""):
        require_reachable(model)


def check_split_of(train: Planned, split: str) -> None:
    """Refuses a split without images, where the dataset is prepared.

    Args:
        train: the training of what is asked about it.
        split: its name.

    Raises:
        UsageError: likewise.
    """
    held = held_splits(train)
    if held and split not in held:
        raise UsageError(
            f"the dataset has no {split} images, only {' and '.join(held)}; ask with --split {held[-1]}, or add "
            "photographs, or a column split, and prepare again"
        )


def held_splits(train: Planned) -> list[str]:
    """Splits that have images, of the dataset that a model is trained on; none as long as it is not prepared."""
    prepared = train.inputs["prepare"].finished
    metrics = {} if prepared is None else read_manifest(prepared).metrics
    return [name for name in SPLITS if name in metrics]


def check_benchmarks(step: Planned) -> None:
    """Refuses benchmarks whose images cannot be read as those of the dataset were.

    Args:
        step: of `evaluate`.

    Raises:
        UsageError: the features of the dataset were imported, or are those of drawings.
    """
    given = [each for each in getattr(step.settings, "benchmark", ()) if named(each).folder]
    if not given:
        return
    for part in passes_of("", step.inputs["train"].inputs["extract"].settings).values():
        fact = f"--benchmark {given[0]}: the features of this dataset "
        if part.imported:
            raise UsageError(
                f"{fact}were imported ({part.kind}), so those of other photographs cannot be made alike; evaluate a "
                "model that was trained on extracted features"
            )
        if part.drawings_only:
            raise UsageError(
                f"{fact}come from the detector of `{part.kind}`, which knows drawings and no photographs; evaluate a "
                "model that was trained on other features, such as --backbone dual-encoder, or give --benchmark scenes"
            )


def _require_encoder(step: Planned, name: str, model: str, revision: str) -> None:
    """Refuses an encoder that cannot be fetched, and says so where it is the one that is taken unless another is named.

    Raises:
        MissingInputError: likewise.
    """
    settings = cast(TrainSettings, step.settings)
    try:
        require_reachable(model, revision)
    except MissingInputError as error:
        if not step.resolved.origins.get(f"model.{name}", "").endswith("]"):  # of a declaration
            raise
        option = (
            "--vision"
            if settings.model.joint()
            else f"--{name}"
            if name in ("vision", "text")
            else f"--set model.{name}=…"
        )
        raise MissingInputError(f"{str(error).rstrip('.')}; or name another than this default: {option}") from None


def _refuse_half(model: str) -> None:
    """Refuses as both encoders a folder that holds one of them."""
    config = local_config(model) if model else {}
    if config and not config.keys() & {"vision_config", "text_config"}:
        raise UsageError(
            f"{model} is a model of type {config.get('model_type')}, which is no encoder of both images and "
            "captions; name one that is, such as CLIP or SigLIP, or one encoder as --vision and another as --text"
        )


def _refuse_other_rows(step: Planned, settings: TrainSettings, model: GivenEmbeddings) -> None:
    """Refuses given embeddings of other images and captions than the dataset has, once that is prepared."""
    prepare = step.inputs["prepare"]
    if prepare.finished is None:
        return
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.given import GivenSplit

    split = PreparedDataset.open(prepare.finished).split(settings.features)
    GivenSplit(model.files, settings.features).places(split, by_row=prepare.need.conf != GIVEN)


def _refuse_other_features(step: Planned, settings: TrainSettings) -> None:
    parts = passes_of("", step.inputs["extract"].settings).values()
    held = frozenset().union(*(part.may_hold() for part in parts))
    for name in settings.model.reads():
        if name not in held:
            made = "+".join(part.kind.replace("_", "-") for part in parts)
            remedy = ", or ".join(filter(None, (_REMEDIES[name], settings.model.without(name))))
            raise UsageError(
                f"backbone {settings.backbone!r} reads {_READ[name]}, which features {settings.features!r} (made by "
                f"{made}) do not hold; {remedy}"
            )


def check_read(step: Planned) -> None:
    """Refuses options of `train` that change nothing, also where that is trained already.

    Raises:
        UsageError: likewise.
    """
    settings = cast(TrainSettings, step.settings)
    if isinstance(settings.model, GivenEmbeddings):
        return
    unused = {name: getattr(settings, name) for name in settings.unused_options()}
    unused |= {f"loss.{name}": getattr(settings.loss, name) for name in settings.loss.unused_options()}
    for name, value in unused.items():
        if step.resolved.origins.get(name) == COMMAND_LINE:
            if name == "loss.teacher":
                raise UsageError(f"--negatives-from {value} is for mined negatives; add --negatives mined")
            raise UsageError(
                f"{step.need.conf}: {name} = {value} changes nothing with the other settings as they are; leave "
                f"it out, or see `itrpipe show train {step.need.conf}` for what is read"
            )


def _refuse_refreshing(step: Planned, settings: TrainSettings) -> None:
    """Refuses to mine again where steps are counted before there are lists, or where a second model orders these."""
    mining, every = cast(MineSettings, step.inputs["mine_negatives"].settings), settings.loss.refreshes()
    reason = ""
    if settings.batch_by == "tokens":
        reason = "batches of tokens are counted before training begins; give --set train.batch_by=pairs"
    if mining.rescore_with:
        reason = f"{mining.rescore_with} orders the lists, and does not learn meanwhile; leave rescore_with out"
    if reason:
        raise UsageError(f"{step.need.conf} mines again every {every} epochs, but {reason}")
