"""Word maps of a trained dual encoder: which words and values; and when there are none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from itrpipe.analysis.word_maps import has_word_maps, located_words, pair_map
from itrpipe.config import parse_override
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.captions import PieceIds, Reading, WordIds, clean
from itrpipe.models.dual_encoder.network import TransformerDualEncoder
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.data import Sources, open_split
from itrpipe.training.saved import load_model
from tests.chains import run_stage

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
    """Compares the words of some captions, on two images, with the maps of the model."""
    saved, read = load_model(trained(folder)), read_manifest(trained(folder)).inputs
    assert has_word_maps(saved)
    assert isinstance(saved.model, TransformerDualEncoder)
    assert isinstance(saved.tokens, (WordIds, PieceIds))
    prepare, extract = (folder.parents[1] / name / read[name].name for name in ("prepare", "extract"))
    sources = Sources(prepare, extract)
    split, features = PreparedDataset.open(sources.prepare).split("test"), FeatureFile.open(sources.extract / FEATURES)
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    scores = read_embeddings(trained(folder) / EMBEDDINGS, "test").scores()
    for caption, image in ((0, 0), (0, 1), (7, 1), (7, 2)):
        ((text, words),) = located_words(saved.tokens, split_of([split.texts[caption]]))
        assert text == clean(split.texts[caption])
        with torch.no_grad():
            encoded = data.texts(np.array([caption]))
            maps = saved.model.word_maps(data.images(np.array([image])), encoded)[0].numpy()  # [1 + patches, W]
        assert maps.mean() == pytest.approx(scores[image, caption], abs=1e-3)
        expected = []
        for start, end, at in words:
            row = {"text": text, "start": start, "end": end, "rows": 2, "columns": columns}
            row |= {"area": pytest.approx([0, 1 / 18, right, 17 / 18], abs=1e-6)}
            row |= {"values": pytest.approx(maps[1:, list(at)].mean(axis=1), abs=1e-5)}
            expected.append(row | {"word_score": pytest.approx(maps[:, list(at)].mean(), abs=1e-5)})
        assert pair_map(saved, sources, "test", str(split.image_ids[image]), split.texts[caption]) == expected


def test_every_word_of_a_sentence_has_its_map_on_any_image(data: Path) -> None:
    # Of 12 x 16 pixels a part of the shape 2 : 3 is kept, of whose 50 columns the patches of 16 cover 48.
    check(evaluated(data, "triplet", *RANDOM), 3, 48 / 50)


def test_a_word_in_pieces_has_the_mean_of_their_maps(data: Path, saved_encoders: Path) -> None:
    check(evaluated(data, "triplet", f"vision={saved_encoders / 'vit'}", f"text={saved_encoders / 'bert'}"), 2, 1.0)


def test_a_model_whose_scores_are_no_means_has_no_maps(data: Path) -> None:
    folder = evaluated(data, "triplet", *RANDOM, "text_pool=cls")
    assert (folder / "metrics.json").exists()
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
