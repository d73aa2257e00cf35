"""Shares of parts: each part is in one of them, and jobs make them together, in any order and at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine.run import OthersMissing, Share, SharedExecution, share_of, whole
from itrpipe.scene_graph import build as parsing
from itrpipe.scenes import build
from itrpipe.storage.artifact import read_manifest
from tests.commands import Command
from tests.definitions import save_definition
from tests.engine.toy import eventually

Invoke = Callable[..., Any]
FASTER = ("--set", "tagger=lexicon", "--workers", "1")
SMALL, SEVERAL = (30, 5, 5), (100, 15, 15)
"""Scenes of one part, unless parts are made smaller, and of three."""
RULES = ("--by", "vse-c", "--workers", "1")
RULES += ("--set", "parse.tagger=lexicon", "--set", "block=100", "--set", "min_count=2")


@pytest.mark.parametrize("text", ["1", "0/2", "3/2", "a/b", "1/2/3", " 1/2", "1/2 ", "-1/2", "1.0/2", "01/2", "1/2\n"])
def test_only_i_of_n_is_a_share(text: str) -> None:
    with pytest.raises(ValidationError, match="1 <= i <= n"):
        SharedExecution(part=text)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("parts", [0, 1, 3, 10])
def test_shares_cover_every_part_once(count: int, parts: int, tmp_path: Path) -> None:
    """The rest is counted anew whenever it is asked for."""
    shares = [Share.parse(f"{number}/{count}") for number in range(1, count + 1)]
    assert [share_of(SharedExecution(part=str(each))) for each in shares] == shares
    assert whole(SharedExecution(part=str(shares[0]), workers=5)) == SharedExecution(workers=5)
    assert share_of(SharedExecution()) is None
    assert shares[-1].name == f"{count}-of-{count}"
    own = [each.of(range(parts)) for each in shares]
    assert sorted(part for each in own for part in each) == list(range(parts))
    assert max(map(len, own)) - min(map(len, own)) <= 1
    (tmp_path / "b").touch()
    assert OthersMissing(shares[0], 10, "images", [tmp_path / name for name in "abc"], more=False).missing() == 2


def define(root: Path, sizes: tuple[int, ...] = SMALL) -> Path:
    settings: dict[str, Any] = dict(zip(("train", "val", "test"), sizes, strict=True))
    features = {"scenes": StageDefinition(conf="scenes")}
    prepare = StageDefinition(conf="scenes", settings=settings)
    save_definition(root, "scenes", DatasetDefinition(prepare=prepare, features=features))
    return root


def outputs(root: Path, stage: str) -> dict[str, str]:
    """Digest of each file of the only artifact of a stage."""
    (path,) = root.glob(f"*/{stage}/*/manifest.json")
    return {name: file.sha256 for name, file in read_manifest(path.parent).outputs.items()}


def test_shares_one_after_the_other_make_the_bytes_of_one_go(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is made again makes what was damaged; the rest is made by a job of all."""
    monkeypatch.setattr(build, "_SCENES", 8)
    monkeypatch.setattr(parsing, "CHUNK", 32)

    def succeed(root: Path, *arguments: object) -> str:
        outcome = invoke(*arguments, "--data", root)
        assert outcome.code == 0, outcome
        return outcome.out

    alone, shared = define(tmp_path / "alone"), define(tmp_path / "shared")
    succeed(alone, "parse", *FASTER)
    succeed(shared, "prepare", "--part", "1/3")
    files = sorted(shared.glob("*/prepare/*.partial/.work/parts/*.arrow"))
    assert [path.name for path in files] == ["000000.arrow", "000003.arrow"]
    times = [path.stat().st_mtime_ns for path in files]
    files[1].write_bytes(files[1].read_bytes()[:-1])
    assert "1 of 2 parts in " in succeed(shared, "prepare", "--part", "1/3")
    assert [path.stat().st_mtime_ns == time for path, time in zip(files, times, strict=True)] == [True, False]
    assert "in parts" in succeed(shared, "status")
    assert "done in" in succeed(shared, "prepare", "--workers", 1)
    assert "in parts" not in succeed(shared, "status")
    texts = [succeed(shared, "parse", *FASTER, "--part", f"{number}/3") for number in (2, 1, 3)]
    assert "part 2/3 is done (64 captions)" in texts[0]
    assert ["done in" in text for text in texts] == [False, False, True]
    for stage in ("prepare", "parse"):
        assert outputs(shared, stage) == outputs(alone, stage)
        (path,) = shared.glob(f"*/{stage}/*/manifest.json")
        assert read_manifest(path.parent).execution["part"] == ""
    assert not list(shared.glob("*/*/*.partial"))


# Jobs at the same time, with parts of the usual size


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of one job, with enough scenes for several parts."""
    root = define(tmp_path_factory.mktemp("reference"), SEVERAL)
    Command("synthesize", *RULES, "--data", root).finish()
    return root


@pytest.mark.slow
def test_jobs_at_the_same_time_make_everything_once(reference: Path, tmp_path: Path) -> None:
    """Both end about the same time, and neither counts on the other to be the last."""
    root = define(tmp_path, SEVERAL)
    jobs = [Command("synthesize", *RULES, "--part", f"{number}/2", "--data", root) for number in (1, 2)]
    texts = [job.finish() for job in jobs]
    for stage in ("prepare", "parse", "synthesize"):
        assert outputs(root, stage) == outputs(reference, stage), stage
    assert sum(text.count("\n  done in ") for text in texts) == 3, texts
    assert not list(root.glob("*/*/*.partial"))


def test_a_share_waits_for_the_others_where_the_plan_goes_on(reference: Path, tmp_path: Path) -> None:
    """Also for one that was killed in the middle, and is begun again after the others have ended."""
    root = define(tmp_path, SEVERAL)
    first = Command("parse", *FASTER, "--part", "2/2", "--set", "prepare.part=2/3", "--data", root)
    Command("prepare", "--workers", "1", "--part", "3/3", "--data", root).kill()
    Command("prepare", "--workers", "1", "--part", "1/3", "--data", root).finish()
    eventually(lambda: [*root.glob("*/prepare/*.partial/.work/unfinished.json")] != [], "the share is not made")
    assert first.running()
    Command("prepare", "--workers", "1", "--part", "3/3", "--data", root).finish()
    assert "of other jobs (--part i/3)" in first.finish()
    assert outputs(root, "prepare") == outputs(reference, "prepare")
    Command("parse", *FASTER, "--part", "1/2", "--data", root).finish()
    assert outputs(root, "parse") == outputs(reference, "parse")
