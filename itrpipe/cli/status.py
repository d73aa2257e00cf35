"""Show the state of every artifact."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import DataOption, Text
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import DataError, UnavailableError
from itrpipe.pipeline.folders import list_folders, model_of, require_dataset, size_text
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import folders_in

_STYLES = {
    "whole": "green",
    "running": "cyan",
    "in parts": "cyan",
    "damaged": "red",
    "unreadable": "red",
    "small copies": "",
}
"""State of a folder -> its colour; others are yellow."""
_NAMES = 44
"""Width of the column of names."""
_FIRST = """\
{root} holds no dataset yet.
  itrpipe demo                                              all of it on synthetic data
  itrpipe run photos --source FOLDER                        photographs with captions
  itrpipe index --photos FOLDER --model MODEL               photographs alone, to search in
  itrpipe mine-negatives --embeddings IMAGES CAPTIONS       embeddings of a model of yours"""


@dataclass
class Status(BaseCommand):
    """List every artifact.

    Damage is exit code 4, what cannot be read now 8, both after the table.

    Example: itrpipe status --dataset scenes
    """

    dataset: Annotated[Text, Option("--dataset", "-d", help="Only this dataset.")] = None
    data: DataOption = Path("data")
    verify: Annotated[bool, Option("--verify", help="Also compare content hashes.")] = False

    def run(self) -> None:
        reporter = Reporter()
        data = self.data
        names = [path.name for path in folders_in(data)]
        if self.dataset:
            require_dataset(data, self.dataset)
            names = [self.dataset]
        if not names:
            reporter.say_lines(_FIRST.format(root=data))
        damaged = []
        unreadable = []
        for name in names:
            definition = load_definition(data, name)
            title = name
            if definition.photographs:
                title = f"{name}  {definition.photographs.source}"
            reporter.say(title, style="bold")
            models = definition.named_trainings()
            for entry in list_folders(data, name, verify=self.verify):
                style = _STYLES.get(entry.state, "yellow")
                title = f"  {entry.name}"
                model = model_of(entry, models)
                if model:
                    title += f" (model {model})"
                seconds = ""
                if entry.manifest:
                    seconds = f"{entry.manifest.timings['total']:,.1f} s"
                if len(title) > _NAMES:
                    reporter.say(title, style=style)
                    title = ""
                line = f"{title:<{_NAMES}} {entry.state:<12} {size_text(entry.bytes):>11} {seconds:>10}"
                reporter.say(line.rstrip(), style=style)
                if entry.problem:
                    reporter.say(f"    {entry.problem}", style=style)
                if entry.state == "damaged":
                    damaged.append(entry.problem)
                elif entry.state == "unreadable":
                    unreadable.append(entry.problem)
        if damaged:
            raise DataError(f"{len(damaged)} damaged: {damaged[0]}")
        if unreadable:
            raise UnavailableError(f"{len(unreadable)} unreadable: {unreadable[0]}")
