"""What of the training captions is masked, and the sentences that were made of them, as methods read these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, tokenize
from itrpipe.errors import DataError, UsageError
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.negatives.caption_masks import CaptionMasks, Compare, SpecialTokens
from itrpipe.negatives.sentence_bank import SentenceBank
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.synthesis.tokens import CONTINUATION, GraphCandidates, TokenCaptions
from itrpipe.training.captions import CaptionTokens, PieceIds


def token_captions(split: Split, tokens: CaptionTokens, model: UniterEncoder) -> TokenCaptions:
    """The captions of a split as a trained model reads them.

    Args:
        split: the captions.
        tokens: of the model.
        model: is asked for its sizes.

    Raises:
        UsageError: the model's tokenizer does not tell which words its pieces are of.
        DataError: the model knows more or fewer tokens than its vocabulary has.
    """
    if isinstance(tokens, PieceIds):
        _check_tokenizer(tokens.tokenizer)
        longest = min(model.text.max_tokens, tokens.tokenizer.model_max_length)
        captions = TokenCaptions.of_pieces(split, tokens.tokenizer, longest)
    else:
        assert isinstance(tokens, Vocabulary)
        captions = TokenCaptions.of_words(split, tokens)
    known = model.text.word.num_embeddings
    if len(captions.pieces) != known:
        raise DataError(
            f"the model embeds {known:,} tokens and its vocabulary has {len(captions.pieces):,}, [MASK] included; they "
            "do not belong together, run `itrpipe train` again"
        )
    return captions


def special_tokens(tokens: CaptionTokens, pieces: Sequence[str]) -> SpecialTokens:
    """The token ids that are no words, and the longest run of those that are.

    Args:
        tokens: of the model.
        pieces: V tokens as its vocabulary writes them.

    Raises:
        UsageError: the model's tokenizer has no mask.
    """
    if not isinstance(tokens, PieceIds):
        return SpecialTokens(len(pieces) - 1, tuple(range(len(SPECIALS))), (len(SPECIALS), len(pieces) - 1))
    tokenizer = tokens.tokenizer
    if tokenizer.mask_token_id is None:
        raise UsageError(
            f"the tokenizer of this model has no mask among its {len(pieces):,} tokens, so that it cannot write words; "
            "train one with another --set model.tokenizer, such as bert-base-cased"
        )
    special = {*tokenizer.all_special_ids, *(row for row, piece in enumerate(pieces) if piece.startswith("[unused"))}
    return SpecialTokens(
        tokenizer.mask_token_id, tuple(sorted(special - {tokenizer.mask_token_id})), _longest_run(special, len(pieces))
    )


def _longest_run(excluded: set[int], size: int) -> tuple[int, int]:
    """First number below `size` of the longest run without an excluded one, and one more than its last."""
    edges = np.array([-1, *sorted(excluded), size])
    longest = int(np.argmax(np.diff(edges)))
    return int(edges[longest]) + 1, int(edges[longest + 1])


def _check_tokenizer(tokenizer: object) -> None:
    """Refuses tokenizers whose pieces do not show where a word begins."""
    kind = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if getattr(kind, "continuing_subword_prefix", None) != CONTINUATION or type(kind).__name__ != "WordPiece":
        raise UsageError(
            f"the tokenizer of this model is no WordPiece tokenizer with pieces that go on with {CONTINUATION!r}, so "
            "that its words cannot be written; train one with --set model.tokenizer=bert-base-cased or the like"
        )


def caption_masks(
    captions: TokenCaptions, tokens: CaptionTokens, graphs: Path | None, compare: Compare
) -> CaptionMasks:
    """How the captions of a training set are masked.

    Args:
        captions: as the model reads them.
        tokens: of the model.
        graphs: artifact of `itrpipe parse`, whose phrases are masked as wholes; None masks single tokens.
        compare: see `CaptionMasks`.

    Raises:
        UsageError: the tokenizer has no mask.
        DataError: a caption has no scene graph.
    """
    candidates = None if graphs is None else GraphCandidates(captions, MaskCandidates.read(graphs))
    arrays = captions.tokens, captions.words, captions.split.caption_image
    return CaptionMasks(*arrays, candidates, special_tokens(tokens, captions.pieces), compare)


def read_sentences(folder: Path, split: Split, tokens: CaptionTokens) -> SentenceBank:
    """The kept sentences of the captions of a training set.

    Args:
        folder: artifact of `itrpipe synthesize`.
        split: the captions.
        tokens: of the model.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged, or of other captions.
    """
    file = SentenceFile(folder)
    kept = file.kept(("caption_id", "text"))
    position = {name: row for row, name in enumerate(split.caption_ids.tolist())}
    owners = [position.get(name, -1) for name in kept["caption_id"].to_pylist()]
    known = np.array(owners, dtype=np.int64)
    if not len(known) or known.max() < 0:
        raise DataError(f"{file.path} has no sentence for any caption of the training set; run `itrpipe synthesize`")
    texts = [text for text, owner in zip(kept["text"].to_pylist(), owners, strict=True) if owner >= 0]
    known = known[known >= 0]
    if (np.diff(known) < 0).any():
        raise DataError(f"{file.path} has its captions in another order; run `itrpipe synthesize` again")
    captions = pa.table({"text": texts, "tokens": pa.array([tokenize(text) for text in texts], pa.list_(pa.string()))})
    ids, lengths = tokens.encode_split(Split(split.name, split.images, captions))
    starts = np.searchsorted(known, np.arange(len(position) + 1))
    return SentenceBank(ids, lengths, starts)
