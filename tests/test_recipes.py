"""Recipes: every file loads, and the whole chain of one is planned from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.artifacts import read_manifest
from itrpipe.config import load_declaration, stages_folder
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import Ranks
from itrpipe.planning import parse_override
from itrpipe.recipes import load_recipe, run_recipe
from itrpipe.stages.evaluate import Model
from itrpipe.stages.train import backbones

RECIPES = sorted(path.stem for path in (stages_folder() / "recipes").glob("*.toml"))
SCREEN_LINES, SCREEN_COLUMNS = 24, 110
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
        assert set(run.published) <= {*known, "where"}
        assert bool(run.published) == ("where" in run.published)
        assert all(isinstance(value, float) for key, value in run.published.items() if key != "where")


@pytest.mark.parametrize("name", RECIPES)
def test_published_recall_sums_add_up(name: str) -> None:
    for run in load_recipe(name).run:
        recalls = [value for key, value in run.published.items() if key[-3:] in ("_r1", "_r5", "r10")]
        if len(recalls) == 6:
            assert sum(map(float, recalls)) == pytest.approx(float(run.published["rsum"]), abs=0.06)


def test_an_unknown_recipe_is_named_with_the_nearest_or_with_all() -> None:
    with pytest.raises(UsageError, match=r"no recipe 'flickr30'; did you mean 'flickr30k'\?"):
        load_recipe("flickr30")
    with pytest.raises(UsageError, match="no recipe 'xyz'; known: aoq-bfan, aoq-vsrn, demo, flickr30k"):
        load_recipe("xyz")


def test_a_recipe_may_be_a_file_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    head = 'dataset = "scenes"\nfeatures = "scenes"\ntitle = "Mine"\n'
    path.write_text(head + '[[run]]\nmethod = "triplet"\nbackbone = "vsepp"\nseeds = [0, 1]\n')
    assert load_recipe(str(path)).run[0].seeds == (0, 1)
    path.write_text(head)
    with pytest.raises(DataError, match=r"mine\.toml: run: "):
        load_recipe(str(path))
    path.write_text(head + '[[run]]\nmethod = "triplet"\nbackbone = "vsepp"\nseed = 1\n')
    with pytest.raises(DataError, match=r"mine\.toml: run\.0\.seed: "):
        load_recipe(str(path))


def test_flickr30k_without_its_files_explains_itself_on_one_screen(data_root: Path, invoke: Callable[..., Any]) -> None:
    outcome = invoke("run", "flickr30k", "--data", data_root)
    assert outcome.code == MissingInputError.exit_code
    lines = outcome.err.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    for part in ("dataset_flickr30k.json", "flickr30k-images/", "f30k_precomp/", "itrpipe run flickr30k --source"):
        assert part in outcome.err
    assert not data_root.exists()


def test_flickr30k_with_an_empty_folder_says_what_is_missing(
    data_root: Path, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    outcome = invoke("run", "flickr30k", "--source", tmp_path, "--data", data_root)
    assert outcome.code == MissingInputError.exit_code
    assert f"{tmp_path / 'f30k_precomp'} does not exist" in outcome.err
    assert len(outcome.err.splitlines()) <= SCREEN_LINES


def planned(printed: str) -> list[str]:
    return [line.split()[1].rpartition("-")[0] for line in printed.splitlines() if line.startswith("  + ")]


def test_flickr30k_plans_the_whole_chain(
    data_root: Path, precomp_dataset: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, "flickr30k", precomp_dataset.folder, [], dry_run=True)
    assert planned(capsys.readouterr().out) == [
        "prepare/files",
        "extract/precomp",
        "train/triplet.vsrn",
        "evaluate/triplet.vsrn",
        "train/triplet.vsrn.s1",
        "evaluate/triplet.vsrn.s1",
        "evaluate/triplet.vsrn+vsrn.s1",
        "mine_negatives/exact.triplet.vsrn",
        "train/aoq.vsrn",
        "evaluate/aoq.vsrn",
        "mine_negatives/exact.triplet.vsrn.s1",
        "train/aoq.vsrn.s1",
        "evaluate/aoq.vsrn.s1",
        "evaluate/aoq.vsrn+vsrn.s1",
        "report/page",
    ]
    assert not (data_root / "flickr30k").exists()


def test_demo_plans_the_whole_chain_and_takes_no_source(
    data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(data_root, "demo", None, [], dry_run=True)
    found = planned(capsys.readouterr().out)
    assert (found[0], found[-1], len(found)) == ("prepare/scenes", "report/page", 10)
    with pytest.raises(UsageError, match="recipe demo generates its data and takes no --source"):
        run_recipe(data_root, "demo", tmp_path, [], dry_run=True)


def test_a_dry_run_remembers_nothing(data_root: Path, precomp_dataset: Any) -> None:
    run_recipe(data_root, "flickr30k", precomp_dataset.folder, [], dry_run=True)
    assert load_definition(data_root, "flickr30k").prepare is None


def test_recipe_values_and_command_line_reach_training(
    data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    text = 'dataset = "scenes"\nfeatures = "scenes"\ntitle = "Mine"\n[set]\n"train.epochs" = 2\n'
    path.write_text(text + '[[run]]\nmethod = "triplet"\nbackbone = "vsepp"\nseeds = [0, 1]\n')
    run_recipe(data_root, str(path), None, [], dry_run=True)
    found = planned(capsys.readouterr().out)
    assert [name for name in found if name.startswith("train/")] == ["train/triplet.vsepp", "train/triplet.vsepp.s1"]


def test_flickr30k_runs_from_files_to_published_next_to_measured(
    precomp_dataset: Any, data_root: Path, small_flickr30k: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [parse_override(item) for item in SMALL]
    folder = run_recipe(data_root, small_flickr30k, precomp_dataset.folder, overrides)
    made = {path.parent.parent.name for path in (data_root / "flickr30k").glob("*/*/manifest.json")}
    assert made == {"prepare", "extract", "train", "mine_negatives", "evaluate", "report"}
    page = (folder / "index.html").read_text(encoding="utf-8")
    for text in ("486.3", "482.6", "AOQ Table 2"):
        assert text in page
    runs = {run["label"]: run for run in json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]}
    published = {label: run["published"]["rsum"] for label, run in runs.items() if run["published"]}
    # The published scores are of two models and stand beside no single one.
    assert published == {"triplet.vsrn+vsrn.s1": 482.6, "aoq.vsrn+vsrn.s1": 486.3}
    assert set(runs) == {*published, "triplet.vsrn", "triplet.vsrn.s1", "aoq.vsrn", "aoq.vsrn.s1"}
    assert read_manifest(folder).messages == []
    (ensemble,) = (data_root / "flickr30k" / "evaluate").glob("aoq.vsrn+vsrn.s1-*")
    assert read_manifest(ensemble).metrics["mean of"] == "aoq.vsrn + aoq.vsrn.s1"
    printed = capsys.readouterr().out
    assert printed.index("  + prepare/files") < printed.index("  done in") < printed.index("  + extract/precomp")
    assert printed.count("  + prepare/files") == 1
    run_recipe(data_root, small_flickr30k, precomp_dataset.folder, overrides)
    assert "  + " not in capsys.readouterr().out


def test_flickr30k_refuses_data_of_other_sizes_before_anything_expensive(
    data_root: Path, precomp_dataset: Any, invoke: Callable[..., Any]
) -> None:
    sets = [f"--set={item}" for item in SMALL]
    for _ in range(2):  # made, and already there
        outcome = invoke("run", "flickr30k", "--source", precomp_dataset.folder, "--data", data_root, *sets)
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
    path = tmp_path / "mine.toml"
    head = 'dataset = "mine"\nfeatures = "precomp"\ntitle = "Mine"\n[[run]]\nmethod = "triplet"\nbackbone = "vsepp"\n'
    small = '[set]\n"train.epochs" = 1\n"train.model.embed_dim" = 8\n"evaluate.bootstrap_samples" = 100\n'
    source = '[source]\ncaptions = "."\nfeatures = "f30k_precomp"\nexplanation = "x"\n[source.expected]\n'
    command = ["run", path, "--source", precomp_dataset.folder, "--data", data_root]
    path.write_text(f"{head}{small}{source}test = 5\n")
    assert "has 4 test images instead of 5 test," in invoke(*command).err
    path.write_text(f"{head}{small}{source}tset = 5\n")
    assert "mine.toml: source.expected.tset" in invoke(*command).err
    path.write_text(f"{head}{small}{source}test = 4\n")
    outcome = invoke(*command)
    assert outcome.code == 0, outcome.err


def test_a_row_that_is_an_ensemble_of_itself_is_refused(
    tmp_path: Path, data_root: Path, invoke: Callable[..., Any]
) -> None:
    path = tmp_path / "mine.toml"
    head = 'dataset = "scenes"\nfeatures = "scenes"\ntitle = "Mine"\n[[run]]\nmethod = "triplet"\nbackbone = "vsepp"\n'
    path.write_text(f'{head}seeds = [0, 1]\nensemble_with = ["vsepp.s1"]\n')
    outcome = invoke("run", path, "--data", data_root, "--dry-run")
    assert outcome.code == UsageError.exit_code
    assert "'vsepp.s1' is the evaluated model itself" in outcome.err


def test_published_scores_of_the_test_split_are_not_shown_for_another(
    precomp_dataset: Any, data_root: Path, small_flickr30k: str
) -> None:
    overrides = [parse_override(item) for item in [*SMALL, "evaluate.split=val"]]
    folder = run_recipe(data_root, small_flickr30k, precomp_dataset.folder, overrides)
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
    assert {run["label"] for run in runs} >= {"aoq.vsrn.val", "aoq.vsrn+vsrn.s1.val"}
    assert not any(run["published"] for run in runs)
