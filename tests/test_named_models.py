"""Named models: `train --name` remembers a model, `--model` stands for it; recipes on a dataset as it is defined."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from itrpipe.config import Override
from itrpipe.datasets.definition import ModelDefinition, load_definition, remember_model
from itrpipe.pipeline.models import define_model, find_model
from itrpipe.storage.artifact import folders_in, read_manifest
from itrpipe.training.checks import both_encoders
from tests.chains import Invoke, done, planned, refused, sets
from tests.conftest import TINY, TINY_AOQ, TinySource

SMALL = ["-b", "vsepp", *sets(*TINY[:-1])]
FEW = sets("bootstrap_samples=100")
Run = Callable[..., str]


@pytest.fixture
def run(chain: Path, invoke: Invoke) -> Run:
    """Runs a command that has to succeed on the finished chain, whose models have no names; gives what it printed."""
    return lambda *command: done(invoke(*command, "--data", chain))


def settings_in(root: Path, stage: str, **wanted: object) -> list[dict]:
    """Settings of the artifacts of a stage that have these."""
    found = [read_manifest(each) for each in folders_in(root / "tiny" / stage)]
    return [each.settings for each in found if wanted.items() <= each.settings.items()]


def test_a_name_stands_for_dataset_method_backbone_and_settings(chain: Path, run: Run, invoke: Invoke) -> None:
    run("train", "--name", "small", "-d", "tiny", *SMALL)
    lists = sets("num_texts=5", "num_images=3")
    for command in (["mine-negatives", *lists], ["evaluate", *FEW]):
        assert planned(run(*command, "--model", "small")) in ([], ["evaluate/triplet.vsepp"])
    assert {each["model"]["embed_dim"] for each in settings_in(chain, "train")} == {8}
    (trained,) = (chain / "tiny" / "train").glob("triplet.vsepp-*")
    assert load_definition(chain, "tiny").models["small"].trained == {"triplet.vsepp": trained.name}
    listed = run("status", "-d", "tiny")
    assert sum("model small" in line for line in listed.splitlines()) == 3  # trained, mined, evaluated
    assert "ranked by small" in run("search", "a dog on the road", "--model", "small", "--no-deps")
    run("export", "--model", "small", "--to", chain.parent / "exported")  # its only evaluation, though of few samples
    # What is told again, of whichever dataset, changes the model and nothing else.
    before = load_definition(chain, "tiny")
    wider = ("train", "--name", "small", *sets("train.model.embed_dim=16"))
    dry = run(*wider, "--dry-run")
    assert dry.startswith("tiny: train triplet (model small)")
    assert "model.embed_dim 8 → 16" in dry
    assert load_definition(chain, "tiny") == before
    run(*wider)
    model = load_definition(chain, "tiny").models["small"]
    assert (model.settings["train.model.embed_dim"], model.settings["train.model.word_dim"]) == (16, 8)
    assert len(settings_in(chain, "train", backbone="vsepp", method="triplet")) == 2
    # Both are the newest of their kind: one has a name, the other has none any more.
    assert "nothing to remove" in run("gc", "-d", "tiny", "--yes")


def test_the_only_named_model_is_meant_where_none_is_named_and_of_two_one_has_to_be(
    run: Run, invoke: Invoke, chain: Path
) -> None:
    where = ["-d", "tiny"]
    run("train", "--name", "small", "-m", "contrastive-batch", *SMALL, *where)
    for command in ("evaluate", "mine-negatives"):
        assert "contrastive-batch.vsepp" in run(command, "--dry-run", *where)
        assert "contrastive-batch.vsepp" not in run(command, "-b", "vsepp", "--dry-run", *where)
    run("train", "--name", "other", "--like", "small", "--method", "triplet")
    assert "(model other, triplet before)" in run("train", "--name", "other", "--like", "small", "--dry-run")
    refused(invoke("evaluate", *where, "--data", chain), 2, "models small, other; choose with --model")


def test_features_of_a_named_model_are_replaced_only_where_they_are_named(
    run: Run, invoke: Invoke, chain: Path
) -> None:
    of_hog = ["extract", "-d", "tiny", "--features", "hog", *sets("workers=0")]
    run(*of_hog)
    run("train", "--name", "seen", "-d", "tiny", "--features", "hog", *SMALL)
    other = [*of_hog, *sets("cell=16"), "--dry-run"]
    refused(invoke(*other, "--data", chain), 2, "features hog would change", "model seen", "--name hog")
    run(*other, "--name", "hog")
    run(*other, "--name", "coarse")
    run(*of_hog)


def test_another_seed_of_a_named_model_has_its_settings_and_its_name(chain: Path, run: Run, invoke: Invoke) -> None:
    run("train", "--name", "small", "-d", "tiny", *SMALL)
    run("evaluate", "--model", "small", "--seed", "1", *FEW)
    assert [each["model"]["embed_dim"] for each in settings_in(chain, "train", seed=1)] == [8]
    assert set(load_definition(chain, "tiny").models["small"].trained) == {"triplet.vsepp", "triplet.vsepp.s1"}
    run("report", "-d", "tiny")
    (page,) = (chain / "tiny" / "report").glob("page-*")
    assert "VSE++, first training (small)" in (page / "summary.md").read_text()
    assert any("(small)" in run["name"] for run in json.loads((page / "results.json").read_text())["runs"])
    refused(invoke("report", "-d", "tiny", "--compare", "small", "small", "--data", chain), 2, "the same training")


def test_a_second_round_has_a_name_with_all_that_its_chain_was_told(run: Run) -> None:
    told = ("-m", "aoq", "-d", "tiny", *SMALL, *sets(*TINY_AOQ, "aoq.loss.sum_epochs=0"))
    run("train", "--name", "second", *told)
    assert planned(run("evaluate", "--model", "second", *FEW, "--dry-run")) in ([], ["evaluate/aoq.vsepp"])


def test_a_second_round_begins_with_the_settings_of_a_model_and_mines_with_it(
    chain: Path, run: Run, invoke: Invoke
) -> None:
    where = ["-d", "tiny"]
    run("train", "--name", "first", "-m", "contrastive-batch", *SMALL, *sets("train.seed=0"), *where)
    lists = sets("top_texts=5", "top_images=3", "mine_negatives.num_texts=5", "mine_negatives.num_images=3")
    second = ["--name", "second", "--like", "first", "-m", "contrastive", "--negatives", "mined", *lists]
    dry = run("train", *second, "--negatives-from", "first", "--dry-run", *where)
    states = {line.split("/")[0].strip(" ✓+"): line.split()[-1] for line in dry.splitlines() if line[2:3] in "✓+"}
    assert (states["mine_negatives"], states["train"]) == ("missing", "missing"), "its first training is no new setting"
    run("train", *second, "--negatives-from", "first", *where)
    models = load_definition(chain, "tiny").models
    first, trained = (models[name].trained for name in ("first", "second"))
    unnamed = run("train", *second, "--dry-run", *where)
    assert "+" not in unnamed, "the model that it is like mines where no other is named"
    assert "train contrastive (" in run("train", "--name", "x", "--like", "first", "--negatives", "mined", "--dry-run")
    manifest = read_manifest(chain / "tiny" / "train" / trained["contrastive.vsepp"])
    assert (manifest.settings["epochs"], manifest.settings["model"]["embed_dim"]) == (1, 8)
    mined = read_manifest(chain / "tiny" / "mine_negatives" / manifest.inputs["mine_negatives"].name)
    assert mined.inputs["train"].name == first["contrastive-batch.vsepp"]
    # What it was told holds for its readers too.
    assert "+ train" not in run("evaluate", "--model", "second", "--dry-run", *where)
    # The evaluation of one model is no earlier version of that of another with the same method.
    run("evaluate", "--model", "first", *FEW, *where)
    run("train", "--name", "third", "--like", "first", *sets("learning_rate=0.1"), *where)
    of_third = run("evaluate", "--model", "third", "--dry-run", *where)
    assert re.search(r"\+ evaluate/contrastive-batch.vsepp-\w+ +missing\n", of_third)
    of_first = run("evaluate", "--model", "first", *sets("bootstrap_samples=120"), "--dry-run", *where)
    assert "new settings, bootstrap_samples 100 → 120" in of_first
    # With another seed its first training is trained, too, as that was told and not as the second is.
    dry = run("train", "--model", "second", "--seed", "1", "--dry-run", *where)
    assert re.search(r"\+ train/contrastive-batch.vsepp.s1-\w+ +missing\n", dry)
    run("train", "--model", "second", "--seed", "1", *sets("learning_rate=0.1"), *where)
    name = load_definition(chain, "tiny").models["first"].trained["contrastive-batch.vsepp.s1"]
    assert read_manifest(chain / "tiny" / "train" / name).settings["learning_rate"] != 0.1
    run("train", "--name", "fourth", "--like", "second", "--negatives-from", "second", *where)
    # Its teacher is contrastive as it is, which is no circle; one of two names is.
    run("train", "--model", "fourth", "--seed", "2", "--dry-run", *where)
    circle = ["train", "--name", "second", "--negatives-from", "fourth", "--seed", "2", *where]
    refused(invoke(*circle, "--data", chain), 2, "would be made from itself; name another model with --negatives-from")


def test_only_what_another_method_reads_is_taken_over(defined: Path) -> None:
    told = {"backbone": "vsepp", "epochs": 2, "loss.margin": 0.1}
    remember_model(defined, "tiny", "first", ModelDefinition(method="triplet", settings=told))
    where = (defined, "tiny", "second")
    first = find_model(defined, "tiny", "first")
    same, _ = define_model(*where, "triplet", [], first)
    assert (same.method, same.definition.settings) == ("triplet", told)
    other, _ = define_model(*where, "contrastive", [Override(None, "epochs", 3)], first)
    assert (other.method, other.definition.settings) == ("contrastive", {"backbone": "vsepp", "epochs": 3})


def test_a_name_that_two_datasets_have_needs_the_dataset(defined: Path, invoke: Invoke) -> None:
    for dataset in ("tiny", "other"):
        remember_model(defined, dataset, "both", ModelDefinition(method="triplet", settings={"backbone": "vsepp"}))
    outcome = invoke("evaluate", "--model", "both", "--data", defined)
    refused(outcome, 2, "other, tiny have a model of this name; add --dataset")


def test_one_encoder_says_both_of_a_method_of_joint_models() -> None:
    assert both_encoders("clip-finetune", "folder", None) == {"vision": "folder", "text": "folder"}
    assert both_encoders("zero-shot", None, "folder") == {"vision": "folder", "text": "folder"}
    assert both_encoders("clip-finetune", "one", "other") == {"vision": "one", "text": "other"}
    assert both_encoders("triplet", "folder", None) == {"vision": "folder"}


def test_a_name_keeps_what_was_trained_until_it_gets_another_method_or_is_forgotten(chain: Path, run: Run) -> None:
    told = ["train", "--name", "small", *SMALL, "-d", "tiny"]
    run(*told, "--method", "triplet")
    trained = load_definition(chain, "tiny").models["small"].trained
    listed = run("status", "-d", "tiny").count("model small")
    assert listed
    for command in (["train"], ["evaluate", *FEW]):  # tried with another setting
        run(*command, "--model", "small", *sets("train.epochs=3"), "-d", "tiny")
        assert load_definition(chain, "tiny").models["small"].trained == trained
    assert run("status", "-d", "tiny").count("model small") == listed
    run(*told, "--method", "contrastive-batch")
    assert set(load_definition(chain, "tiny").models["small"].trained) == {"contrastive-batch.vsepp"}
    assert run(*told, "--method", "triplet").count("up to date") >= 3
    assert load_definition(chain, "tiny").models["small"].trained == trained
    before = set(chain.glob("tiny/*/*"))
    assert "tiny: small is forgotten" in run("gc", "--forget", "small")  # of whichever dataset
    assert (load_definition(chain, "tiny").models, set(chain.glob("tiny/*/*"))) == ({}, before)


def test_two_names_of_one_model_are_told_and_both_compare(run: Run) -> None:
    where = ["-d", "tiny"]
    for name, method in (("first", "triplet"), ("again", "triplet"), ("other", "contrastive-batch")):
        told = run("train", "--name", name, "--method", method, *SMALL, *where)
        assert ("model again is the same as first: no setting differs" in told) == (name == "again")
    for name in ("first", "other"):
        run("evaluate", "--model", name, *FEW, *where)
    run("evaluate", "--model", "first", "--split", "val", *FEW, *where)
    one = run("report", "--compare", "first", "other", *where)
    assert "test split of tiny" in one, "also where one of them was evaluated on another split, too"
    for name in ("first", "again"):  # the dataset is that of the models
        assert run("report", "--compare", name, "other", "--dry-run").count("✓ evaluate/") >= 2


def test_a_split_without_images_is_refused_before_a_model_is_trained_for_it(tmp_path: Path, invoke: Invoke) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    rows = ["file,split,caption"]
    for place in range(6):
        Image.new("RGB", (40, 40), (40 * place, 0, 0)).save(source / f"{place}.jpg")
        rows.append(f"{place}.jpg,{'train' if place < 4 else 'val'},a dog")
    (source / "captions.csv").write_text("\n".join(rows) + "\n")
    where = ["-d", "few", "--data", tmp_path / "data"]
    prepared = done(invoke("prepare", "--source", source, *where))
    assert "no image is in split test; evaluate asks for --split val" in prepared
    told = ["-m", "triplet", "-b", "vsepp", "--features", "hog", "--dry-run"]
    for command in (["evaluate"], ["search", "a dog", "--split", "test"]):
        refused(invoke(*command, *told, *where), 2, "no test images, only train and val; ask with --split val")
    done(invoke("evaluate", *told, "--split", "val", *where))
    captions = source / "captions.csv"
    captions.write_text(captions.read_text().replace(",val,", ",train,"))
    alone = done(invoke("prepare", "--source", source, *where))
    assert "no image is in split test; evaluate needs one" in alone
    assert "--split val" not in alone


@pytest.mark.usefixtures("any_hub")
def test_every_stage_names_a_command_that_can_follow(
    data_root: Path, precomp_dataset: TinySource, invoke: Invoke
) -> None:
    where = ("--dataset", "tiny", "--data", data_root)
    asked = {
        "prepare": [*where, "--source", precomp_dataset.folder],
        "extract": [*where, "--from", precomp_dataset.features, "--name", "mine"],
        "parse": where,
        "synthesize": [*where, "--by", "graph-edits"],
        "train": [*where, "--name", "small", *SMALL],
        "mine-negatives": ["--model", "small", "--data", data_root, *sets("num_texts=5", "num_images=3")],
        "evaluate": ["--model", "small", "--data", data_root, *FEW],
    }
    following = []
    for command, options in asked.items():
        last = done(invoke(command, *options)).splitlines()[-1]
        assert last.startswith("next: itrpipe "), command
        words = shlex.split(last)[2:]
        done(invoke(*words, "--dry-run"))
        assert ("--image-root" in words) is (command == "mine-negatives")
        following.append(words[0])
    assert following == ["train", "train", "synthesize", "train", "evaluate", "export-negatives", "report"]
    unnamed = done(invoke("train", *where, *SMALL, "--set", "learning_rate=0.01", "--seed", 1))
    planned = done(invoke(*shlex.split(unnamed.splitlines()[-1])[2:], "--dry-run"))
    assert re.search(r"✓ train/triplet.vsepp.s1-", planned)
