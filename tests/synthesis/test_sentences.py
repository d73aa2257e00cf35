"""Sentences on disk, block by block, and what is found of them: figures, verdicts by scenes, and perplexity."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from itrpipe.errors import DataError, UsageError
from itrpipe.scenes.layout import PlacedObject, Scene
from itrpipe.scenes.readback import CaptionReader
from itrpipe.synthesis import checks, sentences
from itrpipe.synthesis.language_model import LanguageModel, fluency
from itrpipe.synthesis.sentences import Edit, Sentence, SentenceFile
from tests.encoders import zoo
from tests.synthesis.test_masked import CASES, GOLDEN, rows_of, run

BOX = (0.1, 0.1, 0.2, 0.2)
OBJECTS = tuple(
    PlacedObject(*look, BOX, 0.2) for look in (("dog", "brown", "plain", "large"), ("table", "red", "plain", "medium"))
)
SCENE = Scene("i0", "train", 0, "base", "park", 0.5, OBJECTS, ((0, "under", 1),), 0)
READER = CaptionReader(**checks._NUMBERS)
VERDICTS = dict(CASES["verdicts"])


def sentence(caption: int, number: int, score: float | None = 0.0, text: str = "") -> Sentence:
    edits = [Edit(position, "dog", f"new{number}") for position in range(number + 1)]
    likely = None if score is None else math.log(0.5)
    positive = None if score is None else 0.0
    return Sentence(f"c{caption}", "i0", text or f"text {number}", edits, score, positive, likely, likely)


class Counting:
    """Makes no sentence of the first of three captions, one of the second, two of the third; notes its blocks."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        self.blocks.append(block)
        found = [sentence(caption, number) for caption in rows for number in range(caption % 3)]
        return found, {"kept": len(found), "duplicate": 5}


def joined(folder: Path, *parts: tuple[list[Sentence], dict[str, int]]) -> tuple[SentenceFile, dict[str, int]]:
    paths = [folder / f"{number}.arrow" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        sentences.write_part(path, *part)
    drawn = sentences.join_parts(paths, folder)
    return SentenceFile(folder), drawn


def test_what_is_written_is_read_again_and_an_interrupted_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    maker, again = Counting(), Counting()
    file = run(maker, tmp_path)
    assert maker.blocks == [0, 1, 2]
    rows = rows_of(file)
    expected = sentence(2, 1)._asdict() | {"edits": [{"position": at, "old": "dog", "new": "new1"} for at in (0, 1)]}
    assert len(rows) == len(file) == 4
    assert rows[2] == {
        name: pytest.approx(each, abs=1e-6) if name.endswith("probability") else each for name, each in expected.items()
    }
    assert file.read(("text", "score")).to_pylist()[2] == {"text": "text 1", "score": 0.0}
    parts = sorted((tmp_path / "parts").glob("*.arrow"))
    refined = tmp_path / "refined"
    refined.mkdir()
    drawn = sentences.join_parts(parts, refined, np.arange(4) % 2 == 0)
    assert drawn == {"duplicate": 15, "guessed": 2, "kept": 2}
    assert SentenceFile(refined).read(("text",)).to_pylist() == [{"text": rows[place]["text"]} for place in (1, 3)]
    for part in (tmp_path / "parts").glob("00000[02]*"):
        part.unlink()
    whole = (tmp_path / sentences.SENTENCES_FILE).read_bytes()
    run(again, tmp_path)
    assert again.blocks == [0, 2]
    assert (tmp_path / sentences.SENTENCES_FILE).read_bytes() == whole


def test_statistics_count_what_was_drawn_and_measure_what_was_kept(tmp_path: Path) -> None:
    rows = [sentence(0, 0, score=1.0), sentence(0, 2, score=-1.0)]
    file = joined(tmp_path, (rows, {"kept": 2, "outranked": 1, "identical": 3, "duplicate": 2}))
    found = checks.synthesis_statistics(*file, 4)
    assert found == GOLDEN["figures"]
    assert [checks.facts(found), list(map(list, checks.table_rows(found)))] == GOLDEN["figures told"]
    equal = joined(tmp_path, ([sentence(0, 0, score=0.0)], {"kept": 1}))  # to its caption
    assert checks.synthesis_statistics(*equal, 1)["beats_caption_percent"] == 0


@pytest.mark.parametrize("rows", [[sentence(0, 0, score=None)], []])
def test_what_no_model_scored_and_no_sentence_at_all_are_legal(tmp_path: Path, rows: list[Sentence]) -> None:
    file = joined(tmp_path, (rows, {"identical": 4}))
    found, judged = checks.synthesis_statistics(*file, 1), checks.true_negatives(file[0], {"i0": SCENE})
    assert found["median_gap"] is found["perplexity"] is found["beats_caption_percent"] is None
    nothing = ["0 sentences for 1 caption", "1 caption has no sentence"]
    assert checks.facts(found) == (["1 sentence for 1 caption, 1.00 places changed in each"] if rows else nothing)
    assert len(checks.facts(found | {"true_negatives": judged})) == 2
    assert rows or judged["percent"] is judged["percent_of_decided"] is None


@pytest.mark.parametrize(("text", "verdict"), VERDICTS.items())
def test_verdicts(text: str, verdict: str) -> None:
    assert checks.verdict(READER, text, SCENE) == verdict
    assert set(VERDICTS.values()) == set(checks.VERDICTS)


def test_what_can_mean_several_things_is_true_where_one_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    read = READER.meanings
    untrue, true, undecided = "a kitty is under a table", "a puppy is under a table", "a dog is parked under a table"
    monkeypatch.setattr(READER, "meanings", lambda texts: [each for text in texts.split("/") for each in read(text)])
    for texts, verdict in (((untrue, true), "true"), ((undecided, true), "true"), ((untrue, undecided), "undecided")):
        for order in (texts, texts[::-1]):
            assert checks.verdict(READER, "/".join(order), SCENE) == verdict


def test_figures_count_verdicts(tmp_path: Path) -> None:
    rows = [sentence(0, number % 2, text=text, score=None) for number, text in enumerate(VERDICTS)]
    done: list[int] = []
    file = joined(tmp_path, (rows, {"kept": 7}))
    found = checks.true_negatives(file[0], {"i0": SCENE}, done.append)
    assert sum(done) == 7
    assert [found[verdict] for verdict in checks.VERDICTS] == [3, 2, 1, 1]
    said = checks.facts(checks.synthesis_statistics(*file, 1) | {"true_negatives": found})
    assert {"found": found, "said": said} == GOLDEN["judged"]
    with pytest.raises(DataError, match="no scene of the dataset is image 'i0'"):
        checks.true_negatives(file[0], {"i1": SCENE})


TEXTS = ["a dog runs on the road", "dog", "the road runs a dog on the road a dog runs on a", "a cat", ""]


def test_perplexities_are_those_of_every_text_alone(saved_gpt2: Path) -> None:
    network = transformers.GPT2LMHeadModel.from_pretrained(saved_gpt2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved_gpt2)
    seen: list[int] = []
    found = LanguageModel(str(saved_gpt2)).perplexities(TEXTS, seen.append)
    for text, perplexity in zip(TEXTS[:4], found, strict=False):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]][:10]])
        with torch.no_grad():
            assert perplexity == pytest.approx(math.exp(network(ids, labels=ids).loss), rel=1e-5)
    assert np.isnan(found[4])
    assert len(set(found[:4].tolist())) == 4
    assert sum(seen) == 5


def test_kept_sentences_are_read_with_their_captions(saved_gpt2: Path, tmp_path: Path) -> None:
    first = [sentence(0, 0, text=TEXTS[0]), sentence(0, 0, text=TEXTS[1])]
    file, _ = joined(tmp_path, (first, {"kept": 2, "outranked": 1}), ([sentence(2, 0, text=TEXTS[2])], {"kept": 1}))
    captions, model = {"c0": "a dog", "c1": "a cat", "c2": "the road"}, LanguageModel(str(saved_gpt2))
    found = fluency(file, captions, model, 10, 0)
    assert (found["sentences"], found["captions"]) == (3, 2)
    assert found["perplexity"] == pytest.approx(model.perplexities(TEXTS[:3]).mean(), abs=0.01)
    assert found["caption_perplexity"] == pytest.approx(model.perplexities(["a dog", "the road"]).mean(), abs=0.01)
    assert len({fluency(file, captions, model, 1, seed)["perplexity"] for seed in range(6)}) > 1
    assert fluency(file, captions, model, 1, 4) == fluency(file, captions, model, 1, 4)
    nothing = fluency(joined(tmp_path, ([], {"identical": 3}))[0], captions, model, 5, 0)
    assert nothing == {"sentences": 0, "captions": 0, "perplexity": None, "caption_perplexity": None}


def test_a_tokenizer_of_another_network_is_refused(saved_gpt2: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved_gpt2, tmp_path / "gpt2"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    with pytest.raises(DataError, match=r"gpt2.*download the model again"):
        LanguageModel(str(folder))


def test_a_model_that_reads_what_comes_after_a_word_is_refused(saved_gpt2: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved_gpt2, tmp_path / "bert"))
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    transformers.BertLMHeadModel(transformers.BertConfig(**zoo.TEXT | {"vocab_size": words})).save_pretrained(folder)
    with pytest.raises(UsageError, match=r"BertLMHeadModel reads what comes after a token"):
        LanguageModel(str(folder))
