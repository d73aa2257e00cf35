"""Settings of how candidates are searched and which of them are kept. Light: plans bind them without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.config import Settings


class WindowSettings(Settings):
    """Limits of the candidates that are kept, in the words of sentence-transformers; see `itrpipe/mining/filters.py`.

    Attributes:
        range_min: hardest candidates that are skipped, as they are often unlabelled positives.
        range_max: rank, counted from the hardest, at which the candidates end.
        min_score: candidates below are too easy.
        max_score: candidates above are taken for unlabelled positives.
        absolute_margin: a candidate scores at most the positive's score less this.
        relative_margin: a candidate scores at most the positive's score less this share of its size: for positive
            scores p that is p * (1 - relative_margin).
    """

    range_min: int = Field(default=0, ge=0)
    range_max: int | None = Field(default=None, ge=1)
    min_score: float | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None

    @field_validator("range_max", "max_score")
    @classmethod
    def _leaves_something(
        cls,
        value: float | None,
        info: ValidationInfo,
    ) -> float | None:
        name = str(info.field_name).replace("max", "min")
        least = info.data.get(name)
        if value is None or least is None:
            return value
        if value < least or (name == "range_min" and value == least):
            raise ValueError(f"it leaves nothing above {name} = {least}; raise it")
        return value


class MiningSettings(Settings):
    """Settings of `mine_split`.

    Attributes:
        num_texts: captions kept for each image.
        num_images: images kept for each caption.
        library: `torch`, or `faiss`; with a flat index they differ in the order of equal scores alone.
        precision: of the products of embeddings by `torch`; `bf16+fp32` gives the lists of `fp32` at nearly the speed
            of `bf16`.
        drop_duplicates: drop candidates whose caption is word for word one of the positive's.
        window: which of the candidates are kept.
        index: of `faiss`: `flat` searches everything, `ivf` the nearest of many clusters of vectors, `ivf-pq` these by
            codes of them, for sets that fit in no memory.
        num_lists: clusters of an index; 0: about 4 sqrt(n) of n vectors.
        num_probes: clusters that are searched; 0: one in four, of codes one in 16.
    """

    num_texts: int = Field(ge=1, le=10_000_000)
    num_images: int = Field(ge=1, le=10_000_000)
    library: Literal["torch", "faiss"]
    precision: Literal["fp32", "bf16", "bf16+fp32"]
    drop_duplicates: bool
    window: WindowSettings = Field(default_factory=WindowSettings)
    index: Literal["flat", "ivf", "ivf-pq"] = "flat"
    num_lists: int = Field(default=0, ge=0)
    num_probes: int = Field(default=0, ge=0)

    @field_validator("index", "num_lists", "num_probes")
    @classmethod
    def _of_an_index(cls, value: str | int, info: ValidationInfo) -> str | int:
        if value in ("flat", 0):
            return value
        if info.data.get("library") == "torch":
            raise ValueError("torch searches everything, without an index; add --library faiss")
        if info.data.get("index") == "flat":
            raise ValueError("a flat index has no clusters; add --set index=ivf")
        return value
