"""Mines the training set by the embeddings of a model, for the stage `mine-negatives` and while a model trains.

The second model, which may put the hardest candidates in its own order, encodes all images and captions once and then
scores pairs (`PairScorer`).

Shapes: N images, T captions, P pairs, S vectors of an item (regions, words, or one), D embedding width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.decisions import read_decisions
from itrpipe.datasets.prepared import captions_of
from itrpipe.datasets.truth import TRUTH_FILE, Decided, known_pairs
from itrpipe.engine.run import Maps
from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.tables import aligned
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingRows, Side, read_embeddings
from itrpipe.features.given import open_further
from itrpipe.mining.files import ListWriter
from itrpipe.mining.lists import DIRECTIONS, CandidateLists, Shapes
from itrpipe.mining.mine import Search, mine_split
from itrpipe.mining.rescoring import Guard, Rescoring
from itrpipe.mining.statistics import sentences, table_rows
from itrpipe.models.base import (
    DualEncoder,
    ImageEncoding,
    RegionEncoding,
    TextEncoding,
    WordEncoding,
)
from itrpipe.models.scan.network import CrossAttentionModel
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import STATISTICS, WORK
from itrpipe.storage.disk import require_space, write_json
from itrpipe.training.data import Sources, SplitData, blocks, reopened
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import SavedModel, load_model
from itrpipe.training.settings import MineExecution, MineSettings, run_label

CORPUS, FURTHER = "corpus.arrays", "further_candidates.json"
_BYTES_PER_CANDIDATE, _BYTES_PER_PROBABILITY, _BYTES_PER_PLACE = 6, 2, 12
_SIDES: dict[str, Side] = {DIRECTIONS[0]: "image", DIRECTIONS[1]: "caption"}
_CAPTIONS_AT_ONCE = 65_536
_ROWS_PER_PASS = 256
_COUNTED_ROWS = 8_192
_COPIES = 2.5
"""Copies of the vectors of a pair in memory while it is scored, with room for what is derived from them."""
_CPU_BATCH_BYTES = 32 * 2**20
"""A batch that fits into the processor's cache is up to twice as fast as one of 256 MiB."""


def mine_training_set(
    embeddings: EmbeddingRows,
    prepare: Any,
    settings: MineSettings,
    execution: MineExecution,
    folder: Path,
    reporter: Reporter,
    warn: Callable[[str], None],
    *,
    decisions: str = "",
    unit: bool = False,
    rescorer: Callable[[Path, Shapes], Rescoring] | None = None,
) -> dict[str, Any]:
    """Write the mined lists of a training set and the figures on them, and print these.

    Args:
        embeddings: by the model that mines.
        prepare: artifact of the captions.
        settings, execution: of mining.
        folder: for the lists, `statistics.json` and what only resuming needs.
        reporter: shows progress and figures.
        warn: is told what is to be warned of.
        decisions: digest of people's judgements, as it was when mining was planned.
        unit: make further candidates unit vectors.
        rescorer: of `second_model`.

    Returns:
        Numbers for the manifest.

    Raises:
        UsageError: the embeddings are not compared by inner product; captions without texts are to be compared; or
            judgements were added meanwhile. See also `mine_split`.
        DataError: further candidates are not what they should be; see also `mine_split`.
        DiskFullError: the lists do not fit on the disk.
    """
    if embeddings.measure != INNER_PRODUCT:
        raise UsageError(
            f"the model {settings.method}.{settings.backbone} compares by {embeddings.measure}, which exact mining "
            "cannot search; mine with a model whose measure is cosine"
        )
    if settings.drop_duplicates and prepare.manifest.metrics.get("captions_with_text") == 0:
        raise UsageError("--drop-duplicates compares captions, of which the given files hold no text; leave it out")
    images = embeddings.images.shape[0]
    texts = embeddings.texts.shape[0]
    metrics: dict[str, Any] = {}
    further = {}
    if settings.candidates:
        path = Path(settings.candidates).expanduser()
        side, further_ids, rows = open_further(path, folder / WORK / CORPUS, embeddings, unit=unit)
        write_json(folder / FURTHER, {"side": side, "ids": further_ids})
        metrics["further candidates"] = len(further_ids)
        further[side] = rows
    wanted = images * min(settings.num_texts, texts) + texts * min(settings.num_images, images)
    guards = settings.guard != "none"
    width = _BYTES_PER_CANDIDATE + (_BYTES_PER_PROBABILITY if guards else 0)
    require_space(folder, (width + 2 * _BYTES_PER_PLACE) * wanted, "the mined lists, twice in parts")
    ids = decided = truth = None
    if settings.decisions or (prepare.folder / TRUTH_FILE).exists():
        ids = np.array(embeddings.ids("image")), np.array(embeddings.ids("caption"))
        truth = known_pairs(prepare.folder, *ids)
        if settings.decisions:
            verdicts = read_decisions(Path(settings.decisions).expanduser()).of_training.verdicts
            if verdicts.digest() != decisions:
                raise UsageError(f"{settings.decisions} was added to meanwhile; run the same command again")
            decided = Decided.of(verdicts, *ids)
            metrics["decided"] = f"{len(decided.fits):,} fit, {len(decided.differs):,} do not"

    def open_guard() -> Guard:
        whole = read_embeddings(embeddings.path, embeddings.split)
        return Guard(whole, prior=settings.guard_prior, batch_size=settings.guard_batch_size)

    with ExitStack() as open_files:
        files: dict[str, ListWriter] = {}

        def write(direction: str, part: slice, lists: CandidateLists, probability: np.ndarray | None) -> None:
            if direction not in files:
                metrics[direction] = width = lists.candidates.shape[1]
                wide = lists.candidates.itemsize > 4
                file = ListWriter(folder, direction, width, guarded=guards, wide=wide)
                files[direction] = open_files.enter_context(file)
            ids = embeddings.ids(_SIDES[direction], part.start, part.stop)
            files[direction].write(ids, lists.candidates, lists.scores, probability)

        statistics = mine_split(
            embeddings.images,
            embeddings.texts,
            embeddings.owners.read(),
            (settings.num_texts, settings.num_images),
            Maps(folder / WORK, reporter, warn, execution),
            write,
            further=further,
            search=Search(
                library=settings.library,
                precision=settings.precision,
                index=settings.index,
                num_lists=settings.num_lists,
                num_probes=settings.num_probes,
                device=execution.device,
                block=execution.block,
                memory=execution.memory_mib * 2**20,
            ),
            limits=settings.window.model_dump(exclude_defaults=True),
            captions=_captions(prepare.folder, embeddings),
            drop_duplicates=settings.drop_duplicates,
            decided=(decided.fits, decided.differs) if decided else None,
            truth=truth,
            guard=open_guard if guards else None,
            rescorer=rescorer,
        )
    if decided and ids:
        decided.write(folder, *ids)
    write_json(folder / STATISTICS, statistics)
    for line in aligned(table_rows(statistics)):
        reporter.say(line)
    for sentence in sentences(statistics):
        reporter.say(f"  {sentence}")
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        reporter.say(f"  {repeats:,} captions belong word for word to another image too")
    return metrics | {"images": images, "captions": texts}


def mine_again(folder: Path, mined: Any, prepare: Any, device: str, reporter: Reporter, warn: Callable) -> None:
    """Mine in a folder that holds the embeddings of the training split, as lists were mined before.

    Args:
        folder: for the lists, too.
        mined: artifact of these lists.
        prepare: artifact of the captions.
        device: to search on.
        reporter, warn: see `mine_training_set`.
    """
    settings = MineSettings.model_validate(mined.manifest.settings)
    here = {"device": device, "engine": "local", "workers": 0, "address": "", "part": ""}
    execution = MineExecution.model_validate({**mined.manifest.execution, **here})
    embeddings = EmbeddingRows.open(folder / EMBEDDINGS, "train")
    decisions = mined.manifest.sources.get("decisions", "")
    (folder / WORK).mkdir()
    mine_training_set(embeddings, prepare, settings, execution, folder, reporter, warn, decisions=decisions)


def _captions(prepared: Path, embeddings: EmbeddingRows) -> Iterator[str]:
    """Yields the training captions in the order of their embeddings, which is that of the dataset."""
    captions = captions_of(prepared, "train")
    for start in range(0, embeddings.texts.shape[0], _CAPTIONS_AT_ONCE):
        for caption_id in embeddings.ids("caption", start, start + _CAPTIONS_AT_ONCE):
            # Of images without features there are no embeddings.
            yield next(text for own, text in captions if own == caption_id)


# The second model


def second_model(
    settings: MineSettings, execution: MineExecution, inputs: Mapping[str, Any], embeddings: EmbeddingRows
) -> Callable[[Path, Shapes], Rescoring]:
    """Return a function that orders the lists of one model, of their file, by another model, which every worker opens.

    Its encodings are not kept: every worker encodes, and so does an interrupted run that goes on.

    Args:
        settings, execution: of mining.
        inputs: artifacts `rescorer`, `prepare` and `extract`.
        embeddings: by the first model.

    Raises:
        UsageError: the other model cannot score pairs.
    """
    folders = [inputs[name].folder.absolute() for name in ("rescorer", "prepare", "extract")]
    load_scoring_model(folders[0])  # what cannot score pairs is better found out before mining than after
    memory = (execution.memory_mib or 256) * 2**20
    opening = partial(encoded_scorer, *folders, embeddings, execution.device, memory)
    name = run_label(settings.method, settings.rescore_with, settings.seed)
    tops = settings.rescore_texts, settings.rescore_images
    owners = embeddings.owners.read()
    return lambda lists, shapes: Rescoring(name, lists, shapes, owners, opening, tops, execution.device)


class KeptVectors:
    """The vectors of many items, such as the words of captions, one item behind the other without padding.

    Args:
        counts: [n] vectors of each item.
        dim: D.
        device: where they are kept.

    Attributes:
        vectors: [sum of counts, D] float32.
    """

    def __init__(self, counts: np.ndarray, dim: int, device: torch.device) -> None:
        self._counts = torch.as_tensor(counts, dtype=torch.int64, device=device)
        self._starts = self._counts.cumsum(0) - self._counts
        self.vectors = torch.empty(int(counts.sum()), dim, device=device)

    def put(self, first: int, padded: Tensor) -> None:
        """Keeps the vectors [b, S, D] of items `first`, ..., of each as many as it has."""
        counts = self._counts[first : first + len(padded)]
        start = int(self._starts[first])
        real = torch.arange(padded.shape[1], device=counts.device) < counts[:, None]
        self.vectors[start : start + int(counts.sum())] = padded.to(counts.device, torch.float32)[real]

    def take(self, rows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Padded vectors [P, S, D] of items [P] and the number of real ones [P]."""
        wanted = torch.as_tensor(rows, dtype=torch.int64, device=self._counts.device)
        counts = self._counts[wanted]
        places = self._starts[wanted, None] + torch.arange(int(counts.max()), device=wanted.device)
        places = places.clamp_(max=len(self.vectors) - 1)  # behind the last item there is nothing to pad with
        return self.vectors[places].to(device), counts.to(device)


class PairScorer:
    """Scores pairs of images and captions of a split, all of which it encodes first.

    The encodings are kept in float32 without padding: for a dual encoder one vector per item, else one per region and
    one per word. That is 4 D bytes each: at D = 1024 and 36 regions about 12 GiB for Flickr30K and 43 GiB for COCO.
    With a GPU a side is kept there if it takes less than half of what is free, else in main memory.

    Args:
        model: a dual encoder or one with cross-attention, in evaluation mode; it is moved to the device.
        data: the split.
        dim: D.
        device: where pairs are scored.
        memory: bytes that a batch of pairs takes, at most.

    Raises:
        UsageError: the machine has less memory than the encodings take.
    """

    @torch.inference_mode()
    def __init__(self, model: AnyMatcher, data: SplitData, dim: int, device: torch.device, memory: int) -> None:
        self._model = model.to(device)
        self._device = device
        self._dim = dim
        self._memory = memory if device.type == CUDA else min(memory, _CPU_BATCH_BYTES)
        self._dual = isinstance(model, DualEncoder)
        if self._dual:
            counts = [np.ones(count, dtype=np.int64) for count in (data.num_images, data.num_captions)]
        else:
            lengths = [data.texts(rows).lengths.numpy() for rows in blocks(data.num_captions, _COUNTED_ROWS)]
            counts = [data.region_counts, np.concatenate(lengths)]
        self._widest_image = int(counts[0].max())
        self._lengths = counts[1]
        # Each side lies on the device, or in main memory.
        kept = []
        in_main_memory = 0
        for lengths in counts:
            needed = 4 * dim * int(lengths.sum())
            on_device = device.type == CUDA and needed <= torch.cuda.mem_get_info(device)[0] // 2
            in_main_memory += 0 if on_device else needed
            present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if in_main_memory > present:
                raise UsageError(
                    f"the encodings of the training set take {in_main_memory / 2**30:.1f} GiB and this machine has "
                    f"{present / 2**30:.1f} GiB of memory; mine without --rescore-with, or on a larger machine"
                )
            kept.append(KeptVectors(lengths, dim, device if on_device else torch.device("cpu")))
        self._images, self._texts = kept
        for rows in blocks(data.num_images, _ROWS_PER_PASS):
            image = self._model.encode_images(data.images(rows).to(device))
            self._images.put(int(rows[0]), image.embedding[:, None] if self._dual else image.regions)
        for rows in blocks(data.num_captions, _ROWS_PER_PASS):
            text = self._model.encode_texts(data.texts(rows).to(device))
            self._texts.put(int(rows[0]), text.embedding[:, None] if self._dual else text.words)

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Scores pairs, those with the longest captions first, so that a batch is padded little.

        Args:
            images: [P] rows.
            captions: [P] rows.

        Returns:
            [P] float32.
        """
        order = np.argsort(-self._lengths[captions], kind="stable")
        scores = np.empty(len(order), dtype=np.float32)
        start = 0
        while start < len(order):
            # Beside the vectors there are a few matrices of the products of all of them with each other.
            vectors = self._widest_image + int(self._lengths[captions[order[start]]])
            per_pair = 4 * vectors * (_COPIES * self._dim + 2 * vectors)
            batch = order[start : start + max(1, int(self._memory / per_pair))]
            image, regions = self._images.take(images[batch], self._device)
            text, words = self._texts.take(captions[batch], self._device)
            if self._dual:
                sides: Any = ImageEncoding(image[:, 0]), TextEncoding(text[:, 0])
            else:
                all_real = bool((regions == image.shape[1]).all())
                sides = RegionEncoding(image, None if all_real else regions), WordEncoding(text, words)
            scores[batch] = self._model.score_pairs(*sides).float().cpu().numpy()
            start += len(batch)
        return scores


def load_scoring_model(folder: Path) -> SavedModel:
    """Read a trained model that can score pairs by kept encodings.

    Raises:
        DataError: the artifact is damaged.
        UsageError: the model is neither a dual encoder nor one with cross-attention.
    """
    saved = load_model(folder)
    if not isinstance(saved.model, DualEncoder | CrossAttentionModel):
        raise UsageError(
            f"{saved.config['backbone']} encodes neither vectors nor regions and words, so that it cannot score mined "
            "lists again; give --rescore-with another backbone, such as bfan"
        )
    return saved


def encoded_scorer(
    trained: Path, prepared: Path, extracted: Path, embeddings: EmbeddingRows, device: str, memory: int
) -> PairScorer:
    """Return a scorer of the training images and captions that another model embedded, all of which it has encoded.

    Args:
        trained: artifact of the model.
        prepared: of the captions.
        extracted: of the features.
        embeddings: by the other model.
        device: `auto`, `cpu` or `cuda`.
        memory: bytes that a batch of pairs takes.

    Raises:
        DataError: captions and features are of other images than the embeddings.
        UsageError: the machine has less memory than the encodings take.
    """
    saved = load_scoring_model(trained)
    data = reopened(saved, Sources(prepared, extracted), ["train"])["train"]
    sides: dict[Side, np.ndarray] = {"image": data.split.image_ids, "caption": data.split.caption_ids}
    for side, rows in sides.items():
        embedded = embeddings.ids(side)
        if rows.tolist() != embedded:
            raise DataError(
                f"{prepared} and {extracted} hold {len(rows):,} training rows and the mining model embedded "
                f"{len(embedded):,} or others; run `itrpipe train` again"
            )
    return PairScorer(saved.model, data, saved.embed_dim, torch.device(resolve_device(device)), memory)
