"""Sentences by a model: captions as tokens, spelling, a model made of a table, and a UNITER pair by pair."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, tokenize
from itrpipe.learning.sentences import NO_WORD, CaptionMasks, SpecialTokens
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import build
from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.graph import Attribute, Object, SceneGraph
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs
from itrpipe.synthesis import masked
from itrpipe.synthesis.generators import ByModel
from itrpipe.synthesis.masked import ModelMaker, UniterSentences
from itrpipe.synthesis.sentences import Edit, Opened, SentenceFile, Writing, apply_edits, join_parts
from itrpipe.synthesis.tokens import TokenCaptions, graph_candidates, respell
from tests.definitions import sentence_settings
from tests.maps import made

TEXTS = ("a red dog runs", "the dogs run fast", "two cats sleep", "a blue car", "a car is blue here")
IMAGES = ("i0", "i0", "i1", "i2", "i2")
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())
GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text())
PIECES: list[str] = CASES["pieces"]
SPECIALS = SpecialTokens(len(PIECES) - 1, (0, 1, 2, 3), (4, len(PIECES) - 1))


def split_of(texts: Sequence[str], images: Sequence[object] | None = None) -> Split:
    """Captions of these images, those of an image one behind the other."""
    owners = [str(image) for image in images or range(len(texts))]
    columns = {"caption_id": [f"c{row}" for row in range(len(texts))], "image_id": owners}
    words = pa.array([tokenize(text) for text in texts], pa.list_(pa.string()))
    captions = pa.table({**columns, "text": list(texts), "tokens": words})
    return Split("train", pa.table({"image_id": [*dict.fromkeys(owners)]}), captions)


def tokenizer_of(pieces: Sequence[str]) -> Any:
    """A fast tokenizer with these pieces, start and end around every text."""
    numbers = {piece: number for number, piece in enumerate(pieces)}
    own = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    own.post_processor = processors.BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))  # pyright: ignore
    special: Any = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, model_max_length=9, **special)


def captions() -> TokenCaptions:
    return TokenCaptions.of_pieces(split_of(TEXTS, IMAGES), tokenizer_of(PIECES), 8)


class TableModel:
    """Writes any word with a fixed probability, and prefers sentences by a fixed worth of their words."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(len(PIECES), generator=generator)
        self.worth = torch.randn(len(PIECES), generator=generator)
        self.worth[0] = 0.0  # padding
        self.ranked: list[int] = []

    def embed(self, images: Tensor) -> tuple[None, Tensor]:
        return None, images

    def mlm_logits(self, embedded: None, images: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        assert len(images) == len(texts.tokens) == len(texts.lengths)
        return self.logits.expand(int(labelled.sum()), -1)

    def rank(self, embedded: None, images: Tensor, texts: TextBatch) -> Tensor:
        self.ranked.append(len(images))
        assert (texts.tokens[torch.arange(len(images)), texts.lengths - 1] == 2).all()
        return self.worth[texts.tokens].sum(dim=1) + images


def phrases(rows: np.ndarray) -> np.ndarray:
    """The first word, and the second with the third."""
    found = np.zeros((len(rows), 2, 5), dtype=bool)
    found[:, 0, 0] = found[:, 1, 1] = found[:, 1, 2] = True
    return found


def maker(settings: ByModel, model: TableModel | None = None, with_phrases: bool = True) -> ModelMaker:
    own, candidates = captions(), phrases if with_phrases else None
    masks = CaptionMasks(own.tokens, own.words, own.split.caption_image, candidates, SPECIALS, settings.compare)
    return ModelMaker(own, model or TableModel(), masks, settings)  # pyright: ignore[reportArgumentType]


def run(made_by: Any, folder: Path, block_size: int = 2) -> SentenceFile:
    opened = Opened(made_by.make, captions().split, None)
    join_parts(made(Writing(lambda: opened, block_size), folder / "parts").paths, folder)
    return SentenceFile(folder)


def rows_of(file: SentenceFile) -> list[dict[str, Any]]:
    return [row for table in file.row_groups() for row in table.to_pylist()]


TEXT = "A  Dog, two cats!"


@pytest.mark.parametrize(("changed", "text", "words", "edits"), CASES["respelled"])
def test_changed_words_are_spelled_and_others_stay(
    changed: dict[str, str], text: str, words: list[str], edits: list[tuple[int, str, str]]
) -> None:
    own = TokenCaptions.of_pieces(split_of([TEXT]), tokenizer_of(CASES["spelled"]), 20)
    tokens = own.tokens[0].copy()
    for place, piece in changed.items():
        tokens[int(place)] = CASES["spelled"].index(piece)
    found = respell(own, 0, tokens)
    assert found.text == text == apply_edits(TEXT, own.spans[0][:, 0].tolist(), found.edits)
    assert [found.text[start:end] for start, end in found.spans] == words
    assert found.edits == [Edit(*edit) for edit in edits]
    if set(changed) <= {"1", "2"}:
        assert respell(own, 0, tokens[:3]).text == text  # words that are cut off stay


def test_pieces_and_words_know_their_characters() -> None:
    texts = ("A dog's t-shirt, red.", "Two  dogs")
    cased = [*PIECES[:4], "[MASK]", "A", "do", "##g", "##gs", "'", "s", "t", "-", "shirt", "red", "T", "##wo", ",", "."]
    pieces, short = (TokenCaptions.of_pieces(split_of(texts), tokenizer_of(cased), most) for most in (50, 4))
    words = TokenCaptions.of_words(split_of(texts), Vocabulary.build(split_of(texts).tokens, 1))
    told = ((pieces, ["Two", "Two", "dogs", "dogs"]), (words, ["Two", "dogs"]), (short, ["Two", "Two"]))
    for own, expected in told:
        inside = own.words[1, 1 : own.lengths[1] - 1]
        assert (inside != NO_WORD).all()
        assert [texts[1][slice(*own.spans[1][word])] for word in inside] == expected
        assert (np.delete(own.words[1], range(1, own.lengths[1] - 1)) == NO_WORD).all()
        assert not own.tokens[1, own.lengths[1] :].any()
        assert len(own.spans[1]) == 2
    assert [pieces.pieces[token] for token in pieces.tokens[1, :6]] == ["[CLS]", "T", "##wo", "do", "##gs", "[SEP]"]
    assert words.pieces[4:] == ["'s", ",", ".", "a", "dog", "dogs", "red", "t-shirt", "two", "<mask>"]


def test_scene_graphs_say_what_is_masked_together_in_any_cutting(tmp_path: Path) -> None:
    texts = ("A dog's t-shirt, red.", "Two  dogs")
    tokens = [RulesParser("lexicon").analyse(text).tokens for text in texts]
    objects = (Object(0, 1, (1,), "dog"), Object(1, 3, (3,), "t-shirt"))
    red = Attribute(0, 1, (3, 5), "red shirt", "copula")
    graphs = [SceneGraph(texts[0], tokens[0], objects, (red,), ()), SceneGraph(texts[1], tokens[1], (), (), ())]
    ids = [pa.array([f"{name}{number}" for number in range(2)]) for name in ("c", "i")]
    columns = graphs_table(graphs).columns
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [pa.Table.from_arrays([*ids, *columns], schema=SCHEMA)])
    stored, split = MaskCandidates.read(tmp_path), split_of(texts)
    pieces = TokenCaptions.of_pieces(split, tokenizer_of([*PIECES, "t", "-", "shirt", "'"]), 50)
    words = TokenCaptions.of_words(split, Vocabulary.build(split.tokens, 1))
    for own, shirt in ((pieces, ["t", "-", "shirt"]), (words, ["t-shirt"])):
        found = graph_candidates(own, stored)(np.array([1, 0]))
        assert not found[0].any()
        members = [[texts[0][slice(*own.spans[0][word])] for word in np.flatnonzero(row)] for row in found[1]]
        assert members == [[*shirt, "red"], ["dog"], shirt]


class Images:
    """Random features with boxes; notes which are read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.regions, self.boxes = (torch.rand(5, 3, size, generator=generator) for size in (6, 4))
        self.read: list[list[int]] = []

    def __call__(self, rows: np.ndarray) -> ImageBatch:
        self.read.append(rows.tolist())
        return ImageBatch(self.regions[rows], torch.tensor([3, 1, 2, 3, 2])[rows], boxes=self.boxes[rows])


@pytest.mark.parametrize("memory", [1, 1 << 16])
def test_uniter_reads_every_pair_as_it_does_alone_and_images_once(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "_RANKED", memory)
    torch.manual_seed(0)
    uniter = build(Uniter(embed_dim=16, layers=2, heads=2, feed_forward_dim=16, max_words=20), 6, 30).eval()
    for parameter in uniter.parameters():  # so that scores differ by more than rounding
        torch.nn.init.normal_(parameter, std=0.3)
    # The shortest pairs have fewer positions in all than the longest caption has words.
    rows, lengths = torch.tensor([4, 1, 1, 0, 1]), torch.tensor([9, 3, 6, 4, 3])
    places = torch.arange(9) < lengths[:, None]
    texts = TextBatch(torch.randint(4, 30, (5, 9)) * places, lengths)
    labelled, images, alone = (texts.tokens > 15) & places, Images(), []
    sentences = UniterSentences(uniter, images)
    embedded = sentences.embed(rows)
    words, scores = sentences.mlm_logits(*embedded, texts, labelled), sentences.rank(*embedded, texts)
    with torch.no_grad():
        for row, length in enumerate(lengths.tolist()):
            image = uniter.encode_images(Images()(rows[row : row + 1].numpy()))
            text = uniter.encode_texts(TextBatch(texts.tokens[row : row + 1, :length], lengths[row : row + 1]))
            states = torch.cat([text.words, image.regions[:, : int(image.count)]], dim=1)
            size = states.shape[1]
            alone.append(uniter.masked_word_logits(uniter.layers(states)[0, :9])[labelled[row, :size]])
        pairs = uniter.score_pairs(uniter.encode_images(Images()(rows.numpy())), uniter.encode_texts(texts))
    torch.testing.assert_close(words, torch.cat(alone), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores, pairs, atol=1e-5, rtol=1e-5)
    assert (scores.dtype, scores.unique().numel()) == (torch.float32, 5)
    assert images.read == [[0, 1, 4]]


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("with_phrases", [True, False])
def test_a_model_writes_what_it_wrote(tmp_path: Path, with_phrases: bool) -> None:
    settings = sentence_settings("phrases", copies=6, draws=7, keep=4, seed=2)
    rows = rows_of(run(maker(settings, with_phrases=with_phrases), tmp_path))
    numbers = ("score", "positive_score", "log_probability", "caption_log_probability")
    sums = [sum(row.pop(name) or 0.0 for row in rows) for name in numbers]
    of_rules = "kind", "twin_image_id", "detail", "twin_detail"
    assert {tuple(row.pop(name) for name in of_rules) for row in rows} == {("", None, None, None)}
    golden = GOLDEN["model"][str(with_phrases)]
    assert [digest(rows), len(rows)] == golden["sentences"]
    assert sums == pytest.approx(golden["sums"], rel=1e-4)
