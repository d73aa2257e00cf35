"""`itrpipe mine-negatives`: hardest negatives of the training set, in both directions, by a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.artifacts.disk import require_space, write_json
from itrpipe.artifacts.files import STATISTICS
from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import UsageError
from itrpipe.mining.settings import MineSettings
from itrpipe.stages.base import Job, Need, no_sources, prepare_need
from itrpipe.stages.checks import candidates, check_mining, refuse_longer_lists
from itrpipe.training import settings as training_settings
from itrpipe.training.device import resolve_device
from itrpipe.training.settings import run_label

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.features.embeddings import SplitEmbeddings
    from itrpipe.mining.exact import ExactMiner
    from itrpipe.mining.faiss_engine import FaissMiner
    from itrpipe.mining.lists import CandidateLists, MinedLists
    from itrpipe.training.saved import SavedModel

SCHEMA_VERSION = 1
STATE, RESCORED = "state.safetensors", "rescored.safetensors"
BYTES_PER_CANDIDATE, BYTES_PER_PROBABILITY = 6, 2
FAISS_BLOCK = 4_096
EXPECTED_RECALL = 0.99
"""Share of the exact candidates below which an index is called bad."""
sources, check = no_sources, check_mining
backbones, canonical_backbone = training_settings.backbones, training_settings.canonical_backbone


class Execution(Settings):
    """Settings that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: images per block at most; 0 chooses it by `memory_mib`. For `faiss` images or captions; 0 takes 4,096.
        memory_mib: MiB that mining takes beside the embeddings and the lists, and a second model beside its encodings.
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
    """`exact`, or `approximate` by an index, and the mining model, with `+` and the backbone of a second one."""
    found = conf if settings.index == "flat" else "approximate"
    models = "+".join(filter(None, (settings.backbone, settings.rescore_with)))
    return f"{found}.{run_label(settings.method, models, settings.seed)}"


def fingerprinted(settings: MineSettings) -> dict[str, Any]:
    """The settings as the fingerprint sees them: a second model's, an index's or a guard's count where there is one.

    A share of the training images counts where it is not all of them.
    """
    unused = () if settings.rescore_with else ("rescore_with", "rescore_texts", "rescore_images")
    unused += () if settings.guard != "none" else ("guard", "guard_prior", "guard_batch_size")
    unused += () if settings.index != "flat" else ("index", "num_lists", "num_probes")
    unused += () if settings.train_share != 1.0 else ("train_share",)
    return settings.model_dump(mode="json", exclude=set(unused))


def needs(settings: MineSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """The captions and the mining model's embeddings; a second model, and the features that it looks at.

    Raises:
        UsageError: the mining model has no embeddings.
    """
    if not training_settings.embeds(settings.backbone):
        raise UsageError(
            f"{settings.backbone} compares regions with words and has no embeddings to search; mine with another "
            "backbone, such as vsrn, and train with `--negatives-from vsrn`"
        )
    wanted: dict[str, Any] = {"backbone": settings.backbone, "seed": settings.seed, "features": settings.features}
    if settings.train_share != 1.0:
        wanted["train_share"] = settings.train_share
    needed = {"prepare": prepare_need(definition), "train": Need("train", settings.method, wanted)}
    if settings.rescore_with:
        second = Need("train", settings.method, {**wanted, "backbone": settings.rescore_with})
        needed |= {"extract": Need("extract", settings.features), "rescorer": second}
    return needed


def run(job: Job) -> None:
    """Writes both lists and statistics.json."""
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings
    from itrpipe.mining.guard import guarded
    from itrpipe.mining.pair_scorer import load_scoring_model
    from itrpipe.mining.windows import positive_scores

    settings = job.settings
    embeddings = read_embeddings(job.inputs["train"].folder / EMBEDDINGS, "train")
    if embeddings.measure != INNER_PRODUCT:
        raise UsageError(
            f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
            "cannot search; mine with a model whose measure is cosine"
        )
    images, texts = len(embeddings.images), len(embeddings.texts)
    # Once more: images without features are not among the embeddings.
    refuse_longer_lists(settings, candidates(embeddings.caption_image))
    wanted = images * settings.num_texts + texts * settings.num_images
    width = BYTES_PER_CANDIDATE + (BYTES_PER_PROBABILITY if settings.guard != "none" else 0)
    require_space(job.folder, width * wanted, "the mined lists")
    # Read first: what cannot score pairs is better found out before mining than after.
    second = load_scoring_model(job.inputs["rescorer"].folder) if settings.rescore_with else None
    mined, facts = _mined(job, embeddings)
    if second is not None:
        mined, positives, facts["rescored"] = _rescored(job, second, embeddings, mined)
    else:
        positives = positive_scores(embeddings.images, embeddings.texts, embeddings.caption_image)
    lists, statistics = _filtered(job, embeddings, mined, positives)
    probability: dict[str, np.ndarray] = {}
    if settings.guard != "none":
        sizes = {"prior": settings.guard_prior, "batch_size": settings.guard_batch_size}
        probability, facts["guard"] = guarded(embeddings, lists, **sizes)
    _write(job, embeddings, lists, probability)
    write_json(job.folder / STATISTICS, statistics | facts)
    _show(job, statistics | facts)


def _mined(job: Job, embeddings: SplitEmbeddings) -> tuple[MinedLists, dict[str, Any]]:
    """The lists by the mining model, and where an index was used how well it searched."""
    from itrpipe.mining.faiss_engine import FaissMiner
    from itrpipe.mining.resumable import save_progress, work_through

    miner = _miner(job, embeddings)
    work_through(miner, job.work / STATE, job.reporter, "mining", checkpoint_seconds=job.execution.checkpoint_seconds)
    if job.settings.rescore_with:  # which takes long, and mining is not to be repeated after an interruption
        save_progress(miner, job.work / STATE)
    mined = miner.result()
    if isinstance(miner, FaissMiner) and job.settings.index != "flat":
        return mined, {"search": _search_facts(job, embeddings, mined, miner)}
    return mined, {}


def _miner(job: Job, embeddings: SplitEmbeddings) -> ExactMiner | FaissMiner:
    settings, execution = job.settings, job.execution
    device = resolve_device(execution.device)
    arrays = (embeddings.images, embeddings.texts, embeddings.caption_image, settings.num_texts, settings.num_images)
    if settings.engine == "faiss":
        from itrpipe.mining.faiss_engine import FaissMiner

        return FaissMiner(
            *arrays,
            kind=settings.index,
            num_lists=settings.num_lists,
            num_probes=settings.num_probes,
            block_size=execution.block or FAISS_BLOCK,
            device="cuda" if device == "cuda" else "cpu",
        )
    from itrpipe.mining.exact import ExactMiner
    from itrpipe.mining.products import faster_in_two_steps, in_two_steps

    # Both give the same lists to the last bit, so that the machine decides.
    precision = faster_in_two_steps(device) if in_two_steps(settings.precision) else settings.precision
    return ExactMiner(
        *arrays,
        block_size=execution.block or None,
        precision=precision,
        device=device,
        memory=execution.memory_mib * 2**20,
    )


def _search_facts(job: Job, embeddings: SplitEmbeddings, mined: MinedLists, miner: FaissMiner) -> dict[str, Any]:
    """Clusters, probes and measured recall of an index; a warning where it missed much."""
    from itrpipe.mining.recall import SAMPLED_ANCHORS, search_recall
    from itrpipe.mining.statistics import DIRECTIONS

    recall = search_recall(embeddings.images, embeddings.texts, embeddings.caption_image, mined)
    lists, probes = (dict(zip(DIRECTIONS, numbers, strict=True)) for numbers in zip(*miner.clusters, strict=True))
    worst = min(DIRECTIONS, key=lambda name: recall[name])
    if recall[worst] < EXPECTED_RECALL:
        job.warn(
            f"the index found {100 * recall[worst]:.1f}% of the {worst.replace('_', ' ')} that exact search finds with "
            f"num_probes = {probes[worst]:,}; raise --set num_probes=… or search exactly with --set index=flat"
        )
    recall = {name: round(share, 4) for name, share in recall.items()}
    return {"num_lists": lists, "num_probes": probes, "recall": recall, "sampled_anchors": SAMPLED_ANCHORS}


def _rescored(
    job: Job, second: SavedModel, embeddings: SplitEmbeddings, mined: MinedLists
) -> tuple[MinedLists, np.ndarray, dict[str, Any]]:
    """The lists in the order of the second model, its scores [T] of the positives, and what was done.

    Its encodings are not saved: an interrupted run encodes again and goes on with the pairs.
    """
    from itrpipe.mining.pair_scorer import open_scorer
    from itrpipe.mining.rescore import Rescorer
    from itrpipe.mining.resumable import work_through

    settings, prepared, extracted = job.settings, job.inputs["prepare"].folder, job.inputs["extract"].folder
    model = run_label(settings.method, settings.rescore_with, settings.seed)
    device, memory = resolve_device(job.execution.device), job.execution.memory_mib * 2**20
    scorer = open_scorer(second, prepared, extracted, embeddings, device, memory)
    texts, images = settings.rescore_texts or settings.num_texts, settings.rescore_images or settings.num_images
    rescorer = Rescorer(mined, embeddings.caption_image, scorer, texts, images)
    with job.reporter.task(f"encoding by {model}", scorer.num_items, "rows") as task:
        scorer.encode(task.advance)
    path, seconds = job.work / RESCORED, job.execution.checkpoint_seconds
    work_through(rescorer, path, job.reporter, f"scoring by {model}", "pairs", rescorer.pairs, seconds)
    return rescorer.result(), rescorer.positives(), {"model": model, "texts": texts, "images": images}


def _filtered(
    job: Job, embeddings: SplitEmbeddings, mined: MinedLists, positives: np.ndarray
) -> tuple[dict[str, CandidateLists], dict[str, Any]]:
    """The lists after all filters, and the figures on both."""
    from dataclasses import asdict

    from itrpipe.mining.duplicates import DuplicateCaptions
    from itrpipe.mining.lists import drop
    from itrpipe.mining.statistics import mining_statistics
    from itrpipe.mining.windows import Window, lowest_positives

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


def _write(
    job: Job, embeddings: SplitEmbeddings, lists: Mapping[str, CandidateLists], probability: Mapping[str, np.ndarray]
) -> None:
    from itrpipe.negatives.lists import MinedList, write_list

    for direction, ids in (("texts_for_images", embeddings.image_ids), ("images_for_texts", embeddings.caption_ids)):
        mined = MinedList(ids, lists[direction].candidates, lists[direction].scores, probability.get(direction))
        write_list(job.folder, direction, mined)
        job.metrics[direction] = mined.candidates.shape[1]
    job.metrics |= {"images": len(embeddings.images), "captions": len(embeddings.texts)}


def _show(job: Job, statistics: Mapping[str, Any]) -> None:
    """Prints the table of scores and what else is known of the lists."""
    from itrpipe.mining.statistics import sentences, table_rows

    rows = table_rows(statistics)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        job.reporter.say("  " + "  ".join(cells).rstrip())
    for sentence in sentences(statistics):
        job.reporter.say(f"  {sentence}")
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        job.reporter.say(f"  {repeats:,} captions stand word for word under another image too")
