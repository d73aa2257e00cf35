"""Opens a trained model on a split, as a maker of sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.synthesis.by_model import ModelMaker, ModelSettings
from itrpipe.synthesis.captions import GraphCandidates
from itrpipe.synthesis.opened import Opened
from itrpipe.synthesis.uniter_sentences import UniterSentences
from itrpipe.training.masked_captions import special_tokens, token_captions
from itrpipe.training.saved import load_model
from itrpipe.training.splits import open_split


@dataclass(frozen=True)
class ModelSources:
    """What writing with a model reads.

    Attributes:
        prepare, extract: folders of the captions, and of the features of their images.
        train: of the model.
        parse: of scene graphs; None where single words are masked.
        split: whose captions sentences are made of.
        train_share: share of the training images whose captions those are.
    """

    prepare: Path
    extract: Path
    train: Path
    parse: Path | None
    split: str = "train"
    train_share: float = 1.0


def open_model_maker(sources: ModelSources, settings: ModelSettings, device: str, memory: int) -> Opened:
    """A trained model on the captions of a split; on those of the training images that have features, as in training.

    Args:
        sources: what is read.
        settings: how sentences are made.
        device: `cpu` or `cuda`.
        memory: bytes, see `UniterSentences`.

    Raises:
        UsageError: the model writes no words, its tokenizer has no mask, or the dataset has no such split.
        MissingInputError: a file is not there.
        DataError: a file is damaged, or two do not belong together.
    """
    saved = load_model(sources.train)
    if "writing" not in saved.settings.answers:
        raise UsageError(f"{saved.config['backbone']} cannot write words; give --backbone uniter")
    features = FeatureFile.open(sources.extract / FEATURES)
    split = PreparedDataset.open(sources.prepare).split(sources.split)
    if split.name == "train":
        split = split.share(sources.train_share)
        if absent := features.absent(split.image_ids.tolist()):
            split = split.without(absent)
    model = cast(UniterEncoder, saved.model)
    captions = token_captions(split, saved.tokens, model)
    data = open_split(split, features, saved.tokens, saved.settings)
    candidates = None if sources.parse is None else GraphCandidates(captions, MaskCandidates.read(sources.parse))
    specials = special_tokens(saved.tokens, captions.pieces)
    writer = UniterSentences(model, data.images, device, memory)
    maker = ModelMaker(captions, writer, candidates, settings, specials, device)
    return Opened(maker, dict(zip(captions.caption_ids, captions.texts, strict=True)), len(captions.pieces))
