"""Prints what each kind of negatives gave on photographs with pretrained encoders, as tables of Markdown.

.venv/bin/python docs/flickr8k.py data/flickr8k/report/*/results.json

A setting is a backbone with what of its encoders is trained, a share of the training images and a kind of loss. A
difference is to the longest baseline of the setting, over the seeds that both have.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from study import Run, by_method, cell, gain, metric

TRAINED = {"both": "heads of frozen encoders", "vision": "text encoder and heads", "text": "vision encoder and heads"}
"""Value of `freeze` -> what is trained."""
LOSSES = {"contrastive": "InfoNCE", "ascl": "AsCL"}
"""Method -> kind of loss, where it is not that of triplets."""
RSUM = metric("full", "rsum")


def judged_rsum(run: Run) -> float | None:
    """Reads the RSum with what judges call right; None where no judge was asked."""
    judged = run.get("corrected", {}).get("by_judges")
    return judged and judged["recalls"]["rsum"]["value"]


def told_apart(generator: str, kind: str, by: str = "percent") -> Callable[[Run], float | None]:
    """Reads the percent of edits of a kind that a run, or a model without images, tells from captions."""

    def read(run: Run) -> float | None:
        figures = run.get("discrimination", {}).get(generator, {}).get("kinds", {}).get(kind)
        return figures and figures[by]["value"]

    return read


def setting_of(run: Run) -> str:
    """What is trained in a run, on how much, with which loss."""
    trained = run["trained"]
    parts = [run["backbone"], TRAINED.get(trained["freeze"], ""), LOSSES.get(trained["method"], "triplets")]
    if trained["train_share"] < 1:
        parts.append(f"{trained['train_share']:.0%} of the training images")
    return ", ".join(filter(None, parts))


def told_by(run: Run) -> dict[str, Any]:
    """The settings of the training that may tell it from others of its name."""
    return {key: value for key, value in run["trained"].items() if key != "seed"}


def spread(values: Iterable[float | None]) -> str:
    """The mean over seeds with its standard deviation."""
    known = [each for each in values if each is not None]
    if not known:
        return "–"
    return f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")


def rows_of(named: Mapping[str, Mapping[int, Run]]) -> list[list[str]]:
    """Recall of all that was done in a setting."""
    baselines = [runs for runs in named.values() if next(iter(runs.values()))["baseline"]]
    longest = max(baselines, key=lambda runs: next(iter(runs.values()))["trained"]["epochs"], default={})
    rows = [["", "seeds", "RSum", "longer training", "RSum by the judge", "longer training"]]
    for name, runs in named.items():
        row = [name, str(len(runs))]
        for read in (RSUM, judged_rsum):
            difference = "–" if runs is longest else cell(gain(runs, [longest], read), "seed")
            row += [spread(map(read, runs.values())), difference]
        rows.append(row)
    return rows


def edits_of(named: Mapping[str, Mapping[int, Run]]) -> list[list[str]]:
    """Edits that are told from captions, by kind, in all that was done in a setting; none where none were scored."""
    runs = [run for seeds in named.values() for run in seeds.values()]
    kinds = {}
    for run in runs:
        for generator, figures in run.get("discrimination", {}).items():
            for kind, found in figures["kinds"].items():
                kinds[generator, kind] = f"{kind} ({found['sentences']:,} sentences)"
    rows = [["", *kinds.values()], ["without the image"]]
    for generator, kind in kinds:
        values = filter(None, map(told_apart(generator, kind, "blind"), runs))
        rows[1].append(f"{max(values):.1f}")
    for name, seeds in named.items():
        cells = [spread(map(told_apart(*each), seeds.values())) for each in kinds]
        rows.append([name, *cells])
    return rows if kinds else []


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, the first of them headings."""
    head, *others = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(runs: Iterable[Run]) -> str:
    """Two tables for every setting."""
    settings: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["trained"]:  # its model was not removed
            settings[setting_of(run)].append(run)
    parts = []
    for setting, own in settings.items():
        named = by_method(own, told_by)
        parts.append(f"**{setting}.**")
        parts += [table(rows) for rows in (rows_of(named), edits_of(named)) if rows]
    return "\n\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.json files that itrpipe report has written")
    print(tables(run for path in parser.parse_args().results for run in json.loads(path.read_text())["runs"]))
