"""Captions as token ids with the words and characters that each token is of, for both sorts of vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, tokenize
from itrpipe.scene_graph.graph import Attribute, Object, SceneGraph
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs
from itrpipe.synthesis.captions import GraphCandidates, TokenCaptions

TEXTS = ("A dog's t-shirt, red.", "Two  dogs")


def split() -> Split:
    captions = pa.table(
        {
            "caption_id": ["c0", "c1"],
            "image_id": ["i0", "i1"],
            "text": list(TEXTS),
            "tokens": pa.array([tokenize(text) for text in TEXTS], pa.list_(pa.string())),
        }
    )
    return Split("train", pa.table({"image_id": ["i0", "i1"], "file": ["a", "b"]}), captions)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A cased tokenizer of word pieces."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "do", "##g", "##gs", "'", "s", "t", "-", "shirt", "red"]
    vocabulary = {word: number for number, word in enumerate([*words, "T", "##w", "##o", ",", "."])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # pyright: ignore
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def spelled(captions: TokenCaptions, row: int) -> list[str]:
    """What the tokens of a caption are of, read from its text."""
    text, words = captions.texts[row], captions.words[row]
    return [text[slice(*captions.spans[row][word])] if word >= 0 else "" for word in words[: captions.lengths[row]]]


def test_words_of_our_own_vocabulary_know_their_characters() -> None:
    vocabulary = Vocabulary.build(split().tokens, 1)
    captions = TokenCaptions.of_words(split(), vocabulary)
    assert captions.pieces[-1] == "<mask>"
    assert len(captions.pieces) == len(vocabulary) + 1
    for row in range(2):
        own = spelled(captions, row)
        assert own[0] == own[-1] == ""
        tokens = captions.tokens[row, : captions.lengths[row]].tolist()
        assert [captions.pieces[token] for token in tokens[1:-1]] == [word.lower() for word in own[1:-1]]
    assert captions.words[1].tolist() == [-1, 0, 1, *[-1] * (captions.tokens.shape[1] - 3)]
    assert captions.image_rows.tolist() == [0, 1]


def test_pieces_of_a_word_share_its_characters(tokenizer: Any) -> None:
    captions = TokenCaptions.of_pieces(split(), tokenizer, 50)
    assert spelled(captions, 1) == ["", "Two", "Two", "Two", "dogs", "dogs", ""]
    written = " ".join(captions.pieces[token] for token in captions.tokens[1, :7])
    assert written == "[CLS] T ##w ##o do ##gs [SEP]"
    assert captions.tokens[1, 7:].tolist() == [0] * (captions.tokens.shape[1] - 7)
    assert (captions.words[1, 7:] == -1).all()
    assert spelled(captions, 0)[1:4] == ["A", "dog", "dog"]
    short = TokenCaptions.of_pieces(split(), tokenizer, 4)
    assert short.lengths.tolist() == [4, 4]
    assert spelled(short, 1)[1:3] == ["Two", "Two"]


def test_scene_graphs_say_what_is_masked_together_in_any_cutting(tmp_path: Path, tokenizer: Any) -> None:
    parser = RulesParser("lexicon")
    tokens = [parser.analyse(text).tokens for text in TEXTS]
    assert [token.text for token in tokens[0]] == ["A", "dog", "'s", "t-shirt", ",", "red", "."]
    objects = (Object(0, 1, (1,), "dog"), Object(1, 3, (3,), "t-shirt"))
    graphs = [
        SceneGraph(TEXTS[0], tokens[0], objects, (Attribute(0, 1, (3, 5), "red shirt", "copula"),), ()),
        SceneGraph(TEXTS[1], tokens[1], (), (), ()),
    ]
    ids = [pa.array([f"{name}{number}" for number in range(2)]) for name in ("c", "i")]
    columns = graphs_table(graphs, "test").columns
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [pa.Table.from_arrays([*ids, *columns], schema=SCHEMA)])
    stored = MaskCandidates.read(tmp_path)
    pieces = TokenCaptions.of_pieces(split(), tokenizer, 50)
    words = TokenCaptions.of_words(split(), Vocabulary.build(split().tokens, 1))
    for captions, shirt in ((pieces, ["t", "-", "shirt"]), (words, ["t-shirt"])):
        found = GraphCandidates(captions, stored)(np.array([1, 0]))
        assert not found[0].any()
        text, places = TEXTS[0], captions.spans[0]
        members = [[text[slice(*places[word])] for word in np.flatnonzero(row)] for row in found[1]]
        assert members == [[*shirt, "red"], ["dog"], shirt]
