"""The verdict on each behaviour, just below and just above its threshold."""

import pytest
import torch
from torch import nn

from pixelpart.evaluation.checks import behaviours
from pixelpart.evaluation.checks.behaviours import EXPECTED, SUSPICIOUS, CheckedModel
from pixelpart.evaluation.images import ImageSet


class Scripted(CheckedModel):
    """Attacks leave the first `script[title]` images correct."""

    def robust(self, title, attempt, *, correct=None, tries=1):
        return torch.arange(len(self.pictures)) < self.script[title]


def scripted(n=1000, **script):
    pictures = ImageSet(torch.zeros(n, 3, 2, 2), torch.zeros(n, dtype=torch.long), torch.device("cpu"))
    checked = Scripted(nn.Identity(), pictures, torch.ones(n, dtype=torch.bool), 8 / 255, 2 / 255, 0, None)
    object.__setattr__(checked, "script", {title.replace("_", " "): count for title, count in script.items()})
    return checked


UNDER_PGD = torch.arange(1000) < 400


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((100, 10, 10, 10), EXPECTED),
        ((100, 10, 10, 11), SUSPICIOUS),  # more than 1 % remain
        ((100, 110, 10, 0), EXPECTED),
        ((100, 111, 10, 0), SUSPICIOUS),  # rises by more than 1 %
        ((400, 400, 400, 400), SUSPICIOUS),
    ],
)
def test_accuracy_must_fall_to_nearly_0_as_eps_grows(counts, verdict):
    checked = scripted(**{f"eps {16 * 2**i}/255": count for i, count in enumerate(counts)})
    assert behaviours.growing_eps(checked, UNDER_PGD).verdict == verdict


@pytest.mark.parametrize(
    ("fgsm", "averaged", "verdict"),
    [(500, 500, EXPECTED), (380, 370, EXPECTED), (379, 400, SUSPICIOUS), (400, 369, SUSPICIOUS)],
)
def test_fgsm_may_break_2_percent_more_than_pgd_and_an_averaged_step_3(fgsm, averaged, verdict):
    found = behaviours.one_step(scripted(one_step=fgsm, one_averaged_step=averaged), UNDER_PGD)
    assert found.verdict == verdict
    assert found.numbers["fgsm_only"] == max(0, 400 - fgsm)
    assert found.numbers["averaged_only"] == max(0, 400 - averaged)


@pytest.mark.parametrize(("left", "verdict"), [(400, EXPECTED), (390, EXPECTED), (389, SUSPICIOUS)])
def test_random_points_may_break_1_percent(left, verdict):
    assert behaviours.random_points(scripted(random=left), UNDER_PGD).verdict == verdict


@pytest.mark.parametrize(
    ("n", "left", "verdict"), [(1000, 10, EXPECTED), (1000, 11, SUSPICIOUS), (10, 1, EXPECTED), (10, 2, SUSPICIOUS)]
)
def test_an_unbounded_attack_may_leave_1_percent_or_one_image(n, left, verdict):
    assert behaviours.unbounded(scripted(n, unbounded=left)).verdict == verdict


def test_step_size_grows_with_eps_and_the_start_does_not(plane, pair, monkeypatch):
    x, y = pair
    calls = []

    def recorded(model, x, y, budget, *, step_size, steps, start):
        calls.append((budget, step_size, steps, start))
        return x

    monkeypatch.setattr(behaviours, "pgd", recorded)
    checked = CheckedModel(plane, ImageSet(x, y, x.device), None, 8 / 255, 2 / 255, 0, None)
    for eps in (None, 64 / 255, 1.0):
        checked.pgd20(eps=eps)(torch.arange(40), x, y, 0)
    assert [call[:3] for call in calls] == [
        (8 / 255, 2 / 255, 20),
        (64 / 255, pytest.approx(16 / 255), 20),
        (1.0, pytest.approx(0.25), 20),
    ]
    assert all(((call[3] - x).abs() <= 8 / 255 + 1e-6).all() for call in calls)
    assert calls[0][3].equal(calls[2][3])
