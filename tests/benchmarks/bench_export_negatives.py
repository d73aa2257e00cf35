"""Speed and memory of exported negatives against pyarrow writing the same table, and reading its bytes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measure import paired, show

from itrpipe.datasets.prepared import CAPTIONS_FILE, IMAGES_FILE
from itrpipe.negatives.lists import MinedList, write_list

IMAGES, CAPTIONS_PER_IMAGE, WIDTH, NEGATIVES = 29_000, 5, 60, 8
WORDS = ("two", "man", "woman", "dogs", "people", "in", "red", "on", "the", "beach", "playing", "near", "building")

EXPORT = """
import re, sys, time
from pathlib import Path
from itrpipe.exporting.folder import FinishedFiles, new_folder
from itrpipe.exporting.negatives.base import Choices
from itrpipe.exporting.negatives.formats import FORMATS
from itrpipe.exporting.negatives.mined import open_mined
from itrpipe.exporting.negatives.webdataset import Webdataset

folder, form, target = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
Webdataset._photograph = lambda self, image: b""  # the images are those of the user's disk
start = time.perf_counter()
mined = open_mined(folder / "prepared", folder / "mined", 8)
made = FORMATS[form].load()(mined, Choices(("t2i", "i2t"), "", "", folder))
with new_folder(target, {}, force=False, resumes="1") as work:
    files = FinishedFiles(work, "1")
    for shard in made.shards():
        files.make(shard.name, shard.write)
    made.finish(files)
seconds = time.perf_counter() - start
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**20
print(seconds, peak)
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of Flickr30K's size, with a guard: 29,000 images, 145,000 captions, 60 candidates of each."""
    return write_artifacts(tmp_path_factory.mktemp("negatives"), IMAGES)


def write_artifacts(folder: Path, images: int) -> Path:
    """Writes a prepared dataset and its lists into a folder, without photographs."""
    random, captions = np.random.default_rng(0), images * CAPTIONS_PER_IMAGE
    words = np.array(WORDS)[random.integers(0, len(WORDS), (captions, 11))]
    texts = [" ".join(each) for each in words]
    image_ids = [f"{row:010}" for row in range(images)]
    caption_ids = [f"{image_ids[row // CAPTIONS_PER_IMAGE]}.jpg#{row % CAPTIONS_PER_IMAGE}" for row in range(captions)]
    owners = [image_ids[row // CAPTIONS_PER_IMAGE] for row in range(captions)]
    (folder / "prepared").mkdir()
    (folder / "mined").mkdir()
    columns = {"image_id": image_ids, "file": [f"flickr30k-images/{each}.jpg" for each in image_ids]}
    columns |= {"split": ["train"] * images}
    sides = {side: pa.array([500] * images, pa.int32()) for side in ("width", "height")}
    table = pa.table({**columns, **sides, "sha256": ["0" * 64] * images})
    pq.write_table(table, folder / "prepared" / IMAGES_FILE)
    columns = {"caption_id": caption_ids, "image_id": owners, "split": ["train"] * captions, "text": texts}
    tokens = pa.array(words.tolist(), pa.list_(pa.string()))
    pq.write_table(pa.table({**columns, "tokens": tokens}), folder / "prepared" / CAPTIONS_FILE)
    for name, ids, others in (
        ("texts_for_images", image_ids, captions),
        ("images_for_texts", caption_ids, images),
    ):
        shape = (len(ids), WIDTH)
        scores = -np.sort(-random.random(shape, dtype=np.float32), axis=1).astype(np.float16)
        rows = random.integers(0, others, shape, dtype=np.int32)
        write_list(folder / "mined", name, MinedList(np.array(ids), rows, scores, scores))
    return folder


def export(artifacts: Path, form: str, target: Path) -> tuple[float, float]:
    """Seconds and GiB of an export in a process of its own, on one core."""
    command = [sys.executable, "-c", EXPORT, str(artifacts), form, str(target)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, preexec_fn=_one_core)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.parametrize("form", ["sentence-transformers", "negclip", "jsonl", "tevatron", "webdataset"])
def test_an_export_against_copying_its_bytes(artifacts: Path, tmp_path: Path, form: str) -> None:
    seconds, peak = export(artifacts, form, tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)

    def copy() -> None:
        for number, path in enumerate(files):
            (tmp_path / f"copy{number}").write_bytes(path.read_bytes())

    limit, _ = paired(copy, lambda: None, rounds=1)
    amount = f"{seconds:.1f} s for 145,000 captions x {NEGATIVES}, {size / 2**20:,.0f} MiB, {peak:.2f} GiB resident"
    show(form, seconds, limit, "copying its bytes", amount)
    assert peak < 1


def test_parquet_against_pyarrow_writing_the_same_table(artifacts: Path, tmp_path: Path) -> None:
    seconds, _ = export(artifacts, "sentence-transformers", tmp_path / "out")
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out").rglob("*.parquet"))]

    def write() -> None:
        for number, table in enumerate(tables):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(table, path, compression="zstd", write_page_checksum=True, row_group_size=8_192)

    limit, _ = paired(write, lambda: None, rounds=1)
    show("sentence-transformers", seconds, limit, "pyarrow writing the same tables", f"{seconds:.1f} s")


def test_memory_grows_by_little_for_a_caption(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    artifacts = write_artifacts(tmp_path / "coco", 4 * IMAGES)
    seconds, peak = export(artifacts, "sentence-transformers", tmp_path / "out")
    print(f"\n  580,000 captions x {NEGATIVES}: {seconds:.1f} s, {peak:.2f} GiB resident")
    assert peak < 2
