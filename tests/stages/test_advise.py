"""`itrpipe advise` on the tiny chain, and what evaluations of the first training say of a second one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from itrpipe.evaluation import second_round
from itrpipe.evaluation.metrics import ranks
from itrpipe.evaluation.metrics import rsum as rsum_of
from itrpipe.features.embeddings import read_embeddings
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
    train = read_embeddings(next((chain / "tiny/train").glob("triplet.vsepp-*")) / "embeddings.h5", "train")
    chosen = sorted(np.random.default_rng(0).permutation(12)[:4].tolist())  # as many as are validated on
    captions = [row for row, image in enumerate(train.caption_image) if image in chosen]
    owners = np.array([chosen.index(train.caption_image[row]) for row in captions])
    rsum = rsum_of(ranks(train.images[chosen] @ train.texts[captions].T, owners))
    assert (written["fit"]["images"], written["fit"]["train"]) == (4, pytest.approx(rsum, abs=1e-3))
    assert written["fit"]["gap"] == pytest.approx(rsum - written["validation"]["best"], abs=1e-3)
    assert found["advice"]["action"] == "collapsed"  # after one epoch
    for more in ((), ("--verbose",)):
        shown = advise(invoke, chain, "--no-deps", *more)
        assert "This model has collapsed" in shown
        assert "next: itrpipe train" in shown
        assert not re.search("FNE|hardest|beats|Expect|mined", shown), "there is nothing to mine"

    monkeypatch.setattr(second_round, "ABOVE_CHANCE", 0.0)
    told = json.loads(advise(invoke, chain, "--no-deps", "--json"))["advice"]
    assert told["action"] == "train"
    shown = advise(invoke, chain, "--no-deps")
    _title, verdict, command, *rest = shown.splitlines()
    assert verdict == told["sentences"][0]
    assert command.startswith(f"next: {told['command']}")
    assert command.endswith("and the other settings of this first training")
    beaten = [next(each["beaten"] for each in side["batches"] if each["size"] == 16) for side in sides]
    hardest = ([side["hardest"][name] for side in sides] for name in ("beaten", "estimated_false"))
    table = zip(
        ("hardest of a batch", "hardest of the dataset", "correct matches (FNE)"), (beaten, *hardest), strict=True
    )
    for name, figures in table:
        (line,) = (line for line in rest if line.startswith(name))
        shown_figures = line.removeprefix(name).replace(" %", "").split()
        assert shown_figures == ["–" if each is None else f"{each:.1f}" for each in figures]
    every = advise(invoke, chain, "--no-deps", "--verbose")
    assert set(shown.splitlines()) < set(every.splitlines())
    for text in ("12 images, 60 captions; batches of 16 pairs, 1 epochs", "16*", "top 10"):
        assert text in " ".join(every.split())


def test_what_was_advised_and_is_done_is_not_advised_again(
    chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--dataset", "tiny", "--data", chain]
    first = ("--name", "first", "--method", "triplet", "--backbone", "vsepp", *sets(*SMALL))
    done(invoke("train", *first, *where))
    proposed = "itrpipe train --dataset tiny --name first-longer --like first --set epochs=2"
    assert f"next: {proposed}" in invoke("advise", "--model", "first", *where).out
    done(invoke("train", "--name", "first-longer", "--like", "first", "--set", "epochs=2", *where))
    after = invoke("advise", "--model", "first", *where).out
    assert proposed not in after
    assert f"next: itrpipe advise --model first-longer --data {chain}" in after
    seeded = f"next: {proposed.replace('--like first', '--like first --seed 1')}"
    assert seeded in done(invoke("advise", "--model", "first", "--seed", "1", "--make", *where))

    monkeypatch.setattr(second_round, "RULES", second_round.RULES[-1:])
    done(invoke("train", "--name", "first-mined", "--like", "first", "--seed", "3", "--set", "epochs=3", *where))
    mined = "next: itrpipe train --dataset tiny --name first-mined"
    assert mined in invoke("advise", "--model", "first", *where).out, "only with another seed"
    done(invoke("train", "--model", "first-mined", "--seed", "0", *where))
    compared = f"next: itrpipe report --dataset tiny --compare first first-mined --data {chain}"
    assert compared in invoke("advise", "--model", "first", *where).out
