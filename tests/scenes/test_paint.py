"""Pictures: what is visible, how difficulty changes them, and files that survive interruptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from itrpipe.datasets.image_check import ImageFacts, inspect_picture
from itrpipe.scenes import build
from itrpipe.scenes.build import EASY, Painting, generate, write_images
from itrpipe.scenes.layout import HEIGHT, WIDTH, PlacedObject, Scene
from itrpipe.scenes.paint import Difficulty, paint
from itrpipe.scenes.world import KIND_TABLE, KINDS, PATTERNS
from tests.engine.toy import content
from tests.maps import made


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return generate(train=24, val=0, test=0, seed=9).scenes


def _pixels(scene: Scene, difficulty: Difficulty = EASY) -> npt.NDArray[np.int16]:
    return np.asarray(paint(scene, difficulty), dtype=np.int16)  # [HEIGHT, WIDTH, 3]


def _difference(one: Scene, other: Scene, difficulty: Difficulty = EASY) -> npt.NDArray[np.bool_]:
    """Where one differs from another that is seen as hard; [HEIGHT, WIDTH]."""
    return np.abs(_pixels(one) - _pixels(other, difficulty)).sum(axis=2) > 12


def _with_objects(scene: Scene, *objects: PlacedObject) -> Scene:
    return replace(scene, objects=objects, relations=())


def _alone(kind: str, **looks: str) -> Scene:
    item = PlacedObject(kind, KIND_TABLE[kind].colours[0], "plain", "medium", (0.3, 0.3, 0.6, 0.8), 0.8, "on")
    return Scene("x", "train", 0, "base", "park", 0.4, (replace(item, **looks),), (), 7)


@pytest.mark.parametrize("kind", KINDS)
def test_objects_fill_their_box_and_their_looks_show(kind: str) -> None:
    row, x0, y0, height, outside = KIND_TABLE[kind], 48, 36, 72, 3  # outlines and line ends
    x1, y1 = x0 + height * row.aspect, y0 + height
    scene = _alone(kind)
    for facing in (-1, 1):
        box = (x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT)
        item = replace(scene.objects[0], box=box, facing=facing, state="fly" if row.flies else "on")
        rows, columns = np.nonzero(_difference(_with_objects(scene, item), _with_objects(scene)))
        assert x0 - outside <= columns.min() <= x0 + 0.15 * (x1 - x0)
        assert x1 - 0.15 * (x1 - x0) <= columns.max() <= x1 + outside
        assert y0 - outside <= rows.min() <= y0 + 0.1 * height
        assert y1 - 0.1 * height <= rows.max() <= y1 + outside
    patterns = PATTERNS if row.patterned else ("plain",)
    pictures = [_pixels(_alone(kind, colour=colour, pattern=each)) for colour in row.colours for each in patterns]
    for index, one in enumerate(pictures):
        assert all((np.abs(one - other).sum(axis=2) > 40).sum() > 100 for other in pictures[:index])


def _painted(scenes: list[Scene], folder: Path, workers: int = 1) -> dict[str, ImageFacts]:
    work = Painting(scenes, Difficulty(noise=0.2, occlusion=0.5))
    return write_images(made(work, folder / "parts", workers).paths, folder / "images")


def test_files_are_the_pictures_with_any_number_of_workers(
    scenes: list[Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SCENES", 10)
    facts = _painted(scenes, tmp_path / "one")
    assert len(list((tmp_path / "one" / "parts").glob("*.arrow"))) == 3
    assert _painted(scenes, tmp_path / "two", workers=2) == facts
    files = content(tmp_path / "one" / "images")
    assert files == content(tmp_path / "two" / "images")
    assert set(files) == {f"train-{index:06d}.jpg" for index in range(24)}
    for name, data in files.items():
        assert facts[name] == inspect_picture(data)._replace(sample="")
    with Image.open(tmp_path / "one" / "images" / "train-000003.jpg") as image:
        error = np.abs(np.asarray(image, dtype=np.int16) - _pixels(scenes[3], Difficulty(0.2, 0.5))).mean()
    assert error < 12  # lossy, but the same picture
    broken = tmp_path / "one" / "images" / "train-000002.jpg"
    broken.write_bytes(broken.read_bytes()[:100])  # as an interruption leaves it
    _painted(scenes, tmp_path / "one")
    assert content(tmp_path / "one" / "images") == files
