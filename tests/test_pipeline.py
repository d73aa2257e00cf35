"""Plans: what is up to date, missing, new or stale and why, and that exactly that is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from itrpipe.cli.show import Show
from itrpipe.config import Override, declared_stages, load_declaration, parse_override
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.engine.run import SharedExecution
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.run import run
from itrpipe.pipeline.steps import MAX_CHANGES, Step, pending_steps, unique_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Job, Need, load_stage
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.disk import read_stamped_json, write_stamped_json
from itrpipe.training.settings import TrainSettings
from tests.chains import run_stage
from tests.conftest import define, tiny
from tests.definitions import save_definition

EVERYTHING = {
    "prepare/files",
    "extract/precomp",
    "train/triplet.vsepp",
    "mine_negatives/exact.triplet.vsepp",
    "train/aoq.vsepp",
    "evaluate/aoq.vsepp",
}
AFTER_FIRST = EVERYTHING - {"prepare/files", "extract/precomp"}
AFTER_MINING = AFTER_FIRST - {"train/triplet.vsepp"}
AFTER_AOQ = AFTER_MINING - {"mine_negatives/exact.triplet.vsepp"}
HOUR, DAY = 3_600, 86_400


def plan_aoq(root: Path, *more: str) -> Step:
    return Planner(root, "tiny", tiny("aoq", *more)).plan(Need("evaluate", "recall"))


def evaluate_aoq(root: Path, *more: str) -> Path:
    return run_stage(root, "tiny", "evaluate", tiny("aoq", *more))


def train_triplet(root: Path) -> Path:
    overrides = [each for each in tiny("triplet") if each.scope == "train"]
    return run_stage(root, "tiny", "train", [*overrides, Override(None, "backbone", "vsepp")], conf="triplet")


def steps_of(step: Step) -> dict[str, Step]:
    return {f"{each.location.stage}/{each.location.label}": each for each in unique_steps([step])}


def states(step: Step) -> dict[str, str]:
    return {name: each.state for name, each in steps_of(step).items()}


def those(step: Step, state: str) -> set[str]:
    return {name for name, found in states(step).items() if found == state}


def only(root: Path, pattern: str) -> Path:
    (found,) = root.glob(f"tiny/{pattern}")
    return found


def finished_at(root: Path) -> dict[str, int]:
    """Artifact -> time at which its manifest was written."""
    return {str(path.parent): path.stat().st_mtime_ns for path in root.glob("tiny/*/*/manifest.json")}


# States


def test_everything_is_missing_at_first_and_up_to_date_in_the_end(defined: Path, finished_chain: Path) -> None:
    """Wherever the sources lie; and planning makes nothing."""
    first, last = plan_aoq(defined), plan_aoq(finished_chain / "data")
    assert states(first) == dict.fromkeys(EVERYTHING, "missing")
    assert states(last) == dict.fromkeys(EVERYTHING, "up to date")
    assert first.location.fingerprint == last.location.fingerprint
    assert sorted(path.name for path in (defined / "tiny").glob("[!.]*")) == ["dataset.json", "sources.json"]


@pytest.mark.parametrize(
    ("change", "new", "where", "reason"),
    [
        ("train.learning_rate=0.01", AFTER_FIRST, "train/triplet.vsepp", "learning_rate 0.001 → 0.01"),
        ("triplet.margin=0.3", AFTER_FIRST, "train/triplet.vsepp", "loss.margin 0.2 → 0.3"),
        ("triplet.margin=0.3", AFTER_FIRST, "train/aoq.vsepp", "mine_negatives changed"),
        ("mine_negatives.num_texts=6", AFTER_MINING, "mine_negatives/exact.triplet.vsepp", "num_texts 5 → 6"),
        ("aoq.alpha=0.5", AFTER_AOQ, "train/aoq.vsepp", "loss.alpha 0.3 → 0.5"),
        ("aoq.teacher=vsepp", AFTER_AOQ, "train/aoq.vsepp", "loss.teacher none → vsepp"),
        ("aoq.decay_at=[1,2]", AFTER_AOQ, "train/aoq.vsepp", "decay_at none → [1, 2]"),
        ("ranking_depth=5", {"evaluate/aoq.vsepp"}, "evaluate/aoq.vsepp", "ranking_depth 50 → 5"),
        ("evaluate.ranking_depth=5", {"evaluate/aoq.vsepp"}, "evaluate/aoq.vsepp", "ranking_depth 50 → 5"),
        ("prepare.bad_images=refuse", EVERYTHING, "prepare/files", "bad_images drop → refuse"),
    ],
)
def test_one_changed_setting_makes_exactly_what_depends_on_it_new(
    finished_chain: Path, change: str, new: set[str], where: str, reason: str
) -> None:
    step = plan_aoq(finished_chain / "data", change)
    assert those(step, "new settings") == new
    assert those(step, "up to date") == EVERYTHING - new
    assert steps_of(step)[where].reason == reason


def test_a_reason_names_the_first_of_many_changes(finished_chain: Path) -> None:
    changed = ("alpha=0.5", "beta=0.9", "margin_online=0.3", "margin_offline=0.1", "redraw=1", "top_texts=3")
    sets = [*(f"aoq.loss.{each}" for each in changed), "train.learning_rate=1", "train.decay_at=[1,2]"]
    reason = plan_aoq(finished_chain / "data", *sets).inputs["train"].reason
    assert reason.count(" → ") == MAX_CHANGES
    assert reason.endswith(f", and {len(sets) - MAX_CHANGES} more changes")


def test_only_what_changed_is_run_again_and_nothing_else_is_touched(
    chain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, earlier = finished_at(chain), plan_aoq(chain).location.folder
    folder = evaluate_aoq(chain, "mine_negatives.num_texts=6")
    after = finished_at(chain)
    assert before.items() <= after.items()
    new = [Path(name).relative_to(chain / "tiny") for name in after.keys() - before.keys()]
    assert {str(name).rpartition("-")[0] for name in new} == AFTER_MINING
    capsys.readouterr()
    assert evaluate_aoq(chain, "mine_negatives.num_texts=6") == folder
    assert evaluate_aoq(chain) == earlier
    assert finished_at(chain) == after
    assert "done in" not in capsys.readouterr().out


def test_a_folder_that_holds_another_artifact_is_damaged(chain: Path) -> None:
    path = plan_aoq(chain).location.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "fingerprint": manifest["fingerprint"][::-1], "checksum": ""}))
    found = plan_aoq(chain)
    assert (found.state, "holds another artifact" in found.reason) == ("damaged", True)


def test_of_several_earlier_artifacts_the_newest_says_what_changed(chain: Path) -> None:
    evaluate_aoq(chain, "ranking_depth=7")
    assert "ranking_depth 7 → 9" in plan_aoq(chain, "ranking_depth=9").reason
    for folder in (chain / "tiny" / "evaluate").glob("*/manifest.json"):
        manifest = json.loads(folder.read_text())
        finished = "2001" if manifest["settings"]["ranking_depth"] == 7 else "2002"
        folder.write_text(json.dumps({**manifest, "finished": finished, "checksum": ""}))
    assert "ranking_depth 7 → 9" not in plan_aoq(chain, "ranking_depth=9").reason


def test_a_run_on_other_features_is_another_run(chain: Path) -> None:
    definition = load_definition(chain, "tiny")
    features = {**definition.features, "others": definition.features["precomp"]}
    save_definition(chain, "tiny", definition.model_copy(update={"features": features}))
    for name, state in (("others", "missing"), ("precomp", "up to date")):
        assert those(plan_aoq(chain, f"features={name}"), state) >= AFTER_FIRST


def test_what_reads_something_stale_is_stale_and_other_settings_of_it_are_new(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_aoq(chain, "aoq.alpha=0.5")
    assert (before.state, before.reason) == ("new settings", "train changed")
    run([before.inputs["train"]], Reporter())
    after = plan_aoq(chain, "aoq.alpha=0.5")
    assert (after.inputs["train"].state, after.state, after.reason) == ("up to date", "new settings", "train changed")
    monkeypatch.setattr("itrpipe.stages.mine_negatives.MineNegativesStage.schema_version", 99)
    step = plan_aoq(chain, "ranking_depth=5")
    assert those(step, "stale") == AFTER_MINING
    assert steps_of(step)["mine_negatives/exact.triplet.vsepp"].reason == "made by another version of the stage"
    assert states(step)["train/triplet.vsepp"] == "up to date"


def test_a_damaged_input_stops_everything_and_is_not_silently_replaced(chain: Path) -> None:
    path = only(chain, "train/aoq.*/embeddings.h5")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError, match=r"embeddings\.h5 has [\d,]+ bytes instead of [\d,]+; .*itrpipe gc"):
        evaluate_aoq(chain, "ranking_depth=5")
    assert those(plan_aoq(chain, "ranking_depth=5"), "damaged") == {"train/aoq.vsepp"}


def test_what_nothing_outdated_reads_is_left_alone(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stage in ("extract", "mine_negatives"):
        shutil.rmtree(only(chain, f"{stage}/[!.]*"))
    before = set(chain.glob("tiny/*/[!.]*"))
    (killed := chain / "tiny" / f".dataset.json.{socket.gethostname()}.{2**22 + 1}-0.tmp").touch()
    evaluate_aoq(chain)
    assert set(chain.glob("tiny/*/[!.]*")) == before
    assert not killed.exists()
    assert "missing, but nothing that is to be made reads it" in capsys.readouterr().out
    evaluate_aoq(chain, "ranking_depth=5")
    assert len(set(chain.glob("tiny/*/[!.]*")) - before) == 1


# Made again


def make_again(folder: Path, **changes: Any) -> None:
    """Lets an artifact look as if it had been removed and made again with other bytes in its first file."""
    manifest = artifacts.read_manifest(folder)
    name, file = next(iter(manifest.outputs.items()))
    outputs = {**manifest.outputs, name: file.model_copy(update={"sha256": "0" * 64})}
    execution = {**manifest.execution, **changes}
    artifacts.write_manifest(folder, manifest.model_copy(update={"outputs": outputs, "execution": execution}))


def add_a_file(folder: Path) -> None:
    """Likewise, but with one file more, so that it is whole and gives its readers the same."""
    manifest = artifacts.read_manifest(folder)
    (folder / "note.txt").touch()
    empty = artifacts.OutputFile(bytes=0, sha256=hashlib.sha256().hexdigest())
    artifacts.write_manifest(folder, manifest.model_copy(update={"outputs": {**manifest.outputs, "note.txt": empty}}))


@pytest.mark.parametrize(("batch", "why"), [({"batch": 32}, "batch 32 instead of 0"), ({}, "with the same settings")])
def test_what_reads_something_that_was_made_again_is_stale_and_says_why(chain: Path, batch: dict, why: str) -> None:
    make_again(only(chain, "extract/precomp-*"), **batch)
    step = plan_aoq(chain)
    assert those(step, "stale") == AFTER_FIRST
    assert steps_of(step)["train/triplet.vsepp"].reason == f"features.h5 was made again ({why})"
    assert steps_of(step)["evaluate/aoq.vsepp"].reason == "train is to be made again"
    assert {each.location.label for each in pending_steps([step])} >= {"triplet.vsepp", "aoq.vsepp"}


def test_an_artifact_made_again_with_the_same_bytes_leaves_everything_up_to_date(chain: Path) -> None:
    features = only(chain, "extract/precomp-*")
    shutil.rmtree(features)
    run_stage(chain, "tiny", "extract", [parse_override("batch=3")], conf="precomp")
    assert artifacts.read_manifest(features).execution["batch"] == 3
    assert those(plan_aoq(chain), "up to date") == EVERYTHING


def test_a_stale_artifact_is_replaced_and_the_earlier_one_kept(chain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mined, second = only(chain, "mine_negatives/exact*-*"), only(chain, "train/aoq*-*")
    before = artifacts.read_manifest(second)
    add_a_file(mined)
    folder = evaluate_aoq(chain)
    # The second training came out equal.
    assert f"evaluate/{folder.name}: up to date after all" in capsys.readouterr().out
    assert artifacts.check_artifact(second.with_name(f"{second.name}.replaced"), thorough=True) == before
    made = artifacts.check_artifact(second, thorough=True)
    assert made.finished > before.finished
    assert artifacts.read_manifest(mined).digest in {each.digest for each in made.inputs.values()}
    assert those(plan_aoq(chain), "up to date") == EVERYTHING


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = only(chain, "train/triplet*-*")
    add_a_file(only(chain, "extract/precomp-*"))
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == first:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train_triplet(chain)
    assert not first.exists()
    assert first.with_name(f"{first.name}.replaced").exists()
    monkeypatch.setattr("itrpipe.stages.train.TrainStage.run", lambda _, job: pytest.fail("nothing was left to do"))
    assert train_triplet(chain) == first
    artifacts.check_artifact(first, thorough=True)


def half_evaluated(chain: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation that was interrupted."""

    def half(_: object, job: Job) -> None:
        (job.folder / "metrics.json").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("itrpipe.stages.evaluate.EvaluateStage.run", half)
        with pytest.raises(KeyboardInterrupt):
            evaluate_aoq(chain, "ranking_depth=5")
    return only(chain, "evaluate/*.partial")


def test_all_runs_of_an_artifact_count_to_its_time_and_breaks_do_not(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = half_evaluated(chain, monkeypatch)
    ended = time.time() - DAY
    write_stamped_json(partial / artifacts.WORK / artifacts.START, {"start": ended - HOUR})
    for path in [*partial.rglob("*"), partial]:
        os.utime(path, (ended, ended))
    total = artifacts.read_manifest(evaluate_aoq(chain, "ranking_depth=5")).timings["total"]
    assert HOUR <= total < DAY


def test_an_interrupted_beginning_from_other_bytes_begins_anew(
    chain: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = half_evaluated(chain, monkeypatch)
    record = partial / artifacts.WORK / artifacts.INPUTS
    known = read_stamped_json(record, "")
    trained = next(name for name in known if name.startswith("train/"))
    write_stamped_json(record, {**known, trained: "0" * 64})
    folder = evaluate_aoq(chain, "ranking_depth=5")
    assert f"{trained} was made again since {partial.name} was begun; it begins anew" in capsys.readouterr().out
    artifacts.check_artifact(folder, thorough=True)


# Options and overrides


def test_no_deps_refuses_to_run_upstream_and_says_what_is_missing(defined: Path) -> None:
    with pytest.raises(UsageError, match=r"prepare/files-\w{8} is not up to date and --no-deps was given"):
        run_stage(defined, "tiny", "extract", [], conf="precomp", no_deps=True)
    assert not (defined / "tiny" / "prepare").exists()
    run_stage(defined, "tiny", "prepare", [], no_deps=True)
    folder = run_stage(defined, "tiny", "extract", [], conf="precomp", no_deps=True)
    assert (folder / "features.h5").exists()


def test_dry_run_prints_artifact_state_and_reason_in_order_and_runs_nothing(
    finished_chain: Path, defined: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(defined, "tiny", "evaluate", tiny("aoq"), dry_run=True)
    lines = [line.split()[1].partition("/")[0] for line in capsys.readouterr().out.splitlines() if "  + " in line]
    assert lines == ["prepare", "extract", "train", "mine_negatives", "train", "evaluate"]
    assert not [path for path in (defined / "tiny").iterdir() if path.is_dir()]
    step = plan_aoq(finished_chain / "data", "aoq.alpha=0.5")
    run_stage(finished_chain / "data", "tiny", "evaluate", tiny("aoq", "aoq.alpha=0.5"), dry_run=True)
    step_line, cost = [line.split() for line in capsys.readouterr().out.splitlines() if "train/aoq" in line]
    assert cost[0] == step_line[1]
    assert step_line == f"+ train/{step.inputs['train'].location.name} new settings, loss.alpha 0.3 → 0.5".split()


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [("train.decay_every=3", 3, 3), ("aoq.decay_every=3", 15, 3), ("decay_every=3", 15, 3)],
)
def test_a_scope_is_a_stage_or_a_configuration_and_the_requested_step_without_one(
    defined: Path, text: str, first: int, second: int
) -> None:
    step = Planner(defined, "tiny", list(map(parse_override, ("backbone=vsepp", text)))).plan(Need("train", "aoq"))
    found = [each.settings for each in unique_steps([step]) if isinstance(each.settings, TrainSettings)]
    assert [each.decay_every for each in found] == [first, second]


def test_what_is_said_of_a_stage_holds_for_its_steps_that_have_such_a_setting(data_root: Path) -> None:
    planner = Planner(data_root, "scenes", [Override("train", "copies", 1)])
    step = planner.plan(Need("train", "tags-dc"))
    trainings = [each for each in step.upstream() if each.need.stage == "train"]
    copies = {each.need.conf: each.settings.model_dump()["loss"].get("copies") for each in trainings}
    assert (copies["tags-dc"], copies["pretrain"]) == (1, None)
    assert planner.read == {*planner.overrides}


def test_the_command_line_goes_before_the_dataset_definition(defined: Path) -> None:
    known = load_definition(defined, "tiny")
    assert known.prepare is not None
    remembered = known.prepare.model_copy(update={"settings": {"bad_images": "drop", "split_seed": 4}})
    save_definition(defined, "tiny", known.model_copy(update={"prepare": remembered}))
    step = Planner(defined, "tiny", [parse_override("split_seed=5")]).plan(Need("prepare", "files"))
    assert step.settings.model_dump()["split_seed"] == 5
    origins = step.resolved.origins
    assert (origins["split_seed"], origins["bad_images"]) == ("command line", "dataset.json")


@pytest.mark.parametrize("text", ["train.seed=3", "triplet.seed=3", "train.backbone=vsrn"])
def test_an_override_cannot_make_an_input_other_than_what_reads_it_says(defined: Path, text: str) -> None:
    """Otherwise an evaluation called `triplet.vsepp` would measure seed 3 or another backbone."""
    with pytest.raises(UsageError, match=r"seed|backbone"):
        Planner(defined, "tiny", tiny("triplet", text)).plan(Need("evaluate", "recall"))


@pytest.mark.parametrize("text", ["aoq.epochs=3", "report.examples=3"])
def test_an_override_that_no_step_reads_is_an_error(defined: Path, text: str) -> None:
    with pytest.raises(UsageError, match=text.partition("=")[0]):
        run_stage(defined, "tiny", "train", [parse_override(text)], conf="triplet", dry_run=True)


def other_value(value: Any) -> Any:
    if isinstance(value, list):
        return ["tensorboard"]
    return {"auto": "cpu", "": "elsewhere", "local": "ray"}.get(value, value) if isinstance(value, str) else value + 1


@pytest.mark.parametrize("stage", [name for name in declared_stages() if name != "embeddings"])  # which has none
def test_execution_settings_never_enter_a_fingerprint(stage: str, defined: Path, precomp_dataset: Any) -> None:
    conf = {"prepare": "files", "extract": "precomp"}.get(stage) or next(iter(load_declaration(stage).confs))
    boxes = Override("precomp", "grid", [2, 2])  # which the model of synthesize reads
    photographs = StageDefinition(conf="photographs", source=str(precomp_dataset.images))
    definition = load_definition(defined, "tiny").model_copy(update={"photographs": photographs})
    need = Need(stage, conf, {"model": str(precomp_dataset.features)} if stage == "index" else {})
    plain, known = (
        Planner(defined, "tiny", [boxes], definition).plan(need),
        set(load_stage(stage).execution.model_fields),
    )
    placed = {name: each.default for name, each in SharedExecution.model_fields.items() if name in known}
    for key, value in (placed | load_declaration(stage).execution).items():
        other = {"part": "1/2", "compile": True}.get(key) or other_value(value)
        step = Planner(defined, "tiny", [boxes, Override(None, key, other)], definition).plan(need)
        assert step.execution.model_dump(mode="json")[key] == other != value
        assert step.location == plain.location
    assert not known & set(type(plain.settings).model_fields)


# Features


def test_the_only_features_are_the_default_and_of_several_one_is_chosen(defined: Path) -> None:
    step = Planner(defined, "tiny").plan(Need("train", "triplet"))
    assert (step.settings.model_dump()["features"], step.resolved.origins["features"]) == ("precomp", "dataset.json")
    known = load_definition(defined, "tiny")
    several = known.model_copy(update={"features": {**known.features, "scenes": StageDefinition(conf="scenes")}})
    with pytest.raises(UsageError, match="has features precomp, scenes; choose with --features"):
        Planner(defined, "tiny", definition=several).plan(Need("train", "triplet"))
    chosen = Planner(defined, "tiny", [Override(None, "features", "precomp")], definition=several)
    assert chosen.plan(Need("train", "triplet")).inputs["extract"].location.label == "precomp"


FILES, GIVEN = StageDefinition(conf="files", source="x"), {"precomp": StageDefinition(conf="precomp", source="x")}


@pytest.mark.parametrize(
    "definition", [DatasetDefinition(prepare=FILES), DatasetDefinition(), DatasetDefinition(features=GIVEN)]
)
def test_what_a_dataset_lacks_is_told_with_a_remedy(data_root: Path, definition: DatasetDefinition) -> None:
    command = "extract" if definition.prepare else "(prepare|extract)"
    with pytest.raises(MissingInputError, match=f"itrpipe {command} --dataset"):
        Planner(data_root, "tiny", definition=definition).plan(Need("train", "triplet"))


# Sources


@pytest.fixture
def prepared(defined: Path) -> Path:
    run_stage(defined, "tiny", "prepare", [])
    return defined


def plan_prepare(root: Path) -> Step:
    return Planner(root, "tiny").plan(Need("prepare", "files"))


@pytest.mark.parametrize(
    ("file", "old", "new", "of"),
    [
        ("dataset_flickr30k.json", b"number 3 is on", b"number 3 is under", "captions"),
        ("flickr30k-images/1003.jpg", b"\xff\xd9", b"\xff\xd9\0", "images"),
    ],
)
def test_a_source_that_changed_makes_what_reads_it_stale(
    prepared: Path, precomp_dataset: Any, file: str, old: bytes, new: bytes, of: str
) -> None:
    path = precomp_dataset.folder / file
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new, 1))
    assert (plan_prepare(prepared).state, plan_prepare(prepared).reason) == ("stale", f"source {of} changed")
    path.write_bytes(content)
    assert plan_prepare(prepared).state == "up to date"


def test_a_changed_feature_file_makes_extract_stale(prepared: Path, precomp_dataset: Any) -> None:
    run_stage(prepared, "tiny", "extract", [], conf="precomp")
    path = precomp_dataset.features / "dev_ims.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    step = Planner(prepared, "tiny").plan(Need("extract", "precomp"))
    assert (step.state, step.reason, step.inputs["prepare"].state) == ("stale", "source precomp changed", "up to date")


def test_times_names_and_places_of_unchanged_sources_do_not_matter(
    prepared: Path, precomp_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("itrpipe.storage.artifact.file_digest", lambda path: pytest.fail(f"{path} was hashed again"))
        assert plan_prepare(prepared).state == "up to date"
    for path in precomp_dataset.folder.rglob("*"):
        os.utime(path, (1, 1))
    assert plan_prepare(prepared).state == "up to date"
    moved = type(precomp_dataset)(Path(shutil.move(precomp_dataset.folder, tmp_path / "elsewhere")))
    define(prepared, moved)
    assert plan_prepare(prepared).state == "up to date"
    moved.captions.unlink()
    with pytest.raises(MissingInputError, match="captions"):
        plan_prepare(prepared)


# Show and manifests


def test_show_prints_every_value_with_its_origin(defined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Show("train", "aoq", dataset="coco", settings=["alpha=0.5", "epochs=2"], data=defined).run()
    printed = capsys.readouterr().out
    assert "\nexecution (not part of the fingerprint)\n" in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    assert lines["loss.alpha"].split() == ["loss.alpha", "0.5", "command", "line"]
    assert lines["model.embed_dim"].split() == ["model.embed_dim", "2048", "4_train.toml", "[defaults.vsrn.coco]"]
    assert lines["decay_every"].endswith("4_train.toml [conf.aoq.vsrn]")
    assert lines["loss.teacher"].endswith("default")
    assert lines["device"].split()[:2] == ["device", "auto"]
    Show("extract", dataset="coco", data=defined).run()
    assert "\n  itrpipe show extract hog\n" in capsys.readouterr().out


def test_the_manifest_records_what_the_plan_promised(finished_chain: Path) -> None:
    for step in unique_steps([plan_aoq(finished_chain / "data")]):
        manifest = artifacts.read_manifest(step.location.folder)
        assert manifest.fingerprint == step.location.fingerprint
        assert manifest.settings == json.loads(step.settings.model_dump_json())
        assert manifest.sources == step.sources
        assert {name: each.fingerprint for name, each in manifest.inputs.items()} == {
            name: each.location.fingerprint for name, each in step.inputs.items()
        }
        assert manifest.command.startswith("itrpipe")
        assert manifest.timings["total"] >= 0
