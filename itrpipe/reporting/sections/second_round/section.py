"""Whether a second training is worth it: hard negatives in batches of the first and in the whole training set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itrpipe.evaluation.second_round import ACTIONS, Advice, beaten_by_size, recommend, signals
from itrpipe.reporting.collapse import why_collapsed
from itrpipe.reporting.collect import Run
from itrpipe.reporting.plots import Key, Look, Plot, legend_of, looks_by_label, panel, plain_ticks, svg
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.sections.curves.section import lines
from itrpipe.reporting.series import Series, series_of
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table
from itrpipe.storage.artifact import SECOND_ROUND
from itrpipe.training.settings import is_start_of

TITLE, ORDER = "Is a second training worth it here?", 85
READS = (SECOND_ROUND,)
_SPANS = [("Training", 2), ("Beaten by the hardest", 2), ("Correct matches among the hardest", 3), ("RSum", 2), ("", 1)]
_COLUMNS = (
    "images",
    "batch",
    "of a batch",
    "of all",
    "of a batch",
    "of all",
    "top 10",
    "last third",
    "over val",
    "advice",
)
_CAPTION = (
    "Of 500 training pairs, or all where there are fewer, mean of both directions. Beaten: percentage that scores "
    "below the hardest negative of a batch (expected), and of the whole training set. Correct matches: percentage "
    "of these that describe the image after all, and of the 10 hardest of the training set; ≈: by FNE's estimate, "
    "where the dataset does not know. RSum, last third: points that validation gained over the last third of the "
    f"epochs; over val: RSum on as many training images less that of the validation. {DASH}: not known."
)


@dataclass(frozen=True)
class SecondRound:
    """What was found about first trainings.

    Attributes:
        keys: how they are drawn.
        plots: pairs that are beaten, by size of batch.
        table: a row for each run.
        advice: of each series the first run, with what to do.
        evidence: how sure that is; empty where nothing is to be mined.
    """

    keys: list[Key]
    plots: list[Plot]
    table: SpannedTable
    advice: list[tuple[Run, Advice]]
    evidence: str


def view(source: Source) -> SecondRound | None:
    """Shows every run once that has not collapsed; the test set does not matter."""
    runs = list({run.label: run for group in source.groups for run in group.runs}.values())
    measured = [(run, found) for run in runs if (found := run.figures(SECOND_ROUND)) and not why_collapsed(run)]
    if not measured:
        return None
    series = series_of([run for run, _ in measured])
    advice = [
        (run, recommend(run.figures(SECOND_ROUND), run.members[0].named, _start_of(run, runs)))
        for run in _first_rounds([each.first for each in series])
    ]
    rows = [Row(run.name, _cells(found, _start_of(run, runs)), run.label) for run, found in measured]
    table = SpannedTable(Table("Hard negatives of the first training", list(_COLUMNS), rows, _CAPTION), _SPANS)
    of_all = looks_by_label(series_of(runs))  # a colour is one method on the whole page
    looks = {each.name: of_all[each.first.label] for each in series}
    evidence = next((each.evidence for _, each in advice if each.evidence), "")
    return SecondRound(legend_of(looks), [_plot(series, looks)], table, advice, evidence)


def _first_rounds(runs: Sequence[Run]) -> list[Run]:
    """Without baselines that are another one, trained for longer."""

    def kind(run: Run) -> tuple[str, str, bool]:
        model = run.figures(SECOND_ROUND)["model"]
        return run.backbone, model["objective"], bool(run.members[0].named)

    shortest = sorted(runs, key=lambda run: run.figures(SECOND_ROUND)["model"]["schedule"]["epochs"])
    first = {kind(run): run for run in reversed(shortest)}
    return [run for run in runs if run.members[0].named or not run.is_control or first[kind(run)] is run]


def _plot(series: Sequence[Series[Run]], looks: Mapping[str, Look]) -> Plot:
    """Share of the pairs that the hardest of a batch beats, over the size of the batch; of the dataset a level line."""
    figure, axes = panel()
    for each in series:
        found = [run.figures(SECOND_ROUND) for run in each.all]
        shares, sums = [beaten_by_size(one) for one in found], [signals(one) for one in found]
        sizes, look = list(shares[0]), looks[each.name]
        lines(axes, sizes, [list(one.values()) for one in shares], look)
        for one, own in zip(sums, shares, strict=True):
            axes.plot([one.batch_size], [own[one.batch_size]], "o", markersize=6, color=look.colour)
        level = sum(one.dataset_beaten for one in sums) / len(sums)
        axes.axhline(level, color=look.colour, linewidth=1.0, linestyle=(0, (1, 2)))
    axes.set_xscale("log", base=2)
    plain_ticks(axes, sorted({size for each in series for size in beaten_by_size(each.first.figures(SECOND_ROUND))}))
    axes.set_ylim(0, 100)
    axes.set_xlabel("pairs in a batch (log scale)")
    axes.set_ylabel("pairs beaten, %")
    title = "Pairs that the hardest negative beats"
    return Plot(title, svg(figure, "second-round", f"{title}, by size of the batch"))


def _start_of(run: Run, runs: Sequence[Run]) -> float | None:
    """RSum on validation of the pretrained model that a run began from, where that was evaluated too."""
    tuned = run.members[0].artifact.manifest
    for other in runs:
        manifest = other.members[0].artifact.manifest if len(other.members) == 1 else None
        if tuned is not None and manifest is not None and is_start_of(manifest.settings, tuned.settings):
            return manifest.metrics.get("validation_rsum")
    return None


def _cells(found: Mapping[str, Any], start: float | None = None) -> list[Cell]:
    sums = signals(found)
    about = "≈ " if sums.estimated else ""
    texts = [
        f"{sums.images:,}",
        f"{sums.batch_size:,}",
        _percent(sums.batch_beaten),
        _percent(sums.dataset_beaten),
        *(_percent(share, about) for share in (sums.batch_false, sums.dataset_false, sums.top_false)),
        DASH if sums.gained is None else f"{sums.gained:+.1f}",
        f"{sums.gap:+.1f}",
        _advised(recommend(found, start=start)),
    ]
    return [Cell(name, text) for name, text in zip(_COLUMNS, texts, strict=True)]


def _advised(advice: Advice) -> str:
    return "more images first" if advice.by_heart else ACTIONS[advice.action]


def _percent(value: float | None, about: str = "") -> str:
    return DASH if value is None else f"{about}{value:.1f} %"
