"""A folder of images: formats that lose nothing are read, other files are named, and left out only with skip_bad."""

import errno
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.data import image_file
from pixelpart.data.folder import _split_off_test
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


def test_classes_are_folders_in_order_and_images_are_squares_of_the_size(base):
    reports = []
    images, labels = data.load(f"folder:{base}", size=16, progress=lambda *report: reports.append(report))
    assert images.shape == (12, 3, 16, 16)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for number, colour in enumerate(COLOURS.values()):
        found = images[labels == number].float().mean((0, 2, 3))
        assert (found - torch.tensor(colour)).abs().max() < 4  # JPEG
    assert data.find(f"folder:{base}", size=16).classes == tuple(COLOURS)
    assert load(base, "test")[1].sort().values.tolist() == [0, 0, 1, 1, 2, 2]
    assert reports[-1] == ("decoding folder-photos-train", 12, 12, "")


def test_the_first_test_images_are_of_several_classes(tmp_path):
    for name, level in (("dark", 10), ("light", 240)):
        for split in ("train", "test"):
            (folder := tmp_path / "two" / split / name).mkdir(parents=True)
            for i in range(20):
                Image.new("L", (8, 8), level).save(folder / f"{i}.png")
    images, labels = load(tmp_path / "two", "test", size=8)
    assert labels[:10].bincount(minlength=2).min() > 0
    assert torch.equal(images[:, 0, 0, 0] > 100, labels == 1)


@pytest.mark.parametrize(("train", "test"), [("train", "val"), ("training", "Validation")])
def test_splits_may_have_other_usual_names(base, train, test):
    (base / "train").rename(base / train)
    (base / "test").rename(base / test)
    assert load(base)[1].bincount().tolist() == [4, 4, 4]
    assert len(load(base, "test")[0]) == 6


@pytest.mark.parametrize("below", ["train", "."])
def test_without_a_test_folder_about_a_fifth_of_each_class_is_held_out(tmp_path, below):
    for name, n in (("a", 200), ("b", 7), ("c", 2), ("d", 1)):
        folder = tmp_path / "all" / below / name
        folder.mkdir(parents=True)
        for i in range(n):
            Image.new("L", (8, 8), i).save(folder / f"{i}.png")
    train, test = load(tmp_path / "all", "train", size=8), load(tmp_path / "all", "test", size=8)
    for label, n in enumerate((200, 7, 2, 1)):
        levels = [x[y == label][:, 0, 0, 0].tolist() for x, y in (train, test)]
        assert sorted(levels[0] + levels[1]) == list(range(n))
        assert levels[0]  # never all
        assert bool(levels[1]) == (n > 1)
        if n == 200:
            assert 28 < len(levels[1]) < 52  # 40, and two deviations of a binomial


@given(numbers=st.sets(st.integers(0, 10_000), min_size=30, max_size=60), draws=st.data())
def test_no_file_changes_sides_when_others_come_or_go_or_a_class_is_renamed(numbers, draws):
    """Else `evaluate` would measure a trained model on its training images."""

    def held(names, numbers):
        files = {name: [Path("base", name, f"photo {i}.jpg") for i in sorted(numbers)] for name in names}
        return {file.name for files in _split_off_test(files, Path("base"))["test"].values() for file in files}

    kept = draws.draw(st.sets(st.sampled_from(sorted(numbers)), min_size=20))
    before, after = held("ab", numbers), held("bc", kept)
    assume(len(after) >= 2 and len(before) >= 2)  # a class without a name below the limit has one all the same
    assert after == before & {f"photo {i}.jpg" for i in kept}


def test_lossless_conversions_keep_every_pixel(base):
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    opaque = image.copy()
    opaque.putalpha(255)
    saved = [opaque, image.quantize(16), image.convert("L"), image.convert("1")]
    for i, other in enumerate(saved):
        other.save(base / f"train/cat/x{i}.png")
    (base / "train/cat/.DS_Store").write_bytes(b"x")
    (base / "train/cat/Thumbs.db").write_bytes(b"x")
    for found, other in zip(load(base)[0][4:8], saved, strict=True):
        assert np.array_equal(found.numpy(), np.asarray(other.convert("RGB")).transpose(2, 0, 1))


def test_the_orientation_of_a_photograph_is_applied(base):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate clockwise by 90 degrees
    Image.fromarray(pixels).save(base / "train/cat/x.png", exif=exif)
    image = load(base)[0][4]
    assert image[:, :, 8:].min() == 255
    assert image[:, :, :8].max() == 0


def truncated(path):
    Image.effect_noise((64, 64), 50).save(path, "jpeg")
    path.write_bytes(path.read_bytes()[:900])


def deep_colours(path):
    """A PNG with 16 bits per channel, which Pillow reads as RGB."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 9, 9, 16, 2, 0, 0, 0)
    rows = 9 * (b"\0" + 9 * 3 * b"\xff\x80")
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def patched(path, mark, at, bits):
    """An image with some bits set in the byte that holds the bit depth, `at` bytes after the mark."""
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
    "deep.tif": (lambda p: Image.new("I;16", (9, 9), 5000).save(p), r"more than 8 bits per channel \(mode I;16\)"),
    "deep.ppm": (lambda p: p.write_bytes(b"P6 9 9 65535\n" + 9 * 9 * 3 * b"\xff\x80"), "more than 8 bits per channel"),
    "deep-plain.ppm": (lambda p: p.write_text("P3 2 2 1023" + 12 * " 900"), "more than 8 bits per channel"),
    "deep.jp2": (lambda p: patched(p, b"\xff\x4f\xff\x51", 42, 8), "more than 8 bits per channel"),
    "drawing.eps": (lambda p: Image.new("RGB", (9, 9)).save(p), "is not an image in a known format"),
    "float.tif": (lambda p: Image.new("F", (9, 9)).save(p), r"more than 8 bits per channel \(mode F\)"),
    "lab.tif": (lambda p: Image.new("LAB", (9, 9)).save(p), "has colour mode LAB"),
    "dot.png": (lambda p: Image.new("RGB", (1, 1)).save(p), "has 1x1 pixels, which is too small"),
    "notes.txt": (lambda p: p.write_text("hello"), "is not an image"),
    "gone.jpg": (lambda p: p.symlink_to("nowhere.jpg"), "cannot be decoded: No such file"),
}


@pytest.mark.parametrize("suffix", ["avif", "bmp", "gif", "jp2", "jpeg", "png", "ppm", "qoi", "tga", "tiff", "webp"])
def test_every_listed_format_is_read(tmp_path, suffix):
    Image.init()
    if Image.registered_extensions().get(f".{suffix}") not in Image.SAVE:
        pytest.skip(f"this Pillow cannot write {suffix}")
    Image.new("RGB", (16, 16), (0, 128, 255)).save(tmp_path / f"x.{suffix}")
    colour = image_file.read_image(tmp_path / f"x.{suffix}", (3, 16, 16))[0].mean((1, 2))
    assert np.abs(colour - [0, 128, 255]).max() < 4


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_refused_with_a_reason(tmp_path, name):
    make, reason = BAD[name]
    make(tmp_path / name)
    with pytest.raises(ValueError, match=reason):
        image_file.read_image(tmp_path / name, (3, 16, 16))


@pytest.mark.parametrize(
    ("make", "name", "expected"),
    [
        (lambda p: Image.new("I;16", (9, 9), 5000).save(p), "deep.png", [19, 19, 19]),  # 5000 / 257
        (deep_colours, "deep-rgb.png", [255, 255, 255]),  # ff80
    ],
)
def test_16_bits_of_a_png_become_8(tmp_path, make, name, expected):
    make(tmp_path / name)
    pixels, transparent = image_file.read_image(tmp_path / name, (3, 9, 9))
    assert (pixels == np.array(expected)[:, None, None]).all()
    assert not transparent


@pytest.mark.parametrize(("background", "colour"), [("white", (255, 255, 255)), ("#102030", (16, 32, 48))])
def test_transparent_pictures_are_put_on_the_background(base, background, colour):
    half_transparent(base / "train/cat/x.png")
    transparent_colour(base / "train/cat/y.png")
    options = {"size": 9, "background": background}
    glass, hole = data.load(f"folder:{base}", **options)[0][4:6].permute(0, 2, 3, 1)
    assert (glass[:5] == torch.tensor(colour)).all()
    assert (glass[5:] == torch.tensor((1, 2, 3))).all()
    assert (hole == torch.tensor(colour)).all()
    assert data.find(f"folder:{base}", **options).transparent(None) == 2


def grey_folder(base, mode="L"):
    rng = np.random.default_rng(0)
    for name in ("day", "night"):
        (base / name).mkdir(parents=True)
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (8, 12), dtype=np.uint8)).convert(mode).save(base / name / f"{i}.png")


def test_a_folder_of_grey_pictures_has_one_channel_and_one_in_colour_makes_it_three(tmp_path):
    grey_folder(tmp_path / "grey")
    images, _ = load(tmp_path / "grey", size="8x12")
    assert images.shape == (8, 1, 8, 12)  # the files' own pixels
    test, _ = load(tmp_path / "grey", "test", size=(8, 12))
    files = sorted((tmp_path / "grey").rglob("*.png"))
    found = {image.numpy().tobytes() for image in torch.cat((images, test))}
    assert found == {np.asarray(Image.open(file)).tobytes() for file in files}
    assert data.load(f"folder:{tmp_path / 'grey'}", size=8, channels=3)[0].shape == (8, 3, 8, 8)
    (tmp_path / "grey" / "day" / "notes.txt").write_text("hello")
    assert data.find(f"folder:{tmp_path / 'grey'}", size=8).shape == (1, 8, 8)
    Image.new("RGB", (9, 9)).save(tmp_path / "grey" / "night" / "x.png")
    assert data.find(f"folder:{tmp_path / 'grey'}", size=8).shape == (3, 8, 8)


@pytest.mark.parametrize(("flags", "deep"), [(0x0C, False), (0x4C, True), (0x6C, True), (0x8C, False)])
def test_the_bit_depth_of_an_avif_is_read_from_its_header(flags, deep):
    """After av1C: marker and version, profile and level, then tier, high_bitdepth, twelve_bit and five more bits."""
    assert image_file._header_over_8_bits(b"ftypavif...av1C" + bytes([0x81, 0x00, flags, 0x00])) is deep


def test_bad_files_are_named_and_skip_bad_leaves_them_out(base, capsys):
    good = load(base)[0].clone()
    for name, (make, _) in BAD.items():
        make(base / "train" / "dog" / name)
    with pytest.raises(UserError, match=rf"deep-plain.ppm .*; and {len(BAD) - 3} more \(--skip-bad"):
        load(base)
    images, labels = load(base, skip_bad=True)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(images, good)
    (base / "train" / "owl").mkdir()
    assert main(["data", "verify", f"folder:{base}", "--size", "16", "--skip-bad"]) == 0
    output = capsys.readouterr().out
    assert "18 images" in output
    assert f"{len(BAD) + 1} unreadable files left out" in output
    assert all(f"left out: {base}/train/dog/{name} " in output for name in BAD)
    assert "cat: 4 to train on, 2 to test on" in output
    assert main(["data", "verify", f"folder:{base}", "--size", "16"]) == 2
    assert "owl: a class without images" in capsys.readouterr().err


def test_verify_lists_some_of_many_classes_with_their_images(tmp_path, capsys):
    for number in range(30):
        (folder := tmp_path / "many" / f"c{number:02}").mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (16, 16)).save(folder / f"{i}.png")
    assert main(["data", "verify", f"folder:{tmp_path / 'many'}", "--size", "16"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [*(f"  c{n:02}: 1 to train on, 1 to test on" for n in range(20)), "  and 10 more classes"]


def test_a_folder_without_its_prefix_and_a_file_are_named(base):
    with pytest.raises(UserError, match=f"did you mean folder:{base}"):
        data.find(str(base), size=16)
    with pytest.raises(UserError, match=r"0.jpg is a file"):
        data.find(f"folder:{base}/train/cat/0.jpg", size=16)


@pytest.mark.parametrize("place", ["train/cat/more", "train/cat", "train"])
def test_a_folder_that_cannot_be_read_is_not_skipped(base, monkeypatch, place):
    (base / "train" / "cat" / "more").mkdir()
    scan = os.scandir

    def failing(path):
        if str(path) == str(base / place):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(UserError, match=rf"{base / place}.*Permission denied"):
        load(base)


def test_a_link_to_a_folder_is_not_skipped(base, tmp_path):
    (base / "train" / "cat" / "more").symlink_to(base / "train" / "dog")
    with pytest.raises(UserError, match="more: a link to a folder"):
        load(base)


def rename_class(base):
    (base / "train" / "cat").rename(os.fsdecode(os.fsencode(base / "train") + b"/\xe9"))


def spoil_class(base):
    for path in (base / "train" / "fox").iterdir():
        path.write_bytes(b"x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda base: (base / "train").rename(base / "learning"),
            "has test images only; training needs a folder 'train'",
        ),
        (lambda base: (base / "train" / "Cat").mkdir(), "classes 'Cat' and 'cat' differ only in case"),
        (rename_class, r"the name '\\udce9' is not UTF-8"),
        (spoil_class, "no image of class 'fox' can be used"),
        (shutil.rmtree, r"no folder .*photos; folder:PATH holds train/CLASS"),
        (lambda base: (shutil.rmtree(base), base.mkdir()), "photos has no folders in it"),
    ],
)
def test_a_folder_that_cannot_be_used_is_an_error_even_with_skip_bad(base, change, message):
    change(base)
    with pytest.raises(UserError, match=message):
        load(base, skip_bad=True)


def test_test_classes_must_be_training_classes(base):
    (base / "test" / "owl").mkdir()
    Image.new("L", (8, 8)).save(base / "test" / "owl" / "0.png")
    with pytest.raises(UserError, match=r"test/owl: no such class in .*train"):
        load(base)
    assert len(load(base, "test", skip_bad=True)[0]) == 6


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "pass --size 64, in Python size=64"),
        (4, "out of range; choose 8 to 1024"),
        ("16x4", "16x4 .* out of range"),
        ("big", "'big' is not a number of pixels"),
        ("8x8x8", "not a number of pixels"),
    ],
)
def test_a_size_is_needed(base, size, message):
    with pytest.raises(UserError, match=message):
        load(base, size=size)
