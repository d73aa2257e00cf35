"""One flipped bit in every kind of file that a command reads: refused in one line, or harmless, never believed."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.chain import BY_NAME, DATA, Chain, finished
from tests.faults.server import dying_after, run
from tests.faults.trials import Findings, Trial

DAMAGED = 4
# File of a finished artifact -> commands that read it, found by the times of last access. Every one has to refuse it.
READ = {
    "scenes/prepare/scenes-*/captions.parquet": "extract parse train mine synthesize rules evaluate report export",
    "scenes/prepare/scenes-*/images.parquet": "extract shares train pretrain evaluate-pairs report search",
    "scenes/prepare/scenes-*/images/test-000000.jpg": "extract report",
    "scenes/prepare/scenes-*/images/train-000003.jpg": "extract shares",
    "scenes/prepare/scenes-*/truth.parquet": "evaluate report export",
    "scenes/prepare/scenes-*/scenes.jsonl": "synthesize rules",
    "scenes/prepare/scenes-*/manifest.json": "extract parse report",
    "scenes/extract/scenes-*/features.h5": "train train-pairs rescore pretrain synthesize evaluate-pairs",
    "scenes/extract/scenes-*/manifest.json": "train",
    "scenes/parse/rules.hanta-*/scene_graphs.parquet": "synthesize rules",
    "scenes/parse/rules.hanta-*/manifest.json": "synthesize",
    "scenes/train/triplet.vsepp-*/embeddings.h5": "mine rescore evaluate",
    "scenes/train/triplet.vsepp-*/history.parquet": "report",
    "scenes/train/triplet.vsepp-*/manifest.json": "mine evaluate report",
    "scenes/train/triplet.scan-*/model.safetensors": "rescore evaluate-pairs",
    "scenes/train/triplet.scan-*/vocab.json": "rescore evaluate-pairs",
    "scenes/train/triplet.scan-*/config.json": "rescore evaluate-pairs",
    "scenes/train/aoq.vsepp-*/embeddings.h5": "evaluate-aoq export search",
    "scenes/train/aoq.vsepp-*/model.safetensors": "export search",
    "scenes/train/aoq.vsepp-*/vocab.json": "export search",
    "scenes/train/aoq.vsepp-*/config.json": "export search",
    "scenes/train/aoq.vsepp-*/history.parquet": "report",
    "scenes/train/aoq.vsepp-*/manifest.json": "evaluate-aoq report export",
    "scenes/train/pretrain.uniter-*/model.safetensors": "synthesize",
    "scenes/train/pretrain.uniter-*/config.json": "synthesize",
    "scenes/train/pretrain.uniter-*/tokenizer/tokenizer.json": "synthesize",
    "scenes/train/pretrain.uniter-*/tokenizer/tokenizer_config.json": "synthesize",
    "scenes/mine_negatives/exact.triplet.vsepp-*/texts_for_images.parquet": "train-aoq report",
    "scenes/mine_negatives/exact.triplet.vsepp-*/images_for_texts.parquet": "train-aoq report",
    "scenes/mine_negatives/exact.triplet.vsepp-*/statistics.json": "report",
    "scenes/mine_negatives/exact.triplet.vsepp-*/manifest.json": "train-aoq",
    "scenes/synthesize/vse-c-*/sentences.parquet": "train-rules",
    "scenes/synthesize/vse-c-*/manifest.json": "train-rules",
    "scenes/evaluate/triplet.scan-*/scores.h5": "evaluate-both",
    "scenes/evaluate/aoq.vsepp-*/metrics.json": "report export",
    "scenes/evaluate/aoq.vsepp-*/rankings.parquet": "report export",
    "scenes/evaluate/aoq.vsepp-*/cross_retrieval.parquet": "report",
    "scenes/evaluate/aoq.vsepp-*/alignment.json": "report",
    "scenes/evaluate/aoq.vsepp-*/query_length.json": "report",
    "scenes/evaluate/aoq.vsepp-*/manifest.json": "report export",
    "mine/prepare/files-*/captions.parquet": "own-extract own-train",
    "mine/prepare/files-*/images.parquet": "own-extract own-train",
    "mine/extract/given-*/features.h5": "own-train",
    "mine/extract/given-*/manifest.json": "own-train",
    "scenes/dataset.json": "extract train report",
    "mine/dataset.json": "own-extract own-train",
}
# Caches: what is wrong with them may cost time and nothing else.
CACHES = {"scenes/sources.json": "parse train report", "mine/sources.json": "own-extract own-train"}
# Step -> after how many of which step on the disk it is killed, and the unfinished work that it goes on with.
UNFINISHED = (
    ("prepare", "replace */parts/*", 3, ".work/parts/000001.arrow .work/parts/division.json"),
    ("own-prepare", "replace */parts/*", 3, ".work/parts/0*.json"),
    (
        "extract",
        "replace */parts/scenes/*",
        5,
        ".work/parts/scenes/000001.arrays .work/parts/scenes/division.json .work/inputs.json",
    ),
    ("extract", "replace */.manifest.json.*", 1, "features.h5 manifest.json"),
    ("shares", "", 0, ".work/parts/scenes/000000.arrays .work/parts/scenes/division.json .work/unfinished.json"),
    ("parse", "replace */parts/*", 3, ".work/parts/000001.arrow"),
    ("train", "replace */.checkpoint.safetensors.*", 4, ".work/checkpoint.safetensors"),
    ("train", "replace */parts/*", 7, ".work/parts/000001.arrays .work/parts/division.json"),
    ("train", "replace */.model.safetensors.*", 1, "model.safetensors .work/checkpoint.safetensors"),
    ("train", "replace */.manifest.json.*", 1, "embeddings.h5 model.safetensors"),
    ("train-aoq", "replace */.checkpoint.safetensors.*", 3, ".work/checkpoint.safetensors"),
    ("mine", "replace */parts/mined/*", 4, ".work/parts/mined/000001.arrays"),
    ("rescore", "replace */parts/rescored/*", 2, ".work/parts/rescored/000000.arrays .work/mined.arrays"),
    ("synthesize", "replace */parts/*", 3, ".work/parts/000000.arrow"),
    ("evaluate-pairs", "replace */parts/*", 5, ".work/parts/000001.arrays .work/parts/division.json"),
    ("own-extract", "replace */parts/given/*", 1, ".work/parts/given/000000.arrays .work/parts/given/division.json"),
)
# Unfinished work that the next run writes anew and never reads.
_UNREAD = (".work/inputs.json", ".work/unfinished.json", ".partial/model.safetensors")


def trials(chain: Chain) -> list[Trial]:
    """A trial for every file, reader and place in the file."""
    names = {step.name for step in chain.steps}
    pairs = [(READ, True), (CACHES, False)]
    read = [
        (pattern, reader, must)
        for table, must in pairs
        for pattern, readers in table.items()
        for reader in readers.split()
        if reader in names
    ]
    found = [
        Trial(
            "bytes",
            f"{reader} reads {pattern} with another {place}",
            partial(_finished, chain=chain, reader=reader, pattern=pattern, place=place, must=must),
        )
        for pattern, reader, must in read
        for place in places_in(pattern)
    ]
    for step, event, times, files in UNFINISHED:
        for file in files.split() if step in names else ():
            for place in places_in(file):
                body = partial(_unfinished, chain=chain, name=step, event=event, times=times, file=file, place=place)
                found.append(Trial("bytes", f"{step} goes on with {file} with another {place}", body))
    return found


def places_in(file: str) -> tuple[str, ...]:
    """Names of places of a file that are worth a flipped bit."""
    if file.endswith("manifest.json"):
        return ("digest", "setting", "metric", "time")
    if file.endswith("sources.json"):
        return ("entry",)
    if file.endswith("features.h5"):
        return ("header", "id", "value")
    places = {".parquet": ("page", "footer")} | dict.fromkeys((".h5", ".arrays", ".safetensors"), ("header", "value"))
    return places.get(Path(file).suffix, ("value",))


_MARKS = {
    "digest": rb'"sha256": "\D*',
    "setting": rb'"settings": \{\D*',
    "metric": rb'"metrics": \{\D*',
    "time": rb'"finished": "',
    "entry": rb'"(?=[0-9a-f]{64}")',
}


def flip(path: Path, place: str, draw: random.Random) -> None:
    """Flips one bit of a file: of a digit in JSON, so that it stays JSON, else of any byte about there."""
    content = bytearray(path.read_bytes())
    if path.suffix in (".json", ".jsonl"):
        mark = re.search(_MARKS.get(place, rb""), content)
        start = mark.end() if mark and mark.end() else len(content) // 2
        later = re.search(rb"\d", content[start:]) or re.search(rb"[a-z]", content[start:])
        assert later is not None
        at, bit = start + later.start(), 1
    else:
        ids = content.find(b"0000") if path.suffix == ".h5" else -1
        at = {"header": 24, "footer": len(content) - 24, "page": len(content) // 4, "id": max(ids, 0) + 2}.get(
            place, len(content) // (4 if path.name == "features.h5" else 2)
        )
        bit = 1 << draw.randrange(8)
    content[at] ^= bit
    path.write_bytes(content)


@dataclass(frozen=True)
class _Flipped:
    """A flipped file.

    Attributes:
        path: where it lies.
        artifact: its folder, or that of the dataset.
        must: whether the command has to refuse it.
    """

    path: Path
    artifact: Path
    must: bool


def _finished(
    folder: Path,
    draw: random.Random,
    found: Findings,
    *,
    chain: Chain,
    reader: str,
    pattern: str,
    place: str,
    must: bool,
) -> None:
    step = BY_NAME[reader]
    chain.start(step, folder)
    (path,) = (folder / DATA).glob(pattern)
    flip(path, place, draw)
    depth = min(3, len(path.relative_to(folder / DATA).parts) - 1)
    artifact = folder / DATA / Path(*path.relative_to(folder / DATA).parts[:depth])
    _judge(folder, chain, reader, _Flipped(path, artifact, must), found)


def _unfinished(
    folder: Path,
    draw: random.Random,
    found: Findings,
    *,
    chain: Chain,
    name: str,
    event: str,
    times: int,
    file: str,
    place: str,
) -> None:
    step = BY_NAME[name]
    chain.start(step, folder)
    for number in range(len(step.commands) - 1):
        run(chain.arguments(step, number), folder)
    if event:
        outcome = run(chain.arguments(step), folder, dying_after(folder, event, times))
        assert outcome.code == -9, f"not killed: {outcome}"
    (partial_folder,) = folder.glob(f"{DATA}/*/*/*.partial")
    path = min(partial_folder.glob(file))  # which parts are done first differs from run to run
    flip(path, place, draw)
    _judge(folder, chain, name, _Flipped(path, partial_folder, False), found)


def _judge(folder: Path, chain: Chain, name: str, flipped: _Flipped, found: Findings) -> None:
    """Runs a command that meets a flipped file, follows the remedy that it prints, and runs it again."""
    found.tried += 1
    step, whole = BY_NAME[name], {path for path in finished(folder) if path != flipped.artifact}
    arguments = chain.arguments(step, len(step.commands) - 1 if flipped.artifact.name.endswith(".partial") else 0)
    outcome = run(arguments, folder)
    if outcome.code == 0 and not flipped.must and chain.same(folder, step):
        again = f"/{flipped.path.parent.name} were damaged; they are made again"
        told = flipped.path.name in outcome.output or again in outcome.output or str(flipped.path).endswith(_UNREAD)
        if not told:
            sort = "silent" if flipped.path.name == "manifest.json" else "differing"
            found.note(sort, f"does not say what was made again: {outcome}")
        return
    if outcome.code == 0:
        result = "the right" if chain.same(folder, step) else "another"
        found.note("silent", f"{result} result out of a flipped file: {outcome}")
        return
    if not found.refused(outcome, (DAMAGED,), flipped.path.name, flipped.artifact.name.removesuffix(".partial")):
        return
    if not _follow(outcome.errors[0], folder, flipped.path, chain, name):
        found.note("differing", f"prints no remedy that can be followed: {outcome}")
        return
    for gone in whole - set(finished(folder)):
        found.note("lost", f"{gone.name} was whole and the remedy removed it: {outcome}")
    chain.remake(step, folder)
    for number in range(len(step.commands)):
        outcome = run(chain.arguments(step, number), folder)
        if not found.succeeded(outcome):
            return
    chain.compare(folder, step, found, f"(after the remedy, {outcome.command})", timed=False)


def _follow(line: str, folder: Path, path: Path, chain: Chain, name: str) -> bool:
    """Does what an error line says; returns whether it says something that can be done."""
    if path.name == "dataset.json":  # what only the user knows
        shutil.copy2(next((chain.after(name) / DATA).glob(f"{path.parent.name}/dataset.json")), path)
        return "remove" in line or "restore" in line
    for command in re.findall(r"`itrpipe ([^`]*)`", line):
        arguments = shlex.split(command)
        if arguments[0] == "gc":
            return run([*arguments, "--yes"], folder).code == 0
    named = [Path(text) for text in re.findall(r"remove (\S+?)[;,:)]?(?: |$)", line)]
    if named and str(named[0]) in ("it", "its"):
        named = [path.parent if "its folder" in line else path]
    for each in named:
        target = folder / each
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        else:
            continue
        return True
    return "again" in line
