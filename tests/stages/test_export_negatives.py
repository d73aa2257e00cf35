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
from tests.conftest import Outcome

TRAIN = ("epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1")
SETS = sets(*(f"train.{text}" for text in TRAIN), "num_texts=5", "num_images=3")


@pytest.fixture
def export(chain: Path, invoke: Invoke) -> Invoke:
    """Exports the lists of the finished chain."""

    def run(to: Path, *more: object) -> Outcome:
        where = ("--backbone", "vsepp", "--dataset", "tiny", "--data", chain, "--to", to, *SETS)
        return invoke("export-negatives", *where, "--make", *more)

    return run


def test_the_folder_opens_by_its_card(export: Invoke, chain: Path, tmp_path: Path) -> None:
    import datasets

    target = tmp_path / "given" / "negatives"
    wanted = ("--negatives", 3, "--synthetic", "vse-c", "--set=vse-c.min_count=1", "--shard-rows", 25)
    assert made(export(target, *wanted)) == target
    split = PreparedDataset.open(only(chain, "prepare/files")).split("train")
    mined = only(chain, "mine_negatives/exact.triplet.vsepp")
    images = read_list(mined, "images_for_texts").candidates[:, :3]
    candidates = read_list(mined, "texts_for_images").candidates
    captions = candidates[:, :3]
    own: dict[str, list[str]] = {}
    for row in SentenceFile(only(chain, "synthesize/vse-c")).kept(["caption_id", "text"]).to_pylist():
        own.setdefault(row["caption_id"], []).append(row["text"])
    assert own
    cache = str(tmp_path / "cache")
    found = datasets.load_dataset(str(target), cache_dir=cache)["train"]  # t2i is the default
    assert found["anchor"] == split.texts
    found = found.cast_column("negative_3", datasets.Image(decode=False))
    assert [row["path"] for row in found["negative_3"]] == [split.files[row] for row in images[:, 2]]
    found = datasets.load_dataset(str(target), "i2t", split="train", cache_dir=cache)
    assert len(list((target / "i2t").iterdir())) == 3
    full = [row for row, each in enumerate(split.caption_ids.tolist()) if each in own]
    mined_fourth = candidates[:, 3]
    expected = [
        own[each][0] if each in own else split.texts[mined_fourth[image]]
        for each, image in zip(split.caption_ids.tolist(), split.caption_image.tolist(), strict=True)
    ]
    assert full
    assert found["negative_4"] == expected
    assert found["negative_1"] == [split.texts[captions[image, 0]] for image in split.caption_image]
    record = json.loads((target / "export.json").read_text())
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert names == {"export.json", *record["files"]}
    assert all(each["sha256"] == file_digest(target / name) for name, each in record["files"].items())
    assert f"synthesize/{only(chain, 'synthesize/vse-c').name}" in record["artifacts"]
    for name in ("README.md", "export.json"):
        assert str(tmp_path) not in (target / name).read_text()
    before = (target / "export.json").read_bytes()
    refused(export(target), 2)
    done(export(tmp_path / "other", "--negatives", 3, "--image-root", "/elsewhere/photographs"))
    card = (tmp_path / "other" / "README.md").read_text()
    assert "whole ones of the machine that wrote these files, where their folder is called `photographs`" in card
    shutil.rmtree(tmp_path / "other")
    assert (target / "export.json").read_bytes() == before
    other = tmp_path / "elsewhere" / "negatives"
    done(export(other, "--negatives", 3, "--set", "range_min=1", "--direction", "i2t"))
    again = datasets.load_dataset(str(other), "i2t", split="train", cache_dir=cache)  # not what is cached by this name
    assert again["negative_1"] == [split.texts[candidates[image, 1]] for image in split.caption_image]
    done(export(target, "--negatives", 2, "--force", "--format", "webdataset"))
    assert [path.name for path in target.glob("*.tar")] == ["train-00000-of-00001.tar"]
    assert [path.name for path in target.parent.iterdir()] == ["negatives"]


def test_the_card_tells_the_commands_of_all_that_the_lists_were_made_from(
    export: Invoke, chain: Path, tmp_path: Path
) -> None:
    for path in chain.glob("tiny/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps(manifest | {"command": f"itrpipe {path.parent.parent.name}", "checksum": ""}))
    done(export(tmp_path / "out", "--negatives", 3))
    told = (tmp_path / "out" / "README.md").read_text().partition("## How it was made")[2].split("```")[1]
    made = told.strip().split("\n")
    assert made == ["itrpipe prepare", "itrpipe extract", "itrpipe train", "itrpipe mine_negatives"]


def test_an_export_without_a_row_is_refused(export: Invoke, tmp_path: Path) -> None:
    outcome = export(tmp_path / "out", "--negatives", 3, "--set", "range_min=1")
    refused(outcome, 2, "--negatives 3", "t2i")
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_planned_and_named(export: Invoke, chain: Path, tmp_path: Path) -> None:
    shutil.rmtree(only(chain, "mine_negatives/exact.triplet.vsepp"))
    plan = done(export(tmp_path / "out", "--negatives", 3, "--dry-run", "--synthetic", "vse-c"))
    assert plan.startswith("tiny: export-negatives exact.triplet.vsepp\n")
    assert "+ synthesize/vse-c" in plan
    outcome = export(tmp_path / "out", "--negatives", 3, "--no-deps")
    refused(outcome, 2, "itrpipe mine-negatives --dataset tiny --method triplet --backbone vsepp")
    assert not (tmp_path / "out").exists()
    done(export(tmp_path / "out", "--negatives", 3, "--format", "negclip"))
    assert (tmp_path / "out" / "train.tsv").exists()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--format", "sentence-transformer"), ("--format",)),
        (("--direction", "t2t"), ("--direction", "'t2t'")),
        (("--synthetic", "phrase"), ("'phrase'", "'phrases'")),
        (("--format", "negclip", "--direction", "t2i"), ("--direction t2i", "negclip")),
        (("--format", "jsonl", "--with-scores"), ("--with-scores", "jsonl")),
        (("--format", "webdataset", "--image-root", "x"), ("--image-root x", "webdataset")),
        (("--format", "negclip", "--shard-rows", "9"), ("--shard-rows 9", "negclip")),
        ((), ("--negatives 8", "num_images = 3", "--set num_images=8")),
        (("--direction", "i2t"), ("--negatives 8", "num_texts = 5")),
        (("--to", "/"), ("--to / exists",)),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_made(
    export: Invoke, chain: Path, tmp_path: Path, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    shutil.rmtree(only(chain, "mine_negatives/exact.triplet.vsepp"))
    refused(export(tmp_path / "out", *options), 2, *parts)
    assert not (tmp_path / "out").exists()
    assert not list(chain.glob("tiny/mine_negatives/exact.triplet.vsepp-*"))
