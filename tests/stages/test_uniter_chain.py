"""UNITER through the command line: fine-tuning, pretraining, both phases of TAGS, and which words are wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from itrpipe.cli.explain import coloured
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.pretrain.method import masked_word_logits
from itrpipe.methods.tags import method as tags
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.storage.artifact import WORDS, read_manifest
from itrpipe.training.data import open_split
from itrpipe.training.saved import load_model
from tests.chains import FEW, ONCE, TAGS, UNITER, Invoke, copied, done, history, only, refused, sets, tags_loss
from tests.conftest import Outcome
from tests.models.toys import recorded as of_uniter


@pytest.fixture
def root(tags_chain: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(tags_chain, tmp_path / "data")


def trained(invoke: Invoke, root: Path, method: str, *more: str) -> Path:
    phases = tags_loss("tags") if method == "tags-dc" else ()
    done(invoke("train", "--method", method, "--data", root, *sets(*UNITER, *phases, *tags_loss(method), *more)))
    return only(root, f"train/{method}.uniter")


def test_pretraining_and_the_first_phase_come_first(tags_chain: Path) -> None:
    first, second = (history(tags_chain, label)[0] for label in ("pretrain.uniter", "tags.uniter"))
    assert {"loss_matching", "loss_words", "mean_masked_word_accuracy"} <= first.keys()
    losses = {name for name in second if name.startswith("loss_")}
    assert losses == {"loss_text_anchored", "loss_image_anchored", "loss_words", "loss_sentences"}
    assert 0 < second["mean_scored_sentences"] <= 20
    assert 0 < second["mean_sentences"] <= 3
    assert 0 < first["mean_matching_accuracy"] < 1
    assert sorted(read_manifest(only(tags_chain, "train/pretrain.uniter")).inputs) == ["extract", "prepare"]
    assert sorted(read_manifest(only(tags_chain, "train/tags.uniter")).inputs) == [
        "extract",
        "parse",
        "prepare",
        "start",
    ]


def test_the_second_phase_starts_from_the_first_with_heads_that_are_copies(root: Path, invoke: Invoke) -> None:
    shutil.rmtree(only(root, "train/tags-dc.uniter"))
    after = load_file(trained(invoke, root, "tags-dc", "tags-dc.learning_rate=1e-9") / "model.safetensors")
    before = load_file(only(root, "train/tags.uniter") / "model.safetensors")
    for name, source in (
        ("rank.weight", "rank.weight"),
        ("text.word.weight", "text.word.weight"),
        ("word_match.weight", "match.weight"),
        ("correction.transform.weight", "masked_word.transform.weight"),
        ("correction.bias", "masked_word.bias"),
    ):
        torch.testing.assert_close(after[name], before[source], atol=1e-6, rtol=0)
    assert not torch.equal(before["rank.weight"], before["match.weight"][1:])
    assert not torch.equal(before["correction.bias"], before["masked_word.bias"])
    row, _ = history(root, "tags-dc.uniter")
    assert min(row["loss_discrimination"], row["loss_correction"]) > 0
    for name in ("correction_accuracy", "accuracy_of_right_words", "accuracy_of_wrong_words"):
        assert 0 <= row[f"mean_{name}"] <= 1


def test_words_are_tested_in_the_phrases_that_the_model_was_trained_on(
    root: Path, invoke: Invoke, saved_gpt2: Path
) -> None:
    plain = only(root, "evaluate/tags-dc.uniter")
    shutil.rmtree(plain)
    given = ("evaluate", "--method", "tags-dc", "--data", root, "--language-model", saved_gpt2, *sets(*TAGS, FEW))
    out = done(invoke(*given))
    folder = only(root, "evaluate/tags-dc.uniter")
    figures = json.loads((folder / WORDS).read_text())
    assert (figures["captions"], figures["mask"]) == (20, "phrases")
    assert figures["correction_masked"]["words"] >= figures["correction"]["words"] > 0
    shown = [f"{each:.1f}" for each in (figures["correction"]["percent"], figures["fluency"]["corrected"])]
    assert all(each in out for each in shown)
    graphs = only(root, "parse/rules.hanta")
    shutil.rmtree(folder)
    shutil.rmtree(graphs)
    outcome = invoke(*given)
    assert outcome.code == 3
    assert f"{graphs}, which train/" in outcome.err


def test_the_static_generator_is_the_model_that_the_settings_name(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = set()

    def noted(model: UniterEncoder, *rest: Any) -> torch.Tensor:
        modes.add((model.training, model.rank.weight.requires_grad))
        return masked_word_logits(model, *rest)

    monkeypatch.setattr(tags, "masked_word_logits", noted)
    inputs = read_manifest(trained(invoke, root, "tags-static")).inputs
    assert modes == {(True, True), (False, False)}  # what is trained, and what writes
    assert sorted(inputs) == ["extract", "parse", "prepare", "start", "writer"]
    assert inputs["writer"].name.startswith("pretrain.uniter")
    first, _ = history(root, "tags-static.uniter")
    assert min(first["loss_sentences"], first["loss_words"]) > 0
    assert first["mean_masked_word_accuracy"] >= 0


def test_the_bank_and_other_models_read_written_sentences(root: Path, invoke: Invoke) -> None:
    write = [f"synthesize.{text}" for text in ("copies=4", "draws=5", "keep=6", "block=16")]
    inputs = read_manifest(trained(invoke, root, "tags-synthetic", *write)).inputs
    assert {"start", "synthesize"} <= inputs.keys()
    assert "parse" not in inputs
    first, _ = history(root, "tags-synthetic.uniter")
    assert first["loss_sentences"] > 0
    assert "loss_words" not in first
    assert 0 < first["mean_sentences"] <= 3
    uniter = [f"pretrain.{text.removeprefix('train.')}" for text in UNITER if "parse" not in text]
    small = (*ONCE, "synthetic-triplet.model.embed_dim=8", "synthetic-triplet.model.word_dim=8", "parse.workers=1")
    given = ("--method", "synthetic-triplet", "--backbone", "vsepp", "--data", root)
    assert "+ train/pretrain" not in done(invoke("train", *given, *sets(*small, *uniter, *write)))
    assert history(root, "synthetic-triplet.vsepp")[0]["loss_synthetic"] > 0
    twins = ("--method", "triplet", "--backbone", "vsepp", "--negatives", "twins", "--make", "--data", root)
    done(invoke("train", *twins, *sets(*(each.replace("synthetic-", "") for each in small))))
    assert history(root, "triplet.vsepp")[0]["loss_twins"] > 0
    assert any(
        "mirror images are left out" in each for each in read_manifest(only(root, "train/triplet.vsepp")).messages
    )


@pytest.mark.parametrize(
    ("method", "backbone", "dataset", "expected"),
    [
        ("tags", "uniter", "flickr30k", (5e-5, 5000, 31, 0.1, 1e-3)),
        ("tags", "uniter-large", "flickr30k", (4e-5, 5000, 23, 0.1, 5e-4)),
        ("tags", "uniter", "coco", (5e-5, 5000, 31, 0.05, 1e-4)),
        ("tags", "uniter-large", "coco", (4e-5, 5000, 23, 0.05, 5e-4)),
        ("tags-dc", "uniter", "flickr30k", (1e-5, 1500, 31, 0.1, 1e-3, 1e-3, 1e-3)),
        ("tags-dc", "uniter-large", "flickr30k", (1e-5, 1500, 23, 0.1, 5e-4, 5e-4, 5e-4)),
        ("tags-dc", "uniter", "coco", (1e-5, 1500, 31, 0.05, 1e-4, 5e-4, 5e-4)),
        ("tags-dc", "uniter-large", "coco", (1e-5, 1500, 23, 0.05, 5e-4, 5e-4, 5e-4)),
    ],
)
def test_the_published_numbers_are_declared(
    invoke: Invoke, tmp_path: Path, method: str, backbone: str, dataset: str, expected: tuple[float, ...]
) -> None:
    shown = invoke("show", "train", method, "--backbone", backbone, "--dataset", dataset, "--data", tmp_path)
    values = {words[0]: words[1] for line in done(shown).splitlines() if len(words := line.split()) > 2}
    names = ["learning_rate", "max_updates", "loss.keep", "loss.weight_words", "loss.weight_sentences"]
    names += ["loss.weight_discrimination", "loss.weight_correction"][: len(expected) - 5]
    assert tuple(float(values[name]) for name in names) == expected
    assert int(values["batch_size"]) * int(values["accumulate"]) == 128
    assert (values["loss.copies"], values["loss.draws"], values["loss.temperature"]) == ("20", "20", "1.5")


# Fine-tuning without sentences

ITM = ("train.max_updates=0", "train.accumulate=2", "itm.loss.sampled_negatives=11", "itm.loss.hard_negatives=3")


def test_it_is_trained_on_regions_with_boxes(boxed_chain: Path, tmp_path: Path, invoke: Invoke) -> None:
    given = ("train", "--method", "itm", "--dataset", "tiny", "--features", "boxed")
    small = sets(*UNITER[:-5], *UNITER[-4:], *ITM, "itm.loss.sum_epochs=1")
    root = copied(boxed_chain, tmp_path / "data")
    refused(invoke(*given, "--data", root, *small, *sets("train.model.max_words=5")), 4, "raise --set max_words")
    done(invoke(*given, "--data", root, *small))
    first, last = history(root, "itm.uniter")
    assert {"loss_text_anchored", "loss_image_anchored", "mean_active_negatives"} <= first.keys()
    assert last["learning_rate"] == pytest.approx(1e-8)  # the last of the updates


@pytest.mark.parametrize(
    ("backbone", "sizes"), [("uniter", (768, 12, 12, 3072)), ("uniter-large", (1024, 24, 16, 4096))]
)
def test_the_published_numbers_of_itm_are_declared(
    invoke: Invoke, tmp_path: Path, backbone: str, sizes: tuple[int, ...]
) -> None:
    shown = invoke("show", "train", "itm", "--backbone", backbone, "--dataset", "flickr30k", "--data", tmp_path)
    values = {words[0]: words[1] for line in done(shown).splitlines() if len(words := line.split()) > 2}
    names = ("model.embed_dim", "model.layers", "model.heads", "model.feed_forward_dim")
    assert tuple(int(values[name]) for name in names) == sizes
    negatives = ("loss.sampled_negatives", "loss.hard_negatives", "loss.margin")
    assert [values[name] for name in negatives] == ["399", "31", "0.2"]
    assert (values["max_updates"], values["warmup_updates"], values["learning_rate"]) == ("5000", "500", "5e-05")


def test_published_weights_with_their_tokenizer_are_trained_further(
    tags_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    recorded = {name: tensor for name, tensor in of_uniter("uniter_forward").items() if name.startswith("sd/")}
    layers = len([name for name in recorded if name.endswith("intermediate.dense.bias")])
    wanted = ("sd/uniter.embeddings", "sd/uniter.encoder", "sd/uniter.pooler")
    state = {name[3:]: tensor.clone() for name, tensor in recorded.items() if name.startswith(wanted)}
    words = state["uniter.embeddings.word_embeddings.weight"]
    published, root = tmp_path / "published", copied(tags_chain, tmp_path / "data")
    published.mkdir()
    save_file({name.replace("uniter", "bert"): tensor for name, tensor in state.items()}, published / "b.safetensors")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "is", *(f"w{row}" for row in range(len(words) - 7))]
    (published / "vocab.txt").write_text("\n".join(pieces))
    (published / "config.json").write_text('{"model_type": "bert"}')
    (published / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    sizes = {"embed_dim": 48, "layers": layers, "heads": 4, "feed_forward_dim": 96, "max_words": 40}
    small = [*UNITER[:-5], *ITM, *(f"train.model.{name}={size}" for name, size in sizes.items())]

    def train(folder: Path) -> str:
        files = (f"train.model.initial={folder / 'b.safetensors'}", f"train.model.tokenizer={folder}")
        slow = sets(*small, "train.learning_rate=1e-9", *files)
        return done(invoke("train", "--method", "itm", "--data", root, *slow))

    assert "not in this file: correction, image, mask" in train(published)
    opened = load_model(only(root, "train/itm.uniter"))
    assert isinstance(opened.model, UniterEncoder)
    torch.testing.assert_close(opened.model.text.word.weight, words, atol=1e-6, rtol=0)
    moved = published.rename(tmp_path / "elsewhere")
    assert "✓ train/itm.uniter" in train(moved)  # where the files lie does not count
    shutil.rmtree(moved)
    tokens = load_model(only(root, "train/itm.uniter")).tokens  # the trained model does without them
    split = PreparedDataset.open(only(root, "prepare/scenes")).split("test")
    assert tokens.encode_split(split)[0][0, 0] == pieces.index("[CLS]")


# Which words are wrong

IMAGE, CAPTION = "test-000001.jpg", "a zyzzyva is on the beach"


def explain(invoke: Invoke, root: Path, *options: object, image: str = IMAGE, caption: str = CAPTION) -> Outcome:
    given = ("--data", root, "--image", image, "--caption", caption, *sets(*TAGS))
    return invoke("explain", *given, "--make", *options)


def test_the_words_of_a_caption_have_the_probabilities_of_the_model(tags_chain: Path, invoke: Invoke) -> None:
    saved = load_model(only(tags_chain, "train/tags-dc.uniter"))
    assert isinstance(saved.model, UniterEncoder)
    split = PreparedDataset.open(only(tags_chain, "prepare/scenes")).split("test")
    features = FeatureFile.open(only(tags_chain, "extract/scenes") / FEATURES)
    said = split.texts[7]
    found = json.loads(done(explain(invoke, tags_chain, "--json", caption=said)))
    data = open_split(split, features, saved.tokens, saved.settings)
    texts = data.texts(np.array([7]))
    with torch.no_grad():
        images, encoded = saved.model.encode_images(data.images(np.array([1]))), saved.model.encode_texts(texts)
        first = torch.zeros(1, dtype=torch.int64)
        states = saved.model.read_at(images, encoded, first, first, int(texts.lengths[0]), lambda each: each)[0]
        expected = saved.model.word_match_logits(states).softmax(dim=1)[:, 0]
    assert [word["text"] for word in found["words"]] == said.split()
    for place, word in enumerate(found["words"], 1):
        assert said[word["start"] : word["end"]] == word["text"]
        assert word["mismatch"] == pytest.approx(expected[place].item(), abs=1e-5)
        assert word["flagged"] == (word["mismatch"] > 0.5) == (word["correction"] is not None)
        assert word["known"] == (word["text"].lower() in saved.tokens.ids)
    written = read_scores(only(tags_chain, "evaluate/tags-dc.uniter") / SCORES, "test").matrix[1, 7]
    assert found["score"] == pytest.approx(1 / (1 + np.exp(-written)), abs=1e-3)
    assert (found["run"], found["split"], found["caption"]) == ("tags-dc.uniter", "test", said)


def decide(monkeypatch: pytest.MonkeyPatch, wrong: set[int], written: int) -> None:
    """Makes the heads find tokens of these ids wrong, and nothing else, and correct all of them to one."""
    kept: list[torch.Tensor] = []
    embed = UniterEncoder.encode_texts

    def remember(self: UniterEncoder, texts: Any) -> Any:
        kept[:] = [texts.tokens]
        return embed(self, texts)

    def judge(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        bad = torch.isin(kept[0], torch.tensor(sorted(wrong)))
        return torch.stack([bad.float() * 6 - 3, torch.zeros_like(bad, dtype=torch.float32)], dim=-1)

    def correct(self: UniterEncoder, states: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(states), self.text.word.num_embeddings)
        logits[:, written], logits[:, :4] = 1.0, 2.0  # special tokens are likelier, and never written
        return logits

    monkeypatch.setattr(UniterEncoder, "encode_texts", remember)
    monkeypatch.setattr(UniterEncoder, "word_match_logits", judge)
    monkeypatch.setattr(UniterEncoder, "correction_logits", correct)


def test_wrong_words_carry_their_number_and_are_replaced(
    tags_chain: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = load_model(only(tags_chain, "train/tags-dc.uniter")).tokens.ids
    decide(monkeypatch, {ids["on"], ids["beach"]}, ids["a"])
    out = done(explain(invoke, tags_chain))
    assert out.startswith("test-000001 (test), tags-dc.uniter\n")
    assert "  caption    a zyzzyva is on (0.95) the beach (0.95)\n" in out
    assert "  corrected  a zyzzyva is a the a\n" in out
    decide(monkeypatch, set(), 5)
    out = done(explain(invoke, tags_chain, image=f"images/{IMAGE}"))
    assert "  caption    a zyzzyva is on the beach\n" in out
    assert "  unknown    zyzzyva" in out


def test_words_are_coloured_in_steps() -> None:
    words = [
        {"text": "a", "start": 0, "end": 1, "mismatch": 0.1, "flagged": False},
        {"text": "b", "start": 2, "end": 3, "mismatch": 1.0, "flagged": True},
    ]
    text = coloured("a b!", words)
    assert text.plain == "a b (1.00)!"
    assert [str(span.style) for span in text.spans] == ["bold black on #f2a65a"]


def test_what_was_removed_since_is_named_or_planned_with_its_cost(
    tags_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    assert explain(invoke, tags_chain, "--dry-run").out.count("up to date") == 6
    root = copied(tags_chain, tmp_path / "data")
    trained = only(root, "train/tags-dc.uniter")
    only(root, "extract/scenes").rename(tmp_path / "extracted")
    refused(explain(invoke, root), 3, f"train/{trained.name} was made from", "run `itrpipe extract")
    shutil.move(tmp_path / "extracted", root / "scenes" / "extract")
    shutil.rmtree(trained)
    planned = done(explain(invoke, root, "--dry-run"))
    assert "+ train/tags-dc.uniter" in planned
    quiet = explain(invoke, root, "--dry-run", "--json")
    assert (quiet.code, quiet.out) == (0, "")
    assert "+ train/tags-dc.uniter" in quiet.err
