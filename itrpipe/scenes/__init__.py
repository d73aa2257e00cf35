"""`scenes`: a generated dataset of drawn pictures with captions whose truth about every picture is known.

    dataset = generate(train=2000, val=250, test=500, seed=7)
    annotations(dataset, folder)      # images and captions, like any other dataset
    test = dataset.of_split("test")
    Oracle(test.scenes).matches(test.captions[0][0].form)   # which pictures the first caption describes

`world` says what exists and makes siblings by edits; `layout` places objects and derives their relations; `paint`
draws, as hard to see as its `Difficulty` says, with `backgrounds` and `drawing`; `sayings` writes sentences with
logical forms; `oracle` evaluates these, and `readback` reads them from sentences, also from those of `hard_negatives`;
`build` does it all. The JSON files list what kinds there are, how they are drawn, and what is said of them.
"""

from itrpipe.scenes.build import ScenesDataset, annotations, generate
from itrpipe.scenes.layout import Scene
from itrpipe.scenes.oracle import Caption, LogicalForm, Oracle, Predicate, describes, true_matches
from itrpipe.scenes.paint import Difficulty, paint

__all__ = [
    "Caption",
    "Difficulty",
    "LogicalForm",
    "Oracle",
    "Predicate",
    "Scene",
    "ScenesDataset",
    "annotations",
    "describes",
    "generate",
    "paint",
    "true_matches",
]
