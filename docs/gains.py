"""Draws `stages/when-negatives-pay.png`: what mined negatives gained, from the tables of all-runs.md.

.venv/bin/python docs/gains.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from itrpipe.evaluation.intervals import Interval, seed_interval

STAGES = Path(__file__).parents[1] / "stages"
PAGE, PICTURE = STAGES / "all-runs.md", STAGES / "when-negatives-pay.png"
PLACES = {"scenes": "synthetic images", "photographs": "photographs"}
COLUMNS = {"scenes": "InfoNCE, mined", "photographs": "InfoNCE, mined (loss.top_texts 60, loss.top_images 12)"}
"""What is drawn, by dataset: lists of one length, the default on the synthetic dataset."""
KEYS = {
    "caption_detail 0.25": "captions true of many",
    "caption_detail 1.0": "captions that tell everything",
    "units 5": "up to five objects",
    "noise 0.5": "noise",
    "occlusion 0.5": "occlusion",
    "batch 32": "batches of 32",
    "batch 512": "batches of 512",
}
"""What a setting is called in the tables, and in the drawing; batches of 128 are not named."""
NOT_FOR_AS_LONG = ("5,000 images", "10,000 images", "20,000 images", "noise 0.5", "occlusion 0.5", "dual encoder")
"""Experiments on the synthetic dataset without a baseline of equal time: it has as many epochs as both trainings."""
BACKBONES = {"dual encoder": "region tokens"}
INK, MUTED, SEVERAL, ONE = "#1f2328", "#656d76", "#0969da", "#8c959f"


@dataclass(frozen=True)
class Gained:
    """One setting.

    Attributes:
        name: of it, for people.
        value: gain in RSum over the best baseline, all correct matches counted where these are known.
        seeds: that were trained.
        low, high: its 95 % interval, over seeds where there are several, else over test images.
        for_as_long: whether there is a baseline that was trained for as long as both trainings take.
    """

    name: str
    value: float
    seeds: int
    low: float
    high: float
    for_as_long: bool


def gains(page: str) -> list[Gained]:
    """All settings that the tables of the page hold, the highest gain first."""
    found = []
    for dataset, report in re.findall(r"<!-- itrpipe report (\w+) -->(.*?)<!-- end of", page, re.DOTALL):
        tables = dict(re.findall(r"^\*\*([^*]+)\.\*\*.*?\n\n(\|.*?)\n\n", report, re.DOTALL | re.MULTILINE))
        for name, table in tables.items():
            backbone, _, measure = name.partition(": ")
            known = f"{backbone}: RSum, all correct matches" in tables
            if measure == ("RSum, all correct matches" if known else "RSum"):
                found += _rows(table, backbone, dataset)
    return sorted(found, key=lambda each: -each.value)


def _rows(table: str, backbone: str, dataset: str) -> Iterator[Gained]:
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    for setting, *cells in rows:
        cell = cells[heads[1:].index(COLUMNS[dataset])]
        if setting.startswith("mean of") or cell == "–":
            continue
        numbers = [float(each.replace("−", "-")) for each in re.findall(r"[+−]?\d+\.\d", cell)]
        seeds = int(re.search(r"(\d+) seed", cell)[1])  # pyright: ignore[reportOptionalSubscript]
        images, *more = setting.split(", ")
        what = [KEYS[each] for each in more if each != "batch 128"]
        title = ", ".join(
            [f"{images.removesuffix(' images')} {PLACES[dataset]}", *what, BACKBONES.get(backbone, backbone)]
        )
        missing = dataset == "scenes" and any(each in NOT_FOR_AS_LONG for each in (images, *more, backbone))
        yield Gained(title, numbers[0], seeds, numbers[1], numbers[2], not missing)


def draw(found: list[Gained], path: Path) -> None:
    """A row for each setting: several seeds blue with their interval, one seed grey and dashed."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    figure, axes = plt.subplots(figsize=(10, 6.4), layout="constrained")
    over = overall(found)
    axes.axvspan(over.low, over.high, color=SEVERAL, alpha=0.14, linewidth=0, label="mean, 95 % interval")
    axes.axvline(over.value, color=SEVERAL, alpha=0.5, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    limit = 20.0
    for row, each in enumerate(found):
        several = each.seeds > 1
        colour, line = (SEVERAL, "-") if several else (ONE, (0, (2, 2)))
        axes.hlines(row, max(each.low, -limit), min(each.high, limit), color=colour, linewidth=1.4, linestyle=line)
        for end, mark in ((each.low, "<"), (each.high, ">")):
            if abs(end) > limit:
                axes.plot([limit if end > 0 else -limit], [row], mark, color=colour, markersize=5)
        mark = "o" if each.for_as_long else "s"
        axes.plot([each.value], [row], mark, color=colour, markerfacecolor=colour if several else "white", markersize=6)
    axes.set_yticks(range(len(found)), [each.name for each in found], fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlim(-limit - 1, limit + 1)
    axes.tick_params(length=0, colors=MUTED)
    axes.grid(axis="x", color="#eaeef2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(
        "Gain in RSum over the best baseline without mined negatives\n"
        "(synthetic images: all correct matches count; photographs: their own)",
        color=INK,
    )
    figure.suptitle("Mined negatives: no reliable gain", x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    axes.plot([], [], "-o", color=SEVERAL, label="two or three seeds, 95 % interval over seeds")
    axes.plot(
        [],
        [],
        "o",
        color=ONE,
        markerfacecolor="white",
        linestyle=(0, (2, 2)),
        label="one seed, 95 % interval over test images",
    )
    axes.plot([], [], "s", color=MUTED, markerfacecolor="white", linestyle="", label="no baseline of equal time")
    axes.plot([], [], ">", color=SEVERAL, linestyle="", label="the interval goes on (two seeds)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Description": described(found), "Software": None})


def overall(found: list[Gained]) -> Interval:
    """The mean gain with its interval over settings."""
    return seed_interval([each.value for each in found], 0.95)


def summary(found: list[Gained]) -> str:
    """One sentence of all settings, without its first words."""
    over, several = overall(found), [each for each in found if each.seeds > 1]
    above = sum(each.low > 0 for each in several) or "none"
    return (
        f"on average {over.value:+.1f} RSum ({over.low:+.1f} to {over.high:+.1f}), above zero in "
        f"{sum(each.value > 0 for each in found)}; the interval over seeds is above zero in {above} of the "
        f"{len(several)} experiments with several seeds"
    ).replace("-", "−")


def described(found: list[Gained]) -> str:
    """What the drawing shows, as it is kept in its file."""
    return "\n".join(f"{each.name}: {each.value:+.1f} ({each.low:+.1f} to {each.high:+.1f})" for each in found)


if __name__ == "__main__":
    draw(gains(PAGE.read_text(encoding="utf-8")), PICTURE)
