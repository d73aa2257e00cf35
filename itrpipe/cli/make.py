"""What is made before a model can be asked: prepare, extract, parse, train, mine-negatives, synthesize."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import define_dataset, define_features, whole_file
from itrpipe.cli.help import command, option
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.named import define_model, find_model, home_of, method_of_name, teacher_of
from itrpipe.cli.options import (
    DecisionsOption,
    DevicesOption,
    File,
    GivenOptions,
    GuardOption,
    LanguageModelOption,
    ModelOptions,
    Number,
    PartOption,
    RunOptions,
    Split,
    Text,
    Texts,
    TrainedOptions,
    overrides_of,
)
from itrpipe.config import baseline_kind, root_conf
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.errors import UsageError
from itrpipe.pipeline.planning import Planner
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.training.settings import declared_encoders, method_of, settings_of, usual_backbone

TWINS = 0.5
"""Of `--negatives twins`, for each pair of a batch."""


@dataclass
class PrepareOptions(RunOptions):
    """What prepares a dataset."""

    format: Text = option(None, "--format", "Format of the captions, if it is not recognised.")
    train: Number = option(None, "--train", "scenes: training images.")
    val: Number = option(None, "--val", "scenes: validation images.")
    test: Number = option(None, "--test", "scenes: test images.")
    seed: Number = option(None, "--seed", "scenes: seed.")
    part: PartOption = None


@command()
def prepare(
    given: PrepareOptions,
    source: Path | None = Option(None, "--source", help="Caption file or folder of the dataset."),
    strict: bool = Option(False, "--strict", help="Refuse a dataset with images that cannot be used."),
) -> None:
    """Read captions, check images.

    Images that are missing or do not decode are left out with their captions, listed, and make the exit code 7.

    Example: itrpipe prepare --dataset flickr30k --source /data/flickr30k
    """
    overrides = given.overrides(**{"bad_images": "refuse"} if strict else {})
    definition, overrides = define_dataset(*given.where, source, overrides)
    run_stage(*given.where, "prepare", overrides, definition=definition, **given.how)


@dataclass
class ExtractOptions(RunOptions):
    """What extracts or imports features."""

    strict: bool = option(False, "--strict", "Stop at the first image that cannot be used.")
    ids: Path | None = option(None, "--ids", "arrays: text file of image ids, one a line.")
    device: Text = option(None, "--device", "auto, cpu or cuda.")
    part: PartOption = None


@command(lists=["extractors"])
def extract(
    given: ExtractOptions,
    features: Text = Option(None, "--features", "-f", help="Extractor or importer, several as A+B, or features' name."),
    source: Path | None = Option(None, "--from", help="Import these files instead of extracting."),
    name: Text = Option(None, "--name", help="Name of the features, for several versions side by side."),
    arrays: Texts = Option(None, "--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file."),
) -> None:
    """Write visual features of every image as features.h5.

    An extractor computes them from the images; several, joined as in frcnn+resnet, fill one file. An importer reads
    files that others have made: --from recognises it, --features names it.

    In a job array: --part 1/8 ... --part 8/8 on one file system; the job that makes the last part joins them all.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """
    overrides = given.overrides(**_mapping(arrays or []))
    definition, known, overrides = define_features(*given.where, features, source, name, overrides)
    run_stage(*given.where, "extract", overrides, conf=known, definition=definition, **given.how)


def _mapping(assignments: list[str]) -> dict[str, Any]:
    """Arrays by the dataset that they become, as settings."""
    given: dict[str, Any] = {}
    for text in assignments:
        dataset, equals, array = text.partition("=")
        if not (dataset and equals):
            raise UsageError(f"--map {text!r} is not of the form NAME=ARRAY, such as regions=features")
        if given.setdefault(f"map.{dataset}", array) != array:
            raise UsageError(f"--map gives {dataset} twice; name one array")
    return given


@dataclass
class ParseOptions(RunOptions):
    """What parses captions."""

    tagger: Text = option(None, "--tagger", "hanta or lexicon.")
    file: Path | None = option(None, "--from", "Import this file of graphs instead.")
    format: Text = option(None, "--format", "Format of that file, if it is not recognised.")
    part: PartOption = None


@command()
def parse(
    given: ParseOptions,
    show: Text = Option(None, "--show", metavar="CAPTION", help="Print the graph of one caption and end."),
) -> None:
    """Write the scene graph of every caption.

    Rules make it, with a tagger of English words. --from imports graphs of FACTUAL, SPICE or another parser.

    Example: itrpipe parse --show "A dog in a red sweater jumps over two logs"
    """
    if show is None:
        run_stage(*given.where, "parse", given.overrides(), **given.how)
        return
    from itrpipe.stages.parse import print_graph

    settings, _, _ = Planner(given.data, EMBEDDED, given.overrides()).configure_checked(Need("parse", "rules"))
    print_graph(settings, show, Reporter())


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


def both_encoders(method: str, vision: str | None, text: str | None) -> dict[str, str]:
    """The encoders that were named; of a method whose own are those of one joint model, one stands for both."""
    if (vision is None) != (text is None):
        own = declared_encoders(method)
        if not method_of(method).trains or (len(own) > 1 and own["vision"] == own["text"]):
            vision = text = vision or text
    return {name: value for name, value in {"vision": vision, "text": text}.items() if value}


def backbone_for(method: str, encoders: dict[str, str]) -> str:
    """The usual backbone of a method, or `dual-encoder` where that one has no such encoders."""
    usual = usual_backbone(method)
    return usual if encoders.keys() <= settings_of(usual).model_fields.keys() else "dual-encoder"


def chosen_loss(method: str, named: dict[str, str], positives: str | None) -> tuple[str, dict[str, Any]]:
    """The training configuration, and settings of its loss, that options ask for.

    Args:
        method: configuration of `train`.
        named: `negatives`, `weigh`, `objective` and `batches`, those that were given.
        positives: further positives.

    Raises:
        UsageError: the method has none of them.
    """
    sources, loss = named.get("negatives", "").split(","), {}
    if "negatives" in named and baseline_kind("train", method):  # no baseline any more
        method = root_conf("train", method)
    if "twins" in sources and "twins" in method_of(method).model_fields:
        loss = {"loss.twins": TWINS, "sentences": "twins"}
        others = ",".join(name for name in sources if name != "twins")
        named = {**named, "negatives": others} if others else {k: v for k, v in named.items() if k != "negatives"}
    if named.keys() <= method_of(method).model_fields.keys():
        loss |= {f"loss.{name}": each.split(",") if name == "negatives" else each for name, each in named.items()}
    elif named == {"negatives": "synthetic"} and method in ("triplet", "synthetic-triplet"):
        method = "synthetic-triplet"
    else:
        name = next((name for name in named if name != "negatives"), "negatives")
        raise UsageError(f"--{name} {named[name]} is for --method contrastive, not for {method}; leave one of them out")
    if positives and method not in ("triplet", "positives-triplet"):
        raise UsageError(f"--positives {positives} is for --method triplet, not for {method}; leave one of them out")
    return "positives-triplet" if positives else method, loss


@dataclass
class MineOptions(GivenOptions):
    """What mines negatives."""

    library: Text = option(None, "--library", "Search library: torch or faiss.")
    drop_duplicates: bool = option(False, "--drop-duplicates", "Drop captions that repeat one of the positive's.")
    rescore_with: Text = option(None, "--rescore-with", "Second model that orders what was found, such as bfan.")
    candidates: File = option(None, "--candidates", "Further images or captions to find.", metavar="FILE")
    guard: GuardOption = None
    decisions: DecisionsOption = None
    part: PartOption = None


@command()
def mine_negatives(given: MineOptions) -> None:
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --library faiss --set index=ivf num_lists= num_probes=.

    --candidates FILE mines against more than the training set: images or captions that belong to nobody, embedded by
    the same model, as `itrpipe export --embeddings parquet` writes them. Training cannot read such lists.

    --decisions FILE drops candidates that reviewers judged to fit; with --guard, those that they judged not to fit are
    no false negatives. Training reads such lists with --set mine_negatives.decisions=FILE.

    --embeddings mines with vectors that any model has made of the training split: .npy, Parquet or HDF5. Their ids are
    those of --dataset; where none is named, these files and --owners are all that is needed.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """
    definition = given.defined("train")
    run_stage(*given.where, "mine_negatives", given.overrides(), definition=definition, **given.how)


@dataclass
class SynthesizeOptions(TrainedOptions):
    """What writes sentences."""

    method: Text = option(None, "--method", "-m", "Configuration that trains the writing model; default: pretrain.")
    backbone: Text = option(None, "--backbone", "-b", "Model: uniter, uniter-large.")
    split: Split | None = option(None, "--split", "Whose captions: train, val or test.")
    language_model: LanguageModelOption = None
    part: PartOption = None


@command()
def synthesize(
    given: SynthesizeOptions, by: str = Option("phrases", "--by", help="See above.", metavar="MAKER")
) -> None:
    """Write negative sentences for every caption of a split.

    \b
    Makers (--by):
      phrases      masks objects, attributes and relations; a UNITER that sees the image writes others (TAGS-DC)
      words        the same with single words masked
      vse-c        replaces nouns, numerals and relations by rules; needs no model
      graph-edits  changes one detail, so that only the image shows which is true; needs no model

    The split is the training split unless --split names another. Sentences that may be true of the image are dropped;
    of the others the hardest are kept (--set keep=).

    Example: itrpipe synthesize --dataset scenes
    """
    run_stage(*given.where, "synthesize", given.overrides(), conf=by, **given.how)
