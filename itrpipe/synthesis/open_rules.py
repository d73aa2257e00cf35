"""Opens rules on a split, as a maker of sentences; apart from models, which take seconds to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Token
from itrpipe.scene_graph.stored import SceneGraphFile
from itrpipe.synthesis.by_rules import RuleCaptions, RuleMaker
from itrpipe.synthesis.opened import Opened
from itrpipe.synthesis.rules import NounVocabulary, TaggedCaption

TRAIN = "train"


def open_rule_maker(
    prepared: Path,
    parsed: Path,
    min_count: int,
    rules: Sequence[str],
    keep: int,
    seed: int,
    split: str = TRAIN,
    train_share: float = 1.0,
) -> Opened:
    """Rules on a whole split, with the words and parts of speech of its scene graphs.

    Args:
        prepared: artifact of the captions.
        parsed: of their scene graphs, made by `itrpipe parse`.
        min_count: fewest occurrences of a noun that is written, in captions of the training split in any case.
        rules, keep, seed: see `RuleMaker`.
        split: whose captions sentences are made of.
        train_share: share of the training images that there are.

    Raises:
        UsageError: no noun is frequent enough, or the dataset has no such split.
        MissingInputError: a file is not there.
        DataError: a file is damaged, or captions have no scene graph.
    """
    dataset = PreparedDataset.open(prepared)
    splits = {name: dataset.split(name).share(train_share if name == TRAIN else 1.0) for name in {TRAIN, split}}
    tagged = {name: _tagged_split(parsed, each) for name, each in splits.items()}
    nouns, own = NounVocabulary(tagged[TRAIN], min_count), splits[split]
    caption_ids = own.caption_ids.tolist()
    captions = RuleCaptions(caption_ids, own.image_ids.tolist(), own.caption_image, tagged[split])
    maker = RuleMaker(captions, nouns, rules, keep, seed)
    return Opened(maker, dict(zip(caption_ids, own.texts, strict=True)), None)


def _tagged_split(parsed: Path, split: Split) -> list[TaggedCaption]:
    return tagged_captions(parsed, split.caption_ids.tolist(), split.texts)


def tagged_captions(parsed: Path, caption_ids: Sequence[str], texts: Sequence[str]) -> list[TaggedCaption]:
    """Captions with the words of their scene graphs.

    Args:
        parsed: artifact of `itrpipe parse`.
        caption_ids: T of them.
        texts: of each.

    Raises:
        MissingInputError: there is no such artifact.
        DataError: it is damaged, or one of the captions has no scene graph.
    """
    wanted, found = set(caption_ids), {}
    for table in SceneGraphFile(parsed).row_groups(("caption_id", "tokens")):
        for row in table.to_pylist():
            if row["caption_id"] in wanted:
                found[row["caption_id"]] = tuple(Token(**each) for each in row["tokens"])
    if missing := [name for name in caption_ids if name not in found]:
        raise DataError(
            f"{parsed}: {len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: "
            f"{missing[0]!r}); run `itrpipe parse` for this dataset"
        )
    return [TaggedCaption(text, found[name]) for name, text in zip(caption_ids, texts, strict=True)]
