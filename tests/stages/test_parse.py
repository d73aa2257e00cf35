"""`itrpipe parse`: what is in the file, what its fingerprint depends on, foreign graphs, and one caption."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from itrpipe.config import parse_override
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import MissingInputError
from itrpipe.pipeline.planning import Planner
from itrpipe.scene_graph import build as parsing
from itrpipe.scene_graph import settings
from itrpipe.scene_graph.stored import ROW_GROUP, SCENE_GRAPHS_FILE, SceneGraphFile
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import read_manifest
from tests.chains import Invoke, done, only, refused, run_stage, sets
from tests.conftest import TinySource
from tests.scene_graph.shared import read_graphs

LEXICON = ("tagger=lexicon", "workers=1")


def parse(root: Path, *settings: str) -> Path:
    return run_stage(root, "tiny", "parse", [parse_override(text) for text in settings or LEXICON])


def parse_typed(invoke: Invoke, root: Path, *more: object) -> str:
    return done(invoke("parse", "--dataset", "tiny", "--data", root, *sets(*LEXICON), *more))


def location(root: Path, *settings: str) -> str:
    planner = Planner(root, "tiny", [parse_override(text) for text in settings])
    return planner.plan(Need("parse", "rules")).location.name


# The file


def test_there_is_a_row_for_every_caption_of_every_split_in_their_order(
    defined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ROW_GROUP == 8192
    monkeypatch.setattr(parsing, "ROW_GROUP", 30)
    folder = parse(defined)
    file, prepared = SceneGraphFile(folder), PreparedDataset.open(only(defined, "prepare/files"))
    splits = [prepared.split(name) for name in ("train", "val", "test")]
    ids = ["caption_id", "image_id"]
    assert file.read(ids).to_pylist() == [row for split in splits for row in split.captions.select(ids).to_pylist()]
    texts = [text for split in splits for text in split.texts]
    assert [each.text for each in read_graphs(folder)] == texts
    tables = list(file.row_groups())
    assert [len(table) for table in tables] == [30, 30, 30, 10]
    for graph in read_graphs(folder):
        assert any(graph.text.split()[1] in each.lemma.split() for each in graph.objects)

    whole = folder.rename(tmp_path / "whole")
    monkeypatch.setattr(parsing, "CHUNK", 17)  # by several processes, in other pieces
    assert parse(defined, "tagger=lexicon", "workers=2") == folder
    assert (folder / SCENE_GRAPHS_FILE).read_bytes() == (whole / SCENE_GRAPHS_FILE).read_bytes()


def test_captions_of_any_unicode_twice_and_too_long_are_parsed_and_counted(
    defined: Path, precomp_dataset: TinySource, invoke: Invoke
) -> None:
    long = ["A dog runs and " * 200, f"A {'dog' * 30} runs."]
    odd = [".", "…", "🐕‍🦺 сидит на траве", "e\u0301tude \u200d \u202e(dog)", *long]
    texts = [*odd, *("Two dogs carry a stick." if number % 2 else f"A cat {number}." for number in range(94))]
    content = json.loads(precomp_dataset.captions.read_text())
    sentences = [sentence for image in content["images"] for sentence in image["sentences"]]
    for sentence, text in zip(sentences, texts, strict=True):
        sentence["raw"] = text
    precomp_dataset.captions.write_text(json.dumps(content), encoding="utf-8")
    parse_typed(invoke, defined)
    folder = only(defined, "parse/rules.lexicon")
    manifest, graphs = read_manifest(folder), read_graphs(folder)
    assert (manifest.metrics["captions"], manifest.metrics["distinct"]) == (100, 6 + 47 + 1)
    doubled = [each for each in graphs if each.text.startswith("Two")]
    assert len(doubled) == 47
    assert {tuple(attribute.lemma for attribute in each.attributes) for each in doubled} == {("two",)}
    for graph in graphs:
        assert all(graph.text[token.start : token.end] == token.text for token in graph.tokens)
    assert any(each.startswith("2 captions have more than 400 words") for each in manifest.messages)
    assert manifest.metrics["partial %"] == [each.status for each in graphs].count("partial")
    objects = sum(len(graph.objects) for graph in graphs)
    assert manifest.metrics["objects/caption"] == objects / 100


# Fingerprint


def test_the_fingerprint_depends_on_the_parser_and_its_libraries_and_not_on_the_processes(
    defined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexicon, hanta = location(defined, "tagger=lexicon"), location(defined, "tagger=hanta")
    assert lexicon.startswith("rules.lexicon-")
    assert hanta.startswith("rules.hanta-")
    assert location(defined, "tagger=lexicon", "workers=7") == lexicon
    with monkeypatch.context() as patch:
        patch.setattr(settings, "version", lambda name: "9.9" if name == "HanTa" else importlib.metadata.version(name))
        assert location(defined, "tagger=hanta") != hanta
        assert location(defined, "tagger=lexicon") == lexicon
    monkeypatch.setattr(settings, "RULES_VERSION", "of tomorrow")
    assert location(defined, "tagger=lexicon") != lexicon


def test_planning_imports_no_tagger(defined: Path) -> None:
    code = """
import sys
from itrpipe.cli import main
sys.argv = ["itrpipe", "parse", "--dataset", "tiny", "--dry-run", "--data", sys.argv[1]]
try: main()
except SystemExit: pass
print("LOADED", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(defined)], capture_output=True, text=True, check=True)
    assert "parse/rules.hanta-" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stdout.partition("LOADED")[2].split()}
    assert not loaded & {"HanTa", "lemminflect", "pyarrow", "torch"}


def test_hanta_may_be_uninstalled(defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.Distribution.from_name

    def from_name(name: str) -> importlib.metadata.Distribution:
        if name.lower() == "hanta":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", from_name)
    for name in [each for each in sys.modules if each.partition(".")[0] == "HanTa"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "HanTa", None)
    parse_typed(invoke, defined)
    assert only(defined, "parse/rules.lexicon")
    outcome = invoke("parse", "--dataset", "tiny", "--data", defined)
    refused(outcome, MissingInputError.exit_code, "pip install HanTa", "--tagger lexicon")
    assert "works without it: pip install HanTa" in " ".join(done(invoke("doctor", "--data", defined)).split())


# Graphs out of a file


def test_graphs_are_imported_with_the_words_they_stand_for_wherever_their_file_lies(
    defined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    prepared = PreparedDataset.open(run_stage(defined, "tiny", "prepare", []))
    texts = [text for name in prepared.splits for text in prepared.split(name).texts]
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps({text: f"( {text.split()[1]} , on , boat )" for text in texts}))
    monkeypatch.chdir(tmp_path)
    parse_typed(invoke, defined, "--from", "graphs.json")
    folder = only(defined, "parse/foreign.lexicon")
    graph = read_graphs(folder)[0]
    assert graph.text == "A dog number 0 is on the road 0."
    assert [[graph.tokens[token].text for token in each.tokens] for each in graph.objects] == [["dog"], []]
    assert (graph.status, graph.relations[0].tokens) == ("partial", (5,))
    assert read_manifest(folder).metrics["partial %"] == 100
    before, moved = location(defined, f"file={path}"), path.rename(tmp_path / "moved.json")
    assert location(defined, f"file={moved}") == before
    moved.write_text(moved.read_text() + " ")
    assert location(defined, f"file={moved}") != before


# One caption


def test_a_caption_is_shown_without_any_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = done(invoke("parse", "--show", "A dog in a red sweater jumps over two logs")).splitlines()
    assert any(line.startswith("├── dog") for line in lines)
    assert any("red" in line and "adjective" in line for line in lines)
    assert any("jump over" in line and "→ log" in line for line in lines)
    assert not list(tmp_path.iterdir())
    long, short = (done(invoke("parse", "--tagger", "lexicon", "--show", "a dog " * count)) for count in (500, 1))
    assert ("status: partial" in long, "warning" in long, "warning" in short) == (True, True, False)
