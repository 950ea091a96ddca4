"""Tests of the reader of pictures: modes, bits, transparency, orientation, damage and limits."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tfm.data import pictures
from tfm.data.pictures import MAX_PICTURE_PIXELS, read_picture, read_picture_size
from tfm.errors import UserError

GREY = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)
COLOURS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def save(image, form="PNG", **options):
    """Returns the content of a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def read(content, channels=3, size=None):
    return np.asarray(read_picture(content, "picture.png", channels, size))


def write_header(width, height):
    """Returns a PNG that has the header of a grey picture and almost no pixels."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "TIFF", "JPEG2000", "PPM"])
def test_sixteen_bits_are_scaled_to_eight(form):
    values = GREY.astype(np.uint16) * 257
    content = save(Image.fromarray(values), form)
    np.testing.assert_array_equal(read(content, channels=1), GREY)
    np.testing.assert_array_equal(read(content), np.repeat(GREY[..., None], 3, -1))


def test_twelve_bits_of_a_tiff_are_scaled_by_their_own_maximum():
    pixels = bytes([0xFF, 0xF8, 0x00, 0x00, 0x00, 0x00])  # 4095, 2048, 0, 0
    tags = [(256, 3, 4), (257, 3, 1), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 3, 1), (279, 4, len(pixels))]
    entries = b"".join(
        struct.pack("<HHI", tag, kind, 1) + struct.pack("<I", value) for tag, kind, value in tags
    )
    content = b"II*\0" + struct.pack("<I", 14) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)
    np.testing.assert_array_equal(read(content, channels=1), [[255, 128, 0, 0]])


def test_floats_from_0_to_1_are_scaled():
    content = save(Image.fromarray(GREY.astype(np.float32) / 255), "TIFF")
    np.testing.assert_array_equal(read(content, channels=1), GREY)


@pytest.mark.parametrize("values", [GREY, GREY.astype(np.uint16) * 257, GREY.astype(np.float32) / 255])
def test_a_tiff_whose_zero_is_white_is_inverted(values):
    tags = {pictures.PHOTOMETRIC: pictures.WHITE_IS_ZERO}
    content = save(Image.fromarray(values), "TIFF", tiffinfo=tags)
    expected = GREY if values.dtype == np.uint8 else 255 - GREY  # Pillow inverts 8 bits when it writes them
    np.testing.assert_array_equal(read(content, channels=1), expected)


@pytest.mark.parametrize(
    "values", [GREY.astype(np.float32), GREY / np.float32(255) - 0.5, GREY + np.float32("nan")]
)
def test_floats_of_another_range_are_errors(values):
    with pytest.raises(UserError, match=r"picture\.png has values .* expected floats from 0 to 1"):
        read(save(Image.fromarray(values.astype(np.float32)), "TIFF"))


@pytest.mark.parametrize("dtype", [np.int32, np.int16])
def test_integers_of_unknown_range_are_errors(dtype):
    values = GREY.astype(dtype) * 100
    with pytest.raises(UserError, match=r"picture\.png has values from 0 to 23000 .* 8 or 16 bits"):
        read(save(Image.fromarray(values.astype(np.int32)), "TIFF"))


def test_bits_are_black_and_white():
    image = Image.fromarray(GREY > 100)
    assert image.mode == "1"
    np.testing.assert_array_equal(read(save(image), channels=1), np.where(GREY > 100, 255, 0))


def test_palettes_are_colours():
    image = Image.fromarray(COLOURS).quantize(24)
    np.testing.assert_array_equal(read(save(image)), np.asarray(image.convert("RGB")))


def test_cmyk_is_converted():
    image = Image.fromarray(COLOURS).convert("CMYK")
    np.testing.assert_allclose(read(save(image, "TIFF")), COLOURS, atol=1)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode):
    alpha = np.full((4, 6), 255, np.uint8)
    alpha[0] = 0
    image = Image.fromarray(GREY).convert("RGBA")
    image.putalpha(Image.fromarray(alpha))
    image = image.quantize(24) if mode == "P" else image.convert(mode)
    expected = np.where(alpha == 0, 255, GREY)
    np.testing.assert_allclose(read(save(image), channels=1), expected, atol=10 if mode == "P" else 0)


def test_a_transparent_colour_is_white():
    content = save(Image.fromarray(GREY), transparency=int(GREY[1, 1]))
    expected = np.where(GREY[1, 1] == GREY, 255, GREY)
    np.testing.assert_array_equal(read(content, channels=1), expected)


def test_a_transparent_grey_of_sixteen_bits_is_white():
    """The last row has a value that is transparent only if the values are compared after scaling."""
    values = GREY.astype(np.uint16) * 257
    values[3] = values[1, 1] + 1
    content = save(Image.fromarray(values), transparency=int(values[1, 1]))
    expected = GREY.copy()
    expected[3] = GREY[1, 1]
    expected[1, 1] = 255
    np.testing.assert_array_equal(read(content, channels=1), expected)
    np.testing.assert_array_equal(read(content), np.repeat(expected[..., None], 3, -1))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_the_orientation_is_applied(form, orientation, caplog):
    pictures.warn_once.cache_clear()
    turn = {
        0: lambda x: x,  # 0 and 9 have no meaning
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: np.rot90(x, -1),
        7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
        8: lambda x: np.rot90(x),
        9: lambda x: x,
    }[orientation]
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = orientation
    expected = turn(COLOURS)
    found = read(save(Image.fromarray(COLOURS), form, exif=exif), size=expected.shape[:2])
    np.testing.assert_array_equal(found, expected)
    assert ("turned upright" in caplog.text) == (orientation in range(2, 9))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(9))
def test_the_size_in_the_header_is_that_of_the_upright_picture(tmp_path, form, orientation):
    path = tmp_path / "picture"
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.write_bytes(save(Image.fromarray(COLOURS), form, exif=exif))
    assert read_picture_size(str(path), "picture") == read_picture(str(path), "picture", 3).size[::-1]


def test_the_size_of_damaged_pictures_and_pipes_is_an_error(tmp_path):
    (tmp_path / "text").write_bytes(b"no picture")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(write_header(9000, 9000))
    for name, message in {"text": "cannot be read", "pipe": "is a pipe", "large": "at most"}.items():
        with pytest.raises(UserError, match=f"{name}.* {message}|{message}.* {name}"):
            read_picture_size(str(tmp_path / name), name)
    with pytest.raises(FileNotFoundError):
        read_picture_size(str(tmp_path / "none"), "none")


def test_a_size_that_ignores_the_orientation_is_an_error():
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = 6
    content = save(Image.fromarray(COLOURS), exif=exif)
    with pytest.raises(UserError, match=r"6 x 4 pixels .* 4 x 6 pixels after its EXIF orientation"):
        read(content, size=(4, 6))


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", save(Image.fromarray(COLOURS))[:60], save(Image.fromarray(COLOURS), "JPEG")[:300]],
)
def test_damaged_pictures_are_errors(content):
    with pytest.raises(UserError, match=r"picture\.png cannot be read as a picture"):
        read(content)


@pytest.mark.parametrize("size", [None, (16, 16)])
def test_pictures_are_not_decoded_before_their_size_is_checked(size):
    """A PNG of 13,000 x 13,000 pixels that is listed as 16 x 16 was decoded, with 938 MB."""
    content = write_header(9_000, 9_000)
    limit = "16 x 16 pixels" if size else f"{MAX_PICTURE_PIXELS:,} pixels"
    with pytest.raises(UserError, match=limit):
        read(content, size=size)


@pytest.mark.filterwarnings("default::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [13_000, 60_000])
def test_pictures_that_pillow_refuses_are_errors(side):
    with pytest.raises(UserError, match=r"pixels.*Make it smaller"):
        read(write_header(side, side))


def test_postscript_is_not_run(tmp_path, monkeypatch):
    """Pillow would start the program gs, which this picture keeps busy forever."""
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path = tmp_path / "0.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n")
    for read in (lambda: read_picture(str(path), "it", 3), lambda: read_picture_size(str(path), "it")):
        with pytest.raises(UserError, match="it is PostScript"):
            read()
    assert not started.exists()


def test_pipes_and_devices_are_errors(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "zero.png"):
        with pytest.raises(UserError, match="is a pipe, a socket or a device"):
            read_picture(str(tmp_path / name), name, 3)
