"""The model card: a README.md whose front matter the Hugging Face hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from itrpipe.evaluation.metrics import PROTOCOLS
from itrpipe.exporting.citations import bibliography
from itrpipe.papers import Paper

TEMPLATE = "card.md.j2"
LIBRARY = "itrpipe"
TASK = "image-text-retrieval"
_SIDES = {"i2t": "Image to text", "t2i": "Text to image"}
_METRICS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
    "map_at_r": "mAP@R",
    "r_precision": "R-Precision",
}
_ORACLE = {"oracle": "as `full`, with all correct matches counted"}

Results = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Protocol -> metric -> `value`, and where there is an interval `low` and `high`."""


@dataclass(frozen=True)
class Elsewhere:
    """How other libraries open the folder.

    Attributes:
        architecture: class of transformers that opens it, and that sentence-transformers opens; empty where none does.
        reason: why none does, where a dual encoder has none.
        padded: whether captions are padded to the model's longest.
        difference: how an image processor frames photographs otherwise than itrpipe; empty where it does not.
        open_clip: whether there are files for open_clip.
        mteb: whether its embeddings can be compared there.
    """

    architecture: str = ""
    reason: str = ""
    padded: bool = False
    difference: str = ""
    open_clip: bool = False
    mteb: bool = False


@dataclass(frozen=True)
class Card:
    """What a model card tells.

    Attributes:
        title: of the model, for people.
        run: name of the model, such as `aoq.vsrn`.
        backbone, conf: it was trained with.
        dataset: that it was trained on.
        split: that it was evaluated on.
        license: identifier of the hub; None leaves it to whoever publishes.
        embeds: whether it has embeddings, which one index can search, or scores pairs.
        reads: what it takes for an image.
        photographs: whether others can make that of any photograph, which they cannot where features were imported or
            made with weights of one machine.
        results: of the evaluation.
        level: share of resampled test sets that an interval holds.
        counts: split -> numbers of images and captions.
        fingerprints: artifact -> fingerprint, from the data to the evaluation.
        commands: that made model and evaluation.
        trained: when, as the manifest has it.
        versions: package -> version that trained it.
        files: name -> what it is.
        papers: to cite.
        elsewhere: how other libraries open it.
        tables: name -> Parquet file, which `datasets` opens by the name.
    """

    title: str
    run: str
    backbone: str
    conf: str
    dataset: str
    split: str
    license: str | None
    embeds: bool
    reads: str
    photographs: bool
    results: Results
    level: float
    counts: Mapping[str, tuple[int, int]]
    fingerprints: Mapping[str, str]
    commands: tuple[str, ...]
    trained: str
    versions: Mapping[str, str]
    files: Mapping[str, str]
    papers: tuple[Paper, ...]
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def protocols(self) -> dict[str, str]:
        """Protocol -> what is ranked, of those measured."""
        known = {name: protocol.description for name, protocol in PROTOCOLS.items()} | _ORACLE
        return {name: known[name] for name in self.results}

    @property
    def chance(self) -> dict[str, float]:
        """What a random order of the split may expect of the metrics of `full`; nothing where that was not measured."""
        from itrpipe.evaluation.metrics import random_recalls  # not needed to plan

        return random_recalls(*self.counts[self.split]) if "full" in self.results else {}

    @property
    def table(self) -> list[tuple[str, list[str]]]:
        """Metrics for people, each with its value and interval under every protocol, and by chance."""
        names = dict.fromkeys(name for metrics in self.results.values() for name in metrics)
        ordered = sorted(names, key=_order)
        rows = [(name, [_cell(values.get(name)) for values in self.results.values()]) for name in ordered]
        chance = {name: f"{value:.1f}" for name, value in self.chance.items()}
        return [(metric_title(name), [*row, chance.get(name, "")] if chance else row) for name, row in rows]

    @property
    def bibtex(self) -> str:
        """Entries of all papers."""
        return bibliography(self.papers)


def metric_title(name: str) -> str:
    """A metric for people: `i2t_r1` is `Image to text R@1`."""
    side, _, metric = name.partition("_")
    return f"{_SIDES[side]} {_METRICS[metric]}" if metric else "RSum"


def _order(name: str) -> tuple[int, int]:
    side, _, metric = name.partition("_")
    if not metric:
        return len(_SIDES), 0
    return list(_SIDES).index(side), list(_METRICS).index(metric)


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return ""
    interval = f" [{found['low']:.1f}, {found['high']:.1f}]" if "low" in found else ""
    return f"{found['value']:.1f}{interval}"


def front_matter(card: Card) -> str:
    """YAML that the hub reads, without the lines that set it off."""
    from huggingface_hub import ModelCardData  # not needed to plan

    # `datasets` caches what it reads by the name of the folder and these settings, not by what the files hold.
    made_from = f"made from {', '.join(card.fingerprints.values())}"
    tables: list[Any] = [
        {"config_name": name, "description": made_from, "data_files": [{"split": card.split, "path": path}]}
        for name, path in card.tables.items()
    ]
    known: dict[str, Any] = {"configs": tables} if tables else {}
    return ModelCardData(
        license=card.license,
        library_name=LIBRARY,
        pipeline_tag="feature-extraction" if card.embeds else "zero-shot-image-classification",
        tags=list(dict.fromkeys((TASK, LIBRARY, *_libraries(card.elsewhere), card.backbone, card.conf))),
        datasets=[card.dataset],
        metrics=["recall"],
        model_name=card.title,
        eval_results=_eval_results(card),
        **known,
    ).to_yaml()


def _libraries(elsewhere: Elsewhere) -> list[str]:
    native = ["transformers", "sentence-transformers"] if elsewhere.architecture else []
    return [*native, *(["open_clip"] if elsewhere.open_clip else [])]


def _eval_results(card: Card) -> list[Any]:
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=TASK,
            task_name="Image-text retrieval",
            dataset_type=card.dataset,
            dataset_name=card.dataset,
            dataset_config=protocol,
            dataset_split=card.split,
            metric_type=name,
            metric_name=metric_title(name),
            metric_value=round(metrics[name]["value"], 4),
        )
        for protocol, metrics in card.results.items()
        for name in sorted(metrics, key=_order)
    ]


def template(path: Path) -> Template:
    """A template of Markdown; a name that it is not given is an error."""
    environment = Environment(
        loader=FileSystemLoader(path.parent),
        autoescape=False,  # Markdown; every name in it has been checked by whoever gave it
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(path.name)


def render(card: Card) -> str:
    """The whole README.md."""
    return template(Path(__file__).parent / TEMPLATE).render(card=card, front_matter=front_matter(card))
