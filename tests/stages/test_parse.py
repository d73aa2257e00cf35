"""`itrpipe parse`: what is in the file, what its fingerprint depends on, and that a killed run ends with its bytes."""

from __future__ import annotations

import importlib.metadata
import json
import random
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.cli.asked import run_stage
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.scene_graph import build as parsing
from itrpipe.scene_graph import settings
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.scene_graph.stored import ROW_GROUP, SCENE_GRAPHS_FILE, SceneGraphFile, caption_sha1
from itrpipe.stages.base import Need
from itrpipe.stages.parse import parse_one
from itrpipe.storage.artifact import read_manifest
from tests.chains import Invoke, copied, done, only, refused, sets
from tests.commands import Command
from tests.conftest import TinySource

LEXICON = ("tagger=lexicon", "workers=1")


def parse(root: Path, *settings: str) -> Path:
    return run_stage(root, "tiny", "parse", [parse_override(text) for text in settings or LEXICON])


def prepared(root: Path) -> PreparedDataset:
    return PreparedDataset.open(only(root, "prepare/files"))


def parse_typed(invoke: Invoke, root: Path, *more: object) -> str:
    return done(invoke("parse", "--dataset", "tiny", "--data", root, *sets(*LEXICON), *more))


def rewritten(source: TinySource, *texts: str) -> None:
    """Puts these captions in the place of the first ones of the dataset."""
    content = json.loads(source.captions.read_text())
    sentences = [sentence for image in content["images"] for sentence in image["sentences"]]
    for sentence, text in zip(sentences, texts, strict=False):
        sentence["raw"] = text
    source.captions.write_text(json.dumps(content), encoding="utf-8")


def location(root: Path, *settings: str) -> str:
    planner = Planner(root, "tiny", [parse_override(text) for text in settings])
    return planner.plan(Need("parse", "rules")).location.name


# The file


def test_there_is_a_row_for_every_caption_of_every_split_in_their_order(defined: Path) -> None:
    file = SceneGraphFile(parse(defined))
    splits = [prepared(defined).split(name) for name in ("train", "val", "test")]
    assert file.caption_ids == [each for split in splits for each in split.caption_ids.tolist()]
    assert file.image_ids == [each for split in splits for each in split.captions["image_id"].to_pylist()]
    texts = [text for split in splits for text in split.texts]
    assert [each.text for each in file.graphs()] == texts
    (table,) = file.row_groups()
    assert table["caption_sha1"].to_pylist() == [caption_sha1(text) for text in texts]
    assert set(table["parser"].to_pylist()) == {settings.parser_version("lexicon")}
    for graph in file.graphs():
        animal = graph.text.split()[1]
        assert any(animal in each.lemma.split() for each in graph.objects)


def test_what_training_reads_is_the_same_captions(defined: Path) -> None:
    arrays = CaptionPhrases.read(parse(defined))
    split = prepared(defined).split("val")
    rows = arrays.rows(split.caption_ids.tolist())
    images = arrays.image_rows(split.image_ids.tolist())
    assert rows.tolist() == list(range(60, 80))
    assert (arrays.caption_image[rows] == images[split.caption_image]).all()
    batch = arrays.batch(rows)
    first = [arrays.words[word] for word in batch.words[0] if word >= 0]
    assert " ".join(first) == split.texts[0].lower().replace(".", " .")
    own, _ = arrays.positive(rows, arrays.caption_image[rows])
    assert (own == (batch.words >= 0)).all()
    with pytest.raises(DataError, match=r"1 of 2 captions have no scene graph \(the first: 'x'\)"):
        arrays.rows([str(split.caption_ids[0]), "x"])


def test_captions_that_are_equal_are_parsed_once_and_all_are_counted(
    defined: Path, precomp_dataset: TinySource, invoke: Invoke
) -> None:
    texts = ["Two dogs carry a stick." if number // 5 % 2 else f"A cat {number}." for number in range(100)]
    rewritten(precomp_dataset, *texts)
    out = parse_typed(invoke, defined)
    folder = only(defined, "parse/rules.lexicon")
    metrics = read_manifest(folder).metrics
    assert (metrics["captions"], metrics["distinct"]) == (100, 51)
    graphs = list(SceneGraphFile(folder).graphs())
    assert [each.text for each in graphs] == texts
    doubled = [each for each in graphs if each.text.startswith("Two")]
    assert len(doubled) == 50
    assert {tuple(attribute.lemma for attribute in each.attributes) for each in doubled} == {("two",)}
    objects = sum(len(graph.objects) for graph in graphs)
    assert metrics["objects/caption"] == objects / 100
    assert metrics["empty %"] == 0
    assert metrics["captions/s"] > 0
    assert f"objects    {objects:>12,}  {objects / 100:.2f} per caption" in out


def test_captions_of_any_unicode_and_of_none(defined: Path, precomp_dataset: TinySource) -> None:
    odd = [".", "…", "🐕‍🦺 сидит на траве", "e\u0301tude \u200d \u202e(dog)", "a" * 5000 + " dog" * 500]
    rewritten(precomp_dataset, *odd)
    texts = prepared_texts(defined)
    graphs = list(SceneGraphFile(parse(defined)).graphs())
    assert [graph.text for graph in graphs] == texts
    for graph in graphs:
        assert all(graph.text[token.start : token.end] == token.text for token in graph.tokens)


def test_captions_that_are_cut_are_counted(defined: Path, precomp_dataset: TinySource, invoke: Invoke) -> None:
    rewritten(precomp_dataset, "A dog runs and " * 200, f"A {'dog' * 30} runs.")
    parse_typed(invoke, defined)
    warning = "2 captions have more than 400 words or a word of more than 60 letters; only what comes before is parsed"
    folder = only(defined, "parse/rules.lexicon")
    assert warning in read_manifest(folder).messages
    assert read_manifest(folder).metrics["partial %"] == 2
    assert [graph.status for graph in SceneGraphFile(folder).graphs()].count("partial") == 2


def prepared_texts(root: Path) -> list[str]:
    run_stage(root, "tiny", "prepare", [])
    return [text for name in ("train", "val", "test") for text in prepared(root).split(name).texts]


def test_rows_come_in_groups_of_the_same_size(defined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROW_GROUP == 8192
    monkeypatch.setattr(parsing, "ROW_GROUP", 30)
    metadata = pq.ParquetFile(parse(defined) / SCENE_GRAPHS_FILE).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [30, 30, 30, 10]


def test_the_bytes_do_not_depend_on_the_processes(
    defined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "CHUNK", 17)
    folder = parse(defined)
    alone = (folder / SCENE_GRAPHS_FILE).read_bytes()
    folder.rename(tmp_path / "before")
    again = parse(defined, "tagger=lexicon", "workers=2")
    assert again == folder
    assert (again / SCENE_GRAPHS_FILE).read_bytes() == alone


# Fingerprint


def test_the_fingerprint_depends_on_the_parser_and_not_on_the_processes(
    defined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexicon = location(defined, "tagger=lexicon")
    assert lexicon.startswith("rules.lexicon-")
    assert location(defined, "tagger=lexicon", "workers=7") == lexicon
    assert location(defined, "tagger=hanta").startswith("rules.hanta-")
    monkeypatch.setattr(settings, "RULES_VERSION", "of tomorrow")
    assert location(defined, "tagger=lexicon") != lexicon


def test_another_version_of_a_library_makes_other_graphs(defined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = location(defined, "tagger=hanta")
    real = importlib.metadata.version
    monkeypatch.setattr(settings, "version", lambda name: "9.9" if name == "HanTa" else real(name))
    assert location(defined, "tagger=hanta") != before
    assert location(defined, "tagger=lexicon") == location(defined, "tagger=lexicon")


@pytest.mark.parametrize("tagger", ["hanta", "lexicon"])
def test_the_planned_version_is_that_of_the_parser(tagger: str, data_root: Path) -> None:
    for file in ("", "graphs.json"):
        planner = Planner(data_root, "tiny", [parse_override(f"tagger={tagger}"), parse_override(f"file={file}")])
        bound: Any = planner.configure_checked(Need("parse", "rules"))[0]
        assert bound.version() == parsing.RulesParser(bound.tagger, bound.file).version


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


WITHOUT_HANTA = """
import importlib.metadata, sys
from itrpipe.cli import main

def from_name(name, found=importlib.metadata.Distribution.from_name):
    if name.lower() == "hanta":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.Distribution.from_name = from_name
sys.modules["HanTa"] = None
sys.argv = ["itrpipe", *sys.argv[1:]]
main()
"""


def test_hanta_may_be_uninstalled(defined: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_HANTA, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    where = ("--dataset", "tiny", "--data", str(defined), "--workers", "1")
    done = run("parse", "--tagger", "lexicon", *where)
    assert done.returncode == 0, done.stderr
    assert len(list(defined.glob(f"tiny/parse/rules.lexicon-*/{SCENE_GRAPHS_FILE}"))) == 1
    done = run("parse", *where)
    assert done.returncode == MissingInputError.exit_code
    assert done.stderr == (
        "error: the parser needs the package HanTa, which is not installed: pip install HanTa, or choose "
        "--tagger lexicon\n"
    )
    done = run("doctor", "--data", str(defined))
    assert done.returncode == 0, done.stdout
    assert "not installed; --tagger lexicon works without it: pip install HanTa" in " ".join(done.stdout.split())


def test_without_its_tagger_a_command_says_what_to_do(
    defined: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(settings, "version", version)
    outcome = invoke("parse", "--dataset", "tiny", "--data", defined)
    refused(outcome, MissingInputError.exit_code, "pip install")


# Graphs out of a file


def write_foreign(path: Path, root: Path, **changed: Any) -> Path:
    texts = dict.fromkeys(prepared_texts(root))
    path.write_text(json.dumps({text: f"( {text.split()[1]} , on , boat )" for text in texts} | changed))
    return path


def test_graphs_are_imported_with_the_words_they_stand_for(
    defined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    write_foreign(tmp_path / "graphs.json", defined)
    monkeypatch.chdir(tmp_path)
    parse_typed(invoke, defined, "--from", "graphs.json")
    folder = only(defined, "parse/foreign.lexicon")
    graph = next(SceneGraphFile(folder).graphs())
    assert graph.text == "A dog number 0 is on the road 0."
    assert [[graph.tokens[token].text for token in each.tokens] for each in graph.objects] == [["dog"], []]
    assert (graph.status, graph.relations[0].tokens) == ("partial", (5,))
    assert read_manifest(folder).metrics["partial %"] == 100


def test_of_a_foreign_file_the_content_counts_and_not_the_place(defined: Path, tmp_path: Path) -> None:
    first = write_foreign(tmp_path / "first.json", defined)
    second = tmp_path / "second.json"
    second.write_bytes(first.read_bytes())
    before = location(defined, f"file={first}")
    assert location(defined, f"file={second}") == before
    second.write_text(second.read_text() + " ")
    assert location(defined, f"file={second}") != before


# One caption


def test_a_caption_is_shown_without_any_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = invoke("parse", "--show", "A dog in a red sweater jumps over two logs")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "A dog in a red sweater jumps over two logs"
    assert any(line.startswith("├── dog") for line in lines)
    assert any("red" in line and "adjective" in line for line in lines)
    assert any("jump over" in line and "→ log" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_a_caption_that_is_too_long_is_shown_in_part(invoke: Invoke) -> None:
    shown = " ".join(done(invoke("parse", "--tagger", "lexicon", "--show", "a dog and a cat " * 100)).split())
    assert "status: partial" in shown
    assert "warning: the caption has more than 400 words or a word of more than 60 letters; only what" in shown
    assert "warning" not in invoke("parse", "--tagger", "lexicon", "--show", "a dog and a cat").out


def test_a_caption_that_is_no_unicode_is_one_line(data_root: Path) -> None:
    settings: Any = Planner(data_root, "tiny").configure_checked(Need("parse", "rules"))[0]
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        parse_one(settings, "a \udcff dog")


# Kill


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A data folder with a dataset of six chunks of captions, as many as two processes parse in some seconds."""
    folder = tmp_path / "many"
    folder.mkdir()
    looks = product(("big", "small"), ("red", "black"), ("dog", "cat", "horse"))
    subjects = [" ".join(words) for words in looks]
    lines = ["file,caption,split"]
    for number in range(6000):
        first, second = subjects[number % 12], subjects[number % 11]
        text = f"A {first} in a sweater jumps over {number} logs and {second} looks on" if number % 9 else "a dog"
        lines.append(f"{number // 600}.jpg,{text},{('train', 'val', 'test')[min(number // 600, 2)]}")
    (folder / "captions.csv").write_text("\n".join(lines))
    for image in range(10):
        Image.new("RGB", (8, 8), (image, 0, 0)).save(folder / f"{image}.jpg")
    Command("prepare", "--source", folder, "--dataset", "many", "--data", tmp_path / "data").finish()
    return tmp_path / "data"


def start(data: Path, workers: int) -> Command:
    return Command("parse", "--tagger", "lexicon", f"--set=workers={workers}", "--dataset", "many", "--data", data)


def parts_of(data: Path) -> list[Path]:
    return sorted(data.glob("many/parse/*.partial/.work/parts/[!.]*.arrow"))


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(many: Path, tmp_path: Path) -> None:
    whole, killed = copied(many, tmp_path / "whole"), many
    start(whole, 1).finish()
    for _ in range(2):
        process = start(killed, 2)
        while process.running() and not parts_of(killed):
            time.sleep(0.002)
        time.sleep(random.Random().uniform(0, 0.7))
        process.kill()
    assert parts_of(killed)
    assert not list(killed.glob("many/parse/rules.lexicon-????????"))
    assert "(resuming)" in start(killed, 2).finish()
    manifests = [read_manifest(only(data, "parse/rules.lexicon")) for data in (whole, killed)]
    assert manifests[0].outputs == manifests[1].outputs
    assert set(manifests[0].outputs) == {SCENE_GRAPHS_FILE}
    assert manifests[0].metrics["distinct"] < manifests[0].metrics["captions"] == 6000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_processes_end_with_the_one_that_started_them(many: Path) -> None:
    command = ["parse", "--tagger", "lexicon", "--set", "workers=2", "--dataset", "many", "--data", str(many)]
    process = subprocess.Popen(
        [sys.executable, "-m", "itrpipe", *command], stdout=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and not parts_of(many):
        time.sleep(0.002)
    group = [int(path.name) for path in Path("/proc").glob("[0-9]*") if group_of(path) == process.pid]
    assert len(group) > 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 200
    while any(group_of(Path("/proc") / str(number)) == process.pid for number in group):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)


def group_of(process: Path) -> int | None:
    """Process group of a process that is alive."""
    try:
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(group)
