"""Whether the images and captions of a dataset fit together, before anything is computed from them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.records import SPLITS, Annotations
from itrpipe.errors import DataError
from itrpipe.printable import printable

_EXAMPLES = 3
_LONGEST_ID = 4_096
"""Characters of an id, which may be the path of a file."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zs", "Zl", "Zp"})
"""Unicode categories of characters that leave no mark on paper."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Characters of other categories that leave none either: fillers, joiners, and the selectors of variants."""


def check_annotations(annotations: Annotations, source: Path) -> NotedAnnotations:
    """Return the annotations without images that have no caption, after refusing what cannot be used.

    Args:
        annotations: as read, with or without notes.
        source: file or folder they were read from, for messages.

    Returns:
        The same records in the same order; if images were dropped, with a note that counts them.

    Raises:
        DataError: no captions at all, ids or files that are given twice, ids that are empty, too long or hold control
            characters, unknown split names, captions that show nothing, hold a NUL, are not valid Unicode, or are of an
            image that is not there. One line lists all of these with counts and first examples.
    """
    problems = list(_problems(annotations))
    if problems:
        raise DataError(f"{source}: {'; '.join(problems)}; correct the source")
    captioned = {caption.image_id for caption in annotations.captions}
    images = [image for image in annotations.images if image.image_id in captioned]
    notes = annotations.notes if isinstance(annotations, NotedAnnotations) else ()
    bare = [image.image_id for image in annotations.images if image.image_id not in captioned]
    if bare:
        notes += (f"{source}: {_count(bare, 'images without captions')} dropped",)
    return NotedAnnotations(images, annotations.captions, annotations.root, notes)


def shows_something(text: str) -> bool:
    """Whether a text has a character that one can see."""
    return any(unicodedata.category(each) not in _INVISIBLE and each not in _BLANK for each in text)


def _problems(annotations: Annotations) -> Iterable[str]:
    images, captions = annotations.images, annotations.captions
    known = {image.image_id for image in images}
    found = {
        "duplicate image ids": _repeated([image.image_id for image in images]),
        "files that are several images": _repeated([image.file for image in images]),
        "duplicate caption ids": _repeated([caption.caption_id for caption in captions]),
        f"split names other than {', '.join(SPLITS)}": _other_splits(annotations),
        "captions of images that are not there": [
            f"{caption.caption_id} of {caption.image_id}" for caption in captions if caption.image_id not in known
        ],
        "empty captions": [caption.caption_id for caption in captions if not shows_something(caption.text)],
        "captions with a NUL character": [caption.caption_id for caption in captions if "\0" in caption.text],
        **_bad_ids("image", [image.image_id for image in images]),
        **_bad_ids("caption", [caption.caption_id for caption in captions]),
        "captions that are not valid Unicode": [
            caption.caption_id for caption in captions if not _is_unicode(caption.caption_id + caption.text)
        ],
    }
    if not captions:
        yield "holds no captions"
    yield from (_count(values, what) for what, values in found.items() if values)


def _bad_ids(what: str, ids: Sequence[str]) -> dict[str, list[str]]:
    """Ids that name nothing or that no table of them could show."""
    return {
        f"{what} ids with control characters": [each for each in ids if _CONTROL.search(each)],
        f"empty {what} ids": [repr(each) for each in ids if not each.strip()],
        f"{what} ids of more than {_LONGEST_ID:,} characters": [
            f"{each[:20]}…" for each in ids if len(each) > _LONGEST_ID
        ],
    }


def _count(values: Sequence[str], what: str) -> str:
    """Phrase a count with its first examples: `12 empty captions (3, 8, 9, ...)`."""
    shown = [printable(value) for value in values[:_EXAMPLES]]
    return f"{len(values):,} {what} ({', '.join(shown)}{', ...' if len(values) > _EXAMPLES else ''})"


def _repeated(ids: list[str]) -> list[str]:
    return [value for value, count in Counter(ids).items() if count > 1]


def _other_splits(annotations: Annotations) -> list[str]:
    names = Counter(image.split for image in annotations.images)
    return [f"{name!r} of {count:,} images" for name, count in names.items() if name not in SPLITS]


def _is_unicode(text: str) -> bool:
    """Whether the text can be stored as UTF-8; a JSON escape such as `\\ud800` alone cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
