"""No path of a data file leaves the image root."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.datasets.paths import ImageRoot, locate_images
from itrpipe.errors import DataError, MissingInputError


def resolve_inside(root: Path, relative: str) -> Path:
    """The real path of an image below a root."""
    return ImageRoot(root, source=root).resolve(relative, record="path")


@pytest.mark.parametrize(
    ("relative", "reason"),
    [
        ("/etc/passwd", "is absolute"),
        ("C:/pictures/a.jpg", "is absolute"),
        ("../a.jpg", "contains '..'"),
        ("images/../../a.jpg", "contains '..'"),
        ("images/../a.jpg", "contains '..'"),
        ("images\\a.jpg", "contains a backslash"),
        ("a\0.jpg", "no file name can hold"),
        ("a\ud800.jpg", "no file name can hold"),
        ("", "names no file"),
        ("  ", "names no file"),
        ("a\nb.jpg", "contains a line end or another control character; rename the file"),
        ("images/a\x1b[2J.jpg", "contains a line end or another control character"),
        ("a\u2028.jpg", "contains a line end or another control character"),
        ("a" * 5000 + ".jpg", "has a name of 5,004 bytes, and no file has more than 255"),
        ("犬" * 86, "has a name of 258 bytes"),
        ("abc/" * 1024 + "a.jpg", "has 4,101 bytes, and no path has more than 4,095"),
        ("./.", "names no file"),
    ],
)
def test_a_path_that_is_wrong_by_its_text_is_refused(tmp_path: Path, relative: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason.replace(".", r"\.")):
        resolve_inside(tmp_path, relative)


def test_a_long_path_is_named_in_part(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        resolve_inside(tmp_path, "a" * 5000)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_the_longest_names_are_taken(tmp_path: Path) -> None:
    for relative in ("a" * 255, "犬" * 85, "abc/" * 900 + "a.jpg"):
        assert resolve_inside(tmp_path, relative).is_relative_to(tmp_path)


def test_a_plain_path_is_resolved_whether_or_not_the_file_exists(tmp_path: Path) -> None:
    assert resolve_inside(tmp_path, "images/./a.jpg") == (tmp_path / "images" / "a.jpg").resolve()


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.jpg").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolve_inside(tmp_path / "link", "a.jpg") == (tmp_path / "real" / "a.jpg").resolve()


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "root-of-others"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.jpg").write_bytes(b"x")
    (root / "a.jpg").write_bytes(b"x")
    (root / "inner.jpg").symlink_to(root / "a.jpg")
    (root / "file.jpg").symlink_to(outside / "secret.jpg")
    (root / "folder").symlink_to(outside)
    assert resolve_inside(root, "inner.jpg") == (root / "a.jpg").resolve()
    for relative in ("file.jpg", "folder/secret.jpg"):
        with pytest.raises(DataError, match="symbolic link"):
            resolve_inside(root, relative)


def test_the_error_names_the_data_file_and_the_record(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data\.json: image 17: image path '\.\./x\.jpg'") as caught:
        ImageRoot(tmp_path, Path("data.json")).check("../x.jpg", "image 17")
    assert "\n" not in str(caught.value)


@given(st.lists(st.sampled_from(["a", "b.jpg", "..", ".", "", "~", "...", "/"]), max_size=6))
def test_whatever_is_accepted_lies_inside(parts: list[str]) -> None:
    root = Path("/no/such/root")
    try:
        resolved = resolve_inside(root, "/".join(parts))
    except DataError:
        return
    assert resolved.is_relative_to(root)
    assert resolved != root


def test_images_are_found_in_the_first_folder_that_holds_one(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.jpg").write_bytes(b"")
    found = locate_images(tmp_path, tmp_path, [["x/a.jpg", "x/b.jpg"], ["a.jpg", "b.jpg"]], ["0", "1"], ["", "images"])
    assert found == ["images/a.jpg", "images/b.jpg"]


def test_a_bad_path_is_refused_even_where_no_image_is_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1.*absolute"):
        locate_images(tmp_path, tmp_path, [["a.jpg", "/b.jpg"]], ["row 0", "row 1"], ["images"])


def test_folders_that_were_looked_in_are_listed(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=rf"{tmp_path}/images, {tmp_path}/photos"):
        locate_images(tmp_path, tmp_path, [["a.jpg"]], ["0"], ["images", "photos"])


def test_a_dataset_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images"):
        locate_images(tmp_path, tmp_path, [[]], [], ["images"])
