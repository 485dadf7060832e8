"""The harness of policies: every source under every control. A source added to the table is tested without a change."""

import pytest
import torch
from torch import Tensor

from pixelpart import masks, models
from pixelpart.errors import UserError
from pixelpart.masks import BudgetPolicy, SourceInputs

EPS, LOW, N, SIZE = 8 / 255, 4 / 255, 7, 16
SETTINGS = {"quadrant": "quadrant:ur", "gradient": "gradient:1"}
SOURCES = [SETTINGS.get(name, name) for name in masks.SOURCES]
every_source = pytest.mark.parametrize("source", SOURCES)
every_control = pytest.mark.parametrize("control", masks.CONTROLS)


def policy(source: str, **settings) -> BudgetPolicy:
    rule = "rank" if masks.parse_source(source).per_image else "mean"
    made = masks.budget_policy(**{"source": source, "rule": rule, "eps": EPS, "eps_low": LOW} | settings)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def seen():
    """A network that every source can read, and inputs for all of them."""
    model = models.build("vit-tiny", size=SIZE, generator=torch.Generator().manual_seed(2)).eval()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))
    objects = torch.zeros(N, SIZE, SIZE)
    for i in range(N):
        objects[i, i : i + 4, 2 : 5 + i] = 1
    noise = masks.draw_blobs(N, generator=g)
    return {
        "x": torch.rand(N, 3, SIZE, SIZE, generator=g),
        "y": torch.arange(N),
        "model": model,
        "view": model,
        "noise": noise[:, 0],
        "control": noise[:, 1],
        "objects": objects,
    }


def rows(seen: dict, index: list[int]) -> dict:
    return {name: value[index] if isinstance(value, Tensor) else value for name, value in seen.items()}


def inputs(seen: dict) -> SourceInputs:
    return SourceInputs(**{name: value for name, value in seen.items() if name != "control"})


def apply(made: BudgetPolicy, seen: dict) -> tuple[Tensor, Tensor, Tensor]:
    """Budget, share and dead flags of all images."""
    with torch.no_grad():
        maps = made.maps(inputs(seen))
        share, dead = made.share(maps, (SIZE, SIZE))
        return *made.control_and_scale(share, dead, seen["control"]), dead


def killed(made: BudgetPolicy, seen: dict, dead: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Budget and share before and after the control, with the maps of these images dead."""
    with torch.no_grad():
        maps = made.maps(inputs(seen)).clone()
        maps[dead] = 0
        share, flags = made.share(maps, (SIZE, SIZE))
    assert [i for i in range(N) if flags[i]] == dead
    return *made.control_and_scale(share, flags, seen["control"]), share


@every_source
@every_control
def test_budgets_lie_between_the_levels_and_use_more_than_one_of_them(source: str, control: str, seen: dict) -> None:
    for eps, low in ((EPS, LOW), (LOW, EPS)):
        budget, share, dead = apply(policy(source, control=control, eps=eps, eps_low=low), seen)
        assert budget.dtype == torch.float32
        assert budget.shape[:2] == (N, 1)
        assert budget.min() >= LOW - 1e-9
        assert budget.max() <= EPS + 1e-9
        assert 0 <= share.min() < share.max() <= 1 or control == "flat"
        assert not dead.all()


@every_source
@every_control
@pytest.mark.parametrize("over", ["image", "batch"])
def test_the_mean_is_the_one_that_is_asked_for(source: str, control: str, over: str, seen: dict) -> None:
    for low in (LOW, 12 / 255):
        budget, *_ = apply(policy(source, control=control, mean=7 / 255, mean_over=over, eps_low=low), seen)
        means = budget.double().flatten(1).mean(1)
        found = means if over == "image" else means.mean()
        assert (found - 7 / 255).abs().max() < 1e-6 * 7 / 255 * 2
        plain, *_ = apply(policy(source, control=control, eps_low=low), seen)
        ratio = (budget / plain).flatten(1 if over == "image" else 0)
        assert (ratio.amax(-1) / ratio.amin(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "margin"])  # a number is never dead
@every_control
def test_dead_images_keep_eps_and_are_no_donors(source: str, control: str, seen: dict) -> None:
    made = policy(source, control=control)
    budget, share, before = killed(made, seen, [2, 3])
    assert (budget[[2, 3]] == torch.tensor(EPS)).all()
    assert (share[[2, 3]] == 1).all()
    if control == "shuffled":
        assert torch.equal(share[[0, 1, 4, 5, 6]], before[[1, 4, 5, 6, 0]])


@every_source
def test_controls_by_their_definition(source: str, seen: dict) -> None:
    none, inverted, shuffled, flat, blobs = (
        apply(policy(source, control=control), seen)[1] for control in ("none", "inverted", "shuffled", "flat", "blobs")
    )
    live = ~apply(policy(source), seen)[2]
    assert live.all()
    assert torch.equal(inverted, 1 - none)
    assert torch.equal(shuffled, none.roll(-1, 0))
    torch.testing.assert_close(flat, none.mean((1, 2, 3), keepdim=True).expand_as(none))
    assert torch.equal(blobs.flatten(1).sort(1).values, none.flatten(1).sort(1).values)


@every_source
@every_control
def test_the_order_of_images_matters_only_to_shuffled(source: str, control: str, seen: dict) -> None:
    made = policy(source, control=control)
    if control == "shuffled":
        return
    order = [3, 0, 6, 1, 5, 2, 4]
    budget, permuted = apply(made, seen)[0], apply(made, rows(seen, order))[0]
    torch.testing.assert_close(permuted, budget[order], rtol=1e-4, atol=1e-7)
    if not made.source.per_image:
        single = torch.cat([apply(made, rows(seen, [i]))[0] for i in range(N)])
        assert ((single - budget).abs() < 1e-6).float().mean() > 0.99  # rounding may move a pixel over the mean


@every_source
def test_which_policies_read_what(source: str, seen: dict) -> None:
    made = policy(source)
    if not made.source.from_model:
        less = seen | {"model": None, "view": None}
        assert torch.equal(apply(made, less)[0], apply(made, seen)[0])
        assert not made.needs_clean_pass
    assert made.needs_blobs == (source == "blobs")
    assert policy(source, control="blobs").needs_blobs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "margin", "rule": "mean"}, "'margin' is one number per image; it takes mask.rule rank, not 'mean'"),
        ({"source": "margin", "rule": "none"}, "it takes mask.rule rank, not 'none'"),
        ({"rule": "power:1", "eps_low": EPS}, "rule 'power:1' needs eps_low below eps"),
        ({"source": "centre", "stored": True}, "mask.every stores maps of the network, and mask.source 'centre'"),
        ({"source": "object", "stored": True}, "mask.every stores maps of the network, and mask.source 'object'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_one_line(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        masks.budget_policy(**{"eps": EPS, "eps_low": LOW} | settings)
    assert "\n" not in str(caught.value)


def test_what_compares_images_says_so() -> None:
    assert policy("margin").across_images == "mask.rule rank"
    assert policy("gradcam", control="shuffled").across_images == "mask.control shuffled"
    assert policy("gradcam", mean=8 / 255, mean_over="batch").across_images == "mask.mean_over batch"
    for settings in ({"mean_over": "batch"}, {"mean": 8 / 255}, {"control": "blobs"}, {"rule": "power:0.5"}):
        assert policy("gradcam", **settings).across_images == ""
