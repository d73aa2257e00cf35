"""Fingerprints, tables and vocabularies of every format stay as they are: their digests lie in golden.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.commands.stages import run_stage
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.plan.planning import parse_override
from itrpipe.storage.artifact import read_manifest
from tests.datasets.sources import SOURCES
from tests.definitions import save_definition

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


def prepared(root: Path, stage: StageDefinition, *settings: str) -> dict[str, str]:
    """What an artifact of `prepare` holds, as digests, after it was made."""
    save_definition(root, "tiny", DatasetDefinition(prepare=stage))
    folder = run_stage(root, "tiny", "prepare", [parse_override(f"prepare.{each}") for each in settings])
    found = {"fingerprint": folder.name} | read_manifest(folder).sources
    for name in ("images", "captions", "truth"):
        if (path := folder / f"{name}.parquet").exists():
            table = pq.read_table(path)
            content = repr([(field.name, str(field.type)) for field in table.schema]) + repr(table.to_pydict())
            found[f"{name}.parquet"] = hashlib.sha256(content.encode()).hexdigest()
    first = next(iter(PreparedDataset.open(folder).counts()))
    split = PreparedDataset.open(folder).split(first)
    vocabulary = Vocabulary.build(split.tokens, min_count=1)
    vocabulary.save(root / "vocabulary.json")
    ids, lengths = vocabulary.encode_all(split.tokens)
    content = (root / "vocabulary.json").read_bytes() + ids.tobytes() + lengths.tobytes()
    return found | {"words": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("name", SOURCES)
def test_prepared_sources_stay_as_they_are(tmp_path: Path, name: str) -> None:
    SOURCES[name].write(tmp_path / "source")
    assert prepared(tmp_path, StageDefinition(conf="files", source=str(tmp_path / "source"))) == GOLDEN[name]


def test_the_embedded_dataset_stays_as_it_is(tmp_path: Path) -> None:
    small = ("train=4", "val=2", "test=2", "family_size=2", "workers=1")
    found = prepared(tmp_path, StageDefinition(conf="scenes"), *small)
    del found["images.parquet"]  # hashes of pictures, which are of the version of Pillow
    assert found == GOLDEN["scenes"]


def test_given_embeddings_stay_as_they_are(tmp_path: Path) -> None:
    settings = {}
    for split, count in (("train", 3), ("test", 2)):
        paths = {"images": f"{split}.images.npy", "texts": f"{split}.texts.npy", "owners": f"{split}.owners.npy"}
        np.save(tmp_path / paths["images"], np.eye(count, 4, dtype=np.float32))
        np.save(tmp_path / paths["texts"], np.eye(2 * count, 4, dtype=np.float32))
        np.save(tmp_path / paths["owners"], np.arange(2 * count) % count)
        settings |= {f"{split}.{name}": str(tmp_path / path) for name, path in paths.items()}
    assert prepared(tmp_path, StageDefinition(conf="given", settings=settings)) == GOLDEN["given"]
