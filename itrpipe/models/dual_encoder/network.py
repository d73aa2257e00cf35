"""Any vision encoder and any text encoder of transformers as one dual encoder, trained from pixels or frozen features.

Each encoder is a tower: it makes one vector of an image's pixels, or of a caption. Frozen features are one vector of an
image, or its regions as the tokens of a small Transformer.

Embeddings are unit vectors; a linear projection of each side to a joint space is optional between encoders of one
width. A joint model such as CLIP or SigLIP is named as both encoders, keeps its own projections, and so can be
fine-tuned with any method. Vectors of poolers are projected without a bias, as transformers joins two encoders.

Source: FNE (Li et al., ACM MM 2023), §4.1: ViT and BERT, mean of the tokens; its released code has no projection.

Shapes: B images, R regions, n tokens of an image, T captions, W tokens of a caption, D_in width of frozen features, D
width of a token, of a tower's vector, or of an embedding.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from itrpipe.errors import DataError, MissingInputError, UsageError, reason_of
from itrpipe.features.hub import TEXT_KINDS, TOKENIZERS, VISION_KINDS, Kind, find_folder, quiet
from itrpipe.features.towers import (
    Seen,
    kind_of,
    load_tensors,
    open_network,
    open_vision,
    own_vector,
    see,
)
from itrpipe.models.base import DualEncoder as Base
from itrpipe.models.base import (
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    boxes_of,
    first_places,
    l2_normalise,
    mean_of_first,
    real_count,
)
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.uniter.network import NORM_EPSILON, EncoderLayers, RegionEmbedding, initialise
from itrpipe.models.vsepp.network import mean_of_regions
from itrpipe.storage.disk import reading

_IMAGES_AT_ONCE = 64
"""Outside training; a block of 512 images of 384 pixels would take gigabytes for a ViT's tokens."""
PADDED_LENGTH = 30
"""Tokens that captions are padded to when padding counts. Source: FNE's released code, testing."""

_CLIP_COLOURS = 255 * torch.tensor(
    [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]], dtype=torch.float64
)
"""Mean and deviation of red, green and blue in bytes. Source: CLIP, also FNE's released code."""

_WITH_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")

# Networks that are trained on captions of one length without a mask, and so read padding like words.
_OF_ONE_LENGTH = ("SiglipTextModel",)
# Networks that make their masks themselves of one [T, W]. The others take [T, 1, 1, W] or [T, 1, W, W] as it is; of
# [T, W] transformers would ask whether it hides anything at all, and the host would wait for the device.
_OF_OWN_MASKS = ("MPNetModel", "DebertaV2Model", "ModernBertModel")
_CAUSAL = "CLIPTextModelWithProjection"
_SCALE = "logit_scale"
_BIAS = "logit_bias"


class Tower(nn.Module):
    """A network of transformers whose tokens are pooled.

    Attributes:
        network: of transformers.
        pool: how its tokens become one vector.
        width: D of the vectors it gives.
    """

    width: int

    def __init__(self, network: Any, pool: str) -> None:
        super().__init__()
        self.network = network
        self.pool = pool

    def pooled(self, tokens: Tensor, lengths: Tensor | None, own: Any) -> Tensor:
        """Return one vector [N, D] for each of N images or captions.

        Args:
            tokens: [N, n, D].
            lengths: [N], how many tokens are real; None stands for all.
            own: the network's own vectors [N, D], or None where it has none.
        """
        if self.pool == "mean":
            return mean_of_first(tokens, lengths)
        if self.pool == "mean-all":
            return tokens.mean(dim=1)
        if self.pool == "cls":
            return tokens[:, 0]
        if self.pool == "own":
            return own
        assert lengths is not None
        return tokens[torch.arange(len(tokens), device=tokens.device), lengths - 1]

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored_tower`."""
        config = json.loads(self.network.config.to_json_string(use_diff=False))
        return {
            "network": type(self.network).__name__,
            # Where it was loaded from is of no use to who gets the trained model.
            "config": {key: value for key, value in config.items() if key != "_name_or_path"},
            "identities": [name for name, part in self.network.named_children() if isinstance(part, nn.Identity)],
            "pool": self.pool,
        }

    @torch.no_grad()
    def _width_of(self, *inputs: Tensor) -> int:
        """D of the vectors, found by running the tower once; no random number is drawn."""
        training = self.training
        width = self.eval()(*inputs).shape[1]
        self.train(training)
        return width


class VisionTower(Tower):
    """Normalises bytes, runs a network, pools its tokens.

    Args:
        network: of transformers.
        pool: `mean` of all tokens, the class token among them, as FNE's code has it; `cls`, the first; or `own`, that
            of CLIP and SigLIP and the output of the pooler of others.
        colours: their mean [3] and deviation [3], in bytes.
        frame: height and width of the images that the network takes.

    Attributes:
        frame: as given.
        crops: whether it was trained on the middle of images that keep their shape; known of a pretrained one.
    """

    mean: Tensor
    std: Tensor

    crops = False

    def __init__(self, network: Any, pool: str, colours: Any, frame: tuple[int, int]) -> None:
        super().__init__(network, pool)
        self.frame = frame
        for name, values in zip(("mean", "std"), colours, strict=True):
            self.register_buffer(name, torch.as_tensor(values).float().view(3, 1, 1), persistent=False)
        self.width = self._width_of(torch.zeros(1, 3, *frame, dtype=torch.uint8))

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns vectors [B, D] of images [B, 3, h, w] uint8 of the frame's size."""
        seen = self.see(pixels)
        return self.pooled(seen.tokens, None, seen.own)

    def see(self, pixels: Tensor) -> Seen:
        """Returns all tokens [B, n, D] of images [B, 3, h, w] uint8, and the cells of the last, row by row."""
        assert pixels.shape[1:] == (3, *self.frame)
        assert pixels.dtype == torch.uint8
        return see(self.network, (pixels.float() - self.mean) / self.std)

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored_tower`."""
        colours = {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}
        return {**super().description(), "frame": list(self.frame), **colours}


class TextTower(Tower):
    """Runs a network on captions and pools their tokens.

    Args:
        network: of transformers.
        pool: `mean` of a caption's tokens, first and last among them; `mean-all`, padding too, as FNE's code has it,
            which pads to the longest of the batch in training and to 30 otherwise; `cls`, the first token; `eot`, the
            last; or `own`, that of CLIP and SigLIP and the output of the pooler of others.
    """

    def __init__(self, network: Any, pool: str) -> None:
        super().__init__(network, pool)
        self.width = self._width_of(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([3]))

    @property
    def max_tokens(self) -> int:
        """Longest caption in tokens that there are positions for."""
        return positions_of(self.network)

    def forward(self, tokens: Tensor, lengths: Tensor, in_training: bool = False) -> Tensor:
        """Returns vectors [T, D] of captions [T, W] int64 with lengths [T]; what is behind a length plays no part.

        Where padding counts it is that of the batch `in_training`, else that up to `PADDED_LENGTH` tokens.
        """
        found = self._read(tokens, lengths, 0 if in_training else PADDED_LENGTH)
        return self.pooled(found.last_hidden_state, lengths, own_vector(found))

    def tokens(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Returns all tokens [T, W, D] of captions [T, W] int64; what is behind a length is zero."""
        states = self._read(tokens, lengths, PADDED_LENGTH).last_hidden_state[:, : tokens.shape[1]]
        return states.masked_fill(~first_places(tokens, lengths)[..., None], 0)

    def _read(self, tokens: Tensor, lengths: Tensor, counted: int) -> Any:
        """Run the network on captions, padded to W' tokens; where padding counts, W' is `counted` at least."""
        name = type(self.network).__name__
        fixed = name in _OF_ONE_LENGTH
        width = self.max_tokens if fixed else counted if self.pool == "mean-all" else 0
        tokens = F.pad(tokens, (0, max(0, width - tokens.shape[1])))
        real = first_places(tokens, lengths)  # [T, W']
        tokens = tokens.masked_fill(~real, self.network.config.pad_token_id or 0)
        mask = None if fixed else real.long() if name in _OF_OWN_MASKS else real[:, None, None]
        if name == _CAUSAL:
            mask = real[:, None, None] & real.new_ones(real.shape[1], real.shape[1]).tril()
        return self.network(tokens, attention_mask=mask)


def positions_of(network: Any) -> int:
    """Longest caption in tokens that a text network of transformers has positions for."""
    # RoBERTa and its like count positions from behind that of padding.
    unused = [
        part.padding_idx + 1
        for name, part in network.named_modules()
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    return network.config.max_position_embeddings - max(unused, default=0)


class RegionTower(nn.Module):
    """One vector of an image's regions.

    Args:
        image_dim: D_in.
        width: D, a multiple of `heads`.
        heads, layers: of the Transformer.
        pool: `mean` of the regions, or `cls`: a class token before them.
        boxes: whether the features have boxes, which are read then.

    Attributes:
        width, boxes: as given.
    """

    def __init__(self, image_dim: int, width: int, heads: int, layers: int, pool: str, boxes: bool) -> None:
        super().__init__()
        self.width = width
        self.boxes = boxes
        self.embedding = RegionEmbedding(width, image_dim, boxes)
        self.start = nn.Parameter(torch.zeros(1, 1, width)) if pool == "cls" else None
        self.layers = EncoderLayers(layers, width, heads, 4 * width, 0.0, NORM_EPSILON)
        initialise(self)
        if self.start is not None:
            nn.init.normal_(self.start, std=0.02)

    def forward(self, images: ImageBatch) -> Tensor:
        """Returns vectors [B, D]; what is behind the number of an image's regions plays no part.

        Raises:
            DataError: the images have no boxes and the model was trained with some.
        """
        count = real_count(images)
        states = self.embedding(images.regions.float(), boxes_of(images) if self.boxes else None)
        if self.start is not None:
            states = torch.cat([self.start.expand(len(states), 1, -1), states], dim=1)
            count = None if count is None else count + 1
        allowed = None if count is None else first_places(states, count)[:, None, None]
        if self.start is not None:
            return self.layers(states, allowed, first=1)[:, 0]
        return mean_of_first(self.layers(states, allowed), count)


class TransformerDualEncoder(Base):
    """A vision and a text encoder that compare unit vectors by inner product.

    Args:
        settings: the options of the model.
        vision: vision encoder, or one of region tokens; None where images are one frozen vector each.
        text: text encoder.
        image_dim: width D_in of frozen features.
        scale: see `pretrained_scale`.

    Raises:
        UsageError: the encoders differ in width and are not projected, or one has no gradient checkpointing.

    Attributes:
        embed_dim: D.
    """

    def __init__(
        self,
        settings: DualEncoder,
        vision: VisionTower | RegionTower | None,
        text: TextTower,
        image_dim: int,
        scale: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.pretrained_scale = scale
        self.settings = settings
        self.vision = vision
        self.text = text
        width = image_dim if vision is None else vision.width
        if not settings.embed_dim and width != text.width:
            made_by = settings.vision if isinstance(vision, VisionTower) else settings.images
            raise UsageError(
                f"image vectors of {made_by} have width {width} and text vectors of {settings.text} "
                f"{text.width}; project both with --set model.embed_dim={text.width}"
            )
        self.embed_dim = settings.embed_dim or width
        # transformers projects an encoder's own vector and a pooler's without a bias; so do we, to be opened there.
        own = isinstance(vision, VisionTower) and vision.pool == text.pool == "own"
        bias = not (own and kind_of(text.network, TEXT_KINDS).own == "pooler")
        self.project_images = self.project_texts = self.dropout = nn.Identity()
        if settings.embed_dim:
            self.dropout = nn.Dropout(settings.dropout)
            self.project_images = nn.Linear(width, self.embed_dim, bias)
            self.project_texts = nn.Linear(text.width, self.embed_dim, bias)
        if settings.gradient_checkpointing:
            for tower in self.encoders().values():
                network: Any = tower.network
                if not network.supports_gradient_checkpointing:
                    raise UsageError(f"{type(network).__name__} has no gradient checkpointing; leave it out")
                network.config.use_cache = False  # else transformers says on the terminal that it turns it off
                # Releases of transformers 5 before the newest know the old name alone, which the newest warns of.
                enable = getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)
                enable({"use_reentrant": False})

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Embeddings [B, D] of unit length."""
        if isinstance(self.vision, RegionTower):
            vectors = self.vision(images)
        elif self.vision is not None:
            assert images.pixels is not None
            parts = [images.pixels] if self.training else images.pixels.split(_IMAGES_AT_ONCE)
            vectors = torch.cat([self.vision(part) for part in parts])
        elif self.settings.images == "global":
            assert images.global_ is not None
            vectors = images.global_.float()
        else:
            vectors = mean_of_regions(images)
        vectors = self.project_images(self.dropout(vectors))
        return ImageEncoding(l2_normalise(vectors.float(), dim=-1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        vectors = texts.vectors
        if vectors is None:
            vectors = self.text(texts.tokens, texts.lengths, texts.in_training)
        vectors = self.project_texts(self.dropout(vectors))
        return TextEncoding(l2_normalise(vectors.float(), dim=-1))

    def encoders(self) -> dict[str, nn.Module]:
        """`vision`, where images are pixels, and `text`."""
        return {name: getattr(self, name) for name in self.settings.encoders()}

    def description(self) -> dict[str, Any]:
        """The networks without their weights, for `restored`."""
        vision = self.vision.description() if isinstance(self.vision, VisionTower) else None
        boxes = isinstance(self.vision, RegionTower) and self.vision.boxes
        return {"vision": vision, "text": self.text.description(), "scale": self.pretrained_scale, "boxes": boxes}


@dataclass(frozen=True)
class Encoders:
    """Encoders of a model, opened before the data are.

    Attributes:
        vision: the vision encoder; None where images are frozen features.
        text: the text encoder; None where it is a random one, which waits for the vocabulary.
        tokenizer: of the text encoder; None where words have ids of our own.
        notes: what a user should know.
        scale: scale and bias of the logits that a joint model was pretrained with; None where vision and text are not
            of one.
        boxes: whether the regions of the features have boxes.
        global_dim: width of their vectors of whole images; 0 where they have none, or the model reads none.
    """

    vision: VisionTower | None = None
    text: TextTower | None = None
    tokenizer: Any | None = None
    notes: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    boxes: bool = False
    global_dim: int = 0


def open_encoders(settings: DualEncoder, global_dim: int = 0, boxes: bool = True) -> Encoders:
    """Loads the pretrained encoders and makes a random vision encoder.

    Args:
        settings: the options of the model.
        global_dim: width of the global vectors of the features; not read.
        boxes: whether their regions have boxes.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or weights are of another network.
        UsageError: a model type is not supported, its tokens cannot be pooled so, or a random encoder has nothing that
            the settings ask for.
    """
    vision = None
    notes = ()
    name = settings.vision
    if settings.images == "pixels" and name == RANDOM:
        if settings.normalisation == "own":
            raise UsageError("a random vision encoder has no normalisation of its own; leave model.normalisation out")
        pool = _pool(settings.image_pool, VISION_KINDS["vit"], name, "image")
        sizes = _sizes(settings.width, settings.heads, settings.vision_layers)
        config = transformers.ViTConfig(image_size=settings.image_size, patch_size=settings.patch_size, **sizes)
        network = transformers.ViTModel(config, add_pooling_layer=pool == "own")
        vision = VisionTower(network, pool, _CLIP_COLOURS, settings.image_size)
    elif settings.images == "pixels":
        pooled = settings.image_pool == "own"
        opened, frames = open_vision(name, settings.vision_revision, VISION_KINDS, pooled=pooled)
        own = settings.normalisation == "own" or (settings.normalisation == "auto" and opened.kind.own == "trained")
        colours = (frames.mean, frames.std) if own else _CLIP_COLOURS
        pool = _pool(settings.image_pool, opened.kind, name, "image")
        vision = VisionTower(opened.network, pool, colours, frames.framing.frame)
        vision.crops = not isinstance(frames.framing.resize, tuple)
        notes = opened.notes
    text = Encoders()
    if settings.text != RANDOM:
        text = pretrained_text(settings.text, settings.text_revision, settings.text_pool)
    notes = tuple(dict.fromkeys(notes + text.notes))
    return replace(text, vision=vision, notes=notes, scale=text.scale if settings.joint() else None, boxes=boxes)


def restored(description: Mapping[str, Any]) -> Encoders:
    """The encoders of a trained model's `description`, their weights still random."""
    return Encoders(
        description["vision"] and restored_tower(description["vision"]),
        restored_tower(description["text"]),
        scale=description["scale"] and tuple(description["scale"]),
        boxes=description["boxes"],
    )


def build(settings: DualEncoder, image_dim: int, vocabulary_size: int, encoders: Encoders) -> TransformerDualEncoder:
    """Make a dual encoder.

    Args:
        settings: the options of the model.
        image_dim: width of frozen features.
        vocabulary_size: number of token ids, of a random text encoder.
        encoders: what was opened already.
    """
    vision = encoders.vision
    if settings.images == "region-tokens":
        pool = "cls" if settings.image_pool == "cls" else "mean"
        vision = RegionTower(image_dim, settings.width, settings.heads, settings.vision_layers, pool, encoders.boxes)
    sizes = settings.width, settings.heads, settings.text_layers, settings.max_words
    text = encoders.text or random_text(vocabulary_size, *sizes, settings.text_pool)
    return TransformerDualEncoder(settings, vision, text, image_dim, encoders.scale)


def restored_tower(description: Mapping[str, Any]) -> Any:
    """Makes a tower of `VisionTower.description` or `TextTower.description` with random weights, to be filled."""
    name = description["network"]
    pool = description["pool"]
    kind = next(kind for kind in (*VISION_KINDS.values(), *TEXT_KINDS.values()) if kind.network == name)
    made = getattr(transformers, name)
    network = made(made.config_class.from_dict(description["config"]), **kind.options(pool == "own"))
    for part in description["identities"]:
        setattr(network, part, nn.Identity())
    if "frame" not in description:
        return TextTower(network, pool)
    return VisionTower(network, pool, (description["mean"], description["std"]), tuple(description["frame"]))


def pretrained_text(name: str, revision: str, wanted: str) -> Encoders:
    """Loads a text encoder with its tokenizer, and the scale of the joint model that it may be of.

    Args:
        name: hub id or folder.
        revision: of the hub id.
        wanted: setting of its pooling.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or the weights are of another network.
        UsageError: the model type is not supported, or its tokens cannot be pooled so.
    """
    opened = open_network(name, revision, TEXT_KINDS, TOKENIZERS, _WITH_TOKENIZERS, pooled=wanted == "own")
    folder = opened.folder
    network = opened.network
    config = network.config
    tokenizer = load_tokenizer(folder)
    if opened.kind.network in _OF_ONE_LENGTH and tokenizer.pad_token_id is not None:
        config.pad_token_id = tokenizer.pad_token_id  # SigLIP 2 names none, and its class another one's
    pool = _pool(wanted, opened.kind, name, "text")
    if len(tokenizer) > config.vocab_size:
        raise DataError(
            f"{folder}: the tokenizer has {len(tokenizer):,} tokens and the network embeds {config.vocab_size:,}; they "
            "do not belong together, download the model again."
        )
    logits = load_tensors(folder, (_SCALE, _BIAS))
    scale = None
    if _SCALE in logits:
        scale = float(logits[_SCALE].exp()), float(logits.get(_BIAS, torch.zeros(1)))
    return Encoders(None, TextTower(network, pool), tokenizer, opened.notes, scale)


def random_text(vocabulary_size: int, width: int, heads: int, layers: int, max_words: int, wanted: str) -> TextTower:
    """Makes a small BERT with random weights.

    Args:
        vocabulary_size: number of token ids.
        width, heads, layers: of the BERT.
        max_words: longest caption without start and end.
        wanted: setting of its pooling.

    Raises:
        UsageError: it has nothing that the settings ask for.
    """
    pool = _pool(wanted, TEXT_KINDS["bert"], RANDOM, "text")
    positions = max(max_words + 2, PADDED_LENGTH)
    sizes = {"vocab_size": vocabulary_size, "max_position_embeddings": positions, **_sizes(width, heads, layers)}
    return TextTower(transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=pool == "own"), pool)


def _sizes(width: int, heads: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _pool(wanted: str, kind: Kind, model: str, side: str) -> str:
    """Return the pooling; `auto` stands for that of CLIP and SigLIP, which are trained by it, else for the mean.

    Args:
        wanted: the setting.
        kind: of the encoder.
        model: its name, for the message.
        side: `image` or `text`.

    Raises:
        UsageError: the encoder has no vector of its own, and `own` was asked for.
    """
    if wanted == "own" and not kind.own:
        raise UsageError(
            f"{model} has no {side} vector of its own, as CLIP, SigLIP and networks with a pooler have; give --set "
            f"model.{side}_pool=mean"
        )
    if wanted == "auto":
        return "own" if kind.own == "trained" else "mean"
    return wanted


def find_tokenizer(model: str, revision: str) -> Any:
    """Reads the tokenizer of a hub id or folder.

    Raises:
        MissingInputError: there is no such folder or hub id, it has no tokenizer, or the hub cannot be reached.
        DataError: a file is damaged.
    """
    folder, _ = find_folder(model, revision, weights=False, required=TOKENIZERS, further=_WITH_TOKENIZERS)
    return load_tokenizer(folder)


def load_tokenizer(folder: Any) -> Any:
    """Reads the tokenizer of a folder.

    Raises:
        MissingInputError: a library that it needs is not installed.
        DataError: a file is damaged.
    """
    with quiet(), reading(folder, "a tokenizer", "download it again"):
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except ImportError as error:
            raise MissingInputError(
                f"{folder}: the tokenizer needs a library that is not installed ({reason_of(error)}); install it with "
                "pip."
            ) from None
