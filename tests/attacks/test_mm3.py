"""MM3 is Auto-PGD on z_t - z_y towards the three most likely wrong classes."""

import torch

from pixelpart.attacks.mm3 import mm3, mm3_search
from pixelpart.attacks.search import budget_per_sample, target_classes
from pixelpart.losses import margin
from walks import advanced


def test_keeps_the_best_of_three_targets(make_net, make_batch):
    net, (x, _, budget) = make_net().eval().requires_grad_(False), make_batch(64)
    net.conv.weight.mul_(12)
    y = net(x).argmax(1)
    search, g, found = mm3_search(steps=5), torch.Generator().manual_seed(0), []
    for rank in range(3):
        keys = torch.randint(2**62, (64,), generator=g)
        state = search.begin(x, y, budget_per_sample(budget, x), keys, target_classes(net(x), y, rank))
        found.append(advanced(search, net, state)["x_adv"])
    margins = torch.stack([margin(net(images), y) for images in found])
    best = margins.argmax(0)
    assert set(best.tolist()) == {0, 1, 2}  # every target wins somewhere, or the test shows little
    assert torch.equal(mm3(net, x, y, budget, steps=5), torch.stack(found)[best, torch.arange(64)])
