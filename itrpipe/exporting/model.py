"""A trained model as files for others: what `itrpipe.load` opens, and what its card says of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError
from itrpipe.exporting.places import without_places
from itrpipe.features.declaration import recorded_passes
from itrpipe.methods.declaration import methods
from itrpipe.models.declaration import settings_of
from itrpipe.storage.artifact import (
    EXPORT,
    METRICS,
    Manifest,
    damage_remedy,
    existing_input,
    local_folders,
    open_input,
    read_manifest,
)
from itrpipe.storage.disk import file_digest, read_json, require_space, write_json
from itrpipe.training.settings import cited

if TYPE_CHECKING:
    from itrpipe.training.export import JointModel

FILES = {
    "model.safetensors": "the weights of the epoch that validated best, but for those in folders",
    "vocab.json": "its words and their ids",
    "tokenizer*": "the tokenizer of its captions",
    "*processor_config.json": "how photographs are framed and normalised",
    "modules.json": "what sentence-transformers opens, with *sentence_*.json and 1_Normalize/",
    "encoder/": "its encoder of images and captions, as transformers saves it",
    "vision/": "its encoder of images, as transformers saves it",
    "text/": "its encoder of captions, as transformers saves it",
    "config.json": "every setting, the sizes to build the model again, and the features that it reads",
    "open_clip_model.safetensors": "the same weights as open_clip names them",
    "open_clip_config.json": "how open_clip builds them",
    "adapter/": "what LoRA has learned, for `PeftModel.from_pretrained` of peft and the model that training began with",
    "metrics.json": "protocol → metric → value, low, high",
    "embeddings/*.parquet": "ids and `embedding` of `images` and `captions` of the evaluated split",
    "embeddings/*.npy": "embeddings of `images` and `captions` of the evaluated split: [rows, width]",
    "embeddings/*.ids.json": "the id of every row, in order",
    "trec/run.*.trec": "the best candidates of every image (`i2t`) and caption (`t2i`) of the split",
    "trec/qrels.*.trec": "right answers; whitespace and % in ids are written as in URLs",
}
"""File of an export, or files -> what it is, as the card says."""

_OF_MODEL = ("model.safetensors", "vocab", "tokenizer", "encoder/", "vision/", "text/")
"""Beginnings of the names of the files of a trained model in itrpipe's own layout, but for its configuration."""


def described_inputs(trained: Path) -> dict[str, Any]:
    """Return what a model reads of images and of captions, as the `config.json` of an export describes it.

    Args:
        trained: artifact of `train`.
    """
    manifest = read_manifest(trained)
    described: dict[str, Any] = {}
    if "extract" in manifest.inputs:
        extracted = read_manifest(existing_input(trained, manifest, "extract"))
        described["features"] = {
            "extractor": extracted.conf,
            "settings": extracted.settings,
            "of_anywhere": is_of_anywhere(extracted),
        }
    if settings_of(manifest.settings["backbone"]).reads_phrases:
        described["parser"] = read_manifest(existing_input(trained, manifest, "parse")).settings
    return described


def is_of_anywhere(extracted: Manifest) -> bool:
    """Tell whether others can make these features of photographs: none was imported, no weights lie here alone."""
    passes = recorded_passes(extracted.conf, extracted.settings)
    is_imported = any(settings.imported for settings in passes.values())
    return without_places(extracted.settings) == extracted.settings and not is_imported


def write_model(
    work: Path,
    trained: Path,
    joint: JointModel | None = None,
) -> None:
    """Write what `itrpipe.training.saved.load_model` opens, and of a joint model transformers, too.

    Args:
        work: empty folder.
        trained: artifact of `train`.
        joint: the model as transformers has it; None for itrpipe's own layout.

    Raises:
        DataError: a file of the model is not the one that was written.
        DiskFullError: no space is left.
    """
    from itrpipe.training.saved import ABOUT, CONFIG, SETTINGS

    manifest = read_manifest(trained)
    if joint is not None:
        joint.write(work)
    else:
        outputs = {}
        size = 0
        for name, output in manifest.outputs.items():
            if name.startswith(_OF_MODEL):
                outputs[name] = output
                size += output.bytes
        require_space(work, size, "the copy of the model")
        for name, output in outputs.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(trained / name, work / name)
            if file_digest(work / name) != output.sha256:
                remedy = damage_remedy(trained, thorough=True)
                raise DataError(f"{trained / name} does not match its recorded sha256; {remedy}")
    about = {
        "version": manifest.versions["itrpipe"],
        "dataset": manifest.dataset,
        "conf": manifest.conf,
        "run": manifest.label,
        **described_inputs(trained),
    }
    written = trained
    if joint is not None:
        written = work
        about[SETTINGS] = joint.settings
    config = read_json(written / CONFIG) | {ABOUT: about}
    write_json(work / CONFIG, without_places(config))


def write_adapters(work: Path, trained: Path) -> None:
    """Write what the adapters of a training have learned, as peft has it.

    Args:
        work: folder of the export.
        trained: artifact of `train`.
    """
    from itrpipe.training.saved import ADAPTERS

    shutil.copytree(trained / ADAPTERS, work / ADAPTERS)
    for path in work.glob(f"{ADAPTERS}/**/*.json"):
        write_json(path, without_places(read_json(path)))


def facts_of_model(
    work: Path,
    trained: Path,
    evaluated: Path,
) -> dict[str, Any]:
    """Return what the card says of a model that its artifacts tell, see `itrpipe.exporting.card.model_card`.

    Args:
        work: folder with all files but the card.
        trained, evaluated: artifacts of `train` and `evaluate`.
    """
    training = read_manifest(trained)
    evaluation = read_manifest(evaluated)
    backbone = training.settings["backbone"]
    declared = settings_of(backbone)
    loss = methods()[training.settings["method"]].model_validate(training.settings["loss"])
    model = declared.model_validate(training.settings["model"])
    base = model.joint()
    if base and local_folders({"": base}):
        base = Path(base).name
    reads = "the photograph, as the image processor in this folder frames it"
    is_drawn = False
    of_photographs = True
    if "extract" in training.inputs:
        extracted = read_manifest(existing_input(trained, training, "extract"))
        reads = f"its features by `{extracted.conf}` (`itrpipe extract`), with the settings in `config.json`"
        of_photographs = is_of_anywhere(extracted)
        passes = recorded_passes(extracted.conf, extracted.settings)
        is_drawn = any(settings.imported or settings.drawings_only for settings in passes.values())
    # mteb compares embeddings of photographs by inner product.
    is_for_mteb = declared.embeds and training.settings["model"].get("measure") != "order" and not is_drawn
    files = {}
    for name, about in FILES.items():
        if any(work.glob(name)):
            files[name] = about
    files[EXPORT] = "size and sha256 of every file, and the fingerprints of what they were made from"
    prepared = PreparedDataset.open(open_input(evaluated, evaluation, "prepare"))
    return {
        "run": training.label,
        "backbone": backbone,
        "conf": training.conf,
        "dataset": training.dataset,
        "split": evaluation.settings["split"],
        "embeds": declared.embeds,
        "reads": reads,
        "base": base,
        "photographs": of_photographs,
        "results": read_json(evaluated / METRICS),
        "level": evaluation.settings["interval_level"],
        "counts": prepared.counts(),
        "trained": training.finished,
        "versions": training.versions,
        "files": files,
        "papers": [*loss.cited(), *model.cited(), *cited(training.settings)],
        "mteb": is_for_mteb,
    }
