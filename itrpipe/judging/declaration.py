"""The names of judges, as users write them. Plans read this file; it imports nothing that judges."""

from collections.abc import Iterable
from typing import NamedTuple

from itrpipe.config import Outside
from itrpipe.storage.artifact import LOCAL_MODEL

DEFAULT = "captions:sentence-transformers/all-MiniLM-L6-v2"
TFIDF = "tfidf"
"""Model of `captions` that needs no weights."""
KINDS = ("captions", "dual", "itm", "vlm", "fne", "graphs")
_DEFAULT_MODELS = {
    "captions": DEFAULT.partition(":")[2],
    "fne": "1e-4",
    "graphs": "",
}


class JudgeName(NamedTuple):
    """A judge, by its kind and its model.

    Attributes:
        kind: one of `KINDS`.
        model: hub id or folder; `tfidf` of `captions`; share of matches among all pairs of `fne`; empty for `graphs`.
    """

    kind: str
    model: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}".removesuffix(":")

    @property
    def pretrained(self) -> str:
        """Return the hub id or folder of its weights; empty where it has none."""
        if self.kind in ("graphs", "fne") or self.model == TFIDF:
            return ""
        return self.model

    @property
    def looks(self) -> bool:
        """Return whether it looks at the photograph of every pair, which takes long."""
        return self.kind in ("itm", "vlm")


def judge_name(text: str) -> JudgeName:
    """Read the name of a judge: `captions`, `captions:ID`, `captions:tfidf`, `graphs`, `dual:ID`, `itm:ID`, `vlm:ID`,
    `fne` or `fne:PRIOR`, where ID may be a folder.

    Raises:
        ValueError: there is no such kind, its model is missing, or it has none.
    """
    kind, _, model = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"judge {text!r} is none of {', '.join(KINDS)}; write captions:ID, or another with its model")
    if kind == "graphs" and model:
        raise ValueError(f"judge {text!r} takes no model; write {kind}")
    if not model and kind not in _DEFAULT_MODELS:
        raise ValueError(f"judge {text!r} names no model; write {kind}:ID with a hub id or a folder")

    model = model or _DEFAULT_MODELS[kind]
    if kind == "fne":
        try:
            is_share = 0 < float(model) < 1
        except ValueError:
            is_share = False
        if not is_share:
            raise ValueError(f"judge {text!r}: {model!r} is no share between 0 and 1; write fne or fne:1e-4")
    return JudgeName(kind, model)


def judge_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return names of judges in full, each once, in the order of the alphabet; errors are those of `judge_name`."""
    names = {str(judge_name(text)) for text in texts}
    return tuple(sorted(names))


def _judge_seen(text: str) -> str:
    """Return the name of a judge as a fingerprint sees it: a folder by its content, not by its path."""
    judge = judge_name(text)
    if judge.pretrained:
        judge = judge._replace(model=LOCAL_MODEL.seen(judge.pretrained))
    return str(judge)


LOCAL_JUDGE = Outside(
    lambda name, value, cache: LOCAL_MODEL.digests(name, judge_name(value).pretrained, cache),
    _judge_seen,
)
"""Marks a setting that names a judge, whose model may be a folder."""
LOCAL_JUDGES = Outside(
    lambda name, value, cache: {},
    lambda value: [_judge_seen(text) for text in value],
)
"""Marks a setting that names judges, whose judgements are inputs."""
