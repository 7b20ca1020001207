"""A user's folder of images: every kind of file has a defined result or one sentence, and nothing half-written."""

import contextlib
import json
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotnorm.cli.verbs import main
from slotnorm.data import Scenes, folder
from slotnorm.data.folder import convert
from slotnorm.data.image_files import read_image, read_mask
from slotnorm.errors import DamagedFile, UserError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (5, 12, 16, 3), dtype=np.uint8)
MASKS = RANDOM.integers(0, 4, (5, 12, 16), dtype=np.uint8)


def an_object(label: int | None = None, **changes: Any) -> dict[str, Any]:
    sphere = {"shape": "sphere", "size": "small", "material": "metal", "color": "cyan", "position": [1, -2.5, 0.35]}
    return {**({"label": label} if label else {}), **sphere, "rotation": 90.0, **changes}


def write_folder(path: Path, num: int = 5, masks: bool = True, objects: Any = None) -> Path:
    """A folder of `num` images, with masks and, where `objects` is given, the objects of every image."""
    (path / "images").mkdir(parents=True)
    if masks:
        (path / "masks").mkdir()
    for number in range(num):
        Image.fromarray(IMAGES[number]).save(path / "images" / f"{number}.png")
        if masks:
            Image.fromarray(MASKS[number]).save(path / "masks" / f"{number}.png")
    if objects is not None:
        listing = [{"image": f"{number}.png", "objects": objects} for number in range(num)]
        (path / "properties.json").write_text(json.dumps(listing))
    return path


# ---------------------------------------------------------------------------------------------------- what is built


def test_images_and_masks_are_taken_as_they_are(tmp_path):
    scenes = convert(write_folder(tmp_path / "in"), tmp_path / "out")
    assert np.array_equal(scenes.images, IMAGES)
    assert np.array_equal(scenes.labels, MASKS)
    assert scenes.counts.tolist() == [np.count_nonzero(np.unique(mask)) for mask in MASKS]
    assert scenes.properties == {}


def test_properties_become_codes_in_label_order(tmp_path):
    objects = [an_object(2, shape="cube"), an_object(1, color="gray"), an_object(3, position=[0, 0, 1], rotation=-7)]
    source = write_folder(tmp_path / "in", objects=objects)
    listing = json.loads((source / "properties.json").read_text())
    listing[4]["objects"] += [an_object(4)]
    (source / "properties.json").write_text(json.dumps(listing[::-1]))
    scenes = convert(source, tmp_path / "out")
    assert scenes.counts.tolist() == [3, 3, 3, 3, 4]
    names = scenes.manifest["properties"]
    assert [names["shape"][code - 1] for code in scenes.properties["shape"][0, :3]] == ["sphere", "cube", "sphere"]
    assert [names["color"][code - 1] for code in scenes.properties["color"][0, :3]] == ["gray", "cyan", "cyan"]
    assert scenes.properties["material"].tolist() == [[2, 2, 2, 0]] * 4 + [[2, 2, 2, 2]]
    assert scenes.properties["y"][0].tolist() == [-2.5, -2.5, 0, 0]
    assert scenes.properties["rotation"].dtype == np.float32
    assert sorted(scenes.properties) == ["color", "material", "rotation", "shape", "size", "x", "y", "z"]


def test_objects_need_no_properties_to_be_counted(tmp_path):
    scenes = convert(write_folder(tmp_path / "in", masks=False, objects=[{}, {}]), tmp_path / "out")
    assert scenes.counts.tolist() == [2] * 5
    assert scenes.labels is None
    assert scenes.properties == {}


def test_images_alone_are_a_set_whose_objects_are_not_counted(tmp_path):
    scenes = convert(write_folder(tmp_path / "in", masks=False), tmp_path / "out")
    assert scenes.labels is None
    assert scenes.manifest["objects"] == {}


def test_jpeg_images_may_have_png_masks(tmp_path):
    source = write_folder(tmp_path / "in", num=1)
    (source / "images" / "0.png").unlink()
    Image.new("RGB", (16, 12), (200, 30, 60)).save(source / "images" / "0.JPG", quality=95)
    scenes = convert(source, tmp_path / "out")
    assert np.abs(scenes.images[0].astype(int) - (200, 30, 60)).max() < 4
    assert np.array_equal(scenes.labels[0], MASKS[0])


def test_masks_are_scaled_to_the_nearest_pixel_centre_and_images_with_antialias(tmp_path):
    source = write_folder(tmp_path / "in")
    scenes = convert(source, tmp_path / "out", size=5, crop="center")
    rows = cols = np.floor((np.arange(5) + 0.5) * 12 / 5).astype(int)
    assert np.array_equal(scenes.labels, MASKS[:, :, 2:14][:, rows][:, :, cols])
    assert scenes.counts.tolist() == [np.count_nonzero(np.unique(mask)) for mask in MASKS]  # before cutting
    # the triangle filter, widened to the scale and normalised, at half-pixel centres
    centres, pixels = (np.arange(5) + 0.5) * 2.4, np.arange(12) + 0.5
    weights = np.maximum(0, 1 - np.abs(pixels - centres[:, None]) / 2.4)
    weights /= weights.sum(axis=1, keepdims=True)
    expected = np.einsum("iy,nyxc,jx->nijc", weights, IMAGES[:, :, 2:14].astype(float), weights)
    assert np.abs(np.asarray(scenes.images) - expected).max() <= 1.1


def test_a_window_is_cut_out(tmp_path):
    scenes = convert(write_folder(tmp_path / "in"), tmp_path / "out", crop="3:5:7:9")
    assert np.array_equal(scenes.images, IMAGES[:, 3:10, 5:14])
    assert np.array_equal(scenes.labels, MASKS[:, 3:10, 5:14])


def test_an_interrupted_conversion_continues_and_a_finished_one_is_kept(tmp_path, monkeypatch):
    source = write_folder(tmp_path / "in", objects=[an_object()] * 3)
    expected = convert(source, tmp_path / "whole")
    monkeypatch.setattr(folder, "_CHUNK_SCENES", 2)
    original, calls = folder._scene, []

    def interrupted(item, *rest):
        calls.append(item.image.name)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(item, *rest)

    monkeypatch.setattr(folder, "_scene", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out")
    with pytest.raises(UserError, match="half-built"):
        Scenes.open(tmp_path / "out")
    assert convert(source, tmp_path / "out").fingerprint == expected.fingerprint
    assert calls[6:] == ["0.png", "4.png"]  # the first tells the size; four were done
    convert(source, tmp_path / "out")
    Image.fromarray(255 - IMAGES[3]).save(source / "images" / "3.png")
    with pytest.raises(UserError, match="already holds a set with provenance"):
        convert(source, tmp_path / "out")


# ---------------------------------------------------------------------------------------------------- kinds of images


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


GREY = IMAGES[0, ..., 0]


def test_grey_images_are_repeated_over_the_channels(tmp_path):
    image = np.asarray(read_image(saved(tmp_path / "a.png", Image.fromarray(GREY))))
    assert np.array_equal(image, GREY[..., None].repeat(3, axis=2))
    bits = Image.fromarray(GREY > 100)
    assert np.array_equal(np.asarray(read_image(saved(tmp_path / "b.png", bits)))[..., 1], 255 * (GREY > 100))


def test_transparent_parts_lie_on_white(tmp_path):
    alpha = MASKS[0] * 85
    image = np.dstack([IMAGES[0], alpha])
    expected = (IMAGES[0] * (alpha[..., None] / 255) + 255 * (1 - alpha[..., None] / 255)).astype(float)
    read = np.asarray(read_image(saved(tmp_path / "a.png", Image.fromarray(image))))
    assert np.abs(read - expected).max() <= 1
    grey = np.asarray(read_image(saved(tmp_path / "b.png", Image.fromarray(image).convert("LA"))))
    assert (grey[alpha == 0] == 255).all()
    palette = Image.fromarray(MASKS[0]).convert("P")
    read = np.asarray(read_image(saved(tmp_path / "c.png", palette, transparency=2)))
    assert (read[MASKS[0] == 2] == 255).all()


def test_the_upper_eight_of_sixteen_bits_count(tmp_path):
    wide = RANDOM.integers(0, 65536, (12, 16)).astype(np.uint16)
    read = np.asarray(read_image(saved(tmp_path / "a.png", Image.fromarray(wide))))
    assert np.array_equal(read, (wide >> 8).astype(np.uint8)[..., None].repeat(3, axis=2))
    colour = RANDOM.integers(0, 65536, (12, 16, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in colour)
    path = tmp_path / "b.png"
    path.write_bytes(png(16, 12, rows, depth=16, kind=2))
    assert np.array_equal(np.asarray(read_image(path)), (colour >> 8).astype(np.uint8))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_exif_rotation_is_applied(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = np.zeros((16, 32, 3), dtype=np.uint8)
    image[:8, :16] = 255  # the upper left quarter is white
    path = saved(tmp_path / f"a.{suffix}", Image.fromarray(image), exif=exif)
    expected = {
        1: image, 2: image[:, ::-1], 3: image[::-1, ::-1], 4: image[::-1], 5: image.transpose(1, 0, 2),
        6: np.rot90(image, -1), 7: image[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(image),
    }  # fmt: skip
    read = np.asarray(read_image(path)).astype(int)
    assert read.shape == expected[orientation].shape
    assert np.abs(read - expected[orientation]).max() < 5


def test_cmyk_and_one_pixel_images_are_read(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=100)
    assert np.abs(np.asarray(read_image(path)).astype(int) - (255, 0, 0)).max() < 5
    source = tmp_path / "in"
    (source / "images").mkdir(parents=True)
    Image.new("RGB", (1, 1), (1, 2, 3)).save(source / "images" / "a.png")
    assert convert(source, tmp_path / "out", size=4).images[0].reshape(-1, 3).tolist() == [[1, 2, 3]] * 16


def test_masks_are_palette_indices_or_grey_values(tmp_path):
    palette = Image.fromarray(MASKS[0]).convert("P")
    palette.putpalette(RANDOM.integers(0, 256, 768).tolist())
    assert np.array_equal(read_mask(saved(tmp_path / "a.png", palette)), MASKS[0])
    for bits in (2, 4):
        assert np.array_equal(read_mask(saved(tmp_path / f"b{bits}.png", palette, bits=bits)), MASKS[0])
    assert np.array_equal(read_mask(saved(tmp_path / "c.png", Image.fromarray(MASKS[0] > 0))), MASKS[0] > 0)
    assert np.array_equal(read_mask(saved(tmp_path / "d.png", Image.fromarray(MASKS[0].astype(np.uint16)))), MASKS[0])


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_grey_masks_of_few_bits_keep_their_values(tmp_path, depth):
    labels = RANDOM.integers(0, 2**depth, (6, 8), dtype=np.uint8)
    bits = np.unpackbits(labels[..., None], axis=2)[..., 8 - depth :].reshape(6, -1)
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in bits)
    (tmp_path / "a.png").write_bytes(png(8, 6, rows, depth=depth, kind=0))
    assert np.array_equal(read_mask(tmp_path / "a.png"), labels)


# ---------------------------------------------------------------------------------------------------- bad input


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes, depth: int = 8, kind: int = 2) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9000, 20_000, 2**31 - 1])
def test_an_image_that_claims_a_huge_size_is_refused_before_decoding(tmp_path, side, monkeypatch):
    source = write_folder(tmp_path / "in", masks=False)
    (source / "images" / "2.png").write_bytes(png(side, side, b"\0" * 300))
    assert (source / "images" / "2.png").stat().st_size < 342
    decoded = []
    original = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda self: (decoded.append(self.size), original(self))[1])
    with pytest.raises(UserError, match=r"2.png claims more than 64000000 pixels and is not decoded"):
        convert(source, tmp_path / "out")
    assert (side, side) not in decoded


def test_a_damaged_png_is_found_wherever_it_was_hit(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(IMAGES[0]))
    original = path.read_bytes()
    for place in range(len(original)):
        content = bytearray(original)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        if place < len(original) - 12:
            with pytest.raises(UserError, match=r"a.png (cannot be decoded|claims more than)"):
                read_image(path)
        elif place < len(original) - 4:  # the end mark holds no pixels
            with contextlib.suppress(DamagedFile):
                assert np.array_equal(read_image(path), IMAGES[0])
    for length in range(0, len(original), 7):
        path.write_bytes(original[:length])
        with pytest.raises(DamagedFile, match=r"a.png cannot be decoded as PNG or JPEG"):
            read_image(path)


def test_a_damaged_jpeg_gives_an_image_or_our_own_error(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.fromarray(IMAGES[0]))
    original = path.read_bytes()
    refused = 0
    for place in range(0, len(original), 3):
        content = bytearray(original)
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            assert read_image(path).mode == "RGB"  # JPEG has no checksums: changed pixels cannot be told
        except UserError:
            refused += 1
    assert refused > 10
    path.write_bytes(original[: len(original) // 2])
    with pytest.raises(DamagedFile, match="cannot be decoded"):
        read_image(path)


def test_a_file_of_another_kind_is_not_opened_by_another_decoder(tmp_path):
    sentence = "as PNG or JPEG .* of another kind: WebP, TIFF and BMP need endings of their own"
    for format in ("GIF", "BMP", "TIFF"):
        Image.fromarray(IMAGES[0]).save(tmp_path / "a.png", format=format)
        with pytest.raises(DamagedFile, match=sentence):
            read_image(tmp_path / "a.png")


def put_mask(pixels: np.ndarray) -> Any:
    return lambda source: Image.fromarray(pixels).save(source / "masks" / "3.png")


def put_properties(text: str) -> Any:
    return lambda source: (source / "properties.json").write_text(text)


def put_objects(*objects: Any) -> Any:
    listing = [{"image": f"{number}.png", "objects": list(objects)} for number in range(5)]
    return put_properties(json.dumps(listing))


BAD_FOLDERS = {
    "masks/3.png is 10 x 12 and its image 16 x 12 pixels": put_mask(np.zeros((12, 10), dtype=np.uint8)),
    "masks/3.png is RGB; a mask holds one label per pixel": put_mask(IMAGES[0]),
    "masks/3.png has label 256; a scene has at most 255 objects": put_mask(np.full((12, 16), 256, dtype=np.uint16)),
    "masks/9.png is a mask without an image": lambda source: Image.new("L", (16, 12)).save(source / "masks" / "9.png"),
    "masks is not a folder; images go into DIR/images": (
        lambda source: [shutil.rmtree(source / "masks"), (source / "masks").touch()]
    ),
    "images/3.png has 600000000 bytes; at most 536870912 are read": (
        lambda source: os.truncate(source / "images" / "3.png", 600_000_000)
    ),
    "images/3.png is an image without a mask": lambda source: (source / "masks" / "3.png").unlink(),
    "masks/3.png cannot be decoded": lambda source: (source / "masks" / "3.png").write_bytes(b"\x89PNG"),
    "images/3.png cannot be decoded": lambda source: (source / "images" / "3.png").write_bytes(b""),
    "images/notes.txt is not a .png or .jpg or .jpeg or .webp or .tif or .tiff or .bmp file": (
        lambda source: (source / "images" / "notes.txt").touch()
    ),
    "3.png and 3.jpg have the same name": lambda source: Image.new("RGB", (16, 12)).save(source / "images" / "3.jpg"),
    r"holds images of 2 sizes, as 16 x 12 \(0.png\) and 20 x 12 \(3.png\) pixels; give --size": (
        lambda source: [Image.new("L", (20, 12)).save(source / kind / "3.png") for kind in ("images", "masks")]
    ),
    "properties.json is not valid JSON": put_properties("[" * 9999),
    "properties.json is not a list": put_properties("{}"),
    r"properties.json lists '7.png', which is not an image": put_properties('[{"image": "7.png", "objects": []}]'),
    r"properties.json lists '0.png', .* or is listed twice": (
        put_properties('[{"image": "0.png", "objects": []}, {"image": "0.png", "objects": []}]')
    ),
    r"properties.json lists '\.\./x', which is not an image": put_properties('[{"image": "../x", "objects": []}]'),
    "has no list of objects for 0.png": put_properties('[{"image": "0.png", "objects": 3}]'),
    "properties.json does not list 1.png": put_properties('[{"image": "0.png", "objects": []}]'),
    "lists 256 objects for 0.png; a scene can have at most 255": put_objects(*[{}] * 256),
    "masks/0.png has label 3, but properties.json lists 2 objects": put_objects(an_object(), an_object()),
    r"there is no color 'pink'; known are: gray": put_objects(an_object(color="pink")),
    r"there is no shape '\[1\]'": put_objects(an_object(shape=[1])),
    r"a position is \[x, y, z\], not \[1\]": put_objects(an_object(position=[1])),
    "x is a, which is not a number": put_objects(an_object(position=["a", 0, 0])),
    "rotation is True, which is not a number": put_objects(an_object(rotation=True)),
    "z is 1e\\+39, which is not a number that float32 can hold": put_objects(an_object(position=[0, 0, 1e39])),
    "a label is a whole number, not 1.5": put_objects(an_object(label=1.5)),
    r"labels of 2 objects must be 1 to 2, each once, not \[1, 1\]": put_objects(an_object(1), an_object(1)),
    "gives rotation for some objects and not for others": (
        put_objects(an_object(), {name: value for name, value in an_object().items() if name != "rotation"})
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD_FOLDERS)
def test_what_does_not_fit_together_is_one_sentence(tmp_path, sentence, capsys):
    source = write_folder(tmp_path / "in")
    BAD_FOLDERS[sentence](source)
    with pytest.raises(UserError, match=sentence) as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit) as left:
        main(["data", "folder", "--from", str(source), "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("slotnorm: ")]) == 1
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"crop": "middle"}, r"--crop 'middle' is none of: none, center, top:left:height:width"),
        ({"crop": "1:2:3"}, "--crop '1:2:3'"),
        ({"crop": "-1:2:3:4"}, "--crop '-1:2:3:4'"),
        ({"crop": "8:0:5:5"}, r"--crop 8:0:5:5 does not lie within .*0.png \(16 x 12 pixels\)"),
        ({"crop": "0:0:0:5"}, "--crop 0:0:0:5 does not lie within"),
        ({"size": 0}, "--size 0 is outside 1 to 2048"),
        ({"size": 10**6}, "--size 1000000 is outside"),
    ],
)
def test_impossible_sizes_and_windows_are_refused(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        convert(write_folder(tmp_path / "in"), tmp_path / "out", **options)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(UserError, match="images is not a folder"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / ".DS_Store").touch()
    with pytest.raises(UserError, match="holds no PNG or JPEG images"):
        convert(tmp_path, tmp_path / "out")


def test_the_command_says_where_the_set_is(tmp_path, capsys):
    source = write_folder(tmp_path / "in with spaces")
    main(["data", "folder", "--from", str(source), "--out", str(tmp_path / "out"), "--size", "8", "--crop", "center"])
    sheet = tmp_path / "out" / "contact-sheet.png"
    assert capsys.readouterr().out == f"5 scenes in {tmp_path / 'out'}\ncontact sheet: {sheet}\n"
    assert sheet.is_file()
    assert Scenes.open(tmp_path / "out").images.shape == (5, 8, 8, 3)
