"""`itrpipe export-negatives`: mined negatives as files that other trainers read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe import __version__
from itrpipe.commands.export import CARD, Artifact, draw_example
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.config import load_declaration, unknown
from itrpipe.datasets.definition import DatasetDefinition, check_name
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.exporting.places import without_places
from itrpipe.features.declaration import GIVEN
from itrpipe.mining.settings import MineSettings
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.report.chain import commands_behind
from itrpipe.stages.base import Need
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import STATISTICS, fingerprint
from itrpipe.storage.disk import write_text
from itrpipe.storage.integrity import read_checked_json

if TYPE_CHECKING:
    from itrpipe.exporting.negatives import Mined, Table

VERSION = 2
"""Raised whenever the files of equal inputs and choices change: `datasets` caches what it reads by it."""
DIRECTIONS = {"t2i": ("t2i",), "i2t": ("i2t",), "both": ("t2i", "i2t")}
_SHOWN = 5
"""Images of the picture in the card."""


@dataclass(frozen=True)
class Wanted:
    """What is to be written.

    Attributes:
        target: the folder.
        form: name of the format.
        negatives: mined ones of a row.
        direction: `t2i`, `i2t` or `both`.
        synthetic: configuration of `synthesize` whose sentences are added; None: none.
        sentences: of a caption, at most.
        image_root: stands before every path of an image; empty: paths are relative to the folder of the images.
        with_scores: also ids, ranks and scores, where the format leaves them out otherwise.
        shard_rows: rows of a file; 0: as many as suit the format.
        force: replace an earlier export.
    """

    target: Path
    form: str = "sentence-transformers"
    negatives: int = 8
    direction: str = "both"
    synthetic: str | None = None
    sentences: int = 1
    image_root: str = ""
    with_scores: bool = False
    shard_rows: int = 0
    force: bool = False

    @property
    def most_sentences(self) -> int:
        """Sentences of a caption at most; 0 where none are wanted."""
        return self.sentences if self.synthetic else 0


def export_negatives(
    root: Path,
    dataset: str,
    wanted: Wanted,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
) -> None:
    """Writes a folder with mined negatives; what is missing of them is made on the way.

    Args:
        root: the data folder.
        dataset: dataset name.
        wanted: what is written, and where.
        overrides: values given by the user, as `mine-negatives` takes them.
        no_deps: fail when the negatives are not mined.
        dry_run: print the plan and what it will cost, and write nothing.

    Raises:
        UsageError: the folder is taken or lies among artifacts, or the lists have nothing of what is wanted.
        MissingInputError: no folder can be made there, or an image is not there.
        DataError: a file of an artifact is damaged, or an image is not the one that was prepared.
        DiskFullError: no space is left.
    """
    reporter = Reporter()
    target = open_target(root, wanted.target, force=wanted.force)
    _refuse_unknown(wanted)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    if planner.definition.prepare is not None and planner.definition.prepare.conf == GIVEN:
        raise UsageError(
            f"dataset {dataset!r} was made of embeddings alone, and has neither captions nor photographs to write; "
            "prepare them with `itrpipe prepare --dataset NAME`, and mine with `--dataset NAME --embeddings` again"
        )
    steps = [planner.plan(Need("mine_negatives", default_conf(planner.definition, dataset, "mine_negatives")))]
    if wanted.synthetic:
        steps.append(planner.plan(Need("synthesize", wanted.synthetic), requested=False))
    planner.refuse_unused_overrides()
    _refuse_unfit(steps, wanted)
    what = f"export-negatives {steps[0].location.label}"
    if make_missing(what, steps, dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        _write([Artifact.of(step.location.folder) for step in steps], planner.definition, wanted, target, reporter)


def _refuse_unknown(wanted: Wanted) -> None:
    """Refuses choices that no format or no maker of sentences has."""
    from itrpipe.exporting.negatives import FORMATS

    known: dict[str, tuple[str, Any]] = {
        "--format": (wanted.form, FORMATS),
        "--direction": (wanted.direction, DIRECTIONS),
        "--synthetic": (wanted.synthetic or "", ["", *load_declaration("synthesize").confs]),
    }
    for option, (value, names) in known.items():
        if value not in names:
            raise UsageError(unknown(option, value, filter(None, names)))
    form = FORMATS[wanted.form]
    if form.whole and wanted.direction != "both":
        raise UsageError(f"--direction {wanted.direction}: rows of {wanted.form} tell of both; leave it out")
    if wanted.with_scores and not form.scores:
        why = "is read by programs that know no scores" if form.single else "always has them"
        raise UsageError(f"--with-scores: {wanted.form} {why}; leave it out")
    if wanted.image_root and not form.paths:
        raise UsageError(f"--image-root {wanted.image_root}: {wanted.form} holds the images themselves; leave it out")
    if wanted.shard_rows and form.single:
        raise UsageError(f"--shard-rows {wanted.shard_rows}: {wanted.form} is one file; leave it out")


def _refuse_unfit(steps: list[Step], wanted: Wanted) -> None:
    """Refuses before anything is made what the lists cannot give."""
    settings = steps[0].settings
    assert isinstance(settings, MineSettings)
    if settings.candidates:
        raise UsageError(
            f"candidates = {settings.candidates} adds candidates from outside the dataset, so that "
            "there is no image or caption to write for them; leave it out"
        )
    held = {
        "t2i": ("num_images", settings.rescore_images or settings.num_images),
        "i2t": ("num_texts", settings.rescore_texts or settings.num_texts),
    }
    for name, count in (held[each] for each in DIRECTIONS[wanted.direction]):
        if count < wanted.negatives:
            raise UsageError(
                f"--negatives {wanted.negatives}: the lists hold {name} = {count} candidates; give --negatives {count} "
                f"at most, or mine more, where there are so many candidates, with --set {name}={wanted.negatives}"
            )


def _write(
    made: list[Artifact], definition: DatasetDefinition, wanted: Wanted, target: Path, reporter: Reporter
) -> None:
    from itrpipe.exporting.card import dataset_card
    from itrpipe.exporting.negatives import FORMATS, open_mined

    lists, prepared = made[0], made[0].input("prepare")
    images = image_root(prepared.manifest.settings, prepared.folder, definition)
    mined = open_mined(
        prepared.folder,
        lists.folder,
        images,
        wanted.negatives,
        image_root=wanted.image_root,
        sentences=made[1].folder if wanted.synthetic else None,
        writer=wanted.synthetic or "",
        most_sentences=wanted.most_sentences,
    )
    first = mined.images[0]["file"]
    if wanted.image_root and Path(wanted.image_root).is_dir() and not (Path(wanted.image_root) / first).is_file():
        raise UsageError(
            f"--image-root {wanted.image_root} holds no {first}; name the folder that the dataset was prepared from"
        )
    tables = [*FORMATS[wanted.form].tables(mined, DIRECTIONS[wanted.direction], wanted.with_scores)]
    _refuse_empty(tables, wanted, lists.folder)
    options = {name: value for name, value in vars(wanted).items() if name not in ("target", "form", "force")}
    options |= {"format": wanted.form, "sentences": wanted.most_sentences}
    fingerprints = {f"{each.stage}/{each.name}": each.fingerprint for each in lists.manifest.inputs.values()}
    fingerprints |= {f"{each.manifest.stage}/{each.folder.name}": each.manifest.fingerprint for each in made}
    facts = {"itrpipe": __version__, "dataset": lists.manifest.dataset, "run": lists.manifest.label}
    facts |= {"options": without_places(options), "artifacts": fingerprints}
    facts |= {"tables": {each.pattern: {"rows": len(each.rows), "left_out": each.left_out} for each in tables}}
    repeats = {name: mined.repeats[name] for name in DIRECTIONS[wanted.direction]}
    whole = Path(wanted.image_root).is_absolute()
    with (
        new_folder(target, facts, force=wanted.force) as work,
        reporter.task("writing negatives", sum(len(table.rows) for table in tables), "rows") as task,
    ):
        for table in tables:
            for name, rows in table.shards(wanted.shard_rows):
                (work / name).parent.mkdir(exist_ok=True)
                table.write(work / name, rows)
                task.advance(len(rows))
        card = {
            "dataset": lists.manifest.dataset,
            "form": wanted.form,
            "tables": tables,
            "miner": lists.manifest.label,
            "writer": wanted.synthetic,
            "negatives": wanted.negatives,
            "sentences": wanted.most_sentences,
            "with_scores": wanted.with_scores,
            "guarded": mined.guarded,
            "repeats": sum(repeats.values()),
            "image_root": without_places(wanted.image_root) if whole else wanted.image_root,
            "whole": whole,
            "made_from": fingerprint("export_negatives", VERSION, options, fingerprints | {"itrpipe": __version__}),
            "fingerprints": fingerprints,
            "version": __version__,
            "commands": commands_behind([each.folder for each in made]),
            "example": _example(work, prepared, mined, definition),
        }
        write_text(work / CARD, dataset_card(card))
    for table in tables:
        left_out = f", {table.left_out:,} captions left out (too few negatives)" if table.left_out else ""
        reporter.say(f"  {table.pattern:<16} {len(table.rows):>10,} rows{left_out}")
    for direction, count in repeats.items():
        if count:
            reporter.say(f"  {direction}: {quantity(count, 'candidate')} that repeat the positive left out")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    reporter.say(f"  {size / 2**20:,.1f} MiB")
    reporter.say(str(target))


def _example(work: Path, prepared: Artifact, mined: Mined, definition: DatasetDefinition) -> dict[str, str] | None:
    """Writes a picture of the first caption that has hard images; returns it, or None without photographs."""
    for caption in mined.rows_with("t2i")[:1].tolist():
        query, positive, negatives = mined.row("t2i", caption)
        files = [each["file"] for each in (positive, *negatives[: _SHOWN - 1])]
        if draw_example(work, prepared, files, definition):
            return {"query": query["text"]}
    return None


def _refuse_empty(tables: list[Table], wanted: Wanted, mined: Path) -> None:
    """Refuses tables without a row, which no reader takes for data."""
    from itrpipe.exporting.negatives import LISTS
    from itrpipe.mining.statistics import remedy

    for table in (each for each in tables if not len(each.rows)):
        statistics = read_checked_json(mined / STATISTICS)
        directions = [LISTS[table.config]] if table.config in LISTS else LISTS.values()
        cuts = [each for direction in directions if (each := remedy(statistics, direction))]
        raise UsageError(
            f"--negatives {wanted.negatives}: no caption has so many left for {table.pattern}; "
            f"{', or '.join(['give fewer', *cuts])}"
        )
