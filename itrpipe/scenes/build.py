"""The dataset: families of scenes with their captions, and its image files."""

# No `from __future__ import annotations` here: the name is that of a function below.

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from itrpipe.datasets.captions import SPLITS, Annotations, CaptionRecord, ImageRecord
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
    alike: float = 0.0,
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
        alike: share of families whose base has two to five objects of one kind, which captions then count.

    Returns:
        The dataset, a function of the arguments alone.

    Raises:
        UsageError: a negative number of images, `family_size` < 1, another number of units, or what should be in 0..1
            is not.
    """
    counts: dict[str, int] = dict(zip(SPLITS, (train, val, test), strict=True))
    for name, value, least, most in (
        *((f"{split} images", count, 0, _MOST_IMAGES) for split, count in counts.items()),
        ("family_size", family_size, 1, _MOST_IMAGES),
        ("units", units, MIN_UNITS, MAX_UNITS),
        ("keep_probability", keep_probability, 0, 1),
        ("caption_detail", caption_detail, 0, 1),
        ("alike", alike, 0, 1),
    ):
        if not least <= value <= most:
            raise UsageError(f"scenes: {name} = {value}; give {least} to {most}")
    scenes: list[Scene] = []
    captions: list[list[Caption]] = []
    for split, count in counts.items():
        for number in range(-(-count // family_size)):
            family = _family(seed, split, number, family_size, units, alike)
            rng = Random(f"scenes/{seed}/{split}/{number}/captions")
            # The whole family is made even where the split cuts it, so that its captions do not depend on the cut.
            for index, scene in enumerate(family[: count - number * family_size]):
                siblings = family[:index] + family[index + 1 :]
                scenes.append(scene)
                chances = keep_probability, caption_detail
                captions.append(write_captions(rng, scene, siblings, *chances, largest=alike > 0))
    return ScenesDataset(scenes, captions)


def _family(seed: int, split: str, number: int, size: int, units: int, alike: float) -> list[Scene]:
    """A base scene with `size` - 1 different siblings; another base where one is too crowded for so many."""
    rng = Random(f"scenes/{seed}/{split}/{number}")
    while True:
        placed: dict[SymbolicScene, Scene] = {}
        symbolic, edit = sample_scene(rng, units, alike), "base"
        for _ in range(_SIBLING_TRIES * size):
            if symbolic not in placed:
                image_id = f"{split}-{number * size + len(placed):06d}"
                scene = arrange(rng, symbolic, image_id=image_id, split=split, family=number, edit=edit)
                if scene is not None:
                    placed[symbolic] = scene
                elif not placed:
                    break
            members = list(placed)
            if len(members) == size:
                return list(placed.values())
            source = members[0] if rng.random() < _FROM_BASE_RATE else rng.choice(members)
            symbolic, edit = edit_scene(rng, source)
            if rng.random() < _SECOND_EDIT_RATE:
                symbolic, second = edit_scene(rng, symbolic)
                edit = f"{edit}+{second}"


@dataclass(frozen=True)
class DescribedScene:
    """A scene and the captions that were written of it."""

    scene: Scene
    captions: Sequence[Caption]


_DESCRIBED = TypeAdapter(DescribedScene)


def write_described(path: Path, dataset: ScenesDataset) -> None:
    """Writes scenes with their captions, one JSON object a line.

    Args:
        path: `scenes.jsonl` of the prepared dataset.
        dataset: what it is of.
    """
    described = map(DescribedScene, dataset.scenes, dataset.captions)
    write_text(path, "".join(json.dumps(asdict(each), sort_keys=True) + "\n" for each in described))


def read_described(path: Path) -> dict[str, DescribedScene]:
    """Reads what `write_described` wrote.

    Returns:
        image_id -> the scene and its captions.

    Raises:
        DataError: the file is damaged.
    """
    with path.open(encoding="utf-8") as lines:
        described = [_DESCRIBED.validate_json(line) for line in lines]
    return {each.scene.image_id: each for each in described}


class Painting(Work[None]):
    """Pictures of scenes: a map over scenes, whose parts hold the JPEG files of some of them.

    Args:
        scenes: what to paint.
        difficulty: how hard they are to see.
    """

    title, unit, suffix, on_every_core = "drawing scenes", "images", ".arrow", True
    untold = ("_scenes",)

    def __init__(self, scenes: Sequence[Scene], difficulty: Difficulty = EASY) -> None:
        self._scenes = scenes
        self._difficulty = difficulty

    def parts(self) -> list[Part]:
        """Scenes, some at a time."""
        return cut(self._scenes, _SCENES)

    def open(self) -> None:
        """Nothing: the painter needs no state."""

    def make(self, worker: None, part: Part, path: Path) -> None:
        """Paints the scenes of a part."""
        import pyarrow as pa

        from itrpipe.storage.tables import write_arrow

        files = {f"{scene.image_id}.jpg": picture(scene, self._difficulty) for scene in part.content}
        write_arrow(path, pa.table({"file": list(files), "jpeg": pa.array(files.values(), pa.binary())}))


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
    from itrpipe.storage.tables import read_arrow

    folder.mkdir(parents=True, exist_ok=True)
    facts = {}
    with on_disk(folder):
        for path in paths:
            for row in read_arrow(path).to_pylist():
                (folder / row["file"]).write_bytes(row["jpeg"])
                facts[row["file"]] = ImageFacts(hashlib.sha256(row["jpeg"]).hexdigest(), WIDTH, HEIGHT)
    return facts


def picture(scene: Scene, difficulty: Difficulty = EASY) -> bytes:
    """The JPEG file of a scene; its comment says which scene, painted by which version and how, and has a checksum."""
    content = hashlib.sha256(json.dumps(asdict(scene), sort_keys=True).encode()).hexdigest()
    how = "" if difficulty == EASY else f" {difficulty}"
    comment = f"scenes {PAINT_VERSION} {content}{how}, {STAMP_HERE}"
    buffer = io.BytesIO()
    paint(scene, difficulty).save(buffer, "JPEG", quality=JPEG_QUALITY, comment=comment.encode())
    return stamped(buffer.getvalue())


def annotations(dataset: ScenesDataset, root: Path) -> Annotations:
    """Images and captions in the form of every other dataset.

    Args:
        dataset: the dataset.
        root: the folder that `write_images` wrote to.

    Returns:
        Annotations with caption ids "<image_id>#<0..4>".
    """
    images = [ImageRecord(scene.image_id, f"{scene.image_id}.jpg", scene.split) for scene in dataset.scenes]
    captions = [
        CaptionRecord(f"{scene.image_id}#{number}", scene.image_id, caption.text)
        for scene, five in zip(dataset.scenes, dataset.captions, strict=True)
        for number, caption in enumerate(five)
    ]
    return Annotations(images, captions, root)
