"""itrpipe: staged, disk-backed training of image-text retrieval models with better negatives.

As a library: `Project` runs the whole chain, `load` opens a trained model, `mine` finds hard negatives among any
embeddings, `judge` tells which of these are right answers, `evaluate` measures embeddings, `compare` tells whether one
model is better than another, `itrpipe.learning` and `itrpipe.methods` hold what trains on negatives, and
`itrpipe.testing` checks methods and backbones.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "Claim": "itrpipe.evaluation.compare",
    "Evaluation": "itrpipe.evaluation.results",
    "Judged": "itrpipe.judging.judge",
    "MinedLists": "itrpipe.mining.lists",
    "Project": "itrpipe.project",
    "RetrievalModel": "itrpipe.search.model",
    "compare": "itrpipe.evaluation.compare",
    "evaluate": "itrpipe.evaluation.results",
    "judge": "itrpipe.judging.judge",
    "load": "itrpipe.search.model",
    "mine": "itrpipe.mining.mine",
}
"""Name -> the module that defines it, imported when the name is first used: the command line needs none of them."""
__all__ = ["__version__", *_PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'itrpipe' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
