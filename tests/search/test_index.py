"""`itrpipe index` and `itrpipe search --photos`: photographs without captions, encoded once and found."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from starlette.testclient import TestClient

import itrpipe
from itrpipe.cli.index import dataset_of
from itrpipe.datasets.definition import ModelDefinition, remember_model
from itrpipe.errors import MissingInputError, UnavailableError
from itrpipe.search.model import RetrievalModel
from itrpipe.search.photos import list_photographs
from itrpipe.storage.artifact import PICTURES, Manifest, read_manifest
from tests.chains import Invoke, done, refused
from tests.conftest import Outcome

SENTENCE = "a dog is on the beach"
COUNT = 14


def photograph(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(blocks.repeat(9, axis=0).repeat(9, axis=1)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Fourteen photographs in two folders."""
    folder = tmp_path / "Holiday photos"
    for number in range(COUNT):
        photograph(folder / ("sea" if number % 3 else ".") / f"{number:02}.{'png' if number % 2 else 'JPG'}", number)
    return folder


@pytest.fixture
def command(invoke: Invoke, photos: Path, saved_encoders: Path, data_root: Path) -> Invoke:
    """`index` or `search` over the photographs, in parts of four; with the tiny CLIP unless `model` is another."""

    def run(name: str, *arguments: object, model: object = saved_encoders / "clip") -> Outcome:
        named = () if model is None else ("--model", model)
        small = ("--set", "block=4", "--set", "batch=3") if name == "index" else ("--make",)
        return invoke(name, "--photos", photos, *named, "--data", data_root, *small, *arguments)

    return run


def artifacts(root: Path, photos: Path) -> list[Path]:
    return sorted(path.parent for path in (root / dataset_of(photos) / "index").glob("*/manifest.json"))


def manifest(root: Path, photos: Path) -> Manifest:
    (folder,) = artifacts(root, photos)
    return read_manifest(folder)


def found(outcome: Outcome) -> list[tuple[str, float]]:
    return [(each["file"], each["score"]) for each in json.loads(done(outcome))["answers"]]


def counts(made: Manifest) -> tuple[int, int, int]:
    """Photographs that an index has, and how many of them its run encoded and kept."""
    return made.metrics["photographs"], made.metrics["encoded"], made.metrics["kept"]


def test_search_ranks_as_brute_force_over_encode_images_does(
    command: Invoke, photos: Path, saved_encoders: Path, data_root: Path, tmp_path: Path
) -> None:
    model = itrpipe.load(saved_encoders / "clip")
    files = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*"))
    vectors = model.encode_images([photos / file for file in files])
    words = (vectors @ model.encode_texts([SENTENCE]).T)[:, 0]
    like = vectors @ vectors[files.index("sea/04.JPG")]

    by_words = found(command("search", SENTENCE, "--top", 5, "--json"))
    assert [file for file, _ in by_words] == [files[row] for row in np.argsort(-words)[:5]]
    assert [score for _, score in by_words] == pytest.approx(np.sort(words)[::-1][:5], abs=1e-5)
    page = tmp_path / "found.html"
    by_image = found(command("search", "--image", "sea/04.JPG", "--html", page, "--json", model=None))
    assert [file for file, _ in by_image] == [files[row] for row in np.argsort(-like, kind="stable")[:10]]
    assert by_image[0] == ("sea/04.JPG", pytest.approx(1, abs=1e-5))
    photograph(tmp_path / "other.png", 4)
    outside = found(command("search", "--image", tmp_path / "other.png", "--json"))
    assert outside[0] == ("sea/04.JPG", pytest.approx(1, abs=1e-2))
    assert page.read_text().count("data:image/jpeg") == 11

    (folder,) = artifacts(data_root, photos)
    assert np.load(folder / "embeddings.npy") == pytest.approx(vectors, abs=1e-5)
    table = pq.read_table(folder / "photos.parquet").to_pylist()
    assert [each["file"] for each in table] == files
    (photos / "notes.jpg").write_text("no photograph")
    refused(command("search", "--image", "notes.jpg"), 4, "notes.jpg")


def test_new_and_changed_photographs_alone_are_encoded(
    command: Invoke, photos: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(command("index"))
    assert counts(manifest(data_root, photos)) == (14, 14, 0)
    before = np.load(artifacts(data_root, photos)[0] / "embeddings.npy")

    def encode(*arguments: object, **options: object) -> None:
        raise AssertionError("an unchanged folder is not encoded again")

    with monkeypatch.context() as patch:
        patch.setattr(RetrievalModel, "encode_images", encode)
        assert "up to date" in command("index", model=None).out
    for number in range(3):
        photograph(photos / "new" / f"{number}.png", 100 + number)
    photograph(photos / "00.JPG", 200)
    outcome = command("search", SENTENCE, "--top", 17, "--json", model=None)
    assert "stale, source photographs changed" in outcome.err
    assert {"new/0.png", "00.JPG"} <= {file for file, _ in found(outcome)}
    folders = artifacts(data_root, photos)
    (newest,) = (each for each in folders if read_manifest(each).metrics["photographs"] == 17)
    assert read_manifest(newest).metrics["encoded"] == 4
    assert len(folders) == 2  # the earlier one has a photograph that is gone: it may come back

    (photos / "sea" / "01.png").unlink()
    done(command("index"))
    files = pq.read_table(artifact_of(data_root, photos, 16) / "photos.parquet")["file"].to_pylist()
    after = np.load(artifact_of(data_root, photos, 16) / "embeddings.npy")
    assert "sea/01.png" not in files
    old = pq.read_table(artifact_of(data_root, photos, 14) / "photos.parquet")["file"].to_pylist()
    assert after[files.index("sea/13.png")] == pytest.approx(before[old.index("sea/13.png")], abs=0)
    assert artifact_of(data_root, photos, 17).exists()


def artifact_of(root: Path, photos: Path, count: int) -> Path:
    (found,) = (each for each in artifacts(root, photos) if read_manifest(each).metrics["photographs"] == count)
    return found


def test_an_earlier_index_stays_until_garbage_is_collected(
    command: Invoke, invoke: Invoke, photos: Path, saved_encoders: Path, data_root: Path
) -> None:
    done(command("index"))
    refused(command("index", "--set", "train.epochs=3"), 2, "train.epochs")
    done(command("index", model=saved_encoders / "siglip"))
    refused(command("search", SENTENCE, model=None), 2, "is indexed by clip.", "name a model")
    photograph(photos / "new.png", 50)
    done(command("index"))
    assert sorted(read_manifest(each).metrics["encoded"] for each in artifacts(data_root, photos)) == [1, 14, 14]
    done(invoke("gc", "--dataset", dataset_of(photos), "--yes", "--data", data_root))
    assert sorted(read_manifest(each).metrics["photographs"] for each in artifacts(data_root, photos)) == [14, 15]
    damaged = next(each for each in artifacts(data_root, photos) if each.name.startswith("clip"))
    (damaged / "embeddings.npy").write_bytes(b"")
    refused(command("search", SENTENCE), 4, "embeddings.npy has 0 bytes")


def test_what_cannot_be_read_is_listed_and_what_leads_out_is_not_followed(
    command: Invoke, photos: Path, data_root: Path, tmp_path: Path
) -> None:
    photograph(tmp_path / "outside" / "secret.png", 70)
    (photos / "out.png").symlink_to(tmp_path / "outside" / "secret.png")
    (photos / "out").symlink_to(tmp_path / "outside")
    (photos / "sea" / "again.png").symlink_to(photos / "sea" / "01.png")
    (photos / "gone.png").symlink_to(photos / "nowhere.png")
    (photos / "loop.png").symlink_to("loop.png")
    (photos / "broken.jpg").write_bytes((photos / "00.JPG").read_bytes()[:400])
    (photos / "empty.png").touch()
    os.mkfifo(photos / "pipe.png")
    photograph(photos / ".thumbnails" / "a.png", 71)
    (photos / "notes.txt").write_text("no photograph")
    for name in ("a.jfif", "b.JPE"):
        shutil.copy(photos / "00.JPG", photos / name)
    for name in ("a.HEIC", "b.nef", "sea/c.heic"):
        (photos / name).touch()
    refused(command("index"), 7, "5 photographs")
    made = manifest(data_root, photos)
    reasons = {"gone.png": "is not there", "loop.png": "symbolic links", "pipe.png": "regular file"}
    reasons |= {"empty.png": "is empty", "broken.jpg": "is "}
    assert made.failed.keys() == reasons.keys()
    assert all(reason in made.failed[file] for file, reason in reasons.items())
    assert any("2 .heic, 1 .nef, 1 links out" in message for message in made.messages)
    assert made.metrics["photographs"] == 17
    files = [file for file, _ in found(command("search", SENTENCE, "--top", 99, "--json"))]
    assert len(files) == 17
    assert {"sea/again.png", "a.jfif", "b.JPE"} < {*files}
    assert command("index").code == 7  # nothing is made, and it is said again
    shutil.copy(photos / "00.JPG", photos / "empty.png")
    assert command("index").code == 7
    assert artifact_of(data_root, photos, 18).exists()
    for path in photos.rglob("*.*"):
        if path.suffix not in (".HEIC", ".heic") and path.is_file():
            path.unlink()
    refused(command("index"), 3, "2 .heic")


def test_models_that_cannot_index_are_told_before_they_are_trained(
    command: Invoke, invoke: Invoke, photos: Path, defined: Path, tmp_path: Path
) -> None:
    for name, backbone in (("small", "vsepp"), ("pairs", "scan")):
        remember_model(defined, "tiny", name, ModelDefinition(method="triplet", settings={"backbone": backbone}))
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(command("index", model="small"), 2, "imported (precomp)")
    refused(command("index", model="pairs"), 2, "has no embeddings to index")
    refused(command("index", model="smal"), 3, "known: small")
    refused(command("index", model=tmp_path), 3, "no config.json")
    refused(command("index", model=None), 2, "name a model with --model")
    refused(invoke("search", "a dog", "--model", photos, "--data", defined), 2, "add --photos FOLDER")
    refused(invoke("index", "--photos", empty, "--model", "small", "--data", defined), 3, "holds no photograph")
    assert not list(defined.glob("*/*/*-*"))


def test_a_named_model_is_trained_first_and_found_again(
    command: Invoke, invoke: Invoke, photos: Path, defined: Path
) -> None:
    sizes = {"width": 16, "vision_layers": 1, "text_layers": 1, "image_size": [32, 32]}
    sizes |= {"vision": "random", "text": "random"}
    told: dict[str, Any] = {f"train.model.{key}": value for key, value in sizes.items()}
    told |= {"train.epochs": 1, "train.batch_size": 16, "train.min_word_count": 1}
    told["backbone"] = "dual-encoder"
    remember_model(defined, "tiny", "small", ModelDefinition(method="triplet", settings=told))
    plan = done(command("index", "--dry-run", model="small"))
    assert "index follows when the model is trained" in plan
    assert command("index", "--no-deps", model="small").code == 2
    done(command("index", model="small"))
    made = manifest(defined, photos)
    assert made.label == "tiny.small"
    trained = next((defined / "tiny" / "train").glob("*/manifest.json")).parent
    vectors = itrpipe.load(trained).encode_images([photos / "00.JPG"])
    assert np.load(artifacts(defined, photos)[0] / "embeddings.npy")[0] == pytest.approx(vectors[0], abs=1e-4)
    assert len(found(command("search", "a dog", "--json", model=None))) == 10
    refused(command("search", "zyzzyva", model=None), 2, "knows no word of the query")


def test_a_listing_leaves_the_data_folder_out_and_knows_its_digest(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos / "data"
    photograph(data / "x.png", 1)
    listed = list_photographs(photos, data)
    assert len(listed.photographs) == COUNT
    assert list_photographs(photos, tmp_path).digest != listed.digest
    os.utime(photos / "00.JPG", ns=(1, 1))
    assert list_photographs(photos, data).digest != listed.digest
    with pytest.raises(MissingInputError, match="is not a folder"):
        list_photographs(photos / "00.JPG", data)
    scan = os.scandir

    def closed(place: str) -> Any:
        if Path(place) == shut:
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", closed)
    shut = photos / "sea"
    assert list_photographs(photos, data).unusable.keys() == {"sea/"}
    shut = photos
    with pytest.raises(UnavailableError, match="ermission"):
        list_photographs(photos, data)


def test_the_folder_is_served(
    command: Invoke, photos: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr("itrpipe.search.serve.run", lambda site, *how: served.append((site, *how[:2])))
    done(command("serve"))
    done(command("serve", "--no-browser", "--port", "0"))
    assert [how[1:] for how in served] == [(8765, True), (0, False)], "port, and whether a browser opens"
    site = served[0][0]
    pages = TestClient(site.app(), base_url="http://127.0.0.1")
    assert f"<title>Search · {photos.name}</title>" in pages.get("/").text
    answers = pages.get("/api/search", params={"q": SENTENCE, "count": "200"}).json()["answers"]
    printed = found(command("search", SENTENCE, "--top", COUNT, "--json"))
    assert [(each["image"], pytest.approx(each["score"], abs=1e-6)) for each in answers] == printed
    picture = pages.get(f"/pictures/320/{answers[0]['image']}")
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/jpeg")
    assert list((data_root / dataset_of(photos) / PICTURES).rglob("*.jpg"))
    copy = (photos / answers[3]["image"]).read_bytes()
    key = pages.post("/api/photographs", content=copy, headers={"Origin": "http://127.0.0.1"}).json()["photograph"]
    like = pages.get("/api/search", params={"photograph": key, "count": "5"}).json()["answers"]
    assert like[0]["image"] == answers[3]["image"], "the photograph itself is nearest to its copy"
    refused(command("serve", "--split", "test"), 2, "leave it out with --photos")
    photograph(photos / "new.png", 50)
    refused(command("search", SENTENCE, "--no-deps"), 2, f"run `itrpipe index --photos '{photos}'", "--make")
    assert len(artifacts(data_root, photos)) == 1
