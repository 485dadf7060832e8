import pytest
import torch

from pixelpart.attacks.mm3 import mm3, mm3_search
from pixelpart.draws import hashed
from pixelpart.losses import margin


def naive_apgd(margin_at, x, budget, start, steps):
    """All images Auto-PGD visits for one sample, written down as in the paper, with the whole history in lists."""

    def inside(z):
        return torch.max(torch.min(z, x + budget), x - budget).clamp(0, 1)

    def ask(z):
        leaf = z.clone().requires_grad_()
        value = margin_at(leaf)
        value.backward()
        return value.item(), leaf.grad.sign()

    wait = max(int(0.22 * steps), 1)
    size, checked, halved, since = 2 * budget, 0, True, []
    loss, way = ask(start)
    visited, best, before, last = [start], (loss, start, way), start, 0.0
    best_then, now = loss, start
    for number in range(1, steps + 1):
        momentum = now - before
        share = 1 if number == 1 else 0.75
        before, now = now, inside(now + share * (inside(now + size * way) - now) + (1 - share) * momentum)
        loss, way = ask(now)
        visited.append(now)
        since.append(loss > last)
        last = loss
        if loss > best[0]:
            best = (loss, now, way)
        if number - checked == wait:
            stalled = not halved and best[0] == best_then
            halved = sum(since) <= 0.75 * wait or stalled
            if halved:
                size, now, way = size / 2, best[1], best[2]
            best_then, checked, since = best[0], number, []
            wait = max(wait - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))
    return visited


def naive_mm3(net, x, y, budget, keys, *, steps):
    """One sample and one target at a time; the visited image with the largest margin, and whose target that was."""
    kept, chosen = [], []
    for i in range(len(x)):
        one, label, b = x[i : i + 1], int(y[i]), budget[i : i + 1]
        clean = net(one)[0].tolist()
        wrong = sorted((k for k in range(len(clean)) if k != label), key=lambda k: -clean[k])[:3]
        found = []
        for number, target in enumerate(wrong):
            u = 2 * hashed(keys[number][i : i + 1], one.numel()).double().view_as(one) - 1
            start = (one + b * u / u.abs().max()).clamp(0, 1)
            lead = lambda z, t=target, k=label: net(z)[0, t] - net(z)[0, k]  # noqa: E731
            for image in naive_apgd(lead, one, b, start, steps):
                found.append((margin(net(image), y[i : i + 1]).item(), number, image))
        best = max(found, key=lambda item: item[0])
        kept.append(best[2])
        chosen.append(best[1])
    return torch.cat(kept), chosen


@pytest.mark.parametrize("steps", [5, 20])
def test_equals_a_plain_search_sample_by_sample(steps, make_net, make_batch):
    net = make_net(dtype=torch.float64).eval().requires_grad_(False)
    net.conv.weight.mul_(12)
    x, _, budget = make_batch(10, dtype=torch.float64)
    y = net(x).argmax(1)
    g = torch.Generator().manual_seed(0)
    keys = [torch.randint(2**62, (len(x),), generator=g) for _ in range(3)]
    expected, chosen = naive_mm3(net, x, y, budget, keys, steps=steps)
    assert set(chosen) == {0, 1, 2}  # every target wins somewhere, or the test shows little
    x_adv = mm3(net, x, y, budget, steps=steps)
    before = margin(net(x), y)
    torch.testing.assert_close(margin(net(x_adv), y), margin(net(expected), y), atol=1e-10, rtol=0)
    torch.testing.assert_close(x_adv, expected, atol=1e-10, rtol=0)
    assert (margin(net(x_adv), y) > before).all()


@pytest.mark.parametrize(("classes", "tries"), [(2, 1), (3, 2), (4, 3), (10, 3)])
def test_tries_three_targets_or_as_many_as_there_are(classes, tries, make_net, make_batch):
    search = mm3_search()
    assert search.tries(classes) == tries
    assert search.steps == 21  # the start is looked at too
    net, (x, y, budget) = make_net(classes).eval(), make_batch(classes=classes)
    before, after = (margin(net(z), y) for z in (x, mm3(net, x, y, budget)))
    assert (after > before).all()


def test_zero_budget_returns_x(make_net, make_batch):
    x, y, _ = make_batch()
    assert torch.equal(mm3(make_net(), x, y, 0.0), x)


def test_same_seed_same_bits_and_none_is_seed_zero(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()

    def found(seed):
        return mm3(net, x, y, budget, steps=2, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(found(0), found(0))
    assert torch.equal(found(0), mm3(net, x, y, budget, steps=2))
    assert not torch.equal(found(0), found(1))
