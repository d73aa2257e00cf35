"""`scenes`: a generated dataset of drawn pictures with captions whose truth about every picture is known.

    dataset = generate(train=2000, val=250, test=500, seed=7)
    annotations(dataset, folder)      # images and captions, like any other dataset
    test = dataset.of_split("test")
    Oracle(test.scenes).matches(test.captions[0][0].form)   # which pictures the first caption describes

`world` says what exists and `edits` makes siblings; `layout` places objects and derives their relations;
`paint` draws, as hard to see as `difficulty` says; `captions` writes sentences with logical forms; `oracle`
evaluates those; `build` does it all.
"""

from itrpipe.scenes.build import (
    Painting,
    ScenesDataset,
    annotations,
    generate,
    karpathy,
    write_images,
)
from itrpipe.scenes.captions import write_captions
from itrpipe.scenes.difficulty import Difficulty
from itrpipe.scenes.edits import edit_scene
from itrpipe.scenes.forms import Caption, LogicalForm, Predicate
from itrpipe.scenes.layout import HEIGHT, RELATIONS, WIDTH, PlacedObject, Scene, arrange
from itrpipe.scenes.oracle import Oracle, describes, true_matches
from itrpipe.scenes.paint import paint
from itrpipe.scenes.world import (
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
