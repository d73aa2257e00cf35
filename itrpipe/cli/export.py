"""Export a trained model."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from itrpipe import __version__
from itrpipe.cli.asked import Asked
from itrpipe.cli.options import AskingOptions, Split, Text
from itrpipe.datasets.definition import PIXELS, DatasetDefinition
from itrpipe.errors import DataError, UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.exporting.places import without_places
from itrpipe.features.declaration import NOT_HERE, FeatureSettings, feature_settings, passes_of
from itrpipe.methods.declaration import methods
from itrpipe.models.registry import backbone_family
from itrpipe.pipeline.exports import CARD, draw_example, fingerprints_of
from itrpipe.pipeline.steps import Step
from itrpipe.report.chain import commands_behind
from itrpipe.report.names import backbone_title, method_title, model_title
from itrpipe.stages.base import Artifact
from itrpipe.stages.evaluate import EvaluateSettings
from itrpipe.storage.artifact import CROSS_RETRIEVAL, EXPORT, METRICS, RANKINGS, damage_remedy
from itrpipe.storage.disk import file_digest, require_space, write_json, write_text
from itrpipe.storage.integrity import local_folders, read_checked_json
from itrpipe.training import settings as training_settings

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.training.export import NativeModel
TREC_FOLDER = "trec"
DUAL_ENCODER = "dual-encoder"
"""The backbone that may be a class of transformers."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]*")


@dataclass
class Wanted:
    """What an exported folder is to hold beside the model and its card."""

    target: Annotated[Path, Option("--to", help="Folder to create; empty if it exists.", metavar="FOLDER")]
    embeddings: Annotated[
        Literal["parquet", "npy", "none"],
        Option(help="Also embeddings of the split: parquet, npy or none.", metavar="FORM"),
    ] = "none"
    trec: Annotated[bool, Option("--trec", help="Also rankings and right answers as TREC files.")] = False
    license: Annotated[Text, Option(help="For the card, such as apache-2.0.", metavar="NAME")] = None
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False
    open_clip: Annotated[bool, Option("--open-clip", help="Of a CLIP also the files of open_clip.")] = False


@dataclass
class Export(AskingOptions, Wanted):
    """Write a trained model and its card to a folder that the Hugging Face hub accepts.

    The folder holds model.safetensors, config.json, the vocabulary or tokenizer, README.md with the measured scores,
    and export.json with the digest of every file. `hf upload USER/NAME FOLDER` publishes it, and
    itrpipe.training.saved.load_model opens it. A CLIP or SigLIP is written so that transformers and
    sentence-transformers open it, too.

    Example: itrpipe export --method aoq --backbone vsrn --to vsrn-aoq --trec
    """

    split: Annotated[Split | None, Option(help="Evaluated and exported: test, val or train.")] = None

    def run(self) -> None:
        export_model(self.asked("evaluate", split=self.split), self)


@dataclass(frozen=True)
class _Chain:
    """An evaluation and what it was made from."""

    evaluated: Artifact
    trained: Artifact
    prepared: Artifact
    extracted: Artifact

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


def export_model(asked: Asked, wanted: Wanted) -> None:
    """Writes a folder with a trained model, its card, and what else is wanted.

    Raises:
        UsageError: the folder is taken or lies among artifacts, or the model has nothing of what is wanted.
        MissingInputError: no folder can be made there, or what the model was made from was removed.
        DataError: a file of the model is damaged.
        DiskFullError: no space is left.
    """
    target = open_target(asked.root, wanted.target, force=wanted.force)
    if wanted.license is not None and not _LICENSE.fullmatch(wanted.license):
        raise UsageError(f"--license {wanted.license!r} is no identifier of the hub, such as apache-2.0 or cc-by-4.0")
    step = asked.plan("evaluate")
    _refuse_unfit(step, wanted)
    if not asked.made("export"):
        return
    evaluated = Artifact.of(step.location.folder)
    trained = evaluated.input("train")
    chain = _Chain(evaluated, trained, evaluated.input("prepare"), trained.input("extract"))
    native, reason = _native(chain, wanted)
    if reason:
        told = f"no class of transformers embeds as this model does: {reason}; the folder has itrpipe's own layout"
        asked.reporter.say(told)
    facts: dict[str, Any] = {"itrpipe": __version__, "dataset": asked.dataset, "run": trained.manifest.label}
    with new_folder(
        target, facts | {"artifacts": fingerprints_of(trained, trained, evaluated)}, force=wanted.force
    ) as work:
        own = _write_all(work, chain, wanted, native)
        write_text(work / CARD, _card(work, chain, wanted, own, native, reason, asked.planner.definition))
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        asked.reporter.say(f"  {path.relative_to(target).as_posix():<40} {path.stat().st_size / 2**10:>12,.1f} KiB")
    asked.reporter.say(str(target))
    asked.reporter.say(f"next: {target / CARD} shows how to use it")


def _refuse_unfit(step: Step, wanted: Wanted) -> None:
    """Refuses before anything is trained what the model cannot give."""
    settings = step.settings
    assert isinstance(settings, EvaluateSettings)
    if settings.ensemble_with:
        raise UsageError("the mean of several models is no model; export every one on its own")
    if "embeddings" in step.inputs:
        raise UsageError(f"{settings.backbone} cannot be exported: {NOT_HERE}")
    model = getattr(step.inputs["train"].settings, "model", None)
    if wanted.open_clip and getattr(model, "images", None) != PIXELS:
        raise UsageError(f"--open-clip: open_clip has no model like {settings.backbone}; leave it out")
    if wanted.embeddings != "none" and not training_settings.settings_of(settings.backbone).embeds:
        raise UsageError(
            f"--embeddings {wanted.embeddings}: {settings.backbone} scores images and captions together and has no "
            "embeddings; leave it out, or export another --backbone, such as vsepp"
        )


def _native(chain: _Chain, wanted: Wanted) -> "tuple[NativeModel | None, str]":
    """The model in the layout of transformers, or why a dual encoder has none; of other backbones neither.

    Raises:
        UsageError: files for open_clip are wanted, which has no such model.
    """
    if backbone_family(chain.trained.manifest.settings["backbone"]) != DUAL_ENCODER:
        return None, ""
    from itrpipe.models.dual_encoder.native import NoEquivalent
    from itrpipe.training.export import NativeModel, open_clip_config

    try:
        native = NativeModel.of(chain.trained.folder, chain.extracted.manifest.settings)
        if wanted.open_clip:
            open_clip_config(native)
    except NoEquivalent as nothing:
        if wanted.open_clip:
            raise UsageError(f"--open-clip: open_clip has no model like this one ({nothing}); leave it out") from None
        return None, str(nothing)
    return native, ""


_ABOUT = {
    "model.safetensors": "the weights of the epoch that validated best",
    "vocab.json": "its words and their ids",
    "tokenizer/": "the tokenizer of its captions",
    "config.json": "every setting, the sizes to build the model again, and the features that it reads",
    "open_clip_model.safetensors": "the same weights as open_clip names them",
    "open_clip_config.json": "how open_clip builds them",
    "metrics.json": "protocol → metric → value, low, high",
    "embeddings/*.parquet": "ids and `embedding` of `images` and `captions` of the evaluated split",
    "embeddings/*.npy": "embeddings of `images` and `captions` of the evaluated split: [rows, width]",
    "embeddings/*.ids.json": "the id of every row, in order",
    "trec/run.*.trec": "the best candidates of every image (`i2t`) and caption (`t2i`) of the split",
    "trec/qrels.*.trec": "right answers; whitespace and % in ids are written as in URLs",
    "example.jpg": "what it finds for a caption",
}
"""File of an export, or files -> what it is, as the card says."""


def _write_all(work: Path, chain: _Chain, wanted: Wanted, native: "NativeModel | None") -> dict[str, str]:
    """Writes everything but the card and its picture; returns what class of transformers reads, by file."""
    from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings

    evaluated, trained = chain.evaluated, chain.trained
    own = _write_model(work, chain, native)
    if native is not None and wanted.open_clip:
        from itrpipe.training.export import write_open_clip

        write_open_clip(work, native)
    write_json(work / METRICS, read_checked_json(evaluated.folder / METRICS))
    if wanted.embeddings != "none":
        from itrpipe.exporting.tools import EMBEDDINGS_FOLDER, write_embeddings

        (work / EMBEDDINGS_FOLDER).mkdir()
        split = read_embeddings(trained.folder / EMBEDDINGS, evaluated.manifest.settings["split"])
        write_embeddings(work / EMBEDDINGS_FOLDER, split, wanted.embeddings)
    if wanted.trec:
        from itrpipe.exporting.tools import write_qrels, write_runs

        folder = work / TREC_FOLDER
        folder.mkdir()
        write_runs(folder, evaluated.folder / RANKINGS, evaluated.manifest.label)
        write_qrels(folder, evaluated.folder / CROSS_RETRIEVAL, chain.prepared.folder)
    return own


_WORDS = ("vocab", "tokenizer")
"""What the files begin with that read captions."""


def _write_model(work: Path, chain: _Chain, native: "NativeModel | None") -> dict[str, str]:
    """Writes what `itrpipe.training.saved.load_model` opens, and where `native` is one transformers, too.

    Raises:
        DataError: a file of the model is not the one that was written.
    """
    from itrpipe.training.saved import ABOUT, CONFIG, MODEL, SETTINGS

    trained, extracted = chain.trained, chain.extracted.manifest
    own = {} if native is None else native.write(work)
    if native is None:
        outputs = {name: each for name, each in trained.manifest.outputs.items() if name.startswith((MODEL, *_WORDS))}
        require_space(work, sum(each.bytes for each in outputs.values()), "the copy of the model")
        for name, output in outputs.items():
            (work / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(trained.folder / name, work / name)
            if file_digest(work / name) != output.sha256:
                remedy = damage_remedy(trained.folder, thorough=True)
                raise DataError(f"{trained.folder / name} does not match its recorded sha256; {remedy}")
    names = sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file())
    about = {
        "version": trained.manifest.versions["itrpipe"],
        "dataset": trained.manifest.dataset,
        "conf": trained.manifest.conf,
        "run": trained.manifest.label,
        "files": {"weights": MODEL, "words": [name for name in names if name.startswith(_WORDS)]},
        "features": {"extractor": extracted.conf, "settings": extracted.settings, "of_anywhere": chain.of_anywhere},
    }
    if training_settings.settings_of(trained.manifest.settings["backbone"]).reads_phrases:
        about["parser"] = trained.input("parse").manifest.settings
    settings = read_checked_json(trained.folder / CONFIG)
    whole = {**settings, ABOUT: about}
    if native is not None:
        whole = {**native.layout.config, ABOUT: {**about, SETTINGS: settings}}
    write_json(work / CONFIG, without_places(whole))
    return own


def _card(
    work: Path,
    chain: _Chain,
    wanted: Wanted,
    own: dict[str, str],
    native: "NativeModel | None",
    reason: str,
    definition: DatasetDefinition,
) -> str:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.exporting.card import model_card
    from itrpipe.exporting.tools import TABLES

    trained, evaluated, conf = chain.trained.manifest, chain.evaluated.manifest, chain.extracted.manifest.conf
    backbone, split = trained.settings["backbone"], evaluated.settings["split"]
    declared = training_settings.settings_of(backbone)
    loss = methods()[trained.settings["method"]].model_validate(trained.settings["loss"])
    model = declared.model_validate(trained.settings["model"])
    base = model.joint()
    title = model_title(backbone_title(backbone), method_title(trained.conf))
    prepared = PreparedDataset.open(chain.prepared.folder)
    splits = {name: prepared.split(name) for name in prepared.splits}
    reads = f"its features by `{conf}` (`itrpipe extract`), with the settings in `config.json`"
    if conf == PIXELS:
        reads = "the photograph, resized as `itrpipe extract --features pixels` does with the settings in `config.json`"
    example = _example(work, chain, prepared, split, definition)
    libraries = [] if native is None else ["transformers", "sentence-transformers"]
    files = own | {name: about for name, about in _ABOUT.items() if name not in own and any(work.glob(name))}
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
        "base": Path(base).name if base and local_folders({"": base}) else base,
        "photographs": chain.of_anywhere,
        "results": read_checked_json(chain.evaluated.folder / METRICS),
        "level": evaluated.settings["interval_level"],
        "counts": {name: (len(each.images), len(each.captions)) for name, each in splits.items()},
        "fingerprints": fingerprints_of(chain.trained, chain.trained, chain.evaluated),
        "commands": commands_behind([chain.evaluated.folder]),
        "trained": trained.finished,
        "versions": trained.versions,
        "files": files | {EXPORT: "size and sha256 of every file, and the fingerprints of what they were made from"},
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
    work: Path, chain: _Chain, prepared: "PreparedDataset", name: str, definition: DatasetDefinition
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
