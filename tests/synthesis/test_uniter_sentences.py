"""A UNITER that writes and ranks: every number is that of its pair alone, and what its vocabulary has to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, UsageError
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder, build
from itrpipe.negatives.caption_masks import SpecialTokens
from itrpipe.synthesis.uniter_sentences import UniterSentences
from itrpipe.training.captions import PieceIds, Reading
from itrpipe.training.masked_captions import special_tokens, token_captions

NUM_WORDS, IMAGES, REGIONS, DIM, WIDTH = 30, 5, 3, 6, 9
SETTINGS = Uniter(embed_dim=16, layers=2, heads=2, feed_forward_dim=16, max_words=20)
PIECES = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "##s", "two")


class Images:
    """Random features with boxes; counts how often they are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.regions = torch.randn(IMAGES, REGIONS, DIM, generator=generator)
        self.boxes = torch.rand(IMAGES, REGIONS, 4, generator=generator)
        self.count = torch.tensor([3, 1, 2, 3, 2])
        self.read: list[list[int]] = []

    def __call__(self, rows: np.ndarray) -> ImageBatch:
        self.read.append(rows.tolist())
        return ImageBatch(self.regions[rows], self.count[rows], boxes=self.boxes[rows])


@pytest.fixture
def model() -> UniterEncoder:
    torch.manual_seed(0)
    made = build(SETTINGS, DIM, NUM_WORDS)
    for parameter in made.parameters():  # so that scores differ by more than rounding
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def texts_of(lengths: Sequence[int]) -> TextBatch:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(4, NUM_WORDS, (len(lengths), WIDTH), generator=generator)
    sizes = torch.tensor(lengths)
    return TextBatch(tokens.masked_fill(torch.arange(WIDTH) >= sizes[:, None], 0), sizes)


def split_of(*texts: str) -> Split:
    images = pa.table({"image_id": [f"i{row}" for row in range(len(texts))]})
    words = pa.array([text.split() for text in texts], pa.list_(pa.string()))
    names = [f"c{row}" for row in range(len(texts))]
    captions = pa.table({"caption_id": names, "image_id": images["image_id"], "text": texts, "tokens": words})
    return Split("train", images, captions)


def saved_pieces(special: dict[str, str], pieces: Sequence[str] = PIECES, kind: str = "WordPiece") -> PieceIds:
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = models.WordPiece(vocabulary, unk_token="[UNK]") if kind == "WordPiece" else models.WordLevel(vocabulary)
    tokenizer = Tokenizer(made)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=9, **special)
    return PieceIds(fast, Reading.of(SETTINGS), 9)


MASKED = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]"}


def test_masked_words_are_those_of_each_copy_alone(model: UniterEncoder) -> None:
    """The shortest pairs have fewer positions in all than the longest caption has words."""
    lengths = [9, 3, 6, 4, 3]
    texts, rows = texts_of(lengths), torch.tensor([4, 1, 1, 0, 1])
    labelled = torch.zeros(len(lengths), WIDTH, dtype=torch.bool)
    for row, place in [(0, 8), (0, 2), (1, 1), (2, 5), (3, 1), (3, 2), (4, 0)]:
        labelled[row, place] = True
    images = Images()
    found = UniterSentences(model, images).mlm_logits(rows, texts, labelled)
    assert found.shape == (7, NUM_WORDS + 1)
    expected = []
    with torch.no_grad():
        for row, length in enumerate(lengths):
            image = model.encode_images(images(rows[row : row + 1].numpy()))
            alone = model.encode_texts(TextBatch(texts.tokens[row : row + 1, :length], texts.lengths[row : row + 1]))
            pool, size = model.pool(image, alone), length + int(image.count)
            pair = torch.zeros(1, dtype=torch.int64)
            states = model.encode(pool, pool.sequences(pair, pair, size, padded=False))
            expected.append(model.masked_word_logits(states[0, : labelled.shape[1]])[labelled[row, :size]])
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("memory", [1, 1 << 16, 1 << 28])
def test_scores_are_those_of_each_pair_alone_in_any_memory(model: UniterEncoder, memory: int) -> None:
    texts, rows, images = texts_of([5, 9, 4, 7]), torch.tensor([2, 0, 2, 3]), Images()
    found = UniterSentences(model, images, memory=memory).rank(rows, texts)
    with torch.no_grad():
        expected = model.score_pairs(model.encode_images(images(rows.numpy())), model.encode_texts(texts))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.dtype == torch.float32
    assert found.unique().numel() == 4


def test_images_are_read_once_for_all_that_is_asked_of_a_block(model: UniterEncoder) -> None:
    texts, images = texts_of([5, 9, 4, 7]), Images()
    sentences = UniterSentences(model, images)
    labelled = texts.tokens > 20
    sentences.mlm_logits(torch.tensor([3, 1, 1, 3]), texts, labelled)
    sentences.rank(torch.tensor([1, 1, 1, 1]), texts)
    sentences.rank(torch.tensor([3, 1, 3, 1]), texts)
    assert images.read == [[1, 3]]
    sentences.rank(torch.tensor([0, 1, 0, 1]), texts)
    assert images.read == [[1, 3], [0, 1]]


def test_the_mask_of_our_own_vocabulary_follows_its_words(model: UniterEncoder) -> None:
    split = split_of("a dog runs", "two dogs")
    vocabulary = Vocabulary.build(split.tokens, 1)
    own = build(SETTINGS, DIM, len(vocabulary))
    captions = token_captions(split, vocabulary, own)
    assert special_tokens(vocabulary, captions.pieces) == SpecialTokens(9, (0, 1, 2, 3), (4, 9))
    assert captions.pieces[9] == "<mask>"
    with pytest.raises(DataError, match=r"the model embeds 31 tokens and its vocabulary has 10, .*run `itrpipe train`"):
        token_captions(split, vocabulary, model)


def test_random_words_of_a_tokenizer_are_its_longest_run_of_ordinary_pieces() -> None:
    tokens = saved_pieces(MASKED | {"sep_token": "[SEP]"})
    assert special_tokens(tokens, PIECES) == SpecialTokens(5, (0, 1, 2, 3, 4), (6, 11))
    last = (*PIECES[:5], *PIECES[6:], "[MASK]")
    behind = saved_pieces(MASKED | {"sep_token": "[SEP]"}, last)
    assert special_tokens(behind, last) == SpecialTokens(10, (0, 1, 2, 3, 4), (5, 10))
    captions = token_captions(split_of("a dogs runs"), tokens, build(Uniter(tokenizer="x", embed_dim=12), DIM, 11))
    assert [captions.pieces[token] for token in captions.tokens[0]] == ["a", "dog", "##s", "runs"]


def test_a_tokenizer_that_cannot_mask_or_write_is_one_line(model: UniterEncoder) -> None:
    without = saved_pieces({name: token for name, token in MASKED.items() if name != "mask_token"})
    with pytest.raises(UsageError, match="has no mask among its 11 tokens, so that it cannot write words; train one"):
        special_tokens(without, PIECES)
    with pytest.raises(UsageError, match="no WordPiece tokenizer with pieces that go on with '##'"):
        token_captions(split_of("a dog"), saved_pieces(MASKED, kind="WordLevel"), model)


def test_captions_are_cut_where_the_model_has_no_more_positions(tmp_path: Path) -> None:
    """As the model was trained: by its positions, or by what its tokenizer says is the longest."""
    tokens = saved_pieces(MASKED)
    long = split_of("a " * 30)
    for positions, expected in ((20, 9), (5, 5)):
        short = build(Uniter(tokenizer="x", embed_dim=12, max_words=positions), DIM, 11)
        captions = token_captions(long, tokens, short)
        assert captions.lengths.tolist() == [expected]
