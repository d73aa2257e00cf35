"""Draws `docs/right-answers.svg`: how many of a model's hardest negatives are right, and which judges see it.

.venv/bin/python docs/right_answers.py

`docs/hard-negatives.csv` holds 480 pairs of a photograph and a caption of another one, drawn at random by direction and
rank from the lists of a model: what two annotators said of each, the scores of the model and of three judges, and the
probability to be right by the default curve of the judge `captions`. Scores of captions and graphs are raw ones.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from itrpipe.judging.calibration import area_under_curve

ANSWERS = Path(__file__).with_name("hard-negatives.csv")
PICTURE = Path(__file__).with_name("right-answers.svg")
RANKS = {"1": (1, 1), "2–5": (2, 5), "6–20": (6, 20), "21–60": (21, 60)}
JUDGES = {
    "captions": "captions of both photographs (MiniLM)",
    "tfidf": "their words alone (TF-IDF)",
    "graphs": "their scene graphs",
    "model": "the model's own score",
}
PROBABILITY = "captions_probability"
WRONG, INK, OURS, OWN = "#d0d7de", "#1f2328", "#0969da", "#8c959f"
_DRAWS, _HEIGHT = 2_000, 330
Figure = tuple[float, float, float]
"""Value, and the ends of its 95 % interval over pairs."""


def read_column(name: str) -> list[str]:
    """Return a column of the pairs on which the annotators agree."""
    with ANSWERS.open(encoding="utf-8", newline="") as file:
        return [row[name] for row in csv.DictReader(file) if row["first"] == row["second"] != "unsure"]


def read_answers() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return which pairs are right, of those on which the annotators agree, and the columns of numbers."""
    right = np.array([answer == "fits" for answer in read_column("first")])
    columns = {name: np.array([float(each) for each in read_column(name)]) for name in ("rank", *JUDGES, PROBABILITY)}
    return right, columns


def with_interval(measure: Callable[[np.ndarray], float], count: int) -> Figure:
    """Compute a measure of pairs, given by their rows, and its interval over 2,000 draws of as many pairs."""
    random = np.random.default_rng(0)
    drawn = [measure(random.integers(count, size=count)) for _ in range(_DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return measure(np.arange(count)), float(low), float(high)


def shares_by_rank(right: np.ndarray, ranks: np.ndarray) -> dict[str, Figure]:
    """Return the share of right answers of each group of ranks."""
    shares = {}
    for name, (first, last) in RANKS.items():
        own = right[(ranks >= first) & (ranks <= last)]
        shares[name] = with_interval(lambda rows, own=own: float(own[rows].mean()), len(own))
    return shares


def expected_by_rank(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the mean probability by the judge `captions` of each group of ranks."""
    ranks, probabilities = columns["rank"], columns[PROBABILITY]
    return {
        name: float(probabilities[(ranks >= first) & (ranks <= last)].mean()) for name, (first, last) in RANKS.items()
    }


def in_lists(right: np.ndarray, columns: dict[str, np.ndarray], length: int) -> dict[str, Figure]:
    """Return how well the judge `captions` marks lists of a length up to 60, of which the deep ranks are the most.

    A pair counts as often as lists have pairs of its group of ranks for each that was drawn.
    """
    ranks, marked = columns["rank"], columns[PROBABILITY] > 0.5
    weights = np.zeros(len(ranks))
    for first, last in RANKS.values():
        last = min(last, length)
        own = (ranks >= first) & (ranks <= last)
        if own.any():
            weights[own] = (last - first + 1) / own.sum()

    def share(part: np.ndarray, whole: np.ndarray) -> Figure:
        return with_interval(lambda rows: float(np.average(part[rows], weights=(weights * whole)[rows])), len(right))

    return {
        "right": share(right, np.ones(len(right))),
        "expected": share(columns[PROBABILITY], np.ones(len(right))),
        "marked": share(marked, np.ones(len(right))),
        "of the marked right": share(right, marked),
        "of the right marked": share(marked, right),
    }


def areas(right: np.ndarray, columns: dict[str, np.ndarray]) -> dict[str, Figure]:
    """Return the area under the ROC curve of each judge."""
    found = {}
    for name in JUDGES:
        scores = columns[name]
        found[name] = with_interval(
            lambda rows, scores=scores: area_under_curve(scores[rows], right[rows])[0], len(right)
        )
    return found


def gain_in_area(right: np.ndarray, columns: dict[str, np.ndarray]) -> Figure:
    """Return how much the area of the judge `captions` is above that of the model's score, over the same draws."""

    def gain(rows: np.ndarray) -> float:
        by_judge, _ = area_under_curve(columns["captions"][rows], right[rows])
        by_model, _ = area_under_curve(columns["model"][rows], right[rows])
        return by_judge - by_model

    return with_interval(gain, len(right))


def draw(shares: dict[str, Figure], judges: dict[str, Figure]) -> str:
    """Return the picture: shares by rank on the left, judges on the right."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {_HEIGHT}" font-family="sans-serif" font-size="14">',
        f'<rect width="920" height="{_HEIGHT}" fill="white"/>',
        *_bold(24, 28, "Of the wrong answers that a model ranks"),
        *_bold(24, 46, "highest, so many are right after all"),
        *_bold(430, 28, "Who can tell them apart?"),
        _text(430, 46, "area under the ROC curve; .5 is guessing", OWN),
    ]
    for number, (name, (value, low, high)) in enumerate(shares.items()):
        left = 44 + 84 * number
        top = 270 - 400 * value
        lines.append(f'<rect x="{left}" y="{top:.0f}" width="48" height="{270 - top:.0f}" fill="{OURS}"/>')
        lines.append(_line(left + 24, 270 - 400 * low, left + 24, 270 - 400 * high))
        lines.append(_text(left + 30, 264 - 400 * high, f"{100 * value:.0f} %", INK))
        lines.append(_text(left + 24, 290, name, INK, "middle"))
    lines.append(_line(34, 270, 370, 270))
    lines.append(_text(202, 312, "rank among all captions or photographs", INK, "middle"))
    for number, (name, (value, low, high)) in enumerate(judges.items()):
        top = 72 + 58 * number
        fill = OWN if name == "model" else OURS
        lines.append(_text(436, top + 10, JUDGES[name], INK))
        lines.append(f'<rect x="430" y="{top + 16}" width="{800 * (value - 0.5):.0f}" height="16" fill="{fill}"/>')
        lines.append(_line(430 + 800 * (low - 0.5), top + 24, 430 + 800 * (high - 0.5), top + 24))
        lines.append(_text(436 + 800 * (high - 0.5), top + 29, f"{value:.2f}".lstrip("0"), INK))
    lines.append(_line(430, 64, 430, 290))
    lines.append(_text(430, 312, "0.5", INK, "middle"))
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str, fill: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" text-anchor="{anchor}">{text}</text>'


def _bold(x: float, y: float, text: str) -> list[str]:
    return [f'<g font-weight="bold">{_text(x, y, text, INK)}</g>']


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" stroke="{INK}" stroke-width="1.5"/>'


if __name__ == "__main__":
    right, columns = read_answers()
    shares, judges = shares_by_rank(right, columns["rank"]), areas(right, columns)
    expected = expected_by_rank(columns)
    for name, (value, low, high) in shares.items():
        told = f"{100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        print(f"rank {name:<6} {told}; by the judge {100 * expected[name]:.0f} %")
    for length in (10, 60):
        for name, (value, low, high) in in_lists(right, columns, length).items():
            print(f"in lists of {length}, {name}: {100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})")
    for side in dict.fromkeys(read_column("direction")):
        own = np.array([each == side for each in read_column("direction")])
        print(f"captions    {area_under_curve(columns['captions'][own], right[own])[0]:.2f} of {side}")
        of_side = {name: column[own] for name, column in columns.items()}
        for length in (10, 60):
            for name, (value, low, high) in in_lists(right[own], of_side, length).items():
                told = f"{100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
                print(f"in lists of {length} of {side}, {name}: {told}")
    for name, (value, low, high) in judges.items():
        print(f"{name:<11} {value:.2f} ({low:.2f} to {high:.2f})")
    value, low, high = gain_in_area(right, columns)
    print(f"captions over model {value:+.2f} ({low:+.2f} to {high:+.2f})")
    PICTURE.write_text(draw(shares, judges), encoding="utf-8")
