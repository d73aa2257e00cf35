"""What looks at trained models: evaluate, explain, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.options import (
    BackboneOption,
    DataOption,
    DatasetOption,
    DeviceOption,
    DryRunOption,
    FeaturesOption,
    MethodOption,
    NoDepsOption,
    SeedOption,
    SetOption,
    overrides_of,
)


@app.command()
def evaluate(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    ensemble_with: Annotated[
        list[str] | None,
        typer.Option(
            "--ensemble-with",
            metavar="[METHOD.]BACKBONE[.sN]",
            help="Average its scores with those of this model; repeatable.",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="test, val or train.")] = None,
    rerank: Annotated[
        int | None, typer.Option("--rerank", metavar="K", help="ssamt: score only K candidates of a query in full.")
    ] = None,
    eccv: Annotated[
        bool, typer.Option("--eccv", help="coco: also with the matches of ECCV Caption and CxC (itrpipe[eccv]).")
    ] = False,
    canary: Annotated[
        bool, typer.Option("--canary", help="Score again with the images taken away: recall must fall to chance.")
    ] = False,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Measure a trained model, or the mean of several, on a split.

    A further model is named by its backbone and what else differs: vsrn.s1 is seed 1, aoq.vsrn another method.

    --canary scores the split again, with every image replaced by another one and with noise for images, writes
    canary.json, and fails where recall is not within three standard deviations of chance.

    Example: itrpipe evaluate --method aoq --backbone vsrn
    """
    from itrpipe.canary import refuse_ensembles, release_canary
    from itrpipe.commands import run_stage
    from itrpipe.progress import Reporter

    if canary:
        refuse_ensembles(ensemble_with, rerank)
    model = {"method": method, "backbone": backbone, "features": features, "seed": seed, "split": split}
    model |= {"ensemble_with": ensemble_with or None, "rerank": rerank, "device": device}
    model |= {"eccv": eccv or None}
    folder = run_stage(data, dataset, "evaluate", overrides_of(settings, model), dry_run=dry_run, no_deps=no_deps)
    if canary and not dry_run:
        release_canary(folder, device, Reporter())


@app.command()
def explain(
    image: Annotated[str, typer.Option("--image", metavar="ID|FILE", help="Image of the dataset, or a photograph.")],
    caption: Annotated[str, typer.Option("--caption", help="Any sentence.")],
    method: MethodOption = "tags-dc",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every word.")] = False,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
) -> None:
    """Show which words of a caption do not belong to an image, and what should stand there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """
    from itrpipe.explain import explain as explain_caption

    named = {"backbone": backbone, "features": features, "seed": seed, "device": device}
    overrides = overrides_of(settings, named)
    explain_caption(data, dataset, image, caption, method, overrides, no_deps=no_deps, as_json=as_json)


@app.command()
def report(
    dataset: DatasetOption = "scenes",
    settings: SetOption = None,
    data: DataOption = Path("data"),
    dry_run: DryRunOption = False,
) -> None:
    """Write one HTML page over all evaluated runs of a dataset.

    Example: itrpipe report --dataset scenes
    """
    from itrpipe.commands import report_dataset

    report_dataset(data, dataset, overrides_of(settings, {}), dry_run=dry_run)
