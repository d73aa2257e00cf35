"""Prints what each kind of negatives gave on photographs with pretrained encoders, as tables of Markdown.

.venv/bin/python docs/flickr8k.py                                        from docs/flickr8k.csv, one row a training
.venv/bin/python docs/flickr8k.py data/flickr8k/report/*/results.json    from reports, of which the file is made first

A setting is a backbone with what of its encoders is trained, a share of the training images and a kind of loss. The
best baseline is the one over which a training gained the least, as in `docs/study.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from study import Run, by_method, cell, gain, metric

RUNS = Path(__file__).with_name("flickr8k.csv")
TRAINED = {"both": "heads of frozen encoders", "vision": "text encoder and heads", "text": "vision encoder and heads"}
"""Value of `freeze` -> what is trained."""
LOSSES = {"contrastive": "InfoNCE", "ascl": "AsCL"}
"""Method -> kind of loss, where it is not that of triplets."""
RSUM, BY_JUDGE, BLIND = "RSum", "RSum by the judge", ", without the image"
Row = Mapping[str, str]


def measures(run: Run) -> dict[str, float]:
    """Return RSum, RSum with what judges call right, and percent of edits that are told from captions, by kind."""
    found = {RSUM: metric("full", "rsum")(run)}
    judged = run.get("corrected", {}).get("by_judges")
    if judged:
        found[BY_JUDGE] = judged["recalls"]["rsum"]["value"]
    for figures in run.get("discrimination", {}).values():
        for kind, edits in figures["kinds"].items():
            name = f"{kind} ({edits['sentences']:,} sentences)"
            found[name] = edits["percent"]["value"]
            found[name + BLIND] = edits["blind"]["value"]
    return {name: round(value, 2) for name, value in found.items() if value is not None}


def setting_of(run: Run) -> str:
    """Return what is trained in a run, on how much, with which loss."""
    trained = run["trained"]
    parts = [run["backbone"], TRAINED.get(trained["freeze"], ""), LOSSES.get(trained["method"], "triplets")]
    if trained["train_share"] < 1:
        parts.append(f"{trained['train_share']:.0%} of the training images")
    return ", ".join(filter(None, parts))


def told_by(run: Run) -> dict[str, Any]:
    """Return the settings of the training that may differ from others of its name."""
    return {key: value for key, value in run["trained"].items() if key != "seed"}


def rows_of_reports(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read one row of every training whose model was not removed, in an order that does not depend on the scores."""
    settings: dict[str, list[Run]] = defaultdict(list)
    for path in paths:
        for run in json.loads(path.read_text())["runs"]:
            if run["trained"]:
                settings[setting_of(run)].append(run)
    rows = []
    for setting, runs in settings.items():
        for done, seeds in by_method(runs, told_by).items():
            for seed, run in sorted(seeds.items()):
                names = {"setting": setting, "done": done, "baseline": int(run["baseline"]), "seed": seed}
                rows.append(names | measures(run))
    # Baselines come first, the plain one before all.
    return sorted(rows, key=lambda row: (row["setting"], -row["baseline"], row["done"], row["seed"]))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the file of which the tables are made."""
    names = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """Read the file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(name: str) -> Callable[[Row], float | None]:
    """Return what reads a measure of a row; None where it was not measured."""
    return lambda row: float(row[name]) if row.get(name) else None


def spread(values: Iterable[float | None]) -> str:
    """Return the mean over seeds with its standard deviation."""
    known = [each for each in values if each is not None]
    if not known:
        return "–"
    return f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")


def recalls(named: Mapping[str, Mapping[int, Row]]) -> list[list[str]]:
    """Return the table of recall of all that was done in a setting."""
    baselines = {name: seeds for name, seeds in named.items() if next(iter(seeds.values()))["baseline"] == "1"}
    plain = next(iter(baselines), "")
    rows = [["", "seeds", RSUM, f"over {plain}", "over the best baseline", BY_JUDGE]]
    for name, seeds in named.items():
        to_plain = to_best = "–"
        if name != plain and plain:
            to_plain = cell(gain(seeds, [named[plain]], number(RSUM)), "seed")
        if name not in baselines:
            to_best = cell(gain(seeds, baselines.values(), number(RSUM)), "seed")
        measured = [spread(map(number(each), seeds.values())) for each in (RSUM, BY_JUDGE)]
        rows.append([name, str(len(seeds)), measured[0], to_plain, to_best, measured[1]])
    return rows


def edits(named: Mapping[str, Mapping[int, Row]]) -> list[list[str]]:
    """Return the table of edits by kind that are told from captions; no rows where none were scored."""
    runs = [row for seeds in named.values() for row in seeds.values()]
    kinds = [name for name in runs[0] if name + BLIND in runs[0] and any(row[name] for row in runs)]
    if not kinds:
        return []
    blind = [f"{max(float(row[kind + BLIND]) for row in runs if row[kind]):.1f}" for kind in kinds]
    rows = [["", *kinds], ["without the image", *blind]]
    for name, seeds in named.items():
        rows.append([name, *(spread(map(number(kind), seeds.values())) for kind in kinds)])
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as Markdown, the first of them headings."""
    head, *others = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: Iterable[Row]) -> str:
    """Return two tables for every setting."""
    settings: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        settings[row["setting"]][row["done"]][int(row["seed"])] = row
    parts = []
    for setting, named in settings.items():
        parts.append(f"**{setting}.**")
        parts += [table(found) for found in (recalls(named), edits(named)) if found]
    return "\n\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="results.json files that itrpipe report has written")
    parser.add_argument("--runs", type=Path, default=RUNS, help="file with one row a training")
    given = parser.parse_args()
    if given.results:
        write_rows(given.runs, rows_of_reports(given.results))
    print(tables(read_rows(given.runs)))
