"""Reader of ARO's Visual Genome Relation and Attribution: parts of images with a caption whose words change places.

ARO's COCO and Flickr30k Order are not read: their negatives are shuffled anew in every run, by a parser of English.

The released code takes the mean over all relations of which a notebook then leaves some out by name, and over pairs of
attributes with 25 cases or more. Here the mean is over all relations.

Source: ARO (Yuksekgonul et al., ICLR 2023).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from itrpipe.datasets.benchmarks.base import Benchmark, Box, Pair, sentence, with_images
from itrpipe.datasets.source_files import load_json_list, required
from itrpipe.errors import DataError

RELATION, ATTRIBUTION = "visual_genome_relation", "visual_genome_attribution"
IMAGE_FOLDERS = ("images", "")
MEASURES = ("pairs", "macro")
FEWEST_CASES = 25
"""Pairs of attributes with fewer cases do not count in the mean over them."""
_FARTHEST = 8_192
"""Pixels; images of Visual Genome have 1,280 at most."""


def read(folder: Path) -> Benchmark:
    """Reads `visual_genome_relation.json` and `visual_genome_attribution.json`.

    Args:
        folder: holds both files, and the images in `images/` or beside them.

    Raises:
        MissingInputError: a file or an image is not there.
        DataError: a file is malformed, or a path leaves the folder.
    """
    relations, attributions = _pairs(folder, RELATION), _pairs(folder, ATTRIBUTION)
    counts = Counter(pair.group for pair in attributions)
    counted = [pair if counts[pair.group] >= FEWEST_CASES else pair._replace(group="") for pair in attributions]
    return with_images(folder, folder, [*relations, *counted], IMAGE_FOLDERS)


def _pairs(folder: Path, name: str) -> list[Pair]:
    path, category = folder / f"{name}.json", name.removeprefix("visual_genome_")
    group = _relation if name == RELATION else _attributes
    pairs = []
    for index, record in enumerate(load_json_list(path)):
        where = f"record {index}"
        file = required(record, "image_path", str, path, where)
        caption, negative = (sentence(record, key, path, where) for key in ("true_caption", "false_caption"))
        kept = category, group(record, path, where), _box(record, path, where)
        pairs.append(Pair(f"{category}/{index}", file, caption, negative, *kept))
    return pairs


def _relation(record: Any, path: Path, where: str) -> str:
    return f"relation {required(record, 'relation_name', str, path, where)}"


def _attributes(record: Any, path: Path, where: str) -> str:
    found = required(record, "attributes", list, path, where)
    if len(found) != 2 or not all(isinstance(each, str) for each in found):
        raise DataError(f"{path}: {where}: 'attributes' is {found!r}, expected two texts")
    return f"attributes {found[0]}, {found[1]}"


def _box(record: Any, path: Path, where: str) -> Box:
    sides = [required(record, f"bbox_{side}", (int, float), path, where) for side in ("x", "y", "w", "h")]
    if not all(abs(side) <= _FARTHEST for side in sides):  # NaN is not, either
        raise DataError(f"{path}: {where}: its box lies at {sides}, expected pixels up to {_FARTHEST:,}")
    left, top, width, height = map(round, sides)
    if width < 1 or height < 1:
        raise DataError(f"{path}: {where}: its box has {width} x {height} pixels, expected one of 1 x 1 at least")
    return left, top, left + width, top + height
