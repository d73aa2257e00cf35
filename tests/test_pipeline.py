"""Plans: what is up to date, missing, new or stale and why, and that exactly that is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from itrpipe.cli.asked import run_stage
from itrpipe.cli.keep import show
from itrpipe.config import declared_stages, load_declaration
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.engine.run import SharedExecution
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.pipeline.planning import Override, Planner, parse_override
from itrpipe.pipeline.run import run
from itrpipe.pipeline.steps import MOST_CHANGES, Step, pending_steps, unique_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Job, Need, load_stage
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.disk import read_stamped_json, write_stamped_json
from itrpipe.training.settings import TrainSettings
from tests.definitions import save_definition

Tiny = Callable[..., list[Override]]
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


def plan_aoq(root: Path, overrides: list[Override]) -> Step:
    return Planner(root, "tiny", overrides).plan(Need("evaluate", "recall"))


def aoq(tiny: Tiny, *more: str) -> list[Override]:
    return tiny("aoq", *more)


def states(step: Step) -> dict[str, str]:
    return {f"{each.location.stage}/{each.location.label}": each.state for each in unique_steps([step])}


def reasons(step: Step) -> dict[str, str]:
    return {f"{each.location.stage}/{each.location.label}": each.reason for each in unique_steps([step])}


# States


def test_everything_is_missing_at_first_and_up_to_date_in_the_end(
    defined: Path, finished_chain: Path, tiny: Tiny
) -> None:
    assert states(plan_aoq(defined, aoq(tiny))) == dict.fromkeys(EVERYTHING, "missing")
    assert states(plan_aoq(finished_chain / "data", aoq(tiny))) == dict.fromkeys(EVERYTHING, "up to date")


def test_planning_runs_nothing_and_does_not_depend_on_where_the_sources_lie(
    defined: Path, finished_chain: Path, tiny: Tiny
) -> None:
    step, other = plan_aoq(defined, aoq(tiny)), plan_aoq(finished_chain / "data", aoq(tiny))
    assert step.location.fingerprint == other.location.fingerprint
    assert sorted(path.name for path in (defined / "tiny").glob("[!.]*")) == ["dataset.json", "sources.json"]


@pytest.mark.parametrize(
    ("change", "new", "where", "reason"),
    [
        ("train.learning_rate=0.01", AFTER_FIRST, "train/triplet.vsepp", "learning_rate 0.0002 → 0.01"),
        ("triplet.margin=0.3", AFTER_FIRST, "train/triplet.vsepp", "loss.margin 0.2 → 0.3"),
        ("triplet.margin=0.3", AFTER_FIRST, "train/aoq.vsepp", "mine_negatives changed"),
        ("mine_negatives.num_texts=6", AFTER_MINING, "mine_negatives/exact.triplet.vsepp", "num_texts 5 → 6"),
        ("aoq.alpha=0.5", {"train/aoq.vsepp", "evaluate/aoq.vsepp"}, "train/aoq.vsepp", "loss.alpha 0.3 → 0.5"),
        ("alpha=0.5", None, "", "unknown setting 'alpha'"),
        ("ranking_depth=5", {"evaluate/aoq.vsepp"}, "evaluate/aoq.vsepp", "ranking_depth 50 → 5"),
        ("evaluate.ranking_depth=5", {"evaluate/aoq.vsepp"}, "evaluate/aoq.vsepp", "ranking_depth 50 → 5"),
        ("prepare.bad_images=refuse", EVERYTHING, "prepare/files", "bad_images drop → refuse"),
    ],
)
def test_one_changed_setting_makes_exactly_what_depends_on_it_new(
    finished_chain: Path, tiny: Tiny, change: str, new: set[str] | None, where: str, reason: str
) -> None:
    overrides = aoq(tiny, change)
    if new is None:
        with pytest.raises(UsageError, match=reason):
            plan_aoq(finished_chain / "data", overrides)
        return
    step = plan_aoq(finished_chain / "data", overrides)
    found = states(step)
    assert {name for name, state in found.items() if state == "new settings"} == new
    assert {state for name, state in found.items() if name not in new} <= {"up to date"}
    assert reasons(step)[where] == reason


def test_only_what_changed_is_run_again_and_nothing_else_is_touched(
    chain: Path, tiny: Tiny, artifacts_in: Callable[[Path], dict[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = artifacts_in(chain)
    overrides = aoq(tiny, "mine_negatives.num_texts=6")
    folder = run_stage(chain, "tiny", "evaluate", overrides)
    after = artifacts_in(chain)
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    assert {name.rpartition("-")[0] for name in new} == AFTER_MINING
    assert f"evaluate/{folder.name}" in new
    capsys.readouterr()
    assert run_stage(chain, "tiny", "evaluate", overrides) == folder
    assert artifacts_in(chain) == after
    assert "done in" not in capsys.readouterr().out


def test_going_back_to_earlier_settings_finds_the_earlier_artifacts(chain: Path, tiny: Tiny) -> None:
    earlier = plan_aoq(chain, aoq(tiny)).location.folder
    run_stage(chain, "tiny", "evaluate", aoq(tiny, "evaluate.ranking_depth=5"))
    assert run_stage(chain, "tiny", "evaluate", aoq(tiny)) == earlier


def test_an_artifact_made_by_another_version_of_the_stage_is_stale(
    finished_chain: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("itrpipe.stages.evaluate.Evaluate.schema_version", 99)
    step = plan_aoq(finished_chain / "data", aoq(tiny))
    assert (step.state, step.reason) == ("stale", "made by another version of the stage")


def test_a_folder_that_holds_another_artifact_is_damaged(chain: Path, tiny: Tiny) -> None:
    step = plan_aoq(chain, aoq(tiny))
    path = step.location.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "fingerprint": manifest["fingerprint"][::-1], "checksum": ""}))
    found = plan_aoq(chain, aoq(tiny))
    assert (found.state, "holds another artifact" in found.reason) == ("damaged", True)


def test_of_several_earlier_artifacts_the_newest_says_what_changed(chain: Path, tiny: Tiny) -> None:
    run_stage(chain, "tiny", "evaluate", aoq(tiny, "ranking_depth=7"))
    reason = plan_aoq(chain, aoq(tiny, "ranking_depth=9")).reason
    assert "ranking_depth 7 → 9" in reason
    for folder in (chain / "tiny" / "evaluate").glob("*/manifest.json"):
        manifest = json.loads(folder.read_text())
        finished = "2001" if manifest["settings"]["ranking_depth"] == 7 else "2002"
        folder.write_text(json.dumps({**manifest, "finished": finished, "checksum": ""}))
    assert "ranking_depth 7 → 9" not in plan_aoq(chain, aoq(tiny, "ranking_depth=9")).reason


def test_a_run_on_other_features_is_another_run(chain: Path, tiny: Tiny) -> None:
    definition = load_definition(chain, "tiny")
    features = {**definition.features, "others": definition.features["precomp"]}
    save_definition(chain, "tiny", definition.model_copy(update={"features": features}))
    for name, state in (("others", "missing"), ("precomp", "up to date")):
        found = states(plan_aoq(chain, aoq(tiny, f"features={name}")))
        assert {found[each] for each in AFTER_FIRST} == {state}


def test_what_reads_something_stale_is_stale_and_other_settings_of_it_are_new(
    chain: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_aoq(chain, aoq(tiny, "aoq.alpha=0.5"))
    assert (before.state, before.reason) == ("new settings", "train changed")
    run([before.inputs["train"]], Reporter())
    after = plan_aoq(chain, aoq(tiny, "aoq.alpha=0.5"))
    assert (after.inputs["train"].state, after.state, after.reason) == ("up to date", "new settings", "train changed")
    monkeypatch.setattr("itrpipe.stages.mine_negatives.MineNegatives.schema_version", 99)
    found = states(plan_aoq(chain, aoq(tiny, "ranking_depth=5")))
    assert {name for name, state in found.items() if state == "stale"} == AFTER_MINING
    assert found["train/triplet.vsepp"] == "up to date"


def test_reasons_name_what_is_empty(finished_chain: Path, tiny: Tiny) -> None:
    step = plan_aoq(finished_chain / "data", aoq(tiny, "aoq.teacher=vsepp", "train.decay_at=[1,2]"))
    assert "loss.teacher none → vsepp" in step.inputs["train"].reason
    assert "decay_at none → [1, 2]" in step.inputs["train"].reason


def test_a_reason_names_the_first_of_many_changes(finished_chain: Path, tiny: Tiny) -> None:
    changed = ("alpha=0.5", "beta=0.9", "margin_online=0.3", "margin_offline=0.1", "redraw=1", "top_texts=3")
    sets = [*(f"aoq.loss.{each}" for each in changed), "train.learning_rate=1", "train.decay_at=[1,2]"]
    reason = plan_aoq(finished_chain / "data", aoq(tiny, *sets)).inputs["train"].reason
    assert reason.count(" → ") == MOST_CHANGES
    assert reason.endswith(f", and {len(sets) - MOST_CHANGES} more changes")


def test_a_damaged_input_stops_everything_and_is_not_silently_replaced(chain: Path, tiny: Tiny) -> None:
    (folder,) = (chain / "tiny" / "train").glob("aoq.*")
    path = folder / "embeddings.h5"
    os.truncate(path, path.stat().st_size - 1)
    step = plan_aoq(chain, aoq(tiny, "ranking_depth=5"))
    assert states(step)["train/aoq.vsepp"] == "damaged"
    with pytest.raises(DataError, match=r"embeddings\.h5 has [\d,]+ bytes instead of [\d,]+; .*itrpipe gc"):
        run_stage(chain, "tiny", "evaluate", aoq(tiny, "ranking_depth=5"))
    assert states(plan_aoq(chain, aoq(tiny, "ranking_depth=5")))["train/aoq.vsepp"] == "damaged"


def test_what_nothing_outdated_reads_is_left_alone(chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    for stage in ("extract", "mine_negatives"):
        (folder,) = (chain / "tiny" / stage).glob("[!.]*")
        shutil.rmtree(folder)
    before = set(chain.glob("tiny/*/[!.]*"))
    run_stage(chain, "tiny", "evaluate", aoq(tiny))
    assert set(chain.glob("tiny/*/[!.]*")) == before
    assert "missing, but nothing that is to be made reads it" in capsys.readouterr().out
    run_stage(chain, "tiny", "evaluate", aoq(tiny, "ranking_depth=5"))
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


def test_what_reads_something_that_was_made_again_is_stale_and_says_why(chain: Path, tiny: Tiny) -> None:
    (features,) = (chain / "tiny" / "extract").glob("precomp-*")
    make_again(features, batch=32)
    step = plan_aoq(chain, aoq(tiny))
    found = states(step)
    assert {name for name, state in found.items() if state == "stale"} == AFTER_FIRST
    assert found["extract/precomp"] == "up to date"
    assert reasons(step)["train/triplet.vsepp"] == "features.h5 was made again (batch 32 instead of 0)"
    assert reasons(step)["evaluate/aoq.vsepp"] == "train is to be made again"
    assert {each.location.label for each in pending_steps([step])} >= {"triplet.vsepp", "aoq.vsepp"}


def test_the_reason_without_another_setting_is_told_too(chain: Path, tiny: Tiny) -> None:
    (features,) = (chain / "tiny" / "extract").glob("precomp-*")
    make_again(features)
    reason = reasons(plan_aoq(chain, aoq(tiny)))["train/triplet.vsepp"]
    assert reason == "features.h5 was made again (with the same settings)"


def test_an_artifact_made_again_with_the_same_bytes_leaves_everything_up_to_date(chain: Path, tiny: Tiny) -> None:
    (features,) = (chain / "tiny" / "extract").glob("precomp-*")
    shutil.rmtree(features)
    run_stage(chain, "tiny", "extract", [parse_override("batch=3")], conf="precomp")
    assert artifacts.read_manifest(features).execution["batch"] == 3
    assert set(states(plan_aoq(chain, aoq(tiny))).values()) == {"up to date"}


def test_a_stale_artifact_is_replaced_and_the_earlier_one_kept(
    chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    (mined,) = (chain / "tiny" / "mine_negatives").glob("exact*-*")
    (second,) = (chain / "tiny" / "train").glob("aoq*-*")
    before = artifacts.read_manifest(second)
    add_a_file(mined)
    folder = run_stage(chain, "tiny", "evaluate", aoq(tiny))
    printed = capsys.readouterr().out
    assert "stale, " in printed
    assert f"evaluate/{folder.name}: up to date after all" in printed  # the second training came out equal
    replaced = second.with_name(f"{second.name}.replaced")
    assert artifacts.check_artifact(replaced, thorough=True) == before
    made = artifacts.check_artifact(second, thorough=True)
    assert made.finished > before.finished
    assert artifacts.read_manifest(mined).digest in {each.digest for each in made.inputs.values()}
    assert set(states(plan_aoq(chain, aoq(tiny))).values()) == {"up to date"}


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(
    chain: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    (features,) = (chain / "tiny" / "extract").glob("precomp-*")
    (first,) = (chain / "tiny" / "train").glob("triplet*-*")
    add_a_file(features)
    train = [each for each in tiny("triplet") if each.scope == "train"]
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target) == first:
            raise KeyboardInterrupt
        replace(source, target)

    backbone = Override(None, "backbone", "vsepp")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run_stage(chain, "tiny", "train", [*train, backbone], conf="triplet")
    assert not first.exists()
    assert first.with_name(f"{first.name}.replaced").exists()
    monkeypatch.setattr("itrpipe.stages.train.Train.run", lambda _, job: pytest.fail("nothing was left to do"))
    assert run_stage(chain, "tiny", "train", [*train, backbone], conf="triplet") == first
    artifacts.check_artifact(first, thorough=True)


def test_an_interrupted_beginning_from_other_bytes_begins_anew(
    chain: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(_: object, job: Job) -> None:
        (job.folder / "metrics.json").write_text("half")
        raise KeyboardInterrupt

    overrides = aoq(tiny, "ranking_depth=5")
    with monkeypatch.context() as patch:
        patch.setattr("itrpipe.stages.evaluate.Evaluate.run", half)
        with pytest.raises(KeyboardInterrupt):
            run_stage(chain, "tiny", "evaluate", overrides)
    (partial,) = (chain / "tiny" / "evaluate").glob("*.partial")
    record = partial / artifacts.WORK / artifacts.INPUTS
    known = read_stamped_json(record, "")
    trained = next(name for name in known if name.startswith("train/"))
    write_stamped_json(record, {**known, trained: "0" * 64})
    folder = run_stage(chain, "tiny", "evaluate", overrides)
    assert f"{trained} was made again since {partial.name} was begun; it begins anew" in capsys.readouterr().out
    artifacts.check_artifact(folder, thorough=True)


# Options


def test_no_deps_refuses_to_run_upstream_and_says_what_is_missing(defined: Path) -> None:
    with pytest.raises(UsageError, match=r"prepare/files-\w{8} is not up to date and --no-deps was given"):
        run_stage(defined, "tiny", "extract", [], conf="precomp", no_deps=True)
    assert not (defined / "tiny" / "prepare").exists()
    run_stage(defined, "tiny", "prepare", [], no_deps=True)
    folder = run_stage(defined, "tiny", "extract", [], conf="precomp", no_deps=True)
    assert (folder / "features.h5").exists()


def test_dry_run_prints_the_plan_and_runs_nothing(
    defined: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(defined, "tiny", "evaluate", aoq(tiny), dry_run=True)
    printed = capsys.readouterr().out
    assert printed.count("  + ") == len(EVERYTHING)
    order = [printed.index(f"{stage}/") for stage in ("prepare", "extract", "mine_negatives", "evaluate")]
    assert order == sorted(order)
    assert not [path for path in (defined / "tiny").iterdir() if path.is_dir()]


# Overrides


def settings_of(step: Step) -> dict[str, TrainSettings]:
    return {
        each.location.label: each.settings for each in unique_steps([step]) if isinstance(each.settings, TrainSettings)
    }


def test_a_scope_is_a_stage_or_a_configuration(defined: Path, tiny: Tiny) -> None:
    both = settings_of(plan_aoq(defined, aoq(tiny, "train.decay_every=3")))
    assert {label: each.decay_every for label, each in both.items()} == {"triplet.vsepp": 3, "aoq.vsepp": 3}
    one = settings_of(plan_aoq(defined, aoq(tiny, "aoq.decay_every=3")))
    assert {label: each.decay_every for label, each in one.items()} == {"triplet.vsepp": 15, "aoq.vsepp": 3}


def test_what_is_said_of_a_stage_holds_for_its_steps_that_have_such_a_setting(data_root: Path) -> None:
    planner = Planner(data_root, "scenes", [Override("train", "copies", 1)])
    step = planner.plan(Need("train", "tags-dc"))
    trainings = [each for each in step.upstream() if each.need.stage == "train"]
    copies = {each.need.conf: each.settings.model_dump()["loss"].get("copies") for each in trainings}
    assert (copies["tags-dc"], copies["pretrain"]) == (1, None)
    planner.refuse_unused_overrides()


def test_without_a_scope_only_the_requested_step_changes(defined: Path, tiny: Tiny) -> None:
    planner = Planner(defined, "tiny", [parse_override("backbone=vsepp"), parse_override("decay_every=3")])
    found = settings_of(planner.plan(Need("train", "aoq")))
    assert {label: each.decay_every for label, each in found.items()} == {"triplet.vsepp": 15, "aoq.vsepp": 3}


def test_the_command_line_goes_before_the_dataset_definition(defined: Path) -> None:
    known = load_definition(defined, "tiny")
    assert known.prepare is not None
    remembered = known.prepare.model_copy(update={"settings": {"bad_images": "drop", "split_seed": 4}})
    save_definition(defined, "tiny", known.model_copy(update={"prepare": remembered}))
    step = Planner(defined, "tiny", [parse_override("split_seed=5")]).plan(Need("prepare", "files"))
    assert step.settings.model_dump()["split_seed"] == 5
    assert step.resolved.origins["split_seed"] == "command line"
    assert step.resolved.origins["bad_images"] == "dataset.json"


@pytest.mark.parametrize("text", ["train.seed=3", "triplet.seed=3", "train.backbone=vsrn"])
def test_an_override_cannot_make_an_input_other_than_what_reads_it_says(defined: Path, tiny: Tiny, text: str) -> None:
    """Otherwise an evaluation called `triplet.vsepp` would measure seed 3 or another backbone."""
    with pytest.raises(UsageError, match=r"seed|backbone"):
        Planner(defined, "tiny", tiny("triplet", text)).plan(Need("evaluate", "recall"))


@pytest.mark.parametrize("text", ["aoq.epochs=3", "report.examples=3"])
def test_an_override_that_no_step_reads_is_an_error(defined: Path, tiny: Tiny, text: str) -> None:
    with pytest.raises(UsageError, match=text.partition("=")[0]):
        run_stage(defined, "tiny", "train", [parse_override(text)], conf="triplet", dry_run=True)


def other_value(value: Any) -> Any:
    if isinstance(value, list):
        return ["tensorboard"]
    return {"auto": "cpu", "": "elsewhere", "local": "ray"}.get(value, value) if isinstance(value, str) else value + 1


def known(stage: str) -> set[str]:
    """Names of the execution settings of a stage."""
    return set(load_stage(stage).execution.model_fields)


@pytest.mark.parametrize("stage", declared_stages())
def test_execution_settings_never_enter_a_fingerprint(
    stage: str, defined: Path, precomp_dataset: Any, tiny: Tiny
) -> None:
    conf = {"prepare": "files", "extract": "precomp"}.get(stage) or next(iter(load_declaration(stage).confs))
    boxes = Override("precomp", "grid", [2, 2])  # which the model of synthesize reads
    photographs = StageDefinition(conf="photographs", source=str(precomp_dataset.images))
    definition = load_definition(defined, "tiny").model_copy(update={"photographs": photographs})
    need = Need(stage, conf, {"model": str(precomp_dataset.features)} if stage == "index" else {})
    plain = Planner(defined, "tiny", [boxes], definition).plan(need)
    placed = {name: each.default for name, each in SharedExecution.model_fields.items() if name in known(stage)}
    for key, value in (placed | load_declaration(stage).execution).items():
        other = "1/2" if key == "part" else other_value(value)
        step = Planner(defined, "tiny", [boxes, Override(None, key, other)], definition).plan(need)
        assert step.execution.model_dump(mode="json")[key] == other != value
        assert step.location == plain.location
    assert not known(stage) & set(type(plain.settings).model_fields)


# Features


def test_the_only_features_are_the_default(defined: Path) -> None:
    step = Planner(defined, "tiny").plan(Need("train", "triplet"))
    assert step.settings.model_dump()["features"] == "precomp"
    assert step.resolved.origins["features"] == "dataset.json"


def test_no_features_and_several_features_are_errors_with_a_remedy(defined: Path) -> None:
    known = load_definition(defined, "tiny")
    none = known.model_copy(update={"features": {}})
    with pytest.raises(MissingInputError, match="has no features yet; run `itrpipe extract --dataset tiny"):
        Planner(defined, "tiny", definition=none).plan(Need("train", "triplet"))
    several = known.model_copy(update={"features": {**known.features, "scenes": StageDefinition(conf="scenes")}})
    with pytest.raises(UsageError, match="has features precomp, scenes; choose with --features"):
        Planner(defined, "tiny", definition=several).plan(Need("train", "triplet"))
    chosen = Planner(defined, "tiny", [Override(None, "features", "precomp")], definition=several)
    assert chosen.plan(Need("train", "triplet")).inputs["extract"].location.label == "precomp"


def test_unknown_features_are_named_with_those_there_are(defined: Path) -> None:
    with pytest.raises(MissingInputError, match=r"has no features 'butd' \(has: precomp, pixels, hog\)"):
        Planner(defined, "tiny", [Override(None, "features", "butd")]).plan(Need("train", "triplet"))


def test_a_dataset_that_was_never_prepared_says_how_to(data_root: Path) -> None:
    features = {"precomp": StageDefinition(conf="precomp", source=str(data_root))}
    for definition in (DatasetDefinition(), DatasetDefinition(features=features)):
        with pytest.raises(MissingInputError, match=r"itrpipe (prepare|extract) --dataset"):
            Planner(data_root, "tiny", definition=definition).plan(Need("train", "triplet"))


# Sources


@pytest.fixture
def prepared(defined: Path) -> Path:
    run_stage(defined, "tiny", "prepare", [])
    return defined


def plan_prepare(root: Path) -> Step:
    return Planner(root, "tiny").plan(Need("prepare", "files"))


def test_a_changed_caption_makes_prepare_stale(prepared: Path, precomp_dataset: Any) -> None:
    text = precomp_dataset.captions.read_text()
    precomp_dataset.captions.write_text(text.replace("number 3 is on", "number 3 is under", 1))
    step = plan_prepare(prepared)
    assert (step.state, step.reason) == ("stale", "source captions changed")


def test_a_changed_byte_of_an_image_makes_prepare_stale(prepared: Path, precomp_dataset: Any) -> None:
    path = precomp_dataset.images / "1003.jpg"
    before = path.read_bytes()
    path.write_bytes(before + b"\0")
    step = plan_prepare(prepared)
    assert (step.state, step.reason) == ("stale", "source images changed")
    path.write_bytes(before)
    assert plan_prepare(prepared).state == "up to date"


def test_a_changed_feature_file_makes_extract_stale(prepared: Path, precomp_dataset: Any) -> None:
    run_stage(prepared, "tiny", "extract", [], conf="precomp")
    path = precomp_dataset.features / "dev_ims.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    step = Planner(prepared, "tiny").plan(Need("extract", "precomp"))
    assert (step.state, step.reason) == ("stale", "source precomp changed")
    assert step.inputs["prepare"].state == "up to date"


def test_times_names_and_places_of_unchanged_sources_do_not_matter(
    prepared: Path, precomp_dataset: Any, tmp_path: Path, define: Any
) -> None:
    for path in precomp_dataset.folder.rglob("*"):
        os.utime(path, (1, 1))
    assert plan_prepare(prepared).state == "up to date"
    moved = type(precomp_dataset)(Path(shutil.move(precomp_dataset.folder, tmp_path / "elsewhere")))
    define(prepared, moved)
    assert plan_prepare(prepared).state == "up to date"


def test_unchanged_files_are_not_hashed_again(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.storage.integrity.file_digest", lambda path: pytest.fail(f"{path} was hashed again"))
    assert plan_prepare(prepared).state == "up to date"


def test_a_source_that_is_gone_is_named(prepared: Path, precomp_dataset: Any) -> None:
    precomp_dataset.captions.unlink()
    with pytest.raises(MissingInputError, match=r"source"):
        plan_prepare(prepared)


# Show


def test_show_prints_every_value_with_its_origin(defined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show("train", "aoq", None, "coco", ["alpha=0.5", "epochs=2"], defined)
    printed = capsys.readouterr().out
    assert "\nexecution (not part of the fingerprint)\n" in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    assert lines["loss.alpha"].split() == ["loss.alpha", "0.5", "command", "line"]
    assert lines["model.embed_dim"].split() == ["model.embed_dim", "2048", "4_train.toml", "[defaults.vsrn]"]
    assert lines["decay_every"].endswith("4_train.toml [conf.aoq.vsrn]")
    assert lines["loss.teacher"].endswith("default")
    assert lines["device"].split()[:2] == ["device", "auto"]


# Manifests


def test_the_manifest_records_what_the_plan_promised(finished_chain: Path, tiny: Tiny) -> None:
    for step in unique_steps([plan_aoq(finished_chain / "data", aoq(tiny))]):
        manifest = artifacts.read_manifest(step.location.folder)
        assert manifest.fingerprint == step.location.fingerprint
        assert manifest.settings == json.loads(step.settings.model_dump_json())
        assert manifest.sources == step.sources
        assert {name: each.fingerprint for name, each in manifest.inputs.items()} == {
            name: each.location.fingerprint for name, each in step.inputs.items()
        }
        assert manifest.command.startswith("itrpipe")
        assert manifest.timings["total"] >= 0


def test_plan_lines_name_artifact_state_and_reason(
    finished_chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    step = plan_aoq(finished_chain / "data", aoq(tiny, "aoq.alpha=0.5"))
    run([step], Reporter(), dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EVERYTHING)
    (line,) = [line for line in lines if "train/aoq" in line]
    assert line.split() == f"+ train/{step.inputs['train'].location.name} new settings, loss.alpha 0.3 → 0.5".split()
