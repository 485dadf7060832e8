"""A stand-in for a model that an attacker cannot look into: what breaks the one is tried on the other."""

from collections.abc import Callable

import torch

from pixelpart import data as sets
from pixelpart import draws, losses, models
from pixelpart.attacks import pgd
from pixelpart.config import split_data_label
from pixelpart.data import as_float
from pixelpart.models import Classifier

SMALL = 10_000  # training images, up to which one is trained on the way
EPOCHS, BATCH, RATE = 8, 64, 0.2
RISE = 0.3, 0.6  # shares of the run over which the learning rate and eps grow


def train_surrogate(
    name: str,
    *,
    eps: float,
    seed: int,
    device: torch.device,
    root: sets.Root = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Classifier:
    """A tiny-cnn in eval mode, trained on a set's training images in seconds.

    Adversarially, by one step of PGD within an eps that grows from 0: changes made for a plainly trained network hardly
    move a robust one.
    """
    name, size, skip_bad = split_data_label(name)
    images, labels = sets.load(name, split="train", root=root, size=size, skip_bad=skip_bad)
    model = models.build(
        "tiny-cnn",
        num_classes=sets.find(name, size=size, skip_bad=skip_bad).num_classes,
        generator=draws.generator(seed, "surrogate/weights"),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    total, step = EPOCHS * len(images.split(BATCH)), 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=draws.generator(seed, "surrogate/order", epoch))
        for index in order.split(BATCH):
            done, step = step / total, step + 1
            optimizer.param_groups[0]["lr"] = RATE * min(done / RISE[0], (1 - done) / (1 - RISE[0]))
            x, y = as_float(images[index].to(device)), labels[index].to(device)
            budget = eps * min(1.0, done / RISE[1])
            generator = draws.generator(seed, "surrogate/start", epoch, step, device=device)
            x_adv = pgd(model, x, y, budget, step_size=1.25 * budget, steps=1, generator=generator)
            optimizer.zero_grad()
            losses.ce(model.train()(x_adv), y).mean().backward()
            optimizer.step()
            report(step, total)
    return model.eval()
