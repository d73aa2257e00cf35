"""TSV files of the bottom-up-attention tools: how they differ from one another, and lines that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.features.importers.butd_tsv.declaration import ButdTsv
from itrpipe.features.importers.butd_tsv.importer import TsvSource, layout, open_source
from tests.features.layouts import LAYOUTS, encoded, images, tsv, tsv_line
from tests.features.test_importers import assert_equal, imported


def opened(path: Path) -> TsvSource:
    return open_source(path, ButdTsv(kind="butd-tsv"))


@pytest.mark.parametrize("columns", [6, 10])
@pytest.mark.parametrize("form", ["{}", "b'{}'", 'b"{}"', "unpadded", "without an end"])
def test_habits_of_tools_are_read(tmp_path: Path, columns: int, form: str) -> None:
    """Texts of bytes, as Python 3 writes them; base64 without padding; blank lines; a last line without its end."""
    lines = [tsv_line(image, columns) for image in images()]
    if "{}" in form:
        lines = [[form.format(field) if len(field) > 4 else field for field in line] for line in lines]
    if form == "unpadded":
        lines = [[field.rstrip("=") for field in line] for line in lines]
    text = "\r\n\n\r\n".join("\t".join(line) for line in lines) + "\n" * (form != "without an end")
    (tmp_path / "features.tsv").write_bytes(text.encode())
    layout = LAYOUTS["bottom-up TSV" if columns == 6 else "LXMERT's TSV"]
    assert_equal(layout, imported(layout, tmp_path / "features.tsv", images()), images())


def test_of_features_only_the_first_are_read_to_find_the_lines(tmp_path: Path) -> None:
    made = images()[:1] * 40
    made = [image | {"name": str(number), "regions": np.zeros((3, 20_000), "f4")} for number, image in enumerate(made)]
    path = tsv(tmp_path, made, 10)
    content, size = path.read_bytes(), path.stat().st_size
    for position in (size * part // 80 for part in range(3, 80, 2)):
        content = content[:position] + b"!" + content[position + 1 :]
    path.write_bytes(content)
    source = opened(path)
    assert source.names == [image["name"] for image in made]
    with pytest.raises(DataError, match="image '7'"):
        source.read(np.array([7]), np.array([[256, 512]]))


def test_an_image_without_regions_does_no_harm_until_it_is_wanted(tmp_path: Path) -> None:
    made = images()
    made[0] |= {"regions": made[0]["regions"][:0], "boxes": made[0]["boxes"][:0]}
    path = tsv(tmp_path, made)
    assert opened(path).summary == "bottom-up-attention's TSV: 6 images; 0 to 5 regions of width 7"
    assert_equal(LAYOUTS["bottom-up TSV"], imported(LAYOUTS["bottom-up TSV"], path, made[1:]), made[1:])
    with pytest.raises(DataError, match="'9' has no region"):
        imported(LAYOUTS["bottom-up TSV"], path, made)


def test_two_lines_of_one_image_must_be_equal(tmp_path: Path) -> None:
    tsv(tmp_path, images(), file="a.tsv")
    tsv(tmp_path, [images()[1] | {"regions": images()[1]["regions"] + 1}], file="b.tsv")
    with pytest.raises(DataError, match=r"b\.tsv has other features of image '25' than .*a\.tsv"):
        opened(tmp_path)


def field(number: int, value: Any) -> Callable[[list[str]], list[str]]:
    text = encoded(value) if isinstance(value, np.ndarray) else value
    return lambda line: [*line[:number], text, *line[number + 1 :]]


REFUSED = [
    (6, field(3, "many"), "line 2"),
    (6, field(3, "-5"), "line 2"),
    (6, field(3, "6"), "line 2"),
    (6, field(5, np.zeros((5, 6), "<f4")), "line 2"),
    (6, field(5, np.zeros((5, 8), "<f4")), "line 2"),
    (6, field(5, ""), "line 2"),
    (6, field(0, ""), "line 2"),
    (6, field(0, "\udcff"), "line 2"),
    (6, field(4, "a\tb"), "line 2"),
    (6, lambda line: line[:5], "line 2"),
    (6, field(1, "wide"), "image '25'"),
    (6, field(2, "0"), "image '25'"),
    (6, field(4, np.zeros((4, 4), "<f4")), "image '25'"),
    (6, field(4, "?" * 108), "image '25'"),
    (10, field(3, np.zeros(5, "<i4")), "image '25'"),
]


@pytest.mark.parametrize(("columns", "damage", "where"), REFUSED)
@pytest.mark.parametrize("first", [False, True])
def test_damaged_lines_are_named(tmp_path: Path, columns: int, damage: Any, where: str, first: bool) -> None:
    lines = [tsv_line(image, columns) for image in images()]
    lines[1] = damage(lines[1])
    text = "".join("\t".join(line) + "\n" for line in (lines[1:] if first else lines))
    (tmp_path / "features.tsv").write_bytes(text.encode(errors="surrogateescape"))
    if first and where == "line 2" and columns == 6:
        where = "line"  # nothing else tells how wide features are, so the line after it may be the one that differs
    with pytest.raises(DataError, match=where) as caught:
        imported(LAYOUTS["bottom-up TSV" if columns == 6 else "LXMERT's TSV"], tmp_path / "features.tsv", images()[1:])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["\t".join(["image_id"] * 6), "a\tb\tc\n", "\n\n", ""])
def test_other_texts_are_no_features(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.tsv").write_text(text)
    with pytest.raises(DataError, match=r"x\.tsv"):
        opened(tmp_path / "x.tsv")
    found = layout(tmp_path / "x.tsv")
    assert found is not None
    assert bool(found.lacks) == (text.count("\t") != 5)
