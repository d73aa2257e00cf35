"""`itrpipe` alone: what is made of each dataset, and what one would do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from itrpipe.commands.named import models_of, seed_option
from itrpipe.commands.trained import data_option
from itrpipe.commands.upkeep import Entry, entries
from itrpipe.datasets.definition import DatasetDefinition, load_definition
from itrpipe.features.declaration import GIVEN
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import Manifest, folders_in

_WITHOUT_WEIGHTS = "--name first --features hog --backbone vsepp --method contrastive-batch"
_FIRST = """\
{root} holds no dataset yet.
  itrpipe demo                                              all of it on drawings
  itrpipe prepare --dataset mine --source FOLDER            photographs with captions
  itrpipe index --photos FOLDER --model MODEL               photographs alone, to search in
  itrpipe mine-negatives --embeddings IMAGES CAPTIONS       embeddings of a model of yours"""


def print_where(root: Path) -> None:
    """Prints, for every dataset, what is made of it and the next sensible command.

    Args:
        root: the data folder.
    """
    reporter, names = Reporter(), [folder.name for folder in folders_in(root)]
    if not names:
        for line in _FIRST.splitlines():
            reporter.say(line.format(root=root))
    for name in names:
        definition = load_definition(root, name)
        photos = definition.photographs.source if definition.photographs else None
        reporter.say(f"{name}{f'  {photos}' if photos else ''}", style="bold")
        found = entries(root, name)
        for line in _made(found):
            reporter.say(f"  {line}")
        if known := list(models_of(definition)):
            reporter.say(f"  {'models':<15} {', '.join(known)}, such as --model {known[0]}")
        reporter.say(f"  next: {_next(root, name, found) if photos is None else _of_photographs(root, photos)}")
    reporter.say("`itrpipe --help` lists all commands, `itrpipe status` every artifact.")


def _made(found: list[Entry]) -> Iterator[str]:
    """A line for every stage that has something, and for what is unfinished or damaged."""
    stages = dict.fromkeys(each.folder.parent.name for each in found if each.manifest)
    for stage in stages:
        whole = [each.manifest for each in found if each.manifest and each.folder.parent.name == stage]
        labels = list(dict.fromkeys(each.label for each in sorted(whole, key=lambda own: own.finished, reverse=True)))
        more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
        yield f"{stage.replace('_', '-'):<15} {', '.join(labels[:3])}{more}"
    for state in ("running", "in parts", "interrupted", "damaged"):
        names = [each.name for each in found if each.state == state]
        if names:
            yield f"{state:<15} {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def _next(root: Path, dataset: str, found: list[Entry]) -> str:
    """The command that one would type next."""
    if running := [each.name for each in found if each.state == "running"]:
        return f"wait for {running[0]}, which another process is making"
    damaged = [each for each in found if each.state == "damaged"]
    if damaged:
        return f"itrpipe gc --damaged --dataset {dataset}{data_option(root)}"
    made: dict[str, list[Manifest]] = {}
    for each in found:
        if each.manifest:
            made.setdefault(each.manifest.stage, []).append(each.manifest)
    if "train" not in made:  # where embeddings were given, there is nothing to extract
        if "prepare" in made and not load_definition(root, dataset).features:
            first = f"itrpipe train {_WITHOUT_WEIGHTS} --dataset {dataset}{data_option(root)}"
            return f"{first}, or extract a network's features"
        stage = next((name for name in ("prepare", "extract") if name not in made), "train")
        return f"itrpipe {stage} --dataset {dataset}{data_option(root)}"
    models = sorted(filter(_is_model, found), key=lambda each: each.manifest.finished if each.manifest else "")
    evaluated = {each.inputs["train"].fingerprint for each in made.get("evaluate", []) if "train" in each.inputs}
    definition = load_definition(root, dataset)
    names = definition.named_trainings()

    def on(entry: Entry, verb: str) -> str:
        assert entry.manifest is not None
        return _of_model(verb, root, entry.manifest, names.get(entry.folder.name, ""), definition)

    tried = [each for each in models if each.manifest and (each.folder.name in names or not _was_set(each.manifest))]
    if not tried:  # no short command says all that was set
        return f"itrpipe status --dataset {dataset}{data_option(root)}"
    ours = [each for each in tried if each.manifest and each.manifest.conf != GIVEN]
    unmeasured = [each for each in ours if each.manifest and each.manifest.fingerprint not in evaluated]
    if unmeasured:
        return on(unmeasured[-1], "evaluate")
    reported = max((each.finished for each in made.get("report", [])), default="")
    if max((each.finished for each in made.get("evaluate", [])), default="") > reported:
        return f"itrpipe report --dataset {dataset}{data_option(root)}"
    if not ours:  # embeddings that were given, which nothing here can train
        return on(tried[0], "export-negatives" if "mine_negatives" in made else "mine-negatives")
    return on(ours[0], "serve" if "mine_negatives" in made else "advise")


def _of_photographs(root: Path, photos: str) -> str:
    return f"itrpipe search SENTENCE --photos {shlex.quote(photos)}{data_option(root)}"


def _is_model(entry: Entry) -> bool:
    return entry.manifest is not None and entry.manifest.stage == "train"


def _of_model(verb: str, root: Path, manifest: Manifest, name: str, definition: DatasetDefinition) -> str:
    """A command on a model, by its name if it has one."""
    settings = manifest.settings
    model = ["--model", name] if name else ["--method", manifest.conf, "--backbone", settings["backbone"]]
    model += seed_option(settings.get("seed", 0), definition.models.get(name))
    return f"{shlex.join(['itrpipe', verb, '--dataset', manifest.dataset, *model])}{data_option(root)}"


def _was_set(manifest: Manifest) -> bool:
    """Whether settings were given when it was made, which a model without a name is not named without."""
    return "--set" in manifest.command
