"""Word maps of a trained dual encoder: which captions, images, words and values; and when there are none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from itrpipe.analysis.word_maps import EXAMPLES, WORD_MAP_SCHEMA, has_word_maps, located_words
from itrpipe.cli.asked import run_stage
from itrpipe.config import parse_override
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.captions import PieceIds, Reading, WordIds, clean
from itrpipe.models.dual_encoder.network import TransformerDualEncoder
from itrpipe.storage.artifact import WORD_MAPS, read_manifest
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model

RANDOM = ("image_size=[32, 50]", "width=16", "vision_layers=1", "text_layers=1", "vision=random", "text=random")
SMALL = ["train.epochs=1", "train.batch_size=20", "train.min_word_count=1", "evaluate.bootstrap_samples=100"]
PIXELS = ["pixels.height=32", "pixels.width=48", "pixels.fit=crop", "extract.workers=0"]


def evaluated(root: Path, method: str, *model: str) -> Path:
    """Folder of the evaluation of a dual encoder."""
    chosen = [f"train.model.{each}" for each in model]
    given = [f"method={method}", "backbone=dual-encoder", *SMALL, *PIXELS, *chosen]
    return run_stage(root, "tiny", "evaluate", [parse_override(text) for text in given])


@pytest.fixture(scope="module")
def data(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("maps") / "data"))


def trained(folder: Path) -> Path:
    return folder.parents[1] / "train" / read_manifest(folder).inputs["train"].name


def check(folder: Path, columns: int, right: float) -> None:
    """Compares all rows with the maps of the model, of captions as they are drawn with the best wrong image, too."""
    table, saved = pq.read_table(folder / WORD_MAPS), load_model(trained(folder))
    assert table.schema.equals(WORD_MAP_SCHEMA)
    assert isinstance(saved.model, TransformerDualEncoder)
    assert isinstance(saved.tokens, (WordIds, PieceIds))
    read = read_manifest(trained(folder)).inputs
    places = [folder.parents[1] / name / read[name].name for name in ("prepare", "extract")]
    split, features = PreparedDataset.open(places[0]).split("test"), FeatureFile.open(places[1] / FEATURES)
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    scores, expected = read_embeddings(trained(folder) / EMBEDDINGS, "test").scores(), []
    captions = sorted(np.random.default_rng(0).permutation(20)[:EXAMPLES].tolist())
    for example, caption in enumerate(captions):
        own = int(split.caption_image[caption])
        wrong = max({*range(4)} - {own}, key=lambda image, caption=caption: scores[image, caption])
        ((text, words),) = located_words(saved.tokens, split_of([split.texts[caption]]))
        assert text == clean(split.texts[caption])
        for image in (own, wrong):
            with torch.no_grad():
                encoded = data.texts(np.array([caption]))
                maps = saved.model.word_maps(data.images(np.array([image])), encoded)[0].numpy()  # [1 + patches, W]
            assert maps.mean() == pytest.approx(scores[image, caption], abs=1e-3)
            for start, end, at in words:
                row = {"example": example, "matched": image == own, "text": text, "start": start, "end": end}
                row |= {"caption_id": split.caption_ids[caption], "image_id": split.image_ids[image], "rows": 2}
                row |= {"columns": columns, "values": pytest.approx(maps[1:, list(at)].mean(axis=1), abs=1e-5)}
                row |= {"area": pytest.approx([0, 1 / 18, right, 17 / 18], abs=1e-6)}
                row |= {"word_score": pytest.approx(maps[:, list(at)].mean(), abs=1e-5)}
                expected.append(row | {"score": pytest.approx(maps.sum(axis=1).mean() / maps.shape[1], abs=1e-5)})
    assert table.to_pylist() == expected


def test_every_word_of_some_captions_has_its_map_on_two_images(data: Path) -> None:
    # Of 12 x 16 pixels a part of the shape 2 : 3 is kept, of whose 50 columns the patches of 16 cover 48.
    check(evaluated(data, "triplet", *RANDOM), 3, 48 / 50)


def test_a_word_in_pieces_has_the_mean_of_their_maps(data: Path, saved_encoders: Path) -> None:
    check(evaluated(data, "triplet", f"vision={saved_encoders / 'vit'}", f"text={saved_encoders / 'bert'}"), 2, 1.0)


def test_a_model_whose_scores_are_no_means_is_evaluated_without_maps(data: Path) -> None:
    folder = evaluated(data, "triplet", *RANDOM, "text_pool=cls")
    assert (folder / "metrics.json").exists()
    assert not (folder / WORD_MAPS).exists()
    assert not has_word_maps(load_model(trained(folder)))


def split_of(texts: list[str]) -> Split:
    columns = {"caption_id": [str(row) for row in range(len(texts))], "image_id": ["a"] * len(texts), "text": texts}
    words = pa.array([text.lower().replace(".", " .").replace(",", " ,").split() for text in texts])
    return Split("test", pa.table({"image_id": ["a"]}), pa.table({**columns, "tokens": words}))


def found_in(tokens: Any, text: str) -> list[tuple[str, tuple[int, ...]]]:
    ((read, words),) = located_words(tokens, split_of([text]))
    return [(read[start:end], places) for start, end, places in words]


@pytest.mark.parametrize(
    ("cleaned", "most", "expected"),
    [
        (True, 30, ["a", "wet", "dog", "runs", "away"]),
        (True, 3, ["a", "wet", "dog"]),
        (False, 30, ["A", "wet-dog", ",", "runs", "away", "."]),
        (False, 2, ["A", "wet-dog"]),
    ],
)
def test_words_of_a_vocabulary_follow_the_start(cleaned: bool, most: int, expected: list[str]) -> None:
    tokens = WordIds(Vocabulary(("<pad>", "<start>", "<end>", "<unk>", "dog")), Reading(cleaned, most))
    text = "A wet-dog,  runs away."
    assert found_in(tokens, text) == [(word, (place,)) for place, word in enumerate(expected, 1)]
    assert tokens.encode_split(split_of([text]))[1].tolist() == [len(expected) + 2]


def test_pieces_belong_to_the_word_that_they_end_in(saved_encoders: Path) -> None:
    pieces = PieceIds(transformers.AutoTokenizer.from_pretrained(saved_encoders / "bert"), Reading(False, 30), 40)
    assert found_in(pieces, "a dog, number 1234 is-on the road.") == [
        ("a", (1,)),
        ("dog", (2,)),
        ("number", (4,)),
        ("1234", (5, 6, 7, 8)),
        ("is-on", (9, 10, 11)),
        ("the", (12,)),
        ("road", (13,)),
    ]
    short = PieceIds(pieces.tokenizer, Reading(False, 30), 7)
    assert found_in(short, "a dog, number 1234 is-on the road.")[-1] == ("1234", (5,))
