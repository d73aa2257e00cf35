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


def read_sentences(folder: Path, split: Split, tokens: CaptionTokens, mirrors: bool = True) -> SentenceBank:
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
    kept = file.read(("caption_id", "text", "kind", "twin_image_id", "detail", "twin_detail"))
    owners = rows_of(kept["caption_id"], pa.array(split.caption_ids))
    kept = kept.filter(pa.array(owners >= 0))
    owners = owners[owners >= 0]
    if not len(kept):
        raise DataError(f"{file.path} has no sentence for any caption of the training set; run `itrpipe synthesize`")
    if (np.diff(owners) < 0).any():
        raise DataError(f"{file.path} has its captions in another order; run `itrpipe synthesize` again")
    twins = rows_of(kept["twin_image_id"], pa.array(split.image_ids))
    if not mirrors:
        twins[twins == split.caption_image[owners]] = -1
    columns = kept.select(["text", "kind", "detail", "twin_detail"]).to_pydict()
    ids, lengths = _encoded(columns["text"], split, tokens)
    details = [detail or "" for detail in columns["detail"] + columns["twin_detail"]]
    both, both_lengths = _encoded(details, split, tokens)
    starts = np.searchsorted(owners, np.arange(len(split.caption_ids) + 1))
    _, kinds = np.unique(columns["kind"], return_inverse=True)
    sides = both.reshape(2, len(kept), -1), both_lengths.reshape(2, -1)
    return SentenceBank(ids, lengths, starts, twins, sides, kinds)


def _encoded(texts: Sequence[str], split: Split, tokens: CaptionTokens) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and lengths of further captions of a split."""
    words = pa.array(map(tokenize, texts), pa.list_(pa.string()))
    return tokens.encode_split(Split(split.name, split.images, pa.table({"text": texts, "tokens": words})))
