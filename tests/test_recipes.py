"""Recipes: every file loads, and the whole chain of one is planned from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.config import load_declaration, stages_folder
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.evaluation.metrics import PROTOCOLS, Ranks, metrics
from itrpipe.methods.declaration import methods
from itrpipe.models.registry import backbone_family
from itrpipe.pipeline.planning import parse_override
from itrpipe.pipeline.recipes import load_recipe, recipe_files
from itrpipe.pipeline.reproduction import Options, run_recipe
from itrpipe.report.published import RECALLS, RSUM
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.settings import Model, backbones

RECIPES = [*recipe_files(), *map(str, sorted((Path(__file__).parents[1] / "docs").glob("study*.toml")))]
SCREEN_LINES, SCREEN_COLUMNS = 24, 110
ONLY = ("triplet.vsrn", "aoq.vsrn")
SOURCE = '[source]\ncaptions = "."\nexplanation = "x"\n[source.features.precomp]\npath = "f30k_precomp"\n'
HEAD = 'dataset = "scenes"\nfeatures = "scenes"\ntitle = "Mine"\n'
RUN = '[[run]]\nmethod = "contrastive"\nbackbone = "vsepp"\n'
SMALL = [
    "epochs=1",
    "batch_size=16",
    "min_word_count=1",
    "model.embed_dim=8",
    "model.word_dim=8",
    "model.caption_dim=8",
    "model.caption_word_dim=8",
    "aoq.top_texts=5",
    "aoq.top_images=3",
    "mine_negatives.num_texts=5",
    "mine_negatives.num_images=3",
    "evaluate.bootstrap_samples=100",
    "report.bootstrap_samples=100",
]


def written(folder: Path, tables: str, head: str = HEAD, run: str = RUN) -> str:
    """A recipe of these tables and this run, in a file."""
    path = folder / "mine.toml"
    path.write_text(f"{head}{tables}{run}", encoding="utf-8")
    return str(path)


@pytest.fixture
def small_flickr30k(tmp_path: Path) -> str:
    """The recipe flickr30k for a dataset of twelve, four and four images."""
    text = (stages_folder() / "recipes" / "flickr30k.toml").read_text(encoding="utf-8")
    for split, size, tiny in (("train", 29000, 12), ("val", 1014, 4), ("test", 1000, 4)):
        text = text.replace(f"{split} = {size}\n", f"{split} = {tiny}\n")
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_methods_backbones_and_metrics_that_exist(name: str) -> None:
    known = metrics(Ranks(images_to_texts=np.ones(1, np.int64), texts_to_images=np.ones(1, np.int64)))
    recipe = load_recipe(name)
    for run in recipe.run:
        assert run.method in load_declaration("train").confs
        assert run.backbone in backbones()
        for seed in run.seeds:
            model = Model(run.method, run.backbone, seed)
            assert model not in [model.named_by(name) for name in run.ensemble_with]
        for published in run.published:
            assert published.protocol in PROTOCOLS
            assert {key for key in published.scores if "." not in key} <= set(known)
            assert published.scores, published.where


@pytest.mark.parametrize("name", RECIPES)
def test_published_recall_sums_add_up(name: str) -> None:
    for run in load_recipe(name).run:
        for published in run.published:
            recalls = [value for key, value in published.scores.items() if key in RECALLS]
            if len(recalls) == len(RECALLS) and RSUM in published.scores:
                # AOQ's Table 1 prints 519.7 for six recalls whose sum is 519.6.
                assert sum(recalls) == pytest.approx(published.scores[RSUM], abs=0.11), published.where


@pytest.mark.parametrize("name", ["flickr30k", "coco"])
def test_no_two_rows_of_a_table_are_of_one_line(name: str) -> None:
    lines = [published.where + published.protocol for run in load_recipe(name).run for published in run.published]
    assert len(lines) == len(set(lines))


def test_one_run_stands_for_every_method_and_backbone_of_its_lists(tmp_path: Path) -> None:
    run = '[[run]]\nmethod = ["triplet", "aoq"]\nbackbone = ["vse++", "vsrn"]\nseeds = [0, 1]\n'
    runs = load_recipe(written(tmp_path, "", run=run)).run
    names = ["triplet.vsepp", "aoq.vsepp", "triplet.vsrn", "aoq.vsrn"]
    assert [(each.name, each.seeds) for each in runs] == [(name, (0, 1)) for name in names]


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


def test_rows_and_an_extended_recipe_fill_in_what_is_not_told(tmp_path: Path) -> None:
    head = 'extends = "flickr30k"\ndataset = "mine"\n[source.expected]\ntrain = 7\n'
    run = (
        '[[run]]\nbackbone = "vsrn"\nset.epochs = 1\n'
        'rows = [{ method = ["triplet", "aoq"] }, { method = "aoq", seeds = [1], set.margin = 0.1 }]\n'
    )
    recipe, base = load_recipe(written(tmp_path, "", head, run)), load_recipe("flickr30k")
    assert [(each.name, each.seeds, each.overrides) for each in recipe.run] == [
        ("triplet.vsrn", (0,), {"epochs": 1}),
        ("aoq.vsrn", (0,), {"epochs": 1}),
        ("aoq.vsrn", (1,), {"epochs": 1, "margin": 0.1}),
    ]
    assert (recipe.dataset, recipe.tiny, recipe.backbones) == ("mine", base.tiny, base.backbones)
    assert recipe.source is not None
    assert recipe.source.expected == {"train": 7, "val": 1014, "test": 1000}


SOURCED = "[source]\ncaptions = {captions!r}\nexplanation = 'x'\n"
OUTSIDE = ["../src", "/etc/hostname", "a/../../b", ".."]
DAMAGED = [
    *(("", RUN + f"grid = {grid}", "grid is a table of lists") for grid in ("1", "{}", "{ a = [] }", "{ a = [1] }")),
    *(("", RUN + f"rows = {rows}", "rows is a list of tables") for rows in ("1", "[]", "[1]", "{ a = 1 }")),
    ("", "", "run: "),
    ("", RUN + "seed = 1", "run.0.seed: "),
    ("set = { train.epochs = {} }\n", RUN, "set: train.epochs is an empty table"),
    ('set = "train.epochs=3"\n', RUN, "set: must be a valid dictionary"),
    ("[backbones.vsrm]\n", RUN, "there is no backbone 'vsrm'"),
    ("set.a = '{words}'\n", RUN, "a = '{words}' names no file of [source.files]"),
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
    path = written(tmp_path, tables, run=run)
    with pytest.raises(DataError) as caught:
        load_recipe(path)
    assert path in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("key", ["dataset", "features"])
@pytest.mark.parametrize("name", ["../x", "x" * 101, "a b"])
def test_names_in_a_recipe_are_those_of_folders(tmp_path: Path, key: str, name: str) -> None:
    head = HEAD.replace(f'{key} = "scenes"', f'{key} = "{name}"')
    with pytest.raises(DataError, match=rf"mine\.toml: {key}: name '{name[:4]}"):
        load_recipe(written(tmp_path, "", head))


def test_a_recipe_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")  # which is not waited for
    (tmp_path / "folder.toml").mkdir()
    for name, kind, said in (
        (tmp_path / "pipe.toml", DataError, "is no file"),
        (tmp_path / "folder.toml", DataError, "is no file"),
        (tmp_path / "none.toml", MissingInputError, "none.toml"),
        ("flickr30", UsageError, "did you mean 'flickr30k'"),
        ("xyz", UsageError, "known: aoq-bfan, aoq-vsrn, coco, combinations, demo"),
    ):
        with pytest.raises(kind, match=said):
            load_recipe(str(name))


def test_links_that_the_user_placed_in_the_source_are_followed(
    tmp_path: Path, data_root: Path, precomp_dataset: Any, small_flickr30k: str, invoke: Callable[..., Any]
) -> None:
    elsewhere = precomp_dataset.features.rename(tmp_path / "elsewhere")
    precomp_dataset.features.symlink_to(elsewhere)
    linked = tmp_path / "linked"
    linked.symlink_to(precomp_dataset.folder)
    command = ("run", small_flickr30k, "--source", linked, "--data", data_root, "--only", "triplet.vsrn", "--dry-run")
    outcome = invoke(*command)
    assert outcome.code == 0, outcome.err
    assert "+ extract/precomp-" in outcome.out


def test_flickr30k_without_its_files_explains_itself_on_one_screen(data_root: Path, invoke: Callable[..., Any]) -> None:
    outcome = invoke("run", "flickr30k", "--data", data_root)
    assert outcome.code == MissingInputError.exit_code
    lines = outcome.err.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    parts = ("dataset_flickr30k.json", "flickr30k-images/", "f30k_precomp", "uniter-base.pt", "29,000 train")
    for part in (*parts, "itrpipe run flickr30k --source FOLDER"):
        assert part in outcome.err
    assert not data_root.exists()


def test_flickr30k_with_an_empty_folder_says_what_is_missing(
    data_root: Path, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    outcome = invoke("run", "flickr30k", "--source", tmp_path, "--data", data_root, "--only", "aoq.vsrn")
    assert outcome.code == MissingInputError.exit_code
    assert f"{tmp_path / 'f30k_precomp'} does not exist" in outcome.err
    assert len(outcome.err.splitlines()) <= SCREEN_LINES
    assert "uniter-base.pt" not in outcome.err


def planned(printed: str) -> list[str]:
    return [line.split()[1].rpartition("-")[0] for line in printed.splitlines() if line.startswith("  + ")]


def test_flickr30k_plans_the_whole_chain(
    data_root: Path, precomp_dataset: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, "flickr30k", Options(precomp_dataset.folder, only=(".vsrn",), dry_run=True))
    assert planned(capsys.readouterr().out) == [
        "prepare/files",
        "extract/precomp",
        "train/triplet.vsrn",
        "evaluate/triplet.vsrn",
        "train/triplet.vsrn.s1",
        "evaluate/triplet.vsrn.s1",
        "mine_negatives/exact.triplet.vsrn",
        "train/aoq.vsrn",
        "evaluate/aoq.vsrn",
        "mine_negatives/exact.triplet.vsrn.s1",
        "train/aoq.vsrn.s1",
        "evaluate/aoq.vsrn.s1",
        "evaluate/triplet.vsrn+vsrn.s1",
        "evaluate/aoq.vsrn+vsrn.s1",
        "report/page",
    ]
    assert not (data_root / "flickr30k").exists()


def test_demo_plans_the_whole_chain_and_takes_no_source(
    data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, "demo", Options(dry_run=True))
    found = planned(capsys.readouterr().out)
    assert (found[0], found[-1], len(found)) == ("prepare/scenes", "report/page", 10)
    with pytest.raises(UsageError, match="takes no --source"):
        run_recipe(data_root, "demo", Options(tmp_path, dry_run=True))


def test_a_dry_run_remembers_nothing(data_root: Path, precomp_dataset: Any) -> None:
    run_recipe(data_root, "flickr30k", Options(precomp_dataset.folder, only=ONLY, dry_run=True))
    assert load_definition(data_root, "flickr30k").prepare is None


def test_flickr30k_runs_from_files_to_published_next_to_measured(
    precomp_dataset: Any, data_root: Path, small_flickr30k: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(precomp_dataset.folder, [parse_override(item) for item in SMALL], only=ONLY)
    folder = run_recipe(data_root, small_flickr30k, options)
    assert folder is not None
    made = {path.parent.parent.name for path in (data_root / "flickr30k").glob("*/*/manifest.json")}
    assert made == {"prepare", "extract", "train", "mine_negatives", "evaluate", "report"}
    page = (folder / "index.html").read_text(encoding="utf-8")
    for text in ("486.3", "482.6", "AOQ Table 2"):
        assert text in page
    runs = {run["label"]: run for run in json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]}
    published = {label: run["published"][0]["scores"]["rsum"] for label, run in runs.items() if run["published"]}
    # The published scores are of two models and stand beside no single one.
    assert published == {"triplet.vsrn+vsrn.s1": 482.6, "aoq.vsrn+vsrn.s1": 486.3}
    assert set(runs) == {*published, "triplet.vsrn", "triplet.vsrn.s1", "aoq.vsrn", "aoq.vsrn.s1"}
    assert read_manifest(folder).messages == []
    (ensemble,) = (data_root / "flickr30k" / "evaluate").glob("aoq.vsrn+vsrn.s1-*")
    assert read_manifest(ensemble).metrics["mean of"] == "aoq.vsrn + aoq.vsrn.s1"
    printed = capsys.readouterr().out
    assert printed.index("  + prepare/files") < printed.index("  done in") < printed.index("  + extract/precomp")
    assert printed.count("  + prepare/files") == 1
    assert "OK within 1, close within 3 points of RSum" in printed
    (line,) = [line for line in printed.splitlines() if "AOQ Table 2, VSRN + AdapOffQuin" in line]
    measured = runs["aoq.vsrn+vsrn.s1"]["metrics"]["full"]["rsum"]["value"]
    assert line.split()[:3] == ["FAIL", "aoq.vsrn+vsrn.s1", "rsum"]
    assert f"expected 486.3, got {measured:.1f} (" in line
    run_recipe(data_root, small_flickr30k, options)
    assert "  + " not in capsys.readouterr().out


def test_flickr30k_refuses_data_of_other_sizes_before_anything_expensive(
    data_root: Path, precomp_dataset: Any, invoke: Callable[..., Any]
) -> None:
    sets = [f"--set={item}" for item in SMALL]
    for _ in range(2):  # made, and already there
        outcome = invoke(
            "run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, "--only", "aoq.vsrn", *sets
        )
        assert outcome.code == DataError.exit_code
        assert outcome.err.count("\n") == 1
        expected = "has 12 train, 4 val, 4 test images instead of 29,000 train, 1,014 val, 1,000 test"
        assert f"{precomp_dataset.folder} {expected}" in outcome.err
        assert "extract/" not in outcome.out
    assert {path.parent.parent.name for path in (data_root / "flickr30k").glob("*/*/manifest.json")} == {"prepare"}
    assert load_definition(data_root, "flickr30k").prepare is None


def test_only_the_splits_that_a_recipe_names_are_counted(
    tmp_path: Path, data_root: Path, precomp_dataset: Any, invoke: Callable[..., Any]
) -> None:
    small = '[set]\n"train.epochs" = 1\n"train.model.embed_dim" = 8\n"evaluate.bootstrap_samples" = 100\n'
    head = HEAD.replace('"scenes"', '"mine"', 1).replace('"scenes"', '"precomp"')
    for size, code in ((5, DataError.exit_code), (4, 0)):
        path = written(tmp_path, f"{small}{SOURCE}[source.expected]\ntest = {size}\n", head)
        outcome = invoke("run", path, "--source", precomp_dataset.folder, "--data", data_root)
        assert outcome.code == code, outcome.err
        assert ("has 4 test images instead of 5 test," in outcome.err) == (code != 0)


def test_a_row_that_is_an_ensemble_of_itself_is_refused(
    tmp_path: Path, data_root: Path, invoke: Callable[..., Any]
) -> None:
    path = written(tmp_path, "", run=f'{RUN}seeds = [0, 1]\nensemble_with = ["vsepp.s1"]\n')
    outcome = invoke("run", path, "--data", data_root, "--dry-run")
    assert outcome.code == UsageError.exit_code
    assert "'vsepp.s1' is the evaluated model itself" in outcome.err


def test_published_scores_of_the_test_split_are_not_shown_for_another(
    precomp_dataset: Any, data_root: Path, small_flickr30k: str
) -> None:
    overrides = [parse_override(item) for item in [*SMALL, "evaluate.split=val"]]
    folder = run_recipe(data_root, small_flickr30k, Options(precomp_dataset.folder, overrides, only=ONLY))
    assert folder is not None
    assert not (folder / "expected.json").exists()
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
    assert {run["label"] for run in runs} >= {"aoq.vsrn.val", "aoq.vsrn+vsrn.s1.val"}
    assert not any(run["published"] for run in runs)


def test_scenes_runs_every_method_and_every_kind_of_backbone() -> None:
    """`pretrain` starts others and is not evaluated itself; what trains nothing needs a pretrained model."""
    runs = load_recipe("scenes").run
    assert {backbone_family(each.backbone) for each in runs} == {backbone_family(name) for name in backbones()}
    trained = {name for name, declared in methods().items() if declared.trains}
    assert {each.method for each in runs} >= trained - {"pretrain"}
