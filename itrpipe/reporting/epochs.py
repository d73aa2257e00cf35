"""Which compared runs were trained for different numbers of epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from itrpipe.reporting.collect import Run

_NAMED = 4


def different_epochs(pairs: Iterable[tuple[Run, Run]]) -> str:
    """Says of runs and what they are compared with for how many epochs they were trained, where that differs.

    Args:
        pairs: runs with their references.

    Returns:
        One sentence for each two numbers of epochs, such as `Trained for 1 epoch, first training for 6: AOQ.`;
        empty where no pair differs. Of runs whose models were removed nothing is known.
    """
    named: dict[str, list[str]] = {}
    for run, reference in pairs:
        own, other = _epochs(run), _epochs(reference)
        if own and other and own != other:
            key = f"Trained for {_counted(own)}, {reference.method} for {_numbers(other)}"
            named.setdefault(key, []).append(run.name)
    return " ".join(f"{key}: {_names(list(dict.fromkeys(names)))}." for key, names in named.items())


def _epochs(run: Run) -> list[float]:
    """Epochs of every member; empty where one is not known."""
    found = [member.epochs for member in run.members]
    return [each for each in found if each is not None] if None not in found else []


def _counted(epochs: Sequence[float]) -> str:
    return f"{_numbers(epochs)} {'epoch' if set(epochs) == {1} else 'epochs'}"


def _numbers(epochs: Sequence[float]) -> str:
    return " and ".join(f"{each:g}" for each in dict.fromkeys(epochs))


def _names(names: Sequence[str]) -> str:
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more
