"""Export mined negatives."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from itrpipe import __version__
from itrpipe.cli.options import AskingOptions, JudgesOption, Number, Text
from itrpipe.cli.request import Request
from itrpipe.datasets.definition import image_root
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.exporting.places import judge_without_place, without_places
from itrpipe.features.declaration import GIVEN, SENTENCE_TRANSFORMERS
from itrpipe.pipeline.exports import CARD, fingerprints_of
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.report.chain import commands_behind
from itrpipe.stages.base import Artifact, Need
from itrpipe.storage.artifact import fingerprint
from itrpipe.storage.disk import write_text

if TYPE_CHECKING:
    from itrpipe.exporting.formats import TableFiles
    from itrpipe.exporting.negatives import MinedPairs

VERSION = 4
"""Raised whenever the files of equal inputs and choices change: `datasets` caches what it reads by it."""
DIRECTIONS = {"t2i": ("t2i",), "i2t": ("i2t",), "both": ("t2i", "i2t")}
_RECORDED = (
    *("twins", "negatives", "direction", "drop_above", "synthetic", "sentences"),
    *("image_root", "with_scores", "shard_rows"),
)
"""Options that decide what the files hold."""


@dataclass(kw_only=True)
class ExportNegatives(AskingOptions):
    """Write mined negatives as files that other trainers read.

    \b
    Formats (--format):
      sentence-transformers  Parquet: anchor, positive, negative_1 …, images as datasets.Image
      negclip                one table: filepath, title, neg_caption, neg_image; open_clip reads the first two
      jsonl                  query, positive_passages, negative_passages
      tevatron               queries with the ids of documents, and the documents
      webdataset             tar shards with the images themselves

    The lists are those of mine-negatives with the same settings (--set); --make mines those that are missing.
    Candidates that say what the positive says are left out, and of judged lists what is right after all with a
    probability above --drop-above. The folder is there when it is whole.
    --twins writes the twins of synthesize; mirrored ones need sentence-transformers or webdataset.

    Example: itrpipe export-negatives --backbone vsrn --to negatives
    """

    target: Annotated[Path, Option("--to", help="Folder to create; empty if it exists.", metavar="FOLDER")]
    form: Annotated[
        Literal["sentence-transformers", "negclip", "jsonl", "tevatron", "webdataset"],
        Option("--format", help="Format of the files; see above.", metavar="NAME"),
    ] = "sentence-transformers"
    twins: Annotated[bool, Option("--twins", help="Twins of synthesize instead of mined lists.")] = False
    negatives: Annotated[
        Number, Option(help="Mined ones of a row; default: 8, or as many as the lists hold.", metavar="N", min=1)
    ] = None
    direction: Annotated[
        Literal["t2i", "i2t", "both"], Option(help="t2i (images for captions), i2t (captions for images) or both.")
    ] = "both"
    drop_above: Annotated[
        float, Option(help="Judged lists: leave out likely right answers; 1 keeps all.", metavar="P", min=0, max=1)
    ] = 0.5
    synthetic: Annotated[Text, Option(help="Also sentences of this maker, such as graph-edits.", metavar="BY")] = None
    sentences: Annotated[int, Option(help="--synthetic: of a caption, at most.", metavar="M", min=1)] = 1
    image_root: Annotated[str, Option(help="Before every path; default: relative to the images.", metavar="FOLDER")] = (
        ""
    )
    with_scores: Annotated[
        bool, Option("--with-scores", help="sentence-transformers: also columns of ids and scores.")
    ] = False
    shard_rows: Annotated[int, Option(help="Rows of a file; 0 chooses by format.", metavar="ROWS", min=0)] = 0
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False
    judges: JudgesOption = None

    def run(self) -> None:
        target = open_target(self.data, self.target, force=self.force)
        self._refuse_unlike()
        if self.twins:
            if self.synthetic:
                raise UsageError("--synthetic adds sentences to mined lists; leave out --synthetic or --twins")
            method = self.method if "method" in self.given else None
            request = Request(*self.where, self.overrides("judges", method=method), takes_finished=True, **self.how)
        else:
            request = self.request("mine_negatives", judges=self.judges)
        prepare = request.planner.definition.prepare
        if prepare is not None and prepare.conf == GIVEN:
            raise UsageError(
                f"dataset {self.dataset!r} was made of embeddings alone, and has neither captions nor photographs to "
                "write; prepare them with `itrpipe prepare --dataset NAME`, and mine with `--dataset NAME --embeddings`"
            )
        if self.twins:
            request.plan("synthesize", "twins")
        else:
            if self.synthetic:
                request.plan("mine_negatives", None, Need("synthesize", self.synthetic))
            else:
                request.plan("mine_negatives")
            self._refuse_short(request)
        made = request.made("export-negatives")
        if made:
            self._write(request, made, target)

    def _refuse_unlike(self) -> None:
        """Refuse options that files of the format do not have."""
        from itrpipe.exporting.formats import FORMATS

        for name in FORMATS[self.form].unread:
            if getattr(self, name) not in ("both", False, ""):
                takers = [format_name for format_name, form in FORMATS.items() if name not in form.unread]
                raise UsageError(
                    f"--{name.replace('_', '-')}: files of {self.form} have no such choice; leave it out, or give "
                    f"--format {' or '.join(takers)}"
                )

    def _refuse_short(self, request: Request) -> None:
        """Refuse options that the lists cannot fulfil, before anything is made."""
        settings = request.step.settings.model_dump()
        if settings["candidates"]:
            raise UsageError(
                f"candidates = {settings['candidates']} adds candidates from outside the dataset, so that "
                "there is no image or caption to write for them; leave it out"
            )
        if "drop_above" in self.given and not settings["judges"]:
            raise UsageError(
                f"--drop-above {self.drop_above:g}: no judge was asked, so that the lists have no probabilities; "
                "add --judge, such as --judge captions, or leave it out"
            )
        sides = {"t2i": "images", "i2t": "texts"}
        for direction in DIRECTIONS[self.direction]:
            side = sides[direction]
            count = settings[f"rescore_{side}"] or settings[f"num_{side}"]
            if self.negatives and count < self.negatives:
                raise UsageError(
                    f"--negatives {self.negatives}: {request.step.location.name} has num_{side} = {count}; give "
                    f"--negatives {count}, "
                    f"or mine more with `{request.command_of(request.step)} --set num_{side}={self.negatives}`"
                )

    def _write(self, request: Request, made: list[Artifact], target: Path) -> None:
        """Write the files and their card."""
        from itrpipe.exporting.card import dataset_card
        from itrpipe.exporting.formats import FORMATS, write_files
        from itrpipe.exporting.negatives import MOST, open_mined, open_twins, refuse_wrong_root

        reporter = request.reporter
        form = FORMATS[self.form]
        directions = DIRECTIONS[self.direction]
        lists = made[0]
        prepared = lists.input("prepare")
        sources = prepared.folder, lists.folder, image_root(prepared.folder)
        how: dict[str, Any] = {"image_root": self.image_root, "holds_images": form.holds_images}
        most_sentences = 0
        if self.synthetic:
            most_sentences = self.sentences
        if self.twins:
            mined = open_twins(*sources, **how)
        else:
            if self.synthetic:
                how["sentences"] = made[1].folder
                how["writer"] = self.synthetic
            how["drop_above"] = self.drop_above
            mined = open_mined(*sources, self.negatives or MOST, most_sentences=most_sentences, **how)
        mined = replace(mined, with_scores=self.with_scores)
        if not self.negatives:
            mined = replace(mined, negatives=max(1, min(mined.negatives, mined.most(directions))))
        if self.image_root:
            refuse_wrong_root(mined, self.image_root)
        tables = form.tables(mined, directions)
        for table in tables:
            if len(table.rows):
                continue  # no reader takes an empty table for data
            if self.twins:
                raise UsageError(
                    f"no caption has a twin that files of {self.form} can hold; see `itrpipe show synthesize`"
                )
            raise UsageError(
                f"--negatives {mined.negatives}: no caption has so many left for {table.pattern}; give fewer"
            )

        options = self.chosen(*_RECORDED)
        options["negatives"] = mined.negatives
        options["sentences"] = most_sentences
        options["format"] = self.form
        fingerprints = fingerprints_of(*made)
        record = {
            "itrpipe": __version__,
            "dataset": lists.manifest.dataset,
            "run": lists.manifest.label,
            "options": without_places(options),
            "artifacts": fingerprints,
            "tables": {each.pattern: {"rows": len(each.rows), "left_out": each.left_out} for each in tables},
        }
        judges = [judge_without_place(name) for name in lists.manifest.settings.get("judges", ())]
        is_absolute = Path(self.image_root).is_absolute()
        rows = sum(len(table.rows) for table in tables)
        with (
            new_folder(target, record, force=self.force) as work,
            reporter.task("writing negatives", rows, "rows") as task,
        ):
            files = write_files(work, tables, mined, self.shard_rows, task.advance)
            card = {
                **record,
                **options,
                "files": files,
                "copied": any(image.get("copied") for image in mined.images),
                "miner": _miner(request),
                "holds_images": all(image["image"] is None for image in mined.images),
                "tables": tables,
                "judges": judges,
                "repeats": sum(mined.left_out[name].repeats for name in directions),
                "right": sum(mined.left_out[name].right for name in directions),
                "seen": sum(mined.left_out[name].seen for name in directions),
                "image_root": without_places(self.image_root) if is_absolute else self.image_root,
                "whole": is_absolute,
                "made_from": fingerprint("export_negatives", VERSION, options, fingerprints | {"itrpipe": __version__}),
                "commands": commands_behind([each.folder for each in made]),
            }
            write_text(work / CARD, dataset_card(card))
        _say_rows(reporter, mined, tables, directions)
        reporter.say(str(target))
        reporter.say(f"next: {target / CARD} shows how to train with them")


def _say_rows(reporter: Reporter, mined: "MinedPairs", tables: "list[TableFiles]", directions: tuple[str, ...]) -> None:
    """Print the rows that were written, and the candidates and captions that were left out."""
    for table in tables:
        line = f"  {table.pattern:<16} {len(table.rows):>10,} rows"
        if table.left_out:
            line += f", {table.left_out:,} captions left out (too few negatives)"
        reporter.say(line)
    for direction in directions:
        left_out = mined.left_out[direction]
        if left_out.repeats:
            count = quantity(left_out.repeats, "candidate")
            reporter.say(f"  {direction}: left out {count} with the words of the positive")
        if left_out.right:
            first = f"{left_out.right:,} of the first {quantity(left_out.seen, 'negative')}"
            reporter.say(
                f"  {direction}: the judge takes {first} for right answers, and the next ones took their places; keep "
                "them with --drop-above 1"
            )


def _miner(request: Request) -> str:
    """Return the hub id of the model of sentence-transformers that mined the lists; empty for other models."""
    if "embeddings" not in request.step.inputs:
        return ""
    settings = request.step.inputs["embeddings"].settings.model_dump()
    if settings.get("library") != SENTENCE_TRANSFORMERS or Path(settings["model"]).is_absolute():
        return ""
    return settings["model"]
