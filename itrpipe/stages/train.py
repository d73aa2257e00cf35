"""`itrpipe train`: trains a backbone with a method and embeds every split with the best weights.

The first training is `--method triplet`; a second one (`--method aoq`) also reads the lists mined with its model.
"""

from __future__ import annotations

import dataclasses
import operator
from pathlib import Path
from typing import Any, cast

from itrpipe.config import COMMAND_LINE, did_you_mean, load_declaration
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.declaration import Mined, ReadsSentences, masked_by, method_package, mined_by
from itrpipe.models.declaration import BACKBONES, backbone_family, backbone_names, canonical_backbone, settings_of
from itrpipe.stages.base import Job, Need, Stage, Step, prepare_need
from itrpipe.storage.integrity import DigestCache, folder_digests, local_folders
from itrpipe.synthesis.generators import usual_method
from itrpipe.training import settings as training_settings
from itrpipe.training.checks import refuse_other_features, require_encoders
from itrpipe.training.settings import READ_UNTRAINED, MineSettings, Model, TrainExecution, TrainSettings, run_label

INITIAL, MINED = "initial", "mine_negatives"
TEACHER_OF_PAIRS = "vsrn"
"""Backbone that mines for those without embeddings (AOQ §4.2: the lists of SCAN and BFAN are VSRN's)."""
UNKNOWN_WORDS = "unknown_percent_of_{}_words"
"""Metric of the splits val and test, where the model has a vocabulary of its own."""
_MOST_UNKNOWN = 50


class Train(Stage):
    """Trains a model."""

    schema_version = 3
    settings = TrainSettings
    execution = TrainExecution
    untimed = frozenset(
        (
            "seed",
            "learning_rate",
            "learning_rate_scaling",
            "base_batch_size",
            "schedule",
            "warmup_updates",
            "decay_every",
            "decay_at",
            "decay_factor",
            "gradient_clip",
            "weight_decay",
            "layer_decay",
            "patience",
            "selection",
        )
    )

    def check(self, step: Step) -> None:
        """Refuses features that a model cannot read, encoders that cannot be fetched, and options that change nothing.

        Raises:
            UsageError: one of them, or an option that changes nothing was given.
        """
        settings = cast(TrainSettings, step.settings)
        refuse_other_features(settings, step.inputs["extract"].settings)
        self.check_read(step)
        require_encoders(settings, step.resolved.origins, step.need.conf)
        mined = mined_by(settings.loss)
        if mined is not None and mined.refresh_every:
            _refuse_refreshing(step, settings, mined.refresh_every)

    def check_read(self, step: Step) -> None:
        """Refuses options that change nothing, also where the model is trained already.

        Raises:
            UsageError: likewise.
        """
        settings = cast(TrainSettings, step.settings)
        for name in settings.unused_options():
            if step.resolved.origins.get(name) == COMMAND_LINE:
                value = operator.attrgetter(name)(settings)
                if name == "loss.teacher":
                    raise UsageError(f"--negatives-from {value} is for mined negatives; add --negatives mined")
                raise UsageError(
                    f"{step.need.conf}: {name} = {value} changes nothing with the other settings as they are; leave "
                    f"it out, or see `itrpipe show train {step.need.conf}` for what is read"
                )

    def label(self, conf: str, settings: TrainSettings) -> str:
        """`method.backbone`, with the seed when it is not 0."""
        return run_label(conf, settings.backbone, settings.seed)

    def sources(
        self, settings: TrainSettings, definition: StageDefinition | None, cache: DigestCache
    ) -> dict[str, str]:
        """Digests of pretrained encoders and published weights that lie on this machine.

        Raises:
            MissingInputError: there is no such folder or file.
        """
        published = settings.model.published_weights()
        digests = {INITIAL: cache.digest(Path(published).expanduser())} if published else {}
        return digests | folder_digests(local_folders(settings.model.pretrained()), cache)

    def fingerprinted(self, settings: TrainSettings) -> dict[str, Any]:
        """The settings as the fingerprint sees them: of encoders and files their content counts and not where they lie.

        Of a plug-in, name and version count.
        """
        values = settings.counted() | {"model": settings.model.counted(), "loss": settings.loss.counted()}
        here = [INITIAL] if settings.model.published_weights() else []
        values["model"] |= dict.fromkeys((*here, *local_folders(settings.model.pretrained())), "local")
        for key in settings.unused_options():
            *group, name = key.split(".")
            (values[group[0]] if group else values).pop(name)
        if not settings.loss.trains:
            read = READ_UNTRAINED | (
                {"precision"} if settings.embed_precision == training_settings.AS_TRAINED else set()
            )
            values = {name: value for name, value in values.items() if name in read}
        brought = {
            "method": method_package(settings.method),
            "backbone": BACKBONES.package(backbone_family(settings.backbone)),
        }
        return values | {f"{name}_package": package for name, package in brought.items() if package}

    def needs(self, settings: TrainSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Captions, features, the weights to start from and, for AOQ, the mined lists of the teacher.

        Raises:
            UsageError: the method does not train this backbone.
        """
        measure = getattr(settings.model, "measure", "cosine")
        loss, mined = settings.loss, mined_by(settings.loss)
        # Where the model itself mines again, it is searched by inner product.
        compares = loss.compares_embeddings or (mined is not None and mined.refresh_every > 0)
        if compares and (not settings.model.embeds or measure != "cosine"):
            how = f"compares by {measure}" if settings.model.embeds else "scores pairs and has no embeddings"
            raise UsageError(
                f"method {settings.method!r} compares embeddings by inner product and backbone {settings.backbone!r} "
                f"{how}; train another --backbone, such as vsepp"
            )
        only = settings.loss.only_backbone
        other = f"it trains {only} and nothing else" if only and backbone_family(settings.backbone) != only else ""
        if reason := settings.model.refuses(settings.loss) or other:
            raise UsageError(
                f"method {settings.method!r} does not train backbone {settings.backbone!r}: {reason}; leave --backbone "
                "out or name another --method"
            )
        if not settings.loss.trains and (reason := settings.model.untrained()):
            raise UsageError(f"method {settings.method!r} needs a model that is trained already: {reason}")
        if isinstance(loss, Contrastive) and loss.reads_pretrained_scale() and (reason := settings.model.untrained()):
            raise UsageError(
                f"temperature or bias = own is that of a pretrained joint model: {reason}; or give a number, as in "
                "--set loss.temperature=0.07"
            )
        wanted = {"prepare": prepare_need(definition), "extract": Need("extract", settings.features)}
        if mined is not None:
            wanted["mine_negatives"] = _mining(settings, mined, definition)
        masked = masked_by(loss)
        if settings.model.reads_phrases or (masked is not None and masked.units == "phrases"):
            wanted["parse"] = Need("parse", "rules")
        if isinstance(loss, ReadsSentences) and loss.reads_sentences():
            asked: dict[str, Any] = {"split": "train", **_same_share(settings)}
            if usual_method(settings.sentences):  # rules write the same for the models of all seeds
                asked["seed"] = settings.seed
            wanted["synthesize"] = Need("synthesize", settings.sentences, asked)
        same = {name: getattr(settings, name) for name in ("backbone", "seed", "features", "train_share")}
        starts = {"start": settings.start_from}
        if masked is not None:
            starts["writer"] = masked.writer
        for name, conf in starts.items():
            if conf:
                wanted[name] = Need("train", conf, same)
        return wanted

    def run(self, job: Job) -> None:
        """Trains, keeps the weights that validated best, and embeds every split with them where the model embeds.

        Of several processes of a launcher all train; the first does all else.
        """
        from itrpipe.training.recipe import train

        for split, percent in train(job).items():
            tell_unknown_words(job, split, percent)


def tell_unknown_words(job: Job, split: str, percent: int) -> None:
    """Note how many words of a split's captions the model does not know, and warn where it is more than half."""
    job.metrics[UNKNOWN_WORDS.format(split)] = percent
    if percent > _MOST_UNKNOWN:
        job.warn(
            f"{percent} % of the words of {split} captions are unknown to the model, which reads words between blanks "
            "that are frequent in training; where a language has no blanks, train a model with a tokenizer, such as "
            "--backbone dual-encoder --text bert-base-multilingual-cased"
        )


def _refuse_refreshing(step: Step, settings: TrainSettings, every: int) -> None:
    """Refuses to mine again where steps are counted before there are lists, or where a second model orders these."""
    mining = cast(MineSettings, step.inputs["mine_negatives"].settings)
    reason = ""
    if settings.batch_by == "tokens":
        reason = "batches of tokens are counted before training begins; give --set train.batch_by=pairs"
    if mining.rescore_with:
        reason = f"{mining.rescore_with} orders the lists, and does not learn meanwhile; leave rescore_with out"
    if reason:
        raise UsageError(f"{step.need.conf} mines again every {every} epochs, but {reason}")


def _mining(settings: TrainSettings, mined: Mined, definition: DatasetDefinition) -> Need:
    """The lists that are drawn from.

    Raises:
        UsageError: there is no model of the teacher's name.
    """
    mining, given = _teacher(settings, mined, definition)
    # --set train.model.… holds for the same backbone. Where one reads pixels, another usually cannot; then no features
    # are named.
    features = settings.features
    if is_given(mining.backbone):
        features = ""
    elif mining.backbone != settings.backbone:
        read = settings_of(canonical_backbone(mining.backbone))().reads()
        features = features if ("pixels" in settings.model.reads()) == ("pixels" in read) else ""
    asked = {
        "backbone": mining.backbone,
        "method": mining.method,
        "seed": mining.seed,
        "features": features,
        **_same_share(settings),
        **({"guard": mined.guard} if mined.guard else {}),
    }
    return Need("mine_negatives", "exact", asked, **given)


def _teacher(
    settings: TrainSettings, mined: Mined, definition: DatasetDefinition
) -> tuple[Model, dict[str, dict[str, str]]]:
    """The model that is mined with, and how a need says that it has a name."""
    usual = settings.backbone if settings.model.embeds else TEACHER_OF_PAIRS
    first = Model(training_settings.FIRST_TRAINING, usual, settings.seed)
    name = mined.teacher
    if name is None:
        return first, {}
    if name in load_declaration("train").confs and name not in backbone_names():
        return dataclasses.replace(first, method=name), {}
    if name in definition.models:
        return Model.defined_by(definition.models[name], settings.seed), {"named": {"train": name}}
    try:
        has_embeddings = f"{GIVEN}-{name}.train" in definition.embeddings
        return first.named_by(f"{GIVEN}-{name}" if has_embeddings else name), {}
    except ValueError as error:
        if hint := did_you_mean(name, definition.models):
            raise UsageError(f"--negatives-from {name}: no model has this name{hint}") from None
        known = f"no model has this name; known: {', '.join(definition.models)}; " if definition.models else ""
        raise UsageError(f"--negatives-from {name}: {known}{error}") from None


def _same_share(settings: TrainSettings) -> dict[str, float]:
    """Return the share of the training images that teachers are told of; nothing where it is all of them."""
    return {} if settings.train_share == 1.0 else {"train_share": settings.train_share}
