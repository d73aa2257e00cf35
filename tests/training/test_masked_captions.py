"""Captions and stored sentences as methods read them, for vocabularies of words and of pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, tokenize
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.learning.sentences import UNLABELLED
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs
from itrpipe.synthesis.sentences import Sentence, join_parts, write_part
from itrpipe.synthesis.tokens import TokenCaptions
from itrpipe.training.captions import (
    CaptionTokens,
    PieceIds,
    Reading,
    caption_masks,
    read_sentences,
    special_tokens,
    token_captions,
)

TEXTS = ("a red dog", "two dogs run", "a cat", "the red cat runs")
IMAGES = (0, 0, 1, 1)
PIECES = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "a", "red", "dog", "##s", "two", "run", "cat"]


def split() -> Split:
    captions = pa.table(
        {
            "caption_id": [f"c{row}" for row in range(len(TEXTS))],
            "image_id": [f"i{image}" for image in IMAGES],
            "text": list(TEXTS),
            "tokens": pa.array([tokenize(text) for text in TEXTS], pa.list_(pa.string())),
        }
    )
    return Split("train", pa.table({"image_id": ["i0", "i1"], "file": ["a", "b"]}), captions)


def vocabulary() -> Vocabulary:
    return Vocabulary.build(split().tokens, 1)


def pieces(vocab: list[str] | None = None, mask: str | None = "[MASK]", limit: int = 20) -> PieceIds:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {piece: number for number, piece in enumerate(vocab or PIECES)}
    made = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.BertProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        ("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"])
    )
    special: dict[str, Any] = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special |= {"mask_token": mask} if mask else {}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=limit, **special)
    return PieceIds(fast, Reading(False, 20), 20)


def captions_of(tokens: CaptionTokens) -> TokenCaptions:
    """The captions as a small model reads them."""
    known = len(PIECES) if isinstance(tokens, PieceIds) else len(tokens) + 1
    sizes = Uniter(embed_dim=8, layers=1, heads=2, feed_forward_dim=8, max_words=20)
    return token_captions(split(), tokens, UniterEncoder(sizes, 4, known))


@pytest.mark.parametrize("tokens", [vocabulary(), pieces(), pieces(limit=4)], ids=["words", "pieces", "short"])
def test_captions_are_those_that_the_training_set_gives(tokens: Any) -> None:
    captions = captions_of(tokens)
    ids, lengths = tokens.encode_split(split())
    assert captions.lengths.tolist() == lengths.tolist()
    np.testing.assert_array_equal(captions.tokens[:, : ids.shape[1]], ids)
    ends = captions.words == -1
    assert ends[:, 0].all()
    assert ends[np.arange(4), captions.lengths - 1].all()


def test_the_mask_of_our_own_words_follows_the_last() -> None:
    found = special_tokens(vocabulary(), [*vocabulary().words, "<mask>"])
    assert found.mask_id == len(vocabulary())
    assert found.others == (0, 1, 2, 3)
    assert found.random_ids == (4, len(vocabulary()))


def test_the_mask_of_pieces_is_the_tokenizers_and_random_words_are_ordinary() -> None:
    found = special_tokens(pieces(), PIECES)
    assert found.mask_id == PIECES.index("[MASK]")
    assert set(found.others) == {PIECES.index(each) for each in ("[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]")}
    assert found.random_ids == (PIECES.index("[MASK]") + 1, len(PIECES))


def test_random_words_are_the_longest_run_and_captions_fit_the_positions() -> None:
    behind = [*PIECES[:5], *PIECES[6:], "[MASK]"]
    assert special_tokens(pieces(behind), behind).random_ids == (5, 13)
    sizes = Uniter(embed_dim=8, layers=1, heads=2, feed_forward_dim=8, max_words=5, tokenizer="x")
    assert token_captions(split(), pieces(), UniterEncoder(sizes, 4, len(PIECES))).lengths.max() == 5
    with pytest.raises(DataError, match=r"the model embeds 31 tokens and its vocabulary has .*run `itrpipe train`"):
        token_captions(split(), vocabulary(), UniterEncoder(sizes, 4, 31))


def test_a_tokenizer_without_a_mask_or_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="has no mask among its 14 tokens"):
        special_tokens(pieces(mask=None), PIECES)
    other = pieces()
    other.tokenizer = object()
    with pytest.raises(UsageError, match="no WordPiece tokenizer"):
        captions_of(other)


def write_scene_graphs(folder: Path) -> None:
    parser = RulesParser("lexicon")
    columns = graphs_table([extract_graph(text, parser.analyse(text)) for text in TEXTS], "test").columns
    ids = [pa.array([f"c{row}" for row in range(4)]), pa.array([f"i{image}" for image in IMAGES])]
    write_graphs(folder / SCENE_GRAPHS_FILE, [pa.Table.from_arrays([*ids, *columns], schema=SCHEMA)])


@pytest.mark.parametrize("tokens", [vocabulary(), pieces()], ids=["words", "pieces"])
def test_phrases_of_the_scene_graph_are_masked_or_single_words(tokens: Any, tmp_path: Path) -> None:
    write_scene_graphs(tmp_path)
    captions = captions_of(tokens)
    row = np.array([1])  # two dogs run
    width = int(captions.lengths[1])
    found: dict[bool, set[tuple[str, ...]]] = {}
    for phrases in (True, False):
        masks = caption_masks(captions, tokens, tmp_path if phrases else None, "piece")
        drawn = masks.draw(row, width, 300, False, np.random.default_rng(0))
        labels = drawn.labels[0]
        found[phrases] = {tuple(str(captions.pieces[token]) for token in copy[copy != UNLABELLED]) for copy in labels}
    dogs = ("dog", "##s") if isinstance(tokens, PieceIds) else ("dogs",)
    assert dogs in found[True]
    assert ("run",) in found[True]
    assert all(("dog" in each) == ("##s" in each) for each in found[True])
    assert (("dog",) in found[False]) == isinstance(tokens, PieceIds)


def sentence(caption: int, text: str, kept: bool = True) -> Sentence:
    reason = "kept" if kept else "outranked"
    return Sentence(f"c{caption}", f"i{IMAGES[caption % 4]}", text, (), None, None, None, None, kept, reason)


def write(folder: Path, sentences: list[Sentence]) -> Path:
    write_part(folder / "part.parquet", sentences, {"kept": len(sentences)})
    join_parts([folder / "part.parquet"], folder)
    return folder


@pytest.mark.parametrize("tokens", [vocabulary(), pieces()], ids=["words", "pieces"])
def test_kept_sentences_of_the_training_captions_are_read(tokens: Any, tmp_path: Path) -> None:
    written = [
        sentence(0, "a red cat"),
        sentence(0, "two dogs run"),
        sentence(0, "a run", kept=False),
        sentence(2, "two cat red a dog"),
        sentence(7, "a dog"),  # of a caption that is no longer trained
    ]
    bank = read_sentences(write(tmp_path, written), split(), tokens)
    assert len(bank) == 3
    texts, owners, places = bank.take(np.array([2, 1, 0]), 5)
    assert owners.tolist() == [0, 2, 2]
    assert places.tolist() == [0, 0, 1]
    words = captions_of(tokens).pieces
    found = [
        " ".join(str(words[token]) for token in row[1 : length - 1]).replace(" ##", "")
        for row, length in zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True)
    ]
    assert found == ["two cat red a dog", "a red cat", "two dogs run"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([sentence(7, "a dog")], "has no sentence for any caption of the training set"),
        ([sentence(0, "a cat", kept=False)], "has no sentence for any caption of the training set"),
        ([], "has no sentence for any caption of the training set"),
        ([sentence(2, "a dog"), sentence(0, "a cat")], "has its captions in another order"),
    ],
)
def test_sentences_of_other_captions_are_refused(written: list[Sentence], expected: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        read_sentences(write(tmp_path, written), split(), vocabulary())
    assert "itrpipe synthesize" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="sentences"):
        read_sentences(tmp_path, split(), vocabulary())
