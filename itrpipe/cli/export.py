"""Export a trained model."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from itrpipe import __version__
from itrpipe.cli.options import AskingOptions, Split, Text
from itrpipe.cli.request import Request
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.features.declaration import NOT_HERE
from itrpipe.models.declaration import backbone_family, settings_of
from itrpipe.pipeline.exports import CARD, fingerprints_of
from itrpipe.report.chain import commands_behind
from itrpipe.report.names import backbone_title, method_title, model_title
from itrpipe.stages.base import Artifact, Step
from itrpipe.storage.artifact import CROSS_RETRIEVAL, METRICS, RANKINGS
from itrpipe.storage.disk import read_json, write_json, write_text

if TYPE_CHECKING:
    from itrpipe.training.export import JointModel
TREC_FOLDER = "trec"
DUAL_ENCODER = "dual-encoder"
"""The backbone that may be a class of transformers."""
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]*")


@dataclass(kw_only=True)
class Export(AskingOptions):
    """Write a trained model and its card to a folder that the Hugging Face hub accepts.

    The folder holds model.safetensors, config.json, the vocabulary or tokenizer, README.md with the measured scores,
    and export.json with the digest of every file. `hf upload USER/NAME FOLDER` publishes it, and
    itrpipe.load opens it. A joint model, such as CLIP or SigLIP, is a folder that transformers and
    sentence-transformers open, too.

    Example: itrpipe export --method aoq --backbone vsrn --to vsrn-aoq --trec
    """

    target: Annotated[Path, Option("--to", help="Folder to create; empty if it exists.", metavar="FOLDER")]
    embeddings: Annotated[
        Literal["parquet", "npy", "none"],
        Option(help="Also embeddings of the split: parquet, npy or none.", metavar="FORM"),
    ] = "none"
    trec: Annotated[bool, Option("--trec", help="Also rankings and right answers as TREC files.")] = False
    license: Annotated[Text, Option(help="For the card, such as apache-2.0.", metavar="NAME")] = None
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False
    open_clip: Annotated[bool, Option("--open-clip", help="Of a CLIP also the files of open_clip.")] = False
    adapter: Annotated[bool, Option("--adapter", help="Also what LoRA has learned, for peft.")] = False
    split: Annotated[Split | None, Option(help="Evaluated and exported: test, val or train.")] = None

    def run(self) -> None:
        self.export(self.request("evaluate", split=self.split))

    def export(self, request: Request) -> None:
        """Write a folder with the model of an evaluation, its card, and the further files of the options.

        Raises:
            UsageError: the folder is taken or lies among artifacts, or the model does not fit an option.
            MissingInputError: no folder can be made there, or an artifact that the model was made from was removed.
            DataError: a file of the model is damaged.
            DiskFullError: no space is left.
        """
        target = open_target(request.root, self.target, force=self.force)
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise UsageError(f"--license {self.license!r} is no identifier of the hub, such as apache-2.0 or cc-by-4.0")
        self._refuse_unfit(request.plan("evaluate"))
        made = request.made("export")
        if not made:
            return
        from itrpipe.exporting.card import model_card
        from itrpipe.exporting.model import facts_of_model, write_adapters, write_model
        from itrpipe.exporting.tools import EMBEDDINGS_FOLDER, TABLES, write_embeddings, write_qrels, write_runs
        from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings

        evaluated = made[0]
        trained = evaluated.input("train")
        prepared = evaluated.input("prepare")
        manifest = trained.manifest
        joint, reason = self._joint(trained)
        if reason:
            request.reporter.say(
                f"no class of transformers embeds as this model does: {reason}; the folder has itrpipe's own layout"
            )
        fingerprints = fingerprints_of(trained, evaluated)
        record = {
            "itrpipe": __version__,
            "dataset": request.dataset,
            "run": manifest.label,
            "artifacts": fingerprints,
        }
        with new_folder(target, record, force=self.force) as work:
            write_model(work, trained.folder, joint)
            libraries = []
            if joint is not None:
                libraries = ["transformers", "sentence-transformers"]
                if self.open_clip:
                    from itrpipe.training.export import write_open_clip

                    libraries.append("open_clip")
                    write_open_clip(work, joint)
            if self.adapter:
                write_adapters(work, trained.folder)
            write_json(work / METRICS, read_json(evaluated.folder / METRICS))
            if self.embeddings != "none":
                folder = work / EMBEDDINGS_FOLDER
                folder.mkdir()
                vectors = read_embeddings(trained.folder / EMBEDDINGS, evaluated.manifest.settings["split"])
                write_embeddings(folder, vectors, self.embeddings)
            if self.trec:
                folder = work / TREC_FOLDER
                folder.mkdir()
                write_runs(folder, evaluated.folder / RANKINGS, evaluated.manifest.label)
                write_qrels(folder, evaluated.folder / CROSS_RETRIEVAL, prepared.folder)
            title = model_title(backbone_title(manifest.settings["backbone"]), method_title(manifest.conf))
            facts = {
                **facts_of_model(work, trained.folder, evaluated.folder),
                "title": f"{title}, {manifest.dataset}",
                "license": self.license,
                "fingerprints": fingerprints,
                "commands": commands_behind([evaluated.folder]),
                "libraries": libraries,
                "joint": joint,
                "reason": reason,
                "tables": TABLES if self.embeddings == "parquet" else {},
            }
            write_text(work / CARD, model_card(facts))
        for path in sorted(target.rglob("*")):
            if path.is_file():
                name = path.relative_to(target).as_posix()
                request.reporter.say(f"  {name:<40} {path.stat().st_size / 2**10:>12,.1f} KiB")
        request.reporter.say(str(target))
        request.reporter.say(f"next: {target / CARD} shows how to use it")

    def _refuse_unfit(self, step: Step) -> None:
        """Refuse options that do not fit the model, before anything is trained."""
        settings = step.settings.model_dump()
        backbone = settings["backbone"]
        if settings["ensemble_with"]:
            raise UsageError("the mean of several models is no model; export every one on its own")
        if "embeddings" in step.inputs:
            raise UsageError(f"{backbone} cannot be exported: {NOT_HERE}")
        training: Any = step.inputs["train"].settings
        if self.adapter and not training.adapts:
            raise UsageError(f"--adapter: {backbone} was trained without one (--set train.adapter=lora); leave it out")
        if self.open_clip and not training.reads_photographs:
            raise UsageError(f"--open-clip: open_clip has no model like {backbone}; leave it out")
        if self.embeddings != "none" and not settings_of(backbone).embeds:
            raise UsageError(
                f"--embeddings {self.embeddings}: {backbone} scores images and captions together and has no "
                "embeddings; leave it out, or export another --backbone, such as vsepp"
            )

    def _joint(self, trained: Artifact) -> "tuple[JointModel | None, str]":
        """Return a dual encoder as a joint model of transformers, or the reason why transformers has none like it.

        Returns:
            The joint model and "", or None and the reason; for other backbones None and "".

        Raises:
            UsageError: --open-clip is given, and open_clip has no such model.
        """
        if backbone_family(trained.manifest.settings["backbone"]) != DUAL_ENCODER:
            return None, ""
        from itrpipe.training.export import JointModel, NoEquivalent, open_clip_config

        try:
            joint = JointModel.of(trained.folder)
            if self.open_clip:
                open_clip_config(joint)
        except NoEquivalent as nothing:
            if self.open_clip:
                raise UsageError(
                    f"--open-clip: open_clip has no model like this one ({nothing}); leave it out"
                ) from None
            return None, str(nothing)
        return joint, ""
