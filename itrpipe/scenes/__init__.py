"""`scenes`: a generated dataset of drawn pictures with captions whose truth about every picture is known.

    dataset = generate(train=2000, val=250, test=500, seed=7)
    describes(dataset.captions[0][0], dataset.scenes[1])   # whether a caption of one picture is true of another

`world` says what exists and makes siblings by edits; `layout` places objects and derives their relations; `paint`
draws, as hard to see as its `Difficulty` says, with `backgrounds` and `drawing`; `sayings` writes sentences with
logical forms; `oracle` evaluates these, and `readback` reads them from sentences, also from those of `hard_negatives`;
`build` does it all. The JSON files list what kinds there are, how they are drawn, and what is said of them.
"""

from itrpipe.scenes.build import generate
from itrpipe.scenes.oracle import describes

__all__ = ["describes", "generate"]
