"""Named models: `train --name` remembers a model, `--model` stands for it; recipes on a dataset as it is defined."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from itrpipe.cli.make import both_encoders
from itrpipe.cli.named import define_model
from itrpipe.datasets.definition import ModelDefinition, load_definition, remember_model
from itrpipe.pipeline.overrides import Override
from itrpipe.storage.artifact import folders_in, read_manifest
from tests.conftest import TINY, TINY_AOQ, Outcome

Invoke = Callable[..., Outcome]
SMALL = [part for text in TINY if not text.startswith("evaluate") for part in ("--set", text)]


def settings(root: Path, stage: str, **wanted: object) -> list[dict]:
    """Settings of the artifacts of a stage that have these."""
    found = [read_manifest(each) for each in folders_in(root / "tiny" / stage)]
    return [each.settings for each in found if wanted.items() <= each.settings.items()]


@pytest.fixture
def root(finished_chain: Path, tmp_path: Path) -> Path:
    """The finished chain, whose models have no names."""
    return Path(shutil.copytree(finished_chain / "data", tmp_path / "data"))


def test_a_name_stands_for_dataset_method_backbone_and_settings(root: Path, invoke: Invoke) -> None:
    where = ["--data", root]
    told = invoke("train", "--name", "small", "-d", "tiny", "--backbone", "vsepp", *SMALL, "--set", "epochs=1", *where)
    assert told.code == 0, told.err
    few = ["--set", "num_texts=5", "--set", "num_images=3"]
    for command in (["mine-negatives", *few], ["evaluate", "--set", "bootstrap_samples=100"]):
        done = invoke(*command, "--model", "small", *where)
        assert done.code == 0, done.err
        assert "train/triplet.vsepp-" in done.out
        assert "up to date" in done.out
    assert {each["model"]["embed_dim"] for each in settings(root, "train")} == {8}
    (trained,) = (root / "tiny" / "train").glob("triplet.vsepp-*")
    assert load_definition(root, "tiny").models["small"].trained == {"triplet.vsepp": trained.name}
    listed = invoke("status", "-d", "tiny", *where).out
    assert sum("model small" in line for line in listed.splitlines()) == 3  # trained, mined, evaluated
    found = invoke("search", "a dog on the road", "--model", "small", "--no-deps", *where)
    assert found.code == 0, found.err
    assert "ranked by small" in found.out
    asked = invoke("export", "--model", "small", "--to", root.parent / "exported", *where)
    assert asked.code == 2
    assert "`itrpipe evaluate --model small" in asked.err, "the evaluation above has other settings"


def test_another_seed_of_a_named_model_has_its_settings_and_its_name(root: Path, invoke: Invoke) -> None:
    where = ["--data", root]
    invoke("train", "--name", "small", "-d", "tiny", "--backbone", "vsepp", *SMALL, *where)
    done = invoke("evaluate", "--model", "small", "--seed", "1", "--set", "bootstrap_samples=100", *where)
    assert done.code == 0, done.err
    assert [each["model"]["embed_dim"] for each in settings(root, "train", seed=1)] == [8]
    assert set(load_definition(root, "tiny").models["small"].trained) == {"triplet.vsepp", "triplet.vsepp.s1"}
    assert invoke("report", "-d", "tiny", *where).code == 0
    page = next((root / "tiny" / "report").glob("page-*"))
    assert "VSE++, first training (small)" in (page / "summary.md").read_text()
    names = {each["name"] for each in json.loads((page / "results.json").read_text())["runs"]}
    assert any("(small)" in name for name in names)


def test_what_is_told_again_changes_the_model_and_nothing_else(root: Path, invoke: Invoke) -> None:
    where = ["-d", "tiny", "--data", root]
    invoke("train", "--name", "small", "--backbone", "vsepp", *SMALL, *where)
    before = load_definition(root, "tiny")
    dry = invoke("train", "--name", "small", "--set", "train.model.embed_dim=16", "--dry-run", *where)
    assert "model.embed_dim 8 → 16" in dry.out
    assert load_definition(root, "tiny") == before
    assert invoke("train", "--name", "small", "--set", "train.model.embed_dim=16", *where).code == 0
    model = load_definition(root, "tiny").models["small"]
    assert (model.settings["train.model.embed_dim"], model.settings["train.model.word_dim"]) == (16, 8)
    assert len(settings(root, "train", backbone="vsepp", method="triplet")) == 2
    # Both are the newest of their kind: one has a name, the other has none any more.
    assert "nothing to remove" in invoke("gc", *where, "--yes").out


def test_a_second_round_has_a_name_with_all_that_its_chain_was_told(root: Path, invoke: Invoke) -> None:
    lists = [part for text in TINY_AOQ for part in ("--set", text)]
    command = ["train", "--name", "second", "-m", "aoq", "-b", "vsepp", "-d", "tiny", *SMALL, *lists]
    zero = ["--set", "aoq.loss.sum_epochs=0"]
    trained = invoke(*command, *zero, "--data", root)
    assert trained.code == 0, trained.err
    done = invoke("evaluate", "--model", "second", "--set", "bootstrap_samples=100", "--data", root, "--dry-run")
    assert done.code == 0, done.err
    waiting = [line for line in done.out.splitlines() if line.startswith("  +")]
    assert [line.split("/")[0].strip(" +") for line in waiting] in ([], ["evaluate"])


def test_a_second_round_begins_with_the_settings_of_a_model_and_mines_with_it(root: Path, invoke: Invoke) -> None:
    where = ["-d", "tiny", "--data", root]
    told = [*SMALL, "--set", "epochs=1", "--set", "train.seed=0"]
    assert invoke("train", "--name", "first", "-m", "contrastive-batch", "-b", "vsepp", *told, *where).code == 0
    lists = ["--set", "top_texts=5", "--set", "top_images=3", "--set", "mine_negatives.num_texts=5"]
    second = ["--name", "second", "--like", "first", "-m", "contrastive", "--negatives", "mined"]
    second += [*lists, "--set", "mine_negatives.num_images=3"]
    planned = invoke("train", *second, "--negatives-from", "first", "--dry-run", *where)
    states = {
        line.split("/")[0].strip(" ✓+"): line.split()[-1] for line in planned.out.splitlines() if line[2:3] in "✓+"
    }
    assert (states["mine_negatives"], states["train"]) == ("missing", "missing"), "its first training is no new setting"
    done = invoke("train", *second, "--negatives-from", "first", *where)
    assert done.code == 0, done.err
    assert "from the first 5 of 60 captions and the first 3 of 12 images, which are hardly harder" in " ".join(
        done.out.split()
    )
    models = load_definition(root, "tiny").models
    first, trained = (models[name].trained for name in ("first", "second"))
    manifest = read_manifest(root / "tiny" / "train" / trained["contrastive.vsepp"])
    assert (manifest.settings["epochs"], manifest.settings["model"]["embed_dim"]) == (1, 8)
    mined = read_manifest(root / "tiny" / "mine_negatives" / manifest.inputs["mine_negatives"].name)
    assert mined.inputs["train"].name == first["contrastive-batch.vsepp"]
    # What it was told holds for its readers too.
    assert "+ train" not in invoke("evaluate", "--model", "second", "--dry-run", *where).out
    # The evaluation of one model is no earlier version of that of another with the same method.
    assert invoke("evaluate", "--model", "first", "--set", "bootstrap_samples=100", *where).code == 0
    assert invoke("train", "--name", "third", "--like", "first", "--set", "learning_rate=0.1", *where).code == 0
    of_third = invoke("evaluate", "--model", "third", "--dry-run", *where).out
    assert re.search(r"\+ evaluate/contrastive-batch.vsepp-\w+ +missing\n", of_third)
    of_first = invoke("evaluate", "--model", "first", "--set", "bootstrap_samples=120", "--dry-run", *where).out
    assert "new settings, bootstrap_samples 100 → 120" in of_first
    asked = invoke("advise", "--model", "second", *where)
    assert asked.code == 2
    # With another seed its first training is trained, too, as that was told and not as the second is.
    planned = invoke("train", "--model", "second", "--seed", "1", "--dry-run", *where).out
    assert re.search(r"\+ train/contrastive-batch.vsepp.s1-\w+ +missing\n", planned)
    again = invoke("train", "--model", "second", "--seed", "1", "--set", "learning_rate=0.1", *where)
    assert again.code == 0, again.err
    models = load_definition(root, "tiny").models
    name = models["first"].trained["contrastive-batch.vsepp.s1"]
    assert read_manifest(root / "tiny" / "train" / name).settings["learning_rate"] != 0.1
    assert invoke("train", "--name", "fourth", "--like", "second", "--negatives-from", "second", *where).code == 0
    asked = invoke("advise", "--model", "fourth", *where)
    assert asked.code == 2
    # Its teacher is contrastive as it is, which is no circle; one of two names is.
    assert invoke("train", "--model", "fourth", "--seed", "2", "--dry-run", *where).code == 0
    round_about = invoke("train", "--name", "second", "--negatives-from", "fourth", "--seed", "2", *where)
    assert round_about.code == 2
    assert "would be made from itself; name another model with --negatives-from" in round_about.err


def test_only_what_another_method_reads_is_taken_over(defined: Path, invoke: Invoke) -> None:
    told = {"backbone": "vsepp", "epochs": 2, "loss.margin": 0.1}
    remember_model(defined, "tiny", "first", ModelDefinition(method="triplet", settings=told))
    where = (defined, "tiny", "second")
    same, _ = define_model(*where, "triplet", [], "first")
    assert (same.method, same.definition.settings) == ("triplet", told)
    other, _ = define_model(*where, "contrastive", [Override(None, "epochs", 3)], "first")
    assert (other.method, other.definition.settings) == ("contrastive", {"backbone": "vsepp", "epochs": 3})


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["train", "--name", "x", "--like", "smal"], 3, "known: small"),
        (["train", "--name", "small", "--like", "small"], 2, "is the model itself"),
        (["train", "--like", "small"], 2, "add --name"),
        (
            ["train", "--name", "x", "-d", "tiny", "-m", "aoq", "-b", "vsepp", "--negatives-from", "smal"],
            2,
            "did you mean 'small'",
        ),
        (
            ["train", "--name", "x", "-d", "tiny", "-m", "aoq", "-b", "vsepp", "--negatives-from", "x"],
            2,
            "--negatives-from x is the model itself",
        ),
        (["evaluate", "--model", "smal"], 3, "known: small"),
        (
            ["evaluate", "--model", "small", "--backbone", "vsrn"],
            2,
            "--model small has backbone vsepp; leave --backbone out",
        ),
        (
            ["evaluate", "--model", "small", "--method", "aoq"],
            2,
            "--model small has method triplet; leave --method out",
        ),
        (["train", "--model", "small", "--name", "x"], 2, "leave --name x out"),
        (["evaluate", "--name", "small"], 2, "belongs to --embeddings"),
        (["evaluate", "small"], 2, "belongs to --embeddings"),
        (["search", "a", "red", "dog", "--model", "small"], 2, "(red dog)"),
        (["train", "-b", "vsepp", "--features", "hogg", "-d", "tiny"], 3, "did you mean 'hog'?"),
        (["train", "--name", "../x"], 2, "must be letters"),
        (["evaluate", "--model", "small", "-d", "scenes"], 3, "dataset 'scenes' has no model of this name"),
    ],
)
def test_wrong_names_are_one_line(defined: Path, invoke: Invoke, arguments: list[str], code: int, told: str) -> None:
    remember_model(defined, "tiny", "small", ModelDefinition(method="triplet", settings={"backbone": "vse++"}))
    outcome = invoke(*arguments, "--data", defined)
    assert outcome.code == code
    assert told in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_name_that_two_datasets_have_needs_the_dataset(defined: Path, invoke: Invoke) -> None:
    for dataset in ("tiny", "other"):
        remember_model(defined, dataset, "small", ModelDefinition(method="triplet", settings={"backbone": "vsepp"}))
    outcome = invoke("evaluate", "--model", "small", "--data", defined)
    assert (outcome.code, "other, tiny have a model of this name; add --dataset" in outcome.err) == (2, True)


def test_a_name_alone_finds_its_dataset_to_change_the_model(root: Path, invoke: Invoke) -> None:
    invoke("train", "--name", "small", "-d", "tiny", "--backbone", "vsepp", *SMALL, "--data", root)
    again = invoke("train", "--name", "small", "--set", "train.model.embed_dim=16", "--dry-run", "--data", root)
    assert again.code == 0, again.err
    assert again.out.startswith("tiny: train triplet (model small)")
    assert "model.embed_dim 8 → 16" in again.out


def test_a_name_is_forgotten_and_what_was_trained_stays(root: Path, invoke: Invoke) -> None:
    invoke("train", "--name", "small", "-d", "tiny", "--backbone", "vsepp", *SMALL, "--data", root)
    before = set(root.glob("tiny/*/*"))
    forgotten = invoke("gc", "--forget", "small", "--data", root)  # of whichever dataset
    assert (forgotten.code, "tiny: small is forgotten" in forgotten.out) == (0, True), forgotten.err
    assert (load_definition(root, "tiny").models, set(root.glob("tiny/*/*"))) == ({}, before)
    again = invoke("gc", "-d", "tiny", "--forget", "small", "--yes", "--data", root)
    assert (again.code, "--forget small: no model of tiny has this name" in again.err) == (3, True)


def test_one_encoder_says_both_of_a_method_of_joint_models() -> None:
    assert both_encoders("clip-finetune", "folder", None) == {"vision": "folder", "text": "folder"}
    assert both_encoders("zero-shot", None, "folder") == {"vision": "folder", "text": "folder"}
    assert both_encoders("clip-finetune", "one", "other") == {"vision": "one", "text": "other"}
    assert both_encoders("triplet", "folder", None) == {"vision": "folder"}


def test_a_model_to_mine_with_is_refused_where_nothing_is_mined(defined: Path, invoke: Invoke) -> None:
    told = ["train", "-m", "contrastive-batch", "-b", "vsepp", "-d", "tiny", "--data", defined, "--dry-run"]
    for name in ([], ["--name", "second"]):
        outcome = invoke(*told, *name, "--negatives-from", "vsrn")
        assert outcome.code == 2
        assert "--negatives-from vsrn is for mined negatives; add --negatives mined" in outcome.err


def test_a_name_that_gets_another_method_is_no_longer_what_was_trained_before(root: Path, invoke: Invoke) -> None:
    where = ["-d", "tiny", "--data", root]
    told = ["train", "--name", "small", "--backbone", "vsepp", *SMALL, *where]
    assert invoke(*told, "--method", "triplet").code == 0
    trained = load_definition(root, "tiny").models["small"].trained
    done = invoke(*told, "--method", "contrastive-batch")
    assert done.code == 0, done.err
    assert set(load_definition(root, "tiny").models["small"].trained) == {"contrastive-batch.vsepp"}
    assert invoke(*told, "--method", "triplet").out.count("up to date") >= 3
    assert load_definition(root, "tiny").models["small"].trained == trained


def test_a_model_that_is_tried_with_another_setting_keeps_its_name(root: Path, invoke: Invoke) -> None:
    where = ["-d", "tiny", "--data", root]
    assert invoke("train", "--name", "small", "--backbone", "vsepp", *SMALL, *where).code == 0
    own = load_definition(root, "tiny").models["small"].trained
    listed = sum("model small" in line for line in invoke("status", *where).out.splitlines())
    assert listed
    for command in (["train"], ["evaluate", "--set", "bootstrap_samples=100"]):
        tried = invoke(*command, "--model", "small", "--set", "train.epochs=3", *where)
        assert tried.code == 0, tried.err
        assert load_definition(root, "tiny").models["small"].trained == own
    assert sum("model small" in line for line in invoke("status", *where).out.splitlines()) == listed


def test_two_names_of_one_model_are_told_and_both_compare(root: Path, invoke: Invoke) -> None:
    where = ["-d", "tiny", "--data", root]
    few = ["--set", "bootstrap_samples=100"]
    for name, method in (("first", "triplet"), ("again", "triplet"), ("other", "contrastive-batch")):
        told = invoke("train", "--name", name, "--method", method, "--backbone", "vsepp", *SMALL, *where)
        assert told.code == 0, told.err
        assert ("model again is the same as first: no setting differs" in told.out) == (name == "again")
    for name in ("first", "other"):
        assert invoke("evaluate", "--model", name, *few, *where).code == 0
    assert invoke("evaluate", "--model", "first", "--split", "val", *few, *where).code == 0
    one = invoke("report", "--compare", "first", "other", *where)
    assert one.code == 0, "also where one of them was evaluated on another split, too"
    assert "test split of tiny" in one.out
    for name in ("first", "again"):  # the dataset is that of the models
        compared = invoke("report", "--compare", name, "other", "--data", root, "--dry-run")
        assert compared.code == 0, compared.err
        assert compared.out.count("✓ evaluate/") >= 2


def test_a_split_without_images_is_refused_before_a_model_is_trained_for_it(tmp_path: Path, invoke: Invoke) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    rows = ["file,split,caption"]
    for place in range(6):
        Image.new("RGB", (40, 40), (40 * place, 0, 0)).save(source / f"{place}.jpg")
        rows.append(f"{place}.jpg,{'train' if place < 4 else 'val'},a dog")
    (source / "captions.csv").write_text("\n".join(rows) + "\n")
    where = ["-d", "few", "--data", tmp_path / "data"]
    prepared = invoke("prepare", "--source", source, *where)
    assert prepared.code == 0
    assert "no image is in split test; evaluate and search ask for --split val" in prepared.out
    told = ["--method", "triplet", "--backbone", "vsepp", "--features", "hog", "--dry-run"]
    for command in (["evaluate"], ["search", "a dog"]):
        outcome = invoke(*command, *told, *where)
        assert outcome.code == 2
        assert "the dataset has no test images, only train and val; ask with --split val" in outcome.err
    assert invoke("evaluate", *told, "--split", "val", *where).code == 0
    captions = source / "captions.csv"
    captions.write_text(captions.read_text().replace(",val,", ",train,"))
    alone = invoke("prepare", "--source", source, *where).out
    assert "no image is in split test; evaluate and search need one" in alone
    assert "--split val" not in alone
