"""What trains, and what writes or finds negatives: train, mine-negatives, synthesize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.listing import listing
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
    TrustOption,
    encoders,
    followed_by,
    overrides_of,
    whole_path,
    with_negatives,
    with_positives,
)


@app.command(cls=listing("train", conf="Methods (--method)", defaults="Backbones (--backbone)"))
def train(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    negatives_from: Annotated[
        str | None, typer.Option("--negatives-from", help="aoq: backbone whose round one mines; scan, bfan: vsrn.")
    ] = None,
    negatives: Annotated[
        str | None, typer.Option("--negatives", help="triplet: synthetic adds the sentences of itrpipe synthesize.")
    ] = None,
    positives: Annotated[
        str | None, typer.Option("--positives", help="triplet: ascl adds captions joined or halved, made in each step.")
    ] = None,
    vision: Annotated[
        str | None, typer.Option("--vision", metavar="ID|FOLDER", help="dual-encoder: vision encoder, or random.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="ID|FOLDER", help="dual-encoder, ascl: text encoder, or random.")
    ] = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", metavar="TRACKER", help="Follow with tensorboard, mlflow or wandb; repeatable."),
    ] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Train a model and embed every split; a model with cross-attention scores val and test instead.

    --vision and --text take any encoders of transformers, for all training steps of the chain; a joint model such as
    CLIP is given as both: --vision openai/clip-vit-base-patch32 --text openai/clip-vit-base-patch32

    Example: itrpipe train --method aoq --backbone vsrn --dataset scenes
    """
    from itrpipe.commands.stages import run_stage

    if vision or (text and not method.startswith("ascl")):
        backbone = backbone or "dual-encoder"
    named = {"backbone": backbone, "features": features, "seed": seed, "device": device, "teacher": negatives_from}
    overrides = overrides_of([*(settings or []), *encoders(vision, text), *followed_by(track)], named)
    method = with_positives(with_negatives(method, negatives), positives)
    run_stage(data, dataset, "train", overrides, conf=method, dry_run=dry_run, no_deps=no_deps)


@app.command("mine-negatives")
def mine_negatives(
    method: MethodOption = "triplet",
    backbone: BackboneOption = None,
    dataset: DatasetOption = "scenes",
    features: FeaturesOption = None,
    seed: SeedOption = None,
    engine: Annotated[str | None, typer.Option("--engine", help="torch or faiss.")] = None,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Drop captions that repeat one of the positive's.")
    ] = False,
    rescore_with: Annotated[
        str | None, typer.Option("--rescore-with", help="Second model that orders what was found, such as bfan.")
    ] = None,
    guard: Annotated[
        str | None, typer.Option("--guard", help="fne: write how likely each candidate is a false negative.")
    ] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --engine faiss --set index=ivf num_lists= num_probes=.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """
    from itrpipe.commands.stages import run_stage

    model = {"method": method, "backbone": backbone, "features": features, "seed": seed, "engine": engine}
    model |= {"drop_duplicates": drop_duplicates or None, "rescore_with": rescore_with, "guard": guard}
    run_stage(
        data,
        dataset,
        "mine_negatives",
        overrides_of(settings, {**model, "device": device}),
        dry_run=dry_run,
        no_deps=no_deps,
    )


@app.command()
def synthesize(
    by: Annotated[str, typer.Option("--by", help="phrases, words or vse-c.")] = "phrases",
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Training of the model that writes; pretrain.")
    ] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", "-b", help="Model: uniter, uniter-large.")] = None,
    dataset: DatasetOption = "scenes",
    split: Annotated[str | None, typer.Option("--split", help="Whose captions: train, val or test.")] = None,
    features: FeaturesOption = None,
    seed: SeedOption = None,
    language_model: Annotated[
        str | None, typer.Option("--language-model", metavar="ID|FOLDER", help="GPT-2 that measures perplexity.")
    ] = None,
    wordnet: Annotated[Path | None, typer.Option("--wordnet", help="vse-c: folder of a WordNet database.")] = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    data: DataOption = Path("data"),
    no_deps: NoDepsOption = False,
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write negative sentences for every caption of a split, the training split unless --split names another.

    \b
    Makers (--by):
      phrases  masks objects, attributes and relations; a UNITER that sees the image writes others (TAGS-DC)
      words    the same with single words masked
      vse-c    replaces nouns, numerals and relations by rules; needs no model

    Sentences that may be true of the image are dropped; of the others the hardest are kept (--set keep=).

    Example: itrpipe synthesize --dataset scenes
    """
    from itrpipe.commands.stages import run_stage

    named = {"method": method, "backbone": backbone, "features": features, "seed": seed, "device": device}
    named |= {
        "split": split,
        "language_model": whole_path(language_model),
        "wordnet": wordnet and str(wordnet.resolve()),
    }
    run_stage(data, dataset, "synthesize", overrides_of(settings, named), conf=by, dry_run=dry_run, no_deps=no_deps)
