"""Recipes: every file loads, the whole chain of one is planned and run from it, and what its runs share and read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.config import load_declaration, parse_override, stages_folder
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.evaluation.metrics import PROTOCOLS, Ranks, metrics
from itrpipe.methods.declaration import methods
from itrpipe.models.declaration import backbone_family, backbone_names
from itrpipe.pipeline.recipes import load_recipe, recipe_files
from itrpipe.pipeline.reproduction import Options, run_recipe
from itrpipe.report.published import RECALLS, RSUM
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.settings import ModelName
from tests.chains import Invoke, done, only, planned, refused
from tests.conftest import write_source

DOCS = Path(__file__).parents[1] / "docs"
STUDY = str(DOCS / "study.toml")
RECIPES = [*recipe_files(), *map(str, sorted(DOCS.glob("study*.toml")))]
SCREEN_LINES, SCREEN_COLUMNS = 24, 110
ONLY = ("triplet.vsrn", "aoq.vsrn")
HEAD = 'dataset = "scenes"\nfeatures = "scenes"\ntitle = "Mine"\n'
RUN = '[[run]]\nmethod = "contrastive"\nbackbone = "vsepp"\n'
SMALL = (
    *("epochs=1", "batch_size=16", "min_word_count=1", "model.embed_dim=8", "model.word_dim=8", "model.caption_dim=8"),
    *("model.caption_word_dim=8", "aoq.top_texts=5", "aoq.top_images=3", "mine_negatives.num_texts=5"),
    *("mine_negatives.num_images=3", "evaluate.bootstrap_samples=100", "report.bootstrap_samples=100"),
)
OWN = """dataset = "mine"
features = "precomp"
title = "Mine"
[source]
captions = "."
explanation = "Bring it."
[source.features.precomp]
path = "f30k_precomp"
explanation = "regions"
"""
TINY = """[set]
train = { epochs = 1, batch_size = 16, min_word_count = 1, model.embed_dim = 8, model.word_dim = 8 }
evaluate.bootstrap_samples = 100
report.bootstrap_samples = 100
"""


def written(folder: Path, tables: str, head: str = HEAD, run: str = RUN) -> str:
    """A recipe of these tables and this run, in a file."""
    path = folder / "mine.toml"
    path.write_text(f"{head}{tables}{run}", encoding="utf-8")
    return str(path)


def own(folder: Path, runs: Iterable[str], more: str = TINY) -> str:
    """A recipe of these runs for the tiny source folder."""
    return written(folder, more, OWN, "".join(f"[[run]]\n{run}\n" for run in runs))


def small_flickr30k(folder: Path) -> str:
    """The recipe flickr30k for a dataset of twelve, four and four images."""
    text = (stages_folder() / "recipes" / "flickr30k.toml").read_text(encoding="utf-8")
    for split, size, tiny in (("train", 29000, 12), ("val", 1014, 4), ("test", 1000, 4)):
        text = text.replace(f"{split} = {size}\n", f"{split} = {tiny}\n")
    (folder / "small.toml").write_text(text, encoding="utf-8")
    return str(folder / "small.toml")


# Files


def test_features_of_a_recipe_reach_every_run_that_names_no_others(tmp_path: Path) -> None:
    run = '[[run]]\nmethod = "triplet"\nbackbone = "dual-encoder"\n'
    regions = 'set = { train.model = { images = "regions" } }\n'
    for more, expected in (("", ""), (regions, "scenes"), (f'{regions}features = "hog"\n', "hog")):
        recipe = load_recipe(written(tmp_path, "", run=run + more))
        assert recipe.features_of(recipe.run[0], tiny=False) == expected


@pytest.mark.parametrize("name", RECIPES, ids=lambda name: Path(name).stem)
def test_every_recipe_names_methods_backbones_and_metrics_that_exist(name: str) -> None:
    lines = [published.where + published.protocol for run in load_recipe(name).run for published in run.published]
    assert len(lines) == len(set(lines)) or not name.startswith(("flickr30k", "coco")), "two rows of one line"
    known = metrics(Ranks(images_to_texts=np.ones(1, np.int64), texts_to_images=np.ones(1, np.int64)))
    for run in load_recipe(name).run:
        assert run.method in load_declaration("train").confs
        assert run.backbone in backbone_names()
        for seed in run.seeds:
            model = ModelName(run.method, run.backbone, seed)
            assert model not in [model.named_by(name) for name in run.ensemble_with]
        for published in run.published:
            assert published.protocol in PROTOCOLS
            assert published.scores, published.where
            assert {key for key in published.scores if "." not in key} <= set(known)
            recalls = [value for key, value in published.scores.items() if key in RECALLS]
            if len(recalls) == len(RECALLS) and RSUM in published.scores:
                # AOQ's Table 1 prints 519.7 for six recalls whose sum is 519.6.
                assert sum(recalls) == pytest.approx(published.scores[RSUM], abs=0.11), published.where


def test_one_run_stands_for_every_method_and_backbone_of_its_lists(tmp_path: Path) -> None:
    run = '[[run]]\nmethod = ["triplet", "aoq"]\nbackbone = ["vse++", "vsrn"]\nseeds = [0, 1]\n'
    runs = load_recipe(written(tmp_path, "", run=run)).run
    names = ["triplet.vsepp", "aoq.vsepp", "triplet.vsrn", "aoq.vsrn"]
    assert [(each.label, each.seeds) for each in runs] == [(name, (0, 1)) for name in names]


def test_a_grid_makes_a_run_of_every_combination(tmp_path: Path) -> None:
    grid = (
        "set = { contrastive.loss = { margin = 0.1 }, train.epochs = 2 }\n[run.grid]\n"
        'sources = [{}, { contrastive.loss.negatives = ["mined"] }]\n'
        'weights = [{ contrastive = { loss.weigh = "fne" } }, { contrastive.loss.margin = 0.3 }]\n'
    )
    base, mined = {"contrastive.loss.margin": 0.1, "train.epochs": 2}, {"contrastive.loss.negatives": ["mined"]}
    weights = [{"contrastive.loss.weigh": "fne"}, {"contrastive.loss.margin": 0.3}]
    expected = [base | source | weight for source in ({}, mined) for weight in weights]
    assert [run.overrides for run in load_recipe(written(tmp_path, "", run=RUN + grid)).run] == expected


def test_a_row_with_a_grid_is_a_run_of_every_combination_with_the_grid_of_all_rows(tmp_path: Path) -> None:
    run = RUN + "grid.margins = [{ margin = 0.1 }, { margin = 0.2 }]\nrows = [{}, { grid.epochs = [{ epochs = 1 }] }]\n"
    runs = load_recipe(written(tmp_path, "", run=run)).run
    margins = [{"margin": 0.1}, {"margin": 0.2}]
    assert [each.overrides for each in runs] == [*margins, *({**each, "epochs": 1} for each in margins)]


def test_rows_and_an_extended_recipe_fill_in_what_is_not_told(tmp_path: Path) -> None:
    head = 'extends = "flickr30k"\ndataset = "mine"\n[source.expected]\ntrain = 7\n'
    run = (
        '[[run]]\nbackbone = "vsrn"\nset.epochs = 1\n'
        'rows = [{ method = ["triplet", "aoq"] }, { method = "aoq", seeds = [1], set.margin = 0.1 }]\n'
    )
    recipe, base = load_recipe(written(tmp_path, "", head, run)), load_recipe("flickr30k")
    assert [(each.label, each.seeds, each.overrides) for each in recipe.run] == [
        ("triplet.vsrn", (0,), {"epochs": 1}),
        ("aoq.vsrn", (0,), {"epochs": 1}),
        ("aoq.vsrn", (1,), {"epochs": 1, "margin": 0.1}),
    ]
    assert (recipe.dataset, recipe.tiny, recipe.backbones) == ("mine", base.tiny, base.backbones)
    assert recipe.source is not None
    assert recipe.source.expected == {"train": 7, "val": 1014, "test": 1000}


SOURCED = "[source]\ncaptions = {captions!r}\nexplanation = 'x'\n"
NAMES = ["../x", "x" * 101, "a b"]
OUTSIDE = ["../src", "/etc/hostname", "a/../../b", ".."]
DAMAGED = [
    *(("", RUN + f"grid = {grid}", "grid is a table of lists") for grid in ("1", "{}", "{ a = [] }", "{ a = [1] }")),
    *(("", RUN + f"rows = {rows}", "rows is a list of tables") for rows in ("1", "[]", "[1]", "{ a = 1 }")),
    ("", RUN + "rows = [{ rows = [{}] }]", "rows is a list of tables"),
    (f"set{'.a' * 1200} = 1\n", RUN, "has hundreds of tables in each other"),
    ("", "", "run: "),
    ("", RUN + "seed = 1", "run.0.seed: "),
    ("set = { train.epochs = {} }\n", RUN, "set: train.epochs is an empty table"),
    ('set = "train.epochs=3"\n', RUN, "set: must be a valid dictionary"),
    ("[backbones.vsrm]\n", RUN, "there is no backbone 'vsrm'"),
    ("", f'{RUN}name = "a"\n{RUN}name = "a"', "several runs have the name 'a'"),
    ("set.a = ['x:{words}']\n", RUN, "a: {words} names no file"),
    ("set.a = '{words}'\n", RUN, "a: {words} names no file of [source.files]"),
    *((f"{key} = '{name}'\n", RUN, f"{key}: name '{name[:4]}") for key in ("dataset", "features") for name in NAMES),
    (SOURCED.format(captions=".") + "expected = { train = -5 }\n", RUN, "source.expected.train: must be"),
    (SOURCED.format(captions=".") + "expected = { tset = 5 }\n", RUN, "source.expected.tset"),
    (SOURCED.format(captions=".") + "features.'../x' = {}\n", RUN, "name '../x' must be letters"),
    ("a = " + "[" * 5000, RUN, "is not valid TOML"),
    ("a = " + "9" * 5000, RUN, "is not valid TOML"),
    *((SOURCED.format(captions=path), RUN, f"source.captions: {path!r} leads out") for path in OUTSIDE),
    *(
        (
            f"{SOURCED.format(captions='.')}[source.{table}]\nexplanation = 'x'\npath = {path!r}\n",
            RUN,
            f"source.{table}.path: {path!r} leads out",
        )
        for table in ("features.precomp", "files.words")
        for path in OUTSIDE
    ),
]


@pytest.mark.parametrize(("tables", "run", "said"), DAMAGED)
def test_a_file_that_is_no_recipe_is_told(tmp_path: Path, tables: str, run: str, said: str) -> None:
    own = tables.partition(" = ")[0]
    head = "".join(line for line in HEAD.splitlines(keepends=True) if not line.startswith(f"{own} ="))
    path = written(tmp_path, tables, head, run)
    with pytest.raises(DataError) as caught:
        load_recipe(path)
    assert path in str(caught.value)
    assert said in str(caught.value)


def test_a_recipe_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")  # which is not waited for
    (tmp_path / "folder.toml").mkdir()
    for name, kind in (("pipe", DataError), ("folder", DataError), ("none", MissingInputError)):
        with pytest.raises(kind, match="is no file" if kind is DataError else "none.toml"):
            load_recipe(str(tmp_path / f"{name}.toml"))


# Plans


@pytest.mark.parametrize("source", [None, "."])
def test_flickr30k_without_its_files_explains_itself_on_one_screen(
    data_root: Path, tmp_path: Path, invoke: Invoke, source: str | None
) -> None:
    chosen = ["--source", tmp_path, "--only", "aoq.vsrn"] if source else []
    outcome = invoke("run", "flickr30k", "--data", data_root, *chosen)
    assert outcome.code == MissingInputError.exit_code
    lines = outcome.err.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    said = ("dataset_flickr30k.json", "flickr30k-images/", "f30k_precomp", "29,000 train", "run flickr30k --source FOL")
    assert source or all(part in outcome.err for part in said)
    assert (f"{tmp_path / 'f30k_precomp'} does not exist" in outcome.err) == bool(source)
    assert ("uniter-base.pt" in outcome.err) == (source is None)
    assert not data_root.exists()


def test_flickr30k_plans_the_whole_chain_from_a_source_behind_links(
    data_root: Path, tmp_path: Path, precomp_dataset: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    precomp_dataset.features.symlink_to(precomp_dataset.features.rename(tmp_path / "elsewhere"))
    (tmp_path / "linked").symlink_to(precomp_dataset.folder)
    run_recipe(data_root, "flickr30k", Options(tmp_path / "linked", only=(".vsrn",), dry_run=True))
    assert planned(capsys.readouterr().out) == [
        "prepare/files",
        "extract/precomp",
        "train/triplet.vsrn",
        "evaluate/triplet.vsrn",
        "mine_negatives/exact.triplet.vsrn",
        "train/aoq.vsrn",
        "evaluate/aoq.vsrn",
        "train/triplet.vsrn.s1",
        "evaluate/triplet.vsrn+vsrn.s1",
        "mine_negatives/exact.triplet.vsrn.s1",
        "train/aoq.vsrn.s1",
        "evaluate/aoq.vsrn+vsrn.s1",
        "evaluate/triplet.vsrn.s1",
        "evaluate/aoq.vsrn.s1",
        "report/page",
    ]
    assert not (data_root / "flickr30k").exists()


def test_demo_plans_the_whole_chain_and_takes_no_source_nor_settings_that_no_run_reads(
    data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, "demo", Options(dry_run=True))
    found = planned(capsys.readouterr().out)
    assert (found[0], found[-1], len(found)) == ("prepare/scenes", "report/page", 10)
    with pytest.raises(UsageError, match="takes no --source"):
        run_recipe(data_root, "demo", Options(tmp_path, dry_run=True))
    options = Options(overrides=[parse_override("aoq.alpha=0.4")], only=("contrastive-batch",), dry_run=True)
    with pytest.raises(UsageError, match=r"setting aoq\.alpha \(from command line\) is read by no step"):
        run_recipe(data_root, "demo", options)


@pytest.mark.parametrize("name", RECIPES, ids=lambda name: Path(name).stem)
def test_every_recipe_has_a_tiny_form(
    name: str, precomp_dataset: Any, data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(name)
    source = precomp_dataset.folder if recipe.source else None
    run_recipe(data_root, name, Options(source, tiny=True, dry_run=True))
    made = planned(capsys.readouterr().out)
    assert len(made) > len({run.label for run in recipe.run})
    extracted = {each for each in made if each.startswith("extract/")}
    assert extracted <= {"extract/frcnn" if source else "extract/scenes"}
    brought = recipe.source.features if recipe.source else {}
    for run in recipe.run if source else ():
        for tiny in (False, True):
            features = recipe.features_of(run, tiny=tiny)
            conf = brought[features].conf if features in brought else ""
            named = conf or features
            assert not named or {*named.split("+")} <= set(load_declaration("extract").confs)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["aoq.vsrn"], {"aoq.vsrn"}),
        (["itm"], {"itm.uniter", "itm.uniter-large"}),
        ([".uniter"], {f"{method}.uniter" for method in ("itm", "tags", "tags-words", "tags-static", "tags-dc")}),
        (["aoq.vsrn", "fne-only"], {"aoq.vsrn", "fne-only.dual-encoder"}),
    ],
)
def test_only_names_a_run_a_method_or_a_backbone(only: list[str], names: set[str]) -> None:
    recipe = load_recipe("flickr30k")
    chosen = recipe.chosen("flickr30k", only)
    assert {run.label for run in chosen} == names
    assert chosen == [run for run in recipe.run if run.label in names]
    for text in (".", ""):
        with pytest.raises(UsageError, match="no such run"):
            recipe.chosen("flickr30k", [text])


def test_only_names_a_group(tmp_path: Path) -> None:
    runs = [
        f'method = "{method}"\nbackbone = "vsepp"\ngroup = "{group}"' for method, group in (("aoq", "a"), ("fne", "b"))
    ]
    chosen = load_recipe(own(tmp_path, runs)).chosen("mine", ["b"])
    assert [run.label for run in chosen] == ["fne.vsepp"]


@pytest.mark.usefixtures("any_hub")
def test_files_that_the_chosen_runs_do_not_read_are_not_asked_for(
    precomp_dataset: Any, data_root: Path, invoke: Invoke
) -> None:
    precomp_dataset.features.rename(precomp_dataset.folder / "elsewhere")
    command = ["run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, "--dry-run"]
    found = planned(done(invoke(*command, "--only", "fne-only", "--only", "ascl")))
    assert "extract/butd+resnet" in found
    for run, missing in (("ssamt", "f30k_precomp"), ("tags", "uniter-base.pt"), ("itm.uniter-large", "uniter-large")):
        outcome = invoke(*command, "--only", run)
        assert outcome.code == MissingInputError.exit_code
        assert f"{precomp_dataset.folder / missing}" in outcome.err


def test_files_in_braces_become_paths_of_the_source(precomp_dataset: Any, data_root: Path, tmp_path: Path) -> None:
    run = 'method = "aoq"\nbackbone = "vsepp"\nset = { "train.sentences" = "{words}" }'
    recipe = own(tmp_path, [run], '[source.files.words]\npath = "words.txt"\nexplanation = "words"\n' + TINY)
    with pytest.raises(MissingInputError, match=r"words\.txt does not exist\n\nBring it\.\n  FOLDER/words\.txt +words"):
        run_recipe(data_root, recipe, Options(precomp_dataset.folder, dry_run=True))


# Runs


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable[..., Path]]:
    """A data folder in which the small recipe flickr30k was run, and what runs it again."""
    folder = tmp_path_factory.mktemp("flickr30k")
    recipe, source = small_flickr30k(folder), write_source(folder / "source")

    def run(*more: str) -> Path:
        overrides = [parse_override(item) for item in (*SMALL, *more)]
        page = run_recipe(folder / "data", recipe, Options(source.folder, overrides, only=ONLY))
        assert page is not None
        return page

    return folder / "data" / "flickr30k", run


def test_flickr30k_runs_from_files_to_published_next_to_measured(
    reproduced: tuple[Path, Callable[..., Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = reproduced
    page = run()
    made = {path.parent.parent.name for path in root.glob("*/*/manifest.json")}
    assert made == {"prepare", "extract", "train", "mine_negatives", "evaluate", "report"}
    assert "AOQ Table 2" in (page / "index.html").read_text(encoding="utf-8")
    runs = {run["label"]: run for run in json.loads((page / "results.json").read_text(encoding="utf-8"))["runs"]}
    expected = json.loads((page / "expected.json").read_text(encoding="utf-8"))["runs"]
    published = {run["title"]: run["headline"]["expected"] for run in expected}
    # The published scores are of two models and stand beside no single one.
    assert published == {"triplet.vsrn+vsrn.s1": 482.6, "aoq.vsrn+vsrn.s1": 486.3}
    assert set(runs) == {*published, "triplet.vsrn", "triplet.vsrn.s1", "aoq.vsrn", "aoq.vsrn.s1"}
    assert read_manifest(page).messages == []
    printed = capsys.readouterr().out
    assert printed.index("  + prepare/files") < printed.index("  done in") < printed.index("  + extract/precomp")
    assert printed.count("  + prepare/files") == 1
    assert "OK within 1, close within 3 points of RSum" in printed
    (line,) = [line for line in printed.splitlines() if "AOQ Table 2, VSRN + AdapOffQuin" in line]
    measured = runs["aoq.vsrn+vsrn.s1"]["metrics"]["full"]["rsum"]["value"]
    assert line.split()[:3] == ["FAIL", "aoq.vsrn+vsrn.s1", "rsum"]
    assert f"expected 486.3, got {measured:.1f} (" in line
    run()
    assert "  + " not in capsys.readouterr().out


def test_published_scores_of_the_test_split_are_not_shown_for_another(
    reproduced: tuple[Path, Callable[..., Path]],
) -> None:
    page = reproduced[1]("evaluate.split=val")
    assert not (page / "expected.json").exists()
    runs = json.loads((page / "results.json").read_text(encoding="utf-8"))["runs"]
    assert {run["label"] for run in runs} >= {"aoq.vsrn.val", "aoq.vsrn+vsrn.s1.val"}


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ("train = 29000\nval = 4\ntest = 4", "12 train, 4 val, 4 test images instead of 29,000 train, 4 val, 4 test"),
        ("test = 5", "4 test images instead of 5 test"),
    ],
)
def test_data_of_other_sizes_are_refused_before_anything_expensive(
    tmp_path: Path, data_root: Path, precomp_dataset: Any, invoke: Invoke, counted: str, said: str
) -> None:
    recipe = own(tmp_path, [RUN.partition("\n")[2]], f"[source.expected]\n{counted}\n{TINY}")
    for _ in range(2):  # made, and already there
        outcome = invoke("run", recipe, "--source", precomp_dataset.folder, "--data", data_root)
        refused(outcome, DataError.exit_code, f"{precomp_dataset.folder} has {said}")
        assert "extract/" not in outcome.out
    assert {path.parent.parent.name for path in (data_root / "mine").glob("*/*/manifest.json")} == {"prepare"}
    assert load_definition(data_root, "mine").prepare is None


def test_runs_have_features_and_settings_of_their_own_and_backbones_too(
    precomp_dataset: Any, data_root: Path, tmp_path: Path
) -> None:
    backbones = '[backbones.vsepp.set]\n"train.model.embed_dim" = 16\n[backbones.vsrn.set]\n"train.epochs" = 2\n'
    run = 'method = "triplet"\nbackbone = "vsepp"\npublished = [{ where = "x", rsum = 100.0 }]\n'
    changed = f'{run}set = {{ "train.seed" = 0, "train.learning_rate" = 0.5 }}\n'
    page = run_recipe(data_root, own(tmp_path, [run, changed], TINY + backbones), Options(precomp_dataset.folder))
    assert page is not None
    manifests = [read_manifest(path) for path in (data_root / "mine" / "train").iterdir() if path.is_dir()]
    assert {each.settings["learning_rate"] for each in manifests} == {1e-3, 0.5}
    assert {(each.settings["model"]["embed_dim"], each.settings["epochs"]) for each in manifests} == {(16, 1)}
    # Two runs of one label: each has its own measured scores beside what was published for it.
    expected = json.loads((page / "expected.json").read_text())["runs"]
    assert [each["title"] for each in expected] == ["triplet.vsepp", "triplet.vsepp seed=0 learning_rate=0.5"]
    for each in expected:
        metrics = json.loads((data_root / "mine" / "evaluate" / each["run"] / "metrics.json").read_text())
        assert each["headline"]["measured"] == metrics["full"]["rsum"]["value"]
    assert not read_manifest(page).messages


@pytest.mark.slow
def test_tiny_runs_a_whole_recipe_on_a_few_photographs_alone(
    precomp_dataset: Any, data_root: Path, invoke: Invoke
) -> None:
    precomp_dataset.features.rename(precomp_dataset.folder / "elsewhere")
    (precomp_dataset.images / "1000.jpg").unlink()
    quick = ["-s", "frcnn.short_side=32", "-s", "frcnn.long_side=40", "-s", "train.threads=1"]
    command = ["run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, "--tiny"]
    out = done(invoke(*command, "--only", "aoq.bfan", "--only", "fne-neither", *quick))
    assert not data_root.exists()
    root = data_root.with_name(f"{data_root.name}-tiny")
    trained = {path.name.rpartition("-")[0] for path in (root / "flickr30k" / "train").iterdir() if path.is_dir()}
    assert trained == {"triplet.vsrn", "aoq.bfan", "aoq.bfan-prob", "fne-neither.dual-encoder"}
    lines = [line.split() for line in out.splitlines() if "AOQ Table 2" in line or "FNE Table 3" in line]
    assert [line[:2] for line in lines] == [["tiny", "aoq.bfan+bfan-prob"], ["tiny", "fne-neither.dual-encoder"]]
    assert read_manifest(only(root, "prepare/files")).metrics["dropped_images"] == 1


def test_one_run_that_fails_does_not_lose_the_others(
    precomp_dataset: Any, data_root: Path, tmp_path: Path, invoke: Invoke
) -> None:
    published = 'published = [{ where = "Table", rsum = 500.0 }]\n'
    # No word is as frequent as AOQ's first training wants it; the other encoder is not there at all.
    aoq = f'method = "aoq"\nbackbone = "vsepp"\nset = {{ "train.min_word_count" = 1000 }}\n{published}'
    dual = 'method = ["triplet", "triplet-long"]\nbackbone = "dual-encoder"\n'
    absent = f'{dual}set = {{ "train.model.vision" = "/nowhere/encoder" }}\n{published}'
    runs = [aoq, absent, f'method = "triplet"\nbackbone = "vsepp"\n{published}']
    recipe = own(tmp_path, runs, TINY.replace(", model.embed_dim = 8, model.word_dim = 8", ""))
    command = ["run", recipe, "--source", precomp_dataset.folder, "--data", data_root, "-s", "train.threads=1"]
    command += ["-s", "triplet.embed_dim=8", "-s", "aoq.embed_dim=8"]
    assert invoke(*command).code == MissingInputError.exit_code
    assert not (data_root / "mine" / "train").exists()
    outcome = invoke(*command, "--keep-going")
    assert outcome.code == UsageError.exit_code, outcome.err
    assert re.match(r"error: 3 of 4 runs failed: aoq\.vsepp .*; so did triplet\.dual-encoder", outcome.err)
    verdicts = [line.split()[:2] for line in outcome.out.splitlines() if line.endswith("(Table)")]
    titles = [f"{method}.dual-encoder" for method in ("triplet", "triplet-long")]
    assert verdicts == [*(["missing", title] for title in ("aoq.vsepp", *titles)), ["FAIL", "triplet.vsepp"]]
    for title in titles:
        assert f"  ✗ {title} vision=/nowhere/encoder cannot be planned: " in outcome.out
    page = only(data_root, "report/page")
    assert [run["label"] for run in json.loads((page / "results.json").read_text())["runs"]] == ["triplet.vsepp"]
    missing = [run for run in json.loads((page / "expected.json").read_text())["runs"] if run["verdict"] == "missing"]
    assert [run["headline"]["measured"] for run in missing] == [None, None, None]
    # What is repaired is made by the same command, and nothing else is made again.
    done(invoke(*command, "--keep-going", "--only", "aoq.vsepp", "-s", "train.min_word_count=1"))


def test_scenes_runs_every_method_and_every_kind_of_backbone() -> None:
    """`pretrain` starts others and is not evaluated itself; what trains nothing needs a pretrained model."""
    runs = load_recipe("scenes").run
    assert {backbone_family(each.backbone) for each in runs} == {backbone_family(name) for name in backbone_names()}
    trained = {name for name, declared in methods().items() if declared.trains}
    assert {each.method for each in runs} >= trained - {"pretrain"}
