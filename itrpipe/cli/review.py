"""Show judgements of pairs of image and caption, and choose the pairs that people judge."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from itrpipe.cli.options import AskingOptions, JsonOption, JudgesOption, Split
from itrpipe.cli.request import Request
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import UsageError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import read_manifest

if TYPE_CHECKING:
    from itrpipe.review import ReviewCandidates
TRAIN = "train"
PairsOption = Annotated[Split | None, Option(help="train: pairs of mined lists; test or val: of an evaluation.")]


@dataclass
class Review(AskingOptions):
    """Show judgements of hard candidates, and how many are right after all.

    \b
    Orders (--order):
      calibration  spread over the judge's score, the default where lists are judged
      sample       at random
      doubtful     the judge's probability nearest to one half first
      harmful      what scores farthest above its caption's own image first

    Decisions are in decisions.parquet next to the dataset's artifacts, one row for each judgement. Recipes,
    mining and evaluation read them with --decisions, training with --set mine_negatives.decisions=FILE; a .csv with the
    columns image_id, caption_id, answer (fits, differs or unsure) and optionally reviewer will do, too.

    Example: itrpipe review --backbone vsepp --merge from-ada.parquet
    """

    judges: JudgesOption = None
    split: PairsOption = None
    order: Annotated[str, Option(help="calibration, sample, doubtful or harmful; see below.")] = ""
    merge: Annotated[list[Path] | None, Option(metavar="FILE", help="Add decisions of others; repeatable.")] = None
    as_json: JsonOption = False

    def run(self) -> None:
        from itrpipe.datasets.decisions import DecisionFile, read_decisions
        from itrpipe.review import lines, reviewed

        file = DecisionFile.of(*self.where)
        merged = 0
        if self.merge and not self.dry_run:
            merged = file.merge(map(read_decisions, self.merge))
        request = self.request("mine_negatives", as_json=self.as_json, judges=self.judges)
        if self.merge:
            request.reporter.say(
                f"{file.path}: {quantity(merged, 'judgement')} added of {quantity(len(self.merge), 'file')}"
            )
        candidates = open_candidates(request, self.split, self.judges)
        if candidates is None:
            return
        judgements = reviewed(candidates, self.order, file.read())
        if self.as_json:
            Reporter().say_json(judgements)
            return
        for line in lines(judgements):
            request.reporter.say(line)
        say_next(request, file.path)


def say_next(request: Request, decisions: Path) -> None:
    """Print the file of decisions and the command that reads them.

    It is the last one of the recipe that made the judged artifact, or else that of its stage.
    """
    if not decisions.exists():
        return
    request.reporter.say(f"decisions: {decisions}")
    command = read_manifest(request.step.location.folder).command
    words = _without("--data", command)  # it may stand before `run` and before the recipe
    if words[:2] == ["itrpipe", "run"]:
        commands = load_definition(request.root, request.dataset).commands
        command = commands.get(words[2], command)
    else:
        command = request.command_of(request.step)
    words = _without("--decisions", command)
    words += ["--decisions", str(decisions)]
    request.reporter.say(f"next: {shlex.join(words)}")


def _without(option: str, command: str) -> list[str]:
    """Return the words of a command without an option and its value."""
    left = []
    words = iter(shlex.split(command))
    for word in words:
        if word == option:
            next(words)
        elif not word.startswith(f"{option}="):
            left.append(word)
    return left


def open_candidates(request: Request, split: str | None, judges: list[str] | None) -> "ReviewCandidates | None":
    """Open the pairs that may be judged; None after a dry run.

    Raises:
        UsageError: judges were named for the rankings of an evaluation.
    """
    from itrpipe.review import mined_candidates, ranked_candidates

    if split in (None, TRAIN):
        open_pairs = mined_candidates
        request.plan("mine_negatives")
    else:
        if judges:
            raise UsageError(f"--judge orders mined pairs, and --split {split} reviews rankings; leave one of both out")
        open_pairs = ranked_candidates
        request.plan("evaluate", split=split)
    made = request.made("review")
    if not made:
        return None
    return open_pairs(made[0].folder)
