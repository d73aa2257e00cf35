"""Commands of the README and the docs: each parses, names what is declared; make targets and linked files exist."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image

from itrpipe import __version__
from itrpipe.cli import app
from itrpipe.cli.export import Export
from itrpipe.cli.options import overrides_of
from itrpipe.cli.request import Request
from itrpipe.config import load_declaration, parse_override
from itrpipe.datasets.decisions import Decision, DecisionFile
from itrpipe.datasets.definition import remember_model
from itrpipe.models.declaration import backbone_names
from itrpipe.pipeline.models import define_model
from itrpipe.pipeline.recipes import load_recipe
from tests.chains import CLIP, FEW, Invoke, done, encoders_of, sets
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]
DOCS = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
PAGES = ("README.md", "CONTRIBUTING.md", "stages/README.md", "data/README.md", *DOCS)
DECLARATIONS = sorted((ROOT / "stages").rglob("*.toml"))
DECISIONS = "data/photos/decisions.parquet"
GROUP: Any = typer.main.get_command(app)
COMMANDS: Any = {name: GROUP.get_command(None, name) for name in GROUP.commands}


def blocks(page: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def every_block() -> list[str]:
    """The code blocks of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def commands() -> list[str]:
    """Every line of a code block or of the head of a declaration that calls itrpipe, without its comment."""
    lines = [line.removeprefix("$ ") for block in every_block() for line in block.splitlines()]
    launched = [line for path in DECLARATIONS for line in launches(path)]
    return [line for line in (*lines, *launched) if re.match(r"itrpipe +[a-z]", line)]


def launches(path: Path) -> list[str]:
    """Commands in the head of a declaration."""
    return re.findall(
        r"^# *(?:Launch:|Change:)? *(itrpipe .*?)(?: {2,}\(.*)?$", path.read_text(encoding="utf-8"), re.MULTILINE
    )


def plans_on_scenes(line: str) -> bool:
    """Whether a command plans stages of the dataset that needs no files, and reads nothing that was made before."""
    _, name, *arguments = shlex.split(line, comments=True)
    command = COMMANDS[name]
    values = command.make_context(name, arguments).params
    if known := values.get("named") or values.get("like"):  # a model's name stands for its dataset
        return told(known)[0] == "scenes" and "dry_run" in values
    ours = values.get("dataset") == "scenes" or values.get("recipe") in ("scenes", "aoq-vsrn", "aoq-bfan")
    reads = (
        name == "report"
        or any("=" in each for each in values.get("benchmark") or ())
        or isinstance(values.get("embeddings"), Path)
        or values.get("show")
        or values.get("photos")
    )
    return ours and "dry_run" in values and not reads


@pytest.mark.parametrize("line", commands())
def test_command_parses_and_names_what_is_declared(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    values = COMMANDS[name].make_context(name, arguments).params
    if values.get("method"):
        assert values["method"] in load_declaration("train").confs
    if values.get("backbone"):
        assert values["backbone"] in backbone_names()
    if name == "run":
        recipe = load_recipe(values["recipe"])
        assert recipe.chosen(values["recipe"], values["only"] or [])


def told(name: str) -> tuple[str, dict[str, Any]]:
    """The dataset of a model, and what the first page tells of it to `train --name`."""
    found = [line for line in commands() if re.search(rf"train +--name {name} ", line)]
    if not found:  # a folder, or the id of a model on the hub
        return "", {}
    _, command, *arguments = shlex.split(found[0], comments=True)
    values = COMMANDS[command].make_context(command, arguments).params
    return told(values["like"])[0] if values.get("like") else values["dataset"], values


def tell(root: Path, name: str) -> None:
    """Remembers a model as the first page tells it."""
    dataset, values = told(name)
    overrides = overrides_of(values["settings"], {"backbone": values["backbone"]})
    model, _ = define_model(root, dataset, name, values["method"], overrides)
    remember_model(root, dataset, name, model.definition)


@pytest.mark.usefixtures("any_hub")
@pytest.mark.parametrize("line", [line for line in commands() if plans_on_scenes(line)])
def test_command_on_scenes_plans_with_all_its_settings(line: str, invoke: Invoke, tmp_path: Path) -> None:
    _, *arguments = shlex.split(line, comments=True)
    for option in {"--model", "--like"}.intersection(arguments):
        tell(tmp_path, arguments[arguments.index(option) + 1])
    if DECISIONS in line:
        DecisionFile(tmp_path / DECISIONS).add([Decision("ada", "image", "caption", "fits")])
        arguments = [each.replace(DECISIONS, str(tmp_path / DECISIONS)) for each in arguments]
    outcome = invoke(*arguments, "--data", tmp_path, *([] if "--dry-run" in arguments else ["--dry-run"]))
    assert outcome.code == 0, outcome.err
    assert "missing" in outcome.out


def test_make_targets_exist_and_the_citation_names_this_version() -> None:
    assert len(commands()) > 50
    assert all(launches(path) for path in DECLARATIONS)
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    named = {line.split()[1] for block in every_block() for line in block.splitlines() if line.startswith("make ")}
    named |= set(re.findall(r"`make ([a-z-]+)", "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_the_plug_in_of_the_readme_is_the_one_that_tests_install() -> None:
    shown = [block for block in every_block() if block.startswith("# itrpipe_example/")]
    assert len(shown) == 3
    for block in shown:
        name, _, text = block.partition("\n")
        assert (ROOT / "tests" / "plugin" / name.removeprefix("# ")).read_text(encoding="utf-8") == text
    (packaged,) = (tomllib.loads(block) for block in every_block() if block.startswith("# pyproject.toml"))
    whole = tomllib.loads((ROOT / "tests" / "plugin" / "pyproject.toml").read_text(encoding="utf-8"))
    assert packaged["build-system"] == whole["build-system"]
    assert packaged["project"].pop("entry-points").items() <= whole["project"]["entry-points"].items()
    assert packaged["project"].items() <= whole["project"].items()


def block(part: str) -> str:
    """The code block that holds this."""
    (found,) = (block for block in every_block() if part in block)
    return found


def executed(code: str) -> list[tuple[Any, ...]]:
    """What a code block prints."""
    printed: list[tuple[Any, ...]] = []
    exec(compile(code, "README.md", "exec"), {"print": lambda *said: printed.append(said)})
    return printed


def test_the_checks_of_the_readme_run() -> None:
    executed(block("import IMAGE_DIM"))


def test_the_training_loop_of_the_readme_learns() -> None:
    code, other = block("OfflineNegatives(vars(mined)"), block("mined_score")
    (shown,) = (line for line in code.splitlines(keepends=True) if line.lstrip().startswith("loss = "))
    with_infonce = code.replace(shown, textwrap.indent(other, " " * (len(shown) - len(shown.lstrip()))))
    for whole, most in ((code, 0.7), (with_infonce, 0.95)):
        printed = executed(whole)
        assert [epoch for epoch, _ in printed] == list(range(5))
        assert printed[-1][1] < most * printed[0][1]


def test_the_comparison_of_the_library_prints_what_its_page_shows() -> None:
    printed = [str(shown) for (shown,) in executed(block("def evaluations(noise)"))]
    assert "\n".join(printed) == block("Mined is better than").rstrip()


def test_the_project_of_the_library_goes_through_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *measured, page = [shown for (shown,) in executed(block("itrpipe.Project("))]
    assert len(measured) == 2
    assert all(0 <= rsum <= 600 for rsum in measured)
    assert (page.folder / "index.html").exists()


def test_the_lines_of_the_readme_use_an_exported_model(
    finished_chain: Path, clip_chain: Path, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ("method=zero-shot", *CLIP, *encoders_of(saved_encoders, "clip"), FEW)
    request = Request(clip_chain, "tiny", [parse_override(text) for text in made], no_deps=True)
    Export(target=tmp_path / "vsrn-aoq").export(request)
    for number, name in enumerate(("first", "second")):
        shutil.copy(finished_chain / "source" / "flickr30k-images" / f"{1000 + number}.jpg", tmp_path / f"{name}.jpg")
    monkeypatch.chdir(tmp_path)
    ((scores, found),) = executed(block("itrpipe.load("))
    assert scores.shape == (2, 1)
    assert found == [(int(scores.argmax()), pytest.approx(float(scores.max())))]


def with_clip(code: str, clip: Path) -> str:
    """Code that opens the CLIP of a folder."""
    assert "clip-ViT-B-32" in code
    return code.replace("clip-ViT-B-32", str(clip))


@pytest.mark.parametrize("source", ["captions.csv", "load_from_disk"])
def test_the_code_for_your_own_model_goes_from_vectors_to_a_comparison(
    source: str, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    random = np.random.default_rng(0)
    Path("photographs").mkdir()
    lines = ["file,caption,split"]
    for number in range(16):
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photographs/{number}.png")
        split = "train" if number < 8 else "test"
        lines += [f"{number}.png,a dog of name {number} {verb},{split}" for verb in ("runs", "walks")]
    Path("photographs/captions.csv").write_text("\n".join(lines), encoding="utf-8")
    found = [f"photographs/{number}.png" for number in range(8)]
    shop = {"image": found, "captions": [[f"dog {number}", f"{number} dogs"] for number in range(8)]}
    shop = datasets.Dataset.from_dict(shop).cast_column("image", datasets.Image())
    datasets.DatasetDict({"train": shop}).save_to_disk("shop")
    code = block("def encode(model, rows)")
    if source != "captions.csv":
        code += block(source)
    code += block("triplets = ").replace('by="captions"', 'by="captions:tfidf"')
    code += block("of_texts = datasets") + block("itrpipe.compare(before, after)")
    ((claim,),) = executed(with_clip(code, saved_encoders / "clip"))
    assert claim.differences["rsum"].count == 1


def test_the_code_for_sentence_transformers_trains_with_exported_negatives(
    finished_chain: Path, saved_encoders: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    small = sets(*TINY[:-1], "num_texts=5", "num_images=3")
    images = ("--image-root", finished_chain / "source", "--negatives", 3)
    where = ("-b", "vsepp", "-d", "tiny", "--data", finished_chain / "data")
    done(invoke("export-negatives", *where, "--to", "negatives", *images, *small))
    code, clip = block('load_dataset("negatives"'), saved_encoders / "clip"
    executed(with_clip(code, clip))
    before, after = (load_file(folder / "model.safetensors") for folder in (clip, tmp_path / "clip-mined"))
    changed = {name.partition(".")[0] for name in before if not before[name].equal(after[name])}
    assert {"vision_model", "text_model"} <= changed
