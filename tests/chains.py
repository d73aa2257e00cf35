"""Chains of tiny artifacts that a run of the tests builds once, and what tests of whole commands share.

A chain is built by the process that asks for it first; the others wait for it. All of them only read it: a test that
changes something takes a copy (`copied`, the fixture `chain`).

| fixture | dataset | holds |
|---|---|---|
| `finished_chain` | `tiny` | VSE++ of the first training and of AOQ, evaluated |
| `boxed_chain` | `tiny` | the same with features `boxed`, which have boxes, and scene graphs |
| `pairs_chain` | `tiny` | the same as the first, SCAN evaluated and BFAN trained |
| `fne_chain` | `tiny` | the same as the first, and VSE++ of FNE evaluated |
| `ssamt_chain` | `tiny` | the same as the first, and both phases of SSAMT, the second evaluated |
| `clip_chain` | `tiny` | the same as the first, and CLIP as it is, which reads photographs, evaluated |
| `scenes_chain` | `scenes` | twelve training drawings and their features |
| `ascl_chain` | `scenes` | the same, and AsCL evaluated |
| `tags_chain` | `scenes` | the same, pretraining, both phases of TAGS, written sentences; TAGS-DC evaluated with them |
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from itrpipe.cli.extract import Extract
from itrpipe.cli.request import Request
from itrpipe.config import Override, parse_override
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.features.embeddings import EMBEDDINGS, SCORES, read_embeddings, read_scores
from itrpipe.storage.artifact import existing_input, read_manifest
from itrpipe.training.recipe import Trainer
from itrpipe.training.saved import MODEL
from tests.conftest import TINY, Outcome, define, tiny, write_source
from tests.definitions import save_definition

Invoke = Callable[..., Outcome]
FEW = "evaluate.bootstrap_samples=100"
TINY_SSAMT = (
    "train.model.embed_dim=8",
    "train.model.feed_forward_dim=8",
    "train.model.heads=2",
    "train.max_updates=0",
    "train.warmup_updates=2",
    "train.learning_rate=0.01",
)
"""Both phases of SSAMT, small and quickly trained."""
SSAMT = (*TINY_SSAMT, "train.epochs=2", "train.batch_size=200", "train.min_word_count=1", "parse.tagger=lexicon")
FNE = ("train.epochs=3", *TINY[1:-1], "fne.loss.memory_size=24", "fne.loss.min_count=0")
CLIP = ("train.batch_size=20", "train.epochs=2", "train.min_word_count=1")
ONCE = ("train.epochs=1", "train.batch_size=16", "train.min_word_count=1")
ASCL = (
    *("train.epochs=2", *ONCE[1:], "train.model.embed_dim=16", "train.model.heads=2"),
    *("train.model.text_width=16", "train.model.text_heads=2", "train.model.text_layers=1"),
)
UNITER = (
    *("train.epochs=2", *ONCE[1:], "train.warmup_updates=2", "parse.workers=1"),
    *("train.model.embed_dim=16", "train.model.layers=2", "train.model.heads=2", "train.model.feed_forward_dim=16"),
)
WRITTEN = (
    *("phrases.copies=4", "phrases.draws=5", "phrases.keep=6", "phrases.block=16"),
    *("vse-c.min_count=2", "vse-c.keep=2"),
)


def tags_loss(method: str) -> tuple[str, ...]:
    """Few sentences in a step of a phase of TAGS."""
    numbers = {"sampled_negatives": 9, "hard_negatives": 3, "copies": 4, "draws": 5, "keep": 3}
    return tuple(f"{method}.loss.{name}={value}" for name, value in numbers.items())


TAGS = (*UNITER, *tags_loss("tags"), *tags_loss("tags-dc"))


def sets(*texts: str) -> list[str]:
    """These assignments as options."""
    return [f"--set={text}" for text in texts]


def done(outcome: Outcome) -> str:
    """What a command printed that has to succeed."""
    assert outcome.code == 0, outcome.err
    return outcome.out


def made(outcome: Outcome) -> Path:
    """The artifact that a command has made or found."""
    lines = done(outcome).strip().splitlines()
    return Path(lines[-2] if lines[-1].startswith("next: ") else lines[-1])


def refused(outcome: Outcome, code: int, *parts: str) -> None:
    """One line of error with all of these parts, and an exit code."""
    assert outcome.code == code, outcome.out + outcome.err
    assert re.fullmatch(r"error: [^\n]*\n", outcome.err), outcome.err
    assert all(part in outcome.err for part in parts), outcome.err


def only(root: Path, pattern: str) -> Path:
    """The one finished artifact of this stage and label, such as `train/aoq.vsepp`, in a data folder."""
    (folder,) = root.glob(f"*/{pattern}-????????")
    return folder


def planned(out: str) -> list[str]:
    """Stages and labels that a command said it would make."""
    return [line.split()[1].rpartition("-")[0] for line in out.splitlines() if line.startswith("  + ")]


def history(root: Path, label: str) -> list[dict[str, Any]]:
    """Rows of a training, an epoch each."""
    return pq.read_table(only(root, f"train/{label}") / "history.parquet").to_pylist()


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def define_scenes(root: Path, **sizes: int) -> Path:
    """Tells a data folder of the embedded dataset with a few drawings, by default of twelve training images."""
    scenes = StageDefinition(conf="scenes", settings={"train": 12, "val": 4, "test": 4, **sizes})
    definition = DatasetDefinition(prepare=scenes, features={"scenes": StageDefinition(conf="scenes")})
    save_definition(root, "scenes", definition)
    return root


@contextmanager
def interrupted(
    call: int, target: type = Trainer, name: str = "_step", counts: Callable[[Any], bool] = lambda _: True
) -> Iterator[list[tuple[Any, ...]]]:
    """Ctrl-C at the beginning of this call of a method, by default of a training step; gives the calls before it.

    Args:
        call: from 1.
        target: has the method.
        name: of the method.
        counts: of the object whose method it is, whether its calls count.
    """
    method, calls = getattr(target, name), list[tuple[Any, ...]]()

    def stop(self: Any, *given: Any, **named: Any) -> Any:
        if counts(self):
            if len(calls) == call - 1:
                raise KeyboardInterrupt
            calls.append(given)
        return method(self, *given, **named)

    with mock.patch.object(target, name, stop):
        yield calls


def same_files(pattern: str, roots: tuple[Path, Path], *names: str) -> None:
    """Both data folders have the same bytes in these files of an artifact."""
    for name in names:
        found, expected = ((only(root, pattern) / name).read_bytes() for root in roots)
        assert found == expected, name


def goes_on(run: Callable[[Path], Outcome], root: Path, label: str, call: int, position: str, **stop: Any) -> Path:
    """A training that is interrupted ends with the bytes of one that is not.

    Args:
        run: trains in a data folder.
        root: the data folder.
        label: of the model.
        call: of a training step that is interrupted.
        position: at which the training says that it goes on.
        stop: what else `interrupted` is given.

    Returns:
        A copy of the data folder with the model of the training that was not interrupted.
    """
    whole = copied(root, root.with_name("whole"))
    done(run(whole))
    with interrupted(call, **stop):
        assert run(root).code == 130
    assert f"going on in {position}" in done(run(root))
    trained = only(root, f"train/{label}")
    weights = [path.relative_to(trained).as_posix() for path in trained.rglob(MODEL)]
    same_files(f"train/{label}", (root, whole), *weights, "history.parquet")
    return whole


# The chains


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Gives the folder of a name, which is filled once in a run, whichever of the processes asks first."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "chains"
    shared.mkdir(exist_ok=True)

    def filled(name: str, fill: Callable[[Path], object]) -> Path:
        folder, finished = shared / name, shared / f"{name}.finished"
        with FileLock(shared / f"{name}.lock"):
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                finished.touch()
        return folder

    return filled


def run_stage(
    root: Path, dataset: str, stage: str, overrides: Iterable[Override], conf: str | None = None, **about: Any
) -> Path:
    """Runs a stage and what is missing for it, as its command does; returns the folder of its artifact."""
    return Request(root, dataset, overrides, **about).run_stage(stage, conf)


def evaluated(root: Path, dataset: str, *given: str) -> None:
    """Makes an evaluation and all that it needs."""
    run_stage(root, dataset, "evaluate", [parse_override(text) for text in (*given, FEW)])


@pytest.fixture(scope="session")
def finished_chain(once: Callable[..., Path]) -> Path:
    """A folder with `source/` and the data folder `data/`."""

    def fill(folder: Path) -> None:
        define(folder / "data", write_source(folder / "source"))
        for method in ("triplet", "aoq"):
            run_stage(folder / "data", "tiny", "evaluate", tiny(method))

    return once("finished", fill)


@pytest.fixture(scope="session")
def boxed_chain(finished_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        root = copied(finished_chain / "data", folder / "data")
        records = json.loads((finished_chain / "source" / "dataset_flickr30k.json").read_text())["images"]
        random = np.random.default_rng(0)
        corners = np.sort(random.random((len(records), 4, 2, 2), dtype=np.float32), axis=2)
        names = np.array([record["filename"] for record in records])
        regions = random.normal(size=(len(records), 4, 6)).astype(np.float16)
        path = folder / "boxed.npz"
        np.savez(path, regions=regions, boxes=corners.reshape(len(records), 4, 4), image_id=names)
        Extract(data=root, dataset="tiny", source=path, name="boxed").run()
        run_stage(root, "tiny", "parse", [parse_override("parse.workers=1")])

    return once("boxed", fill) / "data"


@pytest.fixture(scope="session")
def pairs_chain(finished_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        root = copied(finished_chain / "data", folder / "data")
        evaluated(root, "tiny", "backbone=scan", *TINY[:-1])
        given = [parse_override(text) for text in ("backbone=bfan", *TINY[:-1])]
        run_stage(root, "tiny", "train", given, conf="triplet")

    return once("pairs", fill) / "data"


@pytest.fixture(scope="session")
def fne_chain(finished_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        evaluated(copied(finished_chain / "data", folder / "data"), "tiny", "method=fne", "backbone=vsepp", *FNE)

    return once("fne", fill) / "data"


@pytest.fixture(scope="session")
def ssamt_chain(finished_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        evaluated(copied(finished_chain / "data", folder / "data"), "tiny", "method=ssamt", *SSAMT)

    return once("ssamt", fill) / "data"


@pytest.fixture(scope="session")
def clip_chain(finished_chain: Path, saved_encoders: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        root = copied(finished_chain / "data", folder / "data")
        evaluated(root, "tiny", "method=zero-shot", *CLIP, *encoders_of(saved_encoders, "clip"))

    return once("clip", fill) / "data"


def encoders_of(saved: Path, vision: str, text: str = "") -> list[str]:
    """Encoders of the folder `saved_encoders` as assignments."""
    return [f"train.model.vision={saved / vision}", f"train.model.text={saved / (text or vision)}"]


@pytest.fixture(scope="session")
def scenes_chain(once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        run_stage(define_scenes(folder / "data"), "scenes", "extract", [], conf="scenes")

    return once("scenes", fill) / "data"


@pytest.fixture(scope="session")
def ascl_chain(scenes_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""
    return (
        once("ascl", lambda to: evaluated(copied(scenes_chain, to / "data"), "scenes", "method=ascl", *ASCL)) / "data"
    )


@pytest.fixture(scope="session")
def tags_chain(scenes_chain: Path, once: Callable[..., Path]) -> Path:
    """A data folder."""

    def fill(folder: Path) -> None:
        root = copied(scenes_chain, folder / "data")
        asked = 'discriminate=["vse-c", "phrases"]'
        evaluated(root, "scenes", "method=tags-dc", asked, *TAGS, *WRITTEN)
        written = [parse_override(text) for text in (*UNITER, *(text.partition(".")[2] for text in WRITTEN[:4]))]
        run_stage(root, "scenes", "synthesize", written)

    return once("tags", fill) / "data"


MODELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "triplet.vsepp": ("pairs_chain", "tiny", TINY[:-1]),
    "triplet.scan": ("pairs_chain", "tiny", TINY[:-1]),
    "ssamt.ssamt": ("ssamt_chain", "tiny", SSAMT),
    "zero-shot.dual-encoder": ("clip_chain", "tiny", CLIP),
    "ascl.ascl": ("ascl_chain", "scenes", ASCL),
    "tags-dc.uniter": ("tags_chain", "scenes", TAGS),
}
"""Evaluated models of every kind: their chain, its dataset, and what they were trained with."""


@dataclass(frozen=True)
class ChainModel:
    """An evaluated model of a chain.

    Attributes:
        root: the data folder.
        dataset: its name.
        label: method and backbone.
        small: what the model was trained with.
    """

    root: Path
    dataset: str
    label: str
    small: tuple[str, ...]

    @property
    def trained(self) -> Path:
        return only(self.root, f"train/{self.label}")

    @property
    def options(self) -> list[object]:
        """Of a command that asks for this model."""
        method, backbone = self.label.split(".")
        named = ["--method", method, "--backbone", backbone, *sets(*self.small)]
        return ["--dataset", self.dataset, "--data", self.root, *named]

    @property
    def overrides(self) -> list[Override]:
        """Of its evaluation, for a planner."""
        method, backbone = self.label.split(".")
        return [parse_override(text) for text in (f"method={method}", f"backbone={backbone}", *self.small, FEW)]

    def inputs(self) -> dict[str, Path]:
        """The artifacts that it was trained on."""
        manifest = read_manifest(self.trained)
        return {name: existing_input(self.trained, manifest, name) for name in manifest.inputs if name != "start"}

    def scores(self) -> np.ndarray:
        """Of the test split [N, T], as evaluation read or made them."""
        path = only(self.root, f"evaluate/{self.label}") / SCORES
        if path.exists():
            return read_scores(path, "test").matrix
        return read_embeddings(self.trained / EMBEDDINGS, "test").scores()


@pytest.fixture
def model_of(request: pytest.FixtureRequest, saved_encoders: Path) -> Callable[[str], ChainModel]:
    """Gives one of `MODELS` by its label."""

    def known(label: str) -> ChainModel:
        chain, dataset, small = MODELS[label]
        encoders = encoders_of(saved_encoders, "clip") if chain == "clip_chain" else ()
        return ChainModel(request.getfixturevalue(chain), dataset, label, (*small, *encoders))

    return known
