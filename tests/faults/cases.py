"""Bad inputs as data: what to write, which command reads it, and how it has to end.

`in` is a folder of the trial's own. A command may name `{source}`, a good dataset, `{data}`, the data folder, and
`{search}`, a command that works.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Content = bytes | str | Callable[[Path], object]
USAGE, MISSING, DATA = 2, 3, 4
DIGITS, DEEP, LONG = "7" * 5000, 100_000, "n" * 5000


@dataclass(frozen=True)
class Case:
    """One bad input.

    Attributes:
        name: in words.
        command: as it would be typed.
        codes: with which it may end.
        files: path -> what to write there.
    """

    name: str
    command: str
    codes: Sequence[int] = (USAGE,)
    files: Mapping[str, Content] = field(default_factory=dict)


def picture(folder: Path) -> None:
    """A folder with one small photograph."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 12), (9, 99, 199)).save(folder / "a.jpg")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def bomb(path: Path) -> None:
    """A PNG that says it has 3.6 billion pixels."""
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)))


# Options and settings

_OPTIONS = {
    "a dataset with a slash": "status -d a/b",
    "a dataset that leaves the folder": "prepare -d ../x --source {source}",
    "a hidden dataset": "prepare -d .x --source {source}",
    "a dataset without a name": "prepare -d '' --source {source}",
    "a dataset of 300 letters": f"prepare -d {LONG[:300]} --source {{source}}",
    "a dataset of 5,000 letters": f"status -d {LONG}",
    "a dataset with a new line": "prepare -d 'a\nb' --source {source}",
    "features of 300 letters": f"extract -d mine --from {{source}}/features.npz --name {LONG[:300]}",
    "an unknown extractor": "extract --features nothing",
    "an extractor twice": "extract --features scenes+scenes",
    "an extractor and nothing": "extract --features scenes+",
    "part zero": "extract --features scenes --part 0/2",
    "a part too many": "extract --features scenes --part 3/2",
    "no part": "extract --features scenes --part x",
    "workers below zero": "extract --features scenes --workers=-1",
    "an address of no cluster": "extract --features scenes --address auto",
    "a map without a name": "extract -d mine --from {source}/features.npz --map =x",
    "an unknown parser": "parse --tagger nothing",
    "an unknown tagger": "parse --tagger nothing",
    "a method that is none": "train -m nothing",
    "a backbone that is none": "train -b nothing",
    "a seed below zero": "train --seed=-1",
    "a seed of 31 digits": f"train --set seed={10**30}",
    "a number of 5,000 digits": f"train --set train.epochs={DIGITS}",
    "zero epochs": "train --set epochs=0",
    "epochs as a table": "train --set train.epochs={{}}",
    "epochs as a list": "train --set 'epochs=[1,2]'",
    "half a batch": "train --set batch_size=1.5",
    "a rate that is no number": "train --set learning_rate=nan",
    "an endless rate": "train --set learning_rate=inf",
    "a width of 99,999,999,999": "train -b vsepp --set model.word_dim=99999999999",
    "a key without a value": "train --set epochs",
    "a value without a key": "train --set =3",
    "a deep key": "train --set a.b.c.d.e.f=1",
    "a setting twice": "train --set epochs=1 --set epochs=2",
    "no negatives": "mine-negatives -b vsepp --set num_texts=0",
    "an unknown engine": "mine-negatives --engine nothing",
    "an unknown library": "mine-negatives --library nothing",
    "an unknown second model": "mine-negatives --rescore-with nothing",
    "an unknown guard": "mine-negatives --guard nothing",
    "a rank below zero": "mine-negatives --set range_min=-1",
    "an unknown maker": "synthesize --by nothing",
    "an unknown split": "synthesize --split nothing",
    "a temperature that is no number": "synthesize --set temperature=nan",
    "a split that is none": "evaluate --split nothing",
    "an unknown ensemble": "evaluate -b vsepp --ensemble-with nothing",
    "an unknown generator": "evaluate -b vsepp --discriminate nothing",
    "an unknown benchmark": "evaluate -b vsepp --benchmark nothing",
    "a benchmark of no folder": "evaluate -b vsepp --benchmark local=nothing",
    "an unknown protocol": "evaluate -b vsepp --protocol nothing",
    "depth below zero": "evaluate -b vsepp --set ranking_depth=-1",
    "examples below zero": "report --set examples=-1",
    "an export into the data": "export -b vsepp --to {data}/x",
    "an export onto a file": "export -b vsepp --to {recipe}",
    "a licence that is none": "export -b vsepp --to out --license 'a b'",
    "embeddings of no form": "export -b vsepp --to out --embeddings nothing",
    "an export of pairs' embeddings": "export -b scan --to out --embeddings npy",
    "a search for nothing": "search -b vsepp ''",
    "a search without a question": "search -b vsepp",
    "candidates of nobody": "search -b vsepp dog --candidates 3",
    "an unknown stage": "show nothing",
    "a search by a pipe": "{search} --image in/pipe",
}
_MISSING = {
    "an unknown dataset": "status -d nothing",
    "training of an unknown dataset": "train -d nothing",
    "garbage of an unknown dataset": "gc -d nothing --yes",
    "a source that is not there": "prepare -d new --source in/nothing",
    "features that are not there": "extract -d mine --from in/nothing.npz",
    "graphs that are not there": "parse --from in/nothing.json",
    "a report of nothing": "report -d mine",
    "a report into nothing": "report --into in/nothing.md",
    "an export where no folder can be": "export -b vsepp --to {recipe}/x",
    "a recipe that is not there": "run in/nothing.toml",
    "a page where no folder is": "{search} --html in/nothing/x.html",
}
_STAGES = ("prepare", "extract", "parse", "train", "mine-negatives", "synthesize", "evaluate", "report")
_NONSENSE = ("nonsense=1", "=", f"{LONG}=1")

# Captions of a dataset with one photograph `a.jpg`

_ROW = '{"file": "a.jpg", "caption": "a dog"}\n'
_CAPTIONS: dict[str, tuple[str, Content]] = {
    "an empty table": ("captions.csv", b""),
    "a table with a header only": ("captions.csv", "file,caption\n"),
    "a table without captions": ("captions.csv", "file,words\na.jpg,a dog\n"),
    "a table in UTF-16": ("captions.csv", "file,caption\na.jpg,a dog\n".encode("utf-16")),
    "a table in Latin-1": ("captions.csv", "file,caption\na.jpg,une forêt\n".encode("latin-1")),
    "a table with a NUL": ("captions.csv", "file,caption\na.jpg,a \0 dog\n"),
    "noise as a table": ("captions.csv", bytes(range(256)) * 20),
    "an unknown split in a table": ("captions.csv", "file,caption,split\na.jpg,a dog,nothing\n"),
    "a row too short": ("captions.tsv", "file\tcaption\na.jpg\n"),
    "an open quote": ("captions.csv", 'file,caption\na.jpg,"a dog\n'),
    "lines cut off": ("captions.jsonl", _ROW[:-5]),
    "a line that is a list": ("captions.jsonl", _ROW + "[1]\n"),
    "a line that is deep": ("captions.jsonl", "[" * DEEP),
    "a caption that is a number": ("captions.jsonl", '{"file": "a.jpg", "caption": 3}\n'),
    "a caption of 5,000 digits": ("captions.jsonl", f'{{"file": "a.jpg", "caption": {DIGITS}}}\n'),
    "a caption of NULs": ("captions.jsonl", '{"file": "a.jpg", "caption": "\\u0000"}\n'),
    "half a character": ("captions.jsonl", '{"file": "a.jpg", "caption": "a \\ud800 dog"}\n'),
    "an empty caption": ("captions.jsonl", '{"file": "a.jpg", "caption": ""}\n'),
    "a caption without width": ("captions.jsonl", '{"file": "a.jpg", "caption": "\\u200b\\u200b"}\n'),
    "a path that leaves": ("captions.jsonl", _ROW.replace("a.jpg", "../../../etc/passwd")),
    "a whole path": ("captions.jsonl", _ROW.replace("a.jpg", "/etc/passwd")),
    "a file name with a new line": ("captions.jsonl", _ROW.replace("a.jpg", "a\\n.jpg")),
    "a file name of 5,000 letters": ("captions.jsonl", _ROW.replace("a.jpg", LONG + ".jpg")),
    "photographs that are not there": ("captions.jsonl", _ROW.replace("a.jpg", "b.jpg")),
    "a folder as a table": ("captions.csv", folder),
    "a pipe as a table": ("captions.csv", fifo),
    "Karpathy cut off": ("dataset_x.json", '{"dataset": "x", "images": [{"filename": "a.jpg", "sen'),
    "Karpathy as a list": ("dataset_x.json", "[]"),
    "Karpathy without images": ("dataset_x.json", '{"images": []}'),
    "Karpathy without sentences": ("dataset_x.json", '{"images": [{"filename": "a.jpg", "split": "train"}]}'),
    "Karpathy that is deep": ("dataset_x.json", '{"images": ' + "[" * DEEP),
    "Karpathy with 5,000 digits": ("dataset_x.json", f'{{"images": [{{"filename": "a.jpg", "imgid": {DIGITS}}}]}}'),
    "COCO of nothing": ("captions_train2017.json", '{"images": [], "annotations": []}'),
    "COCO with a strange image": (
        "captions_train2017.json",
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"id": 1, "image_id": 2, "caption": "a dog"}]}',
    ),
    "tokens without a number": ("Flickr8k.token.txt", "a.jpg\ta dog\n"),
    "no captions at all": ("readme.txt", "hello"),
}
_PICTURES: dict[str, Content] = {
    "an image bomb": bomb,
    "an empty photograph": b"",
    "text as a photograph": "hello",
    "half a photograph": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "a folder as a photograph": folder,
    "a pipe as a photograph": fifo,
    "a photograph that is itself": lambda path: path.symlink_to(path.name),
    "a photograph from elsewhere": lambda path: path.symlink_to("/etc/hostname"),
}

# Features of the good dataset


def arrays(**changed: Any) -> Callable[[Path], object]:
    """Its features with other arrays; a function makes one of the right one, None leaves it out."""

    def write(path: Path) -> None:
        given = dict(np.load(os.environ["FAULTS_FEATURES"]))
        made = {name: value(given[name]) if callable(value) else value for name, value in changed.items()}
        kept = {name: value for name, value in {**given, **made}.items() if value is not None}
        if path.suffix == ".h5":
            import h5py

            with h5py.File(path, "w") as file:
                for name, value in kept.items():
                    file[name] = value.astype("S") if value.dtype.kind == "U" else value
        else:
            np.savez(path, **kept)

    return write


def spoilt(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """The regions with one number that is none."""

    def change(regions: np.ndarray) -> np.ndarray:
        regions[3, 1, 2] = value
        return regions

    return change


def hdf5(write: Callable[[Any, np.ndarray, np.ndarray], object]) -> Callable[[Path], object]:
    """An HDF5 file that a function fills, given the right regions and ids."""

    def make(path: Path) -> None:
        import h5py

        given = np.load(os.environ["FAULTS_FEATURES"])
        with h5py.File(path, "w") as file:
            write(file, given["regions"], given["image_id"].astype("S"))

    return make


def _external(file: Any, regions: np.ndarray, ids: np.ndarray) -> None:
    file["image_id"] = ids
    # Two letters are a small number of this type.
    file.create_dataset("regions", regions.shape, "f2", external=[("/etc/services", 0, 2 * regions.size)])


def _virtual(file: Any, regions: np.ndarray, ids: np.ndarray) -> None:
    import h5py

    layout = h5py.VirtualLayout(regions.shape, "f4")
    layout[:] = h5py.VirtualSource("nothing.h5", "regions", regions.shape)
    file["image_id"] = ids
    file.create_virtual_dataset("regions", layout)


def _linked(file: Any, regions: np.ndarray, ids: np.ndarray) -> None:
    import h5py

    file["image_id"], file["regions"] = ids, h5py.ExternalLink("nothing.h5", "regions")


def cut(make: Callable[[Path], object], share: float) -> Callable[[Path], object]:
    """A file that ends too early."""

    def write(path: Path) -> None:
        make(path)
        os.truncate(path, int(path.stat().st_size * share))

    return write


def _claims(path: Path) -> None:
    """An array that says it has a million million numbers."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    path.write_bytes(stream.getvalue())


_FEATURES: dict[str, tuple[str, Content]] = {
    "features that are no number": ("x.npz", arrays(regions=spoilt(np.nan))),
    "features without end": ("x.npz", arrays(regions=spoilt(np.inf))),
    "features too large": ("x.npz", arrays(regions=lambda given: given * 1e30)),
    "features of objects": ("x.npz", arrays(regions=np.array([{"a": 1}] * 24, dtype=object))),
    "features of text": ("x.npz", arrays(regions=lambda given: given.astype("U8"))),
    "complex features": ("x.npz", arrays(regions=lambda given: given.astype(complex))),
    "features without regions": ("x.npz", arrays(regions=lambda given: given[:, :0])),
    "features of too many dimensions": ("x.npz", arrays(regions=lambda given: given[None, None])),
    "fewer features than ids": ("x.npz", arrays(regions=lambda given: given[:5])),
    "features of fewer images": ("x.npz", arrays(regions=lambda g: g[:5], image_id=lambda g: g[:5])),
    "features of other images": ("x.npz", arrays(image_id=np.array([f"other{n}.jpg" for n in range(24)]))),
    "ids twice": ("x.npz", arrays(image_id=lambda given: np.repeat(given[:12], 2))),
    "no ids": ("x.npz", arrays(image_id=None)),
    "ids that are numbers": ("x.h5", arrays(image_id=np.arange(24))),
    "more regions than there are": ("x.npz", arrays(count=np.full(24, 9))),
    "fewer regions than none": ("x.npz", arrays(count=np.full(24, -1))),
    "boxes outside": ("x.npz", arrays(boxes=np.full((24, 3, 4), 7.0, np.float32))),
    "boxes that are no number": ("x.npz", arrays(boxes=np.full((24, 3, 4), np.nan, np.float32))),
    "an archive cut off": ("x.npz", cut(arrays(), 0.5)),
    "an empty archive": ("x.npz", b""),
    "text as an archive": ("x.npz", "hello"),
    "a folder as an archive": ("x.npz", folder),
    "a pipe as an archive": ("x.npz", fifo),
    "an array that claims too much": ("x.npy", _claims),
    "HDF5 cut off": ("x.h5", cut(arrays(), 0.5)),
    "an empty HDF5": ("x.h5", b""),
    "HDF5 of nothing": ("x.h5", hdf5(lambda file, regions, ids: None)),
    "HDF5 with a group for an array": ("x.h5", hdf5(lambda file, regions, ids: file.create_group("regions"))),
    "HDF5 from another file": ("x.h5", hdf5(_external)),
    "HDF5 that is virtual": ("x.h5", hdf5(_virtual)),
    "HDF5 that points elsewhere": ("x.h5", hdf5(_linked)),
    "an empty TSV": ("x.tsv", b""),
    "a TSV of nothing": ("x.tsv", "1\t2\t3\t4\t5\t!!!\t!!!\n"),
    "a TSV with a long field": ("x.tsv", b"1\t2\t3\t4\t5\t" + b"A" * 2_000_001 + b"\tAAAA\n"),
}
_GRAPHS: dict[str, Content] = {
    "no graphs": "",
    "graphs cut off": '{"a dog": [["do',
    "graphs that are deep": "[" * DEEP,
    "graphs of 5,000 digits": DIGITS,
    "graphs of other captions": '{"no such caption": [["dog"]]}',
    "graphs that are a number": "3",
    "graphs in Latin-1": '{"forêt": []}'.encode("latin-1"),
    "a folder of graphs": folder,
    "a pipe of graphs": fifo,
}
_RECIPES: dict[str, Content] = {
    "an empty recipe": "",
    "a recipe cut off": 'dataset = "sce',
    "a recipe that is deep": "a = " + "[" * 10_000,
    "a recipe of 5,000 digits": f"dataset = {DIGITS}",
    "a recipe that is no text": bytes(range(128, 256)),
    "a recipe with a strange key": 'dataset = "scenes"\nnothing = 1\n[[run]]\nmethod = "triplet"\n',
    "a recipe without a dataset": '[[run]]\nmethod = "triplet"\n',
    "a recipe of an unknown method": 'dataset = "scenes"\n[[run]]\nmethod = "nothing"\n',
    "a folder as a recipe": folder,
    "a pipe as a recipe": fifo,
}
# A file of the data folder -> what stands in it, and who reads it
_STORED: dict[str, tuple[str, Content, str]] = {
    "an empty definition": ("scenes/dataset.json", b"", "train -b vsepp"),
    "a definition that is a list": ("scenes/dataset.json", "[]", "train -b vsepp"),
    "a definition that is deep": ("scenes/dataset.json", '{"prepare": ' * DEEP, "train -b vsepp"),
    "a definition of 5,000 digits": ("scenes/dataset.json", f'{{"prepare": {DIGITS}}}', "train -b vsepp"),
    "a manifest of nothing": ("scenes/extract/scenes-*/manifest.json", b"", "train -b vsepp"),
    "a manifest that is deep": ("scenes/extract/scenes-*/manifest.json", "[" * DEEP, "status"),
    "a manifest of 5,000 digits": ("scenes/extract/scenes-*/manifest.json", f'{{"stage": {DIGITS}}}', "status"),
    "a manifest that is no text": ("scenes/extract/scenes-*/manifest.json", b"\xff" * 99, "status --verify"),
    "features of nothing": ("scenes/extract/scenes-*/features.h5", b"", "train -b vsepp"),
    "captions of nothing": ("scenes/prepare/scenes-*/captions.parquet", b"", "parse --tagger lexicon"),
}
_NEW = "prepare -d new --source in --set workers=1"
_OWN = "extract -d mine --name new --from in/"


def cases() -> list[Case]:
    """All of them."""
    found = [Case(name, command, (USAGE,), {"in/pipe": fifo}) for name, command in _OPTIONS.items()]
    found += [Case(name, command, (MISSING,)) for name, command in _MISSING.items()]
    found += [Case(f"{s}: {n[:20]}", f"{s} --set {n}") for s in _STAGES for n in _NONSENSE]
    both, refused = {"in": picture}, (DATA, MISSING, USAGE)
    found += [Case(name, _NEW, refused, {**both, f"in/{file}": made}) for name, (file, made) in _CAPTIONS.items()]
    leaves = 'dataset = "new"\nfeatures = "x"\n[source]\ncaptions = "../etc"\n[[run]]\nmethod = "triplet"\n'
    found.append(Case("a recipe that leaves its source", "run in/r.toml --source in", refused, {"in/r.toml": leaves}))
    table = {"in": picture, "in/captions.jsonl": json.dumps({"file": "b.png", "caption": "a dog"}) + "\n"}
    found += [Case(name, _NEW, (DATA, MISSING), {**table, "in/b.png": made}) for name, made in _PICTURES.items()]
    found += [Case(name, f"{_OWN}{file}", refused, {f"in/{file}": made}) for name, (file, made) in _FEATURES.items()]
    found += [Case(name, "parse --from in/g.json", refused, {"in/g.json": made}) for name, made in _GRAPHS.items()]
    found += [Case(name, "run in/r.toml", refused, {"in/r.toml": made}) for name, made in _RECIPES.items()]
    found += [Case(name, command, (DATA,), {f"data/{file}": made}) for name, (file, made, command) in _STORED.items()]
    return found
