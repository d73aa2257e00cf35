"""Train a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import whole_file
from itrpipe.cli.help import command, option
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.named import define_model, find_model, home_of, method_of_name, teacher_of
from itrpipe.cli.options import (
    DevicesOption,
    ModelOptions,
    Text,
    Texts,
    overrides_of,
)
from itrpipe.errors import UsageError
from itrpipe.training.choices import backbone_for, both_encoders, chosen_loss


@dataclass
class TrainingOptions(ModelOptions):
    """What trains a model, which may be a new one."""

    teacher: Text = option(None, "--negatives-from", "Model whose embeddings are mined.", metavar="NAME|BACKBONE")


@command(lists=["methods", "backbones"])
def train(
    given: TrainingOptions,
    name: Text = Option(None, "--name", help="Remember these options under this name, for --model."),
    like: Text = Option(None, "--like", metavar="NAME", help="With --name: begin with the settings of another model."),
    negatives: Text = Option(None, "--negatives", metavar="SOURCES", help="mined, synthetic, twins, or several."),
    weigh: Text = Option(
        None,
        "--weigh",
        help="contrastive: none, hardest, fne, guard, truth; positive-aware lost recall.",
    ),
    objective: Text = Option(None, "--objective", help="contrastive: infonce, sigmoid, hardest or sum."),
    batches: Text = Option(None, "--batches", help="contrastive: shuffled or neighbours."),
    positives: Literal["ascl"] | None = Option(None, "--positives", help="triplet: captions joined or halved."),
    vision: Text = Option(None, "--vision", metavar="ID|FOLDER", help="dual-encoder: vision encoder, or random."),
    text: Text = Option(None, "--text", metavar="ID|FOLDER", help="dual-encoder, ascl: text encoder, or random."),
    track: Texts = Option(None, "--track", metavar="TRACKER", help="tensorboard, mlflow or wandb; repeatable."),
    devices: DevicesOption = None,
) -> None:
    """Train a model, and embed every split with one that has embeddings.

    --vision and --text take any encoders of transformers, for all training steps of the chain; a joint model such as
    CLIP is given as both: --vision openai/clip-vit-base-patch32 --text openai/clip-vit-base-patch32. For a
    method of joint models, such as clip-finetune, either option sets both.

    --name small remembers the model, with its dataset and all that is set here. --model small then means all of
    it, in this command and in mine-negatives, evaluate, search, explain and export. --name small --set KEY=VALUE
    changes it, and --name large --like small begins another model with the same settings.

    --negatives adds to those of the batch: mined, synthetic or twins, or several with commas; --method triplet takes
    synthetic or twins.

    Example: itrpipe train --method aoq --backbone vsrn --dataset scenes
    """
    restart_with(devices)
    model = given.known
    if model and name is not None:
        raise UsageError(f"--model {model.name} trains a model that has a name; leave --name {name} out")
    if like is not None and name is None:
        raise UsageError(f"--like {like} is for a model that gets a name; add --name")
    if name is not None and "dataset" not in given.given:
        home = home_of(given.data, name)
        if home is None and like is not None:
            home = find_model(given.data, None, like, "--like").dataset
        given.dataset = home or given.dataset
    if name is not None and "method" not in given.given:
        given.method = method_of_name(*given.where, name, like) or given.method
    encoders = both_encoders(given.method, vision, text)
    given.backbone = given.backbone or (backbone_for(given.method, encoders) if any(encoders.values()) else None)
    settings = [*(given.settings or []), *(f"train.model.{key}={whole_file(each)}" for key, each in encoders.items())]
    settings += [f"train.trackers={json.dumps(track)}"] if track else []
    asked = {"negatives": negatives, "weigh": weigh, "objective": objective, "batches": batches}
    method, loss = chosen_loss(given.method, {key: each for key, each in asked.items() if each}, positives)
    overrides = overrides_of(settings, {**given.told("method"), **loss}) + given.placed
    if like and not given.teacher and "mined" in loss.get("loss.negatives", ()):
        overrides += teacher_of(*given.where, like)
    if name is not None:
        model, overrides = define_model(*given.where, name, method, overrides, like)
    if model:
        method, overrides = model.method, model.of_training() + overrides
    run_stage(*given.where, "train", overrides, conf=method, model=model, **given.how)
