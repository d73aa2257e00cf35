"""Agreement with people who were asked whether captions describe photographs: of judges, and of the evaluated model.

Kendall's τc of scores with the ratings of three experts, each as a pair of its own, and τb with a crowd's share of yes,
times 100; and the area under the ROC curve of telling pairs that fit from others, in percent.

Source: Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021, section 4.1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.judges import LOOKING, ask_judges
from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.analysis.questions.benchmarks import features_of, photographs_of
from itrpipe.datasets.benchmarks import Benchmark, Pair, named
from itrpipe.datasets.judgements import FOLDERS, JUDGEMENTS, Judgements, read_judgements
from itrpipe.datasets.prepared import Split
from itrpipe.engine.work import Made, Runner, Work
from itrpipe.errors import UsageError
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


SHOWN = (
    _Agreements(
        "Agreement with people",
        AGREEMENT,
        _cells,
        "Of scores with people's answers whether a caption describes another photograph (Flickr8k): Kendall's tau, and "
        "the area under the ROC curve for a mean rating of 3 or more, or half of the crowd, times 100. Published "
        "numbers are of the whole set.",
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
    figures = judges_agreement(judgements, evaluation.settings.judges, evaluation.job.made, evaluation.place)
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
        return judges_agreement(judgements, judges, made, device)


def judges_agreement(
    judgements: Judgements, judges: Sequence[str], made: Callable[[Work, str], Made], device: str
) -> dict[str, Any]:
    """Measure how far judges agree with people.

    Args:
        judgements: of a folder.
        judges: names, see `itrpipe.judging.declaration.judge_name`.
        made: makes a map, see `itrpipe.stages.base.Job.made`.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        Judge -> `experts` and `crowd`, each with `tau` and the `auc`; several judges also `TOGETHER`, by the mean of
        their log-odds.

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
        figures[judge] = _agreement(judgements, scores)
    if len(judges) > 1:
        figures[TOGETHER] = _agreement(judgements, log_odds.mean(axis=1))
    return figures


def _agreement(judgements: Judgements, scores: np.ndarray) -> dict[str, Any]:
    """Return the figures of the scores [P] of all pairs, kind after kind."""
    figures = {}
    for kind, part in judgements.answers.items():
        own, scores = np.split(scores, [len(part.fits)])
        tau = kendall(np.repeat(own, part.values.shape[1]), part.values.ravel())
        area, size = area_under_curve(own, part.fits)
        low, high = wilson(area, size)
        figures[kind] = {
            "tau": 100 * (tau.c if kind == "experts" else tau.b),
            "auc": {"value": 100 * area, "low": 100 * low, "high": 100 * high},
        }
    return figures


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
