"""Whether a second training is worth it: a rule over what `itrpipe.analysis.second_round` found out.

The rule is `recommend` with the constants above it, and reads nothing but the diagnostics.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from itrpipe.evaluation.collapse import MOST, REMEDY
from itrpipe.methods.contrastive.declaration import Contrastive

Action = Literal["warm-up", "lower", "collapsed", "train", "mine"]
ACTIONS: dict[Action, str] = {
    "warm-up": "a shorter warm-up",
    "lower": "a lower learning rate",
    "collapsed": "train longer, or better features",
    "train": "train longer",
    "mine": "mine",
}

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
ENDS: dict[Action, str] = {
    "warm-up": "warm",
    "lower": "lower",
    "collapsed": "longer",
    "train": "longer",
    "mine": "mined",
}
"""What the command of an advice adds to the name of the first training."""
EVIDENCE = (
    "Expect little: in 20 settings of small models from random weights mined candidates were 0.8 RSum (−0.5 to +2.1) "
    "above the strongest baseline on average, and nothing that the first training tells said where."
)
"""How sure the advice to mine is."""


@dataclass(frozen=True)
class Advice:
    """What to do after the first training.

    Attributes:
        action: what.
        sentences: that and why, for people.
        command: to type next.
        by_heart: whether the model knows its training images so well that other data come first.
        evidence: how sure this is, where it is to mine; else empty.
        control: trains what the result is to be compared with, where a sentence says so; else empty.
    """

    action: Action
    sentences: tuple[str, ...]
    command: str
    evidence: str
    by_heart: bool = False
    control: str = ""

    @property
    def leads(self) -> str:
        """What the command is, to stand before it."""
        return "to mine all the same" if self.by_heart else "next"


@dataclass(frozen=True)
class Signals:
    """The diagnostics that the rule reads; percentages are means over both directions, None where not known.

    Attributes:
        images, batch_size: N and B.
        validation: best RSum.
        noise: RSum that a change of validation has to exceed to say something: more where fewer images are validated
            on.
        best_epoch, fell: of that, and how far the last validation is below it.
        gained: RSum over the last third of the epochs.
        falls: whether the learning rate fell over that third, which lifts validation whether or not the training
            has converged.
        updates, warm_up: of the weights, and over how many the learning rate rises; 0 where that was not recorded.
        chance: RSum that a random order of as many validation images may expect.
        gap: RSum on training images above that of the validation.
        alike: whether most training images get the same captions.
        batch_beaten, dataset_beaten: % of the pairs that score below the hardest negative of a batch, of the dataset.
        batch_active, dataset_active: % of the pairs whose hinge these make active.
        batch_false, dataset_false, top_false: % of correct matches among these, and among the top of the dataset.
        estimated: whether the last three are FNE's estimates, because the truth is not known.
        larger: batch size -> as `batch_beaten`, of larger batches.
    """

    images: int
    batch_size: int
    validation: float
    noise: float
    best_epoch: float
    fell: float
    gained: float | None
    falls: bool
    updates: int
    warm_up: int
    chance: float
    gap: float
    alike: bool
    batch_beaten: float
    dataset_beaten: float
    batch_active: float
    dataset_active: float
    batch_false: float | None
    dataset_false: float | None
    top_false: float | None
    estimated: bool
    larger: Mapping[int, float]


def signals(diagnostics: Mapping[str, Any]) -> Signals:
    """Sums up what `itrpipe.analysis.second_round.diagnose` returned."""
    from itrpipe.evaluation.metrics import random_recalls

    model, fit = diagnostics["model"], diagnostics["fit"]
    size = model["batch_size"]
    sides = list(diagnostics["directions"].values())
    own = [next(each for each in side["batches"] if each["size"] == size) for side in sides]
    hardest, top = ([side[name] for side in sides] for name in ("hardest", "top"))
    false = "false" if model["truth"] else "estimated_false"
    return Signals(
        images=model["images"],
        batch_size=size,
        validation=fit["validation"],
        noise=max(RISING, 100 * ANSWERS / fit["images"]),
        best_epoch=diagnostics["validation"].get("best_epoch", 0),
        fell=diagnostics["validation"].get("fell") or 0.0,
        gained=diagnostics["validation"]["gained"],
        falls=_falls(model["schedule"]),
        updates=model.get("updates", 0),
        warm_up=model["schedule"].get("warmup_updates", 0) if "updates" in model else 0,
        chance=random_recalls(fit["images"], round(fit["images"] * model["captions"] / model["images"]))["rsum"],
        gap=fit["gap"],
        alike=fit.get("alike", False),  # what was evaluated earlier does not tell it
        batch_beaten=_known(own, "beaten"),
        dataset_beaten=_known(hardest, "beaten"),
        batch_active=_known(own, "active"),
        dataset_active=_known(hardest, "active"),
        batch_false=_mean(own, false),
        dataset_false=_mean(hardest, false),
        top_false=_mean(top, false),
        estimated=not model["truth"],
        larger={other: share for other, share in beaten_by_size(diagnostics).items() if other > size},
    )


def beaten_by_size(diagnostics: Mapping[str, Any]) -> dict[int, float]:
    """Batch size -> % of the pairs that score below its hardest negative, mean of both directions, small ones first."""
    sides = zip(*(side["batches"] for side in diagnostics["directions"].values()), strict=True)
    return {batches[0]["size"]: _known(batches, "beaten") for batches in sides}


def recommend(diagnostics: Mapping[str, Any], named: str = "", start: float | None = None, usual: int = 0) -> Advice:
    """Says what to do after the first training.

    Where the learning rate never rose to its height, a shorter warm-up comes first, and where validation stays below
    that of the model that fine-tuning began from, a lower rate. A model that has collapsed, which ranks near chance or
    gives most images the same captions, is trained longer, or on better features. The first training is trained on
    while its validation rises at a rate that does not fall. Then negatives are mined, however many of them are correct
    matches: without these, mined candidates gained no more. They are candidates of InfoNCE, also in lists that a model
    of the triplet loss mined: AOQ gained nothing over it. How much harder the hardest of the dataset are than those of
    a batch is shown; it did not tell where they pay.

    Args:
        diagnostics: of `itrpipe.analysis.second_round.diagnose`.
        named: what the user calls the model of the first training; often nothing.
        start: RSum on validation of the pretrained model that it began from; None where that is not known.
        usual: the seed that this name alone stands for.
    """
    found = signals(diagnostics)
    action = _action(found, start)
    by_heart = action == "mine" and _knows_training_only(found)
    command = _command(action, diagnostics, named, usual)
    control = _command("train", diagnostics, named, usual) if action == "mine" and _rises_as_rate_falls(found) else ""
    evidence = EVIDENCE if action == "mine" else ""
    return Advice(action, _sentences(action, found, start), command, evidence, by_heart, control)


def _action(found: Signals, start: float | None) -> Action:
    if found.updates < found.warm_up:
        return "warm-up"
    if start is not None and found.validation < start - found.noise:
        return "lower"
    if found.alike or _is_at_chance(found):
        return "collapsed"
    if found.gained is None or (found.gained > found.noise and not found.falls):
        return "train"
    return "mine"


def _is_at_chance(found: Signals) -> bool:
    return found.validation < min(ABOVE_CHANCE * found.chance, found.chance + OF_THE_REST * (BEST - found.chance))


def _knows_training_only(found: Signals) -> bool:
    """Whether little of what it learned carries over."""
    return found.gap > max(LEAST_GAP, BY_HEART * (BEST - found.validation))


def _rises_as_rate_falls(found: Signals) -> bool:
    """Whether validation rose over the last third of the epochs, as it would even where a training has converged."""
    return found.gained is not None and found.gained > found.noise and found.falls


def _sentences(action: Action, found: Signals, start: float | None) -> tuple[str, ...]:
    larger = "".join(f", of a batch of {size:,} {share:.0f} %" for size, share in [*found.larger.items()][:1])
    beaten = (
        f"the hardest negative of a batch of {found.batch_size:,} beats {found.batch_beaten:.0f} % of the pairs"
        f"{larger}, and that of all {found.images:,} images {found.dataset_beaten:.0f} %"
    )
    if action == "warm-up":
        return (
            f"Let the learning rate rise before anything else: warmup_updates = {found.warm_up:,}, and the first "
            f"training ended after {found.updates:,} updates, at {100 * found.updates / found.warm_up:.0f} % of the "
            "rate that was asked for. Set fewer, or a smaller batch_size, which makes more updates of an epoch.",
            f"So far, {beaten}.",
        )
    if action == "collapsed":
        why = f"validation reaches an RSum of {found.validation:.1f}, and chance {found.chance:.1f}"
        if not _is_at_chance(found):
            why = f"most training images get the same {MOST} captions"
        return (f"This model has collapsed: {why}; {REMEDY}.",)
    if action == "lower":
        return (
            f"Fine-tuning did harm: validation is at {found.validation:.1f} RSum, and at {start:.1f} of the model that "
            "it began from. Try a lower learning rate, fewer epochs, or weights half-way (average=wise-ft:0.5), before "
            "other negatives.",
            f"So far, {beaten}.",
        )
    if action == "train":
        rises = "there were too few epochs to tell whether it has converged"
        if found.gained is not None:
            rises = f"validation gained {found.gained:.1f} RSum over the last third of its epochs"
        return (f"Train the first training longer before anything else: {rises}.", f"So far, {beaten}.")
    unsure = ""
    if _rises_as_rate_falls(found):
        unsure = (
            f" Validation gained {found.gained:.1f} RSum over the last third of the epochs while the learning rate "
            "fell, so compare with the first training trained for twice as long, too."
        )
    elif found.gained is not None and found.gained > RISING:
        unsure = f" That validation gained {found.gained:.1f} RSum at last is little for so few images."
    if start is not None and found.validation <= start:
        unsure += f" Validation is not above the {start:.1f} of the model that it began from: compare with that, too."
    if found.fell > found.noise:
        unsure += (
            f" Validation was best after epoch {found.best_epoch:g}, whose weights are kept, and fell by "
            f"{found.fell:.1f} RSum since: a lower learning rate may go further."
        )
    true = "How many of the top candidates are correct matches is not known."
    if found.top_false is not None:
        estimate = ", as FNE estimates by this model's own scores," if found.estimated else ""
        true = f"Of the top candidates{estimate} {found.top_false:.0f} % are correct matches."
    if _knows_training_only(found):
        return (
            f"It knows its training images by heart: RSum {found.validation + found.gap:.0f} on them, "
            f"{found.validation:.0f} on validation. More images, or features of a pretrained encoder, are worth trying "
            "before other negatives.",
            f"Of mining: {beaten}. {true}{unsure}",
        )
    return (f"Mine: {beaten}.", true + unsure)


def _command(action: Action, diagnostics: Mapping[str, Any], named: str, usual: int) -> str:
    """What to type next, with the settings of the first training: those of its name, else as they are declared."""
    model: Mapping[str, Any] = diagnostics["model"]
    method: str = model["method"]
    contrastive = model["objective"] == "contrastive"
    own = "contrastive" if method == "contrastive-batch" or not contrastive else method
    given = ["--dataset", model["dataset"]]
    if named:
        given += ["--name", f"{named}-{ENDS[action]}", "--like", named]
        other = ["--method", own] if action == "mine" and own != method else []
    else:
        given += ["--backbone", model["backbone"]]
        other = ["--method", own if action == "mine" else method]
    given += ["--seed", str(model["seed"])] if model["seed"] != usual else []
    rate = model["schedule"].get("learning_rate")  # what was evaluated earlier does not tell it
    options: dict[Action, list[str]] = {
        "warm-up": [*other, "--set", f"warmup_updates={max(1, round(WARM_UP * model.get('updates', 0)))}"],
        "lower": [*other, "--set", f"learning_rate={rate / RATE:.3g}" if rate else "learning_rate=…"],
        "collapsed": [*other, *_doubled(model["schedule"])],
        "train": [*other, *_doubled(model["schedule"])],
        "mine": [*other, "--negatives", "mined", "--negatives-from", named or method, *_fewer(model)],
    }
    return shlex.join(["itrpipe", "train", *given, *options[action]])


def _doubled(schedule: Mapping[str, Any]) -> list[str]:
    """The settings of twice as many epochs."""
    settings = {"epochs": 2 * schedule["epochs"]}
    settings |= {"patience": 0} if schedule.get("patience") else {}  # which may have ended it, and would again
    if schedule["schedule"] == "step":
        later = [2 * epoch for epoch in schedule["decay_at"]]
        settings |= {"decay_at": later} if later else {"decay_every": 2 * schedule["decay_every"]}
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}".replace(" ", ""))]


def _fewer(model: Mapping[str, Any]) -> list[str]:
    """Settings of lists that are no large part of a small training set, and no longer than it."""
    captions, images = model["captions"], model["images"]
    mined = Contrastive(negatives=("mined",)).mined()
    shorter = {} if mined is None else mined.shorter(captions, images)
    settings = {f"loss.{name}": count for name, count in shorter.items()}
    if mined is not None and (images <= mined.images or captions <= mined.texts + model.get("most_captions", 0)):
        settings |= {f"mine_negatives.num_{name.removeprefix('top_')}": count for name, count in shorter.items()}
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


def _falls(schedule: Mapping[str, Any]) -> bool:
    """Whether the learning rate falls over the last third of the epochs."""
    if schedule["schedule"] != "step":
        return schedule["schedule"] != "plateau"
    epochs = schedule["epochs"]
    falls = schedule["decay_at"] or range(schedule["decay_every"], epochs, schedule["decay_every"])
    return any(2 * epochs / 3 <= epoch < epochs for epoch in falls)


def _known(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return None if any(row[name] is None for row in rows) else _known(rows, name)
