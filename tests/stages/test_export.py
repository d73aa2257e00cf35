"""A trained model as a folder for others: `itrpipe export` of a model with embeddings and of one that scores pairs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file

from itrpipe import __version__
from itrpipe.cli.asked import Asked, run_stage
from itrpipe.cli.share import Wanted, export_model
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, DiskFullError, ItrpipeError, MissingInputError, UsageError
from itrpipe.exporting.folder import new_folder
from itrpipe.exporting.places import command_without_places
from itrpipe.features.embeddings import read_embeddings, read_scores
from itrpipe.pipeline.planning import parse_override
from itrpipe.storage.artifact import existing_input, read_manifest
from itrpipe.storage.disk import file_digest
from itrpipe.training.data import Sources
from tests.chains import Invoke, copied, done, made, only, refused, sets
from tests.conftest import TinySource
from tests.trained_model import TrainedModel

SCAN = (
    "method=triplet",
    "backbone=scan",
    "train.epochs=1",
    "train.batch_size=16",
    "train.model.embed_dim=8",
    "train.model.word_dim=8",
    "train.min_word_count=1",
    "evaluate.bootstrap_samples=100",
)
MODEL_FILES = {
    *("README.md", "config.json", "example.jpg", "export.json", "metrics.json", "model.safetensors", "vocab.json"),
}


@pytest.fixture(scope="module")
def root(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which VSE++ and SCAN are evaluated on `tiny`. Copy it to change it."""
    found = copied(finished_chain / "data", tmp_path_factory.mktemp("export") / "data")
    run_stage(found, "tiny", "evaluate", [parse_override(text) for text in SCAN])
    return found


@pytest.fixture(scope="module")
def vsepp(root: Path, tiny: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AOQ on VSE++ with everything there is. Read only."""
    target = tmp_path_factory.mktemp("exported") / "vsepp"
    wanted = Wanted(target, embeddings="parquet", index=True, trec=True, license="apache-2.0")
    export_model(Asked(root, "tiny", tiny("aoq"), no_deps=True), wanted)
    return target


@pytest.fixture(scope="module")
def scan(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SCAN with its rankings. Read only."""
    target = tmp_path_factory.mktemp("exported") / "scan"
    export_model(Asked(root, "tiny", [parse_override(text) for text in SCAN], no_deps=True), Wanted(target, trec=True))
    return target


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def opened(folder: Path, trained: Path) -> TrainedModel:
    """The model of a folder on the test split that another artifact was trained beside."""
    prepare, extract = (existing_input(trained, read_manifest(trained), name) for name in ("prepare", "extract"))
    return TrainedModel.open(folder, Sources(prepare, extract), "test", "cpu")


def trec_lines(path: Path) -> list[list[str]]:
    return [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]


# The model


def test_the_folder_holds_what_was_asked_for_and_nothing_else(vsepp: Path, scan: Path) -> None:
    trec = {f"trec/{kind}.{side}.trec" for kind in ("run", "qrels") for side in ("i2t", "t2i")}
    vectors = {
        f"embeddings/{side}.{end}" for side in ("images", "captions") for end in ("parquet", "faiss", "ids.json")
    }
    assert names_in(vsepp) == MODEL_FILES | trec | vectors
    assert names_in(scan) == MODEL_FILES | trec
    assert not [path for path in vsepp.parent.iterdir() if path != vsepp]


def test_a_model_with_embeddings_gives_the_scores_that_were_evaluated(vsepp: Path, root: Path) -> None:
    trained = only(root, "train/aoq.vsepp")
    model = opened(vsepp, trained)
    written = read_embeddings(trained / "embeddings.h5", "test").scores()
    np.testing.assert_allclose(model.scores(model.data, 64), written, atol=1e-6)
    before, after = load_file(trained / "model.safetensors"), load_file(vsepp / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_model_that_scores_pairs_gives_the_scores_that_were_evaluated(scan: Path, root: Path) -> None:
    trained = only(root, "train/triplet.scan")
    model = opened(scan, trained)
    written = read_scores(only(root, "evaluate/triplet.scan") / "scores.h5", "test").matrix
    np.testing.assert_allclose(model.scores(model.data, 64), written, atol=1e-5)


def test_config_holds_the_trained_settings_and_where_they_come_from(vsepp: Path, root: Path) -> None:
    trained = json.loads((only(root, "train/aoq.vsepp") / "config.json").read_text())
    config = json.loads((vsepp / "config.json").read_text())
    about = config.pop("itrpipe")
    assert config == trained
    assert (about["version"], about["conf"], about["run"]) == (__version__, "aoq", "aoq.vsepp")
    assert about["files"] == {"weights": "model.safetensors", "words": ["vocab.json"]}
    assert about["features"]["extractor"] == "precomp"


def test_no_file_names_the_home_folder(
    root: Path, tmp_path: Path, tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = only(root, "train/aoq.vsepp")
    named = tmp_path / "data"
    shutil.copytree(root, named)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["command"] = "itrpipe train --data /home/somebody/data --dataset tiny"
    (only(named, "train/aoq.vsepp") / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    export_model(Asked(named, "tiny", tiny("aoq"), no_deps=True), Wanted(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "itrpipe train --data data --dataset tiny" in card
    assert "somebody" not in card


def test_the_record_has_the_digest_of_every_file(vsepp: Path, root: Path) -> None:
    record = json.loads((vsepp / "export.json").read_text())
    assert record["files"].keys() == names_in(vsepp) - {"export.json"}
    for name, found in record["files"].items():
        assert (found["bytes"], found["sha256"]) == ((vsepp / name).stat().st_size, file_digest(vsepp / name))
    chain = {
        f"{folder.parent.name}/{folder.name}": read_manifest(folder).fingerprint
        for folder in (only(root, "evaluate/aoq.vsepp"), only(root, "train/aoq.vsepp"))
    }
    assert chain.items() <= record["artifacts"].items()


def test_a_tokenizer_goes_along(root: Path, saved_encoders: Path, tmp_path: Path) -> None:
    encoders = copied(saved_encoders, tmp_path / "encoders")
    copy = copied(root, tmp_path / "data")
    given = (
        *("method=triplet", "backbone=dual-encoder", "train.epochs=1", "train.batch_size=20", "pixels.workers=0"),
        *("pixels.height=32", "pixels.width=32", "evaluate.bootstrap_samples=100"),
        *(f"train.model.{side}={encoders / name}" for side, name in (("vision", "vit"), ("text", "bert"))),
    )
    target = tmp_path / "out"
    export_model(Asked(copy, "tiny", [parse_override(text) for text in given]), Wanted(target))
    shutil.rmtree(encoders)
    trained = only(copy, "train/triplet.dual-encoder")
    model = opened(target, trained)
    written = read_embeddings(trained / "embeddings.h5", "test").scores()
    np.testing.assert_allclose(model.scores(model.data, 64), written, atol=1e-3)  # encoded in half precision
    tokenizer = {name for name in names_in(target) if name.startswith("tokenizer/")}
    assert tokenizer == {f"tokenizer/{name}" for name in names_in(trained / "tokenizer")} != set()
    assert names_in(target) == MODEL_FILES - {"vocab.json"} | tokenizer
    about = json.loads((target / "config.json").read_text())["itrpipe"]
    assert set(about["files"]["words"]) == tokenizer
    card = (target / "README.md").read_text()
    assert "| `tokenizer/` |" in card
    assert "it takes the photograph, resized" in card


# The card


@pytest.mark.parametrize(("which", "label"), [("vsepp", "aoq.vsepp"), ("scan", "triplet.scan")])
def test_the_hub_reads_the_measured_scores_in_the_card(
    which: str, label: str, root: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(which)
    data = ModelCard.load(folder / "README.md").data
    assert (data.library_name, data.datasets, data.metrics) == ("itrpipe", ["tiny"], ["recall"])
    assert data.license == ("apache-2.0" if which == "vsepp" else None)
    assert data.pipeline_tag == ("feature-extraction" if which == "vsepp" else "zero-shot-image-classification")
    measured = json.loads((only(root, f"evaluate/{label}") / "metrics.json").read_text())["full"]
    found = {each.metric_type: each for each in data.eval_results or []}
    assert found.keys() == measured.keys()
    for name, each in found.items():
        assert each.metric_value == pytest.approx(measured[name]["value"], abs=1e-3)
        assert (each.dataset_name, each.dataset_split, each.dataset_config) == ("tiny", "test", "full")


def test_the_metadata_can_be_changed_on_the_hub(vsepp: Path, tmp_path: Path) -> None:
    from huggingface_hub import metadata_eval_result
    from huggingface_hub.repocard import metadata_load, metadata_save
    from huggingface_hub.repocard_data import model_index_to_eval_results

    metadata = metadata_load(vsepp / "README.md")
    assert metadata is not None
    (name,) = [each["name"] for each in metadata["model-index"]]
    assert name == "VSE++, AOQ, tiny"
    ours = metadata["model-index"][0]["results"][0]
    theirs = metadata_eval_result(
        model_pretty_name=name,
        task_pretty_name=ours["task"]["name"],
        task_id=ours["task"]["type"],
        metrics_pretty_name="RSum",
        metrics_id="rsum",
        metrics_value=1.0,
        dataset_pretty_name="tiny",
        dataset_id="tiny",
        dataset_config="full",
        dataset_split="test",
    )
    (known,) = [each for each in model_index_to_eval_results(metadata["model-index"])[1] if each.metric_type == "rsum"]
    ((_, (same,)),) = [model_index_to_eval_results(theirs["model-index"])]
    assert same.unique_identifier == known.unique_identifier
    copy = tmp_path / "copy.md"
    shutil.copyfile(vsepp / "README.md", copy)
    metadata_save(copy, metadata)
    assert copy.read_text(encoding="utf-8") == (vsepp / "README.md").read_text(encoding="utf-8")


def test_the_card_tells_scores_data_command_and_papers(vsepp: Path, root: Path) -> None:
    text = (vsepp / "README.md").read_text()
    metrics = json.loads((only(root, "evaluate/aoq.vsepp") / "metrics.json").read_text())["full"]
    recall = metrics["i2t_r5"]
    assert f"| Image to text R@5 | {recall['value']:.1f} ({recall['low']:.1f}–{recall['high']:.1f}) | 80.6 |\n" in text
    assert "| metric | full | chance |\n| --- | ---: | ---: |\n" in text
    assert "| train | 12 | 60 |\n| val | 4 | 20 |\n| test | 4 | 20 |\n" in text
    trained = only(root, "train/aoq.vsepp")
    assert f"| `train/{trained.name}` | `{read_manifest(trained).fingerprint}` |\n" in text
    assert f"\n{command_without_places(read_manifest(trained).command)}\n" in text
    assert "@inproceedings{chen2020aoq," in text
    assert "@inproceedings{faghri2018vsepp," in text
    for name in names_in(vsepp):
        folder, _, file = name.rpartition("/")
        kind = file.partition(".")
        shown = f"{folder}/{kind[0]}.*.trec" if folder == "trec" else f"{folder}/*.{kind[2]}" if folder else name
        assert f"| `{shown}` |" in text or name == "README.md", name


def test_nothing_in_the_folder_says_where_the_data_lay(
    defined: Path, precomp_dataset: TinySource, tmp_path: Path, invoke: Invoke
) -> None:
    where = ("--dataset", "tiny", "--data", defined)
    done(invoke("prepare", *where, "--source", precomp_dataset.folder))
    done(invoke("extract", *where, "--from", precomp_dataset.features, "--name", "mine"))
    small = ("epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1")
    own = sets(*(f"train.{text}" for text in (*small, f"track_to={tmp_path / 'seen'}")))
    named = ("--backbone", "vsepp", "--features", "mine", "--set=evaluate.bootstrap_samples=100", *own)
    done(invoke("export", *where, "--to", tmp_path / "given", "--trec", "--make", *named))
    for name in names_in(tmp_path / "given"):
        assert str(tmp_path).encode() not in (tmp_path / "given" / name).read_bytes(), name
    card = (tmp_path / "given" / "README.md").read_text()
    assert "\nitrpipe prepare --dataset tiny --data data --source source\n" in card
    assert "\nitrpipe extract --dataset tiny --data data --from f30k_precomp --name mine\n" in card
    assert "--set=train.track_to=seen" in card
    done(invoke("report", *where))
    page = (only(defined, "report/*") / "index.html").read_text()
    assert "itrpipe prepare --dataset tiny --data data --source source" in page
    assert str(tmp_path) not in page


def test_the_lines_of_code_in_the_card_use_the_model(
    vsepp: Path, scan: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = only(root, "extract/precomp") / "features.h5"
    for exported, embeds in ((vsepp, True), (scan, False)):
        folder = copied(exported, tmp_path / exported.name)
        shutil.copy(features, folder)
        code = (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
        monkeypatch.chdir(folder)
        printed: list[Any] = []
        found: dict[str, Any] = {"print": printed.append}
        exec(code, found)
        assert found["model"].embeds == embeds
        assert printed[0].shape == (20, 1)
        assert embeds or [each.index for each in printed[1]] == np.argsort(-printed[0][:, 0])[:5].tolist()


# Embeddings


def test_embeddings_have_the_ids_of_the_split(vsepp: Path, root: Path) -> None:
    split = read_embeddings(only(root, "train/aoq.vsepp") / "embeddings.h5", "test")
    images, captions = (pq.read_table(vsepp / "embeddings" / f"{side}.parquet") for side in ("images", "captions"))
    assert images["image_id"].to_pylist() == split.image_ids.tolist()
    assert captions["caption_id"].to_pylist() == split.caption_ids.tolist()
    assert captions["image_id"].to_pylist() == split.image_ids[split.caption_image].tolist()
    np.testing.assert_array_equal(np.stack(images["embedding"].to_numpy()), split.images)
    np.testing.assert_array_equal(np.stack(captions["embedding"].to_numpy()), split.texts)


def test_an_index_finds_what_the_rankings_hold(vsepp: Path, root: Path) -> None:
    faiss = pytest.importorskip("faiss")
    split = read_embeddings(only(root, "train/aoq.vsepp") / "embeddings.h5", "test")
    rankings = pq.read_table(only(root, "evaluate/aoq.vsepp") / "rankings.parquet").to_pylist()
    for side, direction, queries in (("captions", "i2t", split.images), ("images", "t2i", split.texts)):
        index = faiss.read_index(str(vsepp / "embeddings" / f"{side}.faiss"))
        ids = json.loads((vsepp / "embeddings" / f"{side}.ids.json").read_text())
        _, best = index.search(np.ascontiguousarray(queries), 1)
        expected = [row["candidate_ids"][0] for row in rankings if row["direction"] == direction]
        assert [ids[row] for row in best[:, 0]] == expected


def test_arrays_come_with_their_ids(root: Path, tiny: Callable, tmp_path: Path) -> None:
    wanted = Wanted(tmp_path / "out", embeddings="npy")
    export_model(Asked(root, "tiny", tiny("triplet"), no_deps=True), wanted)
    split = read_embeddings(only(root, "train/triplet.vsepp") / "embeddings.h5", "test")
    folder = tmp_path / "out" / "embeddings"
    for side, vectors, ids in (("images", split.images, split.image_ids), ("captions", split.texts, split.caption_ids)):
        np.testing.assert_array_equal(np.load(folder / f"{side}.npy", allow_pickle=False), vectors)
        assert json.loads((folder / f"{side}.ids.json").read_text()) == ids.tolist()
    assert names_in(folder) == {"images.npy", "images.ids.json", "captions.npy", "captions.ids.json"}


# Rankings


def test_runs_hold_the_rankings_of_the_evaluation(scan: Path, root: Path) -> None:
    rankings = pq.read_table(only(root, "evaluate/triplet.scan") / "rankings.parquet").to_pylist()
    for direction in ("i2t", "t2i"):
        expected = [
            (row["query_id"], "Q0", candidate, str(rank), "triplet.scan")
            for row in rankings
            if row["direction"] == direction
            for rank, candidate in enumerate(row["candidate_ids"], 1)
        ]
        scores = [score for row in rankings if row["direction"] == direction for score in row["scores"]]
        lines = trec_lines(scan / "trec" / f"run.{direction}.trec")
        assert [(*line[:4], line[5]) for line in lines] == expected
        assert [np.float32(line[4]) for line in lines] == [np.float32(score) for score in scores]


def test_right_answers_are_the_pairs_of_the_split(scan: Path, root: Path) -> None:
    split = PreparedDataset.open(next(root.glob("tiny/prepare/files-*"))).split("test")
    pairs = [
        (str(image), str(caption))
        for image, caption in zip(split.image_ids[split.caption_image], split.caption_ids, strict=True)
    ]
    assert trec_lines(scan / "trec" / "qrels.i2t.trec") == [[image, "0", caption, "1"] for image, caption in pairs]
    assert trec_lines(scan / "trec" / "qrels.t2i.trec") == [[caption, "0", image, "1"] for image, caption in pairs]


# What is refused


def not_exported(root: Path, wanted: Wanted, overrides: list, error: type[ItrpipeError], *parts: str) -> None:
    before = {path: path.read_bytes() for path in wanted.target.parent.rglob("*") if path.is_file()}
    with pytest.raises(error) as caught:
        export_model(Asked(root, "tiny", overrides, no_deps=True), wanted)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert {path: path.read_bytes() for path in wanted.target.parent.rglob("*") if path.is_file()} == before


def test_a_folder_with_content_is_kept_unless_it_is_an_export(root: Path, tiny: Callable, tmp_path: Path) -> None:
    target, of_aoq = tmp_path / "out", tiny("aoq")
    target.mkdir()
    (target / "thesis.tex").write_text("all of it")
    not_exported(root, Wanted(target), of_aoq, UsageError, str(target), "not empty", "--force")
    not_exported(root, Wanted(target, force=True), of_aoq, UsageError, str(target), "was not made by itrpipe export")
    not_exported(root, Wanted(target / "thesis.tex"), of_aoq, UsageError, "thesis.tex", "is a file")
    (target / "thesis.tex").unlink()
    export_model(Asked(root, "tiny", of_aoq, no_deps=True), Wanted(target))
    not_exported(root, Wanted(target), of_aoq, UsageError, str(target), "not empty", "--force")
    export_model(Asked(root, "tiny", of_aoq, no_deps=True), Wanted(target, trec=True, force=True))
    assert (target / "trec" / "run.i2t.trec").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (target / ".git").mkdir()
    (target / ".git" / "config").write_text("a clone")
    not_exported(root, Wanted(target, force=True), of_aoq, UsageError, ".git/config", "did not write")
    shutil.rmtree(target / ".git")
    with (target / "README.md").open("a") as card:
        card.write("edited")
    not_exported(root, Wanted(target, force=True), of_aoq, UsageError, "README.md", "not like this")
    (target / "export.json").write_text("{")
    not_exported(root, Wanted(target, force=True), of_aoq, UsageError, "damaged export.json")


def test_a_place_where_no_folder_can_be_is_told_before_anything_runs(
    root: Path, tiny: Callable, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    never_evaluated = tiny("triplet", "split=val")
    not_exported(root, Wanted(tmp_path / "file" / "out"), never_evaluated, MissingInputError, str(tmp_path / "file"))
    not_exported(root, Wanted(root / "tiny" / "out"), never_evaluated, UsageError, "lies in the data folder")
    not_exported(root, Wanted(tmp_path / "\udcff"), never_evaluated, UsageError, r"\udcff")


def test_a_full_disk_leaves_nothing_behind(
    root: Path, tiny: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    not_exported(root, Wanted(tmp_path / "out"), tiny("aoq"), DiskFullError, "no space left", str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stop", ["target", "work"])
def test_an_export_that_was_killed_begins_anew_and_leaves_nothing(
    root: Path, tiny: Callable, tmp_path: Path, stop: str
) -> None:
    """Killed before the earlier export is moved aside, and after that before the new one takes its place."""
    target = tmp_path / "out"
    export_model(Asked(root, "tiny", tiny("triplet"), no_deps=True), Wanted(target))
    earlier = (target / "export.json").read_bytes()
    replace = os.replace

    def killed(source: Path, to: Path) -> None:
        if Path(source) == (target if stop == "target" else target.with_name(".out.exporting")):
            os._exit(9)
        replace(source, to)

    child = os.fork()
    if child == 0:
        os.replace = killed
        export_model(Asked(root, "tiny", tiny("aoq"), no_deps=True), Wanted(target, force=True))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    kept = target if stop == "target" else target.with_name(".out.replaced")
    assert (kept / "export.json").read_bytes() == earlier
    export_model(Asked(root, "tiny", tiny("aoq"), no_deps=True), Wanted(target, force=True))
    assert (target / "export.json").read_bytes() != earlier
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_exports_to_one_place_the_second_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with new_folder(target, {}, force=False) as work:
        (work / "first").touch()
        with pytest.raises(UsageError, match="another process writes"), new_folder(target, {}, force=False):
            pass
    assert {path.name for path in target.iterdir()} == {"first", "export.json"}
    with pytest.raises(UsageError, match="not empty"), new_folder(target, {}, force=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_model_without_embeddings_has_none_to_export(root: Path, tiny: Callable, tmp_path: Path) -> None:
    of_scan = [parse_override(text) for text in SCAN]
    target = tmp_path / "out"
    not_exported(root, Wanted(target, embeddings="npy"), of_scan, UsageError, "--embeddings npy", "scan", "vsepp")
    not_exported(root, Wanted(target, index=True), of_scan, UsageError, "--index", "scan", "vsepp")
    ordered = tiny("triplet", "train.model.measure=order")
    not_exported(root, Wanted(target, index=True), ordered, UsageError, "--index", "order violation")


def test_what_is_no_evaluated_model_is_named(root: Path, tiny: Callable, tmp_path: Path) -> None:
    wanted = Wanted(tmp_path / "out")
    mean, missing = tiny("triplet", "ensemble_with=['vsepp.s1']"), tiny("triplet", "split=val")
    not_exported(root, wanted, mean, UsageError, "several models")
    not_exported(root, wanted, missing, UsageError, "itrpipe evaluate --dataset tiny")


def test_a_licence_is_an_identifier(root: Path, tmp_path: Path) -> None:
    wanted = Wanted(tmp_path / "out", license="my own: yes")
    not_exported(root, wanted, [parse_override("method=aqo")], UsageError, "--license 'my own: yes'", "apache-2.0")


def test_a_damaged_model_leaves_nothing_behind(root: Path, tiny: Callable, tmp_path: Path) -> None:
    copy = copied(root, tmp_path / "data")
    weights = only(copy, "train/aoq.vsepp") / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (tmp_path / "place").mkdir()
    not_exported(
        copy, Wanted(tmp_path / "place" / "out"), tiny("aoq"), DataError, "model.safetensors", "sha256", "itrpipe gc"
    )
    assert not list((tmp_path / "place").iterdir())


def test_the_command_makes_the_evaluation_on_the_way(
    root: Path, tiny: Callable, tmp_path: Path, invoke: Invoke
) -> None:
    copy = copied(root, tmp_path / "data")
    shutil.rmtree(only(copy, "evaluate/triplet.scan"))
    target = tmp_path / "models" / "scan"
    where = ["--backbone", "scan", "--dataset", "tiny", "--data", copy, "--to", target, "--trec"]
    refused(invoke("export", *where, *sets(*SCAN[2:])), 2)
    assert made(invoke("export", *where, *sets(*SCAN[2:]), "--make")) == target
    assert only(copy, "evaluate/triplet.scan").exists()
    assert names_in(target) >= MODEL_FILES


def test_the_card_tells_the_commands_of_the_whole_chain(root: Path, tmp_path: Path) -> None:
    copy = copied(root, tmp_path / "data")
    for path in copy.glob("tiny/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps(manifest | {"command": f"itrpipe {path.parent.parent.name}", "checksum": ""}))
    target = tmp_path / "scan"
    export_model(Asked(copy, "tiny", [parse_override(text) for text in SCAN], no_deps=True), Wanted(target))
    told = (target / "README.md").read_text().partition("## How it was made")[2].split("```")[1]
    assert told.split("\n")[1:-1] == ["itrpipe prepare", "itrpipe extract", "itrpipe train", "itrpipe evaluate"]
