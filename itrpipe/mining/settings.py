"""Limits of mined lists as settings. Light: plans bind them without torch."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.config import Settings


class WindowSettings(Settings):
    """Which of the candidates are kept, in the words of sentence-transformers; see `itrpipe/mining/filters.py`.

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
    def _leaves_something(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = str(info.field_name).replace("max", "min")
        least = info.data.get(name)
        if value is not None and least is not None and (value < least or (name == "range_min" and value == least)):
            raise ValueError(f"it leaves nothing above {name} = {least}; raise it")
        return value
