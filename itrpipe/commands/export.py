"""`itrpipe export`: a trained model as a folder that the Hugging Face hub accepts and others can read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from itrpipe import __version__
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.config import did_you_mean
from itrpipe.datasets.definition import PIXELS, check_name
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.features.declaration import NOT_HERE, feature_settings, is_given, passes_of
from itrpipe.methods.declaration import methods
from itrpipe.models.registry import backbone_family
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import CROSS_RETRIEVAL, EXPORT, METRICS, RANKINGS, Manifest, existing_input, read_manifest
from itrpipe.storage.disk import write_json, write_text
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training import settings as training_settings

if TYPE_CHECKING:
    from itrpipe.exporting.card import Card, Elsewhere
    from itrpipe.features.declaration import FeatureSettings
    from itrpipe.training.export import NativeModel

CARD = "README.md"
TREC_FOLDER = "trec"
DUAL_ENCODER = "dual-encoder"
"""The backbone that may be a class of transformers."""
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
        open_clip: write files for open_clip, too.
    """

    target: Path
    embeddings: str = "none"
    index: bool = False
    trec: bool = False
    license: str | None = None
    force: bool = False
    open_clip: bool = False


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
    reporter = Reporter()

    def say_restored(message: str) -> None:
        reporter.say(message, style="yellow")

    target = open_target(root, wanted.target, force=wanted.force, dry_run=dry_run, say=say_restored)
    _refuse_unknown(wanted)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("evaluate", default_conf(planner.definition, dataset, "evaluate")))
    planner.refuse_unused_overrides()
    _refuse_unfit(step, wanted)
    if not make_missing(f"export {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    chain = _Chain.behind(step.location.folder)
    native, reason = _native(chain)
    if reason:
        reporter.say(
            f"no class of transformers embeds as this model does: {reason}; the folder has itrpipe's own layout"
        )
    _refuse_open_clip(wanted, native, reason)
    facts = {"itrpipe": __version__, "dataset": dataset, "run": chain.trained.manifest.label}

    def say_waiting(work: Path) -> None:
        reporter.say(f"another process writes {work}; waiting for it")

    record = {**facts, "artifacts": chain.fingerprints}
    with new_folder(target, record, force=wanted.force, on_wait=say_waiting) as work:
        files = dict(_write_all(work, chain, wanted, native))
        write_text(work / CARD, _card_text(chain, wanted, files, _elsewhere(chain, wanted, native, reason)))
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
    model = getattr(step.inputs["train"].settings, "model", None)
    if wanted.open_clip and getattr(model, "images", None) != PIXELS:
        raise UsageError(f"--open-clip: open_clip has no model like {settings.backbone}; leave it out")
    asked = "--index" if wanted.index else f"--embeddings {wanted.embeddings}"
    if (wanted.index or wanted.embeddings != "none") and not training_settings.settings_of(settings.backbone).embeds:
        raise UsageError(
            f"{asked}: {settings.backbone} scores images and captions together and has no embeddings; leave it out, or "
            "export another --backbone, such as vsepp"
        )
    if is_given(settings.backbone):
        raise UsageError(f"{settings.backbone} cannot be exported: {NOT_HERE}")
    if wanted.index and getattr(model, "measure", None) == "order":
        raise UsageError(
            f"--index: {settings.backbone} compares embeddings by {ORDER}, which no index of faiss does; leave it out"
        )


def _native(chain: _Chain) -> tuple[NativeModel | None, str]:
    """The model in the layout of transformers, or why a dual encoder has none; of other backbones neither."""
    if backbone_family(chain.trained.manifest.settings["backbone"]) != DUAL_ENCODER:
        return None, ""
    from itrpipe.models.dual_encoder.native import NoEquivalent
    from itrpipe.training.export import NativeModel

    trained = chain.trained
    try:
        return NativeModel.of(trained.folder, chain.extracted.manifest.settings), ""
    except NoEquivalent as nothing:
        return None, str(nothing)


def _refuse_open_clip(wanted: Wanted, native: NativeModel | None, reason: str) -> None:
    if not wanted.open_clip:
        return
    from itrpipe.models.dual_encoder.native import NoEquivalent
    from itrpipe.training.export import open_clip_config

    try:
        if native is not None:
            open_clip_config(native)
            return
    except NoEquivalent as nothing:
        reason = str(nothing)
    raise UsageError(f"--open-clip: open_clip has no model like this one ({reason}); leave it out")


def _elsewhere(chain: _Chain, wanted: Wanted, native: NativeModel | None, reason: str) -> Elsewhere:
    from itrpipe.exporting.card import Elsewhere

    mteb = _suits_mteb(chain)
    if native is None:
        return Elsewhere(reason=reason, mteb=mteb)
    architecture, difference = native.layout.architecture, native.difference
    return Elsewhere(architecture, "", native.padded, difference, wanted.open_clip, mteb)


def _suits_mteb(chain: _Chain) -> bool:
    """Whether it has embeddings of photographs that are compared by inner product."""
    trained = chain.trained.manifest
    if (
        not training_settings.settings_of(trained.settings["backbone"]).embeds
        or trained.settings["model"].get("measure") == "order"
    ):
        return False
    return not any(part.imported or part.drawings_only for part in _extractors(chain).values())


def _write_all(work: Path, chain: _Chain, wanted: Wanted, native: NativeModel | None) -> Iterator[tuple[str, str]]:
    """Writes everything but the card; yields every file or folder and what it is."""
    yield from _write_model(work, chain, native)
    if native is not None and wanted.open_clip:
        from itrpipe.training.export import OPEN_CLIP_CONFIG, OPEN_CLIP_MODEL, write_open_clip

        write_open_clip(work, native)
        yield (
            f"{OPEN_CLIP_MODEL}, {OPEN_CLIP_CONFIG}",
            "the same weights as open_clip names them, and how it builds them",
        )
    metrics = read_checked_json(chain.evaluated.folder / METRICS)
    write_json(work / METRICS, metrics)
    yield METRICS, "protocol → metric → value, low, high"
    if wanted.embeddings != "none" or wanted.index:
        yield from _write_vectors(work, chain, wanted)
    if wanted.trec:
        yield from _write_trec(work, chain)
    yield EXPORT, "size and sha256 of every file, and the fingerprints of what they were made from"


def _write_model(work: Path, chain: _Chain, native: NativeModel | None) -> Iterator[tuple[str, str]]:
    """The files that `itrpipe.training.saved.load_model` opens, and where `native` is one transformers, too."""
    from itrpipe.exporting.places import without_places
    from itrpipe.training.saved import ABOUT, CONFIG, MODEL, SETTINGS

    trained, extracted = chain.trained, chain.extracted.manifest
    files = dict(native.write(work) if native is not None else _copy_model(work, trained))
    words = sorted(name for name in _names_in(work) if name.startswith(("vocab", "tokenizer")))
    about = {
        "version": trained.manifest.versions["itrpipe"],
        "dataset": trained.manifest.dataset,
        "conf": trained.manifest.conf,
        "run": trained.manifest.label,
        "files": {"weights": MODEL, "words": words},
        "features": {"extractor": extracted.conf, "settings": extracted.settings, "of_anywhere": _of_anywhere(chain)},
    }
    if training_settings.settings_of(trained.manifest.settings["backbone"]).reads_phrases:
        about["parser"] = trained.input("parse").manifest.settings
    settings = read_checked_json(trained.folder / CONFIG)
    whole = {**settings, ABOUT: about}
    if native is not None:
        whole = {**native.layout.config, ABOUT: {**about, SETTINGS: settings}}
    write_json(work / CONFIG, without_places(whole))
    yield from files.items()
    yield CONFIG, "every setting, the sizes to build the model again, and the features that it reads"


def _copy_model(work: Path, trained: _Artifact) -> Iterator[tuple[str, str]]:
    """Weights and what reads captions, as they were trained."""
    from itrpipe.exporting.model_files import copy_files
    from itrpipe.training.captions import TOKENIZER, VOCABULARY
    from itrpipe.training.saved import MODEL

    words = [name for name in trained.manifest.outputs if name == VOCABULARY or name.startswith(f"{TOKENIZER}/")]
    copy_files(trained.folder, trained.manifest, [MODEL, *words], work)
    yield MODEL, "the weights of the epoch that validated best"
    if words == [VOCABULARY]:
        yield VOCABULARY, "its words and their ids"
    else:
        yield f"{TOKENIZER}/", "the tokenizer of its captions"


def _names_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


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


def _card_text(chain: _Chain, wanted: Wanted, files: dict[str, str], elsewhere: Elsewhere) -> str:
    from itrpipe.exporting.card import render

    return render(_card(chain, wanted, files, elsewhere))


def _card(chain: _Chain, wanted: Wanted, files: dict[str, str], elsewhere: Elsewhere) -> Card:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.exporting.card import Card
    from itrpipe.exporting.citations import papers_of
    from itrpipe.exporting.vectors import tables
    from itrpipe.reporting.tables import commands_behind
    from itrpipe.reporting.titles import backbone_title, method_title, model_title

    trained, evaluated = chain.trained.manifest, chain.evaluated.manifest
    backbone = trained.settings["backbone"]
    loss = methods()[trained.settings["method"]].model_validate(trained.settings["loss"])
    model = training_settings.settings_of(backbone).model_validate(trained.settings["model"])
    title = model_title(backbone_title(backbone), method_title(trained.conf, training_settings.FIRST_TRAINING))
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
        embeds=training_settings.settings_of(backbone).embeds,
        reads=_reads(chain),
        photographs=_of_anywhere(chain),
        results=read_checked_json(chain.evaluated.folder / METRICS),
        level=evaluated.settings["interval_level"],
        counts={name: (len(split.images), len(split.captions)) for name, split in splits.items()},
        fingerprints=chain.fingerprints,
        commands=tuple(commands_behind([chain.evaluated.folder])),
        trained=trained.finished,
        versions=trained.versions,
        files=files,
        papers=(*papers_of(loss, model), *training_settings.cited(trained.settings)),
        elsewhere=elsewhere,
        tables=tables() if wanted.embeddings == "parquet" else {},
    )


def _reads(chain: _Chain) -> str:
    """What the model takes for an image, for people."""
    conf = chain.extracted.manifest.conf
    if conf == PIXELS:
        return "the photograph, resized as `itrpipe extract --features pixels` does with the settings in `config.json`"
    return f"its features by `{conf}` (`itrpipe extract`), with the settings in `config.json`"


def _of_anywhere(chain: _Chain) -> bool:
    """Whether others can make the model's features of photographs: none was imported, no weights lie here alone."""
    from itrpipe.exporting.places import without_places

    settings = chain.extracted.manifest.settings
    return without_places(settings) == settings and not any(part.imported for part in _extractors(chain).values())


def _extractors(chain: _Chain) -> Mapping[str, FeatureSettings]:
    """What made the features that the model reads."""
    made = chain.extracted.manifest
    return passes_of(made.conf, feature_settings(made.settings).model_validate(made.settings))


def _say(target: Path, reporter: Reporter) -> None:
    sizes = {path.relative_to(target).as_posix(): path.stat().st_size for path in target.rglob("*") if path.is_file()}
    width = max(map(len, sizes))
    for name in sorted(sizes):
        reporter.say(f"  {name:<{width}} {sizes[name] / 2**10:>12,.1f} KiB")
    reporter.say(str(target))
