"""Every importer against one contract: it finds what a tool has written, reads it in any blocks, and refuses damage."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.importers.base import checked
from itrpipe.features.importers.matching import WantedImage, match
from itrpipe.features.registry import importer_module, importers
from tests.features.layouts import GRID, LAYOUTS, Image, Layout, images


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def opened(layout: Layout, path: Path) -> Any:
    found = importer_module(layout.kind).layout(path)
    if found is None or found.lacks:
        raise DataError(f"{path}: {found}")
    return importer_module(layout.kind).open_source(path, importers()[layout.kind](kind=layout.kind, **layout.settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def imported(layout: Layout, path: Path, made: list[Image], block: int = 2) -> list[dict[str, np.ndarray]]:
    """The rows of these images as they reach the store, read block by block in the order of the source."""
    source = opened(layout, path)
    wanted = [WantedImage(image["name"], f"{image['name']}.jpg", image["captions"]) for image in made]
    found = match(source, wanted)
    sizes = np.array([image["size"] for image in made])
    rows: list[dict[str, np.ndarray]] = [{} for _ in made]
    order = np.argsort(found.entries)
    for start in range(0, len(order), block):
        part = order[start : start + block]
        arrays = checked(source, [made[row]["name"] for row in part], found.entries[part], sizes[part])
        for position, row in enumerate(part):
            rows[row] = {name: values[position] for name, values in arrays.items()}
    return rows


def assert_equal(layout: Layout, rows: list[dict[str, np.ndarray]], made: list[Image]) -> None:
    for row, image in zip(rows, made, strict=True):
        regions = len(image["regions"])
        expected = image | {"count": regions} | ({"boxes": GRID} if "grid" in layout.settings else {})
        for name, values in row.items():
            beyond = name not in ("count", "global")
            np.testing.assert_array_equal(values[:regions] if beyond else values, expected[name], err_msg=name)
            assert not beyond or not values[regions:].any()


def test_every_importer_has_a_layout_here() -> None:
    assert {layout.kind for layout in LAYOUTS.values()} == importers().keys()


@pytest.mark.parametrize("block", [1, 4, 100])
def test_what_was_written_is_read_in_any_order_and_any_blocks(layout: Layout, folder: Path, block: int) -> None:
    made = images(layout.ragged)
    path = layout.write(folder, made)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    order = [made[number] for number in (4, 0, 5, 3, 1)]
    assert_equal(layout, imported(layout, path, order, block), order)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_it_is_described_and_no_other_importer_takes_it(layout: Layout, folder: Path) -> None:
    path = layout.write(folder, images(layout.ragged))
    source = opened(layout, path)
    assert source.spec.shapes().keys() == layout.holds - {"size"}
    wanted = [WantedImage(image["name"], "x.jpg", image["captions"]) for image in images()]
    assert match(source, wanted).by_captions == 6 * layout.by_captions
    assert (source.path, len(source.names), "\n" in source.summary) == (path, 6, False)
    known = {kind: importer_module(kind).layout(path) for kind in importers()}
    assert [kind for kind, found in known.items() if found and not found.lacks] == [layout.kind]
    files = importer_module(layout.kind).layout(path).files
    assert set(files) == {file for file in [path, *path.rglob("*")] if file.is_file()}


WRONG = [
    ("regions", (1, 2), np.nan),
    ("regions", (1, 2), 1e5),
    ("scores", 1, np.inf),
    ("attribute_scores", 1, np.nan),
    ("attributes", 1, 40_000),
    ("attributes", 1, -1),
    ("global", 0, np.inf),
    ("boxes", 1, [0, 0, 1.2, 1]),
    ("boxes", 1, [-0.2, 0, 1, 1]),
    ("boxes", 1, [0.5, 0, 0.2, 1]),
    ("boxes", 1, [0, 0.5, 1, 0.2]),
    ("boxes", 1, np.nan),
    ("size", ..., None),
]


@pytest.mark.parametrize(("name", "place", "value"), WRONG)
def test_values_that_cannot_be_are_refused_with_the_image(
    layout: Layout, folder: Path, name: str, place: Any, value: Any
) -> None:
    if name not in layout.holds or (name == "boxes" and "grid" in layout.settings):
        pytest.skip("not stored")
    good, bad = images(layout.ragged), images(layout.ragged)
    if name == "size":
        bad[1]["size"] = (512, 250)
    else:
        bad[1][name][place] = value
    path = layout.write(folder, bad)
    with pytest.raises(DataError) as caught, np.errstate(invalid="ignore", over="ignore"):
        imported(layout, path, good)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert bad[1]["name"] in str(caught.value) or "image 1" in str(caught.value)
    imported(layout, path, [good[0], good[2]], block=1)


def test_a_file_that_is_cut_off_or_gone_is_an_error(layout: Layout, folder: Path) -> None:
    made, path = images(layout.ragged), layout.write(folder, images(layout.ragged))
    for file in importer_module(layout.kind).layout(path).files:
        whole = file.read_bytes()
        for length in {0, 1, len(whole) // 2, len(whole) - 30, len(whole) - 4} if file.suffix != ".txt" else ():
            file.write_bytes(whole[:length])
            with pytest.raises(ItrpipeError) as caught:
                imported(layout, path, made)
            assert "\n" not in str(caught.value)
        file.write_bytes(whole)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9), bits=st.integers(1, 255))
def test_random_damage_is_an_error_or_harmless(layout: Layout, folder: Path, seed: int, bits: int) -> None:
    made = images(layout.ragged)
    (own := folder / str(len(list(folder.iterdir())))).mkdir()
    path = layout.write(own, made)
    file = random.Random(seed).choice(importer_module(layout.kind).layout(path).files)
    content = bytearray(file.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= bits
    file.write_bytes(content)
    with contextlib.suppress(ItrpipeError):
        for row in imported(layout, path, made):
            assert all(np.isfinite(values).all() for values in row.values())


def test_importers_are_light_to_import() -> None:
    """Plans ask which importer knows a path; that must not load what only reading needs."""
    names = ", ".join(f"itrpipe.features.importers.{kind.replace('-', '_')}.importer" for kind in importers())
    heavy = {"h5py", "torch", "PIL", "lmdb", "msgpack", "lz4", "pyarrow", "transformers"}
    code = f"import sys, {names}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
