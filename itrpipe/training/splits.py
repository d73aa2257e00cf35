"""Opens the splits of a dataset as a model reads them, for its training and for the trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.training.captions import CaptionTokens, PieceIds, Reading, WordIds, named_tokens, phrase_vocabulary
from itrpipe.training.data import GlobalSplitData, PhraseSplitData, PixelSplitData, SplitData
from itrpipe.training.saved import SavedModel

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

    def splits(
        self, names: Iterable[str] | None = None, warn: Callable[[str], None] = lambda message: None
    ) -> tuple[PreparedDataset, FeatureFile, dict[str, Split]]:
        """The dataset, its features and splits: of training images the wanted share of those that have features.

        Args:
            names: of the splits; None for all.
            warn: is told how many training images are left out for want of features; in other splits every image must
                be there.

        Raises:
            DataError: a file is damaged.
        """
        prepared, features = PreparedDataset.open(self.prepare), FeatureFile.open(self.extract / FEATURES)
        found = {name: prepared.split(name) for name in names or prepared.splits}
        if "train" in found:
            split = found["train"].share(self.train_share)
            if absent := features.absent(split.image_ids.tolist()):
                warn(
                    f"{len(absent):,} of {len(split.image_ids):,} training images have no features and are left out; "
                    f"the first: {absent[0]}"
                )
                split = split.without(absent)
            found["train"] = split
        return prepared, features, found

    def phrases(self, settings: Any) -> CaptionPhrases | None:
        """The phrases of all captions, for a model of these settings that reads some."""
        if not settings.reads_phrases:
            return None
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
    prepared, features, chosen = sources.splits(warn=warn)
    phrases, frame, reading = sources.phrases(settings), None, None
    tokens: Any = None
    if phrases is not None:
        tokens = phrase_vocabulary(phrases, chosen["train"], min_word_count)
    elif encoders is None:
        tokens = named_tokens(settings)
    else:
        frame, reading = None if encoders.vision is None else encoders.vision.frame, Reading.of(settings)
        if encoders.tokenizer is not None and encoders.text is not None:
            tokens = PieceIds(encoders.tokenizer, reading, encoders.text.max_tokens)
    if tokens is None:
        # Words of training images without features count, as they did when the images had some.
        counted = [prepared.split(name) for name in ("train", "val") if name in chosen]
        counted = [split.share(sources.train_share) if split.name == "train" else split for split in counted]
        words = [split.tokens if reading is None else reading.words(split) for split in counted]
        tokens = Vocabulary.build(pa.concat_arrays(words), min_word_count)
        tokens = tokens if reading is None else WordIds(tokens, reading)
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


def reopened(saved: SavedModel, sources: Sources, names: Iterable[str]) -> dict[str, SplitData]:
    """Splits as a model was trained on them: of training images the same share, and those that have features.

    Args:
        saved: the model.
        sources: what it was trained on.
        names: of the splits.

    Raises:
        DataError: the features are not what the model reads, or a file is damaged.
    """
    _, features, chosen = sources.splits(names)
    settings, phrases = saved.settings, sources.phrases(saved.settings)
    return {
        name: open_split(split, features, saved.tokens, settings, saved.frame, phrases)
        for name, split in chosen.items()
    }
