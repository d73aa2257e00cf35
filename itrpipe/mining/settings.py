"""What determines mined negatives. Light: plans bind it without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.config import Outside, Settings, unknown
from itrpipe.errors import MissingInputError
from itrpipe.features.declaration import is_given
from itrpipe.training.settings import backbones, canonical_backbone

_NOT_RESCORED = {
    "candidates": "the second model has no features of further candidates",
    "guard": "it reads similarities of embeddings and rescore_with replaces them",
}


def candidate_files(path: Path) -> list[Path]:
    """The files that `--candidates` names: itself, or the Parquet files of a folder, by name."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def _digest_of_candidates(name: str, value: str, cache: Any) -> dict[str, str]:
    path = Path(value).expanduser()
    if not (path.is_file() or path.is_dir()):
        raise MissingInputError(f"--candidates {path} is no file and no folder; name one of Parquet files")
    root = path if path.is_dir() else path.parent
    return {name: cache.combined(candidate_files(path), root, "hashing candidates")}


def decisions_file(*, training: bool) -> Outside:
    """Marks a setting that names a file of people's judgements, of which those on training pairs alone may count."""

    def digests(name: str, value: str, cache: Any) -> dict[str, str]:
        from itrpipe.review import decisions_digest

        return {name: decisions_digest(value, training=training)}

    return Outside(digests)


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


class MineSettings(Settings):
    """Which model mines, and how much.

    Attributes:
        method: configuration of `train` of the mining model, that of a first training.
        backbone, seed, features, train_share: of the mining model; the lists are of the training images that it saw.
        drop_duplicates: drop candidates whose caption is word for word one of the positive's.
        window: which of the candidates are kept.
        num_texts: captions kept for each image.
        num_images: images kept for each caption.
        library: `torch`, or `faiss`; with a flat index they differ in the order of equal scores alone.
        precision: of the products of embeddings by `torch`; `bf16+fp32` gives the lists of `fp32` at nearly the speed
            of `bf16`.
        rescore_with: backbone of a second model of the same method, seed and features, which orders the candidates
            anew; from then on all scores are its own. Empty: none.
        rescore_texts, rescore_images: candidates of each list that it scores; the lists are cut to these. 0: all.
        index: of `faiss`: `flat` searches everything, `ivf` the nearest of many clusters of vectors, `ivf-pq` these by
            codes of them, for sets that fit in no memory.
        num_lists: clusters of an index; 0: about 4 sqrt(n) of n vectors.
        num_probes: clusters that are searched; 0: one in four, of codes one in 16.
        candidates: file with embeddings by the same model of further images or captions, which belong to nobody and are
            candidates as well, see `itrpipe.mining.lists`; empty: none.
        decisions: file of people's judgements, see `itrpipe.review`: candidates that fit are left out, and
            those that do not are no false negatives for certain; empty: none.
        guard: `fne` writes how likely each candidate is a false negative, by the mining model's similarities.
        guard_prior: of `fne`: p, share of matches among all pairs.
        guard_batch_size: of `fne`: pairs whose negatives compete in the statistics of mismatches.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    train_share: float = Field(default=1.0, gt=0, le=1)
    num_texts: int = Field(ge=1, le=10_000_000)
    num_images: int = Field(ge=1, le=10_000_000)
    library: Literal["torch", "faiss"]
    precision: Literal["fp32", "bf16", "bf16+fp32"]
    drop_duplicates: bool
    window: WindowSettings = Field(default_factory=WindowSettings)
    rescore_with: str = ""
    rescore_texts: int = Field(default=0, ge=0)
    rescore_images: int = Field(default=0, ge=0)
    index: Literal["flat", "ivf", "ivf-pq"] = "flat"
    num_lists: int = Field(default=0, ge=0)
    num_probes: int = Field(default=0, ge=0)
    candidates: Annotated[str, Outside(_digest_of_candidates)] = ""
    decisions: Annotated[str, decisions_file(training=True)] = ""
    guard: Literal["none", "fne"] = "none"
    guard_prior: float = Field(default=1e-4, gt=0, lt=1)
    guard_batch_size: int = Field(default=32, ge=2, le=10_000_000)

    @field_validator("candidates", "guard")
    @classmethod
    def _fits_a_second_model(cls, value: str, info: ValidationInfo) -> str:
        if value not in ("", "none") and info.data.get("rescore_with"):
            raise ValueError(f"{_NOT_RESCORED[str(info.field_name)]}; leave one of both out")
        return value

    @field_validator("backbone", "rescore_with")
    @classmethod
    def _known_backbone(cls, value: str, info: ValidationInfo) -> str:
        name = canonical_backbone(value)
        known = is_given(name) if info.field_name == "backbone" else not name
        if not known and name not in backbones():
            raise ValueError(unknown("backbone", name, sorted(backbones())))
        if name == info.data.get("backbone"):
            raise ValueError("this model mines already, and its order would stay as it is; name another backbone")
        return name

    @field_validator("rescore_texts", "rescore_images")
    @classmethod
    def _within_the_lists(cls, value: int, info: ValidationInfo) -> int:
        held = str(info.field_name).replace("rescore", "num")
        if value and not info.data.get("rescore_with"):
            raise ValueError("there is no second model; add --rescore-with BACKBONE")
        if value > info.data.get(held, value):
            raise ValueError(f"the lists hold {held} = {info.data[held]}; give that at most, or 0 for all")
        return value

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
