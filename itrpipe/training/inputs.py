"""Read what a method asks for beside its pairs: mined lists, sentences, masks, and what is known of matches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.truth import Decided, known_matches
from itrpipe.errors import DataError, UsageError
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.base import TokenLimits
from itrpipe.methods.declaration import WithTwins, masked_by
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import DIRECTIONS, read_list
from itrpipe.models.captions import CaptionTokens, ends_of
from itrpipe.synthesis.bank import read_sentences
from itrpipe.synthesis.tokens import caption_masks, token_captions
from itrpipe.training.data import PhraseSplitData, SplitData
from itrpipe.training.saved import max_tokens_of, start_from

_HARD_PART = 0.1
"""Share of the captions, and of the images, of a training set that are negatives to be mined at most."""
_SHORTEST_LIST = 10


def method_inputs(
    job: Any, names: tuple[str, ...], train: SplitData, tokens: CaptionTokens, model: Any
) -> dict[str, Any]:
    """Read what a method declared, see `itrpipe.methods.declaration.INPUTS`.

    Args:
        job: of the training, see `itrpipe.stages.base.Job`.
        names: of the inputs that the method's `build` names.
        train: the training set.
        tokens: what reads captions.
        model: with the weights that training starts from.

    Returns:
        Name -> input; None where there is none.

    Raises:
        UsageError: the method draws twins, and there are none that the model can read.
        DataError: an artifact is damaged, or of another training set.
    """
    loss, artifacts = job.settings.loss, job.inputs
    inputs: dict[str, Any] = dict.fromkeys(names)
    if "limits" in names:
        inputs["limits"] = TokenLimits(*ends_of(tokens), max_tokens_of(model))
    if "matches" in names:
        inputs["matches"] = known_matches(artifacts["prepare"].folder, train.split)
    if "duplicates" in names:
        inputs["duplicates"] = lambda: DuplicateCaptions(train.split.texts, train.caption_image)
    if "matching" in names and isinstance(train, PhraseSplitData):
        inputs["matching"] = train.matching
    if "lists" in names and "mine_negatives" in artifacts:
        inputs["lists"] = mined_lists(artifacts["mine_negatives"].folder, train)
    if "decided" in names and "mine_negatives" in artifacts:
        decided = Decided.read(artifacts["mine_negatives"].folder, train.split.image_ids, train.split.caption_ids)
        inputs["decided"] = None if decided is None else decided.fits
    if "sentences" in names and "synthesize" in artifacts:
        inputs["sentences"] = _sentences(job, train, tokens)
    masked = masked_by(loss)
    if "masks" in names and masked is not None:
        captions = token_captions(train.split, tokens, max_tokens_of(model))
        graphs = artifacts["parse"].folder if masked.units == "phrases" else None
        inputs["masks"] = caption_masks(captions, tokens, graphs, masked.compare)
    if "writer" in names and "writer" in artifacts:
        inputs["writer"] = copy.deepcopy(model).requires_grad_(False).eval()
        start_from(artifacts["writer"].folder, inputs["writer"], job.settings.model_dump(mode="json"), tokens)
    return inputs


def _sentences(job: Any, train: SplitData, tokens: CaptionTokens) -> SentenceBank:
    """Read the sentences of the training captions.

    Raises:
        UsageError: the method draws twins, and there are none that the model can read.
    """
    mirrors = train.mirrors and job.settings.model.sees_sides()
    sentences = read_sentences(job.inputs["synthesize"].folder, train.split, tokens, mirrors)
    loss = job.settings.loss
    if isinstance(loss, WithTwins) and loss.twins:
        if not mirrors:
            job.warn("twins that are mirror images are left out: this model does not see where things are")
        if not (sentences.twins >= 0).any():
            raise UsageError(
                f"sentences = {job.settings.sentences} has no twins that this model can read; give --set "
                "train.sentences=twins"
            )
    return sentences


def mined_lists(folder: Path, train: SplitData) -> dict[str, np.ndarray]:
    """Read the lists of both directions, with the probabilities that mining wrote.

    Raises:
        DataError: they are of another training set.
    """
    lists = {}
    for direction, ids in zip(DIRECTIONS, (train.split.image_ids, train.split.caption_ids), strict=True):
        mined = read_list(folder, direction)
        if not np.array_equal(mined.anchor_ids, ids):
            raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists[direction] = mined.candidates
        if mined.false_negative_probability is not None:
            lists[f"{PROBABILITY_OF}{direction}"] = mined.false_negative_probability
    return longest_used(lists)


def longest_used(lists: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return lists, see `itrpipe.learning.mined.Lists`, of which none is longer than a part of the training set.

    Of a small training set, lists of the usual length would hold most captions or images, which are no harder than any
    others.
    """
    cut = {}
    for anchors, candidates in (DIRECTIONS, DIRECTIONS[::-1]):
        most = max(_SHORTEST_LIST, int(_HARD_PART * len(lists[candidates])))
        for name in (anchors, f"{PROBABILITY_OF}{anchors}"):
            if name in lists:
                cut[name] = lists[name][:, :most]
    return cut
