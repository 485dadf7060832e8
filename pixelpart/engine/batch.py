"""The batch of a training step: its images and every random draw made for them."""

import torch
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks.ball import draw_noise
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.data.loader import Loader
from pixelpart.engine.step import Phase, StepBatch


def step_batch(
    config: Config, phase: Phase, loader: Loader, maps: Tensor | None, *, epoch: int, step: int
) -> StepBatch:
    """The step's images with their draws, which are made for the global batch; each process takes its slice.

    `maps` are the stored maps of all training images, if there are any.
    """
    batch = loader.batch(epoch, step)
    n = loader.global_size(step)
    mine = loader.world.share(n)

    def generator(stream: str) -> torch.Generator:
        return draws.generator(config.seed, stream, epoch, step, device=loader.device)

    augmentation = augment.draw(config.augment, n, generator=generator("augment"))
    starts = () if phase.attack.starts == 1 else (phase.attack.starts,)
    like = batch.images.new_empty((*starts, n, *batch.images.shape[1:]))
    noise = draw_noise(like, kind=phase.attack.start, generator=generator("start"))
    scale = phase.budget_scale
    return StepBatch(
        batch.images,
        batch.labels,
        augmentation[mine],
        noise[..., mine, :, :, :],
        maps=maps[batch.index] if maps is not None and phase.mask is not None else None,
        budget_scale=batch.images.new_full((len(batch.labels), 1, 1, 1), scale) if scale < 1 else None,
    )
