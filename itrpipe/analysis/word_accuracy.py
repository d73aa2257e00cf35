"""How well a trained model tells wrong words, and corrects them, in sentences that it writes itself.

The captions of a split are masked as in training, phrase by phrase or word by word, and refilled by the model, so which
words are wrong is known: those that are not the caption's own. Sentences that are the caption itself, that say nothing
but what other captions of the image say, or that stand there twice are left out, as in training. Unlike there, all that
is refilled was masked: no random words, and no special tokens are written.

Source: TAGS-DC, Table 4, Fig. 4 and section 4.4. The paper does not say how its test sentences were chosen; here every
sentence counts that the filters let through. Nor does it say where corrections count: at all words that were masked,
where the loss is computed (often the caption says what was written), or at the wrong ones alone; here both are counted.

Shapes: T captions of a block, K masked copies of each, L draws for each copy, N sentences, W tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from itrpipe.analysis.word_corrections import THRESHOLD, CorrectedSentence, ReadTokens, WordReader, match_probability
from itrpipe.datasets.prepared import Split
from itrpipe.features.store import FeatureFile
from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import NO_WORD, UNLABELLED
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.uniter.network import UniterImages
from itrpipe.synthesis.language_model import LanguageModel, mean
from itrpipe.training.captions import caption_masks
from itrpipe.training.data import SplitData, blocks, open_split
from itrpipe.training.saved import SavedModel

CAPTIONS, EXAMPLES = 500, 12
COPIES, DRAWS = 4, 4
"""Sentences of a caption before the filters: masked copies, and refills of each."""
BLOCK = 32
"""Captions at a time. What is drawn depends on it."""
_WORD = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("mismatch", pa.float32()),
        ("flagged", pa.bool_()),
        ("wrong", pa.bool_()),
        ("corrected_start", pa.int32()),
        ("corrected_end", pa.int32()),
        ("restored", pa.bool_()),
    ]
)
CORRECTION_SCHEMA = pa.schema(
    [
        ("example", pa.int32()),
        ("caption_id", pa.string()),
        ("image_id", pa.string()),
        ("caption", pa.string()),
        ("sentence", pa.string()),
        ("corrected", pa.string()),
        ("caption_score", pa.float32()),
        ("sentence_score", pa.float32()),
        ("corrected_score", pa.float32()),
        ("words", pa.list_(_WORD)),
    ]
)


_CORRECTIONS = ("correction", "correction_masked")


class _Written(NamedTuple):
    """The sentences of a block that the filters let through.

    Attributes:
        owners: int64 [N], number of each one's caption in the block.
        tokens: int64 [N, W].
        masked: bool [N, W], what the model wrote, be it the caption's own.
        drawn: reason -> number of sentences of the block.
    """

    owners: np.ndarray
    tokens: np.ndarray
    masked: np.ndarray
    drawn: Counter[str]


@dataclass(frozen=True)
class _Block:
    """Captions that are looked at together.

    Attributes:
        rows: int64 [T] of the captions.
        tokens: int64 [T, W].
        images: the image of each.
    """

    rows: np.ndarray
    tokens: np.ndarray
    images: UniterImages


class WordTest:
    """A model and the captions of a split that it is tested with.

    Args:
        saved: for which `itrpipe.analysis.word_corrections.has_word_heads` holds.
        split: images and captions.
        features: of its images.
        device: `cpu` or `cuda`.
        graphs: artifact of `itrpipe parse` that a model was trained with which masks phrases; None for others.
        seed: of the captions and sentences.

    Raises:
        DataError: a caption has no scene graph.
    """

    def __init__(
        self,
        saved: SavedModel,
        split: Split,
        features: FeatureFile,
        device: str,
        graphs: Path | None = None,
        seed: int = 0,
    ) -> None:
        self._reader = WordReader(saved, split, device)
        self._data: SplitData = open_split(split, features, saved.tokens, saved.settings)
        self._split, self._device, self._seed = split, torch.device(device), seed
        self._trained = TagsDc.model_validate(saved.config["loss"])
        assert (graphs is not None) == (self._trained.mask == "phrases")
        self._masks = caption_masks(self._reader.captions, saved.tokens, graphs, self._trained.compare)

    @torch.inference_mode()
    def run(
        self, captions: int = CAPTIONS, examples: int = EXAMPLES, language_model: LanguageModel | None = None
    ) -> tuple[dict[str, Any], pa.Table]:
        """Writes sentences and reads them.

        Args:
            captions: tested at most, chosen by the seed.
            examples: of them that are shown.
            language_model: measures how fluent they are.

        Returns:
            The figures, see `_Counts.figures`, with a language model also `fluency`, see `_fluency`; and rows of
            `CORRECTION_SCHEMA`: of every shown caption the sentence with the highest score. `mismatch` is the
            probability that a word does not belong to the image, `flagged` whether that is above one half, `wrong`
            whether the word is not the caption's, `restored` whether the caption's own word stands there in the
            corrected sentence, which is null where the model was not trained to correct; scores are probabilities of a
            match.
        """
        rng = np.random.default_rng(self._seed)
        chosen = rng.permutation(len(self._split.caption_ids))[:captions]
        shown = set(self._split.caption_ids[chosen[:examples]].tolist())
        corrected = set((chosen[:examples] if language_model is None else chosen).tolist())
        chosen = np.sort(chosen)
        counts, rows = _Counts(len(chosen), self._trained.mask, self._reader.corrects), []
        for block in map(self._block, (chosen[part] for part in blocks(len(chosen), BLOCK))):
            written = self._write(block, rng)
            read = self._read(block, written.owners, written.tokens, written.masked)
            own = self._read(block, np.arange(len(block.rows)), block.tokens)
            counts.add(block.tokens[written.owners], written, read, own.scores, self._words(block, written))
            rows += self._examples(block, written, read, own.scores, corrected)
        figures = counts.figures()
        if language_model is not None:
            figures["fluency"] = _fluency(rows, language_model)
        table = [row for row in rows if row["caption_id"] in shown]
        numbered = [{"example": number, **row} for number, row in enumerate(table)]
        return figures, pa.Table.from_pylist(numbered, CORRECTION_SCHEMA)

    def _block(self, rows: np.ndarray) -> _Block:
        captions = self._reader.captions
        images = self._reader.embed(self._data.images(captions.split.caption_image[rows]))
        return _Block(rows, captions.tokens[rows, : int(captions.lengths[rows].max())], images)

    def _write(self, block: _Block, rng: np.random.Generator) -> _Written:
        """Masks, refills and filters."""
        count, width = block.tokens.shape
        copies, labels = self._masks.draw(block.rows, width, COPIES, False, rng)
        owners = np.repeat(np.arange(count), COPIES)
        labelled = labels != UNLABELLED
        logits = self._reader.masked_word_logits(block.images, owners, block.rows[owners], copies, labelled)
        generator = torch.Generator(self._device).manual_seed(int(rng.integers(2**63)))
        masks = torch.from_numpy(copies).to(self._device), torch.from_numpy(labels).to(self._device)
        excluded, temperature = self._masks.specials.all, self._trained.temperature
        drawn = synthetic.refill(*masks, logits, DRAWS, temperature, excluded, generator)  # [T K, L, W]
        sentences = drawn.view(count, -1, width)
        captions = torch.from_numpy(block.tokens).to(self._device)
        known = self._masks.known(block.rows)
        reasons = synthetic.reject(sentences, captions, None if known is None else known.to(self._device))
        kept = reasons == synthetic.KEPT
        numbers, places = (each.cpu().numpy() for each in kept.nonzero(as_tuple=True))
        names = Counter(synthetic.REASONS[reason] for reason in reasons.flatten().tolist())
        masked = labelled.reshape(count, COPIES, width)[numbers, places // DRAWS]
        return _Written(numbers, sentences[kept].cpu().numpy(), masked, names)

    def _words(self, block: _Block, written: _Written) -> np.ndarray:
        """Which tokens of the sentences are words, bool [N, W]."""
        return self._reader.captions.words[block.rows[written.owners], : block.tokens.shape[1]] != NO_WORD

    def _read(
        self, block: _Block, owners: np.ndarray, tokens: np.ndarray, asked: np.ndarray | None = None
    ) -> ReadTokens:
        """Reads sentences [N, W] of a block with the images of their captions; `asked` is that of `WordReader.read`."""
        nothing = np.zeros(tokens.shape, dtype=bool)
        return self._reader.read(block.images, owners, block.rows[owners], tokens, nothing if asked is None else asked)

    def _examples(
        self, block: _Block, written: _Written, read: ReadTokens, own: np.ndarray, wanted: set[int]
    ) -> Iterator[dict[str, Any]]:
        """Rows of those captions of a block that are wanted and have a sentence."""
        order = np.lexsort((-read.scores, written.owners))
        owners, first = np.unique(written.owners[order], return_index=True)
        chosen = np.array([number for number in order[first] if int(block.rows[written.owners[number]]) in wanted])
        if not len(chosen):
            return
        owners, tokens = written.owners[chosen], written.tokens[chosen]
        found = self._reader.corrected(block.rows[owners], tokens, ReadTokens(*(each[chosen] for each in read)))
        again = self._read(block, owners, np.stack([each.corrected_tokens for each in found]))
        split = self._reader.captions.split
        for number, (owner, each) in enumerate(zip(owners.tolist(), found, strict=True)):
            row = int(block.rows[owner])
            yield {
                "caption_id": split.caption_ids[row],
                "image_id": split.image_ids[split.caption_image[row]],
                "caption": split.texts[row],
                "sentence": each.sentence.text,
                "corrected": each.corrected.text if self._reader.corrects else None,
                "caption_score": match_probability(float(own[owner])),
                "sentence_score": each.score,
                "corrected_score": match_probability(float(again.scores[number])) if self._reader.corrects else None,
                "words": self._word_rows(row, tokens[number], each),
            }

    def _word_rows(self, row: int, tokens: np.ndarray, each: CorrectedSentence) -> list[dict[str, Any]]:
        """The words of a sentence that the model reads."""
        own, words = (part[row, : len(tokens)] for part in (self._reader.captions.tokens, self._reader.captions.words))
        wrong, lost = (set(words[found != own].tolist()) for found in (tokens, each.corrected_tokens))
        return [
            {
                "start": each.sentence.spans[word][0],
                "end": each.sentence.spans[word][1],
                "mismatch": float(chance),
                "flagged": bool(chance > THRESHOLD),
                "wrong": word in wrong,
                "corrected_start": each.corrected.spans[word][0],
                "corrected_end": each.corrected.spans[word][1],
                "restored": word not in lost,
            }
            for word, chance in enumerate(each.mismatch)
        ]


def _fluency(rows: Sequence[Mapping[str, Any]], model: LanguageModel) -> dict[str, Any]:
    """Mean perplexities of captions, of a sentence of each, and of these corrected.

    Source: TAGS-DC, Table 3. It does not say which sentences; here it is that of a caption with the highest score.

    Args:
        rows: with `caption`, `sentence` and `corrected`.
        model: reads them.

    Returns:
        `sentences`, how many of each kind, and the means of `captions`, `written` and `corrected`; None without a
        sentence, and of the last where the model was not trained to correct.
    """
    kinds = {"captions": "caption", "written": "sentence", "corrected": "corrected"}
    texts = {kind: [row[column] for row in rows if row[column] is not None] for kind, column in kinds.items()}
    return {"sentences": len(rows), **{kind: mean(model.perplexities(read)) for kind, read in texts.items()}}


@dataclass
class _Counts:
    """What was told right, of how many.

    Attributes:
        captions: number of them.
        mask: what was masked together, `phrases` or `words`.
        corrects: whether the model was trained to correct words.
    """

    captions: int
    mask: str
    corrects: bool

    def __post_init__(self) -> None:
        self._drawn: Counter[str] = Counter()
        self._right, self._counted = Counter[str](), Counter[str]()

    def add(
        self, captions: np.ndarray, written: _Written, read: ReadTokens, own: np.ndarray, words: np.ndarray
    ) -> None:
        """Counts the sentences of a block.

        Args:
            captions: int64 [N, W], caption of each.
            written, read: the sentences.
            own: float32 [T], scores of the captions.
            words: bool [N, W], tokens that are words.
        """
        self._drawn.update(written.drawn)
        wrong, flagged = (written.tokens != captions) & words, (read.mismatch > THRESHOLD) & words
        self._count("matching", ~flagged, words & ~wrong)
        self._count("mismatching", flagged, wrong)
        mended = read.corrections == captions
        self._count("correction", mended, wrong)
        self._count("correction_masked", mended, written.masked)
        self._count("below_caption", read.scores < own[written.owners], np.ones(len(written.tokens), bool))

    def figures(self) -> dict[str, Any]:
        """Percent and counts.

        Returns:
            `captions`, how many; `mask`, what of them was masked together; `drawn`, sentences by what became of them;
            `discrimination` of `all` words, of those that are the caption's (`matching`) and of the others
            (`mismatching`), `correction` of the latter and `correction_masked` of all words that were masked, be what
            was written the caption's own: `percent` of `words` that are right, None where there is none, and None for
            both corrections where the model was not trained to correct; `below_caption`: `percent` of `sentences` that
            score below their caption. Words are tokens, so pieces of words where a tokenizer cuts them.
        """
        for counts in (self._right, self._counted):
            counts["all"] = counts["matching"] + counts["mismatching"]
        discrimination = {name: self._figure(name, "words") for name in ("all", "matching", "mismatching")}
        return {
            "captions": self.captions,
            "mask": self.mask,
            "drawn": dict(sorted(self._drawn.items())),
            "discrimination": discrimination,
            **{name: self._figure(name, "words") if self.corrects else None for name in _CORRECTIONS},
            "below_caption": self._figure("below_caption", "sentences"),
        }

    def _count(self, name: str, right: np.ndarray, counted: np.ndarray) -> None:
        self._right[name] += int((right & counted).sum())
        self._counted[name] += int(counted.sum())

    def _figure(self, name: str, unit: str) -> dict[str, float | int | None]:
        count = self._counted[name]
        return {"percent": 100.0 * self._right[name] / count if count else None, unit: count}
