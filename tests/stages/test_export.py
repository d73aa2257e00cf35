"""Folders for others: `itrpipe export` of a trained model, and `itrpipe export-negatives`."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file

from itrpipe.cli.export import Export
from itrpipe.cli.request import Request
from itrpipe.config import Override, parse_override
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, DiskFullError, UsageError
from itrpipe.exporting import folder
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.features.embeddings import read_embeddings, read_scores
from itrpipe.mining.lists import read_list
from itrpipe.storage.artifact import existing_input, read_manifest
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.training.data import Sources
from tests.chains import FEW, ONCE, Invoke, copied, done, encoders_of, made, only, refused, sets
from tests.conftest import TINY, Outcome, TinySource, tiny
from tests.trained_model import TrainedModel

SCAN = [parse_override(text) for text in ("method=triplet", "backbone=scan", *TINY)]
FILES = {"README.md", "config.json", "export.json", "metrics.json", "model.safetensors", "vocab.json"}


def export(root: Path, overrides: list[Override], target: Path, **wanted: Any) -> Path:
    Export(target=target, **wanted).export(Request(root, "tiny", overrides, no_deps=True))
    return target


@pytest.fixture(scope="module")
def vsepp(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AOQ on VSE++ with everything there is. Read only."""
    wanted: dict[str, Any] = {"embeddings": "parquet", "trec": True, "license": "apache-2.0"}
    return export(finished_chain / "data", tiny("aoq"), tmp_path_factory.mktemp("exported") / "vsepp", **wanted)


@pytest.fixture(scope="module")
def scan(pairs_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SCAN with its rankings. Read only."""
    return export(pairs_chain, SCAN, tmp_path_factory.mktemp("exported") / "scan", trec=True)


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def scores_of(folder: Path, trained: Path) -> np.ndarray:
    """Scores by the model of a folder of the test split that another artifact was trained beside."""
    manifest = read_manifest(trained)
    inputs = {
        name: existing_input(trained, manifest, name) for name in ("prepare", "extract") if name in manifest.inputs
    }
    opened = TrainedModel.open(folder, Sources(**inputs), "test", "cpu")
    return opened.scores(opened.data, 64)


# The model


def test_the_folder_holds_what_was_asked_for_and_its_record(vsepp: Path, scan: Path, finished_chain: Path) -> None:
    trec = {f"trec/{kind}.{side}.trec" for kind in ("run", "qrels") for side in ("i2t", "t2i")}
    vectors = {f"embeddings/{side}.parquet" for side in ("images", "captions")}
    assert (names_in(vsepp), names_in(scan)) == (FILES | trec | vectors, FILES | trec)
    assert [path.name for path in vsepp.parent.iterdir()] == ["vsepp"]
    record = json.loads((vsepp / "export.json").read_text())
    digests = {name: each["sha256"] for name, each in record["files"].items()}
    assert digests == {name: file_digest(vsepp / name) for name in names_in(vsepp) - {"export.json"}}
    folders = [only(finished_chain / "data", f"{stage}/aoq.vsepp") for stage in ("evaluate", "train")]
    chain = {f"{each.parent.name}/{each.name}": read_manifest(each).fingerprint for each in folders}
    assert chain.items() <= record["artifacts"].items()
    config = json.loads((vsepp / "config.json").read_text())
    about = config.pop("itrpipe")
    assert config == json.loads((folders[1] / "config.json").read_text())
    assert (about["conf"], about["run"], about["features"]["extractor"]) == ("aoq", "aoq.vsepp", "precomp")


def test_models_give_the_scores_that_were_evaluated(vsepp: Path, scan: Path, pairs_chain: Path) -> None:
    trained = only(pairs_chain, "train/aoq.vsepp")
    written = read_embeddings(trained / "embeddings.h5", "test").scores()
    np.testing.assert_allclose(scores_of(vsepp, trained), written, atol=1e-6)
    before, after = load_file(trained / "model.safetensors"), load_file(vsepp / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    written = read_scores(only(pairs_chain, "evaluate/triplet.scan") / "scores.h5", "test").matrix
    np.testing.assert_allclose(scores_of(scan, only(pairs_chain, "train/triplet.scan")), written, atol=1e-5)


def test_a_tokenizer_goes_along(clip_chain: Path, saved_encoders: Path, tmp_path: Path) -> None:
    encoders, root = copied(saved_encoders, tmp_path / "encoders"), copied(clip_chain, tmp_path / "data")
    given = (
        "backbone=dual-encoder",
        *ONCE,
        *encoders_of(encoders, "vit", "bert"),
    )
    target = tmp_path / "out"
    Export(target=target).export(Request(root, "tiny", [parse_override(text) for text in (*given, FEW)]))
    shutil.rmtree(encoders)
    trained = only(root, "train/triplet.dual-encoder")
    written = read_embeddings(trained / "embeddings.h5", "test").scores()
    np.testing.assert_allclose(scores_of(target, trained), written, atol=1e-3)  # encoded in half precision
    inside = {f"{side}/{name}" for side in ("vision", "text") for name in names_in(trained / side)}
    assert names_in(target) == FILES - {"vocab.json"} | inside
    assert "it takes the photograph, as the image processor" in (target / "README.md").read_text()


# The card


@pytest.mark.parametrize(("which", "label"), [("vsepp", "aoq.vsepp"), ("scan", "triplet.scan")])
def test_the_hub_reads_the_measured_scores_in_the_card(
    which: str, label: str, pairs_chain: Path, request: pytest.FixtureRequest
) -> None:
    data = ModelCard.load(request.getfixturevalue(which) / "README.md").data
    assert (data.library_name, data.datasets, data.metrics) == ("itrpipe", ["tiny"], ["recall"])
    assert data.license == ("apache-2.0" if which == "vsepp" else None)
    assert data.pipeline_tag == ("feature-extraction" if which == "vsepp" else "zero-shot-image-classification")
    measured = json.loads((only(pairs_chain, f"evaluate/{label}") / "metrics.json").read_text())["full"]
    found = {each.metric_type: each.metric_value for each in data.eval_results or []}
    assert found == {name: pytest.approx(each["value"], abs=1e-3) for name, each in measured.items()}
    (one, *_) = data.eval_results or []
    assert (one.dataset_name, one.dataset_split, one.dataset_config) == ("tiny", "test", "full")


def test_the_card_tells_scores_data_files_and_papers(vsepp: Path, finished_chain: Path) -> None:
    text = (vsepp / "README.md").read_text()
    evaluated, trained = (only(finished_chain / "data", f"{stage}/aoq.vsepp") for stage in ("evaluate", "train"))
    recall = json.loads((evaluated / "metrics.json").read_text())["full"]["i2t_r5"]
    assert f"| {recall['value']:.1f} ({recall['low']:.1f}–{recall['high']:.1f}) | 80.6 |\n" in text
    assert "| train | 12 | 60 |\n| val | 4 | 20 |\n| test | 4 | 20 |\n" in text
    assert f"| `train/{trained.name}` | `{read_manifest(trained).fingerprint}` |\n" in text
    assert {"@inproceedings{chen2020aoq,", "@inproceedings{faghri2018vsepp,"} <= {*text.split("\n")}
    for name in ("trec/run.*.trec", "embeddings/*.parquet", "vocab.json"):
        assert f"| `{name}` |" in text, name


def test_commands_of_the_whole_chain_are_told_and_nothing_says_where_the_data_lay(
    defined: Path, precomp_dataset: TinySource, tmp_path: Path, invoke: Invoke
) -> None:
    where = ("--dataset", "tiny", "--data", defined)
    done(invoke("prepare", *where, "--source", precomp_dataset.folder))
    done(invoke("extract", *where, "--from", precomp_dataset.features, "--name", "mine"))
    named = ("--backbone", "vsepp", "--features", "mine", *sets(*TINY, f"train.track_to={tmp_path / 'seen'}"))
    target = tmp_path / "given"
    refused(invoke("export", *where, "--to", target, *named), 2)
    assert made(invoke("export", *where, "--to", target, "--trec", "--make", *named)) == target
    for name in names_in(target):
        assert str(tmp_path).encode() not in (target / name).read_bytes(), name
    told = (target / "README.md").read_text().partition("## How it was made")[2].split("```")[1].strip().split("\n")
    assert told[0] == "itrpipe prepare --dataset tiny --data data --source source"
    assert told[1] == "itrpipe extract --dataset tiny --data data --from f30k_precomp --name mine"
    assert "--set=train.track_to=seen" in told[-1]
    done(invoke("report", *where))
    assert str(tmp_path) not in (only(defined, "report/*") / "index.html").read_text()


def test_the_lines_of_code_in_the_card_use_the_model(
    vsepp: Path, scan: Path, finished_chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = only(finished_chain / "data", "extract/precomp") / "features.h5"
    for exported, embeds in ((vsepp, True), (scan, False)):
        folder = copied(exported, tmp_path / exported.name)
        shutil.copy(features, folder)
        code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
        monkeypatch.chdir(folder)
        printed: list[Any] = []
        found: dict[str, Any] = {"print": printed.append}
        exec(code, found)
        assert (found["model"].embeds, printed[0].shape) == (embeds, (20, 1))
        assert embeds or [each.index for each in printed[1]] == np.argsort(-printed[0][:, 0])[:5].tolist()


# Embeddings and rankings


def test_embeddings_have_the_ids_of_the_split(vsepp: Path, finished_chain: Path, tmp_path: Path) -> None:
    split = read_embeddings(only(finished_chain / "data", "train/aoq.vsepp") / "embeddings.h5", "test")
    arrays = export(finished_chain / "data", tiny("aoq"), tmp_path / "out", embeddings="npy") / "embeddings"
    assert names_in(arrays) == {"images.npy", "images.ids.json", "captions.npy", "captions.ids.json"}
    sides = (("images", split.images, split.image_ids), ("captions", split.texts, split.caption_ids))
    for side, vectors, ids in sides:
        table = pq.read_table(vsepp / "embeddings" / f"{side}.parquet")
        assert table[f"{side[:-1]}_id"].to_pylist() == json.loads((arrays / f"{side}.ids.json").read_text())
        assert table[f"{side[:-1]}_id"].to_pylist() == ids.tolist()
        np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), vectors)
        np.testing.assert_array_equal(np.load(arrays / f"{side}.npy", allow_pickle=False), vectors)
    assert table["image_id"].to_pylist() == split.image_ids[split.caption_image].tolist()


# The place


def write(target: Path, text: str, *, force: bool = False) -> None:
    with new_folder(open_target(target.parent / "data", target, force=force), {}, force=force) as work:
        (work / "a").write_text(text)


def test_a_folder_with_content_is_kept_unless_it_is_an_export(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.tex").write_text("all of it")
    for force in (False, True):
        with pytest.raises(UsageError, match="is not empty" if not force else "was not made by"):
            write(target, "b", force=force)
    (target / "thesis.tex").unlink()
    write(target, "b")
    with pytest.raises(UsageError, match="not empty"):
        write(target, "c")
    write(target, "c", force=True)
    assert (target / "a").read_text() == "c"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for path, content in (("b", "a clone"), ("a", "edited"), ("export.json", "{")):
        copy = copied(target, tmp_path / path)
        (copy / path).write_text(content)
        with pytest.raises(UsageError, match=path):
            write(copy, "d", force=True)


def test_a_full_disk_and_a_second_process_leave_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "out"
    full = mock.patch.object(Path, "write_text", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with full, pytest.raises(DiskFullError):
        write(target, "a")
    assert not list(tmp_path.iterdir())
    with new_folder(target, {}, force=False) as work:
        (work / "first").touch()
        with pytest.raises(UsageError, match="another process writes"), new_folder(target, {}, force=False):
            pass
    with pytest.raises(UsageError, match="not empty"), new_folder(target, {}, force=False):
        pass
    assert names_in(tmp_path) == {"out/first", "out/export.json"}


def test_an_export_leaves_alone_what_the_next_one_has_begun_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, begun = tmp_path / "out", tmp_path / ".out.exporting"

    def next_one(path: Path) -> None:
        if path == tmp_path:  # after the export is in its place
            begun.mkdir()
            (begun / "of the next one").touch()

    monkeypatch.setattr(folder, "sync", next_one)
    with new_folder(target, {}, force=False) as work:
        (work / "a").touch()
    assert (begun / "of the next one").exists()

    # Between opening the folder and locking it, whoever made it is done.
    def lock_late(descriptor: int, how: int) -> None:
        begun.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(folder.fcntl, "flock", lock_late)
    with pytest.raises(UsageError, match="another process writes"), new_folder(target, {}, force=True):
        pass


@pytest.mark.parametrize("stop", ["out", ".out.exporting"])
def test_an_export_that_was_killed_begins_anew_and_leaves_nothing(tmp_path: Path, stop: str) -> None:
    """Killed before the earlier export is moved aside, and after that before the new one takes its place."""
    target, replace = tmp_path / "out", os.replace
    write(target, "earlier")

    def killed(source: Path, to: Path) -> None:
        if Path(source).name == stop:
            os._exit(9)
        replace(source, to)

    if (child := os.fork()) == 0:
        os.replace = killed
        write(target, "new", force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    kept = target if stop == "out" else target.with_name(".out.replaced")
    assert (kept / "a").read_text() == "earlier"
    write(target, "new", force=True)
    assert (target / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_damaged_model_leaves_nothing_behind(chain: Path, tmp_path: Path, flipped: Callable[[Path], None]) -> None:
    flipped(only(chain, "train/aoq.vsepp") / "model.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors.*sha256"):
        export(chain, tiny("aoq"), tmp_path / "place" / "out")
    assert not (tmp_path / "place" / "out").exists()


# Mined lists


LISTS = sets(*TINY[:-1], "num_texts=5", "num_images=3")


@pytest.fixture
def export_lists(chain: Path, invoke: Invoke) -> Invoke:
    """Exports three of the lists of the finished chain, or as many as are named."""

    def run(to: Path, *more: object) -> Outcome:
        where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain, "--to", to, *LISTS)
        return invoke("export-negatives", *where, *(() if "--negatives" in more else ("--negatives", 3)), *more)

    return run


def test_the_folder_opens_by_its_card(export_lists: Invoke, chain: Path, tmp_path: Path) -> None:
    import datasets

    target, cache = tmp_path / "given" / "negatives", str(tmp_path / "cache")
    wanted = ("--synthetic", "vse-c", "--set=vse-c.min_count=1", "--shard-rows", 25, "--make")
    assert made(export_lists(target, *wanted)) == target
    split = PreparedDataset.open(only(chain, "prepare/files")).split("train")
    mined = only(chain, "mine_negatives/exact.triplet.vsepp")
    images, captions = (read_list(mined, name).candidates for name in ("images_for_texts", "texts_for_images"))
    own: dict[str, list[str]] = {}
    for row in SentenceFile(only(chain, "synthesize/vse-c")).read(["caption_id", "text"]).to_pylist():
        own.setdefault(row["caption_id"], []).append(row["text"])
    assert own
    found = datasets.load_dataset(str(target), cache_dir=cache)["train"]  # t2i is the default
    assert found["anchor"] == split.texts
    found = found.cast_column("negative_3", datasets.Image(decode=False))
    assert [row["path"] for row in found["negative_3"]] == [split.files[row] for row in images[:, 2]]
    found = datasets.load_dataset(str(target), "i2t", split="train", cache_dir=cache)
    assert len(list((target / "i2t").iterdir())) == 3
    owners = zip(split.caption_ids.tolist(), split.caption_image.tolist(), strict=True)
    fourth = [own[each][0] if each in own else split.texts[captions[image, 3]] for each, image in owners]
    assert found["negative_4"] == fourth
    assert found["negative_1"] == [split.texts[captions[image, 0]] for image in split.caption_image]

    record = json.loads((target / "export.json").read_text())
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {"export.json", *record["files"]}
    assert all(each["sha256"] == file_digest(target / name) for name, each in record["files"].items())
    assert f"synthesize/{only(chain, 'synthesize/vse-c').name}" in record["artifacts"]
    assert str(tmp_path) not in (target / "README.md").read_text() + (target / "export.json").read_text()

    refused(export_lists(target), 2)
    other = tmp_path / "elsewhere" / "negatives"
    done(export_lists(other, "--set", "range_min=1", "--direction", "i2t", "--make"))
    again = datasets.load_dataset(str(other), "i2t", split="train", cache_dir=cache)  # not what is cached by this name
    assert again["negative_1"] == [split.texts[captions[image, 1]] for image in split.caption_image]
    done(export_lists(target, "--negatives", 2, "--force", "--format", "webdataset", "--make"))
    assert [path.name for path in target.glob("*.tar")] == ["train-00000-of-00001.tar"]
    assert [path.name for path in target.parent.iterdir()] == ["negatives"]


def test_an_export_without_a_row_is_refused(export_lists: Invoke, tmp_path: Path) -> None:
    refused(export_lists(tmp_path / "out", "--set", "range_min=1", "--make"), 2, "--negatives 3", "t2i")
    assert not (tmp_path / "out").exists()


def test_the_only_lists_are_taken_with_as_many_negatives_as_they_hold(
    chain: Path, invoke: Invoke, tmp_path: Path
) -> None:
    where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain, *sets(*TINY[:-1]))
    done(invoke("export-negatives", *where, "--to", tmp_path / "only"))
    assert "negative_4" not in (names := pq.read_schema(next((tmp_path / "only" / "i2t").iterdir())).names)
    assert "negative_3" in names
    refused(invoke("export-negatives", *where, "--to", tmp_path / "other", "--set", "num_texts=4"), 2, "num_texts=4")
    done(invoke("mine-negatives", *where, *sets("num_texts=4", "num_images=2")))
    refused(invoke("export-negatives", *where, "--to", tmp_path / "two"), 2, "itrpipe mine-negatives")
    done(invoke("export-negatives", *where, "--to", tmp_path / "two", "--set", "num_texts=4"))
    assert "negative_3" not in pq.read_schema(next((tmp_path / "two" / "t2i").iterdir())).names


def test_what_is_missing_is_planned_and_named(export_lists: Invoke, chain: Path, tmp_path: Path) -> None:
    shutil.rmtree(only(chain, "mine_negatives/exact.triplet.vsepp"))
    plan = done(export_lists(tmp_path / "out", "--dry-run", "--synthetic", "vse-c"))
    assert plan.startswith("tiny: export-negatives exact.triplet.vsepp\n")
    assert "+ synthesize/vse-c" in plan
    refused(
        export_lists(tmp_path / "out"), 2, "itrpipe mine-negatives --dataset tiny --method triplet --backbone vsepp"
    )
    assert not (tmp_path / "out").exists()
    done(export_lists(tmp_path / "out", "--format", "negclip", "--make"))
    assert (tmp_path / "out" / "train.tsv").exists()
