"""What every dataset reader returns: images, captions and the folder the image files are relative to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ImageRecord:
    """One image of a dataset.

    Attributes:
        image_id: the identifier by which features, captions and rankings refer to the image.
        file: path of the image relative to `Annotations.root`, with forward slashes.
        split: one of `SPLITS`.
    """

    image_id: str
    file: str
    split: str


@dataclass(frozen=True)
class CaptionRecord:
    """One caption.

    Attributes:
        caption_id: unique within the dataset.
        image_id: the image it describes.
        text: the sentence as published, UTF-8, unchanged.
    """

    caption_id: str
    image_id: str
    text: str


@dataclass(frozen=True)
class Annotations:
    """A dataset as read from its source, before any image was opened.

    Attributes:
        images: in the order of the source.
        captions: in the order of the source.
        root: folder that every `ImageRecord.file` is relative to and may not leave.
    """

    images: list[ImageRecord]
    captions: list[CaptionRecord]
    root: Path
