"""Benchmarks of hard negatives in files: captions with sentences that look alike and are false of the image.

Users name them `sugarcrepe=FOLDER`, or `scenes`, which the embedded dataset makes itself. A published benchmark or a
format of one's own is a row of `SUITES` and a function that yields the pairs of a folder. People's judgements are a
benchmark of another kind, see `itrpipe.datasets.judgements`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, TypeAdapter

from itrpipe.config import unknown
from itrpipe.datasets.captions import is_readable, repeated
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.datasets.judgements import JUDGEMENTS, read_judgements
from itrpipe.datasets.paths import locate_all_images
from itrpipe.datasets.source_files import Id, data_files, rows
from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.artifact import DigestCache

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, of which the last two are excluded."""
EMBEDDED_VERSION = "edits 2"
"""Version of the sentences that the embedded dataset makes; raised when equal scenes get others."""
_FARTHEST = 8_192
"""Pixels; images of Visual Genome have 1,280 at most."""


class Pair(NamedTuple):
    """A caption and its hard negative. Fingerprints are made of its `repr`.

    Attributes:
        id: unique within the benchmark.
        file: path of the image relative to the root.
        caption: is true of the image.
        negative: is not.
        category: of which results are reported; empty where there are none.
        group: pairs of a group make one example, or one term of a macro accuracy; empty where there are none.
        box: part of the image that is looked at; None: all of it.
    """

    id: str
    file: str
    caption: str
    negative: str
    category: str = ""
    group: str = ""
    box: Box | None = None


class Benchmark(NamedTuple):
    """A benchmark as read, before any image was opened.

    Attributes:
        root: folder that every file is relative to and may not leave.
        pairs: in the order of the source.
    """

    root: Path
    pairs: list[Pair]


class Named(NamedTuple):
    """A benchmark as a user names it.

    Attributes:
        name: one of `SUITES`, `flickr8k-judgements`, or `scenes`.
        folder: folder of its files; empty for `scenes`.
    """

    name: str
    folder: str


def named(text: str) -> Named:
    """Take `NAME=FOLDER` apart.

    Raises:
        ValueError: there is no such benchmark, it lacks its folder, or has one that nothing reads.
    """
    name, _, folder = text.partition("=")
    names = (*SUITES, JUDGEMENTS, EMBEDDED)
    if name not in names:
        raise ValueError(unknown("benchmark", name, names))
    is_complete = bool(folder)
    if name == EMBEDDED:
        is_complete = text == EMBEDDED
    if not is_complete:
        raise ValueError(f"{text!r}: {EMBEDDED} takes no folder, others are read from files; give NAME=FOLDER")
    return Named(name, folder)


def benchmark_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return benchmarks in the order of their names.

    Raises:
        ValueError: see `named`; or one is given twice.
    """
    ordered = sorted(texts, key=lambda text: (named(text).name, text))
    for first, second in pairwise(ordered):
        name = named(second).name
        if name == named(first).name:
            raise ValueError(f"{second!r} names {name} a second time; evaluate with one at a time")
    return tuple(ordered)


def read_benchmark(benchmark: Named) -> Benchmark:
    """Read a benchmark of files and find its images.

    Raises:
        MissingInputError: its folder, one of its files or an image is not there.
        DataError: a file is malformed, there is no pair in it, or a path leaves the folder.
    """
    root = Path(benchmark.folder).expanduser()
    suite = SUITES[benchmark.name]
    if not root.is_dir():
        raise MissingInputError(f"--benchmark {benchmark.name}: {root} is no folder; name the one with its files")
    pairs = []
    for category, (names, record) in suite.files.items():
        pairs_of_file = []
        groups = Counter()
        [path] = data_files(root, names)
        for number, row in rows(path, TypeAdapter(record)):
            for pair in row.pairs(f"{category}/{number}".removeprefix("/"), category):
                pairs_of_file.append(pair)
                groups[pair.group] += 1
        for pair in pairs_of_file:
            if groups[pair.group] < record.fewest:
                pair = pair._replace(group="")
            pairs.append(pair)
    for pair in pairs:
        if pair.caption == pair.negative:
            raise DataError(
                f"{root}: the negative of pair {pair.id} is its caption, {pair.caption!r}; leave the pair out"
            )
    repeated_ids = repeated(pair.id for pair in pairs)
    if repeated_ids:
        raise DataError(f"{root}: pair {repeated_ids[0]} is given twice; an example has one line")
    first_pairs = {pair.file: f"pair {pair.id}" for pair in reversed(pairs)}
    files = list(first_pairs)
    located = locate_all_images(root, files, list(first_pairs.values()), suite.folders)
    paths = dict(zip(files, located, strict=True))
    return Benchmark(root, [pair._replace(file=paths[pair.file]) for pair in pairs])


def digests(texts: Iterable[str], cache: DigestCache) -> dict[str, str]:
    """Return the digests of the content and images of benchmarks, whose place does not count.

    Raises:
        MissingInputError, DataError: see `read_benchmark` and `read_judgements`.
    """
    digests = {}
    for benchmark in map(named, texts):
        name = benchmark.name
        if not benchmark.folder:
            digests[f"benchmark {name}"] = EMBEDDED_VERSION
        elif name == JUDGEMENTS:
            digests |= read_judgements(benchmark.folder).digests(cache)
        else:
            root, pairs = read_benchmark(benchmark)
            lines = "\n".join(map(repr, pairs))
            files = {root / pair.file for pair in pairs}
            digests[f"benchmark {name}"] = hashlib.sha256(lines.encode()).hexdigest()
            digests[f"benchmark {name} images"] = cache.combined(files, root, f"hashing {name}")
    return digests


def _readable(text: str) -> str:
    if not is_readable(text):
        raise ValueError("a sentence")
    return text


def _negatives_by_suffix(value: Any) -> Any:
    """Return negatives by the suffix that their number adds to the id of the row; a single one adds none."""
    if not isinstance(value, list):
        return {"": value}
    return {f".{number}": negative for number, negative in enumerate(value)}


Sentence = Annotated[str, AfterValidator(_readable)]
_Pixel = Annotated[float, Field(ge=-_FARTHEST, le=_FARTHEST)]
_Side = Annotated[float, Field(gt=0.5, le=_FARTHEST)]


class _Row(BaseModel, strict=True):
    """A row of a benchmark.

    Attributes:
        fewest: pairs of a group that counts.
    """

    fewest: ClassVar[int] = 0

    def pairs(self, name: str, category: str) -> list[Pair]:
        """Return the pairs of the row, given its name and the category of its file."""
        raise NotImplementedError


class _Aro(_Row):
    """A part of an image of Visual Genome with a caption whose words change places.

    The released code takes the mean over all relations of which a notebook then leaves some out by name, and over pairs
    of attributes with 25 cases or more. Here the mean is over all relations. ARO's COCO and Flickr30k Order are not
    read: their negatives are shuffled anew in every run, by a parser of English.

    Attributes:
        group: pattern of the names of groups; a macro accuracy is the mean over groups.

    Source: ARO (Yuksekgonul et al., ICLR 2023).
    """

    image_path: str
    true_caption: Sentence
    false_caption: Sentence
    bbox_x: _Pixel
    bbox_y: _Pixel
    bbox_w: _Side
    bbox_h: _Side
    group: ClassVar[str]

    def pairs(self, name: str, category: str) -> list[Pair]:
        left = round(self.bbox_x)
        top = round(self.bbox_y)
        box = left, top, left + round(self.bbox_w), top + round(self.bbox_h)
        group = self.group.format(self)
        return [Pair(name, self.image_path, self.true_caption, self.false_caption, category, group, box)]


class _Relation(_Aro):
    group = "relation {0.relation_name}"
    relation_name: str


class _Attribution(_Aro):
    fewest = 25
    group = "attributes {0.attributes[0]}, {0.attributes[1]}"
    attributes: Annotated[list[str], Field(min_length=2, max_length=2)]


class _SugarCrepe(_Row):
    """A caption with one hard negative, on images of COCO's val2017.

    Source: SugarCrepe (Hsieh et al., NeurIPS 2023 Datasets and Benchmarks).
    """

    filename: str
    caption: Sentence
    negative_caption: Sentence

    def pairs(self, name: str, category: str) -> list[Pair]:
        return [Pair(name, self.filename, self.caption, self.negative_caption, category)]


class _Winoground(_Row):
    """Two images, named without .png, and two captions of the same words; each caption is false of the other image.

    An example becomes two pairs of one group, whose four scores are all that its measures need.

    Source: Winoground (Thrush et al., CVPR 2022).
    """

    id: Id
    image_0: str
    image_1: str
    caption_0: Sentence
    caption_1: Sentence
    collapsed_tag: str

    def pairs(self, name: str, category: str) -> list[Pair]:
        sides = (self.image_0, self.caption_0, self.caption_1), (self.image_1, self.caption_1, self.caption_0)
        pairs = []
        for number, (file, caption, negative) in enumerate(sides):
            if not PurePosixPath(file).suffix:
                file += ".png"
            pairs.append(Pair(f"{self.id}/{number}", file, caption, negative, self.collapsed_tag, self.id))
        return pairs


class _Local(_Row):
    """A row of a user's file. In JSON `negative` may be a list; in CSV a caption with several has several rows."""

    file: str
    caption: Sentence
    negative: Annotated[dict[str, Sentence], BeforeValidator(_negatives_by_suffix), Field(min_length=1)]
    category: Annotated[str | None, AfterValidator(lambda text: text and _readable(text))] = ""

    def pairs(self, name: str, category: str) -> list[Pair]:
        pairs = []
        for suffix, negative in self.negative.items():
            pairs.append(Pair(f"{name}{suffix}", self.file, self.caption, negative, self.category or ""))
        return pairs


class Suite(NamedTuple):
    """Files of a benchmark, and how they are read.

    Attributes:
        files: by category the names that its file goes by, and the record that it holds.
        folders: below that of the files, where the images may lie; the first that has one of them is taken.
        measures: names in `itrpipe.analysis.questions.benchmarks`.
    """

    files: dict[str, tuple[tuple[str, ...], type[_Row]]]
    folders: tuple[str, ...] = ("images", "")
    measures: tuple[str, ...] = ("pairs",)


SUITES = {
    "aro": Suite(
        {
            "relation": (("visual_genome_relation.json",), _Relation),
            "attribution": (("visual_genome_attribution.json",), _Attribution),
        },
        measures=("pairs", "macro"),
    ),
    "local": Suite({"": (("benchmark.jsonl", "benchmark.json", "benchmark.csv"), _Local)}, ("", "images")),
    "sugarcrepe": Suite(
        {
            "add_att": (("add_att.json",), _SugarCrepe),
            "add_obj": (("add_obj.json",), _SugarCrepe),
            "replace_att": (("replace_att.json",), _SugarCrepe),
            "replace_obj": (("replace_obj.json",), _SugarCrepe),
            "replace_rel": (("replace_rel.json",), _SugarCrepe),
            "swap_att": (("swap_att.json",), _SugarCrepe),
            "swap_obj": (("swap_obj.json",), _SugarCrepe),
        },
        ("val2017", "images", ""),
    ),
    "winoground": Suite({"": (("examples.jsonl",), _Winoground)}, measures=("examples",)),
}
