"""The chain that faults are tried on: its commands, what they make when nothing goes wrong, and how to compare."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.faults.server import Outcome, recording_steps, run
from tests.faults.trials import Findings

DATA = "data"


def _sets(*texts: str) -> tuple[str, ...]:
    return tuple(f"--set={text}" for text in texts)


_EXTRACT = "extract.batch=4"
_TRAIN = ("train.epochs=2", "train.batch_size=16", "train.min_word_count=1", "train.checkpoint_seconds=0")
_TRAIN += ("train.model.embed_dim=16", "train.model.word_dim=8", "train.loss.sum_epochs=1")
_LISTS = ("block=4", "num_texts=5", "num_images=3")
_DRAWN = (*(f"mine_negatives.{text}" for text in _LISTS), "aoq.loss.top_texts=5", "aoq.loss.top_images=3")
_SCORES = ("bootstrap_samples=100", "ranking_depth=5")
_ONE = _sets(_EXTRACT, *_TRAIN)
_TWO = (*_ONE, *_sets(*_DRAWN))
_RULED = ("sentences=vse-c", "synthesize.min_count=2", "synthesize.keep=3", "synthesize.block=16")
_VSEPP, _AOQ, _PAIRS = ("-b", "vsepp"), ("-m", "aoq", "-b", "vsepp"), ("-b", "scan")
_SCORING = _sets(*(f"evaluate.{text}" for text in (*_SCORES, "encode_block=6")))
_EXPORT = ("export", *_AOQ, *_TWO, *_sets(*_SCORES), "--to", "exported/model", "--trec")
_RECIPE = ("prepare.train=16", "prepare.val=4", "prepare.test=4", "prepare.workers=1", _EXTRACT, *_TRAIN, *_DRAWN)
RECIPE = """
dataset = "scenes"
features = "scenes"
title = "faults"
[set]
{}
[[run]]
method = ["triplet", "aoq"]
backbone = "vsepp"
""".format("\n".join((*_RECIPE, "evaluate.bootstrap_samples=100", "report.bootstrap_samples=100")))


@dataclass(frozen=True)
class Step:
    """Commands that make one thing.

    Attributes:
        name: of what they make.
        commands: arguments of each, which runs after the one before.
        start: the step after which they run, by default the one before, `nothing` for an empty folder.
        same_as: the step whose result they have to give, their own by default.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    start: str = ""
    same_as: str = ""

    @property
    def goal(self) -> str:
        return self.same_as or self.name


_EXTRACTING = ("extract", "--features", "scenes", *_sets("batch=4"))
STEPS = (
    Step("prepare", (("prepare", "--train=16", "--val=4", "--test=4", *_sets("workers=1")),)),
    Step("extract", (_EXTRACTING,)),
    Step("shares", ((*_EXTRACTING, "--part=1/2"), (*_EXTRACTING, "--part=2/2")), start="prepare", same_as="extract"),
    Step("extract-by-two", ((*_EXTRACTING, "--workers=2"),), start="prepare", same_as="extract"),
    Step("parse", (("parse", *_sets("workers=1")),)),
    Step("train", (("train", *_VSEPP, *_ONE),)),
    Step("train-pairs", (("train", *_PAIRS, *_ONE),)),
    Step("mine", (("mine-negatives", *_VSEPP, *_ONE, *_sets(*_LISTS)),)),
    Step("rescore", (("mine-negatives", *_VSEPP, *_ONE, *_sets(*_LISTS), "--rescore-with=scan"),)),
    Step("judge", (("mine-negatives", *_VSEPP, *_ONE, *_sets(*_LISTS, "judge.block=16"), "--judge=captions:tfidf"),)),
    Step("train-aoq", (("train", *_AOQ, *_TWO),)),
    Step("rules", (("synthesize", "--by=vse-c", *_sets("min_count=2", "keep=3", "block=16")),)),
    Step("train-rules", (("train", "--negatives=synthetic", *_VSEPP, *_ONE, *_sets(*_RULED)),)),
    Step("evaluate", (("evaluate", *_VSEPP, *_ONE, *_sets(*_SCORES)),)),
    Step("evaluate-pairs", (("evaluate", *_PAIRS, *_ONE, *_SCORING),)),
    Step("evaluate-both", (("evaluate", *_PAIRS, *_ONE, *_SCORING, "--ensemble-with=vsepp"),)),
    Step("evaluate-aoq", (("evaluate", *_AOQ, *_TWO, *_sets(*_SCORES)),)),
    Step("report", (("report", *_sets("bootstrap_samples=100", "examples=2")),)),
    Step("export", ((*_EXPORT, "--embeddings=parquet"),)),
    Step("export-again", ((*_EXPORT, "--embeddings=npy", "--force"),)),
    # A dataset of the user's own, with features that others made.
    Step("own-prepare", (("prepare", "--dataset=mine", "--source={source}"),)),
    Step("own-extract", (("extract", "--dataset=mine", "--from={source}/features.npz", "--name=given"),)),
    Step("own-train", (("train", "--dataset=mine", *_VSEPP, *_ONE[1:]),)),
    Step("recipe", (("run", "{recipe}"),), start="nothing"),
    Step("search", (("search", "a dog", "--json", "--dataset=scenes", *_AOQ, *_TWO),)),
)
SHORT = ("prepare", "extract", "parse", "train", "mine", "train-aoq", "evaluate-aoq", "export", "export-again")
SHORT += ("own-prepare", "own-extract", "search")
BY_NAME = {step.name: step for step in STEPS}


class Chain:
    """What the commands make when nothing goes wrong.

    Args:
        folder: for it; empty.
        names: of the steps, all by default.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self.folder = folder
        self.steps = [step for step in STEPS if step.name in (names or BY_NAME)]
        self.places = {"source": folder / "source", "recipe": folder / "faults.toml"}
        self.seconds: dict[tuple[str, int], float] = {}
        self.events: dict[tuple[str, int], list[str]] = {}

    def arguments(self, step: Step, number: int = 0) -> list[str]:
        """Arguments of one of its commands."""
        return [text.format(**self.places) for text in step.commands[number]]

    def make(self) -> None:
        """Runs every command twice, once undisturbed and once to count its steps, and keeps what it made."""
        self.places["recipe"].write_text(RECIPE)
        for step in self.steps:
            if step.name == "own-prepare":
                self._write_source()
            self._make(step)

    def _make(self, step: Step) -> None:
        counted = self.folder / f"{step.name}.counted"
        for place in (self.after(step.name), counted):
            self.start(step, place)
        for number in range(len(step.commands)):
            outcome = run(self.arguments(step, number), self.after(step.name))
            if outcome.code != 0:
                raise SystemExit(f"the chain does not even work undisturbed: {outcome}")
            log = self.folder / f"{step.name}-{number}.steps"
            run(self.arguments(step, number), counted, recording_steps(counted, log))
            self.seconds[step.name, number] = outcome.seconds
            self.events[step.name, number] = log.read_text().splitlines() if log.exists() else []
        shutil.rmtree(counted)
        if step.same_as and contents(self.after(step.name)) != contents(self.after(step.same_as)):
            raise SystemExit(f"{step.name} and {step.same_as} do not even agree undisturbed")

    def after(self, name: str) -> Path:
        """The folder in which a step was made, `data` and `exported` in it."""
        return self.folder / f"after-{name}"

    def start(self, step: Step, folder: Path) -> None:
        """Puts all that is there before a step into a folder."""
        line = [each.name for each in self.steps if not each.start]
        before = line.index(step.name) - 1 if not step.start else -1
        name = step.start or (line[before] if before >= 0 else "nothing")
        folder.mkdir(exist_ok=True)
        if name != "nothing":
            shutil.copytree(self.after(name), folder, dirs_exist_ok=True)

    def same(self, folder: Path, step: Step) -> bool:
        """Whether a folder holds what a step made, byte for byte."""
        return not self._differences(folder, step, True)

    def compare(self, folder: Path, step: Step, found: Findings, said: str = "", *, timed: bool = True) -> None:
        """Notes what differs from what a step made, and what commands left behind."""
        if differences := self._differences(folder, step, timed and step.name != "recipe"):
            found.note("differing", f"{len(differences)} files, {differences[0]} {said}")
        for text in unsound(folder):
            found.note("lost", f"{text} {said}")
        if left := leftovers(folder):
            found.note("differing", f"{left[0]} was left behind {said}")

    def _differences(self, folder: Path, step: Step, timed: bool) -> list[str]:
        expected, made = contents(self.after(step.goal), timed=timed), contents(folder, timed=timed)
        states = {
            path: "is missing" if path not in made else "is new" if path not in expected else "differs"
            for path in sorted(expected.keys() | made.keys())
            if expected.get(path) != made.get(path)
        }
        return [f"{path} {state}" for path, state in states.items()]

    def _write_source(self) -> None:
        """Pictures of the drawn scenes as a user's own dataset, and features of them."""
        import pyarrow.parquet as pq

        source, (prepared,) = self.places["source"], self.after("prepare").glob(f"{DATA}/scenes/prepare/scenes-*")
        shutil.copytree(prepared / "images", source)
        files = dict(pq.read_table(prepared / "images.parquet", columns=["image_id", "file"]).to_pydict())
        names = dict(zip(files["image_id"], (Path(each).name for each in files["file"]), strict=True))
        rows = pq.read_table(prepared / "captions.parquet").to_pylist()
        lines = [json.dumps({"file": names[r["image_id"]], "caption": r["text"], "split": r["split"]}) for r in rows]
        (source / "captions.jsonl").write_text("\n".join(lines) + "\n")
        regions = np.random.default_rng(0).normal(size=(len(names), 3, 8)).astype(np.float32)
        np.savez(source / "features.npz", regions=regions, image_id=np.array([*names.values()]))


# What lies in a folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finished(folder: Path) -> Iterator[Path]:
    """Folders that look like finished artifacts."""
    for path in sorted(folder.glob(f"{DATA}/*/*/*")):
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".partial"):
            yield path


_TIMED = ("index.html", "summary.txt", "summary.md", "results.json", "README.md", "export.json")


def contents(folder: Path, *, timed: bool = True) -> dict[str, str]:
    """File -> sha256 of finished artifacts without their manifests, and of what was exported.

    Args:
        folder: holds `data` and `exported`.
        timed: also what tells how long trainings took, which is another time each time.
    """
    roots = [*finished(folder), *folder.glob("exported/[!.]*")]
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(folder)): digest(path) for path in files if timed or path.name not in _TIMED}


def unsound(folder: Path) -> Iterator[str]:
    """What is wrong with folders that look like finished artifacts."""
    for artifact in finished(folder):
        try:
            outputs = json.loads((artifact / "manifest.json").read_bytes())["outputs"]
            wrong = [name for name, record in outputs.items() if digest(artifact / name) != record["sha256"]]
        except (OSError, ValueError, KeyError) as error:
            yield f"{artifact.relative_to(folder)} looks finished: {error!r}"
        else:
            yield from (f"{artifact.relative_to(folder)}/{name} is damaged" for name in wrong)


def leftovers(folder: Path) -> list[str]:
    """Files and folders of unfinished work; lock files stay."""
    ends = (".partial", ".tmp", ".old")
    odd = (path for path in folder.rglob("*") if path.name.endswith(ends) or path.name.startswith("."))
    return [str(path.relative_to(folder)) for path in odd if not path.name.endswith(".lock")]


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Manifest of every finished artifact -> inode and time, which change when it is made again."""
    manifests = [path / "manifest.json" for path in finished(folder)]
    found = {path: path.stat() for path in manifests if path.exists()}
    return {str(path.relative_to(folder)): (each.st_ino, each.st_mtime_ns) for path, each in found.items()}


def rebuilt(before: dict[str, tuple[int, int]], folder: Path) -> list[str]:
    """Which of the artifacts that were finished before are gone or were made again."""
    now = identities(folder)
    return [name for name, each in before.items() if now.get(name) != each]


def say(outcome: Outcome) -> str:
    """The end of what a command printed, for a finding."""
    return f"(last: {outcome.output.strip()[-200:]!r})"


def new_folder(parent: str | None = None) -> Path:
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=parent))
    folder.chmod(0o755)
    return folder.resolve()
