"""`itrpipe evaluate --protocol leaky-diagonal`: what a protocol that leaks the answer makes of a model's recall.

Its numbers are no result. They lie in a file of their own beside the evaluation, which is no part of its artifact:
metrics, rankings, fingerprints and the report know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from itrpipe.artifacts.disk import write_json
from itrpipe.artifacts.files import METRICS
from itrpipe.artifacts.integrity import read_checked_json
from itrpipe.commands.trained import evaluated_model
from itrpipe.config import did_you_mean
from itrpipe.errors import UsageError
from itrpipe.evaluation.results import FULL, RESULT_PROTOCOLS
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.training import settings as training_settings

LEAKY = "leaky-diagonal"
LEAKY_DIAGONAL = "leaky_diagonal.json"
BLOCK = 256
"""Images or captions per forward pass."""
_TITLES = {
    "honest": "honest: every pair fused",
    "leaky_vectors": "leaky: V_g · W_g",
    "leaky_fused": "leaky: S of Eq. 4",
}


def chosen_protocols(names: Sequence[str]) -> tuple[list[str] | None, bool]:
    """The protocols of results among `--protocol` names, None where there is none, and whether `LEAKY` is among them.

    Raises:
        UsageError: there is no protocol of a name.
    """
    known = (*RESULT_PROTOCOLS, LEAKY)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
            raise UsageError(f"--protocol {name}: there is none of this name{hint}")
    return [name for name in dict.fromkeys(names) if name != LEAKY] or None, LEAKY in names


def refuse_other_models(chosen: Mapping[str, Any]) -> None:
    """Call before anything is computed.

    Args:
        chosen: `method`, and `backbone` and `ensemble_with` where they were given.

    Raises:
        UsageError: the model fuses no pairs, or there are several.
    """
    backbone = train.canonical_backbone(chosen.get("backbone") or "")
    backbone = backbone or training_settings.usual_backbone(chosen["method"])
    if "fused-vectors" not in training_settings.settings_of(backbone).answers:
        raise UsageError(
            f"--protocol {LEAKY} compares vectors of fused pairs, and {backbone} fuses none; leave it out, or evaluate "
            "--method ascl"
        )
    if chosen.get("ensemble_with"):
        raise UsageError(f"--protocol {LEAKY} looks at one model; leave --ensemble-with out")


def write_leaky_diagonal(folder: Path, device: str | None, reporter: Reporter) -> None:
    """Ranks the evaluated split by vectors that know their partners, and prints that beside the honest recall.

    Writes leaky_diagonal.json into the folder of the evaluation, whose own files stay as they are.

    Args:
        folder: artifact of `evaluate`, of a single AsCL.
        device: `auto`, `cpu` or `cuda`; None is `auto`.
        reporter: prints the recalls.

    Raises:
        UsageError: the model was trained without fusion.
        MissingInputError: what the model was trained on was removed.
    """
    from itrpipe.analysis.leaky_protocol import leaky_figures

    opened = evaluated_model(folder, device)
    measured = read_checked_json(folder / METRICS)[FULL]
    honest = {name: each["value"] for name, each in measured.items()}
    pairs = opened.data.num_images * opened.data.num_captions
    with reporter.task("scoring, leaky", pairs, "pairs") as task:
        figures = leaky_figures(opened, honest, BLOCK, task.advance)
    write_json(folder / LEAKY_DIAGONAL, figures)
    _say(figures, reporter)


def _say(figures: Mapping[str, Any], reporter: Reporter) -> None:
    from itrpipe.analysis.leaky_protocol import FIGURES
    from itrpipe.evaluation.rsum import CUTOFFS

    titles = [f"{side} R@{k}" if k == CUTOFFS[0] else f"R@{k}" for side in ("i2t", "t2i") for k in CUTOFFS]
    width = max(map(len, _TITLES.values()))
    reporter.say(f"  {LEAKY}: {figures['note']}", style="yellow")
    reporter.say("  " + " " * width + "".join(f"{title:>9}" for title in [*titles, "RSum"]))
    for key, title in _TITLES.items():
        reporter.say(f"  {title:<{width}}" + "".join(f"{figures[key][name]:>9.1f}" for name in FIGURES))
