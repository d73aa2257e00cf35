"""How many negative sentences score below the captions that they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import DISCRIMINATION, read_manifest
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import read_checked_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models, where generators of sentences are named."""
    return evaluation.is_single and bool(evaluation.settings.discriminate)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes discrimination.json.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: sentences are of other captions.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    from itrpipe.analysis.discrimination import SentenceJudge, discrimination
    from itrpipe.training.data import Sources

    settings = evaluation.settings
    sources = Sources(evaluation.existing("prepare"), evaluation.existing("extract"))
    parse = evaluation.sentence_parser()
    judge = SentenceJudge.open(
        evaluation.trained, sources, settings.split, split.image_ids, evaluation.place, evaluation.block, parse
    )
    found = {}
    for name, folder in evaluation.sentences.items():
        both = read_manifest(folder).metrics["kept"] + len(split.caption_ids)
        with evaluation.reporter.task(f"scoring {name}", both, "captions and sentences") as task:
            judged = judge.judge(folder, task.advance, evaluation.warn)
        found[name] = discrimination(judged, settings.bootstrap_samples, settings.interval_level)
        if found[name]["percent"] is not None:
            evaluation.metrics[f"told from {name}"] = f"{found[name]['percent']['value']:.1f} %"
    write_json(evaluation.folder / DISCRIMINATION, found)


def say(folder: Path, reporter: Reporter) -> None:
    """Prints what discrimination.json says, where there is one."""
    path = folder / DISCRIMINATION
    for name, found in (read_checked_json(path) if path.is_file() else {}).items():
        if found["percent"] is None:
            reporter.say(f"  {name}: no sentences")
            continue
        value, low, high = (found["percent"][key] for key in ("value", "low", "high"))
        reporter.say(
            f"  {name}: {value:.1f} % ({low:.1f} to {high:.1f}) of {found['sentences']:,} sentences score below their "
            "caption"
        )
