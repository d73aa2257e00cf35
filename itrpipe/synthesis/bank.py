"""Read the sentences of `itrpipe synthesize` as the token ids of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import DataError
from itrpipe.learning.sentences import SentenceBank
from itrpipe.models.captions import CaptionTokens
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.sentences import SentenceFile


def read_sentences(
    folder: Path,
    split: Split,
    tokens: CaptionTokens,
    mirrors: bool = True,
) -> SentenceBank:
    """Read the kept sentences of the captions of a training set.

    Args:
        folder: artifact of `itrpipe synthesize`.
        split: the captions.
        tokens: of the model.
        mirrors: whether images can be mirrored, as some twins are.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged, or of other captions.
    """
    file = SentenceFile(folder)
    sentences = file.read(("caption_id", "text", "kind", "twin_image_id", "detail", "twin_detail"))
    owners = rows_of(sentences["caption_id"], pa.array(split.caption_ids))
    sentences = sentences.filter(pa.array(owners >= 0))
    owners = owners[owners >= 0]
    if not len(sentences):
        raise DataError(f"{file.path} has no sentence for any caption of the training set; run `itrpipe synthesize`")
    if (np.diff(owners) < 0).any():
        raise DataError(f"{file.path} has its captions in another order; run `itrpipe synthesize` again")
    twins = rows_of(sentences["twin_image_id"], pa.array(split.image_ids))
    if not mirrors:
        twins[twins == split.caption_image[owners]] = -1
    ids, lengths = _encode(sentences["text"].to_pylist(), split, tokens)
    details = sentences["detail"].to_pylist() + sentences["twin_detail"].to_pylist()
    detail_ids, detail_lengths = _encode([detail or "" for detail in details], split, tokens)
    starts = np.searchsorted(owners, np.arange(len(split.caption_ids) + 1))
    _, kinds = np.unique(sentences["kind"].to_pylist(), return_inverse=True)
    sides = detail_ids.reshape(2, len(sentences), -1), detail_lengths.reshape(2, -1)
    return SentenceBank(ids, lengths, starts, twins, sides, kinds)


def _encode(
    texts: Sequence[str],
    split: Split,
    tokens: CaptionTokens,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and lengths of further captions of a split."""
    words = pa.array(map(tokenize, texts), pa.list_(pa.string()))
    captions = pa.table({"text": texts, "tokens": words})
    return tokens.encode_split(Split(split.name, split.images, captions))
