"""Prints what each kind of negatives gave on photographs with pretrained encoders, as tables of Markdown.

.venv/bin/python docs/flickr8k.py                                        from the two files beside it
.venv/bin/python docs/flickr8k.py data/flickr8k/report/*/results.json    from reports, of which the files are made first

`flickr8k.csv` has one row a training. `flickr8k-images.csv` has one, too, and a column for each of the 500 test
photographs: 5 for each of R@1, R@5 and R@10 that it reaches as a query, and 1 for each that one of its five captions
reaches. Their mean times 20 is RSum.

A setting is a backbone with what of its encoders is trained, a share of the training images and a kind of loss. The
best baseline is the one over which a training gained the least, as in `docs/study.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from study import Run, by_method, cell, gain, metric

from itrpipe.evaluation.tables import signed

RUNS, IMAGES = "flickr8k.csv", "flickr8k-images.csv"
TRAINED = {"both": "heads of frozen encoders", "vision": "text encoder and heads", "text": "vision encoder and heads"}
"""Value of `freeze` -> what is trained."""
LOSSES = {"contrastive": "InfoNCE", "ascl": "AsCL"}
"""Method -> kind of loss, where it is not that of triplets."""
RSUM, BY_JUDGE, BLIND = "RSum", "RSum by the judge", ", without the image"
NAMES = ("setting", "done", "baseline", "seed")
DEPTHS = (1, 5, 10)
_DRAWS = 20_000
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


def hits_by_image(evaluation: Path) -> dict[str, int]:
    """Count what each test photograph and its captions add to RSum, in fifths of a hit."""
    captions = pq.read_table(evaluation / "cross_retrieval.parquet", columns=["caption_id", "image_id"])
    image_of_caption = dict(zip(*(captions[name].to_pylist() for name in captions.column_names), strict=True))
    hits = dict.fromkeys(image_of_caption.values(), 0)
    ranks = pq.read_table(evaluation / "rankings.parquet", columns=["direction", "query_id", "rank"])
    for row in ranks.to_pylist():
        reached = sum(row["rank"] < depth for depth in DEPTHS)
        if row["direction"] == "i2t":
            hits[row["query_id"]] += 5 * reached
        else:
            hits[image_of_caption[row["query_id"]]] += reached
    return hits


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


def rows_of_reports(paths: Iterable[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read rows of every training whose model was not removed, in an order that does not depend on the scores.

    Returns:
        Rows of the measures, and rows of the photographs.
    """
    settings: dict[str, list[Run]] = defaultdict(list)
    folders = {}
    for path in paths:
        for run in json.loads(path.read_text())["runs"]:
            if run["trained"]:
                settings[setting_of(run)].append(run)
                folders[run["artifact"]] = path.resolve().parents[2] / "evaluate" / run["artifact"]
    rows, image_rows = [], []
    for setting, runs in settings.items():
        for done, seeds in by_method(runs, told_by).items():
            for seed, run in sorted(seeds.items()):
                names = dict(zip(NAMES, (setting, done, int(run["baseline"]), seed), strict=True))
                rows.append(names | measures(run))
                image_rows.append(names | hits_by_image(folders[run["artifact"]]))

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put baselines first, the plain one before all."""
        numbers_by_size = re.sub(r"\d+", lambda digits: digits[0].zfill(6), row["done"])
        return row["setting"], -row["baseline"], numbers_by_size, row["seed"]

    return sorted(rows, key=place), sorted(image_rows, key=place)


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


def read_images(path: Path) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    """Read setting and what was done -> seed -> the RSum of each photograph, of which RSum is the mean; float64 [N]."""
    images: dict[tuple[str, str], dict[int, np.ndarray]] = defaultdict(dict)
    for row in read_rows(path):
        hits = [int(value) for name, value in row.items() if name not in NAMES]
        images[row["setting"], row["done"]][int(row["seed"])] = 20 * np.array(hits)
    return images


def interval_over_images(trained: Mapping[int, np.ndarray], baseline: Mapping[int, np.ndarray]) -> str:
    """Return the 95 % interval over photographs of the mean difference of the same seeds."""
    differences = [trained[seed] - baseline[seed] for seed in sorted(trained.keys() & baseline.keys())]
    by_image = np.mean(differences, axis=0)
    random = np.random.default_rng(0)
    drawn = random.integers(len(by_image), size=(_DRAWS, len(by_image)))
    low, high = np.quantile(by_image[drawn].mean(axis=1), [0.025, 0.975])
    return f"{signed(low)} to {signed(high)}"


def spread(values: Iterable[float | None]) -> str:
    """Return the mean over seeds with its standard deviation."""
    known = [each for each in values if each is not None]
    if not known:
        return "–"
    return f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")


def recalls(named: Mapping[str, Mapping[int, Row]], images: Mapping[str, Mapping[int, np.ndarray]]) -> list[list[str]]:
    """Return the table of recall of all that was done in a setting; `images` has the RSum of each photograph."""
    baselines = {name: seeds for name, seeds in named.items() if next(iter(seeds.values()))["baseline"] == "1"}
    plain = next(iter(baselines), "")
    rows = [["", "seeds", RSUM, f"over {plain}", "over the best baseline", "over images", BY_JUDGE]]
    for name, seeds in named.items():
        to_plain = to_best = over_images = "–"
        if name != plain and plain:
            to_plain = cell(gain(seeds, [named[plain]], number(RSUM)), "seed")
        if name not in baselines and baselines:
            gains = {other: gain(seeds, [baselines[other]], number(RSUM)) for other in baselines}
            best = min(gains, key=lambda other: mean(gains[other]))
            to_best = cell(gains[best], "seed")
            over_images = interval_over_images(images[name], images[best])
        rsum, by_judge = (spread(map(number(each), seeds.values())) for each in (RSUM, BY_JUDGE))
        rows.append([name, str(len(seeds)), rsum, to_plain, to_best, over_images, by_judge])
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


def tables(rows: Iterable[Row], images: Mapping[tuple[str, str], Mapping[int, np.ndarray]]) -> str:
    """Return two tables for every setting; `images` is as `read_images` returns it."""
    settings: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        settings[row["setting"]][row["done"]][int(row["seed"])] = row
    parts = []
    for setting, named in settings.items():
        parts.append(f"**{setting}.**")
        of_setting = {name: images[setting, name] for name in named}
        parts += [table(found) for found in (recalls(named, of_setting), edits(named)) if found]
    return "\n\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="results.json files that itrpipe report has written")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent, help="folder of both files")
    given = parser.parse_args()
    if given.results:
        rows, image_rows = rows_of_reports(given.results)
        write_rows(given.to / RUNS, rows)
        write_rows(given.to / IMAGES, image_rows)
    print(tables(read_rows(given.to / RUNS), read_images(given.to / IMAGES)))
