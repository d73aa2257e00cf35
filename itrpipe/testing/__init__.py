"""Checks that every backbone and every method has to pass, ours and those of others, as one call each.

    from itrpipe.testing import check_backbone, check_method

    check_backbone(lambda: MyModel(image_dim=IMAGE_DIM, vocabulary_size=VOCABULARY))
    check_method(MyMethod, lambda: MyModel(image_dim=IMAGE_DIM, vocabulary_size=VOCABULARY))

Both raise `AssertionError` with one line that says what does not hold. They need no files and take seconds.
"""

from __future__ import annotations

from itrpipe.testing.backbones import BACKBONE_CHECKS, check_backbone
from itrpipe.testing.methods import LOOP_SETTINGS, METHOD_CHECKS, check_method
from itrpipe.testing.toy_pairs import FRAME, GLOBAL_DIM, IMAGE_DIM, VOCABULARY, ToyPairs

__all__ = [
    "BACKBONE_CHECKS",
    "FRAME",
    "GLOBAL_DIM",
    "IMAGE_DIM",
    "LOOP_SETTINGS",
    "METHOD_CHECKS",
    "VOCABULARY",
    "ToyPairs",
    "check_backbone",
    "check_method",
]
