"""TinyImageNet-200 in the official layout, with three classes of four training and two validation images."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.data import tinyimagenet
from pixelpart.errors import UserError

WNIDS = tinyimagenet.WNIDS[:3]


@pytest.fixture
def base(monkeypatch, tmp_path):
    monkeypatch.setattr(tinyimagenet, "WNIDS", WNIDS)
    monkeypatch.setattr(tinyimagenet, "COUNTS", {"train": 12, "test": 6})
    base = tmp_path / "tiny-imagenet-200"
    rng = np.random.default_rng(0)
    for number, wnid in enumerate((*WNIDS, "n02480855")):  # one class more, as a public copy has
        folder = base / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for i in range(4):
            jpeg(folder / f"{wnid}_{i}.JPEG", 60 * number + i, rng, grey=i == 3)
        lines = "".join(f"{wnid}_{i}.JPEG\t{i}\t1\t{40 + i}\t63\n" for i in range(4))
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text(lines)
    (base / "wnids.txt").write_text("\n".join(WNIDS))
    (base / "val" / "images").mkdir(parents=True)
    lines = []
    for i, wnid in enumerate([WNIDS[2], WNIDS[0], WNIDS[1], WNIDS[1], WNIDS[2], WNIDS[0], "n02480855"]):
        jpeg(base / "val" / "images" / f"val_{i}.JPEG", 30 * i, rng)
        lines.append(f"val_{i}.JPEG\t{wnid}\t{i}\t2\t{50 + i}\t62\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    monkeypatch.setattr(tinyimagenet, "LISTS", tinyimagenet.lists_hash(base))
    return base


def jpeg(path, level, rng, *, grey=False):
    noise = rng.integers(0, 9, (64, 64) if grey else (64, 64, 3))
    Image.fromarray((level + noise).astype(np.uint8)).save(path, "jpeg")


def test_labels_follow_the_lists_and_grey_pictures_have_three_channels(base, tmp_path):
    images, labels = data.load("tinyimagenet", root=tmp_path)
    assert images.shape == (12, 3, 64, 64)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (images[3, 0] == images[3, 2]).all()
    assert images[:4].float().mean() < images[4:8].float().mean() < images[8:].float().mean()
    images, labels = data.load("tinyimagenet", split="test", root=tmp_path)
    assert labels.tolist() == [2, 0, 1, 1, 2, 0]  # the class more is left out
    assert images.float().mean((1, 2, 3)).diff().gt(0).all()


def test_boxes_stand_beside_the_images(base, tmp_path):
    boxes = data.SETS["tinyimagenet"].boxes
    assert boxes("train", tmp_path)[5].tolist() == [1, 1, 41, 63]
    assert boxes("test", tmp_path)[4].tolist() == [4, 2, 54, 62]


def test_an_archive_that_lies_in_the_root_is_unpacked_and_kept(base, tmp_path, monkeypatch):
    root = tmp_path / "new"
    root.mkdir()
    archive = Path(shutil.make_archive(str(root / "tiny-imagenet-200"), "zip", tmp_path, "tiny-imagenet-200"))
    with pytest.raises(UserError, match=r"tiny-imagenet-200.zip has md5 .* put the folder tiny-imagenet-200 into"):
        data.get("tinyimagenet", root=root)
    assert list(root.iterdir()) == [archive]
    monkeypatch.setattr(tinyimagenet, "URL_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    row = data.get("tinyimagenet", root=root)
    assert (row.status, row.where) == ("verified", str(root / "tiny-imagenet-200"))
    assert {path.name for path in root.iterdir()} == {archive.name, "tiny-imagenet-200", "decoded"}
    assert torch.equal(data.load("tinyimagenet", root=root)[0], data.load("tinyimagenet", root=tmp_path)[0])


def test_a_second_load_reads_the_file_that_the_first_made(base, tmp_path, monkeypatch):
    first = data.load("tinyimagenet", root=tmp_path)[0].clone()
    monkeypatch.setattr(tinyimagenet, "read_picture", pytest.fail)
    assert (data.load("tinyimagenet", root=tmp_path)[0] == first).all()
    assert [path.suffix for path in sorted((tmp_path / "decoded").glob("tiny*"))] == [".json", ".npy"]


def test_a_damaged_picture_a_wrong_size_and_a_missing_line_are_named(base, tmp_path):
    path = base / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(UserError, match=rf"{WNIDS[1]}_2.JPEG cannot be decoded: .*[Tt]runcated"):
        data.verify("tinyimagenet", root=tmp_path)
    Image.new("RGB", (63, 64)).save(path, "jpeg")
    with pytest.raises(UserError, match=r"is 63x64 pixels, not 64x64"):
        data.load("tinyimagenet", root=tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=rf"{WNIDS[1]}_2.JPEG cannot be decoded: No such file"):
        data.load("tinyimagenet", root=tmp_path)
    lines = (base / "val" / "val_annotations.txt").read_text().splitlines(keepends=True)
    (base / "val" / "val_annotations.txt").write_text("".join(lines[1:]))
    with pytest.raises(UserError, match=rf"test lists 1 images of {WNIDS[2]}, not 2"):
        data.load("tinyimagenet", split="test", root=tmp_path)


def test_bad_pictures_are_left_out_when_told_and_counted(base, tmp_path, capsys):
    whole = {split: data.load("tinyimagenet", split=split, root=tmp_path)[0].clone() for split in ("train", "test")}
    cut = base / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    cut.write_bytes(cut.read_bytes()[:700])
    Image.new("RGB", (63, 64)).save(base / "val" / "images" / "val_3.JPEG", "jpeg")
    with pytest.raises(UserError, match=rf"{WNIDS[1]}_2.JPEG cannot be decoded: .*--skip-bad leaves such files"):
        data.load("tinyimagenet", root=tmp_path)
    entry = data.find("tinyimagenet", skip_bad=True)
    for split, lost, labels in (("train", 6, [0] * 4 + [1] * 3 + [2] * 4), ("test", 3, [2, 0, 1, 2, 0])):
        images, found = data.load("tinyimagenet", skip_bad=True, split=split, root=tmp_path)
        left = [i for i in range(len(whole[split])) if i != lost]
        assert found.tolist() == labels
        assert torch.equal(images, whole[split][left])
        assert torch.equal(entry.boxes(split, tmp_path), data.SETS["tinyimagenet"].boxes(split, tmp_path)[left])
    row = data.verify("tinyimagenet", skip_bad=True, root=tmp_path)
    assert (row.images, row.skipped, row.status) == (16, 2, "verified")
    assert [line.split()[0] for line in entry.skipped(tmp_path)] == [str(cut), str(base / "val/images/val_3.JPEG")]
    assert main(["data", "verify", "tinyimagenet", "--skip-bad", "--data-root", str(tmp_path)]) == 0
    assert "2 bad left out" in capsys.readouterr().out


def test_labels_that_are_not_the_official_ones_are_told(base, tmp_path):
    assert data.verify("tinyimagenet", root=tmp_path).status == "verified"
    source = base / "val" / "val_annotations.txt"
    first, second, *rest = source.read_text().splitlines()
    swapped = first.replace(WNIDS[2], WNIDS[0]), second.replace(WNIDS[0], WNIDS[2])  # as many of each class
    source.write_text("\n".join((*swapped, *rest)))
    assert data.verify("tinyimagenet", root=tmp_path).status == "unofficial"


def test_a_list_with_other_fields_is_told_by_line(base, tmp_path):
    source = base / "train" / WNIDS[0] / f"{WNIDS[0]}_boxes.txt"
    source.write_text(source.read_text() + "x.JPEG\t1\n")
    with pytest.raises(UserError, match=r"_boxes.txt, line 5: not 5 fields"):
        data.load("tinyimagenet", root=tmp_path)


def test_what_is_missing_is_listed_as_broken(base, tmp_path):
    assert data.verify("tinyimagenet", root=tmp_path).status == "verified"
    (base / "val" / "val_annotations.txt").unlink()
    row = data.listing(root=tmp_path)[4]
    assert row.status.startswith("broken: ")
    assert "val_annotations.txt" in row.status
    with pytest.raises(UserError, match="no tinyimagenet under"):
        data.load("tinyimagenet", root=tmp_path / "elsewhere")


def test_the_real_list_has_two_hundred_classes():
    from pixelpart.data.tinyimagenet_classes import NAMES, WNIDS

    assert len(set(WNIDS)) == len(set(NAMES)) == 200
    assert list(WNIDS) == sorted(WNIDS)
