"""The l_inf ball: projection, starts, and the check of an attack's inputs."""

import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pixelpart import attacks
from pixelpart.attacks import draw_noise, project, start_point
from pixelpart.attacks.ball import check_attack_inputs
from pixelpart.errors import UserError

unit = st.floats(0, 1)


def image(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(1, 1, 1, -1)


def test_projection_by_hand():
    x = image(0.5, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0, 0.05)
    x_adv = image(0.9, 0.1, 0.55, -0.3, 0.3, 1.3, 0.7, -0.2)
    budget = image(0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    torch.testing.assert_close(project(x_adv, x, budget), image(0.6, 0.3, 0.55, 0.0, 0.1, 1.0, 0.9, 0.0))


@given(v=st.floats(-2, 3), x=unit, budget=unit)
def test_projection_is_the_nearest_point_of_the_interval(v, x, budget):
    low, high = max(0.0, x - budget), min(1.0, x + budget)
    expected = low if v < low else high if v > high else v
    assert project(image(v), image(x), image(budget)).item() == expected
    assert project(image(v), image(x), budget).item() == expected


def test_start_kinds_by_hand():
    x, noise = image(0.5, 0.5, 0.0, 1.0), image(-1.0, 0.5, -0.5, 1.0)
    budget = image(0.1, 0.2, 0.1, 0.1)
    torch.testing.assert_close(start_point(x, budget, noise, kind="uniform"), image(0.4, 0.6, 0.0, 1.0))
    torch.testing.assert_close(start_point(x, budget, noise, kind="normal"), image(0.499, 0.5005, 0.0, 1.0))
    torch.testing.assert_close(start_point(x, 0.0002, noise, kind="normal"), image(0.4998, 0.5002, 0.0, 1.0))
    assert torch.equal(start_point(x, budget, noise, kind="none"), x)


def test_noise_has_the_named_distribution_and_does_not_use_the_global_generator():
    x = torch.zeros(64, 3, 16, 16)
    before = torch.get_rng_state()
    uniform, normal, none = (draw_noise(x, kind=kind) for kind in ("uniform", "normal", "none"))
    assert torch.equal(torch.get_rng_state(), before)
    assert uniform.min() >= -1
    assert uniform.max() <= 1
    assert uniform.mean().item() == pytest.approx(0, abs=0.02)
    assert uniform.std().item() == pytest.approx(3**-0.5, abs=0.02)
    assert normal.mean().item() == pytest.approx(0, abs=0.02)
    assert normal.std().item() == pytest.approx(1, abs=0.02)
    assert normal.abs().max() > 3
    assert torch.equal(none, x)


@pytest.mark.parametrize("attack", [attacks.pgd, attacks.mma])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": -8 / 255}, "budget -0.03"),
        ({"budget": 8.0}, r"budget 8.0 is not in \[0, 1\]"),
        ({"budget": float("nan")}, "budget nan"),
        ({"budget": torch.full((2, 1, 4, 4), -0.1)}, "the budget is in"),
        ({"x": torch.full((2, 3, 4, 4), 255.0)}, r"images are in \[255.0, 255.0\]"),
        ({"steps": -1}, "steps -1"),
        ({"step_size": float("inf")}, "step_size inf"),
        ({"start": torch.full((2, 3, 4, 4), torch.nan)}, "the start has NaN"),
    ],
)
def test_wrong_inputs_are_refused(attack, change, message):
    call = {"x": torch.rand(2, 3, 4, 4), "budget": 8 / 255, "step_size": 0.1, "steps": 1} | change
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    with pytest.raises(UserError, match=message):
        attack(model, call.pop("x"), torch.tensor([0, 1]), call.pop("budget"), **call)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0, 3]), r"labels are in \[0, 3\]; the model has 3 classes"),
        (torch.tensor([-100, 1]), r"labels are in \[-100, 1\]"),
    ],
)
@pytest.mark.parametrize(
    "attack",
    [
        partial(attacks.pgd, step_size=0.1, steps=1), partial(attacks.mma, step_size=0.1, steps=1),
        attacks.apgd, attacks.fab, attacks.square, attacks.mm3, attacks.autoattack,
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_are_refused(attack, y, message):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    with pytest.raises(UserError, match=message):
        attack(model, torch.rand(2, 3, 4, 4), y, 8 / 255)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_may_be_of_any_integer_type(dtype):
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)), torch.rand(2, 3, 4, 4)
    y = torch.tensor([0, 2])
    for attack in (attacks.pgd, attacks.mma):
        found = [attack(model, x, labels, 8 / 255, step_size=2 / 255, steps=3) for labels in (y, y.to(dtype))]
        assert torch.equal(*found)


TYPES = """
import torch
from pixelpart import attacks
from pixelpart.errors import UserError
model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)), torch.rand(2, 3, 4, 4)
usual = {"y": torch.tensor([0, 1]), "budget": 8 / 255, "step_size": 0.1, "steps": 1}
for change in (
    {"budget": "8/255"}, {"budget": [8 / 255]}, {"budget": True}, {"budget": torch.ones(2, 1, 4, 4).bool()},
    {"steps": "10"}, {"step_size": True}, {"y": torch.tensor([0])}, {"y": torch.tensor([True, False])},
    {"y": torch.tensor([0.0, 1.0])}, {"steps": 1.5}, {"steps": float("nan")}, {"start": torch.rand(2, 3, 4, 5)},
):
    for attack in (attacks.pgd, attacks.mma):
        try:
            attack(model, x, **usual | change)
        except UserError as error:
            print(error)
"""


def test_inputs_of_other_types_are_refused():
    """In a process without the type checks of the tests."""
    done = subprocess.run([sys.executable, "-c", TYPES], capture_output=True, text=True)
    assert done.stderr == ""
    for line in (
        "budget '8/255' is not a number", "budget [0.03", "budget True is not a number", "the budget is bool",
        "steps '10'", "step_size True", "labels are int64 of shape (1,); need (2,) integers", "labels are bool",
        "labels are float32 of shape (2,)", "steps 1.5 is not", "steps nan is not", "the start has shape (2, 3, 4, 5)",
    ):  # fmt: skip
        assert done.stdout.count(line) == 2, line
    assert len(done.stdout.splitlines()) == 24


@pytest.mark.parametrize("shape", [(), (4, 4), (3, 4, 4), (3, 1, 4, 4), (2, 2, 4, 4), (2, 1, 4, 5)])
def test_a_budget_of_the_wrong_shape_is_refused(shape):
    message = re.escape(f"the budget has shape {shape}; it must be a number or (2, 1 or 3, 4, 4)")
    with pytest.raises(UserError, match=message):
        check_attack_inputs(torch.rand(2, 3, 4, 4), torch.zeros(shape), step_size=0.1, steps=1)


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 1, 4, 4), (1, 1, 4, 4), (2, 1, 1, 1)])
def test_a_budget_may_be_shared_by_channels_images_or_pixels(shape):
    check_attack_inputs(torch.rand(2, 3, 4, 4), torch.zeros(shape), step_size=0.1, steps=1)
