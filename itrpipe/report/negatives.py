"""The negatives that models learned from: mined lists, estimated false negatives, and written sentences."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.config import conf_title, leaves
from itrpipe.evaluation.tables import Number, Row, Table
from itrpipe.features.declaration import read_model
from itrpipe.mining.files import FILES, MinedList, read_list
from itrpipe.mining.statistics import PEOPLE, TOPS, beaten_percent
from itrpipe.report.chain import Artifact
from itrpipe.report.names import backbone_title, distinctions, method_title, model_title
from itrpipe.report.pictures import SHOWN, Examples, Gallery, choose
from itrpipe.report.runs import LIKELY, Run, Series
from itrpipe.report.words import MIDDLE, Coloured, ColouredWords, Line, Parts, Seen
from itrpipe.storage.artifact import HARD_CANDIDATES, STATISTICS
from itrpipe.storage.integrity import read_checked_json
from itrpipe.synthesis.sentences import SentenceFile

TRAIN = "train"
_LISTS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_HARDEST = 4
"""Sentences of a caption."""
_REJECTED = {
    "identical": "same as caption",
    "duplicate": "twice",
    "false negative": "may be true",
    "outranked": "too easy",
    "guessed": "guessed without image",
    "no twin": "without a twin",
}
"""Why a sentence was rejected, as `itrpipe.learning.sentences.REASONS` has it -> heading."""
_SENTENCE = ("caption_id", "text", "score", "positive_score", "kept", "kind", "twin_image_id", "detail", "twin_detail")

Galleries = Callable[[Artifact, str], Gallery | None]
"""Gives a split of the dataset that an artifact was made from; None where that was removed."""


# -- Mined lists


def mined(
    artifacts: Iterable[Artifact], names: Mapping[str, str], gallery_of: Galleries, count: int, seed: int
) -> list[Table | Examples]:
    """How hard mined candidates are, with examples of the first lists.

    Args:
        artifacts: of all stages.
        names: folder of a training artifact -> name of its model, where it has one.
        gallery_of: see `Galleries`.
        count: anchors of each list.
        seed: of their choice.
    """
    rows, examples = [], []
    minings = [each for each in artifacts if each.stage == "mine_negatives" and each.manifest is not None]
    for each, name in zip(minings, _mining_names(minings, names), strict=True):
        statistics = read_checked_json(each.folder / STATISTICS)
        rows += [_mined_row(name, direction, statistics) for direction in _LISTS]
        if not examples and (gallery := gallery_of(each, TRAIN)) is not None:
            examples = _mined_examples(name, _read_lists(each, gallery), gallery, count, seed)
    table = Table(
        "What was mined",
        ["own score", "mined score", "hardest beats own, %", "hardest also true, %", f"of {TOPS[1]} also true, %"],
        rows,
        "Scores are medians over the training set, by the model that mined. Beats own: pairs whose hardest candidate "
        "scores at least as high; unknown where a margin cut those that do. Also true: candidates that match all the "
        "same, false negatives, of those that the dataset knows or that people judged before they were dropped.",
        head="mined by",
    )
    return [table, *examples] if rows else []


def _mining_names(minings: Sequence[Artifact], names: Mapping[str, str]) -> list[str]:
    """Name minings as `mining_name` does, with the settings that tell those of one name apart."""
    titles, facts = [], []
    for each in minings:
        assert each.manifest is not None
        titles.append(mining_name(each, names))
        facts.append({**dict(leaves(each.manifest.settings)), "model": read_model(each.manifest.inputs).name})
    return [", ".join([title, *parts]) for title, (_, parts) in zip(titles, distinctions(titles, facts), strict=True)]


def mining_name(mining: Artifact, names: Mapping[str, str]) -> str:
    """For people: the backbone that mined and the one that rescored, its name where it has one, and its seed."""
    assert mining.manifest is not None
    settings = mining.manifest.settings
    rescorer, named = settings.get("rescore_with"), names.get(read_model(mining.manifest.inputs).name)
    name = backbone_title(settings["backbone"])
    name += f", rescored by {backbone_title(rescorer)}" if rescorer else ""
    name += f" ({named})" if named else ""
    return f"{name}, seed {settings['seed']}" if settings["seed"] else name


Rows = tuple[np.ndarray, np.ndarray, MinedList]
"""Rows of a gallery that are anchors [A] and their candidates [A, K], -1 where there is none, with what was read."""


def _read_lists(mining: Artifact, gallery: Gallery) -> dict[str, Rows]:
    """The lists of both directions.

    A list names its candidates by rows of what the mining model was trained on, which is the split without the
    images that have no features, so rows are translated by ids to those of the gallery.
    """
    lists = {direction: read_list(mining.folder, direction) for direction in FILES}
    known = dict(zip(_LISTS, (gallery.image_row, gallery.caption_row), strict=True))
    rows = {each: np.array([known[each][name] for name in own.anchor_ids.tolist()]) for each, own in lists.items()}
    found = {}
    for direction, other in zip(_LISTS, reversed(_LISTS), strict=True):
        candidates = lists[direction].candidates
        # Taken as a row number, -1 would be the last candidate.
        shown = np.where(candidates >= 0, rows[other][candidates], -1)
        found[direction] = (rows[direction], shown, lists[direction])
    return found


def _mined_row(name: str, direction: str, statistics: Mapping[str, Any]) -> Row:
    """How often the hardest candidate of a list beats the positive, and is a correct match after all."""
    right = statistics["right_after_all"][direction]
    shares = [right[f"top_{top}"]["percent"] for top in TOPS]
    found = (statistics["positive_score"], statistics[direction])
    medians = [Number.of(each["median"], digits=3) if each else None for each in found]
    beaten = Number.of(beaten_percent(statistics, direction))
    return Row(f"{name}: {_LISTS[direction]}", [*medians, beaten, *map(Number.of, shares)])


def hardness(series: Iterable[Series], names: Mapping[str, str]) -> list[str]:
    """Say how hard the hardest negatives of the first model with mined ones are, and how many are right after all."""
    for each in series:
        mining = each.first.members[0].mining
        if mining is None or mining.manifest is None:
            continue
        statistics = read_checked_json(mining.folder / STATISTICS)
        beaten = [beaten_percent(statistics, direction) for direction in _LISTS]
        right = [statistics["right_after_all"][direction]["top_1"]["percent"] for direction in _LISTS]
        facts = []
        if None not in beaten:
            caption, image = beaten
            hard = f"the hardest caption scores at least as high as the own one in {caption:.1f} % of the pairs"
            facts.append(f"{hard}, the hardest image in {image:.1f} %")
        if None not in right:
            caption, image = right
            people = " that people judged" if statistics["judge"] == PEOPLE else ""
            facts.append(f"{caption:.1f} % and {image:.1f} % of the hardest{people} are right after all")
        if facts:
            return [f"Mined by {mining_name(mining, names)}: {'; '.join(facts)}."]
    return []


def _mined_examples(name: str, lists: Mapping[str, Rows], gallery: Gallery, count: int, seed: int) -> list[Examples]:
    found = []
    for number, (direction, (anchors, candidates, own)) in enumerate(lists.items()):
        items, of_images = [], direction == "texts_for_images"
        for row in np.random.default_rng([seed, 10 + number]).permutation(len(anchors))[:count].tolist():
            chances = own.false_negative_probability
            estimated = [None] * SHOWN if chances is None else chances[row, :SHOWN].tolist()
            columns = (candidates[row, :SHOWN].tolist(), own.scores[row, :SHOWN].tolist(), estimated)
            listed = [(place, *each) for place, each in enumerate(zip(*columns, strict=False), 1) if each[0] >= 0]
            items.append(gallery.example(of_images, int(anchors[row]), listed))
        note = f"Mined by {name} in the training set; own pairs are left out."
        found.append(Examples(f"Hardest {_LISTS[direction]}", note, items, of_images, own=not of_images))
    return found


# -- Estimated false negatives


def estimated(runs: Iterable[Run], gallery_of: Galleries, count: int, seed: int) -> list[Examples]:
    """Anchors with their hardest candidates and how probably these match, by the first run that estimated it.

    Half of the anchors have a likely one among what is shown, half have not, where there are enough.

    Source: FNE (Li et al., ACM MM 2023), Fig. 6.
    """
    run = next((each for each in runs if each.wrote(HARD_CANDIDATES)), None)
    gallery = None if run is None else gallery_of(run.evaluation, TRAIN)
    if run is None or gallery is None:
        return []
    listed = groupby(run.wrote(HARD_CANDIDATES), key=lambda row: (row["direction"], row["anchor_id"]))
    anchors = [(direction, list(rows)[:SHOWN]) for (direction, _), rows in listed]
    found = []
    for number, (direction, title) in enumerate(_LISTS.items()):
        of_images, own = direction == "texts_for_images", [rows for name, rows in anchors if name == direction]
        known = (gallery.image_row, gallery.caption_row)[:: 1 if of_images else -1]
        likely = np.array([max(row["probability"] for row in rows) > LIKELY for rows in own], dtype=bool)
        items = []
        for rows in (own[place] for place in choose(likely, count, np.random.default_rng([seed, 20 + number]))):
            shown = [(r["rank"] + 1, known[1][r["candidate_id"]], r["similarity"], r["probability"]) for r in rows]
            items.append(gallery.example(of_images, known[0][rows[0]["anchor_id"]], shown))
        note = f"Estimated by {run.name}: how probably each candidate is right after all."
        found.append(Examples(f"False negatives, {title}", note, items, of_images, own=not of_images))
    return [each for each in found if each.items]


# -- Written sentences


def written(artifacts: Iterable[Artifact], gallery_of: Galleries, count: int, seed: int) -> list[Table | ColouredWords]:
    """What became of the sentences of each generator, and some captions with the hardest of the first, or with twins.

    Args:
        artifacts: of all stages.
        gallery_of: see `Galleries`.
        count: captions.
        seed: of their choice.
    """
    found = [each for each in artifacts if each.stage == "synthesize" and each.manifest is not None]
    examples = None
    for each in sorted(found, key=lambda each: not (each.manifest and each.manifest.settings.get("twins"))):
        gallery = gallery_of(each, split_of(each))
        examples = examples or (gallery and _written_examples(each, gallery, count, seed))
    columns = ["number", "kept, %", *(f"{each}, %" for each in _REJECTED.values())]
    table = Table(
        "Written sentences",
        [*columns, "places changed", "beat their caption, %", "still true, %"],
        [Row(generator_name(each), _written_cells(read_checked_json(each.folder / STATISTICS))) for each in found],
        "Rejected are sentences that are the caption itself, appear twice, may be true of the image (all their "
        "new words are in its captions), are easier than those kept, or can be guessed without the image. Of the kept "
        "ones: places of the caption that were changed, in the mean; how many score higher with the image than their "
        "caption does, by the model that wrote them; and how many describe their image after all, where the scene "
        "behind it shows that.",
        head="generator",
    )
    return [table, *([examples] if examples else [])] if found else []


def _written_cells(statistics: Mapping[str, Any]) -> list[Number | None]:
    drawn, true = statistics["drawn"], statistics.get("true_negatives")
    total = sum(drawn.values())
    shares = [Number(100 * drawn.get(name, 0) / total) if total else None for name in ("kept", *_REJECTED)]
    kept = [Number.of(statistics[name]) for name in ("words_changed", "beats_caption_percent")]
    still = Number(100 - true["percent"]) if true and true["sentences"] else None
    return [Number(total, digits=0), *shares, *kept, still]


def generator_name(artifact: Artifact) -> str:
    """For people: what its configuration is shown as, who wrote, and an unusual seed or split."""
    assert artifact.manifest is not None
    settings, conf, split = artifact.manifest.settings, artifact.manifest.conf, split_of(artifact)
    details = [conf_title("synthesize", conf) or conf]
    if settings.get("method"):
        writer = model_title(backbone_title(settings["backbone"]), method_title(settings["method"]))
        details.append(f"written by {writer}")
    details += [f"seed {settings['seed']}"] if settings.get("seed") else []
    details += [f"of the {split} split"] if split != TRAIN else []
    return ", ".join(details)


def split_of(artifact: Artifact) -> str:
    """Whose captions the sentences are of; manifests name no training split."""
    assert artifact.manifest is not None
    return artifact.manifest.settings.get("split", TRAIN)


def _written_examples(artifact: Artifact, gallery: Gallery, count: int, seed: int) -> ColouredWords | None:
    file = SentenceFile(artifact.folder)
    captions = file.kept(["caption_id"])["caption_id"].unique().to_pylist()
    chosen = [captions[place] for place in np.random.default_rng([seed, 20]).permutation(len(captions))[:count]]
    if not chosen:
        return None
    wanted = pc.field("kept") & pc.field("caption_id").isin(chosen)
    rows = pa.concat_tables(each.filter(wanted) for each in file.row_groups(_SENTENCE)).to_pylist()
    if twins := [row for row in rows if row["twin_image_id"]]:
        return _twins(generator_name(artifact), twins, gallery, count)
    seen = []
    for caption_id, own in groupby(rows, key=lambda row: row["caption_id"]):
        caption, sentences = gallery.caption_row[caption_id], [*own][:_HARDEST]
        text = gallery.split.texts[caption]
        lines = [Line("caption", [text], sentences[0]["positive_score"])]
        lines += [Line(str(n), edited(text, each["text"]), each["score"]) for n, each in enumerate(sentences, 1)]
        seen.append([Seen(gallery.own_picture(caption), None, lines)])
    note = (
        f"{generator_name(artifact)}. Struck words of the caption were replaced by the underlined ones behind them. At "
        "the right the score with the image by the model that wrote."
    )
    title = "Captions with the hardest sentences made of them"
    return ColouredWords(title, note, ("", ""), (), seen)


def _twins(name: str, rows: list[dict[str, Any]], gallery: Gallery, count: int) -> ColouredWords:
    """Some twins of each kind, the image before its twin."""
    seen, left = [], Counter({row["kind"]: -(-count // len({each["kind"] for each in rows})) for row in rows})
    for row in rows:
        left[row["kind"]] -= 1
        if left[row["kind"]] >= 0:
            own, twin = int(gallery.split.caption_image[gallery.caption_row[row["caption_id"]]]), row["twin_image_id"]
            other = gallery.image_row[twin]
            details = ([Line("", [row[each]], None)] for each in ("detail", "twin_detail"))
            images = ((own, False), (other, other == own))
            seen.append([Seen(gallery.picture(image), None, next(details), turned) for image, turned in images])
    note = "Each text is true of its image and false of the other one of the two."
    return ColouredWords(f"{name[:1].upper()}{name[1:]}: details exchanged", note, ("", ""), (), seen)


def edited(caption: str, sentence: str) -> Parts:
    """What a sentence shares with its caption, and between that what was changed, by whole words."""
    old, new = (re.findall(r"\w+|\W", text) for text in (caption, sentence))
    found: Parts = []
    for kind, start, stop, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        was, text = "".join(old[start:stop]), "".join(new[first:last])
        found.append(text if kind == "equal" else Coloured(text, MIDDLE, was=was))
    return found
