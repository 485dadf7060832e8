"""AutoAttack where the truth is known, and beside its authors' code."""

import copy
import importlib
import itertools
import threading

import pytest
import torch
from torch import nn

import pixelpart as pp
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.autoattack import SEARCHES, VERSIONS, agrees, all_tries, autoattack, hunt, is_right
from pixelpart.attacks.ball import inside
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.search import Search
from pixelpart.attacks.square import square_search
from pixelpart.errors import UserError

module = importlib.import_module("pixelpart.attacks.autoattack")  # the function of that name hides it
WHOLE = {version: dict(parts) for version, parts in VERSIONS.items()}


def short(steps=10, queries=30, restarts=1):
    """AutoAttack's standard version, or its plus version with restarts, cut short."""
    first = {"apgd-ce": apgd_search(steps=steps, restarts=restarts)}
    aimed = {"apgd-t": apgd_search(steps=steps, targets=9), "fab-t": fab_search(steps=steps)}
    last = {"square": square_search(queries)}
    if restarts == 1:
        return first | aimed | last
    dlr = apgd_search(loss="dlr", steps=steps, restarts=restarts)
    return first | {"apgd-dlr": dlr, "fab": fab_search(steps=steps, targets=0, restarts=restarts)} | last | aimed


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(VERSIONS, "standard", short())
    monkeypatch.setitem(VERSIONS, "plus", short(restarts=2))


class Plane(nn.Module):
    """A linear classifier: what the worst change within a budget does to it can be written down."""

    def __init__(self, classes=5, size=4, dtype=torch.float32):
        super().__init__()
        self.linear = nn.Linear(3 * size * size, classes)
        generator = torch.Generator().manual_seed(classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.to(dtype)

    def forward(self, x):
        return self.linear(x.flatten(1))

    def slack(self, x, y, budget):
        """min_k max_d z_y - z_k: above 0 where no change within the budget and [0, 1] makes the plane err."""
        budget = torch.as_tensor(budget, dtype=x.dtype)
        up, down = torch.minimum(budget, 1 - x).flatten(1), torch.minimum(budget, x).flatten(1)
        weight, z = self.linear.weight, self(x)
        slack = x.new_full((len(x),), torch.inf)
        for k in range(len(weight)):
            w = weight[y] - weight[k]
            least = z.gather(1, y[:, None])[:, 0] - z[:, k] - (w.clamp(min=0) * down - w.clamp(max=0) * up).sum(1)
            slack = torch.where(y == k, slack, torch.minimum(slack, least))
        return slack.detach()


def right_labels(model, x, wrong=3):
    """What the model says, but for the first few images."""
    y = model(x).argmax(1)
    classes = model(x).shape[1]
    y[:wrong] = (y[:wrong] + 1) % classes
    return y


# -- the truth


@pytest.mark.parametrize(
    ("classes", "kind"),
    [
        (2, "float"),
        (3, "float"),
        (4, "float"),
        (10, "float"),
        (5, "sample"),
        (2, "pixel"),
        (5, "pixel"),
        (3, "channel"),
    ],
)
def test_of_a_plane_exactly_the_samples_stand_that_no_change_can_break(classes, kind, make_batch):
    plane = Plane(classes)
    x, _, pixels = make_batch(24, classes=classes)
    y = right_labels(plane, x)
    budget = {
        "float": 0.06,
        "sample": torch.linspace(0, 0.12, 24).view(-1, 1, 1, 1),
        "pixel": 1.2 * pixels,
        "channel": pixels * torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1),
    }[kind]
    slack = plane.slack(x, y, budget)
    robust = autoattack(plane, x, y, budget)
    sure = slack.abs() > 1e-3
    assert sure.sum() >= 22
    assert torch.equal(robust[sure], slack[sure] > 0)
    assert 2 <= int(robust.sum()) <= 19
    assert not robust[:3].any()


@pytest.mark.parametrize("budget", [0.0, torch.zeros(20, 1, 1, 1), torch.zeros(20, 3, 4, 4)])
def test_no_budget_leaves_what_is_right_as_it_is(make_net, make_batch, budget):
    net = make_net().eval()
    x, y, _ = make_batch(20)
    assert autoattack(net, x, y, budget).tolist() == (net(x).argmax(1) == y).tolist()


def test_a_budget_of_everything_breaks_all(make_batch):
    x, _, _ = make_batch(12)
    plane = Plane()
    assert not autoattack(plane, x, plane(x).argmax(1), 1.0).any()


def test_more_budget_breaks_no_less(make_net, make_batch):
    net = make_net().eval()
    x, _, _ = make_batch(12)
    y = net(x).argmax(1)
    counts = [int(autoattack(net, x, y, budget).sum()) for budget in (0.0, 0.03, 0.07, 0.2)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 12
    assert len(set(counts)) > 2


@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_what_counts_as_broken_errs_on_an_image_that_was_tried_inside_the_budget(make_net, make_batch, search):
    """Every image that the model itself is asked about is noted."""
    net, asked = make_net().eval(), []

    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            if type(x) is torch.Tensor:
                asked.append(x.detach().clone())
            return self.net(x)

    x, _, budget = make_batch(16)
    y = right_labels(net, x, wrong=0)
    robust = autoattack(Noting(), x, y, budget, search=search)
    assert 0 < int(robust.sum()) < 16
    tried = torch.cat(asked)
    wrong = net(tried).argmax(1)
    for i in (~robust).nonzero()[:, 0].tolist():
        near = inside(tried, x[i].expand_as(tried), budget[i].expand(len(tried), 1, 4, 4))
        assert (near & (wrong != y[i])).any()


@pytest.mark.parametrize(("reach", "broken"), [(0.99, True), (1.01, False)])
def test_an_image_outside_the_budget_breaks_nothing(make_batch, monkeypatch, reach, broken):
    """Of a search that leaves the ball, and its images with it."""

    def begin(x, y, budget, keys, target):
        zero = torch.zeros_like(y)
        far = (x + reach * budget).expand_as(x)
        return {"x": x, "x_adv": far, "step": zero, "hit": zero.bool(), "margin": x.new_zeros(len(x))}

    x, _, _ = make_batch(6)
    x = 0.5 * x
    stray = Search(begin, lambda net, state: state | {"step": state["step"] + 1}, steps=2)
    monkeypatch.setitem(VERSIONS, "standard", {"stray": stray})

    def brightness(images):
        """Wrong as soon as an image is not as dark as it was."""
        bright = (images.amax((1, 2, 3)) > x.max()).float()
        return torch.stack((0.5 - bright, bright - 0.5), 1)

    x[:, 0, 0, 0] = x.max()
    robust = autoattack(brightness, x, torch.zeros(6, dtype=torch.long), 0.1)
    assert robust.tolist() == [not broken] * 6


# -- its authors' code


def reference(net, x, y, eps, *, version, seed, steps=10, queries=30, restarts=2):
    pyautoattack = pytest.importorskip("pyautoattack")
    attack = pyautoattack.AutoAttack(net, norm="Linf", eps=eps, version=version, seed=seed, device="cpu")
    targets = min(9, net(x[:1]).shape[1] - 1)
    for part in (attack.apgd, attack.apgd_targeted, attack.fab):
        part.n_iter = steps
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = targets
    if version == "plus":
        attack.apgd.n_restarts = attack.fab.n_restarts = restarts
    attack.square.n_queries = queries
    kept = torch.get_rng_state()
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    torch.set_rng_state(kept)
    return (net(x).argmax(1) == y) & (net(x_adv).argmax(1) == y)


@pytest.mark.parametrize(("version", "classes"), [("standard", 5), ("standard", 10), ("plus", 5)])
def test_the_same_samples_stand_as_under_the_authors_code(make_net, make_batch, version, classes):
    """Where their own outcome does not hang on the seed, ours is theirs; the rest is a handful."""
    net = make_net(classes).eval().requires_grad_(False)
    x, _, _ = make_batch(24, classes=classes)
    y = right_labels(net, x)
    theirs = torch.stack([reference(net, x, y, 0.06, version=version, seed=seed) for seed in range(2)])
    always, never = theirs.all(0), ~theirs.any(0)
    assert min(int(always.sum()), int(never.sum())) >= 4
    assert int((always | never).sum()) >= 22
    ours = autoattack(net, x, y, 0.06, version=version)
    assert ours[always].all()
    assert not ours[never].any()


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_the_versions_are_made_of_what_the_authors_are(make_net, version):
    pyautoattack = pytest.importorskip("pyautoattack")
    theirs = pyautoattack.AutoAttack(make_net(), norm="Linf", eps=0.1, version=version, seed=0)
    ours = WHOLE[version]
    assert list(ours) == theirs.attacks_to_run
    for name, search in ours.items():
        part = {"apgd-t": theirs.apgd_targeted, "fab": theirs.fab, "fab-t": theirs.fab}.get(name, theirs.apgd)
        if name == "square":
            assert (search.steps, search.restarts) == (theirs.square.n_queries + 1, theirs.square.n_restarts)
            continue
        looks = 1 if name.startswith("apgd") else 0
        assert search.steps == part.n_iter + looks
        assert search.restarts == (1 if name == "fab-t" else part.n_restarts)
        assert search.targets == (part.n_target_classes if name.endswith("-t") else 0)
    assert all(search.norm == "linf" for search in ours.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_of_standard_on_a_trained_network_agrees_with_the_authors_code(tmp_path, monkeypatch):
    """A network of adversarial training, where most of the work is at samples that stand."""
    monkeypatch.setitem(VERSIONS, "standard", WHOLE["standard"])
    run = pp.train(pp.recipes.shapes("at", epochs=3), out=tmp_path, device="cpu")
    x, y = pp.data.load("shapes", split="test")
    x, y = x[:20].float() / 255, y[:20].long()
    net = run.model.eval().requires_grad_(False)
    ours = autoattack(net, x, y, 8 / 255)
    theirs = reference(net, x, y, 8 / 255, version="standard", seed=0, steps=100, queries=5000)
    assert 0 < int(theirs.sum()) < 20
    assert int((ours != theirs).sum()) <= 1


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


def test_tries_are_all_samples_first_then_all_again():
    search = Search(lambda *_: {}, lambda net, state: state, steps=1, targets=2, restarts=2)
    assert all_tries(search, [4, 7], 10) == [(s, n) for n in range(4) for s in (4, 7)]
    assert all_tries(search, [4, 7], 2) == [(s, n) for n in range(2) for s in (4, 7)]
    assert all_tries(search, [], 10) == []


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

    monkeypatch.setattr(module, "view_for_search", lambda *_: failing)
    monkeypatch.setattr(module, "agrees", lambda *_: True)
    with pytest.raises(ZeroDivisionError):
        autoattack(net, x, y, budget)
    assert same_trace(trace_of(net), before)


def test_batch_norm_is_that_of_eval_mode(make_net, make_batch):
    net = make_net()
    x, y, budget = make_batch(12)
    assert torch.equal(autoattack(net.train(), x, y, budget), autoattack(net.eval(), x, y, budget))


# -- what is searched, and who decides


def liar(x):
    """Finds an error wherever it looks, more of one at each look."""
    return torch.stack((-x.flatten(1).sum(1), *[x.flatten(1).sum(1) + k for k in range(4)]), 1)


@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_a_view_that_errs_everywhere_breaks_nothing_that_the_model_does_not_confirm(make_batch, monkeypatch, search):
    x, _, _ = make_batch(10)
    plane = Plane()
    with torch.no_grad():
        plane.linear.weight.mul_(0.01)
        plane.linear.bias.mul_(10)
    y = plane(x).argmax(1)
    assert (plane.slack(x, y, 0.05) > 0).all()
    monkeypatch.setattr(module, "view_for_search", lambda *_: liar)
    monkeypatch.setattr(module, "agrees", lambda *_: True)
    assert autoattack(plane, x, y, 0.05, search=search).all()


def test_a_view_that_sees_no_error_at_all_does_not_hide_one(make_batch, monkeypatch):
    """At the end of each try the model itself is asked."""
    x, _, _ = make_batch(10)
    plane = Plane()
    y = plane(x).argmax(1)
    blind = lambda x: plane(x) + 1e6 * nn.functional.one_hot(y_of(x), 5)  # noqa: E731
    lookup = {image.sum().item(): label for image, label in zip(x, y, strict=True)}

    def y_of(images):
        sums = torch.tensor(list(lookup))
        nearest = (images.flatten(1).sum(1)[:, None] - sums).abs().argmin(1)
        return torch.stack(list(lookup.values()))[nearest]

    monkeypatch.setattr(module, "view_for_search", lambda *_: blind)
    monkeypatch.setattr(module, "agrees", lambda *_: True)
    assert not autoattack(plane, x, y, 0.3).all()


class Branching(Plane):
    """Cannot be read: what it does depends on its input."""

    def forward(self, x):
        return super().forward(x) if x.mean() > -1 else super().forward(2 * x)


class Locked(Plane):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Widening(nn.Module):
    """Adds fp32 numbers in the middle, so that what follows is not in bf16 though its weights are."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(64, 5)
        self.place = nn.Parameter(torch.zeros(4, 4, 4))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=g))

    def forward(self, x):
        return self.fc(self.b(self.a(x).tanh() + self.place).flatten(1))


class Twofaced(nn.Module):
    """It has features and a head, and its forward pass is not the one behind the other."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(4)
        self.conv, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=g))

    @property
    def pooled_linear(self):
        return self.linear

    def features(self, x):
        return self.conv(x).tanh()

    def head(self, acts):
        return self.linear(acts.mean((2, 3)))

    def forward(self, x):
        return -self.head(self.features(x))


@pytest.mark.parametrize("make", [Branching, Locked, Widening, Twofaced])
@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_a_model_without_a_view_that_agrees_with_it_is_searched_as_it_is(make, search, make_batch, monkeypatch):
    """Beside the same model as a plain function, of which there is no view."""
    model = make().eval()
    x, _, _ = make_batch(8)
    y = model(x).argmax(1)
    robust = autoattack(model, x, y, 0.08, search=search)
    assert torch.equal(robust, autoattack(lambda x: model(x), x, y, 0.08))
    assert not robust.all()


def test_agreement_is_within_a_tenth_of_the_spread_in_bf16_and_to_rounding_in_fp32(make_batch):
    plane = Plane()
    x, _, _ = make_batch(8)
    z = plane(x).detach()

    def off(share):
        return lambda x: plane(x).detach() + share * z.std()

    assert agrees(off(0.09), x, z, torch.bfloat16)
    assert not agrees(off(0.11), x, z, torch.bfloat16)
    assert agrees(off(0.0009), x, z, None)
    assert not agrees(off(0.002), x, z, None)
    assert not agrees(lambda x: plane(x) * torch.nan, x, z, None)
    assert not agrees(lambda x: plane(x.bfloat16()), x, z, torch.bfloat16)  # raises


# -- NaN


class Holes(Plane):
    """NaN at every image that is not one of those it knows."""

    def __init__(self, known, spoilt):
        super().__init__()
        self.known, self.spoilt = known, spoilt

    def forward(self, x):
        new = ~(x.detach().flatten(1)[:, None] == self.known.flatten(1)).all(2).any(1)
        return super().forward(x) + torch.where(new, torch.nan, 0.0)[:, None] * self.spoilt


@pytest.mark.parametrize("spoilt", [torch.ones(5), torch.tensor([1.0, 0, 0, 0, 0])])
def test_what_the_model_has_no_answer_to_is_not_right(make_batch, spoilt):
    x, _, _ = make_batch(6)
    y = Plane()(x).argmax(1)
    assert autoattack(Holes(x, spoilt), x, y, 0.0).all()
    assert not autoattack(Holes(x, spoilt), x, y, 0.05).any()


def test_nan_is_not_right_whatever_its_place():
    logits = torch.tensor([[2.0, 1], [torch.nan, 1], [1, torch.nan], [1, 2], [torch.nan, torch.nan]])
    assert is_right(logits, torch.zeros(5, dtype=torch.long)).tolist() == [True, False, False, False, False]
    assert is_right(logits, torch.ones(5, dtype=torch.long)).tolist() == [False, False, False, True, False]


# -- mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"version": "rand"}, "unknown version 'rand'; choose from plus, standard"),
        ({"search": "fp16"}, "unknown search 'fp16'; choose from bf16, fp32"),
        ({"budget": 8.0}, "budget 8.0 is not from 0 to 1"),
        ({"budget": -0.1}, "budget -0.1"),
        ({"budget": torch.full((2, 1, 1, 1), 2.0)}, r"the budget lies in \[2.0, 2.0\]"),
        ({"slots": 0}, "slots 0 is not a whole number above 0"),
        ({"x": torch.full((2, 3, 4, 4), 1.5)}, r"images lie in \[1.5, 1.5\]"),
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

    def noting(name, search, net, judge, take, clean, tries, **settings):
        hunted[name] = {sample for sample, _ in tries}
        return hunt(name, search, net, judge, take, clean, tries, **settings)

    monkeypatch.setattr(module, "hunt", noting)
    plane = Plane()
    x, _, _ = make_batch(30)
    y = right_labels(plane, x)
    robust = autoattack(plane, x, y, 0.06)
    assert list(hunted) == list(VERSIONS["standard"])
    assert hunted["apgd-ce"] == set(range(3, 30))
    left = list(hunted.values())
    assert all(later <= earlier for earlier, later in itertools.pairwise(left))
    assert set(robust.nonzero()[:, 0].tolist()) <= left[-1] < left[0]


def test_every_search_has_a_name_and_versions_are_made_of_such():
    for parts in WHOLE.values():
        assert parts.keys() <= SEARCHES.keys()


@pytest.mark.gpu
@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_on_a_gpu_the_same_samples_stand(make_net, make_batch, search):
    net = make_net(10).eval()
    x, _, _ = make_batch(64, classes=10)
    y = right_labels(net, x)
    here = autoattack(net, x, y, 0.06)
    there = autoattack(copy.deepcopy(net).cuda(), x.cuda(), y.cuda(), 0.06, search=search, slots=16)
    assert 8 < int(here.sum()) < 56
    assert int((here != there.cpu()).sum()) <= 2
