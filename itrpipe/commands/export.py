"""`itrpipe export`: a trained model as a folder that the Hugging Face hub accepts and others can read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe import __version__
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.config import unknown
from itrpipe.datasets.definition import PIXELS, DatasetDefinition, check_name
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.exporting.places import without_places
from itrpipe.features.declaration import NOT_HERE, feature_settings, is_given, passes_of
from itrpipe.methods.declaration import methods
from itrpipe.models.registry import backbone_family
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.report.chain import commands_behind
from itrpipe.report.names import backbone_title, method_title, model_title
from itrpipe.stages import evaluate
from itrpipe.stages.base import Need
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import (
    CROSS_RETRIEVAL,
    EXPORT,
    METRICS,
    RANKINGS,
    Manifest,
    damage_remedy,
    existing_input,
    read_manifest,
)
from itrpipe.storage.disk import file_digest, require_space, write_json, write_text
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training import settings as training_settings

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
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
class Artifact:
    """A folder with its manifest."""

    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, folder: Path) -> Artifact:
        """A finished one."""
        return cls(folder, read_manifest(folder))

    def input(self, name: str) -> Artifact:
        """What it was made from.

        Raises:
            MissingInputError: it was removed.
        """
        return Artifact.of(existing_input(self.folder, self.manifest, name))


@dataclass(frozen=True)
class _Chain:
    """An evaluation and what it was made from."""

    evaluated: Artifact
    trained: Artifact
    prepared: Artifact
    extracted: Artifact

    @property
    def fingerprints(self) -> dict[str, str]:
        """Artifact -> fingerprint: all that training read, the model, and the evaluation."""
        inputs = self.trained.manifest.inputs.values()
        found = {f"{each.stage}/{each.name}": each.fingerprint for each in inputs}
        own = (self.trained, self.evaluated)
        return found | {f"{each.manifest.stage}/{each.folder.name}": each.manifest.fingerprint for each in own}

    @property
    def extractors(self) -> list[FeatureSettings]:
        """What made the features that the model reads."""
        made = self.extracted.manifest
        return [*passes_of(made.conf, feature_settings(made.settings).model_validate(made.settings)).values()]

    @property
    def of_anywhere(self) -> bool:
        """Whether others can make the features of photographs: none was imported, no weights lie here alone."""
        settings = self.extracted.manifest.settings
        return without_places(settings) == settings and not any(each.imported for each in self.extractors)


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
    target = open_target(root, wanted.target, force=wanted.force)
    _refuse_unknown(wanted)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("evaluate", default_conf(planner.definition, dataset, "evaluate")))
    planner.refuse_unused_overrides()
    _refuse_unfit(step, wanted)
    if not make_missing(f"export {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    evaluated = Artifact.of(step.location.folder)
    trained = evaluated.input("train")
    chain = _Chain(evaluated, trained, evaluated.input("prepare"), trained.input("extract"))
    native, reason = _native(chain, wanted)
    if reason:
        reporter.say(
            f"no class of transformers embeds as this model does: {reason}; the folder has itrpipe's own layout"
        )
    facts = {"itrpipe": __version__, "dataset": dataset, "run": trained.manifest.label}
    with new_folder(target, facts | {"artifacts": chain.fingerprints}, force=wanted.force) as work:
        files = dict(_write_all(work, chain, wanted, native))
        write_text(work / CARD, _card(work, chain, wanted, files, native, reason, planner.definition))
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        reporter.say(f"  {path.relative_to(target).as_posix():<40} {path.stat().st_size / 2**10:>12,.1f} KiB")
    reporter.say(str(target))


def _refuse_unknown(wanted: Wanted) -> None:
    from itrpipe.exporting.tools import FORMS

    if wanted.embeddings not in FORMS:
        raise UsageError(unknown("--embeddings", wanted.embeddings, FORMS))
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


def _native(chain: _Chain, wanted: Wanted) -> tuple[NativeModel | None, str]:
    """The model in the layout of transformers, or why a dual encoder has none; of other backbones neither.

    Raises:
        UsageError: files for open_clip are wanted, which has no such model.
    """
    if backbone_family(chain.trained.manifest.settings["backbone"]) != DUAL_ENCODER:
        return None, ""
    from itrpipe.models.dual_encoder.native import NoEquivalent
    from itrpipe.training.export import NativeModel, open_clip_config

    trained, native, reason = chain.trained, None, ""
    try:
        native = NativeModel.of(trained.folder, chain.extracted.manifest.settings)
        if wanted.open_clip:
            open_clip_config(native)
    except NoEquivalent as nothing:
        reason = str(nothing)
    if wanted.open_clip and reason:
        raise UsageError(f"--open-clip: open_clip has no model like this one ({reason}); leave it out")
    return native, reason


def _write_all(work: Path, chain: _Chain, wanted: Wanted, native: NativeModel | None) -> Iterator[tuple[str, str]]:
    """Writes everything but the card; yields every file or folder and what it is."""
    yield from _write_model(work, chain, native)
    if native is not None and wanted.open_clip:
        from itrpipe.training.export import OPEN_CLIP_CONFIG, OPEN_CLIP_MODEL, write_open_clip

        write_open_clip(work, native)
        names = f"{OPEN_CLIP_MODEL}, {OPEN_CLIP_CONFIG}"
        yield names, "the same weights as open_clip names them, and how it builds them"
    write_json(work / METRICS, read_checked_json(chain.evaluated.folder / METRICS))
    yield METRICS, "protocol → metric → value, low, high"
    if wanted.embeddings != "none" or wanted.index:
        yield from _write_vectors(work, chain, wanted)
    if wanted.trec:
        from itrpipe.exporting.tools import write_qrels, write_runs

        evaluated, folder = chain.evaluated, work / TREC_FOLDER
        folder.mkdir()
        write_runs(folder, evaluated.folder / RANKINGS, evaluated.manifest.label)
        write_qrels(folder, evaluated.folder / CROSS_RETRIEVAL, chain.prepared.folder)
        yield f"{TREC_FOLDER}/run.*.trec", "the best candidates of every image (`i2t`) and caption (`t2i`) of the split"
        yield f"{TREC_FOLDER}/qrels.*.trec", "right answers; whitespace and % in ids are written as in URLs"
    yield EXPORT, "size and sha256 of every file, and the fingerprints of what they were made from"


def _write_model(work: Path, chain: _Chain, native: NativeModel | None) -> Iterator[tuple[str, str]]:
    """The files that `itrpipe.training.saved.load_model` opens, and where `native` is one transformers, too."""
    from itrpipe.training.saved import ABOUT, CONFIG, MODEL, SETTINGS

    trained, extracted = chain.trained, chain.extracted.manifest
    yield from (native.write(work) if native is not None else _copy_model(work, trained)).items()
    names = sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file())
    features = {"extractor": extracted.conf, "settings": extracted.settings, "of_anywhere": chain.of_anywhere}
    about = {
        "version": trained.manifest.versions["itrpipe"],
        "dataset": trained.manifest.dataset,
        "conf": trained.manifest.conf,
        "run": trained.manifest.label,
        "files": {"weights": MODEL, "words": [name for name in names if name.startswith(("vocab", "tokenizer"))]},
        "features": features,
    }
    if training_settings.settings_of(trained.manifest.settings["backbone"]).reads_phrases:
        about["parser"] = trained.input("parse").manifest.settings
    settings = read_checked_json(trained.folder / CONFIG)
    whole = {**settings, ABOUT: about}
    if native is not None:
        whole = {**native.layout.config, ABOUT: {**about, SETTINGS: settings}}
    write_json(work / CONFIG, without_places(whole))
    yield CONFIG, "every setting, the sizes to build the model again, and the features that it reads"


def _copy_model(work: Path, trained: Artifact) -> dict[str, str]:
    """Weights and what reads captions, byte by byte as they were trained.

    Raises:
        DataError: a file is not the one that was written.
    """
    from itrpipe.training.captions import TOKENIZER, VOCABULARY
    from itrpipe.training.saved import MODEL

    outputs = trained.manifest.outputs
    words = [name for name in outputs if name == VOCABULARY or name.startswith(f"{TOKENIZER}/")]
    require_space(work, sum(outputs[name].bytes for name in [MODEL, *words]), "the copy of the model")
    for name in [MODEL, *words]:
        (work / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(trained.folder / name, work / name)
        if file_digest(work / name) != outputs[name].sha256:
            remedy = damage_remedy(trained.folder, thorough=True)
            raise DataError(f"{trained.folder / name} does not match its recorded sha256; {remedy}")
    readers = {VOCABULARY: "its words and their ids"}
    if words != [VOCABULARY]:
        readers = {f"{TOKENIZER}/": "the tokenizer of its captions"}
    return {MODEL: "the weights of the epoch that validated best", **readers}


def _write_vectors(work: Path, chain: _Chain, wanted: Wanted) -> Iterator[tuple[str, str]]:
    from itrpipe.exporting.tools import EMBEDDINGS_FOLDER, write_embeddings
    from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings

    split = read_embeddings(chain.trained.folder / EMBEDDINGS, chain.evaluated.manifest.settings["split"])
    folder = work / EMBEDDINGS_FOLDER
    folder.mkdir()
    write_embeddings(folder, split, wanted.embeddings, index=wanted.index)
    of_split = f"`images` and `captions` of the evaluated split, compared by {split.measure}"
    if wanted.embeddings == "parquet":
        yield f"{EMBEDDINGS_FOLDER}/*.parquet", f"{of_split}: ids and `embedding`"
    if wanted.embeddings == "npy":
        yield f"{EMBEDDINGS_FOLDER}/*.npy", f"embeddings of {of_split}: [rows, width]"
    if wanted.index:
        yield f"{EMBEDDINGS_FOLDER}/*.faiss", f"flat indexes over {of_split}"
    if wanted.index or wanted.embeddings == "npy":
        yield f"{EMBEDDINGS_FOLDER}/*.ids.json", "the id of every row, in order"


def _card(
    work: Path,
    chain: _Chain,
    wanted: Wanted,
    files: dict[str, str],
    native: NativeModel | None,
    reason: str,
    definition: DatasetDefinition,
) -> str:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.exporting.card import PICTURE, model_card
    from itrpipe.exporting.tools import TABLES

    trained, evaluated, conf = chain.trained.manifest, chain.evaluated.manifest, chain.extracted.manifest.conf
    backbone, split = trained.settings["backbone"], evaluated.settings["split"]
    declared = training_settings.settings_of(backbone)
    loss = methods()[trained.settings["method"]].model_validate(trained.settings["loss"])
    model = declared.model_validate(trained.settings["model"])
    title = model_title(backbone_title(backbone), method_title(trained.conf))
    prepared = PreparedDataset.open(chain.prepared.folder)
    splits = {name: prepared.split(name) for name in prepared.splits}
    reads = f"its features by `{conf}` (`itrpipe extract`), with the settings in `config.json`"
    if conf == PIXELS:
        reads = "the photograph, resized as `itrpipe extract --features pixels` does with the settings in `config.json`"
    if example := _example(work, chain, prepared, split, definition):
        files = {**files, PICTURE: "what it finds for a caption"}
    libraries = [] if native is None else ["transformers", "sentence-transformers"]
    facts = {
        "title": f"{title}, {trained.dataset}",
        "run": trained.label,
        "backbone": backbone,
        "conf": trained.conf,
        "dataset": trained.dataset,
        "split": split,
        "license": wanted.license,
        "embeds": declared.embeds,
        "reads": reads,
        "photographs": chain.of_anywhere,
        "results": read_checked_json(chain.evaluated.folder / METRICS),
        "level": evaluated.settings["interval_level"],
        "counts": {name: (len(each.images), len(each.captions)) for name, each in splits.items()},
        "fingerprints": chain.fingerprints,
        "commands": commands_behind([chain.evaluated.folder]),
        "trained": trained.finished,
        "versions": trained.versions,
        "files": files,
        "papers": [*loss.cited(), *model.cited(), *training_settings.cited(trained.settings)],
        "libraries": [*libraries, *(["open_clip"] if wanted.open_clip else [])],
        "architecture": "" if native is None else native.layout.architecture,
        "reason": reason,
        "padded": native is not None and native.padded,
        "difference": "" if native is None else native.difference,
        # Embeddings of photographs that are compared by inner product.
        "mteb": declared.embeds
        and trained.settings["model"].get("measure") != "order"
        and not any(each.imported or each.drawings_only for each in chain.extractors),
        "tables": TABLES if wanted.embeddings == "parquet" else {},
        "example": example,
    }
    return model_card(facts)


def _example(
    work: Path, chain: _Chain, prepared: PreparedDataset, name: str, definition: DatasetDefinition
) -> dict[str, Any] | None:
    """Draws a caption, if possible one whose own image is ranked first, and writes a picture of what is found for it.

    Returns:
        What the card says of it; None where photographs are not at hand.
    """
    import numpy as np

    from itrpipe.evaluation.rankings import read_rankings
    from itrpipe.report.pictures import SHOWN, choose

    split = prepared.split(name)
    _, (captions, found, _) = read_rankings(chain.evaluated.folder / RANKINGS, split.image_ids, split.caption_ids)
    (query,) = choose(split.caption_image[captions] == found[:, 0], 1, np.random.default_rng(0))
    files = [split.files[row] for row in found[query, :SHOWN].tolist()]
    if not draw_example(work, chain.prepared, files, definition):
        return None
    own = found[query, 0] == split.caption_image[captions[query]]
    return {"query": split.texts[captions[query]], "right": own}


def draw_example(work: Path, prepared: Artifact, files: Sequence[str], definition: DatasetDefinition) -> bool:
    """Writes small copies of photographs side by side into an export; tells whether all of them can be read."""
    from itrpipe.datasets.pictures import DECODER_ERRORS, read_image
    from itrpipe.exporting.card import write_picture
    from itrpipe.report.pictures import shrink

    try:
        root = image_root(prepared.manifest.settings, prepared.folder, definition)
        pictures = [shrink(read_image(root / file))[0] for file in files]
    except (MissingInputError, *DECODER_ERRORS):
        return False
    write_picture(work, pictures)
    return True
