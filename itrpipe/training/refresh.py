"""Mines the training set again while a model trains, with its weights as they are.

Source: Xiong et al. (ANCE), "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
ICLR 2021, section 4; there another process mines meanwhile, here training waits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from itrpipe.errors import DataError
from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingWriter
from itrpipe.models.base import DualEncoder
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import check_stamp, unavailable
from itrpipe.storage.parts import ArrayFile, write_arrays
from itrpipe.training.data import SplitData
from itrpipe.training.encode import encode_images, encode_texts
from itrpipe.training.world import World

Lists = Mapping[str, np.ndarray]


class Refreshing:
    """Gives the lists of each epoch, which are mined anew before every k-th one.

    Args:
        every: k, at least 1.
        folder: for what only this training needs.
        mine: makes lists in a folder that holds `embeddings.h5` of the training split.
    """

    def __init__(self, every: int, folder: Path, mine: Callable[[Path], Lists]) -> None:
        self._every, self._folder, self._mine = every, folder, mine
        self._held = 0

    def lists(
        self, epoch: int, step: int, model: DualEncoder, data: SplitData, device: torch.device, block: int
    ) -> Lists | None:
        """Lists of an epoch; None where they are those of the one before.

        Args:
            epoch: 0-based.
            step: of the epoch that comes next; the weights are those of the beginning of the epoch where it is 0.
            model: in evaluation mode, on `device`.
            data: the training split.
            device: where to compute.
            block: rows per forward pass.

        Raises:
            DataError: training goes on inside an epoch, and the file of its lists is damaged or gone.
        """
        made_before = epoch - epoch % self._every
        if made_before == self._held:
            return None
        path, world = self._folder / f"epoch-{made_before}.arrays", World.joined()
        if (made_before, 0) == (epoch, step):
            sides = encode_images(model, data, device, block), encode_texts(model, data, device, block)
            images, texts = (np.concatenate(list(each)) for each in sides)
            if world.leads:
                self._make(path, data, images, texts, model.measure)
            world.wait()
        self._held = made_before
        return _read(path)

    def _make(self, path: Path, data: SplitData, images: np.ndarray, texts: np.ndarray, measure: str) -> None:
        """Writes the lists of an epoch, and removes those of earlier ones."""
        shutil.rmtree(self._folder, ignore_errors=True)
        place, split = self._folder / "mining", data.split
        place.mkdir(parents=True)
        about = (split.image_ids, split.caption_ids, split.caption_image, images.shape[1], measure)
        with EmbeddingWriter(place / EMBEDDINGS, split.name, *about) as writer:
            writer.write("images", 0, images)
            writer.write("texts", 0, texts)
        write_arrays(path, self._mine(place))
        shutil.rmtree(place)


def _read(path: Path) -> Lists:
    remedy = f"remove {partial_of(path)} and run the same command again"
    try:
        check_stamp(path, remedy)
        return {name: rows.read() for name, rows in ArrayFile(path).items()}
    except OSError as error:
        raise unavailable(error, path) or DataError(f"{path} cannot be read ({error}); {remedy}") from None
