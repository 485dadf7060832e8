"""A small model whose adversarial images are tried on another model, as an attack without access to its gradients."""

import torch

from pixelpart import data as sets
from pixelpart import draws, losses, models
from pixelpart.attacks import pgd
from pixelpart.config import split_data_label
from pixelpart.data import as_float
from pixelpart.models import Classifier
from pixelpart.runtime.progress import Progress, silent

MAX_TRAINING_IMAGES = 10_000  # of a set small enough to train a surrogate during a check
EPOCHS, BATCH_SIZE, LEARNING_RATE = 8, 64, 0.2
WARMUP, EPS_RAMP = 0.3, 0.6  # shares of the training over which the learning rate and eps rise


def train_surrogate(
    name: str,
    *,
    eps: float,
    seed: int,
    device: torch.device,
    root: sets.Root = None,
    progress: Progress = silent,
) -> Classifier:
    """A tiny-cnn in eval mode, trained in seconds on a set's training images.

    Training is adversarial, with one PGD step and an eps that rises from 0: adversarial images of a model without
    adversarial training rarely transfer to a robust one.
    """
    name, options = split_data_label(name)
    images, labels = sets.load(name, split="train", root=root, **options)
    model = models.build(
        "tiny-cnn",
        num_classes=sets.find(name, **options).num_classes,
        channels=images.shape[1],
        generator=draws.generator(seed, "surrogate/weights"),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    total, step = EPOCHS * len(images.split(BATCH_SIZE)), 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=draws.generator(seed, "surrogate/order", epoch))
        for index in order.split(BATCH_SIZE):
            done, step = step / total, step + 1
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(done / WARMUP, (1 - done) / (1 - WARMUP))
            x, y = as_float(images[index].to(device)), labels[index].to(device)
            budget = eps * min(1.0, done / EPS_RAMP)
            generator = draws.generator(seed, "surrogate/start", epoch, step, device=device)
            x_adv = pgd(model, x, y, budget, step_size=1.25 * budget, steps=1, generator=generator)
            optimizer.zero_grad()
            losses.ce(model.train()(x_adv), y).mean().backward()
            optimizer.step()
            progress("training a surrogate", step, total, "")
    return model.eval()
