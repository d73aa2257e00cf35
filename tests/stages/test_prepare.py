"""The stage `prepare`: what it writes of a user's dataset and of the embedded one, and what it leaves out and says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.cli.asked import run_stage
from itrpipe.config import load_declaration, resolve
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.errors import DataError, MissingInputError
from itrpipe.pipeline.planning import parse_override
from itrpipe.stages import prepare
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.integrity import DigestCache
from tests.chains import Invoke
from tests.conftest import TinySource

SPLITS = {"train": 12, "val": 4, "test": 4}
SCENES = ("train=4", "val=2", "test=2", "family_size=2", "workers=1")


def prepared(root: Path, *settings: str, dataset: str = "tiny") -> Path:
    return run_stage(root, dataset, "prepare", [parse_override(f"prepare.{each}") for each in settings])


def test_images_and_captions_are_those_of_the_source(defined: Path, precomp_dataset: TinySource) -> None:
    folder = prepared(defined)
    records = json.loads(precomp_dataset.captions.read_text())["images"]
    found = PreparedDataset.open(folder)
    assert {name: len(found.split(name).image_ids) for name in found.splits} == SPLITS
    for name in SPLITS:
        own = [record for record in records if record["split"] == name]
        split = found.split(name)
        assert split.files == [f"flickr30k-images/{record['filename']}" for record in own]
        assert split.texts == [sentence["raw"] for record in own for sentence in record["sentences"]]
        assert split.captions_of_image.tolist() == list(range(0, 5 * len(own) + 1, 5))
        first = own[0]["sentences"][0]["raw"]
        assert split.tokens[0].as_py() == first.lower().replace(".", " .").split()
    assert read_manifest(folder).metrics["train"] == "12 images / 60 captions"


def test_pictures_in_two_splits_are_listed_and_told(defined: Path, precomp_dataset: TinySource) -> None:
    """The first training image is also the first test image."""
    shutil.copy(precomp_dataset.images / "1000.jpg", precomp_dataset.images / "1016.jpg")
    folder = prepared(defined)
    manifest = read_manifest(folder)
    assert manifest.metrics["leaks"] == 1
    assert "1016.jpg of test is flickr30k-images/1000.jpg of train" in manifest.messages[0]
    lines = (folder / prepare.LEAKS).read_text().splitlines()
    assert lines == [
        "first\tsplit\tsecond\tsplit",
        "flickr30k-images/1000.jpg\ttrain\tflickr30k-images/1016.jpg\ttest",
    ]


def test_a_picture_that_is_twice_in_one_split_is_listed_and_told(defined: Path, precomp_dataset: Any) -> None:
    shutil.copy(precomp_dataset.images / "1000.jpg", precomp_dataset.images / "1001.jpg")
    folder = prepared(defined)
    manifest = read_manifest(folder)
    assert manifest.metrics["leaks"] == 0
    assert "1001.jpg of train is flickr30k-images/1000.jpg of train" in manifest.messages[0]
    lines = (folder / prepare.REPEATS).read_text().splitlines()
    assert lines[1:] == ["flickr30k-images/1000.jpg\ttrain\tflickr30k-images/1001.jpg\ttrain"]


def test_images_that_cannot_be_used_go_with_their_captions_and_are_listed(
    defined: Path, precomp_dataset: TinySource, invoke: Invoke
) -> None:
    (precomp_dataset.images / "1001.jpg").write_bytes(b"no picture")
    (precomp_dataset.images / "1002.jpg").unlink()
    outcome = invoke("prepare", "--dataset", "tiny", "--data", defined)
    assert outcome.code == 7
    (folder,) = (defined / "tiny" / "prepare").glob("files-*")
    manifest = read_manifest(folder)
    assert set(manifest.failed) == {"1001", "1002"}
    assert manifest.metrics["dropped_images"] == 2
    split = PreparedDataset.open(folder).split("train")
    assert (len(split.image_ids), len(split.texts)) == (10, 50)
    assert not {"1001", "1002"} & set(split.image_ids.tolist())


def test_a_dataset_of_which_no_image_is_left_is_refused(defined: Path, precomp_dataset: TinySource) -> None:
    for path in precomp_dataset.images.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"20 of 20 images of .* which leaves none; put the images where the captions"):
        prepared(defined)


def test_captions_and_images_of_the_source_decide_about_the_fingerprint(
    defined: Path, precomp_dataset: TinySource, tmp_path: Path
) -> None:
    definition = load_definition(defined, "tiny").prepare
    settings = prepare.FilesSettings.model_validate(resolve(load_declaration("prepare"), "files").values)

    def digests(name: str) -> dict[str, str]:
        return prepare.Prepare().sources(settings, definition, DigestCache(tmp_path / name))

    before = digests("first")
    assert digests("second") == before
    text = precomp_dataset.captions.read_text()
    precomp_dataset.captions.write_text(text.replace("number 3 is", "number 3 was"))
    after = digests("third")
    assert (after["captions"] != before["captions"], after["images"] == before["images"]) == (True, True)
    Image.new("RGB", (16, 12), "red").save(precomp_dataset.images / "1004.jpg")
    assert digests("fourth")["images"] != before["images"]


def test_a_dataset_without_a_source_says_how_to_name_one(tmp_path: Path) -> None:
    settings = prepare.FilesSettings.model_construct(kind="files")
    with pytest.raises(MissingInputError, match="run `itrpipe prepare --dataset NAME --source FOLDER`"):
        prepare.Prepare().sources(settings, StageDefinition(conf="files"), DigestCache(tmp_path / "digests"))
    assert prepare.Prepare().needs(settings, DatasetDefinition()) == {}


def test_the_embedded_dataset_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    folders = [prepared(tmp_path / name, *SCENES, dataset="scenes") for name in ("first", "second")]
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in folders
    )
    for content in (first, second):
        del content[Path("manifest.json")]
    assert first == second
    assert len([path for path in first if path.suffix == ".jpg"]) == 8
    other = prepared(tmp_path / "first", *SCENES, "seed=1", dataset="scenes")
    assert (other / prepare.SCENES_FILE).read_text() != (folders[0] / prepare.SCENES_FILE).read_text()


def test_settings_that_scenes_lacked_before_count_where_they_are_set(tmp_path: Path) -> None:
    def fingerprinted(**changed: float) -> dict[str, Any]:
        values = resolve(load_declaration("prepare"), "scenes").values | changed
        return prepare.Prepare().fingerprinted(prepare.ScenesSettings.model_validate(values))

    old = {"kind", "train", "val", "test", "seed", "family_size", "keep_probability"}
    assert set(fingerprinted()) == old
    for name, value in {"caption_detail": 0.2, "units": 5, "noise": 0.4, "occlusion": 0.5}.items():
        assert fingerprinted(**{name: value}) == fingerprinted() | {name: value}
    folders = [prepared(tmp_path, *SCENES, *more, dataset="scenes") for more in ((), ("noise=0.4",), ("units=5",))]
    usual, noisy, crowded = ((folder / prepare.SCENES_FILE).read_bytes() for folder in folders)
    assert usual == noisy != crowded
    images = [(folder / "images" / "train-000000.jpg").read_bytes() for folder in folders[:2]]
    assert images[0] != images[1]


def test_every_caption_of_the_embedded_dataset_is_true_of_its_own_image(tmp_path: Path) -> None:
    folder = prepared(tmp_path, *SCENES, dataset="scenes")
    truth = dict(zip(*pq.read_table(folder / TRUTH_FILE).to_pydict().values(), strict=True))
    assert len(truth) == 40
    for caption, images in truth.items():
        assert caption.rpartition("#")[0] in images
    mean = sum(map(len, truth.values())) / len(truth)
    assert read_manifest(folder).metrics["true_images_per_caption"] == round(mean, 3)


def test_images_of_an_artifact_lie_below_it_or_below_the_source(
    defined: Path, precomp_dataset: TinySource, tmp_path: Path
) -> None:
    folder = prepared(defined)
    settings = read_manifest(folder).settings
    assert prepare.image_root(settings, folder, load_definition(defined, "tiny")) == precomp_dataset.folder
    assert prepare.image_root({"kind": "scenes"}, tmp_path, DatasetDefinition()) == tmp_path
