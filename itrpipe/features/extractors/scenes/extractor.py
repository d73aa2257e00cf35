"""Extractor of the embedded dataset: twelve regions per drawing, with boxes, kinds and scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.base import Images, channels_first
from itrpipe.features.extractors.scenes.declaration import Scenes
from itrpipe.features.extractors.scenes.detector import GLOBAL_DIM, REGION_DIM, REGIONS, ScenesDetector
from itrpipe.features.store import FeatureSpec
from itrpipe.features.weights import SCENES_DETECTOR
from itrpipe.scenes.layout import HEIGHT, WIDTH


class ScenesExtractor:
    """Turns drawings into rows of a feature file.

    Attributes:
        spec: which datasets it fills: regions [N, 12, 256], boxes, labels, scores and global [N, 96].
        transform, notes, batch: see `Extractor`.
        device: where it computes.
    """

    spec = FeatureSpec(REGIONS, REGION_DIM, GLOBAL_DIM, boxes=True, labels=True, scores=True)
    notes = ()
    batch = 64

    def __init__(self, model: ScenesDetector, device: torch.device) -> None:
        self.device = device
        self.transform = channels_first
        self._model = model.eval().to(device)

    def group(self, height: int, width: int) -> tuple[int, int]:
        """The size itself; all drawings have one."""
        return height, width

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detects regions; region 0 is the whole image, then one per thing by falling score, then more.

        Args:
            images: [B, 3, 144, 192] uint8.
            sizes: [B, 2], not looked at.

        Returns:
            Rows of the file: regions [B, 12, 256] float16, count [B] (always 12), boxes [B, 12, 4]
            float32 in 0..1, labels [B, 12] (index in `KINDS`, -1 for the whole image), scores [B, 12] in 0..1 and
            global [B, 96] float16.

        Raises:
            DataError: the images have another size or type.
        """
        if not isinstance(images, torch.Tensor) or images.shape[1:] != (3, HEIGHT, WIDTH):
            shapes = sorted({tuple(image.shape) for image in images})
            raise DataError(
                f"images of shape {shapes[0]} are no drawings of scenes, which are {(3, HEIGHT, WIDTH)}; "
                "name a dataset of photographs, or another extractor."
            )
        found = self._model(images.to(self.device))
        return {
            "regions": found.regions.half().cpu().numpy(),
            "count": np.full(len(images), REGIONS, dtype=np.int16),
            "boxes": found.boxes.float().cpu().numpy(),
            "labels": found.labels.to(torch.int16).cpu().numpy(),
            "scores": found.scores.float().cpu().numpy(),
            "global": found.global_.half().cpu().numpy(),
        }


def build(settings: Scenes, device: torch.device) -> ScenesExtractor:
    """Returns the extractor with the weights that come with the package.

    Raises:
        MissingInputError: the weights are not there.
        DataError: the weights are truncated or of another network.
    """
    return ScenesExtractor(load_detector(SCENES_DETECTOR), device)


def load_detector(path: Path) -> ScenesDetector:
    """Returns the detector with the weights in `path`, in float32 and on the CPU.

    Raises:
        MissingInputError: there is no such file.
        DataError: the file is truncated or of another network.
    """
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist; install itrpipe again, its weights come with it.")
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DataError(f"{path} is not a whole safetensors file ({error}); install itrpipe again.") from error
    model = ScenesDetector()
    # Counters of batches serve training only and are not in the file.
    expected = {name: value for name, value in model.state_dict().items() if "num_batches_tracked" not in name}
    for name in sorted(expected.keys() | state.keys()):
        if name not in expected or name not in state or expected[name].shape != state[name].shape:
            raise DataError(f"{path} does not fit this detector at '{name}'; install itrpipe again.")
    model.load_state_dict(state, strict=False)
    return model
