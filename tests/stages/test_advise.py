"""`itrpipe advise` on the tiny chain, and what evaluations of the first training say of a second one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.analysis import second_round
from itrpipe.analysis.questions import second_round as diagnosis
from itrpipe.evaluation.metrics import ranks
from itrpipe.evaluation.metrics import rsum as rsum_of
from itrpipe.features.embeddings import read_embeddings
from itrpipe.mining.lists import DIRECTIONS
from itrpipe.storage.artifact import SECOND_ROUND, read_manifest
from tests.chains import Invoke, done, sets
from tests.conftest import TINY


def advise(invoke: Invoke, root: Path, *options: object) -> str:
    small = ("--dataset", "tiny", "--data", root, "--backbone", "vsepp", *sets(*TINY[:-1]))
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
    shown = advise(invoke, chain, "--no-deps", "--verbose")
    assert "next: itrpipe train" in shown
    assert not re.search("FNE|hardest|beats|Expect|mined", shown), "there is nothing to mine"

    monkeypatch.setattr(second_round, "ABOVE_CHANCE", 0.0)
    told = json.loads(advise(invoke, chain, "--no-deps", "--json"))["advice"]
    assert told["action"] == "train"
    shown = advise(invoke, chain, "--no-deps")
    _title, verdict, command, *rest = shown.splitlines()
    assert verdict == told["sentence"]
    assert command.startswith(f"next: {told['command']}")
    for name, key in (("hardest of the dataset", "beaten"), ("correct matches (FNE)", "estimated_false")):
        (line,) = (line for line in rest if line.startswith(name))
        figures = [side["hardest"][key] for side in sides]
        shown_figures = line.removeprefix(name).replace(" %", "").split()
        assert shown_figures == ["–" if each is None else f"{each:.1f}" for each in figures]
    every = advise(invoke, chain, "--no-deps", "--verbose")
    assert set(shown.splitlines()) < set(every.splitlines())


def test_the_temperature_and_the_pairs_of_a_step_are_those_of_the_history(
    chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = next((chain / "tiny/train").glob("triplet.vsepp-*"))
    rows = [
        {"epoch": each, "val_rsum": 9.0, "steps": 4, "best": each < 3, "mean_temperature": each / 50}
        for each in range(4)
    ]
    monkeypatch.setattr(diagnosis.pq, "read_table", lambda path: pa.Table.from_pylist(rows))
    manifest = read_manifest(folder)
    filled = manifest.model_copy(update={"settings": manifest.settings | {"batch_by": "tokens", "accumulate": 2}})
    monkeypatch.setattr(diagnosis, "read_manifest", lambda path: filled)
    model = diagnosis.diagnose(folder)["model"]
    assert (model["temperature"], model["batch_size"], model["updates"]) == (0.04, round(60 * 3 / 16), 8)
