import shutil

import pytest

from command_line import TINY, few
from pixelpart import data
from pixelpart.cli.main import main


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """The data set `shapes`, reduced to its first images."""
    monkeypatch.setitem(data.SETS, "shapes", few())


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run, made by the command line; a test that changes it uses `copied`."""
    out = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "shapes", few())
        assert main(["train", "shapes-part", *TINY, "--epochs", "2", "--burn-in.epochs", "1", "--out", str(out)]) == 0
    return out


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copied")
