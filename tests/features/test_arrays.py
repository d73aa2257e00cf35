"""Arrays by other names, by none, and such as do not fit together; `test_importers.py` has what all importers share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.arrays.importer import ArraysSource, layout, open_source
from itrpipe.features.importers.base import checked
from itrpipe.features.store import FeatureSpec

N, R, D = 7, 4, 5
IDS = [f"image {number}.jpg" for number in range(N)]
Content = dict[str, Any]


def make_content() -> Content:
    rng = np.random.default_rng(0)
    return {
        "image_id": np.array(IDS),
        "regions": rng.normal(size=(N, R, D)).astype("f2"),
        "boxes": np.sort(rng.uniform(size=(N, R, 2, 2)), axis=2).reshape(N, R, 4),
        "labels": rng.integers(1600, size=(N, R)),
        "attributes": rng.integers(400, size=(N, R)).astype("u2"),
        "attribute_scores": rng.uniform(size=(N, R)).astype("f2"),
        "global": rng.normal(size=(N, 3)).astype("f2"),
        "pixels": rng.integers(256, size=(N, 6, 8, 3)).astype("u1"),
    }


def opened(path: Path, **settings: Any) -> ArraysSource:
    return open_source(path, Arrays(kind="arrays", **{"ids": "", "boxes": "fractions", **settings}))


def read(source: ArraysSource) -> Content:
    return checked(source, IDS, np.arange(N), np.full((N, 2), 300))


def test_pictures_are_read_as_they_are(tmp_path: Path) -> None:
    content = make_content()
    np.savez(tmp_path / "a.npz", **content)
    source = opened(tmp_path / "a.npz")
    assert source.spec == FeatureSpec(R, D, 3, boxes=True, labels=True, attributes=True, pixels=(6, 8))
    np.testing.assert_array_equal(read(source)["pixels"], content["pixels"])


def test_names_are_mapped(tmp_path: Path) -> None:
    content = make_content()
    np.savez(tmp_path / "a.npz", feats=content["regions"], cocoid=np.arange(N) + 100, labels=np.zeros(2))
    source = opened(tmp_path / "a.npz", map={"regions": "feats", "image_id": "cocoid", "labels": ""})
    assert source.names == [str(number + 100) for number in range(N)]
    assert source.spec == FeatureSpec(R, D)
    np.testing.assert_array_equal(read(source)["regions"], content["regions"])


@pytest.mark.parametrize(("name", "spec"), [("regions", FeatureSpec(R, D)), ("global", FeatureSpec(0, 0, 3))])
def test_an_array_without_a_name_is_known_by_its_dimensions(tmp_path: Path, name: str, spec: FeatureSpec) -> None:
    content = make_content()
    np.save(tmp_path / "a.npy", content[name])
    (tmp_path / "ids.txt").write_text("\n".join(f"{each} " for each in IDS) + "\n")
    source = opened(tmp_path / "a.npy", ids="ids.txt")
    assert (source.names, source.spec) == (IDS, spec)
    rows = read(source)
    np.testing.assert_array_equal(rows.pop(name), content[name])
    assert {key: each.tolist() for key, each in rows.items()} == ({"count": [R] * N} if spec.regions else {})


@pytest.mark.parametrize("name", ["names", "ids", "image_id"])
def test_ids_go_by_three_names(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", **{"global": np.ones((2, 3)), name: np.array([b"a ", b"b"])})
    assert opened(tmp_path / "a.npz").names == ["a", "b"]


def put(**arrays: Any) -> Callable[[Content], Content]:
    return lambda content: content | arrays


def drop(*names: str) -> Callable[[Content], Content]:
    return lambda content: {name: array for name, array in content.items() if name not in names}


# What is changed in the file, and settings; the exception; what of it the message has to name.
REFUSALS: list[tuple[Callable[[Content], Content], Content, type[ItrpipeError], str]] = [
    (put(regions=np.zeros((N, D))), {}, DataError, "regions"),
    (put(regions=np.zeros((N, R, 0))), {}, DataError, "regions"),
    (put(regions=np.zeros((N, 0, D))), {}, DataError, "regions"),
    (put(regions=np.zeros((N, R, D, 2))), {}, DataError, "regions"),
    (put(regions=np.full((N, R, D), "a")), {}, DataError, "regions"),
    (put(boxes=np.zeros((N, R, 5))), {}, DataError, "boxes"),
    (put(boxes=np.zeros((N, R - 1, 4))), {}, DataError, "boxes"),
    (put(scores=np.zeros((N - 1, R))), {}, DataError, "scores"),
    (put(count=np.zeros(())), {}, DataError, "count"),
    (put(count=np.full(N, R + 1)), {}, DataError, "count"),
    (put(labels=np.zeros((N, R))), {}, DataError, "labels"),
    (put(pixels=np.zeros((N, 2, 2), "u1")), {}, DataError, "pixels"),
    (put(pixels=np.zeros(N, "u1")), {}, DataError, "pixels"),
    (put(**{"global": np.zeros((N, 2, 2))}), {}, DataError, "global"),
    (put(image_id=np.arange(N - 1)), {}, DataError, "6"),
    (put(image_id=np.zeros((N, 2), int)), {}, DataError, "image_id"),
    (drop("image_id"), {}, DataError, "no image ids"),
    (drop("regions"), {}, DataError, "boxes"),
    (drop("attribute_scores"), {}, DataError, "attribute_scores"),
    (drop("attributes"), {}, DataError, "attributes"),
    (drop("regions", "global", "pixels"), {}, DataError, "boxes"),
    (lambda content: {"feats": content["regions"], "image_id": content["image_id"]}, {}, DataError, "feats, image_id"),
    (put(), {"map": {"features": "regions"}}, UsageError, "features"),
    (put(), {"map": {"boxes": "bbox"}}, UsageError, "bbox"),
    (put(), {"map": {"image_id": "labels"}, "ids": "ids.txt"}, UsageError, "ids.txt"),
    (put(), {"ids": "absent.txt"}, MissingInputError, "absent.txt"),
    (put(), {"ids": "ids.txt"}, DataError, "3"),
]


@pytest.mark.parametrize(("change", "settings", "kind", "value"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[Content], Content], settings: Content, kind: type[ItrpipeError], value: str
) -> None:
    (tmp_path / "ids.txt").write_text("a\nb\nc\n")
    np.savez(tmp_path / "a.npz", **change(make_content()))
    with pytest.raises(kind) as caught:
        read(opened(tmp_path / "a.npz", **settings))
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_files_of_arrays_are_recognised(tmp_path: Path) -> None:
    for name in ("a.npy", "a.npz", "a.H5", "a.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder.npz").mkdir()
    found = {path.name for path in tmp_path.iterdir() if layout(path)}
    assert found == {"a.npy", "a.npz", "a.H5"}
