"""Square against its authors' code and against loops, its draws and its leaps."""

import math

import numpy as np
import pytest
import torch

from pixelpart.attacks.square import side_of, square, square_search
from pixelpart.draws import hashed
from pixelpart.errors import UserError

KEYS = torch.tensor([3, 1, 4, 15, 92, 65, 35, 89])


def one_by_one(net):
    """The net on each image alone: its logits do not change with the batch, not even in the last bit."""
    return lambda x: torch.cat([net.eval()(row[None]) for row in x])


def states_of(net, x, y, budget, keys, queries):
    """The states of the search: the initial one, and one after each step."""
    search = square_search(queries)
    states = [search.begin(x, y, budget, keys, y)]
    for _ in range(search.steps):
        states.append(search.advance(net, states[-1]))
    return states


@pytest.fixture
def reference():
    return pytest.importorskip("pyautoattack.square").SquareAttack


# -- the schedule


@pytest.mark.parametrize("queries", [1, 7, 1000, 5000, 12_000])
def test_the_share_of_each_square_is_that_of_the_reference(queries, reference):
    its = reference(None, n_queries=queries, p_init=0.8, resc_schedule=False)
    steps = dict(square_search(queries).advance.keywords["schedule"])
    share = math.nan
    for number in range(queries):
        share = steps.get(number, share)
        assert share == its.p_selection(number)


def test_the_defaults_are_those_of_autoattack():
    package = pytest.importorskip("pyautoattack")
    its = package.AutoAttack(torch.nn.Identity(), eps=8 / 255, version="standard").square
    assert (its.n_queries, its.p_init, its.rescale_schedule) == (5000, 0.8, False)
    assert (its.loss, its.targeted, its.n_restarts) == ("margin", False, 1)
    shares = [share for _, share in square_search().advance.keywords["schedule"]]
    assert shares == [0.8 / 2**k for k in range(8)]  # the last two halvings come after the 5000th square
    assert square_search().steps == 5001  # the stripes, then 5000 squares
    assert (square_search().targets, square_search().restarts) == (0, 1)


def test_sides_by_hand():
    assert [side_of(0.8 / 2**k, 32, 32) for k in range(10)] == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert [side_of(0.8 / 2**k, 4, 4) for k in range(10)] == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert side_of(0.8, 4, 100) == 4


# -- against the authors' code, and against loops


def fed(reference, net, key, c, w, **options):
    """The reference for a single image, with the draws of `hashed`, and a list of all the images it asks about."""
    rows = [hashed(key, c * w)] + [hashed(key, 2 + c, counter=i + 1) for i in range(options["n_queries"])]
    numbers, visited = iter(torch.cat(rows, dim=1)[0]), []

    def draw(shape):
        return torch.stack([next(numbers) for _ in range(math.prod(shape))]).reshape(shape)

    class Fed(reference):
        def random_choice(self, shape):
            return torch.sign(2 * draw(shape) - 1)

        def random_int(self, low=0, high=1, shape=(1,)):
            return (low + (high - low) * draw(shape)).long()

    return Fed(lambda x: visited.append(x.clone()) or net(x), **options), visited


def test_visits_the_same_images_as_the_reference(make_net, make_batch, reference):
    queries, eps = 60, 0.06
    net, (x, _, _) = one_by_one(make_net(size=8)), make_batch(8, size=8)
    y, ours, lengths = net(x).argmax(1), [], []
    everywhere = torch.full((8, 1, 1, 1), eps)
    states = states_of(lambda z: ours.append(z) or net(z), x, y, everywhere, KEYS, queries)
    for i in range(8):
        settings = {"n_queries": queries, "eps": eps, "p_init": 0.8, "resc_schedule": False}
        its, visited = fed(reference, net, KEYS[i : i + 1], 3, 8, **settings)
        its.init_hyperparam(x[i : i + 1])
        _, best = its.attack_single_run(x[i : i + 1].clone(), y[i : i + 1])
        n = len(visited)  # it ends at the first error
        assert torch.equal(torch.stack([images[i] for images in ours[:n]]), torch.cat(visited))
        assert torch.equal(states[n]["x_adv"][i], best[0])
        assert states[n]["hit"][i] == (n <= queries)
        lengths.append(n)
    assert len(ours) == queries + 1
    assert max(lengths) == queries + 1  # some are not broken
    assert min(lengths) < queries  # some are


def naive_square(net, x, y, budget, keys, queries):
    """x_adv after each query, one image and one pixel at a time."""
    c, h, w = x.shape[1:]
    histories = []
    for i in range(len(x)):
        clean, b = x[i].numpy(), budget[i].expand(c, h, w).numpy()

        def margin_of(image, i=i):
            z = net(torch.from_numpy(image)[None])[0].tolist()
            return max(v for k, v in enumerate(z) if k != y[i]) - z[y[i]]

        def cut(value, at, b):
            return min(max(min(max(value, at - b), at + b), 0), 1)

        best, u = np.empty_like(clean), hashed(keys[i : i + 1], c * w)[0].reshape(c, w).tolist()
        for k, r, q in np.ndindex(c, h, w):
            up = b[k, r, q] if u[k][q] >= 0.5 else -b[k, r, q]
            best[k, r, q] = cut(clean[k, r, q] + up, clean[k, r, q], b[k, r, q])
        reached, steps = margin_of(best), [best]
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
            if margin_of(new) > reached:
                best, reached = new, margin_of(new)
            steps.append(best)
        histories.append(np.stack(steps))
    return torch.from_numpy(np.stack(histories, axis=1))


@pytest.mark.parametrize(("h", "w", "channels"), [(6, 6, 3), (5, 9, 1)])
def test_equals_loops_over_images_and_pixels_at_every_step(h, w, channels):
    g = torch.Generator().manual_seed(1)
    x = (1.2 * torch.rand(4, 3, h, w, generator=g) - 0.1).clamp(0, 1)
    y, weight = torch.tensor([0, 1, 2, 0]), torch.randn(3, 3 * h * w, generator=g)
    budget = (0.3 * torch.rand(4, channels, h, w, generator=g) - 0.1).clamp(min=0)

    def net(z):
        return torch.stack([weight @ row.flatten().sin() for row in z])

    states = states_of(net, x, y, budget, KEYS[:4], 40)
    ours = torch.stack([state["x_adv"] for state in states[1:]])
    assert torch.equal(ours, naive_square(net, x, y, budget, KEYS[:4], 40))
    kept = (ours[1:] != ours[:-1]).flatten(2).any(2)
    assert (kept.sum(0) > 2).all()
    assert (kept.sum(0) < 20).all()


# -- steps and leaps


@pytest.mark.parametrize("ahead", [3, 50])
def test_leaps_give_the_states_of_single_steps(make_net, make_batch, ahead):
    """Every row has the state of its own single steps, and leaps no further than the first image it keeps."""
    net, (x, y, budget) = one_by_one(make_net(size=8)), make_batch(4, size=8)
    steps = states_of(net, x, y, budget, KEYS[:4], 40)
    search, leaps = square_search(40), 0
    state = {name: torch.stack([steps[n][name][i] for i, n in enumerate((0, 3, 11, 30))]) for name in steps[0]}
    while (state["step"] < search.steps).any():
        before, state, leaps = state, search.leap(net, state, ahead), leaps + 1
        for i, n in enumerate(state["step"].tolist()):
            for name, tensor in state.items():
                assert torch.equal(tensor[i], steps[n][name][i]), name
            went = n - int(before["step"][i])
            kept = not torch.equal(state["x_adv"][i], before["x_adv"][i])
            assert went <= ahead
            assert kept or went == min(ahead, search.steps - int(before["step"][i]))
    assert leaps < 41
    after = search.leap(net, state, ahead)
    assert all(torch.equal(after[name], state[name]) for name in state)  # a finished row does not change


def test_a_leap_calls_the_model_once(make_net, make_batch):
    net, (x, y, budget), calls = make_net().eval(), make_batch(), []
    search = square_search(10)
    search.leap(lambda z: calls.append(len(z)) or net(z), search.begin(x, y, budget, KEYS[:4], y), 5)
    assert calls == [20]


def test_a_square_that_does_not_raise_the_margin_is_not_kept(make_batch):
    x, y, budget = make_batch()
    states = states_of(lambda z: torch.zeros(len(z), 5), x, y, budget, KEYS[:4], 10)
    assert torch.equal(states[-1]["x_adv"], states[0]["x_adv"])
    assert not torch.equal(states[0]["x_adv"], x)


def test_needs_no_gradient_and_one_forward_pass_per_query(make_net, make_batch):
    net, (x, y, budget), calls = make_net().eval(), make_batch(), []

    def strict(z):
        assert not torch.is_grad_enabled()
        assert not z.requires_grad
        calls.append(len(z))
        return net(z)

    square(strict, x, y, budget, queries=7)
    assert calls == [4] * 9  # the clean images, the stripes, seven squares
    assert torch.is_grad_enabled()


def test_negative_queries_are_refused(make_net, make_batch):
    with pytest.raises(UserError, match="queries -1 must not be negative"):
        square(make_net(), *make_batch(), queries=-1)
