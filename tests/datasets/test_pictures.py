"""Every file that a viewer shows is decoded as the viewer shows it; every other file is refused with its reason."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from itrpipe.datasets import pictures
from itrpipe.datasets.image_check import decode_size
from itrpipe.datasets.pictures import decode_rgb, read_rgb
from itrpipe.errors import DataError

# pytest shows all warnings again; the last test runs without it.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")
sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
seeds = st.integers(0, 2**32 - 1)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """`colour` [H, W, 3] over white, with the opacity `alpha` [H, W]."""
    opacity = alpha[..., np.newaxis] / 255
    return colour * opacity + 255 * (1 - opacity)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(samples: np.ndarray, colour: int, *chunks: bytes) -> bytes:
    """A PNG of 16-bit samples [H, W, channels], which Pillow itself cannot write."""
    height, width = samples.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in samples)
    parts = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(samples: bytes, width: int, height: int, bits: int, photometric: int) -> bytes:
    """An uncompressed greyscale TIFF of one strip."""
    short, long = 3, 4
    tags = [(256, short, width), (257, short, height), (258, short, bits), (259, short, 1), (262, short, photometric)]
    tags += [(273, long, 8), (277, short, 1), (278, short, height), (279, long, len(samples))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8 + len(samples)) + samples + directory


@given(sizes, seeds, st.sampled_from(["PNG", "BMP", "TIFF", "WEBP"]))
def test_colour_comes_as_it_was_saved(size: tuple[int, int], seed: int, kind: str) -> None:
    pixels = noise(seed, *size, 3)
    decoded = decode_rgb(encoded(Image.fromarray(pixels), kind, **({"lossless": True} if kind == "WEBP" else {})))
    np.testing.assert_array_equal(decoded, pixels)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    assert decoded.flags.writeable


@given(sizes, seeds, st.sampled_from(["1", "L", "P"]), st.sampled_from(["PNG", "BMP", "TIFF", "GIF"]))
def test_greyscale_has_three_equal_channels(size: tuple[int, int], seed: int, mode: str, kind: str) -> None:
    grey = noise(seed, *size) & (0x80 if mode == "1" else 0xFF)
    expected = (grey // 0x80 * 255) if mode == "1" else grey
    image = Image.fromarray(grey).convert(mode, dither=Image.Dither.NONE)
    np.testing.assert_array_equal(decode_rgb(encoded(image, kind)), expected[..., np.newaxis].repeat(3, axis=2))


@given(sizes, seeds, st.sampled_from(["LA", "RGBA"]), st.sampled_from(["PNG", "WEBP", "TIFF"]))
def test_transparent_parts_are_white(size: tuple[int, int], seed: int, mode: str, kind: str) -> None:
    pixels = noise(seed, *size, len(mode))
    pixels[0, 0, -1], pixels[-1, -1, -1] = 0, 255
    image = Image.fromarray(pixels, mode)
    decoded = decode_rgb(encoded(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    colour = np.broadcast_to(pixels[..., :-1], decoded.shape)
    np.testing.assert_allclose(decoded, on_white(colour, pixels[..., -1]), atol=1)
    assert size == (1, 1) or (decoded[0, 0] == 255).all()


@pytest.mark.parametrize("opacity", [b"\x00\xff\x80", 0])
def test_transparent_palette_entries_are_white(opacity: bytes | int) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    found = decode_rgb(encoded(image, transparency=opacity))
    half_or_full = on_white(np.array([[[70, 80, 90]]]), np.array([[0x80 if opacity else 0xFF]]))
    assert found[0, :2].tolist() == [[255, 255, 255], [40, 50, 60]]
    np.testing.assert_allclose(found[0, 2:], half_or_full[0], atol=1)


def test_a_colour_that_means_transparent_is_white() -> None:
    image = Image.fromarray(np.array([[[1, 2, 3], [1, 2, 4]]], dtype=np.uint8))
    assert decode_rgb(encoded(image, transparency=(1, 2, 3))).tolist() == [[[255] * 3, [1, 2, 4]]]
    grey = Image.fromarray(np.array([[7, 8]], dtype=np.uint8))
    assert decode_rgb(encoded(grey, transparency=8)).tolist() == [[[7] * 3, [255] * 3]]
    deep = np.array([[[0x0102], [0x0103]]])
    assert decode_rgb(png(deep, 0, chunk(b"tRNS", b"\x01\x03"))).tolist() == [[[1] * 3, [255] * 3]]


@given(sizes, seeds, st.sampled_from(["I;16", "I;16B"]), st.sampled_from(["PNG", "TIFF"]))
def test_deep_greyscale_is_scaled(size: tuple[int, int], seed: int, mode: str, kind: str) -> None:
    height, width = size
    samples = np.random.default_rng(seed).integers(0, 2**16, size).astype(np.uint16)
    content = samples.astype(">u2" if mode == "I;16B" else "<u2").tobytes()
    decoded = decode_rgb(encoded(Image.frombytes(mode, (width, height), content), kind))
    np.testing.assert_array_equal(decoded, (samples >> 8)[..., np.newaxis].repeat(3, axis=2))


@given(sizes, seeds, st.sampled_from([(0, 1), (2, 3), (4, 2), (6, 4)]))
def test_deep_png_of_every_colour_type_is_scaled(size: tuple[int, int], seed: int, kind: tuple[int, int]) -> None:
    colour, channels = kind
    samples = np.random.default_rng(seed).integers(0, 2**16, (*size, channels)).astype(np.uint16)
    if channels in (2, 4):
        samples[..., -1] = 2**16 - 1
    expected = samples[..., :3] if channels > 2 else samples[..., :1].repeat(3, axis=2)
    np.testing.assert_array_equal(decode_rgb(png(samples, colour)), expected >> 8)


def test_tiff_of_twelve_bits_and_with_white_as_zero() -> None:
    assert decode_rgb(tiff(bytes.fromhex("fff123"), 2, 1, 12, photometric=1))[0, :, 0].tolist() == [0xFF, 0x12]
    assert decode_rgb(tiff(bytes.fromhex("ff002001"), 2, 1, 16, photometric=0))[0, :, 0].tolist() == [0xFF, 0xFE]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_samples_without_a_defined_range_are_refused(mode: str) -> None:
    with pytest.raises(DataError, match=f"^has samples of the kind {mode}, which have no defined range"):
        decode_rgb(encoded(Image.new(mode, (3, 2)), "TIFF"))


@pytest.mark.parametrize(("cmyk", "rgb"), [((0, 0, 0, 0), 255), ((0, 0, 0, 255), 0), ((255, 255, 255, 0), 0)])
def test_jpeg_in_inks(cmyk: tuple[int, int, int, int], rgb: int) -> None:
    content = encoded(Image.new("CMYK", (20, 10), cmyk), "JPEG", quality=95)
    np.testing.assert_allclose(decode_rgb(content), np.full((10, 20, 3), rgb), atol=3)


def test_jpeg_in_luminance_and_black() -> None:
    """The same three planes, declared as YCCK: Y, Cb, Cr of an inverted colour, and K."""
    content = bytearray(encoded(Image.new("CMYK", (16, 16), (155, 127, 127, 0)), "JPEG", quality=100, subsampling=0))
    flag = content.index(b"Adobe") + 11
    assert content[flag] == 0
    content[flag] = 2
    # Adobe stores inks inverted: Y = 255 - 155 with neutral Cb and Cr, and no black. YCC gives the inks as 255 - Y.
    np.testing.assert_allclose(decode_rgb(bytes(content)), 155, atol=3)
    content[flag] = 0
    assert np.ptp(decode_rgb(bytes(content))) > 20  # as plain inks, another colour


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("turned", range(1, 9))
def test_orientation_is_honoured_and_agrees_with_the_check(kind: str, turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    pixels = np.zeros((24, 40, 3), dtype=np.uint8)
    pixels[:8, :8] = 255  # the corner in which the stored image begins
    content = encoded(Image.fromarray(pixels), kind, exif=exif)
    decoded = decode_rgb(content)
    height, width = (24, 40) if turned < 5 else (40, 24)
    assert decoded.shape == (height, width, 3)
    assert decode_size(content) == (width, height)
    # Where the EXIF standard says that the first row and the first column are.
    corner = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}[turned]
    bright = {place: bool(decoded[place].mean() > 128) for place in [(0, 0), (0, -1), (-1, 0), (-1, -1)]}
    assert bright == {place: place == corner for place in bright}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\xff\xff\xff\xff"])
def test_an_orientation_that_cannot_be_read_is_none(kind: str, exif: bytes) -> None:
    content = encoded(Image.new("RGB", (5, 3)), kind, exif=exif)
    assert decode_rgb(content).shape == (3, 5, 3)
    assert decode_size(content) == (5, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (9, 6), colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    np.testing.assert_allclose(decode_rgb(content), np.broadcast_to([250, 0, 0], (6, 9, 3)), atol=8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_file_cut_anywhere_is_refused_with_a_short_reason(kind: str) -> None:
    content = encoded(Image.fromarray(noise(0, 40, 60, 3)), kind)
    reasons = set()
    for kept in range(0, int(len(content) * 0.95), len(content) // 50):
        with pytest.raises(DataError) as caught:
            decode_rgb(content[:kept])
        reasons.add(str(caught.value))
    assert all(reason.startswith(("is ", "has ")) and "\n" not in reason for reason in reasons), reasons
    # WEBP's decoder does not say what is wrong.
    assert kind == "WEBP" or any(reason.startswith("is truncated (") for reason in reasons), reasons


@settings(max_examples=300)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0"])
)
@example(b"", b"")
def test_any_other_bytes_are_refused(content: bytes, start: bytes) -> None:
    with pytest.raises(DataError, match=r"^(is|has) "):
        decode_rgb(start + content)


def test_a_damaged_file_is_decoded_or_refused_and_nothing_else() -> None:
    generator = np.random.default_rng(0)
    refused = 0
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):  # damaged TIFF makes its library speak
        whole = encoded(Image.fromarray(noise(0, 12, 15, 3)), kind)
        for _ in range(100):
            content = bytearray(whole)
            content[generator.integers(min(len(content), 200))] = generator.integers(256)
            try:
                assert decode_rgb(bytes(content)).shape[2] == 3
            except DataError:
                refused += 1
    assert 50 < refused < 450


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("size", [(20_000, 20_000), (9_460, 9_460)])
def test_a_bomb_is_refused_before_it_is_decoded(
    kind: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(encoded(Image.new("L", (2, 2)), kind))
    width, height = size
    if kind == "PNG":
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    elif kind == "TIFF":
        content = bytearray(tiff(b"\0" * 4, width, height, 8, photometric=1))
    else:
        place, layout = {"GIF": (6, "<HH"), "BMP": (18, "<ii")}[kind]
        struct.pack_into(layout, content, place, width, height)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("the bomb went off"))
    with pytest.raises(DataError) as caught:
        decode_rgb(bytes(content))
    assert str(caught.value) == "has more than 89,478,485 pixels: a decompression bomb?"


def test_the_largest_image_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 12)
    assert decode_rgb(encoded(Image.new("RGB", (4, 3)))).shape == (3, 4, 3)
    with pytest.raises(DataError, match=r"^has more than 12 pixels: a decompression bomb"):
        decode_rgb(encoded(Image.new("RGB", (13, 1))))


def test_files(tmp_path: Path) -> None:
    pixels = noise(0, 3, 4, 3)
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(pixels)))
    (tmp_path / "empty.png").touch()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png"), pixels)
    reasons = {}
    for name in ("gone.png", "empty.png", "loop.png", "pipe.png", "."):
        with pytest.raises(DataError) as caught:
            read_rgb(tmp_path / name)
        reasons[name] = str(caught.value)
    assert reasons == {
        "gone.png": "is not there",
        "empty.png": "is empty",
        "loop.png": "cannot be read: Too many levels of symbolic links",
        "pipe.png": "is not a regular file",
        ".": "is not a regular file",
    }


def test_nothing_is_said_on_the_terminal(tmp_path: Path) -> None:
    """Images that Pillow warns of: one between its two limits for bombs, and odd EXIF data."""
    large = bytearray(encoded(Image.new("L", (2, 2))))
    large[16:24] = struct.pack(">II", 10_000, 10_000)
    large[29:33] = struct.pack(">I", zlib.crc32(large[12:29]))
    (tmp_path / "large.png").write_bytes(large)
    cut_exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\xff\0\0\0\xff\0\0\0"
    (tmp_path / "exif.jpg").write_bytes(encoded(Image.new("RGB", (4, 3)), "JPEG", exif=cut_exif))
    program = """
import sys
from pathlib import Path
from itrpipe.datasets.pictures import read_rgb
from itrpipe.errors import DataError
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.name, read_rgb(path).shape)
    except DataError as error:
        print(path.name, error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "exif.jpg (3, 4, 3)",
        "large.png has more than 89,478,485 pixels: a decompression bomb?",
    ]


def jpeg_files() -> dict[str, bytes]:
    """JPEG files of every kind."""
    noise = np.random.default_rng(0).integers(0, 256, (30, 44, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((241, 180))
    options: dict[str, dict[str, Any]] = {f"sampling {each}": {"subsampling": each} for each in (0, 1, 2)}
    options |= {"progressive": {"progressive": True}, "fine": {"quality": 95}}
    for turn in range(10):
        exif = Image.Exif()
        exif[0x0112] = turn
        options[f"turned {turn}"] = {"exif": exif}
    images = {name: (image, own) for name, own in options.items()}
    images |= {mode: (image.convert(mode), {}) for mode in ("L", "CMYK")} | {"one": (image.crop((0, 0, 1, 1)), {})}
    files = {}
    for name, (each, own) in images.items():
        stream = io.BytesIO()
        each.save(stream, "JPEG", **own)
        files[name] = stream.getvalue()
    whole = files["fine"]
    return files | {"cut": whole[: len(whole) // 2], "end": whole[:-2], "more": whole + b"more"}


def test_torchcodec_decodes_to_the_bytes_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed; what it refuses, Pillow gives the reason of."""
    pytest.importorskip("torchcodec.decoders")
    assert pictures._jpeg_decoder()
    decoders = (pictures._jpeg_decoder, lambda: None)
    for name, content in jpeg_files().items():
        answers: list[Any] = []
        for decoder in decoders:
            monkeypatch.setattr(pictures, "_jpeg_decoder", decoder)
            try:
                answers.append(decode_rgb(content))
            except DataError as error:
                answers.append(str(error))
        np.testing.assert_array_equal(*answers, err_msg=name)
