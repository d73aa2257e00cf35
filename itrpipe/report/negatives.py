"""The negatives that models learned from: mined lists and written sentences."""

from __future__ import annotations

import difflib
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
from itrpipe.judging.shares import RANKS, Share
from itrpipe.mining.filters import positive_scores
from itrpipe.mining.judged import LIKELY
from itrpipe.mining.lists import read_list
from itrpipe.mining.statistics import TOPS, beaten_percent
from itrpipe.report.chain import ChainArtifact
from itrpipe.report.claims import score_of
from itrpipe.report.names import backbone_title, distinctions, method_title, model_title
from itrpipe.report.pictures import SHOWN, Examples, LikelyPairs, Picture, SplitPictures, likely_pairs
from itrpipe.report.plots import Panels, reliability
from itrpipe.report.runs import Series, by_seed
from itrpipe.storage.artifact import CORRECTED, STATISTICS
from itrpipe.storage.disk import read_json
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
    """A sentence beside an image: its label, its parts as `edited` gives them, and its score, or None."""

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


def mined(
    artifacts: Iterable[ChainArtifact], names: Mapping[str, str], gallery_of: Galleries, count: int
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
    minings, searches = [], []
    for each in artifacts:
        if each.stage == "mine_negatives" and each.manifest is not None:
            minings.append(each)
            if each.stage in each.inputs:
                searches.append(each.inputs[each.stage].folder)
    minings = [each for each in minings if each.folder not in searches]
    titles, facts = [], []
    for each in minings:
        titles.append(mining_name(each, names))
        facts.append(dict(leaves(each.manifest.settings)) | {"model": first_model(each.manifest.inputs).name})

    columns = ["median own score", "median mined score", "hardest beats own, %"]
    rows, ranked, judges, curves, examples, likely = [], [], [], [], [], []
    for mining, title, (_, parts) in zip(minings, titles, distinctions(titles, facts), strict=True):
        name = ", ".join([title, *parts])
        statistics = read_json(mining.opened / STATISTICS)
        for direction, what in _LISTS.items():
            cells = []
            for distribution in (statistics["positive_score"], statistics[direction]):
                cells.append(Number.of(distribution and distribution["median"], digits=3))
            cells.append(Number.of(beaten_percent(statistics, direction)))
            for top in TOPS:
                cells.append(Number.of(statistics["right_after_all"][direction][f"top_{top}"]["percent"]))
            rows.append(Row(f"{name}: {what}", cells))
            if "judged" in statistics:
                by_rank = statistics["judged"][direction]["by_rank"]
                shares = [by_rank.get(span) and Share(**by_rank[span]).percent() for span in RANKS]
                ranked.append(Row(f"{name}: {what}", [Number.of(share, digits=0) for share in shares]))
                judges += map(judge_without_place, statistics["judged"]["judges"])
        if bins := statistics.get("judged", {}).get("reliability"):
            curves.append(reliability(f"{name}: probabilities checked", bins, f"reliability-{len(curves)}"))
        # A second model has own scores that nobody keeps, and candidates of no dataset have no pictures.
        is_hidden = any(map(mining.manifest.settings.get, ("rescore_with", "candidates")))
        if examples or is_hidden or first_model(mining.inputs).manifest is None:
            continue
        gallery = gallery_of(mining, TRAIN)
        if gallery is not None:
            examples, likely = _mined_examples(name, mining, gallery, count)
    if not rows:
        return [], []
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
    tables = [Table("What was mined", columns, rows, note, head="mined by")]
    if ranked:
        by_rank = Table(
            "Training candidates right after all, by rank",
            [f"{span.replace('-', DASH)}, %" for span in RANKS],
            ranked,
            "Of all mined candidates at these ranks, whether or not they beat the own one, the share that matches "
            f"though it counts as negative, by {' and '.join(dict.fromkeys(judges))}. With an interval, people's "
            "decisions correct the judge; without one, there are fewer than 20, and the share is the judge's mean "
            "probability, not the share that is likelier right than not.",
            head="mined by",
        )
        tables.append(by_rank)
    plots = []
    if curves:
        note = (
            "Decisions by the probability that the judge gave them before it saw them; a larger point is more of them. "
            "On the line, as many are right as the judge says."
        )
        plots.append(Panels(curves, {}, note))
    return [*tables, *plots, *examples], likely


def mining_name(mining: ChainArtifact, names: Mapping[str, str]) -> str:
    """Name a mining for people: the backbone that mined, the one that rescored, the model's own name and its seed."""
    assert mining.manifest is not None
    settings = mining.manifest.settings
    miner = first_model(mining.manifest.inputs)
    name = backbone_title(settings["backbone"])
    if settings.get("rescore_with"):
        name += f", rescored by {backbone_title(settings['rescore_with'])}"
    if miner.name in names:
        name += f" ({names[miner.name]})"
    return f"{name}, seed {settings['seed']}" if settings["seed"] else name


def _mined_examples(
    name: str, mining: ChainArtifact, gallery: SplitPictures, count: int
) -> tuple[list[Examples], list[LikelyPairs]]:
    """Return the anchors whose hardest candidate scores nearest to or above their own match, of an image the best one.

    Pairs follow that a judge calls likelier right than not, if there are any.
    """
    image_list, caption_list = (read_list(mining.opened, direction) for direction in _LISTS)
    # Candidates are rows of the split without the images that have no features, so ids lead to those of the gallery.
    images = [gallery.image_row[each] for each in image_list.anchor_ids.tolist()]
    captions = [gallery.caption_row[each] for each in caption_list.anchor_ids.tolist()]
    embeddings = EmbeddingRows.open(first_model(mining.inputs).opened / EMBEDDINGS, TRAIN)
    owners = embeddings.owners.read()
    scores = positive_scores(embeddings.images, embeddings.texts, owners)
    best = np.zeros(len(images), np.int64)
    by_score = np.argsort(scores, kind="stable")
    best[owners[by_score]] = by_score  # of the captions of an image the last one stays

    examples = []
    sides = (
        ("Hardest captions for images", True, image_list, images, captions, best, scores[best]),
        ("Hardest images for captions", False, caption_list, captions, images, owners, scores),
    )
    for title, of_images, lists, anchors, others, own, own_scores in sides:
        items, chances = [], lists.false_negative_probability
        for row in np.argsort(own_scores - lists.scores[:, 0], kind="stable")[:count].tolist():
            candidates = [gallery.candidate(of_images, anchors[row], others[own[row]], 0, float(own_scores[row]))]
            for place, candidate in enumerate(lists.candidates[row, :SHOWN].tolist()):
                if candidate >= 0:
                    score = float(lists.scores[row, place])
                    chance = None if chances is None else float(chances[row, place])
                    found = gallery.candidate(of_images, anchors[row], others[candidate], place + 1, score, chance)
                    candidates.append(found)
            items.append(gallery.example(of_images, anchors[row], candidates))
        note = (
            f"Mined by {name} in the training set. The most confused come first: their hardest candidate scores "
            "nearest to the own one or farthest above it, of several captions the best. Right with: the probability "
            "that the candidate is right, too, where a judge was asked."
        )
        examples.append(Examples(title, note, items, of_images))

    chances = caption_list.false_negative_probability
    if chances is None:
        return examples, []
    pairs = []
    for row, place in np.argwhere(chances > LIKELY).tolist():
        image = images[caption_list.candidates[row, place]]
        pairs.append((image, captions[row], float(chances[row, place])))
    note = f"Images for captions, mined by {name}, with a probability above one half to be right. {_ABOUT_LIKELY}"
    return examples, likely_pairs("Mined in the training set", note, gallery, pairs, _LIKELIEST * count)


def likely_answers(series: Series, gallery: SplitPictures, count: int) -> list[LikelyPairs]:
    """Return the wrong first answers of a model that judges call likelier right than not, in both directions.

    Args:
        series: whose first run is shown.
        gallery: of the split it was evaluated on.
        count: examples of the report.
    """
    run = series.first
    by_judges = (run.wrote(CORRECTED) or {}).get("by_judges")
    if by_judges is None:
        return []
    parts = []
    for side, (queries, answer) in {"i2t": ("images", "caption"), "t2i": ("captions", "image")}.items():
        pairs = []
        for image_id, caption_id, probability in by_judges["likely"][side]:
            pairs.append((gallery.image_row[image_id], gallery.caption_row[caption_id], probability))
        wrong = (run.rankings[side]["rank"].to_numpy() > 0).sum()
        note = (
            f"By {series.name}, seed {run.seed}: of {wrong:,} {queries} whose first {answer} is wrong, {len(pairs):,} "
            f"have one that is right with a probability above one half. {_ABOUT_LIKELY}"
        )
        title = f"Wrong first {answer}s in the {gallery.split.name} split"
        parts += likely_pairs(title, note, gallery, pairs, _LIKELIEST * count)
    return parts


def hardness(series: Sequence[Series], names: Mapping[str, str]) -> list[str]:
    """Say how hard the hardest negatives of the first model with mined ones are, in the mean over its seeds.

    A second sentence says how often the model that mined is wrong on the test set, if it was evaluated there.
    """
    for each in series:
        minings = [run.members[0].mining for run in by_seed(each).values()]
        known = [mining for mining in minings if mining and mining.manifest]
        if len(known) < len(minings):
            continue
        statistics = [read_json(mining.opened / STATISTICS) for mining in known]
        beaten = []
        for direction in _LISTS:
            beaten.append(mean([Number.of(beaten_percent(one, direction)) for one in statistics]))
        caption, image = beaten
        if caption is None or image is None:
            continue
        name = mining_name(known[0], names)
        if len(known) > 1:
            name += f" and its other seeds, mean of {len(known)}"
        training = (
            f"In the training set, the hardest caption scores at least as high as the own one in {caption.text} % of "
            f"the pairs, the hardest image in {image.text} %, by {name}."
        )
        for other in series:
            run = other.first
            if [member.artifact.name for member in run.members] == [first_model(known[0].inputs).name]:
                test = (
                    f"In the {run.settings['split']} split, from which it did not learn, it ranks a wrong caption "
                    f"first for {100 - score_of(other, 'i2t_r1').value:.1f} % of the images, a wrong image for "
                    f"{100 - score_of(other, 't2i_r1').value:.1f} % of the captions."
                )
                return [training, test]
        return [training]
    return []


# -- Written sentences


def written(
    artifacts: Iterable[ChainArtifact], gallery_of: Galleries, count: int, seed: int
) -> list[Table | EditedSentences]:
    """Tell what became of the sentences of each generator, with some of the hardest of the first, or twins.

    Args:
        artifacts: of all stages.
        gallery_of: see `Galleries`.
        count: captions.
        seed: of their choice.
    """
    rows, twins, others = [], [], []
    for each in artifacts:
        if each.stage != "synthesize" or each.manifest is None:
            continue
        statistics = read_json(each.opened / STATISTICS)
        drawn, true = statistics["drawn"], statistics.get("true_negatives")
        total = sum(drawn.values())
        cells: list[Number | None] = [Number(total, digits=0)]
        for name in ("kept", *_REJECTED):
            cells.append(Number(100 * drawn.get(name, 0) / total) if total else None)
        for name in ("words_changed", "beats_caption_percent"):
            cells.append(Number.of(statistics[name]))
        cells.append(Number(100 - true["percent"]) if true and true["sentences"] else None)
        rows.append(Row(generator_name(each), cells))
        kind = twins if each.manifest.settings.get("twins") else others
        kind.append(each)
    if not rows:
        return []
    columns = ["number", "kept, %", *(f"{each}, %" for each in _REJECTED.values())]
    table = Table(
        "Written sentences",
        [*columns, "places changed", "beat their caption, %", "still true, %"],
        rows,
        "Rejected are sentences that are the caption itself, appear twice, may be true of the image (all their "
        "new words are in its captions), are easier than those kept, or can be guessed without the image. Of the kept "
        "ones: places of the caption that were changed, in the mean; how many score higher with the image than their "
        "caption does, by the model that wrote them; and how many describe their image after all, where the scene "
        "behind it shows that.",
        head="generator",
    )
    for each in (*twins, *others):
        gallery = gallery_of(each, each.manifest.settings.get("split", TRAIN))
        examples = None if gallery is None else _written_examples(each, gallery, count, seed)
        if examples is not None:
            return [table, examples]
    return [table]


def generator_name(artifact: ChainArtifact) -> str:
    """Name a generator for people: what its configuration is shown as, who wrote, and an unusual seed or split."""
    assert artifact.manifest is not None
    settings, conf = artifact.manifest.settings, artifact.manifest.conf
    split = settings.get("split", TRAIN)  # manifests name no training split
    details = [conf_title("synthesize", conf) or conf]
    if settings.get("method"):
        writer = model_title(backbone_title(settings["backbone"]), method_title(settings["method"]))
        details.append(f"written by {writer}")
    if settings.get("seed"):
        details.append(f"seed {settings['seed']}")
    if split != TRAIN:
        details.append(f"of the {split} split")
    return ", ".join(details)


def _written_examples(artifact: ChainArtifact, gallery: SplitPictures, count: int, seed: int) -> EditedSentences | None:
    file = SentenceFile(artifact.folder)
    name = generator_name(artifact)
    captions = file.read(["caption_id"])["caption_id"].unique().to_pylist()
    chosen = [captions[place] for place in np.random.default_rng([seed, 20]).permutation(len(captions))[:count]]
    if not chosen:
        return None
    wanted = pc.field("caption_id").isin(chosen)
    rows = pa.concat_tables(each.filter(wanted) for each in file.row_groups(_SENTENCE)).to_pylist()
    twins = [row for row in rows if row["twin_image_id"]]
    if twins:
        return _twins(name, twins, gallery, count)
    images = []
    for caption_id, sentences in groupby(rows, key=lambda row: row["caption_id"]):
        caption = gallery.caption_row[caption_id]
        text = gallery.split.texts[caption]
        lines = []
        for number, row in enumerate(sentences):
            if number == 0:
                lines.append(Line("caption", [text], row["positive_score"]))
            if number < _HARDEST:
                lines.append(Line(str(number + 1), edited(text, row["text"]), row["score"]))
        images.append(EditedImage(gallery.own_picture(caption), lines))
    note = (
        f"{name}. Struck words of the caption were replaced by the underlined ones behind them. At "
        "the right the score with the image by the model that wrote."
    )
    return EditedSentences("Captions with the hardest sentences made of them", note, images)


def _twins(name: str, rows: list[dict[str, Any]], gallery: SplitPictures, count: int) -> EditedSentences:
    """Return some twins of each kind, the image before its twin."""
    most = -(-count // len({row["kind"] for row in rows}))
    shown = Counter[str]()
    images = []
    for row in rows:
        shown[row["kind"]] += 1
        if shown[row["kind"]] > most:
            continue
        own = int(gallery.split.caption_image[gallery.caption_row[row["caption_id"]]])
        twin = gallery.image_row[row["twin_image_id"]]
        images.append(EditedImage(gallery.picture(own), [Line("", [row["detail"]])]))
        images.append(EditedImage(gallery.picture(twin), [Line("", [row["twin_detail"]])], mirrored=twin == own))
    note = "Each text is true of its image and false of the other one of the two."
    return EditedSentences(f"{name[:1].upper()}{name[1:]}: details exchanged", note, images)


def edited(caption: str, sentence: str) -> list[tuple[str, str] | str]:
    """Cut a sentence into what it shares with its caption, and what was changed: the caption's words, and its own."""
    old, new = (re.findall(r"\w+|\W", text) for text in (caption, sentence))
    found: list[tuple[str, str] | str] = []
    for kind, start, stop, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        text = "".join(new[first:last])
        if kind == "equal":
            found.append(text)
        else:
            found.append(("".join(old[start:stop]), text))
    return found
