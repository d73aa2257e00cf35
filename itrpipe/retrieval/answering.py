"""What a model answers to a query: the images or captions it ranks first, described, and whether they are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.datasets.truth import known_pairs
from itrpipe.features.embeddings import EMBEDDINGS, read_embeddings
from itrpipe.progress import Reporter
from itrpipe.retrieval.answers import Answer, Answers, Mark
from itrpipe.retrieval.searching import Found, Query, Searched, SearchModel, best, embedded_scores


@dataclass(frozen=True)
class Search:
    """A query and where it is searched.

    Attributes:
        dataset: its name.
        searched: the split.
        query: what is searched with.
        reporter: shows the progress.
    """

    dataset: str
    searched: Searched
    query: Query
    reporter: Reporter

    def answers(self, model: SearchModel, top: int) -> Answers:
        """Asks a model.

        Args:
            model: with embeddings, or one that scores pairs.
            top: how many answers are wanted.
        """
        kind = self.query.finds
        if model.embeds:
            embeddings = read_embeddings(model.folder / EMBEDDINGS, self.searched.split.name)
            ids = embeddings.image_ids if kind == "images" else embeddings.caption_ids
            scores = embedded_scores(embeddings, kind, model.embed(self.query))
        else:
            ids = self.searched.ids(kind)
            with self.reporter.task(f"scoring {kind}", len(ids), "pairs") as task:
                scores = model.scores(self.query, self.searched, task.advance)
        found = best(scores, ids, top)
        by_caption, pair = self.query.finds == "images", self.query.pair
        return Answers(
            dataset=self.dataset,
            run=model.label,
            split=self.searched.split.name,
            finds=self.query.finds,
            caption=pair.texts[0] if by_caption else None,
            image_id=None if by_caption else str(pair.image_ids[0]),
            image_split=None if by_caption else pair.name,
            searched=len(ids),
            unknown=model.unknown_words(pair) if by_caption else [],
            answers=self._described(found),
        )

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
        truth = known_pairs(self.searched.prepare, split.image_ids, split.caption_ids)
        own = np.any(split.caption_image[sides[0]] == sides[1], axis=0)
        true = own if truth is None else np.any(truth.has(*sides), axis=0)
        return [
            "own" if is_own else "true" if is_true else ""
            for is_own, is_true in zip(own.tolist(), true.tolist(), strict=True)
        ]
