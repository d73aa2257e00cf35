"""What photographs inside other files cost: the index of a tar file, and cells of Parquet in their order.

Run with `make bench`.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measure import paired, show

from itrpipe.datasets import tars
from itrpipe.datasets.pictures import read_image

MEMBERS = 20_000
CELLS, BYTES = 600, 100_000


def test_the_index_of_a_tar_file_against_the_headers_of_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(MEMBERS):
            header = tarfile.TarInfo(f"{number:09}.jpg")
            header.size = 1
            tar.addfile(header, io.BytesIO(b"x"))

    def listed() -> list[str]:
        with tarfile.open(path, "r:") as tar:
            return tar.getnames()

    ours, limit = paired(lambda: tars._read_index(path), listed, rounds=3)
    show("index of a tar file", ours, limit, "the headers alone", f"{MEMBERS / ours:,.0f} files/s")
    assert ours < 1.5 * limit


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_cells_of_a_table_against_files(tmp_path: Path, ending: str) -> None:
    random = np.random.default_rng(0)
    contents = [random.bytes(BYTES) for _ in range(CELLS)]
    path = tmp_path / f"x{ending}"
    table = pa.table({"image": contents})
    if ending == ".parquet":
        pq.write_table(table, path, row_group_size=100)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    files = [tmp_path / f"{number}.jpg" for number in range(CELLS)]
    cells = [path / "image" / str(row) for row in range(CELLS)]
    ours, limit = paired(lambda: [read_image(cell) for cell in cells], lambda: [read_image(file) for file in files])
    show(f"photographs in {ending}", ours, limit, "files", f"{CELLS / ours:,.0f} photographs/s")
    assert ours < 10 * limit
