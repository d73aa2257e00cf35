"""`itrpipe export-negatives`: mined negatives as files that other trainers read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe import __version__
from itrpipe.commands.stages import default_conf
from itrpipe.commands.trained import make_missing
from itrpipe.config import load_declaration, unknown
from itrpipe.datasets.definition import DatasetDefinition, check_name
from itrpipe.errors import UsageError
from itrpipe.exporting.folder import new_folder, open_target
from itrpipe.exporting.negatives.formats import FORMATS, Format
from itrpipe.features.declaration import GIVEN
from itrpipe.mining.settings import MineSettings
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.stages.prepare import image_root
from itrpipe.storage.artifact import STATISTICS, Manifest, existing_input, fingerprint, read_manifest
from itrpipe.storage.disk import write_text
from itrpipe.storage.integrity import read_checked_json

if TYPE_CHECKING:
    from itrpipe.exporting.negatives.mined import Mined
    from itrpipe.exporting.negatives.tables import Table

VERSION = 2
"""Raised whenever the files of equal inputs and choices change; see `Card.made_from`."""
CARD = "README.md"
DIRECTIONS = {"t2i": ("t2i",), "i2t": ("i2t",), "both": ("t2i", "i2t")}


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

    def say_restored(message: str) -> None:
        reporter.say(message, style="yellow")

    target = open_target(root, wanted.target, force=wanted.force, dry_run=dry_run, say=say_restored)
    _refuse_unknown(wanted)
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    _refuse_without_photographs(planner.definition, dataset)
    steps = [planner.plan(Need("mine_negatives", default_conf(planner.definition, dataset, "mine_negatives")))]
    if wanted.synthetic:
        steps.append(planner.plan(Need("synthesize", wanted.synthetic), requested=False))
    planner.refuse_unused_overrides()
    _refuse_unfit(steps, wanted)
    what = f"export-negatives {steps[0].location.label}"
    if not make_missing(what, steps, dataset, reporter, no_deps=no_deps, dry_run=dry_run):
        return
    _write(_Sources.of([step.location.folder for step in steps], planner.definition), wanted, target, reporter)


@dataclass(frozen=True)
class _Sources:
    """The artifacts that are read.

    Attributes:
        mined, sentences, prepared: folders.
        images: folder of the images.
        manifest: of the lists.
        fingerprints: artifact -> fingerprint.
        commands: that made all of it, in their order, without places.
    """

    mined: Path
    sentences: Path | None
    prepared: Path
    images: Path
    manifest: Manifest
    fingerprints: dict[str, str]
    commands: tuple[str, ...]

    @classmethod
    def of(cls, folders: list[Path], definition: DatasetDefinition) -> _Sources:
        from itrpipe.report.chain import commands_behind

        mined, sentences = folders[0], folders[1] if folders[1:] else None
        manifest = read_manifest(mined)
        prepared = existing_input(mined, manifest, "prepare")
        images = image_root(read_manifest(prepared).settings, prepared, definition)
        known = {f"{each.stage}/{each.name}": each.fingerprint for each in manifest.inputs.values()}
        known |= {f"{each.parent.name}/{each.name}": read_manifest(each).fingerprint for each in folders}
        return cls(mined, sentences, prepared, images, manifest, known, tuple(commands_behind(folders)))


def _refuse_unknown(wanted: Wanted) -> None:
    """Refuses choices that no format or no maker of sentences has."""
    _known("--format", wanted.form, FORMATS)
    _known("--direction", wanted.direction, DIRECTIONS)
    if wanted.synthetic:
        _known("--synthetic", wanted.synthetic, load_declaration("synthesize").confs)
    form = FORMATS[wanted.form]
    if form.whole and wanted.direction != "both":
        raise UsageError(f"--direction {wanted.direction}: rows of {wanted.form} tell of both; leave it out")
    if wanted.with_scores and not form.scores:
        raise UsageError(f"--with-scores: {wanted.form} {_without_scores(form)}; leave it out")
    if wanted.image_root and not form.paths:
        raise UsageError(f"--image-root {wanted.image_root}: {wanted.form} holds the images themselves; leave it out")
    if wanted.shard_rows and form.single:
        raise UsageError(f"--shard-rows {wanted.shard_rows}: {wanted.form} is one file; leave it out")


def _refuse_without_photographs(definition: DatasetDefinition, dataset: str) -> None:
    if definition.prepare is not None and definition.prepare.conf == GIVEN:
        raise UsageError(
            f"dataset {dataset!r} was made of embeddings alone, and has neither captions nor photographs to write; "
            "prepare them with `itrpipe prepare --dataset NAME`, and mine with `--dataset NAME --embeddings` again"
        )


def _without_scores(form: Format) -> str:
    return "is read by programs that know no scores" if form.single else "always has them"


def _known(option: str, value: str, known: Any) -> None:
    if value not in known:
        raise UsageError(unknown(option, value, known))


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
        "num_images": settings.rescore_images or settings.num_images,
        "num_texts": settings.rescore_texts or settings.num_texts,
    }
    needed = {"num_images"} if wanted.direction == "t2i" else {"num_texts"} if wanted.direction == "i2t" else {*held}
    for name in sorted(needed):
        if held[name] < wanted.negatives:
            raise UsageError(
                f"--negatives {wanted.negatives}: the lists hold {name} = {held[name]} candidates; give --negatives "
                f"{held[name]} at most, or mine more, where there are so many candidates, with --set "
                f"{name}={wanted.negatives}"
            )


def _write(sources: _Sources, wanted: Wanted, target: Path, reporter: Reporter) -> None:
    from itrpipe.exporting.negatives.mined import open_mined
    from itrpipe.exporting.negatives.tables import TABLES
    from itrpipe.exporting.places import without_places

    def say_waiting(work: Path) -> None:
        reporter.say(f"another process writes {work}; waiting for it")

    options = {"format": wanted.form, "negatives": wanted.negatives, "direction": wanted.direction}
    options |= {"synthetic": wanted.synthetic, "sentences": wanted.most_sentences, "image_root": wanted.image_root}
    options |= {"with_scores": wanted.with_scores, "shard_rows": wanted.shard_rows}
    mined = open_mined(
        sources.prepared,
        sources.mined,
        sources.images,
        wanted.negatives,
        image_root=wanted.image_root,
        sentences=sources.sentences,
        writer=wanted.synthetic or "",
        most_sentences=wanted.most_sentences,
    )
    _refuse_other_folder(wanted.image_root, mined.files[0])
    tables = TABLES[wanted.form](mined, DIRECTIONS[wanted.direction], wanted.with_scores)
    _refuse_empty(tables, wanted, sources.mined)
    facts = {"itrpipe": __version__, "dataset": sources.manifest.dataset, "run": sources.manifest.label}
    facts |= {"options": without_places(options), "artifacts": sources.fingerprints}
    facts |= {"tables": {each.pattern: {"rows": len(each.rows), "left_out": each.left_out} for each in tables}}
    made_from = fingerprint("export_negatives", VERSION, options, sources.fingerprints | {"itrpipe": __version__})
    with (
        new_folder(target, facts, force=wanted.force, on_wait=say_waiting) as work,
        reporter.task("writing negatives", sum(len(table.rows) for table in tables), "rows") as task,
    ):
        for table in tables:
            for name, rows in table.shards(wanted.shard_rows):
                (work / name).parent.mkdir(exist_ok=True)
                table.write(work / name, rows)
                task.advance(len(rows))
        write_text(work / CARD, _card(sources, wanted, mined, tables, made_from))
    _say(tables, mined, wanted, target, reporter)


def _refuse_other_folder(image_root: str, first: str) -> None:
    """Refuses a folder of this machine that the images are not in; one of another machine is not known."""
    if image_root and Path(image_root).is_dir() and not (Path(image_root) / first).is_file():
        raise UsageError(
            f"--image-root {image_root} holds no {first}; name the folder that the dataset was prepared from"
        )


def _refuse_empty(tables: list[Table], wanted: Wanted, mined: Path) -> None:
    """Refuses tables without a row, which no reader takes for data."""
    from itrpipe.exporting.negatives.mined import LISTS
    from itrpipe.mining.statistics import remedy

    for table in tables:
        if not len(table.rows):
            statistics = read_checked_json(mined / STATISTICS)
            directions = [LISTS[table.config]] if table.config in LISTS else LISTS.values()
            cuts = [each for direction in directions if (each := remedy(statistics, direction))]
            raise UsageError(
                f"--negatives {wanted.negatives}: no caption has so many left for {table.pattern}; "
                f"{', or '.join(['give fewer', *cuts])}"
            )


def _card(sources: _Sources, wanted: Wanted, mined: Mined, tables: list[Table], made_from: str) -> str:
    from itrpipe.exporting.negatives.card import Card, render
    from itrpipe.exporting.places import without_places

    whole = Path(wanted.image_root).is_absolute()
    return render(
        Card(
            dataset=sources.manifest.dataset,
            form=wanted.form,
            tables=tables,
            miner=sources.manifest.label,
            writer=wanted.synthetic or "",
            negatives=wanted.negatives,
            sentences=wanted.most_sentences,
            guarded=mined.guarded,
            repeats=sum(mined.lists[each].repeats for each in DIRECTIONS[wanted.direction]),
            holds_images=not FORMATS[wanted.form].paths,
            image_root=without_places(wanted.image_root) if whole else wanted.image_root,
            whole=whole,
            made_from=made_from,
            fingerprints=sources.fingerprints,
            version=__version__,
            commands=sources.commands,
        )
    )


def _say(tables: list[Table], mined: Mined, wanted: Wanted, target: Path, reporter: Reporter) -> None:
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    for table in tables:
        left_out = f", {table.left_out:,} captions left out (too few negatives)" if table.left_out else ""
        reporter.say(f"  {table.pattern:<16} {len(table.rows):>10,} rows{left_out}")
    for direction in DIRECTIONS[wanted.direction]:
        if repeats := mined.lists[direction].repeats:
            reporter.say(f"  {direction}: {quantity(repeats, 'candidate')} that repeat the positive left out")
    reporter.say(f"  {size / 2**20:,.1f} MiB")
    reporter.say(str(target))
