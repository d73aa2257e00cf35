"""Captions as token ids: by our own vocabulary of words, or by the tokenizer of a pretrained text encoder.

Beside them stands what methods read of the training captions: which of their words are masked, and the sentences that
were made of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, tokenize
from itrpipe.errors import DataError, UsageError
from itrpipe.learning.sentences import CaptionMasks, Compare, SentenceBank, SpecialTokens
from itrpipe.models.declaration import LONGEST
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.storage.integrity import checked
from itrpipe.storage.ragged import Ragged
from itrpipe.synthesis.sentences import SentenceFile
from itrpipe.synthesis.tokens import CONTINUATION, GraphCandidates, TokenCaptions

VOCABULARY, TOKENIZER = "vocab.json", "tokenizer"
TOKENIZER_CONFIG = "tokenizer_config.json"

_DROPPED = str.maketrans("-/", "  ", ",.'!?\"()*#:;~")


class Cut(NamedTuple):
    """Captions of which the end is not read.

    Attributes:
        count: of them.
        limit: how much of a caption is read, such as `77 tokens`.
    """

    count: int
    limit: str


def clean(text: str) -> str:
    """A caption in lower case without punctuation, hyphens and slashes as spaces. Source: ALBEF's and FNE's code."""
    return " ".join(text.lower().translate(_DROPPED).replace("<person>", "person").split())


@dataclass(frozen=True)
class Reading:
    """What of a caption is read.

    Attributes:
        cleaned: without case and punctuation.
        max_words: words kept.
    """

    cleaned: bool
    max_words: int

    @property
    def whole(self) -> Reading:
        """The same of all words."""
        return replace(self, max_words=LONGEST)

    @classmethod
    def of(cls, settings: Any) -> Reading:
        """As the settings of a model have it, which has some of these options; most models do not clean."""
        return cls(getattr(settings, "clean_captions", False), settings.max_words)

    def texts(self, split: Split) -> list[str]:
        """The captions of a split, T of them."""
        texts = map(clean, split.texts) if self.cleaned else split.texts
        longer = re.compile(rf"\s*((?:\S+\s+){{{self.max_words - 1}}}\S+)\s.*", re.DOTALL)
        return [found[1] if (found := longer.fullmatch(text)) else text for text in texts]

    def words(self, split: Split) -> pa.ListArray:
        """The words of the captions of a split: those of cleaned captions, else those that `prepare` cut."""
        if self.cleaned:
            return pa.array([text.split() for text in self.texts(split)], pa.list_(pa.string()))
        return pa.array([words[: self.max_words] for words in split.tokens.to_pylist()], pa.list_(pa.string()))


@dataclass(frozen=True)
class WordIds:
    """Words of a vocabulary of our own, between start and end.

    Attributes:
        vocabulary: the words.
        reading: what of a caption is read.
    """

    vocabulary: Vocabulary
    reading: Reading

    def __len__(self) -> int:
        """Number of token ids."""
        return len(self.vocabulary)

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of the captions of a split.

        Returns:
            tokens: int32 [T, W], padded to the longest caption.
            lengths: int32 [T].
        """
        return self.vocabulary.encode_all(self.reading.words(split))

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """See `PieceIds.cut`."""
        words = self.reading.whole.words(split).value_lengths().to_numpy()
        return Cut(int((words > self.reading.max_words).sum()), f"{self.reading.max_words} words")


class PieceIds:
    """Pieces of words by the tokenizer of a pretrained text encoder.

    Args:
        tokenizer: of transformers.
        reading: what of a caption is read.
        max_tokens: longest caption, start and end included.

    Attributes:
        tokenizer, reading: as given.
        max_tokens: likewise, if the tokenizer has no lower limit of its own.
    """

    def __init__(self, tokenizer: Any, reading: Reading, max_tokens: int) -> None:
        self.tokenizer, self.reading = tokenizer, reading
        self.max_tokens = min(max_tokens, tokenizer.model_max_length)

    def __len__(self) -> int:
        """Number of token ids."""
        return len(self.tokenizer)

    def __eq__(self, other: object) -> bool:
        """Whether the other gives every caption the same ids."""
        if not isinstance(other, PieceIds):
            return NotImplemented
        same = (self.reading, self.max_tokens) == (other.reading, other.max_tokens)
        return same and self.tokenizer.get_vocab() == other.tokenizer.get_vocab()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def encode_split(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """See `WordIds.encode_split`."""
        found = self.tokenizer(self.reading.texts(split), truncation=True, max_length=self.max_tokens)
        ids = Ragged.of_lists(found["input_ids"], np.int32)
        return ids.padded(), ids.counts.astype(np.int32)

    def cut(self, split: Split, lengths: np.ndarray) -> Cut:
        """The captions of a split of which the end is not read.

        Args:
            split: the captions.
            lengths: [T], of `encode_split`.
        """
        words, most = self.reading.max_words, f"{self.max_tokens} tokens"
        texts = self.reading.whole.texts(split)
        longer = np.array([len(text.split()) > words for text in texts], dtype=bool)
        full = [texts[row] for row in np.flatnonzero(~longer & (lengths == self.max_tokens))]
        again = self.tokenizer(full, verbose=False)["input_ids"] if full else []
        count = int(longer.sum()) + sum(len(ids) > self.max_tokens for ids in again)
        return Cut(count, most if words >= self.max_tokens else f"{words} words or {most}")


CaptionTokens = Vocabulary | WordIds | PieceIds
"""Turns captions into token ids."""


def ends_of(tokens: CaptionTokens) -> tuple[int, int]:
    """How many tokens stand before the words of every caption and how many behind; a vocabulary gives both one."""
    if not isinstance(tokens, PieceIds):
        return 1, 1
    added = np.array(tokens.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"], dtype=bool)
    words = np.flatnonzero(~added)
    return int(words[0]), int(len(added) - 1 - words[-1])


def save_tokens(folder: Path, tokens: CaptionTokens) -> None:
    """Writes what a trained model needs to read captions: vocab.json, or the files of a tokenizer."""
    if isinstance(tokens, PieceIds):
        tokens.tokenizer.save_pretrained(folder / TOKENIZER)
    else:
        vocabulary = tokens.vocabulary if isinstance(tokens, WordIds) else tokens
        vocabulary.save(folder / VOCABULARY)


def load_tokens(folder: Path, settings: Any, max_tokens: int) -> CaptionTokens:
    """Reads what `save_tokens` wrote, or the tokenizer at the root of a folder in the layout of transformers.

    Args:
        folder: of the trained model.
        settings: of its backbone.
        max_tokens: longest caption that its text encoder takes.

    Raises:
        MissingInputError: there is nothing of it.
        DataError: a file is damaged.
    """
    at_root = (folder / TOKENIZER_CONFIG).is_file()
    if at_root or (folder / TOKENIZER).is_dir():
        from itrpipe.models.dual_encoder.network import load_tokenizer  # transformers is large

        place = folder if at_root else folder / TOKENIZER
        for path in place.glob("*.*"):
            if path.suffix != ".md":  # a card is for whoever publishes to edit
                checked(path)
        return PieceIds(load_tokenizer(place), Reading.of(settings), max_tokens)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    return WordIds(vocabulary, Reading.of(settings)) if settings.opens_encoders else vocabulary


def token_captions(split: Split, tokens: CaptionTokens, model: UniterEncoder) -> TokenCaptions:
    """The captions of a split as a trained model reads them.

    Args:
        split: the captions.
        tokens: of the model.
        model: is asked for its sizes.

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
    return TokenCaptions.of_pieces(split, tokenizer, min(model.text.max_tokens, tokenizer.model_max_length))


def special_tokens(tokens: CaptionTokens, pieces: Sequence[str]) -> SpecialTokens:
    """The token ids that are no words, and the longest run of those that are.

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
    """How the captions of a training set are masked.

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


def read_sentences(folder: Path, split: Split, tokens: CaptionTokens, mirrors: bool = True) -> SentenceBank:
    """The kept sentences of the captions of a training set.

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
    kept = file.kept(("caption_id", "text", "kind", "twin_image_id", "detail", "twin_detail"))
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
    """Ids and lengths of further captions of a split."""
    words = pa.array([tokenize(text) for text in texts.to_pylist()], pa.list_(pa.string()))
    return tokens.encode_split(Split(split.name, split.images, pa.table({"text": texts, "tokens": words})))
