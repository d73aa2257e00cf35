"""Opens a trained model: what `itrpipe export` or `itrpipe train` wrote, or a joint model of transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import FeatureSettings, feature_settings, passes_of
from itrpipe.features.extractors.pixels.extractor import PixelExtractor
from itrpipe.features.frames import Preprocessing, load_preprocessing
from itrpipe.features.hub import CONFIG, SAFETENSORS, download, has_any, local_folder, quiet
from itrpipe.features.photographs import Photographs
from itrpipe.features.towers import load_config, load_weights
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding, l2_normalise
from itrpipe.models.declaration import LONGEST
from itrpipe.models.dual_encoder import declaration, network
from itrpipe.models.dual_encoder.native import JOINT, PAIR
from itrpipe.models.dual_encoder.network import load_tokenizer, positions_of
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.search.model import RetrievalModel
from itrpipe.storage.artifact import MANIFEST, existing_input, read_manifest
from itrpipe.storage.disk import reading
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training.captions import PieceIds, Reading
from itrpipe.training.saved import ABOUT, SavedModel, load_model

_Opened = tuple[SavedModel, str, str, Callable[[], Photographs], ParseSettings | None]
"""A model, its name, the name and the extractors of what it reads of images, and its parser where it reads phrases."""
_FILES = (CONFIG, "*.safetensors", "*.json", "*.txt", "*.model")
"""What is fetched of a model of the hub: no pickles and no code."""
_COLOURS, _IMAGES_AT_ONCE = 3, 64


def load(folder_or_model: str | os.PathLike[str], *, device: str = "auto", revision: str = "main") -> RetrievalModel:
    """Opens a model that encodes, scores and searches images and texts.

    Args:
        folder_or_model: a folder that `itrpipe export` wrote; the artifact of a training, `data/DATASET/train/NAME`; or
            a folder of transformers with CLIP, SigLIP or a `VisionTextDualEncoderModel`. Or the id of one on the hub.
        device: `auto` takes CUDA where there is one; `cpu`, or `cuda`.
        revision: branch, tag or commit of a hub id.

    Returns:
        The model, in evaluation mode. Weights are read from safetensors only, and no code that comes with them is run.

    Raises:
        MissingInputError: there is no such folder or hub id, or it lacks a file.
        DataError: a file is damaged.
        UsageError: it is none of these models, or there is no CUDA device.

    Example:
        >>> model = itrpipe.load("exported")  # doctest: +SKIP
        >>> model.search("two dogs on a beach", ["a.jpg", "b.jpg"])  # doctest: +SKIP
        [Match(index=1, score=0.31), Match(index=0, score=0.12)]
    """
    place, name = resolve_device(device), os.fspath(folder_or_model)
    folder = fetch(name, revision)
    if (folder / MANIFEST).is_file():
        return RetrievalModel(*_trained(folder, place), device=place)
    if not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{folder} has no {CONFIG}; name the folder of a model, such as one of `itrpipe export`"
        )
    with reading(folder / CONFIG, "a model", "export the model again, or fetch it again"):
        config = read_checked_json(folder / CONFIG)
        exported = isinstance(config, dict) and ("backbone" in config or ABOUT in config)
        opened = _exported(folder, place) if exported else _joint(folder, name)
    return RetrievalModel(*opened, device=place)


def fetch(model: str, revision: str = "main") -> Path:
    """The folder that a model is, or that of the files of a model of the hub, downloaded where they are not there yet.

    Raises:
        MissingInputError: there is no such hub id, or the hub cannot be reached.
    """
    return local_folder(model) or download(model, revision, _FILES)


def _trained(folder: Path, device: str) -> _Opened:
    """An artifact of `train`."""
    manifest = read_manifest(folder)
    if manifest.stage != "train":
        raise UsageError(f"{folder} is an artifact of {manifest.stage} and holds no model; name one of train")
    saved = load_model(folder)
    extract, parser = read_manifest(existing_input(folder, manifest, "extract")), None
    if saved.settings.reads_phrases:
        parser = ParseSettings.recorded(read_manifest(existing_input(folder, manifest, "parse")).settings)
    return saved, manifest.label, *_reading(manifest.label, extract.conf, extract.settings, device), parser


def _exported(folder: Path, device: str) -> _Opened:
    """A folder of `itrpipe export`."""
    saved = load_model(folder)
    about = saved.config.get(ABOUT)
    if not isinstance(about, dict) or not isinstance(about.get("run"), str) or "features" not in about:
        raise DataError(
            f"{folder / CONFIG} does not say what the model reads of images; name a folder of `itrpipe export`, or of "
            "a training with its manifest.json"
        )
    parser = ParseSettings.recorded(about.get("parser")) if saved.settings.reads_phrases else None
    label, features = about["run"], about["features"]
    # Exports of earlier versions do not say so; their extractor tells itself when it finds no weights.
    anywhere = features.get("of_anywhere", True)
    read = _reading(label, features["extractor"], features["settings"], device, anywhere=anywhere)
    return saved, label, *read, parser


def _reading(
    label: str, name: str, settings: Mapping[str, Any], device: str, *, anywhere: bool = True
) -> tuple[str, Callable[[], Photographs]]:
    """The name of features, and what opens their extractors."""
    parts = passes_of(name, feature_settings(settings).model_validate(settings))
    if not parts:
        raise DataError(f"the features {name!r} name no extractor; give the folder as it was exported")
    return name, partial(_extractors, label, name, parts, device, anywhere)


def _extractors(
    label: str, name: str, parts: Mapping[str, FeatureSettings], device: str, anywhere: bool
) -> Photographs:
    imported = [part.kind for part in parts.values() if part.imported]
    if imported:
        raise UsageError(
            f"{label} reads the features {name!r}, which were imported ({imported[0]}), so those of a photograph "
            "cannot be made alike; give features.h5 of `itrpipe extract --from PATH` instead of photographs"
        )
    if not anywhere:
        raise UsageError(
            f"{label} reads the features {name!r}, whose weights lay in a file of the machine that exported it; give "
            "features.h5 instead of photographs"
        )
    return Photographs.by(name, parts, device)


def _joint(folder: Path, name: str) -> _Opened:
    """A joint model of transformers as it was published: CLIP, SigLIP, or a vision and a text encoder in one folder.

    CLIP and SigLIP become the dual encoder that `--method zero-shot` makes of them, with captions as they are;
    photographs go through the model's own image processor.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged, or weights are of another network.
        UsageError: the model is no joint one, or its image processor is not supported.
    """
    if not has_any(folder, SAFETENSORS):
        raise MissingInputError(
            f"{folder} has no {' nor '.join(SAFETENSORS)}, and other weights are not loaded; save the model as "
            "safetensors"
        )
    settings = declaration.DualEncoder(vision=str(folder), text=str(folder), clean_captions=False, max_words=LONGEST)
    with quiet():
        kind, joint = load_config(folder, JOINT)
        preprocessing = load_preprocessing(folder)
        if kind.network == PAIR:
            model: Any = VisionTextPair(load_weights(folder, kind, joint)[0], preprocessing)
            tokenizer = load_tokenizer(folder)
        else:
            encoders = network.open_encoders(settings)
            model, tokenizer = network.build(settings, _COLOURS, 0, encoders), encoders.tokenizer
    tokens = PieceIds(tokenizer, Reading.of(settings), model.text.max_tokens)
    config = {"backbone": "dual-encoder", "model": settings.model_dump(), "image_dim": _COLOURS}
    pixels = PixelExtractor(preprocessing.framing, preprocessing.framing.frame)
    photographs = Photographs(name, {"pixels": pixels})
    return SavedModel(model.eval(), tokens, config), name, "pixels", lambda: photographs, None


class VisionTextPair(DualEncoder):
    """A `VisionTextDualEncoderModel` of transformers as it is, its pooling and projections included.

    Args:
        joint: the model.
        preprocessing: of its images.

    Attributes:
        embed_dim: D.
        vision: has the `frame` of its images.
        text: has `max_tokens`.
    """

    def __init__(self, joint: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.joint, self.embed_dim = joint, int(joint.config.projection_dim)
        self.vision = SimpleNamespace(frame=preprocessing.framing.frame)
        self.text = SimpleNamespace(max_tokens=positions_of(joint.text_model))
        self._padding = joint.config.text_config.pad_token_id or 0
        self._normalise = preprocessing

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Embeddings [B, D] of unit length."""
        assert images.pixels is not None
        parts = [self._normalise(part) for part in images.pixels.split(_IMAGES_AT_ONCE)]
        vectors = torch.cat([self.joint.visual_projection(self.joint.vision_model(part)[1]) for part in parts])
        return ImageEncoding(l2_normalise(vectors.float(), dim=-1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        tokens, mask = self._padded(texts)
        found = self.joint.text_model(input_ids=tokens, attention_mask=mask)
        return TextEncoding(l2_normalise(self.joint.text_projection(found[1]).float(), dim=-1))

    def _padded(self, texts: TextBatch) -> tuple[Tensor, Tensor]:
        real = torch.arange(texts.tokens.shape[1], device=texts.tokens.device) < texts.lengths[:, None]
        return texts.tokens.masked_fill(~real, self._padding), real.long()
