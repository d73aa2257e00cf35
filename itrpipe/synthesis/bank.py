"""Read the sentences of `itrpipe synthesize` as the token ids of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import DataError
from itrpipe.learning.sentences import SentenceBank
from itrpipe.models.captions import CaptionTokens
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
    owners = pc.call_function("index_in", [kept["caption_id"]], pc.SetLookupOptions(pa.array(split.caption_ids)))
    kept, owners = kept.filter(owners.is_valid()), owners.drop_null().to_numpy()
    if not len(kept):
        raise DataError(f"{file.path} has no sentence for any caption of the training set; run `itrpipe synthesize`")
    if (np.diff(owners) < 0).any():
        raise DataError(f"{file.path} has its captions in another order; run `itrpipe synthesize` again")
    texts, detail, twin_detail = (kept[name].fill_null("") for name in ("text", "detail", "twin_detail"))
    ids, lengths = _encoded(texts, split, tokens)
    sides = [_encoded(each, split, tokens) for each in (detail, twin_detail)]
    width = max(each.shape[1] for each, _ in sides)
    both = np.stack([np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each, _ in sides])
    starts = np.searchsorted(owners, np.arange(len(split.caption_ids) + 1))
    found = pc.call_function("index_in", [kept["twin_image_id"]], pc.SetLookupOptions(pa.array(split.image_ids)))
    twins = found.fill_null(-1).to_numpy().astype(np.int64)
    if not mirrors:
        twins[twins == split.caption_image[owners]] = -1
    kinds = np.unique(np.array(kept["kind"].to_pylist(), dtype=str), return_inverse=True)[1]
    return SentenceBank(ids, lengths, starts, twins, (both, np.stack([each for _, each in sides])), kinds)


def _encoded(texts: Any, split: Split, tokens: CaptionTokens) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and lengths of further captions of a split."""
    words = pa.array([tokenize(text) for text in texts.to_pylist()], pa.list_(pa.string()))
    return tokens.encode_split(Split(split.name, split.images, pa.table({"text": texts, "tokens": words})))
