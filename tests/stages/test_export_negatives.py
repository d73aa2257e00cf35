"""`itrpipe export-negatives`: from the plan to a folder that `datasets` opens by its card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.mining.files import read_list
from itrpipe.storage.disk import file_digest
from itrpipe.synthesis.sentences import SentenceFile
from tests.chains import Invoke, done, made, only, refused, sets
from tests.conftest import TINY, Outcome

SMALL = sets(*TINY[:-1], "num_texts=5", "num_images=3")


@pytest.fixture
def export(chain: Path, invoke: Invoke) -> Invoke:
    """Exports three of the lists of the finished chain, or as many as are named."""

    def run(to: Path, *more: object) -> Outcome:
        where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain, "--to", to, *SMALL)
        return invoke("export-negatives", *where, *(() if "--negatives" in more else ("--negatives", 3)), *more)

    return run


def test_the_folder_opens_by_its_card(export: Invoke, chain: Path, tmp_path: Path) -> None:
    import datasets

    target, cache = tmp_path / "given" / "negatives", str(tmp_path / "cache")
    wanted = ("--synthetic", "vse-c", "--set=vse-c.min_count=1", "--shard-rows", 25, "--make")
    assert made(export(target, *wanted)) == target
    split = PreparedDataset.open(only(chain, "prepare/files")).split("train")
    mined = only(chain, "mine_negatives/exact.triplet.vsepp")
    images, captions = (read_list(mined, name).candidates for name in ("images_for_texts", "texts_for_images"))
    own: dict[str, list[str]] = {}
    for row in SentenceFile(only(chain, "synthesize/vse-c")).kept(["caption_id", "text"]).to_pylist():
        own.setdefault(row["caption_id"], []).append(row["text"])
    assert own
    found = datasets.load_dataset(str(target), cache_dir=cache)["train"]  # t2i is the default
    assert found["anchor"] == split.texts
    found = found.cast_column("negative_3", datasets.Image(decode=False))
    assert [row["path"] for row in found["negative_3"]] == [split.files[row] for row in images[:, 2]]
    found = datasets.load_dataset(str(target), "i2t", split="train", cache_dir=cache)
    assert len(list((target / "i2t").iterdir())) == 3
    owners = zip(split.caption_ids.tolist(), split.caption_image.tolist(), strict=True)
    fourth = [own[each][0] if each in own else split.texts[captions[image, 3]] for each, image in owners]
    assert found["negative_4"] == fourth
    assert found["negative_1"] == [split.texts[captions[image, 0]] for image in split.caption_image]

    record = json.loads((target / "export.json").read_text())
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {"export.json", *record["files"]}
    assert all(each["sha256"] == file_digest(target / name) for name, each in record["files"].items())
    assert f"synthesize/{only(chain, 'synthesize/vse-c').name}" in record["artifacts"]
    assert str(tmp_path) not in (target / "README.md").read_text() + (target / "export.json").read_text()

    refused(export(target), 2)
    other = tmp_path / "elsewhere" / "negatives"
    done(export(other, "--set", "range_min=1", "--direction", "i2t", "--make"))
    again = datasets.load_dataset(str(other), "i2t", split="train", cache_dir=cache)  # not what is cached by this name
    assert again["negative_1"] == [split.texts[captions[image, 1]] for image in split.caption_image]
    done(export(target, "--negatives", 2, "--force", "--format", "webdataset", "--make"))
    assert [path.name for path in target.glob("*.tar")] == ["train-00000-of-00001.tar"]
    assert [path.name for path in target.parent.iterdir()] == ["negatives"]


def test_an_export_without_a_row_is_refused(export: Invoke, tmp_path: Path) -> None:
    refused(export(tmp_path / "out", "--set", "range_min=1", "--make"), 2, "--negatives 3", "t2i")
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_planned_and_named(export: Invoke, chain: Path, tmp_path: Path) -> None:
    shutil.rmtree(only(chain, "mine_negatives/exact.triplet.vsepp"))
    plan = done(export(tmp_path / "out", "--dry-run", "--synthetic", "vse-c"))
    assert plan.startswith("tiny: export-negatives exact.triplet.vsepp\n")
    assert "+ synthesize/vse-c" in plan
    refused(export(tmp_path / "out"), 2, "itrpipe mine-negatives --dataset tiny --method triplet --backbone vsepp")
    assert not (tmp_path / "out").exists()
    done(export(tmp_path / "out", "--format", "negclip", "--make"))
    assert (tmp_path / "out" / "train.tsv").exists()
