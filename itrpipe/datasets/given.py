"""Images and captions that a user gives, as a split of their own, which everything that reads splits can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import UsageError

CAPTION_ID = "given"
NO_IMAGE = "none"
"""Id of the image of captions that belong to none."""


def given_pair(split: str, image_id: str, caption: str, what: str = "--caption") -> Split:
    """A split of one image with one caption, of id `given`.

    Args:
        split: its name, for messages.
        image_id: of the image.
        caption: any sentence.
        what: the option that the caption was given by, for the message.

    Raises:
        UsageError: the caption has no word, or it or the id is no Unicode.
    """
    _refuse_no_unicode("--image", image_id)
    _refuse_no_unicode(what, caption)
    if not tokenize(caption):
        raise UsageError(f"{what} has no word; give a sentence")
    return _split(split, [image_id], [caption])


def given_images(image_ids: Sequence[str]) -> Split:
    """A split of some images without captions."""
    return _split("given images", image_ids, [])


def given_captions(captions: Sequence[str]) -> Split:
    """A split of some captions, `given`, `given1`, …, and an image that there is nothing of.

    Args:
        captions: T sentences.

    Raises:
        UsageError: one of them is empty or no Unicode.
    """
    for row, caption in enumerate(captions):
        if not isinstance(caption, str) or not caption.strip():
            raise UsageError(f"text {row} is {caption!r}; give sentences")
        _refuse_no_unicode(f"text {row},", caption)
    return _split("given captions", [NO_IMAGE], captions)


def no_known_word(label: str, words: Iterable[str]) -> UsageError:
    """What is said of a query without a word that a model knows.

    Args:
        label: of the model.
        words: of the query.
    """
    return UsageError(
        f"{label} knows no word of the query ({', '.join(dict.fromkeys(words))}), so any order would be chance; search "
        "with words of its training captions"
    )


def _refuse_no_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} {text!r} is not valid UTF-8; write it otherwise") from None


def _split(name: str, image_ids: Sequence[str], captions: Sequence[str]) -> Split:
    """All captions belong to the first image."""
    import pyarrow as pa

    text = pa.string()
    columns = {
        "caption_id": pa.array([f"{CAPTION_ID}{row or ''}" for row in range(len(captions))], text),
        "image_id": pa.array([image_ids[0]] * len(captions) if captions else [], text),
        "text": pa.array(captions, text),
        "tokens": pa.array(map(tokenize, captions), pa.list_(text)),
    }
    return Split(name, pa.table({"image_id": pa.array(image_ids, text)}), pa.table(columns))
