"""A vision-language model that is asked whether a photograph shows what a caption says: P(yes) against P(no).

Zhiqiu Lin et al., Evaluating Text-to-Visual Generation with Image-to-Text Generation (VQAScore), ECCV 2024, who give
the question; Tiancheng Gu et al., UniME-V2, 2025, who find false negatives by such answers.

Shapes: n captions, V tokens of the vocabulary.
"""

import copy
import threading
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from itrpipe.encoders.encoder import TEXT, VISION
from itrpipe.encoders.folders import find_folder
from itrpipe.errors import UsageError
from itrpipe.judging.material import Material
from itrpipe.judging.photographs import PhotographJudge, open_reader
from itrpipe.storage.disk import reading

CAPTION = "{caption}"
QUESTION = f'Does this figure show "{CAPTION}"? Please answer yes or no.'


class AnswerJudge(PhotographJudge):
    """Log-odds of the answers yes and no.

    A network that reads from left to right reads a photograph once, and then what follows for each caption. Another
    reads the photograph again for each. Which of them it is shows in its answers about a drawn image.

    Raises:
        UsageError: the tokenizer has no token for yes or for no.

    Attributes:
        continues: whether the network reads from left to right.
    """

    batch = 16

    def __init__(self, network: Any, processor: Any, material: Material) -> None:
        super().__init__(network, processor, material)
        self._turn = threading.Lock()  # Qwen's networks keep places of the last photograph
        self._before, self._after = _prompt(processor)
        first_token = processor.tokenizer.bos_token
        # Chat templates write the first token, which the tokenizer would write again.
        add_special_tokens = first_token is None or not self._before.startswith(first_token)
        self._options = {"add_special_tokens": add_special_tokens}
        self._yes = _answer_tokens(processor.tokenizer, "yes")
        self._no = _answer_tokens(processor.tokenizer, "no")
        self.continues = True
        self.continues = self._agrees_with_whole_prompts()

    def look(self, photograph: Image.Image) -> Any:
        """Return what the network keeps of a photograph, by its name; or the photograph."""
        if not self.continues:
            return photograph
        output = self._run([photograph], [self._before], use_cache=True)
        name = "cache" if "cache" in output else "past_key_values"  # of the older releases of transformers
        return {name: output[name]}

    def ask(self, seen: Any, texts: list[str]) -> Tensor:
        """Return the log-odds [n] of yes."""
        prompts = [self._before + self._after.replace(CAPTION, text) for text in texts]
        if not self.continues:
            output = self._run([seen] * len(texts), prompts)
            return self._log_odds(output.logits[:, -1])
        tokens_before, *tokens = self.processor.tokenizer([self._before, *prompts], **self._options)["input_ids"]
        unread = [torch.tensor(prompt[len(tokens_before) :]) for prompt in tokens]
        lengths = torch.tensor([len(prompt) for prompt in unread])
        padded = pad_sequence(unread, batch_first=True)  # at the ends, which no token of the prompts sees
        padding = padded.shape[1] - lengths
        caches = copy.deepcopy(seen)  # the network appends to them
        for cache in caches.values():
            cache.batch_repeat_interleave(len(texts))
        output = self.network(
            input_ids=padded.to(self.network.device),
            **caches,
            logits_to_keep=int(padding.max()) + 1,
        )
        last_logits = output.logits[torch.arange(len(texts)), -1 - padding]
        return self._log_odds(last_logits)

    def _run(self, photographs: list[Image.Image], prompts: list[str], **options: Any) -> Any:
        inputs = self.processor(
            images=photographs,
            text=prompts,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            **self._options,
        )
        inputs.pop("labels", None)  # of PaliGemma's processor, for trainings
        return self.network(**inputs.to(self.network.device), **options, logits_to_keep=1)

    def _log_odds(self, logits: Tensor) -> Tensor:
        """Return the log-odds [n] of yes, of logits [n, V] of the next token."""
        yes = logits[:, self._yes].logsumexp(dim=1)
        no = logits[:, self._no].logsumexp(dim=1)
        return yes - no

    @torch.inference_mode()
    def _agrees_with_whole_prompts(self) -> bool:
        """Return whether captions asked together, of a photograph that was read before, score as prompts read whole."""
        pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        photograph = Image.fromarray(pixels)
        texts = ["a dog", "two dogs on the grass"]
        together = self.ask(self.look(photograph), texts)
        self.continues = False
        alone = torch.cat([self.ask(photograph, [text]) for text in texts])
        largest_difference = (together - alone).abs().max()
        return bool(largest_difference < 1e-2)  # rounding makes less


def _prompt(processor: Any) -> tuple[str, str]:
    """Return a prompt as far as the question, photograph included, and from there; `CAPTION` stands for the caption."""
    if processor.chat_template is None:
        return getattr(processor, "image_token", ""), f"\n{QUESTION}"
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    before, after = prompt.split(QUESTION)
    return before, QUESTION + after


def _answer_tokens(tokenizer: Any, answer: str) -> list[int]:
    """Return the tokens that are an answer, with a small letter or a capital one, after a space or not.

    Raises:
        UsageError: there are none.
    """
    answer_tokens = set()
    capitalized = answer.capitalize()
    for text in (answer, capitalized, f" {answer}", f" {capitalized}"):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) == 1 and tokens != [tokenizer.unk_token_id]:
            answer_tokens.update(tokens)
    if not answer_tokens:
        raise UsageError(f"the model's tokenizer has no token for '{answer}'; name another model")
    return sorted(answer_tokens)


def build(model: str, material: Material, device: str, revision: str = "main") -> AnswerJudge:
    """Open a judge.

    Args:
        model: folder or hub id.
        material: with photographs.
        device: `auto`, `cpu` or `cuda`.
        revision: branch, tag or commit of the hub id.

    Raises:
        UsageError: transformers has no `AutoModelForImageTextToText` of its type, or it cannot be asked.
        MissingInputError, DataError: see `itrpipe.encoders.encoder.open_encoder`.
    """
    folder, _ = find_folder(model, revision, (VISION, TEXT))
    network, processor = open_reader(folder, "AutoModelForImageTextToText", device)
    with reading(folder, "a model that answers questions", "name another model"):
        return AnswerJudge(network, processor, material)
