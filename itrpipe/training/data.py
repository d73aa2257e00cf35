"""The splits of a dataset as models read them, cut into batches that are copied to the device ahead of their step.

`load_splits` opens them for a training, and `reopened` for a trained model.

Features are memory maps, or photographs are read where they lie; captions are one padded array of token ids, or words
and phrases of scene graphs.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import END, UNKNOWN, Vocabulary
from itrpipe.encoders.encoder import TEXT, load_tokenizer
from itrpipe.encoders.folders import find_folder
from itrpipe.engine.run import usable_cores
from itrpipe.engine.work import CUDA
from itrpipe.errors import DataError
from itrpipe.features.extraction import MOST_DECODERS, ImageFiles
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import ImageBatch, PhraseBatch, TextBatch
from itrpipe.models.captions import CaptionPart, CaptionTokens, Cut, PieceIds, WordIds
from itrpipe.models.dual_encoder.declaration import NO_CHANGES
from itrpipe.storage.arrays import ArrayFile
from itrpipe.storage.tables import rows_of
from itrpipe.training.distributed import ALONE, OwnImages, World
from itrpipe.training.saved import SavedModel

if TYPE_CHECKING:
    from itrpipe.encoders.images import ImageReader
    from itrpipe.models.dual_encoder.network import Encoders
    from itrpipe.scene_graph.phrases import CaptionPhrases

FROZEN_VECTORS = "vectors.arrays"
_ORDER = 1
"""Tells the generator of an epoch's order from those of its steps; NumPy takes trailing zeros for nothing."""
_COLOURS = 3
_NAMES_SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)
"""Matches captions that a mirrored image may contradict, and some others, such as `the train has left`."""


@dataclass(frozen=True)
class FrozenVectors:
    """Vectors of a split's captions by an encoder that is never trained.

    Attributes:
        vectors: float32 [n, D], a memory map.
        places: int64 [T], row of each caption.
    """

    vectors: np.ndarray
    places: np.ndarray

    def of(self, rows: np.ndarray) -> Tensor:
        """Return the vectors [n, D] of caption rows [n]."""
        return torch.from_numpy(self.vectors[self.places[rows]])


@dataclass(frozen=True)
class TokenTexts:
    """Captions as one padded array of token ids.

    Attributes:
        tokens: int32 [T, W].
        lengths: int32 [T].
        cut: those of which the end is not read.
        multiple: of which the width of batches is one.
        vectors: of a frozen text encoder, where they are computed once.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    cut: Cut
    multiple: int = 1
    vectors: FrozenVectors | None = None

    @classmethod
    def of(cls, split: Split, tokens: CaptionTokens) -> TokenTexts:
        """The captions of a split."""
        ids, lengths = tokens.encode_split(split)
        return cls(ids, lengths, tokens.cut(split, lengths) if isinstance(tokens, WordIds | PieceIds) else Cut(0, ""))

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Token ids of the given caption rows [T], cut to about the longest of them, and their vectors."""
        lengths = self.lengths[rows]
        tokens = self.tokens[rows, : -(-lengths.max() // self.multiple) * self.multiple]
        return TextBatch(
            torch.from_numpy(tokens.astype(np.int64)),
            torch.from_numpy(lengths.astype(np.int64)),
            vectors=None if self.vectors is None else self.vectors.of(rows),
        )


class PhraseTexts:
    """Captions as words and phrases of their scene graphs, without start and end.

    Args:
        phrases: of these captions, and perhaps others.
        split: of the T captions and their images.
        vocabulary: gives words their ids.
        with_phrases: give the words only when off.

    Raises:
        DataError: a caption has no scene graph, or an image no caption.

    Attributes:
        phrases, with_phrases: as given.
        graph_rows: [T] int64, row of each caption in `phrases`.
        lengths: [T] int64, words of each.
        cut: see `TokenTexts`.
    """

    def __init__(self, phrases: CaptionPhrases, split: Split, vocabulary: Vocabulary, with_phrases: bool) -> None:
        self.phrases = phrases
        self.with_phrases = with_phrases
        self.graph_rows = phrases.rows(split.caption_ids.tolist())
        self._graph_images = phrases.image_rows(split.image_ids.tolist())
        self.lengths = phrases.word_ids.counts[self.graph_rows]
        self.cut = Cut(int(phrases.longer[self.graph_rows].sum()), f"{phrases.max_words} words")
        self._ids = np.array([vocabulary.ids.get(word, UNKNOWN) for word in phrases.words] + [0])  # the last is padding

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Words and phrases of the given caption rows [T], cut to the longest of them."""
        words, *phrases = self.phrases.batch(self.graph_rows[rows])
        kinds = torch.from_numpy(phrases[0].astype(np.int64))
        tokens = torch.from_numpy(phrases[1])
        if not self.with_phrases:
            kinds = kinds[:, :0]
            tokens = tokens[:, :0]
        return TextBatch(
            torch.from_numpy(self._ids[words]), torch.from_numpy(self.lengths[rows]), PhraseBatch(kinds, tokens)
        )

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> Tensor:
        """Find which phrases and words of captions hold for images, by the semantic labels of the images' own captions.

        Args:
            images, captions: [N] rows, held against each other.
            num_phrases, num_words: P and W of the batch that the captions are in, at least what they need.

        Returns:
            bool [N, P + W], the phrases first; False for padding.

        Source: SSAMT, phrase labels.
        """
        words, phrases = self.phrases.positive(self.graph_rows[captions], self._graph_images[images])
        matching = np.zeros((len(captions), num_phrases + num_words), dtype=bool)
        if self.with_phrases:
            matching[:, : phrases.shape[1]] = phrases
        matching[:, num_phrases : num_phrases + words.shape[1]] = words
        return torch.from_numpy(matching)


_MISSING = {
    "regions": "regions, which these backbones read; extract others",
    "global": "global vectors; name features that have some with --features, or give --set model.images=regions",
}
"""Group of features that a file may lack -> its name and the remedy."""


class SplitData:
    """Batches of one split.

    Args:
        split: images and captions.
        texts: the captions as models read them; None where only images are read.
        image_dim: D_in, width of what is read of an image: of a region feature, of a global vector, of a pixel.

    Attributes:
        split, image_dim: as given.
        captions: the texts.
        caption_image: [T] int64, row of the image that each caption describes.
        num_images: N.
        num_captions: T.
        mirrors: whether its images can be mirrored.
    """

    mirrors = False

    def __init__(self, split: Split, texts: Any, image_dim: int) -> None:
        self.split = split
        self.captions: TokenTexts | PhraseTexts = texts
        self.image_dim = image_dim
        self.caption_image = split.caption_image
        self.num_images = len(split.image_ids)
        self.num_captions = len(split.caption_ids)

    @property
    def region_counts(self) -> np.ndarray:
        """[N] int64, number of real regions of each image."""
        return np.ones(self.num_images, dtype=np.int64)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Images of the given rows [B]."""
        raise NotImplementedError

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Token ids of the given caption rows [T], cut to the longest of them."""
        return self.captions.texts(rows)

    def pad_texts(self, multiple: int) -> None:
        """Pads captions of each batch to a multiple of tokens from now on; those of scene graphs stay as they are."""
        if isinstance(self.captions, TokenTexts):
            self.captions = replace(self.captions, multiple=multiple)

    @property
    def cut(self) -> Cut:
        """Captions that are longer than the model reads."""
        return self.captions.cut

    def unknown_words(self) -> int:
        """Percent of the captions' words that are not in the vocabulary, which is no tokenizer's."""
        ids = self.texts(np.arange(self.num_captions)).tokens
        return round(100 * float((ids == UNKNOWN).sum() / (ids > END).sum()))

    def pair_sizes(self) -> np.ndarray:
        """[T] words of each caption and regions of its image together."""
        return self.captions.lengths.astype(np.int64) + self.region_counts[self.caption_image]

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches of image rows and caption rows, [B] each; `rng` is for data that change images at random."""
        return self.images(images), self.texts(captions)

    def train_on(self, world: World, device: torch.device) -> None:
        """Tells where the pairs go: to all of these processes, which have this data too, and there to this device."""


def longer_captions(splits: Mapping[str, SplitData]) -> str:
    """Return how many captions of each split are longer than the model reads; empty for none."""
    limit = ""
    counts = []
    for name, data in splits.items():
        if data.cut.count:
            limit = data.cut.limit
            counts.append(f"{data.cut.count:,} of {data.num_captions:,} {name} captions")
    return f"longer than the {limit} that the model reads: {', '.join(counts)}" if counts else ""


class FeatureSplitData(SplitData):
    """Batches of one split with features of its images.

    Args:
        split, texts: see `SplitData`.
        features: file that holds the features of all its images.
        read: what is read of an image: `regions` and all else, or its `global` vector alone.

    Raises:
        DataError: the features do not hold that.
    """

    def __init__(self, split: Split, features: FeatureFile, texts: Any, read: str = "regions") -> None:
        self._read = read
        self._held = features.arrays
        if read not in self._held:
            raise DataError(f"{features.path} holds no {_MISSING[read]}")
        self._images = self._held[read]  # a memory map, of which batches are cut
        super().__init__(split, texts, self._images.shape[-1])
        self._count = self._held["count"] if read == "regions" else np.ones(len(features), dtype=np.int16)
        self._rows = features.rows(split.image_ids.tolist())
        self.mirrors = read == "regions" and "boxes" in self._held

    @property
    def region_counts(self) -> np.ndarray:
        """See `SplitData`."""
        return self._count[self._rows].astype(np.int64)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Features of the given image rows [B]."""
        stored = self._rows[rows]
        if self._read == "global":
            return ImageBatch(torch.empty(len(rows), 0, 0), global_=torch.from_numpy(self._images[stored]))
        count = self._count[stored].astype(np.int64)
        beside = {}
        for name, field_name in (("global", "global_"), ("boxes", "boxes")):
            if name in self._held:
                beside[field_name] = torch.from_numpy(self._held[name][stored])
        if (count < self._images.shape[1]).any():
            beside["count"] = torch.from_numpy(count)
        return ImageBatch(torch.from_numpy(self._images[stored]), **beside)  # [B, R, D_in] f16


class PixelSplitData(SplitData):
    """Batches of one split with the photographs themselves, which are read where they lie, whenever they are needed.

    Args:
        split, texts: see `SplitData`.
        files: the photographs, row for row those of the split.
        reader: makes frames of them.
        augment: changes of training images, see `itrpipe.models.dual_encoder.declaration.Augment`. An image of which a
            caption names sides is never mirrored, since its captions and its twins would be wrong.
    """

    mirrors = True

    def __init__(self, split: Split, files: ImageFiles, texts: Any, reader: ImageReader, augment: Any) -> None:
        super().__init__(split, texts, _COLOURS)
        self._files = files
        self._reader = reader
        self._augment = augment
        self.train_on(ALONE, torch.device("cpu"))

    def images(self, rows: np.ndarray) -> ImageBatch:
        """The whole photographs of the given rows [B], as the model's own image processor makes frames of them."""
        return ImageBatch(torch.empty(len(rows), 0, 0), pixels=self._whole(rows))

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches of image rows and caption rows, [B] each; images are changed where `rng` is given.

        Of several processes each reads the images that it encodes.
        """
        from itrpipe.training.augment import apply_changes, draw_changes  # torchvision takes seconds

        count = len(images)
        divided = self._world.size > 1 and count >= self._world.size
        own = self._world.own(count) if divided else slice(count)
        if rng is None or self._augment == NO_CHANGES:
            frames = self._whole(images[own]).to(self._device)
        else:
            may_flip = ~self._names_sides[images]
            sizes = self._files.sizes[images]
            changes = draw_changes(sizes, may_flip, self._reader.frame, self._augment, rng).of(own)
            boxes = changes.boxes
            if boxes is None:
                frames = self._whole(images[own])
            else:
                crop = self._reader.cropped
                frames = self._read(images[own], torch.uint8, lambda image, place: crop(image, boxes[place]))
            if self._augment.randaugment:
                frames = self._reader.as_bytes(frames)
            frames = apply_changes(frames.to(self._device), changes)
        kind = partial(OwnImages, rows=count, first=own.start) if divided else ImageBatch
        return kind(torch.empty(len(frames), 0, 0), pixels=frames), self.texts(captions)

    @cached_property
    def _names_sides(self) -> np.ndarray:
        """Images bool [N] of which a caption names left or right."""
        captions = [row for row, text in enumerate(self.split.texts) if _NAMES_SIDES.search(text)]
        images = np.zeros(self.num_images, dtype=bool)
        images[self.caption_image[captions]] = True
        return images

    def train_on(self, world: World, device: torch.device) -> None:
        """Reads for this process from now on, and changes images on its device."""
        self._world = world
        self._device = device

    def _whole(self, rows: np.ndarray) -> Tensor:
        """Frames [B, 3, h, w] of the whole photographs of rows [B]."""
        dtype = torch.uint8 if self._reader.in_bytes else torch.float32
        return self._read(rows, dtype, lambda image, place: self._reader.framed(image))

    def _read(self, rows: np.ndarray, dtype: torch.dtype, frame: Callable[[np.ndarray, int], Tensor]) -> Tensor:
        """Read the photographs of rows [B], each of them once, in threads.

        Args:
            rows: of the images.
            dtype: of the frames.
            frame: makes the frame of a photograph [H, W, 3] at a place of the batch.

        Returns:
            [B, 3, h, w], for a GPU in pinned memory, which torch uses again: new pages would cost as much as reading.

        Raises:
            DataError: a photograph is not there any more, or another one by now.
        """
        pinned = self._device.type == CUDA
        with torch.inference_mode(False):  # the threads, which are in no such mode, could not write to it
            frames = torch.empty(len(rows), 3, *self._reader.frame, dtype=dtype, pin_memory=pinned)
        places = defaultdict[int, list[int]](list)
        for place, row in enumerate(rows.tolist()):
            places[row].append(place)

        def read(row: int) -> None:
            try:
                image = self._files.read(row)
            except DataError as error:
                path = self._files.root / self._files.files[row]
                raise DataError(f"{path} {error}; restore it, or run `itrpipe prepare` again") from None
            for place in places[row]:
                frames[place] = frame(image, place)

        for _ in _reading_threads().map(read, places):
            pass
        return frames


@cache
def _reading_threads() -> ThreadPoolExecutor:
    """Return the threads that read photographs, each of which computes alone: a picture is too small for several."""
    count = min(MOST_DECODERS, usable_cores())
    return ThreadPoolExecutor(count, "photographs", initializer=torch.set_num_threads, initargs=(1,))


def epoch_batches(
    num_captions: int,
    batch_size: int,
    seed: int,
    epoch: int,
    sizes: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Every caption once in an order that only `seed` and `epoch` determine, cut into batches.

    The last batch may be short; if a single caption were left for it, it joins the batch before, because one
    pair alone has no negative and no batch statistics.

    Args:
        num_captions: T.
        batch_size: captions of a batch, or, where `sizes` are given, how much their sizes may add up to.
        seed, epoch: of the order.
        sizes: [T] size of each caption with its image, in tokens and regions.
        order: [T] caption rows; None for a random order.
    """
    if order is None:
        order = np.random.default_rng([seed, epoch, 0, _ORDER]).permutation(num_captions)
    if sizes is None:
        starts = list(range(0, num_captions, batch_size))
    else:
        ends = np.cumsum(sizes[order], dtype=np.int64)
        starts = [0]
        while starts[-1] < num_captions:
            spent = ends[starts[-1] - 1] if starts[-1] else 0
            starts.append(max(starts[-1] + 2, int(np.searchsorted(ends, spent + batch_size, side="right"))))
        starts.pop()
    if num_captions - starts[-1] == 1 and len(starts) > 1:
        starts.pop()
    return np.split(order, starts[1:])


def blocks(count: int, size: int) -> Iterator[np.ndarray]:
    """Row numbers 0..count-1 in consecutive blocks."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def feed(
    make: Callable[[Any], Any], items: Iterable[Any], depth: int, device: torch.device, readers: int = 1
) -> Generator[Any, None, None]:
    """Make batches in background threads, copy them to a device, and yield them in order.

    Threads suffice because making a batch is slicing of arrays, which releases the interpreter lock. A GPU has a
    stream for copies alone, which run beside the kernels of the step before; nothing waits for them but the kernels
    that read them. A batch is kept until these have run: its memory would otherwise be taken for the next copy.

    Args:
        make: makes the batch of an item.
        items: in order.
        depth: how many batches may lie ready or be in the making, at least 1.
        device: where batches go.
        readers: how many are in the making at a time.
    """
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def place(item: Any) -> tuple[Any, Any]:
        """The batch of an item on its way to the device, and the event of a GPU after which it is there."""
        with torch.cuda.stream(copies):  # parts of the batch may be made on the device; of none it does nothing
            batch = make(item).to(device)
        return batch, None if copies is None else copies.record_event()

    pool = ThreadPoolExecutor(readers, thread_name_prefix="batches")
    waiting = iter(items)
    ahead: deque[Future[tuple[Any, Any]]] = deque()
    in_use: deque[tuple[Any, Any]] = deque()
    try:
        ahead.extend(pool.submit(place, item) for item in islice(waiting, depth))
        while ahead:
            batch, copied = ahead.popleft().result()
            ahead.extend(pool.submit(place, item) for item in islice(waiting, 1))
            if copied is None:
                yield batch
                continue
            torch.cuda.current_stream(device).wait_event(copied)
            yield batch
            in_use.append((torch.cuda.current_stream(device).record_event(), batch))
            while in_use and in_use[0][0].query():
                in_use.popleft()
    finally:
        # A thread that Python's end meets inside torch would abort the process.
        pool.shutdown(cancel_futures=True)


SplitImages = FeatureFile | ImageFiles
"""Features of the images of a split, and perhaps of others; or the photographs of a split, row for row."""
OpenedSplits = tuple[PreparedDataset, dict[str, Split], dict[str, SplitImages]]
"""A dataset, some of its splits, and their images."""


@dataclass(frozen=True)
class Sources:
    """Folders of the artifacts that training reads.

    Attributes:
        prepare: images and captions.
        extract: features; None for models that read the photographs themselves.
        parse: scene graphs, for models that read phrases.
        train_share: share of the training images that are used, 0..1.
        frozen: side, `vision` or `text` -> vectors of its encoder for every image or caption, computed once.
    """

    prepare: Path
    extract: Path | None = None
    parse: Path | None = None
    train_share: float = 1.0
    frozen: Mapping[str, Path] = field(default_factory=dict)

    def splits(
        self, names: Iterable[str] | None = None, warn: Callable[[str], None] = lambda message: None
    ) -> OpenedSplits:
        """The dataset, its splits and their images: of training images the wanted share of those that have features.

        Args:
            names: of the splits; None for all.
            warn: is told how many training images are left out for want of features; in other splits every image must
                be there.

        Raises:
            DataError: a file is damaged.
        """
        prepared = PreparedDataset.open(self.prepare)
        found = {name: self.share(prepared, name) for name in names or prepared.splits}
        if self.extract is None:
            return prepared, found, {name: self.images(split) for name, split in found.items()}
        features = FeatureFile.open(self.extract / FEATURES)
        if "train" in found:
            split = found["train"]
            if absent := features.absent(split.image_ids.tolist()):
                warn(
                    f"{len(absent):,} of {len(split.image_ids):,} training images have no features and are left out; "
                    f"the first: {absent[0]}"
                )
                found["train"] = split.without(absent)
        return prepared, found, dict.fromkeys(found, features)

    def share(self, prepared: PreparedDataset, name: str) -> Split:
        """Return a split, of training images the wanted share, whether or not they have features."""
        split = prepared.split(name)
        return split.share(self.train_share) if name == "train" else split

    def images(self, split: Split) -> SplitImages:
        """Return the images of any split of the dataset, or of some rows of one.

        Raises:
            DataError: a file is damaged.
        """
        if self.extract is not None:
            return FeatureFile.open(self.extract / FEATURES)
        return ImageFiles.of_split(image_root(self.prepare).absolute(), split)

    def open(
        self,
        splits: OpenedSplits,
        tokens: CaptionTokens,
        settings: Any,
        reader: ImageReader | None,
        phrases: CaptionPhrases | None,
    ) -> dict[str, SplitData]:
        """Return splits as a model reads them, with the vectors of frozen encoders.

        Args:
            splits: see `splits`.
            tokens, settings, reader, phrases: see `open_split`.
        """
        prepared, chosen, images = splits
        vectors = {side: ArrayFile(folder / FROZEN_VECTORS) for side, folder in self.frozen.items()}
        found = {}
        for name, split in chosen.items():
            each = open_split(split, images[name], tokens, settings, reader, phrases)
            whole = prepared.split(name)
            texts = each.captions
            if "text" in vectors:
                assert isinstance(texts, TokenTexts)
                places = rows_of(split.captions["caption_id"], whole.captions["caption_id"])
                texts = each.captions = replace(texts, vectors=FrozenVectors(vectors["text"][name].mapped("r"), places))
            if "vision" in vectors:
                arrays = {"global": vectors["vision"][name].mapped("r")}
                features = FeatureFile(vectors["vision"].path, whole.image_ids, arrays)
                each = FeatureSplitData(split, features, texts, "global")
            found[name] = each
        return found

    def phrases(self, settings: Any) -> CaptionPhrases | None:
        """The phrases of all captions, for a model of these settings that reads some."""
        if not settings.reads_phrases:
            return None
        from itrpipe.scene_graph.phrases import CaptionPhrases  # few models read phrases

        assert self.parse is not None
        return CaptionPhrases.read(self.parse, settings.max_words)


def load_splits(
    sources: Sources,
    settings: Any,
    min_word_count: int,
    warn: Callable[[str], None],
    encoders: Encoders | None = None,
) -> tuple[dict[str, SplitData], CaptionTokens]:
    """Opens every split for a model that is to be trained, and what reads its captions.

    A vocabulary of our own has the words of train and val, as in the papers; that of a model that reads phrases has the
    words of the training captions' scene graphs.

    Args:
        sources: where everything lies.
        settings: of the model.
        min_word_count: rarer words are unknown.
        warn: see `Sources.splits`.
        encoders: opened, of a model that is made of some.

    Raises:
        DataError: the features are not what the model reads, or a file is damaged.
    """
    splits = sources.splits(warn=warn)
    prepared, chosen, _ = splits
    phrases = sources.phrases(settings)
    reader = None if encoders is None or encoders.vision is None else encoders.vision.images
    reading = None if encoders is None else CaptionPart.of(settings)
    tokens: CaptionTokens
    if phrases is not None:
        # Source: SSAMT, implementation details: five occurrences, training captions only.
        words = phrases.word_ids.take(phrases.rows(chosen["train"].caption_ids.tolist()))
        texts = pa.array(phrases.words, pa.string()).take(pa.array(words.values))
        tokens = Vocabulary.build(pa.ListArray.from_arrays(pa.array(words.offsets, pa.int32()), texts), min_word_count)
    elif encoders is None and settings.pretrained().get("tokenizer"):
        folder, _ = find_folder(settings.tokenizer, settings.tokenizer_revision, (TEXT,), weights=False)
        tokens = PieceIds(load_tokenizer(folder), CaptionPart.of(settings), settings.max_words)
    elif encoders is not None and encoders.text is not None:
        tokens = PieceIds.of(encoders.text, settings)
    else:
        # Words of training images without features count, as they did when the images had some.
        words = []
        for name in ("train", "val"):
            if name in chosen:
                split = sources.share(prepared, name)
                words.append(split.tokens if reading is None else reading.words(split))
        tokens = vocabulary = Vocabulary.build(pa.concat_arrays(words), min_word_count)
        if reading is not None:
            tokens = WordIds(vocabulary, reading)
    return sources.open(splits, tokens, settings, reader, phrases), tokens


def read_captions(
    split: Split, tokens: CaptionTokens, settings: Any, phrases: CaptionPhrases | None
) -> TokenTexts | PhraseTexts:
    """Captions of a split as a model reads them.

    Args:
        split: of the captions.
        tokens: turns captions into ids.
        settings: of the model.
        phrases: of these captions, where the model reads phrases.

    Raises:
        DataError: a caption has no scene graph.
    """
    if phrases is None:
        return TokenTexts.of(split, tokens)
    assert isinstance(tokens, Vocabulary)
    return PhraseTexts(phrases, split, tokens, settings.phrases)


def open_split(
    split: Split,
    images: SplitImages,
    tokens: CaptionTokens | None,
    settings: Any,
    reader: ImageReader | None = None,
    phrases: CaptionPhrases | None = None,
) -> SplitData:
    """One split as a model reads it.

    Args:
        split: images and captions.
        images: its photographs where the model reads these, else features.
        tokens: turns captions into ids; None where only images are read.
        settings: of the model.
        reader: of photographs, where the model reads these.
        phrases: of all captions, where the model reads phrases.

    Raises:
        DataError: the features are not what the model reads.
    """
    texts = None if tokens is None else read_captions(split, tokens, settings, phrases)
    if isinstance(images, ImageFiles):
        assert reader is not None
        return PixelSplitData(split, images, texts, reader, settings.augment)
    return FeatureSplitData(split, images, texts, "global" if settings.reads() == ("global",) else "regions")


def reopened(saved: SavedModel, sources: Sources, names: Iterable[str]) -> dict[str, SplitData]:
    """Splits as a model was trained on them: of training images the same share, and those that have features.

    Args:
        saved: the model.
        sources: what it was trained on.
        names: of the splits.

    Raises:
        DataError: the features are not what the model reads, or a file is damaged.
    """
    settings = saved.settings
    return sources.open(sources.splits(names), saved.tokens, settings, saved.images, sources.phrases(settings))
