"""What each behaviour lets pass, at its very border."""

import pytest
import torch
from torch import nn

from pixelpart.evaluation.checks import behaviours
from pixelpart.evaluation.checks.behaviours import EXPECTED, SUSPICIOUS, Trial, growing_eps
from pixelpart.evaluation.image_set import ImageSet


class Scripted(Trial):
    """A trial whose attacks leave what they are told to."""

    def after(self, what, attempt, *, right=None, tries=1):
        count = self.script[what]
        return torch.arange(len(self.pictures)) < count


def scripted(n=1000, **script):
    pictures = ImageSet(torch.zeros(n, 3, 2, 2), torch.zeros(n, dtype=torch.long), torch.device("cpu"))
    trial = Scripted(nn.Identity(), pictures, torch.ones(n, dtype=torch.bool), 8 / 255, 2 / 255, 0, 8, None)
    object.__setattr__(trial, "script", {name.replace("_", " "): count for name, count in script.items()})
    return trial


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((400, 100, 10, 10, 10), EXPECTED),
        ((400, 100, 10, 10, 11), SUSPICIOUS),  # more than 1 % is left
        ((400, 100, 110, 10, 0), EXPECTED),
        ((400, 100, 111, 10, 0), SUSPICIOUS),  # it rises by more than 1 %
        ((400, 400, 400, 400, 400), SUSPICIOUS),
    ],
)
def test_accuracy_has_to_fall_as_eps_grows_and_to_nothing(counts, verdict):
    first, *rest = counts
    trial = scripted(**{f"eps {16 * 2**i}/255": count for i, count in enumerate(rest)})
    assert growing_eps(trial, torch.arange(1000) < first).verdict == verdict


@pytest.mark.parametrize(
    ("fgsm", "averaged", "verdict"),
    [
        (500, 500, EXPECTED),
        (380, 370, EXPECTED),
        (379, 400, SUSPICIOUS),
        (400, 369, SUSPICIOUS),
        (0, 400, SUSPICIOUS),
        (400, 0, SUSPICIOUS),
    ],
)
def test_one_step_may_find_two_percent_of_what_twenty_leave_and_an_averaged_one_three(fgsm, averaged, verdict):
    found = behaviours.one_step(scripted(one_step=fgsm, one_averaged_step=averaged), torch.arange(1000) < 400)
    assert found.verdict == verdict
    assert found.numbers["fgsm_only"] == max(0, 400 - fgsm)
    assert found.numbers["averaged_only"] == max(0, 400 - averaged)


@pytest.mark.parametrize(("after", "verdict"), [(400, EXPECTED), (390, EXPECTED), (389, SUSPICIOUS)])
def test_random_points_may_find_one_percent(after, verdict):
    assert behaviours.random_points(scripted(random=after), torch.arange(1000) < 400).verdict == verdict


@pytest.mark.parametrize(("left", "verdict"), [(0, EXPECTED), (10, EXPECTED), (11, SUSPICIOUS)])
def test_an_unbounded_attack_may_leave_one_percent(left, verdict):
    assert behaviours.unbounded(scripted(unbounded=left)).verdict == verdict


def test_one_image_is_no_proof():
    assert behaviours.unbounded(scripted(n=10, unbounded=1)).verdict == EXPECTED
    assert behaviours.unbounded(scripted(n=10, unbounded=2)).verdict == SUSPICIOUS


def test_steps_grow_with_eps_and_the_start_does_not(plane, pair, monkeypatch):
    x, y = pair
    calls = []

    def watched(model, x, y, budget, *, step_size, steps, start):
        calls.append((budget, step_size, steps, start))
        return x

    monkeypatch.setattr(behaviours, "pgd", watched)
    trial = Trial(plane, ImageSet(x, y, x.device), None, 8 / 255, 2 / 255, 0, 8, None)
    for eps in (None, 64 / 255, 1.0):
        trial.pgd20(eps=eps)(torch.arange(40), x, y, 0)
    assert [call[:3] for call in calls] == [
        (8 / 255, 2 / 255, 20),
        (64 / 255, pytest.approx(16 / 255), 20),
        (1.0, pytest.approx(0.25), 20),
    ]
    assert all(((call[3] - x).abs() <= 8 / 255 + 1e-6).all() for call in calls)
    assert calls[0][3].equal(calls[2][3])
