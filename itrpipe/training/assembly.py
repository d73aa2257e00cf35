"""Put together model, method and data of a training, from the settings and inputs of its job: `assemble`.

A method may read more than pairs, such as mined lists, also those that are mined again while it trains (`Refreshing`).
The encoders are fitted to the device: they compute chunks that its memory holds (`chunk_of`), and are compiled where it
pays (`compile_for`).
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from itrpipe.datasets.truth import Decided, known_pairs
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.engine.work import CUDA
from itrpipe.errors import DataError, MissingInputError, UsageError, reason_of
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.base import Method, TokenLimits
from itrpipe.methods.declaration import WithTwins, method_module, methods, named_inputs
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import DIRECTIONS, read_list
from itrpipe.models.captions import CaptionTokens, ends_of
from itrpipe.models.declaration import network_module
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import check_stamp, reading
from itrpipe.training.data import PhraseTexts, Sources, SplitData, load_splits
from itrpipe.training.distributed import AnyMatcher, Processes, tensors_of
from itrpipe.training.encoding import SplitEncoder, embeddings
from itrpipe.training.saved import build_model, max_tokens_of, start_from

_MAX_LIST_SHARE = 0.1
"""Share of the captions, and of the images, of a training set that are negatives to be mined at most."""
_MIN_LIST_LENGTH = 10
_FEW_ROWS = 8
_MORE_ROWS = 32
_ENCODERS_SHARE = 0.6
"""Share of the free memory for the encoders; scores, twins of a model and further captions take the rest."""
_ADAM_BYTES = 8
"""Bytes that Adam keeps of each weight."""
_COMPILED_FROM = 2_000
"""Steps of a training from which on compiling pays."""
_TOKENS_OF_A_TILE = 8


def assemble(job: Any) -> tuple[AnyMatcher, Method, dict[str, SplitData], CaptionTokens]:
    """Return model, method, splits and the reader of captions, from the settings and inputs of a job.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model.
        DataError: a file is damaged.
    """
    settings = job.settings
    build = method_module(settings.method).build
    network = network_module(settings.backbone)
    encoders = None
    if settings.model.opens_encoders:
        encoders = network.open_encoders(settings.model, **feature_sizes(job))
        for note in encoders.notes:
            job.warn(note)
    splits, tokens = load_splits(sources_of(job), settings.model, settings.min_word_count, job.warn, encoders)
    vocabulary = getattr(tokens, "vocabulary", tokens)
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) == len(SPECIALS):
        raise UsageError(
            f"no word occurs min_word_count = {settings.min_word_count:,} times in the captions, so a model would "
            "know none; lower --set train.min_word_count"
        )
    for split in ("train", "val"):
        if split not in splits:
            raise MissingInputError(
                f"dataset {job.dataset!r} has no {split} split, which training needs; "
                "add images, or give a column split, and prepare it again"
            )
    train = splits["train"]

    dumped = settings.model_dump(mode="json")
    model = build_model(dumped, train.image_dim, len(tokens), encoders)
    published = settings.model.published_weights()
    if published:
        message = network.load_published(model, Path(published).expanduser())
        job.reporter.say(f"  {message}")
    if "start" in job.inputs:
        start = job.inputs["start"]
        start_from(start.folder, model, dumped, tokens)
        # Heads that the run which this one starts from has not trained begin as copies of those that it has.
        new_heads = settings.loss.heads - methods()[start.manifest.settings["method"]].heads
        if new_heads:
            model.derive_heads(new_heads)  # pyright: ignore[reportCallIssue]
    if "text" in settings.frozen and "text" not in settings.encoded_once() and settings.loss.trains:
        job.reporter.say(
            "  the frozen text encoder runs in every step; it would read all captions once with another "
            "train.model.text_pool than mean-all"
        )
    inputs = method_inputs(job, named_inputs(build), train, tokens, model)
    return model, build(settings.loss, train, **inputs), splits, tokens


def feature_sizes(job: Any) -> dict[str, Any]:
    """Return `global_dim` of the features of a training, 0 without vectors of whole images, and whether `boxes`."""
    arrays: Mapping[str, np.ndarray] = {}
    if "extract" in job.inputs:
        arrays = FeatureFile.open(job.inputs["extract"].folder / FEATURES).arrays
    global_dim = arrays["global"].shape[1] if "global" in arrays else 0
    return {"global_dim": global_dim, "boxes": "boxes" in arrays}


def sources_of(job: Any) -> Sources:
    """Return the artifacts that the data of a training are read from."""
    folders = {}
    for name in ("prepare", "extract", "parse"):
        if name in job.inputs:
            folders[name] = job.inputs[name].folder.absolute()
    frozen = {}
    for side in job.settings.encoded_once():
        frozen[side] = job.inputs[f"frozen_{side}"].folder.absolute()
    return Sources(**folders, train_share=job.settings.train_share, frozen=frozen)


@dataclass
class Refreshing:
    """Gives the lists of each epoch, which are mined anew before every k-th one with the current weights.

    Attributes:
        job: of the training.
        train: its data.
        every: k, at least 1.
        mined_before: epoch before which the lists were mined that the method has.

    Source: Xiong et al. (ANCE), "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
        ICLR 2021, section 4; there another process mines meanwhile, here training waits.
    """

    job: Any
    train: SplitData
    every: int
    mined_before: int = 0

    def lists(self, epoch: int, step: int, encoder: SplitEncoder) -> dict[str, np.ndarray] | None:
        """Return the lists of an epoch; None where they are those of the one before.

        Args:
            epoch: 0-based.
            step: of the epoch that comes next; the weights are those of the beginning of the epoch where it is 0.
            encoder: of the model that is trained.

        Raises:
            DataError: training goes on inside an epoch, and the file of its lists is damaged or gone.
        """
        mined_before = epoch - epoch % self.every
        if mined_before == self.mined_before:
            return None
        path = self.job.work / "refreshed" / f"epoch-{mined_before}.arrays"
        if epoch == mined_before and step == 0:
            data = self.train
            processes = Processes.joined()
            encoded_images = encoder.images(data, np.arange(data.num_images))
            encoded_texts = encoder.texts(data, np.arange(data.num_captions))
            images = np.concatenate(list(embeddings(encoded_images)))
            texts = np.concatenate(list(embeddings(encoded_texts)))
            if processes.leads:
                from itrpipe.training.mining import mine_again  # few trainings mine again

                shutil.rmtree(path.parent, ignore_errors=True)
                lists = mine_again(images, texts, data.split, self.job, path.parent)
                write_arrays(path, longest_used(lists))
            processes.agreed(None)  # until the first process has written them
        self.mined_before = mined_before
        remedy = f"remove {partial_of(path)} and run the same command again"
        with reading(path, "mined lists", remedy):
            check_stamp(path, remedy)
            return {name: rows.read() for name, rows in ArrayFile(path).items()}


def method_inputs(
    job: Any,
    names: tuple[str, ...],
    train: SplitData,
    tokens: CaptionTokens,
    model: Any,
) -> dict[str, Any]:
    """Read the inputs that a method declared, see `itrpipe.methods.declaration.INPUTS`.

    Args:
        job: of the training, see `itrpipe.stages.base.Job`.
        names: of the inputs that the method's `build` names.
        train: the training set.
        tokens: reads captions.
        model: with the weights that training starts from.

    Returns:
        Name -> input; None where there is none.

    Raises:
        UsageError: the method draws twins, and there are none that the model can read.
        DataError: an artifact is damaged, or of another training set.
    """
    settings = job.settings
    loss = settings.loss
    folders = {name: artifact.folder for name, artifact in job.inputs.items()}
    split = train.split
    ids = split.image_ids, split.caption_ids
    inputs: dict[str, Any] = dict.fromkeys(names)
    if "limits" in names:
        inputs["limits"] = TokenLimits(*ends_of(tokens), max_tokens_of(model))
    if "matches" in names:
        pairs = known_pairs(folders["prepare"], *ids)
        if pairs is not None:
            inputs["matches"] = pairs.lists(train.num_captions)
    if "duplicates" in names:
        inputs["duplicates"] = lambda: DuplicateCaptions(split.texts, train.caption_image)
    if "matching" in names and isinstance(train.captions, PhraseTexts):
        inputs["matching"] = train.captions.matching
    if "mine_negatives" in folders:
        if "lists" in names:
            inputs["lists"] = mined_lists(folders["mine_negatives"], train)
        if "decided" in names:
            decided = Decided.read(folders["mine_negatives"], *ids)
            if decided is not None:
                inputs["decided"] = decided.fits
    if "sentences" in names and "synthesize" in folders:
        from itrpipe.synthesis.bank import read_sentences  # few methods read sentences

        mirrors = train.mirrors and settings.model.sees_sides()
        sentences = read_sentences(folders["synthesize"], split, tokens, mirrors)
        inputs["sentences"] = sentences
        if isinstance(loss, WithTwins) and loss.twins:
            if not mirrors:
                job.warn("twins that are mirror images are left out: this training cannot mirror images")
            if not (sentences.twins >= 0).any():
                raise UsageError(
                    f"sentences = {settings.sentences} has no twins that this model can read; give --set "
                    "train.sentences=twins"
                )
    masked = loss.masked()
    if "masks" in names and masked is not None:
        from itrpipe.synthesis.tokens import caption_masks, token_captions  # few methods read captions again

        captions = token_captions(split, tokens, max_tokens_of(model))
        graphs = folders["parse"] if masked.units == "phrases" else None
        inputs["masks"] = caption_masks(captions, tokens, graphs, masked.compare)
    if "writer" in names and "writer" in folders:
        writer = copy.deepcopy(model).requires_grad_(False).eval()
        start_from(folders["writer"], writer, settings.model_dump(mode="json"), tokens)
        inputs["writer"] = writer
    return inputs


def mined_lists(folder: Path, train: SplitData) -> dict[str, np.ndarray]:
    """Read the lists of both directions, with the probabilities that mining wrote.

    Raises:
        DataError: they are of another training set.
    """
    lists = {}
    anchors = train.split.image_ids, train.split.caption_ids
    for direction, ids in zip(DIRECTIONS, anchors, strict=True):
        mined = read_list(folder, direction)
        if not np.array_equal(mined.anchor_ids, ids):
            raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists[direction] = mined.candidates
        if mined.false_negative_probability is not None:
            lists[f"{PROBABILITY_OF}{direction}"] = mined.false_negative_probability
    return longest_used(lists)


def longest_used(lists: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut lists, see `itrpipe.learning.mined.Lists`, so that none is longer than a part of the training set.

    Of a small training set, lists of the usual length would hold most captions or images, which are no harder than any
    others.
    """
    cut = {}
    for anchors, candidates in (DIRECTIONS, DIRECTIONS[::-1]):
        longest = max(_MIN_LIST_LENGTH, int(_MAX_LIST_SHARE * len(lists[candidates])))
        for name in (anchors, f"{PROBABILITY_OF}{anchors}"):
            if name in lists:
                cut[name] = lists[name][:, :longest]
    return cut


def chunk_of(
    job: Any,
    model: AnyMatcher,
    data: SplitData,
    device: torch.device,
    precision: str,
) -> int:
    """Return the `encode_chunk` of a job; `auto` becomes the largest that memory holds, printed and recorded."""
    settings = job.settings
    if isinstance(job.execution.encode_chunk, int):
        return job.execution.encode_chunk
    processes = Processes.joined()
    chunk = 0
    if processes.leads:
        pairs = settings.batch_size
        if settings.batch_by == "tokens":
            pairs = int(pairs / data.pair_sizes().mean())
        chunk = chosen_chunk(model, data, math.ceil(pairs / processes.size), device, precision)
    chunk = processes.agreed(chunk)
    job.metrics["encode_chunk"] = chunk
    job.reporter.say(f"  encode_chunk {chunk} ({'by free memory' if chunk else 'the whole batch'})")
    return chunk


def chosen_chunk(
    model: AnyMatcher,
    data: SplitData,
    pairs: int,
    device: torch.device,
    precision: str,
) -> int:
    """Return the rows of a chunk with which a step fits in the free memory of a GPU; 0 where the whole batch does.

    Models that look at the whole batch, and processors, take whole batches. The model is left as it was, on its device.

    Args:
        model: as it will be trained.
        data: the training set.
        pairs: of a batch that this process encodes.
        device: where it is trained.
        precision: of the encoders.
    """
    if device.type != CUDA or any(isinstance(module, _BatchNorm) for module in model.modules()):
        return 0
    model.to(device).train()
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)

    def bytes_of(rows: int) -> float:
        """Measure a forward and backward pass through both encoders, of the longest captions."""
        longest = np.argsort(-data.pair_sizes(), kind="stable")[:rows]
        images, texts = data.pairs(data.caption_image[longest], longest)
        images = images.to(device)
        texts = texts.to(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.random.fork_rng([device]):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                encodings = [*tensors_of(model.encode_images(images)), *tensors_of(model.encode_texts(texts))]
            sums = [encoding.float().sum() for encoding in encodings if encoding.requires_grad]
            torch.stack(sums).sum().backward()
        model.zero_grad(set_to_none=True)
        return float(torch.cuda.max_memory_allocated(device) - before)

    return fitting_chunk(pairs, _ENCODERS_SHARE * free - _ADAM_BYTES * trained, bytes_of)


def fitting_chunk(pairs: int, room: float, bytes_of: Callable[[int], float]) -> int:
    """Return the largest power of two of rows that fit; 0 where all pairs do, and 1 where nothing does.

    Args:
        pairs: of the batch.
        room: bytes.
        bytes_of: bytes that so many rows need, which grow evenly with them.
    """
    few_bytes = bytes_of(_FEW_ROWS)
    row_bytes = (bytes_of(_MORE_ROWS) - few_bytes) / (_MORE_ROWS - _FEW_ROWS)
    if row_bytes <= 0:
        return 0
    rows = (room - few_bytes) / row_bytes + _FEW_ROWS
    if rows >= pairs:
        return 0
    return 1 << max(1, int(rows)).bit_length() - 1


def compile_for(
    job: Any,
    model: AnyMatcher,
    train: SplitData,
    device: torch.device,
    steps: int,
) -> bool:
    """Compile the encoders where the settings say so, or it pays, and return whether they are.

    It pays for those of transformers on a GPU, in a long training.
    """
    compiles = job.execution.compile
    if compiles == "auto":
        compiles = device.type == CUDA and job.settings.model.opens_encoders and steps >= _COMPILED_FROM
    if not compiles:
        return False
    try:
        compile_encoders(model, device)
    except UsageError as error:
        if job.execution.compile != "auto":
            raise
        job.warn(str(error))
        return False
    train.pad_texts(_TOKENS_OF_A_TILE)
    job.reporter.say("  encoders are compiled, which takes a minute at the first steps")
    return True


def compile_encoders(model: AnyMatcher, device: torch.device) -> None:
    """Let torch compile the parts of a model when they are first called; their weights and names stay as they are.

    A vision encoder is compiled for each size of a batch, since images are all of one shape; other parts for any size
    from the second one on. A copy of the model is not compiled.

    Args:
        model: is changed.
        device: where it is trained.

    Raises:
        UsageError: torch cannot compile for this device, for example because there is no compiler.
    """
    try:
        torch.compile(torch.sin, dynamic=True)(torch.zeros(8, device=device))
    except Exception as error:  # torch raises errors of its own, of the compiler and of the system
        raise UsageError(
            f"torch cannot compile encoders for {device.type} here ({reason_of(error)}), to be faster; install "
            "what it misses, or give --set train.compile=false"
        ) from None
    parts = list(model.children())
    for part in parts:  # grows: nobody calls a list of modules, but these
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            parts.extend(part.children())
        else:
            part.compile()
