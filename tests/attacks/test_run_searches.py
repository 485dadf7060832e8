"""How AutoAttack runs its searches: draws, order, resume, the view and the model that decides, wrong inputs."""

import copy
import importlib
import itertools

import pytest
import torch
from torch import nn

from pixelpart.attacks.autoattack import VERSIONS, autoattack, run_searches
from pixelpart.attacks.batching import Samples
from pixelpart.attacks.search import Search, budget_per_sample, is_correct
from pixelpart.errors import UserError
from pixelpart.view.check import agrees, trusted_view
from planes import Plane, right_labels
from walks import by_number

pytestmark = pytest.mark.usefixtures("short_versions")


def run(searches, model, x, y, budget, *, view=None, slots=5, seed=0, **settings):
    """run_searches on images in memory, with the tries that it settled."""
    tries, samples = {}, Samples(by_number(x, y), budget_per_sample(budget, x), model(x), model, seed)
    left, _ = run_searches(
        searches,
        view or model,
        samples,
        is_correct(model(x), y),
        slots=slots,
        on_settled=lambda one, broken: tries.update({one: broken}),
        **settings,
    )
    return left, tries


# -- draws, order, resume


@pytest.fixture
def idle():
    """A search that finds nothing and records (key, target) of every try, by the number in the image."""
    seen = {}

    def begin(x, y, budget, keys, target):
        for number, key, aim in zip(x[:, 0, 0, 0].tolist(), keys.tolist(), target.tolist(), strict=True):
            seen.setdefault(number, []).append((key, aim))
        zero = torch.zeros_like(y)
        return {"x": x, "x_adv": x, "step": zero, "hit": zero.bool(), "margin": x.new_zeros(len(x))}

    def advance(net, state):
        return state | {"step": state["step"] + 1}

    return seen, lambda **settings: Search(begin, advance, steps=1, **settings)


def numbered_images(n=6):
    x = torch.rand(n, 3, 4, 4)
    x[:, 0, 0, 0] = torch.arange(n) / n
    return x


def test_the_draws_of_a_try_depend_only_on_seed_name_sample_and_number(idle):
    seen, search = idle
    plane, x = Plane(), numbered_images()
    y = plane(x).argmax(1)

    def keys(names=("one",), **settings):
        seen.clear()
        run({name: search(targets=3, restarts=2) for name in names}, plane, x, y, 0.1, **settings)
        return {sample: list(tries) for sample, tries in seen.items()}

    first = keys()
    assert [len(tries) for tries in first.values()] == [6] * 6
    assert keys(slots=1) == keys(slots=4) == first
    assert keys(("one", "two"))[0.0][:6] == first[0.0]
    flat = [key for tries in keys(("one", "two")).values() for key, _ in tries]
    assert len(set(flat)) == len(flat) == 72
    assert not {key for tries in keys(seed=1).values() for key, _ in tries} & set(flat)


def test_a_key_contains_its_restart_and_targets_come_in_the_order_of_the_logits(idle):
    seen, search = idle
    plane, x = Plane(), numbered_images()
    run({"one": search(targets=3, restarts=2)}, plane, x, plane(x).argmax(1), 0.1)
    order = plane(x).argsort(1, descending=True)
    for number, tries in enumerate(seen.values()):
        assert [key % 2 for key, _ in tries] == [0, 1] * 3
        assert [aim for _, aim in tries] == order[number, 1:4].repeat_interleave(2).tolist()


@pytest.mark.parametrize(("classes", "tries"), [(5, 4), (2, 2)])
def test_correct_samples_are_tried_in_turn_and_the_others_never(idle, classes, tries):
    plane, x = Plane(classes), numbered_images()
    y = right_labels(plane, x, wrong=4)
    left, settled = run({"one": idle[1](targets=2, restarts=2)}, plane, x, y, 0.1, slots=1)
    assert list(settled) == [("one", sample, number) for number in range(tries) for sample in (4, 5)]
    assert left.tolist() == [False] * 4 + [True] * 2


def test_a_search_attacks_what_those_before_it_left(make_batch):
    plane, (x, _, _) = Plane(), make_batch(30)
    left, tries = run(VERSIONS["standard"], plane, x, right_labels(plane, x), 0.06)
    attacked = {name: {one.sample for one in tries if one.search == name} for name in VERSIONS["standard"]}
    assert attacked["apgd-ce"] == set(range(3, 30))
    assert all(later <= earlier for earlier, later in itertools.pairwise(attacked.values()))
    assert set(left.nonzero()[:, 0].tolist()) <= attacked["square"] < attacked["apgd-ce"]


def test_a_resumed_run_repeats_no_settled_try_and_ends_with_the_same_flags(make_net, make_batch):
    net, (x, _, budget) = make_net().eval().requires_grad_(False), make_batch(12)
    y = right_labels(net, x)
    flags, tries = run(VERSIONS["standard"], net, x, y, budget)
    assert 0 < int(flags.sum()) < 9
    for stop in (7, 40):
        settled, news = dict(list(tries.items())[:stop]), []
        progress = lambda *now: news.append(now)  # noqa: B023, E731
        again, new = run(VERSIONS["standard"], net, x, y, budget, settled=settled, progress=progress)
        assert torch.equal(again, flags)
        assert not settled.keys() & new.keys()
        assert news[0][1] >= min(stop, 9)
        assert news[-1] == ("square", *[int(flags.sum())] * 3)


@pytest.mark.parametrize("slots", [1, 100])
def test_outcomes_do_not_depend_on_the_slots_and_no_batch_is_larger(make_net, make_batch, slots):
    net, sizes = make_net(dtype=torch.float64).eval(), []
    x, y, budget = make_batch(6, dtype=torch.float64)

    def model(x):
        sizes.append(len(x))
        return net(x)

    robust = autoattack(model, x, y, budget, slots=slots)
    assert torch.equal(robust, autoattack(net, x, y, budget, slots=4))
    assert max(sizes) <= slots


# -- the view is searched, the model decides


def test_a_view_that_errs_everywhere_breaks_only_what_the_model_confirms(make_batch):
    plane, (x, _, _) = Plane(), make_batch(10)
    with torch.no_grad():
        plane.linear.weight.mul_(0.01)
        plane.linear.bias.mul_(10)
    y = plane(x).argmax(1)
    assert (plane.slack(x, y, 0.05) > 0).all()

    def liar(x):
        return torch.stack((-x.flatten(1).sum(1), *[x.flatten(1).sum(1) + k for k in range(4)]), 1)

    assert run(VERSIONS["standard"], plane, x, y, 0.05, view=liar)[0].all()


def test_a_view_that_never_errs_hides_no_error_of_the_model(make_batch):
    """At the end of each try the model itself decides."""
    plane, (x, _, _) = Plane(), make_batch(10)
    y, sums = plane(x).argmax(1), x.flatten(1).sum(1)

    def blind(z):
        nearest = (z.flatten(1).sum(1)[:, None] - sums).abs().argmin(1)
        return plane(z) + 1e6 * nn.functional.one_hot(y[nearest], 5)

    assert not run(VERSIONS["standard"], plane, x, y, 0.3, view=blind)[0].all()


class Branching(Plane):
    """torch.fx cannot trace it."""

    def forward(self, x):
        return super().forward(x) if x.mean() > -1 else super().forward(2 * x)


class Negated(nn.Module):
    """Its forward pass is not head(features(x))."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)
        self.pooled_linear = None

    def features(self, x):
        return self.conv(x).tanh()

    def head(self, acts):
        return self.linear(acts.mean((2, 3)))

    def forward(self, x):
        return -self.head(self.features(x))


def test_a_view_is_trusted_only_if_it_gives_the_logits_of_the_model(make_net, make_batch):
    x, _, _ = make_batch(8)
    for precision in ("fp32", "bf16"):
        net = make_net().eval()
        view, reason = trusted_view(net, x, precision)
        assert view is not net
        assert reason is None
        net = Negated().eval()
        view, reason = trusted_view(net, x, precision)
        assert view is net
        assert f"the {precision} view of this model gives other logits" in reason
    net = Branching()
    assert trusted_view(net, x, "fp32") == (net, None)
    assert "torch.fx cannot trace this model" in trusted_view(net, x, "bf16")[1]


def test_a_view_agrees_within_a_tenth_of_the_spread_in_bf16_and_to_rounding_in_fp32(make_batch):
    plane, (x, _, _) = Plane(), make_batch(8)
    z = plane(x).detach()
    for difference, dtype, agree in ((0.09, torch.bfloat16, True), (0.11, torch.bfloat16, False), (0.002, None, False)):
        assert agrees(lambda x, d=difference: plane(x) + d * z.std(), x, z, dtype) == agree
    assert not agrees(lambda x: plane(x) * torch.nan, x, z, None)
    assert not agrees(lambda x: plane(x.bfloat16()), x, z, torch.bfloat16)  # raises


class Holes(Plane):
    """NaN for every image except those it knows."""

    def __init__(self, known):
        super().__init__()
        self.known = known

    def forward(self, x):
        new = ~(x.detach().flatten(1)[:, None] == self.known.flatten(1)).all(2).any(1)
        return super().forward(x) + torch.where(new, torch.nan, 0.0)[:, None]


def test_nan_logits_count_as_broken(make_batch):
    x, _, _ = make_batch(6)
    y = Plane()(x).argmax(1)
    assert autoattack(Holes(x), x, y, 0.0).all()
    assert not autoattack(Holes(x), x, y, 0.05).any()


# -- no trace, wrong inputs


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_leaves_no_trace(fails, search, make_net, make_batch, monkeypatch):
    def trace():
        modes = [(module.training, [p.requires_grad for p in module.parameters()]) for module in net.modules()]
        switches = torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
        state = {name: tensor.tolist() for name, tensor in copy.deepcopy(net.state_dict()).items()}
        return modes, [p.grad for p in net.parameters()], switches, torch.get_rng_state().tolist(), state

    def failing(x):
        raise ZeroDivisionError

    net, (x, _, budget) = make_net().eval(), make_batch(6)
    y = net(x).argmax(1)
    net.train().norm.eval()
    net.conv.requires_grad_(False)
    before = trace()
    if fails:
        module = importlib.import_module("pixelpart.attacks.autoattack")  # hidden by the function of that name
        monkeypatch.setattr(module, "trusted_view", lambda *_: (failing, None))
        with pytest.raises(ZeroDivisionError):
            autoattack(net, x, y, budget, search=search)
    else:
        autoattack(net, x, y, budget, search=search)
    assert trace() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "rand"}, "unknown version 'rand'; choose from plus, standard"),
        ({"search": "fp16"}, "unknown search 'fp16'; did you mean bf16"),
        ({"budget": 8.0}, r"budget 8.0 is not in \[0, 1\]"),
        ({"slots": 0}, "slots 0 must be at least 1"),
        ({"x": torch.full((2, 3, 4, 4), 1.5)}, r"images are in \[1.5, 1.5\]"),
        ({"y": torch.tensor([0, 99])}, r"labels are in \[0, 99\]; the model has 5 classes"),
        ({"y": torch.tensor([-1, 1])}, r"labels are in \[-1, 1\]"),
    ],
)
def test_wrong_inputs_are_refused(settings, message):
    given = {"x": torch.rand(2, 3, 4, 4), "y": torch.tensor([0, 1]), "budget": 0.1} | settings
    with pytest.raises(UserError, match=message):
        autoattack(Plane(), **given)


def test_zero_images_are_allowed():
    assert autoattack(Plane(), torch.rand(0, 3, 4, 4), torch.zeros(0, dtype=torch.long), 0.1).shape == (0,)
