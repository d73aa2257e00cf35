"""Agreement with people who were asked whether captions describe photographs: of judges, and of the evaluated model.

Kendall's τc of scores with the ratings of three experts, each as a pair of its own, and τb with a crowd's share of yes,
times 100; and the area under the ROC curve of telling pairs that fit from others, in percent. Where the evaluated split
has the photographs, also how many of the model's wrong answers fit, by their rank, and how well these are told apart.

Shapes: P pairs, T captions of the split.

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
from itrpipe.datasets.judgements import FOLDERS, JUDGEMENTS, Answers, Judgements, read_judgements
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
from itrpipe.storage.tables import rows_of

if TYPE_CHECKING:
    from itrpipe.training.data import SplitImages

MODEL, TOGETHER = "", "judges together"
"""Names of the evaluated model, and of all judges, among judges."""
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
                    if name == MODEL:
                        rows.setdefault(model, []).append(figures)
                    else:
                        rows[name] = [figures]
        if not rows:
            return None
        for metric, (experts, crowd) in PUBLISHED.items():
            rows[f"{metric}, published"] = [{"experts": {"tau": experts}, "crowd": {"tau": crowd}}]
        return super().table(list(rows.items()))


def _rank_cells(content: Mapping[str, Any]) -> Cells:
    cells = {}
    for judge, kinds in content.items():
        for kind, figures in kinds.items():
            for rank, found in figures["ranks"].items():
                cells[kind, f"rank {rank}, pairs"] = Number(found["pairs"], digits=0)
                cells[kind, f"rank {rank}, right"] = Number.of(found["right"], unit=" %")
                if judge != MODEL:
                    cells[kind, f"rank {rank}, AUC of {judge}"] = Number.of(found["auc"])
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
        "right, with an interval over photographs, and the area under the ROC curve of each judge among them.",
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
    ranks = wrong_answer_ranks(judgements, split, split_material(evaluation, split).captions)
    sampling = evaluation.sampling
    judges = evaluation.settings.judges
    figures = judges_agreement(judgements, judges, evaluation.job.made, evaluation.place, ranks, sampling)
    files = judgements.photographs()
    if files:
        figures[MODEL] = _agreement(judgements, _model_scores(evaluation, judgements, files), ranks, sampling)
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
        return judges_agreement(judgements, judges, made, device)


def judges_agreement(
    judgements: Judgements,
    judges: Sequence[str],
    made: Callable[[Work, str], Made],
    device: str,
    ranks: np.ndarray | None = None,
    sampling: tuple[int, float] = (0, 0.0),
) -> dict[str, Any]:
    """Measure how far judges agree with people.

    Args:
        judgements: of a folder.
        judges: names, see `itrpipe.judging.declaration.judge_name`.
        made: makes a map, see `itrpipe.stages.base.Job.made`.
        device: `auto`, `cpu` or `cuda`.
        ranks: [P] of `wrong_answer_ranks`; None without a model.
        sampling: resampled sets of photographs, and the share of them inside an interval.

    Returns:
        Judge -> `experts` and `crowd`, each with `tau`, the `auc` and `ranks`: name of `RANKS` -> `pairs`, the percent
        that is `right`, and the `auc` among them, None where all are right or wrong. Several judges also `TOGETHER`, by
        the mean of their log-odds.

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
    log_odds = ask_judges(judges, material, *judgements.pairs, made, JUDGEMENTS, device)
    figures = {}
    for judge, scores in zip(judges, log_odds.T, strict=True):
        figures[judge] = _agreement(judgements, scores, ranks, sampling)
    if len(judges) > 1:
        figures[TOGETHER] = _agreement(judgements, log_odds.mean(axis=1), ranks, sampling)
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
    names = np.array([image_key(PurePosixPath(file).stem) for file in judgements.files])
    photographs = rows_of(pa.array(names), pa.array(split.image_ids))
    known = _named_captions(split.image_ids[split.caption_image], texts)
    captions = rows_of(_named_captions(names[judgements.owners], judgements.captions), known)
    ranks = []
    for image, caption in np.stack(judgements.pairs, axis=1).tolist():
        row, column = photographs[image], captions[caption]
        scores = split.matrix[row]
        above = (scores > scores[column]) & (split.caption_image != row)
        ranks.append(1 + above.sum() if min(row, column) >= 0 else 0)
    return np.array(ranks)


def _named_captions(images: np.ndarray, captions: Sequence[str]) -> pa.Array:
    return pa.array([" ".join([image, *tokenize(text)]) for image, text in zip(images, captions, strict=True)])


def _agreement(
    judgements: Judgements, scores: np.ndarray, ranks: np.ndarray | None, sampling: tuple[int, float]
) -> dict[str, Any]:
    """Return the figures of the scores [P] of all pairs, kind after kind; see `judges_agreement`."""
    figures = {}
    for kind, part in judgements.answers.items():
        own, scores = np.split(scores, [len(part.fits)])
        tau = kendall(np.repeat(own, part.values.shape[1]), part.values.ravel())
        figures[kind] = {
            "tau": 100 * (tau.c if kind == "experts" else tau.b),
            "auc": _area(own, part.fits),
            "ranks": {},
        }
        if ranks is not None:
            placed, ranks = np.split(ranks, [len(part.fits)])
            figures[kind]["ranks"] = _by_rank(part, own, placed, sampling)
    return figures


def _by_rank(part: Answers, scores: np.ndarray, ranks: np.ndarray, sampling: tuple[int, float]) -> dict[str, Any]:
    found = {}
    for name, (first, last) in RANKS.items():
        rows = np.flatnonzero((ranks >= first) & (ranks <= last))
        if len(rows):
            fits = part.fits[rows]
            right = as_figures(mean_intervals({"right": 100.0 * fits}, part.images[rows], *sampling))
            found[name] = {**right, "pairs": len(rows), "auc": _area(scores[rows], fits)}
    return found


def _area(scores: np.ndarray, fits: np.ndarray) -> dict[str, float] | None:
    """Return the area under the ROC curve in percent, with its interval; None where all fit, or none does."""
    if fits.all() or not fits.any():
        return None
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
