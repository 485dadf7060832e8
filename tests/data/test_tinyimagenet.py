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
    monkeypatch.setattr(tinyimagenet, "LISTS_SHA256", tinyimagenet.lists_hash(base))
    return base


def jpeg(path, level, rng, *, grey=False):
    noise = rng.integers(0, 9, (64, 64) if grey else (64, 64, 3))
    Image.fromarray((level + noise).astype(np.uint8)).save(path, "jpeg")


def test_labels_and_boxes_follow_the_lists_and_grey_images_have_three_channels(base, tmp_path):
    images, labels = data.load("tinyimagenet", root=tmp_path)
    assert images.shape == (12, 3, 64, 64)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (images[3, 0] == images[3, 2]).all()
    assert images[:4].float().mean() < images[4:8].float().mean() < images[8:].float().mean()
    images, labels = data.load("tinyimagenet", split="test", root=tmp_path)
    assert labels.tolist() == [2, 0, 1, 1, 2, 0]  # the additional class is left out
    assert images.float().mean((1, 2, 3)).diff().gt(0).all()
    boxes = tinyimagenet.boxes
    assert boxes("train", tmp_path)[5].tolist() == [1, 1, 41, 63]
    assert boxes("test", tmp_path)[4].tolist() == [4, 2, 54, 62]


def test_object_masks_are_the_boxes_corners_included(base, tmp_path):
    for split, n in (("train", 12), ("test", 6)):
        masks = data.object_masks("tinyimagenet", split=split, root=tmp_path)
        assert masks.shape == (n, 64, 64)
        for mask, (left, top, right, bottom) in zip(masks, tinyimagenet.boxes(split, tmp_path).tolist(), strict=True):
            inside = [[top <= row <= bottom and left <= column <= right for column in range(64)] for row in range(64)]
            assert mask.tolist() == inside


def test_object_masks_leave_out_the_images_that_skip_bad_leaves_out(base, tmp_path):
    path = base / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:700])
    options = {"root": tmp_path, "skip_bad": True}
    masks, whole = data.object_masks("tinyimagenet", **options), data.object_masks("tinyimagenet", root=tmp_path)
    assert len(masks) == len(data.load("tinyimagenet", **options)[0]) == 11
    assert torch.equal(masks, torch.cat((whole[:6], whole[7:])))


def test_an_archive_in_the_data_root_is_unpacked_and_not_deleted(base, tmp_path, monkeypatch):
    root = tmp_path / "new"
    root.mkdir()
    archive = Path(shutil.make_archive(str(root / "tiny-imagenet-200"), "zip", tmp_path, "tiny-imagenet-200"))
    with pytest.raises(UserError, match=r"tiny-imagenet-200.zip has md5 .* put the folder tiny-imagenet-200 into"):
        data.get("tinyimagenet", root=root)
    assert list(root.iterdir()) == [archive]
    monkeypatch.setattr(tinyimagenet, "URL_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    status = data.get("tinyimagenet", root=root)
    assert (status.status, status.where) == ("verified", str(root / "tiny-imagenet-200"))
    assert {path.name for path in root.iterdir()} == {archive.name, "tiny-imagenet-200", "decoded"}
    assert torch.equal(data.load("tinyimagenet", root=root)[0], data.load("tinyimagenet", root=tmp_path)[0])


def test_a_corrupt_image_a_wrong_size_and_a_missing_line_are_named(base, tmp_path):
    path = base / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(UserError, match=rf"{WNIDS[1]}_2.JPEG cannot be decoded: .*[Tt]runcated"):
        data.verify("tinyimagenet", root=tmp_path)
    Image.new("RGB", (63, 64)).save(path, "jpeg")
    with pytest.raises(UserError, match=r"has 63x64 pixels, not 64x64"):
        data.load("tinyimagenet", root=tmp_path)
    source = base / "val" / "val_annotations.txt"
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join(lines[1:]))
    with pytest.raises(UserError, match=rf"test lists 1 images of {WNIDS[2]}, not 2"):
        data.load("tinyimagenet", split="test", root=tmp_path)
    source.write_text("x.JPEG\t1\n")
    with pytest.raises(UserError, match=r"val_annotations.txt, line 1: not 6 tab-separated fields"):
        data.load("tinyimagenet", split="test", root=tmp_path)
    source.unlink()
    assert "broken: " in (status := data.listing(root=tmp_path)[4].status)
    assert "val_annotations.txt" in status


def test_skip_bad_leaves_out_bad_images_with_their_labels_and_boxes(base, tmp_path, capsys):
    complete = {split: data.load("tinyimagenet", split=split, root=tmp_path)[0].clone() for split in ("train", "test")}
    cut = base / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    cut.write_bytes(cut.read_bytes()[:700])
    Image.new("RGB", (63, 64)).save(base / "val" / "images" / "val_3.JPEG", "jpeg")
    with pytest.raises(UserError, match=rf"{WNIDS[1]}_2.JPEG cannot be decoded: .*--skip-bad leaves such files"):
        data.load("tinyimagenet", root=tmp_path)
    entry = data.find("tinyimagenet", skip_bad=True)
    for split, bad, labels in (("train", 6, [0] * 4 + [1] * 3 + [2] * 4), ("test", 3, [2, 0, 1, 2, 0])):
        images, found = data.load("tinyimagenet", skip_bad=True, split=split, root=tmp_path)
        good = [i for i in range(len(complete[split])) if i != bad]
        assert found.tolist() == labels
        assert torch.equal(images, complete[split][good])
        boxes = tinyimagenet.boxes(split, tmp_path)
        assert torch.equal(tinyimagenet.boxes(split, tmp_path, skip_bad=True), boxes[good])
    assert [line.split()[0] for line in entry.skipped(tmp_path)] == [str(cut), str(base / "val/images/val_3.JPEG")]
    assert main(["data", "verify", "tinyimagenet", "--skip-bad", "--data-root", str(tmp_path)]) == 0
    assert "2 unreadable files left out" in capsys.readouterr().out


def test_other_labels_are_unofficial(base, tmp_path):
    assert data.verify("tinyimagenet", root=tmp_path).status == "verified"
    source = base / "val" / "val_annotations.txt"
    first, second, *rest = source.read_text().splitlines()
    swapped = first.replace(WNIDS[2], WNIDS[0]), second.replace(WNIDS[0], WNIDS[2])  # the counts remain
    source.write_text("\n".join((*swapped, *rest)))
    assert data.verify("tinyimagenet", root=tmp_path).status == "unofficial"
