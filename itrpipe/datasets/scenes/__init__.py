"""`scenes`: a generated dataset of drawn pictures with captions whose truth about every picture is known.

    dataset = generate(train=2000, val=250, test=500, seed=7)
    annotations(dataset, folder)      # images and captions, like any other dataset
    test = dataset.of_split("test")
    Oracle(test.scenes).matches(test.captions[0][0].form)   # which pictures the first caption describes

`world` says what exists and `edits` makes siblings; `layout` places objects and derives their relations;
`paint` draws, as hard to see as `difficulty` says; `captions` writes sentences with logical forms; `oracle`
evaluates those; `build` does it all.
"""

from itrpipe.datasets.scenes.build import (
    Painting,
    ScenesDataset,
    annotations,
    generate,
    karpathy,
    write_images,
)
from itrpipe.datasets.scenes.captions import write_captions
from itrpipe.datasets.scenes.difficulty import Difficulty
from itrpipe.datasets.scenes.edits import edit_scene
from itrpipe.datasets.scenes.forms import Caption, LogicalForm, Predicate
from itrpipe.datasets.scenes.layout import HEIGHT, RELATIONS, WIDTH, PlacedObject, Scene, arrange
from itrpipe.datasets.scenes.oracle import Oracle, describes, true_matches
from itrpipe.datasets.scenes.paint import paint
from itrpipe.datasets.scenes.world import (
    COLOURS,
    KINDS,
    PATTERNS,
    SETTINGS,
    SIZES,
    SceneObject,
    SymbolicScene,
    Unit,
    sample_scene,
)

__all__ = [
    "COLOURS",
    "HEIGHT",
    "KINDS",
    "PATTERNS",
    "RELATIONS",
    "SETTINGS",
    "SIZES",
    "WIDTH",
    "Caption",
    "Difficulty",
    "LogicalForm",
    "Oracle",
    "Painting",
    "PlacedObject",
    "Predicate",
    "Scene",
    "SceneObject",
    "ScenesDataset",
    "SymbolicScene",
    "Unit",
    "annotations",
    "arrange",
    "describes",
    "edit_scene",
    "generate",
    "karpathy",
    "paint",
    "sample_scene",
    "true_matches",
    "write_captions",
    "write_images",
]
