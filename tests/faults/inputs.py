"""Files that hold what no file of their kind holds, read by real commands: one line, an exit code, no new artifact."""

from __future__ import annotations

import io
import os
import random
import shlex
import shutil
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.chain import BY_NAME, Chain, finished, identities, rebuilt, say
from tests.faults.server import Child
from tests.faults.trials import Findings, Trial

Content = bytes | Callable[[Path], object]
USAGE, MISSING, DAMAGED, UNAVAILABLE = 2, 3, 4, 8
SECONDS = 30
"""In which a bad input is told."""
# File -> the command that reads it; a file of the data folder is one that a stage or command has written.
READ = {
    "in/captions.csv": "prepare -d new --source in --set workers=1",
    "in/captions.jsonl": "prepare -d new --source in --set workers=1",
    "in/dataset_x.json": "prepare -d new --source in --set workers=1",
    "in/captions_train2017.json": "prepare -d new --source in --set workers=1",
    "in/Flickr8k.token.txt": "prepare -d new --source in --set workers=1",
    "in/x.tar": "prepare -d new --source in --set workers=1",
    "in/a.jpg": "prepare -d new --source in --set workers=1",
    "in/x.npz": "extract -d mine --name new --from in/x.npz",
    "in/x.npy": "extract -d mine --name new --from in/x.npy",
    "in/x.h5": "extract -d mine --name new --from in/x.h5",
    "in/x.tsv": "extract -d mine --name new --from in/x.tsv",
    "in/g.json": "parse --from in/g.json",
    "in/r.toml": "run in/r.toml",
    "data/scenes/dataset.json": "train -b vsepp",
    "data/scenes/prepare/scenes-*/captions.parquet": "parse --tagger lexicon",
    "data/scenes/prepare/scenes-*/manifest.json": "status",
    "data/scenes/extract/scenes-*/features.h5": "train -b vsepp",
    "data/scenes/extract/scenes-*/manifest.json": "status --verify",
}


def _damaged_tar() -> bytes:
    """A tar file of two samples; a bit of its second header is wrong."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("a.jpg", "a.txt", "b.jpg", "b.txt"):
            header = tarfile.TarInfo(name)
            header.size = 5
            tar.addfile(header, io.BytesIO(b"a dog"))
    content = bytearray(stream.getvalue())
    content[2 * tarfile.BLOCKSIZE] ^= 1
    return bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


# What a file holds -> its bytes, or what makes it.
HELD: dict[str, Content] = {
    "nothing": b"",
    "text": b"hello",
    "no text": bytes(range(128, 256)) * 20,
    "NULs": bytes(999),
    "UTF-16": "file,caption\na.jpg,a dog\n".encode("utf-16"),
    "an empty list": b"[]",
    "half a record": b'{"prepare": {"images": [{"filename": "a.jpg", "sen',
    "a list of lists of lists": b"[" * 100_000,
    "records in records": b'{"prepare": ' * 100_000,
    "a number of 5,000 digits": b'{"images": [{"filename": "a.jpg", "imgid": ' + b"7" * 5_000 + b"}]}",
    "a long field": b"1\t2\t3\t4\t5\t" + b"A" * 2_000_001 + b"\tAAAA\n",
    "a damaged tar file": _damaged_tar(),
    "a group in two splits": b"file,caption,split,group\na.jpg,a dog,train,p\nb.jpg,a cat,test, p\n",
    "a folder": Path.mkdir,
}
# What a file that is there holds, and what a new one is.
STORED: dict[str, Content] = {**HELD, "half of it": _cut}
BROUGHT = {**HELD, "a pipe": os.mkfifo, "a link to itself": lambda path: path.symlink_to(path.name)}


def trials(chain: Chain) -> list[Trial]:
    """Every file with all that it may hold."""
    return [
        Trial("inputs", f"{file} holds {held}", partial(_try, chain=chain, file=file, made=made))
        for file in READ
        for held, made in (STORED if file.startswith("data") else BROUGHT).items()
    ]


def _try(folder: Path, draw: random.Random, found: Findings, *, chain: Chain, file: str, made: Content) -> None:
    found.tried += 1
    chain.start(BY_NAME["search"], folder)
    (folder / "in").mkdir()
    photograph = next(chain.places["source"].rglob("*.jpg"))
    shutil.copy(photograph, folder / "in" / "a.jpg")
    if file.endswith(".jpg"):
        (folder / "in" / "captions.csv").write_text("file,caption\na.jpg,a dog\n")
    path = next(folder.glob(file), folder / file)
    if path.exists() and made is not _cut:
        path.unlink()
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        made(path)
    before, whole = identities(folder), set(finished(folder))
    outcome = Child(shlex.split(READ[file]), folder).wait(SECONDS)
    new = set(finished(folder)) - whole
    if found.refused(outcome, (USAGE, MISSING, DAMAGED, UNAVAILABLE)) and new:
        found.note("silent", f"{new.pop().relative_to(folder)} was made of it: {outcome}")
    for name in rebuilt(before, folder):
        found.note("lost", f"{name} is gone or was made again: {say(outcome)}")
