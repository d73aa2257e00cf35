"""The colours of lines: told apart by people who see fewer, on a light page and on a dark one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from itrpipe.report import plots
from itrpipe.report.plots import SERIES, panel, svg

STYLE = (Path(plots.__file__).parent / "templates" / "base.css").read_text(encoding="utf-8")
# Of linear RGB; Machado et al., "A physiologically-based model for simulation of color vision deficiency", 2009.
SEEN = {
    "all": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
APART = 12.0
"""Distance in CIELAB; 2.3 is just noticed."""
CONTRAST = 3.0
"""Of graphics with the page, by WCAG 1.4.11."""


def palette(scheme: str) -> dict[str, np.ndarray]:
    """Name -> linear RGB [3] of a scheme."""
    light, dark = STYLE.split("@media screen and (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6})", light))
    if scheme == "dark":
        found |= re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6})", dark)
    values = {name: np.array([int(each[at : at + 2], 16) for at in (0, 2, 4)]) / 255 for name, each in found.items()}
    return {name: np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4) for name, v in values.items()}


def luminance(linear: np.ndarray) -> float:
    return float(linear @ [0.2126, 0.7152, 0.0722])


def lab(linear: np.ndarray) -> np.ndarray:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(matrix @ linear, 0.0089, None) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_colours_of_lines_are_told_apart(scheme: str, seen: str) -> None:
    colours = palette(scheme)
    shown = [lab(np.clip(SEEN[seen] @ colours[f"series-{number}"], 0, 1)) for number in range(SERIES + 1)]
    distances = {
        pair: float(np.linalg.norm(shown[pair[0]] - shown[pair[1]]))
        for pair in itertools.combinations(range(SERIES + 1), 2)
    }
    assert min(distances.values()) > APART, sorted(distances.items(), key=lambda each: each[1])[:4]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_lines_stand_out_from_the_page(scheme: str) -> None:
    colours = palette(scheme)
    paper = luminance(colours["paper"])
    for number in range(SERIES + 1):
        high, low = sorted((paper, luminance(colours[f"series-{number}"])), reverse=True)
        assert (high + 0.05) / (low + 0.05) > CONTRAST, number


def test_plots_do_not_depend_on_the_settings_of_matplotlib() -> None:
    def drawn() -> str:
        figure, axes = panel()
        axes.plot([0, 1], [1, 0])
        return svg(figure, "name", "a line")

    alone = drawn()
    foreign = {"font.size": 40, "axes.linewidth": 9, "text.usetex": True, "xtick.minor.visible": True, "figure.dpi": 9}
    with matplotlib.rc_context(foreign):
        assert drawn() == alone
        assert matplotlib.rcParams["font.size"] == 40
