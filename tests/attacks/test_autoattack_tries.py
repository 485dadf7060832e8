"""What AutoAttack draws and whom it attacks, that it leaves no trace, and what it refuses."""

import copy
import importlib
import itertools

import pytest
import torch

from pixelpart.attacks.autoattack import VERSIONS, autoattack, run_searches, run_tries
from pixelpart.attacks.search import Search
from pixelpart.errors import UserError
from pixelpart.view import check
from planes import Plane, right_labels

pytestmark = pytest.mark.usefixtures("short_versions")
module = importlib.import_module("pixelpart.attacks.autoattack")  # the function of that name hides it


# -- draws


def test_the_same_generator_gives_the_same_flags_and_no_generator_means_seed_0(make_net, make_batch):
    net = make_net(dtype=torch.float64)
    x, y, budget = make_batch(16, dtype=torch.float64)
    seen = [autoattack(net, x, y, budget, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    assert torch.equal(*seen)
    assert torch.equal(autoattack(net, x, y, budget), seen[0])


@pytest.fixture
def noted(monkeypatch):
    """A search that finds nothing and notes the keys and targets of every try, by sample."""
    seen = {}

    def begin(x, y, budget, keys, target):
        for sample, key, aim in zip(x[:, 0, 0, 0].tolist(), keys.tolist(), target.tolist(), strict=True):
            seen.setdefault(sample, []).append((key, aim))
        zero = torch.zeros_like(y)
        return {"x": x, "x_adv": x, "step": zero, "hit": zero.bool(), "margin": x.new_zeros(len(x))}

    def advance(net, state):
        return state | {"step": state["step"] + 1}

    def search(**settings):
        return Search(begin, advance, steps=1, **settings)

    return seen, search


def numbered_images(n=6):
    """Images that tell their number."""
    x = torch.rand(n, 3, 4, 4)
    x[:, 0, 0, 0] = torch.arange(n) / n
    return x


def test_what_a_try_draws_depends_on_seed_name_sample_and_number_alone(noted, monkeypatch):
    seen, search = noted
    plane, x = Plane(), numbered_images()
    y = plane(x).argmax(1)

    def keys(names=("one",), *, slots=None, seed=0, some=slice(None)):
        seen.clear()
        monkeypatch.setitem(VERSIONS, "standard", {name: search(targets=3, restarts=2) for name in names})
        autoattack(plane, x, y, 0.1, slots=slots, generator=torch.Generator().manual_seed(seed))
        return {sample: list(tries) for sample, tries in seen.items()}

    first = keys()
    assert [len(tries) for tries in first.values()] == [6] * 6
    assert keys(slots=1) == keys(slots=4) == first
    assert keys(("one", "two"))[0.0][:6] == first[0.0]
    flat = [key for tries in keys(("one", "two")).values() for key, _ in tries]
    assert len(set(flat)) == len(flat) == 72
    assert not {key for tries in keys(seed=1).values() for key, _ in tries} & set(flat)


def test_a_key_tells_its_restart_and_targets_come_in_the_order_of_the_logits(noted, monkeypatch):
    seen, search = noted
    plane, x = Plane(), numbered_images()
    y = plane(x).argmax(1)
    monkeypatch.setitem(VERSIONS, "standard", {"one": search(targets=3, restarts=2)})
    autoattack(plane, x, y, 0.1, slots=6)
    order = plane(x).argsort(1, descending=True)
    for number, tries in enumerate(seen.values()):
        assert [key % 2 for key, _ in tries] == [0, 1] * 3
        assert [aim for _, aim in tries] == order[number, 1:4].repeat_interleave(2).tolist()


@pytest.mark.parametrize(("classes", "tries"), [(5, 4), (2, 2)])
def test_each_sample_gets_its_first_try_before_any_gets_its_second(noted, classes, tries):
    plane, x = Plane(classes), numbered_images()
    y, settled = plane(x).argmax(1), []
    correct = torch.tensor([False, False, True, False, True, False])
    left = run_searches(
        {"one": noted[1](targets=2, restarts=2)},
        plane,
        plane,
        lambda samples: (x[samples], y[samples], torch.ones(len(samples), 1, 1, 1)),
        plane(x),
        correct,
        seed=0,
        slots=1,
        on_settled=lambda one, broken: settled.append(one),
    )
    assert settled == [("one", sample, number) for number in range(tries) for sample in (2, 4)]
    assert torch.equal(left, correct)


@pytest.mark.parametrize("stop", [1, 7, 40])
def test_a_resumed_run_repeats_no_settled_try_and_ends_with_the_same_flags(make_net, make_batch, stop):
    net, (x, _, budget) = make_net().eval().requires_grad_(False), make_batch(12)
    y = right_labels(net, x)

    def run(settled, most=None):
        new, news = dict(settled), []

        def on_settled(one, broken):
            assert one not in new
            new[one] = broken
            if len(new) == most:
                raise KeyboardInterrupt

        flags = run_searches(
            VERSIONS["standard"],
            net,
            net,
            lambda samples: (x[samples], y[samples], budget[samples]),
            net(x),
            net(x).argmax(1) == y,
            seed=0,
            slots=5,
            settled=settled,
            on_settled=on_settled,
            progress=lambda *news_now: news.append(news_now),
        )
        return flags, new, news

    flags, everything, news = run({})
    assert 0 < int(flags.sum()) < 9
    assert news[-1] == ("square", int(flags.sum()), int(flags.sum()), int(flags.sum()))
    part = dict(list(everything.items())[:stop])
    again, resumed, news = run(part)
    assert torch.equal(again, flags)
    assert part.items() <= resumed.items()
    assert news[0][1] >= min(stop, 9)


@pytest.mark.parametrize("slots", [1, 5, 100])
def test_outcomes_do_not_depend_on_the_slots_and_no_batch_is_larger(make_net, make_batch, slots):
    net, sizes = make_net(dtype=torch.float64).eval(), []
    x, y, budget = make_batch(10, dtype=torch.float64)

    def model(x):
        sizes.append(len(x))
        return net(x)

    robust = autoattack(model, x, y, budget, slots=slots)
    assert torch.equal(robust, autoattack(net, x, y, budget, slots=10))
    assert max(sizes) <= slots


# -- no trace


def trace_of(net):
    modes = [module.training for module in net.modules()]
    flags = [(p.requires_grad, p.grad) for p in net.parameters()]
    switches = torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    return modes, flags, switches, torch.get_rng_state().tolist(), copy.deepcopy(net.state_dict())


def same_trace(a, b):
    return a[:4] == b[:4] and all(torch.equal(a[4][name], b[4][name]) for name in a[4])


def test_nothing_is_left_behind(make_net, make_batch):
    net = make_net().train()
    net.norm.eval()
    net.conv.requires_grad_(False)
    x, y, budget = make_batch(6)
    handed = [tensor.clone() for tensor in (x, y, budget)]
    before = trace_of(net)
    for search in ("fp32", "bf16"):
        autoattack(net, x, y, budget, search=search)
        assert same_trace(trace_of(net), before)
    assert all(torch.equal(a, b) for a, b in zip(handed, (x, y, budget), strict=True))


def test_nothing_is_left_behind_after_an_exception(make_net, make_batch, monkeypatch):
    net, calls = make_net().eval(), []
    x, _, budget = make_batch(6)
    y = net(x).argmax(1)
    before = trace_of(net.train())

    def failing(x):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        return net(x)

    monkeypatch.setattr(check, "trusted_view", lambda *_: (failing, None))
    with pytest.raises(ZeroDivisionError):
        autoattack(net, x, y, budget)
    assert same_trace(trace_of(net), before)


def test_batch_norm_is_that_of_eval_mode(make_net, make_batch):
    net = make_net()
    x, y, budget = make_batch(12)
    assert torch.equal(autoattack(net.train(), x, y, budget), autoattack(net.eval(), x, y, budget))


# -- mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"version": "rand"}, "unknown version 'rand'; choose from plus, standard"),
        ({"search": "fp16"}, "unknown search 'fp16'; choose from bf16, fp32"),
        ({"budget": 8.0}, r"budget 8.0 is not in \[0, 1\]"),
        ({"budget": -0.1}, "budget -0.1"),
        ({"budget": torch.full((2, 1, 1, 1), 2.0)}, r"the budget is in \[2.0, 2.0\]"),
        ({"slots": 0}, "slots 0 must be at least 1"),
        ({"x": torch.full((2, 3, 4, 4), 1.5)}, r"images are in \[1.5, 1.5\]"),
        ({"y": torch.tensor([0, 99])}, r"labels are in \[0, 99\]; the model has"),
        ({"y": torch.tensor([-1, 1])}, r"labels are in \[-1, 1\]"),
    ],
)
def test_mistakes_are_told(settings, said):
    given = {"x": torch.rand(2, 3, 4, 4), "y": torch.tensor([0, 1]), "budget": 0.1} | settings
    with pytest.raises(UserError, match=said):
        autoattack(Plane(), **given)


def test_no_images_at_all_is_no_mistake():
    assert autoattack(Plane(), torch.rand(0, 3, 4, 4), torch.zeros(0, dtype=torch.long), 0.1).shape == (0,)


def test_a_sample_that_is_wrong_to_begin_with_is_not_attacked(noted, monkeypatch):
    seen, search = noted
    plane, x = Plane(), numbered_images()
    monkeypatch.setitem(VERSIONS, "standard", {"one": search()})
    y = right_labels(plane, x, wrong=2)
    assert autoattack(plane, x, y, 0.1).tolist() == [False] * 2 + [True] * 4
    assert sorted(seen) == pytest.approx([2 / 6, 3 / 6, 4 / 6, 5 / 6])


def test_a_part_attacks_what_those_before_it_left(make_batch, monkeypatch):
    """Noted by the names under which samples are hunted."""
    hunted = {}

    def noting(search, view, samples, tries, **settings):
        hunted[tries[0].search] = {one.sample for one in tries}
        return run_tries(search, view, samples, tries, **settings)

    monkeypatch.setattr(module, "run_tries", noting)
    plane = Plane()
    x, _, _ = make_batch(30)
    y = right_labels(plane, x)
    robust = autoattack(plane, x, y, 0.06)
    assert list(hunted) == list(VERSIONS["standard"])
    assert hunted["apgd-ce"] == set(range(3, 30))
    left = list(hunted.values())
    assert all(later <= earlier for earlier, later in itertools.pairwise(left))
    assert set(robust.nonzero()[:, 0].tolist()) <= left[-1] < left[0]
