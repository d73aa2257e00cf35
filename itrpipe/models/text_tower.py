"""The text side of a dual encoder: a text network of transformers from token ids to one vector per caption.

Shapes: T captions, W tokens, D width of a token or of the network's own caption vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from itrpipe.errors import DataError, MissingInputError, reason_of
from itrpipe.features.hub import find_folder, quiet
from itrpipe.features.towers import Kind, load_tensors, open_network, own_vector
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.vision_tower import described, pool_of, rebuilt, width_of
from itrpipe.storage.disk import reading

PADDED_LENGTH = 30
"""Tokens that captions are padded to when padding counts. Source: FNE's released code, testing."""

_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_WITH_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")

KINDS: dict[str, Kind] = {
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
# Networks that are trained on captions of one length without a mask, and so read padding like words.
_OF_ONE_LENGTH = ("SiglipTextModel",)


class TextTower(nn.Module):
    """Runs a network on captions and pools their tokens.

    Args:
        network: of transformers.
        pool: `mean` of a caption's tokens, first and last among them; `mean-all`, padding too, as FNE's code has it,
            which pads to the longest of the batch in training and to 30 otherwise; `cls`, the first token; `eot`, the
            last; or `own`, that of CLIP and SigLIP and the output of the pooler of others.

    Attributes:
        network, pool: as given.
        width: D of the vectors it gives.
    """

    def __init__(self, network: Any, pool: str) -> None:
        super().__init__()
        self.network, self.pool = network, pool
        self.width = width_of(self, torch.zeros(1, 3, dtype=torch.int64), torch.tensor([3]))

    @property
    def max_tokens(self) -> int:
        """Longest caption in tokens that there are positions for."""
        return positions_of(self.network)

    def forward(self, tokens: Tensor, lengths: Tensor, in_training: bool = False) -> Tensor:
        """Returns vectors [T, D] of captions [T, W] int64 with lengths [T]; what is behind a length plays no part.

        Where padding counts it is that of the batch `in_training`, else that up to `PADDED_LENGTH` tokens.
        """
        found, real = self._read(tokens, lengths, 0 if in_training else PADDED_LENGTH)
        states = found.last_hidden_state
        if self.pool == "own":
            own = own_vector(found)
            assert own is not None
            return own
        if self.pool == "mean":
            kept = real.unsqueeze(2).to(states.dtype)
            return (states * kept).sum(dim=1) / kept.sum(dim=1)
        if self.pool == "mean-all":
            return states.mean(dim=1)
        place = lengths - 1 if self.pool == "eot" else torch.zeros_like(lengths)
        return states[torch.arange(len(states), device=states.device), place]

    def tokens(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Returns all tokens [T, W, D] of captions [T, W] int64; what is behind a length is zero."""
        found, real = self._read(tokens, lengths, PADDED_LENGTH)
        return found.last_hidden_state.masked_fill(~real.unsqueeze(2), 0)[:, : tokens.shape[1]]

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored`."""
        return {**described(self.network), "pool": self.pool}

    def _read(self, tokens: Tensor, lengths: Tensor, counted: int) -> tuple[Any, Tensor]:
        """What the network makes of captions, and the mask [T, W'] of their tokens; W' may be more than W.

        Where padding counts, W' is `counted` at least.
        """
        fixed = type(self.network).__name__ in _OF_ONE_LENGTH
        width = self.max_tokens if fixed else counted if self.pool == "mean-all" else 0
        tokens = F.pad(tokens, (0, max(0, width - tokens.shape[1])))
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # [T, W]
        tokens = tokens.masked_fill(~real, self.network.config.pad_token_id or 0)
        return self.network(tokens, attention_mask=None if fixed else real.long()), real


def positions_of(network: Any) -> int:
    """Longest caption in tokens that a text network of transformers has positions for."""
    # RoBERTa and its like count positions from behind that of padding.
    unused = [
        part.padding_idx + 1
        for name, part in network.named_modules()
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    return network.config.max_position_embeddings - max(unused, default=0)


_SCALE, _BIAS = "logit_scale", "logit_bias"


class PretrainedText(NamedTuple):
    """A text encoder with what belongs to it.

    Attributes:
        tower: the encoder.
        tokenizer: of transformers.
        scale: scale and bias of the logits of the joint model that it is of; None where it is of none.
        notes: what a user should know.
    """

    tower: TextTower
    tokenizer: Any
    scale: tuple[float, float] | None
    notes: tuple[str, ...]


def pretrained(settings: DualEncoder) -> PretrainedText:
    """Loads the text encoder that settings name.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or the weights are of another network.
        UsageError: the model type is not supported, or its tokens cannot be pooled so.
    """
    name, files = settings.text, (_TOKENIZERS, _WITH_TOKENIZERS)
    opened = open_network(name, settings.text_revision, KINDS, *files, pooled=settings.text_pool == "own")
    folder, network, config = opened.folder, opened.network, opened.network.config
    with quiet():
        tokenizer = load_tokenizer(folder)
    if opened.kind.network in _OF_ONE_LENGTH and tokenizer.pad_token_id is not None:
        config.pad_token_id = tokenizer.pad_token_id  # SigLIP 2 names none, and its class another one's
    pool = pool_of(settings.text_pool, opened.kind, name, "text_pool")
    if len(tokenizer) > config.vocab_size:
        raise DataError(
            f"{folder}: the tokenizer has {len(tokenizer):,} tokens and the network embeds {config.vocab_size:,}; they "
            "do not belong together, download the model again."
        )
    logits = load_tensors(folder, (_SCALE, _BIAS))
    scale = None
    if _SCALE in logits:
        scale = float(logits[_SCALE].exp()), float(logits.get(_BIAS, torch.zeros(1)))
    return PretrainedText(TextTower(network, pool), tokenizer, scale, opened.notes)


def find_tokenizer(model: str, revision: str) -> Any:
    """Reads the tokenizer of a hub id or folder.

    Raises:
        MissingInputError: there is no such folder or hub id, it has no tokenizer, or the hub cannot be reached.
        DataError: a file is damaged.
    """
    folder, _ = find_folder(model, revision, weights=False, required=_TOKENIZERS, further=_WITH_TOKENIZERS)
    with quiet():
        return load_tokenizer(folder)


def load_tokenizer(folder: Any) -> Any:
    """Reads the tokenizer of a folder.

    Raises:
        MissingInputError: a library that it needs is not installed.
        DataError: a file is damaged.
    """
    with reading(folder, "a tokenizer", "download it again"):
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except ImportError as error:
            raise MissingInputError(
                f"{folder}: the tokenizer needs a library that is not installed ({reason_of(error)}); install it with "
                "pip."
            ) from None


def random(settings: DualEncoder, vocabulary_size: int) -> TextTower:
    """Makes a small BERT with random weights.

    Raises:
        UsageError: it has nothing that the settings ask for.
    """
    config = transformers.BertConfig(
        vocab_size=vocabulary_size,  # pyright: ignore[reportCallIssue]
        hidden_size=settings.width,  # pyright: ignore[reportCallIssue]
        intermediate_size=4 * settings.width,  # pyright: ignore[reportCallIssue]
        num_hidden_layers=settings.text_layers,  # pyright: ignore[reportCallIssue]
        num_attention_heads=settings.heads,  # pyright: ignore[reportCallIssue]
        max_position_embeddings=max(settings.max_words + 2, PADDED_LENGTH),  # pyright: ignore[reportCallIssue]
    )
    pool = pool_of(settings.text_pool, KINDS["bert"], RANDOM, "text_pool")
    return TextTower(transformers.BertModel(config, add_pooling_layer=pool == "own"), pool)


def restored(description: Mapping[str, Any]) -> TextTower:
    """Makes a tower of `TextTower.description` with random weights, to be filled."""
    return TextTower(rebuilt(description, KINDS), description["pool"])
