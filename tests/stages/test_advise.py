"""`itrpipe advise` on the tiny chain, and what evaluations of round one say of a second one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.artifacts.files import SECOND_ROUND
from itrpipe.errors import UsageError
from itrpipe.mining.mined import DIRECTIONS
from tests.conftest import TINY_TRAINING

Invoke = Callable[..., Any]
SMALL = (*TINY_TRAINING, "train.model.embed_dim=8", "train.model.word_dim=8")


def advise(invoke: Invoke, root: Path, *options: object) -> Any:
    sets = [part for text in SMALL for part in ("--set", text)]
    return invoke("advise", "--dataset", "tiny", "--data", root, "--backbone", "vsepp", *sets, "--make", *options)


def test_it_says_what_the_evaluation_of_round_one_found(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = (chain / "tiny/evaluate").glob("triplet.vsepp-*")
    (second,) = (chain / "tiny/evaluate").glob("aoq.vsepp-*")
    assert SECOND_ROUND not in read_manifest(second).outputs
    written = json.loads((folder / SECOND_ROUND).read_text())
    found = json.loads(advise(invoke, chain, "--no-deps", "--json").out)
    assert {name: found[name] for name in written} == written
    assert found["processor_seconds"] > 0
    assert (written["model"]["images"], written["model"]["captions"], written["model"]["truth"]) == (12, 60, False)
    sides = [written["directions"][name] for name in DIRECTIONS]
    assert [side["candidates"] for side in sides] == [60, 12]
    assert [[each["size"] for each in side["batches"]] for side in sides] == [[16, 32], [16, 32]]
    assert written["fit"]["images"] == 4
    assert found["advice"]["action"] == "collapsed"  # after one epoch
    shown = advise(invoke, chain, "--no-deps").out
    assert "batch 16*" not in shown
    assert "FNE" not in shown
    assert "Expect" not in shown

    monkeypatch.setattr("itrpipe.evaluation.second_round._is_at_chance", lambda found: False)
    found = json.loads(advise(invoke, chain, "--no-deps", "--json").out)
    assert found["advice"]["action"] == "train"
    shown = advise(invoke, chain, "--no-deps").out
    assert "12 images, 60 captions; batches of 16 pairs, 1 epochs" in shown
    assert "batch 16*  batch 32  dataset  its top 10" in shown
    assert found["advice"]["command"] in shown
    assert "and the other settings of this round one" in shown


def test_what_was_advised_and_is_done_is_not_advised_again(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--dataset", "tiny", "--data", chain]
    sets = [part for text in SMALL for part in ("--set", text)]
    assert invoke("train", "--name", "first", "--method", "triplet", "--backbone", "vsepp", *sets, *where).code == 0
    proposed = "itrpipe train --dataset tiny --name first-longer --like first --set epochs=2"
    before = invoke("advise", "--model", "first", *where).out
    assert f"next: {proposed}" in before
    assert invoke("train", "--name", "first-longer", "--like", "first", "--set", "epochs=2", *where).code == 0
    after = invoke("advise", "--model", "first", *where).out
    assert f"done already: {proposed}" in after
    assert f"next: itrpipe advise --model first-longer --data {chain}" in after
    assert "done already" not in invoke("advise", "--model", "first", "--seed", "1", *where).out

    monkeypatch.setattr("itrpipe.evaluation.second_round._action", lambda *_: "mine")
    assert (
        invoke("train", "--name", "first-mined", "--like", "first", "--seed", "3", "--set", "epochs=3", *where).code
        == 0
    )
    assert "done already" not in invoke("advise", "--model", "first", *where).out, "only with another seed"
    assert invoke("train", "--model", "first-mined", "--seed", "0", *where).code == 0
    mined = invoke("advise", "--model", "first", *where).out
    assert f"next: itrpipe evaluate --model first-mined --seed 0 --data {chain}" in mined, mined
    assert f"then: itrpipe report --dataset tiny --compare first first-mined --data {chain}" in mined


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--backbone", "bfan"), "scores pair by pair"),
        (("--method", "fne", "--set", "train.loss.warm_epochs=0"), "more than the negatives of its batches"),
        (("--set", "train.model.measure=order"), "ask for cosine"),
    ],
)
def test_only_round_one_with_embeddings_is_asked(
    chain: Path, invoke: Invoke, options: tuple[str, ...], reason: str
) -> None:
    given = [part for text in TINY_TRAINING for part in ("--set", text)]
    default = () if "--backbone" in options else ("--backbone", "vsepp")
    outcome = invoke("advise", "--dataset", "tiny", "--data", chain, *default, *given, "--make", *options)
    assert outcome.code == UsageError.exit_code
    (line,) = outcome.err.strip().splitlines()
    assert reason in line
