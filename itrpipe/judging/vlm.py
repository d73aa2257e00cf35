"""A vision-language model that is asked whether a photograph shows what a caption says: P(yes) against P(no).

Zhiqiu Lin et al., Evaluating Text-to-Visual Generation with Image-to-Text Generation (VQAScore), ECCV 2024, who give
the question; Tiancheng Gu et al., UniME-V2, 2025, who so find false negatives.

Shapes: n captions, W tokens of the longest prompt, V tokens of the vocabulary.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from itrpipe.encoders.encoder import TEXT, VISION, open_network, open_processor, refuse_other_tokens
from itrpipe.encoders.folders import find_folder
from itrpipe.engine.work import resolve_device
from itrpipe.errors import UsageError
from itrpipe.judging.material import Material
from itrpipe.judging.photographs import PhotographJudge
from itrpipe.storage.disk import reading

CAPTION = "{caption}"
QUESTION = f'Does this figure show "{CAPTION}"? Please answer yes or no.'
_CACHES = ("cache", "past_key_values")
"""Names of what a network keeps of a prompt, in releases of transformers from 5.24 and before."""
_TRIED = ("a dog", "two dogs on the grass")
_SIDE = 64
_SAME = 1e-2
"""Difference of log-odds that rounding makes at most."""


class AnswerJudge(PhotographJudge):
    """Log-odds of the answers yes and no.

    A network that reads from left to right reads a photograph once, and then only what follows for each caption. One
    that does not reads the photograph again for each. Which it is shows in the scores of a drawn image.

    Args:
        network: of transformers.
        processor: of the same folder.
        material: with photographs.

    Raises:
        UsageError: the chat template leaves the question out, or the tokenizer has no token for yes or for no.
    """

    batch = 16

    def __init__(self, network: Any, processor: Any, material: Material) -> None:
        super().__init__(material)
        self._network = network
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._before, self._after = _prompt(processor)
        bos = self._tokenizer.bos_token
        # Chat templates write the first token, which the tokenizer would write again.
        self._special = bos is None or not self._before.startswith(bos)
        self._yes = _answers(self._tokenizer, "yes")
        self._no = _answers(self._tokenizer, "no")
        self.turn = threading.Lock()  # Qwen's networks keep places of the last photograph
        self.continues = self._reads_to_the_right()

    def look(self, image: np.ndarray) -> Any:
        """Return what the network keeps of a photograph, or the photograph."""
        photograph = Image.fromarray(image)
        if self.continues:
            return self._read(photograph)
        return photograph

    def ask(self, seen: Any, texts: list[str]) -> Tensor:
        """Return the log-odds [n] of yes."""
        if self.continues:
            return self._continued(seen, texts)
        return self._anew(seen, texts)

    def _read(self, photograph: Image.Image) -> dict[str, Any]:
        inputs = self._processed([photograph], [self._before])
        output = self._network(**inputs, use_cache=True, logits_to_keep=1)
        for name in _CACHES:
            if name in output:
                return {name: output[name]}
        return {}

    def _continued(self, seen: dict[str, Any], texts: list[str]) -> Tensor:
        start = len(self._tokens([self._before])[0])
        tokens = [torch.tensor(prompt[start:]) for prompt in self._tokens(self._prompts(texts))]
        padded = pad_sequence(tokens, batch_first=True)  # behind, where no token before looks
        padding = padded.shape[1] - torch.tensor([len(prompt) for prompt in tokens])
        caches = copy.deepcopy(seen)  # the network appends to them
        for cache in caches.values():
            cache.batch_repeat_interleave(len(texts))
        output = self._network(
            input_ids=padded.to(self._network.device), **caches, logits_to_keep=int(padding.max()) + 1
        )
        return self._log_odds(output.logits[torch.arange(len(texts)), -1 - padding])

    def _anew(self, photograph: Image.Image, texts: list[str]) -> Tensor:
        inputs = self._processed([photograph] * len(texts), self._prompts(texts))
        return self._log_odds(self._network(**inputs, logits_to_keep=1).logits[:, -1])

    def _prompts(self, texts: list[str]) -> list[str]:
        return [self._before + self._after.replace(CAPTION, text) for text in texts]

    def _tokens(self, prompts: list[str]) -> list[list[int]]:
        return self._tokenizer(prompts, add_special_tokens=self._special)["input_ids"]

    def _processed(self, photographs: list[Image.Image], prompts: list[str]) -> Any:
        inputs = self._processor(
            images=photographs,
            text=prompts,
            add_special_tokens=self._special,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        inputs.pop("labels", None)  # of PaliGemma's processor, for trainings
        return inputs.to(self._network.device)

    def _log_odds(self, logits: Tensor) -> Tensor:
        """Return the log-odds [n] of yes, of logits [n, V] of the next token."""
        return logits[:, self._yes].logsumexp(dim=1) - logits[:, self._no].logsumexp(dim=1)

    @torch.inference_mode()
    def _reads_to_the_right(self) -> bool:
        pixels = np.random.default_rng(0).integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
        photograph = Image.fromarray(pixels)
        anew = torch.cat([self._anew(photograph, [text]) for text in _TRIED])
        continued = self._continued(self._read(photograph), list(_TRIED))
        return bool((continued - anew).abs().max() < _SAME)


def _prompt(processor: Any) -> tuple[str, str]:
    """Return a prompt as far as the question, photograph included, and from there; `CAPTION` stands for the caption.

    Raises:
        UsageError: the chat template leaves the question out.
    """
    if processor.chat_template is None:
        return getattr(processor, "image_token", ""), f"\n{QUESTION}"
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    before, question, after = prompt.partition(QUESTION)
    if not question:
        raise UsageError("the model's chat template leaves out what a user says; name another model")
    return before, question + after


def _answers(tokenizer: Any, answer: str) -> list[int]:
    """Return the tokens that are an answer, in small letters or with a capital one, after a space or not.

    Raises:
        UsageError: there are none.
    """
    found = set()
    for word in (answer, answer.capitalize()):
        for text in (word, f" {word}"):
            tokens = tokenizer.encode(text, add_special_tokens=False)
            if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
                found.add(tokens[0])
    if not found:
        raise UsageError(f"the model's tokenizer has no token for '{answer}'; name another model")
    return sorted(found)


def build(model: str, material: Material, device: str, revision: str = "main") -> AnswerJudge:
    """Open a judge.

    Args:
        model: folder or hub id.
        material: with photographs.
        device: `auto`, `cpu` or `cuda`.
        revision: branch, tag or commit of the hub id.

    Raises:
        UsageError: transformers has no `AutoModelForImageTextToText` of its type, it cannot be asked, or there are no
            photographs.
        MissingInputError, DataError: see `itrpipe.encoders.encoder.open_encoder`.
    """
    folder, _ = find_folder(model, revision, (VISION, TEXT))
    network = open_network(folder, "AutoModelForImageTextToText").to(resolve_device(device))
    processor = open_processor(folder)
    refuse_other_tokens(folder, processor.tokenizer, network)
    with reading(folder, "a model that answers questions", "name another model"):
        return AnswerJudge(network, processor, material)
