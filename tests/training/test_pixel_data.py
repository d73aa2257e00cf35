"""Batches of pixels: random changes of images, and captions as token ids."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as image_functional

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError
from itrpipe.features.store import FeatureFile, FeatureSpec, write_features
from itrpipe.methods.declaration import method_module, methods
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.training import augment as changes
from itrpipe.training.augment import augment, crop_boxes, draw_changes, resampled, resize
from itrpipe.training.captions import CaptionTokens, PieceIds, Reading, WordIds, clean, load_tokens, save_tokens
from itrpipe.training.data import GlobalSplitData, PixelSplitData, TokenTexts
from itrpipe.training.distributed import ALONE, OwnImages, World

IDS = ["a", "b", "c"]
TEXTS = ["A dog is on the road.", "A cat, number 7!", "the beach", "A horse-child is on (a) field/roof"]
VOCABULARY = Vocabulary(("<pad>", "<start>", "<end>", "<unk>", "a", "dog", "is", "on", "the", "road"))
READING = Reading(cleaned=True, max_words=30)


def split_of(texts: list[str]) -> Split:
    images = pa.table({"image_id": pa.array(IDS)})
    words = [text.lower().replace(".", " .").split() for text in texts]
    owners = [IDS[min(row, 2)] for row in range(len(texts))]
    columns = {"caption_id": [str(row) for row in range(len(texts))], "image_id": owners, "text": texts}
    return Split("train", images, pa.table({**columns, "tokens": pa.array(words, pa.list_(pa.string()))}))


def stored_pixels(height: int = 12, width: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8)


@pytest.fixture
def features(tmp_path: Path) -> FeatureFile:
    """Pixels and global vectors of three images, in another order than the split's."""
    path = tmp_path / "features.h5"
    rows = {"pixels": stored_pixels(), "global": np.arange(15, dtype=np.float16).reshape(3, 5)}
    write_features(path, IDS[::-1], FeatureSpec(0, 0, 5, pixels=(12, 16)), "pixels", [(np.arange(3), rows)])
    return FeatureFile.open(path)


def opened(features: FeatureFile, kind: str, frame: tuple[int, int] = (12, 16)) -> PixelSplitData:
    return PixelSplitData(split_of(TEXTS), features, WordIds(VOCABULARY, READING), frame, kind)


def batch() -> torch.Tensor:
    return torch.from_numpy(stored_pixels()).permute(0, 3, 1, 2)


def test_images_come_as_they_are_stored_or_in_the_size_of_the_frame(features: FeatureFile) -> None:
    plain = opened(features, "full").images(np.array([2, 0]))
    assert plain.pixels is not None
    assert torch.equal(plain.pixels, batch()[[0, 2]])  # stored the other way round
    smaller = opened(features, "full", (6, 8)).images(np.array([2]))
    assert smaller.pixels is not None
    assert torch.equal(smaller.pixels, resize(batch()[:1], (6, 8)))
    assert (smaller.pixels.shape, smaller.pixels.dtype) == ((1, 3, 6, 8), torch.uint8)


def test_only_batches_with_a_generator_change_and_equal_generators_change_alike(features: FeatureFile) -> None:
    data, rows = opened(features, "full"), np.array([0, 1, 2])

    def pixels(*rng: np.random.Generator) -> torch.Tensor:
        found = data.pairs(rows, rows, *rng)[0].pixels
        assert found is not None
        return found

    assert torch.equal(pixels(), batch()[[2, 1, 0]])
    first, again, other = (pixels(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, pixels())
    unchanged = opened(features, "none").pairs(rows, rows, np.random.default_rng(1))[0].pixels
    assert unchanged is not None
    assert torch.equal(unchanged, pixels())


@pytest.mark.parametrize("name", ["triplet", "aoq", "fne"])
def test_methods_train_on_changed_images(name: str, features: FeatureFile) -> None:
    lists = {"texts_for_images": np.array([[1], [2], [0]]), "images_for_texts": np.array([[1], [2], [0], [0]])}
    module = method_module(name)
    small: dict[str, Any] = {"top_texts": 1, "top_images": 1} if name == "aoq" else {}
    batches = []
    for kind in ("none", "crop", "crop"):
        made = module.build(methods()[name](**small), opened(features, kind), lists)
        pairs = made.collate(np.arange(3), np.random.default_rng(4)).pairs
        batches.append({group: images.pixels for group, (images, _) in pairs.items()})
    for group, pixels in batches[0].items():
        assert torch.equal(batches[1][group], batches[2][group])
        assert not torch.equal(batches[1][group], pixels)


def changed(images: torch.Tensor, kind: str, seed: int, pool: ThreadPoolExecutor | None = None) -> torch.Tensor:
    """Images of 12 by 16 pixels, by draws of a seed."""
    return augment(images, (12, 16), draw_changes(len(images), (12, 16), kind, np.random.default_rng(seed)), pool)


@pytest.mark.parametrize("kind", ["crop", "flip", "full"])
def test_each_image_has_draws_of_its_own_whatever_threads_do(kind: str) -> None:
    same = batch()[:1].expand(16, -1, -1, -1)
    found = changed(same, kind, 3)
    assert len({image.numpy().tobytes() for image in found}) > 12
    with ThreadPoolExecutor(4) as pool:
        assert torch.equal(changed(same, kind, 3, pool), found)
    other = batch()[1:2].expand(16, -1, -1, -1).clone()
    other[5] = same[5]
    assert torch.equal(changed(other, kind, 3)[5], found[5])


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32))
def test_crops_lie_within_the_image(height: int, width: int, seed: int) -> None:
    boxes = crop_boxes(8, height, width, np.random.default_rng(seed))
    assert boxes[:, :2].min() >= 0
    assert boxes[:, 2:].min() >= 1
    assert (boxes[:, 0] + boxes[:, 2]).max() <= height
    assert (boxes[:, 1] + boxes[:, 3]).max() <= width


def test_crops_have_the_areas_and_shapes_of_the_paper() -> None:
    boxes = crop_boxes(2000, 384, 384, np.random.default_rng(0))
    shares, ratios = boxes[:, 2] * boxes[:, 3] / 384**2, boxes[:, 3] / boxes[:, 2]
    assert 0.49 < shares.min() < 0.52
    assert 0.97 < shares.max() <= 1.0
    assert 0.74 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.35
    assert boxes[:, 0].max() > 80
    assert boxes[:, 1].max() > 80


@pytest.mark.parametrize("frame", [(24, 20), (70, 90)])
def test_products_of_matrices_crop_and_resize_as_torchvision_does(frame: tuple[int, int]) -> None:
    """But for rounding: torchvision's own way for bytes rounds between the axes, and here it computes in floats."""
    images = torch.randint(0, 256, (8, 3, 40, 50), dtype=torch.uint8)
    boxes = crop_boxes(8, 40, 50, np.random.default_rng(0))
    boxes[0] = (0, 0, 40, 50)
    found = resampled(images, frame, boxes)
    assert found.dtype == torch.uint8
    for image, (top, left, height, width), mine in zip(images, boxes, found, strict=True):
        part = image[:, top : top + height, left : left + width].float()
        bicubic = image_functional.InterpolationMode.BICUBIC
        expected = image_functional.resize(part, list(frame), bicubic, antialias=True).clamp(0, 255)
        assert (mine.float() - expected).abs().max() <= 0.51


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["crop", "flip", "full"])
def test_a_gpu_changes_images_as_a_processor_does(kind: str) -> None:
    rows = torch.arange(48, dtype=torch.float32)
    smooth = (rows[:, None] + rows).expand(32, 3, 48, 48) * 2 + torch.arange(32)[:, None, None, None]
    images, drawn = smooth.to(torch.uint8), draw_changes(32, (48, 48), kind, np.random.default_rng(0))
    here, there = augment(images, (32, 32), drawn), augment(images.cuda(), (32, 32), drawn).cpu()
    near = (here.float() - there.float()).abs() <= 2
    assert near.float().mean() > (0.97 if kind == "full" else 0.9999)  # equalising tells neighbours apart


def test_each_of_several_processes_reads_and_changes_the_images_that_it_encodes(features: FeatureFile) -> None:
    rows = np.array([0, 1, 2])
    whole = opened(features, "full").pairs(rows, rows, np.random.default_rng(1))[0].pixels
    assert whole is not None
    shares, after = [], []
    for rank in range(2):
        data, rng = opened(features, "full"), np.random.default_rng(1)
        data.train_on(World(rank, 2), torch.device("cpu"))
        found, texts = data.pairs(rows, rows, rng)
        assert isinstance(found, OwnImages)
        assert (found.rows, len(texts.tokens)) == (3, 3)
        assert found.pixels is not None
        assert isinstance(found.to("cpu"), OwnImages)
        shares.append(found.pixels)
        after.append(rng.random())
    assert torch.equal(torch.cat(shares), whole)
    assert after[0] == after[1]  # as many draws, for what comes next
    alone = opened(features, "none")
    alone.train_on(World(1, 4), torch.device("cpu"))
    assert not isinstance(alone.pairs(rows, rows)[0], OwnImages)  # every process encodes so few


def test_images_for_a_gpu_go_through_memory_that_is_used_again(features: FeatureFile) -> None:
    data = opened(features, "none")
    data.train_on(ALONE, torch.device("meta"))  # takes anything
    rows, held = [np.array(each) for each in ([0, 1], [2], [2, 0, 1, 2], [1])], []
    for each in rows:
        found = data.pairs(each, each)[0].pixels
        assert found is not None
        assert (found.device.type, found.shape) == ("meta", (len(each), 3, 12, 16))
        held.append(data._own.buffer)
        expected = torch.from_numpy(stored_pixels()[2 - each])  # stored the other way round
        assert torch.equal(held[-1][: len(each)], expected)
    assert held[0] is held[1]
    assert held[2] is held[3]


def test_only_flips_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SMALLEST_AREA", 1.0)
    monkeypatch.setattr(changes, "RATIO", (1.0, 1.0))
    image = batch()[:1]
    same = image.expand(40, -1, -1, -1)
    assert torch.equal(changed(same, "crop", 0), same)
    flipped = changed(same, "flip", 0)
    mirrored = [torch.equal(each, image[0].flip(-1)) for each in flipped]
    assert 10 < sum(mirrored) < 30
    assert all(torch.equal(each, image[0]) for each, mirror in zip(flipped, mirrored, strict=True) if not mirror)


def test_every_other_operation_is_left_out() -> None:
    drawn = draw_changes(4000, (40, 40), "full", np.random.default_rng(0))
    assert np.bincount(drawn.operations.ravel()).min() > 700
    left_out, one, minus_one = ((drawn.signs == sign).mean() for sign in (0, 1, -1))
    assert abs(left_out - 0.5) < 0.02
    assert abs(one - minus_one) < 0.02
    assert not draw_changes(50, (40, 40), "flip", np.random.default_rng(0)).signs.any()


def test_operations_are_as_strong_as_their_level_says() -> None:
    image = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (3, 40, 40), dtype=np.uint8))
    brighter = changes._OPERATIONS[3](image, 1.0)
    assert torch.equal(brighter, image_functional.adjust_brightness(image, 1.36))
    right = changes._warped(image, shift=(10 / 40, 0))
    assert torch.equal(right[:, :, 10:], image[:, :, :-10])
    assert (right[:, :, :10] == 128).all()
    turned = changes._OPERATIONS[9](torch.full((3, 40, 40), 10, dtype=torch.uint8), 1.0)
    assert (turned[:, 0, 0] == 128).all()
    assert (turned[:, 20, 20] == 10).all()
    assert len(changes._OPERATIONS) == 10


def test_global_vectors_stand_for_images(features: FeatureFile) -> None:
    data = GlobalSplitData(split_of(TEXTS), features, WordIds(VOCABULARY, READING))
    found = data.images(np.array([0, 2]))
    assert found.global_ is not None
    assert found.global_.tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]
    assert data.image_dim == 5
    assert data.region_counts.tolist() == [1, 1, 1]


def test_features_without_pixels_are_refused(tmp_path: Path) -> None:
    write_features(tmp_path / "features.h5", IDS, FeatureSpec(2, 4), "none", [])
    file = FeatureFile.open(tmp_path / "features.h5")
    with pytest.raises(DataError, match=r"holds no pixels.*give --features pixels"):
        opened(file, "none")
    with pytest.raises(DataError, match="holds no global vectors"):
        GlobalSplitData(split_of(TEXTS), file, WordIds(VOCABULARY, READING))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man's dog, well - it barks!", "a mans dog well it barks"),
        (
            '<person> with a half-full glass and/or: "wine" (red); 1*2 ~ #3?',
            "person with a half full glass and or wine red 12 3",
        ),
        ("  ", ""),
    ],
)
def test_captions_are_cleaned(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_words_have_ids_of_the_vocabulary() -> None:
    tokens, lengths = WordIds(VOCABULARY, READING).encode_split(split_of(TEXTS[:1]))
    assert tokens.tolist() == [[1, 4, 5, 6, 7, 8, 9, 2]]
    as_prepared, _ = WordIds(VOCABULARY, Reading(cleaned=False, max_words=30)).encode_split(split_of(TEXTS[:1]))
    assert as_prepared.tolist() == [[1, 4, 5, 6, 7, 8, 9, 3, 2]]  # the full stop is a word there
    short, lengths = WordIds(VOCABULARY, Reading(cleaned=True, max_words=2)).encode_split(split_of(TEXTS[:3]))
    assert short.tolist() == [[1, 4, 5, 2], [1, 4, 3, 2], [1, 8, 3, 2]]
    assert lengths.tolist() == [4, 4, 4]


def pieces(root: Path, max_tokens: int = 40, reading: Reading = READING) -> PieceIds:
    from itrpipe.models.dual_encoder.towers import load_tokenizer

    return PieceIds(load_tokenizer(root / "bert"), reading, max_tokens)


def test_pieces_have_ids_of_the_tokenizer(saved_encoders: Path) -> None:
    known = pieces(saved_encoders)
    tokens, lengths = known.encode_split(split_of(TEXTS))
    words = [
        known.tokenizer.convert_ids_to_tokens(row[:length])
        for row, length in zip(tokens.tolist(), lengths, strict=True)
    ]
    assert words[0] == ["[CLS]", "a", "dog", "is", "on", "the", "road", "[SEP]"]
    assert words[3] == ["[CLS]", "a", "horse", "child", "is", "on", "a", "field", "roof", "[SEP]"]
    assert (tokens[2, 4:] == 0).all()
    cut, lengths = pieces(saved_encoders, 5).encode_split(split_of(TEXTS))
    assert lengths.tolist() == [5, 5, 4, 5]
    assert (cut[np.arange(4), lengths - 1] == 3).all()  # the end stays


def test_captions_of_which_the_end_is_not_read_are_counted(saved_encoders: Path) -> None:
    two_words = Reading(cleaned=True, max_words=2)
    for tokens, expected in (
        (pieces(saved_encoders, 5), (3, "5 tokens")),
        (pieces(saved_encoders, 8), (1, "8 tokens")),  # the first caption has eight
        (pieces(saved_encoders, 40), (0, "30 words or 40 tokens")),
        (pieces(saved_encoders, 40, two_words), (3, "2 words or 40 tokens")),
        (WordIds(VOCABULARY, two_words), (3, "2 words")),
        (WordIds(VOCABULARY, Reading(cleaned=False, max_words=6)), (1, "6 words")),  # a full stop is one
        (VOCABULARY, None),
    ):
        assert TokenTexts.of(split_of(TEXTS), tokens).cut == expected


def test_what_reads_captions_is_saved_with_the_model(saved_encoders: Path, tmp_path: Path) -> None:
    readers: dict[str, tuple[CaptionTokens, Any]] = {
        "pieces": (pieces(saved_encoders), DualEncoder()),
        "words": (WordIds(VOCABULARY, READING), DualEncoder(text="random")),
        "vocabulary": (VOCABULARY, Vsrn()),
    }
    for name, (reader, model) in readers.items():
        (tmp_path / name).mkdir()
        save_tokens(tmp_path / name, reader)
        again = load_tokens(tmp_path / name, model, 40)
        assert again == reader
        for found, expected in zip(
            again.encode_split(split_of(TEXTS)), reader.encode_split(split_of(TEXTS)), strict=True
        ):
            assert np.array_equal(found, expected)
    assert load_tokens(tmp_path / "pieces", DualEncoder(max_words=3), 40) != readers["pieces"][0]
    assert load_tokens(tmp_path / "pieces", DualEncoder(), 7) != readers["pieces"][0]
