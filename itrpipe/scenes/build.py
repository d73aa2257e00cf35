"""The dataset `scenes`: families of scenes with their captions, and its image files."""

# No `from __future__ import annotations` here: the name is that of a function below.

import hashlib
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.engine.work import Part, Work, cut
from itrpipe.errors import UsageError
from itrpipe.scenes.layout import HEIGHT, WIDTH, Scene, arrange
from itrpipe.scenes.oracle import Caption
from itrpipe.scenes.paint import EASY, PAINT_VERSION, Difficulty, paint
from itrpipe.scenes.sayings import USUAL_DETAIL, write_captions
from itrpipe.scenes.world import MAX_UNITS, MIN_UNITS, USUAL_UNITS, SymbolicScene, edit_scene, sample_scene
from itrpipe.storage.disk import STAMP_HERE, on_disk, stamped, write_text

JPEG_QUALITY = 88
_SECOND_EDIT_RATE = 0.4
_FROM_BASE_RATE = 0.7
_SIBLING_TRIES = 60
_SCENES = 64
_MOST_IMAGES = 10_000_000


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
        """Return the part of one split, in the same order."""
        part = ScenesDataset([], [])
        for scene, captions in zip(self.scenes, self.captions, strict=True):
            if scene.split == split:
                part.scenes.append(scene)
                part.captions.append(captions)
        return part


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
    alike: float = 0.0,
) -> ScenesDataset:
    """Generate the dataset; the pictures are painted by `write_images`.

    Every family has its own random stream, named by seed, split and number: a bigger split begins with the
    smaller one, and no family spans two splits.

    Args:
        train, val, test: number of images of each split.
        seed: other seeds give other scenes.
        family_size: a base scene and its siblings, each an edit or two away; the last family may be cut.
        keep_probability, caption_detail: see `write_captions`.
        units: largest number of units of a scene, 2 to 5; it has at most two objects more.
        alike: share of families whose base has two to five objects of one kind, which captions then count.

    Returns:
        The dataset, a function of the arguments alone.

    Raises:
        UsageError: a negative number of images, `family_size` < 1, another number of units, or what should be in 0..1
            is not.
    """
    limits = [
        ("train images", train, 0, _MOST_IMAGES),
        ("val images", val, 0, _MOST_IMAGES),
        ("test images", test, 0, _MOST_IMAGES),
        ("family_size", family_size, 1, _MOST_IMAGES),
        ("units", units, MIN_UNITS, MAX_UNITS),
        ("keep_probability", keep_probability, 0, 1),
        ("caption_detail", caption_detail, 0, 1),
        ("alike", alike, 0, 1),
    ]
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise UsageError(f"scenes: {name} = {value}; give {least} to {most}")
    dataset = ScenesDataset([], [])
    for split, count in (("train", train), ("val", val), ("test", test)):
        for number in range(math.ceil(count / family_size)):
            family = _family(seed, split, number, family_size, units, alike)
            rng = Random(f"scenes/{seed}/{split}/{number}/captions")
            # The whole family is made even where the split cuts it, so that its captions do not depend on the cut.
            for index, scene in enumerate(family[: count - number * family_size]):
                siblings = family[:index] + family[index + 1 :]
                captions = write_captions(
                    rng,
                    scene,
                    siblings,
                    keep_probability,
                    caption_detail,
                    largest=alike > 0,
                )
                dataset.scenes.append(scene)
                dataset.captions.append(captions)
    return dataset


def _family(
    seed: int,
    split: str,
    number: int,
    size: int,
    units: int,
    alike: float,
) -> list[Scene]:
    """Return a base scene with `size` - 1 different siblings; another base where one is too crowded for so many."""
    rng = Random(f"scenes/{seed}/{split}/{number}")
    while True:
        placed: dict[SymbolicScene, Scene] = {}
        symbolic = sample_scene(rng, units, alike)
        edit = "base"
        for _ in range(_SIBLING_TRIES * size):
            if symbolic not in placed:
                image_id = f"{split}-{number * size + len(placed):06d}"
                scene = arrange(
                    rng,
                    symbolic,
                    image_id=image_id,
                    split=split,
                    family=number,
                    edit=edit,
                )
                if scene is not None:
                    placed[symbolic] = scene
                elif not placed:
                    break
            if len(placed) == size:
                return list(placed.values())
            members = list(placed)
            source = members[0]
            if rng.random() >= _FROM_BASE_RATE:
                source = rng.choice(members)
            symbolic, edit = edit_scene(rng, source)
            if rng.random() < _SECOND_EDIT_RATE:
                symbolic, second = edit_scene(rng, symbolic)
                edit = f"{edit}+{second}"


@dataclass(frozen=True)
class DescribedScene:
    """A scene and the captions that were written of it."""

    scene: Scene
    captions: Sequence[Caption]


def write_described(path: Path, dataset: ScenesDataset) -> None:
    """Write scenes with their captions, one JSON object a line.

    Args:
        path: `scenes.jsonl` of the prepared dataset.
        dataset: the scenes and their captions.
    """
    content = ""
    for scene, captions in zip(dataset.scenes, dataset.captions, strict=True):
        described = DescribedScene(scene, captions)
        content += json.dumps(asdict(described), sort_keys=True) + "\n"
    write_text(path, content)


def read_described(path: Path) -> dict[str, DescribedScene]:
    """Read the file of `write_described`.

    Returns:
        image_id -> the scene and its captions.

    Raises:
        DataError: the file is damaged.
    """
    adapter = TypeAdapter(DescribedScene)
    scenes = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            described = adapter.validate_json(line)
            scenes[described.scene.image_id] = described
    return scenes


class Painting(Work[None]):
    """Pictures of scenes: a map over scenes, whose parts hold the JPEG files of some of them.

    Args:
        scenes: what to paint.
        difficulty: how hard they are to see.
    """

    title = "drawing scenes"
    unit = "images"
    suffix = ".arrow"
    on_every_core = True
    untold = ("_scenes",)

    def __init__(self, scenes: Sequence[Scene], difficulty: Difficulty = EASY) -> None:
        self._scenes = scenes
        self._difficulty = difficulty

    def parts(self) -> list[Part]:
        """Return scenes, some at a time."""
        return cut(self._scenes, _SCENES)

    def open(self) -> None:
        """Return nothing: the painter needs no state."""

    def make(
        self,
        worker: None,
        part: Part,
        path: Path,
    ) -> None:
        """Paint the scenes of a part; the comment of a file names scene, painter and difficulty, and has a checksum."""
        import pyarrow as pa

        from itrpipe.storage.tables import write_arrow

        names = []
        pictures = []
        for scene in part.content:
            content = json.dumps(asdict(scene), sort_keys=True)
            checksum = hashlib.sha256(content.encode()).hexdigest()
            comment = f"scenes {PAINT_VERSION} {checksum}"
            if self._difficulty != EASY:
                comment += f" {self._difficulty}"
            comment += f", {STAMP_HERE}"
            buffer = io.BytesIO()
            image = paint(scene, self._difficulty)
            image.save(buffer, "JPEG", quality=JPEG_QUALITY, comment=comment.encode())
            names.append(f"{scene.image_id}.jpg")
            pictures.append(stamped(buffer.getvalue()))
        jpeg = pa.array(pictures, pa.binary())
        write_arrow(path, pa.table({"file": names, "jpeg": jpeg}))


def write_images(paths: Iterable[Path], folder: Path) -> dict[str, ImageFacts]:
    """Write the pictures of all parts into a folder.

    Args:
        paths: of the parts of `Painting`.
        folder: where to; created if needed.

    Returns:
        The facts about each file, by its name.

    Raises:
        DiskFullError: the disk is full.
    """
    from itrpipe.storage.tables import read_arrow

    folder.mkdir(parents=True, exist_ok=True)
    facts = {}
    with on_disk(folder):
        for path in paths:
            for row in read_arrow(path).to_pylist():
                name = row["file"]
                content = row["jpeg"]
                (folder / name).write_bytes(content)
                facts[name] = ImageFacts(hashlib.sha256(content).hexdigest(), WIDTH, HEIGHT)
    return facts


def annotations(dataset: ScenesDataset, root: Path) -> Annotations:
    """Return images and captions in the form of every other dataset.

    Args:
        dataset: the dataset.
        root: the folder that `write_images` wrote to.

    Returns:
        Annotations with caption ids "<image_id>#<0..4>".
    """
    images = []
    captions = []
    for scene, sayings in zip(dataset.scenes, dataset.captions, strict=True):
        images.append(ImageRecord(scene.image_id, f"{scene.image_id}.jpg", scene.split))
        for number, caption in enumerate(sayings):
            captions.append(CaptionRecord(f"{scene.image_id}#{number}", scene.image_id, caption.text))
    return Annotations(images, captions, root)
