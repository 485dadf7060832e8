"""A user's folder: every format that loses nothing is read, everything else is named, and left out only when told."""

import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.data import picture
from pixelpart.errors import UserError

COLOURS = {"cat": (200, 30, 30), "dog": (30, 200, 30), "fox": (30, 30, 200)}


@pytest.fixture(autouse=True)
def _root(monkeypatch, tmp_path):
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "root"))


@pytest.fixture
def base(tmp_path):
    """train and test, each class a colour, in mixed formats and shapes."""
    base = tmp_path / "photos"
    for split, n in (("train", 4), ("test", 2)):
        for name, colour in COLOURS.items():
            folder = base / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                kind = ("jpg", "png", "webp", "bmp")[i]
                Image.new("RGB", (40 + 9 * i, 30 + 5 * i), colour).save(folder / f"{i}.{kind}")
    return base


def load(base, split="train", *, size=16, skip_bad=False):
    return data.load(f"folder:{base}", split=split, size=size, skip_bad=skip_bad)


def test_classes_are_folders_in_order_and_pictures_are_squares_of_the_size(base):
    images, labels = load(base)
    assert images.shape == (12, 3, 16, 16)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for number, colour in enumerate(COLOURS.values()):
        found = images[labels == number].float().mean((0, 2, 3))
        assert (found - torch.tensor(colour)).abs().max() < 4  # JPEG
    assert data.find(f"folder:{base}", size=16).classes == tuple(COLOURS)
    assert load(base, "test")[1].sort().values.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_first_test_pictures_are_not_all_of_one_class(tmp_path):
    for name, level in (("dark", 10), ("light", 240)):
        for split in ("train", "test"):
            (folder := tmp_path / "two" / split / name).mkdir(parents=True)
            for i in range(20):
                Image.new("L", (8, 8), level).save(folder / f"{i}.png")
    images, labels = load(tmp_path / "two", "test", size=8)
    assert labels[:10].bincount(minlength=2).min() > 0
    assert torch.equal(images[:, 0, 0, 0] > 100, labels == 1)


@pytest.mark.parametrize(("train", "test"), [("train", "val"), ("Train", "valid"), ("training", "Validation")])
def test_splits_may_have_their_other_usual_names(base, train, test):
    (base / "train").rename(base / train)
    (base / "test").rename(base / test)
    assert load(base)[1].bincount().tolist() == [4, 4, 4]
    assert len(load(base, "test")[0]) == 6


def test_a_test_folder_alone_is_no_class(base):
    (base / "train").rename(base / "learning")
    with pytest.raises(UserError, match=r"has a folder 'test', but none called 'train' beside it"):
        load(base)


@pytest.mark.parametrize("below", ["train", "."])
def test_without_a_test_folder_the_same_fifth_of_each_class_is_held_out(tmp_path, below):
    for name, n in (("a", 10), ("b", 7), ("c", 2)):
        folder = tmp_path / "all" / below / name
        folder.mkdir(parents=True)
        for i in range(n):
            Image.new("L", (8, 8), i).save(folder / f"{i}.png")
    train, test = load(tmp_path / "all", "train", size=8), load(tmp_path / "all", "test", size=8)
    assert train[1].bincount().tolist() == [8, 6, 1]
    assert test[1].bincount().tolist() == [2, 1, 1]
    for label, n in enumerate((10, 7, 2)):
        levels = [x[y == label][:, 0, 0, 0].tolist() for x, y in (train, test)]
        assert sorted(levels[0] + levels[1]) == list(range(n))


def test_progress_is_told(base):
    seen = []
    data.load(f"folder:{base}", size=16, progress=lambda *args: seen.append(args))
    assert seen == [(12, 12, "decoding folder-photos-train")]


def add(base, image, name="train/cat/x.png"):
    image.save(base / name)


def test_what_loses_nothing_is_converted(base):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    opaque = picture.copy()
    opaque.putalpha(255)
    few = picture.quantize(16)
    add(base, opaque, "train/cat/x1.png")
    add(base, few, "train/cat/x2.png")
    add(base, picture.convert("L"), "train/cat/x3.png")
    add(base, picture.convert("1"), "train/cat/x4.png")
    (base / "train/cat/.DS_Store").write_bytes(b"x")
    (base / "train/cat/Thumbs.db").write_bytes(b"x")
    images = load(base)[0][4:8]
    expected = [picture, few, picture.convert("L"), picture.convert("1")]
    for found, image in zip(images, expected, strict=True):
        assert np.array_equal(found.numpy(), np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def test_a_photograph_on_its_side_is_set_upright(base):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    Image.fromarray(pixels).save(base / "train/cat/x.png", exif=exif)
    image = load(base)[0][4]
    assert image[:, :, 8:].min() == 255
    assert image[:, :, :8].max() == 0


def truncated(path):
    Image.effect_noise((64, 64), 50).save(path, "jpeg")
    path.write_bytes(path.read_bytes()[:900])


def deep_colours(path, kind=2, channels=3):
    """A PNG of 16 bits a channel, which Pillow calls RGB."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 9, 9, 16, kind, 0, 0, 0)
    rows = 9 * (b"\0" + 9 * channels * b"\xff\x80")
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def patched(path, mark, at, bits):
    """The picture with some bits set in a byte behind the mark, where the file tells how deep its colours are."""
    Image.effect_noise((16, 16), 50).convert("RGB").save(path)
    content = bytearray(path.read_bytes())
    assert content.count(mark) == 1
    content[content.index(mark) + at] |= bits
    path.write_bytes(content)


def half_transparent(path):
    image = Image.new("RGBA", (9, 9), (1, 2, 3, 255))
    image.paste((1, 2, 3, 0), (0, 0, 9, 5))
    image.save(path, "png")


def transparent_colour(path):
    Image.new("P", (9, 9)).save(path, "png", transparency=0)


BAD = {
    "truncated.jpg": (truncated, "cannot be decoded: .*truncated"),
    "deep.png": (lambda p: Image.new("I;16", (9, 9), 5000).save(p), r"more than 8 bits a channel \(mode I;16\)"),
    "deep-rgb.png": (deep_colours, r"more than 8 bits a channel \(mode RGB"),
    "deep-rgba.png": (lambda p: deep_colours(p, 6, 4), r"more than 8 bits a channel \(mode RGBA"),
    "deep.ppm": (lambda p: p.write_bytes(b"P6 9 9 65535\n" + 9 * 9 * 3 * b"\xff\x80"), "more than 8 bits a channel"),
    "deep-plain.ppm": (lambda p: p.write_text("P3 2 2 1023" + 12 * " 900"), "more than 8 bits a channel"),
    "deep.jp2": (lambda p: patched(p, b"\xff\x4f\xff\x51", 42, 8), "more than 8 bits a channel"),
    "deep-blue.jp2": (lambda p: patched(p, b"\xff\x4f\xff\x51", 48, 8), "more than 8 bits a channel"),
    "drawing.eps": (lambda p: Image.new("RGB", (9, 9)).save(p), "is not a picture that can be read"),
    "float.tif": (lambda p: Image.new("F", (9, 9)).save(p), r"more than 8 bits a channel \(mode F\)"),
    "lab.tif": (lambda p: Image.new("LAB", (9, 9)).save(p), "has colours of mode LAB"),
    "glass.png": (half_transparent, "can be seen through at 45 of its pixels"),
    "hole.png": (transparent_colour, "can be seen through at 81 of its pixels"),
    "dot.png": (lambda p: Image.new("RGB", (1, 1)).save(p), "is 1x1 pixels, too small"),
    "notes.txt": (lambda p: p.write_text("hello"), "is not a picture"),
    "empty.jpg": (lambda p: p.write_bytes(b""), "is not a picture"),
    "gone.jpg": (lambda p: p.symlink_to("nowhere.jpg"), "cannot be decoded: No such file"),
}


@pytest.mark.parametrize("suffix", ["avif", "bmp", "gif", "jp2", "jpeg", "png", "ppm", "qoi", "tga", "tiff", "webp"])
def test_every_format_of_the_list_is_read(base, suffix):
    Image.init()
    if Image.registered_extensions().get(f".{suffix}") not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {suffix}")
    add(base, Image.new("RGB", (16, 16), (0, 128, 255)), f"train/cat/x.{suffix}")
    image = load(base)[0][4].float().mean((1, 2))
    assert (image - torch.tensor([0.0, 128.0, 255.0])).abs().max() < 4


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_named_and_left_out_only_when_told(base, name):
    make, why = BAD[name]
    make(base / "train" / "dog" / name)
    with pytest.raises(UserError, match=rf"dog/{name} .*{why}.*\(--skip-bad"):
        load(base)
    images, labels = load(base, skip_bad=True)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(images, _without(base, name))


def _without(base, name):
    (base / "train" / "dog" / name).unlink()
    return load(base)[0]


@pytest.mark.parametrize(("flags", "deep"), [(0x0C, False), (0x4C, True), (0x6C, True), (0x8C, False)])
def test_an_avif_says_how_deep_it_is(flags, deep):
    """Behind av1C: marker and version, profile and level, then tier, high_bitdepth, twelve_bit and five bits more."""
    assert picture._deep(b"ftypavif...av1C" + bytes([0x81, 0x00, flags, 0x00])) is deep


def test_what_was_left_out_is_counted(base, capsys):
    for name, (make, _) in BAD.items():
        make(base / "train" / "dog" / name)
    (base / "test" / "cat" / "x").mkdir()
    (base / "train" / "owl").mkdir()
    row = data.verify(f"folder:{base}", size=16, skip_bad=True)
    assert (row.images, row.skipped, row.status) == (18, len(BAD) + 1, "verified")
    assert main(["data", "verify", f"folder:{base}", "--size", "16", "--skip-bad"]) == 0
    assert "18 images" in (said := capsys.readouterr().out)
    assert f"{len(BAD) + 1} bad left out" in said
    assert main(["data", "verify", f"folder:{base}", "--size", "16"]) == 2
    assert "owl: a class without pictures" in capsys.readouterr().err


def test_many_bad_files_are_three_names_and_a_number(base):
    for i in range(5):
        (base / "train" / "dog" / f"bad{i}.jpg").write_bytes(b"x")
    with pytest.raises(UserError, match=r"bad0.jpg .*bad1.jpg .*bad2.jpg [^;]*; and 2 more"):
        load(base)


def test_classes_that_do_not_fit_are_told(base, tmp_path):
    (base / "test" / "owl").mkdir()
    Image.new("L", (8, 8)).save(base / "test" / "owl" / "0.png")
    with pytest.raises(UserError, match=r"test/owl: no such class in .*train"):
        load(base)
    assert len(load(base, "test", skip_bad=True)[0]) == 6
    (base / "train" / "Cat").mkdir()
    for skip_bad in (False, True):
        with pytest.raises(UserError, match="classes 'Cat' and 'cat' differ by case alone"):
            load(base, skip_bad=skip_bad)


def test_a_name_that_a_config_cannot_hold_is_told(base):
    (base / "train" / "cat").rename(os.fsdecode(os.fsencode(base / "train") + b"/\xe9"))
    with pytest.raises(UserError, match=r"the name '\\udce9' is not in UTF-8"):
        load(base, skip_bad=True)


def test_a_class_of_bad_files_alone_cannot_be_skipped(base):
    for path in (base / "train" / "fox").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(UserError, match="no picture of class 'fox' can be used"):
        load(base, skip_bad=True)


def test_folders_that_are_none_are_told(base, tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        load(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="bare has no folders in it"):
        load(tmp_path / "bare")
    with pytest.raises(UserError, match="pass --size"):
        load(base, size=0)
