"""What can be told of a training or of mining before anything is made for it.

A model that reads what its features do not hold, or lists that are longer than the training set, would fail only after
the extraction, or after the first training.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from itrpipe.config import COMMAND_LINE
from itrpipe.datasets.benchmarks import named
from itrpipe.datasets.captions import SPLITS
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, passes_of
from itrpipe.features.hub import local_config, require_reachable
from itrpipe.methods.declaration import Mined
from itrpipe.mining.settings import MineSettings
from itrpipe.models.declaration import GivenEmbeddings
from itrpipe.stages.base import Planned
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.settings import TrainSettings

if TYPE_CHECKING:
    import numpy as np

_READ = {"regions": "regions", "boxes": "the boxes of regions", "global": "global vectors", "pixels": "pixels"}
_REMEDIES = {
    "regions": "name features with regions by --features, such as those of butd",
    "boxes": "name features with boxes by --features, such as those of butd; where regions are the cells of a grid, "
    "say of which by --set precomp.grid=[6,6]",
    "global": "name features with global vectors by --features, such as those of vit",
    "pixels": "give --features pixels",
}


def check_training(step: Planned) -> None:
    """Refuses features that a model cannot read, and draws from longer lists than are mined or can be.

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
    mined = settings.loss.mined()
    if mined is not None:
        _refuse_longer_draws(step, mined)
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


def check_mining(step: Planned) -> None:
    """Refuses lists that are longer than the training set.

    Args:
        step: of `mine_negatives`.

    Raises:
        UsageError: they are, and the training set is prepared.
    """
    offered, settings = _offered(step), cast(MineSettings, step.settings)
    if offered is not None and not settings.candidates:
        refuse_longer_lists(settings, offered)


def refuse_longer_lists(
    settings: MineSettings, offered: tuple[int, int], drawn: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Refuses lists that are longer than the training set.

    Args:
        settings: of mining.
        offered: see `candidates`.
        drawn: beginning of the keys that say how many captions and images are drawn from, such as `aoq.top`, and these
            numbers; None where nothing draws.

    Raises:
        UsageError: they are longer.
    """
    wanted = settings.num_texts, settings.num_images
    if wanted[0] <= offered[0] and wanted[1] <= offered[1]:
        return
    fact = (
        f"mining is to list {wanted[0]:,} captions for every image and {wanted[1]:,} images for every caption, and the "
        f"training set has {offered[0]:,} and {offered[1]:,} that are candidates"
    )
    if not min(offered):
        raise UsageError(f"{fact}; it takes two images with captions at least")
    asked = {"mine_negatives.num": wanted, **(drawn or {})}
    remedies = [
        _assignments(key, (min(texts, offered[0]), min(images, offered[1]))) for key, (texts, images) in asked.items()
    ]
    raise UsageError(f"{fact}; give {' '.join(remedies)}, or less")


def candidates(caption_image: np.ndarray) -> tuple[int, int]:
    """Captions that are candidates for every image of a training set, and images that are so for every caption.

    Args:
        caption_image: [T] row of the image of each caption.
    """
    import numpy as np

    own = np.bincount(caption_image)
    return len(caption_image) - int(own.max()), len(own) - 1


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


def _refuse_longer_draws(step: Planned, mined: Mined) -> None:
    mining, drawn = step.inputs["mine_negatives"], f"{step.need.conf}.top"
    lists, offered = cast(MineSettings, mining.settings), _offered(mining)
    if offered is not None:
        refuse_longer_lists(lists, offered, {drawn: (mined.texts, mined.images)})
    held = _held(lists)
    if mined.texts > held[0] or mined.images > held[1]:
        raise UsageError(
            f"{step.need.conf} is to draw from the first {mined.texts:,} captions and {mined.images:,} images of "
            f"mined lists that hold {held[0]:,} and {held[1]:,}; give "
            f"{_assignments(drawn, (min(mined.texts, held[0]), min(mined.images, held[1])))}, or raise "
            f"{_assignments('mine_negatives.num', (max(mined.texts, held[0]), max(mined.images, held[1])))}"
        )


def _held(lists: MineSettings) -> tuple[int, int]:
    """Captions and images that every mined list holds, windows aside."""
    return lists.rescore_texts or lists.num_texts, lists.rescore_images or lists.num_images


def _assignments(key: str, counts: tuple[int, int]) -> str:
    return f"--set {key}_texts={counts[0]} --set {key}_images={counts[1]}"


def _offered(mining: Planned) -> tuple[int, int] | None:
    """See `candidates`; None while the training set is not prepared, or where there is none.

    Images that have no features are counted too, so there may be fewer.
    """
    folder, trained = mining.inputs["prepare"].finished, mining.inputs["train"]
    if isinstance(trained.settings, TrainSettings):
        share = trained.settings.train_share
    else:  # a model that is read as it is
        share = trained.need.settings.get("train_share", 1.0)
    return None if folder is None else candidates_in(folder, share)


@functools.lru_cache(maxsize=8)
def candidates_in(prepare: Path, share: float) -> tuple[int, int] | None:
    """See `candidates`, of a prepared dataset; None where it has no training images.

    Args:
        prepare: artifact of `prepare`.
        share: of its training images that count.
    """
    from itrpipe.datasets.prepared import PreparedDataset

    prepared = PreparedDataset.open(prepare)
    return candidates(prepared.split("train").share(share).caption_image) if "train" in prepared.splits else None
