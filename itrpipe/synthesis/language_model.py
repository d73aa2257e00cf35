"""Fluency of sentences: their perplexity by a language model of transformers, such as GPT-2.

Source: TAGS-DC, Table 3, which gives it of captions, of its synthetic sentences and of those of VSE-C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from itrpipe.encoders.encoder import load_tokenizer, open_network, refuse_other_tokens
from itrpipe.encoders.folders import find_folder
from itrpipe.encoders.texts import positions_of
from itrpipe.errors import UsageError
from itrpipe.synthesis.sentences import SentenceFile

_BATCH = 32
_DIGITS = 2


class LanguageModel:
    """A network that predicts every token of a text from those before it, with its tokenizer.

    Args:
        name: hub id or folder.
        device: where it computes.
        warn: is told what a user should know of it, such as the commit of a hub id.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, weights are a pickle, or two files do not belong together.
        UsageError: it reads what comes after a token, too, or its tokenizer has no start token.
    """

    def __init__(
        self, name: str, device: torch.device | str = "cpu", warn: Callable[[str], object] = lambda note: None
    ) -> None:
        folder, notes = find_folder(name, sides=("text",))
        for note in notes:
            warn(note)
        network = open_network(folder, "AutoModelForCausalLM")
        self._tokenizer = load_tokenizer(folder)
        refuse_other_tokens(folder, self._tokenizer, network)
        self._network = network.to(device)
        self._device = device
        self._longest = positions_of(network)
        if self._tokenizer.bos_token_id is None:
            raise UsageError(f"{folder}: the tokenizer has no start token, which sentences begin with; name a GPT-2")
        if self._reads_ahead():
            raise UsageError(
                f"{folder}: {type(network).__name__} reads what comes after a token, too, so that it gives no "
                "perplexity; name a GPT-2"
            )

    @torch.inference_mode()
    def perplexities(
        self,
        texts: Sequence[str],
        advance: Callable[[int], object] = lambda texts: None,
    ) -> np.ndarray:
        """Return the perplexities float64 [n] of texts, each exp of the mean negative log-likelihood of its tokens.

        The first token is predicted from the start token. A text without any token has none: NaN.

        Args:
            texts: n of them; what is longer than the model reads is cut.
            advance: called with the number of texts after each pass.
        """
        perplexities = np.full(len(texts), np.nan)
        if not len(texts):
            return perplexities
        ids = []
        for tokens in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]:
            tokens = [self._tokenizer.bos_token_id, *tokens]
            ids.append(torch.tensor(tokens[: self._longest]))
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        for first in range(0, len(order), _BATCH):
            rows = order[first : first + _BATCH]
            # What is behind the end plays no part in what comes before it.
            batch = [ids[row] for row in rows]
            tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=-1).to(self._device)
            targets = tokens[:, 1:]
            logits = self._network(tokens.clamp(min=0)).logits[:, :-1].float()
            losses = F.cross_entropy(logits.mT, targets, ignore_index=-1, reduction="none").double()
            mean_losses = losses.sum(dim=1) / (targets >= 0).sum(dim=1)
            perplexities[rows] = mean_losses.exp().cpu().numpy()
            advance(len(rows))
        return perplexities

    @torch.inference_mode()
    def _reads_ahead(self) -> bool:
        """Tell whether what follows a token changes what is predicted of it, as in networks for masked tokens."""
        start = self._tokenizer.bos_token_id
        other = (start + 1) % len(self._tokenizer)
        tokens = torch.tensor([[start, start], [start, other]], device=self._device)
        first, second = self._network(tokens).logits[:, 0]
        return not torch.allclose(first, second, atol=1e-4)


def fluency(
    file: SentenceFile,
    captions: Mapping[str, str],
    model: LanguageModel,
    most: int,
    seed: int,
    advance: Callable[[int], object] = lambda texts: None,
) -> dict[str, Any]:
    """Measure the perplexity of some sentences and of the captions that they were made of.

    Args:
        file: the sentences.
        captions: text of every caption, by id.
        model: reads both.
        most: sentences that are read at most, drawn at random.
        seed: of the draw.
        advance: called with the number of texts after each pass.

    Returns:
        `sentences` and `captions`, how many were read, each caption once; `perplexity` and `caption_perplexity`, the
        means over them, None where there is none.
    """
    sentences = file.read(("caption_id", "text"))
    count = min(most, len(sentences))
    drawn = np.random.default_rng(seed).choice(
        len(sentences),
        size=count,
        replace=False,
    )
    sentences = sentences.take(np.sort(drawn))
    caption_ids = dict.fromkeys(sentences["caption_id"].to_pylist())
    texts = [captions[caption_id] for caption_id in caption_ids]
    return {
        "sentences": len(sentences),
        "captions": len(texts),
        "perplexity": mean_perplexity(model.perplexities(sentences["text"].to_pylist(), advance)),
        "caption_perplexity": mean_perplexity(model.perplexities(texts, advance)),
    }


def mean_perplexity(perplexities: np.ndarray) -> float | None:
    """Return the mean as it is reported, without the texts that have none; None where no text has one."""
    known = perplexities[np.isfinite(perplexities)]
    if not len(known):
        return None
    return round(float(known.mean()), _DIGITS)
