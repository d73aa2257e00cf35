"""Scenes with their captions as the prepared dataset keeps them: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from itrpipe.errors import DataError
from itrpipe.scenes.forms import Caption
from itrpipe.scenes.layout import Scene
from itrpipe.storage.integrity import checked


class DescribedScene(NamedTuple):
    """A scene and the captions that were written of it."""

    scene: Scene
    captions: tuple[Caption, ...]


def read_described(path: Path) -> dict[str, DescribedScene]:
    """Reads the scenes of a prepared dataset.

    Args:
        path: `scenes.jsonl`.

    Returns:
        image_id -> the scene and its captions.

    Raises:
        DataError: a line is damaged.
    """
    found: dict[str, DescribedScene] = {}
    with checked(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                scene, captions = Scene.from_json(record["scene"]), map(Caption.from_json, record["captions"])
                found[scene.image_id] = DescribedScene(scene, tuple(captions))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}: line {number} is damaged ({error}); run `itrpipe prepare` again") from None
    return found
