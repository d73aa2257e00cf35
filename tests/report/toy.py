"""Small finished artifacts for reports, and a parser of the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from PIL import Image

from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.datasets.image_check import check_images
from itrpipe.datasets.prepared import write_prepared
from itrpipe.datasets.truth import write_truth
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, embedding_writer
from itrpipe.pipeline.planning import Planner, pinned_step
from itrpipe.pipeline.run import run
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate, mine_negatives
from itrpipe.stages.base import Artifact, Job, Need
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.artifact import Location, Manifest
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.checks import synthesis_statistics
from itrpipe.synthesis.sentences import Edit, Sentence, SentenceFile, join_parts, write_part
from itrpipe.training.search_settings import MineExecution, MineSettings
from tests import maps
from tests.definitions import save_definition

DATASET, WIDTH = "toy", 16
SIZES = {"train": 40, "val": 6, "test": 30}
HOSTILE = "<script>alert('caption')</script> & \"><img src=x onerror=alert(1)>"
MODEL = {"backbone": "vsepp", "seed": 0, "features": "toy", "adapter": "none", "freeze": "none", "average": "none"}
MODEL |= {"train_share": 1.0}
EVALUATE = {"split": "test", "protocols": ("full",), "bootstrap_samples": 100, "interval_level": 0.95}
EVALUATE |= {"ranking_depth": 20}
NOISE = {"triplet": 1.6, "triplet-long": 1.5, "aoq": 0.7}
SECONDS = {"triplet": 10.0, "aoq": 30.0}
SCENES = {"kind": "scenes", "train": 40, "val": 6, "test": 30, "seed": 0, "family_size": 1, "keep_probability": 0.0}
MINE = {
    "num_texts": 12,
    "num_images": 11,
    "precision": "fp32",
    "library": "torch",
    "drop_duplicates": False,
    "window": {},
}
REAL = {
    "mine_negatives": (MineSettings, MineExecution(device="cpu", block=64, memory_mib=64)),
    "evaluate": (evaluate.EvaluateSettings, evaluate.EvaluateExecution(device="cpu", encode_block=16)),
}
"""Settings and execution of the stages whose own `run` writes."""


class Element:
    """A node of the parsed page."""

    def __init__(self, node: ElementTree.Element) -> None:
        self.node, self.attributes = node, node.attrib

    def all(self, tag: str, name: str = "") -> list[Element]:
        return [Element(each) for each in self.node.iter(tag) if not name or name in each.get("class", "").split()]

    def text(self, without: str = "span") -> str:
        def parts(node: ElementTree.Element) -> Iterator[str]:
            yield node.text or ""
            for child in node:
                yield from parts(child) if child.tag != without else ()
                yield child.tail or ""

        return " ".join("".join(parts(self.node)).split())


def parsed(page: str) -> Element:
    """The page as XML, which every element has to be closed for."""
    elements = re.sub(r"<((?:meta|img) [^>]*)>", r"<\1/>", page.partition("<!doctype html>")[2])
    return Element(ElementTree.fromstring(elements))


def seal(
    root: Path, stage: str, label: str, settings: Any, inputs: Mapping[str, Path], write: Callable, conf: str = ""
) -> Path:
    """Makes one artifact with the product's own machinery; `write` gets the job."""
    given = {name: Artifact(folder, artifacts.read_manifest(folder)) for name, folder in inputs.items()}
    digests = {name: each.manifest.fingerprint for name, each in given.items()}
    digest = artifacts.fingerprint(stage, 1, settings, digests)
    location = Location(root, DATASET, stage, label, digest)
    kind, execution = REAL.get(stage, (None, None))
    own: Any = kind and kind.model_validate({key: settings[key] for key in settings.keys() & kind.model_fields})
    write(Job(DATASET, label, own, execution, given, None, artifacts.open_partial(location), Reporter()))
    unknown = {"digest": "", "files": {}, "made": {}}  # whatever is changed in it later
    read = {
        name: {"stage": each.manifest.stage, "name": each.folder.name, "fingerprint": digests[name], **unknown}
        for name, each in given.items()
    }
    fields = {"stage": stage, "schema_version": 1, "dataset": DATASET, "conf": conf or label, "label": label}
    fields |= {"fingerprint": digest, "settings": settings, "execution": {}, "inputs": read, "metrics": {}}
    timings = {"total": 1.25} | ({"training": SECONDS.get(settings["method"], 10.0)} if stage == "train" else {})
    fields |= {"timings": timings, "command": f"itrpipe {stage} --as {label}", "messages": []}
    artifacts.finish(location, {**fields, "finished": "2026-03-01T12:00:00+00:00"})
    return location.folder


def image_id(split: str, row: int) -> str:
    return f"{split}-{row:03d}"


def write_dataset(job: Job) -> None:
    """Two captions per image; the second is also true of the next image of its split."""
    images, captions, truth = [], [], {}
    (job.folder / "images").mkdir()
    for split, row in ((split, row) for split, size in SIZES.items() for row in range(size)):
        name = image_id(split, row)
        images.append(ImageRecord(name, f"images/{name}.png", split))
        Image.new("RGB", (40 + row, 30), (row * 5 % 256, 80, len(split) * 30)).save(job.folder / images[-1].file)
        texts = (f"{HOSTILE} {row}", f"a plain caption of {name}")
        captions += [CaptionRecord(f"{name}#{k}", name, text) for k, text in enumerate(texts)]
        truth |= {f"{name}#0": [name], f"{name}#1": sorted({name, image_id(split, (row + 1) % SIZES[split])})}
    files = [image.file for image in images]
    facts, _ = check_images(job.folder, files, lambda work: maps.made(work, job.work / "parts"))
    write_prepared(job.folder, Annotations(images, captions, job.folder), facts)
    write_truth(job.folder, truth)


def write_history(job: Job, rows: Sequence[Mapping[str, Any]] = ({},) * 3) -> None:
    usual = [{"epoch": k, "loss": 1.0 / k, "val_rsum": 100.0 + k, "best": True} for k in range(1, len(rows) + 1)]
    found = [{**one, **other} for one, other in zip(usual, rows, strict=True)]
    pq.write_table(pa.Table.from_pylist(found), job.folder / "history.parquet")


def write_model(method: str, seed: int, left_out: tuple[str, ...], job: Job) -> None:
    random = np.random.default_rng([sum(map(ord, method)), seed])
    for split, whole in SIZES.items():
        names = [name for row in range(whole) if (name := image_id(split, row)) not in left_out]
        caption_image = np.arange(2 * len(names)) // 2
        images = random.normal(size=(len(names), WIDTH)).astype(np.float32)
        texts = images[caption_image] + NOISE[method] * random.normal(size=(2 * len(names), WIDTH)).astype(np.float32)
        captions = [f"{name}#{k}" for name in names for k in range(2)]
        about = (names, captions, caption_image, WIDTH, INNER_PRODUCT)
        with embedding_writer(job.folder / EMBEDDINGS, split, *about) as write:
            for side, vectors in (("images", images), ("texts", texts)):
                write(side, 0, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    write_history(job)


def build(
    root: Path, methods: Sequence[str] = ("triplet", "aoq"), seeds: Sequence[int] = (0,), left_out: tuple[str, ...] = ()
) -> Toy:
    """A dataset, the first training, its mined lists and later methods, with their evaluations, for every seed.

    Images that are `left_out` had no features and are in no embeddings.
    """
    save_definition(root, DATASET, DatasetDefinition(prepare=StageDefinition(conf="toy", source=str(root / "gone"))))
    made = {"prepare": seal(root, "prepare", "toy", SCENES, {}, write_dataset)}
    data = {"prepare": made["prepare"]}
    for seed, method in ((seed, method) for seed in seeds for method in methods):
        end = f".s{seed}" if seed else ""
        label, model = f"{method}.vsepp{end}", {**MODEL, "seed": seed, "method": method}
        lists = {"mine_negatives": made[f"mining{end}"]} if method == "aoq" else {}
        read = data | {
            "train": seal(root, "train", label, model, data | lists, partial(write_model, method, seed, left_out))
        }
        made[f"{method}{end}"] = read["train"]
        if method == "triplet":
            lists = seal(
                root, "mine_negatives", f"exact.{label}", MINE | model, read, mine_negatives.MineNegativesStage().run
            )
            made[f"mining{end}"] = lists
        made[label] = seal(root, "evaluate", label, {**EVALUATE, **model}, read, evaluate.EvaluateStage().run)
    return Toy(root, made)


def add(
    toy: Toy,
    method: str,
    backbone: str = "uniter",
    *,
    like: str = "aoq.vsepp",
    seed: int = 0,
    conf: str = "",
    trained: Mapping[str, Any] = {},
    inputs: Mapping[str, Path] = {},
    files: Mapping[str, Sequence[Mapping[str, Any]]] = {},
    history: Sequence[Mapping[str, Any]] = ({},),
) -> str:
    """Adds a trained model and an evaluation of it that ranks as another one does; its name.

    Args:
        toy: the data folder.
        method, backbone, seed: of the model.
        like: name of the evaluation whose rankings it has.
        conf: configuration of `train`, where that is not the method.
        trained: further settings of the training.
        inputs: further inputs: those of `synthesize` of the training, others of the evaluation.
        files: tables that the evaluation wrote beside, by rows.
        history: rows of the training.
    """
    given = {**MODEL, "backbone": backbone, "method": method, "seed": seed}
    label = f"{conf or method}.{backbone}" + (f".s{seed}" if seed else "")
    data = {"prepare": toy.made["prepare"]}
    own = {name: folder for name, folder in inputs.items() if name == "synthesize"}

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet"):
            shutil.copy(toy.made[like] / file, job.folder / file)
        for name, rows in files.items():
            pq.write_table(pa.Table.from_pylist(list(rows)), job.folder / name)

    train = partial(write_history, rows=history)
    folder = seal(toy.root, "train", label, {**given, **trained}, data | own, train, conf=conf or method)
    read = data | {"train": folder} | {name: each for name, each in inputs.items() if name not in own}
    made = seal(toy.root, "evaluate", label, {**EVALUATE, **given, "method": conf or method}, read, write)
    toy.made[made.name] = made
    return made.name


def write_sentences(kept: bool, job: Job) -> None:
    """Two sentences kept of every caption for training, the harder one first, or none.

    Of hostile captions the second `alert` is changed, of plain ones a word and then two of them.
    """
    rows, count = [], SIZES["train"]
    for row, name in ((row, image_id("train", row)) for row in range(count)):
        hostile = f"{HOSTILE} {row}".replace("onerror=alert", "onerror=<b>bad</b>")
        edits = [Edit(1, "plain", "grand"), Edit(2, "caption", "copy")]
        texts = (hostile, f"a painted caption of {name}", f"a grand copy of {name}")
        made = zip(("#0", "#1", "#1"), texts, (0.5, 2.5, 1.5), strict=True)
        rows += [Sentence(f"{name}{k}", name, text, edits, s, 2.0, -1.0, -0.5) for k, text, s in made]
    drawn = {"kept": 3 * count, "identical": count} if kept else {}
    write_part(job.work / "part.parquet", rows if kept else [], drawn)
    join_parts([job.work / "part.parquet"], job.folder)
    statistics = synthesis_statistics(SentenceFile(job.folder), drawn, 2 * count)
    (job.folder / "statistics.json").write_text(json.dumps(statistics))


def with_sentences(toy: Toy, *, kept: bool = True) -> str:
    """Adds sentences, or none, and a model that learned from them; the name of its evaluation."""
    given = {"maker": "model", "method": "pretrain", "backbone": "uniter", "seed": 1}
    written = seal(
        toy.root, "synthesize", "phrases", given, {"prepare": toy.made["prepare"]}, partial(write_sentences, kept)
    )
    return add(toy, "tags", conf="tags-static", inputs={"synthesize": written})


def rewrite(path: Path, content: bytes, name: str = "") -> None:
    """Gives an artifact's file another content, and its manifest the digest of that; `name` of a file in a folder."""
    path.write_bytes(content)
    output = {"bytes": len(content), "sha256": file_digest(path)}
    change(path.parents[name.count("/")], outputs={name or path.name: output})


def change(folder: Path, conf: str = "", **changed: Any) -> None:
    """Gives the manifest of an artifact another configuration, and other entries in its tables."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest |= {name: {**manifest[name], **values} for name, values in changed.items()}
    path.write_text(json.dumps(manifest | {"conf": conf or manifest["conf"], "checksum": ""}))


@dataclass(frozen=True)
class Report:
    """A finished report.

    Attributes:
        folder: of its artifact.
        page: parsed.
        manifest: of its artifact.
    """

    folder: Path
    page: Element
    manifest: Manifest

    @property
    def results(self) -> dict[str, Any]:
        """Of results.json."""
        return json.loads((self.folder / "results.json").read_text())


def _empty(figure: Figure, file: TextIO, **options: Any) -> None:
    file.write('<svg viewBox="0 0 1 1"></svg>')


@dataclass(frozen=True)
class Toy:
    """A data folder.

    Attributes:
        root: of it.
        made: artifacts by name.
    """

    root: Path
    made: dict[str, Path]

    def copy(self, root: Path) -> Toy:
        """The same artifacts, to be damaged, without a report."""
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("report"))
        return Toy(root, {name: root / folder.relative_to(self.root) for name, folder in self.made.items()})

    def report(
        self, runs: tuple[str, ...] = ("aoq.vsepp", "triplet.vsepp"), *, drawn: bool = False, **given: Any
    ) -> Report:
        """Plans and runs the report as the command does; unless `drawn`, with empty drawings, which take longest."""
        inputs = {name: pinned_step(self.root, artifacts.read_manifest(self.made[name])) for name in runs}
        settings = {"bootstrap_samples": 200, "examples": 4, **given}
        step = Planner(self.root, DATASET).plan(Need("report", "page", settings), inputs=inputs)
        with nullcontext() if drawn else mock.patch.object(Figure, "savefig", _empty):
            run([step], Reporter())
        folder = step.location.folder
        return Report(folder, parsed((folder / "index.html").read_text()), artifacts.read_manifest(folder))
