"""Search images, captions or photographs."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from itrpipe.cli.index import PhotosOption, SearchOptions, refuse_with_photos
from itrpipe.cli.options import File, JsonOption, Split, Text
from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.definition import image_root
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.declaration import settings_of
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import check_split
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.disk import require_writable, write_text

if TYPE_CHECKING:
    from itrpipe.search.gallery import SearchAnswers
_GENERATOR = b'<meta name="generator" content="itrpipe search">'
"""Tag of a page that a search wrote."""
_HEAD = 1024
"""Bytes at the beginning of a page that hold the tag."""


@dataclass
class Search(SearchOptions):
    """Find images for a sentence, captions for an image, or photographs like another one.

    Models with embeddings search all splits, or that of --split; all others score the query with every image or caption
    of --split, the test split if none is named. An image is named by its id or file; a photograph that is no part of
    the dataset is read by the extractor of the dataset's features. Right answers are marked where the query is an image
    of the dataset, or a caption of it word for word.

    --photos FOLDER searches photographs without captions, of which no dataset is made, by their index, see itrpipe
    index. --model may be left out where one model has indexed the folder.

    Example: itrpipe search "two dogs on a beach" --backbone vsrn
    """

    caption: Annotated[Text, Argument(metavar="[SENTENCE]", help="Sentence to find images for.")] = None
    image: Annotated[
        Text, Option(help="Captions for this image or photograph; of --photos those like it.", metavar="ID|FILE")
    ] = None
    top: Annotated[int, Option(help="How many answers.", metavar="K", min=1)] = 10
    html: Annotated[File, Option(help="Also write a page with the photographs.", metavar="FILE")] = None
    as_json: JsonOption = False
    photos: PhotosOption = None
    split: Annotated[Split | None, Option(help="Search one split alone: test, val or train.")] = None

    def run(self) -> "SearchAnswers | None":
        self._check()
        if self.photos is not None:
            refuse_with_photos({"--split": self.split})
            return self._search_photographs(self.photos)
        self.refuse_opened()
        request = self.request("train", as_json=self.as_json)
        step = request.plan("train", self.method)
        split = self.split
        if split is None and not settings_of(step.settings.model_dump()["backbone"]).embeds:
            split = "test"
        if split is not None:
            check_split(step, split)
        made = request.made("search with")
        if not made:
            return None
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import Stored, load
        from itrpipe.search.photos import PHOTOGRAPH, find_image

        trained = made[0]
        device = request.device
        image = None
        if self.image:
            image = find_image(trained.folder, self.image, device)
        model = load(trained.folder, device=device)
        model.label = step.model or request.label
        shows_progress = not model.embeds
        gallery = Gallery.of_dataset(model, trained.folder, split)
        folder = None
        query_file = None
        if image:
            query_file = image.file
            if image.features is not None:
                query = Stored(image.features, [image.image_id])
            elif image.split == PHOTOGRAPH:
                query = query_file
            else:
                query = image_root(trained.input("prepare").folder) / query_file
            answers = gallery.captions_for(query, image.image_id, image.split, self.top, shows_progress)
        else:
            answers = gallery.images_for(str(self.caption), self.top, shows_progress)
        if self.html is not None:
            try:
                folder = image_root(trained.input("prepare").folder)
            except (MissingInputError, DataError) as error:
                request.reporter.say(f"  the page shows no photographs: {error}", style="yellow")
        self._show(answers, request.reporter, folder, query_file)
        return answers

    def _check(self) -> None:
        """Refuse queries and pages that are not possible, before anything is made.

        Raises:
            UsageError: not one of sentence and image is given, the sentence is empty, or the page is there already.
            UnavailableError: the page cannot be written there.
        """
        if (self.caption is None) == (self.image is None):
            given = "both" if self.image else "neither"
            raise UsageError(f"search takes a sentence or --image, and {given} was given; give one of them")
        if self.html is not None:
            is_own = False
            if os.path.isfile(self.html) and not self.html.is_symlink():
                with self.html.open("rb") as file:
                    is_own = _GENERATOR in file.read(_HEAD)
            if os.path.lexists(self.html) and not is_own:
                raise UsageError(f"--html {self.html} is there already; name another file, or remove it")
            require_writable(self.html, "--html")
        if self.caption is not None:
            from itrpipe.datasets.prepared import given_split

            given_split([self.caption], what="the query")

    def _search_photographs(self, photos: Path) -> "SearchAnswers | None":
        """Bring the index of a folder up to date, search it, and print and return the photographs.

        Raises:
            MissingInputError: the photograph of the query is not there.
        """
        image = None
        query_file = None
        if self.image:
            for image in (Path(self.image).expanduser(), photos / self.image):
                if os.path.isfile(image) or in_archive(image):
                    break
            else:
                raise MissingInputError(
                    f"--image {self.image} is no file, neither here nor below {photos}; name a photograph"
                )
        request = self.indexed(photos, as_json=self.as_json)
        if request is None:
            return None
        gallery = self.gallery(request, photos)
        reporter = request.reporter
        folder = photos.resolve()
        if image is None:
            answers = gallery.images_for(str(self.caption), self.top)
        else:
            query_file = str(image.resolve())
            name = query_file.removeprefix(f"{folder}/")
            query = name if name in gallery.rows else image
            answers = gallery.photographs_like(query, self.top, str(self.image))
        left_out = len(read_manifest(request.step.location.folder).failed)
        if left_out:
            reporter.say(f"  {quantity(left_out, 'photograph')} could not be read; see `itrpipe index`", style="yellow")
        self._show(answers, reporter, folder, query_file)
        return answers

    def _show(self, answers: "SearchAnswers", reporter: Reporter, folder: Path | None, query_file: str | None) -> None:
        """Print the answers, and write the page.

        Args:
            answers: of the search.
            reporter: prints.
            folder: of the photographs; None if it is gone.
            query_file: file of the query image, relative to the folder or not; None for a sentence.
        """
        if self.html is not None:
            page, problems = answers.page(folder, query_file)
            write_text(self.html, page)
            for problem in problems:
                reporter.say(f"  no picture of {problem}")
            reporter.say(f"page: {self.html}")
        if self.as_json:
            Reporter().say_json(asdict(answers))
            return
        if answers.caption is not None:
            query = f"“{answers.caption}”"
        elif answers.image_split:
            query = f"{answers.image_id} ({answers.image_split})"
        else:
            query = answers.image_id
        reporter.say(f"{query}: the first {len(answers.answers)} of {answers.how}", style="bold")
        if answers.unknown:
            unknown = ", ".join(answers.unknown)
            reporter.say(f"  unknown  {unknown}: not among the words that the model knows", style="yellow")
        for line in answers.lines():
            reporter.say(line)
