"""Judges that look at photographs give the scores that their networks give one pair at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from PIL import Image

from itrpipe.errors import DataError, UsageError
from itrpipe.judging import itm, vlm
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge, open_judge
from tests.encoders import zoo
from tests.judging.lookers import ANSWERING, MATCHING, save

CAPTIONS = ["a dog", "two dogs on the grass", "a red cat sits on the blue beach", "the cat runs", "dog"]
OWNERS = np.array([0, 1, 2, 1, -1])
SAME = 1e-4
OUTPUTS = {
    "blip": ("itm_score", {}),
    "blip-2": ("logits_per_image", {"use_image_text_matching_head": True}),
    "bridgetower": ("logits", {}),
}
"""Model type -> name of its logits, and options of its call."""
Single = Callable[[Image.Image, str], float]


class Photographs:
    """Photographs of different sizes in memory."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.images = []
        for _ in range(count):
            height, width = rng.integers(30, 90, 2)
            self.images.append(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        self.rows: list[int] = []

    def read(self, row: int) -> np.ndarray:
        self.rows.append(row)
        return self.images[row]


class Missing:
    """Photographs that are not there."""

    def read(self, row: int) -> np.ndarray:
        raise DataError(f"{row} is not there")


@pytest.fixture
def photographs() -> Photographs:
    return Photographs(3)


@pytest.fixture
def material(photographs: Any) -> Material:
    return Material(CAPTIONS, OWNERS, 3, photographs)


def opened(kind: str, folder: Path, material: Material) -> OpenedJudge:
    return open_judge(judge_name(f"{kind}:{folder}"), material, "cpu")


def matching(folder: Path, name: str) -> Single:
    """Return the log-odds of a match of one pair, by the library's own call."""
    network = getattr(transformers, itm.HEADS[name]).from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    logits, options = OUTPUTS[name]

    def score(photograph: Image.Image, caption: str) -> float:
        inputs = processor(images=photograph, text=[caption], return_tensors="pt")
        mismatch, match = network(**inputs, **options)[logits][0].tolist()
        return match - mismatch

    return score


def answering(folder: Path) -> Single:
    """Return the log-odds of yes of one pair, by the library's own call."""
    network = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    yes, no = processor.tokenizer.convert_tokens_to_ids(["yes", "no"])

    def asked(photograph: Image.Image, question: str) -> Any:
        if processor.chat_template is None:
            inputs = processor(images=photograph, text=f"<image>\n{question}", return_tensors="pt")
            inputs.pop("labels")
            return inputs
        content = [{"type": "image", "image": photograph}, {"type": "text", "text": question}]
        return processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )

    def score(photograph: Image.Image, caption: str) -> float:
        inputs = asked(photograph, f'Does this figure show "{caption}"? Please answer yes or no.')
        chances = network(**inputs).logits[0, -1].log_softmax(dim=0)
        return float(chances[yes] - chances[no])

    return score


@torch.inference_mode()
def scores_of(single: Single, photographs: Photographs, images: np.ndarray, captions: np.ndarray) -> list[float]:
    found = []
    for image, caption in zip(images, captions, strict=True):
        found.append(single(Image.fromarray(photographs.images[image]), CAPTIONS[caption]))
    return found


@pytest.mark.parametrize("name", [*MATCHING, *ANSWERING])
def test_pairs_score_as_one_at_a_time(
    name: str, tmp_path: Path, material: Material, photographs: Photographs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(name, tmp_path)
    judge = opened("itm" if name in MATCHING else "vlm", folder, material)
    single = matching(folder, name) if name in MATCHING else answering(folder)
    monkeypatch.setattr(type(judge), "batch", 2)
    pairs = np.random.default_rng(1).permutation(15)
    images, captions = pairs // 5, pairs % 5
    scores = judge(images, captions)
    assert scores.dtype == np.float32
    assert scores.std() > 100 * SAME
    assert scores == pytest.approx(scores_of(single, photographs, images, captions), abs=SAME)
    assert photographs.rows == [0, 1, 2]


def test_a_network_that_reads_both_ways_reads_each_prompt_whole(tmp_path: Path, material: Material) -> None:
    judges = {name: vlm.build(str(save(name, tmp_path / name)), material, "cpu") for name in ANSWERING}
    assert {name for name, judge in judges.items() if judge.continues} == {"qwen2_vl", "llava"}


@pytest.mark.parametrize(("kind", "name"), [("itm", "blip"), ("vlm", "qwen2_vl")])
def test_threads_share_a_judge(kind: str, name: str, tmp_path: Path, material: Material) -> None:
    judge = opened(kind, save(name, tmp_path), material)
    captions = np.arange(5)
    alone = [judge(np.full(5, image), captions) for image in range(3)]
    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(lambda image: judge(np.full(5, image % 3), captions), range(12)))
    for image, scores in enumerate(together):
        np.testing.assert_array_equal(scores, alone[image % 3])


def test_a_caption_longer_than_the_network_reads_is_cut(tmp_path: Path, material: Material) -> None:
    long = replace(material, captions=["dog " * 600, "dog " * 700])
    scores = opened("itm", save("blip", tmp_path), long)(np.array([0, 0]), np.array([0, 1]))
    assert scores[0] == scores[1]


def test_a_head_without_weights_is_refused(tmp_path: Path, material: Material) -> None:
    weights = save("blip", tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    del tensors["itm_head.weight"]
    safetensors.torch.save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(DataError, match=r"they lack 'itm_head\.weight'"):
        opened("itm", tmp_path, material)


@pytest.mark.parametrize("kind", ["itm", "vlm"])
def test_a_network_of_another_kind_is_refused(kind: str, tmp_path: Path, material: Material) -> None:
    zoo.save("clip", tmp_path)
    with pytest.raises(UsageError, match="'clip'"):
        opened(kind, tmp_path, material)


def test_a_tokenizer_without_answers_is_refused(tmp_path: Path, material: Material) -> None:
    tokenizer = save("llava", tmp_path) / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text("utf-8").replace('"yes"', '"maybe"'), "utf-8")
    with pytest.raises(UsageError, match="'yes'"):
        opened("vlm", tmp_path, material)


def test_photographs_that_are_not_there_are_named(tmp_path: Path, material: Material) -> None:
    save("blip", tmp_path)
    with pytest.raises(UsageError, match="photographs"):
        opened("itm", tmp_path, replace(material, photographs=None))
    missing: Any = Missing()
    judge = opened("itm", tmp_path, replace(material, photographs=missing))
    with pytest.raises(DataError, match="image 2"):
        judge(np.array([2]), np.array([0]))
