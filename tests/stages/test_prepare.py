"""The stage `prepare`: what it writes of a user's dataset and of the embedded one, and what it leaves out and says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from itrpipe.config import load_declaration, parse_override, resolve
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, image_root, load_definition
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, MissingInputError
from itrpipe.stages import prepare
from itrpipe.storage.artifact import DigestCache, read_manifest
from tests.chains import Invoke, run_stage
from tests.conftest import TinySource
from tests.definitions import save_definition

SPLITS = {"train": 12, "val": 4, "test": 4}
SCENES = ("train=4", "val=2", "test=2", "family_size=2", "workers=1")


def prepared(root: Path, *settings: str, dataset: str = "tiny") -> Path:
    return run_stage(root, dataset, "prepare", [parse_override(f"prepare.{each}") for each in settings])


def test_pictures_that_are_twice_are_listed_and_told(defined: Path, precomp_dataset: TinySource) -> None:
    """The first training image is also the first test image, and the second one."""
    for copy in ("1016.jpg", "1001.jpg"):
        shutil.copy(precomp_dataset.images / "1000.jpg", precomp_dataset.images / copy)
    content = json.loads(precomp_dataset.captions.read_text())
    content["images"][-1]["sentences"] = []
    precomp_dataset.captions.write_text(json.dumps(content))
    folder = prepared(defined)
    manifest = read_manifest(folder)
    assert manifest.metrics["leaks"] >= 1
    told = " ".join(manifest.messages)
    assert "1 images without captions" in told.replace("1 image ", "1 images ")
    assert "1016.jpg of test is flickr30k-images/1000.jpg of train" in told
    assert "1001.jpg of train is flickr30k-images/1000.jpg of train" in told
    leaks, repeats = ((folder / name).read_text().splitlines() for name in (prepare.LEAKS, prepare.REPEATS))
    assert leaks[0] == "first\tsplit\tsecond\tsplit"
    assert "flickr30k-images/1000.jpg\ttrain\tflickr30k-images/1016.jpg\ttest" in leaks
    assert repeats[1:] == ["flickr30k-images/1000.jpg\ttrain\tflickr30k-images/1001.jpg\ttrain"]


def test_groups_that_share_a_picture_are_refused(tmp_path: Path) -> None:
    rows = ["file,caption,group"]
    for number, red in enumerate((1, 1, 2)):  # three groups are in three splits
        Image.new("RGB", (16, 12), (red, 99, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,caption {number},{number}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    root = tmp_path / "data"
    save_definition(root, "own", DatasetDefinition(prepare=StageDefinition(conf="files", source=str(tmp_path))))
    with pytest.raises(DataError, match=r"1\.png those of 0\.png.* give both one group"):
        prepared(root, dataset="own")


def test_photographs_that_are_saved_for_each_caption_are_one_image(tmp_path: Path) -> None:
    rows = ["file,caption"]
    for number in range(20):
        for copy in range(5):
            name = f"{number}-{copy}.png"
            Image.new("RGB", (16, 12), (number, 99, 0)).save(tmp_path / name, compress_level=copy)
            rows.append(f"{name},caption {copy} of picture {number}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    root = tmp_path / "data"
    save_definition(root, "own", DatasetDefinition(prepare=StageDefinition(conf="files", source=str(tmp_path))))
    folder = prepared(root, dataset="own")
    manifest, dataset = read_manifest(folder), PreparedDataset.open(folder)
    assert manifest.metrics["leaks"] == 0
    assert sum(images for images, _ in dataset.counts().values()) == 20
    for split in map(dataset.split, dataset.splits):
        own = {text.split()[-1] for text in split.texts}
        assert len(own) == len(split.image_ids)
        assert len(split.texts) == 5 * len(own)
    assert any("80; " in message and prepare.JOINED in message for message in manifest.messages)
    assert len((folder / prepare.JOINED).read_text().splitlines()) == 81


def test_photographs_get_the_same_splits_whatever_they_are_called_and_lie_in(tmp_path: Path) -> None:
    """In a folder under other names and in another order, and in Parquet, where one of them is there twice."""
    folder, table = tmp_path / "folder", tmp_path / "table"
    folder.mkdir()
    table.mkdir()
    rows = ["file,caption"]
    contents = []
    for number in range(40):
        path = folder / f"{97 * number % 40}.png"
        Image.new("RGB", (16, 12), (5 * number, 99, 0)).save(path)
        contents.append(path.read_bytes())
        rows.append(f"{path.name},picture {number}")
    (folder / "captions.csv").write_text("\n".join([rows[0], *rows[:0:-1]]))
    captions = [f"picture {number}" for number in range(40)]
    columns = {"image": [*contents, contents[7]], "caption": [*captions, "picture 7 again"]}
    pq.write_table(pa.table(columns), table / "x.parquet", row_group_size=9)
    splits = []
    for source in (folder, table):
        root = tmp_path / f"data-{source.name}"
        save_definition(root, "own", DatasetDefinition(prepare=StageDefinition(conf="files", source=str(source))))
        dataset = PreparedDataset.open(prepared(root, dataset="own"))
        splits.append({text: name for name, split in dataset.splits.items() for text in split.texts})
    again = splits[1].pop("picture 7 again")
    assert splits[0] == splits[1]
    assert again == splits[1]["picture 7"]
    assert set(splits[0].values()) == set(SPLITS)


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
    for path in precomp_dataset.images.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="leaves none"):
        prepared(defined)


def test_captions_and_images_of_the_source_decide_about_the_fingerprint(
    defined: Path, precomp_dataset: TinySource, tmp_path: Path
) -> None:
    definition = load_definition(defined, "tiny").prepare
    settings = prepare.FilesSettings.model_validate(resolve(load_declaration("prepare"), "files").values)

    def digests(name: str) -> dict[str, str]:
        return prepare.PrepareStage().sources(settings, definition, DigestCache(tmp_path / name))

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
        prepare.PrepareStage().sources(settings, StageDefinition(conf="files"), DigestCache(tmp_path / "digests"))
    assert prepare.PrepareStage().needs(settings, DatasetDefinition()) == {}


def test_images_of_an_artifact_lie_below_it_or_below_the_source(defined: Path, precomp_dataset: TinySource) -> None:
    assert image_root(prepared(defined)) == precomp_dataset.folder
    drawn = prepared(defined, *SCENES, dataset="scenes")
    assert image_root(drawn) == drawn
