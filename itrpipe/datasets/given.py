"""An image and a caption that a user gives, as a split of their own, which everything that reads splits can read."""

from __future__ import annotations

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.tokens import tokenize
from itrpipe.errors import UsageError

CAPTION_ID = "given"


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
    import pyarrow as pa

    for option, text in (("--image", image_id), (what, caption)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{option} {text!r} is not valid UTF-8; write it otherwise") from None
    words = tokenize(caption)
    if not words:
        raise UsageError(f"{what} has no word; give a sentence")
    columns = {"caption_id": [CAPTION_ID], "image_id": [image_id], "text": [caption]}
    tokens = pa.array([words], pa.list_(pa.string()))
    return Split(split, pa.table({"image_id": [image_id]}), pa.table({**columns, "tokens": tokens}))
