"""What others import: every public name is there and says what it is."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

ROOMS = ("itrpipe", "itrpipe.learning", "itrpipe.methods.aoq.method", "itrpipe.methods.fne.method", "itrpipe.testing")


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_docstrings(room: str) -> None:
    module = importlib.import_module(room)
    assert module.__doc__
    named = {name: getattr(module, name) for name in module.__all__}
    callables = {name: each for name, each in named.items() if callable(each)}
    assert callables
    for name, each in callables.items():
        own = vars(each).items() if inspect.isclass(each) else ()
        methods = {f"{name}.{key}": value for key, value in own if callable(value) or isinstance(value, property)}
        for label, found in {name: each, **methods}.items():
            if not label.rpartition(".")[2].startswith("_"):
                assert (found.__doc__ or "").strip(), label


def test_the_library_is_imported_when_it_is_used() -> None:
    code = "import sys, itrpipe; assert 'load' in dir(itrpipe); print('torch' in sys.modules, itrpipe.mine.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "mine"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import itrpipe

    with pytest.raises(AttributeError, match="module 'itrpipe' has no attribute 'lode'"):
        _ = itrpipe.lode  # type: ignore[attr-defined]
