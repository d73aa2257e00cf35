"""`itrpipe report`: one self-contained HTML page over evaluated runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from itrpipe.config import Settings, did_you_mean, leaves
from itrpipe.datasets.definition import DatasetDefinition, load_definition
from itrpipe.disk import write_json, write_text
from itrpipe.errors import DataError, MissingInputError
from itrpipe.stages import evaluate, mine_negatives, model_analyses, train
from itrpipe.stages.base import Job, Need, no_sources
from itrpipe.stages.prepare import image_root

if TYPE_CHECKING:
    from itrpipe.reporting.chain import Artifact

SCHEMA_VERSION = 4
PAGE, SUMMARY, RESULTS = "index.html", "summary.txt", "results.json"
WHERE = "where"
PUBLISHED = (
    *("i2t_r1", "i2t_r5", "i2t_r10", "i2t_median_rank"),
    *("t2i_r1", "t2i_r5", "t2i_r10", "t2i_median_rank"),
    *("rsum", WHERE),
)
"""What `published` may hold for a run; `where` says in which table it was published."""
sources = no_sources


class ReportSettings(Settings):
    """What the page shows.

    Attributes:
        title: of the page; empty for the dataset's name.
        examples: how many retrieval examples, mined negatives and captions with scores of their words.
        seed: of their choice.
        bootstrap_samples: resampled test sets behind an interval over test images.
        interval_level: of paired differences between runs and, over seeds and over test images, between methods.
        published: run label -> published metrics, shown beside the measured ones.
    """

    title: str
    examples: int = Field(ge=0)
    seed: int = Field(ge=0)
    bootstrap_samples: int = Field(ge=100)
    interval_level: float = Field(gt=0, lt=1)
    published: dict[str, dict[str, float | str]] = Field(default_factory=dict)

    @field_validator("published", mode="before")
    @classmethod
    def _by_label(cls, value: Any) -> Any:
        """Puts labels together again: `aoq.vsrn` arrives as a table `aoq` with a table `vsrn`, like any dotted key."""
        if not isinstance(value, Mapping):
            return value
        scores: dict[str, dict[str, Any]] = {}
        for key, number in leaves(value):
            run_label, _, metric = key.rpartition(".")
            if metric not in PUBLISHED:
                raise ValueError(f"no published score {metric!r}{did_you_mean(metric, PUBLISHED)}")
            if isinstance(number, str) != (metric == WHERE):
                raise ValueError(f"{key} = {number!r} is not {'a text' if metric == WHERE else 'a number'}")
            scores.setdefault(run_label, {})[metric] = number
        return scores


class Execution(Settings):
    """A report has no settings that leave the result alone."""


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `ReportSettings`."""
    return ReportSettings


def label(conf: str, settings: ReportSettings) -> str:
    """The configuration's name."""
    return conf


def needs(settings: ReportSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Nothing by itself: the evaluations are named by whoever asks for the report."""
    return {}


def run(job: Job) -> None:
    """Writes the page, the same as plain text, and its numbers as JSON."""
    from itrpipe.reporting.chain import FileNames
    from itrpipe.reporting.content import Options, gather
    from itrpipe.reporting.page import render
    from itrpipe.reporting.summary import results, text

    content = gather(
        [(each.folder, each.manifest) for each in job.inputs.values()],
        FileNames(
            metrics=evaluate.METRICS,
            rankings=evaluate.RANKINGS,
            cross_ranks=evaluate.CROSS_RETRIEVAL,
            matching=model_analyses.MATCHING,
            phrases=model_analyses.PHRASES,
            false_negatives=model_analyses.FALSE_NEGATIVES,
            hard_candidates=model_analyses.HARD_CANDIDATES,
            word_maps=model_analyses.WORD_MAPS,
            words=model_analyses.WORDS,
            word_corrections=model_analyses.WORD_CORRECTIONS,
            query_length=model_analyses.QUERY_LENGTH,
            alignment=model_analyses.ALIGNMENT,
            eccv_caption=model_analyses.ECCV_CAPTION,
            history=train.HISTORY,
            statistics=mine_negatives.STATISTICS,
        ),
        train.TEACHER_METHOD,
        Options(**job.settings.model_dump()),
        lambda prepare: _photographs(job, prepare),
        job.warn,
    )
    write_text(job.folder / PAGE, render(content))
    write_text(job.folder / SUMMARY, text(content))
    write_json(job.folder / RESULTS, results(content, job.settings.published))
    job.metrics |= {"runs": len(job.inputs), "kilobytes": round((job.folder / PAGE).stat().st_size / 1000)}


def _photographs(job: Job, prepare: Artifact) -> Path | None:
    """Folder of a dataset's photographs; None, with a warning, when its source cannot be read any more."""
    assert prepare.manifest is not None
    # data/<dataset>/<stage>/<name>: the definition lies in the folder of the dataset.
    definition = load_definition(prepare.folder.parents[2], job.dataset)
    try:
        return image_root(prepare.manifest.settings, prepare.folder, definition)
    except (MissingInputError, DataError) as error:
        job.warn(f"the page shows no photographs: {error}")
        return None
