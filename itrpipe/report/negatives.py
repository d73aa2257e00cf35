"""The negatives that models learned from: mined lists and written sentences."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.config import conf_title, leaves
from itrpipe.evaluation.tables import DASH, Number, Row, Table, mean
from itrpipe.exporting.places import judge_without_place
from itrpipe.features.declaration import first_model
from itrpipe.features.embeddings import EMBEDDINGS, EmbeddingRows
from itrpipe.judging.shares import LEAST, RANKS, Share
from itrpipe.mining.filters import positive_scores
from itrpipe.mining.judged import LIKELY
from itrpipe.mining.lists import MinedList, read_list
from itrpipe.mining.statistics import TOPS, beaten_percent
from itrpipe.report.chain import ChainArtifact
from itrpipe.report.names import backbone_title, distinctions, method_title, model_title
from itrpipe.report.pictures import (
    SHOWN_CANDIDATES,
    Example,
    Examples,
    LikelyPairs,
    Picture,
    SplitPictures,
    likely_pairs,
)
from itrpipe.report.plots import Panels, reliability_plot
from itrpipe.report.series import Series
from itrpipe.storage.artifact import CORRECTED
from itrpipe.synthesis.sentences import SentenceFile

TRAIN = "train"
_LISTS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_LIKELIEST = 2
"""Pairs likelier right than not that are shown for each example."""
_ABOUT_LIKELY = (
    "Left an image and one of its captions; in the middle the caption of another image that may be right, too; right, "
    "with its file name in small print, the image that this caption belongs to. Of pairs that share an image, or "
    "an image that one of these is paired with, the likeliest alone is shown."
)
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
"""Reason for which a sentence was rejected, as `itrpipe.learning.sentences.REASONS` has it -> heading."""
_SENTENCE = ("caption_id", "text", "score", "positive_score", "kind", "twin_image_id", "detail", "twin_detail")

Galleries = Callable[[ChainArtifact, str], SplitPictures | None]
"""Gives a split of the dataset that an artifact was made from; None where that was removed."""


@dataclass(frozen=True)
class Line:
    """A sentence beside an image: its label, its parts as `edit_parts` gives them, and its score, or None."""

    label: str
    parts: Sequence[tuple[str, str] | str]
    score: float | None = None


@dataclass(frozen=True)
class EditedImage:
    """An image with the sentences beside it."""

    picture: Picture
    lines: Sequence[Line]
    mirrored: bool = False


@dataclass(frozen=True)
class EditedSentences:
    """Images with sentences that were made of their captions, below a title and a note."""

    title: str
    note: str
    images: Sequence[EditedImage]


# -- Mined lists


def mining_parts(
    artifacts: Iterable[ChainArtifact],
    names: Mapping[str, str],
    gallery_of: Galleries,
    count: int,
) -> tuple[list[Table | Panels | Examples], list[LikelyPairs]]:
    """Tell how hard mined candidates are, with examples of the first lists.

    Args:
        artifacts: of all stages.
        names: folder of a training artifact -> name of its model, where it has one.
        gallery_of: see `Galleries`.
        count: anchors of each list.

    Returns:
        Tables, plots and examples; and the pairs that judges of these lists call likelier right than not.
    """
    minings, searches = [], set()
    for artifact in artifacts:
        if artifact.stage == "mine_negatives" and artifact.manifest is not None:
            minings.append(artifact)
            if artifact.stage in artifact.inputs:
                searches.add(artifact.inputs[artifact.stage].folder)
    # Lists that other lists were made from are left out, since these show them.
    minings = [mining for mining in minings if mining.folder not in searches]
    if not minings:
        return [], []

    titles, facts, statistics = [], [], []
    for mining in minings:
        titles.append(mining_name(mining, names))
        facts.append(dict(leaves(mining.settings)) | {"model": first_model(mining.inputs).name})
        statistics.append(mining.statistics)
    for number, (_, settings) in enumerate(distinctions(list(titles), facts)):
        titles[number] = ", ".join([titles[number], *settings])
    parts = _statistics_parts(titles, statistics)
    for title, mining in zip(titles, minings, strict=True):
        # A second model has own scores that nobody keeps, and candidates of no dataset have no pictures.
        if mining.settings.get("rescore_with") or mining.settings.get("candidates"):
            continue
        if first_model(mining.inputs).manifest is None:
            continue
        gallery = gallery_of(mining, TRAIN)
        if gallery is not None:
            examples, likely = _mined_examples(title, mining, gallery, count)
            return [*parts, *examples], likely
    return [*parts], []


def mining_name(mining: ChainArtifact, names: Mapping[str, str]) -> str:
    """Name a mining for people: the backbone that mined, the one that rescored, the model's own name and its seed."""
    settings = mining.settings
    miner = first_model(mining.inputs)
    name = backbone_title(settings["backbone"])
    if settings.get("rescore_with"):
        name += f", rescored by {backbone_title(settings['rescore_with'])}"
    if miner.name in names:
        name += f" ({names[miner.name]})"
    if settings["seed"]:
        name += f", seed {settings['seed']}"
    return name


def _statistics_parts(titles: Sequence[str], statistics: Sequence[Mapping[str, Any]]) -> list[Table | Panels]:
    """Return how hard mined candidates are, how many are right after all, and how far judges can be relied on."""
    rows, rank_rows, judges, plots = [], [], [], []
    for title, measured in zip(titles, statistics, strict=True):
        judged = measured.get("judged")
        for direction, candidates in _LISTS.items():
            name = f"{title}: {candidates}"
            cells = []
            for distribution in (measured["positive_score"], measured[direction]):
                cells.append(Number.of(distribution and distribution["median"], digits=3))
            cells.append(Number.of(beaten_percent(measured, direction)))
            for top in TOPS:
                cells.append(Number.of(measured["right_after_all"][direction][f"top_{top}"]["percent"]))
            rows.append(Row(name, cells))
            if judged is not None:
                cells = []
                for span in RANKS:
                    share = judged[direction]["by_rank"].get(span)
                    cells.append(Number.of(share and Share(**share).percent(), digits=0))
                rank_rows.append(Row(name, cells))
        if judged is not None:
            judges += map(judge_without_place, judged["judges"])
            if judged.get("reliability"):
                name = f"reliability-{len(plots)}"
                plots.append(reliability_plot(f"{title}: probabilities checked", judged["reliability"], name))

    columns = ["median own score", "median mined score", "hardest beats own, %"]
    note = (
        "Scores by the model that mined: medians of all training pairs, and of all candidates in the lists. Beats own: "
        "pairs whose hardest candidate scores at least as high; unknown where a margin cut those that do."
    )
    if any(row.cells[-1] for row in rows):
        columns += ["hardest also true, %", f"of {TOPS[1]} also true, %"]
        note += (
            " Also true: candidates that match all the same, false negatives, of those that the dataset knows or that "
            "people judged before they were dropped."
        )
    rows = [Row(row.name, row.cells[: len(columns)]) for row in rows]
    parts: list[Table | Panels] = [
        Table(
            "What was mined",
            columns,
            rows,
            note,
            head="mined by",
        )
    ]
    if rank_rows:
        columns = [f"{span.replace('-', DASH)}, %" for span in RANKS]
        note = (
            "Of all mined candidates at these ranks, whether or not they beat the own one, the share that matches "
            f"though it counts as negative, by {' and '.join(dict.fromkeys(judges))}. With an interval, people's "
            f"decisions correct the judge, and a span with fewer than {LEAST} has no share. Without one, fewer came at "
            "random in one direction, and both have the judge's mean probability, not the share that is likelier right "
            "than not."
        )
        title = "Training candidates right after all, by rank"
        parts.append(Table(title, columns, rank_rows, note, head="mined by"))
    if plots:
        note = (
            "Decisions by the probability that the judge gave them before it saw them; a larger point is more of them. "
            "On the line, as many are right as the judge says."
        )
        parts.append(Panels(plots, {}, note))
    return parts


def _mined_examples(
    title: str,
    mining: ChainArtifact,
    gallery: SplitPictures,
    count: int,
) -> tuple[list[Examples], list[LikelyPairs]]:
    """Return the anchors whose hardest candidate scores nearest to or above their own match, of an image the best one.

    Pairs follow that a judge calls likelier right than not, if there are any.
    """
    image_list = read_list(mining.opened, "texts_for_images")
    caption_list = read_list(mining.opened, "images_for_texts")
    # Candidates are rows of the split without the images that have no features, so ids lead to those of the gallery.
    images = [gallery.image_row[image_id] for image_id in image_list.anchor_ids.tolist()]
    captions = [gallery.caption_row[caption_id] for caption_id in caption_list.anchor_ids.tolist()]
    embeddings = EmbeddingRows.open(first_model(mining.inputs).opened / EMBEDDINGS, TRAIN)
    owners = embeddings.owners.read()
    scores = positive_scores(embeddings.images, embeddings.texts, owners)
    best_captions = np.zeros(len(images), np.int64)
    by_score = np.argsort(scores, kind="stable")
    best_captions[owners[by_score]] = by_score  # of the captions of an image the last one stays

    of_images = _most_confused(
        gallery,
        image_list,
        images,
        captions,
        best_captions.tolist(),
        scores[best_captions],
        count,
        of_images=True,
    )
    of_captions = _most_confused(
        gallery,
        caption_list,
        captions,
        images,
        owners.tolist(),
        scores,
        count,
        of_images=False,
    )
    note = (
        f"Mined by {title} in the training set. The most confused come first: their hardest candidate scores "
        "nearest to the own one or farthest above it, of several captions the best. Right with: the probability "
        "that the candidate is right, too, where a judge was asked."
    )
    examples = [
        Examples("Hardest captions for images", note, of_images, of_images=True),
        Examples("Hardest images for captions", note, of_captions, of_images=False),
    ]

    probabilities = caption_list.false_negative_probability
    if probabilities is None:
        return examples, []
    pairs = []
    for row, place in np.argwhere(probabilities > LIKELY).tolist():
        image = images[caption_list.candidates[row, place]]
        pairs.append((image, captions[row], float(probabilities[row, place])))
    note = f"Images for captions, mined by {title}: of {np.count_nonzero(caption_list.candidates >= 0):,} candidates, "
    note += _likely_note(len(pairs))
    left_out = mining.statistics["dropped"]["images_for_texts"].get("decisions")
    if left_out:
        note += f" The lists are without {left_out:,} that people found to fit."
    likely = likely_pairs(
        "Mined in the training set",
        note,
        gallery,
        pairs,
        _LIKELIEST * count,
    )
    return examples, [likely]


def _most_confused(
    gallery: SplitPictures,
    lists: MinedList,
    anchors: Sequence[int],
    others: Sequence[int],
    own: Sequence[int],
    own_scores: np.ndarray,
    count: int,
    *,
    of_images: bool,
) -> list[Example]:
    """Return the anchors whose hardest candidate scores highest beside their own match, with their candidates.

    Args:
        gallery: of the training set.
        lists: of the anchors.
        anchors, others: row of each in the gallery; candidates are places among the others.
        own, own_scores: the own match of each anchor among the others, and its score.
        count: of anchors.
        of_images: the anchors are images; else captions.
    """
    examples = []
    probabilities = lists.false_negative_probability
    by_lead = np.argsort(own_scores - lists.scores[:, 0], kind="stable")
    for row in by_lead[:count].tolist():
        anchor = anchors[row]
        candidates = [
            gallery.candidate(
                of_images,
                anchor,
                others[own[row]],
                0,
                float(own_scores[row]),
            )
        ]
        for place, other in enumerate(lists.candidates[row, :SHOWN_CANDIDATES].tolist()):
            if other < 0:
                continue
            score = float(lists.scores[row, place])
            probability = None
            if probabilities is not None:
                probability = float(probabilities[row, place])
            candidates.append(gallery.candidate(of_images, anchor, others[other], place + 1, score, probability))
        examples.append(gallery.example(of_images, anchor, candidates))
    return examples


def likely_answers(
    series: Series,
    gallery: SplitPictures,
    names: Mapping[str, str],
    count: int,
) -> list[LikelyPairs]:
    """Return the wrong first answers of a model that judges call likelier right than not, in both directions.

    Args:
        series: whose first run is shown.
        gallery: of the split it was evaluated on.
        names: folder of a training artifact -> name of its model, where it has one.
        count: examples of the report.
    """
    run = series.first_run
    by_judges = (run.wrote(CORRECTED) or {}).get("by_judges")
    if by_judges is None:
        return []
    split = gallery.split.name
    command = f"itrpipe serve --split {split}"
    model = names.get(run.model.artifact.name)
    if model is not None:
        command += f" --model {model}"
    parts = []
    for side, answer in (("i2t", "caption"), ("t2i", "image")):
        pairs = []
        for image_id, caption_id, probability in by_judges["likely"][side]:
            pairs.append((gallery.image_row[image_id], gallery.caption_row[caption_id], probability))
        wrong = (run.rankings[side]["rank"].to_numpy() > 0).sum()
        note = f"By {series.name}, seed {run.seed}: of {wrong:,} wrong first {answer}s, {_likely_note(len(pairs))}"
        if not pairs:
            note += f" Judge them yourself: {command}"
        likely = likely_pairs(
            f"Wrong first {answer}s in the {split} split",
            note,
            gallery,
            pairs,
            _LIKELIEST * count,
        )
        parts.append(likely)
    return parts


def _likely_note(likely: int) -> str:
    """Say how many pairs a judge takes for right, and how they are shown."""
    if not likely:
        return "the judge takes none for right with a probability above one half."
    return f"the judge takes {likely:,} for right with a probability above one half. {_ABOUT_LIKELY}"


def hardness_notes(all_series: Sequence[Series], names: Mapping[str, str]) -> list[str]:
    """Say how hard the hardest negatives of the first series with mined ones are, in the mean over its seeds.

    A second sentence says how often the model that mined is wrong on the test set, if it was evaluated there.

    Args:
        all_series: of all runs on a test set.
        names: folder of a training artifact -> name of its model, where it has one.
    """
    for series in all_series:
        runs = series.run_of_seed.values()
        minings, captions, images = [], [], []
        for run in runs:
            mining = run.model.mining
            if mining is not None and mining.manifest is not None:
                minings.append(mining)
                captions.append(Number.of(beaten_percent(mining.statistics, "texts_for_images")))
                images.append(Number.of(beaten_percent(mining.statistics, "images_for_texts")))
        caption, image = mean(captions), mean(images)
        if len(minings) < len(runs) or caption is None or image is None:
            continue
        name = mining_name(minings[0], names)
        if len(minings) > 1:
            name += f" and its other seeds, mean of {len(minings)}"
        training = (
            f"In the training set, the hardest caption scores at least as high as the own one in {caption.text} % of "
            f"the pairs, the hardest image in {image.text} %, by {name}."
        )
        miner = first_model(minings[0].inputs).name
        for other in all_series:
            run = other.first_run
            if len(run.members) == 1 and run.model.artifact.name == miner:
                test = (
                    f"In the {run.settings['split']} split, from which it did not learn, it ranks a wrong caption "
                    f"first for {100 - other.score('i2t_r1').value:.1f} % of the images, a wrong image for "
                    f"{100 - other.score('t2i_r1').value:.1f} % of the captions."
                )
                return [training, test]
        return [training]
    return []


# -- Written sentences


def sentence_parts(
    artifacts: Iterable[ChainArtifact],
    gallery_of: Galleries,
    count: int,
    seed: int,
) -> list[Table | EditedSentences]:
    """Tell what became of the sentences of each generator, with some of the hardest of the first, or twins.

    Args:
        artifacts: of all stages.
        gallery_of: see `Galleries`.
        count: captions.
        seed: of their choice.
    """
    rows, generators = [], []
    for artifact in artifacts:
        if artifact.stage != "synthesize" or artifact.manifest is None:
            continue
        statistics = artifact.statistics
        drawn, not_true = statistics["drawn"], statistics.get("true_negatives")
        total = sum(drawn.values())
        cells: list[Number | None] = [Number(total, digits=0)]
        for name in ("kept", *_REJECTED):
            cells.append(Number(100 * drawn.get(name, 0) / total) if total else None)
        cells.append(Number.of(statistics["words_changed"]))
        cells.append(Number.of(statistics["beats_caption_percent"]))
        still_true = None
        if not_true and not_true["sentences"]:
            still_true = Number(100 - not_true["percent"])
        rows.append(Row(generator_name(artifact), [*cells, still_true]))
        generators.append(artifact)
    if not rows:
        return []
    rejected = [f"{reason}, %" for reason in _REJECTED.values()]
    note = (
        "Rejected are sentences that are the caption itself, appear twice, may be true of the image (all their "
        "new words are in its captions), are easier than those kept, or can be guessed without the image. Of the kept "
        "ones: places of the caption that were changed, in the mean; how many score higher with the image than their "
        "caption does, by the model that wrote them; and how many describe their image after all, where the scene "
        "behind it shows that."
    )
    table = Table(
        "Written sentences",
        ["number", "kept, %", *rejected, "places changed", "beat their caption, %", "still true, %"],
        rows,
        note,
        head="generator",
    )
    # Twins are shown before other sentences.
    generators.sort(key=lambda artifact: not artifact.settings.get("twins"))
    for artifact in generators:
        gallery = gallery_of(artifact, artifact.settings.get("split", TRAIN))
        if gallery is not None:
            examples = _written_examples(artifact, gallery, count, seed)
            if examples is not None:
                return [table, examples]
    return [table]


def generator_name(artifact: ChainArtifact) -> str:
    """Name a generator for people: what its configuration is shown as, who wrote, and an unusual seed or split."""
    assert artifact.manifest is not None
    settings = artifact.settings
    conf = artifact.manifest.conf
    details = [conf_title("synthesize", conf) or conf]
    if settings.get("method"):
        writer = model_title(backbone_title(settings["backbone"]), method_title(settings["method"]))
        details.append(f"written by {writer}")
    if settings.get("seed"):
        details.append(f"seed {settings['seed']}")
    split = settings.get("split", TRAIN)  # manifests name no training split
    if split != TRAIN:
        details.append(f"of the {split} split")
    return ", ".join(details)


def _written_examples(
    artifact: ChainArtifact,
    gallery: SplitPictures,
    count: int,
    seed: int,
) -> EditedSentences | None:
    """Return the hardest sentences of some captions, or their twins; None where there are no sentences."""
    file = SentenceFile(artifact.folder)
    name = generator_name(artifact)
    caption_ids = file.read(["caption_id"])["caption_id"].unique()
    order = np.random.default_rng([seed, 20]).permutation(len(caption_ids))
    chosen = caption_ids.take(order[:count])
    if len(chosen) == 0:
        return None
    is_chosen = pc.field("caption_id").isin(chosen)
    rows = pa.concat_tables(group.filter(is_chosen) for group in file.row_groups(_SENTENCE)).to_pylist()
    twins = [row for row in rows if row["twin_image_id"]]
    if twins:
        return _twins(name, twins, gallery, count)
    images = []
    for caption_id, sentences in groupby(rows, key=lambda row: row["caption_id"]):
        hardest = list(sentences)[:_HARDEST]
        caption = gallery.caption_row[caption_id]
        text = gallery.split.texts[caption]
        lines = [Line("caption", [text], hardest[0]["positive_score"])]
        for number, row in enumerate(hardest, 1):
            lines.append(Line(str(number), edit_parts(text, row["text"]), row["score"]))
        images.append(EditedImage(gallery.own_picture(caption), lines))
    note = (
        f"{name}. Struck words of the caption were replaced by the underlined ones behind them. At "
        "the right the score with the image by the model that wrote."
    )
    return EditedSentences("Captions with the hardest sentences made of them", note, images)


def _twins(
    name: str,
    rows: list[dict[str, Any]],
    gallery: SplitPictures,
    count: int,
) -> EditedSentences:
    """Return some twins of each kind, the image before its twin."""
    kinds = {row["kind"] for row in rows}
    most_of_kind = math.ceil(count / len(kinds))
    shown = Counter[str]()
    images = []
    for row in rows:
        shown[row["kind"]] += 1
        if shown[row["kind"]] > most_of_kind:
            continue
        own = int(gallery.split.caption_image[gallery.caption_row[row["caption_id"]]])
        twin = gallery.image_row[row["twin_image_id"]]
        images.append(EditedImage(gallery.picture(own), [Line("", [row["detail"]])]))
        images.append(EditedImage(gallery.picture(twin), [Line("", [row["twin_detail"]])], mirrored=twin == own))
    note = "Each text is true of its image and false of the other one of the two."
    return EditedSentences(f"{name[:1].upper()}{name[1:]}: details exchanged", note, images)


def edit_parts(caption: str, sentence: str) -> list[tuple[str, str] | str]:
    """Cut a sentence into what it shares with its caption, and what was changed: the caption's words, and its own."""
    old = re.findall(r"\w+|\W", caption)
    new = re.findall(r"\w+|\W", sentence)
    parts: list[tuple[str, str] | str] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, old_start, old_stop, new_start, new_stop in matcher.get_opcodes():
        text = "".join(new[new_start:new_stop])
        if kind == "equal":
            parts.append(text)
        else:
            parts.append(("".join(old[old_start:old_stop]), text))
    return parts
