"""The page in a browser, where one is installed: it loads without errors, shows its pictures and fits a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.report.test_parts import with_sentences
from tests.report.toy import Report, Toy

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
    const page = frame.contentDocument, root = page.documentElement;
    page.querySelectorAll("details").forEach(each => each.open = true);
    const right = root.clientWidth + 0.5, all = [...page.body.querySelectorAll("*")];
    const wide = all.filter(each => each.getBoundingClientRect().right > right);
    const photo = page.querySelector(".opens a"), shown = () => photo.firstChild.getBoundingClientRect().width;
    const go = hash => { frame.contentWindow.location.hash = hash; return Math.round(shown()); };
    const opened = [Math.round(shown()), go(photo.hash), go(photo.nextSibling.hash)];
    const inside = wide.filter(each => !each.closest("svg, pre, .spoken"));
    found.push({
      width, overflow: root.scrollWidth - root.clientWidth, height: root.scrollHeight,
      images: page.images.length, broken: [...page.images].filter(each => !each.naturalWidth).length,
      wide: inside.map(each => `${each.tagName} ${each.className} ${each.textContent.slice(0, 40)}`),
      drawings: [...page.querySelectorAll("figure svg")].filter(each => !each.getBoundingClientRect().width).length,
      anchors: [...page.links].filter(each => !page.getElementById(each.hash.slice(1))).length,
      opened,
      sections: [...page.querySelectorAll("section")].map(each => each.id),
    });
    if (found.length === widths.length) document.getElementById("findings").textContent = JSON.stringify(found);
  };
  frame.src = "index.html";
  document.body.append(frame);
}
</script>
"""


@pytest.fixture(scope="module")
def report(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report with photographs, drawings, mined lists, sentences and hostile captions."""
    copy = toy.copy(tmp_path_factory.mktemp("browser") / "data")
    return copy.report(("triplet.vsepp", "aoq.vsepp", with_sentences(copy)), drawn=True)


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_a_browser_shows_the_whole_page(report: Report, tmp_path: Path) -> None:
    assert BROWSER is not None
    shutil.copy(report.folder / "index.html", tmp_path)
    (tmp_path / "frames.html").write_text(FRAMES.replace("WIDTHS", json.dumps(WIDTHS)))
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    given = ["--allow-file-access-from-files", "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [BROWSER, *quiet, *given, folder, (tmp_path / "frames.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    written = re.search(r'<pre id="findings">(.*?)</pre>', done.stdout, re.DOTALL)
    assert written is not None
    assert written[1], "the page did not load"
    found = {each["width"]: each for each in json.loads(unescape(written[1]))}
    assert set(found) == set(WIDTHS)
    for page in found.values():
        assert page["images"] == len(report.page.all("img")) > 10
        assert page["broken"] == page["drawings"] == page["anchors"] == 0
        assert page["sections"] == [each.attributes["id"] for each in report.page.all("section")]
        assert page["wide"] == []
        assert page["overflow"] == 0
        small, large, again = page["opened"]
        assert 110 <= small == again
        assert large > min(0.8 * page["width"], 1000)
        assert page["height"] > 2000
