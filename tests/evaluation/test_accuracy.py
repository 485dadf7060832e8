import torch

from pixelpart import attacks, draws
from pixelpart.evaluation.accuracy import ImageSet, errs_inside, natural, start_images, start_noise, under_attack

CPU = torch.device("cpu")
LIMITS = {"kind": "pgd", "eps": 0.03, "step_size": 0.01, "steps": 5, "restarts": 1, "seed": 0}


def silent(settled, right):
    pass


def flags(model, pair, *, batch_size=16, report=silent, **changes):
    pictures = ImageSet(*pair, CPU)
    right = natural(model, pictures, batch_size=batch_size, report=silent)
    return under_attack(model, pictures, right=right, batch_size=batch_size, report=report, **(LIMITS | changes))


def test_natural_equals_a_plain_loop(net, pair):
    x, y = pair
    expected = [int(net(x[i : i + 1]).argmax()) == int(y[i]) for i in range(len(x))]
    assert natural(net, ImageSet(x, y, CPU), batch_size=7, report=silent).tolist() == expected


def test_uint8_images_are_divided_by_255(net, pair):
    x, y = (pair[0] * 255).byte(), pair[1]
    both = [natural(net, ImageSet(images, y, CPU), batch_size=16, report=silent) for images in (x, x.float() / 255)]
    assert both[0].equal(both[1])


def test_pgd_on_a_plane_finds_exactly_the_margins_that_eps_times_the_l1_norm_reaches(plane, pair):
    # the worst change of w·x within eps is eps |w|_1, and six signed steps of 0.02 reach that corner from anywhere
    x, y = pair
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    reach = plane.linear.weight.abs().sum()
    for eps in (0.01, 0.03, 0.05):
        right = flags(plane, pair, eps=eps, step_size=0.02, steps=6)
        assert right.equal(score > eps * reach)
    assert 0 < int(right.sum()) < len(x)


def test_pgd_equals_a_plain_loop_over_single_images(net, pair):
    x, y = pair
    expected = []
    for i in range(len(x)):
        a, b = x[i : i + 1], y[i : i + 1]
        noise = 2 * torch.rand(a.shape, generator=draws.generator(0, "attack/pgd5", 0, i)) - 1
        adv = attacks.pgd(net, a, b, 0.03, step_size=0.01, steps=5, start=a + 0.03 * noise)
        expected.append(bool(net(a).argmax() == b) and bool(net(adv).argmax() == b))
    assert flags(net, pair).tolist() == expected


def test_outcomes_do_not_depend_on_the_batch_size(net, pair):
    assert flags(net, pair, batch_size=3, restarts=3).equal(flags(net, pair, batch_size=40, restarts=3))


def test_outcomes_of_the_first_images_do_not_depend_on_the_others(net, pair):
    few = tuple(part[:9] for part in pair)
    assert flags(net, pair, restarts=2)[:9].equal(flags(net, few, restarts=2))


def test_restarts_only_ever_break_more(net, pair):
    counts = []
    before = torch.ones(40, dtype=torch.bool)
    for restarts in (1, 2, 4, 8):
        right = flags(net, pair, eps=0.05, step_size=0.001, steps=1, restarts=restarts)
        assert not (right & ~before).any()
        before = right
        counts.append(int(right.sum()))
    assert counts[-1] < counts[0]


def test_only_survivors_are_attacked(net, pair, monkeypatch):
    seen = []

    def watched(model, x, y, budget, **settings):
        seen.append(len(x))
        return attacks.pgd(model, x, y, budget, **settings)

    monkeypatch.setitem(attacks.ATTACKS, "pgd", attacks.Attack(watched))
    survivors = [int(flags(net, pair, restarts=restarts).sum()) for restarts in (1, 2)]
    seen.clear()
    flags(net, pair, restarts=3, batch_size=40)
    assert seen == [int((net(pair[0]).argmax(1) == pair[1]).sum()), *survivors]


def test_noise_differs_by_sample_number_stream_and_seed_and_fills_the_ball():
    x = torch.zeros(2, 3, 8, 8)
    index = torch.tensor([4, 9])
    same = {"stream": "attack/pgd20", "seed": 0, "number": 0}
    noise = start_noise(index, x, **same)
    others = [start_noise(index, x, **same | change) for change in ({"seed": 1}, {"number": 1}, {"stream": "other"})]
    assert not any(noise.equal(other) for other in (*others, noise.flip(0)))
    assert noise.equal(start_noise(index.flip(0), x, **same).flip(0))
    assert -1 <= noise.min() < -0.9 < 0.9 < noise.max() <= 1
    torch.set_default_dtype(torch.float64)
    try:
        assert noise.equal(start_noise(index, x, **same))  # whatever type the caller makes tensors of
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_attack_of_several_starts_gets_each_from_noise_of_its_own_number():
    x, index = torch.full((2, 3, 8, 8), 0.5), torch.tensor([4, 9])
    start = start_images(index, x, 0.03, kind="mma", steps=20, seed=0, restart=1)
    assert start.shape == (3, 2, 3, 8, 8)
    for number, images in enumerate(start, start=3):  # the first restart had 0, 1 and 2
        noise = start_noise(index, x, stream="attack/mma20", seed=0, number=number)
        assert images.equal(attacks.start_point(x, 0.03, noise, kind="uniform"))


def test_mma_equals_a_plain_loop_over_single_images(net, pair):
    x, y = pair
    expected = []
    for i in range(len(x)):
        a, b = x[i : i + 1], y[i : i + 1]
        noise = [
            2 * torch.rand(a.shape, generator=draws.generator(0, "attack/mma5", number, i)) - 1 for number in range(3)
        ]
        adv = attacks.mma(net, a, b, 0.03, step_size=0.01, steps=5, start=a + 0.03 * torch.stack(noise))
        expected.append(bool(net(a).argmax() == b) and bool(net(adv).argmax() == b))
    assert flags(net, pair, kind="mma").tolist() == expected
    assert 0 < sum(expected) < 40


def test_an_input_outside_the_ball_or_outside_0_1_breaks_nothing(plane):
    x = torch.full((5, 3, 6, 6), 0.5)
    x[3:] = 0.001
    y = plane(x).argmax(1)
    worst = torch.where(y == 0, -1, 1)[:, None, None, None] * plane.linear.weight.sign().view(1, 3, 6, 6)
    lengths = torch.tensor([0.05, 0.05 + 5e-7, 0.0501, 0.05, 0.05])[:, None, None, None]
    x_adv = x + lengths * worst
    x_adv[4] = x_adv[4].clamp(0, 1)
    assert (plane(x_adv).argmax(1) != y)[:3].all()
    broken = errs_inside(plane, x, x_adv, y, eps=0.05)
    assert broken[:4].tolist() == [True, True, False, False]
    assert bool(broken[4]) == bool(plane(x_adv).argmax(1)[4] != y[4])


def test_reports_count_settled_images_and_those_right_among_them(net, pair):
    told = []
    right = flags(net, pair, batch_size=8, report=lambda *news: told.append(news))
    assert told[-1] == (40, int(right.sum()))
    assert len(told) > 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert all(standing == int(right[:done].sum()) for done, standing in told)


def test_an_attack_with_nothing_left_to_break_still_reports_the_end(plane, pair):
    x, _ = pair
    told = []
    assert not flags(plane, (x, 1 - plane(x).argmax(1)), report=lambda *news: told.append(news)).any()
    assert told == [(40, 0)]
