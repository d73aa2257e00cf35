"""Galleries that are searched by the command, the pages and programs alike: of a dataset, or of photographs.

Models with embeddings compare a query with those that training or an index wrote. All others score every pair of the
query with what is searched.

Shapes: N images, T captions, D embedding width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import known_pairs
from itrpipe.errors import UsageError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings, score_matrix
from itrpipe.features.photographs import Photograph
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.report.pictures import Album, Mark
from itrpipe.search.model import DatasetCaptions, RetrievalModel, Stored, best
from itrpipe.search.photos import PHOTOGRAPH, read_index
from itrpipe.storage.artifact import open_input, read_manifest

MARKS: dict[Mark, str] = {"": " ", "own": "✓", "true": "≈"}
FOLDER = "folder"
"""Stands for the split where photographs of a folder were searched, which have no captions."""
ALL = "all"
"""Stands for the split where all of a dataset were searched."""
_AT_ONCE = 256
"""Images or captions per forward pass."""
_CAPTIONS_SHOWN = 2
"""Captions on the page with an image."""
_LONGEST_TEXT = 96
"""Characters of the captions of a line."""


@dataclass(frozen=True)
class Answer:
    """An image or a caption that was found.

    Attributes:
        rank: from 1.
        score: as the model gives it, higher is better.
        image_id: of the image, or of the one that the caption belongs to.
        file: of that image, relative to the root of the source.
        caption_id: of a caption; None of an image.
        texts: the caption, or all of the image.
        mark: whether it is right, where that is known.
    """

    rank: int
    score: float
    image_id: str
    file: str
    caption_id: str | None
    texts: list[str]
    mark: Mark


@dataclass(frozen=True, kw_only=True)
class SearchAnswers:
    """The answers of a model to one query.

    Attributes:
        dataset: its name; the path of a folder of photographs.
        run: the trained model, by the name that the user gave it where there is one.
        split: that was searched; `all` of all splits, `folder` of a folder of photographs.
        finds: `images` or `captions`.
        caption: that images were searched with; None where an image was.
        image_id: that was searched with, or the path of a photograph; None where a caption was.
        image_split: of that image, or `photograph`.
        searched: how many images or captions there are.
        unknown: words of the caption that the model does not know.
        answers: best first.
    """

    dataset: str
    run: str
    split: str
    finds: Literal["images", "captions"]
    caption: str | None = None
    image_id: str | None = None
    image_split: str | None = None
    searched: int
    unknown: list[str] = field(default_factory=list)
    answers: list[Answer]

    @property
    def of_folder(self) -> bool:
        """Tell whether photographs without captions were searched."""
        return self.split == FOLDER

    @property
    def title(self) -> str:
        """Return the query, in words."""
        if self.caption is not None:
            return f"“{self.caption}”"
        if self.of_folder:
            return f"Photographs like {self.image_id}"
        return f"Captions for {self.image_id}"

    @property
    def how(self) -> str:
        """Return what was ranked by which model, in words."""
        if self.of_folder:
            what = "photographs"
        elif self.split == ALL:
            return (
                f"{self.searched:,} {self.finds} ranked by {self.run}, training split included (--split test leaves it "
                "out)"
            )
        else:
            what = f"{self.split} {self.finds}"
        return f"{self.searched:,} {what} ranked by {self.run}"

    def lines(self) -> Iterator[str]:
        """Yield the table, a line for each answer."""
        names = [answer.caption_id or answer.file for answer in self.answers]
        width = max(map(len, names), default=0)
        yield f"  {'rank':>4} {'score':>8}    {self.finds.removesuffix('s')}"
        for name, answer in zip(names, self.answers, strict=True):
            text = textwrap.shorten(" · ".join(answer.texts), _LONGEST_TEXT, placeholder=" …")
            mark = MARKS[answer.mark]
            yield f"  {answer.rank:>4} {answer.score:>8.3f}  {mark} {name:<{width}}  {text}".rstrip()
        used = {answer.mark for answer in self.answers}
        legend = []
        if "own" in used:
            legend.append(f"{MARKS['own']} belongs to the query")
        if "true" in used:
            legend.append(f"{MARKS['true']} true as well, though it belongs to another")
        if legend:
            yield f"  {', '.join(legend)}"

    def page(self, folder: Path | None, query_file: str | None) -> tuple[str, list[str]]:
        """Make a page that needs no script, no network and no server; return it, and which pictures it lacks.

        It names photographs, not where they are.

        Args:
            folder: of the photographs; None where it is gone.
            query_file: that was searched with, relative to the folder or not; None where a sentence was.
        """
        from itrpipe.report.page import page_environment

        album = Album(folder, {answer.image_id: answer.file for answer in self.answers})
        pictures = {answer.image_id: album.picture(answer.image_id) for answer in self.answers}
        problems = list(album.problems)
        query = None
        if query_file is not None:
            path = Path(query_file)
            if folder is not None:
                path = folder / query_file
            parent = path.parent if path.is_absolute() else None
            album_of_query = Album(parent, {path.name: path.name})
            query = album_of_query.picture(path.name)
            problems += album_of_query.problems
        shown = replace(self, dataset=Path(self.dataset).name)
        if self.image_id is not None:
            shown = replace(shown, image_id=Path(self.image_id).name)
        template = page_environment().get_template("search.html.j2")
        page = template.render(found=shown, title=shown.title, pictures=pictures, query=query, shown=_CAPTIONS_SHOWN)
        return page, problems


@dataclass
class Gallery:
    """Images and captions that a model searches.

    Attributes:
        about: what is looked at: a dataset, or a folder.
        model: the model.
        images: embeddings [N, D] of the images, or their features or files for a model that scores pairs.
        image_ids: N, of a dataset, or paths of photographs.
        files: N, relative to the root of the source.
        splits: N, of each image; `folder` of photographs in one.
        sentences: embeddings of the captions by the split, or the captions for a model that scores pairs.
        caption_ids, texts: T, none of a folder.
        owners: [T] row of each caption's image, never falling.
        prepared: artifact of the dataset; None of a folder.
    """

    about: str
    model: RetrievalModel
    images: np.ndarray | Stored | list[Path]
    image_ids: list[str]
    files: list[str]
    splits: list[str]
    sentences: Sequence[np.ndarray] | DatasetCaptions = ()
    caption_ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    prepared: Path | None = None

    @classmethod
    def of_dataset(cls, model: RetrievalModel, trained: Path, split: str | None = None) -> Gallery:
        """Open the images and captions of a split as the model was trained to read them, or of all.

        Training images without features are left out.

        Args:
            model: that searches.
            trained: artifact of the model.
            split: name of it; None for all, which models that score pairs do not search.

        Raises:
            UsageError: the dataset has no such split.
            MissingInputError, DataError: a file is not there or damaged.
        """
        manifest = read_manifest(trained)
        prepared = open_input(trained, manifest, "prepare")
        dataset = PreparedDataset.open(prepared, tokens=not model.embeds)
        gallery = cls(manifest.dataset, model, np.empty(0), [], [], [], prepared=prepared)
        features = graphs = None
        if not model.embeds:
            if "extract" in manifest.inputs:
                features = FeatureFile.open(open_input(trained, manifest, "extract") / FEATURES)
            if model.saved.settings.reads_phrases:
                graphs = open_input(trained, manifest, "parse")
        embeddings = []
        owners = []
        names = [split] if split else dataset.splits
        for name in names:
            part = dataset.split(name)
            usable = part.image_ids
            if model.embeds:
                embeddings.append(read_embeddings(trained / EMBEDDINGS, name))
                usable = embeddings[-1].image_ids
            elif features is not None:
                usable = features.image_id
            if name == "train":
                part = part.without(np.setdiff1d(part.image_ids, usable).tolist())
            owners.append(part.caption_image + len(gallery.image_ids))
            gallery.image_ids += part.image_ids.tolist()
            gallery.files += part.files
            gallery.splits += [name] * len(part.files)
            gallery.caption_ids += part.caption_ids.tolist()
            gallery.texts += part.texts
            if not model.embeds:
                gallery.sentences = DatasetCaptions(part, graphs)
        gallery.owners = np.concatenate(owners)
        if model.embeds:
            gallery.images = np.concatenate([part.images for part in embeddings])
            gallery.sentences = [part.texts for part in embeddings]
        elif features is not None:
            gallery.images = Stored(features, gallery.image_ids)
        else:
            root = image_root(prepared)
            gallery.images = [root / file for file in gallery.files]
        return gallery

    @classmethod
    def of_folder(cls, model: RetrievalModel, folder: Path, index: Path) -> Gallery:
        """Open the photographs of a folder, by an index that the model has made.

        Raises:
            DataError: a file of it is damaged.
        """
        photographs, vectors = read_index(index)
        files = [photograph.file for photograph in photographs]
        return cls(str(folder), model, vectors, files, files, [FOLDER] * len(files))

    @property
    def compares_images(self) -> bool:
        """Tell whether images can be compared with each other."""
        return self.model.measure == INNER_PRODUCT

    @cached_property
    def rows(self) -> dict[str, int]:
        """Map the id of each image to its row."""
        return {image_id: row for row, image_id in enumerate(self.image_ids)}

    def captions_of(self, row: int) -> list[str]:
        """Return the captions of an image."""
        first, last = np.searchsorted(self.owners, [row, row + 1])
        return self.texts[first:last]

    def by_sentence(self, sentence: str, progress: bool = False) -> np.ndarray:
        """Score the images with a sentence, [N].

        Raises:
            UsageError: it has no word that the model knows.
        """
        self.model.unknown_words(sentence)
        scores = self.model.score(cast(Any, self.images), [sentence], _AT_ONCE, progress)
        return scores[:, 0]

    def by_image(self, image: str | Photograph) -> np.ndarray:
        """Score the images with one of them, by its id, or with a photograph, [N].

        Raises:
            UsageError: the model compares no two images, or its features were imported.
            DataError: the photograph cannot be used.
        """
        if not self.compares_images:
            raise UsageError(f"{self.model.label} does not compare image with image; search with a sentence")
        assert isinstance(self.images, np.ndarray)
        if isinstance(image, str) and image in self.rows:
            query = self.images[self.rows[image]][None]
        else:
            query = self.model.encode_images([image])
        return score_matrix(self.images, query, INNER_PRODUCT)[:, 0]

    def images_for(self, sentence: str, top: int, progress: bool = False) -> SearchAnswers:
        """Find the images that fit a sentence best; right are those that have it as a caption, word for word."""
        scores = self.by_sentence(sentence, progress)
        unknown = self.model.unknown_words(sentence)
        rows = [row for row, text in enumerate(self.texts) if text == sentence]
        return self._answers(scores, top, rows, "images", caption=sentence, unknown=unknown)

    def photographs_like(self, photograph: str | Photograph, top: int, name: str) -> SearchAnswers:
        """Find the images that are most like a photograph, which is called so; see `by_image`."""
        scores = self.by_image(photograph)
        return self._answers(scores, top, [], "images", image_id=name, image_split=PHOTOGRAPH)

    def captions_for(
        self,
        image: Stored | Photograph,
        image_id: str,
        split: str,
        top: int,
        progress: bool = False,
    ) -> SearchAnswers:
        """Find the captions that fit an image best; right ones are marked where it is one of the gallery.

        Args:
            image: of the dataset, or a photograph.
            image_id: its id, or the path of the photograph.
            split: of it, or `photograph`.
            top: how many are wanted.
            progress: show it, on standard error.
        """
        rows = []
        row = self.rows.get(image_id)
        if row is not None and self.splits[row] == split:
            rows.append(row)
        texts = self.sentences
        if not isinstance(texts, DatasetCaptions):
            texts = np.concatenate(texts)
        scores = self.model.score(cast(Any, image), cast(Any, texts), _AT_ONCE, progress)[0]
        return self._answers(scores, top, rows, "captions", image_id=image_id, image_split=split)

    def _answers(
        self,
        scores: np.ndarray,
        top: int,
        queries: list[int],
        finds: Literal["images", "captions"],
        **query: Any,
    ) -> SearchAnswers:
        """Return the best of all images [N] or captions [T].

        Args:
            scores: of them.
            top: how many are wanted.
            queries: rows of the captions or images whose matches are right.
            finds: see `SearchAnswers`.
            query: `caption`, `image_id`, `image_split` and `unknown` of `SearchAnswers`, where they are known.
        """
        rows = best(scores, top)
        marks: list[Mark] = [""] * len(rows)
        if self.prepared is not None:
            query_rows = np.array(queries, dtype=np.int64)[:, None]
            captions = query_rows
            images = rows[None]
            if finds == "captions":
                captions = rows[None]
                images = query_rows
            is_own = np.any(self.owners[captions] == images, axis=0)
            is_true = is_own
            truth = known_pairs(self.prepared, np.array(self.image_ids), np.array(self.caption_ids))
            if truth is not None:
                is_true = np.any(truth.has(captions, images), axis=0)
            marks = np.select([is_own, is_true], ["own", "true"], default="").tolist()
        answers = []
        for rank, (row, mark) in enumerate(zip(rows.tolist(), marks, strict=True), 1):
            image = row
            caption_id = None
            if finds == "captions":
                image = int(self.owners[row])
                caption_id = self.caption_ids[row]
                texts = [self.texts[row]]
            else:
                texts = self.captions_of(row)
            score = float(scores[row])
            answers.append(Answer(rank, score, self.image_ids[image], self.files[image], caption_id, texts, mark))
        return SearchAnswers(
            dataset=self.about,
            run=self.model.label,
            split=self.splits[0] if len(set(self.splits)) == 1 else ALL,
            finds=finds,
            searched=len(scores),
            answers=answers,
            **query,
        )
