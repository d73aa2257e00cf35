"""Show judgements of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from itrpipe.cli.help import command
from itrpipe.cli.options import (
    AskingOptions,
    GuardOption,
    JsonOption,
)
from itrpipe.cli.pairs import PairsOption, open_candidates
from itrpipe.printable import quantity
from itrpipe.progress import Reporter

if TYPE_CHECKING:
    pass


@dataclass
class ReviewOptions(AskingOptions):
    """Whose pairs are reviewed."""

    guard: GuardOption = None


@command()
def review(
    given: ReviewOptions,
    split: PairsOption = None,
    order: str = Option("sample", "--order", help="sample, guard (random ones), doubtful or harmful; see below."),
    merge: list[Path] | None = Option(None, "--merge", metavar="FILE", help="Add decisions of others; repeatable."),
    as_json: JsonOption = False,
) -> None:
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
    from itrpipe.review import DecisionFile, lines, read_decisions, reviewed

    file = DecisionFile.of(*given.where)
    merged = file.merge(map(read_decisions, merge)) if merge and not given.dry_run else 0
    asked = given.asked("mine_negatives", as_json=as_json)
    if merge:
        told = f"{quantity(merged, 'judgement')} added of {quantity(len(merge), 'file')}"
        asked.reporter.say(f"{file.path}: {told}")
    candidates = open_candidates(asked, split)
    if candidates is None:
        return
    found = reviewed(candidates, order, file.read())
    if as_json:
        Reporter().say_json(found)
        return
    for line in (*lines(found), f"  decisions: {file.path}"):
        asked.reporter.say(line)
