"""Which words of captions a masked language model hides: captions in its tokens, and what is masked together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.errors import UsageError
from itrpipe.learning.sentences import CaptionMasks, Compare, SpecialTokens
from itrpipe.models.captions import CaptionTokens, PieceIds
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.synthesis.tokens import CONTINUATION, GraphCandidates, TokenCaptions


def token_captions(split: Split, tokens: CaptionTokens, max_tokens: int) -> TokenCaptions:
    """Return the captions of a split as a trained model reads them.

    Args:
        split: the captions.
        tokens: of the model.
        max_tokens: longest caption that the model reads.

    Raises:
        UsageError: the model's tokenizer has no mask, or does not tell which words its pieces are of.
    """
    if not isinstance(tokens, PieceIds):
        assert isinstance(tokens, Vocabulary)
        return TokenCaptions.of_words(split, tokens)
    tokenizer = tokens.tokenizer
    kind = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    # Pieces of other tokenizers do not show where a word begins.
    if getattr(kind, "continuing_subword_prefix", None) != CONTINUATION or tokenizer.mask_token_id is None:
        raise UsageError(
            f"the tokenizer of this model is no WordPiece tokenizer with a mask and pieces that go on with "
            f"{CONTINUATION!r}, so that its words cannot be written; train one with --set "
            "model.tokenizer=bert-base-cased or the like"
        )
    return TokenCaptions.of_pieces(split, tokenizer, min(max_tokens, tokenizer.model_max_length))


def special_tokens(tokens: CaptionTokens, pieces: Sequence[str]) -> SpecialTokens:
    """Return the token ids that are no words, and the longest run of those that are.

    Args:
        tokens: of the model.
        pieces: V tokens as its vocabulary writes them.
    """
    if not isinstance(tokens, PieceIds):
        return SpecialTokens(len(pieces) - 1, tuple(range(len(SPECIALS))), (len(SPECIALS), len(pieces) - 1))
    tokenizer = tokens.tokenizer
    special = {*tokenizer.all_special_ids, *(row for row, piece in enumerate(pieces) if piece.startswith("[unused"))}
    edges = np.array([-1, *sorted(special), len(pieces)])
    longest = int(np.argmax(np.diff(edges)))
    others = tuple(sorted(special - {tokenizer.mask_token_id}))
    return SpecialTokens(tokenizer.mask_token_id, others, (int(edges[longest]) + 1, int(edges[longest + 1])))


def caption_masks(
    captions: TokenCaptions, tokens: CaptionTokens, graphs: Path | None, compare: Compare
) -> CaptionMasks:
    """Return how the captions of a training set are masked.

    Args:
        captions: as the model reads them.
        tokens: of the model.
        graphs: artifact of `itrpipe parse`, whose phrases are masked as wholes; None masks single tokens.
        compare: see `CaptionMasks`.

    Raises:
        DataError: a caption has no scene graph.
    """
    candidates = None if graphs is None else GraphCandidates(captions, MaskCandidates.read(graphs))
    arrays = captions.tokens, captions.words, captions.split.caption_image
    return CaptionMasks(*arrays, candidates, special_tokens(tokens, captions.pieces), compare)
