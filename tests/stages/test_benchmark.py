"""`itrpipe evaluate --benchmark` through the chain: people's own files, the embedded dataset, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from itrpipe.analysis.questions.base import trigrams_of
from itrpipe.analysis.questions.benchmarks import pairs_of_scenes
from itrpipe.datasets.judgements import read_judgements
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.evaluation.kendall import kendall
from itrpipe.features.declaration import EXTRACTORS
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import ImageBatch
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import FeatureSplitData, TokenTexts
from itrpipe.training.saved import SavedModel, load_model
from tests.chains import CLIP, FEW, ONCE, TINY_SSAMT, Invoke, copied, done, encoders_of, only, sets
from tests.datasets.judgements import write_judgements
from tests.trained_model import pair_score

CHAIN = (*ONCE, "train.model.embed_dim=8", "train.model.word_dim=8", FEW)
WORDS = ("dog", "cat", "horse", "child", "bird")


def write_benchmark(folder: Path) -> Path:
    """Six images of different sizes with two negatives each."""
    folder.mkdir()
    random = np.random.default_rng(1)
    lines = []
    for number in range(6):
        height, width = 20 + number, 30 - number
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        texts = [f"a {word} is on the road" for word in np.roll(WORDS, number)[:3]]
        record = {"file": f"{number}.png", "caption": texts[0], "negative": texts[1:]}
        lines.append(json.dumps(record | {"category": ("first", "second")[number % 2]}))
    (folder / "benchmark.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def check_scores(saved: SavedModel, image: ImageBatch, row: dict[str, Any], tolerance: float = 1e-5) -> None:
    """The scores of a pair are those of the model."""
    assert row["score"] == pytest.approx(pair_score(saved, image, row["caption"]), abs=tolerance)
    assert row["negative_score"] == pytest.approx(pair_score(saved, image, row["negative"]), abs=tolerance)


def scored(evaluated: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The pairs and the figures of an evaluation."""
    rows = pq.read_table(evaluated / "benchmark_pairs.parquet").to_pylist()
    return rows, json.loads((evaluated / "benchmarks.json").read_text())


def test_a_pixel_model_reads_the_images_of_a_benchmark(
    clip_chain: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    root, folder = copied(clip_chain, tmp_path / "data"), write_benchmark(tmp_path / "own")
    small = sets(*CLIP, *encoders_of(saved_encoders, "clip"), FEW)
    asked = ("evaluate", "--method", "zero-shot", "--dataset", "tiny", "--data", root, *small, "--benchmark")
    shutil.rmtree(only(root, "evaluate/zero-shot.dual-encoder"))
    done(invoke(*asked, f"local={folder}"))
    evaluated = only(root, "evaluate/zero-shot.dual-encoder")
    saved = load_model(only(root, "train/zero-shot.dual-encoder"))
    rows, figures = scored(evaluated)
    assert len(rows) == 12
    assert saved.images is not None
    for row in rows:
        with Image.open(folder / row["file"]) as image:
            pixels = saved.images.framed(np.asarray(image))[None]
        check_scores(saved, ImageBatch(torch.empty(1, 0, 0), pixels=pixels), row)
        assert row["right"] is (row["score"] > row["negative_score"])
    found = figures["local"]
    assert (found["pairs"], found["images"]) == (12, 6)
    assert found["accuracy"]["value"] == pytest.approx(100 * np.mean([row["right"] for row in rows]))
    assert found["accuracy"]["low"] <= found["accuracy"]["value"] <= found["accuracy"]["high"]
    assert {name: each["pairs"] for name, each in found["categories"].items()} == {"first": 6, "second": 6}
    assert read_manifest(evaluated).metrics["local benchmark"] == f"{found['accuracy']['value']:.1f} %"

    moved = copied(folder, tmp_path / "moved")
    again = done(invoke(*asked, f"local={moved}"))
    assert "✓ evaluate/zero-shot.dual-encoder" in again  # where it lies does not count
    done(invoke("report", "--dataset", "tiny", "--data", root))
    assert "own negatives first" in (only(root, "report/page") / "index.html").read_text()
    shutil.copy(moved / "0.png", moved / "1.png")
    dry = done(invoke(*asked, f"local={moved}", "--dry-run"))
    assert "benchmark local images changed" in " ".join(dry.split())


def test_a_model_and_judges_are_compared_with_people(
    clip_chain: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    folder = write_judgements(tmp_path / "own", photographs="images")
    judged = ("--judge", "captions:tfidf", "--benchmark", f"flickr8k-judgements={folder}")
    alone = invoke("evaluate", *judged)
    assert re.search(r"captions:tfidf, experts: auc\s+100\.0", done(alone)), "without any model or dataset"

    root = copied(clip_chain, tmp_path / "data")
    small = sets(*CLIP, *encoders_of(saved_encoders, "clip"), FEW)
    asked = ("evaluate", "--method", "zero-shot", "--dataset", "tiny", "--data", root, *small)
    shutil.rmtree(only(root, "evaluate/zero-shot.dual-encoder"))
    done(invoke(*asked, *judged))
    evaluated = only(root, "evaluate/zero-shot.dual-encoder")
    found = json.loads((evaluated / "agreement.json").read_text())
    assert found.keys() == {"captions:tfidf", "model"}
    saved = load_model(only(root, "train/zero-shot.dual-encoder"))
    assert saved.images is not None
    judgements = read_judgements(str(folder))
    experts = judgements.answers["experts"]
    scores = []
    for image, caption in zip(experts.images, experts.captions, strict=True):
        with Image.open(folder / "images" / judgements.files[image]) as picture:
            pixels = saved.images.framed(np.asarray(picture))[None]
        scores.append(pair_score(saved, ImageBatch(torch.empty(1, 0, 0), pixels=pixels), judgements.captions[caption]))
    tau = kendall(np.repeat(scores, 3), experts.values.ravel()).c
    assert found["model"]["experts"]["tau"] == pytest.approx(100 * tau)


def write_aro(folder: Path) -> Path:
    """Three images with several boxes each, as ARO has them."""
    (folder / "images").mkdir(parents=True)
    random, records = np.random.default_rng(2), []
    for number in range(3):
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"images/{number}.jpg")
        for box in ((0, 0, 50, 40), (5, 10, 20, 20), (30, 20, 30, 25)):
            sides = dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), box, strict=True))
            said = {"true_caption": "the dog is on the cat", "false_caption": "the cat is on the dog"}
            about = {"relation_name": ("on", "in")[number % 2], "attributes": ["red", "wet"]}
            records.append({"image_path": f"{number}.jpg", **sides, **said, **about})
    for name in ("relation", "attribution"):
        (folder / f"visual_genome_{name}.json").write_text(json.dumps(records))
    return folder


def test_a_region_model_reads_parts_of_images_by_the_extractor_of_the_dataset(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    where = ["--dataset", "tiny", "--data", defined]
    done(invoke("extract", *where, "--features", "vit", f"--set=model={saved_encoders / 'vit'}"))
    asked = ("--benchmark", f"aro={write_aro(tmp_path / 'aro')}")
    done(invoke("evaluate", *where, "--backbone", "vsepp", "--features", "vit", *sets(*CHAIN), *asked))
    rows, found = scored(only(defined, "evaluate/triplet.vsepp"))
    whole = [row for row in rows if row["box"] == [0, 0, 50, 40]]
    assert len(whole) == 6
    saved = load_model(only(defined, "train/triplet.vsepp"))
    settings = {"model": str(saved_encoders / "vit"), "revision": "main", "weights": "pretrained", "precision": "fp32"}
    extractor = EXTRACTORS.module("vision").build(
        EXTRACTORS.classes["vision"].model_validate({"kind": "vision"} | settings), torch.device("cpu")
    )
    for row in rows[::4]:
        folder = tmp_path / row["benchmark"]
        with Image.open(folder / row["file"]) as opened:
            pixels = np.asarray(opened if row["box"] is None else opened.crop(row["box"]))
        made = extractor(torch.from_numpy(extractor.transform(pixels))[None], np.array([pixels.shape[:2]]))
        check_scores(saved, ImageBatch(torch.from_numpy(made["regions"].astype(np.float16))), row, 1e-3)
    assert (found["aro"]["pairs"], found["aro"]["images"]) == (18, 3)
    assert "macro" in found["aro"]["categories"]["relation"]
    assert "macro" not in found["aro"]["categories"]["attribution"]  # fewer than 25 cases


@pytest.fixture
def drawn(tags_chain: Path, tmp_path: Path) -> Path:
    """A data folder with a few scenes and their graphs, this test's own."""
    return copied(tags_chain, tmp_path / "data")


def test_the_embedded_dataset_makes_its_own(drawn: Path, invoke: Invoke) -> None:
    given = ["--backbone", "vsepp", "--data", drawn, *sets(*CHAIN)]
    done(invoke("evaluate", *given, "--benchmark", "scenes"))
    evaluated = only(drawn, "evaluate/triplet.vsepp")
    rows, figures = scored(evaluated)
    found = figures["scenes"]
    assert {"swap_att", "replace_obj", "replace_att"} <= set(found["categories"])
    saved, prepare = load_model(only(drawn, "train/triplet.vsepp")), only(drawn, "prepare/scenes")
    split = PreparedDataset.open(prepare).split("test")
    data = FeatureSplitData(
        split, FeatureFile.open(only(drawn, "extract/scenes") / FEATURES), TokenTexts.of(split, saved.tokens)
    )
    places = {name: row for row, name in enumerate(split.image_ids.tolist())}
    texts = set(split.texts)
    for row in rows[::7]:
        assert row["caption"] in texts
        check_scores(saved, data.images(np.array([places[row["file"]]])), row)
    manifest, settings = SimpleNamespace(settings={"train_share": 1.0}), SimpleNamespace(split="test")
    evaluation: Any = SimpleNamespace(existing=lambda name: prepare, manifest=manifest, settings=settings)
    made = pairs_of_scenes(evaluation, cast(Any, split), trigrams_of(evaluation, cast(Any, split)))
    assert [(row["id"], row["negative"]) for row in rows] == [(pair.id, pair.negative) for pair in made]
    assert read_manifest(evaluated).sources == {"benchmark scenes": "edits 2"}
    again = done(invoke("evaluate", *given, "--benchmark", "scenes"))
    assert "✓ evaluate/triplet.vsepp" in again
    assert f"{found['accuracy']['value']:.1f}" in again.split()


def test_a_model_that_reads_phrases_reads_those_of_both_sentences(drawn: Path, invoke: Invoke) -> None:
    small = sets(*ONCE, FEW, *TINY_SSAMT, "parse.workers=1")
    done(invoke("evaluate", "--method", "ssamt", "--data", drawn, *small, "--benchmark", "scenes"))
    evaluated = only(drawn, "evaluate/ssamt.ssamt")
    rows, _ = scored(evaluated)
    known = read_scores(evaluated / SCORES, "test")  # of all pairs, in bfloat16
    split = PreparedDataset.open(only(drawn, "prepare/scenes")).split("test")
    captions = dict(zip(zip(split.caption_image.tolist(), split.texts, strict=True), count(), strict=False))
    places = {name: row for row, name in enumerate(split.image_ids.tolist())}
    for row in rows:
        image = places[row["file"]]
        wanted = float(known.matrix[image, captions[image, row["caption"]]])
        assert row["score"] == pytest.approx(wanted, abs=2e-3)
    assert 0 < sum(row["right"] for row in rows) < len(rows)
