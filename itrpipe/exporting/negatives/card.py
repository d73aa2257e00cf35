"""The README.md of exported negatives: what its tables are, for people and for `datasets.load_dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from itrpipe.exporting.card import template
from itrpipe.exporting.negatives.tables import Table

TEMPLATE = "card.md.j2"


@dataclass(frozen=True)
class Card:
    """What the card tells.

    Attributes:
        dataset: whose captions and images.
        form: the format.
        tables: of the folder.
        miner: the model that mined, such as `triplet.vsrn`.
        writer: what wrote sentences; empty without.
        negatives, sentences: of a row, at most.
        guarded: whether there are probabilities of false negatives.
        repeats: candidates that were left out, because they say what the positive says.
        holds_images: whether the images are in the files.
        image_root: what stands before every path; empty for the folder of the images.
        whole: whether paths are whole ones of the machine that wrote them; then that is the last part alone.
        made_from: fingerprint of the options and artifacts. `datasets` caches what it reads by the name of the folder
            and these settings, not by what the files hold: without it, it gives the rows of an earlier export.
        fingerprints: artifact -> fingerprint.
        version: of itrpipe.
        commands: that made it and what it was made from, in their order, without places.
    """

    dataset: str
    form: str
    tables: list[Table]
    miner: str
    writer: str
    negatives: int
    sentences: int
    guarded: bool
    repeats: int
    holds_images: bool
    image_root: str
    whole: bool
    made_from: str
    fingerprints: Mapping[str, str]
    version: str
    commands: tuple[str, ...]


def render(card: Card) -> str:
    """The whole README.md."""
    return template(Path(__file__).parent / TEMPLATE).render(card=card)
