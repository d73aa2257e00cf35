"""Whether a second training is worth it: a table of rules over what `itrpipe.analysis.second_round` found out.

`RULES` with the constants above it is all that decides; it reads nothing but the diagnostics.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from itrpipe.evaluation.collapse import MOST, REMEDY
from itrpipe.methods.contrastive.declaration import Contrastive

RISING, ANSWERS = 3.0, 3.0
"""RSum gained over the last third of the epochs, above which the first training has not converged; and that many
answers, of which one counts 100 / N in a recall among N images."""
ABOVE_CHANCE, OF_THE_REST = 1.5, 0.1
"""A training has collapsed unless validation is this many times chance, or this much of the way from it to 600."""
BY_HEART, LEAST_GAP = 0.5, 100.0
"""It knows its training images by heart where it is this much of the way to 600 better on them, and so many points."""
BEST = 600.0
RATE = 3.0
"""How much smaller the learning rate is that is tried where training did harm."""
WARM_UP = 0.1
"""Share of the updates over which the rate rises where it never came to its height."""
EVIDENCE = (
    "Expect little: in 20 settings of small models from random weights mined candidates were 0.8 RSum (−0.5 to +2.1) "
    "above the strongest baseline on average, and nothing that the first training tells said where."
)
"""How sure the advice to mine is."""


@dataclass(frozen=True)
class Rule:
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

    @property
    def mines(self) -> bool:
        """Whether it is to mine."""
        return self.end == "mined"


RULES = (
    Rule(
        "warm-up",
        "warm",
        lambda found: found["updates"] < found["warm_up"],
        "Let the learning rate rise first: training ended after {updates:,} updates, and warmup_updates = {warm_up:,}. "
        "Set fewer, or a smaller batch_size, which makes more updates of an epoch.",
    ),
    Rule(
        "lower",
        "lower",
        lambda found: found["validation"] < found["start"] - found["noise"],
        "Fine-tuning did harm: validation is at {validation:.1f} RSum, the model that it began from at {start:.1f}. "
        "Try a lower learning rate, fewer epochs, or weights half-way (average=wise-ft:0.5).",
    ),
    Rule(
        "collapsed",
        "longer",
        lambda found: found["collapse"],
        f"This model has collapsed: {{collapse}}; {REMEDY}.",
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
        "It knows its training images by heart: RSum {train:.0f} on them, {validation:.0f} on validation. Try more "
        "images, or features of a pretrained encoder, before other negatives.",
    ),
    Rule(
        "mine",
        "mined",
        lambda found: True,
        "Mine: the hardest negative of a batch of {batch_size:,} beats {batch:.0f} % of the pairs, that of all "
        "{images:,} images {dataset:.0f} %.",
    ),
)
"""The first that holds is the advice. False negatives do not count: without them mined candidates gained no more."""
_TRAIN = RULES[3]
_CONTROL = "Since {rise} while the learning rate fell, compare with the first training for twice as long, too."


@dataclass(frozen=True)
class Advice:
    """What to do after the first training.

    Attributes:
        rule: that holds.
        sentences: what to do and why, for people.
        command: to type next.
        evidence: how sure this is, where it is to mine; else empty.
        control: trains what the result is to be compared with, where a sentence says so; else empty.
    """

    rule: Rule
    sentences: tuple[str, ...]
    command: str
    evidence: str
    control: str


def signals(diagnostics: Mapping[str, Any], start: float | None = None) -> dict[str, Any]:
    """What the rules read of that which `itrpipe.analysis.second_round.diagnose` returned.

    Args:
        diagnostics: of it; what was evaluated earlier tells neither the updates nor whether captions are alike.
        start: RSum on validation of the pretrained model that training began from; None where that is not known.

    Returns:
        `images`, `batch_size`; RSum on `validation` and on `train`ing images, their `gap`, and `start`, minus infinity
        where that is not known; the `noise` that a change of RSum has to exceed to say something, more where fewer
        images are validated on; `updates` of the weights, and over how many the rate rises (`warm_up`); why the model
        has collapsed (`collapse`) and what validation gained last (`rise`), texts that are empty where it has not;
        whether the rate `falls` meanwhile, which lifts validation whether or not the training has converged; and mean
        % of pairs that score below the hardest negative of a `batch` and of the `dataset`.
    """
    from itrpipe.evaluation.metrics import random_recalls

    model, fit, gained = diagnostics["model"], diagnostics["fit"], diagnostics["validation"]["gained"]
    images, sides, validation = fit["images"], [*diagnostics["directions"].values()], fit["validation"]
    own = [each for side in sides for each in side["batches"] if each["size"] == model["batch_size"]]
    chance = random_recalls(images, round(images * model["captions"] / model["images"]))["rsum"]
    collapse = f"most training images get the same {MOST} captions" if fit.get("alike") else ""
    if validation < min(ABOVE_CHANCE * chance, chance + OF_THE_REST * (BEST - chance)):
        collapse = f"validation reaches an RSum of {validation:.1f}, and chance {chance:.1f}"
    noise, rise = max(RISING, 100 * ANSWERS / images), "there were too few epochs to tell whether it has converged"
    if gained is not None:
        rise = f"validation gained {gained:.1f} RSum over the last third of its epochs" if gained > noise else ""
    return {
        **{name: model[name] for name in ("images", "batch_size")},
        "validation": validation,
        "train": validation + fit["gap"],
        "gap": fit["gap"],
        "start": float("-inf") if start is None else start,
        "noise": noise,
        "updates": model.get("updates", float("inf")),
        "warm_up": model["schedule"].get("warmup_updates", 0),
        "collapse": collapse,
        "rise": rise,
        "falls": gained is not None and _falls(model["schedule"]),
        "batch": sum(each["beaten"] for each in own) / len(own),
        "dataset": sum(side["hardest"]["beaten"] for side in sides) / len(sides),
    }


def _falls(schedule: Mapping[str, Any]) -> bool:
    """Whether the learning rate falls over the last third of the epochs."""
    if schedule["schedule"] != "step":
        return schedule["schedule"] != "plateau"
    epochs = schedule["epochs"]
    falls = schedule["decay_at"] or range(schedule["decay_every"], epochs, schedule["decay_every"])
    return any(2 * epochs / 3 <= epoch < epochs for epoch in falls)


def recommend(diagnostics: Mapping[str, Any], named: str = "", start: float | None = None, usual: int = 0) -> Advice:
    """Says what to do after the first training, by the first of `RULES` that holds.

    Mined negatives are candidates of InfoNCE, also in lists that a model of the triplet loss mined: AOQ gained nothing
    over it. Under a learning rate that falls, validation rises whether or not the training has converged; then the
    result is to be compared with a longer first training, too.

    Args:
        diagnostics: of `itrpipe.analysis.second_round.diagnose`.
        named: what the user calls the model of the first training; often nothing.
        start: RSum on validation of the pretrained model that it began from; None where that is not known.
        usual: the seed that this name alone stands for.
    """
    found, model = signals(diagnostics, start), diagnostics["model"]
    rule = next(rule for rule in RULES if rule.holds(found))
    unsure = bool(rule.mines and found["rise"])
    return Advice(
        rule,
        tuple(each.format(**found) for each in (rule.sentence, *([_CONTROL] if unsure else []))),
        _command(rule, model, named, usual),
        EVIDENCE if rule.mines else "",
        _command(_TRAIN, model, named, usual) if unsure else "",
    )


def _command(rule: Rule, model: Mapping[str, Any], named: str, usual: int) -> str:
    """What to type next, with the settings of the first training: those of its name, else as they are declared."""
    method, schedule = model["method"], model["schedule"]
    trains_by = method
    if rule.mines and (method == "contrastive-batch" or model["objective"] != "contrastive"):
        trains_by = "contrastive"
    rate = schedule.get("learning_rate")  # what was evaluated earlier does not tell it
    settings: dict[str, dict[str, Any]] = {
        "warm": {"warmup_updates": max(1, round(WARM_UP * model.get("updates", 0)))},
        "lower": {"learning_rate": f"{rate / RATE:.3g}" if rate else "…"},
        "longer": _doubled(schedule),
        "mined": _fewer(model),
    }
    given = ["--name", f"{named}-{rule.end}", "--like", named] if named else ["--backbone", model["backbone"]]
    given += ["--seed", str(model["seed"])] if model["seed"] != usual else []
    given += ["--method", trains_by] if not named or trains_by != method else []
    given += ["--negatives", "mined", "--negatives-from", named or method] if rule.mines else []
    for name, value in settings[rule.end].items():
        given += ["--set", f"{name}={value}".replace(" ", "")]
    return shlex.join(["itrpipe", "train", "--dataset", model["dataset"], *given])


def _doubled(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of twice as many epochs."""
    settings: dict[str, Any] = {"epochs": 2 * schedule["epochs"]}
    settings |= {"patience": 0} if schedule.get("patience") else {}  # which may have ended it, and would again
    if schedule["schedule"] == "step":
        later = [2 * epoch for epoch in schedule["decay_at"]]
        settings |= {"decay_at": later} if later else {"decay_every": 2 * schedule["decay_every"]}
    return settings


def _fewer(model: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of lists that are no large part of a small training set, and no longer than it."""
    captions, images, mined = model["captions"], model["images"], Contrastive(negatives=("mined",)).mined()
    assert mined is not None
    shorter = mined.shorter(captions, images)
    settings = {f"loss.{name}": count for name, count in shorter.items()}
    if images <= mined.images or captions <= mined.texts + model.get("most_captions", 0):
        settings |= {f"mine_negatives.num_{name.removeprefix('top_')}": count for name, count in shorter.items()}
    return settings
