"""Opens every split of a dataset as training reads it, and the vocabulary that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.training.captions import CaptionTokens, PieceIds, Reading, WordIds
from itrpipe.training.data import SplitData
from itrpipe.training.phrase_data import PhraseSplitData, phrase_vocabulary

if TYPE_CHECKING:
    from itrpipe.models.dual_encoder.network import Encoders


@dataclass(frozen=True)
class Sources:
    """Folders of the artifacts that training reads.

    Attributes:
        prepare, extract: images, captions and features.
        parse: scene graphs, for models that read phrases.
        train_share: share of the training images that are used, 0..1.
    """

    prepare: Path
    extract: Path
    parse: Path | None = None
    train_share: float = 1.0


def load_splits(
    sources: Sources, min_word_count: int, warn: Callable[[str], None], tokens: CaptionTokens | None = None
) -> tuple[dict[str, SplitData], CaptionTokens]:
    """Opens every split for a model that reads words; the vocabulary comes from train and val, as in the papers.

    Args:
        sources: where everything lies.
        min_word_count: rarer words are unknown.
        warn: is told which training images are left out for want of features; in other splits every image must be
            there.
        tokens: turns captions into ids; None for a vocabulary of our own.
    """
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    chosen = {name: usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    if tokens is None:
        # Words of training images without features count, as they did when the images had some.
        parts = [
            _share(prepared.split(name), sources.train_share).tokens for name in ("train", "val") if name in chosen
        ]
        tokens = Vocabulary.build(pa.concat_arrays(parts), min_word_count)
    return {name: SplitData(split, features, tokens) for name, split in chosen.items()}, tokens


def load_encoder_splits(
    sources: Sources,
    min_word_count: int,
    warn: Callable[[str], None],
    settings: Any,
    encoders: Encoders,
) -> tuple[dict[str, SplitData], CaptionTokens]:
    """Opens every split for encoders of transformers.

    Args:
        sources, min_word_count, warn: see `load_splits`; words are those that the settings keep of a caption.
        settings: of the model.
        encoders: opened.
    """
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    chosen = {name: usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    reading = Reading.of(settings)
    if encoders.tokenizer is not None and encoders.text is not None:
        tokens: CaptionTokens = PieceIds(encoders.tokenizer, reading, encoders.text.max_tokens)
    else:
        counted = [_share(prepared.split(name), sources.train_share) for name in ("train", "val") if name in chosen]
        words = pa.concat_arrays([reading.words(split) for split in counted])
        tokens = WordIds(Vocabulary.build(words, min_word_count), reading)
    frame = None if encoders.vision is None else encoders.vision.frame
    return {name: open_split(split, features, tokens, settings, frame) for name, split in chosen.items()}, tokens


def open_split(
    split: Split,
    features: FeatureFile,
    tokens: CaptionTokens | None,
    settings: Any,
    frame: tuple[int, int] | None = None,
) -> SplitData:
    """One split as a model without phrases reads it.

    Args:
        split: images and captions.
        features: of its images.
        tokens: turns captions into ids; None where only images are read.
        settings: of the model.
        frame: height and width of the images that the model reads, where it reads images.

    Raises:
        DataError: the features are not what the model reads.
    """
    if settings.reads() not in (("global",), ("pixels",)):
        return SplitData(split, features, tokens)
    from itrpipe.training.pixel_data import GlobalSplitData, PixelSplitData  # torchvision takes seconds

    if settings.reads() == ("global",):
        return GlobalSplitData(split, features, tokens)
    assert frame is not None
    return PixelSplitData(split, features, tokens, frame, settings.augment)


def load_phrase_splits(
    sources: Sources, min_word_count: int, warn: Callable[[str], None], *, max_words: int, with_phrases: bool
) -> tuple[dict[str, SplitData], Vocabulary]:
    """Opens every split for a model that reads phrases; words are those of the scene graphs, counted over train.

    Args:
        sources: where everything lies, scene graphs included.
        min_word_count, warn: see `load_splits`.
        max_words: words kept of a caption.
        with_phrases: give the words only when off.
    """
    from itrpipe.scene_graph.phrases import CaptionPhrases

    assert sources.parse is not None
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    phrases = CaptionPhrases.read(sources.parse, max_words)
    chosen = {name: usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    vocabulary = phrase_vocabulary(phrases, chosen["train"], min_word_count)
    splits: dict[str, SplitData] = {
        name: PhraseSplitData(split, features, vocabulary, phrases, with_phrases) for name, split in chosen.items()
    }
    return splits, vocabulary


def usable(
    split: Split, features: FeatureFile, train_share: float, warn: Callable[[str], None] = lambda message: None
) -> Split:
    """A split as it is trained on: of training images the wanted share, and of these those that have features."""
    split = _share(split, train_share)
    absent = features.absent(split.image_ids.tolist()) if split.name == "train" else []
    if not absent:
        return split
    warn(
        f"{len(absent):,} of {len(split.image_ids):,} training images have no features and are left out; the first: "
        f"{absent[0]}"
    )
    return split.without(absent)


def _share(split: Split, share: float) -> Split:
    """The training split with so many of its images, any other as it is."""
    return split.share(share) if split.name == "train" else split
