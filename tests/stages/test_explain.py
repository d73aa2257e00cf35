"""Which words are wrong, of a tiny TAGS-DC: `itrpipe explain`, what `evaluate` measures, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.analysis.questions.words import answer
from itrpipe.analysis.words import CORRECTION_SCHEMA, DRAWS, WordTest
from itrpipe.cli.ask import coloured
from itrpipe.cli.asked import run_stage
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.pipeline.planning import parse_override
from itrpipe.progress import Reporter
from itrpipe.search.photos import photograph_features
from itrpipe.stages.evaluate import EvaluateSettings
from itrpipe.storage.artifact import WORD_CORRECTIONS, WORDS, read_manifest
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model
from tests.chains import Invoke, copied, done, only, refused, sets
from tests.conftest import Outcome

SMALL = (
    "train.epochs=1",
    "train.max_updates=0",
    "train.warmup_updates=1",
    "train.batch_size=16",
    "train.accumulate=1",
    "train.min_word_count=1",
    "train.model.embed_dim=8",
    "train.model.layers=2",
    "train.model.heads=2",
    "train.model.feed_forward_dim=16",
    "train.model.max_words=20",
    *(
        f"{conf}.loss.{each}"
        for conf in ("tags", "tags-dc")
        for each in ("sampled_negatives=7", "hard_negatives=3", "mask=words", "copies=2", "draws=2", "keep=3")
    ),
)
CAPTION = "A cat number 16 is on the road 0."


@pytest.fixture(scope="module")
def root(boxed_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which TAGS-DC is trained and evaluated on `tiny` with boxes. Copy it to change it."""
    found = copied(boxed_chain, tmp_path_factory.mktemp("explain") / "data")
    given = ["method=tags-dc", "features=boxed", "evaluate.bootstrap_samples=100", *SMALL]
    run_stage(found, "tiny", "evaluate", [parse_override(text) for text in given])
    return found


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """This test's own."""
    return copied(root, tmp_path / "data")


def opened(root: Path) -> tuple[Split, FeatureFile]:
    """The test split and its features."""
    split = PreparedDataset.open(only(root, "prepare/files")).split("test")
    return split, FeatureFile.open(only(root, "extract/boxed") / FEATURES)


def explain(invoke: Invoke, root: Path, *options: object, image: str = "1016.jpg", caption: str = CAPTION) -> Outcome:
    given = ("--dataset", "tiny", "--features", "boxed", "--data", root, "--image", image, "--caption", caption)
    small = [] if "--method" in options else sets(*SMALL)
    return invoke("explain", *given, *small, "--make", *options)


def test_the_words_of_a_caption_have_the_probabilities_of_the_model(root: Path, invoke: Invoke) -> None:
    found = json.loads(done(explain(invoke, root, "--json")))
    saved = load_model(only(root, "train/tags-dc.uniter"))
    assert isinstance(saved.model, UniterEncoder)
    prepared, features = opened(root)
    row = prepared.image_ids.tolist().index(found["image_id"])
    caption = prepared.texts.index(CAPTION)
    data = open_split(prepared, features, saved.tokens, saved.settings)
    texts = data.texts(np.array([caption]))
    with torch.no_grad():
        images, encoded = saved.model.encode_images(data.images(np.array([row]))), saved.model.encode_texts(texts)
        first = torch.zeros(1, dtype=torch.int64)
        states = saved.model.read_at(images, encoded, first, first, int(texts.lengths[0]), lambda each: each)[0]
        expected = saved.model.word_match_logits(states).softmax(dim=1)[:, 0]
    assert [word["text"] for word in found["words"]] == [*CAPTION[:-1].split(), "."]
    for place, word in enumerate(found["words"], 1):
        assert CAPTION[word["start"] : word["end"]] == word["text"]
        assert word["mismatch"] == pytest.approx(expected[place].item(), abs=1e-5)
        assert word["flagged"] == (word["mismatch"] > 0.5) == (word["correction"] is not None)
        assert word["known"] == (word["text"] != "16")  # the numbers of the test images are in no other caption
    written = read_scores(only(root, "evaluate/tags-dc.uniter") / SCORES, "test").matrix[row, caption]
    assert found["score"] == pytest.approx(1 / (1 + np.exp(-written)), abs=1e-3)
    assert (found["run"], found["split"], found["caption"]) == ("tags-dc.uniter", "test", CAPTION)


def decide(monkeypatch: pytest.MonkeyPatch, wrong: set[int], written: int) -> None:
    """Makes the heads find tokens of these ids wrong, and nothing else, and correct all of them to one."""
    kept: list[torch.Tensor] = []
    embed = UniterEncoder.encode_texts

    def remember(self: UniterEncoder, texts: Any) -> Any:
        kept[:] = [texts.tokens]
        return embed(self, texts)

    def judge(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        bad = torch.isin(kept[0], torch.tensor(sorted(wrong), device=kept[0].device))
        return torch.stack([bad.float() * 6 - 3, torch.zeros_like(bad, dtype=torch.float32)], dim=-1)

    def correct(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(states), self.text.word.num_embeddings, device=states.device)
        logits[:, written], logits[:, :4] = 1.0, 2.0  # special tokens are likelier, and never written
        return logits

    monkeypatch.setattr(UniterEncoder, "encode_texts", remember)
    monkeypatch.setattr(UniterEncoder, "word_match_logits", judge)
    monkeypatch.setattr(UniterEncoder, "correction_logits", correct)


def test_wrong_words_carry_their_number_and_are_replaced(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = load_model(only(root, "train/tags-dc.uniter")).vocabulary.ids
    decide(monkeypatch, {ids["cat"], ids["."]}, ids["beach"])
    out = done(explain(invoke, root, image="flickr30k-images/1016.jpg"))
    assert out.splitlines()[0] == "1016 (test), tags-dc.uniter"
    assert "  caption    A cat (0.95) number 16 is on the road 0. (0.95)\n" in out
    assert "  corrected  A beach number 16 is on the road 0 beach\n" in out
    assert ", corrected 0." in out


def test_a_caption_without_wrong_words_is_left_alone(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(monkeypatch, set(), 5)
    outcome = explain(invoke, root, caption="a zebra on the roof")
    assert "  caption    a zebra on the roof\n" in outcome.out
    assert "nothing: no word is more likely wrong than right" in outcome.out
    assert "  unknown    zebra: not among the words that the model knows\n" in outcome.out


def test_words_are_coloured_in_steps() -> None:
    words = [
        {"text": "a", "start": 0, "end": 1, "mismatch": 0.1, "flagged": False},
        {"text": "b", "start": 2, "end": 3, "mismatch": 1.0, "flagged": True},
    ]
    text = coloured("a b!", words)
    assert text.plain == "a b (1.00)!"
    assert [str(span.style) for span in text.spans] == ["bold black on #f2a65a"]


def test_a_photograph_is_read_by_the_extractor_of_the_features(
    root: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.png"
    Image.new("RGB", (192, 144), (90, 120, 200)).save(path)
    refused(explain(invoke, root, image=str(path)), 2, "imported (arrays)")
    folder = tmp_path / "extract"
    folder.mkdir()
    manifest = json.loads((only(root, "extract/boxed") / "manifest.json").read_text())
    manifest |= {"conf": "scenes", "settings": {"kind": "scenes"}, "outputs": {}}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))
    found = photograph_features(path, folder, "cpu")
    assert found.rows([str(path)]).tolist() == [0]
    shapes = {name: (values.shape, values.dtype) for name, values in found.arrays.items()}
    assert shapes["regions"] == ((1, 12, 256), np.float16)
    assert shapes["boxes"] == ((1, 12, 4), np.float32)
    path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"--image .*mine\.png .*give another photograph"):
        photograph_features(path, folder, "cpu")


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        (("--method", "itm"), 2, "itm.uniter"),
        (("--method", "triplet", "--backbone", "vsepp"), 2, "--method tags-dc"),
        (("--method", "tags-dc", "--backbone", "vsepp"), 2, "backbone 'vsepp'"),
        (("--image", "1017.jpeg"), 3, "1017.jpeg"),
        (("--caption", "a dog " * 10), 2, "20 tokens"),
        (("--seed", 7, "--no-deps"), 2, "itrpipe train --dataset tiny --method tags-dc --backbone uniter --data "),
    ],
)
def test_what_cannot_be_explained_is_told_in_one_line(
    options: tuple[object, ...], code: int, value: str, root: Path, invoke: Invoke
) -> None:
    refused(explain(invoke, root, *options), code, value)


def test_what_was_removed_since_is_named(copy: Path, invoke: Invoke) -> None:
    shutil.rmtree(only(copy, "extract/boxed"))
    model = only(copy, "train/tags-dc.uniter").name
    refused(explain(invoke, copy), 3, f"train/{model} was made from", "run `itrpipe extract --dataset tiny`")


def test_a_model_that_is_missing_is_planned_with_its_cost_and_trained_on_the_way(copy: Path, invoke: Invoke) -> None:
    shutil.rmtree(only(copy, "train/tags-dc.uniter"))
    for options in ((), ("--no-deps",)):
        outcome = explain(invoke, copy, "--dry-run", *options)
        assert (outcome.code, outcome.err) == (0, "")
        header, *plan = outcome.out.splitlines()
        assert header == "tiny: explain tags-dc.uniter"
        assert any("+ train/tags-dc.uniter" in line and line.endswith("missing") for line in plan)
        assert plan[-1].startswith("estimated cost: unknown")
    quiet = explain(invoke, copy, "--dry-run", "--json")
    assert (quiet.code, quiet.out) == (0, "")
    assert "+ train/tags-dc.uniter" in quiet.err
    assert not list(copy.glob("tiny/train/tags-dc.*"))
    outcome = explain(invoke, copy, "--json")
    assert json.loads(done(outcome))["run"] == "tags-dc.uniter"
    assert "tiny: explain tags-dc.uniter\n" in outcome.err
    assert "+ train/tags-dc.uniter" in outcome.err
    assert only(copy, "train/tags-dc.uniter").is_dir()


def test_what_is_there_is_explained_without_a_plan(root: Path, invoke: Invoke) -> None:
    assert "up to date" not in explain(invoke, root).out
    assert explain(invoke, root, "--dry-run").out.count("up to date") == 4


# What evaluation measures


def words_of(root: Path) -> dict[str, Any]:
    return json.loads((only(root, "evaluate/tags-dc.uniter") / WORDS).read_text())


def test_figures_count_every_word_and_sentence_once(root: Path) -> None:
    found = words_of(root)
    assert (found["captions"], found["mask"]) == (20, "words")
    assert set(found["drawn"]) <= {"kept", "identical", "false negative", "duplicate"}
    assert sum(found["drawn"].values()) == 20 * 4 * DRAWS
    assert found["below_caption"]["sentences"] == found["drawn"]["kept"] > 0
    told = found["discrimination"]
    assert (
        told["all"]["words"] == told["matching"]["words"] + told["mismatching"]["words"] == 10 * found["drawn"]["kept"]
    )
    assert found["correction"]["words"] == told["mismatching"]["words"] >= found["drawn"]["kept"]
    assert found["correction_masked"]["words"] >= found["correction"]["words"]
    right = [told[name]["percent"] * told[name]["words"] for name in ("matching", "mismatching", "all")]
    assert right[0] + right[1] == pytest.approx(right[2])


def test_sentences_are_shown_with_what_is_wrong_in_them(root: Path) -> None:
    table = pq.read_table(only(root, "evaluate/tags-dc.uniter") / WORD_CORRECTIONS)
    assert table.schema.equals(CORRECTION_SCHEMA)
    rows = table.to_pylist()
    assert 0 < len(rows) <= 12
    assert [row["example"] for row in rows] == list(range(len(rows)))
    for row in rows:
        assert row["sentence"] != row["caption"]
        own = [*row["caption"].lower().removesuffix(".").split(), "."]
        for number, word in enumerate(row["words"]):
            said = row["sentence"][word["start"] : word["end"]].lower()
            fixed = row["corrected"][word["corrected_start"] : word["corrected_end"]].lower()
            assert word["wrong"] == (said != own[number])
            assert word["restored"] == (fixed == own[number])
            assert word["flagged"] == (word["mismatch"] > 0.5)
            assert word["flagged"] or fixed == said
        assert any(word["wrong"] for word in row["words"])


def test_a_model_that_was_not_trained_to_correct_words_does_not(
    root: Path, copy: Path, recorded: Callable[[Path], None]
) -> None:
    folder = only(copy, "train/tags-dc.uniter")
    config = json.loads((folder / "config.json").read_text())
    config["loss"]["weight_correction"] = 0.0
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    recorded(folder / "config.json")
    figures, examples = WordTest(load_model(folder), *opened(root), "cpu").run()
    assert figures["correction"] is figures["correction_masked"] is None
    assert figures["discrimination"]["mismatching"] == words_of(root)["discrimination"]["mismatching"]
    assert set(examples["corrected"].to_pylist()) == {None}


def test_evaluation_writes_no_words_of_other_models(finished_chain: Path) -> None:
    for folder in (finished_chain / "data").glob("tiny/evaluate/*/"):
        assert not (folder / WORDS).exists()


def test_where_the_features_are_gone_words_are_left_out_with_a_warning(copy: Path, tmp_path: Path) -> None:
    features, folder = only(copy, "extract/boxed"), only(copy, "evaluate/tags-dc.uniter")
    trained, manifest = only(copy, "train/tags-dc.uniter"), read_manifest(folder)
    shutil.rmtree(features)
    messages: list[str] = []
    evaluation = Evaluation(
        settings=EvaluateSettings.model_validate(manifest.settings),
        prepare=only(copy, "prepare/files"),
        trained=trained,
        manifest=read_manifest(trained),
        sentences={},
        folder=tmp_path,
        work=tmp_path,
        device="cpu",
        block=16,
        made=lambda work, folder: pytest.fail("nothing is to be made"),
        reporter=Reporter(),
        warn=messages.append,
        metrics={},
    )
    answer(evaluation, read_scores(folder / SCORES, "test"))
    assert messages == [f"{WORDS} is left out: {features}, which the model was trained on, is not there"]
    assert not (tmp_path / WORDS).exists()
