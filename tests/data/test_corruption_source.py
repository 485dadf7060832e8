"""Corrupted images on disk: the official layout, our own cache of it, and photographs of frost."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart.data.corruptions import corrupt, frost
from pixelpart.data.corruptions import source as source_module
from pixelpart.data.corruptions.frost import PICTURES, frost_pictures
from pixelpart.data.corruptions.source import CorruptionFiles, CorruptionGenerator, check_names, open_source
from pixelpart.errors import UserError
from pixelpart.runtime.progress import silent

N = 6


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (N, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (N,), generator=generator)


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(frost.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def official(pair, tmp_path):
    """A folder in CIFAR-10-C's layout; the pixels of an image are its severity, its number and the column."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    stack = np.zeros((5 * N, 32, 32, 3), np.uint8)
    stack[..., 0] = np.repeat(np.arange(1, 6), N)[:, None, None]
    stack[..., 1] = np.tile(np.arange(N), 5)[:, None, None]
    stack[..., 2] = np.arange(32)
    np.save(folder / "fog.npy", stack)
    np.save(folder / "labels.npy", np.tile(pair[1].numpy().astype(np.uint8), 5))
    return folder


def opened(pair, root, **settings):
    return open_source(*pair, **({"whole": True, "dataset": "cifar10", "root": root} | settings))


# -- official files


def test_official_files_are_preferred_and_read_by_severity(pair, official, tmp_path):
    source = opened(pair, tmp_path)
    x = source.images("fog", 4, silent)
    assert x.shape == (N, 3, 32, 32)
    assert (x[:, 0] == 4).all()
    assert x[:, 1, 0, 0].tolist() == list(range(N))
    assert x[0, 2, 0].tolist() == list(range(32))
    assert source.facts("fog", 4) != source.facts("fog", 3)
    few = opened((pair[0][:2], pair[1][:2]), tmp_path)
    assert few.images("fog", 2, silent)[:, :2, 0, 0].tolist() == [[2, 0], [2, 1]]


def test_files_are_used_for_cifar10_or_from_a_named_folder(pair, official, tmp_path):
    assert isinstance(opened(pair, tmp_path, dataset="shapes"), CorruptionGenerator)
    assert isinstance(opened(pair, tmp_path / "none"), CorruptionGenerator)
    assert isinstance(opened(pair, tmp_path / "none", folder=official), CorruptionFiles)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels", lambda labels: (labels + 1) % 10, "are not those of the test images"),
        ("labels", lambda labels: labels[:5], "has 1 labels for each severity, but there are 6 test images"),
        ("fog", lambda stack: stack[:-1], r"fog.npy has uint8 of shape \(29, 32, 32, 3\), not uint8 of shape \(30, 32"),
        ("fog", lambda stack: stack.astype(np.float32), "fog.npy has float32 of shape"),
        ("fog", b"not found on this server", "fog.npy is not a .npy file, or is corrupt"),
        ("fog", None, "lacks fog.npy"),
        ("labels", None, "no file .*labels.npy"),
    ],
)
def test_wrong_files_are_errors_of_one_line(name, change, message, pair, official, tmp_path):
    path = official / f"{name}.npy"
    if change is None:
        path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        np.save(path, change(np.load(path)), allow_pickle=True)

    def read():
        source = opened(pair, tmp_path)
        check_names(source, ["fog"])
        source.images("fog", 1, silent)

    with pytest.raises(UserError, match=message) as caught:
        read()
    assert "\n" not in str(caught.value)


# -- generated images


@pytest.fixture
def made(monkeypatch):
    """The corruptions and severities that are generated."""
    calls = []

    def counting(x, name, severity, **settings):
        calls.append((name, severity))
        return corrupt(x, name, severity, **settings)

    monkeypatch.setattr(source_module, "corrupt", counting)
    return calls


def test_a_whole_test_set_is_generated_once_and_cached_in_the_official_layout(pair, made, tmp_path):
    reports = []
    first = opened(pair, tmp_path).images("contrast", 2, lambda *report: reports.append(report))
    assert torch.equal(first, corrupt(pair[0], "contrast", 2))
    assert reports[-1] == ("corrupting", 5 * N, 5 * N, "contrast")
    folder = tmp_path / "cifar-10-c-pixelpart"
    assert sorted(path.name for path in folder.iterdir()) == ["contrast.json", "contrast.npy", "labels.npy"]
    assert torch.equal(opened(pair, tmp_path).images("contrast", 5, silent), corrupt(pair[0], "contrast", 5))
    assert made == [("contrast", severity) for severity in range(1, 6)]
    as_official = opened(pair, tmp_path, folder=folder)
    assert torch.equal(as_official.images("contrast", 2, silent), first)


def test_a_part_of_the_test_set_is_not_cached(pair, made, tmp_path):
    source = opened((pair[0][:2], pair[1][:2]), tmp_path, whole=False)
    assert torch.equal(source.images("fog", 2, silent), corrupt(pair[0], "fog", 2)[:2])
    assert not list(tmp_path.iterdir())
    assert made == [("fog", 2)]


@pytest.mark.parametrize("what", ["version", "images", "a byte of the array", "half of the array", "json"])
def test_the_cache_is_not_used_after_a_change(what, pair, made, tmp_path, monkeypatch):
    opened(pair, tmp_path).images("contrast", 1, silent)
    array = tmp_path / "cifar-10-c-pixelpart" / "contrast.npy"
    content = array.read_bytes()
    match what:
        case "version":
            monkeypatch.setattr(source_module, "VERSION", 999)
        case "images":
            pair[0][0, 0, 0, 0] ^= 1
        case "a byte of the array":
            array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "half of the array":
            array.write_bytes(content[:1000])
        case "json":
            array.with_suffix(".json").write_text("[1]")
    made.clear()
    assert torch.equal(opened(pair, tmp_path).images("contrast", 1, silent), corrupt(pair[0], "contrast", 1))
    assert len(made) == 5


def test_a_cache_that_cannot_be_written_is_reported_and_the_images_are_still_returned(pair, tmp_path):
    lines = []
    (tmp_path / "cifar-10-c-pixelpart").write_text("in the way")
    source = opened(pair, tmp_path, say=lines.append)
    assert torch.equal(source.images("contrast", 1, silent), corrupt(pair[0], "contrast", 1))
    assert "contrast cannot be saved" in lines[-1]


# -- frost


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "package" / "frost"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in PICTURES:
        Image.fromarray(rng.integers(256, size=(320, 340, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_generated_frost_has_another_name_than_frost_from_photographs(pair, pictures, tmp_path):
    generated, source = opened(pair, tmp_path), opened(pair, tmp_path, frost=pictures)
    assert (generated.name("frost"), source.name("frost"), generated.name("fog")) == ("frost-drawn", "frost", "fog")
    found = source.images("frost", 1, silent)
    assert torch.equal(found, corrupt(pair[0], "frost", 1, frost=frost_pictures(pictures)))
    assert not torch.equal(found, corrupt(pair[0], "frost", 1))
    assert source.facts("frost", 1) != generated.facts("frost", 1)
    assert source.facts("fog", 1) == generated.facts("fog", 1)


def test_pictures_of_the_package_are_found_without_importing_it(pictures, monkeypatch):
    monkeypatch.undo()
    (pictures.parent / "__init__.py").write_text("import nowhere")
    renamed = pictures.parent.rename(pictures.parent.with_name("imagecorruptions"))
    monkeypatch.syspath_prepend(renamed.parent)
    assert [picture.shape for picture in frost_pictures()] == [(320, 340, 3)] * 5
    assert "imagecorruptions" not in sys.modules
