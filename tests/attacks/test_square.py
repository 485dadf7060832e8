import math

import numpy as np
import pytest
import torch

from pixelpart.attacks.square import schedule_of, share_of, side_of, square, square_search
from pixelpart.draws import hashed
from squares import KEYS, one_by_one, trail


@pytest.fixture
def reference():
    return pytest.importorskip("pyautoattack.square").SquareAttack


# the schedule


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("queries", [1, 7, 100, 1000, 5000, 12_000])
def test_the_shares_are_those_of_the_reference_at_every_query(queries, rescale, reference):
    its = reference(None, n_queries=queries, p_init=0.8, resc_schedule=rescale)
    expected = [its.p_selection(i) for i in range(queries)]
    assert [share_of(i, queries=queries, rescale=rescale) for i in range(queries)] == expected
    steps = dict(schedule_of(queries, rescale=rescale))
    unrolled, share = [], math.nan
    for number in range(queries):
        share = steps.get(number, share)
        unrolled.append(share)
    assert unrolled == expected


def test_autoattack_itself_does_not_rescale_and_neither_does_the_default():
    package = pytest.importorskip("pyautoattack")
    its = package.AutoAttack(torch.nn.Identity(), eps=8 / 255, version="standard").square
    assert (its.n_queries, its.p_init, its.rescale_schedule) == (5000, 0.8, False)
    assert (its.loss, its.targeted, its.n_restarts) == ("margin", False, 1)
    shares = [share for _, share in square_search().advance.keywords["schedule"]]
    assert shares == [0.8 / 2**k for k in range(8)]  # the last two halvings come behind the 5000th square
    assert square_search().steps == 5001  # the stripes, then 5000 squares
    assert (square_search().targets, square_search().restarts) == (0, 1)


def test_sides_by_hand():
    assert [side_of(0.8 / 2**k, 32, 32) for k in range(10)] == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert [side_of(0.8 / 2**k, 4, 4) for k in range(10)] == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert side_of(0.8, 4, 100) == 4


# against the reference, and against loops


def fed(reference, net, key, c, w, **options):
    """The reference for a single image, with the draws of `hashed`, and a list of all the images it asks about."""
    rows = [hashed(key, c * w)] + [hashed(key, 2 + c, counter=i + 1) for i in range(options["n_queries"])]
    numbers, asked = iter(torch.cat(rows, dim=1)[0]), []

    def draw(shape):
        return torch.stack([next(numbers) for _ in range(math.prod(shape))]).reshape(shape)

    class Fed(reference):
        def random_choice(self, shape):
            return torch.sign(2 * draw(shape) - 1)

        def random_int(self, low=0, high=1, shape=(1,)):
            return (low + (high - low) * draw(shape)).long()

    return Fed(lambda x: asked.append(x.clone()) or net(x), **options), asked


@pytest.mark.parametrize(("queries", "rescale", "eps"), [(60, True, 0.06), (60, False, 0.06), (130, True, 0.03)])
def test_asks_about_the_very_images_that_the_reference_asks_about(
    queries, rescale, eps, make_net, make_batch, reference
):
    net, (x, _, _) = one_by_one(make_net(size=8)), make_batch(8, size=8)
    y, ours, lengths = net(x).argmax(1), [], []
    everywhere = torch.full((8, 1, 1, 1), eps)
    states = trail(lambda z: ours.append(z) or net(z), x, y, everywhere, KEYS, queries, rescale=rescale)
    for i in range(8):
        settings = {"n_queries": queries, "eps": eps, "p_init": 0.8, "resc_schedule": rescale}
        its, asked = fed(reference, net, KEYS[i : i + 1], 3, 8, **settings)
        its.init_hyperparam(x[i : i + 1])
        _, best = its.attack_single_run(x[i : i + 1].clone(), y[i : i + 1])
        n = len(asked)  # it ends at the first error
        assert torch.equal(torch.stack([images[i] for images in ours[:n]]), torch.cat(asked))
        assert torch.equal(states[n]["x_adv"][i], best[0])
        assert states[n]["hit"][i] == (n <= queries)
        lengths.append(n)
    assert len(ours) == queries + 1
    assert max(lengths) == queries + 1  # some hold out
    assert min(lengths) < queries  # some do not


def naive_square(net, x, y, budget, keys, queries):
    """One image and one pixel at a time; what x_adv is after each query."""
    c, h, w = x.shape[1:]
    trails = []
    for i in range(len(x)):
        clean, b = x[i].numpy(), budget[i].expand(c, h, w).numpy()

        def ask(image, i=i):
            z = net(torch.from_numpy(image)[None])[0].tolist()
            return max(v for k, v in enumerate(z) if k != y[i]) - z[y[i]]

        def cut(value, at, b):
            return min(max(min(max(value, at - b), at + b), 0), 1)

        best, u = np.empty_like(clean), hashed(keys[i : i + 1], c * w)[0].reshape(c, w).tolist()
        for k, r, q in np.ndindex(c, h, w):
            up = b[k, r, q] if u[k][q] >= 0.5 else -b[k, r, q]
            best[k, r, q] = cut(clean[k, r, q] + up, clean[k, r, q], b[k, r, q])
        reached, steps = ask(best), [best]
        for it in range(queries):
            halvings = sum(it >= first for first in (11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001))
            s = int(math.sqrt(0.8 * 0.5**halvings * h * w) + 0.5)
            s = 1 if s == 0 else min(s, h, w)
            u = hashed(keys[i : i + 1], 2 + c, counter=it + 1)[0].tolist()
            top, left, new = math.floor((h - s) * u[0]), math.floor((w - s) * u[1]), best.copy()
            for k, r, q in np.ndindex(c, s, s):
                at = (k, top + r, left + q)
                twice = 2 * b[at] if u[2 + k] >= 0.5 else -2 * b[at]
                new[at] = cut(best[at] + twice, clean[at], b[at])
            if ask(new) > reached:
                best, reached = new, ask(new)
            steps.append(best)
        trails.append(np.stack(steps))
    return torch.from_numpy(np.stack(trails, axis=1))


@pytest.mark.parametrize(("h", "w", "channels"), [(6, 6, 1), (6, 6, 3), (5, 9, 1)])
def test_equals_loops_over_images_and_pixels_at_every_step(h, w, channels):
    g = torch.Generator().manual_seed(1)
    x = (1.2 * torch.rand(4, 3, h, w, generator=g) - 0.1).clamp(0, 1)
    y, weight = torch.tensor([0, 1, 2, 0]), torch.randn(3, 3 * h * w, generator=g)
    budget = (0.3 * torch.rand(4, channels, h, w, generator=g) - 0.1).clamp(min=0)

    def net(z):
        return torch.stack([weight @ row.flatten().sin() for row in z])

    states = trail(net, x, y, budget, KEYS[:4], 60)
    ours = torch.stack([state["x_adv"] for state in states[1:]])
    assert torch.equal(ours, naive_square(net, x, y, budget, KEYS[:4], 60))
    kept = (ours[1:] != ours[:-1]).flatten(2).any(2)
    assert (kept.sum(0) > 2).all()
    assert (kept.sum(0) < 20).all()


def test_breaks_as_many_images_as_the_reference_does(make_net, make_batch, reference):
    """Whose windows and colours are those of the whole batch, so image by image they may part."""
    net, (x, _, _) = make_net(size=8).eval().requires_grad_(False), make_batch(200, size=8)
    y, seeds, settings = net(x).argmax(1), range(2), {"n_queries": 300, "eps": 0.03, "resc_schedule": False}

    def robust(x_adv):
        return int((net(x_adv).argmax(1) == y).sum())

    its = [robust(reference(net, seed=seed, **settings).perturb(x, y)) for seed in seeds]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ours = [robust(square(net, x, y, 0.03, queries=300, generator=g)) for g in generators]
    assert 40 < np.mean(its) < 160
    assert abs(np.mean(ours) - np.mean(its)) <= 4


# what is drawn


@pytest.fixture(scope="module")
def drawn():
    """Places, sides and colours of the squares of 6000 rows at the same step, read off the images asked about."""

    def draw(step, n=6000, size=8):
        asked, x = [], torch.full((n, 3, size, size), 0.5)
        search, y = square_search(100), torch.zeros(n, dtype=torch.long)
        state = search.begin(x, y, torch.full((n, 1, 1, 1), 0.25), torch.arange(n), y)
        stripes = ((state["x_adv"] - x) / 0.25).round()
        state |= {"x_adv": x, "step": torch.full_like(y, step)}
        search.advance(lambda z: asked.append(z) or torch.zeros(n, 2), state)
        change = ((asked[0] - x) / 0.25).round()
        rows, columns = (change != 0).any(dim=1).any(dim=2), (change != 0).any(dim=1).any(dim=1)
        colours = change.sum(dim=(2, 3)) / rows.sum(1, keepdim=True) / columns.sum(1, keepdim=True)
        return rows, columns, colours, stripes

    return draw


def is_uniform(counts):
    """By chi-square, at five deviations."""
    expected = counts.sum() / counts.numel()
    freedom = counts.numel() - 1
    return ((counts - expected) ** 2 / expected).sum() <= freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("step", "side"), [(1, 7), (12, 5), (60, 4)])
def test_places_are_uniform_and_colours_balanced(drawn, step, side):
    rows, columns, colours, _ = drawn(step)
    assert (rows.sum(1) == side).all()
    assert (columns.sum(1) == side).all()
    top, left = rows.int().argmax(1), columns.int().argmax(1)
    places = torch.bincount(top * 8 + left, minlength=64).reshape(8, 8)
    assert places[8 - side :].sum() == places[:, 8 - side :].sum() == 0
    assert is_uniform(places[: 8 - side, : 8 - side].flatten().float())
    assert (colours.abs() == 1).all()
    kinds = ((colours > 0).long() * torch.tensor([1, 2, 4])).sum(1)
    assert is_uniform(torch.bincount(kinds, minlength=8).float())
    together = torch.bincount(kinds * 64 + top * 8 + left, minlength=512).reshape(8, 8, 8)
    assert is_uniform(together[:, : 8 - side, : 8 - side].flatten().float())


def test_the_steps_of_a_row_draw_apart(drawn):
    first, second = (rows.int().argmax(1) * 4 + columns.int().argmax(1) for rows, columns, *_ in map(drawn, (60, 61)))
    assert is_uniform(torch.bincount(first * 16 + second, minlength=256).float())


def test_stripes_are_vertical_and_balanced(drawn):
    *_, stripes = drawn(1)
    assert torch.equal(stripes, stripes[:, :, :1].expand_as(stripes))
    assert (stripes.abs() == 1).all()
    shares = (stripes[:, :, 0] > 0).float().mean(0)
    assert ((shares - 0.5).abs() < 5 * 0.5 / 6000**0.5).all()
    assert torch.corrcoef(stripes[:, :, 0].flatten(1).T).fill_diagonal_(0).abs().max() < 5 / 6000**0.5
