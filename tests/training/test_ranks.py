"""Two processes train as one does: the same weights, losses and draws, for every method."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from itrpipe.cli import app
from tests.chains import Invoke, interrupted
from tests.training import several

LAUNCHED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def sets(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in ("--set", text))


SCENES = ("prepare", "--train=40", "--val=12", "--test=12")
SMALL = sets("train.model.embed_dim=16", "train.model.word_dim=8")
TRANSFORMER = sets("train.model.embed_dim=16", "train.model.heads=2", "train.model.dropout=0")
# Some gradients of UNITER are little but rounding, and Adam makes steps as large as the learning rate of them.
UNITER = (*TRANSFORMER, *sets("train.learning_rate=5e-4"))
# A batch of 13 pairs is no multiple of two.
SHORT = sets("train.batch_size=13", "train.min_word_count=1")
UPDATES = "max_updates=3"
# Chunks of each half of a batch, and two batches an update. An epoch of the model that mines and starts is enough.
PIXELS = sets("train.model.width=16", "train.encode_chunk=4", "train.accumulate=2", "train.epochs=1")
ALL = ("--negatives", "mined,synthetic", "--weigh", "fne", "--batches", "neighbours")
ALL += sets("mine_negatives.num_texts=60", "mine_negatives.num_images=12")
ALL += sets("contrastive.sentences=vse-c", "contrastive.loss.min_count=0")
JUDGED = ("--judge", "captions:tfidf", "--judged", "soft")
# Sixteen updates are an epoch, and the training set is mined again before the second.
AGAIN = ("--set=max_updates=18", "--set=contrastive.loss.refresh_every=1", "--set=train.learning_rate=1e-4")
# Adapters, rates by the layer and an average of the weights.
TUNED = sets("train.adapter=lora", "train.layer_decay=0.5", "train.average=ema:0.5", "train.learning_rate=1e-3")
METHODS: dict[str, tuple[str, ...]] = {
    "triplet": ("--backbone", "vsrn", *SMALL, *sets("train.model.caption_dropout=0", "train.average=ema:0.5")),
    "aoq": (
        *("--backbone", "vsepp", "--judge", "captions:tfidf", *SMALL),
        *sets("mine_negatives.num_texts=60", "mine_negatives.num_images=12", "aoq.loss.judged=weigh"),
    ),
    "fne": (
        "--backbone",
        "dual-encoder",
        "--vision",
        "random",
        "--text",
        "{bert}",
        *PIXELS,
        *sets("train.freeze=text"),
    ),
    "ssamt": ("--backbone", "ssamt", *TRANSFORMER),
    "tags-dc": ("--backbone", "uniter", *UNITER),
    "ascl": ("--backbone", "ascl", "--text", "{bert}", *sets("train.model.embed_dim=16", "train.loss.max_tokens=40")),
    "clip-finetune": ("--backbone", "dual-encoder", "--vision", "{clip}", "--text", "{clip}", *TUNED),
    "triplet-pairs": ("--backbone", "bfan", *SMALL),
    "contrastive": ("--backbone", "vsepp", *SMALL, *ALL, *AGAIN),
    "contrastive-pairs": (
        "--backbone",
        "dual-encoder",
        "--vision",
        "{clip}",
        "--text",
        "{clip}",
        *ALL,
        *JUDGED,
        *PIXELS[2:],
        "--set=train.learning_rate=5e-5",
    ),
}
CLOSE = ("triplet", "triplet-pairs", "aoq", "contrastive")
"""Methods whose weights differ by less than a millionth of the largest."""


@pytest.fixture(scope="module")
def bert(saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT without dropout, beside a CLIP."""
    folder = Path(shutil.copytree(saved_encoders / "bert", tmp_path_factory.mktemp("bert") / "bert"))
    shutil.copytree(saved_encoders / "clip", folder.parent / "clip")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def command(method: str, root: Path, bert: Path, *more: str) -> list[str]:
    """Trains a method for three updates."""
    options = [each.format(bert=bert, clip=bert.parent / "clip") for each in METHODS[method]]
    short = [*SHORT] if AGAIN[0] in options else [*SHORT, "--set", UPDATES]
    return ["train", "--method", method.removesuffix("-pairs"), "--data", str(root), *options, *short, *more]


def launched(
    commands: Sequence[Sequence[str]], folder: Path, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs commands in two processes."""
    file = folder / "commands"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in commands))
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    return subprocess.run(
        [sys.executable, *LAUNCHER, *options, several.__file__, str(file)],
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(several.__file__).parents[2])} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_alike(one: Path, two: Path, most: float = 1e-5) -> None:
    """Weights, losses and all that was drawn."""
    weights = {}
    others = {}
    for path in one.rglob("model.safetensors"):  # encoders of transformers have folders of their own
        weights |= load_file(path)
        others |= load_file(two / path.relative_to(one))
    for name, weight in weights.items():
        if name.endswith("k_proj.bias"):  # no softmax over keys depends on it: its gradient is nothing but rounding
            continue
        largest = max(1.0, float(weight.float().abs().max()))
        assert float((weight.float() - others[name].float()).abs().max()) <= most * largest, name
    history, other = (pq.read_table(folder / "history.parquet").to_pylist() for folder in (one, two))
    assert [row["best"] for row in history] == [row["best"] for row in other]
    for row, its in zip(history, other, strict=True):
        for name in row:
            if not name.startswith("val_"):
                assert its[name] == pytest.approx(row[name], rel=1e-4, abs=1e-7), name


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with what training reads."""
    root = tmp_path_factory.mktemp("ranks") / "data"
    for made in (SCENES, ("parse", *sets("tagger=lexicon")), ("extract", "-f", "scenes")):
        app([*made, "--data", str(root)], standalone_mode=False)
    return root


def only(root: Path, method: str) -> Path:
    """The folder of the model of a method."""
    (found,) = root.glob(f"scenes/train/{method.removesuffix('-pairs')}.{METHODS[method][1]}-????????")
    return found


@pytest.fixture(scope="module")
def both(extracted: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Data folders of one process and of two, in which every method was trained, and what the two said."""
    folder = tmp_path_factory.mktemp("both")
    one = Path(shutil.copytree(extracted, folder / "one"))
    for method in METHODS:
        app(command(method, one, bert), standalone_mode=False)
    two = Path(shutil.copytree(one, folder / "two"))  # with the models that others start from
    for method in METHODS:
        shutil.rmtree(only(two, method))
    done = launched([command(method, two, bert) for method in METHODS], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return one, two, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_train_what_one_does(both: tuple[Path, Path, str], method: str) -> None:
    one, two, said = both
    assert_alike(only(one, method), only(two, method), 1e-6 if method in CLOSE else 1e-5)
    assert said.count(f"\ntrain/{only(two, method).name}\n") == 1  # the first process speaks alone


@pytest.mark.slow
def test_a_training_goes_on_with_another_number_of_processes(
    both: tuple[Path, Path, str], bert: Path, tmp_path: Path, invoke: Invoke
) -> None:
    """One of two is killed, then one alone, then two finish it: as if nothing had happened, with the same batches."""
    whole, root = (Path(shutil.copytree(both[0], tmp_path / name)) for name in ("whole", "data"))
    for each in (whole, root):
        shutil.rmtree(only(each, "aoq"))
    updates = {UPDATES: "max_updates=9"}
    there, here = ([updates.get(each, each) for each in command("aoq", root, bert)] for root in (whole, root))
    often = sets("checkpoint_seconds=0")
    app([*there, *often], standalone_mode=False)
    killed = launched([[*here, *often]], tmp_path, **{several.DIE_AS: "0", several.DIE_AT: "3"})
    assert killed.returncode != 0
    with interrupted(4):
        alone = invoke(*here, *often)
    assert (alone.code, "going on in epoch 1 after step 3" in alone.out) == (130, True)
    done = launched([[*here, *often]], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "going on in epoch 1 after step 6" in done.stdout
    assert_alike(only(whole, "aoq"), only(root, "aoq"), 3e-5)
