from pathlib import Path

import pytest

from pixelpart import data
from pixelpart.errors import UserError


def test_the_root_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "named"))
    assert data.home(tmp_path) == tmp_path
    assert data.home() == tmp_path / "named"
    monkeypatch.delenv("PIXELPART_DATA")
    assert data.home() == Path.home() / ".cache" / "pixelpart"
    assert data.home("~/data") == Path.home() / "data"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cifar10", {"size": 64}, "--size is for folder:PATH, not for 'cifar10'"),
        ("tinyimagenet", {"size": 64, "skip_bad": True}, "--size is for folder:PATH, not for 'tinyimagenet'"),
        ("shapes", {"skip_bad": True}, "--skip-bad is for folder:PATH and tinyimagenet, not for 'shapes'"),
    ],
)
def test_size_and_skip_bad_are_for_some_sets_only(name, options, message):
    with pytest.raises(UserError, match=message):
        data.find(name, **options)


def test_the_listing_has_every_set(tmp_path):
    rows = {row.name: row for row in data.listing(root=tmp_path)}
    assert set(rows) == set(data.SETS)
    assert (rows["shapes"].status, rows["shapes"].images) == ("generated", 8000)
    assert (rows["cifar10"].status, rows["cifar10"].where, rows["cifar10"].bytes) == ("missing", str(tmp_path), 0)
    assert {name for name, row in rows.items() if not row.source} == {"shapes"}  # all others can be downloaded
    assert data.get("shapes").status == data.verify("shapes").status == "generated"
