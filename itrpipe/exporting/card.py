"""The cards of exported folders: a README.md whose front matter the Hugging Face hub and `datasets` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from itrpipe.evaluation.metrics import PROTOCOLS, random_recalls
from itrpipe.evaluation.results import ORACLE
from itrpipe.evaluation.tables import Number, Row, Table, as_markdown
from itrpipe.papers import Paper

LIBRARY = "itrpipe"
TASK = "image-text-retrieval"
_METRICS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
    "map_at_r": "mAP@R",
    "r_precision": "R-Precision",
}
TITLES = {}
"""Metric -> for people, in the order of the card."""
for _side, _direction in {"i2t": "Image to text", "t2i": "Text to image"}.items():
    for _name, _title in _METRICS.items():
        TITLES[f"{_side}_{_name}"] = f"{_direction} {_title}"
TITLES["rsum"] = "RSum"


def model_card(facts: Mapping[str, Any]) -> str:
    """Return the card of an exported model.

    Args:
        facts: what `model.md.j2` names. Besides texts: `license` (None leaves it to whoever publishes), `embeds` (it
            has embeddings, else it scores pairs), `photographs` (others can make its features of any), `results`
            (protocol -> metric -> value, and where there is an interval low and high) with the `level` of intervals,
            `counts` (split -> images, captions), `fingerprints` (artifact -> fingerprint), `files` (name -> what it
            is), `papers` to cite, `libraries` that open the folder, `joint` (the model as transformers has it, or
            None), `base` (hub id or name of the folder whose weights it began with, or empty) and `tables` (name ->
            Parquet file).
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    results = facts["results"]
    dataset = facts["dataset"]
    split = facts["split"]
    evaluated = []
    for protocol, metrics in results.items():
        for name, title in TITLES.items():
            if name in metrics:
                result = EvalResult(
                    task_type=TASK,
                    task_name="Image-text retrieval",
                    dataset_type=dataset,
                    dataset_name=dataset,
                    dataset_config=protocol,
                    dataset_split=split,
                    metric_type=name,
                    metric_name=title,
                    metric_value=round(metrics[name]["value"], 4),
                )
                evaluated.append(result)
    pipeline = "zero-shot-image-classification"
    if facts["embeds"]:
        pipeline = "feature-extraction"
    tags = (TASK, LIBRARY, *facts["libraries"], facts["backbone"], facts["conf"])
    made_from = ", ".join(facts["fingerprints"].values())
    data = ModelCardData(
        license=facts["license"],
        library_name=LIBRARY,
        pipeline_tag=pipeline,
        tags=list(dict.fromkeys(tags)),
        base_model=facts["base"] if "/" in facts["base"] else None,
        datasets=[dataset],
        metrics=["recall"],
        model_name=facts["title"],
        eval_results=evaluated,
        **_configs(facts["tables"], split, made_from),
    )
    columns = dict(results)
    if "full" in results:
        images, captions = facts["counts"][split]
        columns["chance"] = random_recalls(images, captions)
    rows = []
    for name, title in TITLES.items():
        if any(name in metrics for metrics in results.values()):
            cells = []
            for metrics in columns.values():
                cells.append(Number.of(metrics.get(name)))
            rows.append(Row(title, cells))
    protocols = {}
    for name in results:
        if name == ORACLE:
            protocols[name] = "as `full`, with all correct matches counted"
        else:
            protocols[name] = PROTOCOLS[name].description
    card = ModelCard.from_template(
        data,
        template_str=_template("model"),
        scores=as_markdown(Table("", list(columns), rows, head="metric")),
        protocols=protocols,
        bibtex=bibliography(facts["papers"]),
        **facts,
    )
    return f"{card}\n"


def dataset_card(facts: Mapping[str, Any]) -> str:
    """Return the card of exported negatives.

    Args:
        facts: what `negatives.md.j2` names. Besides texts: `tables` (see `itrpipe.exporting.formats.TableFiles`),
            `negatives` and `sentences` of a row at most, the latter by which maker (`synthetic`), the names of their
            `judges`, whether ids and scores are there (`with_scores`), how many `repeats` were left out, and how many
            `right` answers of those `seen`, with a probability above `drop_above`, `image_root`, whether it is a
            `whole` path, of which the last part alone is told, or images are `copied`, or the tables have them
            (`holds_images`), the hub id of the model that mined (`miner`, or empty), the number of `files`, `artifacts`
            (name -> fingerprint), `commands` and `made_from` (fingerprint of all of it).
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    patterns = {table.config: table.pattern for table in facts["tables"]}
    data = DatasetCardData(tags=[LIBRARY, "hard-negatives"], **_configs(patterns, "train", facts["made_from"]))
    card = DatasetCard.from_template(data, template_str=_template("negatives"), **facts)
    return f"{card}\n"


def _configs(
    patterns: Mapping[str, str],
    split: str,
    made_from: str,
) -> dict[str, Any]:
    """Return tables for `datasets.load_dataset`, the first by default.

    It caches what it reads by the name of the folder and these settings, not by what the files hold, so they differ
    where the files do.
    """
    configs: list[dict[str, Any]] = []
    for name, pattern in patterns.items():
        config = {
            "config_name": name,
            "description": f"changes where the files do: {made_from}",
            "data_files": [{"split": split, "path": pattern}],
        }
        if pattern.endswith(".tsv"):
            config["sep"] = "\t"
        configs.append(config)
    if not configs:
        return {}
    configs[0]["default"] = True
    return {"configs": configs}


def _template(name: str) -> str:
    return Path(__file__).with_name(f"{name}.md.j2").read_text(encoding="utf-8")


def bibliography(papers: Sequence[Paper]) -> str:
    """Return entries of BibTeX with an empty line between them, each once."""
    return "\n\n".join({paper.key: paper.bibtex for paper in papers}.values())
