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
from itrpipe.commands.stages import run_stage
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.dual_encoder.network import TransformerDualEncoder
from itrpipe.plan.planning import parse_override
from itrpipe.storage.artifact import WORD_MAPS, read_manifest
from itrpipe.training.captions import PieceIds, Reading, WordIds, clean
from itrpipe.training.data import Sources, open_split
from itrpipe.training.saved import load_model

MODEL = ["image_size=[32, 50]", "width=16", "vision_layers=1", "text_layers=1", "vision=random", "text=random"]
SMALL = ["train.epochs=1", "train.batch_size=20", "train.min_word_count=1", "evaluate.bootstrap_samples=100"]
PIXELS = ["pixels.height=32", "pixels.width=48", "pixels.fit=crop", "extract.workers=0"]


def evaluated(root: Path, method: str, *model: str) -> Path:
    """Folder of the evaluation of a dual encoder."""
    chosen = [f"train.model.{each}" for each in (*MODEL, *model)]
    given = [f"method={method}", "backbone=dual-encoder", *SMALL, *PIXELS, *chosen]
    return run_stage(root, "tiny", "evaluate", [parse_override(text) for text in given])


@pytest.fixture(scope="module")
def data(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("maps") / "data"))


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    return evaluated(data, "triplet")


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    table = pq.read_table(folder / WORD_MAPS)
    assert table.schema.equals(WORD_MAP_SCHEMA)
    return table.to_pylist()


def trained(folder: Path) -> Path:
    return folder.parents[1] / "train" / read_manifest(folder).inputs["train"].name


def sources(folder: Path) -> Sources:
    read = read_manifest(trained(folder)).inputs
    return Sources(*(folder.parents[1] / name / read[name].name for name in ("prepare", "extract")))  # pyright: ignore


def maps_of(folder: Path, row: dict[str, Any]) -> tuple[np.ndarray, list[int]]:
    """What the model gives for the image and the caption of a row, [1 + patches, W], and the caption's tokens."""
    saved, read = load_model(trained(folder)), sources(folder)
    assert isinstance(saved.model, TransformerDualEncoder)
    split = PreparedDataset.open(read.prepare).split("test")
    whole = open_split(split, FeatureFile.open(read.extract / FEATURES), saved.tokens, saved.settings, saved.frame)
    image = np.array([split.image_ids.tolist().index(row["image_id"])])
    texts = whole.texts(np.array([split.caption_ids.tolist().index(row["caption_id"])]))
    with torch.no_grad():
        return saved.model.word_maps(whole.images(image), texts)[0].numpy(), texts.tokens[0].tolist()


def test_some_captions_come_with_their_own_image_and_with_the_wrong_one_that_scores_highest(
    folder: Path, rows: list[dict[str, Any]]
) -> None:
    written = read_embeddings(trained(folder) / EMBEDDINGS, "test")
    scores = written.scores()
    pairs = {(row["caption_id"], row["matched"]): (row["image_id"], row["score"]) for row in rows}
    captions = [written.caption_ids.tolist().index(caption) for caption, matched in pairs if matched]
    assert captions == sorted(captions)
    assert len(pairs) == 2 * len(captions) == 2 * EXAMPLES
    for caption in captions:
        own = int(written.caption_image[caption])
        wrong = max(set(range(4)) - {own}, key=lambda image, caption=caption: scores[image, caption])
        for matched, image in ((True, own), (False, wrong)):
            name, score = pairs[written.caption_ids[caption], matched]
            assert name == written.image_ids[image]
            assert score == pytest.approx(scores[image, caption], abs=1e-3)


def test_every_word_of_a_caption_has_a_row_for_each_image(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Of 12 x 16 pixels a part of the shape 2 : 3 is kept, of whose 50 columns the patches of 16 cover 48."""
    assert all(row["area"] == pytest.approx([0, 1 / 18, 48 / 50, 17 / 18], abs=1e-6) for row in rows)
    split = PreparedDataset.open(sources(folder).prepare).split("test")
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    for example in range(EXAMPLES):
        own, wrong = ([row for row in rows if (row["example"], row["matched"]) == (example, side)] for side in (1, 0))
        words = [row["text"][row["start"] : row["end"]] for row in own]
        assert words == clean(texts[own[0]["caption_id"]]).split()
        assert words == [row["text"][row["start"] : row["end"]] for row in wrong]


def test_values_are_the_maps_of_the_model_without_its_class_token(folder: Path, rows: list[dict[str, Any]]) -> None:
    last = [row for row in rows if row["example"] == 7 and not row["matched"]]
    maps, _ = maps_of(folder, last[0])
    assert maps.shape == (7, len(last) + 2)  # two rows and three columns behind the class token; start and end
    for place, row in enumerate(last, 1):
        assert (row["rows"], row["columns"]) == (2, 3)
        np.testing.assert_allclose(row["values"], maps[1:, place], atol=1e-5)
        assert row["word_score"] == pytest.approx(maps[:, place].mean(), abs=1e-5)
        assert row["score"] == pytest.approx(maps.mean(), abs=1e-5)


def test_a_model_whose_scores_are_no_means_is_evaluated_without_maps(data: Path) -> None:
    folder = evaluated(data, "triplet", "text_pool=cls")
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


def test_a_word_in_pieces_has_the_mean_of_their_maps(
    data: Path, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = evaluated(data, "triplet", f"vision={saved_encoders / 'vit'}", f"text={saved_encoders / 'bert'}")
    rows = pq.read_table(folder / WORD_MAPS).to_pylist()
    (row, *_) = [
        each
        for each in rows
        if each["text"][each["start"] : each["end"]].isdigit() and each["end"] - each["start"] == 2
    ]
    maps, tokens = maps_of(folder, row)
    pieces = load_model(trained(folder)).tokens.tokenizer.convert_ids_to_tokens(tokens)  # pyright: ignore
    second = next(place for place, piece in enumerate(pieces) if piece.startswith("##"))
    expected = maps[1:, [second - 1, second]].mean(axis=1)
    np.testing.assert_allclose(row["values"], expected, atol=1e-5)
