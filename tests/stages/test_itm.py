"""UNITER's fine-tuning through the command line: train, scores, evaluate; published weights; and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import define_features
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model
from tests.chains import Invoke, copied, done, goes_on, history, only, refused, same_files, sets
from tests.conftest import Outcome

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


def run(invoke: Invoke, root: Path, stage: str, *more: str) -> Outcome:
    chosen = (*SMALL, "evaluate.bootstrap_samples=100") if stage == "evaluate" else SMALL
    named = {text.partition("=")[0] for text in more}
    kept = [text for text in chosen if text.partition("=")[0] not in named]
    where = ("--method", "itm", "--dataset", "tiny", "--features", "boxed", "--data", root)
    return invoke(stage, *where, *sets(*kept, *more))


def split_of(root: Path, name: str) -> Split:
    return PreparedDataset.open(next(root.glob("tiny/prepare/files-*"))).split(name)


@pytest.fixture(scope="module")
def with_boxes(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which every image of `tiny` has two to five regions with boxes; copy it."""
    records = json.loads((finished_chain / "source" / "dataset_flickr30k.json").read_text())["images"]
    random = np.random.default_rng(0)
    corners = np.sort(random.random((len(records), 5, 2, 2), dtype=np.float32), axis=2)
    folder = tmp_path_factory.mktemp("itm")
    np.savez(
        folder / "boxed.npz",
        regions=random.normal(size=(len(records), 5, REGION_DIM)).astype(np.float16),
        count=random.integers(2, 6, len(records)),
        boxes=corners.reshape(len(records), 5, 4),
        image_id=np.array([record["filename"] for record in records]),
    )
    root = copied(finished_chain / "data", folder / "data")
    definition, known, overrides = define_features(root, "tiny", None, folder / "boxed.npz", "boxed", [])
    run_stage(root, "tiny", "extract", overrides, conf=known, definition=definition)
    return root


@pytest.fixture
def root(with_boxes: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(with_boxes, tmp_path / "data")


def test_the_chain_trains_scores_and_evaluates(root: Path, invoke: Invoke) -> None:
    done(run(invoke, root, "evaluate"))
    first, last = history(root, "itm.uniter")
    assert {"loss_text_anchored", "loss_image_anchored", "mean_active_negatives"} <= first.keys()
    assert last["learning_rate"] == pytest.approx(1e-8)  # the last of eight updates
    trained = only(root, "train/itm.uniter")
    assert not (trained / SCORES).exists()
    written = read_scores(only(root, "evaluate/itm.uniter") / SCORES, "test").matrix
    assert written.shape == (4, 20)
    assert written.std() > 0
    opened, features = load_model(trained), FeatureFile.open(only(root, "extract/boxed") / FEATURES)
    data = open_split(split_of(root, "test"), features, opened.tokens, opened.settings)
    with torch.no_grad():
        images = opened.model.encode_images(data.images(np.arange(4)))
        texts = opened.model.encode_texts(data.texts(np.arange(20)))
        np.testing.assert_allclose(opened.model.score_matrix(images, texts), written, atol=1e-5)
    assert "✓ evaluate/itm.uniter" in done(run(invoke, root, "evaluate"))


def test_training_that_was_stopped_goes_on_to_the_same_weights(root: Path, invoke: Invoke) -> None:
    often = "train.checkpoint_seconds=0"
    whole = goes_on(lambda each: run(invoke, each, "train", often), root, "itm.uniter", 13, "epoch 2 after step 4")
    for each in (whole, root):
        done(run(invoke, each, "evaluate", often))
    same_files("evaluate/itm.uniter", (root, whole), SCORES)


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
    return [f"train.model.initial={weights}", f"train.model.tokenizer={tokenizer}"]


def test_published_weights_with_their_tokenizer_are_trained_further(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    slow = "train.learning_rate=1e-9"
    out = done(run(invoke, root, "evaluate", slow, *start_from(publish(tmp_path / "published"))))
    assert "not in this file: correction, masked_word, rank, word_match" in out
    opened = load_model(only(root, "train/itm.uniter"))
    assert isinstance(opened.model, UniterEncoder)
    assert opened.model.text.word.num_embeddings == 35  # [MASK] is one of them
    expected = opened.model.match.weight[1:]
    torch.testing.assert_close(opened.model.rank.weight, expected, atol=1e-6, rtol=0)
    # Moving the files changes nothing, and the trained model does without them.
    moved = (tmp_path / "published").rename(tmp_path / "elsewhere")
    again = run(invoke, root, "train", slow, *start_from((moved / "uniter.safetensors", moved / "tokenizer")))
    assert "✓ train/itm.uniter" in done(again)
    shutil.rmtree(moved)
    tokens = load_model(only(root, "train/itm.uniter")).tokens
    assert len(tokens) == 35
    ids, lengths = tokens.encode_split(split_of(root, "test"))
    assert ids[0, :2].tolist() == [2, 5]  # [CLS] A, in upper case
    assert ids[0, lengths[0] - 2 : lengths[0]].tolist() == [13, 3]  # . [SEP]


def test_positions_and_weights_that_a_model_lacks_are_one_line(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    refused(run(invoke, root, "train", "train.model.max_words=5"), 4, "raise --set max_words")
    smaller = start_from(publish(tmp_path / "published", layers=1))
    refused(run(invoke, root, "train", *smaller), 4, "has no weights for 'layers.1")


@pytest.mark.parametrize(
    ("backbone", "sizes"), [("uniter", (768, 12, 12, 3072)), ("uniter-large", (1024, 24, 16, 4096))]
)
def test_the_published_numbers_are_declared(invoke: Invoke, tmp_path: Path, backbone: str, sizes: tuple) -> None:
    shown = invoke("show", "train", "itm", "--backbone", backbone, "--dataset", "flickr30k", "--data", tmp_path)
    values = {words[0]: words[1] for line in done(shown).splitlines() if len(words := line.split()) > 2}
    names = ("model.embed_dim", "model.layers", "model.heads", "model.feed_forward_dim")
    assert tuple(int(values[name]) for name in names) == sizes
    negatives = ("loss.sampled_negatives", "loss.hard_negatives", "loss.margin")
    assert [values[name] for name in negatives] == ["399", "31", "0.2"]
    assert (values["max_updates"], values["warmup_updates"], values["learning_rate"]) == ("5000", "500", "5e-05")
