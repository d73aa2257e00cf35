"""The page in a browser, where one is installed: it loads without errors, shows its pictures and fits a phone.

And the colours of lines: told apart by people who see fewer, on a light page and on a dark one.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from itrpipe.report import plots
from itrpipe.report.plots import SERIES
from tests.report.toy import Toy, with_sentences

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 768, 1280, 1920)
"""CSS pixels of a phone, a tablet, a window and a large one."""
SECONDS = 120
FRAMES = """<!doctype html><meta charset="utf-8"><pre id="findings"></pre>
<script>
const widths = WIDTHS, found = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 900px`;
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement, size = each => each.getBoundingClientRect();
    page.querySelectorAll("details").forEach(each => each.open = true);
    const wide = [...page.body.querySelectorAll("*")].filter(each => size(each).right > root.clientWidth + 0.5);
    const photo = page.querySelector(".opens a"), shown = () => Math.round(size(photo.firstChild).width);
    const go = hash => { frame.contentWindow.location.hash = hash; return shown(); };
    const bad = [
      ...[...page.images].filter(each => !each.naturalWidth),
      ...wide.filter(each => !each.closest("svg, pre, .spoken")),
      ...[...page.querySelectorAll("figure svg")].filter(each => !size(each).width),
      ...[...page.links].filter(each => !page.getElementById(each.hash.slice(1))),
    ];
    found.push({
      opened: [shown(), go(photo.hash), go(photo.nextSibling.hash)], images: page.images.length,
      overflow: root.scrollWidth - root.clientWidth,
      bad: bad.map(each => `${each.tagName} ${each.className} ${each.textContent}`),
    });
    if (found.length === widths.length) document.getElementById("findings").textContent = JSON.stringify(found);
  };
  frame.src = "index.html";
  document.body.append(frame);
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_a_browser_shows_the_whole_page(copy: Toy, tmp_path: Path) -> None:
    """With photographs, drawings, mined lists, sentences and hostile captions."""
    assert BROWSER is not None
    report = copy.report(("triplet.vsepp", "aoq.vsepp", with_sentences(copy)), drawn=True)
    shutil.copy(report.folder / "index.html", tmp_path)
    (tmp_path / "frames.html").write_text(FRAMES.replace("WIDTHS", json.dumps(WIDTHS)))
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    given = ["--allow-file-access-from-files", "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    given += [f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frames.html").as_uri()]
    done = subprocess.run([BROWSER, *quiet, *given], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    written = re.search(r'<pre id="findings">(.+?)</pre>', done.stdout, re.DOTALL)
    assert written is not None, "the page did not load"
    found = json.loads(unescape(written[1]))
    assert len(found) == len(WIDTHS)
    for page in found:
        assert (page["bad"], page["overflow"]) == ([], 0)
        assert page["images"] == len(report.page.all("img")) > 10
        small, large, again = page["opened"]
        assert 110 <= small == again < large / 2


# -- Colours and plots

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


def lab(linear: np.ndarray) -> np.ndarray:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(matrix @ linear, 0.0089, None) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_lines_are_told_apart_and_stand_out_from_the_page(scheme: str) -> None:
    colours = palette(scheme)
    lines = [colours[f"series-{number}"] for number in range(SERIES + 1)]
    for matrix in SEEN.values():
        seen = [lab(np.clip(matrix @ each, 0, 1)) for each in lines]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > APART
    paper, *lights = (float(each @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (colours["paper"], *lines))
    assert min(max(each / paper, paper / each) for each in lights) > CONTRAST
