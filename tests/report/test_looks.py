"""The page in a browser, where one is installed: it loads without errors, shows its pictures and fits a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

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
