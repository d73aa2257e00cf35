"""The loop learns, ends and goes on where it should, and serves every schedule, measure and precision."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import ORDER, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile, FeatureSpec, write_features
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.progress import Reporter
from itrpipe.testing import LOOP_SETTINGS
from itrpipe.training import encoding
from itrpipe.training.data import SplitData
from itrpipe.training.encoding import Encoder
from itrpipe.training.loop import BEST, CHECKPOINT, Trainer, training_device
from itrpipe.training.settings import LoopSettings
from itrpipe.training.splits import Sources
from tests import maps
from tests.training.interrupting import interrupt

IMAGES, PER_IMAGE, REGIONS, WIDTH = 24, 2, 3, 16
SETTINGS = LOOP_SETTINGS.model_copy(
    update={
        "epochs": 6,
        "batch_size": 16,
        "learning_rate": 0.01,
        "decay_every": 4,
        "max_updates": 0,
        "validation_images": IMAGES,
        "encode_block": 7,
        "prefetch": 2,
    }
)


class TinySplit:
    """A split whose caption words say which image they belong to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.image_ids = np.array([f"{name}-{i}" for i in range(IMAGES)])
        self.caption_image = np.repeat(np.arange(IMAGES), PER_IMAGE)
        self.caption_ids = np.array([f"{name}-{i}#{k}" for i in range(IMAGES) for k in range(PER_IMAGE)])
        self.tokens = pa.array([[f"word{i}", f"filler{k}"] for i in range(IMAGES) for k in range(PER_IMAGE)])


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> FeatureFile:
    """Validation images look like the training images of the same number."""
    path = tmp_path_factory.mktemp("features") / FEATURES
    regions = np.random.default_rng(0).standard_normal((IMAGES, REGIONS, WIDTH)).astype(np.float16)
    ids = [*TinySplit("train").image_ids.tolist(), *TinySplit("val").image_ids.tolist()]
    count = np.full(2 * IMAGES, REGIONS, dtype=np.int16)
    rows = {"regions": np.concatenate([regions, regions]), "count": count}
    write_features(path, ids, FeatureSpec(REGIONS, WIDTH), "test", [(np.arange(len(ids)), rows)])
    return FeatureFile.open(path)


def splits(features: FeatureFile) -> tuple[SplitData, SplitData, int]:
    train, val = TinySplit("train"), TinySplit("val")
    vocabulary = Vocabulary.build(train.tokens, 1)
    return SplitData(train, features, vocabulary), SplitData(val, features, vocabulary), len(vocabulary)  # pyright: ignore


def trainer(
    features: FeatureFile, work: Path, settings: LoopSettings = SETTINGS, model: Vsepp | None = None
) -> Trainer:
    work.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    train, val, words = splits(features)
    encoder = vsepp.build(model or Vsepp(embed_dim=16, word_dim=8), WIDTH, words)
    method = triplet.build(Triplet(sum_epochs=max(0, settings.epochs - 2)), train, {})
    return Trainer(settings, encoder, method, train, val, "cpu", work, Reporter())


def changed(**values: object) -> LoopSettings:
    return SETTINGS.model_copy(update=values)  # pyright: ignore


def test_training_learns_what_the_captions_say(features, tmp_path):
    run = trainer(features, tmp_path / "a", changed(epochs=30, decay_every=25))
    run.run()
    first, last = run.position.history[0], run.position.history[-1]
    assert run.position.best_score > 450 > first["val_rsum"]
    assert last["learning_rate"] == pytest.approx(0.001)
    assert sum(row["best"] for row in run.position.history) >= 1
    best = max(run.position.history, key=lambda row: row["val_rsum"])
    assert run.position.best_score == best["val_rsum"]


def test_bfloat16_is_close_to_single_precision_and_not_equal(features, tmp_path):
    single = trainer(features, tmp_path / "a", changed(epochs=1))
    half = trainer(features, tmp_path / "b", changed(epochs=1, precision="bf16"))
    single.run()
    half.run()
    losses = [run.position.history[0]["loss"] for run in (single, half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


class OfThisModel(encoding.Encoding):
    """Embeds the validation images and captions with a model that is not saved."""

    def __init__(self, model: torch.nn.Module, val: SplitData) -> None:
        rows = {"val": (val.num_images, val.num_captions)}
        super().__init__(Path(), Sources(Path(), Path()), rows, 5, "cpu")
        opened = SimpleNamespace(split={"val": val}.__getitem__)
        self._opened = opened, Encoder(model, torch.device("cpu"), 5)

    def open(self) -> Any:
        return self._opened


def test_order_embeddings_train_validate_and_are_scored_from_disk_as_by_the_model(features, tmp_path, monkeypatch):
    settings = Vsepp(embed_dim=16, word_dim=8, measure="order", absolute_values=True)
    run = trainer(features, tmp_path / "a", changed(epochs=1), settings)
    model = run.run()
    path = tmp_path / "embeddings.h5"
    val = splits(features)[1]
    monkeypatch.setattr(encoding, "BLOCKS_PER_PART", 2)
    work = OfThisModel(model, val)
    sizes = [part.rows for part in work.parts()]
    assert sizes == [10, 10, 4, *[10] * 4, 8]
    work.join(maps.made(work, tmp_path / "parts").paths, path, {"val": val}, model.measure)  # pyright: ignore
    stored = read_embeddings(path, "val")
    assert (stored.image_ids.tolist(), stored.caption_ids.tolist()) == (
        val.split.image_ids.tolist(),
        val.split.caption_ids.tolist(),
    )
    assert stored.measure == ORDER
    images, texts = val.pairs(np.arange(IMAGES), np.arange(IMAGES))
    with torch.inference_mode():
        expected = model.score_matrix(model.encode_images(images), model.encode_texts(texts)).numpy()
    np.testing.assert_allclose(stored.scores()[:, :IMAGES], expected, atol=1e-5)
    assert (stored.scores() <= 0).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_asking_for_a_missing_gpu_is_an_error_and_not_a_fallback():
    with pytest.raises(UsageError, match="no CUDA device is visible"):
        training_device("cuda")


FLAT = {"learning_rate": 1e-12, "patience": 2}
"""The first validation is the best."""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "ended after 3 of 6 epochs: validation has been flat for 2"),
        ({"validate_every": 2}, "ended after 1.333 of 6 epochs: validation has been flat for 2"),
        ({"first_epochs": 2}, "ended after 4 of 6 epochs: validation has been flat for 2"),
        ({"first_epochs": 6}, "ended after 3 of 6 epochs: validation has been flat for 2"),
        ({"epochs": 1000, "max_updates": 12}, "ended after 9 of 12 updates: validation has been flat for 2"),
        ({"schedule": "plateau"}, "ended after 5 of 6 epochs: validation has been flat for 2"),
        ({"patience": 5}, ""),
    ],
)
def test_training_ends_where_validation_is_flat(features, tmp_path, changes, said):
    run = trainer(features, tmp_path / "a", changed(**FLAT | changes))
    run.run()
    assert run.ended_early() == said
    again = trainer(features, tmp_path / "a", changed(**FLAT | changes))
    again.run()
    assert again.position == run.position


def test_a_rate_that_never_rises_to_its_height_is_told(features, tmp_path):
    run = trainer(features, tmp_path / "a", changed(schedule="cosine", warmup_updates=1000))
    updates = run._total_updates
    assert f"warmup_updates = 1,000, and all epochs together have {updates} updates" in run.never_warm()
    assert f"at {updates / 10:.0f} % of its height" in run.never_warm()
    assert not trainer(features, tmp_path / "b", changed(schedule="cosine", warmup_updates=updates)).never_warm()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"patience": 4}, ""),
        ({"patience": 5}, "patience = 5 ends no training of 6 validations; lower it, or validate more often with"),
        ({"patience": 5, "validate_every": 2}, ""),
        ({"patience": 11, "validate_every": 2}, "patience = 11 ends no training of 12 validations"),
        ({"patience": 3, "first_epochs": 3}, "of 6 validations, 3 of them in the first epochs"),
        ({"epochs": 1000, "max_updates": 7, "first_epochs": 9}, "of 3 validations, 3 of them in the first epochs"),
    ],
)
def test_patience_that_cannot_end_a_training_is_told(features, tmp_path, changes, said):
    found = trainer(features, tmp_path / "a", changed(**FLAT | changes)).idle_patience()
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epochs": 1},
        {"epochs": 5, "max_updates": 7},
        {"accumulate": 3},
        {"validate_every": 2},
        {"batch_by": "tokens", "batch_size": 60},
        {"epochs": 0},
    ],
)
def test_a_training_updates_and_validates_as_often_as_it_planned(features, tmp_path, changes):
    run = trainer(features, tmp_path / "a", changed(epochs=3, batch_size=6) if not changes else changed(**changes))
    run.run()
    assert run.position.updates == run._total_updates
    assert len(run.position.history) == max(1, len(run._validated_updates()[1]))


def test_on_a_plateau_the_best_weights_are_taken_up_at_a_lower_rate_also_after_an_interruption(features, tmp_path):
    settings = changed(epochs=40, schedule="plateau", patience=2, validate_every=2, learning_rate=0.05)
    whole = trainer(features, tmp_path / "a", settings)
    taken_up, best = whole._take_up_the_best, []

    def remembered():
        taken_up()
        best.append(load_file(tmp_path / "a" / BEST))
        for name, value in whole._model.state_dict().items():
            assert torch.equal(value, best[0][name]), name

    whole._take_up_the_best = remembered
    whole.run()
    (fallen,) = whole.position.plateaus
    assert len(best) == 1
    assert {row["learning_rate"] for row in whole.position.history[:fallen]} == {0.05}
    assert {row["learning_rate"] for row in whole.position.history[fallen:]} == {0.05 * settings.decay_factor}
    assert whole.ended_early()
    steps = sum(row["steps"] for row in whole.position.history[:fallen])
    for name, stop in (("b", steps - 1), ("c", steps + 1)):
        broken = trainer(features, tmp_path / name, settings)
        interrupt(broken, stop)
        resumed = trainer(features, tmp_path / name, settings)
        resumed.run()
        assert resumed.position.plateaus == [fallen]
        assert resumed.position.history == whole.position.history
        assert (tmp_path / name / BEST).read_bytes() == (tmp_path / "a" / BEST).read_bytes()


@pytest.mark.parametrize("name", [CHECKPOINT, BEST])
@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_flipped_bit_of_unfinished_work_is_refused(features, tmp_path, name, share):
    run = trainer(features, tmp_path / "a", changed(epochs=1))
    run.run()
    path = tmp_path / "a" / name
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 16
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} .*; remove .*a and run the same command again"):
        trainer(features, tmp_path / "a", changed(epochs=1)).run()


def test_scores_in_bfloat16_are_near_those_in_single_precision(features):
    """Of models that score pair by pair; those of embeddings stay as they are."""
    val, words = splits(features)[1:]
    rows, device = np.arange(val.num_captions), torch.device("cpu")
    for backbone, rounds in ((scan.build(Scan(embed_dim=16, word_dim=8), WIDTH, words), True), (None, False)):
        model = (backbone or vsepp.build(Vsepp(embed_dim=16, word_dim=8), WIDTH, words)).eval()
        exact, rough = (Encoder(model, device, 7, each).scores(val, IMAGES, rows) for each in ("fp32", "bf16"))
        assert rough.dtype == np.float32
        assert (np.abs(rough - exact).max() > 0) == rounds
        assert np.abs(rough - exact).max() < 0.02
