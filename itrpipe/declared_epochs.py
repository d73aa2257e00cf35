"""Epochs that a configuration declares as those of others: `epochs = "triplet + 3 aoq"`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from itrpipe.errors import DataError

EPOCHS = "epochs"
_TERM = re.compile(r"(?:(?P<times>[1-9]\d{0,2}) )?(?P<conf>[a-z][a-z0-9-]*)")


def summed_epochs(rule: str, declared: Callable[[str], Mapping[str, Any]], origin: str) -> dict[str, Any]:
    """The sum, and the epochs after which the learning rate decays, in the same proportion to those of the first term.

    Args:
        rule: what is declared.
        declared: gives the values of another configuration.
        origin: of the rule.

    Raises:
        DataError: the rule has another form, or one of its configurations has no number of epochs itself.
    """
    terms = [_TERM.fullmatch(term.strip()) for term in rule.split("+")]
    named = [(int(term["times"] or 1), declared(term["conf"])) for term in terms if term]
    if len(named) < len(terms) or not all(isinstance(each.get(EPOCHS), int) for _, each in named):
        raise DataError(
            f"{origin}: epochs = {rule!r}; give a number, or a sum of other configurations' epochs that are numbers, "
            'such as "triplet + 3 aoq"'
        )
    total, first = sum(times * each[EPOCHS] for times, each in named), named[0][1]
    share = total / first[EPOCHS]
    found: dict[str, Any] = {EPOCHS: total}
    if "decay_every" in first:
        found["decay_every"] = round(first["decay_every"] * share)
    if "decay_at" in first:
        found["decay_at"] = [round(each * share) for each in first["decay_at"]]
    return found
