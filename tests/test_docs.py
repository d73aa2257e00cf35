"""The site: every page is built and reached, every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import itrpipe.learning
import itrpipe.methods.aoq.method
import itrpipe.methods.fne.method

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "INFO" in done.stderr, "--strict counts what is logged: a quiet build has no warnings"
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_reached(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")
    linked = {link.partition("#")[0] for link in re.findall(r'href="([^":]+)"', start)}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert pages <= linked
    assert len(pages) > 25


def test_links_of_a_page_in_a_folder_lead_to_pages_and_leave_the_names_of_other_files(site: Path) -> None:
    page = (site / "papers" / "aoq.html").read_text(encoding="utf-8")
    page = page.partition("<article")[2].partition("</article>")[0]
    linked = set(re.findall(r'href="([^":]+)"', page))
    assert linked >= {"../reproduce.html", "../results.html", "../stages/all-runs.html"}
    assert "<code>itrpipe/methods/aoq/method.py</code>" in page
    assert not [link for link in linked if link.endswith((".py", ".toml", ".md"))]


def test_no_page_loads_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* rel="stylesheet"[^>]* href="([^"]+)"', text
        )
        assert not [each for each in loaded if "".join(each).startswith(("http:", "https:", "//"))], path.name


def test_the_reference_has_every_command_setting_and_public_name(site: Path) -> None:
    from itrpipe.cli.commands import PANELS

    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in commands for names in PANELS.values() for name in names)
    declarations = (site / "reference" / "declarations.html").read_text(encoding="utf-8")
    assert "gradient_clip" in declarations
    assert "VSE++ code" in declarations
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    public = (*itrpipe.learning.__all__, *itrpipe.methods.aoq.method.__all__, *itrpipe.methods.fne.method.__all__)
    assert all(re.search(rf'id="itrpipe\.[a-z_.]+\.{name}"', python) for name in public)
    assert "itrpipe.search.model.load" in python


def test_the_drawing_of_gains_shows_what_the_tables_say() -> None:
    gains = runpy.run_path(str(ROOT / "docs" / "gains.py"))
    page = gains["PAGE"].read_text(encoding="utf-8")
    found = gains["gains"](page)
    with Image.open(gains["PICTURE"]) as picture:
        assert picture.info["Description"] == gains["described"](found), "run docs/gains.py again"
    evidence = (ROOT / "stages" / "when-negatives-pay.md").read_text(encoding="utf-8")
    assert f"{len(found)} experiments, with 95 % intervals: {gains['summary'](found)}" in evidence
    over = gains["overall"](found)
    mean = f"gained {over.value:.1f} RSum on average"
    bounds = f"{over.low:+.1f} to {over.high:+.1f}".replace("-", "−")
    assert mean in evidence
    assert bounds in evidence
    assert "**" not in "".join(re.findall(r"^\| [^*\n]*images[^\n]*", page, re.MULTILINE)), "bold is significant"


def test_the_drawing_of_right_answers_and_its_page_show_what_the_annotators_said() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "right_answers.py"))
    right, columns = drawn["read_answers"]()
    shares, judges = drawn["shares_by_rank"](right, columns["rank"]), drawn["areas"](right, columns)
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["draw"](shares, judges), "run docs/right_answers.py"
    page = (ROOT / "docs" / "flickr8k.md").read_text(encoding="utf-8")
    gain = [f"{value:.2f}".lstrip("0") for value in drawn["gain_in_area"](right, columns)]
    assert "{} above the model's (95 % interval {} to {})".format(*gain) in page
    for ranks, (value, low, high) in shares.items():
        assert f"| {ranks} | {100 * value:.0f} % | {100 * low:.0f} to {100 * high:.0f} |" in page


def test_tables_of_evidence_are_those_of_its_runs() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "flickr8k.py"], capture_output=True, text=True, check=True)
    tables = [block.strip() for block in done.stdout.split("\n\n") if block.startswith("|")]
    page = (ROOT / "docs" / "flickr8k.md").read_text(encoding="utf-8")
    assert tables
    for table in tables:
        assert table in page, "run docs/flickr8k.py"
