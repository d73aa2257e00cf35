"""One flipped bit in every kind of file that a command reads: refused in one line, or harmless, never believed."""

from __future__ import annotations

import itertools
import random
import re
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tests.faults.chain import BY_NAME, DATA, Chain, Step, finished
from tests.faults.server import dying, run
from tests.faults.trials import Findings, Trial

DAMAGED = 4
# Files of a finished artifact -> commands that read them, by the times of last access. Every one has to refuse them.
READ = {
    "scenes/prepare/scenes-* captions.parquet": "extract parse train mine rules evaluate report export",
    "scenes/prepare/scenes-* images.parquet": "extract shares train evaluate-pairs report search",
    "scenes/prepare/scenes-* images/test-000000.jpg": "extract",
    "scenes/prepare/scenes-* images/train-000003.jpg": "extract shares",
    "scenes/prepare/scenes-* truth.parquet": "evaluate report export",
    "scenes/prepare/scenes-* scenes.jsonl": "rules",
    "scenes/prepare/scenes-* manifest.json": "extract parse report",
    "scenes/extract/scenes-* features.h5": "train train-pairs rescore evaluate-pairs",
    "scenes/extract/scenes-* manifest.json": "train",
    "scenes/parse/rules.hanta-* scene_graphs.parquet manifest.json": "rules",
    "scenes/train/triplet.vsepp-* embeddings.h5": "mine rescore evaluate",
    "scenes/train/triplet.vsepp-* history.parquet": "report",
    "scenes/train/triplet.vsepp-* manifest.json": "mine evaluate report",
    "scenes/train/triplet.scan-* model.safetensors vocab.json config.json": "rescore evaluate-pairs",
    "scenes/train/aoq.vsepp-* embeddings.h5": "evaluate-aoq export search",
    "scenes/train/aoq.vsepp-* model.safetensors vocab.json config.json": "export search",
    "scenes/train/aoq.vsepp-* history.parquet": "report",
    "scenes/train/aoq.vsepp-* manifest.json": "evaluate-aoq report export",
    "scenes/mine_negatives/exact.triplet.vsepp-* texts_for_images.parquet images_for_texts.parquet": "train-aoq report",
    "scenes/mine_negatives/exact.triplet.vsepp-* statistics.json": "report",
    "scenes/mine_negatives/exact.triplet.vsepp-* manifest.json": "train-aoq",
    "scenes/synthesize/vse-c-* sentences.parquet manifest.json": "train-rules",
    "scenes/evaluate/triplet.scan-* scores.h5": "evaluate-both",
    "scenes/evaluate/aoq.vsepp-* metrics.json rankings.parquet manifest.json": "report export",
    "scenes/evaluate/aoq.vsepp-* cross_retrieval.parquet": "export",
    "scenes/evaluate/aoq.vsepp-* alignment.json": "report",
    "mine/prepare/files-* captions.parquet images.parquet": "own-extract own-train",
    "mine/extract/given-* features.h5 manifest.json": "own-train",
    "scenes dataset.json": "extract train report",
    "mine dataset.json": "own-extract own-train",
}
# Caches: what is wrong with them may cost time and nothing else.
CACHES = {"scenes sources.json": "parse train report", "mine sources.json": "own-extract own-train"}
# Step -> after how many of which step on the disk it is killed, and the unfinished work that it goes on with.
UNFINISHED = (
    ("prepare", "replace */parts/*", 3, ".work/parts/000001.arrow .work/parts/division.json"),
    ("own-prepare", "replace */parts/*", 3, ".work/parts/0*.json"),
    ("extract", "replace */parts/scenes/*", 5, ".work/parts/scenes/000001.arrays .work/inputs.json"),
    ("extract", "replace */.manifest.json.*", 1, "features.h5 manifest.json"),
    ("shares", "", 0, ".work/parts/scenes/000000.arrays .work/parts/scenes/division.json .work/unfinished.json"),
    ("parse", "replace */parts/*", 3, ".work/parts/000001.arrow"),
    ("train", "replace */.checkpoint.safetensors.*", 4, ".work/checkpoint.safetensors"),
    ("train", "replace */parts/*", 7, ".work/parts/000001.arrays .work/parts/division.json"),
    ("train", "replace */.config.json.*", 1, "model.safetensors .work/checkpoint.safetensors"),
    ("train", "replace */.manifest.json.*", 1, "embeddings.h5 model.safetensors"),
    ("train-aoq", "replace */.checkpoint.safetensors.*", 3, ".work/checkpoint.safetensors"),
    ("mine", "replace */parts/mined/*", 4, ".work/parts/mined/000001.arrays"),
    ("rescore", "replace */parts/rescored/*", 2, ".work/parts/rescored/000000.arrays .work/mined.arrays"),
    ("rules", "replace */parts/*", 3, ".work/parts/000000.arrow"),
    ("evaluate-pairs", "replace */parts/*", 5, ".work/parts/000001.arrays .work/parts/division.json"),
    ("own-extract", "replace */parts/given/*", 2, ".work/parts/given/000000.arrays .work/parts/given/division.json"),
)
# Unfinished work that the next run writes anew and never reads.
_UNREAD = (".work/inputs.json", ".work/mined.arrays", ".work/unfinished.json")


def trials(chain: Chain) -> list[Trial]:
    """A trial for every file, reader and place in the file."""
    found = []
    for table, must in ((READ, True), (CACHES, False)):
        for files, readers in table.items():
            folder, *names = files.split()
            for name, reader in itertools.product(names, (BY_NAME[each] for each in readers.split())):
                for place in places_in(name) if reader in chain.steps else ():
                    body = partial(_finished, chain=chain, step=reader, at=(f"{folder}/{name}", place), must=must)
                    found.append(Trial("bytes", f"{reader.name} reads {folder}/{name} with another {place}", body))
    for name, event, times, files in UNFINISHED:
        for file in files.split() if BY_NAME[name] in chain.steps else ():
            for place in places_in(file):
                killed = partial(_unfinished, chain=chain, step=BY_NAME[name], at=(file, place), killed=(event, times))
                found.append(Trial("bytes", f"{name} goes on with {file} with another {place}", killed))
    return found


def places_in(file: str) -> tuple[str, ...]:
    """Names of places of a file that are worth a flipped bit."""
    ends = {
        "manifest.json": ("digest", "setting", "metric", "time"),
        "sources.json": ("entry",),
        "features.h5": ("header", "id", "value"),
        ".parquet": ("page", "footer"),
        **dict.fromkeys((".h5", ".arrays", ".safetensors"), ("header", "value")),
    }
    return next((places for end, places in ends.items() if file.endswith(end)), ("value",))


_MARKS = {
    "digest": rb'"sha256": "\D*',
    "setting": rb'"settings": \{\D*',
    "metric": rb'"metrics": \{\D*',
    "time": rb'"finished": "',
    "entry": rb'"(?=[0-9a-f]{64}")',
}


def flip(path: Path, place: str, draw: random.Random) -> bytes:
    """Flips one bit of a file: of a digit in JSON, so that it stays JSON, else of a byte about there; what it held."""
    content = bytearray(right := path.read_bytes())
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
    return right


def _finished(
    folder: Path, draw: random.Random, found: Findings, *, chain: Chain, step: Step, at: tuple[str, str], must: bool
) -> None:
    chain.start(step, folder)
    (path,) = (folder / DATA).glob(at[0])
    _judge(folder, chain, step, path, flip(path, at[1], draw), must, found)


def _unfinished(
    folder: Path,
    draw: random.Random,
    found: Findings,
    *,
    chain: Chain,
    step: Step,
    at: tuple[str, str],
    killed: tuple[str, int],
) -> None:
    chain.start(step, folder)
    for number in range(len(step.commands) - 1):
        run(chain.arguments(step, number), folder)
    event, times = killed
    if event:
        left = itertools.count(times - 1, -1)
        fault = dying(folder, lambda _, what, done: done and fnmatchcase(what, event) and not next(left))
        outcome = run(chain.arguments(step), folder, fault)
        assert outcome.code == -9, f"not killed: {outcome}"
    (artifact,) = folder.glob(f"{DATA}/*/*/*.partial")
    path = min(artifact.glob(at[0]))  # which parts are done first differs from run to run
    _judge(folder, chain, step, path, flip(path, at[1], draw), False, found)


def _judge(folder: Path, chain: Chain, step: Step, path: Path, right: bytes, must: bool, found: Findings) -> None:
    """Runs a command that meets a flipped file, and again with the right one.

    Args:
        folder: where it runs.
        chain: that the command is of.
        step: likewise.
        path: of the file.
        right: what it held.
        must: whether the command has to refuse it.
        found: what is noted.
    """
    found.tried += 1
    whole = set(finished(folder))
    artifact = next((each for each in path.parents if each.match(f"{DATA}/*/*/*")), path.parent)
    number = len(step.commands) - 1 if artifact.name.endswith(".partial") else 0
    outcome = run(chain.arguments(step, number), folder)
    if outcome.code == 0 and not must and chain.same(folder, step):
        again = f"/{path.parent.name} were damaged; they are made again"
        if not (path.name in outcome.output or again in outcome.output or str(path).endswith(_UNREAD)):
            sort = "silent" if path.name == "manifest.json" else "differing"
            found.note(sort, f"does not say what was made again: {outcome}")
        return
    if outcome.code == 0:
        result = "the right" if chain.same(folder, step) else "another"
        found.note("silent", f"{result} result out of a flipped file: {outcome}")
        return
    if not found.refused(outcome, (DAMAGED,), path.name, artifact.name.removesuffix(".partial")):
        return
    if not re.search("`itrpipe |remove|restore|again", outcome.errors[0]):
        found.note("differing", f"prints no remedy: {outcome}")
    for gone in whole - set(finished(folder)):
        found.note("lost", f"{gone.name} was there and is gone: {outcome}")
    path.write_bytes(right)
    if all(found.succeeded(run(chain.arguments(step, each), folder)) for each in range(number, len(step.commands))):
        chain.compare(folder, step, found, f"(with the right file, {outcome.command})", timed=False)
