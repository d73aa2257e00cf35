"""What cannot work is told in one line, with the exit code of its kind, before a model or a list is made.

A row of `refusals.json` has an arrangement, a command, its exit code and a value that its line names. The arrangement
is the fixture that gives a data folder: `finished_chain` and the other chains of `tests.chains`, `named_models`,
`data_root` for an empty one. Words in braces are those of `places`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from itrpipe.datasets.definition import ModelDefinition, remember_model
from tests.chains import CLIP, UNITER, Invoke, copied, encoders_of, refused, sets, tags_loss
from tests.conftest import TINY

OF_SCENES = {"scenes_chain", "ascl_chain", "tags_chain"}
ROWS: list[tuple[str, str, int, str]] = [
    tuple(row)
    for rows in json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8")).values()
    for row in rows
]


@pytest.fixture(scope="module")
def places(saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What commands name: files that do not fit, and options that are long."""
    folder = tmp_path_factory.mktemp("refusals")
    record = {"file": "0.png", "caption": "a dog", "negative": ["a cat"]}
    for name in ("empty", "own", "broken"):
        (folder / name).mkdir()
        if name != "empty":
            (folder / name / "benchmark.jsonl").write_text(json.dumps(record) + "\n")
    Image.new("RGB", (30, 20)).save(folder / "own" / "0.png")
    (folder / "broken" / "0.png").write_bytes(b"no picture")
    np.save(folder / "rows.npy", np.eye(3))
    (folder / "empty.json").write_text("{}")
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_text('{"model_type": "clip"}')
    (folder / "bare" / "vocab.json").touch()
    lists = "--set mine_negatives.num_texts=5 --set mine_negatives.num_images=3"
    drawn = "--set top_texts=5 --set top_images=3"
    small = "--set train.epochs=1 --set train.batch_size=16 --set train.min_word_count=1"
    narrow = f"-b vsepp {small} --set train.model.embed_dim=8 --set train.model.word_dim=8"
    regions = "--set train.model.images=regions --set train.model.embed_dim=8 --features precomp"
    clip, bert = saved_encoders / "clip", saved_encoders / "bert"
    return {
        "empty": folder / "empty",
        "empty_json": folder / "empty.json",
        "own": folder / "own",
        "broken": folder / "broken",
        "pretrained": " ".join(sets(*CLIP, *encoders_of(saved_encoders, "clip"))),
        "rows": folder / "rows.npy",
        "out": tmp_path_factory.mktemp("out") / "out",
        "long": "a" * 200,
        "many": "a dog " * 60,
        "word": "--image test-000000.jpg --caption 'a dog'",
        "tiny": " ".join(sets(*TINY[:-1])),
        "tags_dc": " ".join(sets(*UNITER, *tags_loss("tags"), *tags_loss("tags-dc"))),
        "uniter": " ".join(sets(*UNITER)),
        "clip": clip,
        "bert": bert,
        "bare": folder / "bare",
        "vit": saved_encoders / "vit",
        "vsepp": f"{narrow} --set num_texts=5 --set num_images=3",
        "aoq": f"{narrow} {lists} {drawn}",
        "itm": "-m itm --set precomp.grid=[2,2] --set itm.loss.hard_negatives=3",
        "tokenizer": "--set train.model.tokenizer=bert-base-cased",
        "tags": "-m tags --set precomp.grid=[2,2] --set tags.loss.hard_negatives=3",
        "refreshed": f"-m contrastive --negatives mined {narrow} {lists} {drawn} --set loss.refresh_every=2",
        "random": "-m contrastive --vision random --text random",
        "tuned": f"-m clip-finetune --vision {clip} --text {clip}",
        "regions": f"-m contrastive -b dual-encoder --text {bert} {regions}",
        "seven": " ".join(f"--ensemble-with triplet-long.vsepp.s{10**9 + number}" for number in range(7)),
    }


@pytest.fixture
def named_models(defined: Path) -> Path:
    """A data folder whose dataset has a model `small`."""
    remember_model(defined, "tiny", "small", ModelDefinition(method="triplet", settings={"backbone": "vse++"}))
    return defined


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, pytest.FixtureRequest], Path]:
    """A copy of the data folder of an arrangement, the same for all of its rows."""
    folder = tmp_path_factory.mktemp("arrangements")

    def copy_of(arrangement: str, request: pytest.FixtureRequest) -> Path:
        if not (folder / arrangement).exists():
            found: Path = request.getfixturevalue(arrangement)
            data = found / "data" if (found / "data").exists() else found
            return copied(data, folder / arrangement) if data.exists() else folder / arrangement
        return folder / arrangement

    return copy_of


def artifacts(root: Path) -> set[Path]:
    """All but features and scene graphs, which a model may need to be refused."""
    return {path.parent for path in root.glob("*/*/*/manifest.json") if not {"extract", "parse"} & {*path.parts}}


@pytest.mark.parametrize(
    ("arrangement", "command", "code", "value"), ROWS, ids=[command[:80] for _, command, _, _ in ROWS]
)
def test_what_cannot_work_is_told_in_one_line(
    arrangement: str,
    command: str,
    code: int,
    value: str,
    data_of: Callable[[str, pytest.FixtureRequest], Path],
    places: dict[str, object],
    request: pytest.FixtureRequest,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "--device cuda" in command and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    root = data_of(arrangement, request)
    empty = {*tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ITRPIPE_DATASET", "scenes" if arrangement in OF_SCENES else "tiny")
    before = artifacts(root)
    refused(invoke(*shlex.split(command.format(data=root, **places)), "--data", root), code, value)
    assert artifacts(root) == before
    assert {*tmp_path.iterdir()} == empty
