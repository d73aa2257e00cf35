"""Judges that look at photographs give the scores that their networks give one pair at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tests.judging.lookers import ANSWERING, MATCHING, save

from itrpipe.judging import itm, vlm
from itrpipe.judging.material import Material

CAPTIONS = ["a dog", "two dogs on the grass", "a red cat sits on the blue beach", "the cat runs", "dog"]
OUTPUTS = {"blip": "itm_score", "blip-2": "logits_per_image", "bridgetower": "logits"}


class Photographs:
    """Photographs of different sizes."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.images = []
        for _ in range(count):
            height, width = rng.integers(30, 90, 2)
            self.images.append(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        self.read_rows: list[int] = []

    def read(self, row: int) -> np.ndarray:
        self.read_rows.append(row)
        return self.images[row]


def material() -> Material:
    return Material(CAPTIONS, np.array([0, 1, 2, 1, -1]), 3, Photographs(3))


def matching_score(folder: Path, name: str, image: np.ndarray, caption: str) -> float:
    network = getattr(transformers, itm.HEADS[name].network).from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    inputs = processor(images=Image.fromarray(image), text=[caption], return_tensors="pt")
    options = {"use_image_text_matching_head": True} if name == "blip-2" else {}
    with torch.no_grad():
        mismatch, match = network(**inputs, **options)[OUTPUTS[name]][0].tolist()
    return match - mismatch


def answer_score(folder: Path, image: np.ndarray, caption: str) -> float:
    network = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    question = f'Does this figure show "{caption}"? Please answer yes or no.'
    photograph = Image.fromarray(image)
    if processor.chat_template is None:
        inputs = processor(images=photograph, text=f"<image>\n{question}", return_tensors="pt")
    else:
        content = [{"type": "image", "image": photograph}, {"type": "text", "text": question}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
    with torch.no_grad():
        chances = network(**inputs).logits[0, -1].log_softmax(dim=0)
    yes, no = processor.tokenizer.convert_tokens_to_ids(["yes", "no"])
    return float(chances[yes] - chances[no])
