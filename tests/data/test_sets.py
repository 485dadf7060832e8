from pathlib import Path

import pytest

from pixelpart import data
from pixelpart.data.home import home
from pixelpart.errors import UserError


def test_the_root_is_what_is_given_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "named"))
    assert home(tmp_path) == tmp_path
    assert home() == tmp_path / "named"
    monkeypatch.delenv("PIXELPART_DATA")
    assert home() == Path.home() / ".cache" / "pixelpart"
    assert home("~/data") == Path.home() / "data"


def test_an_unknown_set_names_the_choices():
    for ask in (data.load, data.get, data.verify):
        with pytest.raises(UserError, match="unknown data set 'cifar'; choose from cifar10, cifar100, shapes, svhn"):
            ask("cifar")


def test_the_listing_has_every_set_and_reads_none(tmp_path):
    rows = {row.name: row for row in data.listing(root=tmp_path)}
    assert set(rows) == set(data.SETS)
    assert (rows["shapes"].status, rows["shapes"].images) == ("generated", 8000)
    assert (rows["cifar10"].status, rows["cifar10"].where, rows["cifar10"].bytes) == ("missing", str(tmp_path), 0)
    assert all(row.about == data.SETS[name].about for name, row in rows.items())
    assert {name for name, row in rows.items() if not row.source} == {"shapes"}  # all others are fetched from somewhere
    assert rows["svhn"].source == "http://ufldl.stanford.edu/housenumbers/"


def test_a_generated_set_needs_no_getting():
    assert data.get("shapes").status == "generated"
    assert data.verify("shapes").status == "generated"


@pytest.mark.parametrize("name", data.SETS)
def test_every_set_is_complete(name):
    entry = data.SETS[name]
    assert entry.about
    assert set(entry.counts) == {"train", "test"}
    assert len(set(entry.classes)) == entry.num_classes
    assert all(0 < m < 1 for m in entry.mean + entry.std)
