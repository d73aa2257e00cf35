"""Networks of transformers as the two sides of a dual encoder: from pixels, and from a caption, to one vector each.

Shapes: B images, n tokens of an image, T captions, W tokens of a caption, D width of a token or of a network's own
vector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from itrpipe.errors import DataError, MissingInputError, UsageError, reason_of
from itrpipe.features.hub import find_folder, quiet
from itrpipe.features.towers import (
    MAPS,
    PATCHES,
    Grid,
    Kind,
    Seen,
    load_tensors,
    open_network,
    open_vision,
    own_vector,
    see,
)
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.vectors import first_places, mean_of_first
from itrpipe.storage.disk import reading

PADDED_LENGTH = 30
"""Tokens that captions are padded to when padding counts. Source: FNE's released code, testing."""

# Mean and deviation of red, green and blue in bytes. Source: CLIP, also FNE's released code.
_CLIP_MEAN = tuple(255.0 * value for value in (0.48145466, 0.4578275, 0.40821073))
_CLIP_STD = tuple(255.0 * value for value in (0.26862954, 0.26130258, 0.27577711))

_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_WITH_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")

VISION_KINDS = PATCHES | MAPS
"""Model type -> network of images."""
TEXT_KINDS: dict[str, Kind] = {
    "bert": Kind("BertModel", own="pooler"),
    "roberta": Kind("RobertaModel", own="pooler"),
    "xlm-roberta": Kind("XLMRobertaModel", own="pooler"),
    "camembert": Kind("CamembertModel", own="pooler"),
    "mpnet": Kind("MPNetModel", own="pooler"),
    "distilbert": Kind("DistilBertModel"),
    "electra": Kind("ElectraModel"),
    "deberta-v2": Kind("DebertaV2Model"),
    "modernbert": Kind("ModernBertModel"),
    "clip": Kind("CLIPTextModelWithProjection", "text_config", own="trained"),
    "clip_text_model": Kind("CLIPTextModelWithProjection", own="trained", projection="text_projection"),
    "siglip": Kind("SiglipTextModel", "text_config", own="trained"),
    "siglip_text_model": Kind("SiglipTextModel", own="trained"),
}
"""Model type -> network of captions."""
# Networks that are trained on captions of one length without a mask, and so read padding like words.
_OF_ONE_LENGTH = ("SiglipTextModel",)
# Networks that make their masks themselves of one [T, W]. The others take [T, 1, 1, W] or [T, 1, W, W] as it is; of
# [T, W] transformers would ask whether it hides anything at all, and the host would wait for the device.
_OF_OWN_MASKS = ("MPNetModel", "DebertaV2Model", "ModernBertModel")
_CAUSAL = "CLIPTextModelWithProjection"
_SCALE, _BIAS = "logit_scale", "logit_bias"
_POOLS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mean": mean_of_first,
    "mean-all": lambda states, lengths: states.mean(dim=1),
    "cls": lambda states, lengths: states[:, 0],
    "eot": lambda states, lengths: states[torch.arange(len(states), device=states.device), lengths - 1],
}
"""Pooling -> vectors [N, D] of tokens [N, n, D] and their numbers [N]."""


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
        self.network, self.pool = network, pool

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored_vision` and `restored_text`."""
        config = json.loads(self.network.config.to_json_string(use_diff=False))
        return {
            "network": type(self.network).__name__,
            # Where it was loaded from is of no use to who gets the trained model.
            "config": {key: value for key, value in config.items() if key != "_name_or_path"},
            "identities": [name for name, part in self.network.named_children() if isinstance(part, nn.Identity)],
            "pool": self.pool,
        }

    def pooled(self, states: Tensor, own: Tensor | None, lengths: Tensor | None = None) -> Tensor:
        """Vectors [N, D] of tokens.

        Args:
            states: [N, n, D] tokens.
            own: [N, D] the vectors of the network itself, if it has some.
            lengths: [N] how many tokens are real; None for all.
        """
        if self.pool != "own":
            return _POOLS[self.pool](states, lengths)
        assert own is not None
        return own

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
        mean, std: of the colours [3], in bytes.
        frame: height and width of the images that the network takes.

    Attributes:
        frame: as given.
        crops: whether it was trained on the middle of images that keep their shape; known of a pretrained one.
    """

    mean: Tensor
    std: Tensor

    crops = False

    def __init__(
        self, network: Any, pool: str, mean: Sequence[float], std: Sequence[float], frame: tuple[int, int]
    ) -> None:
        super().__init__(network, pool)
        self.frame = frame
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.width = self._width_of(torch.zeros(1, 3, *frame, dtype=torch.uint8))

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns vectors [B, D] of images [B, 3, h, w] uint8 of the frame's size."""
        seen = self._see(pixels)
        return self.pooled(seen.tokens, seen.own)

    def tokens(self, pixels: Tensor) -> Tensor:
        """Returns all tokens [B, n, D] of images [B, 3, h, w] uint8; the cells of `grid` are the last, row by row."""
        return self._see(pixels).tokens

    @torch.no_grad()
    def grid(self) -> Grid:
        """The cells of the frame that have tokens, found by running the network once."""
        return self._see(torch.zeros(1, 3, *self.frame, dtype=torch.uint8, device=self.mean.device)).grid

    def _see(self, pixels: Tensor) -> Seen:
        assert pixels.shape[1:] == (3, *self.frame)
        assert pixels.dtype == torch.uint8
        return see(self.network, (pixels.float() - self.mean) / self.std)

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored_vision`."""
        colours = {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}
        return {**super().description(), "frame": list(self.frame), **colours}


def pretrained_vision(settings: DualEncoder) -> tuple[VisionTower, tuple[str, ...]]:
    """Loads the vision encoder that settings name, and notes that a user should read.

    Raises:
        MissingInputError, DataError: as of `open_vision`.
        UsageError: likewise, or its tokens cannot be pooled so.
    """
    name, wanted = settings.vision, settings.image_pool
    opened, frames = open_vision(name, settings.vision_revision, VISION_KINDS, pooled=wanted == "own")
    colours = _CLIP_MEAN, _CLIP_STD
    if settings.normalisation == "own" or (settings.normalisation == "auto" and opened.kind.own == "trained"):
        colours = frames.mean.flatten().tolist(), frames.std.flatten().tolist()
    tower = VisionTower(opened.network, _pool(wanted, opened.kind, name, "image"), *colours, frames.framing.frame)
    tower.crops = not isinstance(frames.framing.resize, tuple)
    return tower, opened.notes


def random_vision(settings: DualEncoder) -> VisionTower:
    """Makes a small ViT with random weights.

    Raises:
        UsageError: it has nothing that the settings ask for.
    """
    if settings.normalisation == "own":
        raise UsageError("a random vision encoder has no normalisation of its own; leave model.normalisation out")
    pool = _pool(settings.image_pool, VISION_KINDS["vit"], RANDOM, "image")
    sizes = _sizes(settings.width, settings.heads, settings.vision_layers)
    config = transformers.ViTConfig(image_size=settings.image_size, patch_size=settings.patch_size, **sizes)
    network = transformers.ViTModel(config, add_pooling_layer=pool == "own")
    return VisionTower(network, pool, _CLIP_MEAN, _CLIP_STD, settings.image_size)


def restored_vision(description: Mapping[str, Any]) -> VisionTower:
    """Makes a tower of `VisionTower.description` with random weights, to be filled."""
    colours = description["mean"], description["std"]
    return VisionTower(*_rebuilt(description, VISION_KINDS), *colours, tuple(description["frame"]))


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
        return self.pooled(found.last_hidden_state, own_vector(found), lengths)

    def tokens(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Returns all tokens [T, W, D] of captions [T, W] int64; what is behind a length is zero."""
        states = self._read(tokens, lengths, PADDED_LENGTH).last_hidden_state[:, : tokens.shape[1]]
        return states.masked_fill(~first_places(tokens, lengths)[..., None], 0)

    def _read(self, tokens: Tensor, lengths: Tensor, counted: int) -> Any:
        """What the network makes of captions, padded to W' tokens; where padding counts, W' is `counted` at least."""
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


@dataclass(frozen=True)
class Encoders:
    """What is known of a model before the data are.

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
    opened = open_network(name, revision, TEXT_KINDS, _TOKENIZERS, _WITH_TOKENIZERS, pooled=wanted == "own")
    folder, network, config = opened.folder, opened.network, opened.network.config
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


def find_tokenizer(model: str, revision: str) -> Any:
    """Reads the tokenizer of a hub id or folder.

    Raises:
        MissingInputError: there is no such folder or hub id, it has no tokenizer, or the hub cannot be reached.
        DataError: a file is damaged.
    """
    folder, _ = find_folder(model, revision, weights=False, required=_TOKENIZERS, further=_WITH_TOKENIZERS)
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
    pool, positions = _pool(wanted, TEXT_KINDS["bert"], RANDOM, "text"), max(max_words + 2, PADDED_LENGTH)
    sizes = {"vocab_size": vocabulary_size, "max_position_embeddings": positions, **_sizes(width, heads, layers)}
    return TextTower(transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=pool == "own"), pool)


def restored_text(description: Mapping[str, Any]) -> TextTower:
    """Makes a tower of `TextTower.description` with random weights, to be filled."""
    return TextTower(*_rebuilt(description, TEXT_KINDS))


def _sizes(width: int, heads: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _pool(wanted: str, kind: Kind, model: str, side: str) -> str:
    """The pooling that `auto` stands for: that of CLIP and SigLIP, which are trained by it, else the mean.

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
    return wanted if wanted != "auto" else "own" if kind.own == "trained" else "mean"


def _rebuilt(description: Mapping[str, Any], kinds: Mapping[str, Kind]) -> tuple[Any, str]:
    """The network of a tower's description with random weights, one of the given kinds, and its pooling."""
    name, pool = description["network"], description["pool"]
    kind = next(kind for kind in kinds.values() if kind.network == name)
    made = getattr(transformers, name)
    network = made(made.config_class.from_dict(description["config"]), **kind.options(pool == "own"))
    for part in description["identities"]:
        setattr(network, part, nn.Identity())
    return network, pool
