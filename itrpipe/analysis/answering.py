"""What a model answers to a query: the images or captions it ranks first, described, and whether they are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.analysis.searching import Found, Query, Searched, SearchModel, best, nearest
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.mining.faiss_engine import IndexKind
from itrpipe.progress import Reporter
from itrpipe.reporting.answers import Answer, Answers, Mark
from itrpipe.reporting.truth import TrueMatches


@dataclass(frozen=True)
class Search:
    """A query and where it is searched.

    Attributes:
        dataset: its name.
        searched: the split.
        query: what is searched with.
        index: how embeddings are searched.
        reporter: shows the progress.
    """

    dataset: str
    searched: Searched
    query: Query
    index: IndexKind
    reporter: Reporter

    def answers(self, model: SearchModel, top: int, prefilter: SearchModel | None, candidates: int) -> Answers:
        """Asks a model.

        Args:
            model: with embeddings, or one that scores pairs.
            top: how many answers are wanted.
            prefilter: a model with embeddings that chooses what the other one scores; None scores everything.
            candidates: how many it chooses.
        """
        if model.embeds:
            found, scored = self._nearest(model, top)
            among = scored
        else:
            found, scored = self._scored(model, top, prefilter, candidates)
            among = len(self.searched.ids(self.query.finds))
        by_caption, pair = self.query.finds == "images", self.query.pair
        return Answers(
            dataset=self.dataset,
            run=model.label,
            split=self.searched.split.name,
            finds=self.query.finds,
            caption=pair.texts[0] if by_caption else None,
            image_id=None if by_caption else str(pair.image_ids[0]),
            image_split=None if by_caption else pair.name,
            searched=among,
            scored=scored,
            prefilter=None if prefilter is None else prefilter.label,
            unknown=model.unknown_words(pair) if by_caption else [],
            answers=self._described(found),
        )

    def _nearest(self, model: SearchModel, top: int) -> tuple[Found, int]:
        """The best by embeddings, and among how many."""
        embeddings = read_embeddings(model.folder / EMBEDDINGS, self.searched.split.name)
        among = embeddings.image_ids if self.query.finds == "images" else embeddings.caption_ids
        return nearest(embeddings, self.query.finds, model.embed(self.query), top, self.index), len(among)

    def _scored(
        self, model: SearchModel, top: int, prefilter: SearchModel | None, candidates: int
    ) -> tuple[Found, int]:
        """The best by scores of pairs, and how many were scored."""
        ids = self.searched.ids(self.query.finds)
        rows = np.arange(len(ids))
        if prefilter is not None:
            rows = np.flatnonzero(np.isin(ids, self._nearest(prefilter, candidates)[0].ids))
        with self.reporter.task(f"scoring {self.query.finds}", len(rows), "pairs") as task:
            scores = model.scores(self.query, self.searched, rows, task.advance)
        return best(scores, ids[rows], top), len(rows)

    def _described(self, found: Found) -> list[Answer]:
        """What was found, with its captions and whether it is right."""
        split, images = self.searched.whole, self.query.finds == "images"
        row_of = {each: row for row, each in enumerate((split.image_ids if images else split.caption_ids).tolist())}
        rows = np.array([row_of[each] for each in found.ids.tolist()], dtype=np.int64)
        ends, answers = split.captions_of_image, []
        for rank, (row, score, mark) in enumerate(zip(rows, found.scores, self._marks(rows), strict=True), 1):
            image = row if images else split.caption_image[row]
            texts = split.texts[ends[row] : ends[row + 1]] if images else [split.texts[row]]
            caption_id = None if images else str(split.caption_ids[row])
            image_id, file = str(split.image_ids[image]), split.files[image]
            answers.append(Answer(rank, float(score), image_id, file, caption_id, texts, mark))
        return answers

    def _marks(self, rows: np.ndarray) -> list[Mark]:
        """Which of the candidates are right, where the query is a caption or an image of the split.

        Args:
            rows: [k] of images or captions of the whole split.
        """
        split, pair = self.searched.whole, self.query.pair
        if self.query.finds == "images":
            asked = self.searched.captions_reading(pair.texts[0])
        else:
            asked = np.flatnonzero((split.image_ids == pair.image_ids[0]) & (split.name == pair.name))
        if not len(asked):
            return [""] * len(rows)
        sides = (asked[:, None], rows[None]) if self.query.finds == "images" else (rows[None], asked[:, None])
        truth = TrueMatches.open(self.searched.prepare, split)
        own = np.any(split.caption_image[sides[0]] == sides[1], axis=0)
        true = own if truth is None else np.any(truth.contains(*sides), axis=0)
        return [
            "own" if is_own else "true" if is_true else ""
            for is_own, is_true in zip(own.tolist(), true.tolist(), strict=True)
        ]
