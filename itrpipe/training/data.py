"""The splits of a dataset as models read them, from which batches are made.

`load_splits` opens them for a training, and `reopened` for a trained model. Features are memory maps, and photographs
are read from their files whenever they are needed; captions are one padded array of token ids, or words and phrases of
scene graphs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
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
from itrpipe.models.dual_encoder.declaration import NO_CHANGES, Augment
from itrpipe.storage.arrays import ArrayFile
from itrpipe.storage.tables import rows_of
from itrpipe.training.distributed import ALONE, OwnImages
from itrpipe.training.saved import SavedModel

if TYPE_CHECKING:
    from itrpipe.encoders.images import ImageReader
    from itrpipe.models.dual_encoder.network import Encoders
    from itrpipe.scene_graph.phrases import CaptionPhrases

FROZEN_VECTORS = "vectors.arrays"
_NAMES_SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)
"""Matches captions that a mirrored image may contradict, and some others, such as `the train has left`."""


@dataclass(frozen=True)
class TokenTexts:
    """Captions as one padded array of token ids.

    Attributes:
        tokens: int32 [T, W].
        lengths: int32 [T].
        cut: the captions whose end is not read.
        multiple: batches are padded to a multiple of so many tokens.
        vectors: float32 [n, D] of a frozen text encoder, where they are computed once; a memory map.
        vector_rows: int64 [T], row of each caption in `vectors`.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    cut: Cut
    multiple: int = 1
    vectors: np.ndarray | None = None
    vector_rows: np.ndarray | None = None

    @classmethod
    def of(cls, split: Split, tokens: CaptionTokens) -> TokenTexts:
        """Encode the captions of a split."""
        ids, lengths = tokens.encode_split(split)
        cut = Cut(0, "")
        if isinstance(tokens, WordIds | PieceIds):
            cut = tokens.cut(split, lengths)
        return cls(ids, lengths, cut)

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Return token ids of the given caption rows [T], cut to about the longest of them, and their vectors."""
        lengths = self.lengths[rows]
        multiples = -(-lengths.max() // self.multiple)
        tokens = self.tokens[rows, : multiples * self.multiple]
        vectors = None
        if self.vectors is not None:
            assert self.vector_rows is not None
            vectors = torch.from_numpy(self.vectors[self.vector_rows[rows]])
        return TextBatch(
            torch.from_numpy(tokens.astype(np.int64)),
            torch.from_numpy(lengths.astype(np.int64)),
            vectors=vectors,
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
        graph_rows: [T] int64, row of each caption in `phrases`.
        lengths: [T] int64, words of each.
        cut: see `TokenTexts`.
    """

    def __init__(
        self,
        phrases: CaptionPhrases,
        split: Split,
        vocabulary: Vocabulary,
        with_phrases: bool,
    ) -> None:
        self.phrases = phrases
        self.with_phrases = with_phrases
        self.graph_rows = phrases.rows(split.caption_ids.tolist())
        self._graph_images = phrases.image_rows(split.image_ids.tolist())
        self.lengths = phrases.word_ids.counts[self.graph_rows]
        self.cut = Cut(int(phrases.longer[self.graph_rows].sum()), f"{phrases.max_words} words")
        word_ids = [vocabulary.ids.get(word, UNKNOWN) for word in phrases.words]
        padding = 0
        self._ids = np.array([*word_ids, padding])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Return words and phrases of the given caption rows [T], cut to the longest of them."""
        words, kinds, tokens = self.phrases.batch(self.graph_rows[rows])
        if not self.with_phrases:
            kinds = kinds[:, :0]
            tokens = tokens[:, :0]
        return TextBatch(
            torch.from_numpy(self._ids[words]),
            torch.from_numpy(self.lengths[rows]),
            PhraseBatch(torch.from_numpy(kinds.astype(np.int64)), torch.from_numpy(tokens)),
        )

    def matching(
        self,
        images: np.ndarray,
        captions: np.ndarray,
        num_phrases: int,
        num_words: int,
    ) -> Tensor:
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


class SplitData:
    """Batches of one split.

    Args:
        split: images and captions.
        texts: the captions as models read them; None where only images are read.
        image_dim: D_in, width of a region feature, of a global vector or of a pixel.

    Attributes:
        captions: the texts.
        caption_image: [T] int64, row of the image that each caption describes.
        num_images, num_captions: N and T.
        region_counts: [N] int64, number of real regions of each image.
        mirrors: whether its images can be mirrored.
        processes: those that train on the pairs, each of which has this data too.
        device: where the pairs go.
    """

    mirrors = False

    def __init__(self, split: Split, texts: Any, image_dim: int) -> None:
        self.split = split
        self.captions: TokenTexts | PhraseTexts = texts
        self.image_dim = image_dim
        self.caption_image = split.caption_image
        self.num_images = len(split.image_ids)
        self.num_captions = len(split.caption_ids)
        self.region_counts = np.ones(self.num_images, dtype=np.int64)
        self.processes = ALONE
        self.device = torch.device("cpu")

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Return the images of the given rows [B]."""
        raise NotImplementedError

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Return token ids of the given caption rows [T], cut to the longest of them."""
        return self.captions.texts(rows)

    def pad_texts(self, multiple: int) -> None:
        """Pad captions of each batch to a multiple of tokens from now on; those of scene graphs stay as they are."""
        if isinstance(self.captions, TokenTexts):
            self.captions = replace(self.captions, multiple=multiple)

    def unknown_words(self) -> int:
        """Return the percentage of the captions' words that are not in the vocabulary, which is no tokenizer's."""
        ids = self.texts(np.arange(self.num_captions)).tokens
        unknown = float((ids == UNKNOWN).sum() / (ids > END).sum())
        return round(100 * unknown)

    def pair_sizes(self) -> np.ndarray:
        """Return the words of each caption and the regions of its image together, [T]."""
        return self.captions.lengths.astype(np.int64) + self.region_counts[self.caption_image]

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Return aligned batches of image and caption rows, [B] each; `rng` is for random changes of images."""
        return self.images(images), self.texts(captions)


def longer_captions(splits: Mapping[str, SplitData]) -> str:
    """Return how many captions of each split are longer than the model reads; empty for none."""
    limit = ""
    counts = []
    for name, data in splits.items():
        cut = data.captions.cut
        if cut.count:
            limit = cut.limit
            counts.append(f"{cut.count:,} of {data.num_captions:,} {name} captions")
    if not counts:
        return ""
    return f"longer than the {limit} that the model reads: {', '.join(counts)}"


class FeatureSplitData(SplitData):
    """Batches of one split with features of its images.

    Args:
        split, texts: see `SplitData`.
        features: file that holds the features of all its images.
        read: `regions`, for all features of an image, or `global`, for its global vector alone.

    Raises:
        DataError: the features do not hold that.
    """

    def __init__(
        self,
        split: Split,
        features: FeatureFile,
        texts: Any,
        read: str = "regions",
    ) -> None:
        arrays = features.arrays
        if read not in arrays:
            missing = "regions, which these backbones read; extract others"
            if read == "global":
                missing = (
                    "global vectors; name features that have some with --features, or give --set model.images=regions"
                )
            raise DataError(f"{features.path} holds no {missing}")
        super().__init__(split, texts, arrays[read].shape[-1])
        self._read = read
        self._arrays = arrays
        self._rows = features.rows(split.image_ids.tolist())
        if read == "regions":
            self.region_counts = arrays["count"][self._rows].astype(np.int64)
            self.mirrors = "boxes" in arrays

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Return features of the given image rows [B]: regions [B, R, D_in] in half precision, or global vectors."""
        stored = self._rows[rows]
        features = torch.from_numpy(self._arrays[self._read][stored])
        if self._read == "global":
            return ImageBatch(torch.empty(len(rows), 0, 0), global_=features)
        optional = {}
        for name, field_name in (("global", "global_"), ("boxes", "boxes")):
            if name in self._arrays:
                optional[field_name] = torch.from_numpy(self._arrays[name][stored])
        count = self.region_counts[rows]
        if (count < features.shape[1]).any():
            optional["count"] = torch.from_numpy(count)
        return ImageBatch(features, **optional)


class PixelSplitData(SplitData):
    """Batches of one split with the photographs themselves, which are read from their files whenever they are needed.

    Args:
        split, texts: see `SplitData`.
        files: the photographs, row for row those of the split.
        reader: makes frames of them.
        augment: changes of training images, see `itrpipe.models.dual_encoder.declaration.Augment`. An image of which a
            caption names sides is never mirrored, since its captions and its twins would be wrong.
    """

    mirrors = True

    def __init__(
        self,
        split: Split,
        files: ImageFiles,
        texts: Any,
        reader: ImageReader,
        augment: Augment,
    ) -> None:
        super().__init__(split, texts, image_dim=3)  # colours
        self._files = files
        self._reader = reader
        self._augment = augment

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Return whole photographs of the given rows [B], as the model's own image processor makes frames of them."""
        return ImageBatch(torch.empty(len(rows), 0, 0), pixels=self._frames(rows))

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Return aligned batches of image and caption rows, [B] each; images are changed where `rng` is given.

        Of several processes each reads the images that it encodes.
        """
        from itrpipe.training.augment import apply_changes, draw_changes  # torchvision takes seconds

        count = len(images)
        divided = self.processes.size > 1 and count >= self.processes.size
        share = self.processes.share(count) if divided else slice(count)
        if rng is None or self._augment == NO_CHANGES:
            frames = self._frames(images[share]).to(self.device)
        else:
            may_flip = ~self._names_sides[images]
            sizes = self._files.sizes[images]
            # Drawn for the whole batch in every process, so that the division among them changes nothing.
            changes = draw_changes(sizes, may_flip, self._reader.frame, self._augment, rng).of(share)
            frames = self._frames(images[share], changes.boxes)
            if self._augment.randaugment:
                frames = self._reader.as_bytes(frames)
            frames = apply_changes(frames.to(self.device), changes)
        no_regions = torch.empty(len(frames), 0, 0)
        batch = ImageBatch(no_regions, pixels=frames)
        if divided:
            batch = OwnImages(no_regions, pixels=frames, rows=count, first=share.start)
        return batch, self.texts(captions)

    @cached_property
    def _names_sides(self) -> np.ndarray:
        """Return the images, bool [N], of which a caption names left or right."""
        captions = [row for row, text in enumerate(self.split.texts) if _NAMES_SIDES.search(text)]
        images = np.zeros(self.num_images, dtype=bool)
        images[self.caption_image[captions]] = True
        return images

    def _frames(self, rows: np.ndarray, boxes: np.ndarray | None = None) -> Tensor:
        """Read the photographs of rows [B], each of them once, in threads.

        Args:
            rows: of the images.
            boxes: [B, 4] part of each photograph that becomes its frame; None for all of it.

        Returns:
            [B, 3, h, w], for a GPU in pinned memory, which torch uses again: new pages would cost as much as reading.

        Raises:
            DataError: a photograph is not there any more, or another one by now.
        """
        reader = self._reader
        dtype = torch.uint8
        if boxes is None and not reader.in_bytes:
            dtype = torch.float32
        pinned = self.device.type == CUDA
        with torch.inference_mode(False):  # the threads, which are in no such mode, could not write to it
            frames = torch.empty(len(rows), 3, *reader.frame, dtype=dtype, pin_memory=pinned)
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
                if boxes is None:
                    frames[place] = reader.framed(image)
                else:
                    frames[place] = reader.cropped(image, boxes[place])

        list(_reading_threads().map(read, places))  # raises what a thread has raised
        return frames


@cache
def _reading_threads() -> ThreadPoolExecutor:
    """Return the threads that read photographs, each of which computes alone: a picture is too small for several."""
    count = min(MOST_DECODERS, usable_cores())
    return ThreadPoolExecutor(count, "photographs", initializer=torch.set_num_threads, initargs=(1,))


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
        """Open the dataset, its splits and their images: of training images the wanted share of those with features.

        Args:
            names: of the splits; None for all.
            warn: is given how many training images are left out for want of features; in other splits every image must
                be there.

        Raises:
            DataError: a file is damaged.
        """
        prepared = PreparedDataset.open(self.prepare)
        splits = {name: self.share(prepared, name) for name in names or prepared.splits}
        if self.extract is None:
            return prepared, splits, {name: self.images(split) for name, split in splits.items()}
        features = FeatureFile.open(self.extract / FEATURES)
        if "train" in splits:
            split = splits["train"]
            absent = features.absent(split.image_ids.tolist())
            if absent:
                warn(
                    f"{len(absent):,} of {len(split.image_ids):,} training images have no features and are left out; "
                    f"the first: {absent[0]}"
                )
                splits["train"] = split.without(absent)
        return prepared, splits, dict.fromkeys(splits, features)

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
        opened = {}
        for name, split in chosen.items():
            data = open_split(split, images[name], tokens, settings, reader, phrases)
            whole = prepared.split(name)
            if "text" in vectors:
                assert isinstance(data.captions, TokenTexts)
                data.captions = replace(
                    data.captions,
                    vectors=vectors["text"][name].mapped("r"),
                    vector_rows=rows_of(split.captions["caption_id"], whole.captions["caption_id"]),
                )
            if "vision" in vectors:
                arrays = {"global": vectors["vision"][name].mapped("r")}
                features = FeatureFile(vectors["vision"].path, whole.image_ids, arrays)
                data = FeatureSplitData(split, features, data.captions, "global")
            opened[name] = data
        return opened

    def phrases(self, settings: Any) -> CaptionPhrases | None:
        """Return the phrases of all captions, for a model of these settings that reads some."""
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
    """Open every split for a model that is to be trained, and the reader of its captions.

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
    reader = None
    reading = None
    if encoders is not None:
        reading = CaptionPart.of(settings)
        if encoders.vision is not None:
            reader = encoders.vision.images
    tokens: CaptionTokens
    if phrases is not None:
        # Source: SSAMT, implementation details: five occurrences, training captions only.
        word_ids = phrases.word_ids.take(phrases.rows(chosen["train"].caption_ids.tolist()))
        words = pa.array(phrases.words, pa.string())
        words = words.take(pa.array(word_ids.values))
        captions = pa.ListArray.from_arrays(pa.array(word_ids.offsets, pa.int32()), words)
        tokens = Vocabulary.build(captions, min_word_count)
    elif encoders is None and settings.pretrained().get("tokenizer"):
        folder, _ = find_folder(settings.tokenizer, settings.tokenizer_revision, (TEXT,), weights=False)
        tokens = PieceIds(load_tokenizer(folder), CaptionPart.of(settings), settings.max_words)
    elif encoders is not None and encoders.text is not None:
        tokens = PieceIds.of(encoders.text, settings)
    else:
        # Words of training images without features count, as they did when the images had some.
        captions = []
        for name in ("train", "val"):
            if name in chosen:
                split = sources.share(prepared, name)
                captions.append(split.tokens if reading is None else reading.words(split))
        tokens = vocabulary = Vocabulary.build(pa.concat_arrays(captions), min_word_count)
        if reading is not None:
            tokens = WordIds(vocabulary, reading)
    return sources.open(splits, tokens, settings, reader, phrases), tokens


def read_captions(
    split: Split, tokens: CaptionTokens, settings: Any, phrases: CaptionPhrases | None
) -> TokenTexts | PhraseTexts:
    """Return the captions of a split as a model reads them.

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
    """Return one split as a model reads it.

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
    texts = None
    if tokens is not None:
        texts = read_captions(split, tokens, settings, phrases)
    if isinstance(images, ImageFiles):
        assert reader is not None
        return PixelSplitData(split, images, texts, reader, settings.augment)
    read = "global" if settings.reads() == ("global",) else "regions"
    return FeatureSplitData(split, images, texts, read)


def reopened(saved: SavedModel, sources: Sources, names: Iterable[str]) -> dict[str, SplitData]:
    """Return splits as a model was trained on them: of training images the same share, and those that have features.

    Args:
        saved: the model.
        sources: the data that it was trained on.
        names: of the splits.

    Raises:
        DataError: the features are not what the model reads, or a file is damaged.
    """
    settings = saved.settings
    splits = sources.splits(names)
    phrases = sources.phrases(settings)
    return sources.open(splits, saved.tokens, settings, saved.images, phrases)
