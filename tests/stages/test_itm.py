"""UNITER's fine-tuning through the command line: train, scores, evaluate; published weights; and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.features.scores import read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.training.loop import Trainer
from itrpipe.training.saved import load_model
from itrpipe.training.splits import open_split

Invoke = Callable[..., Any]
WIDTH, REGION_DIM = 8, 6
SMALL = (
    "train.epochs=2",
    "train.max_updates=0",
    "train.warmup_updates=2",
    "train.batch_size=8",
    "train.accumulate=2",
    "train.learning_rate=0.001",
    "train.min_word_count=1",
    f"train.model.embed_dim={WIDTH}",
    "train.model.layers=2",
    "train.model.heads=2",
    "train.model.feed_forward_dim=16",
    "train.model.max_words=40",
    "itm.loss.sampled_negatives=11",
    "itm.loss.hard_negatives=3",
    "itm.loss.sum_epochs=1",
)


def run(invoke: Invoke, root: Path, stage: str, *options: object) -> Any:
    chosen = (*SMALL, "evaluate.bootstrap_samples=100") if stage == "evaluate" else SMALL
    named = {str(option).partition("=")[0] for option in options}
    sets = [part for text in chosen if text.partition("=")[0] not in named for part in ("--set", text)]
    return invoke(stage, "--method", "itm", "--dataset", "tiny", "--features", "boxed", "--data", root, *sets, *options)


def folder_of(root: Path, stage: str, label: str = "itm.uniter") -> Path:
    (folder,) = root.glob(f"tiny/{stage}/{label}-*")
    return folder


def split_of(root: Path, name: str) -> Split:
    return PreparedDataset.open(next(root.glob("tiny/prepare/files-*"))).split(name)


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory, finished_chain: Path) -> Path:
    """Two to five regions with boxes for every image of `tiny`."""
    records = json.loads((finished_chain / "source" / "dataset_flickr30k.json").read_text())["images"]
    random = np.random.default_rng(0)
    corners = np.sort(random.random((len(records), 5, 2, 2), dtype=np.float32), axis=2)
    path = tmp_path_factory.mktemp("boxed") / "boxed.npz"
    np.savez(
        path,
        regions=random.normal(size=(len(records), 5, REGION_DIM)).astype(np.float16),
        count=random.integers(2, 6, len(records)),
        boxes=corners.reshape(len(records), 5, 4),
        image_id=np.array([record["filename"] for record in records]),
    )
    return path


@pytest.fixture(scope="module")
def with_boxes(boxed: Path, finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, to be copied; the features are imported by the first test that needs them."""
    return Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("itm") / "data"))


@pytest.fixture
def root(with_boxes: Path, boxed: Path, invoke: Invoke, tmp_path: Path) -> Path:
    """This test's own data folder with features that have boxes."""
    if not list(with_boxes.glob("tiny/extract/boxed-*")):
        done = invoke("extract", "--dataset", "tiny", "--data", with_boxes, "--from", boxed, "--name", "boxed")
        assert done.code == 0, done.err
    return Path(shutil.copytree(with_boxes, tmp_path / "data"))


def test_the_chain_trains_scores_and_evaluates(root: Path, invoke: Invoke) -> None:
    outcome = run(invoke, root, "evaluate")
    assert outcome.code == 0, outcome.err
    history = pq.read_table(folder_of(root, "train") / "history.parquet").to_pylist()
    assert len(history) == 2
    assert {"loss_text_anchored", "loss_image_anchored", "mean_active_negatives"} <= history[0].keys()
    assert history[1]["learning_rate"] == pytest.approx(1e-8)  # the last of eight updates
    assert not (folder_of(root, "train") / "scores.h5").exists()
    scores = read_scores(folder_of(root, "evaluate") / "scores.h5", "test")
    assert scores.matrix.shape == (4, 20)
    assert scores.matrix.std() > 0
    again = run(invoke, root, "evaluate")
    assert "✓ evaluate/itm.uniter" in again.out


def test_the_saved_model_gives_the_scores_that_were_written(root: Path, invoke: Invoke) -> None:
    assert run(invoke, root, "evaluate").code == 0
    folder = folder_of(root, "train")
    opened = load_model(folder)
    features = FeatureFile.open(folder_of(root, "extract", "boxed") / FEATURES)
    data = open_split(split_of(root, "test"), features, opened.tokens, opened.settings)
    with torch.no_grad():
        sides = (
            opened.model.encode_images(data.images(np.arange(4))),
            opened.model.encode_texts(data.texts(np.arange(20))),
        )
        found = opened.model.score_matrix(*sides)
    written = read_scores(folder_of(root, "evaluate") / "scores.h5", "test").matrix
    np.testing.assert_allclose(found, written, atol=1e-5)


def test_training_that_was_stopped_goes_on_to_the_same_weights(
    root: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    often = ("--set", "train.checkpoint_seconds=0")
    assert run(invoke, whole, "train", *often).code == 0
    save = Trainer._save

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        if (trainer.position.epoch, trainer.position.step) == (1, 4):
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(Trainer, "_save", save_and_stop)
        try:
            stopped = run(invoke, root, "train", *often)
            assert stopped.code != 0
        except KeyboardInterrupt:
            pass
    resumed = run(invoke, root, "train", *often)
    assert "going on in epoch 2 after step 4" in resumed.out
    for each in (whole, root):
        assert run(invoke, each, "evaluate", *often).code == 0
    for stage, name in (("train", "model.safetensors"), ("train", "history.parquet"), ("evaluate", "scores.h5")):
        assert (folder_of(root, stage) / name).read_bytes() == (folder_of(whole, stage) / name).read_bytes(), name


def publish(folder: Path, layers: int = 2) -> tuple[Path, Path]:
    """A tiny checkpoint in the published form with the tokenizer that it belongs to."""
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "A",
        "dog",
        "cat",
        "num",
        "##ber",
        "is",
        "on",
        "the",
        ".",
        "road",
    ]
    pieces += [*map(str, range(10)), *(f"##{digit}" for digit in range(10))]
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(parents=True)
    (tokenizer / "vocab.txt").write_text("\n".join(pieces))
    (tokenizer / "config.json").write_text('{"model_type": "bert"}')
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    torch.manual_seed(5)
    state = {}
    shapes = {"embeddings.word_embeddings": (len(pieces), WIDTH), "embeddings.position_embeddings": (40, WIDTH)}
    shapes |= {"embeddings.token_type_embeddings": (2, WIDTH), "img_embeddings.img_linear": (WIDTH, REGION_DIM)}
    shapes |= {"img_embeddings.pos_linear": (WIDTH, 7), "pooler.dense": (WIDTH, WIDTH)}
    norms = [
        "embeddings.LayerNorm",
        *(f"img_embeddings.{name}" for name in ("img_layer_norm", "pos_layer_norm", "LayerNorm")),
    ]
    for layer in range(layers):
        own = f"encoder.layer.{layer}."
        shapes |= {f"{own}attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        shapes |= {f"{own}attention.output.dense": (WIDTH, WIDTH), f"{own}intermediate.dense": (16, WIDTH)}
        shapes |= {f"{own}output.dense": (WIDTH, 16)}
        norms += [f"{own}attention.output.LayerNorm", f"{own}output.LayerNorm"]
    for name, shape in shapes.items():
        state[f"uniter.{name}.weight"] = torch.randn(shape) * 0.3
        if not name.endswith("embeddings"):
            state[f"uniter.{name}.bias"] = torch.randn(shape[0]) * 0.3
    for name in norms:
        state |= {f"uniter.{name}.weight": torch.ones(WIDTH), f"uniter.{name}.bias": torch.zeros(WIDTH)}
    state |= {"itm_output.weight": torch.randn(2, WIDTH), "itm_output.bias": torch.zeros(2)}
    save_file(state, folder / "uniter.safetensors")
    return folder / "uniter.safetensors", tokenizer


def start_from(published: tuple[Path, Path]) -> list[str]:
    weights, tokenizer = published
    return ["--set", f"train.model.initial={weights}", "--set", f"train.model.tokenizer={tokenizer}"]


def test_published_weights_with_their_tokenizer_are_trained_further(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    published = publish(tmp_path / "published")
    slow = ["--set", "train.learning_rate=1e-9", *start_from(published)]
    outcome = run(invoke, root, "evaluate", *slow)
    assert outcome.code == 0, outcome.err
    assert "not in this file: correction, masked_word, rank, word_match" in outcome.out
    opened = load_model(folder_of(root, "train"))
    assert isinstance(opened.model, UniterEncoder)
    assert opened.model.text.word.num_embeddings == 35  # [MASK] is one of them
    expected = opened.model.match.weight[1:]
    torch.testing.assert_close(opened.model.rank.weight, expected, atol=1e-6, rtol=0)
    # Moving the files changes nothing, and the trained model does without them.
    moved = (tmp_path / "published").rename(tmp_path / "elsewhere")
    again = run(invoke, root, "train", *slow[:2], *start_from((moved / "uniter.safetensors", moved / "tokenizer")))
    assert "✓ train/itm.uniter" in again.out
    shutil.rmtree(moved)
    tokens = load_model(folder_of(root, "train")).tokens
    assert len(tokens) == 35
    ids, lengths = tokens.encode_split(split_of(root, "test"))
    assert ids[0, :2].tolist() == [2, 5]  # [CLS] A, in upper case
    assert ids[0, lengths[0] - 2 : lengths[0]].tolist() == [13, 3]  # . [SEP]


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (
            ["--features", "precomp"],
            2,
            "'uniter' reads the boxes of regions, which features 'precomp' (made by precomp)",
        ),
        (["--set", "itm.loss.sampled_negatives=12"], 2, "no more than 11 negatives for every anchor"),
        (["--set", "train.model.max_words=5"], 4, "the model 5 positions; raise --set max_words"),
        (["--set", "train.model.initial=x.pt"], 2, "give --set model.tokenizer=bert-base-cased as well"),
        (["--set", "train.model.heads=3"], 2, "embed_dim = 8 is no multiple of heads = 3"),
        (
            ["--set", "train.model.initial=nowhere.pt", "--set", "train.model.tokenizer=bert-base-cased"],
            3,
            "nowhere.pt does not exist",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(
    root: Path, invoke: Invoke, options: list[str], code: int, expected: str
) -> None:
    outcome = run(invoke, root, "train", *options)
    assert outcome.code == code, outcome.out
    assert expected in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_weights_of_another_size_are_one_line(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    outcome = run(invoke, root, "train", *start_from(publish(tmp_path / "published", layers=1)))
    assert outcome.code == 4
    assert "has no weights for 'layers.1" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("backbone", "sizes"), [("uniter", (768, 12, 12, 3072)), ("uniter-large", (1024, 24, 16, 4096))]
)
def test_the_published_numbers_are_declared(invoke: Invoke, tmp_path: Path, backbone: str, sizes: tuple) -> None:
    shown = invoke("show", "train", "itm", "--backbone", backbone, "--dataset", "flickr30k", "--data", tmp_path)
    assert shown.code == 0, shown.err
    values = {words[0]: words[1] for line in shown.out.splitlines() if len(words := line.split()) > 2}
    names = ("model.embed_dim", "model.layers", "model.heads", "model.feed_forward_dim")
    assert tuple(int(values[name]) for name in names) == sizes
    assert (values["loss.sampled_negatives"], values["loss.hard_negatives"], values["loss.margin"]) == (
        "399",
        "31",
        "0.2",
    )
    assert (values["max_updates"], values["warmup_updates"], values["learning_rate"]) == ("5000", "500", "5e-05")


def test_another_backbone_is_refused(root: Path, invoke: Invoke) -> None:
    outcome = invoke(
        "train", "--method", "itm", "--backbone", "vsepp", "--dataset", "tiny", "--features", "boxed", "--data", root
    )
    assert outcome.code == 2
    assert "method 'itm' does not train backbone 'vsepp': it trains uniter and nothing else" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
