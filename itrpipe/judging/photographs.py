"""The base of judges that look at photographs: one after the other, each together with its captions.

Shapes: P pairs, n captions, H and W height and width of a photograph.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itrpipe.encoders.encoder import open_network, open_processor, refuse_other_tokens
from itrpipe.engine.run import usable_cores
from itrpipe.engine.work import cut, resolve_device
from itrpipe.errors import DataError
from itrpipe.features.extraction import MOST_DECODERS, Decoders, Item
from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge
from itrpipe.storage.disk import reading


class PhotographJudge(OpenedJudge):
    """A judge that keeps what its network sees of a photograph, and asks about its captions.

    Args:
        network: of transformers.
        processor: of the same folder.
        material: with photographs.

    Attributes:
        batch: captions at a time.
        network, processor: as given.
    """

    batch: ClassVar[int]

    def __init__(self, network: Any, processor: Any, material: Material) -> None:
        self.network = network
        self.processor = processor
        self.material = material
        self._turn: Any = nullcontext()  # held from looking at a photograph until the last answer about it

    @abstractmethod
    def look(self, photograph: Image.Image) -> Any:
        """Return what is kept of a photograph while its captions are asked about."""

    @abstractmethod
    def ask(self, seen: Any, texts: list[str]) -> Tensor:
        """Return the log-odds [n] that captions fit what was seen."""

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return the log-odds [P] float32 of rows [P] and [P]; every photograph is decoded and seen once.

        Raises:
            DataError: a photograph cannot be used.
            UnavailableError: the disk cannot give one now.
        """
        texts = [self.material.captions[row] for row in captions.tolist()]
        lengths = np.array([len(text) for text in texts])
        order = np.lexsort((lengths, images))
        rows, counts = np.unique(images, return_counts=True)
        pairs_of_image = np.split(order, np.cumsum(counts))[:-1]  # behind the last image stands nothing
        batches = [[row] for row in rows.tolist()]
        photographs = read_ahead(self.material, batches, Image.fromarray)
        scores = np.zeros(len(images), np.float32)
        for pairs, ([row], [photograph]) in zip(pairs_of_image, photographs, strict=True):
            with self._turn:
                with reading(f"image {row}", "a photograph for this model", "leave it out"):
                    seen = self.look(photograph)
                for part in cut(pairs, self.batch):
                    batch = [texts[place] for place in part.content]
                    scores[part.content] = self.ask(seen, batch).cpu()
        return scores


def read_ahead(
    material: Material,
    batches: Sequence[Sequence[int]],
    transform: Callable[[np.ndarray], Item],
) -> Iterator[tuple[Sequence[int], list[Item]]]:
    """Yield batches of rows with their transformed photographs, while the next are decoded.

    Args:
        material: with photographs.
        batches: rows of images.
        transform: takes pixels [H, W, 3] uint8 RGB.

    Raises:
        DataError: a photograph cannot be used.
        UnavailableError: the disk cannot give one now.
    """
    photographs: Any = material.photographs  # `open_judge` has seen that there are some

    def decode(row: int) -> Item:
        try:
            return transform(photographs.read(row))
        except DataError as error:
            raise DataError(f"image {row}: {error}; restore the file, or leave the image out") from None

    decoders = Decoders(min(MOST_DECODERS, usable_cores()))
    try:
        for rows, items, _ in decoders.ahead(batches, decode, list):
            yield rows, items
    finally:
        decoders.stop()


def open_reader(folder: Path, kind: str, device: str) -> tuple[Any, Any]:
    """Open a network that reads images and captions together, and its processor.

    Args:
        folder, kind: see `itrpipe.encoders.encoder.open_network`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UsageError, MissingInputError, DataError: see `open_network` and `open_processor` there.
    """
    network = open_network(folder, kind).to(resolve_device(device))
    processor = open_processor(folder)
    refuse_other_tokens(folder, processor.tokenizer, network)
    return network, processor
