"""The recipe photos: from photographs and captions to a report and a search, and what becomes of photographs alone."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.datasets.decisions import DecisionFile
from itrpipe.datasets.definition import load_definition
from itrpipe.storage.artifact import read_manifest
from tests.chains import Invoke, done, only, planned, refused
from tests.conftest import PLACES, SUBJECTS

QUICK = ("-s", "train.epochs=2", "-s", "evaluate.bootstrap_samples=100", "-s", "report.bootstrap_samples=100")
COPIES = 4
COUNT = COPIES * len(SUBJECTS) * len(PLACES)


def squares(folder: Path) -> list[tuple[Path, str]]:
    """A photograph of one colour, with a caption, for some of each subject and place."""
    folder.mkdir(parents=True)
    rows = []
    for number, (subject, place, _) in enumerate(itertools.product(SUBJECTS, PLACES, range(COPIES))):
        path = folder / f"{number:03}.png"
        shade = number * 255 // COUNT
        Image.new("RGB", (40, 40), (shade, 255 - shade, 7 * number % 256)).save(path)
        rows.append((path, f"a {subject} number {number % 10} is on the {place}"))
    return rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with captions.csv."""
    folder = tmp_path / "My photos"
    rows = squares(folder)
    lines = ["file,caption", *(f"{path.name},{caption}" for path, caption in rows)]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def encoders(saved_encoders: Path) -> tuple[object, ...]:
    return "--vision", saved_encoders / "vit", "--text", saved_encoders / "bert"


def test_it_leaves_two_models_a_report_and_a_search_and_is_then_up_to_date(
    source: Path,
    encoders: tuple[object, ...],
    data_root: Path,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["run", "photos", "--source", source, *encoders, "--data", data_root, *QUICK]
    out = done(invoke(*command))
    names = load_definition(data_root, "photos").named_trainings()
    assert sorted(names.values()) == ["first", "second"]
    report = read_manifest(only(data_root, "report/page"))
    assert sorted(report.settings["names"]) == sorted([*map(list, names.items())])
    assert "of the ten hardest training candidates are right after all (mean probability by its default" in out
    proposed = [shlex.split(line)[2:] for line in out.splitlines() if line.startswith("next: itrpipe ")]
    assert [words[0] for words in proposed] == ["search", "serve"]
    found = done(invoke(*proposed[0]))
    assert f"{COUNT} images ranked by first" in found, "all splits"
    served: list[Any] = []
    monkeypatch.setattr("itrpipe.search.serve.run", lambda site, *how: served.append(site))
    assert "next: " not in done(invoke(*proposed[1])), "nobody has answered"
    assert served[0].searches.gallery.model.label == "first"
    for name in names.values():
        assert planned(done(invoke("train", "--model", name, "--data", data_root, "--dry-run"))) == []
    again = done(invoke(*command))
    assert planned(again) == []
    seeds = planned(done(invoke(*command, "--seeds", 2, "--dry-run")))
    trained = [step for step in seeds if step.startswith("train/")]
    assert trained == ["train/contrastive-batch.dual-encoder.s1", "train/contrastive.dual-encoder.s1"]
    assert "report: " in again


def test_a_table_with_photographs_inside_and_columns_of_any_name_is_a_source_too(
    tmp_path: Path, encoders: tuple[object, ...], data_root: Path, invoke: Invoke
) -> None:
    rows = squares(tmp_path / "apart")
    images = [{"bytes": path.read_bytes(), "path": path.name} for path, _ in rows]
    table = tmp_path / "photos.parquet"
    pq.write_table(pa.table({"photo": images, "blurb": [caption for _, caption in rows]}), table)
    command = ["run", "photos", "--source", table, *encoders, "--data", data_root, *QUICK, "--only", "first"]
    refused(invoke(*command), 4, "--column captions=COLUMN")
    done(invoke(*command, "--column", "captions=blurb"))
    assert planned(done(invoke(*command))) == [], "columns are remembered"
    assert load_definition(data_root, "photos").models["first"].trained
    assert f"{COUNT} images ranked by first" in done(invoke("search", "a dog", "--model", "first", "--data", data_root))


def test_photographs_without_captions_are_indexed_by_the_vision_encoder(
    tmp_path: Path, encoders: tuple[object, ...], saved_encoders: Path, data_root: Path, invoke: Invoke
) -> None:
    folder = tmp_path / "bare"
    rows = squares(folder / "trip")
    data = ["--data", data_root]
    out = done(invoke("run", "photos", "--source", folder, *encoders, *data))
    assert "captions.csv" in out
    assert "next: itrpipe search --image FILE" in out
    photos = ["search", "--photos", folder, *data]
    assert f"{COUNT} photographs ranked by vit" in done(invoke(*photos, "--image", rows[0][0]))
    refused(invoke(*photos, "a dog"), 2, "encodes images alone", "--image FILE")
    joint = saved_encoders / "clip"
    done(invoke("run", "photos", "--source", folder, "--vision", joint, "--text", joint, *data))
    assert "photographs ranked by clip" in done(invoke(*photos, "a dog", "--model", joint))


def test_encoders_are_taken_by_recipes_that_name_some(
    source: Path, saved_encoders: Path, data_root: Path, invoke: Invoke
) -> None:
    other = invoke("run", "demo", "--vision", saved_encoders / "vit", "--data", data_root)
    refused(other, 2, "recipe demo names no vision encoder and takes no --vision")
    absent = invoke("run", "photos", "--source", source, "--text", "/no/such", "--data", data_root)
    refused(absent, 3, "/no/such is not a folder")


def test_answers_reach_lists_the_second_training_and_the_report_by_the_command_that_serve_and_review_print(
    source: Path, encoders: tuple[object, ...], data_root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_command = ["run", "photos", "--source", source, *encoders, "--data", data_root, *QUICK]
    command = [*first_command, "--seeds", 1]

    def run(words: list[Any]) -> str:
        monkeypatch.setattr("sys.argv", ["itrpipe", *map(str, words)])
        return done(invoke(*words))

    run(first_command)
    before = load_definition(data_root, "photos").models["second"]
    evaluated = evaluation_of(data_root, before.trained)
    run(command)  # makes nothing, and is the last one
    run([*command, "--only", "first"])  # leaves out the lists that are judged

    def answer(site: Any, *how: object) -> None:
        reviews = site.reviews
        for place, verdict in enumerate(("fits", "fits", "differs", "unsure")):
            reviews.answer("sample", "ada", place, verdict)

    monkeypatch.setattr("itrpipe.search.serve.run", answer)
    data = ["--data", data_root]
    file = DecisionFile.of(data_root, "photos").path
    answered = ["evaluate", "mine_negatives", "train", "evaluate", "report"]
    for split, changed in (([], answered[1:]), (["--split", "test"], answered)):
        said = [done(invoke(name, "--model", "first", *split, *data)) for name in ("serve", "review")]
        proposed = [line for out in said for line in out.splitlines() if line.startswith("next: ")]
        assert proposed == [f"next: {shlex.join(['itrpipe', *map(str, command), '--decisions', str(file)])}"] * 2
        words = shlex.split(proposed[0])[2:]
        steps = planned(done(invoke(*words, "--dry-run")))
        assert [step.partition("/")[0] for step in steps] == changed, "answers change what is about their pairs"
    run(words)
    after = load_definition(data_root, "photos").models["second"]
    assert after.trained != before.trained
    assert after.settings["mine_negatives.decisions"] == str(file)

    # The report says what the answers changed.
    now = evaluation_of(data_root, after.trained)
    (model,) = after.trained.values()
    trained = read_manifest(data_root / "photos" / "train" / model)
    lists = data_root / "photos" / "mine_negatives" / trained.inputs["mine_negatives"].name
    decided = json.loads((lists / "statistics.json").read_text())["decided"]
    assert decided == {"decisions": 4, "mined": 4, "left_out": 2, "kept": 1}
    reports = {}
    for manifest in data_root.glob("photos/report/*/manifest.json"):
        reports[repr(read_manifest(manifest.parent).settings["before"])] = manifest.parent
    report = reports[repr([[now.name, evaluated.name]])]
    claims = json.loads((report / "results.json").read_text())["claims"]
    (claim,) = [claim for claim in claims if claim["baseline"].endswith("without decisions")]
    assert claim["own"]["rsum"]["value"] == pytest.approx(rsum(now) - rsum(evaluated))

    # What was asked about is then that with the answers, and the command stays as it is, wherever they are named.
    run([*command[:2], f"--decisions={file}", *command[2:]])
    for split in ([], ["--split", "test"]):
        assert proposed[0] in done(invoke("review", "--model", "first", *split, *data))


def test_review_knows_the_command_of_a_recipe_with_the_data_folder_before_run(
    source: Path,
    encoders: tuple[object, ...],
    data_root: Path,
    tmp_path: Path,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ITRPIPE_DATA", "")  # the option sets it
    command = ["--data", data_root, "run", "photos", "--source", source, *encoders, *QUICK]
    done(invoke(*command))
    table = tmp_path / "ada.csv"
    table.write_text("image_id,caption_id,answer\nabsent,absent,fits\n")
    out = done(invoke("review", "--model", "first", "--merge", table, "--data", data_root))
    words = ["itrpipe", *map(str, command), "--decisions", str(DecisionFile.of(data_root, "photos").path)]
    assert out.splitlines()[-1] == f"next: {shlex.join(words)}"


def test_without_an_earlier_run_nothing_is_said_of_before(
    source: Path, encoders: tuple[object, ...], data_root: Path, tmp_path: Path, invoke: Invoke
) -> None:
    table = tmp_path / "ada.csv"
    table.write_text("image_id,caption_id,answer\nabsent,absent,fits\n")
    done(invoke("run", "photos", "--source", source, *encoders, "--data", data_root, *QUICK, "--decisions", table))
    assert read_manifest(only(data_root, "report/page")).settings["before"] == []


def evaluation_of(root: Path, trained: dict[str, str]) -> Path:
    """Return the only evaluation of a model."""
    (model,) = trained.values()
    evaluations = []
    for manifest in root.glob("photos/evaluate/*/manifest.json"):
        if read_manifest(manifest.parent).inputs["train"].name == model:
            evaluations.append(manifest.parent)
    (evaluation,) = evaluations
    return evaluation


def rsum(evaluation: Path) -> float:
    return json.loads((evaluation / "metrics.json").read_text())["full"]["rsum"]["value"]
