"""Show judgements of pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.options import AskingOptions, GuardOption, JsonOption
from itrpipe.cli.pairs import PairsOption, open_candidates
from itrpipe.printable import quantity
from itrpipe.progress import Reporter


@dataclass
class Review(AskingOptions):
    """Show judgements of hard candidates, and how many are false negatives.

    \b
    Orders (--order):
      sample    at random: estimates the share of false negatives
      guard     at random among those that mining's guard takes for false negatives: its precision
      doubtful  the guard's probability nearest to one half first
      harmful   what scores farthest above its caption's own image first

    Decisions are in decisions.parquet next to the dataset's artifacts, one row for each judgement. Mining, evaluation
    and training read them with --decisions.

    Example: itrpipe review --backbone vsepp --merge from-ada.parquet
    """

    guard: GuardOption = None
    split: PairsOption = None
    order: Annotated[str, Option(help="sample, guard (random ones), doubtful or harmful; see below.")] = "sample"
    merge: Annotated[list[Path] | None, Option(metavar="FILE", help="Add decisions of others; repeatable.")] = None
    as_json: JsonOption = False

    def run(self) -> None:
        from itrpipe.datasets.decisions import DecisionFile, read_decisions
        from itrpipe.review import lines, reviewed

        file = DecisionFile.of(*self.where)
        merged = file.merge(map(read_decisions, self.merge)) if self.merge and not self.dry_run else 0
        asked = self.asked("mine_negatives", as_json=self.as_json, guard=self.guard)
        if self.merge:
            added = f"{quantity(merged, 'judgement')} added of {quantity(len(self.merge), 'file')}"
            asked.reporter.say(f"{file.path}: {added}")
        candidates = open_candidates(asked, self.split)
        if candidates is None:
            return
        judgements = reviewed(candidates, self.order, file.read())
        if self.as_json:
            Reporter().say_json(judgements)
            return
        for line in (*lines(judgements), f"  decisions: {file.path}"):
            asked.reporter.say(line)
