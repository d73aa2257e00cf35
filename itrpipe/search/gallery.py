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
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, pair_scores, read_embeddings
from itrpipe.features.photographs import Photograph
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.report.pictures import Album, Mark
from itrpipe.search.model import Captions, RetrievalModel, Stored, best
from itrpipe.search.photos import PHOTOGRAPH, read_index
from itrpipe.storage.artifact import open_input, read_manifest

MARKS: dict[Mark, str] = {"": " ", "own": "✓", "true": "≈"}
FOLDER = "folder"
"""In the place of a split, where photographs of a folder were searched, which have no captions."""
ALL = "all"
"""In the place of a split, where all of a dataset were searched."""
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
class Answers:
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
        """Return what was asked for, in words."""
        if self.caption is not None:
            return f"“{self.caption}”"
        return f"Photographs like {self.image_id}" if self.of_folder else f"Captions for {self.image_id}"

    @property
    def how(self) -> str:
        """Return what was ranked by which model, in words."""
        what = "photographs" if self.of_folder else self.finds
        if self.split not in (FOLDER, ALL):
            what = f"{self.split} {what}"
        all_splits = ", training split included (--split test leaves it out)" if self.split == ALL else ""
        return f"{self.searched:,} {what} ranked by {self.run}{all_splits}"

    def lines(self) -> Iterator[str]:
        """The table, a line for each answer."""
        names = [each.caption_id or each.file for each in self.answers]
        width = max(map(len, names), default=0)
        yield f"  {'rank':>4} {'score':>8}    {self.finds.removesuffix('s')}"
        for name, each in zip(names, self.answers, strict=True):
            text = textwrap.shorten(" · ".join(each.texts), _LONGEST_TEXT, placeholder=" …")
            yield f"  {each.rank:>4} {each.score:>8.3f}  {MARKS[each.mark]} {name:<{width}}  {text}".rstrip()
        given = {each.mark for each in self.answers}
        said: dict[Mark, str] = {"own": "belongs to the query", "true": "true as well, though it belongs to another"}
        marks = [f"{MARKS[mark]} {meaning}" for mark, meaning in said.items() if mark in given]
        if marks:
            yield f"  {', '.join(marks)}"

    def page(self, folder: Path | None, own: str | None) -> tuple[str, list[str]]:
        """A page that needs no script, no network and no server, and of which photographs it has no pictures.

        It names photographs, not where they are.

        Args:
            folder: of the photographs; None where it is gone.
            own: file that was searched with, relative to the folder or not.
        """
        from itrpipe.report.page import page_environment

        album = Album(folder, {each.image_id: each.file for each in self.answers})
        pictures = {each.image_id: album.picture(each.image_id) for each in self.answers}
        query, problems = None, album.problems
        if own is not None:
            path = Path(own) if folder is None else folder / own
            asked = Album(path.parent if path.is_absolute() else None, {path.name: path.name})
            query = asked.picture(path.name)
            problems = [*problems, *asked.problems]
        name = None if self.image_id is None else Path(self.image_id).name
        shown = replace(self, dataset=Path(self.dataset).name, image_id=name)
        template = page_environment().get_template("search.html.j2")
        values = {"found": shown, "title": shown.title, "pictures": pictures, "query": query}
        return template.render(**values, shown=_CAPTIONS_SHOWN), problems


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
    sentences: Sequence[np.ndarray] | Captions = ()
    caption_ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    prepared: Path | None = None

    @classmethod
    def of_dataset(cls, model: RetrievalModel, trained: Path, split: str | None = None) -> Gallery:
        """The images and captions of a split as the model was trained to read them, or of all.

        Training images without features are left out.

        Args:
            model: it.
            trained: its artifact.
            split: its name; None for all, which models that score pairs do not search.

        Raises:
            UsageError: the dataset has no such split.
            MissingInputError, DataError: a file is not there or damaged.
        """
        manifest = read_manifest(trained)
        prepared = open_input(trained, manifest, "prepare")
        dataset = PreparedDataset.open(prepared, tokens=not model.embeds)
        gallery = cls(manifest.dataset, model, np.empty(0), [], [], [], prepared=prepared)
        embedded = []
        owners = []
        features = graphs = None
        if not model.embeds:
            if "extract" in manifest.inputs:
                features = FeatureFile.open(open_input(trained, manifest, "extract") / FEATURES)
            if model.saved.settings.reads_phrases:
                graphs = open_input(trained, manifest, "parse")
        for name in [split] if split else dataset.splits:
            each = dataset.split(name)
            known = each.image_ids
            if model.embeds:
                embedded.append(read_embeddings(trained / EMBEDDINGS, name))
                known = embedded[-1].image_ids
            elif features is not None:
                known = features.image_id
            if name == "train":
                each = each.without(np.setdiff1d(each.image_ids, known).tolist())
            owners.append(each.caption_image + len(gallery.image_ids))
            gallery.image_ids += each.image_ids.tolist()
            gallery.files += each.files
            gallery.splits += [name] * len(each.files)
            gallery.caption_ids += each.caption_ids.tolist()
            gallery.texts += each.texts
            if not model.embeds:
                gallery.sentences = Captions(each, graphs)
        if features is not None:
            gallery.images = Stored(features, gallery.image_ids)
        elif not model.embeds:
            root = image_root(prepared)
            gallery.images = [root / file for file in gallery.files]
        else:
            gallery.images = np.concatenate([each.images for each in embedded])
            gallery.sentences = [each.texts for each in embedded]
        gallery.owners = np.concatenate(owners)
        return gallery

    @classmethod
    def of_folder(cls, model: RetrievalModel, folder: Path, index: Path) -> Gallery:
        """The photographs of a folder, by an index that the model has made.

        Raises:
            DataError: a file of it is damaged.
        """
        photographs, vectors = read_index(index)
        files = [each.file for each in photographs]
        return cls(str(folder), model, vectors, files, files, [FOLDER] * len(files))

    @property
    def compares_images(self) -> bool:
        """Tell whether images can be compared with each other."""
        return self.model.measure == INNER_PRODUCT

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id of an image -> its row."""
        return {image_id: row for row, image_id in enumerate(self.image_ids)}

    def captions_of(self, row: int) -> list[str]:
        """The captions of an image."""
        first, last = np.searchsorted(self.owners, [row, row + 1])
        return self.texts[first:last]

    def by_sentence(self, sentence: str, progress: bool = False) -> np.ndarray:
        """Scores [N] of the images with a sentence.

        Raises:
            UsageError: it has no word that the model knows.
        """
        self.model.unknown_words(sentence)
        return self.model.score(cast(Any, self.images), [sentence], _AT_ONCE, progress)[:, 0]

    def by_image(self, image: str | Photograph) -> np.ndarray:
        """Scores [N] of the images with one of them, by its id, or with a photograph.

        Raises:
            UsageError: the model compares no two images, or its features were imported.
            DataError: the photograph cannot be used.
        """
        if not self.compares_images:
            raise UsageError(f"{self.model.label} does not compare image with image; search with a sentence")
        assert isinstance(self.images, np.ndarray)
        row = self.rows.get(image) if isinstance(image, str) else None
        query = self.model.encode_images([image]) if row is None else self.images[row][None]
        return pair_scores(self.images, query, INNER_PRODUCT)[:, 0]

    def images_for(self, sentence: str, top: int, progress: bool = False) -> Answers:
        """Find the images that fit a sentence best; right are those that have it as a caption, word for word."""
        scores, unknown = self.by_sentence(sentence, progress), self.model.unknown_words(sentence)
        asked = [row for row, text in enumerate(self.texts) if text == sentence]
        return self._answers(scores, top, asked, "images", caption=sentence, unknown=unknown)

    def photographs_like(self, photograph: str | Photograph, top: int, name: str) -> Answers:
        """Find the images that are most like a photograph, which is called so; see `by_image`."""
        return self._answers(self.by_image(photograph), top, [], "images", image_id=name, image_split=PHOTOGRAPH)

    def captions_for(
        self, image: Stored | Photograph, image_id: str, split: str, top: int, progress: bool = False
    ) -> Answers:
        """Find the captions that fit an image best; right ones are marked where it is one of the gallery.

        Args:
            image: of the dataset, or a photograph.
            image_id: its id, or the path of the photograph.
            split: of it, or `photograph`.
            top: how many are wanted.
            progress: show it, on standard error.
        """
        row = self.rows.get(image_id)
        asked = [] if row is None or self.splits[row] != split else [row]
        texts = self.sentences if isinstance(self.sentences, Captions) else np.concatenate(self.sentences)
        scores = self.model.score(cast(Any, image), cast(Any, texts), _AT_ONCE, progress)[0]
        return self._answers(scores, top, asked, "captions", image_id=image_id, image_split=split)

    def _answers(
        self,
        scores: np.ndarray,
        top: int,
        asked: list[int],
        finds: Literal["images", "captions"],
        **query: Any,
    ) -> Answers:
        """Return the best of all images [N] or captions [T].

        Args:
            scores: of them.
            top: how many are wanted.
            asked: captions or images whose matches are right.
            finds: see `Answers`.
            query: `caption`, `image_id`, `image_split` and `unknown` of `Answers`, where they are known.
        """
        rows = best(scores, top)
        captions, images = np.array(asked, dtype=np.int64)[:, None], rows[None]
        if finds == "captions":
            captions, images = images, captions
        answers = []
        for rank, (row, mark) in enumerate(zip(rows.tolist(), self._marks(captions, images), strict=True), 1):
            if finds == "images":
                image, caption_id, texts = row, None, self.captions_of(row)
            else:
                image, caption_id, texts = int(self.owners[row]), self.caption_ids[row], [self.texts[row]]
            of_image = self.image_ids[image], self.files[image]
            answers.append(Answer(rank, float(scores[row]), *of_image, caption_id, texts, mark))
        return Answers(
            dataset=self.about,
            run=self.model.label,
            split=self.splits[0] if len(set(self.splits)) == 1 else ALL,
            finds=finds,
            searched=len(scores),
            answers=answers,
            **query,
        )

    def _marks(self, captions: np.ndarray, images: np.ndarray) -> list[Mark]:
        """Return how candidates are right for any query; both are rows that broadcast to [queries, candidates]."""
        if self.prepared is None:
            return [""] * images.size
        own = np.any(self.owners[captions] == images, axis=0)
        truth = known_pairs(self.prepared, np.array(self.image_ids), np.array(self.caption_ids))
        true = own if truth is None else np.any(truth.has(captions, images), axis=0)
        return np.select([own, true], ["own", "true"], default="").tolist()
