"""Speed of hashing files against hashing memory and reading alone, and of the checksums of rows that are written."""

from __future__ import annotations

import hashlib
import os

import pytest
from measure import paired, show

from itrpipe.storage.disk import file_digest

BYTES = 1 << 31
ROWS, REGIONS, DIM = 256, 36, 2048


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "features.h5"
    block = os.urandom(1 << 24)
    with path.open("wb") as file:
        for _ in range(BYTES >> 24):
            file.write(block)
    return path


def test_hashing_a_file_against_hashing_memory(large):
    block = os.urandom(1 << 24)

    def hash_memory():
        total = hashlib.sha256()
        for _ in range(BYTES >> 24):
            total.update(block)

    ours, limit = paired(lambda: file_digest(large), hash_memory, rounds=3)
    show("sha256 of a file of 2 GiB", ours, limit, "sha256 of memory", f"{BYTES / ours / 1e9:.2f} GB/s")


def test_hashing_a_file_against_reading_it(large):
    def read():
        with large.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass

    ours, limit = paired(lambda: file_digest(large), read, rounds=3)
    show("sha256 of a file of 2 GiB", ours, limit, "reading it", f"{BYTES / limit / 1e9:.2f} GB/s read")
