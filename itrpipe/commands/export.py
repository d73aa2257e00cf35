"""`itrpipe export`: a trained model as a folder that the Hugging Face hub accepts and others can read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from itrpipe import __version__
from itrpipe.artifacts.artifact import Manifest, existing_input, read_manifest
from itrpipe.artifacts.disk import write_json, write_text
from itrpipe.artifacts.files import CROSS_RETRIEVAL, METRICS, RANKINGS
from itrpipe.artifacts.integrity import read_checked_json
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.config import did_you_mean
from itrpipe.datasets.definition import PIXELS, check_name
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import RECORD, check_target, new_folder, restore
from itrpipe.features.given_source import NOT_HERE, is_given
from itrpipe.methods.registry import methods
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate
from itrpipe.stages.base import Need
from itrpipe.training import settings as training_settings

if TYPE_CHECKING:
    from itrpipe.exporting.card import Card

CARD = "README.md"
TREC_FOLDER = "trec"
ABOUT = "itrpipe"
"""Key of `config.json` below which stands what building the model does not need."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]*")


@dataclass(frozen=True)
class Wanted:
    """What an exported folder is to hold beside the model and its card.

    Attributes:
        target: the folder.
        embeddings: how embeddings are written: `parquet`, `npy` or `none`.
        index: write indexes of faiss.
        trec: write rankings and right answers as TREC files.
        license: identifier of the hub; None leaves it to whoever publishes.
        force: replace an earlier export.
    """

    target: Path
    embeddings: str = "none"
    index: bool = False
    trec: bool = False
    license: str | None = None
    force: bool = False


@dataclass(frozen=True)
class _Artifact:
    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, folder: Path) -> _Artifact:
        return cls(folder, read_manifest(folder))

    def input(self, name: str) -> _Artifact:
        return _Artifact.of(existing_input(self.folder, self.manifest, name))

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class _Chain:
    """An evaluation and what it was made from."""

    evaluated: _Artifact
    trained: _Artifact
    prepared: _Artifact
    extracted: _Artifact

    @classmethod
    def behind(cls, folder: Path) -> _Chain:
        """The chain behind a finished evaluation.

        Raises:
            MissingInputError: what it was made from was removed.
        """
        evaluated = _Artifact.of(folder)
        trained = evaluated.input("train")
        return cls(evaluated, trained, evaluated.input("prepare"), trained.input("extract"))

    @property
    def fingerprints(self) -> dict[str, str]:
        """Artifact -> fingerprint: all that training read, the model, and the evaluation."""
        inputs = self.trained.manifest.inputs.values()
        found = {f"{each.stage}/{each.name}": each.fingerprint for each in inputs}
        return found | {each.name: each.manifest.fingerprint for each in (self.trained, self.evaluated)}


def export(
    root: Path,
    dataset: str,
    wanted: Wanted,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Writes a folder with a trained model, its card, and what else is wanted; a missing model is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        wanted: what goes into the folder.
        overrides: values given by the user, as `evaluate` takes them.
        no_deps: fail when the model is not evaluated.
        dry_run: print the plan and what it will cost, and write nothing.

    Raises:
        UsageError: the folder is taken or lies among artifacts, or the model has nothing of what is wanted.
        MissingInputError: no folder can be made there, faiss is not installed, or what the model was made from was
            removed.
        DataError: a file of the model is damaged.
        DiskFullError: no space is left.
    """
    target = wanted.target.expanduser().resolve()
    if not target.name:
        raise UsageError(f"--to {target} is the root of all folders; name one that does not exist yet")
    if target.is_relative_to(root.resolve()):
        raise UsageError(f"--to {target} lies in the data folder, which holds artifacts only; name another folder")
    reporter = Reporter()
    if not dry_run and restore(target):
        reporter.say(f"{target}: the earlier export was put back, because replacing it was interrupted", style="yellow")
    check_target(target, force=wanted.force)
    _refuse_unknown(wanted)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("evaluate", default_conf(planner.definition, dataset, "evaluate")))
    planner.refuse_unused_overrides()
    _refuse_unfit(step, wanted)
    if not make_missing(f"export {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    chain = _Chain.behind(step.location.folder)
    facts = {"itrpipe": __version__, "dataset": dataset, "run": chain.trained.manifest.label}

    def say_waiting(work: Path) -> None:
        reporter.say(f"another process writes {work}; waiting for it")

    record = {**facts, "artifacts": chain.fingerprints}
    with new_folder(target, record, force=wanted.force, on_wait=say_waiting) as work:
        files = dict(_write_all(work, chain, wanted))
        write_text(work / CARD, _card_text(chain, wanted, files))
    _say(target, reporter)


def _refuse_unknown(wanted: Wanted) -> None:
    from itrpipe.exporting.vectors import Form

    forms = get_args(Form)
    if wanted.embeddings not in forms:
        hint = did_you_mean(wanted.embeddings, forms) or f"; known: {', '.join(forms)}"
        raise UsageError(f"--embeddings {wanted.embeddings}: there is no such form{hint}")
    if wanted.license is not None and not _LICENSE.fullmatch(wanted.license):
        raise UsageError(f"--license {wanted.license!r} is no identifier of the hub, such as apache-2.0 or cc-by-4.0")
    if wanted.index:
        from itrpipe.mining.faiss_engine import load_faiss

        load_faiss()


def _refuse_unfit(step: Step, wanted: Wanted) -> None:
    """Refuses before anything is trained what the model cannot give."""
    from itrpipe.features.embeddings import ORDER

    settings = step.settings
    assert isinstance(settings, evaluate.EvaluateSettings)
    if settings.ensemble_with:
        raise UsageError("a folder holds one model; leave ensemble_with out and export every model on its own")
    asked = "--index" if wanted.index else f"--embeddings {wanted.embeddings}"
    if (wanted.index or wanted.embeddings != "none") and not training_settings.embeds(settings.backbone):
        raise UsageError(
            f"{asked}: {settings.backbone} scores images and captions together and has no embeddings; leave it out, or "
            "export another --backbone, such as vsepp"
        )
    if is_given(settings.backbone):
        raise UsageError(f"{settings.backbone} cannot be exported: {NOT_HERE}")
    model = getattr(step.inputs["train"].settings, "model", None)
    if wanted.index and getattr(model, "measure", None) == "order":
        raise UsageError(
            f"--index: {settings.backbone} compares embeddings by {ORDER}, which no index of faiss does; leave it out"
        )


def _write_all(work: Path, chain: _Chain, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Writes everything but the card; yields every file or folder and what it is."""
    yield from _write_model(work, chain)
    metrics = read_checked_json(chain.evaluated.folder / METRICS)
    write_json(work / METRICS, metrics)
    yield METRICS, "protocol → metric → value, low, high"
    if wanted.embeddings != "none" or wanted.index:
        yield from _write_vectors(work, chain, wanted)
    if wanted.trec:
        yield from _write_trec(work, chain)
    yield RECORD, "size and sha256 of every file, and the fingerprints of what they were made from"


def _write_model(work: Path, chain: _Chain) -> Iterator[tuple[str, str]]:
    """The files that `itrpipe.training.saved.load_model` opens."""
    from itrpipe.exporting.model_files import copy_files
    from itrpipe.exporting.places import without_places
    from itrpipe.training.captions import TOKENIZER, VOCABULARY
    from itrpipe.training.saved import CONFIG, MODEL

    trained, extracted = chain.trained, chain.extracted.manifest
    words = [name for name in trained.manifest.outputs if name == VOCABULARY or name.startswith(f"{TOKENIZER}/")]
    copy_files(trained.folder, trained.manifest, [MODEL, *words], work)
    about = {
        "version": trained.manifest.versions["itrpipe"],
        "dataset": trained.manifest.dataset,
        "conf": trained.manifest.conf,
        "run": trained.manifest.label,
        "files": {"weights": MODEL, "words": words},
        "features": {"extractor": extracted.conf, "settings": extracted.settings},
    }
    write_json(work / CONFIG, without_places({**read_checked_json(trained.folder / CONFIG), ABOUT: about}))
    yield MODEL, "the weights of the epoch that validated best"
    yield CONFIG, "every setting, the sizes to build the model again, and the features that it reads"
    if words == [VOCABULARY]:
        yield VOCABULARY, "its words and their ids"
    else:
        yield f"{TOKENIZER}/", "the tokenizer of its captions"


def _write_vectors(work: Path, chain: _Chain, wanted: Wanted) -> Iterator[tuple[str, str]]:
    from itrpipe.exporting.vectors import EMBEDDINGS_FOLDER, write_embeddings, write_index
    from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings

    split = read_embeddings(chain.trained.folder / EMBEDDINGS, chain.evaluated.manifest.settings["split"])
    folder = work / EMBEDDINGS_FOLDER
    folder.mkdir()
    of_split = f"of the evaluated split, compared by {split.measure}"
    if wanted.embeddings == "parquet":
        yield f"{EMBEDDINGS_FOLDER}/*.parquet", f"`images` and `captions` {of_split}: ids and `embedding`"
    if wanted.embeddings == "npy":
        yield f"{EMBEDDINGS_FOLDER}/*.npy", f"embeddings of `images` and `captions` {of_split}: [rows, width]"
    if wanted.index:
        yield f"{EMBEDDINGS_FOLDER}/*.faiss", f"flat indexes over `images` and `captions` {of_split}"
    if wanted.index or wanted.embeddings == "npy":
        yield f"{EMBEDDINGS_FOLDER}/*.ids.json", "the id of every row, in order"
    write_embeddings(folder, split, wanted.embeddings)  # pyright: ignore[reportArgumentType] (checked by then)
    if wanted.index:
        write_index(folder, split)


def _write_trec(work: Path, chain: _Chain) -> Iterator[tuple[str, str]]:
    from itrpipe.exporting.trec import write_qrels, write_runs

    evaluated, folder = chain.evaluated, work / TREC_FOLDER
    folder.mkdir()
    write_runs(folder, evaluated.folder / RANKINGS, evaluated.manifest.label)
    write_qrels(folder, evaluated.folder / CROSS_RETRIEVAL, chain.prepared.folder)
    yield f"{TREC_FOLDER}/run.*.trec", "the best candidates of every image (`i2t`) and caption (`t2i`) of the split"
    yield f"{TREC_FOLDER}/qrels.*.trec", "right answers; whitespace and % in ids are written as in URLs"


def _card_text(chain: _Chain, wanted: Wanted, files: dict[str, str]) -> str:
    from itrpipe.exporting.card import render

    return render(_card(chain, wanted, files))


def _card(chain: _Chain, wanted: Wanted, files: dict[str, str]) -> Card:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.exporting.card import Card
    from itrpipe.exporting.citations import papers_of
    from itrpipe.exporting.places import command_without_places
    from itrpipe.reporting.titles import backbone_title, method_title, model_title

    trained, evaluated = chain.trained.manifest, chain.evaluated.manifest
    backbone = trained.settings["backbone"]
    loss = methods()[trained.settings["method"]].model_validate(trained.settings["loss"])
    model = training_settings.settings_of(backbone).model_validate(trained.settings["model"])
    title = model_title(backbone_title(backbone), method_title(trained.conf, training_settings.ROUND_ONE))
    prepared = PreparedDataset.open(chain.prepared.folder)
    splits = {name: prepared.split(name) for name in prepared.splits}
    return Card(
        title=f"{title}, {trained.dataset}",
        run=trained.label,
        backbone=backbone,
        conf=trained.conf,
        dataset=trained.dataset,
        split=evaluated.settings["split"],
        license=wanted.license,
        embeds=training_settings.embeds(backbone),
        reads=_reads(chain),
        results=read_checked_json(chain.evaluated.folder / METRICS),
        level=evaluated.settings["interval_level"],
        counts={name: (len(split.images), len(split.captions)) for name, split in splits.items()},
        fingerprints=chain.fingerprints,
        commands=tuple(dict.fromkeys(map(command_without_places, _commands(chain)))),
        trained=trained.finished,
        versions=trained.versions,
        files=files,
        papers=(*papers_of(loss, model), *training_settings.cited(trained.settings)),
    )


def _commands(chain: _Chain) -> list[str]:
    """The command lines behind everything that the evaluation was made from and that is still there, as they ended."""
    from itrpipe.reporting.chain import Artifact

    folder, manifest = chain.evaluated.folder, chain.evaluated.manifest
    whole = Artifact(manifest.stage, folder.name, manifest.fingerprint, folder, manifest).chain()
    known = [each.manifest for each in whole if each.manifest is not None]
    return [each.command for each in sorted(known, key=lambda each: each.finished)]


def _reads(chain: _Chain) -> str:
    """What the model takes for an image, for people."""
    conf = chain.extracted.manifest.conf
    if conf == PIXELS:
        return "the photograph, resized as `itrpipe extract --features pixels` does with the settings in `config.json`"
    return f"its features by `{conf}` (`itrpipe extract`), with the settings in `config.json`"


def _say(target: Path, reporter: Reporter) -> None:
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        reporter.say(f"  {path.relative_to(target).as_posix():<32} {path.stat().st_size / 2**20:>10,.2f} MiB")
    reporter.say(str(target))
