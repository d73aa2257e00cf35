"""The settings of searches for hard negatives: for the judges of their candidates, and for mining.

Nothing heavy is imported here, because plans are made without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from itrpipe.config import Outside, unknown
from itrpipe.engine.run import Device, SharedExecution
from itrpipe.errors import MissingInputError
from itrpipe.features.declaration import is_given
from itrpipe.judging.declaration import LOCAL_JUDGE, LOCAL_JUDGES, judge_names
from itrpipe.mining.settings import MiningSettings
from itrpipe.models.declaration import backbone_names, canonical_backbone

JUDGE_INPUT = "judge_{}"
"""Name of the input of mined lists that holds the judgements of the judge of this number, from 1."""


def _digest_of_candidates(name: str, value: str, cache: Any) -> dict[str, str]:
    path = Path(value).expanduser()
    if not (path.is_file() or path.is_dir()):
        raise MissingInputError(f"--candidates {path} is no file and no folder; name one of Parquet files")
    root = path.parent
    files = [path]
    if path.is_dir():
        root = path
        files = sorted(path.glob("*.parquet"))
    return {name: cache.combined(files, root, "hashing candidates")}


def _digest_of_decisions(name: str, value: str, cache: Any) -> dict[str, str]:
    """Return the digest of people's judgements on training pairs."""
    from itrpipe.datasets.decisions import decisions_digest

    return {name: decisions_digest(value, training=True)}


class SearchSettings(MiningSettings):
    """Settings of a search for negatives: the model, and how many candidates are kept.

    Attributes:
        method: configuration of `train` of the mining model, that of a first training.
        backbone, seed, features, train_share: of the mining model; the lists are of the training images that it saw.
        rescore_with: backbone of a second model of the same method, seed and features, which orders the candidates
            anew; from then on all scores are its own. Empty: none.
        rescore_texts, rescore_images: candidates of each list that it scores; the lists are cut to these. 0: all.
        candidates: file with embeddings by the same model of further images or captions, which belong to nobody and are
            candidates as well, see `itrpipe.features.given`; empty: none.
    """

    method: str
    backbone: str
    features: str
    seed: int = Field(ge=0)
    train_share: float = Field(default=1.0, gt=0, le=1)
    rescore_with: str = ""
    rescore_texts: int = Field(default=0, ge=0)
    rescore_images: int = Field(default=0, ge=0)
    candidates: Annotated[str, Outside(_digest_of_candidates)] = ""

    @field_validator("candidates")
    @classmethod
    def _fits_a_second_model(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("rescore_with"):
            raise ValueError("the second model has no features of further candidates; leave one of both out")
        return value

    @field_validator("backbone", "rescore_with")
    @classmethod
    def _known_backbone(cls, value: str, info: ValidationInfo) -> str:
        name = canonical_backbone(value)
        if info.field_name == "backbone" and is_given(name):
            return name
        if info.field_name == "rescore_with" and not name:
            return name
        if name not in backbone_names():
            raise ValueError(unknown("backbone", name, sorted(backbone_names())))
        if name == info.data.get("backbone"):
            raise ValueError("this model mines already, and its order would stay as it is; name another backbone")
        return name

    @field_validator("rescore_texts", "rescore_images")
    @classmethod
    def _within_the_lists(cls, value: int, info: ValidationInfo) -> int:
        length = str(info.field_name).replace("rescore", "num")
        if value and not info.data.get("rescore_with"):
            raise ValueError("there is no second model; add --rescore-with BACKBONE")
        if value > info.data.get(length, value):
            raise ValueError(f"the lists hold {length} = {info.data[length]}; give that at most, or 0 for all")
        return value


class JudgeSettings(SearchSettings):
    """Settings of the judgement of mined candidates: those of their search, and the judge.

    Attributes:
        judge: its name, see `itrpipe.judging.declaration.judge_name`.
        revision: branch, tag or commit of its hub id.
    """

    judge: Annotated[str, LOCAL_JUDGE]
    revision: str = "main"


class MineSettings(SearchSettings):
    """Settings of mining: those of the search, and the judges and decisions that count.

    Attributes:
        judges: names of those that say how likely each candidate is right after all.
        decisions: file of people's judgements, see `itrpipe.review`: candidates that fit are left out, and
            those that do not are no false negatives for certain; empty: none.
    """

    judges: Annotated[tuple[str, ...], AfterValidator(judge_names), LOCAL_JUDGES] = ()
    decisions: Annotated[str, Outside(_digest_of_decisions)] = ""

    @field_validator("judges", "decisions")
    @classmethod
    def _has_pairs_to_judge(cls, value: tuple[str, ...] | str, info: ValidationInfo) -> tuple[str, ...] | str:
        if value and info.data.get("candidates"):
            raise ValueError("further candidates have neither captions nor photographs to judge; leave one of both out")
        return value


class MineExecution(SharedExecution):
    """Settings of mining that do not change the result.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: images per part at most; 0 chooses it by their number. For `faiss` images or captions; 0 takes 4,096.
        memory_mib: MiB that all tiles of products take, and a batch of pairs of a second model; 0: of products 128 for
            each core, or half of what a GPU has free, and of pairs 256.
    """

    device: Device
    block: int = Field(ge=0)
    memory_mib: int = Field(ge=0)
