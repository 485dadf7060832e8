"""MMA against a plain implementation."""

import pytest
import torch

from pixelpart.attacks import draw_noise, mma, pgd, start_point


def naive_mma(net, x, y, budget, noises, *, step_size, steps):
    """One sample at a time: PGD on z_t - z_y for the most likely wrong classes, then the maximum."""
    net, kept, chosen = net.eval(), [], []
    for i in range(len(x)):
        one, label, b = x[i : i + 1], int(y[i]), budget[i : i + 1]
        clean = net(one)[0].tolist()
        wrong = sorted((k for k in range(len(clean)) if k != label), key=lambda k: -clean[k])[: len(noises)]
        found = []
        for target, noise in zip(wrong, noises, strict=False):
            adv = (one + b * noise[i : i + 1]).clamp(0, 1)
            for _ in range(steps):
                leaf = adv.clone().requires_grad_()
                z = net(leaf)[0]
                (z[target] - z[label]).backward()
                adv = torch.max(torch.min(adv + step_size * leaf.grad.sign(), one + b), one - b).clamp(0, 1)
            z = net(adv)[0].tolist()
            found.append((max(v for k, v in enumerate(z) if k != label) - z[label], target, adv))
        best = max(found, key=lambda item: item[0])
        kept.append(best[2])
        chosen.append([item[1] for item in found].index(best[1]))
    return torch.cat(kept), chosen


@pytest.mark.parametrize("steps", [0, 5])  # 0: a class that was no target may lead
def test_keeps_the_best_of_its_targets_like_a_plain_implementation(steps, make_net, make_batch):
    x, y, budget = make_batch(24, dtype=torch.float64)
    budget = 4 * budget
    g = torch.Generator().manual_seed(0)
    noises = [draw_noise(x, kind="uniform", generator=g) for _ in range(3)]
    expected, chosen = naive_mma(make_net(dtype=torch.float64), x, y, budget, noises, step_size=0.1, steps=steps)
    assert set(chosen) == {0, 1, 2}  # every target wins somewhere, or the test shows little
    x_adv = mma(make_net(dtype=torch.float64), x, y, budget, step_size=0.1, steps=steps)
    torch.testing.assert_close(x_adv, expected, atol=1e-15, rtol=0)


def test_with_two_classes_it_is_margin_pgd(make_net, make_batch):
    net, (x, y, budget) = make_net(2), make_batch(classes=2)
    settings = {"step_size": 0.02, "steps": 4}
    assert torch.equal(mma(net, x, y, budget, **settings), pgd(net, x, y, budget, loss="margin", **settings))


@pytest.mark.parametrize("kind", ["uniform", "normal", "none"])
def test_start_tensors_equal_the_named_start(kind, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch(24)
    g = torch.Generator().manual_seed(0)
    starts = [start_point(x, budget, draw_noise(x, kind=kind, generator=g), kind=kind) for _ in range(3)]
    settings = {"step_size": 0.02, "steps": 3}
    named = mma(net, x, y, budget, start=kind, **settings)
    assert torch.equal(mma(net, x, y, budget, start=torch.stack(starts), **settings), named)
    shared = mma(net, x, y, budget, start=starts[0], **settings)
    assert torch.equal(shared, named) == (kind == "none")  # random starts differ from target to target
