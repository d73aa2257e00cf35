"""Batches of the data of a split: their order, the thread that makes them, pixels that change, captions as ids."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as image_functional

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, tokenize
from itrpipe.encoders.encoder import load_tokenizer
from itrpipe.encoders.images import ImageReader
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.extraction import ImageFiles
from itrpipe.features.store import FeatureFile, FeatureSpec, write_features
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.base import Batch, draw_twins
from itrpipe.mining.lists import DIRECTIONS, MinedList
from itrpipe.models.base import ImageBatch
from itrpipe.models.captions import (
    CaptionPart,
    CaptionTokens,
    PieceIds,
    WordIds,
    clean,
    load_tokens,
    save_tokens,
)
from itrpipe.models.declaration import backbones
from itrpipe.models.dual_encoder.declaration import Augment, DualEncoder
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.synthesis.bank import read_sentences
from itrpipe.synthesis.sentences import Sentence, join_parts, write_part
from itrpipe.synthesis.tokens import special_tokens, token_captions
from itrpipe.testing import ToyPairs
from itrpipe.training import assembly
from itrpipe.training import augment as changes
from itrpipe.training.augment import apply_changes, crop_boxes, draw_changes
from itrpipe.training.batches import epoch_batches, feed
from itrpipe.training.data import FeatureSplitData, PixelSplitData, TokenTexts, open_split
from itrpipe.training.distributed import OwnImages, Processes
from tests.maps import write_list

CPU = torch.device("cpu")
IDS = ["a", "b", "c"]
TEXTS = ["A dog is on the road.", "A cat, number 7!", "the beach", "A horse-child is on (a) field/roof"]
VOCABULARY = Vocabulary((*SPECIALS, "a", "dog", "is", "on", "the", "road"))
READING = CaptionPart(cleaned=True, max_words=30)


def split_of(texts: list[str], images: list[int] | None = None) -> Split:
    """Captions of images a, b and c, one each and all others of c unless it is told."""
    owners = [IDS[image] for image in images or [min(row, 2) for row in range(len(texts))]]
    words = pa.array([tokenize(text) for text in texts], pa.list_(pa.string()))
    columns = {"caption_id": [f"c{row}" for row in range(len(texts))], "image_id": owners, "text": texts}
    return Split("train", pa.table({"image_id": pa.array(IDS)}), pa.table({**columns, "tokens": words}))


CAPTIONS = TokenTexts.of(split_of(TEXTS), WordIds(VOCABULARY, READING))


# Epochs


@given(count=st.integers(2, 500), size=st.integers(2, 64), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_visits_every_caption_once_and_never_leaves_one_alone(count, size, seed, epoch):
    batches = epoch_batches(count, size, seed, epoch)
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.arange(count))
    assert all(2 <= len(batch) <= size + 1 for batch in batches)
    assert all(len(batch) == size for batch in batches[:-1])


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=300), budget=st.integers(80, 400), epoch=st.integers(0, 3)
)
def test_batches_by_tokens_stay_within_their_budget(sizes, budget, epoch):
    sizes = np.array(sizes)
    *full, last = batches = epoch_batches(len(sizes), budget, 0, epoch, sizes)
    np.testing.assert_array_equal(np.concatenate(batches), np.concatenate(epoch_batches(len(sizes), 8, 0, epoch)))
    assert all(len(batch) >= 2 for batch in batches)
    assert all(sizes[batch].sum() <= budget for batch in full)
    assert sizes[last].sum() <= budget + sizes.max()  # a single caption left over joins the last
    following = [np.append(batch, after[0]) for batch, after in zip(batches, [*full[1:], last], strict=False)]
    assert all(sizes[batch].sum() > budget for batch in following[:-1])


def test_a_pair_larger_than_the_budget_still_makes_a_batch_of_two():
    assert [len(batch) for batch in epoch_batches(5, 10, 0, 0, np.full(5, 9))] == [2, 3]


def batch_of(number: int) -> Batch:
    data, rows = ToyPairs(), np.arange(4)
    made = Batch({"positive": (data.images(data.caption_image[rows]), data.texts(rows))}, torch.from_numpy(rows))
    made.statistics["number"] = number
    return made


def test_batches_are_made_ahead_in_order_and_an_error_comes_after_the_good_ones() -> None:
    ahead, found, workers = threading.Event(), [], set()

    def make(number: int) -> Batch:
        workers.add(threading.current_thread())
        if number == 1:
            ahead.set()
        if number == 8:
            raise ValueError("batch 8 is bad")
        time.sleep(0.01)
        return batch_of(number)

    batches = feed(make, range(10), 3, CPU)
    for _ in range(8):
        found.append(next(batches).statistics["number"])
        assert ahead.wait(100)  # the second one begins although nobody asks for it
    assert found == list(range(8))
    with pytest.raises(ValueError, match="batch 8 is bad"):
        next(batches)
    for _ in feed(make, range(2), 2, CPU):
        break  # the thread of a consumer that leaves early has ended by then
    assert not any(worker.is_alive() for worker in workers)


def test_several_readers_make_batches_at_a_time_and_give_them_in_order() -> None:
    together = threading.Barrier(3)

    def make(number: int) -> Batch:
        together.wait(100)
        time.sleep(0.01 * (number % 3 == 0))
        return batch_of(number)

    found = [batch.statistics["number"] for batch in feed(make, range(9), 6, CPU, readers=3)]
    assert found == list(range(9))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_run_beside_kernels_and_are_never_read_early() -> None:
    device = torch.device("cuda")
    slow, wide = torch.randn(2048, 2048, device=device), [torch.full((4 << 20,), float(step)) for step in range(24)]
    sums = torch.zeros(len(wide), device=device)

    def make(step: int) -> Batch:
        batch = batch_of(step)
        batch.images = wide[step]
        return batch

    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in feed(make, range(len(wide)), 3, device):
            for _ in range(5):
                slow = (slow @ slow).tanh()
            sums[batch.statistics["number"]] = batch.images.mean()  # pyright: ignore
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sums.tolist() == list(range(len(wide)))


# Photographs

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 12, 16, 3), dtype=np.uint8)
PLAIN = Augment(scale=1.0, flip=False, randaugment=False)
CROPPED = Augment(scale=0.5, flip=False, randaugment=False)
FLIPPED = Augment(scale=0.5, flip=True, randaugment=False)
FULL = Augment()


def photographs(folder: Path, images: np.ndarray = PIXELS) -> ImageFiles:
    for name, image in zip(IDS, images, strict=True):
        Image.fromarray(image).save(folder / f"{name}.png")
    sizes = np.array([image.shape[:2] for image in images])
    return ImageFiles(folder, [f"{name}.png" for name in IDS], sizes)


def reader(height: int, width: int, **options: Any) -> ImageReader:
    size = {"height": height, "width": width}
    return ImageReader(transformers.ViTImageProcessor(size=size, resample=3, **options))


def opened(folder: Path, augment: Augment, frame: tuple[int, int] = (12, 16)) -> PixelSplitData:
    return PixelSplitData(split_of(TEXTS), photographs(folder), CAPTIONS, reader(*frame), augment)


def pixels(data: PixelSplitData, *rng: np.random.Generator) -> torch.Tensor:
    rows = np.array([0, 1, 2])
    found = data.pairs(rows, rows, *rng)[0].pixels
    assert found is not None
    return found


def test_images_come_whole_as_the_image_processor_makes_them(tmp_path: Path) -> None:
    for frame in ((12, 16), (6, 8)):
        found = opened(tmp_path, FULL, frame).images(np.array([2, 0, 2])).pixels
        assert found is not None
        expected = reader(*frame).processor(list(PIXELS[[2, 0, 2]]), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(reader(*frame).normalised(found), expected, atol=1e-5, rtol=0)
        assert (found.shape, found.dtype) == ((3, 3, *frame), torch.uint8)


def test_only_batches_with_a_generator_change_and_equal_generators_change_alike(tmp_path: Path) -> None:
    data = opened(tmp_path, FULL)
    assert torch.equal(pixels(data), torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    first, again, other = (pixels(data, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, pixels(data))
    assert torch.equal(pixels(opened(tmp_path, PLAIN), np.random.default_rng(1)), pixels(data))


def test_several_processes_see_what_one_sees(tmp_path: Path) -> None:
    rows = np.array([2, 0, 1, 2, 1])
    data = opened(tmp_path, FULL)
    whole = data.pairs(rows, rows, np.random.default_rng(3))[0].pixels
    assert whole is not None
    parts = []
    for rank in range(2):
        data.processes = Processes(rank, 2)
        part = data.pairs(rows, rows, np.random.default_rng(3))[0]
        assert part.pixels is not None
        parts.append(part.pixels)
    assert torch.equal(torch.cat(parts), whole)


def test_a_crop_is_cut_out_of_the_photograph_and_resized_once(tmp_path: Path) -> None:
    data = opened(tmp_path, CROPPED, (6, 8))
    found = pixels(data, np.random.default_rng(0))
    boxes = crop_boxes(np.array([[12, 16]] * 3), (6, 8), 0.5, np.random.default_rng(0))
    for image, (top, left, height, width), frame in zip(PIXELS, boxes, found, strict=True):
        part = Image.fromarray(image[top : top + height, left : left + width])
        expected = np.asarray(part.resize((8, 6), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        assert np.abs(frame.numpy().astype(int) - expected).max() <= 1


def test_frames_that_are_no_bytes_are_changed_as_bytes_and_normalised(tmp_path: Path) -> None:
    """A processor that rescales before it resizes makes real numbers."""
    floats = ImageReader(transformers.DINOv3ViTImageProcessor(size={"height": 6, "width": 8}))
    data = PixelSplitData(split_of(TEXTS), photographs(tmp_path), CAPTIONS, floats, FULL)
    assert not floats.in_bytes
    assert pixels(data).dtype == torch.float32
    assert pixels(data, np.random.default_rng(0)).dtype == torch.uint8
    data = PixelSplitData(split_of(TEXTS), photographs(tmp_path), CAPTIONS, floats, Augment(scale=1.0))
    changed = floats.normalised(pixels(data, np.random.default_rng(5)))
    assert bool(changed.isfinite().all())
    plain = PixelSplitData(split_of(TEXTS), photographs(tmp_path), CAPTIONS, floats, PLAIN)
    assert torch.equal(pixels(plain, np.random.default_rng(0)), pixels(plain))


def test_a_photograph_of_another_size_or_none_is_named(tmp_path: Path) -> None:
    data = opened(tmp_path, FULL)
    Image.fromarray(PIXELS[0, :5]).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"b\.png has 16 x 5 pixels and had 16 x 12 .*; restore it"):
        data.images(np.array([0, 1]))
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png is not there; restore it"):
        data.pairs(np.array([1]), np.array([1]), np.random.default_rng(0))


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.05, 1), st.integers(0, 2**32))
def test_crops_lie_within_the_image(height: int, width: int, scale: float, seed: int) -> None:
    sizes = np.array([[height, width]] * 8)
    boxes = crop_boxes(sizes, (32, 24), scale, np.random.default_rng(seed))
    assert (boxes >= [0, 0, 1, 1]).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= [height, width]).all()


def test_crops_have_the_areas_and_shapes_of_the_paper() -> None:
    boxes = crop_boxes(np.array([[384, 384]] * 2000), (32, 32), 0.5, np.random.default_rng(0))
    shares, ratios = boxes[:, 2] * boxes[:, 3] / 384**2, boxes[:, 3] / boxes[:, 2]
    for values, low, high in ((shares, 0.5, 1.0), (ratios, 0.75, 4 / 3)):
        assert (values.min(), values.max()) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))
    assert (boxes[:, :2].max(axis=0) > 80).all()
    (wide,) = crop_boxes(np.array([[90, 200]]), (32, 32), 0.9, np.random.default_rng(0))
    assert wide.tolist() == [0, 40, 90, 120]  # nothing that keeps 90 % has the shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", [FLIPPED, FULL])
def test_a_gpu_changes_images_as_a_processor_does(augment: Augment) -> None:
    rows = torch.arange(48, dtype=torch.float32)
    smooth = (rows[:, None] + rows).expand(32, 3, 48, 48) * 2 + torch.arange(32)[:, None, None, None]
    images = smooth.to(torch.uint8)
    drawn = drawn_for(32, augment)
    here, there = apply_changes(images, drawn), apply_changes(images.cuda(), drawn).cpu()
    near = (here.float() - there.float()).abs() <= 2
    assert near.float().mean() > (0.97 if augment.randaugment else 0.9999)  # equalising tells neighbours apart


def drawn_for(count: int, augment: Augment) -> changes.Changes:
    sizes = np.array([[40, 40]] * count)
    return draw_changes(sizes, np.ones(count, bool), (40, 40), augment, np.random.default_rng(0))


def test_every_other_operation_is_left_out() -> None:
    drawn = drawn_for(4000, FULL)
    assert np.bincount(drawn.operations.ravel(), minlength=10).min() > 700
    assert [(drawn.signs == sign).mean() for sign in (0, 1, -1)] == pytest.approx([0.5, 0.25, 0.25], abs=0.02)
    assert not drawn_for(50, FLIPPED).signs.any()


def test_operations_are_as_strong_as_their_level_says() -> None:
    image = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (3, 40, 60), dtype=np.uint8))
    numbers, signs = np.divmod(np.arange(20), 2)
    operations, directions = (np.stack([each, 0 * each], axis=1) for each in (numbers, 1 - 2 * signs))
    drawn = changes.Changes(None, np.zeros(20, bool), operations, directions)
    found = apply_changes(image.expand(20, -1, -1, -1), drawn)
    brightness, sharpness = image_functional.adjust_brightness, image_functional.adjust_sharpness
    pointwise = [image, image_functional.autocontrast(image), image_functional.equalize(image)]
    for number, expected in enumerate([*pointwise, brightness(image, 1.36), sharpness(image, 1.36)]):
        assert torch.equal(found[2 * number], expected)
        assert torch.equal(found[2 * number + 1], expected)
    slope = math.degrees(math.atan(0.7 * 0.3))
    for number, sign in itertools.product(range(5), (1, -1)):
        shear = [sign * slope * (number == axis) for axis in (0, 1)]
        shift = [sign * pixels * (number == axis) for pixels, axis in ((1, 2), (1, 3))]
        options = {"angle": sign * 21.0 * (number == 4), "translate": shift, "scale": 1.0, "shear": shear}
        options |= {"interpolation": image_functional.InterpolationMode.BILINEAR}
        inside = image_functional.affine(torch.ones(1, 40, 60), **options, fill=[0.0])[0] > 0.9999
        moved = found[2 * (5 + number) + (sign < 0)]
        expected = image_functional.affine(image, **options, fill=[128.0])
        assert (moved.int() - expected.int())[:, inside].abs().max() <= 1  # of rounding
        assert 0.5 < inside.float().mean() < 1
        assert number != 4 or (moved[:, 0, 0] == 128).all()


def test_global_vectors_stand_for_images(tmp_path: Path) -> None:
    """Their rows are in another order than the split's."""
    path = tmp_path / "features.h5"
    rows = {"global": np.arange(15, dtype=np.float16).reshape(3, 5)}
    write_features(path, IDS[::-1], FeatureSpec(0, 0, 5), "test", [(np.arange(3), rows)])
    data = FeatureSplitData(split_of(TEXTS), FeatureFile.open(path), CAPTIONS, "global")
    found = data.images(np.array([0, 2])).global_
    assert found is not None
    assert found.tolist() == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]
    assert (data.image_dim, data.region_counts.tolist()) == (5, [1, 1, 1])


def test_features_that_are_not_there_are_refused(tmp_path: Path) -> None:
    write_features(tmp_path / "features.h5", IDS, FeatureSpec(2, 4), "none", [])
    file = FeatureFile.open(tmp_path / "features.h5")
    with pytest.raises(DataError, match="holds no global vectors"):
        FeatureSplitData(split_of(TEXTS), file, CAPTIONS, "global")


# Captions as token ids


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man's dog, well - it barks!", "a mans dog well it barks"),
        ('<person> with a half-full glass: "wine" (red); 1*2 ~ #3?', "person with a half full glass wine red 12 3"),
        ("  ", ""),
    ],
)
def test_captions_are_cleaned(text: str, expected: str) -> None:
    assert clean(text) == expected


def pieces(root: Path, max_tokens: int = 40, reading: CaptionPart = READING) -> PieceIds:
    return PieceIds(load_tokenizer(root / "bert"), reading, max_tokens)


WHOLE = CaptionPart(cleaned=False, max_words=40)
TWO_WORDS, AS_PREPARED = CaptionPart(cleaned=True, max_words=2), CaptionPart(cleaned=False, max_words=6)
CASES: list[tuple[Callable[[Path], CaptionTokens], list[int], list[int], tuple[int, str] | None]] = [
    (pieces, [8, 6, 4, 10], [2, 3], (0, "30 words or 40 tokens")),
    (partial(pieces, max_tokens=5), [5, 5, 4, 5], [2, 3], (3, "5 tokens")),
    (partial(pieces, max_tokens=8), [8, 6, 4, 8], [2, 3], (1, "8 tokens")),  # the first caption has eight
    (partial(pieces, reading=TWO_WORDS), [4, 4, 4, 4], [2, 3], (3, "2 words or 40 tokens")),
    (lambda _: WordIds(VOCABULARY, READING), [8, 6, 4, 10], [1, 2], (0, "30 words")),
    (lambda _: WordIds(VOCABULARY, TWO_WORDS), [4, 4, 4, 4], [1, 2], (3, "2 words")),
    (lambda _: WordIds(VOCABULARY, AS_PREPARED), [8, 8, 4, 8], [1, 2], (2, "6 words")),  # a full stop is one
    (lambda _: VOCABULARY, [9, 8, 4, 10], [1, 2], (0, "")),
]
"""What reads the captions, tokens of each, the ids of both ends, and how many captions are cut where."""


@pytest.mark.parametrize(("reader", "lengths", "ends", "cut"), CASES)
def test_captions_have_ids_between_two_ends_and_those_that_are_cut_are_counted(
    reader: Callable[[Path], CaptionTokens], lengths: list[int], ends: list[int], cut: Any, saved_encoders: Path
) -> None:
    found = TokenTexts.of(split_of(TEXTS), reader(saved_encoders))
    assert found.lengths.tolist() == lengths
    last = found.tokens[np.arange(4), found.lengths - 1]
    assert {(int(first), int(end)) for first, end in zip(found.tokens[:, 0], last, strict=True)} == {tuple(ends)}
    assert not found.tokens[np.arange(found.tokens.shape[1]) >= found.lengths[:, None]].any()
    assert found.cut == cut
    for row, length in enumerate(lengths):
        width = min(-(-length // 8) * 8, found.tokens.shape[1])
        assert replace(found, multiple=8).texts(np.array([row])).tokens.shape[1] == width


def test_what_reads_captions_is_saved_with_the_model(saved_encoders: Path, tmp_path: Path) -> None:
    readers: dict[str, tuple[CaptionTokens, Any]] = {
        "pieces": (pieces(saved_encoders, reading=WHOLE), Uniter(max_words=40)),
        "words": (WordIds(VOCABULARY, READING), DualEncoder(text="random")),
        "vocabulary": (VOCABULARY, Vsrn()),
    }
    for name, (reader, model) in readers.items():
        (tmp_path / name).mkdir()
        save_tokens(tmp_path / name, reader)
        again = load_tokens(tmp_path / name, model)
        assert again == reader
        assert np.array_equal(again.encode_split(split_of(TEXTS))[0], reader.encode_split(split_of(TEXTS))[0])
    assert load_tokens(tmp_path / "pieces", Uniter(max_words=7)) != readers["pieces"][0]


# Tokens that are masked, and stored sentences

PIECES = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "a", "red", "dog", "##s", "two", "run", "cat"]
MASKED = split_of(["a red dog", "two dogs run", "a cat", "the red cat runs"], [0, 0, 1, 1])
OWN_WORDS = Vocabulary.build(MASKED.tokens, 1)


def special(pieces: list[str]) -> Any:
    """The special tokens of a tokenizer of these pieces."""
    ids = [row for row, piece in enumerate(pieces) if piece[0] == "[" and "unused" not in piece]
    given = SimpleNamespace(model_max_length=20, mask_token_id=pieces.index("[MASK]"), all_special_ids=ids)
    return special_tokens(PieceIds(given, READING, 20), pieces)


def test_words_are_masked_and_drawn_by_the_ids_of_the_tokenizer(saved_encoders: Path) -> None:
    behind = [*PIECES[:5], *PIECES[6:], "[MASK]"]
    own = special_tokens(OWN_WORDS, [*OWN_WORDS.words, "<mask>"])
    found = [(each.mask_id, each.others, each.random_ids) for each in (own, special(PIECES), special(behind))]
    words = len(OWN_WORDS)
    assert found == [
        (words, (0, 1, 2, 3), (4, words)),
        (5, (0, 1, 2, 3, 4), (6, 14)),  # the longest run of words
        (13, (0, 1, 2, 3, 4), (5, 13)),
    ]
    tokens = pieces(saved_encoders)
    tokens.tokenizer.mask_token = "[UNK]"
    assert token_captions(split_of(TEXTS), tokens, 5).lengths.tolist() == [5, 5, 4, 5]
    for other in (pieces(saved_encoders).tokenizer, SimpleNamespace(mask_token_id=4, model_max_length=9)):
        with pytest.raises(UsageError, match="no WordPiece tokenizer with a mask"):
            token_captions(MASKED, PieceIds(other, READING, 20), 5)


def written(folder: Path, *sentences: tuple[int, str]) -> Path:
    rows = [Sentence(f"c{caption}", IDS[caption % 2], text, (), None, None, None, None) for caption, text in sentences]
    write_part(folder / "part.parquet", rows, {"kept": len(rows)})
    join_parts([folder / "part.parquet"], folder)
    return folder


def test_kept_sentences_of_the_training_captions_are_read(tmp_path: Path) -> None:
    rows = [(0, "a red cat"), (0, "two dogs run"), (2, "two cat red a dog")]
    rows.append((7, "a dog"))  # of a caption that is no longer trained
    with pytest.raises(MissingInputError, match="sentences"):
        read_sentences(tmp_path, MASKED, OWN_WORDS)
    bank = read_sentences(written(tmp_path, *rows), MASKED, OWN_WORDS)
    assert len(bank.tokens) == 3
    texts, owners, places = bank.take(np.array([2, 1, 0]), 5)
    assert (owners.tolist(), places.tolist()) == ([0, 2, 2], [0, 0, 1])
    found = [
        " ".join(OWN_WORDS.words[token] for token in row[1 : length - 1])
        for row, length in zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True)
    ]
    assert found == ["two cat red a dog", "a red cat", "two dogs run"]


def test_twins_are_drawn_of_each_kind_alike_and_mirrors_only_where_images_can_be_mirrored(tmp_path: Path) -> None:
    rows = [("attribute", IDS[1], "a dog", "a cat")] * 9 + [
        ("side", IDS[0], "a run", "two cat red"),
        ("count", None, "", ""),
    ]
    part = [Sentence("c0", IDS[0], "a dog", (), None, None, None, None, *each) for each in rows]
    write_part(tmp_path / "part.parquet", part, {"kept": len(part)})
    join_parts([tmp_path / "part.parquet"], tmp_path)
    bank = read_sentences(tmp_path, MASKED, OWN_WORDS)
    assert bank.twins.tolist() == [1] * 9 + [0, -1]
    told = bank.details_of(np.array([0, 9]))
    words = [[OWN_WORDS.words[token] for token in row] for row in told.tokens.tolist()]
    assert [" ".join(row[1 : end - 1]) for row, end in zip(words, told.lengths.tolist(), strict=True)] == [
        "a dog",
        "a run",
        "a cat",
        "two cat red",
    ]
    drawn = bank.draw_twins(1000, np.random.default_rng(0))
    assert set(bank.owners(drawn)) == {0}
    assert 400 < (drawn == 9).sum() < 600
    assert (drawn == 10).sum() == 0
    alone = read_sentences(tmp_path, MASKED, OWN_WORDS, mirrors=False)
    assert set(alone.draw_twins(100, np.random.default_rng(0))) == set(range(9))


READERS_OF_PIXELS = [name for name, declared in backbones().items() if "pixels" in declared().reads()]


@pytest.mark.parametrize("augment", [PLAIN, CROPPED, FLIPPED, FULL])
@pytest.mark.parametrize("backbone", READERS_OF_PIXELS)
def test_pictures_show_the_sides_that_their_texts_name(tmp_path: Path, backbone: str, augment: Augment) -> None:
    """Three pictures that are bright on the left; one text of a, all of c, and no text of b name sides."""
    bright = np.zeros((3, 12, 16, 3), dtype=np.uint8)
    bright[:, :, :8] = 255
    texts = ["a dog", "a dog at the Left", "a dog upright", "the right-hand side"]
    split, settings = split_of(texts, [0, 0, 1, 2]), backbones()[backbone]().model_copy(update={"augment": augment})
    words = WordIds(OWN_WORDS, READING)
    data: Any = open_split(split, photographs(tmp_path, bright), words, settings, reader(12, 16))
    row = Sentence("c1", "a", "a dog", (), None, None, None, None, "side", "a", "a dog", "a cat")
    write_part(tmp_path / "part.parquet", [row], {"kept": 1})
    join_parts([tmp_path / "part.parquet"], tmp_path)
    sentences = read_sentences(tmp_path, split, words)

    def shows_left(images: ImageBatch) -> torch.Tensor:
        assert images.pixels is not None
        half = images.pixels.float().mean(dim=1)
        return half[:, :, :8].mean(dim=(1, 2)) > half[:, :, 8:].mean(dim=(1, 2))

    rng = np.random.default_rng(0)
    assert shows_left(draw_twins(data, sentences, 1.0, 100, rng)[0]).tolist() == [True] * 100 + [False] * 100
    for image, caption in ((0, 0), (0, 1), (2, 3)):
        assert shows_left(data.pairs(np.full(100, image), np.full(100, caption), rng)[0]).all()
    turned = ~shows_left(data.pairs(np.full(100, 1), np.full(100, 2), rng)[0])
    assert bool(30 < turned.sum() < 70) == augment.flip


def test_mirrored_images_have_left_as_right() -> None:
    images, chosen = ToyPairs(images=2).images(np.array([0, 1])), torch.tensor([True, False])
    assert images.pixels is not None
    assert images.boxes is not None
    boxes = images.boxes.clone()
    boxes[:, -1] = 0  # padding
    found = replace(images, boxes=boxes).mirrored(chosen)
    assert found.pixels is not None
    assert found.boxes is not None
    assert found.pixels.equal(torch.stack([images.pixels[0].flip(-1), images.pixels[1]]))
    assert torch.allclose(found.boxes[0, :-1, ::2] + boxes[0, :-1].flip(-1)[:, 1::2], torch.ones(3, 2))
    assert found.boxes[1].equal(boxes[1])
    assert found.boxes[0, :, 1::2].equal(boxes[0, :, 1::2])
    assert not found.boxes[0, -1].any()
    own = OwnImages(torch.empty(1, 0, 0), pixels=images.pixels[1:], rows=2, first=1).mirrored(chosen.flip(0))
    assert own.pixels is not None
    assert own.pixels.equal(images.pixels[1:].flip(-1))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(7, "a dog")], "has no sentence for any caption of the training set"),
        ([(2, "a dog"), (0, "a cat")], "has its captions in another order"),
    ],
)
def test_sentences_of_other_captions_are_refused(rows: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{expected}; run `itrpipe synthesize"):
        read_sentences(written(tmp_path, *rows), MASKED, OWN_WORDS)


@pytest.mark.parametrize(
    ("captions", "images", "widths"), [(40, 20, (10, 10)), (845, 169, (84, 16)), (3_000, 600, (200, 40))]
)
def test_negatives_come_from_the_hardest_tenth_of_a_small_training_set(
    captions: int, images: int, widths: tuple[int, int], tmp_path: Path
) -> None:
    """A tenth of all captions and images, and ten at least; of lists that are shorter all."""
    ids = [f"i{row}" for row in range(images)], [f"c{row}" for row in range(captions)]
    for direction, anchors, mined in zip(DIRECTIONS, ids, (200, 40), strict=True):
        rows = np.tile(np.arange(mined), (len(anchors), 1))
        scores = np.zeros(rows.shape, np.float32)
        write_list(tmp_path, direction, MinedList(np.array(anchors), rows, scores, scores.astype(np.float16)))
    split = SimpleNamespace(image_ids=ids[0], caption_ids=ids[1])
    train: Any = SimpleNamespace(split=split)
    lists = assembly.mined_lists(tmp_path, train)
    for direction, width in zip(DIRECTIONS, widths, strict=True):
        assert lists[direction].shape[1] == lists[f"{PROBABILITY_OF}{direction}"].shape[1] == width
        assert (lists[direction] == np.arange(width)).all()
