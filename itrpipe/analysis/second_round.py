"""Whether a second training is worth it: a table of rules over what `itrpipe.analysis.questions.second_round` found.

`RULES` with the constants above it is all that decides; it reads nothing but the diagnostics.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from itrpipe.evaluation.metrics import MOST, REMEDY, random_recalls
from itrpipe.methods.contrastive.declaration import Contrastive

RISING, ANSWERS = 3.0, 3.0
"""RSum gained over the last third of the epochs, above which the first training has not converged; and that many
answers, of which one counts 100 / N in a recall among N images."""
ABOVE_CHANCE, OF_THE_REST = 1.5, 0.1
"""A training has learned little unless validation is this many times chance, or this much of the way from it to 600."""
BY_HEART, LEAST_GAP = 0.5, 100.0
"""It knows its training images by heart where it is this much of the way to 600 better on them, and so many points."""
BEST = 600.0
EVIDENCE = (
    "Expect little: in 20 experiments with small models, mined negatives gained 0.8 RSum (−0.5 to +2.1) on average "
    "over the best baseline, and −0.4 with four further runs."
)
"""How sure the advice to mine is."""


class Rule(NamedTuple):
    """What to do where something holds.

    Attributes:
        action: what.
        end: what the command adds to the name of the first training; `mined` where it is to mine.
        holds: the condition, of `signals`.
        sentence: that and why, for people, formatted with them.
    """

    action: str
    end: str
    holds: Callable[[Mapping[str, Any]], Any]
    sentence: str


RULES = (
    Rule(
        "collapsed",
        "longer",
        lambda found: found["collapse"],
        f"This model has learned little: {{collapse}}; {REMEDY}.",
    ),
    Rule(
        "train",
        "longer",
        lambda found: found["rise"] and not found["falls"],
        "Train longer before anything else: {rise}.",
    ),
    Rule(
        "by-heart",
        "mined",
        lambda found: found["gap"] > max(LEAST_GAP, BY_HEART * (BEST - found["validation"])),
        "The model overfits: RSum {train:.0f} on training images, {validation:.0f} on validation. Use more images, "
        "a pretrained encoder or fewer epochs first; if none of these helps, mine.",
    ),
    Rule(
        "mine",
        "mined",
        lambda found: True,
        "You can mine: the hardest negative of a batch of {batch_size:,} beats {batch:.0f} % of the pairs, that of all "
        "{images:,} images {dataset:.0f} %.",
    ),
)
"""The first that holds is the advice. False negatives do not count: without them mined candidates gained no more."""


class Advice(NamedTuple):
    """What to do after the first training.

    Attributes:
        action: of the rule that holds.
        sentence: what to do and why, for people.
        command: to type next.
        evidence: how sure this is, where it is to mine; else empty.
    """

    action: str
    sentence: str
    command: str
    evidence: str


def signals(diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """What the rules read of that which `itrpipe.analysis.questions.second_round.diagnose` returned.

    Returns:
        `images`, `batch_size`; RSum on `validation` and on `train`ing images, and their `gap`; why the model learned
        little (`collapse`) and what validation gained last (`rise`), texts that are empty where it has not; whether the
        rate `falls` meanwhile, which lifts validation whether or not the training has converged; and mean % of pairs
        that score below the hardest negative of a `batch` and of the `dataset`.
    """
    model, fit, gained = diagnostics["model"], diagnostics["fit"], diagnostics["validation"]["gained"]
    images, sides, validation = fit["images"], [*diagnostics["directions"].values()], fit["validation"]
    own = [each["beaten"] for side in sides for each in side["batches"] if each["size"] == model["batch_size"]]
    chance = random_recalls(images, round(images * model["captions"] / model["images"]))["rsum"]
    collapse = f"most training images get the same {MOST} captions" if fit["alike"] else ""
    if validation < min(ABOVE_CHANCE * chance, chance + OF_THE_REST * (BEST - chance)):
        collapse = f"validation reaches an RSum of {validation:.1f}, and chance {chance:.1f}"
    rise = "there were too few epochs to see whether it has converged"
    if gained is not None:
        noise = max(RISING, 100 * ANSWERS / images)
        rise = f"validation gained {gained:.1f} RSum over the last third of its epochs" if gained > noise else ""
    return {
        "images": model["images"],
        "batch_size": model["batch_size"],
        "validation": validation,
        "train": validation + fit["gap"],
        "gap": fit["gap"],
        "collapse": collapse,
        "rise": rise,
        "falls": gained is not None and _falls(model["schedule"]),
        "batch": sum(own) / len(own),
        "dataset": sum(side["hardest"]["beaten"] for side in sides) / len(sides),
    }


def _falls(schedule: Mapping[str, Any]) -> bool:
    """Whether the learning rate falls over the last third of the epochs."""
    if schedule["schedule"] != "step":
        return schedule["schedule"] != "plateau"
    epochs = schedule["epochs"]
    falls = schedule["decay_at"] or range(schedule["decay_every"], epochs, schedule["decay_every"])
    return any(2 * epochs / 3 <= epoch < epochs for epoch in falls)


def recommend(diagnostics: Mapping[str, Any], named: str = "") -> Advice:
    """Says what to do after the first training, by the first of `RULES` that holds.

    Mined negatives are candidates of InfoNCE, also in lists that a model of the triplet loss mined: AOQ gained nothing
    over it. The command has the settings of the first training by its name, else as they are declared.

    Args:
        diagnostics: of `itrpipe.analysis.questions.second_round.diagnose`.
        named: what the user calls the model of the first training; often nothing.
    """
    found, model = signals(diagnostics), diagnostics["model"]
    rule = next(rule for rule in RULES if rule.holds(found))
    mines, method = rule.end == "mined", model["method"]
    if mines and (method == "contrastive-batch" or model["objective"] != "contrastive"):
        method = "contrastive"
    given = ["--name", f"{named}-{rule.end}", "--like", named] if named else ["--backbone", model["backbone"]]
    given += ["--seed", str(model["seed"])]
    given += ["--method", method] if not named or method != model["method"] else []
    given += ["--negatives", "mined", "--negatives-from", named or model["method"]] if mines else []
    settings: dict[str, Any] = {}
    if rule.end == "longer":  # all that is counted in epochs, twice
        schedule = model["schedule"]
        names = ("epochs", "patience", *(("decay_every", "decay_at") if schedule["schedule"] == "step" else ()))
        for name, own in ((name, schedule[name]) for name in names if schedule[name]):
            settings[name] = [2 * each for each in own] if isinstance(own, list) else 2 * own
    elif lists := Contrastive(negatives=("mined",)).mined():  # that are no large part of a small training set
        shorter = lists.shorter(model["captions"], model["images"]).items()
        settings = {f"loss.{name}": count for name, count in shorter}
        settings |= {f"mine_negatives.{name.replace('top', 'num')}": count for name, count in shorter}
    for name, value in settings.items():
        given += ["--set", f"{name}={value}".replace(" ", "")]
    command = shlex.join(["itrpipe", "train", "--dataset", model["dataset"], *given])
    return Advice(rule.action, rule.sentence.format(**found), command, EVIDENCE if mines else "")
