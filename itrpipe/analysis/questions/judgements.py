"""Agreement with people who were asked whether captions describe photographs: of judges, and of the evaluated model.

Kendall's τc of scores with the ratings of three experts, each as a pair of its own, and τb with a crowd's share of yes,
times 100; and the area under the ROC curve of telling pairs that fit from others, in percent. Where the evaluated split
has the photographs, also how many of the model's wrong answers fit, by their rank, and how well judges separate them.

Shapes: P pairs, T captions of the split.

Source: Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021, section 4.1.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.judges import LOOKING, ask_judges, split_material
from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.analysis.questions.benchmarks import pictures_of
from itrpipe.datasets.benchmarks import Benchmark, Pair, named
from itrpipe.datasets.judgements import FOLDERS, JUDGEMENTS, Judgements, read_judgements
from itrpipe.datasets.paths import image_key
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.engine.work import Made, Runner, Work
from itrpipe.errors import UsageError
from itrpipe.evaluation.intervals import mean_figures
from itrpipe.evaluation.kendall import kendall
from itrpipe.evaluation.tables import Cells, Content, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.judging.calibration import area_under_curve
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.shares import wilson
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import AGREEMENT

MODEL = "model"
"""Name of the evaluated model among judges."""
TOGETHER = "judges together"
"""Name of the mean of all judges among them."""
FIRST_RANKS = (1, 2, 6, 21, 101)
"""The first rank of each group; those from the last on are in none."""


def _cells(content: Content) -> Cells:
    cells = {}
    for name, kinds in content.items():
        for kind, figures in kinds.items():
            for measure, value in figures.items():
                digits = int(measure != "pairs")
                cells[f"{name}, {kind}:", measure] = Number.of(value, digits=digits)
    return cells


SHOWN = (
    Measured(
        "Agreement with people",
        AGREEMENT,
        _cells,
        "Of scores with people's answers whether a caption describes another photograph (Flickr8k): Kendall's tau (c "
        "of experts, b of the crowd) and the area under the ROC curve (auc) for a mean rating of 3 or more, or half of "
        "the crowd, times 100. Of the model's wrong answers by rank: judged pairs, how many are right, in percent with "
        "an interval over photographs, and the auc of the judges.",
        turned=True,
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure how far judges, and a single model, agree with people; the model where its photographs are there.

    Raises:
        UsageError, MissingInputError, DataError: see `judges_scores`, and `itrpipe.analysis.questions.benchmarks`.
    """
    benchmarks = map(named, evaluation.settings.benchmark)
    folders = [benchmark.folder for benchmark in benchmarks if benchmark.name == JUDGEMENTS]
    if not folders:
        return None
    judgements = read_judgements(folders[0])
    judges = evaluation.settings.judges
    scores = judges_scores(judgements, judges, evaluation.job.made, evaluation.place)
    *_, together = scores.values()
    files = judgements.photographs()
    if files:
        scores[MODEL] = _model_scores(evaluation, judgements, files)
    else:
        evaluation.warn(
            f"{judgements.root}: the model is not asked, since {FOLDERS[0]} with the photographs is not there"
        )
    texts = split_material(evaluation, split).captions
    ranks = wrong_answer_ranks(judgements, split, texts)
    by_rank = figures_by_rank(judgements, ranks, together, evaluation.sampling)
    return agreement(judgements, scores) | by_rank


def compare_judges(
    folder: str,
    judges: Sequence[str],
    device: str = "auto",
    reporter: Reporter | None = None,
) -> Any:
    """Measure how far judges agree with people, without any model; see `agreement`.

    Args:
        folder: of judgements, see `itrpipe.datasets.judgements`.
        judges, device: see `judges_scores`.
        reporter: shows the progress; None where nobody looks.
    """
    judgements = read_judgements(folder)
    with TemporaryDirectory() as scratch:
        made = Runner(Path(scratch), reporter, warnings.warn).made
        return agreement(judgements, judges_scores(judgements, judges, made, device))


def judges_scores(
    judgements: Judgements,
    judges: Sequence[str],
    made: Callable[[Work, str], Made],
    device: str,
) -> dict[str, np.ndarray]:
    """Let judges score all pairs.

    Args:
        judgements: of a folder.
        judges: names, see `itrpipe.judging.declaration.judge_name`.
        made: makes a map, see `itrpipe.stages.base.Job.made`.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        Judge -> log-odds [P]; of several judges the last is `TOGETHER`, their mean.

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
    material = Material(
        judgements.captions,
        judgements.owners,
        len(judgements.files),
        photographs,
    )
    log_odds = ask_judges(judges, material, *judgements.pairs, made, JUDGEMENTS, device)
    scores = dict(zip(judges, log_odds.T, strict=True))
    if len(judges) > 1:
        scores[TOGETHER] = log_odds.mean(axis=1)
    return scores


def agreement(judgements: Judgements, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Measure how far scores agree with people.

    Args:
        judgements: of a folder.
        scores: judge or model -> [P].

    Returns:
        Judge or model -> `experts` and `crowd`, each with `tau` and the `auc`.
    """
    figures = {}
    for name, scores_of_judge in scores.items():
        figures[name] = {}
        start = 0
        for kind, part in judgements.answers.items():
            pair_scores = scores_of_judge[start : start + len(part.fits)]
            start += len(part.fits)
            people = part.values.shape[1]
            tau = kendall(np.repeat(pair_scores, people), part.values.ravel())
            value = tau.b
            if kind == "experts":
                value = tau.c
            figures[name][kind] = {
                "tau": 100 * value,
                "auc": _area(pair_scores, part.fits),
            }
    return figures


def wrong_answer_ranks(
    judgements: Judgements,
    split: SplitScores,
    texts: Sequence[str],
) -> np.ndarray:
    """Return the rank [P] of each pair's caption among all captions of other photographs by the model's scores.

    It is 0 where the split has no such photograph or caption. Captions are found by photograph and words, as the files
    of data sets number them in ways of their own.

    Args:
        judgements: of a folder.
        split: scores of the model.
        texts: T captions of the split.
    """
    names = [image_key(PurePosixPath(file).stem) for file in judgements.files]
    image_rows = {image: row for row, image in enumerate(split.image_ids)}
    caption_rows = {}
    for row, (owner, text) in enumerate(zip(split.caption_image, texts, strict=True)):
        caption_rows[split.image_ids[owner], *tokenize(text)] = row
    ranks = []
    for image, caption in zip(*judgements.pairs, strict=True):
        owner = names[judgements.owners[caption]]
        words = tokenize(judgements.captions[caption])
        row = image_rows.get(names[image])
        column = caption_rows.get((owner, *words))
        rank = 0
        if row is not None and column is not None:
            is_above = split.matrix[row] > split.matrix[row, column]
            is_wrong = split.caption_image != row
            rank = 1 + (is_above & is_wrong).sum()
        ranks.append(rank)
    return np.array(ranks)


def figures_by_rank(
    judgements: Judgements,
    ranks: np.ndarray,
    scores: np.ndarray,
    sampling: tuple[int, float],
) -> dict[str, Any]:
    """Return the shares of right ones among the model's wrong answers, by their rank, as people judge them.

    Args:
        judgements: of a folder.
        ranks: [P] of `wrong_answer_ranks`.
        scores: [P] of the judges together.
        sampling: resampled sets of photographs, and the share of them inside an interval.

    Returns:
        Ranks -> `experts` and `crowd`, each with the number of `pairs`, the percent that is `right` with its interval
        over photographs, and the `auc` of the judges, None where all are right or wrong.
    """
    by_rank = {}
    start = 0
    for kind, part in judgements.answers.items():
        rows = slice(start, start + len(part.fits))
        start = rows.stop
        pair_ranks = ranks[rows]
        pair_scores = scores[rows]
        for first, end in itertools.pairwise(FIRST_RANKS):
            chosen = (pair_ranks >= first) & (pair_ranks < end)
            if not chosen.any():
                continue
            fits = part.fits[chosen]
            figures = {
                "pairs": len(fits),
                "auc": _area(pair_scores[chosen], fits),
            }
            percent = {"right": 100.0 * fits}
            figures |= mean_figures(percent, part.images[chosen], *sampling)
            by_rank.setdefault(f"ranks {first} to {end - 1}", {})[kind] = figures
    return by_rank


def _area(scores: np.ndarray, fits: np.ndarray) -> dict[str, float] | None:
    """Return the area under the ROC curve in percent, with its interval; None where all fit, or none does."""
    if fits.all() or not fits.any():
        return None
    area, size = area_under_curve(scores, fits)
    low, high = wilson(area, size)
    return {"value": 100 * area, "low": 100 * low, "high": 100 * high}


def _model_scores(
    evaluation: EvaluatedModel,
    judgements: Judgements,
    files: Sequence[str],
) -> np.ndarray:
    """Return the scores [P] of the evaluated model, kind after kind."""
    from itrpipe.analysis.sentences import compared, sentence_parser

    pairs = [Pair(file, file, "", "") for file in files]
    benchmark = Benchmark(judgements.root, pairs)
    _, pictures = pictures_of(benchmark, JUDGEMENTS, evaluation)
    ids = np.arange(len(judgements.files)).astype(str)
    texts = np.array(judgements.captions)
    captions = pa.table({"image_id": ids[judgements.owners], "text": texts})
    shown = Split("test", pa.table({"image_id": ids}), captions)
    images, rows = judgements.pairs
    sentences = pa.table({"image_id": ids[images], "text": texts[rows]})
    _, first = np.unique(judgements.owners, return_index=True)
    parse = sentence_parser(evaluation)
    scores, _ = compared(evaluation, parse, shown, pictures, sentences, first[images], JUDGEMENTS)
    return scores
