"""`itrpipe evaluate`: metrics and rankings of one trained model on one split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from itrpipe.config import Settings, did_you_mean
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.disk import write_json
from itrpipe.stages import train
from itrpipe.stages.base import Job, Need, no_sources, prepare_need

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.evaluation.ranks import Ranks
    from itrpipe.features.embeddings import SplitEmbeddings
    from itrpipe.features.scores import SplitScores

SCHEMA_VERSION = 1
METRICS, RANKINGS = "metrics.json", "rankings.parquet"
FULL, ORACLE = "full", "oracle"
sources = no_sources
backbones, canonical_backbone = train.backbones, train.canonical_backbone


class EvaluateSettings(Settings):
    """What is evaluated and how.

    Attributes:
        method: configuration of `train` (triplet, aoq).
        backbone, seed, features: of the trained model.
        split: which split is ranked.
        protocols: names in `itrpipe.evaluation.protocols`; those that need more images than there are do not apply.
        bootstrap_samples: resampled test sets behind every interval.
        interval_level: share of them that an interval holds.
        ranking_depth: candidates kept for each query.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    split: Literal["train", "val", "test"]
    protocols: tuple[str, ...]
    bootstrap_samples: int = Field(ge=100)
    interval_level: float = Field(gt=0, lt=1)
    ranking_depth: int = Field(ge=1)

    @field_validator("protocols")
    @classmethod
    def _known_protocols(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = ("full", "coco-1k", "coco-5k")
        for name in value:
            if name not in known:
                raise ValueError(f"no protocol {name!r}{did_you_mean(name, known)}")
        return value

    @field_validator("backbone")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return train.canonical_backbone(value)


class Execution(Settings):
    """Evaluation has no settings that leave the result alone."""


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `EvaluateSettings`."""
    return EvaluateSettings


def label(conf: str, settings: EvaluateSettings) -> str:
    """Name of the run, with the split when it is not the test split."""
    run = train.run_label(settings.method, settings.backbone, settings.seed)
    return run if settings.split == "test" else f"{run}.{settings.split}"


def needs(settings: EvaluateSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """The trained model's embeddings, and the dataset for its truth."""
    wanted = {"backbone": settings.backbone, "seed": settings.seed, "features": settings.features}
    return {"prepare": prepare_need(definition), "train": Need("train", settings.method, wanted)}


def run(job: Job) -> None:
    """Writes metrics.json and rankings.parquet."""
    from itrpipe.evaluation.protocols import PROTOCOLS, evaluate
    from itrpipe.evaluation.ranks import ranks
    from itrpipe.evaluation.rsum import CUTOFFS
    from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
    from itrpipe.features.scores import SCORES, read_scores

    settings = job.settings
    folder = job.inputs["train"].folder
    if train.embeds(settings.backbone):
        embeddings = read_embeddings(folder / EMBEDDINGS, settings.split)
    else:
        embeddings = read_scores(folder / SCORES, settings.split)
    scores = embeddings.scores()
    full = ranks(scores, embeddings.caption_image)
    results: dict[str, Any] = {FULL: _with_intervals(full, embeddings.caption_image, settings)}
    for name in settings.protocols:
        if name != FULL and PROTOCOLS[name].applies(len(scores)):
            values = evaluate(name, scores, embeddings.caption_image)
            results[name] = {metric: {"value": value} for metric, value in values.items()}
    oracle = _oracle_ranks(job, scores, embeddings)
    if oracle is not None:
        results[ORACLE] = _with_intervals(oracle, embeddings.caption_image, settings)
    write_json(job.folder / METRICS, results)
    _write_rankings(job, scores, embeddings, full, oracle)
    for direction in ("i2t", "t2i"):
        recalls = [results[FULL][f"{direction}_r{k}"]["value"] for k in CUTOFFS]
        job.metrics[f"{direction} R@1/5/10"] = " / ".join(f"{value:.1f}" for value in recalls)
    for name, values in results.items():
        job.metrics[f"{name} rsum"] = round(values["rsum"]["value"], 2)


def _with_intervals(split: Ranks, caption_image: np.ndarray, settings: EvaluateSettings) -> dict[str, dict[str, float]]:
    from itrpipe.evaluation.bootstrap import intervals

    found = intervals(split, caption_image, settings.bootstrap_samples, settings.interval_level)
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}


def _oracle_ranks(job: Job, scores: np.ndarray, embeddings: SplitEmbeddings | SplitScores) -> Ranks | None:
    """Ranks with every true match counted, where the dataset knows them."""
    import numpy as np

    from itrpipe.datasets.truth import read_truth
    from itrpipe.evaluation.oracle import oracle_ranks

    truth = read_truth(job.inputs["prepare"].folder, embeddings.image_ids, embeddings.caption_ids)
    if truth is None:
        return None
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in truth])])
    return oracle_ranks(scores, offsets, np.concatenate(truth))


def _write_rankings(
    job: Job, scores: np.ndarray, embeddings: SplitEmbeddings | SplitScores, full: Ranks, oracle: Ranks | None
) -> None:
    """One row per query of either direction: the rank of its best true match and its best candidates."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from itrpipe.evaluation.rankings import rankings

    depth = min(job.settings.ranking_depth, *scores.shape)
    tables = []
    sides = zip(
        ("i2t", "t2i"),
        ("images_to_texts", "texts_to_images"),
        rankings(scores, depth, embeddings.image_ids.tolist(), embeddings.caption_ids.tolist()),
        (embeddings.image_ids, embeddings.caption_ids),
        (embeddings.caption_ids, embeddings.image_ids),
        strict=True,
    )
    for direction, side, found, queries, candidates in sides:
        columns = {
            "direction": pa.array([direction] * len(queries)),
            "query_id": pa.array(queries.tolist(), pa.string()),
            "rank": pa.array(getattr(full, side), pa.int32()),
            "oracle_rank": pa.array(getattr(oracle, side), pa.int32())
            if oracle
            else pa.nulls(len(queries), pa.int32()),
            "candidate_ids": _lists(candidates[found.indices], depth, pa.string()),
            "scores": _lists(found.scores.astype("float32"), depth, pa.float32()),
        }
        tables.append(pa.table(columns))
    pq.write_table(pa.concat_tables(tables), job.folder / RANKINGS, compression="zstd")


def _lists(matrix: np.ndarray, width: int, kind: Any) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1).tolist(), kind), width)
