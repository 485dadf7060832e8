"""AutoAttack with few steps, and a model for which its outcome is known."""

import torch
from torch import nn

from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.square import square_search


def short(steps=10, queries=30, restarts=1):
    """AutoAttack standard, or plus if there are restarts, with few steps."""
    first = {"apgd-ce": apgd_search(steps=steps, restarts=restarts)}
    aimed = {"apgd-t": apgd_search(steps=steps, targets=9), "fab-t": fab_search(steps=steps)}
    last = {"square": square_search(queries)}
    if restarts == 1:
        return first | aimed | last
    dlr = apgd_search(loss="dlr", steps=steps, restarts=restarts)
    return first | {"apgd-dlr": dlr, "fab": fab_search(steps=steps, targets=0, restarts=restarts)} | last | aimed


class Plane(nn.Module):
    """A linear classifier: the effect of the worst change within a budget is known."""

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
    """The model's predictions, wrong for the first few images."""
    y = model(x).argmax(1)
    classes = model(x).shape[1]
    y[:wrong] = (y[:wrong] + 1) % classes
    return y
