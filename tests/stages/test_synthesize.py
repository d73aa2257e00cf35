"""`itrpipe synthesize` on a few scenes: by a model and by rules, over interruptions, and what it refuses."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import pytest

from itrpipe.cli.asked import run_stage
from itrpipe.config import load_declaration
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE
from itrpipe.stages import synthesize
from itrpipe.stages.base import PARTS, Need
from itrpipe.storage.artifact import read_manifest
from itrpipe.synthesis import sentences
from itrpipe.synthesis.checks import read_scenes, synthesis_statistics, true_negatives
from itrpipe.synthesis.language_model import LanguageModel
from itrpipe.synthesis.masked import ModelSettings, open_model_maker
from itrpipe.synthesis.sentences import SENTENCES_FILE, SentenceFile
from itrpipe.synthesis.swaps import RULES, open_rule_maker, tagged_captions
from tests.chains import Invoke, copied, define_scenes, made, only, refused, sets
from tests.commands import Command
from tests.conftest import Outcome

IMAGES, CAPTIONS, KEEP = 12, 60, 6
MODEL = (
    "train.epochs=1",
    "train.batch_size=16",
    "train.min_word_count=1",
    "train.model.embed_dim=16",
    "train.model.layers=2",
    "train.model.heads=2",
    "train.model.feed_forward_dim=16",
    "parse.workers=1",
)
SMALL = ("copies=4", "draws=5", f"keep={KEEP}", "block=16")
RULED = ("min_count=2", "keep=3", "block=16", "parse.workers=1")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with twelve training scenes, a model, and its sentences; copy it."""
    root = define_scenes(tmp_path_factory.mktemp("written") / "data", train=IMAGES)
    run_stage(root, "scenes", "synthesize", [parse_override(text) for text in (*MODEL, *SMALL)])
    return root


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(written, tmp_path / "data")


def run(invoke: Invoke, root: Path, *options: str, small: tuple[str, ...] = (*MODEL, *SMALL)) -> Outcome:
    return invoke("synthesize", "--data", root, *sets(*small), *options)


def made_by(invoke: Invoke, root: Path, *options: str, small: tuple[str, ...] = (*MODEL, *SMALL)) -> tuple[Path, str]:
    outcome = run(invoke, root, *options, small=small)
    return made(outcome), outcome.out


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for table in SentenceFile(folder).row_groups() for row in table.to_pylist()]


def train_texts(root: Path) -> list[str]:
    return PreparedDataset.open(only(root, "prepare/scenes")).split("train").texts


def sources_of(root: Path) -> dict[str, Path]:
    folders = ("prepare/scenes", "extract/scenes", "train/pretrain.uniter", "parse/rules.hanta")
    return {name.partition("/")[0]: only(root, name) for name in folders}


def test_a_model_writes_sentences_for_every_training_caption(written: Path) -> None:
    folder = only(written, "synthesize/phrases.pretrain.uniter")
    split = PreparedDataset.open(only(written, "prepare/scenes")).split("train")
    rows, file = rows_of(folder), SentenceFile(folder)
    kept = Counter(row["caption_id"] for row in rows)
    assert set(kept) == set(split.caption_ids.tolist())
    assert max(kept.values()) == KEEP
    assert sum(file.drawn.values()) == CAPTIONS * 20
    texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
    image_of = dict(zip(split.caption_ids.tolist(), split.image_ids[split.caption_image].tolist(), strict=True))
    order = [row["caption_id"] for row in rows]
    assert order == sorted(order, key=split.caption_ids.tolist().index)
    for row in rows:
        assert row["text"] != texts[row["caption_id"]]
        assert row["image_id"] == image_of[row["caption_id"]]
        assert "<" not in row["text"]
    assert len({row["score"] for row in rows}) > len(rows) / 2
    manifest = read_manifest(folder)
    assert sorted(manifest.inputs) == ["extract", "parse", "prepare", "train"]
    assert manifest.metrics["kept"] == len(rows)
    assert manifest.metrics["captions"] == CAPTIONS
    speed = len(rows) / manifest.timings["writing sentences"]
    assert manifest.metrics["sentences/s"] == pytest.approx(speed, rel=0.01, abs=1)
    assert any("its head for masked words is untrained" in message for message in manifest.messages)
    statistics = json.loads((folder / synthesize.STATISTICS).read_text())
    judged = statistics.pop("true_negatives")
    assert statistics == synthesis_statistics(file, CAPTIONS)
    assert judged["sentences"] == len(rows)
    assert judged == true_negatives(file, read_scenes(only(written, "prepare/scenes") / "scenes.jsonl"))


def test_asked_for_again_it_shows_the_table_and_writes_nothing(root: Path, invoke: Invoke) -> None:
    folder, out = made_by(invoke, root)
    assert folder == only(root, "synthesize/phrases.pretrain.uniter")
    assert "✓ synthesize/phrases.pretrain.uniter" in out
    assert "writing sentences" not in out
    kept = json.loads((folder / synthesize.STATISTICS).read_text())["sentences"]
    assert f"{kept:,} sentences for {CAPTIONS} captions" in out
    assert "% true negatives of the " in out
    assert "rejected: false negative" in out


def test_memory_changes_nothing_and_the_block_does(root: Path, invoke: Invoke) -> None:
    """What is drawn depends on the block, so that it must not be an execution setting."""
    before = only(root, "synthesize/phrases.pretrain.uniter")
    whole = rows_of(before)
    shutil.rmtree(before)
    folder, _ = made_by(invoke, root, *sets("memory_mib=1"))
    assert folder == before
    scores, cut = (
        {(row["caption_id"], row["text"]): row["score"] for row in each} for each in (whole, rows_of(folder))
    )
    same = scores.keys() & cut.keys()
    assert len(same) > 0.98 * len(scores) == 0.98 * len(cut)  # of two that score alike either may be kept
    assert [cut[name] for name in same] == pytest.approx([scores[name] for name in same], abs=1e-5)
    other, _ = made_by(invoke, root, *sets("block=8"), small=(*MODEL, *SMALL[:3]))
    assert other != folder
    assert rows_of(other) != whole


def test_single_words_are_masked_without_scene_graphs(root: Path, invoke: Invoke) -> None:
    shutil.rmtree(root / "scenes" / "parse")
    folder, _ = made_by(invoke, root, "--by", "words", "--seed", "0", small=(*MODEL[:-1], *SMALL))
    assert folder.name.startswith("words.pretrain.uniter-")
    assert sorted(read_manifest(folder).inputs) == ["extract", "prepare", "train"]
    assert not (root / "scenes" / "parse").exists()
    assert len(rows_of(folder)) > CAPTIONS


def test_what_was_rejected_is_written_where_it_is_wanted(root: Path, invoke: Invoke) -> None:
    plain = rows_of(only(root, "synthesize/phrases.pretrain.uniter"))
    folder, _ = made_by(invoke, root, *sets("write_rejected=true"))
    rows = rows_of(folder)
    assert [row for row in rows if row["kept"]] == plain
    assert {row["reason"] for row in rows} >= {"kept", "outranked", "false negative"}
    assert read_manifest(folder).metrics["kept"] == len(plain)


def test_pieces_of_a_tokenizer_are_written_as_words(root: Path, invoke: Invoke, tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [word for word, _ in Counter(" ".join(train_texts(root)).split()).most_common(110) if word.isalpha()]
    pieces = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *",.-'"]
    pieces = list(dict.fromkeys([*pieces, *words, *letters, *(f"##{letter}" for letter in letters)]))
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "pieces" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pieces" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    named = f"train.model.tokenizer={tmp_path / 'pieces'}"
    folder, _ = made_by(invoke, root, *sets(named))
    texts = [row["text"] for row in rows_of(folder)]
    assert len(texts) > CAPTIONS
    assert not any("#" in text or "[" in text for text in texts)
    own = set(" ".join(train_texts(root)).split())
    written = [edit["new"] for row in rows_of(folder) for edit in row["edits"]]
    assert any(len(new) > 1 and new not in own for new in written)  # words that are put together of pieces


def test_rules_need_no_model_and_no_features(root: Path, invoke: Invoke) -> None:
    for stage in ("extract", "train", "synthesize"):
        shutil.rmtree(root / "scenes" / stage)
    folder, out = made_by(invoke, root, "--by", "vse-c", small=RULED)
    assert sorted(read_manifest(folder).inputs) == ["parse", "prepare"]
    rows = rows_of(folder)
    assert all(row["score"] is None and row["kept"] for row in rows)
    assert Counter(row["caption_id"] for row in rows).most_common(1)[0][1] <= 3 * len(RULES)
    assert f"{len(rows):,} sentences for {CAPTIONS} captions" in out
    assert "warning" not in out
    numbers, _ = made_by(invoke, root, "--by", "vse-c", *sets('rules=["numerals"]'), small=RULED)
    assert len(rows_of(numbers)) < len(rows)


def test_another_seed_draws_other_sentences_by_rules(root: Path, invoke: Invoke) -> None:
    small = ("min_count=2", "keep=1", "parse.workers=1")
    folders = [made_by(invoke, root, "--by", "vse-c", "--seed", str(seed), small=small)[0] for seed in (0, 1)]
    first, second = ([row["text"] for row in rows_of(folder)] for folder in folders)
    assert first != second


def test_rules_read_the_words_that_the_scene_graphs_have(written: Path) -> None:
    split = PreparedDataset.open(only(written, "prepare/scenes")).split("train")
    parser = RulesParser("hanta")
    found = tagged_captions(only(written, "parse/rules.hanta"), split.caption_ids.tolist()[::-7], split.texts[::-7])
    assert [each.tokens for each in found] == [parser.analyse(text).tokens for text in split.texts[::-7]]
    assert [each.text for each in found] == split.texts[::-7]
    with pytest.raises(
        DataError, match=r"1 of 1 captions have no scene graph \(the first: 'nobody'\); run `itrpipe pa"
    ):
        tagged_captions(only(written, "parse/rules.hanta"), ["nobody"], ["a dog"])


def test_a_language_model_measures_how_fluent_they_are(root: Path, invoke: Invoke, saved_gpt2: Path) -> None:
    folder, out = made_by(invoke, root, "--language-model", str(saved_gpt2), *sets("language_model_sentences=40"))
    found = json.loads((folder / synthesize.STATISTICS).read_text())["language_model"]
    assert found["sentences"] == 40
    assert f"perplexity by {saved_gpt2.name}: {found['perplexity']} of 40 sentences" in out
    model = LanguageModel(str(saved_gpt2))
    texts = [row["text"] for row in rows_of(folder)]
    low, high = sorted(model.perplexities(texts))[:: len(texts) - 1]
    assert low < found["perplexity"] < high
    # The model may lie anywhere; what is in its folder counts.
    moved = shutil.copytree(saved_gpt2, root.parent / "elsewhere")
    again, out = made_by(invoke, root, "--language-model", str(moved), *sets("language_model_sentences=40"))
    assert again == folder
    assert "perplexity by" in out
    shutil.copy(moved / "config.json", moved / "more.json")
    assert "! synthesize/" in run(invoke, root, "--language-model", str(moved), "--dry-run").out


def test_help_names_every_configuration_with_one_line(invoke: Invoke) -> None:
    lines = invoke("synthesize", "--help").out.splitlines()
    for conf in load_declaration("synthesize").confs:
        (described,) = [line for line in lines if line.split()[:1] == [conf]]
        assert len(described.split()) > 4, described


def test_the_declared_values_are_those_of_the_paper(tmp_path: Path) -> None:
    """`ModelSettings` has them too; what is declared must not drift away from it."""
    for dataset in ("flickr30k", "scenes"):
        settings, _, _ = Planner(tmp_path, dataset).configure_checked(Need("synthesize", "phrases"))
        values = settings.model_dump()
        assert all(values[name] == value for name, value in asdict(ModelSettings()).items())


def test_a_useless_language_model_is_found_out_before_anything_is_written(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    refused(run(invoke, root, "--language-model", str(saved_encoders / "bert")), 2, "'bert'", "gpt2")
    assert not list(root.glob("scenes/synthesize/*.partial/.work/parts/*"))


def test_a_full_disk_is_found_out_before_anything_is_written(
    root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(root / "scenes" / "synthesize")
    monkeypatch.setattr(synthesize, "BYTES_PER_SENTENCE", 10**15)
    refused(run(invoke, root), 5, "the file of sentences")


def test_nouns_that_are_too_rare_are_one_line(root: Path, invoke: Invoke) -> None:
    small = ("min_count=1000", "parse.workers=1")
    refused(run(invoke, root, "--by", "vse-c", small=small), 2, "1000 times", "lower min_count")


def test_without_scene_graphs_it_refuses_or_makes_them(root: Path, invoke: Invoke) -> None:
    shutil.rmtree(root / "scenes" / "parse")
    shutil.rmtree(root / "scenes" / "synthesize")
    refused(run(invoke, root, "--no-deps"), 2, "parse")
    made_by(invoke, root)
    assert only(root, "parse/rules.hanta").is_dir()


def test_what_does_not_belong_together_is_refused(root: Path, tmp_path: Path, recorded: Callable[[Path], None]) -> None:
    def open_maker() -> object:
        return open_model_maker(sources_of(root), ModelSettings(), "cpu", 1 << 20, "train")

    graphs = only(root, "parse/rules.hanta") / SCENE_GRAPHS_FILE
    moved = graphs.rename(tmp_path / "graphs.parquet")
    with pytest.raises(MissingInputError, match=r"is not there; .*run `itrpipe parse`"):
        open_maker()
    moved.rename(graphs)
    assert open_maker() is not None
    vocabulary = only(root, "train/pretrain.uniter") / "vocab.json"
    Vocabulary([*Vocabulary.load(vocabulary).words, "foreign"]).save(vocabulary)
    recorded(vocabulary)
    with pytest.raises(DataError, match=r"config\.json and vocab\.json do not belong together; run `itrpipe train`"):
        open_maker()


def test_another_model_writes_no_words(finished_chain: Path, written: Path) -> None:
    (other,) = finished_chain.glob("data/tiny/train/triplet.vsepp-*")
    with pytest.raises(UsageError, match="vsepp cannot write words; give --backbone uniter"):
        open_model_maker(sources_of(written) | {"train": other}, ModelSettings(), "cpu", 1 << 20, "train")


def test_images_without_features_have_no_sentences_of_a_model(written: Path, tmp_path: Path) -> None:
    """They were left out of its training as well; rules do not look at images."""
    sources = sources_of(written)
    with h5py.File(sources["extract"] / FEATURES) as whole, h5py.File(tmp_path / FEATURES, "w") as fewer:
        fewer.attrs.update(whole.attrs)
        for name, values in whole.items():
            fewer[name] = values[1:]  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
    image_ids = PreparedDataset.open(sources["prepare"]).split("train").image_ids.tolist()
    (gone,) = FeatureFile.open(tmp_path / FEATURES).absent(image_ids)
    opened = open_model_maker(sources | {"extract": tmp_path}, ModelSettings(copies=2), "cpu", 1 << 20, "train")
    assert len(opened.texts) == CAPTIONS - 5
    assert opened.num_tokens == len(Vocabulary.load(sources["train"] / "vocab.json")) + 1
    made, _ = opened.maker.make(range(8), 0)
    assert gone not in {sentence.image_id for sentence in made}
    rules = open_rule_maker(sources["prepare"], sources["parse"], 2, RULES, 3, 0)
    assert len(rules.texts) == CAPTIONS
    assert rules.num_tokens is None


@pytest.mark.slow
@pytest.mark.parametrize("by", ["phrases", "vse-c"])
def test_killed_in_the_middle_it_ends_in_the_same_bytes(root: Path, invoke: Invoke, by: str) -> None:
    small = (*MODEL, *SMALL[:3], "block=2") if by == "phrases" else ("min_count=2", "block=1", "parse.workers=1")
    options = ("--by", by, *sets(*small))
    expected, _ = made_by(invoke, root, *options[:2], small=small)
    whole = read_manifest(expected).outputs
    shutil.rmtree(expected)
    process = Command("synthesize", "--data", root, *options)
    blocks = expected.with_name(expected.name + ".partial") / ".work" / PARTS
    while process.running() and len(list(blocks.glob("*.arrow"))) < 3:
        time.sleep(0.001)
    process.kill()
    done = {path: path.stat().st_mtime_ns for path in blocks.glob("*.arrow")}
    assert 3 <= len(done) < (30 if by == "phrases" else CAPTIONS)
    assert not expected.exists()
    _, out = made_by(invoke, root, *options[:2], small=small)
    assert "goes on where it stopped" in out
    assert read_manifest(expected).outputs == whole
    assert sorted(whole) == [SENTENCES_FILE, synthesize.STATISTICS]
    assert not list(root.glob("scenes/*/*.partial"))


def test_whole_blocks_are_not_made_again(root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = only(root, "synthesize/phrases.pretrain.uniter")
    whole = read_manifest(expected).outputs
    shutil.rmtree(expected)
    write, written, limit = sentences.write_part, list[str](), 2

    def write_some(path: Path, *more: Any) -> None:
        if len(written) == limit:
            raise KeyboardInterrupt
        write(path, *more)
        written.append(path.stem)

    monkeypatch.setattr(sentences, "write_part", write_some)
    assert run(invoke, root).code == 130
    assert len(written) == limit
    limit = 99
    made_by(invoke, root)
    # Several threads make blocks at the same time, so that the first two need not be those that were made first.
    assert sorted(written) == ["000000", "000001", "000002", "000003"]
    assert read_manifest(expected).outputs == whole
