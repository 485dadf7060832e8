import pytest

from pixelpart.dataname import FolderName, is_code, parse_folder, with_options
from pixelpart.errors import UserError


@pytest.mark.parametrize("name", ["folder:photos@64", "folder:a b/c@d@32+skip-bad", "folder:C:/x@8"])
def test_a_folders_name_survives_being_read_and_written(name):
    assert str(parse_folder(name)) == name


def test_the_parts_of_a_name():
    assert parse_folder("folder:/a/b@64+skip-bad") == FolderName("/a/b", 64, skip_bad=True)
    assert parse_folder("cifar10") is None
    assert is_code("mine:load")
    assert not is_code("folder:x:y")


@pytest.mark.parametrize("name", ["folder:photos", "folder:@64", "folder:"])
def test_a_size_is_needed(name):
    with pytest.raises(UserError, match="does not tell the pictures' size"):
        parse_folder(name)


@pytest.mark.parametrize("size", [4, 9999])
def test_a_size_that_cannot_be_is_told_with_those_that_can(size):
    with pytest.raises(UserError, match=f"pictures of {size} pixels a side; choose 8 to 1024"):
        parse_folder(f"folder:photos@{size}")


TINY = ("tinyimagenet", {"size": 32, "skip_bad": True})


def test_options_are_added_once():
    assert with_options("cifar10") == "cifar10"
    assert with_options("folder:x", size=64) == "folder:x@64"
    assert with_options("folder:x@64", size=64, skip_bad=True) == "folder:x@64+skip-bad"
    assert with_options("folder:x@64+skip-bad") == "folder:x@64+skip-bad"
    assert with_options("tinyimagenet", skip_bad=True) == "tinyimagenet+skip-bad"
    assert with_options("tinyimagenet+skip-bad", skip_bad=True) == "tinyimagenet+skip-bad"
    for name, options in (("folder:x@32", {"size": 64}), ("cifar10", {"size": 64}), ("", {"skip_bad": True}), TINY):
        with pytest.raises(UserError, match=r"--size|--skip-bad"):
            with_options(name, **options)
