"""The English model of HanTa, read as data: from its package alone, with known content, and without running any."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.disk import is_unavailable, unavailable

MODEL = "morphmodel_en.pgz"
SHA256 = "99ddc9b14b3fe604b245e2d7a3aef59ab1bdd06b1bae4f4ce74738902e2a0265"
"""File of the model in HanTa 1.2.1, wheel and source distribution."""
REMEDY = "pip install --force-reinstall HanTa==1.2.1, or choose --tagger lexicon"


def read_model(package: Path) -> tuple[Any, ...]:
    """The tables of the model, which `HanoverTagger` takes in place of a file.

    Args:
        package: folder of the installed HanTa.

    Raises:
        MissingInputError: the model is not there.
        DataError: it is another one.
        UnavailableError: it cannot be read now.
    """
    path = package.absolute() / MODEL
    try:
        content = path.read_bytes()
    except OSError as error:
        if is_unavailable(error):
            raise unavailable(error, path) from None
        raise MissingInputError(f"{path}, the model of the tagger hanta, is not there; {REMEDY}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise DataError(f"{path} is not the model of HanTa 1.2.1 (sha256 {found[:12]}… for {SHA256[:12]}…); {REMEDY}")
    return decode(gzip.decompress(content))


def decode(content: bytes) -> tuple[Any, ...]:
    """The content of a pickle that holds builtin containers, text, numbers and NumPy's float64, which become floats.

    Raises:
        pickle.UnpicklingError: it names anything else.
    """
    return _DataUnpickler(io.BytesIO(content)).load()


class _Float64:
    """In place of `numpy.dtype`; the model holds no other type than float64."""

    def __init__(self, name: str, align: bool, copy: bool) -> None:
        if name != "f8":
            raise pickle.UnpicklingError(f"the model holds numbers of type {name!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError(f"the model holds numbers of byte order {state[1]!r}")


def _scalar(kind: _Float64, content: bytes) -> float:
    """In place of `numpy._core.multiarray.scalar`."""
    (value,) = struct.unpack("<d", content)
    return value


class _DataUnpickler(pickle.Unpickler):
    """Loads nothing by name: the two names that the model has stand for functions of this module."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = {("numpy", "dtype"): _Float64, ("numpy._core.multiarray", "scalar"): _scalar}
        if (module_name, global_name) not in known:
            raise pickle.UnpicklingError(f"the model names {module_name}.{global_name}, which is no data")
        return known[module_name, global_name]
