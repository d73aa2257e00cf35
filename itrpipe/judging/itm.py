"""The matching head of a network that was trained to tell whether an image and a caption belong together.

Junnan Li et al., BLIP: Bootstrapping Language-Image Pre-training, ICML 2022, and the other networks of `HEADS`.

Shapes: n captions, h and w height and width of a frame, t tokens of an image, D their width.
"""

import threading
from typing import Any

from PIL import Image
from torch import Tensor

from itrpipe.encoders.encoder import TEXT, VISION
from itrpipe.encoders.folders import CONFIG, find_folder, read_config
from itrpipe.encoders.texts import positions_of
from itrpipe.errors import UsageError
from itrpipe.judging.material import Material
from itrpipe.judging.photographs import PhotographJudge, open_reader

HEADS = {
    "blip": "BlipForImageTextRetrieval",
    "blip-2": "Blip2ForImageTextRetrieval",
    "bridgetower": "BridgeTowerForImageAndTextRetrieval",
}
"""Model type -> class of transformers whose first output [n, 2] is no match and match.

That of ViLT has one logit, which ranks captions and says of none whether it matches.
"""


class MatchingJudge(PhotographJudge):
    """Log-odds of a match. The network's vision tower is replaced, so that it is given vectors instead of pixels."""

    batch = 64

    def __init__(self, network: Any, processor: Any, material: Material) -> None:
        super().__init__(network, processor, material)
        self._tokenizing = threading.Lock()  # a tokenizer refuses to be set while another thread uses it
        self._limit = min(processor.tokenizer.model_max_length, positions_of(network))
        self._encode_pixels = None
        if hasattr(network, "vision_model"):
            self._encode_pixels = network.vision_model.forward
            network.vision_model.forward = _vectors_as_given
        self._options = {}
        if network.config.model_type == "blip-2":
            self._options["use_image_text_matching_head"] = True
            # Else it looks for the places of its queries among the tokens, where they stand in prompts alone.
            network.config.image_token_index = None

    def look(self, photograph: Image.Image) -> Tensor:
        """Return the vectors [1, t, D] of a photograph, or its frame [1, 3, h, w] where there is no vision tower."""
        pixels = self.processor.image_processor(photograph, return_tensors="pt")["pixel_values"]
        pixels = pixels.to(self.network.device)
        if self._encode_pixels is None:
            return pixels
        return self._encode_pixels(pixels).last_hidden_state

    def ask(self, seen: Tensor, texts: list[str]) -> Tensor:
        """Return the log-odds [n] of a match."""
        with self._tokenizing:
            tokens = self.processor(
                text=texts,
                padding=True,
                truncation=True,
                max_length=self._limit,
                return_tensors="pt",
            )
        # In BLIP's attention, keys and values of one image serve all captions; to repeat them costs most of the time.
        if self.network.config.model_type != "blip":
            seen = seen.expand(len(texts), *seen.shape[1:])
        output = self.network(**tokens.to(seen.device), pixel_values=seen, **self._options)
        mismatch, match = output[0].unbind(dim=1)
        return match - mismatch


def _vectors_as_given(pixel_values: Tensor, **_: Any) -> Any:
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
        UsageError: the network has no such head.
        MissingInputError, DataError: see `itrpipe.encoders.encoder.open_encoder`.
    """
    folder, _ = find_folder(model, revision, (VISION, TEXT))
    model_type = read_config(folder / CONFIG).get("model_type")
    if model_type not in HEADS:
        raise UsageError(
            f"{folder}: a network of type '{model_type}' has no head that tells a match from none; name one of type "
            f"{', '.join(HEADS)}, or ask it by vlm:"
        )
    network, processor = open_reader(folder, HEADS[model_type], device)
    return MatchingJudge(network, processor, material)
