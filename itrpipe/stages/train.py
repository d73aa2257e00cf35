"""`itrpipe train`: trains a backbone with a method and embeds every split with the best weights.

Round one is `--method triplet`; round two (`--method aoq`) also reads the lists mined with a round-one model.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from itrpipe.artifacts.artifact import PARTIAL
from itrpipe.artifacts.files import HISTORY
from itrpipe.artifacts.sources import DigestCache, local_folders
from itrpipe.config import Settings, leaves, load_declaration
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine.device import resolve_device
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.methods.declaration import Mined
from itrpipe.methods.registry import method_module, method_package, methods
from itrpipe.models.registry import backbone_family, backbone_package, network_module
from itrpipe.progress import Reporter
from itrpipe.stages import mine_negatives
from itrpipe.stages.base import Input, Job, Need, prepare_need
from itrpipe.stages.checks import check_training
from itrpipe.training import settings as training_settings
from itrpipe.training.named_models import Model
from itrpipe.training.settings import TrainExecution, TrainSettings, run_label, settings_of

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.methods.base import Method
    from itrpipe.models.dual_encoder.network import Encoders
    from itrpipe.training.captions import CaptionTokens
    from itrpipe.training.data import SplitData
    from itrpipe.training.encode import AnyMatcher
    from itrpipe.training.loop import LoopSettings, Trainer
    from itrpipe.training.refresh import Refreshing
    from itrpipe.training.splits import Sources
    from itrpipe.training.tracking import Tracking

SCHEMA_VERSION = 2
TRACKING = "tracking"
Execution = TrainExecution
backbones, canonical_backbone = training_settings.backbones, training_settings.canonical_backbone
usual_features, check = training_settings.usual_features, check_training
INITIAL = "initial"
_READ_UNTRAINED = {"backbone", "method", "features", "seed", "score_precision", "min_word_count", "validation_images"}
_READ_UNTRAINED |= {"train_share", "model", "loss"}
"""Settings that count where nothing is trained."""


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `TrainSettings`."""
    return TrainSettings


def label(conf: str, settings: TrainSettings) -> str:
    """`method.backbone`, with the seed when it is not 0."""
    return run_label(conf, settings.backbone, settings.seed)


def sources(settings: TrainSettings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
    """Digests of pretrained encoders and published weights that lie on this machine.

    Raises:
        MissingInputError: there is no such folder or file.
    """
    digests = {}
    for name, folder in _local_encoders(settings).items():
        if name == INITIAL:
            digests[name] = cache.digest(folder)
            continue
        if not folder.is_dir():
            raise MissingInputError(f"{folder} is not a folder; name a folder with config.json, or a hub id")
        digests[name] = cache.combined([file for file in folder.iterdir() if file.is_file()], folder, "hashing weights")
    return digests


def fingerprinted(settings: TrainSettings) -> dict[str, Any]:
    """The settings as the fingerprint sees them: of encoders in folders their content counts and not where they lie.

    Settings that are newer than trainings which must not go stale count where they are set. Of a plug-in, name and
    version count.
    """
    fields = TrainSettings.model_fields
    usual = {name for name in training_settings.NEWER if getattr(settings, name) == fields[name].default}
    values = settings.model_dump(mode="json", exclude=usual.union(settings.unused_options()))
    values["model"] |= dict.fromkeys(_local_encoders(settings), "local")
    unused = settings.loss.unused_options()
    values["loss"] = {name: value for name, value in values["loss"].items() if name not in unused}
    if not settings.loss.trains:
        values = {name: value for name, value in values.items() if name in _READ_UNTRAINED}
    brought = {"method": method_package(settings.method), "backbone": backbone_package(settings.backbone)}
    return values | {f"{name}_package": package for name, package in brought.items() if package}


def needs(settings: TrainSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Captions, features, the weights to start from and, for AOQ, the mined lists of the teacher.

    Raises:
        UsageError: the method does not train this backbone.
    """
    _refuse_without_embeddings(settings)
    only = settings.loss.only_backbone
    other = f"it trains {only} and nothing else" if only and backbone_family(settings.backbone) != only else ""
    if reason := settings.model.refuses(settings.loss) or other:
        raise UsageError(
            f"method {settings.method!r} does not train backbone {settings.backbone!r}: {reason}; leave --backbone out "
            "or name another --method"
        )
    if not settings.loss.trains and (reason := settings.model.untrained()):
        raise UsageError(f"method {settings.method!r} needs a model that is trained already: {reason}")
    if settings.loss.reads_pretrained_scale() and (reason := settings.model.untrained()):
        raise UsageError(
            f"temperature or bias = own is that of a pretrained joint model: {reason}; or give a number, as in --set "
            "loss.temperature=0.07"
        )
    wanted = {"prepare": prepare_need(definition), "extract": Need("extract", settings.features)}
    mined = settings.loss.mined()
    if mined is not None:
        mining = _teacher(settings, mined)
        teacher = {
            "backbone": mining.backbone,
            "method": mining.method,
            "seed": mining.seed,
            "features": settings.features if _reads_alike(settings, mining.backbone) else "",
            **_same_share(settings),
        }
        if mined.guard:
            teacher["guard"] = mined.guard
        wanted["mine_negatives"] = Need("mine_negatives", "exact", teacher)
    masked = settings.loss.masked()
    if settings.model.reads_phrases or (masked is not None and masked.units == "phrases"):
        wanted["parse"] = Need("parse", settings.graphs)
    if settings.loss.reads_sentences():
        wanted["synthesize"] = Need(
            "synthesize", settings.sentences, {"seed": settings.seed, "split": "train", **_same_share(settings)}
        )
    same = {name: getattr(settings, name) for name in ("backbone", "seed", "features", "train_share")}
    for name, conf in (("start", settings.start_from), ("writer", settings.loss.written_by())):
        if conf:
            wanted[name] = Need("train", conf, same)
    return wanted


def _teacher(settings: TrainSettings, mined: Mined) -> Model:
    """The model that is mined with.

    Raises:
        UsageError: there is none of its name.
    """
    usual = settings.backbone if settings.model.embeds else mined.teacher_of_pairs
    first = Model(training_settings.ROUND_ONE, usual, settings.seed)
    if mined.teacher is None:
        return first
    if mined.teacher in load_declaration("train").confs and mined.teacher not in backbones():
        return dataclasses.replace(first, method=mined.teacher)
    try:
        return first.named_by(mined.teacher)
    except ValueError as error:
        raise UsageError(f"--negatives-from {mined.teacher}: {error}") from None


def _same_share(settings: TrainSettings) -> dict[str, float]:
    """What teachers are told of the training images; nothing where it is all of them, which is what they take."""
    return {} if settings.train_share == 1.0 else {"train_share": settings.train_share}


def _reads_alike(settings: TrainSettings, backbone: str) -> bool:
    """Whether another backbone can be trained on the same features; where one reads pixels, it usually cannot."""
    if backbone == settings.backbone:  # --set train.model.… holds for both
        return True
    usual = settings_of(canonical_backbone(backbone))()
    return ("pixels" in settings.model.reads()) == ("pixels" in usual.reads())


def _refuse_without_embeddings(settings: TrainSettings) -> None:
    if not settings.loss.compares_embeddings():
        return
    measure = getattr(settings.model, "measure", "cosine")
    if not settings.model.embeds or measure != "cosine":
        how = f"compares by {measure}" if settings.model.embeds else "scores pairs and has no embeddings"
        raise UsageError(
            f"method {settings.method!r} compares embeddings by inner product and backbone {settings.backbone!r} "
            f"{how}; train another --backbone, such as vsepp"
        )


def run(job: Job) -> None:
    """Trains, keeps the weights that validated best, and embeds every split with them where the model embeds.

    Of several processes of a launcher all train; the first does all else.
    """
    from itrpipe.features.embeddings import EMBEDDINGS
    from itrpipe.models.base import DualEncoder as AnyDualEncoder
    from itrpipe.training.adapters import merge_adapters
    from itrpipe.training.encoding import Encoding
    from itrpipe.training.outputs import write_history
    from itrpipe.training.ranks import joined_by
    from itrpipe.training.saved import save_model
    from itrpipe.training.world import World

    told = {field.name: getattr(job, field.name) for field in dataclasses.fields(job) if field.name != "reporter"}
    with joined_by(World.joined(), _train_along, told):
        trainer, splits, tokens = _trainer(job)
        model = trainer.run()
    if job.settings.adapts:
        merge_adapters(model)
    save_model(job.folder, model, tokens, job.settings.model_dump(mode="json"), splits["train"].image_dim)
    write_history(job.folder / HISTORY, trainer.position.history)
    if isinstance(model, AnyDualEncoder):
        rows = {name: (data.num_images, data.num_captions) for name, data in splits.items()}
        work = Encoding(job.folder.absolute(), _sources(job), rows, job.execution.encode_block, job.execution.device)
        work.join(job.made(work).paths, job.folder / EMBEDDINGS, splits, model.measure)
    _record(job, trainer)


def _train_along(told: dict[str, Any]) -> None:
    """What the other processes do while the first one trains: the same, without a word."""
    trainer, *_ = _trainer(Job(**told, reporter=Reporter(Console(quiet=True))))
    trainer.run()


def _trainer(job: Job) -> tuple[Trainer, dict[str, SplitData], CaptionTokens]:
    """What trains the model, with the data."""
    import torch

    from itrpipe.training.loop import Trainer, training_device
    from itrpipe.training.saved import build_model, start_from
    from itrpipe.training.world import World

    if job.execution.threads:
        torch.set_num_threads(job.execution.threads)
    torch.manual_seed(job.settings.seed)
    encoders = _open_encoders(job)
    splits, tokens = _load_splits(job, encoders)
    _require_words(tokens, job.settings.min_word_count)
    for split in ("train", "val"):
        if split not in splits:
            raise MissingInputError(f"dataset {job.dataset!r} has no {split} split, which training needs")
    image_dim = splits["train"].image_dim
    settings = job.settings.model_dump(mode="json")
    model = build_model(settings, image_dim, len(tokens), encoders)
    _require_room_for_joined_captions(job.settings, model)
    if published := job.settings.model.published_weights():
        job.reporter.say(
            f"  {network_module(job.settings.backbone).load_published(model, Path(published).expanduser())}"
        )
    if "start" in job.inputs:
        start_from(job.inputs["start"].folder, model, settings, tokens)
        _start_heads(job, model)
    _read_captions(job, splits["train"], tokens, model)
    if "writer" in job.inputs:
        splits["train"].writer = _frozen(job.inputs["writer"].folder, model, settings, tokens)
    method = _build_method(job, splits["train"])
    _limit_training(job, model)
    precision = _precision(job, model, splits["train"])
    device = resolve_device(job.execution.device)
    chunk = _encode_chunk(job, model, splits["train"], precision)
    splits["train"].train_on(World.joined(), training_device(device))
    trainer = Trainer(
        _loop_settings(job, precision, chunk),
        model,
        method,
        splits["train"],
        splits["val"],
        device,
        job.work,
        job.reporter,
        _tracking(job),
        _refreshing(job, splits["train"]),
    )
    return trainer, splits, tokens


def measured(job: Job) -> str:
    """Time that an evaluation of a model without embeddings takes for its scores: often longer than an epoch.

    Nothing is told of a model that reads something of the hub.
    """
    import torch

    from itrpipe.reporting.tables import duration
    from itrpipe.training.encode import pairs_of, seconds_per_pair
    from itrpipe.training.saved import build_model

    read = {"prepare", "extract", *(["parse"] if job.settings.model.reads_phrases else [])}
    if job.settings.model.embeds or not read <= job.inputs.keys():
        return ""
    wanted = job.settings.model.pretrained()
    if local_folders(wanted).keys() < {name for name, value in wanted.items() if value}:
        return ""  # a plan downloads nothing
    encoders = _open_encoders(job)
    splits, tokens = _load_splits(job, encoders)
    if "test" not in splits:
        return ""
    data, precision = splits["test"], job.settings.score_precision
    model = build_model(job.settings.model_dump(mode="json"), data.image_dim, len(tokens), encoders)
    pairs, device = pairs_of(data), torch.device(resolve_device(job.execution.device))
    pace = seconds_per_pair(model.to(device).eval(), data, device, precision)
    return f"to evaluate it: {duration(pairs * pace)} for the scores of test, {pairs:,} pairs, at the pace measured now"


def _local_encoders(settings: TrainSettings) -> dict[str, Path]:
    """`vision`, `text`, `tokenizer` and `initial`, those of them that name a folder or file of this machine."""
    published = settings.model.published_weights()
    found = {INITIAL: Path(published).expanduser()} if published else {}
    return found | local_folders(settings.model.pretrained())


def _open_encoders(job: Job) -> Encoders | None:
    """The encoders of transformers that the model is made of, where it is."""
    from itrpipe.features.store import FEATURES, FeatureFile

    if not job.settings.model.opens_encoders:
        return None
    whole = FeatureFile.open(job.inputs["extract"].folder / FEATURES).global_
    global_dim = 0 if whole is None else whole.shape[1]
    encoders = network_module(job.settings.backbone).open_encoders(job.settings.model, global_dim)
    for note in encoders.notes:
        job.warn(note)
    return encoders


def _require_words(tokens: CaptionTokens, min_word_count: int) -> None:
    """Refuses captions of which no word would be known."""
    from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary

    vocabulary = getattr(tokens, "vocabulary", tokens)
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) == len(SPECIALS):
        raise UsageError(
            f"no word occurs min_word_count = {min_word_count:,} times in the captions, so a model would know none; "
            "lower --set train.min_word_count"
        )


def _load_splits(job: Job, encoders: Encoders | None) -> tuple[dict[str, SplitData], CaptionTokens]:
    from itrpipe.training.captions import named_tokens
    from itrpipe.training.splits import load_encoder_splits, load_phrase_splits, load_splits

    settings, sources = job.settings, _sources(job)
    if encoders is not None:
        return load_encoder_splits(sources, settings.min_word_count, job.warn, settings.model, encoders)
    if not settings.model.reads_phrases:
        return load_splits(sources, settings.min_word_count, job.warn, named_tokens(settings.model))
    words = {"max_words": settings.model.max_words, "with_phrases": settings.model.phrases}
    return load_phrase_splits(sources, settings.min_word_count, job.warn, **words)


def _sources(job: Job) -> Sources:
    from itrpipe.training.splits import Sources

    read = ("prepare", "extract", "parse")
    folders = {name: job.inputs[name].folder.absolute() for name in read if name in job.inputs}
    return Sources(**folders, train_share=job.settings.train_share)


def _require_room_for_joined_captions(settings: TrainSettings, model: AnyMatcher) -> None:
    from itrpipe.training.saved import max_tokens_of

    room, longest = max_tokens_of(model), settings.loss.longest_made()
    if longest > room:
        raise UsageError(
            f"loss.max_tokens = {longest}, but the text encoder reads {room} tokens at most; give "
            f"--set loss.max_tokens={room} or less"
        )


def _start_heads(job: Job, model: Any) -> None:
    """Heads that the run which this one starts from has not trained begin as copies of those that it has."""
    trained = methods()[job.inputs["start"].manifest.settings["method"]].heads
    if new := job.settings.loss.heads - trained:
        model.derive_heads(new)


def _frozen(folder: Path, model: AnyMatcher, settings: Mapping[str, Any], tokens: CaptionTokens) -> Any:
    """A model like the given one, with the weights of another training."""
    from itrpipe.training.saved import start_from

    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    start_from(folder, frozen, settings, tokens)
    return frozen


def _limit_training(job: Job, model: AnyMatcher) -> None:
    """Freezes and adapts encoders as the settings say, and tells how much is left to train."""
    from itrpipe.training.adapters import limit_training, trained_weights

    settings = job.settings
    if settings.loss.trains and (settings.adapts or settings.freeze != "none"):
        limit_training(model, settings)
        trained, everything = trained_weights(model)
        job.metrics["trained_weights"] = trained
        job.reporter.say(f"  {trained:,} of {everything:,} weights are trained")


def _read_captions(job: Job, train: SplitData, tokens: CaptionTokens, model: Any) -> None:
    """Gives the training set what methods mask, the sentences they read, and what they make captions by."""
    from itrpipe.training.captions import ends_of
    from itrpipe.training.masked_captions import caption_masks, read_sentences, token_captions
    from itrpipe.training.saved import max_tokens_of

    loss, masked = job.settings.loss, job.settings.loss.masked()
    if loss.joins_captions():
        train.ends, train.max_tokens = ends_of(tokens), max_tokens_of(model)
    if loss.reads_sentences():
        train.sentences = read_sentences(job.inputs["synthesize"].folder, train.split, tokens)
    if masked is not None:
        captions = token_captions(train.split, tokens, model)
        graphs = job.inputs["parse"].folder if masked.units == "phrases" else None
        train.masks = caption_masks(captions, tokens, graphs, masked.compare)


def _build_method(job: Job, train: SplitData) -> Method:
    from itrpipe.datasets.truth import known_matches

    lists = _mined_lists(job.inputs["mine_negatives"].folder, train) if "mine_negatives" in job.inputs else {}
    if job.settings.loss.counts_matches:
        train.matches = known_matches(job.inputs["prepare"].folder, train.split)
    method = method_module(job.settings.method).build(job.settings.loss, train, lists)
    if not hasattr(method, "means"):
        raise UsageError(
            f"method {job.settings.method!r} does not say whether its losses are means over a batch; define `means` in "
            f"{type(method).__name__}"
        )
    return method


def _mined_lists(folder: Path, train: SplitData) -> dict[str, np.ndarray]:
    """The lists of both directions, with the probabilities that mining wrote.

    Raises:
        DataError: they are of another training set.
    """
    import numpy as np

    from itrpipe.errors import DataError
    from itrpipe.negatives.lists import FILES, PROBABILITY_OF, read_list

    lists, anchors = {}, (train.split.image_ids, train.split.caption_ids)
    for direction, ids in zip(FILES, anchors, strict=True):
        mined = read_list(folder, direction)
        if not np.array_equal(mined.anchor_ids, ids):
            raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists[direction] = mined.candidates
        if mined.false_negative_probability is not None:
            lists[f"{PROBABILITY_OF}{direction}"] = mined.false_negative_probability
    return lists


def _refreshing(job: Job, train: SplitData) -> Refreshing | None:
    """What mines again while training goes on, as the lists were mined that it begins with."""
    from itrpipe.training.refresh import Refreshing

    if not (every := job.settings.loss.refreshes()):
        return None
    mined = job.inputs["mine_negatives"].manifest
    settings = mine_negatives.MineSettings.model_validate(mined.settings)
    here = {**mined.execution, "device": job.execution.device, "engine": "local", "workers": 0, "address": ""}
    execution = mine_negatives.Execution.model_validate(here)

    def mine(folder: Path) -> dict[str, np.ndarray]:
        inputs = {"train": Input(folder, mined), "prepare": job.inputs["prepare"]}
        again = Job(job.dataset, mined.conf, settings, execution, inputs, None, folder, job.reporter)
        again.work.mkdir()
        job.reporter.say("  mining again with the weights as they are")
        mine_negatives.run(again)
        job.messages.extend(message for message in again.messages if message not in job.messages)
        return _mined_lists(folder, train)

    return Refreshing(every, job.work / "refreshed", mine)


def _precision(job: Job, model: AnyMatcher, data: SplitData) -> str:
    """That of the settings; for `auto` the faster one, which is told and recorded."""
    from itrpipe.training.precision import AUTO, chosen_precision
    from itrpipe.training.world import World

    settings, world, chosen = job.settings, World.joined(), ""
    if settings.precision != AUTO:
        return settings.precision
    if world.leads:
        device = resolve_device(job.execution.device)
        chosen = chosen_precision(job.work, model, data, settings.batch_size, device)
    job.metrics["precision"] = world.agreed(chosen)
    job.reporter.say(f"  precision {job.metrics['precision']}, the faster one for this model on this machine")
    return job.metrics["precision"]


def _encode_chunk(job: Job, model: AnyMatcher, data: SplitData, precision: str) -> int:
    """That of the settings; for `auto` what fits in memory, which is told and recorded."""
    from itrpipe.training.chunks import chosen_chunk
    from itrpipe.training.loop import training_device
    from itrpipe.training.world import World

    settings, world, asked, rows = job.settings, World.joined(), job.execution.encode_chunk, 0
    if isinstance(asked, int):
        return asked
    if world.leads:
        pairs = settings.batch_size
        if settings.batch_by == "tokens":
            pairs = int(pairs / data.pair_sizes().mean())
        device = training_device(resolve_device(job.execution.device))
        rows = chosen_chunk(model, data, -(-pairs // world.size), device, precision)
    job.metrics["encode_chunk"] = rows = world.agreed(rows)
    job.reporter.say(f"  encode_chunk {rows} ({'by free memory' if rows else 'the whole batch'})")
    return rows


def _loop_settings(job: Job, precision: str, encode_chunk: int) -> LoopSettings:
    from itrpipe.training.loop import LoopSettings

    chosen = {"precision": precision, "encode_chunk": encode_chunk}
    values = {**job.settings.model_dump(), **job.execution.model_dump(), **chosen}
    if not job.settings.loss.trains:
        values |= {"epochs": 0, "layer_decay": 1.0, "average": "none"}
    return LoopSettings(**{field.name: values[field.name] for field in dataclasses.fields(LoopSettings)})


def _tracking(job: Job) -> Tracking:
    """What follows the training; in one folder for all trainings of the dataset, where trackers compare them."""
    from itrpipe.training.tracking import TrackedRun, Tracking, tracking_with
    from itrpipe.training.world import World

    execution = job.execution
    if not World.joined().leads:
        return Tracking.off()
    folder = Path(execution.track_to).expanduser() if execution.track_to else job.folder.parents[1] / TRACKING
    if execution.trackers:
        job.reporter.say(f"  followed by {' and '.join(execution.trackers)} in {folder}")
    run = TrackedRun(
        name=job.folder.name.removesuffix(PARTIAL),
        project=f"itrpipe-{job.dataset}",
        folder=folder,
        settings=dict(leaves(job.settings.model_dump(mode="json"))),
        work=job.work,
    )
    return tracking_with(execution.trackers, run, job.warn)


def _record(job: Job, trainer: Trainer) -> None:
    """Numbers that tables show."""
    best = trainer.position.history[trainer.position.best_row]
    job.metrics |= {
        "validation_rsum": round(best["val_rsum"], 2),
        "best_epoch": best["epoch"],
        "epochs": job.settings.epochs if job.settings.loss.trains else 0,
    }
    if trainer.trained_seconds:
        job.metrics["data_wait_percent"] = round(100 * trainer.waited_seconds / trainer.trained_seconds, 2)
    job.timings["training"] = round(trainer.trained_seconds, 3)
    job.timings["waiting_for_data"] = round(trainer.waited_seconds, 3)
