"""The model of HanTa: which file is read, that no other one is, and that nothing in it runs."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import HanTa
import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError, UnavailableError
from itrpipe.scene_graph import hanta
from itrpipe.scene_graph.hanta import MODEL, DataUnpickler, read_hanta_model

PACKAGE = Path(HanTa.__path__[0])


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.mark, "executed")


def write_hostile(folder: Path) -> Path:
    """Writes a model that leaves a mark, and returns where."""
    mark = folder / "MARK"
    (folder / MODEL).write_bytes(gzip.compress(pickle.dumps(Hostile(mark))))
    return mark


def test_the_model_is_what_hanta_itself_would_load() -> None:
    with gzip.open(PACKAGE / MODEL) as stream:
        assert read_hanta_model(PACKAGE) == pickle.load(stream)


def test_another_model_in_the_package_is_refused(tmp_path: Path) -> None:
    mark = write_hostile(tmp_path)
    digest = hashlib.sha256((tmp_path / MODEL).read_bytes()).hexdigest()
    with pytest.raises(DataError, match=rf"{MODEL} is not the model of .*{digest[:12]}… .*--tagger lexicon$"):
        read_hanta_model(tmp_path)
    assert not mark.exists()


def test_a_model_that_is_not_there_and_one_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingInputError, match=f"{MODEL}, the model .* --tagger lexicon$"):
        read_hanta_model(tmp_path)

    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UnavailableError, match=f"{MODEL} cannot be read or written now"):
        read_hanta_model(PACKAGE)


@pytest.mark.parametrize("content", [Path("x"), OrderedDict(), print, np.zeros(2)])
def test_what_is_no_data_is_not_loaded(content: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="the model names"):
        DataUnpickler(io.BytesIO(pickle.dumps((1, content)))).load()


def test_nothing_runs_even_where_the_digest_would_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = write_hostile(tmp_path)
    monkeypatch.setattr(hanta, "SHA256", hashlib.sha256((tmp_path / MODEL).read_bytes()).hexdigest())
    with pytest.raises(pickle.UnpicklingError, match=r"the model names pathlib"):
        read_hanta_model(tmp_path)
    assert not mark.exists()


def test_plain_data_and_numbers_of_numpy_come_back() -> None:
    content = ({"a": [1, 2.5, (3, None)]}, {True}, np.float64(-0.1), b"x")
    loaded = DataUnpickler(io.BytesIO(pickle.dumps(content, 4))).load()
    assert loaded == content
    assert type(loaded[2]) is float
