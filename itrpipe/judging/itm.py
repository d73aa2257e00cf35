"""The matching head of a network that was trained to tell whether an image and a caption belong together.

Junnan Li et al., BLIP: Bootstrapping Language-Image Pre-training, ICML 2022, and the other networks of `HEADS`.

Shapes: n captions, h and w height and width of a frame, t tokens of an image, D their width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from itrpipe.encoders.encoder import TEXT, VISION, open_network, open_processor, refuse_other_tokens
from itrpipe.encoders.folders import CONFIG, find_folder, read_config
from itrpipe.encoders.texts import positions_of
from itrpipe.engine.work import resolve_device
from itrpipe.errors import UsageError
from itrpipe.judging.material import Material
from itrpipe.judging.photographs import PhotographJudge
from itrpipe.storage.disk import reading

_SIDE = 64
"""Of an image that a network is tried with, in pixels."""


class Head(NamedTuple):
    """A network with a matching head, in transformers.

    Attributes:
        network: name of its class.
        logits: name of its output [n, 2], no match and match.
        options: of its call.
        one_for_all: whether the vectors of one image serve any number of captions.
    """

    network: str
    logits: str
    options: dict[str, bool]
    one_for_all: bool


HEADS = {
    "blip": Head("BlipForImageTextRetrieval", "itm_score", {"use_itm_head": True}, True),
    "blip-2": Head("Blip2ForImageTextRetrieval", "logits_per_image", {"use_image_text_matching_head": True}, False),
    "bridgetower": Head("BridgeTowerForImageAndTextRetrieval", "logits", {}, False),
}
"""Model type -> its head. ViLT's has one logit, which ranks captions and says of none whether it matches."""


class MatchingJudge(PhotographJudge):
    """Log-odds of a match by a network of `HEADS`.

    Args:
        head: of the network.
        network: of transformers; its vision tower is taken out.
        processor: of the same folder.
        material: with photographs.
    """

    batch = 64

    def __init__(self, head: Head, network: Any, processor: Any, material: Material) -> None:
        super().__init__(material)
        self._head = head
        self._network = network
        self._processor = processor
        self._limit = min(processor.tokenizer.model_max_length, positions_of(network))
        self._tower = getattr(network, "vision_model", None)
        if self._tower is not None:
            network.vision_model = _AsGiven()
        # BLIP-2 would look for the places of its queries among the tokens, where they stand in prompts alone.
        network.config.image_token_index = None
        with torch.inference_mode():  # the tokenizer is set here, which it must not be by two threads at once
            self.ask(self.look(np.zeros((_SIDE, _SIDE, 3), np.uint8)), ["a dog"])

    def look(self, image: np.ndarray) -> Tensor:
        """Return the vectors [1, t, D] of a photograph, or its frame [1, 3, h, w] where there is no tower."""
        made = self._processor.image_processor(Image.fromarray(image), return_tensors="pt")
        pixels = made["pixel_values"].to(self._network.device)
        if self._tower is None:
            return pixels
        return self._tower(pixel_values=pixels).last_hidden_state

    def ask(self, seen: Tensor, texts: list[str]) -> Tensor:
        """Return the log-odds [n] of a match."""
        tokens = self._processor.tokenizer(
            texts, padding=True, truncation=True, max_length=self._limit, return_tensors="pt"
        )
        tokens = tokens.to(self._network.device)
        if not self._head.one_for_all:
            seen = seen.expand(len(texts), *seen.shape[1:])
        output = self._network(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            pixel_values=seen,
            **self._head.options,
        )
        mismatch, match = output[self._head.logits].unbind(dim=1)
        return match - mismatch


class _AsGiven(nn.Module):
    """Stands for a vision tower in a network that is given vectors of images instead of pixels."""

    def forward(self, pixel_values: Tensor, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput  # see `itrpipe.encoders.encoder.open_config`

        return BaseModelOutput(last_hidden_state=pixel_values)  # pyright: ignore[reportArgumentType]


def build(model: str, material: Material, device: str, revision: str = "main") -> MatchingJudge:
    """Open a judge.

    Args:
        model: folder or hub id.
        material: with photographs.
        device: `auto`, `cpu` or `cuda`.
        revision: branch, tag or commit of the hub id.

    Raises:
        UsageError: the network has no such head, or there are no photographs.
        MissingInputError, DataError: see `itrpipe.encoders.encoder.open_encoder`.
    """
    folder, _ = find_folder(model, revision, (VISION, TEXT))
    model_type = read_config(folder / CONFIG).get("model_type")
    if model_type not in HEADS:
        raise UsageError(
            f"{folder}: a network of type '{model_type}' has no head that tells a match from none; name one of type "
            f"{', '.join(HEADS)}, or ask it by vlm:"
        )
    head = HEADS[model_type]
    network = open_network(folder, head.network).to(resolve_device(device))
    processor = open_processor(folder)
    refuse_other_tokens(folder, processor.tokenizer, network)
    with reading(folder, "a network that compares images and captions", "name another model"):
        return MatchingJudge(head, network, processor, material)
