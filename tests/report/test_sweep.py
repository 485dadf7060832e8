"""The page of a sweep folder."""

import numpy as np
import pytest

from pixelpart import recipes
from pixelpart.report.arms import fork_fields


def config(seed, eps_low="7/255", **changes):
    return recipes.RECIPES["shapes-part"](seed=seed, epochs=3, burn_in={"epochs": 1}, eps_low=eps_low, **changes)


@pytest.fixture
def sweep(measured, tmp_path):
    """Two seeds of two arms, the first of which is the source of the others' burn-in; and a run that failed."""
    numbers = {"7/255": (0.6, 0.4), "10/255": (0.5, 0.45)}
    for place, (low, (natural, robust)) in enumerate(numbers.items()):
        for seed in range(2):
            fork = {"init_from": f"elsewhere/runs/{seed:016x}@1"} if place else {}
            results = {"natural": np.arange(100) < 100 * natural, "pgd20": np.arange(100) < 100 * robust + 2 * seed}
            measured(f"grid/runs/{10 * place + seed:016d}", results, config=config(seed, low, **fork))
    failed = tmp_path / "grid/runs" / f"{99:016d}"
    failed.mkdir()
    (failed / "config.json").write_text(config(2).to_json())
    (tmp_path / "grid/jobs").mkdir()
    (tmp_path / "grid/jobs" / f"{failed.name}.error").write_text("Traceback\n<b>out of memory</b>\n")
    return tmp_path / "grid"


def cells(table):
    return [[cell.text for cell in row.children if getattr(cell, "tag", "") in ("th", "td")] for row in table.all("tr")]


def test_arms_have_their_means_and_runs_their_fields(sweep, page):
    found = page(sweep)
    assert found.all("h1")[0].text == "Sweep grid"
    assert found.all("p", "lead")[0].text == (
        "5 runs on shapes: 2 arms with 2 to 3 seeds each. 1 run not finished or not evaluated yet."
    )
    head, *arms = cells(found.all("table", "results")[0])
    assert head == ["arm", "natural", "PGD-20 at 8/255"]
    assert [arm[0] for arm in arms] == [  # by number
        "●eps_low=7/255seeds 0, 1, 2, mean budget 7.50/255",
        "■eps_low=10/255seeds 0, 1, mean budget 7.50/255",
    ]
    assert [arm[2].split(" %")[0] for arm in arms] == ["41.00", "46.00"]
    assert arms[0][2].endswith("2 seeds, n = 100")
    head, *runs = cells(found.all("table", "grid")[0])
    assert head == ["run", "seed", "eps_low", "epochs", "natural", "PGD-20 at 8/255"]
    assert runs[0][1:] == ["0", "7/255", "3 of 3", "60.00", "40.00"]
    assert runs[2][0].startswith("●0000000000000099 failed: <b>out of memory</b>")
    assert runs[2][1:] == ["2", "7/255", "0 of 3", "", ""]
    assert runs[4][1:] == ["1", "10/255", "3 of 3", "50.00", "47.00"]


def test_arms_are_compared_with_all_their_seeds_and_shared_settings_are_listed_once(sweep, page):
    found = page(sweep)
    assert "eps_low=7/255 60.00 % over 2 seeds and eps_low=10/255 50.00 % over 2 seeds" in found.text
    (settings,) = found.all("table", "settings")
    names = [row.all("th")[0].text for row in settings.all("tr")]
    assert "epochs" in names
    assert not {"seed", "eps_low"} & set(names)


def test_results_with_warnings_have_a_star_at_the_mean_and_at_the_run(measured, page):
    warning = "all 100 images examined are predicted as class 3"
    results = {"natural": np.arange(100) < 10, "pgd20": np.arange(100) < 10}
    for seed in range(2):
        folder = measured(f"grid/runs/{seed:016d}", results, config=config(seed), warnings=[warning] * seed)
    found = page(folder.parent.parent)
    assert [arm[1].split(" to ")[0] for arm in cells(found.all("table", "results")[0])[1:]] == ["10.00 %* 1.32"]
    assert [run[-2:] for run in cells(found.all("table", "grid")[0])[1:]] == [["10.00", "10.00"], ["10.00*", "10.00*"]]
    (shown,) = found.all("ul", "warnings")
    label = "shapes-part seed=1"
    assert shown.text.strip() == f"{warning} ({label}, natural; {label}, PGD-20 at 8/255)"
    assert found.all("h3")[-1].attrs["id"] == "warnings"


def test_page_of_a_sweep_is_self_contained(sweep, page, tmp_path):
    found = page(sweep)
    text = (tmp_path / "r.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "http:" not in text
    assert "https:" not in text
    assert "<script" not in text
    assert all(node.attrs["href"].startswith("#") for node in found.all("a"))
    assert all(th.attrs.get("scope") for th in found.all("th"))
    assert found.all("footer")[0].text == f"Created by pixelpart report {sweep} --out {tmp_path / 'r.html'}"


def test_a_sweep_without_results_has_a_page(tmp_path, page):
    folder = tmp_path / "grid/runs/0000000000000000"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config(0).to_json())
    assert "No run has been evaluated yet." in page(tmp_path / "grid").text


def test_runs_that_differ_in_a_field_that_they_do_not_use_are_still_two_arms(measured, page):
    right = {"natural": np.arange(100) < 50}
    for place, low in enumerate(("6/255", "7/255")):
        measured(f"grid/runs/{place:016d}", right, config=config(0, low, mask={"rule": "none"}))
    folder = measured("grid/runs/0000000000000002", right, config=config(0)).parent.parent
    labels = [row[0][1:] for row in cells(page(folder).all("table", "results")[0])[1:]]
    assert sorted(labels) == [
        "eps_low=7/255 mask.rule=meanseed 0, mean budget 7.50/255",
        "mask.rule=none (0000000000000000)seed 0, mean budget 7.50/255",
        "mask.rule=none (0000000000000001)seed 0, mean budget 7.50/255",
    ]


@pytest.mark.parametrize("folders", ["at", "gone"])
def test_forks_from_other_epochs_or_methods_are_methods_of_their_own(measured, page, tmp_path, folders, monkeypatch):
    """A sweep over init_from; the parents differ by folder from seed to seed, and may have been deleted."""
    monkeypatch.chdir(tmp_path)
    parents = {"at": {}, "trades": {"objective": {"name": "trades"}}} if folders == "at" else {"at": {}}
    forks = [(seed, name, epoch) for seed in range(2) for name in parents for epoch in (1, 2)]
    for seed, name, epoch in forks:
        if folders == "at":
            (tmp_path / f"{name}-{seed}").mkdir(exist_ok=True)
            parent = recipes.RECIPES["shapes-at"](seed=seed, epochs=3, **parents[name])
            (tmp_path / f"{name}-{seed}" / "config.json").write_text(parent.to_json())
        forked = config(seed, init_from=f"{name}-{seed}@{epoch}")
        results = {"natural": np.arange(100) < 60, "pgd20": np.arange(100) < 40 + 3 * epoch + 2 * seed}
        measured(f"grid/runs/{name}{epoch}{seed}", results, config=forked)
    # the burn-in of its own, which the fork from at@1 shares
    measured("grid/runs/own", {"natural": np.arange(100) < 60, "pgd20": np.arange(100) < 50}, config=config(2))
    _, *arms = cells(page(tmp_path / "grid").all("table", "results")[0])
    names = {arm[0].split("seeds ")[0].strip("●■▲◆") for arm in arms}
    assert len(arms) == len(names) == 2 * len(parents)
    assert sorted(arm[0].partition("seeds ")[2].split(", mean")[0] for arm in arms) == sorted(
        ["0, 1, 2", *["0, 1"] * (2 * len(parents) - 1)]
    )


def test_a_run_with_the_weights_of_another_is_a_method_of_its_own(tmp_path, monkeypatch):
    """Also if these have weights of a third run, and if the other run was deleted."""
    monkeypatch.chdir(tmp_path)
    plain, first, second = (
        recipes.RECIPES["shapes-at"](epochs=3, burn_in={"epochs": 0}, init_from=parent)
        for parent in ("", "plain", "first")
    )
    for name, made in {"plain": plain, "first": first}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(made.to_json())
    forks = [fork_fields(made, tmp_path / "here") for made in (plain, first, second)]
    assert forks[0] is None
    assert forks[1] not in (None, forks[2])
    assert forks[2] is not None
    (tmp_path / "plain/config.json").unlink()
    assert fork_fields(first, tmp_path / "here") is not None
