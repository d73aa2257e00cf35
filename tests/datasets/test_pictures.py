"""Every file that a viewer shows is decoded as the viewer shows it; every other file is refused with its reason."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from itrpipe.datasets import image_check, pictures
from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.image_check import (
    ImageFacts,
    check_images,
    inspect_picture,
    merge_equal_pictures,
    picture_keys,
)
from itrpipe.datasets.pictures import DECODERS, decode_rgb, read_rgb
from itrpipe.errors import DataError
from tests.maps import made

# pytest shows all warnings again; `test_nothing_is_said_on_the_terminal` runs without it.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.integers(0, 256, (13, 17, 4), dtype=np.uint8)
NOISE[0, 0, -1], NOISE[-1, -1, -1] = 0, 255
DEEP = RANDOM.integers(0, 2**16, (13, 17)).astype(np.uint16)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(stream, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}) | options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`colour` [H, W, 1 or 3] over white, with the opacity `alpha` [H, W]."""
    opacity = alpha[..., np.newaxis] / 255
    return colour * opacity + 255 * (1 - opacity)


def palette(opacity: bytes | int) -> bytes:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    return encoded(image, transparency=opacity)


def deep(mode: str, kind: str) -> bytes:
    samples = DEEP.astype(">u2" if mode == "I;16B" else "<u2").tobytes()
    return encoded(Image.frombytes(mode, (17, 13), samples), kind)


RGB, GREY, ALPHA = NOISE[..., :3], NOISE[..., 0], NOISE[..., -1]
BITS = GREY // 0x80 * 255
ODD: dict[str, tuple[str, Any]] = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))["odd pictures"]
FRAMES = [Image.new("RGB", (9, 6), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
CUT_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\xff\0\0\0\xff\0\0\0"
ODD_EXIF = (b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff", CUT_EXIF)
PICTURES: dict[str, tuple[bytes, Any, float]] = {
    **{f"{mode} {kind}": (encoded(Image.fromarray(pixels.squeeze()).convert(mode), kind), pixels, 0)
       for mode, pixels, kinds in (("RGB", RGB, "PNG BMP TIFF WEBP"), ("L", GREY[..., None], "PNG BMP TIFF GIF"),
                                   ("P", GREY[..., None], "PNG BMP TIFF GIF"), ("1", BITS[..., None], "PNG BMP TIFF"))
       for kind in kinds.split()},
    **{f"opacity {kind}": (encoded(NOISE, kind), on_white(RGB, ALPHA), 1) for kind in ("PNG", "WEBP", "TIFF")},
    **{f"grey opacity {kind}": (encoded(Image.fromarray(NOISE[..., 2:], "LA"), kind),
       on_white(NOISE[..., 2:3], ALPHA), 1) for kind in ("PNG", "TIFF")},
    "palette with one clear entry": (palette(0), [[[255] * 3, [40, 50, 60], [70, 80, 90]]], 0),
    "palette with opacities": (palette(b"\0\xff\x80"), [[[255] * 3, [40, 50, 60], [162, 167, 172]]], 1),
    "clear colour": (encoded(np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8), transparency=(1, 2, 3)),
                     [[[255] * 3, [1, 2, 4]]], 0),
    "clear grey": (encoded(np.array([[7, 8]], np.uint8), transparency=8), [[[7] * 3, [255] * 3]], 0),
    **{f"deep {mode} {kind}": (deep(mode, kind), DEEP[..., None] >> 8, 0)
       for mode in ("I;16", "I;16B") for kind in ("PNG", "TIFF")},
    **{name: (base64.b64decode(content), pixels, 0) for name, (content, pixels) in ODD.items()},
    **{f"inks {cmyk}": (encoded(Image.new("CMYK", (20, 10), cmyk), "JPEG", quality=95), np.full((10, 20, 3), rgb), 3)
       for cmyk, rgb in {(0, 0, 0, 0): 255, (0, 0, 0, 255): 0, (255, 255, 255, 0): 0}.items()},
    **{f"animation {kind}": (encoded(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:]),
       np.broadcast_to([250, 0, 0], (6, 9, 3)), 8) for kind in ("GIF", "WEBP", "PNG", "TIFF")},
    **{f"odd orientation {kind} {len(exif)}": (encoded(np.zeros((3, 5, 3), np.uint8), kind, exif=exif),
       np.zeros((3, 5, 3)), 0) for kind in ("JPEG", "PNG", "WEBP") for exif in ODD_EXIF},
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_decoded_as_a_viewer_shows_it(name: str) -> None:
    content, expected, tolerance = PICTURES[name]
    decoded, expected = decode_rgb(content), np.asarray(expected)
    assert (decoded.dtype, decoded.shape) == (np.uint8, (*expected.shape[:2], 3))
    assert decoded.flags.c_contiguous
    assert decoded.flags.writeable
    np.testing.assert_allclose(decoded, np.broadcast_to(expected, decoded.shape), atol=tolerance)
    assert inspect_picture(content)[1:3] == decoded.shape[1::-1]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_honoured_and_agrees_with_the_check(kind: str, orientation: int) -> None:
    pixels = np.zeros((24, 40, 3), dtype=np.uint8)
    pixels[:8, :8] = 255  # the corner in which the stored image begins
    content = encoded(pixels, kind, exif=turned(orientation))
    decoded = decode_rgb(content)
    height, width = (24, 40) if orientation < 5 else (40, 24)
    assert decoded.shape == (height, width, 3)
    assert inspect_picture(content)[1:3] == (width, height)
    # Where the EXIF standard says that the first row and the first column are.
    places = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}
    corners = [(0, 0), (0, -1), (-1, 0), (-1, -1)]
    assert [place for place in corners if decoded[place].mean() > 128] == [places[orientation]]


FILES = {kind: encoded(NOISE[..., :3].repeat(4, axis=0).repeat(4, axis=1), kind) for kind in DECODERS} | {
    f"{mode} progressive": encoded(Image.fromarray(RGB).resize((70, 50)).convert(mode), "JPEG", progressive=True)
    for mode in ("L", "CMYK", "RGB")
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_anywhere_is_refused_with_a_short_reason(kind: str) -> None:
    content, reasons = FILES[kind], set()
    for kept in range(0, int(len(content) * 0.95), len(content) // 30):
        with pytest.raises(pictures.DECODER_ERRORS):
            inspect_picture(content[:kept])
        with pytest.raises(DataError) as caught:
            decode_rgb(content[:kept])
        reasons.add(str(caught.value))
    assert all(reason.startswith(("is ", "has ")) and "\n" not in reason for reason in reasons), reasons
    # WEBP's decoder does not say what is wrong.
    assert kind == "WEBP" or any(reason.startswith("is truncated (") for reason in reasons), reasons


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from([b"", *(content[:8] for content in FILES.values())]))
@example(b"", b"")
def test_any_other_bytes_are_refused(content: bytes, start: bytes) -> None:
    with pytest.raises(DataError, match=r"^(is|has) "):
        decode_rgb(start + content)


def bomb(side: int) -> bytes:
    """A PNG whose header speaks of a large picture."""
    content = bytearray(encoded(Image.new("L", (2, 2))))
    content[16:24] = struct.pack(">II", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("side", [20_000, 9_460])  # Pillow refuses the first by itself
def test_a_bomb_is_refused_before_it_is_decoded(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bomb(side)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("the bomb went off"))
    with pytest.raises(DataError, match=r"^has .*89,478,485 .*make it smaller$"):
        decode_rgb(content)


def check(root: Path, files: dict[str, bytes | None], workers: int = 1) -> tuple[dict[str, ImageFacts], dict[str, str]]:
    """Writes files with content, and checks all."""
    for name, content in files.items():
        if content is not None:
            (root / name).write_bytes(content)
    return check_images(root, [*files, *files], lambda work: made(work, root / ".parts", workers))


def test_all_facts_and_problems_are_collected_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.jpg").write_bytes(encoded(RGB, "JPEG"))
    (root / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    (root / "folder.jpg").mkdir()
    os.mkfifo(root / "pipe.jpg")
    monkeypatch.setattr(pictures, "MAX_PIXELS", 13 * 17)
    good = {"good.jpg": encoded(RGB, "JPEG"), "turned.jpg": encoded(RGB, "JPEG", exif=turned(6))}
    bad: dict[str, tuple[bytes | None, str]] = {
        "cut.jpg": (encoded(RGB, "JPEG")[:-200], "is truncated ("),
        "empty.jpg": (b"", "is empty"),
        "drawing.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "is none of JPEG, PNG"),
        "large.png": (encoded(Image.new("L", (17, 14))), "has 238 pixels, and 221 are read at most; make it smaller"),
        "float.tiff": (encoded(Image.new("F", (3, 2)), "TIFF"), "has samples of the kind F,"),
        "lab.tiff": (encoded(Image.new("LAB", (3, 2)), "TIFF"), "has samples of the kind LAB,"),
        "gone.jpg": (None, "is not there"),
        "link.jpg": (None, "image path 'link.jpg' leads to"),
        "loop.jpg": (None, "symbolic link"),
        "folder.jpg": (None, "is not a regular file"),
        "pipe.jpg": (None, "is not a regular file"),
        "../outside.jpg": (None, "contains '..'"),
    }
    facts, problems = check(root, good | {name: content for name, (content, _) in bad.items()})
    sizes = {"good.jpg": (17, 13), "turned.jpg": (13, 17)}
    expected = {name: (hashlib.sha256(good[name]).hexdigest(), *size) for name, size in sizes.items()}
    assert {name: each[:3] for name, each in facts.items()} == expected
    assert [*problems] == [*bad]
    assert all(reason in problems[file] and "\n" not in problems[file] for file, (_, reason) in bad.items()), problems
    np.testing.assert_array_equal(read_rgb(root / "good.jpg"), decode_rgb(good["good.jpg"]))
    told = {name: reason for name, (_, reason) in bad.items() if name not in ("link.jpg", "../outside.jpg")}
    for name, reason in (told | {"loop.jpg": "cannot be read: Too many levels of"}).items():
        with pytest.raises(DataError) as caught:
            read_rgb(root / name)
        assert str(caught.value).startswith(reason)


def test_every_image_counts_once_in_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_check, "_IMAGES", 3)
    contents: dict[str, bytes | None] = {f"{number}": encoded(NOISE[number]) for number in range(8)}
    assert [*check(tmp_path, contents, workers=2)[0]] == [*contents]
    assert len([*(tmp_path / ".parts").glob("0*.json")]) == 3


def test_equal_pixels_are_one_picture_however_they_are_packed(tmp_path: Path) -> None:
    """One other pixel makes another picture."""
    rows, columns = np.indices((40, 64))
    smooth = np.stack([rows * 3, columns * 3, rows + columns], axis=2).astype(np.uint8)
    fine = smooth.copy()
    fine[0, 0] += 1
    comment = PngInfo()
    comment.add_text("author", "someone")
    files: dict[str, bytes | None] = {
        "a.png": encoded(smooth, compress_level=9),
        "b.png": encoded(smooth, compress_level=0, pnginfo=comment),
        "c.bmp": encoded(smooth, "BMP"),
        "d.tiff": encoded(smooth[::-1], "TIFF", tiffinfo={0x0112: 4}),
        "other.png": encoded(fine),
        "a.jpg": encoded(smooth, "JPEG", quality=90),
        "b.jpg": encoded(smooth, "JPEG", quality=90, comment="other", progressive=True),
        "turned.jpg": encoded(smooth, "JPEG", quality=90, exif=turned(3)),
        "again.jpg": encoded(smooth, "JPEG", quality=60),
    }
    facts, problems = check(tmp_path, files)
    assert not problems
    keys = picture_keys(tmp_path, facts)
    same = [sorted(name for name in files if keys[name] == key) for key in dict.fromkeys(keys.values())]
    lossless = ["a.png", "b.png", "c.bmp", "d.tiff"]
    assert same == [lossless, ["other.png"], ["a.jpg", "b.jpg"], ["turned.jpg"], ["again.jpg"]]
    scaled = {name: ImageFacts(name, 1, 1, "0") for name in ("a.jpg", "turned.jpg")}
    assert len({*picture_keys(tmp_path, scaled).values()}) == 2


@pytest.mark.parametrize("published", [False, True])
def test_equal_pictures_of_a_split_become_one_unless_the_dataset_is_published(published: bool) -> None:
    images = [ImageRecord(name, f"{name}.png", "test" if name in "34" else "train") for name in "12345"]
    captions = [CaptionRecord(name.upper(), name, "text") for name in "12345"]
    whole = Annotations(images, captions, Path(), published=published)
    merged, *lists = merge_equal_pictures(whole, dict.fromkeys([each.file for each in images], "key"))
    joined, apart = ([first.image_id + second.image_id for first, second in pairs] for pairs in lists)
    # A pair for each later one, not for every two.
    expected = (whole, [], ["12", "13", "14", "15"])
    if not published:
        assert "".join(each.image_id for each in merged.captions) == "11331"
        expected = (replace(merged, images=[images[0], images[2]]), ["12", "34", "15"], ["13"])
    assert (merged, joined, apart) == expected


def test_torchcodec_decodes_to_the_bytes_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed; what it refuses, Pillow gives the reason of."""
    pytest.importorskip("torchcodec.decoders")
    image = Image.fromarray(RGB).resize((241, 180))
    options: list[dict[str, Any]] = [{"subsampling": each} for each in (0, 1, 2)]
    options += [{"progressive": True}, {"quality": 95}, *({"exif": turned(turn)} for turn in range(10))]
    files = [encoded(image, "JPEG", **own) for own in options]
    files += [encoded(each, "JPEG") for each in (image.convert("L"), image.convert("CMYK"), image.crop((0, 0, 1, 1)))]
    whole = files[0]
    files += [whole[: len(whole) // 2], whole[:-2], whole + b"more"]
    assert pictures._jpeg_decoder()

    def answer(content: bytes) -> Any:
        try:
            return decode_rgb(content)
        except DataError as error:
            return str(error)

    answers = [answer(content) for content in files]
    monkeypatch.setattr(pictures, "_jpeg_decoder", lambda: None)
    for content, found in zip(files, answers, strict=True):
        np.testing.assert_array_equal(found, answer(content))
