"""What importers of published features read beside the plain layouts, and what they refuse."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.importers.base import Import, Place
from itrpipe.features.importers.butd_tsv.importer import layout as tsv_layout
from itrpipe.features.importers.uniter.importer import UniterSource, lmdb_values
from tests.features import test_importers as tiny

TSV, LXMERT, PRECOMP = (tiny.LAYOUTS[name] for name in ("bottom-up TSV", "LXMERT's TSV", "precomp"))
NPZ, ARRAYS = tiny.LAYOUTS["bottom-up .npz"], tiny.LAYOUTS["arrays"]
Damage = Callable[[Path], Any]


def chosen(smallest: int = 1, largest: int = 100, score: float = 0.2) -> tiny.Layout:
    """UNITER's features with these settings."""
    settings = {"min_regions": smallest, "max_regions": largest, "min_score": score}
    return tiny.LAYOUTS["UNITER's LMDB"]._replace(settings=settings)


# Values that no tool writes


def field(number: int, value: Any, columns: int = 6, line: int = 1) -> Damage:
    """Changes a field of a TSV file."""
    text = tiny.encoded(value) if isinstance(value, np.ndarray) else value

    def damage(folder: Path) -> None:
        lines = [tiny.tsv_line(image, columns) for image in tiny.images()]
        lines[line][number] = text
        content = "".join("\t".join(fields) + "\n" for fields in lines)
        (folder / "features.tsv").write_bytes(content.encode(errors="surrogateescape"))

    return damage


def save(name: str, content: Any) -> Damage:
    """Writes an array, or lines."""
    if isinstance(content, np.ndarray):
        return lambda folder: np.save(folder / name, content)
    return lambda folder: (folder / name).write_bytes("".join(f"{line}\n" for line in content).encode("latin-1"))


def unequal(folder: Path) -> None:
    """Repeats all images but one."""
    regions = np.repeat(np.load(folder / "train_ims.npy"), 5, axis=0)
    regions[7, 0, 0] += 1
    np.save(folder / "train_ims.npy", regions)


def value(value: Any) -> Damage:
    """Puts another value for an image of a database, or other arrays among its own."""
    content = tiny.packed({**tiny.of_uniter(tiny.images()[1]), **value}) if isinstance(value, dict) else value

    def damage(folder: Path) -> None:
        with lmdb.open(str(folder), lock=False) as environment, environment.begin(write=True) as transaction:
            transaction.put(b"coco_train2014_000000000025.npz", content)

    return damage


def database_in_database(folder: Path) -> None:
    with lmdb.open(str(folder), max_dbs=1, lock=False) as environment:
        environment.open_db(b"inner")


def sorted_duplicates(folder: Path) -> None:
    """Sets the flag of both meta pages."""
    content = bytearray((folder / "data.mdb").read_bytes())
    content[92] = content[4096 + 92] = 4
    (folder / "data.mdb").write_bytes(content)


def arrays(**changed: Any) -> Damage:
    """Puts other arrays in the place of some, or none."""
    content = tiny.stacked(tiny.images(ragged=False)) | changed
    kept = {name: values for name, values in content.items() if values is not None}
    return lambda folder: np.savez(folder / "theirs.npz", **kept)


def asked(**settings: Any) -> tiny.Layout:
    """Arrays, and of them these."""
    return ARRAYS._replace(settings=tiny.NAMED | settings)


NUMBERS = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (2,), b"data": b"12345678"}
OBJECTS = {"features": np.array([tiny.Trap()], dtype=object)}
NOT_NUMBERS = [
    *({b"kind": b"O", b"data": pickle.dumps(tiny.Trap())}, {b"kind": b"V", b"type": [["a", "<f4"]]}, {b"type": "|O"}),
    *({b"type": "f4,f4"}, {b"shape": (3,)}, {b"shape": ("2",)}, {b"nd": False}),
]
VALUES = [
    *({"features": NUMBERS | changed} for changed in NOT_NUMBERS),
    *({"features": np.zeros(shape, "f2")} for shape in ((4, 7), (5, 8), 5)),
    *({"conf": np.zeros(shape, "f2")} for shape in ((5, 1), 4)),
    {"norm_bb": np.zeros((5, 4), "f2")},
    {"norm_bb": np.tile(np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.2], "f2"), (5, 1))},
    *(OBJECTS, tiny.archived(OBJECTS), tiny.framed(OBJECTS)),
    *(tiny.packed(other) for other in ({"conf": np.zeros(5, "f2")}, {}, [1])),
    *(b"", b"\xc1", b"\x81", b"PK\x03\x04", b"\x04\x22\x4d\x18"),
]
REFUSED = [
    *((TSV, field(3, text), "line 2") for text in ("many", "-5", "6")),
    *((TSV, field(5, np.zeros((5, width), "<f4")), "line 2") for width in (6, 8)),
    *((TSV, field(0, name), "line 2") for name in ("", "\udcff")),
    *((TSV, field(number, text), "line 2") for number, text in ((4, "a\tb"), (4, "a\nb"), (5, ""))),
    *((TSV, field(number, "", line=0), "line 1") for number in (0, 3, 5)),
    (TSV, field(3, "2", line=0), "line"),
    *((TSV, field(number, text), "image '25'") for number, text in ((1, "wide"), (2, "0"), (4, "?" * 108))),
    (TSV, field(4, np.zeros((4, 4), "<f4")), "image '25'"),
    (LXMERT, field(3, np.zeros(5, "<i4"), columns=10), "image '25'"),
    *((PRECOMP, save("train_ims.npy", np.zeros(shape)), "train_") for shape in ((3, 7), (3, 0, 7), (4, 4, 7))),
    *((PRECOMP, save("train_ims.npy", np.zeros((3, 4, 7), kind)), "train_ims.npy") for kind in ("i4", "U1")),
    (PRECOMP, unequal, "train_ims.npy"),
    (PRECOMP, save("dev_ims.npy", np.zeros((2, 4, 6))), "shapes"),
    (PRECOMP, save("dev_global.npy", np.zeros((2, 4))), "shapes"),
    (PRECOMP, save("dev_global.npy", np.zeros((3, 3))), "dev_global.npy"),
    (PRECOMP, lambda folder: (folder / "test_global.npy").unlink(), "shapes"),
    *((PRECOMP, save("dev_caps.txt", lines), "dev_caps.txt") for lines in ("a" * 9, "\xe9" * 10)),
    *((PRECOMP, save("dev_ids.txt", names), "dev_ids.txt") for names in ("", "a", "aa", "abab")),
    (PRECOMP._replace(settings={"grid": (3, 2)}), arrays(), r"\[3, 2\]"),
    *((chosen(largest=3), value(content), r"image '.*25\.npz'") for content in VALUES),
    (chosen(), lambda folder: tiny.database(folder, []), "holds no image"),
    (chosen(), database_in_database, "database in the database"),
    (chosen(), sorted_duplicates, "several values"),
    (NPZ, lambda folder: np.savez(folder / "25.npz", x=np.zeros((5, 7)), num_bbox=4), r"'25\.npz'.*num_bbox says 4"),
    *((ARRAYS, arrays(regions=np.zeros(shape)), "regions") for shape in ((6, 7), (6, 4, 0), (6, 0, 7), (6, 4, 7, 2))),
    (ARRAYS, arrays(regions=np.full((6, 4, 7), "a")), "regions"),
    *((ARRAYS, arrays(boxes=np.zeros(shape)), "boxes") for shape in ((6, 4, 5), (6, 3, 4), (5, 4, 4))),
    *((ARRAYS, arrays(count=values), "count") for values in (np.zeros(()), np.full(6, 5))),
    (ARRAYS, arrays(**{"global": np.zeros((6, 2, 2), "u1")}), "global"),
    *((ARRAYS, arrays(image_id=values), "image_id|5") for values in (np.arange(5), np.zeros((6, 2), int), None)),
    *((ARRAYS, arrays(**{name: None}), rf"\({name}\)") for name in ("attributes", "attribute_scores")),
    (ARRAYS, arrays(regions=None), "no whole features .attribute_scores"),
    *((asked(map=names), arrays(), word) for names, word in (({"x": "regions"}, "'x'"), ({"boxes": "bbox"}, "'bbox'"))),
    (asked(map={"image_id": "labels"}, ids="ids.txt"), arrays(), "ids.txt"),
    (asked(ids="absent.txt"), arrays(), "absent.txt"),
    (asked(ids="ids.txt"), save("ids.txt", "abc"), "3"),
]


@pytest.mark.parametrize(("layout", "damage", "where"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_tool_writes_is_refused_in_one_line(
    tmp_path: Path, layout: tiny.Layout, damage: Damage, where: str
) -> None:
    path = layout.write(tmp_path, tiny.images(layout.ragged))
    damage(tmp_path)
    with pytest.raises((DataError, UsageError, MissingInputError), match=where) as caught:
        tiny.imported(layout, path, tiny.images(layout.ragged))
    assert "\n" not in str(caught.value)


# TSV


def test_an_image_without_regions_does_no_harm_until_it_is_wanted(tmp_path: Path) -> None:
    made = tiny.images()
    made[0] |= {"regions": made[0]["regions"][:0], "boxes": made[0]["boxes"][:0]}
    path = tiny.tsv(tmp_path, made)
    assert tiny.importing(TSV, path).source.summary == "bottom-up-attention's TSV: 6 images; 0 to 5 regions of width 7"
    tiny.assert_equal(TSV, tiny.imported(TSV, path, made[1:]), made[1:])
    with pytest.raises(DataError, match="'9' has no region"):
        tiny.imported(TSV, path, made)


def test_two_places_of_one_image_must_be_equal(tmp_path: Path) -> None:
    """Parts of files, and whole files."""
    tiny.tsv(tmp_path, tiny.images(), file="a.tsv")
    tiny.tsv(tmp_path, [tiny.images()[1] | {"regions": tiny.images()[1]["regions"] + 1}], file="b.tsv")
    with pytest.raises(DataError, match=r"b\.tsv has other features of image '25' than .*a\.tsv"):
        tiny.imported(TSV, tmp_path, [])
    source: Any = tiny.importing(TSV, tmp_path / "a.tsv").source
    for _ in range(2):
        source.add("whole", Place(tmp_path / "a.tsv"))
    with pytest.raises(DataError, match="'whole'"):
        source.add("whole", Place(tmp_path / "b.tsv"))


@pytest.mark.parametrize("text", ["\t".join(["image_id"] * 6), "a\tb\tc\n", "\n\n", ""])
def test_other_texts_are_no_features(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.tsv").write_text(text)
    assert ("without" in str(tsv_layout(tmp_path))) == (text.count("\t") != 5)
    with pytest.raises(DataError, match=r"x\.tsv"):
        tiny.imported(TSV, tmp_path / "x.tsv", [])


# precomp


@pytest.mark.parametrize("ids", [True, False])
def test_test_may_be_a_part_of_testall(tmp_path: Path, ids: bool) -> None:
    """The same image may be written in two ways."""
    made = tiny.images(ragged=False)
    made[5] |= {"name": "COCO_val2014_000000000009.jpg", "captions": made[0]["captions"]}
    tiny.precomp(tmp_path, made, ids=int(ids), testall=slice(0, 3), test=slice(5, 6))
    work = tiny.importing(PRECOMP, tmp_path, made[:3])
    assert (len(work.source.names), len(work.notes)) == (3, int(not ids))
    tiny.assert_equal(PRECOMP, tiny.imported(PRECOMP, tmp_path, made[:3]), [made[5], *made[1:3]])


def test_ids_that_count_the_images_of_each_split_do_no_harm(tmp_path: Path) -> None:
    made = [image | {"name": name} for image, name in zip(tiny.images(ragged=False), "012010", strict=True)]
    tiny.precomp(tmp_path, made)
    wanted = [made[4], made[0]]
    tiny.assert_equal(PRECOMP, tiny.imported(PRECOMP, tmp_path, wanted), wanted)


# UNITER


@pytest.mark.parametrize(("smallest", "largest", "score"), [(1, 100, 0.2), (2, 3, 0.6), (1, 2, 0.99), (9, 9, 0.0)])
def test_the_settings_choose_the_regions(tmp_path: Path, smallest: int, largest: int, score: float) -> None:
    made, layout = tiny.images(), chosen(smallest, largest, score)
    path, taken = tiny.database(tmp_path, made), []
    for image in made:
        sure, stored = int((image["scores"] > score).sum()), len(image["regions"])
        taken.append(min(max(smallest, sure), largest, stored))
        image |= {key: image[key][: taken[-1]] for key in layout.holds - {"count"}}
    regions = f"{min(taken)} to {max(taken)} regions of width 7"
    assert tiny.importing(layout, path).source.summary == f"LMDB, regions surer than {score}: 6 images; {regions}"
    tiny.assert_equal(layout, tiny.imported(layout, path, made), made)


@pytest.mark.parametrize("up", [0, 1])
def test_uniters_list_of_counts_saves_reading_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: int
) -> None:
    (tmp_path / "db").mkdir()
    path = tiny.database(tmp_path / "db", tiny.images())
    names = tiny.importing(chosen(), path).source.names

    def found(listed: Any) -> Import:
        ([path, tmp_path][up] / "nbb_th0.2_max4_min1.json").write_text(json.dumps(listed))
        return tiny.importing(chosen(largest=4), path, tiny.images())

    assert found({names[0]: 3}).spec.regions == 4  # the others are counted
    for damaged in ([], dict.fromkeys(names, "many")):
        with pytest.raises(DataError, match=r"nbb_th.* cannot be read .* remove it"):
            found(damaged).parts()
    assert tiny.importing(chosen(), path).spec.regions == 5  # that list is not for these settings
    with monkeypatch.context() as patched:
        patched.setattr(UniterSource, "_kept", None)
        assert found(dict.fromkeys(names, 3)).spec.regions == 3
    with pytest.raises(DataError, match=names[1]):  # which has four
        found(dict.fromkeys(names, 3)).source.read(np.arange(2), np.ones((2, 2)))


@pytest.mark.parametrize(("package", "pack"), [("msgpack", tiny.packed), ("lz4.frame", tiny.framed)])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, pack: Any) -> None:
    path = tiny.database(tmp_path, tiny.images(), pack)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingInputError, match=rf"needs {package}: pip install 'itrpipe\[uniter\]'"):
        tiny.imported(chosen(), path, [])


CHANGES = st.dictionaries(st.binary(min_size=1, max_size=40), st.none() | st.integers(0, 20_000), max_size=30)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(0, 10**9))
@example([{b"%0200d" % number: 5 for number in range(20_000)}], 0)  # a tree of three levels
def test_entries_are_those_of_the_library(tmp_path: Path, transactions: list[dict], folder: int) -> None:
    """Several transactions write, overwrite and delete, so that both meta pages and freed pages are there."""
    with lmdb.open(str(tmp_path / str(folder)), map_size=1 << 26, sync=False) as environment:
        for changes in transactions:
            with environment.begin(write=True) as transaction:
                for key, length in changes.items():
                    if length is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, bytes([length % 251]) * length)
        with environment.begin() as transaction:
            expected = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    assert [(key, place.content()) for key, place in lmdb_values(tmp_path / str(folder) / "data.mdb")] == expected
