"""What earlier versions drew, wrote, judged and read; prepared datasets stay up to date only while that is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import PIL
import pytest

from itrpipe.scenes.build import Painting, ScenesDataset, generate, write_images
from itrpipe.scenes.hard_negatives import hard_negatives
from itrpipe.scenes.layout import PlacedObject, Scene
from itrpipe.scenes.oracle import Caption, true_matches
from itrpipe.scenes.paint import Difficulty, paint
from itrpipe.scenes.readback import CaptionReader
from itrpipe.scenes.world import KIND_TABLE, PATTERNS, SETTINGS

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text())
DATASETS: dict[str, dict[str, Any]] = {
    "usual": {"seed": 4},
    "crowded": {"seed": 5, "units": 5},
    "few": {"seed": 6, "units": 2, "family_size": 1},
    "told": {"seed": 7, "caption_detail": 1.0, "keep_probability": 0.0},
    "untold": {"seed": 8, "caption_detail": 0.0, "keep_probability": 1.0, "units": 4},
    "half told": {"seed": 9, "caption_detail": 0.3, "family_size": 3},
}
DIFFICULTIES = {
    "easy": Difficulty(),
    "noisy": Difficulty(noise=0.4),
    "hidden": Difficulty(occlusion=0.6),
    "hard": Difficulty(noise=1.0, occlusion=1.0),
}


def made(name: str, train: int = 60) -> ScenesDataset:
    return generate(**{"train": train, "val": 4, "test": 9} | DATASETS[name])


def digest(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def captions_of(dataset: ScenesDataset) -> list[Caption]:
    return [caption for own in dataset.captions for caption in own]


def changed_sentences(dataset: ScenesDataset) -> Iterator[str]:
    """Captions, and captions in which words of other captions stand."""
    texts = [caption.text for caption in captions_of(dataset)]
    rng, words = Random(1), " ".join(texts).split()
    for text in texts:
        yield text
        changed = text.split()
        for _ in range(rng.randint(1, 2)):
            changed[rng.randrange(len(changed))] = rng.choice(words)
        yield " ".join(changed)


@pytest.mark.parametrize("name", DATASETS)
def test_scenes_captions_truth_negatives_and_readings(name: str) -> None:
    dataset, reader = made(name), CaptionReader(one=1, six=6)
    readings = []
    for text in changed_sentences(dataset):
        meanings = reader.meanings(text)
        readings.append([f"Reading(form={meaning.form}, certain={meaning.certain})" for meaning in meanings])
    found = {
        "scenes": digest([asdict(scene) for scene in dataset.scenes]),
        "captions": digest([asdict(caption) for caption in captions_of(dataset)]),
        "truth": digest([rows.tolist() for rows in true_matches(captions_of(dataset), dataset.scenes)]),
        "negatives": digest(hard_negatives(dataset.scenes, dataset.captions, seed=2)),
        "readings": digest(readings),
    }
    assert found == GOLDEN["datasets"][name]


PLACES = (
    ((0.05, 0.2, 0.3, 0.7), 0.7, "fly", "raised", -1),
    ((0.4, 0.3, 0.6, 0.9), 0.9, "on", "rest", 1),
    ((0.65, 0.4, 0.95, 0.8), 0.8, "ground", "forward", 1),
)
"""Box, depth, state, pose and facing."""


def gallery() -> Iterator[Scene]:
    """Every kind in every pose and state that it can have, in all settings."""
    for number, (kind, row) in enumerate(KIND_TABLE.items()):
        looks = zip((0, -1, 1), PATTERNS if row.patterned else ("plain",) * 3, PLACES, strict=True)
        items = [PlacedObject(kind, row.colours[colour], pattern, "medium", *place) for colour, pattern, place in looks]
        setting = SETTINGS[number % len(SETTINGS)]
        yield Scene(f"x{number}", "train", 0, "base", setting, 0.45, tuple(items), (), number)


@pytest.mark.skipif(PIL.__version__ != GOLDEN["pillow"], reason="another Pillow may draw other pixels")
@pytest.mark.parametrize("name", DIFFICULTIES)
def test_pictures(name: str, tmp_path: Path) -> None:
    scenes = [*made("usual").scenes[:12], *gallery()]
    pixels = b"".join(paint(scene, DIFFICULTIES[name]).tobytes() for scene in scenes)
    work = Painting(scenes[:4], DIFFICULTIES[name])
    (part,) = work.parts()
    work.make(None, part, tmp_path / "part.arrow")
    write_images([tmp_path / "part.arrow"], tmp_path)
    files = b"".join((tmp_path / f"{scene.image_id}.jpg").read_bytes() for scene in scenes[:4])
    assert {"pixels": digest(pixels), "files": digest(files)} == GOLDEN["pictures"][name]
