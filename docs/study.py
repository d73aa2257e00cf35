"""Prints what second trainings gained over the best baseline in many settings, as tables of Markdown.

.venv/bin/python docs/study.py data/scenes/report/*/results.json

A setting is a backbone with its features, a number of training images, a batch size and one kind of data. A gain is the
mean over seeds of the difference to the baseline of the same setting that leaves the least.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from itrpipe.evaluation.intervals import seed_interval
from itrpipe.evaluation.tables import signed

LEVEL = 0.95
SIZES = ("train", "val", "test")
Run = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Setting:
    """What a second training is tried in; `data` are the settings of the data in which the settings differ."""

    backbone: str
    features: str
    data: tuple[tuple[str, str], ...]
    images: int
    batch: int


def metric(protocol: str, name: str) -> Callable[[Run], float | None]:
    """Reads a number of a run; None where it was not measured."""
    return lambda run: run["metrics"].get(protocol, {}).get(name, {}).get("value")


MEASURES = {
    "RSum": metric("full", "rsum"),
    "RSum, all correct matches": metric("oracle", "rsum"),
    "mAP@R, image to text": metric("oracle", "i2t_map_at_r"),
    "mAP@R, text to image": metric("oracle", "t2i_map_at_r"),
}


def by_setting(runs: Iterable[Run]) -> dict[Setting, list[Run]]:
    """The runs of each setting, without those whose models were removed."""
    known = [run for run in runs if run["setting"]]
    values: dict[str, set[str]] = defaultdict(set)
    for run in known:
        for key, value in run["setting"]["data"].items():
            values[key].add(value)
    varied = [key for key, found in values.items() if len(found) > 1 and key not in SIZES]
    found: dict[Setting, list[Run]] = defaultdict(list)
    for run in known:
        made = run["setting"]
        images = round((made["train_share"] or 1.0) * int(made["training"].split()[0].replace(",", "")))
        data = tuple((key, made["data"].get(key, "")) for key in varied)
        found[Setting(run["backbone"], run["features"], data, images, made["batch_size"])].append(run)
    return dict(sorted(found.items()))


def not_as_declared(run: Run) -> dict[str, Any]:
    """The settings of a run that are not as declared."""
    return {key: each["value"] for key, each in run["not_as_declared"].items()}


def by_method(
    runs: Sequence[Run], settings: Callable[[Run], Mapping[str, Any]] = not_as_declared
) -> dict[str, dict[int, Run]]:
    """Name of a method, with what tells it from others of its name in the setting -> its runs by seed.

    Args:
        runs: of a setting.
        settings: of a run, which may tell it from others.
    """
    named: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        named[run["shown_as"]].append(run)
    found: dict[str, dict[int, Run]] = defaultdict(dict)
    for name, alike in named.items():
        departing = [settings(run) for run in alike]
        keys = dict.fromkeys(key for each in departing for key in each)
        keys = [key for key in keys if len({str(each.get(key, "as declared")) for each in departing}) > 1]
        for run, values in zip(alike, departing, strict=True):
            told = ", ".join(f"{key} {values.get(key, 'as declared')}" for key in keys)
            found[f"{name} ({told})" if told else name][run["seed"]] = run
    return found


def gain(own: Mapping[int, Run], baselines: Iterable[Mapping[int, Run]], read: Callable[[Run], float | None]) -> list:
    """Differences by seed to the baseline that leaves the least; empty where none shares a seed."""
    found = []
    for baseline in baselines:
        pairs = [(read(own[seed]), read(baseline[seed])) for seed in own.keys() & baseline.keys()]
        single = [one - other for one, other in pairs if one is not None and other is not None]
        found += [single] if single else []
    return min(found, key=mean, default=[])


def cell(gains: Sequence[float], of: str) -> str:
    """The mean with its interval over seeds, or over settings."""
    if not gains:
        return "–"
    over = seed_interval(gains, LEVEL) if len(gains) > 1 else None
    between = "" if over is None else f", {signed(over.low)} to {signed(over.high)}"
    return f"{signed(mean(gains))} ({len(gains)} {of}{'s' if len(gains) > 1 else ''}{between})"


def tables(runs: Iterable[Run]) -> str:
    """A table for every backbone and measure: settings by methods, with the mean over settings in the last row."""
    settings = by_setting(runs)
    parts = []
    for backbone in dict.fromkeys(each.backbone for each in settings):
        for measure, read in MEASURES.items():
            rows = {}
            for setting in (each for each in settings if each.backbone == backbone):
                named = by_method(settings[setting]).items()
                known = {name: (run["baseline"], own) for name, own in named for run in list(own.values())[:1]}
                baselines = [own for is_baseline, own in known.values() if is_baseline]
                tried = {name: gain(own, baselines, read) for name, (one, own) in known.items() if not one}
                if any(tried.values()):
                    rows[setting] = tried
            counts = Counter(name for tried in rows.values() for name, gains in tried.items() if gains)
            methods = [name for name, _ in counts.most_common()]
            if methods:
                parts.append(table(f"{backbone}: {measure}", methods, rows))
    return "\n\n".join(parts)


def table(title: str, methods: Sequence[str], rows: Mapping[Setting, Mapping[str, Sequence[float]]]) -> str:
    """One table of Markdown."""
    lines = [["", *methods], ["---", *["---:"] * len(methods)]]
    for setting, tried in rows.items():
        name = [
            f"{setting.images:,} images",
            f"batch {setting.batch}",
            *(f"{key} {value}" for key, value in setting.data),
        ]
        lines.append([", ".join(name), *(cell(tried.get(method, ()), "seed") for method in methods)])
    if len(rows) > 1:
        means = [[mean(tried[method]) for tried in rows.values() if tried.get(method)] for method in methods]
        lines.append(["mean of all settings", *(cell(each, "setting") for each in means)])
    return f"**{title}.**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.json files that itrpipe report has written")
    print(tables(run for path in parser.parse_args().results for run in json.loads(path.read_text())["runs"]))
