"""How many negative sentences score below the captions that they were made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.declared import conf_title
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import DISCRIMINATION, read_manifest
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def _cells(found: Mapping[str, Any]) -> Cells:
    return {
        ("", f"{_title(name)} ({each['sentences']:,} sentences)"): Number.of(each["percent"])
        for name, each in found.items()
    }


def _title(generator: str) -> str:
    """`phrases.tags.s1` is what its configuration is shown as, who wrote it, and the seed."""
    conf, *writers = generator.split(".")
    seeds = [f"seed {each[1:]}" for each in writers if re.fullmatch("s[0-9]+", each)]
    names = [f"written by {conf_title('train', each) or each}" for each in writers if not re.fullmatch("s[0-9]+", each)]
    return ", ".join([conf_title("synthesize", conf) or conf, *names, *seeds])


SHOWN = (
    Measured(
        "Sentences told from their captions",
        DISCRIMINATION,
        _cells,
        "Negative sentences that were made of captions of the split; in percent, how many score below their caption "
        "with its image. Ties count as wrong; 50 % is chance.",
        turned=True,
    ),
)


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
    from itrpipe.training.splits import Sources

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
