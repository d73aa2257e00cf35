"""Options of a report, and published scores beside measured ones: which are reached, missed, or come close."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from itrpipe.config import Settings, did_you_mean, leaves
from itrpipe.storage.disk import read_json

RSUM = "rsum"
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")

Verdict = Literal["OK", "close", "FAIL", "shown", "missing", "tiny"]
"""`tiny` is not compared at all, an empty one not in this direction."""


class Tolerance(Settings):
    """The distance that a measured score may have from the published one, in points of RSum.

    A sum of n of the six recalls may be off by sqrt(n / 6) of it: errors of single recalls are taken for independent.

    Attributes:
        ok: at most so far off counts as reproduced.
        close: at most so far off counts as close; what is beyond fails.
    """

    ok: float = Field(default=1.0, ge=0)
    close: float = Field(default=3.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Tolerance:
        if self.close < self.ok:
            raise ValueError(f"close = {self.close:g} is less than ok = {self.ok:g}")
        return self

    def verdict(
        self,
        published: Published,
        measured: float | None,
        expected: float,
        recalls: int,
    ) -> Verdict:
        """Return the verdict on the measured sum of so many recalls, in percent points, beside the published one."""
        if measured is None:
            return "missing"
        if not published.judged:
            return "shown"
        distance = abs(measured - expected) / math.sqrt(recalls / len(RECALLS))
        if distance <= self.ok:
            return "OK"
        if distance <= self.close:
            return "close"
        return "FAIL"


class Published(Settings):
    """Scores that were published for one run under one protocol.

    Scores may stand among the other keys, as in `{where = "AOQ Table 2", rsum = 486.3}`. A score is a recall, `rsum`,
    or a number in another file of the evaluation by its path: `matching.uniform.i2t.global`.

    Attributes:
        run: label of the run, or name of its evaluation where several share the label.
        title: of the run, for people; empty for `run`.
        where: the table it was published in.
        protocol: it was measured under.
        note: what a reader has to know.
        judged: whether the measured scores are compared with these; else both are shown.
        scores: metric -> percent.
    """

    run: str = ""
    title: str = ""
    where: str = Field(min_length=1)
    protocol: Literal["full", "coco-1k", "coco-5k"] = "full"
    note: str = ""
    judged: bool = True
    scores: dict[str, float] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _gather_scores(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "scores" in value:
            return value
        fields, scores = {}, {}
        for key, given in value.items():
            if key in cls.model_fields:
                fields[key] = given
            else:
                scores[key] = given
        return {**fields, "scores": scores}

    @field_validator("scores")
    @classmethod
    def _known_scores(cls, value: dict[str, float]) -> dict[str, float]:
        known = (*RECALLS, RSUM)
        for name in value:
            if name not in known and "." not in name:
                raise ValueError(f"no published score {name!r}{did_you_mean(name, known)}")
        return value

    @property
    def source(self) -> str:
        """Return the table and what has to be known about it."""
        return f"{self.where}; {self.note}" if self.note else self.where

    @property
    def name(self) -> str:
        """Return the run, for people."""
        return self.title or self.run


class ReportSettings(Settings):
    """Options of the page.

    Attributes:
        title: of the page; empty for the dataset's name.
        examples: how many retrieval examples, mined negatives and captions with scores of their words.
        seed: of the choice of captions with scores of their words.
        bootstrap_samples: resampled test sets behind an interval over test images.
        interval_level: of paired differences between runs and, over seeds and over test images, between methods.
        published: scores of whichever runs, shown beside the measured ones and compared with them.
        tolerance: of that comparison.
        tiny: the runs are of toy models, and nothing published is compared with them.
        names: folder of a training artifact and the name of its model, for each that has one.
        compare: names of the evaluations of the first of two models, which is the baseline of the other one; empty for
            a page over all runs.
        before: name of an evaluation and that of the same training without people's decisions, for each that has one.
    """

    title: str
    examples: int = Field(ge=0, le=10_000)
    seed: int = Field(ge=0)
    bootstrap_samples: int = Field(ge=100, le=1_000_000)
    interval_level: float = Field(gt=0, lt=1)
    published: tuple[Published, ...] = ()
    tolerance: Tolerance = Tolerance()
    tiny: bool = False
    names: tuple[tuple[str, str], ...] = ()
    compare: tuple[str, ...] = ()
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Score:
    """One published score and the measured one; `measured` is None where there is none."""

    metric: str
    expected: float
    measured: float | None
    verdict: Verdict


@dataclass(frozen=True)
class RunScores:
    """All scores of one publication about one run, beside the measured ones.

    Attributes:
        published: what was published.
        total: RSum, or the sum of the scores that are compared.
        scores: all of them.
    """

    published: Published
    total: Score
    scores: list[Score]


def compare_published(
    published: Sequence[Published],
    evaluations: Mapping[str, Path],
    tolerance: Tolerance,
    *,
    tiny: bool,
) -> list[RunScores]:
    """Compare what was published with what was measured; runs without an evaluation are `missing`.

    Args:
        published: in the order they are shown in.
        evaluations: run, as it is called there, -> folder of its finished evaluation.
        tolerance: of the comparison.
        tiny: measured on a fraction of the data with toy models, so that nothing is to be judged.

    Raises:
        DataError: a file of an evaluation is damaged.
    """
    compared = []
    for entry in published:
        folder = evaluations.get(entry.run)
        scores = []
        for metric, expected in entry.scores.items():
            measured = None if folder is None else _measured(folder, entry.protocol, metric)
            recalls = len(RECALLS) if metric == RSUM else 1
            verdict = tolerance.verdict(
                entry,
                measured,
                expected,
                recalls,
            )
            scores.append(Score(metric, expected, measured, verdict))
        # RSum where it was published, else the sum of all scores.
        chosen = [score for score in scores if score.metric == RSUM] or scores
        total = chosen[0]
        if len(chosen) > 1:
            expected = sum(entry.scores.values())
            parts = [score.measured for score in chosen if score.measured is not None]
            measured = sum(parts) if len(parts) == len(chosen) else None
            verdict = tolerance.verdict(
                entry,
                measured,
                expected,
                len(chosen),
            )
            total = Score(f"sum of {len(chosen)} scores", expected, measured, verdict)
        if tiny and folder is not None:
            total = replace(total, verdict="tiny")
            scores = [replace(score, verdict="tiny") for score in scores]
        compared.append(RunScores(entry, total, scores))
    return compared


def _measured(
    folder: Path,
    protocol: str,
    metric: str,
) -> float | None:
    """Return a number of an evaluation; None if it was not measured, as under a protocol that needs more images."""
    stem, _, path = metric.partition(".")
    if not path:
        stem, path = "metrics", f"{protocol}.{metric}.value"
    file = folder / f"{stem}.json"
    if not file.exists():
        return None
    return dict(leaves(read_json(file))).get(path)


def table_lines(compared: Sequence[RunScores]) -> list[str]:
    """Return a line for each run, with its verdict and both numbers; the runs are aligned."""
    width = 0
    for run_scores in compared:
        if len(run_scores.published.name) <= 40:  # longer ones stick out, so that the others stay near their numbers
            width = max(width, len(run_scores.published.name))
    lines = []
    for run_scores in compared:
        published, total = run_scores.published, run_scores.total
        metric = total.metric.removesuffix(".value").removesuffix(".percent")
        if published.protocol != "full":
            metric = f"{published.protocol} {metric}"
        measured = "not measured" if total.measured is None else f"got {total.measured:.1f}"
        numbers = f"expected {total.expected:.1f}, {measured}"
        lines.append(f"{total.verdict:<7}  {published.name:<{width}}  {metric} {numbers} ({published.source})")
    return lines


def expected_json(
    compared: Sequence[RunScores],
    tolerance: Tolerance,
    *,
    tiny: bool,
) -> dict[str, Any]:
    """Return the content of `expected.json`."""
    runs = []
    for run_scores in compared:
        run = run_scores.published.model_dump(include={"where", "note", "protocol", "run"})
        run["title"] = run_scores.published.name
        run["verdict"] = run_scores.total.verdict
        run["headline"] = asdict(run_scores.total)
        run["scores"] = list(map(asdict, run_scores.scores))
        runs.append(run)
    return {
        "tolerance": tolerance.model_dump(),
        "tiny": tiny,
        "runs": runs,
    }
