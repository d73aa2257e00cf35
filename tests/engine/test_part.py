"""Shares of parts: how they are written, that each part is in one of them, and jobs that make them together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine.run import OthersMissing, Share, SharedExecution, share_of, whole
from itrpipe.scene_graph import parsing
from itrpipe.scenes import build
from itrpipe.storage.artifact import read_manifest
from tests.commands import Command
from tests.definitions import save_definition
from tests.engine.toy import eventually

Invoke = Callable[..., Any]
FASTER = ("--set", "tagger=lexicon", "--workers", "1")
SIZES = 100, 15, 15
"""Scenes of three parts; their captions are one, which is in one share of two only."""
RULES = (
    "--by",
    "vse-c",
    "--workers",
    "1",
    "--set",
    "parse.tagger=lexicon",
    "--set",
    "block=100",
    "--set",
    "min_count=2",
)


# Shares


@pytest.mark.parametrize(("text", "share"), [("1/1", Share(1, 1)), ("2/3", Share(2, 3)), ("12/100", Share(12, 100))])
def test_shares_are_written_as_i_of_n(text: str, share: Share) -> None:
    assert Share.parse(text) == share


@pytest.mark.parametrize(
    "text", ["1", "0/2", "3/2", "1/0", "a/b", "1/2/3", " 1/2", "1/2 ", "-1/2", "1/-2", "1.0/2", "01/2", "/", "1/2\n"]
)
def test_anything_else_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match="a part is given as i/n with 1 <= i <= n, such as 2/8"):
        Share.parse(text)
    with pytest.raises(ValidationError):
        SharedExecution(part=text)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("parts", [0, 1, 3, 10])
def test_shares_cover_every_part_once(count: int, parts: int) -> None:
    shares = [Share(number, count).of(range(parts)) for number in range(1, count + 1)]
    assert sorted(part for own in shares for part in own) == list(range(parts))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_settings_know_their_share() -> None:
    own = SharedExecution(part="2/3", workers=5)
    assert share_of(own) == Share(2, 3)
    assert (share_of(whole(own)), whole(own).workers) == (None, 5)
    assert share_of(SharedExecution()) is None
    assert (str(Share(2, 3)), Share(2, 3).name) == ("2/3", "2-of-3")


def test_what_others_have_to_do_is_counted_anew(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    others = OthersMissing(Share(1, 3), 10, "images", paths, more=False)
    assert others.missing() == 3
    paths[1].touch()
    assert others.missing() == 2


# Jobs


def define(root: Path, train: int = 30, val: int = 5, test: int = 5) -> Path:
    settings = {"train": train, "val": val, "test": test}
    scenes = StageDefinition(conf="scenes", settings=settings)
    features = {"scenes": StageDefinition(conf="scenes")}
    save_definition(root, "scenes", DatasetDefinition(prepare=scenes, features=features))
    return root


def outputs(root: Path, stage: str) -> dict[str, str]:
    """Digest of each file of the only artifact of a stage."""
    (path,) = root.glob(f"*/{stage}/*/manifest.json")
    return {name: file.sha256 for name, file in read_manifest(path.parent).outputs.items()}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that forty scenes are several parts."""
    monkeypatch.setattr(build, "_SCENES", 8)
    monkeypatch.setattr(parsing, "CHUNK", 32)


def succeed(invoke: Invoke, *arguments: object) -> str:
    outcome = invoke(*arguments)
    assert outcome.code == 0, outcome
    return outcome.out


@pytest.mark.usefixtures("small_parts")
def test_shares_one_after_the_other_make_the_bytes_of_one_go(tmp_path: Path, invoke: Invoke) -> None:
    alone, shared = define(tmp_path / "alone"), define(tmp_path / "shared")
    succeed(invoke, "parse", *FASTER, "--data", alone)
    for number in (1, 2, 3):
        text = succeed(invoke, "prepare", "--part", f"{number}/3", "--workers", 1, "--data", shared)
        assert ("done in" in text) == (number == 3)
    assert outputs(shared, "prepare") == outputs(alone, "prepare")
    texts = [succeed(invoke, "parse", *FASTER, "--part", f"{number}/3", "--data", shared) for number in (2, 1, 3)]
    assert "part 2/3 is done (64 captions)" in texts[0]
    assert all("are left to other jobs; who makes the last one joins all" in text for text in texts[:2])
    assert "done in" in texts[2]
    assert outputs(shared, "parse") == outputs(alone, "parse")
    (path,) = shared.glob("*/parse/*/manifest.json")
    assert read_manifest(path.parent).execution["part"] == ""
    assert not list(shared.glob("*/*/*.partial"))


@pytest.mark.usefixtures("small_parts")
def test_a_share_that_is_made_again_makes_nothing_and_damage_is_found(tmp_path: Path, invoke: Invoke) -> None:
    root = define(tmp_path)
    succeed(invoke, "prepare", "--part", "1/2", "--data", root)
    files = sorted(root.glob("*/prepare/*.partial/.work/parts/*.arrow"))
    assert [path.name for path in files] == ["000000.arrow", "000002.arrow", "000004.arrow"]
    times = [path.stat().st_mtime_ns for path in files]
    files[1].write_bytes(files[1].read_bytes()[:-1])
    text = succeed(invoke, "prepare", "--part", "1/2", "--data", root)
    assert "1 of 3 parts in " in text
    assert [path.stat().st_mtime_ns == time for path, time in zip(files, times, strict=True)] == [True, False, True]


@pytest.mark.usefixtures("small_parts")
def test_status_says_that_it_is_made_in_parts_until_it_is_whole(tmp_path: Path, invoke: Invoke) -> None:
    root = define(tmp_path)
    succeed(invoke, "prepare", "--part", "2/2", "--data", root)
    (line,) = [each for each in succeed(invoke, "status", "--data", root).splitlines() if "in parts" in each]
    assert "scenes" in line
    succeed(invoke, "prepare", "--part", "1/2", "--data", root)
    assert "in parts" not in succeed(invoke, "status", "--data", root)


@pytest.mark.usefixtures("small_parts")
def test_all_of_it_goes_on_where_shares_have_ended(tmp_path: Path, invoke: Invoke) -> None:
    root, alone = define(tmp_path / "shared"), define(tmp_path / "alone")
    succeed(invoke, "prepare", "--part", "2/3", "--workers", 1, "--data", root)
    assert "done in" in succeed(invoke, "prepare", "--workers", 1, "--data", root)
    succeed(invoke, "prepare", "--workers", 1, "--data", alone)
    assert outputs(root, "prepare") == outputs(alone, "prepare")


def test_imported_features_have_no_shares(defined: Path, invoke: Invoke) -> None:
    outcome = invoke("extract", "--dataset", "tiny", "--features", "precomp", "--part", "1/2", "--data", defined)
    assert outcome.code == 2
    assert "imported features are copied in one go; leave --part out" in outcome.err


@pytest.mark.parametrize("text", ["3/2", "half"])
def test_no_share_is_one_line(tmp_path: Path, invoke: Invoke, text: str) -> None:
    outcome = invoke("prepare", "--part", text, "--data", tmp_path)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "1 <= i <= n" in outcome.err


# Jobs at the same time, with parts of the usual size


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of one job, with enough scenes for several parts."""
    root = define(tmp_path_factory.mktemp("reference"), *SIZES)
    Command("synthesize", *RULES, "--data", root).finish()
    return root


@pytest.mark.slow
def test_jobs_at_the_same_time_make_everything_once(reference: Path, tmp_path: Path) -> None:
    """Both end about the same time, and neither counts on the other to be the last."""
    root = define(tmp_path, *SIZES)
    jobs = [Command("synthesize", *RULES, "--part", f"{number}/2", "--data", root) for number in (1, 2)]
    texts = [job.finish() for job in jobs]
    for stage in ("prepare", "parse", "synthesize"):
        assert outputs(root, stage) == outputs(reference, stage), stage
    assert sum(text.count("\n  done in ") for text in texts) == 3, texts
    assert not list(root.glob("*/*/*.partial"))


def test_a_share_waits_for_the_others_where_the_plan_goes_on(reference: Path, tmp_path: Path) -> None:
    root = define(tmp_path, *SIZES)
    first = Command("parse", *FASTER, "--part", "2/2", "--set", "prepare.part=2/2", "--data", root)
    folder = root / "scenes" / "prepare"
    eventually(lambda: list(folder.glob("*.partial/.work/unfinished.json")) != [], "the share is not made")
    assert first.running()
    Command("prepare", "--workers", "1", "--part", "1/2", "--data", root).finish()
    text = first.finish()
    assert "waiting for 2 parts of other jobs (--part i/2)" in text
    assert outputs(root, "prepare") == outputs(reference, "prepare")
    Command("parse", *FASTER, "--part", "1/2", "--data", root).finish()
    assert outputs(root, "parse") == outputs(reference, "parse")


def test_the_last_job_need_not_be_the_last_to_begin(tmp_path: Path, reference: Path) -> None:
    """A job that is killed in the middle of its share is begun again, after the others have ended."""
    root = define(tmp_path, *SIZES)
    jobs = [Command("prepare", "--workers", "1", "--part", f"{number}/3", "--data", root) for number in (1, 2, 3)]
    jobs[1].kill()
    for job in (jobs[0], jobs[2]):
        job.finish()
    Command("prepare", "--workers", "1", "--part", "2/3", "--data", root).finish()
    assert outputs(root, "prepare") == outputs(reference, "prepare")
