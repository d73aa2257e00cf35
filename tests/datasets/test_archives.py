"""Photographs inside Parquet, Arrow and large tar files: they are read where they lie, and what is damaged is told."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.datasets import archives, tars
from itrpipe.datasets.archives import members
from itrpipe.datasets.pictures import read_image, read_rgb
from itrpipe.errors import DataError
from itrpipe.search.photos import list_photographs
from tests.datasets.sources import refusal

PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def encoded(number: int) -> bytes:
    """A small PNG of its own colour."""
    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (number, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


PICTURES = [encoded(number) for number in range(10)]


def table(pictures: list[bytes] = PICTURES) -> pa.Table:
    cells: list[dict[str, Any]] = [{"bytes": each, "path": f"{number}.png"} for number, each in enumerate(pictures)]
    columns = {"image": pa.array(cells, PICTURE), "raw": pa.array(pictures, pa.large_binary())}
    return pa.table({**columns, "caption": [f"picture {number}" for number in range(len(pictures))]})


def as_parquet(path: Path, content: pa.Table) -> None:
    pq.write_table(content, path, row_group_size=3)


def as_stream(path: Path, content: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=4)


def as_file(path: Path, content: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=4)


WRITERS: dict[str, tuple[str, Callable[[Path, pa.Table], None]]] = {
    "Parquet": ("x.parquet", as_parquet),
    "a stream of Arrow": ("x.arrow", as_stream),
    "a file of Arrow": ("X.ARROW", as_file),
}
EACH = pytest.mark.parametrize("kind", WRITERS)


def written(folder: Path, kind: str, content: pa.Table | None = None) -> Path:
    name, write = WRITERS[kind]
    write(folder / name, table() if content is None else content)
    return folder / name


@EACH
def test_a_cell_is_the_photograph_in_it(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    for column in ("image", "raw"):
        assert [read_image(path / column / str(row)) for row in range(10)] == PICTURES
    assert read_rgb(path / "image" / "7")[0, 0].tolist() == [7, 0, 0]
    assert members(path) == [f"{column}/{row}" for column in ("image", "raw") for row in range(10)]
    for name in ("image/10", "image/-1", "image/01", "image/x", "photo/0", "image"):
        refusal(DataError, "which has 10 rows of image, raw, caption", read_image, path / name)
    refusal(DataError, "holds no bytes of a photograph", read_image, path / "caption" / "0")


@EACH
def test_a_table_that_was_changed_is_read_anew(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    assert read_image(path / "image" / "0") == PICTURES[0]
    written(tmp_path, kind, table(PICTURES[5:8]))
    assert read_image(path / "image" / "0") == PICTURES[5]
    refusal(DataError, "3 rows", read_image, path / "image" / "4")


@EACH
def test_half_a_table_is_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    whole = path.read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:size])
        refusal(DataError, "", read_image, path / "image" / "0")


def test_a_damaged_photograph_costs_its_row_group_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "Parquet")
    whole = bytearray(path.read_bytes())
    at = whole.index(PICTURES[3])
    whole[at - 30 : at] = b"\xff" * 30
    path.write_bytes(whole)
    refusal(DataError, "cannot be read", read_image, path / "image" / "3")
    assert read_image(path / "image" / "9") == PICTURES[9]


@pytest.mark.parametrize("kind", ["a stream of Arrow", "a file of Arrow"])
def test_a_damaged_cell_of_arrow_reads_no_other_memory(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, table().select(["raw"]))
    whole = path.read_bytes()
    offset = len(PICTURES[0]).to_bytes(8, "little")
    assert whole.count(offset) >= 1
    path.write_bytes(whole.replace(offset, (1 << 40).to_bytes(8, "little")))
    refusal(DataError, "", read_image, path / "raw" / "0")


def test_compressed_arrow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema, options=options) as writer:
        writer.write_table(table())
    refusal(DataError, "is compressed", read_image, path / "image" / "0")


def test_a_cell_that_names_a_file_means_one_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(PICTURES[1])
    folder = tmp_path / "set"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.png").write_bytes(PICTURES[2])
    (folder / "link.png").symlink_to("../outside.png")
    paths = ["images/a.png", "../outside.png", str(tmp_path / "outside.png"), "link.png", "gone.png", None]
    cells = pa.array([{"bytes": None, "path": path} for path in paths], PICTURE)
    path = written(folder, "Parquet", pa.table({"image": cells}))
    assert read_image(path / "image" / "0") == PICTURES[2]
    for row, reason in enumerate(("'..'", "absolute", "leads to", "is not there", "no bytes"), start=1):
        refusal(DataError, reason, read_image, path / "image" / str(row))


def test_threads_read_at_random_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "Parquet")
    recent = archives._RecentPieces(limit=400)
    monkeypatch.setattr(archives, "_recent", recent)
    rows = np.random.default_rng(0).integers(0, 10, 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: read_image(path / "image" / str(row)), rows))
    assert found == [PICTURES[row] for row in rows]
    assert sum(piece.nbytes for piece in recent._pieces.values()) == recent._bytes <= 400


def test_photographs_in_tables_are_indexed(tmp_path: Path) -> None:
    written(tmp_path, "Parquet", table().select(["image", "caption"]))
    pq.write_table(pa.table({"caption": ["a"]}), tmp_path / "captions.parquet")
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    listed = list_photographs(tmp_path, tmp_path / "data")
    assert sorted(each.file for each in listed.photographs) == [f"x.parquet/image/{row}" for row in range(10)]
    assert [*listed.unusable] == ["half.parquet"]


def test_the_index_of_a_large_tar_file_is_stored_and_made_again_where_it_is_old_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tars, "_WORTH_STORING", 2)
    made = []
    read_index = tars._read_index
    monkeypatch.setattr(tars, "_read_index", lambda archive: made.append(archive) or read_index(archive))
    path = tmp_path / "x.tar"

    def pack(names: str) -> None:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name in names:
                header = tarfile.TarInfo(f"{'long/' * 60}{name}.jpg")
                header.size = len(PICTURES[0])
                tar.addfile(header, io.BytesIO(PICTURES[0]))

    def found() -> str:
        tars._stored_index.cache_clear()
        return "".join(name[-5] for name in members(path))

    pack("ba")
    assert (found(), found(), len(made)) == ("ba", "ba", 1)
    pack("cab")
    assert (found(), found(), len(made)) == ("cab", "cab", 2)
    (stored,) = (tmp_path / "cache").rglob("*.arrow")
    content = bytearray(stored.read_bytes())
    content[-400] ^= 1
    stored.write_bytes(content)
    assert (found(), found(), len(made)) == ("cab", "cab", 3)
    assert read_image(path / f"{'long/' * 60}a.jpg") == PICTURES[0]
