"""Running recipes: some of their runs, toy models, runs that fail, what each reads, and what all of it will cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from itrpipe.config import load_declaration
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.pipeline.planning import parse_override
from itrpipe.pipeline.recipes import load_recipe
from itrpipe.pipeline.reproduction import Options, run_recipe
from itrpipe.storage.artifact import read_manifest

HEAD = """dataset = "mine"
features = "precomp"
title = "Mine"
[source]
captions = "."
explanation = "Bring it."
[source.features.precomp]
path = "f30k_precomp"
explanation = "regions"
"""
SMALL = """[set]
train = { epochs = 1, batch_size = 16, min_word_count = 1, model.embed_dim = 8, model.word_dim = 8 }
evaluate.bootstrap_samples = 100
report.bootstrap_samples = 100
"""
STUDY = str(Path(__file__).parents[1] / "docs" / "study.toml")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a recipe of these runs and tables, for the tiny source folder."""

    def written(runs: Iterable[str], more: str = SMALL, head: str = HEAD) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(head + more + "".join(f"[[run]]\n{run}\n" for run in runs), encoding="utf-8")
        return str(path)

    return written


def planned(printed: str) -> list[str]:
    return [line.split()[1].rpartition("-")[0] for line in printed.splitlines() if line.startswith("  + ")]


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["aoq.vsrn"], {"aoq.vsrn"}),
        (["itm"], {"itm.uniter", "itm.uniter-large"}),
        ([".uniter"], {f"{method}.uniter" for method in ("itm", "tags", "tags-words", "tags-static", "tags-dc")}),
        (["aoq.scan"], {"aoq.scan-t2i-avg"}),
        (["aoq.vsrn", "fne-only"], {"aoq.vsrn", "fne-only.dual-encoder"}),
    ],
)
def test_only_names_a_run_a_method_or_a_backbone(only: list[str], names: set[str]) -> None:
    recipe = load_recipe("flickr30k")
    chosen = recipe.chosen("flickr30k", only)
    assert {run.name for run in chosen} == names
    assert chosen == [run for run in recipe.run if run.name in names]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "contrastive.bert",
            r"--only contrastive\.bert: recipe demo has no such run; did you mean 'contrastive\.vsrn'\?",
        ),
        (
            "xyz",
            r"--only xyz: recipe demo has no such run; it has contrastive-batch\.vsrn, contrastive-time\.vsrn, contr",
        ),
        (".", "no such run"),
        ("", "no such run"),
    ],
)
def test_only_of_no_run_says_what_the_recipe_has(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("demo").chosen("demo", [text])


@pytest.mark.usefixtures("any_hub")
def test_files_that_the_chosen_runs_do_not_read_are_not_asked_for(
    precomp_dataset: Any, data_root: Path, invoke: Callable[..., Any]
) -> None:
    (precomp_dataset.folder / "f30k_precomp").rename(precomp_dataset.folder / "elsewhere")
    command = ["run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, "--dry-run"]
    outcome = invoke(*command, "--only", "fne-only", "--only", "ascl")
    assert outcome.code == 0, outcome.err
    assert {"extract/pixels", "extract/butd+resnet"} <= set(planned(outcome.out))
    for run, missing in (
        ("ssamt", "f30k_precomp"),
        ("tags", "uniter-base.pt"),
        ("itm.uniter-large", "uniter-large.pt"),
    ):
        outcome = invoke(*command, "--only", run)
        assert outcome.code == MissingInputError.exit_code
        assert f"{precomp_dataset.folder / missing} does not exist" in outcome.err


def test_runs_have_features_and_settings_of_their_own_and_backbones_too(
    precomp_dataset: Any, data_root: Path, write: Callable[..., str]
) -> None:
    backbones = '[backbones.vsepp.set]\n"train.model.embed_dim" = 16\n[backbones.vsrn.set]\n"train.epochs" = 2\n'
    vsepp = 'method = "triplet"\nbackbone = "vsepp"\n'
    published = 'published = [{ where = "x", rsum = 100.0 }]\n'
    changed = f'{vsepp}{published}set = {{ "train.seed" = 0, "train.learning_rate" = 0.5 }}\n'
    recipe = write([f"{vsepp}{published}", changed], SMALL + backbones)
    folder = run_recipe(data_root, recipe, Options(precomp_dataset.folder))
    assert folder is not None
    manifests = [read_manifest(path) for path in (data_root / "mine" / "train").iterdir() if path.is_dir()]
    assert {each.settings["learning_rate"] for each in manifests} == {2e-4, 0.5}
    assert {(each.settings["model"]["embed_dim"], each.settings["epochs"]) for each in manifests} == {(16, 1)}
    # Two runs of one label: each has its own measured scores beside what was published for it.
    expected = json.loads((folder / "expected.json").read_text())["runs"]
    assert [each["title"] for each in expected] == ["triplet.vsepp", "triplet.vsepp seed=0 learning_rate=0.5"]
    for each in expected:
        metrics = json.loads((data_root / "mine" / "evaluate" / each["run"] / "metrics.json").read_text())
        assert each["headline"]["measured"] == metrics["full"]["rsum"]["value"]
    assert not read_manifest(folder).messages


def test_files_in_braces_become_paths_of_the_source(
    precomp_dataset: Any, data_root: Path, write: Callable[..., str]
) -> None:
    run = 'method = "aoq"\nbackbone = "vsepp"\nset = { "train.sentences" = "{words}" }'
    files = '[source.files.words]\npath = "words.txt"\nexplanation = "words"\n'
    recipe = write([run], f"{files}{SMALL}")
    with pytest.raises(
        MissingInputError, match=r"words\.txt does not exist\n\nBring it\.\n  FOLDER/words\.txt +words\n"
    ):
        run_recipe(data_root, recipe, Options(precomp_dataset.folder, dry_run=True))
    with pytest.raises(DataError, match=r"train\.sentences = '\{words\}' names no file of \[source\.files\]"):
        load_recipe(write([run]))


@pytest.mark.slow
def test_tiny_runs_a_whole_recipe_on_a_few_photographs_alone(
    precomp_dataset: Any, data_root: Path, invoke: Callable[..., Any]
) -> None:
    (precomp_dataset.folder / "f30k_precomp").rename(precomp_dataset.folder / "elsewhere")
    (precomp_dataset.images / "1000.jpg").unlink()
    quick = ["-s", "frcnn.short_side=32", "-s", "frcnn.long_side=40", "-s", "train.threads=1"]
    command = ["run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, "--tiny"]
    outcome = invoke(*command, "--only", "aoq.bfan", "--only", "fne-neither", *quick)
    assert outcome.code == 0, outcome.err
    assert not data_root.exists()
    root = data_root.with_name(f"{data_root.name}-tiny")
    trained = {path.name.rpartition("-")[0] for path in (root / "flickr30k" / "train").iterdir() if path.is_dir()}
    assert trained == {"triplet.vsrn", "aoq.bfan", "aoq.bfan-prob", "fne-neither.dual-encoder"}
    lines = [line.split() for line in outcome.out.splitlines() if "AOQ Table 2" in line or "FNE Table 3" in line]
    assert [line[:2] for line in lines] == [["tiny", "aoq.bfan+bfan-prob"], ["tiny", "fne-neither.dual-encoder"]]
    (prepared,) = (root / "flickr30k" / "prepare").glob("files-*")
    assert read_manifest(prepared).metrics["dropped_images"] == 1


@pytest.mark.parametrize("name", ["aoq-bfan", "aoq-vsrn", "demo", "scenes", STUDY])
def test_every_recipe_of_the_embedded_dataset_has_a_tiny_form(
    name: str, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, name, Options(tiny=True, dry_run=True))
    assert len(planned(capsys.readouterr().out)) > len({run.name for run in load_recipe(name).run})


@pytest.mark.parametrize("name", ["coco", "flickr30k", STUDY.replace("study", "study-photographs")])
def test_every_recipe_of_photographs_has_a_tiny_form(
    name: str, precomp_dataset: Any, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, name, Options(precomp_dataset.folder, tiny=True, dry_run=True))
    made = planned(capsys.readouterr().out)
    assert len(made) > len(load_recipe(name).run)
    extracted = {each for each in made if each.startswith("extract/")}
    assert {"extract/frcnn"} <= extracted <= {"extract/frcnn", "extract/pixels"}


def test_one_run_that_fails_does_not_lose_the_others(
    precomp_dataset: Any, data_root: Path, write: Callable[..., str], invoke: Callable[..., Any]
) -> None:
    published = 'published = [{ where = "Table", rsum = 500.0 }]\n'
    # No word is as frequent as AOQ's first training wants it; the other encoder is not there at all.
    aoq = f'method = "aoq"\nbackbone = "vsepp"\nset = {{ "train.min_word_count" = 1000 }}\n{published}'
    gone = '"/nowhere/encoder"'
    dual = 'method = ["triplet", "triplet-long"]\nbackbone = "dual-encoder"\n'
    absent = f'{dual}set = {{ "train.model.vision" = {gone} }}\n{published}'
    triplet = f'method = "triplet"\nbackbone = "vsepp"\n{published}'
    recipe = write([aoq, absent, triplet], SMALL.replace(", model.embed_dim = 8, model.word_dim = 8", ""))
    command = ["run", recipe, "--source", precomp_dataset.folder, "--data", data_root, "-s", "train.threads=1"]
    small = ["-s", "triplet.embed_dim=8", "-s", "aoq.embed_dim=8"]
    stopped = invoke(*command, *small)
    assert stopped.code == MissingInputError.exit_code
    assert not (data_root / "mine" / "train").exists()
    outcome = invoke(*command, *small, "--keep-going")
    assert outcome.code == UsageError.exit_code, outcome.err
    assert re.match(r"error: 3 of 4 runs failed: aoq\.vsepp .*; so did triplet\.dual-encoder", outcome.err)
    verdicts = [line.split()[:2] for line in outcome.out.splitlines() if line.endswith("(Table)")]
    titles = [f"{method}.dual-encoder" for method in ("triplet", "triplet-long")]
    assert verdicts == [*(["missing", title] for title in ("aoq.vsepp", *titles)), ["FAIL", "triplet.vsepp"]]
    for title in titles:
        assert f"  ✗ {title} vision=/nowhere/encoder cannot be planned: " in outcome.out
    (report,) = (data_root / "mine" / "report").glob("page-*")
    assert [run["label"] for run in json.loads((report / "results.json").read_text())["runs"]] == ["triplet.vsepp"]
    missing = [run for run in json.loads((report / "expected.json").read_text())["runs"] if run["verdict"] == "missing"]
    assert [run["headline"]["measured"] for run in missing] == [None, None, None]
    # What is repaired is made by the same command, and nothing else is made again.
    outcome = invoke(*command, *small, "--keep-going", "--only", "aoq.vsepp", "-s", "train.min_word_count=1")
    assert outcome.code == 0, outcome.err


def test_a_dry_run_says_what_it_will_cost(
    precomp_dataset: Any, data_root: Path, write: Callable[..., str], invoke: Callable[..., Any]
) -> None:
    run = 'method = "triplet"\nbackbone = "vsepp"\nseeds = '
    command = ["run", "--source", precomp_dataset.folder, "--data", data_root]
    assert invoke(*command, write([f"{run}[0]"])).code == 0
    (trained,) = (data_root / "mine" / "train").glob("triplet.vsepp-*")
    manifest = json.loads((trained / "manifest.json").read_text())
    manifest["timings"]["total"] = 123.4
    (trained / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    (evaluated,) = (data_root / "mine" / "evaluate").glob("triplet.vsepp-*")
    order = 'method = "triplet"\nbackbone = "vsepp-order"\n'
    slow = f'{run}[2]\nset = {{ "train.epochs" = 2 }}'
    other = f'{run}[3]\nset = {{ "train.epochs" = 3, "train.learning_rate" = 1.0 }}'
    updates = f'{run}[4]\nset = {{ "train.epochs" = 9, "train.max_updates" = 5 }}'
    control = 'method = "triplet-long"\nbackbone = "vsepp"\nset = { "train.epochs" = 2 }'
    printed = invoke(*command, write([f"{run}[0, 1]", order, slow, other, updates, control]), "--dry-run").out
    costs = [line.split(maxsplit=1) for line in printed.partition("estimated cost")[2].splitlines()]
    found = {name.rpartition("-")[0]: cost for name, cost in filter(lambda pair: len(pair) == 2, costs)}
    assert found["train/triplet.vsepp.s1"] == f"123 s  as train/{trained.name} took"
    assert found["evaluate/triplet.vsepp.s1"].endswith(f"as evaluate/{evaluated.name} took")
    assert found["train/triplet.vsepp-order"] == "unknown"
    assert found["evaluate/triplet.vsepp-order"] == "unknown"
    assert found["train/triplet.vsepp.s2"] == f"247 s  as train/{trained.name} took with 1 epoch, scaled to 2"
    assert found["train/triplet.vsepp.s3"] == f"370 s  as train/{trained.name} took with 1 epoch, scaled to 3"
    assert found["train/triplet.vsepp.s4"] == "unknown"
    assert found["train/triplet-long.vsepp"].startswith(f"247 s  as train/{trained.name} took with 1 epoch")
    assert found["evaluate/triplet-long.vsepp"] == "unknown"
    assert "train/triplet.vsepp" not in found
    assert re.search(r"sum: 16 min \d\d s and 4 steps of unknown cost$", printed.rstrip())


def of_other_data(manifest: dict[str, Any]) -> None:
    for record in manifest["inputs"].values():
        record["fingerprint"] = "0" * len(record["fingerprint"])


def resumed(manifest: dict[str, Any]) -> None:
    manifest["messages"] = ["resumed after an interruption; timings count the last run only"]


@pytest.mark.parametrize("change", [of_other_data, resumed])
def test_other_data_and_a_resumed_run_are_no_measure_of_cost(
    precomp_dataset: Any,
    data_root: Path,
    write: Callable[..., str],
    invoke: Callable[..., Any],
    change: Callable[[dict[str, Any]], None],
) -> None:
    run = 'method = "triplet"\nbackbone = "vsepp"\nseeds = '
    command = ["run", "--source", precomp_dataset.folder, "--data", data_root]
    assert invoke(*command, write([f"{run}[0]"])).code == 0
    for path in (data_root / "mine").glob("*/triplet.vsepp-*/manifest.json"):
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps({**manifest, "checksum": ""}))
    printed = invoke(*command, write([f"{run}[1]"]), "--dry-run").out
    assert re.search(r"train/triplet\.vsepp\.s1-\w+ +unknown$", printed, re.MULTILINE)


def test_a_setting_that_no_chosen_run_reads_is_refused(data_root: Path) -> None:
    options = Options(overrides=[parse_override("aoq.alpha=0.4")], only=("triplet",), dry_run=True)
    with pytest.raises(UsageError, match=r"setting aoq\.alpha \(from command line\) is read by no step"):
        run_recipe(data_root, "aoq-vsrn", options)


def test_confs_of_the_recipes_are_those_that_are_declared() -> None:
    features = load_declaration("extract").confs
    for name in ("coco", "flickr30k"):
        recipe = load_recipe(name)
        for run in recipe.run:
            for tiny in (False, True):
                made = recipe.made_from(recipe.features_of(run, tiny=tiny))
                assert {*made.conf.split("+")} <= set(features)
