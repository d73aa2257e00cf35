"""What trains, and what writes or finds negatives: train, mine-negatives, synthesize."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from itrpipe.cli.app import app
from itrpipe.cli.choices import backbone_for, both_encoders, chosen_negatives, encoders, followed_by, with_positives
from itrpipe.cli.help import listing
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import (
    DecisionsOption,
    DevicesOption,
    GivenOptions,
    PartOption,
    TrainedOptions,
    TrainingOptions,
    overrides_of,
    resolved,
    taking,
    whole_path,
)
from itrpipe.errors import UsageError


@app.command(cls=listing("methods", "backbones"))
@taking(TrainingOptions)
def train(
    given: TrainingOptions,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Remember these options under this name, by which --model finds the model."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="NAME", help="With --name: begin with the settings of another model."),
    ] = None,
    negatives_from: Annotated[
        str | None,
        typer.Option(
            "--negatives-from",
            metavar="NAME|[METHOD.]BACKBONE",
            help="aoq, contrastive: model whose embeddings are mined, of the first training by default, such as vsrn.",
        ),
    ] = None,
    negatives: Annotated[
        str | None,
        typer.Option(
            "--negatives",
            metavar="SOURCES",
            help="contrastive: mined,synthetic beside the batch; triplet: synthetic adds sentences.",
        ),
    ] = None,
    weigh: Annotated[
        str | None, typer.Option("--weigh", help="contrastive: none, hardest, fne, guard, positive-aware or truth.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="contrastive: infonce, sigmoid, hardest or sum.")
    ] = None,
    batches: Annotated[str | None, typer.Option("--batches", help="contrastive: shuffled or neighbours.")] = None,
    positives: Annotated[
        str | None, typer.Option("--positives", help="triplet: ascl adds captions joined or halved, made in each step.")
    ] = None,
    vision: Annotated[
        str | None, typer.Option("--vision", metavar="ID|FOLDER", help="dual-encoder: vision encoder, or random.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="ID|FOLDER", help="dual-encoder, ascl: text encoder, or random.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", metavar="TRACKER", help="Follow with tensorboard, mlflow or wandb; repeatable."),
    ] = None,
    devices: DevicesOption = None,
) -> None:
    """Train a model, and embed every split with one that has embeddings.

    --vision and --text take any encoders of transformers, for all training steps of the chain; a joint model such as
    CLIP is given as both: --vision openai/clip-vit-base-patch32 --text openai/clip-vit-base-patch32. For a method of
    joint models, such as clip-finetune, one of them says both.

    --name small remembers the model, with its dataset and all that is set here. --model small then stands for all of
    it, in this command and in mine-negatives, evaluate, search, explain and export. --name small --set KEY=VALUE
    changes it, and --name large --like small begins another model with the same settings.

    Example: itrpipe train --method aoq --backbone vsrn --dataset scenes
    """
    from itrpipe.commands.named import define_model, home_of, method_of_name, refuse_unnamed
    from itrpipe.commands.stages import run_stage

    restart_with(devices)
    placed = bool(given.given & {"dataset", "named"})
    if name is not None and "dataset" not in given.given:
        home = home_of(given.data, name) or (home_of(given.data, like) if like else None)
        given = replace(given, dataset=home or given.dataset)
        placed = home is not None
    if like is not None and name is None:
        raise UsageError(f"--like {like} is for a model that gets a name; add --name")
    if name is not None and "method" not in given.given:
        given = replace(given, method=method_of_name(*given.where, name, like) or given.method)
    vision, text = both_encoders(given.method, vision, text)
    named = {**given.model, "device": given.device, "teacher": negatives_from}
    if (vision or text) and not given.backbone:
        named["backbone"] = backbone_for(given.method, vision=vision, text=text)
    method, chosen = chosen_negatives(
        given.method, negatives=negatives, weigh=weigh, objective=objective, batches=batches
    )
    settings = [*(given.settings or []), *encoders(vision, text), *chosen, *followed_by(track)]
    overrides = overrides_of(settings, named) + given.placed
    method = with_positives(method, positives)
    model = given.known
    if model and name is not None:
        raise UsageError(f"--model {model.name} trains a model that has a name; leave --name {name} out")
    if name is not None:
        named_method = method if "method" in given.given or method != given.method else None
        model, overrides = define_model(*given.where, name, named_method, method, overrides, like)
    if model:
        method, overrides = model.method, model.of_training() + overrides
    if not placed:
        refuse_unnamed(given.data, dataset=True)
    run_stage(*given.where, "train", overrides, conf=method, model=model, **given.how)


@app.command("mine-negatives")
@taking(GivenOptions)
def mine_negatives(
    given: GivenOptions,
    library: Annotated[str | None, typer.Option("--library", help="What searches: torch or faiss.")] = None,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Drop captions that repeat one of the positive's.")
    ] = False,
    rescore_with: Annotated[
        str | None, typer.Option("--rescore-with", help="Second model that orders what was found, such as bfan.")
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option("--candidates", metavar="FILE", help="Embeddings of further images or captions to find."),
    ] = None,
    guard: Annotated[
        str | None, typer.Option("--guard", help="fne: write how likely each candidate is a false negative.")
    ] = None,
    decisions: DecisionsOption = None,
    part: PartOption = None,
) -> None:
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --library faiss --set index=ivf num_lists= num_probes=.

    --candidates FILE mines against more than the training set: images or captions that belong to nobody, embedded by
    the same model, as `itrpipe export --embeddings parquet` writes them. Training cannot read such lists.

    --decisions FILE leaves out what people found to fit, and with --guard what they found not to fit is no false
    negative. Training reads such lists with --set mine_negatives.decisions=FILE.

    --embeddings mines with vectors that any model has made of the training split: .npy, Parquet or HDF5. Their ids are
    those of --dataset; where none is named, these files and --owners are all that is needed.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """
    from itrpipe.commands.stages import run_stage

    given, definition = given.defined("train")
    model = {"method": given.method, **given.model, "library": library, "device": given.device}
    model |= {"drop_duplicates": drop_duplicates or None, "rescore_with": rescore_with, "guard": guard, "part": part}
    model |= {"candidates": resolved(candidates), "decisions": resolved(decisions)}
    run_stage(*given.where, "mine_negatives", given.overrides(**model), definition=definition, **given.how)


@app.command()
@taking(TrainedOptions)
def synthesize(
    given: TrainedOptions,
    by: Annotated[str, typer.Option("--by", help="phrases, words or vse-c.")] = "phrases",
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="Configuration that trains the writing model; default: pretrain."),
    ] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", "-b", help="Model: uniter, uniter-large.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Whose captions: train, val or test.")] = None,
    language_model: Annotated[
        str | None, typer.Option("--language-model", metavar="ID|FOLDER", help="GPT-2 that measures perplexity.")
    ] = None,
    part: PartOption = None,
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

    named = {"method": method, "backbone": backbone, **given.model, "device": given.device, "split": split}
    named |= {"language_model": whole_path(language_model), "part": part}
    run_stage(*given.where, "synthesize", given.overrides(**named), conf=by, **given.how)
