"""Mine hard negatives."""

from __future__ import annotations

from dataclasses import dataclass

from itrpipe.cli.asked import run_stage
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    DecisionsOption,
    File,
    GivenOptions,
    GuardOption,
    PartOption,
    Text,
)


@dataclass
class MineOptions(GivenOptions):
    """What mines negatives."""

    library: Text = option(None, "--library", "Search library: torch or faiss.")
    drop_duplicates: bool = option(False, "--drop-duplicates", "Drop captions that repeat one of the positive's.")
    rescore_with: Text = option(None, "--rescore-with", "Second model that orders what was found, such as bfan.")
    candidates: File = option(None, "--candidates", "Further images or captions to find.", metavar="FILE")
    guard: GuardOption = None
    decisions: DecisionsOption = None
    part: PartOption = None


@command()
def mine_negatives(given: MineOptions) -> None:
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --library faiss --set index=ivf num_lists= num_probes=.

    --candidates FILE mines against more than the training set: images or captions that belong to nobody, embedded by
    the same model, as `itrpipe export --embeddings parquet` writes them. Training cannot read such lists.

    --decisions FILE drops candidates that reviewers judged to fit; with --guard, those that they judged not to fit are
    no false negatives. Training reads such lists with --set mine_negatives.decisions=FILE.

    --embeddings mines with vectors that any model has made of the training split: .npy, Parquet or HDF5. Their ids are
    those of --dataset; where none is named, these files and --owners are all that is needed.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """
    definition = given.defined("train")
    run_stage(*given.where, "mine_negatives", given.overrides(), definition=definition, **given.how)
