"""Budget policies in training: what a step is given, what a run measures, and what is refused."""

import math

import pytest
import torch

from pixelpart import data, masks, recipes
from pixelpart.data.loader import Loader
from pixelpart.engine import training_data
from pixelpart.engine.fast import CapturedStep
from pixelpart.engine.metrics import first_order_damage, phase_damage
from pixelpart.engine.plan import build_plan
from pixelpart.engine.step import train_step
from pixelpart.engine.train import Trainer, train
from pixelpart.errors import UserError
from pixelpart.runs import RunFolder
from pixelpart.runtime.world import World
from steps import assert_same_state, budgets_of, plan_for, state_for
from stopping import files_of, rows_without_clock, whole_and_parts

CPU = torch.device("cpu")
SOURCES = ["gradcam", "gradient:2", "margin", "centre", "quadrant:ul", "blobs", "object"]
CONTROLS = list(masks.CONTROLS)


def settings_for(source, control="none", **more):
    return {"mask": {"source": source, "rule": "rank" if source == "margin" else "mean", "control": control} | more}


def small_loader(n=16, size=32):
    g = torch.Generator().manual_seed(3)
    images = torch.randint(256, (n, 3, size, size), generator=g, dtype=torch.uint8)
    objects = torch.rand(n, size, size, generator=g) < 0.3
    return Loader(images, torch.arange(n) % 10, batch_size=8, seed=0), objects


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("control", CONTROLS)
def test_a_captured_step_has_the_budgets_of_the_plain_one_in_every_epoch(cuda, source, control):
    """CUDA graphs are replaced by a stand-in, which replays the step with the phase of its capture."""
    changing = {"epochs": 5, "eps_from": "4/255", "batch_size": 8, "augment": "crop-flip"}
    plan = plan_for(**settings_for(source, control), **changing, attack={"steps": 1})
    fast, plain = (state_for(plan, dtype=torch.float32, size=32) for _ in range(2))
    loader, objects = small_loader()
    maps, step = objects if source == "object" else None, CapturedStep(fast, batch_size=8)
    mine = budgets_of(step, fast, plan, loader, maps, epochs=(0, 1, 4))
    theirs = budgets_of(train_step, plain, plan, loader, maps, epochs=(0, 1, 4))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert_same_state(fast, plain)
    assert len(step._graphs) == 1
    for budget, eps in zip(theirs, (4, 5, 8), strict=True):  # eps_low, 7/255, changes likewise
        assert eps * 7 / 8 - 1e-5 <= budget.min() * 255 <= budget.max() * 255 <= eps + 1e-5
    same = torch.allclose(theirs[0] * 8 / 4, theirs[2])  # for other images
    assert same == (source in ("centre", "quadrant:ul") and control != "blobs")


@pytest.mark.parametrize(
    ("source", "control", "more"),
    [
        ("gradient:1", "inverted", {"mean": "6/255"}),
        ("margin", "shuffled", {"mean": "6/255", "mean_over": "batch"}),
        ("centre", "none", {"rule": "power:0.5"}),
        ("quadrant:br", "flat", {}),
        ("blobs", "blobs", {"rule": "quantile:0.25"}),
        ("object", "shuffled", {}),
        ("gradient", "none", {"every": 1}),
        ("margin", "none", {"every": 1}),
    ],
)
def test_a_run_of_each_source_resumes_to_the_same_bytes(small, quiet, tmp_path, monkeypatch, source, control, more):
    config = small("part", epochs=2, eps_low="4/255", **settings_for(source, control, **more))
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=6, screen=quiet)
    assert files_of(parts) == files_of(whole)
    assert rows_without_clock(parts) == rows_without_clock(whole)
    row = whole.metrics[-1]
    assert math.isfinite(row["loss"])
    assert row["damage"] > 0
    assert 0 <= row["high_fraction"] <= 1
    if "mean" in more:
        assert row["budget_mean"] == pytest.approx(6 / 255, rel=1e-5)
    elif source == "blobs":
        assert row["high_fraction"] == pytest.approx(0.75, abs=0.02)
    elif source == "quadrant:br":
        assert row["budget_mean"] == pytest.approx(5 / 255, rel=1e-5)
    else:
        assert 4 / 255 < row["budget_mean"] < 8 / 255


def test_eps_from_is_seen_in_the_metrics(small, quiet, tmp_path):
    run = train(small("at", epochs=3, eps="8/255", eps_from="2/255"), tmp_path / "run", screen=quiet)
    assert [row["budget_mean"] * 255 for row in run.metrics] == pytest.approx([2, 5, 8], rel=1e-5)


def test_training_has_the_masks_of_its_own_images(small, quiet):
    """Each image is found again in the whole set, by its pixels."""
    config = small("part", mask={"source": "object", "rule": "mean"})
    loader, probes, objects = training_data.load(config, None, device=CPU, world=World(), screen=quiet)
    images, _ = data.load("shapes")
    everything = data.object_masks("shapes")
    assert len(loader) == len(objects.training) == 200
    found = {image.numpy().tobytes(): number for number, image in enumerate(images)}
    for number in range(200):
        picture, _ = loader.take(torch.tensor([number]))
        assert torch.equal(objects.training[number], everything[found[picture[0].numpy().tobytes()]])
    for picture, mask in zip(probes["train"][0], objects.probe, strict=True):
        pixels = (picture * 255).round().to(torch.uint8).contiguous()
        assert torch.equal(mask, everything[found[pixels.numpy().tobytes()]])
    assert training_data.load(small("part"), None, device=CPU, world=World(), screen=quiet)[2].training is None


def test_the_damage_is_that_of_the_policys_budget():
    plan = plan_for(**settings_for("object", "inverted"), eps_low="2/255")
    state, (_, objects) = state_for(plan, dtype=torch.float32, size=32), small_loader(4)
    x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    budget = torch.where(objects[:, None], 2 / 255, 8 / 255)
    expected = first_order_damage(state.attack_view(), x, y, budget)
    damage = phase_damage(state, plan.main, x, y, objects=objects.float(), budget_scale=None)
    assert damage == pytest.approx(expected, rel=1e-6)


# -- refusals


def source_of(change, **fields):
    return masks.Source(lambda inputs: change(torch.rand(len(inputs.x), 32, 32)), **fields)


@pytest.mark.parametrize(
    ("table", "entry", "message"),
    [
        (
            "RULES",
            lambda heat: heat[:, None].round() - 5,
            r"mask.rule own returned shares from -5 to -4; they must be in \[0, 1\]",
        ),
        ("RULES", lambda heat: heat[:, None] * torch.nan, "mask.rule own returned shares from nan to nan"),
        ("RULES", lambda heat: heat, r"mask.rule own returned shape \(16, 32, 32\); it must be \(16, 1 or 3, 32, 32\)"),
        ("CONTROLS", lambda share, dead, noise: 2 * share, "mask.control own returned shares from 0 to 2"),
        ("SOURCES", source_of(lambda heat: heat - 2), "mask.source own returned heat from -"),
        (
            "SOURCES",
            source_of(lambda heat: heat[:, ::2]),
            r"mask.source own returned maps of size \(16, 32\); it must be",
        ),
        (
            "SOURCES",
            source_of(lambda heat: heat / 0 * 0, needs_scaling=True),
            "mask.source own returned NaN or infinite values",
        ),
    ],
)
def test_what_no_budget_can_be_made_of_is_refused_before_the_first_epoch(
    small, quiet, tmp_path, monkeypatch, table, entry, message
):
    monkeypatch.setitem(getattr(masks, table), "own", entry)
    own = {"RULES": {"source": "centre", "rule": "own"}, "CONTROLS": {"source": "centre", "control": "own"}}
    config = small("part", mask=own.get(table, {"source": "own"}))
    with pytest.raises(UserError, match=message) as caught:
        train(config, tmp_path / "run", screen=quiet)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_raw_map_may_have_any_size_and_any_finite_values(small, quiet, tmp_path, monkeypatch):
    monkeypatch.setitem(masks.SOURCES, "own", source_of(lambda heat: 100 * heat[:, ::2] - 50, needs_scaling=True))
    run = train(small("part", epochs=2, mask={"source": "own"}), tmp_path / "run", screen=quiet)
    assert 7 / 255 < run.metrics[-1]["budget_mean"] < 8 / 255


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "rank"}, "mask.rule rank compares the images of a whole batch"),
        ({"control": "shuffled"}, "mask.control shuffled compares"),
        ({"mean": "8/255", "mean_over": "batch"}, "mask.mean_over batch compares"),
    ],
)
def test_what_compares_images_is_refused_under_torchrun(small, quiet, tmp_path, change, message):
    plan = build_plan(small("part", mask={"rule": "mean"} | change))
    with pytest.raises(UserError, match=f"{message}.*without torchrun") as caught:
        Trainer(plan, RunFolder(tmp_path / "run"), CPU, quiet, World(0, 2), data_root=None)
    assert "\n" not in str(caught.value)


def test_a_data_set_without_object_masks_is_refused():
    with pytest.raises(UserError, match="'object' needs object masks, and cifar10 has none; choose from shapes, tiny"):
        build_plan(recipes.cifar10("part", mask={"source": "object"}))
