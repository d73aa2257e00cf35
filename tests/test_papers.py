"""Pages of papers against what they speak of: functions, settings, published and measured numbers, citations."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from itrpipe.config import leaves, load_declaration
from itrpipe.exporting.card import bibliography
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.declaration import methods
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.declaration import backbones
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.papers import AOQ, ASCL, CLIP, FNE, NCR, SIGLIP, SSAMT, TAGS_DC, VSE_C, VSEPP, VSRN, Paper
from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.recipes import load_recipe
from itrpipe.stages.base import Need
from tests.chains import Invoke, done

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "papers"
PAGES = {"aoq": AOQ, "ssamt": SSAMT, "fne": FNE, "tags-dc": TAGS_DC, "ascl": ASCL}
"""Name of a page, which is that of the method, -> paper."""
RESULTS = ("docs/results.md", "stages/all-runs.md", "stages/when-negatives-pay.md", "docs/leaky-protocol.md")
MODULE = re.compile(r"`(itrpipe/[\w/]+\.py)`")
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
VALUE = re.compile(r"`([\w.-]+) = ([^`]+)`")
OTHER_WAY = re.compile(r"`(--set [^`]+)`")
NUMBER = re.compile(r"(?<![\w.§])[+−]?\d+\.\d(?!\d)")
FILES = (".json", ".md", ".parquet", ".toml")

every_page = pytest.mark.parametrize("page", PAGES)


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next one."""
    return re.split(r"^## ", text_of(page).partition(f"## {title}")[2], flags=re.MULTILINE)[0]


def rows(text: str) -> str:
    """The rows of tables, without their heads' rulers."""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def resolves(name: str, modules: list[str]) -> bool:
    """Whether a dotted name, whose first parts are the last ones of a linked module, is there."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        stem = "." + ".".join(parts[:count])
        for module in modules:
            if f".{module}".endswith(stem) and _has(importlib.import_module(module), parts[count:]):
                return True
    return False


def _has(found: Any, path: list[str]) -> bool:
    for part in path:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@cache
def settings_of(conf: str, stage: str) -> dict[str, Any]:
    """Settings of a configuration for Flickr30K, by their dotted names."""
    settings, _, _ = Planner(Path("nowhere"), "flickr30k", []).configure(Need(stage, conf), None)
    return dict(leaves(settings.model_dump(mode="json")))


def published(paper: str) -> Iterator[float]:
    """All scores that recipes hold of a paper."""
    for name in ("flickr30k", "coco"):
        for run in load_recipe(name).run:
            for each in run.published:
                if each.where.startswith(paper):
                    yield from each.scores.values()


@every_page
def test_the_citation_is_that_of_the_paper(page: str) -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)
    paper: Paper = PAGES[page]
    start = " ".join(text_of(page).partition("\n## ")[0].split())
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", paper.bibtex, re.MULTILINE))
    *others, last = fields["author"].split(" and ")
    assert f"{', '.join(others)} and {last}. *{fields['title'].strip('{}')}.*" in start
    assert all(fields[name].replace("--", "–") in start for name in ("year", "pages", "doi") if name in fields)


@every_page
def test_every_function_is_where_the_page_says(page: str) -> None:
    text = text_of(page)
    assert all((ROOT / name).is_file() for name in MODULE.findall(text))
    modules = [name.removesuffix(".py").replace("/", ".") for name in MODULE.findall(text)]
    names = {name for name in NAME.findall(text) if not name.endswith(FILES)}
    assert len(names) > 8
    assert not [name for name in names if not resolves(name, modules)]
    idle = [each for each in modules if not any(resolves(name, [each]) for name in names)]
    assert not idle, "modules that no function of the page is in"


def _as_written(value: str) -> Any:
    if value.startswith("["):
        return [_as_written(each) for each in value.strip("[]").split(", ")]
    known: dict[str, Any] = {"true": True, "false": False}
    return known[value] if value in known else float(value) if re.fullmatch(r"[-\d.e]+", value) else value


@every_page
def test_settings_have_the_values_of_the_page(page: str) -> None:
    confs = load_declaration("train").confs
    found = VALUE.findall(text_of(page))
    assert len(found) > 8
    for key, value in found:
        scope, _, rest = key.partition(".")
        if scope == "mine_negatives":
            actual = settings_of("exact", scope)[rest]
        elif scope in confs:
            actual = settings_of(scope, "train")[rest]
        else:
            actual = settings_of(page, "train")[key]
        assert _as_written(value) == actual, key


@pytest.mark.usefixtures("any_hub")
@pytest.mark.parametrize(
    ("page", "given"), [(page, given) for page in PAGES for given in sorted(set(OTHER_WAY.findall(text_of(page))))]
)
def test_the_other_way_plans(page: str, given: str, invoke: Invoke, tmp_path: Path) -> None:
    scope = given.split()[1].partition(".")[0]
    method = scope if scope.startswith(f"{page}-") else page
    done(invoke("evaluate", "--method", method, *given.split(), "--data", tmp_path, "--dry-run"))


@every_page
def test_published_numbers_are_those_of_the_recipes(page: str) -> None:
    known = set(published({"tags-dc": "TAGS-DC", "ascl": "AsCL"}.get(page, page.upper())))
    numbers = {float(number) for number in NUMBER.findall(rows(section(page, "Published and measured numbers")))}
    assert len(numbers) > 8
    assert numbers <= known


@every_page
def test_measured_numbers_stand_on_the_pages_of_results(page: str) -> None:
    results = "".join((ROOT / each).read_text(encoding="utf-8") for each in RESULTS)
    lines = section(page, "Published and measured numbers").splitlines()
    measured = NUMBER.findall("\n".join(line for line in lines if not line.startswith("|")))
    known = set(NUMBER.findall(results))
    assert not [number for number in measured if number not in known and number.lstrip("+") not in known]


# What methods and backbones cite


def test_every_training_has_papers_and_each_is_cited_once() -> None:
    cited = [(*methods()[name]().cited(), *each().cited()) for name in methods() for each in backbones().values()]
    assert all(cited)
    assert bibliography([VSEPP, VSRN, VSEPP]) == bibliography([VSEPP, VSRN])


@pytest.mark.parametrize(
    ("settings", "cited"),
    [
        (Triplet(), [VSEPP]),
        (Triplet(synthetic_sentences=4), [VSEPP, VSE_C]),
        (Triplet(generated_positives="either"), [VSEPP, ASCL]),
        (Aoq(judged="weigh"), [AOQ]),
        (Aoq(judged="soft", judges=("fne",)), [AOQ, FNE, NCR]),
        (DualEncoder(vision="openai/clip-vit-base-patch32", text="openai/clip-vit-base-patch32"), [CLIP]),
        (DualEncoder(vision="google/siglip2-base", text="google/siglip2-base"), [SIGLIP]),
        (DualEncoder(vision="models/ours", text="models/ours"), []),
        (DualEncoder(vision="google/vit-base-patch16-384", text="bert-base-uncased"), [FNE]),
    ],
)
def test_settings_decide_what_is_cited(settings: Any, cited: list[Paper]) -> None:
    assert list(settings.cited()) == cited
