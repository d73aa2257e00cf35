"""Mine hard negatives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.embeddings import GivenOptions
from itrpipe.cli.options import DecisionsOption, File, JudgesOption, PartOption, Text


@dataclass
class MineNegatives(GivenOptions):
    """Find the hardest negatives of the whole training set.

    Windows, as in sentence-transformers: --set range_min= range_max= min_score= max_score= absolute_margin=
    relative_margin=. Approximate search: --library faiss --set index=ivf num_lists= num_probes=.

    --candidates FILE mines against more than the training set: images or captions that belong to nobody, embedded by
    the same model, as `itrpipe export --embeddings parquet` writes them. Training cannot read such lists.

    \b
    Judges (--judge), which say of each candidate how likely it is right after all:
      captions:ID      a text encoder compares captions; captions alone: MiniLM; captions:tfidf: no weights
      graphs           scene graphs of captions
      dual:ID          another dual encoder, such as a larger CLIP
      itm:ID, vlm:ID   a matching head, or a vision-language model, that looks at every photograph
      fne              the mining model's own scores

    --decisions FILE drops candidates that reviewers judged to fit, and calibrates judges. Training reads such lists
    with --set mine_negatives.decisions=FILE.

    --embeddings mines with vectors that any model has made of the training split: .npy, Parquet or HDF5. Their ids are
    those of --dataset; where none is named, these files and --owners are all that is needed.

    --model st:ID takes a model of sentence-transformers that embeds images and texts, oc:ID one of open_clip, by hub
    id or folder: it embeds the dataset once, and later commands know it by the last part of its id, or by --name.

    Example: itrpipe mine-negatives --method triplet --backbone vsrn
    """

    library: Annotated[Text, Option(help="Search library: torch or faiss.")] = None
    drop_duplicates: Annotated[
        bool, Option("--drop-duplicates", help="Drop captions that repeat one of the positive's.")
    ] = False
    rescore_with: Annotated[Text, Option(help="Second model that orders what was found, such as bfan.")] = None
    candidates: Annotated[File, Option(help="Further images or captions to find.", metavar="FILE")] = None
    judges: JudgesOption = None
    decisions: DecisionsOption = None
    part: PartOption = None

    def run(self) -> Path:
        definition = self.defined("train")
        overrides = self.overrides(
            *("library", "drop_duplicates", "rescore_with", "candidates", "judges", "decisions", "part")
        )
        return self.run_stage("mine_negatives", overrides, definition=definition)
