"""The negatives that models learned from: mined lists, estimated false negatives, and written sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow.compute as pc

from itrpipe.declared import conf_title
from itrpipe.errors import DataError
from itrpipe.evaluation.tables import Number, Row, Table
from itrpipe.learning.mined import FILES, read_list
from itrpipe.mining.statistics import beaten_percent
from itrpipe.report.chain import Artifact
from itrpipe.report.names import backbone_title, method_title, model_title
from itrpipe.report.pictures import SHOWN, Example, Examples, Gallery
from itrpipe.report.runs import Run
from itrpipe.report.words import MIDDLE, Coloured, ColouredWords, Line, Parts, Seen
from itrpipe.storage.artifact import HARD_CANDIDATES, STATISTICS
from itrpipe.storage.integrity import read_checked_json
from itrpipe.synthesis.sentences import SentenceFile

TRAIN = "train"
TOPS = (1, 10)
"""Depths of the lists at which correct matches are counted."""
_LISTS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_OTHER = {"texts_for_images": "images_for_texts", "images_for_texts": "texts_for_images"}
LIKELY = 0.5
"""Probability above which a candidate is likelier a match than not."""
_HARDEST = 4
"""Sentences of a caption."""
_SYNTHESIZE = "synthesize"
_REJECTED = {
    "identical": "same as caption",
    "duplicate": "twice",
    "false negative": "may be true",
    "outranked": "too easy",
}
"""Why a sentence was rejected, as `itrpipe.learning.sentences.REASONS` has it -> heading."""


# -- Mined lists


def minings(runs: Iterable[Run]) -> list[tuple[Artifact, Run]]:
    """The mined lists that runs were trained with and that are there, each once with the first of these runs."""
    found: dict[str, tuple[Artifact, Run]] = {}
    for run in runs:
        for member in run.members:
            if member.mining is not None and member.mining.manifest is not None:
                found.setdefault(member.mining.name, (member.mining, run))
    return list(found.values())


def mining_name(mining: Artifact, names: Mapping[str, str]) -> str:
    """For people: the backbone that mined and the one that rescored, and its seed.

    Args:
        mining: the lists.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    assert mining.manifest is not None
    settings, miner = mining.manifest.settings, mining.manifest.inputs.get(TRAIN)
    rescorer, named = settings.get("rescore_with"), names.get(miner.name) if miner is not None else None
    name = backbone_title(settings["backbone"])
    name += f", rescored by {backbone_title(rescorer)}" if rescorer else ""
    name += f" ({named})" if named else ""
    return f"{name}, seed {settings['seed']}" if settings["seed"] else name


def mined_rows(mining: Artifact, name: str, gallery: Gallery | None) -> list[Row]:
    """For each list how often its hardest candidate beats the positive, and is a correct match after all.

    Args:
        mining: the lists.
        name: of the model that mined.
        gallery: of the training split; None when the dataset was removed.
    """
    statistics = read_checked_json(mining.folder / STATISTICS)
    truth = None if gallery is None else gallery.truth
    lists = _read_lists(mining, gallery) if gallery is not None and truth is not None else {}
    rows = []
    for direction, title in _LISTS.items():
        scores, shares = statistics[direction], [None] * len(TOPS)
        if direction in lists:
            shares = _shares(*lists[direction][:2], direction, truth)
        medians = [
            Number.of(each["median"], digits=3) if each else None for each in (statistics["positive_score"], scores)
        ]
        beaten = Number.of(beaten_percent(statistics, direction))
        rows.append(Row(f"{name}: {title}", [*medians, beaten, *map(Number.of, shares)]))
    return rows


def mined_table(rows: Sequence[Row]) -> Table:
    """Of the rows of all minings."""
    return Table(
        "What was mined",
        ["own score", "candidate's score", "hardest beats own, %", "hardest is right, %", f"right of {TOPS[1]}, %"],
        rows,
        "Scores are medians over the training set, by the model that mined. Beats own: pairs whose hardest candidate "
        "scores at least as high; unknown where a margin cut those that do. Right: candidates that match all the "
        "same, false negatives, where the dataset knows that.",
        head="mined by",
    )


def mined_examples(mining: Artifact, name: str, gallery: Gallery, count: int, seed: int) -> list[Examples]:
    """Some anchors of each list with their hardest candidates, chosen by the seed."""
    found = []
    for number, (direction, (anchors, candidates, scores, chances)) in enumerate(_read_lists(mining, gallery).items()):
        places = np.random.default_rng([seed, 10 + number]).permutation(len(anchors))[:count].tolist()
        items = []
        for place in places:
            estimated = [None] * SHOWN if chances is None else chances[place, :SHOWN].tolist()
            listed = zip(candidates[place, :SHOWN].tolist(), scores[place, :SHOWN].tolist(), estimated, strict=False)
            items.append(_example(direction, gallery, int(anchors[place]), [each for each in listed if each[0] >= 0]))
        note = f"Mined by {name} in the training set; own pairs are left out."
        found.append(_examples(direction, f"Hardest {_LISTS[direction]}", note, items))
    return found


def _examples(direction: str, title: str, note: str, items: Sequence[Example]) -> Examples:
    of_images = direction == "texts_for_images"
    return Examples(title, note, items, of_images, own=not of_images)


def _example(
    direction: str, gallery: Gallery, anchor: int, listed: Sequence[tuple[int, float, float | None]]
) -> Example:
    search = "i2t" if direction == "texts_for_images" else "t2i"
    candidates = [
        gallery.candidate(search, anchor, row, score, place, chance)
        for place, (row, score, chance) in enumerate(listed, 1)
    ]
    if search == "i2t":
        return Example(gallery.own_text(anchor), gallery.picture(anchor), candidates)
    return Example(gallery.text(anchor), gallery.picture(int(gallery.split.caption_image[anchor])), candidates)


def _read_lists(mining: Artifact, gallery: Gallery) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, Any]]:
    """List -> anchors [A], candidates [A, K] and scores [A, K], and probabilities [A, K] to be false, or None.

    A list names its candidates by rows of what the mining model was trained on, which is the split without the
    images that have no features, so rows are translated by ids to those of the gallery.

    Raises:
        DataError: damaged, or of images or captions that the split does not have.
    """
    lists = {direction: read_list(mining.folder, direction) for direction in FILES}
    known = {"texts_for_images": gallery.image_row, "images_for_texts": gallery.caption_row}
    rows = {
        direction: _rows(mined.anchor_ids, known[direction], f"{mining.folder}: {direction}", gallery.split.name)
        for direction, mined in lists.items()
    }
    return {
        direction: (
            rows[direction],
            # Taken as a row number, -1 would be the last candidate.
            np.where(mined.candidates >= 0, rows[_OTHER[direction]][mined.candidates], -1),
            mined.scores,
            mined.false_negative_probability,
        )
        for direction, mined in lists.items()
    }


def _rows(ids: np.ndarray, known: Mapping[str, int], where: str, split: str) -> np.ndarray:
    unknown = [each for each in ids.tolist() if each not in known]
    if unknown:
        raise DataError(
            f"{where} holds {len(unknown):,} anchors that the {split} split does not have ({unknown[0]}); mine again"
        )
    return np.array([known[each] for each in ids.tolist()], dtype=np.int64)


def _shares(anchors: np.ndarray, candidates: np.ndarray, direction: str, truth: Any) -> list[float]:
    """Percent of the hardest 1 and the hardest 10 candidates that are correct matches of their anchors.

    Places behind the end of a list that a filter made shorter hold no candidate and do not count.
    """
    first = candidates[:, : max(TOPS)]
    real, sides = first >= 0, (first.clip(min=0), anchors[:, None])
    captions, images = sides if direction == "texts_for_images" else sides[::-1]
    matches = truth.has(captions, images) & real
    return [100.0 * float(matches[:, :top].sum() / max(1, real[:, :top].sum())) for top in TOPS]


# -- Estimated false negatives


def estimated_examples(run: Run, gallery: Gallery, count: int, seed: int) -> list[Examples]:
    """Anchors with their hardest candidates and how probably these are false negatives, by a run that estimated it.

    Half of the anchors have a likely one among what is shown, half have not, where there are enough.

    Source: FNE (Li et al., ACM MM 2023), Fig. 6.
    """
    listed = groupby(run.rows(HARD_CANDIDATES), key=lambda row: (row["direction"], row["anchor_id"]))
    anchors = [(direction, list(rows)[:SHOWN]) for (direction, _), rows in listed]
    found = []
    for number, direction in enumerate(_LISTS):
        own = [rows for name, rows in anchors if name == direction]
        order = np.random.default_rng([seed, 20 + number]).permutation(len(own)).tolist()
        likely = [place for place in order if max(row["probability"] for row in own[place]) > LIKELY]
        others = [place for place in order if place not in set(likely)]
        chosen = likely[: max((count + 1) // 2, count - len(others))]
        chosen += others[: count - len(chosen)]
        items = [_estimated(run, direction, own[place], gallery) for place in chosen]
        note = f"Estimated by {run.name}: how probably each candidate is right after all."
        found.append(_examples(direction, f"False negatives, {_LISTS[direction]}", note, items))
    return [each for each in found if each.items]


def _estimated(run: Run, direction: str, rows: Sequence[dict[str, Any]], gallery: Gallery) -> Example:
    sides = (gallery.image_row, gallery.caption_row)
    own, other = sides if direction == "texts_for_images" else sides[::-1]
    try:
        listed = [(other[row["candidate_id"]], row["similarity"], row["probability"]) for row in rows]
        return _example(direction, gallery, own[rows[0]["anchor_id"]], listed)
    except KeyError as missing:
        where = run.evaluation.folder / HARD_CANDIDATES
        raise DataError(f"{where} names {missing}, which the training split does not have; evaluate again") from None


# -- Written sentences


def written(runs: Iterable[Run]) -> list[Artifact]:
    """The sentences that runs were trained or measured with and that are there, each once, those of training first."""
    trained: dict[str, Artifact] = {}
    measured: dict[str, Artifact] = {}
    for run in runs:
        own = [each for member in run.members for each in member.artifact.chain() if each.stage == _SYNTHESIZE]
        names = [name for name, record in run.manifest.inputs.items() if record.stage == _SYNTHESIZE]
        trained |= {each.path: each for each in own}
        measured |= {each.path: each for name in names if (each := run.evaluation.input(name)) is not None}
    return [each for each in (trained | measured).values() if each.manifest is not None]


def written_table(artifacts: Sequence[Artifact]) -> Table:
    """What became of the sentences of each generator."""
    columns = ["number", "kept, %", *(f"{each}, %" for each in _REJECTED.values())]
    return Table(
        "Written sentences",
        [*columns, "places changed", "beat their caption, %", "still true, %"],
        [Row(generator_name(each), _written_cells(read_checked_json(each.folder / STATISTICS))) for each in artifacts],
        "Rejected are sentences that are the caption itself, stand there twice, may be true of the image (all their "
        "new words stand in its captions), or are easier than those kept. Of the kept ones: places of the caption "
        "that were changed, in the mean; how many score higher with the image than their caption does, by the model "
        "that wrote them; and how many describe their image after all, where the scene behind it tells.",
        head="generator",
    )


def _written_cells(statistics: Mapping[str, Any]) -> list[Number | None]:
    drawn, true = statistics["drawn"], statistics.get("true_negatives")
    total = sum(drawn.values())
    shares = [Number(100 * drawn[name] / total) if total else None for name in ("kept", *_REJECTED)]
    kept = [Number.of(statistics[name]) for name in ("words_changed", "beats_caption_percent")]
    still = Number(100 - true["percent"]) if true and true["sentences"] else None
    return [Number(total, digits=0), *shares, *kept, still]


def generator_name(artifact: Artifact) -> str:
    """For people: what its configuration is shown as, who wrote, and an unusual seed or split."""
    manifest = artifact.manifest
    assert manifest is not None
    settings, details = manifest.settings, [conf_title(_SYNTHESIZE, manifest.conf) or manifest.conf]
    if settings.get("method"):
        writer = model_title(backbone_title(settings["backbone"]), method_title(settings["method"]))
        details.append(f"written by {writer}")
    if settings.get("seed"):
        details.append(f"seed {settings['seed']}")
    if split_of(artifact) != TRAIN:
        details.append(f"of the {split_of(artifact)} split")
    return ", ".join(details)


def split_of(artifact: Artifact) -> str:
    """Whose captions the sentences are of; manifests name no training split."""
    assert artifact.manifest is not None
    return artifact.manifest.settings.get("split", TRAIN)


def written_examples(artifact: Artifact, gallery: Gallery, count: int, seed: int) -> ColouredWords | None:
    """Some captions that have sentences, chosen by the seed, with the hardest of these; None where there are none.

    Raises:
        DataError: sentences are damaged, or not of the captions of their dataset.
    """
    file = SentenceFile(artifact.folder)
    captions = file.kept(["caption_id"])["caption_id"].unique().to_pylist()
    order = np.random.default_rng([seed, 20]).permutation(len(captions))
    chosen = [captions[place] for place in order[:count]]
    wanted = pc.field("kept") & pc.field("caption_id").isin(chosen)
    rows: dict[str, list[dict[str, Any]]] = {caption: [] for caption in chosen}
    for table in file.row_groups(("caption_id", "text", "edits", "score", "positive_score", "kept")):
        for row in table.filter(wanted).to_pylist():
            rows[row["caption_id"]].append(row)
    if not rows:
        return None
    return ColouredWords(
        "Captions with the hardest sentences made of them",
        f"{generator_name(artifact)}. Struck words of the caption were replaced by the underlined ones behind them. At "
        "the right the score with the image by the model that wrote.",
        ("", ""),
        (),
        [[_sentences(artifact, gallery, caption, found[:_HARDEST])] for caption, found in rows.items()],
    )


def _sentences(artifact: Artifact, gallery: Gallery, caption_id: str, rows: Sequence[Mapping[str, Any]]) -> Seen:
    caption = gallery.caption_row.get(caption_id)
    if caption is None:
        raise DataError(
            f"{artifact.folder} has sentences of {caption_id}, which its dataset does not have; write them again"
        )
    text = gallery.text(caption)
    lines = [Line("caption", [text], rows[0]["positive_score"])]
    for number, row in enumerate(rows, 1):
        parts = edited(text, row["text"], row["edits"])
        if parts is None:
            reason = f"{row['text']!r} is not what its edits make of {text!r}"
            raise DataError(f"{artifact.folder}: {reason}; run `itrpipe synthesize` again")
        lines.append(Line(str(number), parts, row["score"]))
    return Seen(gallery.picture(int(gallery.split.caption_image[caption])), None, lines)


def edited(caption: str, sentence: str, edits: Sequence[Mapping[str, Any]]) -> Parts | None:
    """What a sentence shares with its caption, and between that its changes; None where the edits do not make it.

    Edits number the words of a caption as whoever made them does, so their places are found by both texts: what stands
    between two edits is the same in both.

    Args:
        caption: that the sentence was made of.
        sentence: that came out.
        edits: `position`, `old` and `new`, see `itrpipe.synthesis.sentences.Edit`.
    """
    found = _aligned(caption, sentence, sorted(edits, key=lambda each: each["position"]))
    return None if found is None else [part for part in found if part]


def _aligned(caption: str, sentence: str, edits: Sequence[Mapping[str, Any]]) -> Parts | None:
    if not edits:
        return [caption] if caption == sentence else None
    first, rest = edits[0], edits[1:]
    start = caption.find(first["old"])
    while start >= 0 and sentence.startswith(caption[:start]):
        if sentence.startswith(first["new"], start):
            after = _aligned(caption[start + len(first["old"]) :], sentence[start + len(first["new"]) :], rest)
            if after is not None:
                return [caption[:start], Coloured(first["new"], MIDDLE, was=first["old"]), *after]
        start = caption.find(first["old"], start + 1)
    return None
