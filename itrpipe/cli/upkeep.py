"""What is about the whole of a data folder or a configuration: run, demo, list, status, show, gc, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.help import LISTS, everything
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import (
    AddressOption,
    BackboneOption,
    DataOption,
    DatasetOption,
    DevicesOption,
    DryRunOption,
    EngineOption,
    PartOption,
    SetOption,
    TrustOption,
    WorkersOption,
    overrides_of,
    placed,
    was_given,
)
from itrpipe.errors import UsageError
from itrpipe.storage.artifact import folders_in


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="Name in stages/recipes/ or path of a recipe.")],
    source: Annotated[
        Path | None, typer.Option("--source", help="Folder of the dataset, where the recipe needs one.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="[METHOD][.BACKBONE]", help="Only these runs of the recipe; repeatable."),
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Toy models on a few hundred images, in the folder DATA-tiny.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on with other runs when one fails, and fail at the end.")
    ] = False,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    workers: WorkersOption = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    part: PartOption = None,
    devices: DevicesOption = None,
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    Example: itrpipe run demo
    """
    from itrpipe.plan.reproduction import Options, run_recipe

    restart_with(devices)
    how = {"only": only or (), "tiny": tiny, "keep_going": keep_going, "dry_run": dry_run}
    overrides = overrides_of(settings, {}) + placed(workers, engine, address, part)
    run_recipe(data, recipe, Options(source, overrides, **how))


@app.command()
def demo(
    data: DataOption = Path("data"),
    dry_run: DryRunOption = False,
) -> None:
    """Run the whole chain on drawings: the same as run demo.

    Example: itrpipe demo
    """
    from itrpipe.plan.reproduction import Options, run_recipe

    run_recipe(data, "demo", Options(None, [], dry_run=dry_run))


@app.command("list")
def list_names(
    what: Annotated[str | None, typer.Argument(metavar="|".join(LISTS), help="What is listed.")] = None,
) -> None:
    """List methods, backbones, extractors or recipes, each in one line.

    Example: itrpipe list methods
    """
    from itrpipe.config import brought, did_you_mean

    if what is None:
        for name, (title, option) in LISTS.items():
            typer.echo(f"itrpipe list {name:<12}{title}, for {option}")
        return
    if what not in LISTS:
        hint = did_you_mean(what, LISTS) or f"; known: {', '.join(LISTS)}"
        hint = "; `itrpipe` alone and `itrpipe status` list models" if what == "models" else hint
        raise UsageError(f"there is no list of {what!r}{hint}")
    broken = (each for each in brought() if each.problem and each.group == f"itrpipe.{what}")
    rows = everything(what) + [(each.name, f"cannot be used: {each.problem}") for each in broken]
    width = max(len(name) for name, _ in rows)
    for name, about in rows:
        typer.echo(f"{name:<{width}}  {about}")


@app.command()
def status(
    dataset: Annotated[str | None, typer.Option("--dataset", "-d", help="Only this dataset.")] = None,
    data: DataOption = Path("data"),
    verify: Annotated[bool, typer.Option("--verify", help="Also compare content hashes.")] = False,
) -> None:
    """List every artifact.

    Example: itrpipe status --dataset scenes
    """
    from itrpipe.commands.upkeep import print_status

    print_status(data, dataset, verify=verify)


@app.command()
def show(
    stage: Annotated[str, typer.Argument(help="Stage, such as train.")],
    conf: Annotated[str | None, typer.Argument(help="Configuration, such as aoq; all are listed without it.")] = None,
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    settings: SetOption = None,
    data: DataOption = Path("data"),
) -> None:
    """Print a configuration with the origin of every value.

    Example: itrpipe show train aoq --backbone vsrn
    """
    from itrpipe.commands.stages import show_configuration

    show_configuration(data, dataset, stage.replace("-", "_"), conf, overrides_of(settings, {"backbone": backbone}))


@app.command()
def gc(
    context: typer.Context,
    dataset: DatasetOption = "scenes",
    damaged: Annotated[bool, typer.Option("--damaged", help="Remove damaged artifacts only.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Find damage by content hashes too.")] = False,
    superseded: Annotated[
        bool, typer.Option("--superseded", help="Also evaluated models of which there are newer settings.")
    ] = False,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NAME", help="Forget the name of a model, and remove nothing.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data: DataOption = Path("data"),
) -> None:
    """Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.

    \b
    unused      a newer artifact of the same run is there, and nothing that stays was made from this one
    superseded  evaluated, or made for an evaluation, with other settings than the newest of the run; these go
                with --superseded only

    Example: itrpipe gc --dataset scenes
    """
    from itrpipe.commands.named import forget_model
    from itrpipe.commands.upkeep import collect_garbage

    if forget is not None:
        typer.echo(forget_model(data, dataset if was_given(context, "dataset") else None, forget))
        return
    ask = None if yes else typer.confirm
    found = [folder.name for folder in folders_in(data)]
    if not was_given(context, "dataset") and found and dataset not in found:
        raise UsageError(f"name the dataset: --dataset {' or '.join(found)}")
    collect_garbage(data, dataset, damaged_only=damaged, verify=verify, superseded_too=superseded, ask=ask)


@app.command()
def doctor(data: DataOption = Path("data"), address: AddressOption = None) -> None:
    """Check versions, device, FAISS, disk and memory; with --address a Ray cluster.

    Example: itrpipe doctor
    """
    from itrpipe.commands.doctor import examine

    if not examine(data, address):
        raise typer.Exit(1)
