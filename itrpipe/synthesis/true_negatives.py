"""How many negative sentences are true negatives, for a dataset whose pictures are known exactly.

Elsewhere this takes people who look at images; TAGS-DC had 96.5 % of its sentences found to be true negatives that way.
The embedded dataset `scenes` has logical forms: a sentence is read as one and judged against the scene of its image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from itrpipe.errors import DataError
from itrpipe.scenes import Scene, describes
from itrpipe.scenes.build import read_described
from itrpipe.scenes.readback import CaptionReader
from itrpipe.synthesis.english import ARTICLES, NUMBER_VALUES
from itrpipe.synthesis.sentences import SentenceFile

VERDICTS = ("untrue", "true", "undecided", "unreadable")
"""What a sentence is of its image.

`undecided` is what would be true but for a word that the dataset has no truth about, such as the size of a bird;
`unreadable` where the grammar of the captions has no such sentence.
"""
_NUMBERS = {word: value for word, value in NUMBER_VALUES.items() if word not in ARTICLES}


class SceneJudge:
    """Judges sentences against the scenes of images.

    Args:
        scenes: image_id -> scene.
    """

    def __init__(self, scenes: Mapping[str, Scene]) -> None:
        self._scenes = scenes
        self._reader = CaptionReader(_NUMBERS)

    def verdict(self, text: str, image_id: str) -> str:
        """One of `VERDICTS`; a sentence that can mean several things is true when one of them is.

        Raises:
            KeyError: there is no such image.
        """
        scene = self._scenes[image_id]
        readings = self._reader.readings(text)
        if not readings:
            return "unreadable"
        found = {reading.certain for reading in readings if describes(reading.form, scene)}
        return "true" if True in found else "undecided" if found else "untrue"


def read_scenes(path: Path) -> dict[str, Scene]:
    """The scenes of a prepared dataset.

    Args:
        path: `scenes.jsonl`.

    Returns:
        image_id -> scene.

    Raises:
        DataError: a line is damaged.
    """
    return {image_id: described.scene for image_id, described in read_described(path).items()}


def true_negatives(
    file: SentenceFile, scenes: Mapping[str, Scene], advance: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Figures on the sentences of a file, ready for JSON.

    Args:
        file: the sentences.
        scenes: image_id -> scene.
        advance: called with the number of sentences judged since.

    Returns:
        Of the kept sentences: `sentences`, how many there are, and how many of each verdict; `percent_of_decided`, the
        share of untrue ones among the untrue and the true; `percent`, the share of all that is not found true. Under
        `by_places_changed` the same for each number of edits, and under `rejected` for each reason that sentences in
        the file were rejected for, which tells how right the filters are. A share of nothing is None.

    Raises:
        DataError: a sentence is of an unknown image, or the file is damaged.
    """
    judge = SceneJudge(scenes)
    kept: dict[int, Counter[str]] = {}
    rejected: dict[str, Counter[str]] = {}
    for table in file.row_groups(("image_id", "text", "edits", "kept", "reason")):
        places = pc.call_function("list_value_length", [table["edits"]]).to_pylist()
        columns = (table[name].to_pylist() for name in ("image_id", "text", "kept", "reason"))
        for image_id, text, is_kept, reason, changed in zip(*columns, places, strict=True):
            if image_id not in scenes:
                raise DataError(f"{file.path}: no scene of the dataset is image {image_id!r}; synthesize again")
            counts = kept.setdefault(changed, Counter()) if is_kept else rejected.setdefault(reason, Counter())
            counts[judge.verdict(text, image_id)] += 1
        if advance is not None:
            advance(len(table))
    return {
        **_figures(sum(kept.values(), Counter())),
        "by_places_changed": {str(changed): _figures(kept[changed]) for changed in sorted(kept)},
        "rejected": {reason: _figures(rejected[reason]) for reason in sorted(rejected)},
    }


def _figures(counts: Mapping[str, int]) -> dict[str, Any]:
    """See `true_negatives`."""
    by_verdict = {verdict: counts.get(verdict, 0) for verdict in VERDICTS}
    total, untrue, true = sum(by_verdict.values()), by_verdict["untrue"], by_verdict["true"]
    return {
        "sentences": total,
        **by_verdict,
        "percent_of_decided": _percent(untrue, untrue + true),
        "percent": _percent(total - true, total),
    }


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None
