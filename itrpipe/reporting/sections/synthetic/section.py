"""Synthetic sentences: how many were kept, how hard they are, and what some look like beside their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from itrpipe.declared import conf_title
from itrpipe.errors import DataError
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import Run
from itrpipe.reporting.examples import Gallery
from itrpipe.reporting.library import Library
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table
from itrpipe.reporting.thumbnails import Picture
from itrpipe.reporting.titles import backbone_title, method_title, model_title
from itrpipe.storage.artifact import STATISTICS
from itrpipe.storage.integrity import read_checked_json
from itrpipe.synthesis.sentences import SentenceFile

TITLE, ORDER = "Synthetic sentences", 130
READS = (STATISTICS,)
STAGE = "synthesize"
_TRAIN = "train"
HARDEST = 4
"""Sentences of a caption."""
_REJECTED = {
    "identical": "same as caption",
    "duplicate": "twice",
    "false negative": "may be true",
    "outranked": "too easy",
}
"""Why a sentence was rejected, as `itrpipe.learning.sentences.REASONS` has it -> heading."""
_KEPT = {"words_changed": "places changed", "beats_caption_percent": "beat their caption"}
_COLUMNS = ("caption_id", "text", "edits", "score", "positive_score", "kept")
_CAPTION = (
    "Of all sentences that were written, in percent: kept, and rejected because they are the caption itself, stand "
    "there twice, may be true of the image (all their new words stand in its captions), or are easier than those kept. "
    "Of the kept ones: how many places of the caption were changed, in the mean, and how many percent score higher "
    f"with the image than their caption does, by the model that wrote them. {DASH}: no model scored them."
)
_TRUE = " Still true: percent that describe their image after all, as far as the scene behind it tells."


@dataclass(frozen=True)
class Change:
    """Replaced words of a caption."""

    old: str
    new: str


@dataclass(frozen=True)
class Written:
    """A sentence: what it shares with its caption and what was changed, and its score with the image."""

    parts: list[str | Change]
    score: float | None


@dataclass(frozen=True)
class SyntheticExample:
    """A caption with the hardest sentences made of it.

    Attributes:
        picture: its image.
        caption: as given.
        score: of the caption with the image; None where no model scored it.
        sentences: hardest first.
    """

    picture: Picture
    caption: str
    score: float | None
    sentences: list[Written]


@dataclass(frozen=True)
class Synthetic:
    """The section.

    Attributes:
        table: of all generators that are there; None when all were removed.
        removed: generators that were.
        shown: name of the one whose examples are shown; empty where no sentences or no captions are there.
        examples: of its captions.
    """

    table: SpannedTable | None
    removed: list[Artifact]
    shown: str
    examples: list[SyntheticExample]


def view(source: Source) -> Synthetic | None:
    """Shows the sentences of all groups."""
    return synthetic_view(source.runs, source.libraries, source.options.examples, source.options.seed)


def synthetic_view(
    runs: Sequence[Run], libraries: Mapping[str, Library | None], count: int, seed: int
) -> Synthetic | None:
    """Shows the sentences that runs learned from or were measured with.

    Args:
        runs: all of them, the shown one first.
        libraries: datasets by the name of their artifact.
        count: captions shown.
        seed: of their choice.

    Returns:
        None when there are no such sentences.

    Raises:
        DataError: sentences are damaged, or not of the captions of their dataset.
    """
    readers = _readers(runs)
    if not readers:
        return None
    there = [artifact for artifact, _ in readers.values() if artifact.manifest is not None]
    removed = [artifact for artifact, _ in readers.values() if artifact.manifest is None]
    rows = [_row(each, read_checked_json(each.folder / STATISTICS), readers[each.path][1]) for each in there]
    for artifact in there:
        gallery = _gallery(artifact, libraries)
        if gallery is not None and (found := _examples(artifact, gallery, count, seed)):
            return Synthetic(_table(rows), removed, generator_name(artifact), found)
    return Synthetic(_table(rows) if rows else None, removed, "", [])


def generator_name(artifact: Artifact) -> str:
    """For people: what its configuration is shown as, who wrote, and an unusual seed or split."""
    manifest = artifact.manifest
    if manifest is None:
        return artifact.name
    settings, details = manifest.settings, [conf_title(STAGE, manifest.conf) or manifest.conf]
    if settings.get("method"):
        details.append(
            f"written by {model_title(backbone_title(settings['backbone']), method_title(settings['method'], ''))}"
        )
    if settings.get("seed"):
        details.append(f"seed {settings['seed']}")
    if _split(artifact) != _TRAIN:
        details.append(f"of the {_split(artifact)} split")
    return ", ".join(details)


def edited(caption: str, sentence: str, edits: Sequence[Mapping[str, Any]]) -> list[str | Change]:
    """What a sentence shares with its caption, and between that its changes.

    Edits number the words of a caption as whoever made them does, so their places are found by both texts: what stands
    between two edits is the same in both.

    Args:
        caption: that the sentence was made of.
        sentence: that came out.
        edits: `position`, `old` and `new`, see `itrpipe.synthesis.sentences.Edit`.

    Raises:
        ValueError: the edits do not make this sentence of this caption.
    """
    changes = [Change(each["old"], each["new"]) for each in sorted(edits, key=lambda each: each["position"])]
    parts = _aligned(caption, sentence, changes)
    if parts is None:
        raise ValueError(f"{sentence!r} is not what its edits make of {caption!r}")
    return [part for part in parts if part]


def _aligned(caption: str, sentence: str, changes: Sequence[Change]) -> list[str | Change] | None:
    """Shared text and changes in turn; None where they do not fit."""
    if not changes:
        return [caption] if caption == sentence else None
    first, *rest = changes
    start = caption.find(first.old)
    while start >= 0 and caption[:start] == sentence[:start]:
        if sentence.startswith(first.new, start):
            after = _aligned(caption[start + len(first.old) :], sentence[start + len(first.new) :], rest)
            if after is not None:
                return [caption[:start], first, *after]
        start = caption.find(first.old, start + 1)
    return None


def _split(artifact: Artifact) -> str:
    """Whose captions the sentences are of; manifests name no training split."""
    assert artifact.manifest is not None
    return artifact.manifest.settings.get("split", _TRAIN)


def _readers(runs: Iterable[Run]) -> dict[str, tuple[Artifact, dict[str, list[str]]]]:
    """Path of every artifact -> itself, and which runs were trained and which measured with it, trained ones first."""
    found: dict[str, tuple[Artifact, dict[str, list[str]]]] = {}
    for run in runs:
        trained = [each for member in run.members for each in member.artifact.chain() if each.stage == STAGE]
        inputs = [name for name, record in run.manifest.inputs.items() if record.stage == STAGE]
        measured = [each for name in inputs if (each := run.evaluation.input(name)) is not None]
        for use, artifacts in (("trained", trained), ("measured", measured)):
            for artifact in artifacts:
                names = found.setdefault(artifact.path, (artifact, {"trained": [], "measured": []}))[1][use]
                if run.name not in names:
                    names.append(run.name)
    return dict(sorted(found.items(), key=lambda item: (not item[1][1]["trained"], item[0])))


def _gallery(artifact: Artifact, libraries: Mapping[str, Library | None]) -> Gallery | None:
    """Captions that sentences were made from; None when the dataset was removed."""
    prepare = artifact.input("prepare")
    library = None if prepare is None else libraries.get(prepare.name)
    return None if library is None else library.gallery(_split(artifact))


def _table(rows: list[Row]) -> SpannedTable:
    has_truth = any(row.cells[-1].text != DASH for row in rows)
    columns = ["number", "kept", *_REJECTED.values(), *_KEPT.values(), "still true"]
    shown = rows if has_truth else [Row(row.name, row.cells[:-1], row.note) for row in rows]
    table = Table("What became of them", columns if has_truth else columns[:-1], shown, _CAPTION + _TRUE * has_truth)
    return SpannedTable(table, [("Written", 2 + len(_REJECTED)), ("Kept", len(_KEPT) + has_truth)])


def _row(artifact: Artifact, statistics: Mapping[str, Any], uses: Mapping[str, Sequence[str]]) -> Row:
    drawn = statistics["drawn"]
    total = sum(drawn.values())
    cells = [Cell("number", f"{total:,}")]
    for reason, heading in {"kept": "kept", **_REJECTED}.items():
        cells.append(Cell(heading, f"{100 * drawn[reason] / total:.1f}" if total else DASH))
    cells += [Cell(heading, _number(statistics[name])) for name, heading in _KEPT.items()]
    true = statistics.get("true_negatives")
    cells.append(Cell("still true", f"{100 - true['percent']:.1f}" if true and true["sentences"] else DASH))
    counted = [
        f"{len(names)} run{'s' if len(names) > 1 else ''} {use} with them" for use, names in uses.items() if names
    ]
    return Row(generator_name(artifact), cells, ", ".join(counted))


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"


def _examples(artifact: Artifact, gallery: Gallery, count: int, seed: int) -> list[SyntheticExample]:
    """Some captions that have sentences, chosen by the seed, with the hardest of these."""
    file = SentenceFile(artifact.folder)
    captions = file.kept(["caption_id"])["caption_id"].unique().to_pylist()
    order = np.random.default_rng([seed, 20]).permutation(len(captions))
    chosen = [captions[place] for place in order[:count]]
    wanted = pc.field("kept") & pc.field("caption_id").isin(chosen)
    rows: dict[str, list[dict[str, Any]]] = {caption: [] for caption in chosen}
    for table in file.row_groups(_COLUMNS):
        for row in table.filter(wanted).to_pylist():
            rows[row["caption_id"]].append(row)
    return [_example(artifact, gallery, caption, found[:HARDEST]) for caption, found in rows.items()]


def _example(
    artifact: Artifact, gallery: Gallery, caption_id: str, rows: Sequence[Mapping[str, Any]]
) -> SyntheticExample:
    caption = gallery.caption_row.get(caption_id)
    if caption is None:
        raise DataError(
            f"{artifact.folder} has sentences of {caption_id}, which its dataset does not have; write them again"
        )
    text = gallery.text(caption)
    try:
        sentences = [Written(edited(text, row["text"], row["edits"]), row["score"]) for row in rows]
    except ValueError as error:
        raise DataError(f"{artifact.folder}: {error}; run `itrpipe synthesize` again") from None
    picture = gallery.picture(int(gallery.split.caption_image[caption]))
    return SyntheticExample(picture, text, rows[0]["positive_score"], sentences)
