"""Serve local pages."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from typer import Option

from itrpipe.cli.index import PhotosOption, SearchOptions, refuse_with_photos
from itrpipe.cli.options import JudgesOption
from itrpipe.cli.review import TRAIN, PairsOption, open_candidates, say_next
from itrpipe.datasets.definition import image_root
from itrpipe.errors import MissingInputError
from itrpipe.features.declaration import first_model
from itrpipe.storage.artifact import PICTURES

PACKAGES = ("starlette", "uvicorn")


@dataclass
class Serve(SearchOptions):
    """Open local pages to search and to judge the hardest candidates.

    Search finds images for a sentence or a photograph. Review shows candidates that may be false negatives: y fits, n
    does not, s unsure, u undo; every answer is written to decisions.parquet at once, see itrpipe review, and the page
    goes on where its reviewer stopped.

    --photos FOLDER searches photographs without captions, as itrpipe search does. The pages answer on this machine
    only; `ssh -L 8765:127.0.0.1:8765 MACHINE` shows those of another one. This takes `pip install 'itrpipe[serve]'`.

    Example: itrpipe serve --backbone vsepp --judge captions
    """

    judges: JudgesOption = None
    photos: PhotosOption = None
    split: PairsOption = None
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = 8765
    no_browser: Annotated[bool, Option("--no-browser", help="Print the address alone.")] = False

    def run(self) -> None:
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise MissingInputError(f"{', '.join(missing)} is not installed; run `pip install 'itrpipe[serve]'`")
        candidates = None
        if self.photos is not None:
            refuse_with_photos({"--split": self.split, "--judge": self.judges})
            request = self.indexed(self.photos)
            if request is None:
                return
        else:
            self.refuse_opened()
            request = self.request("mine_negatives", judges=self.judges)
            candidates = open_candidates(request, self.split, self.judges)
            if candidates is None:
                return
        request.reporter.say("opening the model and the photographs; the address follows")
        from itrpipe.datasets.decisions import DecisionFile
        from itrpipe.search import serve as pages
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import load

        reviews = None
        if self.photos is not None:
            gallery = self.gallery(request, self.photos)
            small = self.data / request.dataset / PICTURES
            pictures = pages.Pictures.of_folder(request.step.location.folder, self.photos.resolve(), small)
        else:
            assert candidates is not None
            prepared = candidates.prepared
            pictures = pages.Pictures.of_dataset(prepared, image_root(prepared), self.data / self.dataset / PICTURES)
            model = load(candidates.trained, device=self.device or "auto")
            model.label = first_model(request.step.inputs).model or model.label
            split = None
            if not model.embeds:  # it reads every image beside every sentence, and searches one split alone
                split = "test" if self.split in (None, TRAIN) else self.split
            gallery = Gallery.of_dataset(model, candidates.trained, split)
            reviews = pages.Reviews(candidates, DecisionFile.of(*self.where))
        site = pages.Site(pages.Searches(gallery), pictures, reviews)
        pages.run(site, self.port, not self.no_browser, request.reporter.say)
        if reviews:
            say_next(request, reviews.file.path)
