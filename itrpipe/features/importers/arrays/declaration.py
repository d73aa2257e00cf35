"""Declaration of arrays in files; read without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from itrpipe.features.declaration import FeatureSettings


class Arrays(FeatureSettings):
    """Arrays in .npy, .npz or HDF5 files.

    Attributes:
        map: dataset of `features.h5` -> name of the array in the file, empty to leave the dataset out; what is not
            named is looked for by its own name.
        ids: text file with one image id a line, absolute or beside the arrays; empty where the arrays' file has ids.
        boxes: unit of the boxes: `fractions` of the image, or `pixels`.
    """

    imported = True

    map: dict[str, str] = Field(default_factory=dict)
    ids: str
    boxes: Literal["fractions", "pixels"]

    def further_files(self, source: Path | None) -> Mapping[str, Path]:
        if not self.ids or source is None:
            return {}
        return {"ids": source.parent / self.ids}
