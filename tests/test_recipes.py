"""Recipes: every file loads, and the whole chain of one is planned from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.config import load_declaration, stages_folder
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import Ranks
from itrpipe.models.settings import backbones
from itrpipe.planning import parse_override
from itrpipe.recipes import load_recipe, run_recipe

RECIPES = sorted(path.stem for path in (stages_folder() / "recipes").glob("*.toml"))
SCREEN_LINES, SCREEN_COLUMNS = 24, 110


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_methods_backbones_and_metrics_that_exist(name: str) -> None:
    known = metrics(Ranks(images_to_texts=np.ones(1, np.int64), texts_to_images=np.ones(1, np.int64)))
    recipe = load_recipe(name)
    for run in recipe.run:
        assert run.method in load_declaration("train").confs
        assert run.backbone in backbones()
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
    with pytest.raises(UsageError, match="no recipe 'xyz'; known: demo, flickr30k"):
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
        "mine_negatives/exact.triplet.vsrn",
        "train/aoq.vsrn",
        "evaluate/aoq.vsrn",
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


def test_flickr30k_runs_from_files_to_published_next_to_measured(precomp_dataset: Any, data_root: Path) -> None:
    small = [
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
    folder = run_recipe(data_root, "flickr30k", precomp_dataset.folder, [parse_override(item) for item in small])
    made = {path.parent.parent.name for path in (data_root / "flickr30k").glob("*/*/manifest.json")}
    assert made == {"prepare", "extract", "train", "mine_negatives", "evaluate", "report"}
    page = (folder / "index.html").read_text(encoding="utf-8")
    for text in ("486.3", "482.6", "AOQ Table 2"):
        assert text in page
    measured = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert "486.3" in json.dumps(measured)
