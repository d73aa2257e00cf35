"""Opens every split of a dataset as training reads it, and the vocabulary that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.training.data import SplitData
from itrpipe.training.phrase_data import PhraseSplitData, phrase_vocabulary


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
    sources: Sources, min_word_count: int, warn: Callable[[str], None]
) -> tuple[dict[str, SplitData], Vocabulary]:
    """Opens every split for a model that reads words; the vocabulary comes from train and val, as in the papers.

    Args:
        sources: where everything lies.
        min_word_count: rarer words are unknown.
        warn: is told which training images are left out for want of features; in other splits every image must be
            there.
    """
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    chosen = {name: _usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    # Words of training images without features count, as they did when the images had some.
    counted = [_share(prepared.split(name), sources.train_share).tokens for name in ("train", "val") if name in chosen]
    vocabulary = Vocabulary.build(pa.concat_arrays(counted), min_word_count)
    return {name: SplitData(split, features, vocabulary) for name, split in chosen.items()}, vocabulary


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
    from itrpipe.scene_graph.phrase_arrays import CaptionPhrases

    assert sources.parse is not None
    prepared, features = PreparedDataset.open(sources.prepare), FeatureFile.open(sources.extract / FEATURES)
    phrases = CaptionPhrases.read(sources.parse, max_words)
    chosen = {name: _usable(prepared.split(name), features, sources.train_share, warn) for name in prepared.splits}
    vocabulary = phrase_vocabulary(phrases, chosen["train"], min_word_count)
    splits: dict[str, SplitData] = {
        name: PhraseSplitData(split, features, vocabulary, phrases, with_phrases) for name, split in chosen.items()
    }
    return splits, vocabulary


def _usable(split: Split, features: FeatureFile, train_share: float, warn: Callable[[str], None]) -> Split:
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
    """The training split with so many of its images; smaller shares lie within larger ones, whatever the run's seed."""
    if split.name != "train" or share == 1.0:
        return split
    order = np.random.default_rng(0).permutation(len(split.image_ids))
    kept = max(1, round(share * len(order)))
    return split.without(split.image_ids[order[kept:]].tolist())
