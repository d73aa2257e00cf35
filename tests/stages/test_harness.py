"""What every evaluation must be true to, for every declared backbone and method, trained on noise and untrained.

A new backbone or method takes part by being declared: its settings are made small where they have the names of `MODEL`
and `LOSS`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from itrpipe.analysis.canary import ExchangedImages, NoiseImages, TrainedModel
from itrpipe.artifacts.artifact import check_artifact
from itrpipe.artifacts.files import METRICS
from itrpipe.commands.canary import CANARY, can_fail
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, save_definition
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.chance import LIMIT, Chance, chance_of_recalls
from itrpipe.evaluation.results import FULL
from itrpipe.features.scores import SCORES
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.registry import methods
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.registry import network_module
from itrpipe.plan import pipeline
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import read_split
from itrpipe.training.data import SplitData
from itrpipe.training.encode import AnyMatcher
from itrpipe.training.saved import SavedModel, build_model, load_model
from itrpipe.training.scoring import Scoring
from itrpipe.training.settings import backbones, embeds, settings_of
from itrpipe.training.splits import Sources, open_split
from tests import maps

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
        train.needs(plan.configure_checked(Need("train", method))[0], plan.definition)  # pyright: ignore
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
    from itrpipe.scene_graph.phrase_arrays import CaptionPhrases
    from itrpipe.training.phrase_data import PhraseSplitData

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
    if embeds(backbone):
        return read_split(trained, None, backbone, "test").scores()
    work = Scoring(trained, sources, "test", 16, "cpu")
    return work.join(maps.made(work, folder / "parts").paths).scores()


@pytest.mark.parametrize(("method", "backbone"), pairs(), ids=lambda name: name)
def test_scores_come_from_images_and_captions_alone(noise: Path, tmp_path: Path, method: str, backbone: str) -> None:
    step = planner(noise, backbone).plan(Need("train", method))
    (folder,) = pipeline.run([step], Reporter())
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
        chances = chance_of_recalls(scores, split.caption_image)
        assert not {name: each for name, each in chances.items() if not each.holds}, f"{when}: recall from nothing"

    # Whoever scores them, pairs have the scores of the saved model.
    same = TrainedModel(saved.model, opened_split(saved, sources, split), CPU, "fp32")
    np.testing.assert_allclose(same.scores(same.data, 16) / scale, written / scale, atol=1e-6)

    # Neither the order of the images nor that of the captions matters.
    other, images, captions = shuffled(split, 0)
    again = TrainedModel(saved.model, opened_split(saved, sources, other), CPU, "fp32")
    np.testing.assert_allclose(again.scores(again.data, 7) / scale, written[images][:, captions] / scale, atol=1e-5)


# The canary of a user's own model


def evaluate(invoke: Invoke, root: Path, backbone: str, *options: object) -> Any:
    chosen = [f"--set={each.scope}.{each.key}={json.dumps(each.value)}" for each in overrides(backbone)]
    read = [text for text in chosen if text.startswith(("--set=train.", "--set=extract."))]
    where = ("--backbone", backbone, "--dataset", "noise", "--data", root, "--set", "evaluate.bootstrap_samples=100")
    return invoke("evaluate", "--method", "triplet", *where, *read, *options)


def evaluation(root: Path, backbone: str) -> Path:
    (folder,) = root.glob(f"noise/evaluate/triplet.{backbone}-????????")
    return folder


@pytest.mark.parametrize("backbone", ["vsepp", "scan"])
def test_the_canary_tests_models_of_both_kinds_and_leaves_the_results_alone(
    noise: Path, backbone: str, invoke: Invoke
) -> None:
    plain = evaluate(invoke, noise, backbone)
    assert plain.code == 0, plain.err
    folder = evaluation(noise, backbone)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    outcome = evaluate(invoke, noise, backbone, "--canary")
    assert outcome.code == 0, outcome.err
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = json.loads(after.pop(CANARY))
    assert after == before
    check_artifact(folder, thorough=True)
    assert found["passed"]
    assert not found["telling"]  # trained on noise, the model itself is at chance
    assert "a leak could not have shown" in outcome.out
    assert f"every recall is within {LIMIT:g} standard deviations of chance" in outcome.out
    assert f"± {LIMIT:g} deviations" in outcome.out
    assert (found["images"], found["captions"], found["split"]) == (30, 150, "test")
    assert found["difference"]["value"] < 1e-3
    for kind in ("exchanged", "noise"):
        for metric, each in found[kind].items():
            assert each["low"] <= each["value"] <= each["high"]
            assert each["holds"]
            cutoff = int(metric.rpartition("r")[2])
            if metric.startswith("t2i"):
                assert each["chance"] == pytest.approx(100 * cutoff / 30)
    lines = [line.split() for line in outcome.out.splitlines()]
    shown = next(line[2:] for line in lines if line[:2] == ["images", "exchanged"])
    values = [found["exchanged"][f"{side}_r{k}"]["value"] for side in ("i2t", "t2i") for k in (1, 5, 10)]
    assert [float(number) for number in shown] == pytest.approx(values, abs=0.00501)


def test_a_model_that_knows_the_pairs_otherwise_kills_the_canary(
    noise: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(invoke, noise, "vsepp").code == 0
    honest = TrainedModel.scores

    def peeking(self: TrainedModel, rows: Any, block: int, *more: Any) -> np.ndarray:
        scores = honest(self, rows, block, *more)
        if not isinstance(rows, ExchangedImages):
            return scores
        own = self.data.caption_image
        scores[own, np.arange(len(own))] += scores.std()
        return scores

    monkeypatch.setattr(TrainedModel, "scores", peeking)
    outcome = evaluate(invoke, noise, "vsepp", "--canary")
    assert outcome.code == DataError.exit_code
    assert outcome.err.startswith("error: the canary died: with every image replaced by another one ")
    assert outcome.err.count("\n") == 1
    found = json.loads((evaluation(noise, "vsepp") / CANARY).read_text())
    assert not found["passed"]
    assert not all(each["holds"] for each in found["exchanged"].values())
    assert not all(each["holds"] for each in found["noise"].values())


@pytest.mark.parametrize(("recall", "telling"), [(26.1, True), (25.9, False)])
def test_a_canary_tells_something_where_the_model_is_above_chance(tmp_path: Path, recall: float, telling: bool) -> None:
    chances = {
        "i2t_r1": Chance(value=9.0, mean=8.0, deviation=4.0),
        "t2i_r1": Chance(value=8.0, mean=8.0, deviation=4.0),
    }
    measured = {"i2t_r1": {"value": 1.0}, "t2i_r1": {"value": recall}}
    (tmp_path / METRICS).write_text(json.dumps({FULL: measured}))
    assert can_fail(tmp_path, chances) is telling


def test_scores_that_the_saved_model_does_not_give_kill_the_canary(
    noise: Path, tmp_path: Path, invoke: Invoke, recorded: Callable[[Path], None]
) -> None:
    assert evaluate(invoke, noise, "scan").code == 0
    root = Path(shutil.copytree(noise, tmp_path / "data"))
    scored = evaluation(root, "scan") / SCORES
    with h5py.File(scored, "r+") as file:
        scores, own = file["test/scores"], np.repeat(np.arange(30), CAPTIONS)
        matrix = scores[:]  # pyright: ignore
        matrix[own, np.arange(150)] += 2 * matrix.std()  # pyright: ignore
        scores[:] = matrix  # pyright: ignore
    recorded(scored)
    outcome = evaluate(invoke, root, "scan", "--canary")
    assert outcome.code == DataError.exit_code
    assert outcome.err.startswith("error: the canary died: the saved model gives other scores than those evaluated, by")
    found = json.loads((evaluation(root, "scan") / CANARY).read_text())
    assert 1 < found["difference"]["value"] < 2.5
    assert all(each["holds"] for each in found["exchanged"].values())


@pytest.mark.parametrize("options", [("--ensemble-with", "scan"), ("--rerank", "8")])
def test_the_canary_tests_one_model_as_it_is(noise: Path, invoke: Invoke, options: tuple[str, ...]) -> None:
    outcome = evaluate(invoke, noise, "vsrn", "--canary", *options)
    assert outcome.code == UsageError.exit_code
    assert f"leave {options[0]} out" in outcome.err
    assert outcome.out == ""


class Images:
    """Forty images of two regions at most, and a vector and pixels of each."""

    num_images, num_captions = 40, 3
    rng = np.random.default_rng(0)
    count = rng.integers(1, 3, 40)
    regions = (5 + 2 * rng.standard_normal((40, 2, 4))) * (np.arange(2) < count[:, None])[..., None]
    vectors = rng.standard_normal((40, 6)) * np.arange(6)
    colours = rng.integers(0, 100, (40, 3, 8, 8))

    def images(self, rows: np.ndarray) -> ImageBatch:
        return ImageBatch(
            torch.from_numpy(self.regions[rows]).half(),
            torch.from_numpy(self.count[rows]),
            torch.from_numpy(self.vectors[rows]).half(),
            torch.from_numpy(self.colours[rows].astype(np.uint8)),
            torch.from_numpy(rows[:, None, None] * np.ones((1, 2, 4))),
        )

    def texts(self, rows: np.ndarray) -> TextBatch:
        return TextBatch(torch.from_numpy(rows)[:, None], torch.ones(len(rows), dtype=torch.int64))


def test_no_image_keeps_its_own_features() -> None:
    data, rows = Images(), np.arange(40)
    for seed in range(5):
        changed = ExchangedImages(data, seed)
        assert sorted(changed.source.tolist()) == rows.tolist()
        assert not (changed.source == rows).any()
        batch, expected = changed.images(rows[7:9]), data.images(changed.source[7:9])
        for name in ("regions", "count", "global_", "pixels", "boxes"):
            assert torch.equal(getattr(batch, name), getattr(expected, name))
        assert torch.equal(changed.texts(rows[:3]).tokens, data.texts(rows[:3]).tokens)
    assert (ExchangedImages(data, 0).source != ExchangedImages(data, 1).source).any()
    assert ExchangedImages(data, 1).source.tolist() == ExchangedImages(data, 1).source.tolist()


def test_noise_has_the_moments_of_the_split_and_nothing_else_of_it() -> None:
    data, rows = Images(), np.arange(40)
    noise = NoiseImages(data, 0, block=7)
    batch, true = noise.images(rows), data.images(rows)
    real = torch.arange(2) < data.images(noise.source).count[:, None]  # pyright: ignore
    assert batch.regions.dtype == torch.float16
    assert not batch.regions[~real].any()
    assert batch.regions[real].float().mean() == pytest.approx(5, abs=0.5)
    assert batch.regions[real].float().std() == pytest.approx(2, abs=0.4)
    assert batch.global_ is not None
    assert batch.pixels is not None
    spread = batch.global_.float().std(dim=0)
    torch.testing.assert_close(spread, true.global_.float().std(dim=0), rtol=0.5, atol=0.0)  # pyright: ignore
    assert batch.pixels.dtype == torch.uint8
    assert batch.pixels.float().mean() == pytest.approx(true.pixels.float().mean(), abs=2)  # pyright: ignore
    together = torch.stack([true.global_.flatten().float(), batch.global_.flatten().float()])  # pyright: ignore
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.2
    # However a split is cut into blocks, an image has the same noise.
    parts = [NoiseImages(data, 0, block=40).images(rows[start : start + 9]) for start in range(0, 40, 9)]
    torch.testing.assert_close(torch.cat([part.regions for part in parts]), batch.regions)
