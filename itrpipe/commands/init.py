"""`itrpipe init`: a recipe to begin with, for a dataset as it is defined."""

from __future__ import annotations

import json
import os
from pathlib import Path

from itrpipe.artifacts.disk import require_writable, write_text
from itrpipe.commands.recipe_sources import defined
from itrpipe.datasets.definition import PIXELS, DatasetDefinition, check_name
from itrpipe.errors import UsageError
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
{lists}# train.epochs = 10                    # of every training; each method has its own by default
# train.model.embed_dim = 256          # a smaller model

# Round one, and two controls: as many epochs as both rounds take, and as much time.
[[run]]
method = ["triplet", "triplet-long"{timed}]
backbone = "{backbone}"
seeds = [0, 1, 2]                      # a gain is significant over two seeds or more

# Round two: negatives mined over the whole training set.
[[run]]
method = "aoq"
backbone = "{backbone}"
seeds = [0, 1, 2]

# Any negatives under the losses of CLIP and SigLIP; `itrpipe show train contrastive` lists what can be set.
# [[run]]
# method = "contrastive"
# backbone = "{backbone}"
# seeds = [0, 1, 2]
# set = {{ contrastive = {{ loss.negatives = ["mined"], loss.weigh = "guard" }} }}

# Other backbones and methods: itrpipe train --help
"""


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
    regions = [name for name, each in definition.features.items() if each.conf != PIXELS]
    backbone = "vsepp" if regions else "dual-encoder"
    return _RECIPE.format(
        dataset=dataset,
        quoted=json.dumps(dataset),
        file=path,
        features=_features(regions),
        lists=_lists(offered),
        backbone=backbone,
        timed=', "triplet-time"' if regions else "",
    )


def _features(regions: list[str]) -> str:
    if not regions:
        return "# The dataset has no extracted features, so that its models read pixels; see `itrpipe extract --help`."
    others = f"         # or {', '.join(regions[1:])}" if regions[1:] else ""
    return f"features = {json.dumps(regions[0])}{others}"


def _lists(offered: tuple[int, int] | None) -> str:
    """Settings for lists that are as long as a small training set allows."""
    if offered is None or (offered[0] >= _LISTS[0] and offered[1] >= _LISTS[1]):
        return ""
    texts, images = (min(most, count) for most, count in zip(_LISTS, offered, strict=True))
    settings = [f"{key}_texts = {texts}\n{key}_images = {images}\n" for key in ("mine_negatives.num", "aoq.top")]
    return "".join(["# The training set is too small for lists of 300 captions and 60 images.\n", *settings])


def _offered(root: Path, dataset: str, definition: DatasetDefinition, reporter: Reporter) -> tuple[int, int] | None:
    """Candidates for an image and for a caption of the training set; None where it is not prepared."""
    step = Planner(root, dataset, definition=definition, reporter=reporter).plan(prepare_need(definition))
    return None if step.finished is None else candidates_in(step.finished, 1.0)
