"""The stage of `itrpipe prepare`: the captions and checked images of a dataset, as Parquet.

Configuration `files` reads published formats; `scenes` generates the embedded dataset, pictures included; `given` reads
ids and captions from files of embeddings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings
from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.captions import SPLITS
from itrpipe.datasets.definition import StageDefinition
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.errors import DataError
from itrpipe.features.declaration import GivenFiles
from itrpipe.printable import quantity
from itrpipe.stages.base import Job, Stage, reason_with_file, source_of
from itrpipe.storage.artifact import SCENES_FILE, DigestCache
from itrpipe.storage.disk import require_space, write_text

if TYPE_CHECKING:
    from itrpipe.datasets.captions import Annotations
    from itrpipe.datasets.image_check import Repeat

LEAKS = "leaks.tsv"
"""File of photographs that are in two splits."""
REPEATS = "repeats.tsv"
"""File of photographs that are twice in one split."""
JOINED = "joined.tsv"
"""File of photographs that were joined with another one of the same pixels."""
IMAGES_FOLDER = "images"
BYTES_PER_SCENE = 10_000
BYTES_OF_NOISE = 12_000
SHOWN_PROBLEMS = 3


class FilesSettings(Settings):
    """Settings for reading a published dataset.

    Attributes:
        format: one of `itrpipe.datasets.formats.annotations.FORMATS`; empty to recognise it.
        restval: treatment of COCO's `restval` images: `train` or `drop`.
        val_fraction, test_fraction: of a dataset without splits.
        split_seed: of the split by hash.
        bad_images: `drop` images that are missing or do not decode, with their captions, and list them; or `refuse`
            the dataset.
        columns: of a table, where they are not recognised.
    """

    kind: Literal["files"]
    format: str
    restval: Literal["train", "drop"]
    val_fraction: float = Field(ge=0, lt=1)
    test_fraction: float = Field(ge=0, lt=1)
    split_seed: int = Field(ge=0)
    bad_images: Literal["refuse", "drop"]
    columns: ColumnSettings = Field(default_factory=ColumnSettings)

    @model_validator(mode="after")
    def _leaves_train(self) -> FilesSettings:
        if self.val_fraction + self.test_fraction >= 1:
            raise ValueError("val_fraction and test_fraction leave nothing for train; make them smaller")
        return self


class ScenesSettings(Settings):
    """Size and seed of the embedded dataset, how hard it is to see, and how many images a caption is true of.

    Attributes:
        train, val, test: images of each split; each has five captions.
        seed: another seed gives entirely other scenes.
        family_size: a scene and its near-identical siblings, the hard negatives.
        keep_probability: of a caption that is also true of a sibling.
        caption_detail: how much captions tell. At 0 they name neither looks nor setting, and say "animal" for "dog"; at
            1 they name all of it.
        units: largest number of units of a scene, each an object or two in a relation; it has at most two objects more.
        alike: share of families that begin with two to five things of one kind, each number as often; captions tell it.
        noise: of the pictures. At 1 Gaussian noise of 30 levels, a blur of 0.7 pixels, and 30 % of the contrast lost.
        occlusion: probability with which a third to a half of an object lies behind fog, leaves or planks, where that
            leaves 40 % of every object to be seen.
    """

    kind: Literal["scenes"]
    train: int = Field(ge=1, le=10_000_000)
    val: int = Field(ge=1, le=10_000_000)
    test: int = Field(ge=1, le=10_000_000)
    seed: int = Field(ge=0)
    family_size: int = Field(ge=1)
    keep_probability: float = Field(ge=0, le=1)
    caption_detail: float = Field(default=0.5, ge=0, le=1)
    units: int = Field(default=3, ge=2, le=5)
    alike: float = Field(default=0.0, ge=0, le=1)
    noise: float = Field(default=0.0, ge=0, le=1)
    occlusion: float = Field(default=0.0, ge=0, le=1)


class GivenSettings(Settings):
    """Files of embeddings that a dataset without photographs is known by.

    Attributes:
        train, val, test: files of each split; empty where there are none.
        only: the one split that is prepared; empty for all.
    """

    kind: Literal["given"]
    train: GivenFiles = Field(default_factory=GivenFiles)
    val: GivenFiles = Field(default_factory=GivenFiles)
    test: GivenFiles = Field(default_factory=GivenFiles)
    only: Literal["", "train", "val", "test"] = ""

    def counted(self) -> dict[str, Any]:
        """Return the kind and the splits; ids and captions count by their digests, wherever the files lie."""
        return {"kind": self.kind, "splits": [*self.splits]}

    @property
    def splits(self) -> dict[str, GivenFiles]:
        """Return the splits that are prepared, with their files."""
        names = (self.only,) if self.only else SPLITS
        splits = {}
        for name in names:
            files = getattr(self, name)
            if files.images:
                splits[name] = files
        return splits


_KINDS = {"scenes": ScenesSettings, "given": GivenSettings}


class PrepareStage(Stage):
    """Reads captions and images, or draws the embedded dataset."""

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """Return the settings of the embedded dataset, of embeddings alone, or else of files."""
        return _KINDS.get(str(values.get("kind")), FilesSettings)

    def label(self, conf: str, settings: Settings) -> str:
        """Return the configuration's name, with the split if it is the only one of embeddings that is prepared."""
        if isinstance(settings, GivenSettings) and settings.only:
            return f"{conf}.{settings.only}"
        return conf

    def sources(self, settings: Settings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
        """Return the digests of the captions as read and of all image files, or of the files that hold both."""
        if isinstance(settings, GivenSettings):
            from itrpipe.features.given import GivenSplit

            return {name: GivenSplit(files, name).digest() for name, files in settings.splits.items()}
        if not isinstance(settings, FilesSettings):
            return {}
        from itrpipe.datasets.formats.annotations import packed_files, source_root

        source = _source(definition)
        packed = packed_files(source, settings.format, settings.columns)
        if packed:
            return {"files": cache.combined(packed, source_root(source, settings.format), "hashing files")}
        annotations = read_source(settings, definition)
        records = chain(annotations.images, annotations.captions, annotations.groups.items())
        captions = hashlib.sha256("\n".join(map(repr, records)).encode()).hexdigest()
        files = set()
        for image in annotations.images:
            path = annotations.root / image.file
            inside = in_archive(path)
            files.add(inside[0] if inside else path)
        return {"captions": captions, "images": cache.combined(files, annotations.root, "hashing images")}

    def run(self, job: Job) -> None:
        """Write images.parquet and captions.parquet, for the embedded dataset also its pictures and its truth."""
        prepare = {"scenes": _prepare_scenes, "given": _prepare_given, "files": _prepare_files}
        prepare[job.settings.kind](job)


def read_source(settings: FilesSettings, definition: StageDefinition | None) -> Annotations:
    """Read the captions from the source in the dataset's definition.

    Raises:
        MissingInputError: no source is defined or it is not there.
        DataError: see `itrpipe.datasets.formats.annotations.read_annotations`.
    """
    from itrpipe.datasets.formats.annotations import read_annotations

    return read_annotations(_source(definition), settings.format, settings.restval, settings.columns)


def _source(definition: StageDefinition | None) -> Path:
    return source_of(definition, "the dataset has no source; run `itrpipe prepare --dataset NAME --source FOLDER`")


def _prepare_given(job: Job) -> None:
    import numpy as np

    from itrpipe.datasets.prepared import write_tables
    from itrpipe.features.given import GivenSplit

    image_ids = []
    splits = []
    caption_ids = []
    texts = []
    owners = []
    for name, files in job.settings.splits.items():
        given = GivenSplit(files, name)
        owners.append(given.alone() + len(image_ids))
        image_ids += given.images.ids.to_pylist()
        splits += [name] * len(given.images)
        caption_ids += given.captions.ids.to_pylist()
        texts += given.captions.texts.to_pylist()
    images = {"image_id": image_ids, "split": splits}
    write_tables(job.folder, images, caption_ids, texts, np.concatenate(owners))
    _say_counts(job)
    job.metrics["captions_with_text"] = len(texts) - texts.count("")


_WITHOUT = {
    "train": "nothing can be trained on this dataset",
    "val": "training chooses the epoch that is kept by it",
    "test": "evaluate asks for --split val",
}
"""Consequence of a dataset without images in a split."""


def _prepare_files(job: Job) -> None:
    import numpy as np

    from itrpipe.datasets.image_check import check_images, draw_splits, merge_equal_pictures, picture_keys
    from itrpipe.datasets.prepared import write_prepared
    from itrpipe.mining.filters import DuplicateCaptions

    annotations = read_source(job.settings, job.definition)
    for note in annotations.notes:
        job.messages.append(note)
        job.reporter.say(f"  {note}")
    files = [image.file for image in annotations.images]
    facts, problems = check_images(annotations.root, files, job.made)
    annotations = _without_bad_images(job, annotations, problems)
    settings = job.settings
    annotations = draw_splits(annotations, facts, settings.val_fraction, settings.test_fraction, settings.split_seed)
    usable, joined, apart = merge_equal_pictures(annotations, picture_keys(annotations.root, facts))
    leaks = []
    twice = []
    for first, second in apart:
        if first.split == second.split:
            twice.append((first, second))
        else:
            leaks.append((first, second))
    if annotations.groups and leaks:
        first, second = leaks[0]
        raise DataError(
            f"{len(leaks):,} photographs have the pixels of one in another group, such as {second.file} those of "
            f"{first.file}, and would be in two splits; give both one group"
        )
    _list(job, JOINED, "with the pixels of another one, now one image with all captions", joined)
    _list(job, LEAKS, "that are in two splits", leaks)
    _list(job, REPEATS, "that are twice in one split", twice)
    write_prepared(job.folder, usable, facts)
    _say_counts(job)
    rows = {image.image_id: row for row, image in enumerate(usable.images)}
    texts = [caption.text for caption in usable.captions]
    owners = [rows[caption.image_id] for caption in usable.captions]
    shared = DuplicateCaptions(texts, np.array(owners)).report()["captions_of_other_images"]
    if shared:
        job.reporter.say(
            f"  {shared:,} captions are also those of another image; evaluation counts such pairs as wrong, and "
            "training too unless loss.drop_duplicates is set, as clip-finetune does"
        )
    for name in SPLITS:
        if name in job.metrics:
            continue
        consequence = _WITHOUT[name]
        if name == "test" and "val" not in job.metrics:
            consequence = "evaluate needs one"
        job.warn(f"no image is in split {name}; {consequence}; add photographs, or give a column split")
    job.metrics["leaks"] = len(leaks)


def _list(job: Job, name: str, which: str, repeats: list[Repeat]) -> None:
    """Write the pairs of equal images to a file of tab-separated values, and warn of them."""
    if not repeats:
        return
    lines = ["first\tsplit\tsecond\tsplit\n"]
    for first, second in repeats:
        lines.append(f"{first.file}\t{first.split}\t{second.file}\t{second.split}\n")
    write_text(job.folder / name, "".join(lines))
    first, second = repeats[0]
    example = f"{second.file} of {second.split} is {first.file} of {first.split}"
    job.warn(f"pictures {which}: {len(repeats):,}; {example}; {name} lists all")


def _without_bad_images(job: Job, annotations: Annotations, problems: Mapping[str, str]) -> Annotations:
    """Return the annotations without images that cannot be used, and list these.

    Raises:
        DataError: there are such images and they are not to be dropped, or there are no others.
    """
    if not problems:
        return annotations
    listing = job.work / "bad_images.txt"
    write_text(listing, "".join(f"{file}\t{reason}\n" for file, reason in problems.items()))
    first_problems = islice(problems.items(), SHOWN_PROBLEMS)
    shown = "; ".join(f"{file} {reason}" for file, reason in first_problems)
    count = f"{len(problems):,} of {len(annotations.images):,} images of {annotations.root} cannot be used"
    if job.settings.bad_images == "refuse":
        raise DataError(
            f"{count} ({shown}); all are in {listing}; repair them, or leave out --strict (--set bad_images=drop)"
        )
    images = []
    for image in annotations.images:
        if image.file in problems:
            job.failed[image.image_id] = reason_with_file(image.image_id, image.file, problems[image.file])
        else:
            images.append(image)
    if not images:
        raise DataError(f"{count} ({shown}), which leaves none; put the images where the captions name them")
    job.warn(f"{count} and are dropped ({shown})")
    job.metrics["dropped_images"] = len(problems)
    captions = [caption for caption in annotations.captions if caption.image_id not in job.failed]
    return replace(annotations, images=images, captions=captions)


def _prepare_scenes(job: Job) -> None:
    from itrpipe.datasets.captions import Annotations
    from itrpipe.datasets.prepared import write_prepared
    from itrpipe.datasets.truth import write_truth
    from itrpipe.scenes.build import Painting, annotations, generate, write_described, write_images
    from itrpipe.scenes.oracle import true_matches
    from itrpipe.scenes.paint import Difficulty

    settings = job.settings
    dataset = generate(**settings.model_dump(exclude={"kind", "noise", "occlusion"}))
    difficulty = Difficulty(settings.noise, settings.occlusion)
    images = job.folder / IMAGES_FOLDER
    size = BYTES_PER_SCENE + int(settings.noise * BYTES_OF_NOISE)
    require_space(job.folder, 2 * len(dataset.scenes) * size, "drawing the scenes, once in parts")
    facts = write_images(job.made(Painting(dataset.scenes, difficulty)).paths, images)
    records = annotations(dataset, images)
    # Files of the dataset are named from the artifact's folder.
    named = [image._replace(file=f"{IMAGES_FOLDER}/{image.file}") for image in records.images]
    facts = {f"{IMAGES_FOLDER}/{file}": fact for file, fact in facts.items()}
    write_prepared(job.folder, Annotations(named, records.captions, job.folder), facts)
    _say_counts(job)

    write_described(job.folder / SCENES_FILE, dataset)
    truth: dict[str, list[str]] = {}
    for split in SPLITS:
        part = dataset.of_split(split)
        captions = []
        ids = []
        for scene, texts in zip(part.scenes, part.captions, strict=True):
            captions += texts
            for number in range(len(texts)):
                ids.append(f"{scene.image_id}#{number}")
        matches = true_matches(captions, part.scenes)
        for caption_id, rows in zip(ids, matches, strict=True):
            truth[caption_id] = [part.scenes[row].image_id for row in rows]
    write_truth(job.folder, truth)
    job.metrics["true_images_per_caption"] = round(sum(map(len, truth.values())) / len(truth), 3)


def _say_counts(job: Job) -> None:
    from itrpipe.datasets.prepared import PreparedDataset

    for name, (images, captions) in PreparedDataset.open(job.folder).counts().items():
        job.metrics[name] = f"{quantity(images, 'image')} / {quantity(captions, 'caption')}"
