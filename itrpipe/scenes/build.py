"""The dataset: families of scenes with their captions, and its image files."""

# No `from __future__ import annotations` here: the name is that of a function below.

import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.records import SPLITS, Annotations, CaptionRecord, ImageRecord
from itrpipe.engine.local import usable_cores
from itrpipe.engine.work import Part, Work, cut
from itrpipe.errors import UsageError
from itrpipe.scenes.captions import USUAL_DETAIL, write_captions
from itrpipe.scenes.difficulty import Difficulty
from itrpipe.scenes.edits import edit_scene
from itrpipe.scenes.forms import Caption
from itrpipe.scenes.layout import HEIGHT, WIDTH, Scene, arrange
from itrpipe.scenes.paint import EASY, PAINT_VERSION, paint
from itrpipe.scenes.world import MAX_UNITS, MIN_UNITS, USUAL_UNITS, SymbolicScene, sample_scene
from itrpipe.storage.disk import STAMP_HERE, full_disk_as_error, stamped

JPEG_QUALITY = 88
_SECOND_EDIT_RATE = 0.4
_FROM_BASE_RATE = 0.7
_SIBLING_TRIES = 60
_SCENES = 64


@dataclass(frozen=True)
class ScenesDataset:
    """Scenes in the order train, val, test, and their captions.

    Attributes:
        scenes: N scenes, family after family.
        captions: the five captions of each scene.  # [N][5]
    """

    scenes: list[Scene]
    captions: list[list[Caption]]

    def of_split(self, split: str) -> "ScenesDataset":
        """The part of one split, in the same order."""
        kept = [index for index, scene in enumerate(self.scenes) if scene.split == split]
        return ScenesDataset([self.scenes[index] for index in kept], [self.captions[index] for index in kept])


def generate(
    train: int,
    val: int,
    test: int,
    seed: int,
    family_size: int = 4,
    keep_probability: float = 0.1,
    *,
    caption_detail: float = USUAL_DETAIL,
    units: int = USUAL_UNITS,
) -> ScenesDataset:
    """Generates the dataset; the pictures are painted by `write_images`.

    Every family has its own random stream, named by seed, split and number: a bigger split begins with the
    smaller one, and no family spans two splits.

    Args:
        train, val, test: number of images of each split.
        seed: other seeds give other scenes.
        family_size: a base scene and its siblings, each an edit or two away; the last family may be cut.
        keep_probability, caption_detail: see `write_captions`.
        units: largest number of units of a scene, 2 to 5; it has at most two objects more.

    Returns:
        The dataset, a function of the arguments alone.

    Raises:
        UsageError: a negative number of images, `family_size` < 1, another number of units, or what should be in 0..1
            is not.
    """
    counts: dict[str, int] = dict(zip(SPLITS, (train, val, test), strict=True))
    shares = {"keep_probability": keep_probability, "caption_detail": caption_detail}
    _check(counts, family_size, units, shares)
    scenes: list[Scene] = []
    captions: list[list[Caption]] = []
    for split, count in counts.items():
        for number in range(-(-count // family_size)):
            family = _generate_family(seed, split, number, family_size, units)
            rng = Random(f"scenes/{seed}/{split}/{number}/captions")
            # The whole family is made even where the split cuts it, so that its captions do not depend on the cut.
            for index, scene in enumerate(family[: count - number * family_size]):
                siblings = family[:index] + family[index + 1 :]
                scenes.append(scene)
                captions.append(write_captions(rng, scene, siblings, keep_probability, caption_detail))
    return ScenesDataset(scenes, captions)


def _check(counts: dict[str, int], family_size: int, units: int, shares: dict[str, float]) -> None:
    for split, count in counts.items():
        if count < 0:
            raise UsageError(f"scenes: {split} = {count} images; give 0 or more")
    if family_size < 1:
        raise UsageError(f"scenes: family_size = {family_size}; give 1 or more")
    if not MIN_UNITS <= units <= MAX_UNITS:
        raise UsageError(f"scenes: units = {units}; give {MIN_UNITS} to {MAX_UNITS}")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"scenes: {name} = {share}; give a value from 0 to 1")


def _generate_family(seed: int, split: str, number: int, size: int, units: int) -> list[Scene]:
    rng = Random(f"scenes/{seed}/{split}/{number}")
    while True:
        family = _try_family(rng, split, number, size, units)
        if family is not None:
            return family


def _try_family(rng: Random, split: str, number: int, size: int, units: int) -> list[Scene] | None:
    """A base scene with `size` - 1 different siblings; None when the base is too crowded to be arranged so often."""
    members: list[SymbolicScene] = []
    placed: list[Scene] = []
    symbolic, edit = sample_scene(rng, units), "base"
    for _ in range(_SIBLING_TRIES * size):
        if symbolic not in members:
            image_id = f"{split}-{number * size + len(placed):06d}"
            scene = arrange(rng, symbolic, image_id=image_id, split=split, family=number, edit=edit)
            if scene is None and not placed:
                return None
            if scene is not None:
                members.append(symbolic)
                placed.append(scene)
        if len(placed) == size:
            return placed
        source = members[0] if rng.random() < _FROM_BASE_RATE else rng.choice(members)
        symbolic, edit = _edit_once_or_twice(rng, source)
    return None


def _edit_once_or_twice(rng: Random, source: SymbolicScene) -> tuple[SymbolicScene, str]:
    edited, name = edit_scene(rng, source)
    if rng.random() >= _SECOND_EDIT_RATE:
        return edited, name
    edited, second = edit_scene(rng, edited)
    return edited, f"{name}+{second}"


class Painting(Work[None]):
    """Pictures of scenes: a map over scenes, whose parts hold the JPEG files of some of them.

    Args:
        scenes: what to paint.
        difficulty: how hard they are to see.
    """

    title, unit, suffix = "drawing scenes", "images", ".arrow"

    def __init__(self, scenes: Sequence[Scene], difficulty: Difficulty = EASY) -> None:
        self._scenes = scenes
        self._difficulty = difficulty

    def __getstate__(self) -> dict[str, Any]:
        """Workers are told of the scenes of each part alone."""
        return {"_scenes": (), "_difficulty": self._difficulty}

    def parts(self) -> list[Part]:
        """Scenes, some at a time."""
        return cut(self._scenes, _SCENES)

    def local_workers(self) -> int:
        """One per core."""
        return usable_cores()

    def open(self) -> None:
        """Nothing: the painter needs no state."""

    def make(self, worker: None, part: Part, path: Path) -> None:
        """Paints the scenes of a part."""
        import pyarrow as pa

        from itrpipe.engine.files import write_table

        files = {file_name(scene): picture(scene, self._difficulty) for scene in part.content}
        write_table(path, pa.table({"file": list(files), "jpeg": pa.array(files.values(), pa.binary())}))


def write_images(paths: Iterable[Path], folder: Path) -> dict[str, ImageFacts]:
    """Writes the pictures of all parts into a folder.

    Args:
        paths: of the parts of `Painting`.
        folder: where to; created if needed.

    Returns:
        What is known of each file, by its name.

    Raises:
        DiskFullError: the disk is full.
    """
    from itrpipe.engine.files import read_table

    folder.mkdir(parents=True, exist_ok=True)
    facts = {}
    with full_disk_as_error(folder):
        for path in paths:
            for row in read_table(path).to_pylist():
                (folder / row["file"]).write_bytes(row["jpeg"])
                facts[row["file"]] = ImageFacts(hashlib.sha256(row["jpeg"]).hexdigest(), WIDTH, HEIGHT)
    return facts


def picture(scene: Scene, difficulty: Difficulty = EASY) -> bytes:
    """The JPEG file of a scene; its comment names the scene and holds a checksum."""
    buffer = io.BytesIO()
    paint(scene, difficulty).save(
        buffer, "JPEG", quality=JPEG_QUALITY, comment=_comment(scene, difficulty) + STAMP_HERE.encode()
    )
    return stamped(buffer.getvalue())


def file_name(scene: Scene) -> str:
    """Name of the scene's image file."""
    return f"{scene.image_id}.jpg"


def _comment(scene: Scene, difficulty: Difficulty) -> bytes:
    """What the JPEG comment says: which scene, painted by which version of the painter and how, the file shows."""
    content = json.dumps(scene.to_json(), sort_keys=True)
    how = "" if difficulty == EASY else f" {difficulty}"
    return f"scenes {PAINT_VERSION} {hashlib.sha256(content.encode()).hexdigest()}{how}, ".encode()


def annotations(dataset: ScenesDataset, root: Path) -> Annotations:
    """Images and captions in the form of every other dataset.

    Args:
        dataset: the dataset.
        root: the folder that `write_images` wrote to.

    Returns:
        Annotations with caption ids "<image_id>#<0..4>".
    """
    images = [ImageRecord(scene.image_id, file_name(scene), scene.split) for scene in dataset.scenes]
    captions = [
        CaptionRecord(f"{scene.image_id}#{number}", scene.image_id, caption.text)
        for scene, five in zip(dataset.scenes, dataset.captions, strict=True)
        for number, caption in enumerate(five)
    ]
    return Annotations(images, captions, root)


def karpathy(dataset: ScenesDataset) -> dict[str, Any]:
    """The dataset as the dictionary of a Karpathy `dataset.json` (images with splits, sentences with tokens)."""
    images = []
    for index, (scene, captions) in enumerate(zip(dataset.scenes, dataset.captions, strict=True)):
        first = index * len(captions)
        sentences = [
            {"tokens": tokenize(caption.text), "raw": caption.text, "imgid": index, "sentid": first + number}
            for number, caption in enumerate(captions)
        ]
        images.append(
            {
                "imgid": index,
                "filename": file_name(scene),
                "split": scene.split,
                "sentids": [sentence["sentid"] for sentence in sentences],
                "sentences": sentences,
            }
        )
    return {"dataset": "scenes", "images": images}


def tokenize(text: str) -> list[str]:
    """Lower-case words without punctuation, as in the published Karpathy files."""
    return re.findall(r"[a-z]+", text.lower())
