"""Pictures: determinism, what is visible, and files that survive interruptions."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from itrpipe.datasets.image_check import ImageFacts, decode_size
from itrpipe.errors import DiskFullError
from itrpipe.scenes import (
    HEIGHT,
    KINDS,
    PATTERNS,
    SETTINGS,
    WIDTH,
    Difficulty,
    Painting,
    PlacedObject,
    Scene,
    build,
    generate,
    paint,
    write_images,
)
from itrpipe.scenes.paint import EASY, PAINTERS
from itrpipe.scenes.world import KIND_TABLE
from tests.maps import made


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return generate(train=40, val=0, test=0, seed=9).scenes


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


def test_painting_is_deterministic(scenes: list[Scene]) -> None:
    for scene in scenes[:8]:
        image = paint(scene)
        assert image.size == (WIDTH, HEIGHT) == (192, 144)
        assert image.mode == "RGB"
        assert image.tobytes() == paint(scene).tobytes()
        assert image.tobytes() != paint(replace(scene, paint_seed=scene.paint_seed + 1)).tobytes()


def test_every_kind_has_a_painter() -> None:
    assert set(PAINTERS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("facing", [-1, 1])
def test_objects_fill_their_box_and_keep_to_it(kind: str, facing: int) -> None:
    row = KIND_TABLE[kind]
    x0, y0, height = 48, 36, 72
    x1, y1 = x0 + height * row.aspect, y0 + height
    box = (x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT)
    scene = _alone(kind)
    item = replace(scene.objects[0], box=box, facing=facing, state="fly" if row.flies else "on")
    rows, columns = np.nonzero(_difference(_with_objects(scene, item), _with_objects(scene)))
    outside = 3  # outlines and line ends
    assert x0 - outside <= columns.min() <= x0 + 0.15 * (x1 - x0)
    assert x1 - 0.15 * (x1 - x0) <= columns.max() <= x1 + outside
    assert y0 - outside <= rows.min() <= y0 + 0.1 * height
    assert y1 - 0.1 * height <= rows.max() <= y1 + outside


@pytest.mark.parametrize("kind", KINDS)
def test_looks_show(kind: str) -> None:
    """Every colour and pattern of a kind gives another picture."""
    row = KIND_TABLE[kind]
    patterns = PATTERNS if row.patterned else ("plain",)
    looks = [(colour, pattern) for colour in row.colours for pattern in patterns]
    pictures = [_pixels(_alone(kind, colour=colour, pattern=pattern)) for colour, pattern in looks]
    for index, one in enumerate(pictures):
        for other in pictures[:index]:
            changed = np.abs(one - other).sum(axis=2) > 40
            assert changed.sum() > 100


def test_settings_look_different() -> None:
    pictures = [_pixels(replace(_with_objects(_alone("cat")), setting=setting)) for setting in SETTINGS]
    for index, one in enumerate(pictures):
        for other in pictures[:index]:
            assert np.abs(one - other).mean() > 12


def test_two_fifths_of_every_object_can_be_seen(scenes: list[Scene]) -> None:
    """Pixels that an object changes in its scene, of those that it changes in the empty setting."""
    least = 1.0
    for scene in scenes:
        # Objects on the ground cast shadows, which are no part of them.
        objects = tuple(replace(item, state="on") if item.state == "ground" else item for item in scene.objects)
        full = _with_objects(scene, *objects)
        for index, item in enumerate(objects):
            others = _with_objects(scene, *objects[:index], *objects[index + 1 :])
            visible = _difference(full, others).sum()
            whole = _difference(_with_objects(scene, item), _with_objects(scene)).sum()
            least = min(least, visible / whole)
            assert visible / whole > 0.3, (scene.image_id, item.kind)
    assert least < 0.95  # some objects are partly hidden: the test sees what it looks for


def test_noise_is_more_of_the_same_and_difficulty_leaves_the_scene_alone(scenes: list[Scene]) -> None:
    for scene in scenes[:4]:
        clean = _pixels(scene)
        assert np.array_equal(np.asarray(paint(scene, Difficulty(0.0, 0.0))), clean)
        noisy = [np.asarray(paint(scene, Difficulty(noise=noise)), np.int16) for noise in (0.1, 0.2, 1.0)]
        errors = [float(np.abs(each - clean).mean()) for each in noisy]
        assert 0 < errors[0] < errors[1] < errors[2]
        assert np.array_equal(np.asarray(paint(scene, Difficulty(noise=1.0))), noisy[2])
        grain = [(each - each.mean(axis=(0, 1))).ravel() for each in (noisy[0] - clean, noisy[1] - clean)]
        assert np.corrcoef(grain[0], grain[1])[0, 1] > 0.9
        assert 0.6 < np.polyfit(clean.ravel(), noisy[2].ravel(), 1)[0] < 0.75  # contrast is lost
    others = [np.asarray(paint(scene, Difficulty(noise=1.0)), np.int16) - _pixels(scene) for scene in scenes[:2]]
    assert abs(np.corrcoef(others[0].ravel(), others[1].ravel())[0, 1]) < 0.5


def test_occlusion_hides_a_third_to_a_half_of_most_objects_and_never_nearly_all(scenes: list[Scene]) -> None:
    shares, covered = [], np.zeros(3)
    for scene in scenes[:20]:
        hidden = [_difference(scene, scene, Difficulty(occlusion=occlusion)) for occlusion in (0.0, 0.5, 1.0)]
        covered += [each.sum() for each in hidden]
        for index in range(len(scene.objects)):
            shown = _difference(scene, _with_objects(scene, *scene.objects[:index], *scene.objects[index + 1 :]))
            shares.append((shown & hidden[-1]).sum() / shown.sum())
    assert max(shares) < 0.75
    assert np.mean(np.array(shares) > 0.25) > 0.75
    assert covered[0] == 0
    assert 0.3 < covered[1] / covered[2] < 0.8


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _painted(
    scenes: list[Scene], folder: Path, workers: int = 1, difficulty: Difficulty = EASY
) -> dict[str, ImageFacts]:
    return write_images(made(Painting(scenes, difficulty), folder / "parts", workers).paths, folder / "images")


def test_files_are_the_same_with_any_number_of_workers(
    scenes: list[Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SCENES", 16)
    hard = Difficulty(noise=0.2, occlusion=0.5)
    facts = _painted(scenes, tmp_path / "one", difficulty=hard)
    assert len(list((tmp_path / "one" / "parts").glob("*.arrow"))) == 3
    assert _painted(scenes, tmp_path / "two", workers=2, difficulty=hard) == facts
    files = _contents(tmp_path / "one" / "images")
    assert files == _contents(tmp_path / "two" / "images")
    assert set(files) == {f"train-{index:06d}.jpg" for index in range(40)}
    assert _contents(tmp_path / "one" / "parts") == _contents(tmp_path / "two" / "parts")


def test_facts_are_those_of_the_files(scenes: list[Scene], tmp_path: Path) -> None:
    facts = _painted(scenes[:4], tmp_path)
    for name, content in _contents(tmp_path / "images").items():
        assert facts[name] == ImageFacts(hashlib.sha256(content).hexdigest(), *decode_size(content))


def test_images_are_the_painted_scenes(scenes: list[Scene], tmp_path: Path) -> None:
    _painted(scenes[:4], tmp_path)
    for scene in scenes[:4]:
        with Image.open(tmp_path / "images" / f"{scene.image_id}.jpg") as image:
            assert image.format == "JPEG"
            error = np.abs(np.asarray(image, dtype=np.int16) - _pixels(scene)).mean()
        assert error < 6  # lossy, but the same picture


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[:-2], id="without its end"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"not a picture", id="text"),
        pytest.param(lambda data: data[:-900] + bytes([data[-900] ^ 1]) + data[-899:], id="one bit at the end"),
        pytest.param(lambda data: data[:9000] + bytes([data[9000] ^ 1]) + data[9001:], id="one bit of a picture"),
    ],
)
def test_broken_parts_are_painted_again(
    scenes: list[Scene], tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SCENES", 2)
    work, told = Painting(scenes[:5]), []
    paths = made(work, tmp_path).paths
    whole = _contents(tmp_path)
    paths[1].write_bytes(damage(paths[1].read_bytes()))
    assert made(work, tmp_path, warn=told.append).rows == 2
    assert told == [f"1 of 3 parts in {tmp_path} were damaged; they are made again"]
    assert _contents(tmp_path) == whole
    assert made(work, tmp_path).rows == 0


def test_pictures_that_an_interruption_has_cut_are_written_again(scenes: list[Scene], tmp_path: Path) -> None:
    _painted(scenes[:5], tmp_path)
    whole = _contents(tmp_path / "images")
    broken = tmp_path / "images" / "train-000002.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    _painted(scenes[:5], tmp_path)
    assert _contents(tmp_path / "images") == whole


def test_full_disk_is_told(scenes: list[Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = made(Painting(scenes[:1]), tmp_path).paths
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFullError, match="images"):
        write_images(paths, tmp_path / "images")


def test_package_imports_neither_torch_nor_pyarrow() -> None:
    code = "import sys, itrpipe.scenes; print({'torch', 'pyarrow'} & set(sys.modules))"
    # The parent's path: the package may be imported from a checkout.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert finished.stdout.strip() == "set()"
