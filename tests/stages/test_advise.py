"""`itrpipe advise` on the tiny chain, and what evaluations of the first training say of a second one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from itrpipe.mining.lists import DIRECTIONS
from itrpipe.storage.artifact import SECOND_ROUND, read_manifest
from tests.chains import Invoke, done, sets
from tests.conftest import TINY_TRAINING

SMALL = (*TINY_TRAINING, "train.model.embed_dim=8", "train.model.word_dim=8")


def advise(invoke: Invoke, root: Path, *options: object) -> str:
    small = ("--dataset", "tiny", "--data", root, "--backbone", "vsepp", *sets(*SMALL))
    return done(invoke("advise", *small, "--make", *options))


def test_it_says_what_the_evaluation_of_round_one_found(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = (chain / "tiny/evaluate").glob("triplet.vsepp-*")
    (second,) = (chain / "tiny/evaluate").glob("aoq.vsepp-*")
    assert SECOND_ROUND not in read_manifest(second).outputs
    written = json.loads((folder / SECOND_ROUND).read_text())
    found = json.loads(advise(invoke, chain, "--no-deps", "--json"))
    assert {name: found[name] for name in written} == written
    assert found["processor_seconds"] > 0
    assert (written["model"]["images"], written["model"]["captions"], written["model"]["truth"]) == (12, 60, False)
    sides = [written["directions"][name] for name in DIRECTIONS]
    assert [side["candidates"] for side in sides] == [60, 12]
    assert [[each["size"] for each in side["batches"]] for side in sides] == [[16, 32], [16, 32]]
    assert written["fit"]["images"] == 4
    assert found["advice"]["action"] == "collapsed"  # after one epoch
    shown = advise(invoke, chain, "--no-deps")
    assert "batch 16*" not in shown
    assert "FNE" not in shown
    assert "Expect" not in shown

    monkeypatch.setattr("itrpipe.evaluation.second_round._is_at_chance", lambda found: False)
    found = json.loads(advise(invoke, chain, "--no-deps", "--json"))
    assert found["advice"]["action"] == "train"
    shown = advise(invoke, chain, "--no-deps")
    assert "12 images, 60 captions; batches of 16 pairs, 1 epochs" in shown
    assert "batch 16*  batch 32  dataset  its top 10" in shown
    assert found["advice"]["command"] in shown
    assert "and the other settings of this first training" in shown


def test_what_was_advised_and_is_done_is_not_advised_again(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--dataset", "tiny", "--data", chain]
    first = ("--name", "first", "--method", "triplet", "--backbone", "vsepp", *sets(*SMALL))
    done(invoke("train", *first, *where))
    proposed = "itrpipe train --dataset tiny --name first-longer --like first --set epochs=2"
    before = invoke("advise", "--model", "first", *where).out
    assert f"next: {proposed}" in before
    done(invoke("train", "--name", "first-longer", "--like", "first", "--set", "epochs=2", *where))
    after = invoke("advise", "--model", "first", *where).out
    assert f"done already: {proposed}" in after
    assert f"next: itrpipe advise --model first-longer --data {chain}" in after
    assert "done already" not in invoke("advise", "--model", "first", "--seed", "1", *where).out

    monkeypatch.setattr("itrpipe.evaluation.second_round._action", lambda *_: "mine")
    done(invoke("train", "--name", "first-mined", "--like", "first", "--seed", "3", "--set", "epochs=3", *where))
    assert "done already" not in invoke("advise", "--model", "first", *where).out, "only with another seed"
    done(invoke("train", "--model", "first-mined", "--seed", "0", *where))
    mined = invoke("advise", "--model", "first", *where).out
    assert f"next: itrpipe evaluate --model first-mined --seed 0 --data {chain}" in mined, mined
    assert f"then: itrpipe report --dataset tiny --compare first first-mined --data {chain}" in mined
