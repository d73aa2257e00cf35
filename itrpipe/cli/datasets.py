"""What is made of a dataset before training: prepare, extract, parse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.help import listing
from itrpipe.cli.options import (
    AddressOption,
    DataOption,
    DatasetOption,
    DeviceOption,
    DryRunOption,
    EngineOption,
    PartOption,
    RunOptions,
    SetOption,
    WorkersOption,
    mapping,
    overrides_of,
    placed,
    taking,
)


@app.command()
def prepare(
    dataset: DatasetOption = "scenes",
    source: Annotated[Path | None, typer.Option("--source", help="Caption file or folder of the dataset.")] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="Format of the captions, if it is not recognised.")
    ] = None,
    train: Annotated[int | None, typer.Option("--train", help="scenes: training images.")] = None,
    val: Annotated[int | None, typer.Option("--val", help="scenes: validation images.")] = None,
    test: Annotated[int | None, typer.Option("--test", help="scenes: test images.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="scenes: seed.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a dataset with images that cannot be used.")] = False,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    workers: WorkersOption = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    part: PartOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Read captions, check images.

    Images that are missing or do not decode are left out with their captions, listed, and make the exit code 7.

    Example: itrpipe prepare --dataset flickr30k --source /data/flickr30k
    """
    from itrpipe.commands.stages import define_dataset, run_stage

    given = {"format": format, "train": train, "val": val, "test": test, "seed": seed}
    given["bad_images"] = "refuse" if strict else None
    definition, execution = define_dataset(data, dataset, source, overrides_of(settings, given))
    execution += placed(workers, engine, address, part)
    run_stage(data, dataset, "prepare", execution, definition=definition, dry_run=dry_run)


@app.command(cls=listing("extractors"))
@taking(RunOptions)
def extract(
    given: RunOptions,
    features: Annotated[
        str | None,
        typer.Option("--features", "-f", help="Extractor or importer, several as A+B, or the name of features."),
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Import these files instead of extracting.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the features, for several versions side by side.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first image that cannot be used.")] = False,
    map: Annotated[
        list[str] | None, typer.Option("--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file.")
    ] = None,
    ids: Annotated[Path | None, typer.Option("--ids", help="arrays: text file of image ids, one a line.")] = None,
    device: DeviceOption = None,
    part: PartOption = None,
) -> None:
    """Write visual features of every image as features.h5.

    An extractor computes them from the images; several, joined as in frcnn+resnet, fill one file. An importer reads
    files that others have made: --from recognises it, --features names it.

    In a job array: --part 1/8 ... --part 8/8 on one file system; who makes the last part joins them all.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """
    from itrpipe.commands.stages import define_features, run_stage

    named = {"device": device, "part": part, "strict": strict or None, **mapping(map, ids)}
    definition, known, overrides = define_features(
        *given.where, features, source, name, overrides_of(given.settings, named)
    )
    run_stage(*given.where, "extract", overrides + given.placed, conf=known, definition=definition, **given.how)


@app.command()
@taking(RunOptions)
def parse(
    given: RunOptions,
    tagger: Annotated[str | None, typer.Option("--tagger", help="hanta or lexicon.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Import this file of graphs instead.")] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="Format of that file, if it is not recognised.")
    ] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="CAPTION", help="Print the graph of one caption and end.")
    ] = None,
    part: PartOption = None,
) -> None:
    """Write the scene graph of every caption.

    Rules make it, with a tagger of English words. --from imports graphs of FACTUAL, SPICE or another parser.

    Example: itrpipe parse --show "A dog in a red sweater jumps over two logs"
    """
    from itrpipe.commands.stages import run_stage

    place = str(source.resolve()) if source else None
    overrides = given.overrides(tagger=tagger, file=place, format=format, part=part)
    if show is not None:
        from itrpipe.plan.planning import Planner
        from itrpipe.progress import Reporter
        from itrpipe.stages.base import Need
        from itrpipe.stages.parse import print_graph

        print_graph(Planner(*given.where, overrides).configure_checked(Need("parse", "rules"))[0], show, Reporter())
        return
    run_stage(*given.where, "parse", overrides, **given.how)
