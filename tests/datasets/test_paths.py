"""No path of a data file leaves the image root."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.datasets.paths import ImageRoot, image_key, locate_images
from itrpipe.errors import DataError, MissingInputError


def resolve_inside(root: Path, relative: str) -> Path:
    """The real path of an image below a root."""
    return ImageRoot(root, source=root).resolve(relative, record="path")


@pytest.mark.parametrize(
    ("relative", "reason"),
    [
        *((path, "is absolute") for path in ("/etc/passwd", "C:/pictures/a.jpg")),
        *((path, "contains '..'") for path in ("../a.jpg", "images/../../a.jpg", "images/../a.jpg", "..", "a/..")),
        ("images\\a.jpg", "contains a backslash"),
        *((path, "no file name can hold") for path in ("a\0.jpg", "a\ud800.jpg")),
        *((path, "names no file") for path in ("", "  ", "./.", ".", "./")),
        *((path, "control character; rename") for path in ("a\nb.jpg", "images/a\x1b[2J.jpg", "b\x85", "a\u2028.jpg")),
        *((path, "more bytes than") for path in ("a" * 5000, "犬" * 86, "a" * 256, "abc/" * 1023 + "abcd")),
    ],
)
def test_a_path_that_is_wrong_by_its_text_is_refused(tmp_path: Path, relative: str, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        ImageRoot(tmp_path, Path("data.json")).resolve(relative, "image 17")
    line = str(caught.value)
    assert line.startswith("data.json: image 17: image path ")
    assert reason in line
    assert "\n" not in line
    assert len(line) < 500


def test_the_longest_names_and_odd_ones_are_taken(tmp_path: Path) -> None:
    for relative in ("a" * 255, "犬" * 85, "abc/" * 1023 + "abc", "...", "a..b", "images/./a.jpg", ".a"):
        assert resolve_inside(tmp_path, relative) == (tmp_path / relative).resolve()


def test_links_are_followed_inside_the_root_only_which_may_be_one(tmp_path: Path) -> None:
    root, outside, link = tmp_path / "root", tmp_path / "root-of-others", tmp_path / "link"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.jpg").write_bytes(b"x")
    link.symlink_to(root)
    (root / "inner.jpg").symlink_to(root / "a.jpg")
    (root / "file.jpg").symlink_to(outside / "a.jpg")
    (root / "folder").symlink_to(outside)
    for start in (root, link):
        assert resolve_inside(start, "inner.jpg") == resolve_inside(start, "a.jpg") == (root / "a.jpg").resolve()
        for relative in ("file.jpg", "folder/a.jpg"):
            with pytest.raises(DataError, match="leads through a symbolic link"):
                resolve_inside(start, relative)


@given(st.lists(st.sampled_from(["a", "b.jpg", "..", ".", "", "~", "...", "/"]), max_size=6))
def test_whatever_is_accepted_lies_inside(parts: list[str]) -> None:
    root = Path("/no/such/root")
    try:
        resolved = resolve_inside(root, "/".join(parts))
    except DataError:
        return
    assert resolved.is_relative_to(root)
    assert resolved != root


def test_a_key_is_one_for_all_spellings() -> None:
    assert {image_key(name) for name in (" a//b/./caf\u00e9", "./a/b/cafe\u0301 ")} == {"a/b/caf\u00e9"}
    assert (image_key("//a"), image_key("/")) == ("/a", "/")


def test_images_are_found_in_the_first_layout_and_folder_that_hold_one(tmp_path: Path) -> None:
    layouts = [["x/a.jpg", "x/b.jpg"], ["./a.jpg", "b.jpg"]]
    for folder, expected in {"images": "images/", "": "", "x": "x/"}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "b.jpg").write_bytes(b"")
        found = locate_images(tmp_path, tmp_path, layouts, ["0", "1"], ["", "images"])
        assert found == [f"{expected}a.jpg", f"{expected}b.jpg"]


def test_folders_without_the_images_are_listed_and_bad_paths_refused_before(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=rf"{tmp_path}/images, {tmp_path}/photos"):
        locate_images(tmp_path, tmp_path, [["a.jpg"]], ["0"], ["images", "photos"])
    with pytest.raises(DataError, match=r"row 1.*absolute"):
        locate_images(tmp_path, tmp_path, [["x/a.jpg", "x/b.jpg"], ["a.jpg", "/b.jpg"]], ["row 0", "row 1"], ["images"])
    many = [f"{number}.jpg" for number in range(51)]
    (tmp_path / "50.jpg").write_bytes(b"")
    with pytest.raises(MissingInputError):
        locate_images(tmp_path, tmp_path, [many], many, [""])
    (tmp_path / "49.jpg").write_bytes(b"")
    assert locate_images(tmp_path, tmp_path, [many], many, [""]) == many


def test_of_two_spellings_on_disk_each_is_found_where_it_is_named(tmp_path: Path) -> None:
    for name in ("cafe\u0301.png", "caf\u00e9.png"):
        (tmp_path / name).write_bytes(b"")
        assert locate_images(tmp_path, tmp_path, [["caf\u00e9.png"]], ["0"], [""]) == [name]
