"""Choose the pairs of image and caption that people judge, for the commands that show them."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from itrpipe.cli.asked import Asked
from itrpipe.cli.options import Split

if TYPE_CHECKING:
    from itrpipe.review import Candidates
TRAIN = "train"


PairsOption = Annotated[Split | None, Option(help="train: pairs of mined lists; test or val: of an evaluation.")]


def open_candidates(asked: Asked, split: str | None) -> "Candidates | None":
    """Open the pairs that may be judged; None after a dry run."""
    from itrpipe.review import mined_candidates, ranked_candidates

    mined = split in (None, TRAIN)
    step = asked.plan("mine_negatives") if mined else asked.plan("evaluate", split=str(split))
    if not asked.made("review"):
        return None
    return (mined_candidates if mined else ranked_candidates)(step.location.folder)
