"""What every evaluation must be true to, for every declared backbone and method, trained on noise and untrained.

A new backbone or method takes part by being declared: its settings are made small where they have the names of `MODEL`
and `LOSS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.declaration import methods
from itrpipe.models.registry import network_module
from itrpipe.pipeline.planning import Override, Planner
from itrpipe.pipeline.run import run
from itrpipe.pipeline.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import read_split
from itrpipe.testing.backbones import above_chance
from itrpipe.training.data import Sources, SplitData, open_split
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.encoding import Scoring
from itrpipe.training.saved import SavedModel, build_model, load_model
from itrpipe.training.settings import backbones, settings_of
from tests import maps
from tests.definitions import save_definition
from tests.trained_model import TrainedModel

Invoke = Callable[..., Any]
CPU = torch.device("cpu")
SIZES = {"train": 16, "val": 3, "test": 30}
CAPTIONS, REGIONS, WIDTH = 5, 3, 8
MODEL = {
    **dict.fromkeys(("embed_dim", "word_dim", "feed_forward_dim", "caption_dim", "caption_word_dim"), WIDTH),
    **dict.fromkeys(("layers", "vision_layers", "text_layers"), 1),
    **dict.fromkeys(("heads", "text_heads"), 2),
    **dict.fromkeys(("width", "text_width"), WIDTH),
    **dict.fromkeys(("vision", "text"), "random"),
    "image_size": [32, 32],
}
"""Settings of models, where they have them."""
LOSS = {"top_texts": 5, "top_images": 3, "sampled_negatives": 5, "hard_negatives": 2}
LOSS |= {"copies": 2, "draws": 2, "keep": 2, "memory_size": 32, "warm_epochs": 0}
"""Settings of losses, where they have them."""
TRAIN = {"epochs": 1, "batch_size": 40, "min_word_count": 1, "warmup_updates": 1, "max_updates": 4, "precision": "fp32"}
TRAIN |= {"score_precision": "fp32", "batch_by": "pairs", "accumulate": 1, "learning_rate": 0.01}
OTHERS = {"mine_negatives": {"num_texts": 5, "num_images": 3}, "parse": {"tagger": "lexicon", "workers": 1}}
OTHERS |= {"pixels": {"height": 32, "width": 32}, "extract": {"workers": 0}}
WORDS = ("red old small wet tall", "dog cat horse child bird", "on near behind", "road beach field roof wall")


def overrides(backbone: str) -> list[Override]:
    """Of all steps; those of steps that a plan does not have are not read."""
    fields = settings_of(backbone).model_fields
    given = {
        "train": {**TRAIN, **{f"model.{name}": value for name, value in MODEL.items() if name in fields}},
        **OTHERS,
    }
    for name, kind in methods().items():
        read = kind.model_fields.keys() - kind().unused_options()
        small = {f"loss.{key}": value for key, value in LOSS.items() if key in read}
        given[name] = small
    return [Override(scope, key, value) for scope, values in given.items() for key, value in values.items()]


def planner(root: Path, backbone: str) -> Planner:
    chosen = [*overrides(backbone), Override(None, "backbone", backbone)]
    defined = DatasetDefinition(
        prepare=StageDefinition(conf="files"), features={"noise": StageDefinition(conf="arrays")}
    )
    return Planner(root, "noise", chosen, DatasetDefinition() if root.exists() else defined)


def trains(method: str, backbone: str) -> bool:
    """Whether the method trains the backbone."""
    try:
        plan = planner(Path("nowhere"), backbone)
        train.Train().needs(plan.configure_checked(Need("train", method))[0], plan.definition)  # pyright: ignore
    except UsageError:
        return False
    return True


def pairs() -> list[tuple[str, str]]:
    """Every backbone with the first method that trains it, and every method with the first backbone that it trains."""
    training = [name for name, kind in methods().items() if kind.trains]
    known, trained = sorted(backbones(), key="vsepp".__ne__), sorted(training, key="triplet".__ne__)
    first = [next((method, name) for method in trained if trains(method, name)) for name in known]
    each = [next((method, name) for name in known if trains(method, name)) for method in trained]
    return list(dict.fromkeys([*first, *each]))


def write_noise(folder: Path) -> None:
    """Photographs, features and captions that know nothing of each other."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    records = []
    for split, count in SIZES.items():
        for _ in range(count):
            number = len(records)
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{number:03}.png")
            written = [" ".join(["a", *(random.choice(kind.split()) for kind in WORDS)]) for _ in range(CAPTIONS)]
            sentences = [{"raw": text, "sentid": number * CAPTIONS + place} for place, text in enumerate(written)]
            records.append({"filename": f"{number:03}.png", "split": split, "imgid": number, "sentences": sentences})
    (folder / "dataset.json").write_text(json.dumps({"dataset": "noise", "images": records}))
    corners = np.sort(random.random((len(records), REGIONS, 2, 2), dtype=np.float32), axis=2)
    np.savez(
        folder / "noise.npz",
        **{"regions": random.normal(size=(len(records), REGIONS, WIDTH)).astype(np.float16)},
        **{"global": random.normal(size=(len(records), WIDTH)).astype(np.float16)},
        boxes=corners.reshape(len(records), REGIONS, 4),
        image_id=np.array([record["filename"] for record in records]),
    )


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that knows the dataset `noise`."""
    folder = tmp_path_factory.mktemp("noise")
    write_noise(folder / "source")
    prepare = StageDefinition(conf="files", source=str(folder / "source"))
    features = StageDefinition(conf="arrays", source=str(folder / "source" / "noise.npz"))
    save_definition(folder / "data", "noise", DatasetDefinition(prepare=prepare, features={"noise": features}))
    return folder / "data"


def shuffled(split: Split, seed: int) -> tuple[Split, np.ndarray, np.ndarray]:
    """A split with images and captions in two random orders, and these."""
    random = np.random.default_rng(seed)
    images, captions = random.permutation(len(split.images)), random.permutation(len(split.captions))
    return Split(split.name, split.images.take(images), split.captions.take(captions)), images, captions


def opened_split(saved: SavedModel, sources: Sources, split: Split) -> SplitData:
    """Any split as training opens it for the model."""
    features = FeatureFile.open(sources.extract / FEATURES)
    if not saved.settings.reads_phrases:
        return open_split(split, features, saved.tokens, saved.settings, saved.frame)
    from itrpipe.scene_graph.phrases import CaptionPhrases
    from itrpipe.training.data import PhraseSplitData

    assert sources.parse is not None
    phrases = CaptionPhrases.read(sources.parse, saved.config["model"]["max_words"])
    return PhraseSplitData(split, features, saved.vocabulary, phrases, saved.config["model"]["phrases"])


def untrained(config: dict[str, Any]) -> AnyMatcher:
    """The same model with new random weights."""
    encoders = None
    if "networks" in config:
        encoders = network_module(config["backbone"]).restored(config["networks"])
    return build_model(config, config["image_dim"], config["vocabulary_size"], encoders).eval()


def folders(step: Step) -> Sources:
    """What a model is trained on."""
    found = {name: each.location.folder for name, each in step.inputs.items()}
    return Sources(found["prepare"], found["extract"], found.get("parse"))


def scores_of(trained: Path, sources: Sources, backbone: str, folder: Path) -> np.ndarray:
    """Scores [N, T] that the evaluation of a model reads, or makes of a model without embeddings."""
    if settings_of(backbone).embeds:
        return read_split(trained, None, backbone, "test").scores()
    work = Scoring(trained, sources, "test", 16, "cpu")
    return work.join(maps.made(work, folder / "parts").paths).scores()


@pytest.mark.parametrize(("method", "backbone"), pairs(), ids=lambda name: name)
def test_scores_come_from_images_and_captions_alone(noise: Path, tmp_path: Path, method: str, backbone: str) -> None:
    step = planner(noise, backbone).plan(Need("train", method))
    (folder,) = run([step], Reporter())
    sources, saved = folders(step), load_model(folder)
    split = PreparedDataset.open(sources.prepare).split("test")
    written = scores_of(folder, sources, backbone, tmp_path)
    scale = np.abs(written).max()
    # Every caption is a candidate of its own: five of each image.
    assert written.shape == (SIZES["test"], CAPTIONS * SIZES["test"])

    # Noise gives chance, after training on noise and before.
    torch.manual_seed(1)
    new = TrainedModel(untrained(saved.config), opened_split(saved, sources, split), CPU, "fp32")
    for when, scores in (("trained", written), ("untrained", new.scores(new.data, 16))):
        assert not above_chance(scores, split.caption_image), f"{when}: recall from nothing"

    # Whoever scores them, pairs have the scores of the saved model.
    same = TrainedModel(saved.model, opened_split(saved, sources, split), CPU, "fp32")
    np.testing.assert_allclose(same.scores(same.data, 16) / scale, written / scale, atol=1e-6)

    # Neither the order of the images nor that of the captions matters.
    other, images, captions = shuffled(split, 0)
    again = TrainedModel(saved.model, opened_split(saved, sources, other), CPU, "fp32")
    np.testing.assert_allclose(again.scores(again.data, 7) / scale, written[images][:, captions] / scale, atol=1e-5)


def test_scores_that_know_their_pairs_are_told_from_noise() -> None:
    random, own = np.random.default_rng(0), np.repeat(np.arange(30), CAPTIONS)
    scores = random.standard_normal((30, 150))
    assert not above_chance(scores, own)
    assert not above_chance(np.zeros((30, 150)), own)  # ties are below chance, however images are dealt
    scores[own, np.arange(150)] += 1
    assert set(above_chance(scores, own)) >= {"i2t_r1", "t2i_r1"}
