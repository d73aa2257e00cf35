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
from itrpipe.stages.base import Job, Need, no_sources, prepare_need

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitEmbeddings
    from itrpipe.mining.exact import ExactMiner
    from itrpipe.mining.faiss_engine import FaissMiner
    from itrpipe.mining.lists import CandidateLists, MinedLists

SCHEMA_VERSION = 1
STATE, STATISTICS = "state.safetensors", "statistics.json"
BYTES_PER_CANDIDATE = 6
sources = no_sources
backbones, canonical_backbone = train.backbones, train.canonical_backbone


class WindowSettings(Settings):
    """Which of the candidates are kept, in the words of sentence-transformers; see `itrpipe/mining/windows.py`.

    Attributes:
        range_min, range_max: ranks, counted from the hardest, between which candidates are kept.
        min_score, max_score: scores between which they are kept.
        absolute_margin, relative_margin: distance to the score of the positive that they keep.
    """

    range_min: int = Field(default=0, ge=0)
    range_max: int | None = Field(default=None, ge=1)
    min_score: float | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None


class MineSettings(Settings):
    """Which model mines, and how much.

    Attributes:
        method: configuration of `train` of the mining model, a round-one method.
        backbone, seed, features: of the mining model.
        drop_duplicates: drop candidates whose caption is word for word one of the positive's.
        window: which of the candidates are kept.
        num_texts: captions kept for each image.
        num_images: images kept for each caption.
        engine: `torch`, or `faiss` with a flat index; they differ in the order of equal scores alone.
        precision: of the products of embeddings by `torch`; `bf16+fp32` gives the lists of `fp32` at nearly the speed
            of `bf16`.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    num_texts: int = Field(ge=1)
    num_images: int = Field(ge=1)
    engine: Literal["torch", "faiss"]
    precision: Literal["fp32", "bf16", "bf16+fp32"]
    drop_duplicates: bool
    window: WindowSettings = Field(default_factory=WindowSettings)

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
    """The captions and the mining model's embeddings.

    Raises:
        UsageError: the model has none.
    """
    if not train.embeds(settings.backbone):
        raise UsageError(
            f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
            "backbone, such as vsrn, and train with `--negatives-from vsrn`"
        )
    wanted = {"backbone": settings.backbone, "seed": settings.seed, "features": settings.features}
    return {"prepare": prepare_need(definition), "train": Need("train", settings.method, wanted)}


def run(job: Job) -> None:
    """Writes both lists and statistics.json."""
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings

    settings = job.settings
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
    miner = _miner(job, embeddings)
    _mine(job, miner)
    lists, statistics = _filtered(job, embeddings, miner.result())
    _write(job, embeddings, lists)
    write_json(job.folder / STATISTICS, statistics)
    _show(job, statistics)


def _miner(job: Job, embeddings: SplitEmbeddings) -> ExactMiner | FaissMiner:
    settings, execution = job.settings, job.execution
    device = train.resolve_device(execution.device)
    arrays = (embeddings.images, embeddings.texts, embeddings.caption_image, settings.num_texts, settings.num_images)
    if settings.engine == "faiss":
        from itrpipe.mining.faiss_engine import FaissMiner

        return FaissMiner(*arrays, device="cuda" if device == "cuda" else "cpu")
    from itrpipe.mining.exact import ExactMiner

    return ExactMiner(
        *arrays,
        block_size=execution.block or None,
        precision=settings.precision,
        device=device,
        memory=execution.memory_mib * 2**20,
    )


def _filtered(
    job: Job, embeddings: SplitEmbeddings, mined: MinedLists
) -> tuple[dict[str, CandidateLists], dict[str, Any]]:
    """The lists after all filters, and the figures on both."""
    from dataclasses import asdict

    from itrpipe.mining.duplicates import DuplicateCaptions
    from itrpipe.mining.lists import drop
    from itrpipe.mining.statistics import mining_statistics
    from itrpipe.mining.windows import Window, lowest_positives, positive_scores

    positives = positive_scores(embeddings.images, embeddings.texts, embeddings.caption_image)
    anchors = {
        "texts_for_images": lowest_positives(positives, embeddings.caption_image, len(embeddings.images)),
        "images_for_texts": positives,
    }
    found = {"texts_for_images": mined.texts_for_images, "images_for_texts": mined.images_for_texts}
    same = DuplicateCaptions(_captions(job, embeddings), embeddings.caption_image)
    duplicates = same.report(found["texts_for_images"], found["images_for_texts"])
    window = Window(**job.settings.window.model_dump())
    lists, dropped = {}, {}
    for name, each in found.items():
        reasons = window.reasons(each, anchors[name])
        if job.settings.drop_duplicates:
            marked = same.of_texts(each) if name == "texts_for_images" else same.of_images(each)
            reasons = {"duplicates": marked, **reasons}
        lists[name], dropped[name] = drop(each, reasons)
    statistics = mining_statistics(lists, positives, embeddings.caption_image, dropped)
    return lists, {**statistics, "duplicates": asdict(duplicates)}


def _captions(job: Job, embeddings: SplitEmbeddings) -> list[str]:
    """The training captions in the order of their embeddings."""
    from itrpipe.datasets.prepared import PreparedDataset

    split = PreparedDataset.open(job.inputs["prepare"].folder).split("train")
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    return [texts[caption_id] for caption_id in embeddings.caption_ids.tolist()]


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


def _mine(job: Job, miner: ExactMiner | FaissMiner) -> None:
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


def _write(job: Job, embeddings: SplitEmbeddings, lists: Mapping[str, CandidateLists]) -> None:
    from itrpipe.negatives.lists import MinedList, write_list

    for direction, ids in (("texts_for_images", embeddings.image_ids), ("images_for_texts", embeddings.caption_ids)):
        mined = MinedList(ids, lists[direction].candidates, lists[direction].scores)
        write_list(job.folder, direction, mined)
        job.metrics[direction] = mined.candidates.shape[1]
    job.metrics |= {"images": len(embeddings.images), "captions": len(embeddings.texts)}


def _show(job: Job, statistics: Mapping[str, Any]) -> None:
    """Prints the table of scores, and what was dropped or repeats a positive word for word."""
    from itrpipe.mining.statistics import table_rows

    rows = table_rows(statistics)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        job.reporter.say("  " + "  ".join(cells).rstrip())
    for direction, counts in statistics["dropped"].items():
        for reason, count in counts.items():
            total = statistics["candidates"][direction] + sum(counts.values())
            job.reporter.say(f"  dropped {count:,} of {total:,} {direction.replace('_', ' ')} because of {reason}")
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        job.reporter.say(f"  {repeats:,} captions stand word for word under another image too")
