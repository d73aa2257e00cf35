"""Small finished artifacts for reports, and a parser of the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingWriter
from itrpipe.plan import pipeline
from itrpipe.plan.planning import Planner, pinned_step
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate, mine_negatives
from itrpipe.stages.base import Input, Job, Need
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.artifact import Location, Manifest
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.checks import synthesis_statistics
from itrpipe.synthesis.sentences import Edit, Sentence, SentenceFile, join_parts, write_part
from tests import maps
from tests.definitions import save_definition

DATASET, WIDTH = "toy", 16
SIZES = {"train": 40, "val": 6, "test": 30}
HOSTILE = "<script>alert('caption')</script> & \"><img src=x onerror=alert(1)>"
MODEL = {"backbone": "vsepp", "seed": 0, "features": "toy"}
EVALUATE = {"split": "test", "protocols": ("full",), "bootstrap_samples": 100, "interval_level": 0.95}
EVALUATE |= {"ranking_depth": 20}
NOISE = {"triplet": 1.6, "triplet-long": 1.5, "aoq": 0.7}
SECONDS = {"triplet": 10.0, "aoq": 30.0}
SCENES = {"kind": "scenes", "train": 40, "val": 6, "test": 30, "seed": 0, "family_size": 1, "keep_probability": 0.0}
REAL = {
    "mine_negatives": (mine_negatives.MineSettings, mine_negatives.Execution(device="cpu", block=64, memory_mib=64)),
    "evaluate": (evaluate.EvaluateSettings, evaluate.Execution(device="cpu", encode_block=16)),
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
    return Element(
        ElementTree.fromstring(re.sub(r"<((?:meta|img) [^>]*)>", r"<\1/>", page.partition("<!doctype html>")[2]))
    )


def seal(
    root: Path,
    stage: str,
    label: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
    write: Callable,
    conf: str = "",
) -> Path:
    """Makes one artifact with the product's own machinery; `write` gets the job."""
    manifests = {name: artifacts.read_manifest(folder) for name, folder in inputs.items()}
    digest = artifacts.fingerprint(stage, 1, settings, {name: each.fingerprint for name, each in manifests.items()})
    location = Location(root, DATASET, stage, label, digest)
    given = {name: Input(inputs[name], manifests[name]) for name in inputs}
    kind, execution = REAL.get(stage, (None, None))
    own: Any = kind and kind.model_validate({key: settings[key] for key in settings.keys() & kind.model_fields})
    write(Job(DATASET, label, own, execution, given, None, artifacts.open_partial(location), Reporter()))
    read = {
        name: {"stage": each.stage, "name": inputs[name].name, "fingerprint": each.fingerprint}
        for name, each in manifests.items()
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
    for split, size in SIZES.items():
        for row in range(size):
            name = image_id(split, row)
            images.append(ImageRecord(name, f"images/{name}.png", split))
            Image.new("RGB", (40 + row, 30), (row * 5 % 256, 80, len(split) * 30)).save(job.folder / images[-1].file)
            captions += [
                CaptionRecord(f"{name}#0", name, f"{HOSTILE} {row}"),
                CaptionRecord(f"{name}#1", name, f"a plain caption of {name}"),
            ]
            truth |= {f"{name}#0": [name], f"{name}#1": sorted({name, image_id(split, (row + 1) % size)})}
    records = Annotations(images, captions, job.folder)
    files = [image.file for image in images]
    facts, _ = check_images(job.folder, files, lambda work: maps.made(work, job.work / "parts"))
    write_prepared(job.folder, records, facts)
    write_truth(job.folder, truth)


def write_model(method: str, seed: int, left_out: tuple[str, ...]) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        random = np.random.default_rng([sum(map(ord, method)), seed])
        for split, whole in SIZES.items():
            names = [name for row in range(whole) if (name := image_id(split, row)) not in left_out]
            size = len(names)
            caption_image = np.arange(2 * size) // 2
            images = random.normal(size=(size, WIDTH)).astype(np.float32)
            texts = images[caption_image] + NOISE[method] * random.normal(size=(2 * size, WIDTH)).astype(np.float32)
            captions = [f"{name}#{k}" for name in names for k in range(2)]
            about = (names, captions, caption_image, WIDTH, INNER_PRODUCT)
            with EmbeddingWriter(job.folder / EMBEDDINGS, split, *about) as writer:
                writer.write("images", 0, images / np.linalg.norm(images, axis=1, keepdims=True))
                writer.write("texts", 0, texts / np.linalg.norm(texts, axis=1, keepdims=True))
        history = [
            {"epoch": k + 1, "loss": 1.0 / (k + 1), "val_rsum": 100.0 + k, "best": True}
            | {"val_i2t_r1": 10.0 + k + seed, "val_t2i_r1": 8.0 + k + seed}
            for k in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(history), job.folder / "history.parquet")

    return write


def build(
    root: Path,
    methods: tuple[str, ...] = ("triplet", "aoq"),
    seeds: tuple[int, ...] = (0,),
    left_out: tuple[str, ...] = (),
) -> Toy:
    """A dataset, the first training, its mined lists and later methods, with their evaluations, for every seed.

    Images that are `left_out` had no features and are in no embeddings.
    """
    save_definition(root, DATASET, DatasetDefinition(prepare=StageDefinition(conf="toy", source=str(root / "gone"))))
    made = {"prepare": seal(root, "prepare", "toy", SCENES, {}, write_dataset)}
    for seed in seeds:
        end = f".s{seed}" if seed else ""
        mining = {**MODEL, "seed": seed, "method": "triplet", "num_texts": 12, "num_images": 11, "precision": "fp32"}
        mining |= {"library": "torch", "drop_duplicates": False, "window": {}}
        for method in methods:
            label, model = f"{method}.vsepp{end}", {**MODEL, "seed": seed, "method": method}
            read = {"prepare": made["prepare"]}
            read |= {"mine_negatives": made[f"mining{end}"]} if method == "aoq" else {}
            made[f"{method}{end}"] = seal(root, "train", label, model, read, write_model(method, seed, left_out))
            read = {"prepare": made["prepare"], "train": made[f"{method}{end}"]}
            if method == "triplet":
                folder = seal(root, "mine_negatives", f"exact.{label}", mining, read, mine_negatives.run)
                made[f"mining{end}"] = folder
            made[label] = seal(root, "evaluate", label, {**EVALUATE, **model}, read, evaluate.run)
    return Toy(root, made)


def add(
    toy: Toy,
    method: str,
    backbone: str = "uniter",
    *,
    like: str = "aoq.vsepp",
    seed: int = 0,
    conf: str = "",
    trained: Mapping[str, Any] | None = None,
    asked: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Path] | None = None,
    files: Mapping[str, Any] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Adds a trained model and an evaluation of it that ranks as another one does; its name.

    Args:
        toy: the data folder.
        method, backbone, seed: of the model.
        like: name of the evaluation whose rankings it has.
        conf: configuration of `train`, where that is not the method.
        trained, asked: further settings of the training and of the evaluation.
        inputs: further inputs: those of `synthesize` and `mine_negatives` of the training, others of the evaluation.
        files: what the evaluation wrote beside: JSON, or rows of Parquet.
        history: rows of the training, in the place of the usual ones.
    """
    given = {**MODEL, "backbone": backbone, "method": method, "seed": seed}
    label = f"{conf or method}.{backbone}" + (f".s{seed}" if seed else "")
    own = {name: folder for name, folder in (inputs or {}).items() if name in ("synthesize", "mine_negatives")}
    read = {"prepare": toy.made["prepare"]}

    def train(job: Job) -> None:
        write_model("aoq", seed, ())(job)
        if history:
            usual = {"loss": 1.0, "val_rsum": 100.0, "best": True}
            rows = [{"epoch": number, **usual, **row} for number, row in enumerate(history, 1)]
            pq.write_table(pa.Table.from_pylist(rows), job.folder / "history.parquet")

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made[like] / file, job.folder / file)
        for name, content in (files or {}).items():
            if name.endswith("json"):
                (job.folder / name).write_text(json.dumps(content))
            else:
                pq.write_table(pa.Table.from_pylist(list(content)), job.folder / name)

    folder = seal(toy.root, "train", label, {**given, **(trained or {})}, read | own, train, conf=conf or method)
    others = {name: each for name, each in (inputs or {}).items() if name not in own}
    settings = {**EVALUATE, **given, "method": conf or method, **(asked or {})}
    made = seal(toy.root, "evaluate", label, settings, read | others | {"train": folder}, write)
    toy.made[made.name] = made
    toy.made[f"train {made.name}"] = folder
    return made.name


def write_sentences(split: str) -> Callable[[Job], None]:
    """Two sentences kept of every caption of a split, the harder one first, and one rejected, by the product's code.

    Of hostile captions the second `alert` is changed, of plain ones a word and then two of them.
    """

    def write(job: Job) -> None:
        names = [image_id(split, row) for row in range(SIZES[split])]
        rows = []
        for row, name in enumerate(names):
            hostile, plain = f"{HOSTILE} {row}", f"a plain caption of {name}"
            second = hostile.replace("onerror=alert", "onerror=<b>bad</b>")
            one, two = [Edit(1, "plain", "painted")], [Edit(1, "plain", "grand"), Edit(2, "caption", "copy")]
            made = [("#0", hostile, second, [Edit(9, "alert", "<b>bad</b>")], 0.5)]
            made += [("#1", plain, f"a painted caption of {name}", one, 2.5)]
            made += [("#1", plain, f"a grand copy of {name}", two, 1.5)]
            for end, _, text, edits, score in made:
                rows.append(Sentence(f"{name}{end}", name, text, edits, score, 2.0, -1.0, -0.5, True, "kept"))
            rows.append(Sentence(f"{name}#1", name, plain, one, None, 2.0, None, None, False, "identical"))
        write_part(job.work / "part.parquet", rows, {"kept": 3 * len(names), "identical": len(names)})
        join_parts([job.work / "part.parquet"], job.folder)
        statistics = synthesis_statistics(SentenceFile(job.folder), 2 * len(names))
        (job.folder / "statistics.json").write_text(json.dumps(statistics))

    return write


def change(folder: Path, conf: str = "", **settings: Any) -> None:
    """Gives an artifact another configuration and other settings."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"] |= settings
    path.write_text(json.dumps(manifest | {"conf": conf or manifest["conf"], "checksum": ""}))


def rewrite(path: Path, content: bytes) -> None:
    """Gives an artifact's file another content, and its manifest the digest of that."""
    path.write_bytes(content)
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["outputs"][path.name] = {"bytes": len(content), "sha256": file_digest(path)}
    (path.parent / "manifest.json").write_text(json.dumps({**manifest, "checksum": ""}))


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
        hostile: what captions begin with.
    """

    root: Path
    made: dict[str, Path]
    hostile: str = HOSTILE

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
            (folder,) = pipeline.run([step], Reporter())
        return Report(folder, parsed((folder / "index.html").read_text()), artifacts.read_manifest(folder))
