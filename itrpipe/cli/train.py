"""Train a model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import DevicesOption, JudgesOption, ModelOptions, Text, Texts, overrides_of
from itrpipe.cli.request import absolute_path
from itrpipe.config import Override
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN
from itrpipe.pipeline.models import define_model, find_model, home_of, models_of
from itrpipe.training.checks import backbone_for, both_encoders, chosen_loss

_FILES = ("initial", "model", "text", "tokenizer", "vision", "weights")
"""Last parts of keys whose values may be files or folders."""


@dataclass
class Train(ModelOptions):
    """Train a model, and embed every split with one that has embeddings.

    --vision and --text take any encoders of transformers, for all training steps of the chain; a joint model such as
    CLIP is named by both. For a method of joint models, such as clip-finetune, either option sets both.

    --name small remembers the model, with its dataset and all that is set here. --model small then means all of
    it, in this command and in mine-negatives, evaluate, search, explain and export. --name small --set KEY=VALUE
    changes it, and --name large --like small begins another model with the same settings.

    --negatives adds to those of the batch: mined, synthetic or twins, or several with commas; --method triplet takes
    synthetic or twins.

    Example: itrpipe train --method aoq --backbone vsrn --dataset scenes
    """

    teacher: Annotated[
        Text, Option("--negatives-from", help="Model whose embeddings are mined.", metavar="NAME|BACKBONE")
    ] = None
    name: Annotated[Text, Option(help="Remember these options under this name, for --model.")] = None
    like: Annotated[Text, Option(metavar="NAME", help="With --name: begin with the settings of another model.")] = None
    negatives: Annotated[Text, Option(metavar="SOURCES", help="mined, synthetic, twins, or several.")] = None
    weigh: Annotated[Text, Option(help="contrastive: none, hardest, fne, truth; positive-aware lost recall.")] = None
    objective: Annotated[Text, Option(help="contrastive: infonce, sigmoid, hardest or sum.")] = None
    batches: Annotated[Text, Option(help="contrastive: shuffled or neighbours.")] = None
    positives: Annotated[Literal["ascl"] | None, Option(help="triplet: captions joined or halved.")] = None
    vision: Annotated[Text, Option(metavar="ID|FOLDER", help="dual-encoder: vision encoder, or random.")] = None
    text: Annotated[Text, Option(metavar="ID|FOLDER", help="dual-encoder, ascl: text encoder, or random.")] = None
    judges: JudgesOption = None
    judged: Annotated[Text, Option(help="contrastive, aoq: use of what judges say: drop, weigh or soft.")] = None
    track: Annotated[Texts, Option(metavar="TRACKER", help="tensorboard, mlflow or wandb; repeatable.")] = None
    devices: DevicesOption = None

    def run(self) -> Path:
        restart_with(self.devices)
        name = self.name
        like = self.like
        if self.known and name is not None:
            raise UsageError(f"--model {self.known.name} trains a model that has a name; leave --name {name} out")
        if like is not None and name is None:
            raise UsageError(f"--like {like} is for a model that gets a name; add --name")
        if name is not None and "dataset" not in self.given:
            home = home_of(self.data, name)
            if home is None and like is not None:
                home = find_model(self.data, None, like, "--like").dataset
            self.dataset = home or self.dataset
        base = None
        if like is not None:
            home = None
            if like in models_of(load_definition(*self.where)):  # a model of this dataset comes before all others
                home = self.dataset
            base = find_model(self.data, home, like, "--like")
        if name is not None and "method" not in self.given:
            previous = base or load_definition(*self.where).models.get(check_name(name))
            if previous:
                self.method = previous.method
        encoders = both_encoders(self.method, self.vision, self.text)
        if encoders and not self.backbone:
            self.backbone = backbone_for(self.method, encoders)
        settings = list(self.settings or [])
        for side, encoder in encoders.items():
            settings.append(f"train.model.{side}={absolute_path(encoder)}")
        if self.track:
            settings.append(f"train.trackers={json.dumps(self.track)}")
        words = self.chosen("negatives", "weigh", "judged", "objective", "batches")
        words = {option: word for option, word in words.items() if word}
        method, loss = chosen_loss(self.method, words, self.positives)
        chosen = {**self.chosen(*self.shared, "teacher"), "method": None, "loss.judges": self.judges, **loss}
        overrides = overrides_of(settings, chosen) + self.placed
        if base and not self.teacher and "mined" in loss.get("loss.negatives", ()):
            is_trained_here = base.dataset == self.dataset and base.method != GIVEN
            if is_trained_here and {"teacher", "loss.teacher"}.isdisjoint(base.definition.settings):
                overrides.append(Override(None, "loss.teacher", base.name))  # the base mines
        if name is not None:
            for position, override in enumerate(overrides):  # later commands may run in another folder
                value = override.value
                if isinstance(value, str) and override.key.rpartition(".")[2] in _FILES:
                    overrides[position] = replace(override, value=absolute_path(value))
            self.known, overrides = define_model(*self.where, name, method, overrides, base)
        if self.known:
            method = self.known.method
            overrides = self.known.overrides(read=False) + overrides
        return self.run_stage("train", overrides, conf=method)
