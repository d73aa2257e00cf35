"""`itrpipe init`: a recipe to begin with, for a dataset as it is defined."""

from __future__ import annotations

import json
import os
from pathlib import Path

from itrpipe.artifacts.disk import require_writable, write_text
from itrpipe.commands.named import NAMING, NamedModel
from itrpipe.commands.recipe_sources import defined
from itrpipe.datasets.definition import EMBEDDED, PIXELS, DatasetDefinition, ModelDefinition, check_name
from itrpipe.errors import UsageError
from itrpipe.methods.declaration import Mined
from itrpipe.plan.planning import Planner
from itrpipe.progress import Reporter
from itrpipe.stages.base import prepare_need
from itrpipe.stages.checks import candidates_in

_LISTS = 300, 60
"""Captions and images in the lists that AOQ draws from, as declared."""
_RECIPE = """\
# A recipe for the dataset {dataset}: round one, its controls, and a second round with mined negatives.
#
#   itrpipe run {file} --dry-run    what it makes, and what that costs
#   itrpipe run {file}              makes it, and writes the report

dataset = {quoted}
title = {quoted}
{features}

[set]                                  # settings of all steps, as --set takes them
{prepared}# train.epochs = 10                    # of every training; each method has its own by default
# train.model.embed_dim = 256          # a smaller model

{named}{rounds}

# Any negatives under the losses of CLIP and SigLIP; `itrpipe show train contrastive` lists what can be set.
# [[run]]
# method = "contrastive"
# backbone = "{backbone}"
# seeds = [0, 1, 2]
# set = {{ contrastive = {{ loss.negatives = ["mined"], loss.weigh = "guard" }} }}

# Other backbones and methods: itrpipe list backbones, itrpipe list methods
"""


_ROUNDS = """\
# Round one, and controls: as many epochs as both rounds take, and as much time.
[[run]]
method = ["triplet", "triplet-long"{timed}]
backbone = "{backbone}"
seeds = [0, 1, 2]                      # a gain is significant over two seeds or more

# Round two: negatives mined over the whole training set.
[[run]]
method = "aoq"
backbone = "{backbone}"
seeds = [0, 1, 2]
{lists}"""


def write_recipe(root: Path, dataset: str, target: Path | None) -> None:
    """Writes a commented recipe for a dataset that is prepared.

    Args:
        root: the data folder.
        dataset: its name.
        target: the file; None is `DATASET.toml` in the current folder.

    Raises:
        MissingInputError: the dataset is not defined.
        UsageError: the file is there already, or its name does not end with `.toml`.
        UnavailableError: it cannot be written.
    """
    definition = defined(root, check_name(dataset))
    path = target or Path(f"{dataset}.toml")
    if path.suffix != ".toml":
        raise UsageError(f"--to {path}: a recipe is a file whose name ends with .toml, such as {path.stem}.toml")
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already; name another file with --to, or remove it")
    require_writable(path, "--to")
    reporter = Reporter()
    offered = _offered(root, dataset, definition, reporter)
    write_text(path, _recipe(dataset, definition, offered, path))
    reporter.say(f"{path}: a recipe for {dataset}; run it with `itrpipe run {path}`")


def _recipe(dataset: str, definition: DatasetDefinition, offered: tuple[int, int] | None, path: Path) -> str:
    read = [model.settings.get("features") for model in definition.models.values()]  # which need no definition
    extracted = [name for name, each in definition.features.items() if each.conf != PIXELS]
    regions = list(dict.fromkeys([*extracted, *(name for name in read if name and name != PIXELS)]))
    backbone = "vsepp" if regions else "dual-encoder"
    rounds = _ROUNDS.format(backbone=backbone, lists=_lists(offered), timed=', "triplet-time"' if regions else "")
    if definition.models and not regions:  # the usual encoders would be fetched, and are not those of the models
        rounds = "".join(line + "\n" if line.startswith("#") else f"# {line}\n" for line in rounds.splitlines() if line)
    return _RECIPE.format(
        dataset=dataset,
        quoted=json.dumps(dataset),
        file=path,
        features=_features(regions),
        prepared=_prepared(dataset, definition),
        backbone=backbone,
        named="".join(_run(NamedModel(name, dataset, model)) for name, model in _distinct(definition).items()),
        rounds=rounds.rstrip(),
    )


def _distinct(definition: DatasetDefinition) -> dict[str, ModelDefinition]:
    """The named models without those that are others by a second name."""
    models, found = definition.models, {}
    for name, model in models.items():
        if not any(_same(model, other) for other in found.values()):
            found[name] = model
    return found


def _same(model: ModelDefinition, other: ModelDefinition) -> bool:
    return (model.method, model.settings) == (other.method, other.settings) or bool(
        set(model.trained.values()) & set(other.trained.values())
    )


def _run(model: NamedModel) -> str:
    """A named model as a run, of which nothing has to be made again."""
    told = dict(model.definition.settings)
    naming = {key: told.pop(key) for key in NAMING if key in told}
    lines = [f"# The model {model.name}.", "[[run]]", f"method = {json.dumps(model.method)}"]
    lines += [f"backbone = {json.dumps(model.backbone)}", f"seeds = [{naming.get('seed', 0)}]"]
    lines += [f"features = {json.dumps(naming['features'])}"] if naming.get("features") else []
    scoped = {f"{item.scope or model.method}.{item.key}": item.value for item in model.told(told)}
    settings = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in scoped.items()]
    return "\n".join([*lines, *(["[run.set]", *settings] if settings else [])]) + "\n\n"


def _features(regions: list[str]) -> str:
    if not regions:
        return "# The dataset has no extracted features, so that its models read pixels; see `itrpipe extract --help`."
    others = f"         # or {', '.join(regions[1:])}" if regions[1:] else ""
    return f"features = {json.dumps(regions[0])}{others}"


def _prepared(dataset: str, definition: DatasetDefinition) -> str:
    """What the embedded dataset is drawn by: recipes make it for themselves, and take others as they are."""
    settings = definition.prepare.settings if dataset == EMBEDDED and definition.prepare else {}
    return "".join(f"prepare.{key} = {json.dumps(value)}\n" for key, value in settings.items())


def _lists(offered: tuple[int, int] | None) -> str:
    """Settings for lists that are as long as a small training set allows, and for draws from no large part of it."""
    shorter = {} if offered is None else Mined(*_LISTS, None, "", "").shorter(*map(max, offered, (1, 1)))
    if offered is None or not shorter:
        return ""
    settings = [f"aoq.{name} = {count}\n" for name, count in shorter.items()]
    if min(offered[0] - _LISTS[0], offered[1] - _LISTS[1]) < 0:
        texts, images = (min(most, count) for most, count in zip(_LISTS, offered, strict=True))
        settings += [f"mine_negatives.num_texts = {texts}\n", f"mine_negatives.num_images = {images}\n"]
    why = "lists of 300 captions and 60 images are a large part of the training set"
    return "".join([f"[run.set]  # {why}\n", *settings])


def _offered(root: Path, dataset: str, definition: DatasetDefinition, reporter: Reporter) -> tuple[int, int] | None:
    """Candidates for an image and for a caption of the training set; None where it is not prepared."""
    step = Planner(root, dataset, definition=definition, reporter=reporter).plan(prepare_need(definition))
    return None if step.finished is None else candidates_in(step.finished, 1.0)
