"""Opens the splits of a dataset as a model reads them, for its training and for the trained model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.training.captions import CaptionTokens, PieceIds, Reading, WordIds, named_tokens, phrase_vocabulary
from itrpipe.training.data import GlobalSplitData, PhraseSplitData, PixelSplitData, SplitData
from itrpipe.training.saved import load_model

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
        warn: is told which training images are left out for want of features; in other splits every image must be
            there.
        encoders: opened, of a model that is made of some.

    Raises:
        DataError: the features are not what the model reads, or a file is damaged.
    """
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    chosen = {name: usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    # Words of training images without features count, as they did when the images had some.
    counted = [_share(prepared.split(name), sources.train_share) for name in ("train", "val") if name in chosen]
    phrases, frame = None, None
    if settings.reads_phrases:
        assert sources.parse is not None
        phrases = CaptionPhrases.read(sources.parse, settings.max_words)
        tokens: Any = phrase_vocabulary(phrases, chosen["train"], min_word_count)
    elif encoders is None:
        words = [split.tokens for split in counted]
        tokens = named_tokens(settings) or Vocabulary.build(pa.concat_arrays(words), min_word_count)
    else:
        frame, reading = None if encoders.vision is None else encoders.vision.frame, Reading.of(settings)
        if encoders.tokenizer is not None and encoders.text is not None:
            tokens = PieceIds(encoders.tokenizer, reading, encoders.text.max_tokens)
        else:
            words = [reading.words(split) for split in counted]
            tokens = WordIds(Vocabulary.build(pa.concat_arrays(words), min_word_count), reading)
    opened = {name: open_split(split, features, tokens, settings, frame, phrases) for name, split in chosen.items()}
    return opened, tokens


def open_split(
    split: Split,
    features: FeatureFile,
    tokens: CaptionTokens | None,
    settings: Any,
    frame: tuple[int, int] | None = None,
    phrases: CaptionPhrases | None = None,
) -> SplitData:
    """One split as a model reads it.

    Args:
        split: images and captions.
        features: of its images.
        tokens: turns captions into ids; None where only images are read.
        settings: of the model.
        frame: height and width of the images that the model reads, where it reads images.
        phrases: of all captions, where the model reads phrases.

    Raises:
        DataError: the features are not what the model reads.
    """
    if phrases is not None:
        assert isinstance(tokens, Vocabulary)
        return PhraseSplitData(split, features, tokens, phrases, settings.phrases)
    if settings.reads() == ("global",):
        return GlobalSplitData(split, features, tokens)
    if settings.reads() == ("pixels",):
        assert frame is not None
        return PixelSplitData(split, features, tokens, frame, settings.augment)
    return SplitData(split, features, tokens)


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


class Reopened:
    """A trained model and the splits that it reads.

    Args:
        trained: folder of the model, of which its weights, settings and tokens are there.
        sources: what it was trained on.
        device: where it computes.

    Attributes:
        saved: the model with its settings.
        model: in evaluation mode.
        device: where it is.
    """

    def __init__(self, trained: Path, sources: Sources, device: torch.device) -> None:
        self.saved, self._sources, self.device = load_model(trained), sources, device
        self.model: Any = self.saved.model.to(device)
        self._splits: dict[str, SplitData] = {}
        self._opening = threading.Lock()  # several parts may be made at the same time

    def split(self, name: str) -> SplitData:
        """A split as the model was trained on it: of training images the same share, and those that have features.

        Raises:
            DataError: the features are not what the model reads, or a file is damaged.
        """
        with self._opening:
            if name not in self._splits:
                saved, sources = self.saved, self._sources
                features = FeatureFile.open(sources.extract / FEATURES)
                split = usable(PreparedDataset.open(sources.prepare).split(name), features, sources.train_share)
                phrases, settings = None, saved.settings
                if settings.reads_phrases:
                    assert sources.parse is not None
                    phrases = CaptionPhrases.read(sources.parse, settings.max_words)  # pyright: ignore
                self._splits[name] = open_split(split, features, saved.tokens, settings, saved.frame, phrases)
            return self._splits[name]
