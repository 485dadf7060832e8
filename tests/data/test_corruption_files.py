"""Corrupted images on disk: the official layout, our own copy of it, and pictures of frost."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart.data.corruptions import corrupt, files, frost
from pixelpart.data.corruptions.files import Generated, Given, check_names, open_source
from pixelpart.data.corruptions.frost import PICTURES, frost_pictures
from pixelpart.errors import UserError

N = 6


def nothing(what, done, total):
    pass


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randint(256, (N, 3, 32, 32), dtype=torch.uint8, generator=generator),
        torch.randint(10, (N,), generator=generator),
    )


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(frost.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def official(pair, tmp_path):
    """A folder in CIFAR-10-C's layout: every image says its severity and its number."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    stack = np.zeros((5 * N, 32, 32, 3), np.uint8)
    stack[..., 0] = np.repeat(np.arange(1, 6), N)[:, None, None]
    stack[..., 1] = np.tile(np.arange(N), 5)[:, None, None]
    stack[..., 2] = np.arange(32)  # the column
    np.save(folder / "fog.npy", stack)
    np.save(folder / "labels.npy", np.tile(pair[1].numpy().astype(np.uint8), 5))
    return folder


def opened(pair, root, **settings):
    return open_source(*pair, **({"whole": True, "dataset": "cifar10", "root": root} | settings))


# -- official files


def test_official_files_are_preferred_and_read_by_severity(pair, official, tmp_path):
    source = opened(pair, tmp_path)
    assert isinstance(source, Given)
    x = source.images("fog", 4, nothing)
    assert x.shape == (N, 3, 32, 32)
    assert (x[:, 0] == 4).all()
    assert x[:, 1, 0, 0].tolist() == list(range(N))
    assert x[0, 2, 0].tolist() == list(range(32))
    assert source.facts("fog", 4)["source"] == "files"
    assert source.facts("fog", 4) != source.facts("fog", 3)


def test_a_folder_may_be_named(pair, official, tmp_path):
    moved = official.rename(tmp_path / "elsewhere")
    assert isinstance(opened(pair, tmp_path / "none"), Generated)
    assert isinstance(opened(pair, tmp_path / "none", folder=moved), Given)


def test_the_first_images_of_each_severity(pair, official, tmp_path):
    source = opened((pair[0][:2], pair[1][:2]), tmp_path)
    assert source.images("fog", 2, nothing)[:, :2, 0, 0].tolist() == [[2, 0], [2, 1]]


def test_another_set_does_not_take_them(pair, official, tmp_path):
    assert isinstance(opened(pair, tmp_path, dataset="shapes"), Generated)


def broken(folder, what):
    stack, labels = np.load(folder / "fog.npy"), np.load(folder / "labels.npy")
    match what:
        case "no labels":
            (folder / "labels.npy").unlink()
        case "other labels":
            np.save(folder / "labels.npy", (labels + 1) % 10)
        case "few labels":
            np.save(folder / "labels.npy", labels[:5])
        case "no fives":
            np.save(folder / "labels.npy", labels[:-1])
        case "short":
            np.save(folder / "fog.npy", stack[:-1])
        case "channels first":
            np.save(folder / "fog.npy", stack.transpose(0, 3, 1, 2))
        case "floats":
            np.save(folder / "fog.npy", stack.astype(np.float32))
        case "torn":
            (folder / "fog.npy").write_bytes((folder / "fog.npy").read_bytes()[:-100])
        case "text":
            (folder / "fog.npy").write_text("no such file on this server")
        case "empty":
            (folder / "fog.npy").write_bytes(b"")
        case "pickle":
            np.save(folder / "fog.npy", np.array([{}], object), allow_pickle=True)
        case "head":
            content = (folder / "fog.npy").read_bytes()
            (folder / "fog.npy").write_bytes(content.replace(b"{", b"z", 1))
        case "absent":
            (folder / "fog.npy").unlink()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no labels", "no file"),
        ("other labels", "are not those of the test images"),
        ("few labels", "has 1 labels for each severity, the test images are 6"),
        ("no fives", "labels.npy holds uint8 of shape (29,), not 50,000 labels"),
        ("short", "fog.npy holds uint8 of shape (29, 32, 32, 3), not uint8 of shape (30, 32, 32, 3)"),
        ("channels first", "fog.npy holds uint8 of shape (30, 3, 32, 32), not"),
        ("floats", "fog.npy holds float32 of shape"),
        ("torn", "fog.npy is damaged, or not an array of numpy"),
        ("text", "fog.npy is damaged, or not an array of numpy"),
        ("empty", "fog.npy is damaged, or not an array of numpy"),
        ("pickle", "fog.npy is damaged, or not an array of numpy"),
        ("head", "fog.npy is damaged, or not an array of numpy"),
        ("absent", "lacks fog.npy"),
    ],
)
def test_wrong_files_are_told_in_one_line(what, said, pair, official, tmp_path):
    def read():
        source = opened(pair, tmp_path)
        check_names(source, ["fog"])
        source.images("fog", 1, nothing)

    broken(official, what)
    with pytest.raises(UserError) as caught:
        read()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# -- our own


@pytest.fixture
def made(monkeypatch):
    """Counts what is generated."""
    calls = []

    def counting(x, name, severity, **settings):
        calls.append((name, severity))
        return corrupt(x, name, severity, **settings)

    monkeypatch.setattr(files, "corrupt", counting)
    return calls


def test_a_whole_set_is_made_once_and_kept_in_the_official_layout(pair, made, tmp_path):
    told = []
    first = opened(pair, tmp_path).images("contrast", 2, lambda *news: told.append(news))
    assert torch.equal(first, corrupt(pair[0], "contrast", 2))
    assert told[-1] == ("contrast", 5 * N, 5 * N)
    folder = tmp_path / "cifar-10-c-pixelpart"
    assert sorted(path.name for path in folder.iterdir()) == ["contrast.json", "contrast.npy", "labels.npy"]
    assert np.load(folder / "contrast.npy").shape == (5 * N, 32, 32, 3)
    assert torch.equal(opened(pair, tmp_path).images("contrast", 5, nothing), corrupt(pair[0], "contrast", 5))
    assert made == [("contrast", severity) for severity in range(1, 6)]
    as_official = opened(pair, tmp_path, folder=folder)
    assert torch.equal(as_official.images("contrast", 2, nothing), first)


def test_some_images_are_made_and_not_kept(pair, made, tmp_path):
    source = opened((pair[0][:2], pair[1][:2]), tmp_path, whole=False)
    assert torch.equal(source.images("fog", 2, nothing), corrupt(pair[0], "fog", 2)[:2])
    assert not list(tmp_path.iterdir())
    assert made == [("fog", 2)]


def change(what, pair, folder, monkeypatch):
    match what:
        case "generator":
            monkeypatch.setattr(files, "generator", lambda: "another")
        case "images":
            pair[0][0, 0, 0, 0] ^= 1
        case "a byte of the file":
            content = bytearray((folder / "contrast.npy").read_bytes())
            content[-5] ^= 1
            (folder / "contrast.npy").write_bytes(content)
        case "half of the file":
            (folder / "contrast.npy").write_bytes((folder / "contrast.npy").read_bytes()[:1000])
        case "no facts":
            (folder / "contrast.json").unlink()
        case "torn facts":
            (folder / "contrast.json").write_text('{"made"')
        case "other facts":
            (folder / "contrast.json").write_text("[1]")


@pytest.mark.parametrize(
    "what",
    ["generator", "images", "a byte of the file", "half of the file", "no facts", "torn facts", "other facts"],
)
def test_what_is_kept_is_not_used_after_a_change(what, pair, made, tmp_path, monkeypatch):
    opened(pair, tmp_path).images("contrast", 1, nothing)
    change(what, pair, tmp_path / "cifar-10-c-pixelpart", monkeypatch)
    made.clear()
    assert torch.equal(opened(pair, tmp_path).images("contrast", 1, nothing), corrupt(pair[0], "contrast", 1))
    assert len(made) == 5
    made.clear()
    opened(pair, tmp_path).images("contrast", 1, nothing)
    assert not made


def test_the_generator_is_its_source_and_what_it_uses(tmp_path, monkeypatch):
    before = files.generator()
    files.generator.cache_clear()
    assert files.generator() == before
    files.generator.cache_clear()
    monkeypatch.setattr(files, "WITH", ("numpy",))
    assert files.generator() != before
    files.generator.cache_clear()


def test_a_disk_that_cannot_be_written_costs_the_copy_alone(pair, made, tmp_path):
    said = []
    (tmp_path / "cifar-10-c-pixelpart").write_text("in the way")
    source = opened(pair, tmp_path, say=said.append)
    assert torch.equal(source.images("contrast", 1, nothing), corrupt(pair[0], "contrast", 1))
    assert "contrast is not kept for the next time" in said[-1]
    assert torch.equal(source.images("contrast", 4, nothing), corrupt(pair[0], "contrast", 4))
    assert len(made) == 5


def test_only_whole_levels_are_corrupted(pair, tmp_path):
    with pytest.raises(UserError, match="only uint8 images are corrupted, not float32"):
        opened((pair[0] / 255, pair[1]), tmp_path)


# -- frost


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "package" / "frost"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in PICTURES:
        Image.fromarray(rng.integers(256, size=(320, 340, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_drawn_frost_has_another_name(pair, tmp_path):
    said = []
    source = opened(pair, tmp_path, say=said.append)
    assert source.name("frost") == "frost-drawn"
    assert source.name("fog") == "fog"
    assert "with drawn frost" in said[0]
    source.images("frost", 1, nothing)
    assert (tmp_path / "cifar-10-c-pixelpart" / "frost-drawn.npy").exists()


def test_pictures_of_a_folder_are_used(pair, pictures, tmp_path):
    source = opened(pair, tmp_path, frost=pictures)
    assert source.name("frost") == "frost"
    found = source.images("frost", 1, nothing)
    assert torch.equal(found, corrupt(pair[0], "frost", 1, frost=frost_pictures(pictures)))
    assert not torch.equal(found, corrupt(pair[0], "frost", 1))
    assert source.facts("frost", 1) != opened(pair, tmp_path).facts("frost", 1)
    assert source.facts("fog", 1) == opened(pair, tmp_path).facts("fog", 1)


def test_pictures_of_the_package_are_found_without_importing_it(pictures, monkeypatch):
    monkeypatch.undo()
    (pictures.parent / "__init__.py").write_text("import nowhere")
    renamed = pictures.parent.rename(pictures.parent.with_name("imagecorruptions"))
    monkeypatch.syspath_prepend(renamed.parent)
    assert [picture.shape for picture in frost_pictures()] == [(320, 340, 3)] * 5
    assert "imagecorruptions" not in sys.modules


def test_missing_and_damaged_pictures_are_told(pictures):
    (pictures / "frost4.jpg").write_text("no picture")
    with pytest.raises(UserError, match=r"frost4\.jpg is not a picture that can be read"):
        frost_pictures(pictures)
    (pictures / "frost4.jpg").unlink()
    with pytest.raises(UserError, match=r"lacks frost4\.jpg"):
        frost_pictures(pictures)


def test_facts_can_be_written_as_json(pair, pictures, tmp_path):
    json.dumps(opened(pair, tmp_path, frost=pictures).facts("frost", 1))
