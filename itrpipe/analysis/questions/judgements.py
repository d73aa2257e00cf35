"""Agreement with people who were asked whether captions describe photographs: of judges, and of the evaluated model.

Kendall's τc of scores with the ratings of three experts, each as a pair of its own, and τb with a crowd's share of yes,
times 100; and the area under the ROC curve of telling pairs that fit from others, in percent. Where the evaluated split
has the photographs, also how many of the model's wrong answers fit, by their rank, and how well judges tell these.

Shapes: P pairs, J judges, T captions of the split.

Source: Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021, section 4.1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.judges import LOOKING, ask_judges, split_material
from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.analysis.questions.benchmarks import features_of, photographs_of
from itrpipe.datasets.benchmarks import Benchmark, Pair, named
from itrpipe.datasets.judgements import FOLDERS, JUDGEMENTS, Judgements, read_judgements
from itrpipe.datasets.paths import image_key
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.engine.work import Made, Runner, Work
from itrpipe.errors import UsageError
from itrpipe.evaluation.intervals import as_figures, mean_intervals
from itrpipe.evaluation.kendall import kendall
from itrpipe.evaluation.tables import Cells, Measured, Number, Table
from itrpipe.features.embeddings import SplitScores
from itrpipe.judging.calibration import area_under_curve
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.shares import wilson
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import AGREEMENT

if TYPE_CHECKING:
    from itrpipe.training.data import SplitImages

MODEL, TOGETHER = "", "judges together"
"""Names of the evaluated model, and of all judges, among judges."""
BY_RANK = "by rank"
"""Name of the model's wrong answers, beside judges."""
RANKS = {"1": (1, 1), "2–5": (2, 5), "6–20": (6, 20), "21–100": (21, 100)}
"""Name -> first and last rank among the wrong answers to a photograph."""
PUBLISHED = {"SPICE": (44.9, 24.4), "CLIPScore": (51.2, 34.4), "RefCLIPScore": (53.0, 36.4), "Polos": (56.4, 37.8)}
"""Metric -> τc of experts and τb of the crowd."""


def _cells(figures: Mapping[str, Any]) -> Cells:
    cells = {}
    for kind, measure in (("experts", "τc"), ("crowd", "τb")):
        cells[kind, measure] = Number(figures[kind]["tau"])
        cells[kind, "AUC"] = Number.of(figures[kind].get("auc"))
    return cells


class _Agreements(Measured):
    """A table with a row for each judge and model, and with published metrics."""

    def table(self, found: Sequence[tuple[str, Sequence[Any]]]) -> Table | None:
        """Return the table of several models and of the judges that were asked beside them."""
        rows = {}
        for model, contents in found:
            for content in contents:
                for name, figures in content.items():
                    if name == BY_RANK:
                        continue
                    if name == MODEL:
                        rows.setdefault(model, []).append(figures)
                    else:
                        rows[name] = [figures]
        if not rows:
            return None
        for metric, (experts, crowd) in PUBLISHED.items():
            rows[f"{metric}, published"] = [{"experts": {"tau": experts}, "crowd": {"tau": crowd}}]
        return super().table(list(rows.items()))


def _rank_cells(figures: Mapping[str, Any]) -> Cells:
    cells = {}
    for kind, ranks in figures.get(BY_RANK, {}).items():
        for rank, found in ranks.items():
            cells[kind, f"rank {rank}, pairs"] = Number(found["pairs"], digits=0)
            cells[kind, f"rank {rank}, right"] = Number.of(found["right"], unit=" %")
            for judge, area in found["auc"].items():
                cells[kind, f"rank {rank}, AUC of {judge}"] = Number.of(area)
    return cells


SHOWN = (
    _Agreements(
        "Agreement with people",
        AGREEMENT,
        _cells,
        "Of scores with people's answers whether a caption describes another photograph (Flickr8k): Kendall's tau, and "
        "the area under the ROC curve for a mean rating of 3 or more, or half of the crowd, times 100. Published "
        "numbers are of the whole set.",
    ),
    Measured(
        "Wrong answers that people call right, by rank",
        AGREEMENT,
        _rank_cells,
        "Of captions of other photographs, by the model's rank among these: pairs that people judged, how many are "
        "right, with an interval over photographs, and each judge's area under the ROC curve among them, times 100.",
        turned=True,
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure how far judges, and a single model, agree with people; the model where its photographs are there.

    Raises:
        UsageError, MissingInputError, DataError: see `judges_agreement`, and `itrpipe.analysis.questions.benchmarks`.
    """
    folders = [asked.folder for asked in map(named, evaluation.settings.benchmark) if asked.name == JUDGEMENTS]
    if not folders:
        return None
    judgements = read_judgements(folders[0])
    judges = evaluation.settings.judges
    log_odds = judged_pairs(judgements, judges, evaluation.job.made, evaluation.place)
    figures = judges_agreement(judgements, judges, log_odds)
    ranks = wrong_answer_ranks(judgements, split, split_material(evaluation, split).captions)
    if ranks.any():
        by_judge = dict(zip(judges, log_odds.T, strict=True))
        figures[BY_RANK] = figures_by_rank(judgements, ranks, by_judge, evaluation.sampling)
    files = judgements.photographs()
    if files:
        figures[MODEL] = _agreement(judgements, _model_scores(evaluation, judgements, files))
    else:
        evaluation.warn(
            f"{judgements.root}: the model is not asked, since {FOLDERS[0]} with the photographs is not there"
        )
    return figures


def compare_judges(folder: str, judges: Sequence[str], device: str = "auto", reporter: Reporter | None = None) -> Any:
    """Measure how far judges agree with people, without any model; see `judges_agreement`.

    Args:
        folder: of judgements, see `itrpipe.datasets.judgements`.
        judges, device: see `judges_agreement`.
        reporter: shows the progress; None where nobody looks.
    """
    judgements = read_judgements(folder)
    with TemporaryDirectory() as scratch:
        made = Runner(Path(scratch), reporter, warnings.warn).made
        return judges_agreement(judgements, judges, judged_pairs(judgements, judges, made, device))


def judged_pairs(
    judgements: Judgements, judges: Sequence[str], made: Callable[[Work, str], Made], device: str
) -> np.ndarray:
    """Let judges score all pairs, and return their log-odds [P, J].

    Args:
        judgements: of a folder.
        judges: names, see `itrpipe.judging.declaration.judge_name`.
        made: makes a map, see `itrpipe.stages.base.Job.made`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UsageError, MissingInputError, DataError: see `itrpipe.judging.opened.open_judge`, or there are no photographs
            for a judge that looks at them.
    """
    files = [judgements.root / file for file in judgements.photographs()]
    try:
        kinds = {judge_name(judge).kind for judge in judges}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not files and not kinds.isdisjoint(LOOKING):
        raise UsageError(
            f"--judge {' '.join(judges)} looks at photographs; put those of {JUDGEMENTS} into "
            f"{judgements.root / FOLDERS[0]}, or name captions or graphs"
        )
    photographs = None
    if files:
        from itrpipe.features.photographs import GivenPhotographs

        photographs = GivenPhotographs(files)
    material = Material(judgements.captions, judgements.owners, len(judgements.files), photographs)
    return ask_judges(judges, material, *judgements.pairs, made, JUDGEMENTS, device)


def judges_agreement(judgements: Judgements, judges: Sequence[str], log_odds: np.ndarray) -> dict[str, Any]:
    """Measure how far judges agree with people.

    Args:
        judgements: of a folder.
        judges: J names.
        log_odds: [P, J] of all pairs.

    Returns:
        Judge -> `experts` and `crowd`, each with `tau` and the `auc`; several judges also `TOGETHER`, by the mean of
        their log-odds.
    """
    figures = {}
    for judge, scores in zip(judges, log_odds.T, strict=True):
        figures[judge] = _agreement(judgements, scores)
    if len(judges) > 1:
        figures[TOGETHER] = _agreement(judgements, log_odds.mean(axis=1))
    return figures


def wrong_answer_ranks(judgements: Judgements, split: SplitScores, texts: Sequence[str]) -> np.ndarray:
    """Return the rank [P] of each pair's caption among all captions of other photographs by the model's scores.

    It is 0 where the split has no such photograph or caption. Captions are found by photograph and words, as the files
    of data sets number them in ways of their own.

    Args:
        judgements: of a folder.
        split: scores of the model.
        texts: T captions of the split.
    """
    image_rows = {image: row for row, image in enumerate(split.image_ids.tolist())}
    caption_rows = {}
    for row, (owner, text) in enumerate(zip(split.caption_image.tolist(), texts, strict=True)):
        caption_rows[owner, *tokenize(text)] = row
    photographs = [image_rows.get(image_key(PurePosixPath(file).stem), -1) for file in judgements.files]
    captions = []
    for text, owner in zip(judgements.captions, judgements.owners.tolist(), strict=True):
        captions.append(caption_rows.get((photographs[owner], *tokenize(text)), -1))

    images, rows = judgements.pairs
    images = np.array(photographs)[images]
    rows = np.array(captions)[rows]
    ranks = np.zeros(len(rows), np.int64)
    for image in np.unique(images[images >= 0]).tolist():
        judged = np.flatnonzero((images == image) & (rows >= 0))
        scores = split.matrix[image]
        wrong = np.sort(scores[split.caption_image != image])
        ranks[judged] = 1 + len(wrong) - np.searchsorted(wrong, scores[rows[judged]], "right")
    return ranks


def figures_by_rank(
    judgements: Judgements, ranks: np.ndarray, log_odds: Mapping[str, np.ndarray], sampling: tuple[int, float]
) -> dict[str, Any]:
    """Return what people say of the model's wrong answers, by their rank.

    Args:
        judgements: of a folder.
        ranks: [P] of `wrong_answer_ranks`.
        log_odds: judge -> [P].
        sampling: resampled sets of photographs, and the share of them inside an interval.

    Returns:
        `experts` and `crowd` -> name of `RANKS` -> `pairs`, the percent that is `right` with its interval over
        photographs, and the `auc` of each judge where some are right and some wrong.
    """
    figures = {}
    first_row = 0
    for kind, part in judgements.answers.items():
        rows = np.arange(first_row, first_row + len(part.fits))
        first_row += len(part.fits)
        figures[kind] = {}
        for name, (first, last) in RANKS.items():
            chosen = np.flatnonzero((ranks[rows] >= first) & (ranks[rows] <= last))
            if not len(chosen):
                continue
            fits = part.fits[chosen]
            areas = {}
            if fits.any() and not fits.all():
                areas = {judge: _area(scores[rows[chosen]], fits) for judge, scores in log_odds.items()}
            shares = as_figures(mean_intervals({"right": 100.0 * fits}, part.images[chosen], *sampling))
            figures[kind][name] = {"pairs": len(chosen), **shares, "auc": areas}
    return figures


def _agreement(judgements: Judgements, scores: np.ndarray) -> dict[str, Any]:
    """Return the figures of the scores [P] of all pairs, kind after kind."""
    figures = {}
    for kind, part in judgements.answers.items():
        own, scores = np.split(scores, [len(part.fits)])
        tau = kendall(np.repeat(own, part.values.shape[1]), part.values.ravel())
        figures[kind] = {"tau": 100 * (tau.c if kind == "experts" else tau.b), "auc": _area(own, part.fits)}
    return figures


def _area(scores: np.ndarray, fits: np.ndarray) -> dict[str, float]:
    """Return the area under the ROC curve in percent, with its interval."""
    area, size = area_under_curve(scores, fits)
    low, high = wilson(area, size)
    return {"value": 100 * area, "low": 100 * low, "high": 100 * high}


def _model_scores(evaluation: EvaluatedModel, judgements: Judgements, files: Sequence[str]) -> np.ndarray:
    """Return the scores [P] of the evaluated model, kind after kind."""
    from itrpipe.analysis.sentences import compared, sentence_parser

    sources = evaluation.sources()
    benchmark = Benchmark(judgements.root, [Pair(file, file, "", "") for file in files])
    _, photographs = photographs_of(benchmark, JUDGEMENTS, evaluation)
    pictures: SplitImages = photographs
    if sources.extract is not None:
        pictures = features_of(photographs, JUDGEMENTS, evaluation, sources.extract)
    ids = np.arange(len(judgements.files)).astype(str)
    texts = np.array(judgements.captions)
    captions = pa.table({"image_id": ids[judgements.owners], "text": texts})
    shown = Split("test", pa.table({"image_id": ids}), captions)
    _, first = np.unique(judgements.owners, return_index=True)
    images, rows = judgements.pairs
    sentences = pa.table({"image_id": ids[images], "text": texts[rows]})
    parse = sentence_parser(evaluation)
    scores, _ = compared(evaluation, parse, shown, pictures, sentences, first[images], JUDGEMENTS)
    return scores
