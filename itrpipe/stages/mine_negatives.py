"""`itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a trained model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.disk import require_space, write_bytes, write_json
from itrpipe.errors import DataError, UsageError
from itrpipe.stages import train
from itrpipe.stages.base import Job, Need, no_sources

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.features.embeddings import SplitEmbeddings
    from itrpipe.mining.exact import ExactMiner, MinedLists

SCHEMA_VERSION = 1
STATE, STATISTICS = "state.safetensors", "statistics.json"
BYTES_PER_CANDIDATE = 6
sources = no_sources
backbones, canonical_backbone = train.backbones, train.canonical_backbone


class MineSettings(Settings):
    """Which model mines, and how much.

    Attributes:
        method: configuration of `train` of the mining model, a round-one method.
        backbone, seed, features: of the mining model.
        num_texts: captions kept for each image.
        num_images: images kept for each caption.
        precision: of the products of embeddings; `bf16+fp32` gives the lists of `fp32` at nearly the speed of `bf16`.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    num_texts: int = Field(ge=1)
    num_images: int = Field(ge=1)
    precision: Literal["fp32", "bf16", "bf16+fp32"]

    @field_validator("backbone")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return train.canonical_backbone(value)


class Execution(Settings):
    """Settings that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: images per block at most; 0 chooses it by `memory_mib`.
        memory_mib: MiB that mining takes beside the embeddings and the lists.
        checkpoint_seconds: time between two savings of progress.
    """

    device: Literal["auto", "cpu", "cuda"]
    block: int = Field(ge=0)
    memory_mib: int = Field(ge=16)
    checkpoint_seconds: float = Field(ge=0)


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `MineSettings`."""
    return MineSettings


def label(conf: str, settings: MineSettings) -> str:
    """`exact` and the name of the mining model."""
    return f"{conf}.{train.run_label(settings.method, settings.backbone, settings.seed)}"


def needs(settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """The mining model's embeddings.

    Raises:
        UsageError: the model has none.
    """
    if not train.embeds(settings.backbone):
        raise UsageError(
            f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
            "backbone, such as vsrn, and train with `--negatives-from vsrn`"
        )
    wanted = {"backbone": settings.backbone, "seed": settings.seed, "features": settings.features}
    return {"train": Need("train", settings.method, wanted)}


def run(job: Job) -> None:
    """Writes both lists and statistics.json."""
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
    from itrpipe.mining.exact import ExactMiner

    settings, execution = job.settings, job.execution
    embeddings = read_embeddings(job.inputs["train"].folder / EMBEDDINGS, "train")
    if embeddings.measure != INNER_PRODUCT:
        raise UsageError(
            f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
            "cannot search; mine with a model whose measure is cosine"
        )
    images, texts = len(embeddings.images), len(embeddings.texts)
    _require_candidates(settings, embeddings)
    wanted = images * settings.num_texts + texts * settings.num_images
    require_space(job.folder, BYTES_PER_CANDIDATE * wanted, "the mined lists")
    miner = ExactMiner(
        embeddings.images,
        embeddings.texts,
        embeddings.caption_image,
        settings.num_texts,
        settings.num_images,
        block_size=execution.block or None,
        memory=execution.memory_mib * 2**20,
        precision=settings.precision,
        device=train.resolve_device(execution.device),
    )
    _mine(job, miner)
    lists = miner.result()
    _write(job, embeddings, lists)
    _write_statistics(job, embeddings, lists)


def _require_candidates(settings: MineSettings, embeddings: SplitEmbeddings) -> None:
    """Refuses lists that are longer than the training set, naming the setting.

    Raises:
        UsageError: an image or a caption has fewer foreign candidates than a list is to hold.
    """
    import numpy as np

    most_own = int(np.bincount(embeddings.caption_image).max())
    available = {"num_texts": len(embeddings.texts) - most_own, "num_images": len(embeddings.images) - 1}
    for name, count in available.items():
        if getattr(settings, name) > count:
            top = name.replace("num", "top")
            raise UsageError(
                f"{name} = {getattr(settings, name)} but the training set offers {count} candidates; "
                f"give --set mine_negatives.{name}={count} and for AOQ --set aoq.{top}={count}, or less"
            )


def _mine(job: Job, miner: ExactMiner) -> None:
    """Does every pending block, saving progress now and then."""
    from safetensors import SafetensorError
    from safetensors.numpy import load, save

    state = job.work / STATE
    if state.exists():
        try:
            miner.restore(load(state.read_bytes()))
        except SafetensorError as error:
            raise DataError(f"{state} is damaged ({error}); remove it and run the same command again") from None
    pending = miner.pending()
    saved_at = time.monotonic()
    with job.reporter.task("mining", miner.num_blocks, "blocks", miner.num_blocks - len(pending)) as task:
        for block in pending:
            miner.step(block)
            task.advance()
            if time.monotonic() - saved_at >= job.execution.checkpoint_seconds:
                write_bytes(state, save(miner.state()))
                saved_at = time.monotonic()


def _write(job: Job, embeddings: SplitEmbeddings, lists: MinedLists) -> None:
    from itrpipe.negatives.lists import MinedList, write_list

    texts = MinedList(embeddings.image_ids, lists.texts_per_image, lists.text_scores)
    images = MinedList(embeddings.caption_ids, lists.images_per_text, lists.image_scores)
    write_list(job.folder, "texts_for_images", texts)
    write_list(job.folder, "images_for_texts", images)


def _write_statistics(job: Job, embeddings: SplitEmbeddings, lists: MinedLists) -> None:
    """How hard the mined negatives are: their scores beside those of the positives."""
    import numpy as np

    positives = np.einsum("td,td->t", embeddings.texts, embeddings.images[embeddings.caption_image])
    statistics = {
        "positive_score": _quantiles(positives),
        "texts_for_images": _quantiles(lists.text_scores),
        "images_for_texts": _quantiles(lists.image_scores),
        "hardest_text_beats_own_caption_percent": _beaten(lists.text_scores[embeddings.caption_image, 0], positives),
        "hardest_image_beats_own_image_percent": _beaten(lists.image_scores[:, 0], positives),
    }
    write_json(job.folder / STATISTICS, statistics)
    job.metrics |= {
        "images": len(embeddings.images),
        "captions": len(embeddings.texts),
        "texts_per_image": lists.texts_per_image.shape[1],
        "images_per_text": lists.images_per_text.shape[1],
    }


def _quantiles(scores: np.ndarray) -> dict[str, float]:
    import numpy as np

    names = ("minimum", "lower_quartile", "median", "upper_quartile", "maximum")
    return dict(zip(names, np.quantile(scores, [0, 0.25, 0.5, 0.75, 1]).round(4).tolist(), strict=True))


def _beaten(hardest: np.ndarray, positives: np.ndarray) -> float:
    return round(100 * float((hardest >= positives).mean()), 2)
