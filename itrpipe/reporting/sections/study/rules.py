"""What tells beforehand whether mined negatives pay: rules over round one, each tried where it was not fitted."""

from __future__ import annotations

import math
from collections.abc import Callable

from itrpipe.evaluation.held_out import leave_one_out
from itrpipe.evaluation.second_round import Signals, recommend, signals
from itrpipe.reporting.study import Setting, Study, Tried
from itrpipe.reporting.tables import DASH, Cell, Row, Table

_RULES: dict[str, Callable[[Setting, Signals], float | None]] = {
    "images for each pair of a batch": lambda setting, found: setting.ratio,
    "pairs that only the hardest of all beat, %": lambda setting, found: found.dataset_beaten - found.batch_beaten,
    "true matches among the hardest of all, %": lambda setting, found: found.dataset_false,
    "RSum on training images over validation": lambda setting, found: found.gap,
    "RSum gained in the last third": lambda setting, found: found.gained,
}
_COLUMNS = ("agreed where held out", "always the same", "threshold")
_CAPTION = (
    "Trials are second rounds as “itrpipe advise” recommends them, with mined candidates beside the batch, one in each "
    "setting. A rule agrees where it tells the sign of the gain over the strongest control: there is one above a "
    "threshold, which is fitted without the setting that it is tried on. “Always the same” says yes, or no, to all, "
    "whichever agreed more often in the other settings. The threshold shown is that of all settings. “itrpipe advise” "
    "has one rule, which is not fitted again."
)
_FEWEST = 3
"""Settings without which no threshold is tried."""


def rule_table(study: Study) -> Table | None:
    """Single numbers of round one as rules for where mined negatives pay.

    Args:
        study: of which those trials count whose mining model was evaluated.

    Returns:
        None where these are of fewer than three settings.
    """
    taught = [(each, each.told) for each in study.tried if each.told is not None and _is_recommended(each)]
    trials = [(each, told, signals(told)) for each, told in taught]
    settings = [each.setting for each, _, _ in trials]
    if len(set(settings)) < _FEWEST:
        return None
    paid = [each.gains[study.primary].value > 0 for each, _, _ in trials]
    rows = []
    for name, read in _RULES.items():
        values = [read(each.setting, found) for each, _, found in trials]
        known = [value for value in values if value is not None]
        if len(known) == len(trials):
            tried = leave_one_out(known, paid, settings)
            shown = (f"{tried.agreed} of {len(trials)}", f"{tried.constant} of {len(trials)}", _shown(tried.threshold))
            rows.append(_row(name, shown))
    advised = [recommend(told).action == "mine" for _, told, _ in trials]
    agreed = sum(one == other for one, other in zip(advised, paid, strict=True))
    rows.append(_row("itrpipe advise", (f"{agreed} of {len(trials)}", DASH, DASH)))
    return Table("What tells beforehand whether mined negatives pay", list(_COLUMNS), rows, _CAPTION)


def _is_recommended(tried: Tried) -> bool:
    """Whether it is what `recommend` names where it says to mine: InfoNCE, and nothing else that is changed."""
    manifest = next(iter(tried.runs.values())).members[0].artifact.manifest
    loss = {} if manifest is None else manifest.settings["loss"]
    wanted = {"objective": "infonce", "weigh": "none", "batches": "shuffled", "refresh_every": 0}
    return list(loss.get("negatives", ())) == ["batch", "mined"] and all(loss.get(key) == wanted[key] for key in wanted)


def _shown(threshold: float) -> str:
    """A number; where no threshold agrees more often than that, always or never."""
    return f"{threshold:.3g}" if math.isfinite(threshold) else "never" if threshold > 0 else "always"


def _row(name: str, texts: tuple[str, ...]) -> Row:
    return Row(name, [Cell(column, text) for column, text in zip(_COLUMNS, texts, strict=True)])
