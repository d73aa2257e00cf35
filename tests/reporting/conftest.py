"""Small finished artifacts for reports, and a parser of the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from PIL import Image

from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.definition import (
    DatasetDefinition,
    ModelDefinition,
    StageDefinition,
    load_definition,
)
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
NOISE = {"triplet": 1.6, "triplet-long": 1.5, "aoq": 0.7, "ssamt": 0.7, "ssamt-local": 0.8, "ssamt-global": 0.9}
SECONDS = {"triplet": 10.0, "triplet-long": 20.0, "aoq": 30.0, "ssamt": 40.0, "ssamt-local": 40.0, "ssamt-global": 40.0}
SECONDS |= {"fne": 40.0, "fne-memory-only": 40.0, "tags-dc": 40.0, "tags-discriminate": 40.0}
SECONDS |= {"contrastive-batch": 10.0, "tags": 40.0, "tags-static": 40.0}
SCENES = {"kind": "scenes", "train": 40, "val": 6, "test": 30, "seed": 0, "family_size": 1, "keep_probability": 0.0}
FILES = {"kind": "files", "format": "", "restval": "train", "bad_images": "refuse", "split_seed": 0}
FILES |= {"val_fraction": 0.1, "test_fraction": 0.1}


@dataclass
class Element:
    """A node of the parsed page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str, name: str = "") -> list[Element]:
        below = [found for each in self.children if isinstance(each, Element) for found in each.all(tag, name)]
        own = self.tag == tag and (not name or name in self.attributes.get("class", "").split())
        return [self, *below] if own else below

    def text(self, without: str = "span") -> str:
        parts = [
            each if isinstance(each, str) else each.text(without)
            for each in self.children
            if isinstance(each, str) or each.tag != without
        ]
        return " ".join("".join(parts).split())


class Page(HTMLParser):
    """Parses the page into elements."""

    VOID = ("meta", "img", "br", "link", "input", "use", "line", "hr")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(content)
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(element := Element(tag, {key: value or "" for key, value in attrs}))
        if tag not in self.VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


REAL_SETTINGS = {"mine_negatives": mine_negatives.MineSettings, "evaluate": evaluate.EvaluateSettings}


def as_settings(stage: str, settings: Mapping[str, Any]) -> Any:
    """What a stage's `run` gets: for mining and evaluation their real settings, else whatever was given."""
    if stage not in REAL_SETTINGS:
        return SimpleNamespace(**settings)
    known = REAL_SETTINGS[stage].model_fields
    return REAL_SETTINGS[stage].model_validate({key: settings[key] for key in settings.keys() & known})


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
    execution = (
        evaluate.Execution(device="cpu", encode_block=16)
        if stage == "evaluate"
        else mine_negatives.Execution(device="cpu", block=64, memory_mib=64)
    )
    write(
        Job(
            DATASET,
            label,
            as_settings(stage, settings),
            execution,
            given,
            None,
            artifacts.open_partial(location),
            Reporter(),
        )
    )
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
    prepare: Mapping[str, Any],
    methods: tuple[str, ...] = ("triplet", "aoq"),
    seeds: tuple[int, ...] = (0,),
    left_out: tuple[str, ...] = (),
) -> Toy:
    """A dataset, the first training, its mined lists and later methods, with their evaluations, for every seed.

    Images that are `left_out` had no features and are in no embeddings.
    """
    save_definition(root, DATASET, DatasetDefinition(prepare=StageDefinition(conf="toy", source=str(root / "gone"))))
    made = {"prepare": seal(root, "prepare", "toy", prepare, {}, write_dataset)}
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


def add_ensemble(toy: Toy, method: str, members: tuple[str, ...]) -> str:
    """Evaluates the mean of a method's seed 0 and of others, named by their seeds; returns its name."""
    settings = {**EVALUATE, **MODEL, "method": method, "ensemble_with": tuple(f"vsepp.{each}" for each in members)}
    read = {"prepare": toy.made["prepare"], "train": toy.made[method]}
    read |= {f"train_{number}": toy.made[f"{method}.{each}"] for number, each in enumerate(members, 2)}
    label = "+".join([f"{method}.vsepp", *settings["ensemble_with"]])
    toy.made[label] = seal(toy.root, "evaluate", label, settings, read, evaluate.run)
    return label


@dataclass(frozen=True)
class Read:
    """One caption with one image, as an evaluation writes it: scores of its words, then of its phrases.

    Attributes:
        caption_id, image_id, text: of the caption and the image.
        matched: whether it is the caption's own image.
        words: score of every word.
        phrases: kind, token numbers, score and whether the image's captions say it.
        unsaid: numbers of the words that the image's captions do not say.
        example: number.
    """

    caption_id: str
    image_id: str
    text: str
    matched: bool
    words: Sequence[float]
    phrases: Sequence[tuple[str, tuple[int, ...], float, bool]] = ()
    unsaid: Sequence[int] = ()
    example: int = 0

    def rows(self) -> list[dict[str, Any]]:
        spans = [each.span() for each in re.finditer(r"\w+", self.text)]
        given = [("word", (k,), score, k not in self.unsaid) for k, score in enumerate(self.words)]
        return [
            {
                **{name: getattr(self, name) for name in ("example", "caption_id", "image_id", "matched", "text")},
                **{"kind": kind, "tokens": list(tokens), "score": score, "holds": holds, "pair_score": sum(self.words)},
                **{"starts": [spans[k][0] for k in tokens], "ends": [spans[k][1] for k in tokens]},
            }
            for kind, tokens, score, holds in (*given, *self.phrases)
        ]


def matching_of(first: float, **values: float | None) -> dict[str, Any]:
    """Six different numbers for each choice of negatives; `values` replace those of `uniform`, image to text."""
    measures, counts = ("global", "local", "phrase"), {"pairs": 60, "phrase_pairs": 55}
    found: dict[str, dict[str, dict[str, float | None]]] = {
        choice: {
            side: {name: first - 10 * i - 3 * j - k for k, name in enumerate(measures)} | counts
            for j, side in enumerate(("i2t", "t2i"))
        }
        for i, choice in enumerate(("uniform", "hardest"))
    }
    found["uniform"]["i2t"] |= values
    return found


def add_phrases(
    toy: Toy, method: str, seed: int = 0, rerank: int = 0, matching: Any = None, reads: Sequence[Read] = ()
) -> str:
    """Adds a model that reads phrases, ranking as the toy's AOQ does, and its evaluation; returns its name."""
    given = {"backbone": "ssamt", "seed": seed, "features": "toy", "method": method}
    settings = {**EVALUATE, **given, "rerank": rerank}
    label = f"{method}.ssamt" + (f".s{seed}" if seed else "")
    name = f"{label}.rerank{rerank}" if rerank else label
    read = {"prepare": toy.made["prepare"]}
    if f"train {label}" not in toy.made:
        toy.made[f"train {label}"] = seal(toy.root, "train", label, given, read, write_model(method, seed, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)
        if matching is not None:
            (job.folder / "matching.json").write_text(json.dumps(matching))
        if reads:
            rows = [row for each in reads for row in each.rows()]
            pq.write_table(pa.Table.from_pylist(rows), job.folder / "phrases.parquet")

    toy.made[name] = seal(toy.root, "evaluate", name, settings, read | {"train": toy.made[f"train {label}"]}, write)
    return name


def add_estimates(toy: Toy, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Adds a model trained with FNE, ranking as the toy's AOQ does, and what its evaluation estimated; its name."""
    given, label = {**MODEL, "method": "fne"}, "fne.vsepp"
    read = {"prepare": toy.made["prepare"]}
    toy.made["fne"] = seal(toy.root, "train", label, given, read, write_model("aoq", 0, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)
        (job.folder / "false_negatives.json").write_text(json.dumps(figures))
        pq.write_table(pa.Table.from_pylist(list(rows)), job.folder / "false_negatives.parquet")

    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": toy.made["fne"]}, write)
    return label


def add_word_maps(toy: Toy, method: str, rows: Sequence[Mapping[str, Any]], seed: int = 0) -> str:
    """Adds a dual encoder, ranking as the toy's AOQ does, and the maps that its evaluation wrote; its name."""
    given = {**MODEL, "backbone": "dual-encoder", "method": method, "seed": seed}
    label = f"{method}.dual-encoder" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}
    trained = seal(toy.root, "train", label, given, read, write_model("aoq", seed, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)
        pq.write_table(pa.Table.from_pylist(list(rows)), job.folder / "word_maps.parquet")

    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": trained}, write)
    return label


def add_words(toy: Toy, method: str, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Adds a UNITER, ranking as the toy's AOQ does, and what its evaluation found out about words; its name."""
    given, label = {**MODEL, "backbone": "uniter", "method": method}, f"{method}.uniter"
    read = {"prepare": toy.made["prepare"]}
    trained = seal(toy.root, "train", label, given, read, write_model("aoq", 0, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)
        (job.folder / "words.json").write_text(json.dumps(figures))
        pq.write_table(pa.Table.from_pylist(list(rows)), job.folder / "word_corrections.parquet")

    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": trained}, write)
    return label


def add_history(toy: Toy, method: str, generator: str, rows: Sequence[Mapping[str, Any]], seed: int = 0) -> str:
    """Adds a UNITER trained with sentences of a generator, ranking as the toy's AOQ does, by these epochs; its name."""
    given = {**MODEL, "backbone": "uniter", "method": method, "seed": seed, "loss": {"generator": generator}}
    label = f"{method}.uniter" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}

    def train(job: Job) -> None:
        write_model("aoq", seed, ())(job)
        common = {"loss": 1.0, "val_rsum": 100.0, "best": True}
        history = [{"epoch": number, **common, **row} for number, row in enumerate(rows, 1)]
        pq.write_table(pa.Table.from_pylist(history), job.folder / "history.parquet")

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)

    trained = seal(toy.root, "train", label, given, read, train)
    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": trained}, write)
    return label


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


def add_sentences(toy: Toy, method: str, settings: Mapping[str, Any], seed: int = 0) -> str:
    """Adds a UNITER trained with synthetic sentences, ranking as the toy's AOQ does; its name."""
    given = {**MODEL, "backbone": "uniter", "method": method, "seed": seed}
    label = f"{method}.uniter" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}
    if "phrases" not in toy.made:
        toy.made["phrases"] = seal(toy.root, "synthesize", "phrases", settings, read, write_sentences("train"))
    used = read | {"synthesize": toy.made["phrases"]}
    trained = seal(toy.root, "train", label, given, used, write_model("aoq", seed, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)

    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": trained}, write)
    return label


def add_encoder(toy: Toy, method: str, noise: float, seed: int = 0, named: str = "", **settings: Any) -> str:
    """Adds a dual encoder of a contrastive method, evaluated by the product's own code; returns the folder's name.

    Args:
        toy: the data folder.
        method: configuration of `train`.
        noise: of its embeddings: the more, the worse it is.
        seed: of training.
        named: what the user calls it.
        settings: of training beside the usual ones; `loss` is a table.
    """
    loss = settings.pop("loss", {})
    kind = "zero-shot" if method in ("zero-shot", "given") else "contrastive"
    given = {**MODEL, "backbone": "dual-encoder", "seed": seed}
    trained = {**given, "method": kind, "loss": loss, "model": {"vision": "clip", "text": "clip"}, **settings}
    label = f"{method}.dual-encoder" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}
    NOISE[f"{method} {noise}"] = noise
    folder = seal(toy.root, "train", label, trained, read, write_model(f"{method} {noise}", seed, ()), conf=method)
    if named:
        definition = load_definition(toy.root, DATASET)
        known = definition.models.get(named, ModelDefinition(method=method))
        known = known.model_copy(update={"trained": {**known.trained, label: folder.name}})
        save_definition(
            toy.root, DATASET, definition.model_copy(update={"models": {**definition.models, named: known}})
        )
    ranked = f"aoq.vsepp.{method} {noise} {seed}".replace(" ", "-")  # ranks alike, and is asked nothing else
    hidden = {**MODEL, "method": "aoq", "noise": noise, "seed": seed}
    inputs = read | {"train": seal(toy.root, "train", ranked, hidden, read, write_model(f"{method} {noise}", seed, ()))}
    source = seal(toy.root, "evaluate", ranked, {**EVALUATE, **hidden}, inputs, evaluate.run)

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(source / file, job.folder / file)

    asked = {**EVALUATE, **given, "method": method}
    evaluated = seal(toy.root, "evaluate", label, asked, read | {"train": folder}, write)
    toy.made[evaluated.name] = evaluated
    return evaluated.name


def add_second_round(toy: Toy, figures: Mapping[str, Any], seed: int = 0) -> str:
    """Adds a baseline that ranks as the toy's first training does, and what was found out about it; its name."""
    given = {**MODEL, "method": "contrastive-batch", "seed": seed}
    label = "contrastive-batch.vsepp" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}
    trained = seal(toy.root, "train", label, given, read, write_model("triplet", seed, ()))

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["triplet.vsepp"] / file, job.folder / file)
        (job.folder / "second_round.json").write_text(json.dumps(figures))

    toy.made[label] = seal(toy.root, "evaluate", label, {**EVALUATE, **given}, read | {"train": trained}, write)
    return label


def add_discrimination(toy: Toy, method: str, figures: Mapping[str, Any], seed: int = 0) -> str:
    """Adds a UNITER, ranking as the toy's AOQ does, and what its evaluation found out about sentences; its name.

    Every method is measured with sentences of its own.
    """
    given = {**MODEL, "backbone": "uniter", "method": method, "seed": seed}
    label = f"{method}.uniter" + (f".s{seed}" if seed else "")
    read = {"prepare": toy.made["prepare"]}
    trained = seal(toy.root, "train", label, given, read, write_model("aoq", seed, ()))
    sentences = {}
    for name in figures:
        made = f"{name}.{method}"
        if made not in toy.made:
            settings = {"split": "test", "of": method}
            toy.made[made] = seal(toy.root, "synthesize", made, settings, read, write_sentences("test"))
        sentences[f"sentences_{name}"] = toy.made[made]

    def write(job: Job) -> None:
        for file in ("metrics.json", "rankings.parquet", "cross_retrieval.parquet"):
            shutil.copy(toy.made["aoq.vsepp"] / file, job.folder / file)
        (job.folder / "discrimination.json").write_text(json.dumps(figures))

    settings = {**EVALUATE, **given, "discriminate": sorted(figures)}
    toy.made[label] = seal(toy.root, "evaluate", label, settings, read | {"train": trained, **sentences}, write)
    return label


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
        return Report(folder, Page((folder / "index.html").read_text()).root, artifacts.read_manifest(folder))


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """One dataset with the truth, the first training and AOQ."""
    return build(tmp_path_factory.mktemp("toy") / "data", SCENES)


@pytest.fixture(scope="session")
def done(toy: Toy) -> Report:
    """The report over both runs."""
    return toy.report(drawn=True)


@pytest.fixture
def toy_from_files(tmp_path: Path) -> Toy:
    """A dataset whose source is gone."""
    return build(tmp_path, FILES)


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The first training, its baseline of as many epochs and AOQ with three seeds, and ensembles."""
    methods = ("triplet", "triplet-long", "aoq")
    found = build(tmp_path_factory.mktemp("seeded") / "data", SCENES, methods, (0, 1, 2))
    for method in ("triplet", "aoq"):
        add_ensemble(found, method, ("s1",))
    return found


@pytest.fixture(scope="session")
def phrases() -> Any:
    """What evaluations of models that read phrases are made with."""
    return SimpleNamespace(Read=Read, matching_of=matching_of, add=add_phrases)


@pytest.fixture(scope="session")
def build_toy() -> Callable[..., Toy]:
    """Builds a dataset with the truth in a folder; takes the other arguments of `build`."""
    return lambda root, **given: build(root, SCENES, **given)


@pytest.fixture(scope="session", name="add_estimates")
def add_estimates_fixture() -> Callable[..., str]:
    """`add_estimates`, for tests."""
    return add_estimates


@pytest.fixture(scope="session", name="add_word_maps")
def add_word_maps_fixture() -> Callable[..., str]:
    """`add_word_maps`, for tests."""
    return add_word_maps


@pytest.fixture(scope="session", name="add_words")
def add_words_fixture() -> Callable[..., str]:
    """`add_words`, for tests."""
    return add_words


@pytest.fixture(scope="session", name="add_history")
def add_history_fixture() -> Callable[..., str]:
    """`add_history`, for tests."""
    return add_history


@pytest.fixture(scope="session", name="add_sentences")
def add_sentences_fixture() -> Callable[..., str]:
    """`add_sentences`, for tests."""
    return add_sentences


@pytest.fixture(scope="session", name="add_discrimination")
def add_discrimination_fixture() -> Callable[..., str]:
    """`add_discrimination`, for tests."""
    return add_discrimination


@pytest.fixture(scope="session", name="add_second_round")
def add_second_round_fixture() -> Callable[..., str]:
    """`add_second_round`, for tests."""
    return add_second_round


@pytest.fixture(scope="session", name="add_encoder")
def add_encoder_fixture() -> Callable[..., str]:
    """`add_encoder`, for tests."""
    return add_encoder
