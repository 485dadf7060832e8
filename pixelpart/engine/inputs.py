"""What a step works on: its batch, its draws, its stored maps."""

import torch

from pixelpart import draws
from pixelpart.attacks.ball import draw_noise
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.data.loader import Loader
from pixelpart.engine.plan import Phase
from pixelpart.engine.step import StepInputs
from pixelpart.masks import MaskStore


def step_inputs(
    config: Config, phase: Phase, loader: Loader, store: MaskStore | None, *, epoch: int, step: int
) -> StepInputs:
    """The step's batch with its draws, each made for the global batch, of which this process takes its part."""
    batch = loader.batch(epoch, step)
    whole = loader.global_size(step)
    mine = loader.world.share(whole)

    def generator(stream: str) -> torch.Generator:
        return draws.generator(config.seed, stream, epoch, step, device=loader.device)

    moves = augment.draw(config.augment, whole, generator=generator("augment"))
    several = () if phase.starts == 1 else (phase.starts,)
    like = batch.images.new_empty((*several, whole, *batch.images.shape[1:]))
    noise = draw_noise(like, kind=phase.start, generator=generator("start"))
    return StepInputs(
        batch.images,
        batch.labels,
        moves[mine],
        noise[..., mine, :, :, :],
        maps=store.get(batch.index) if store is not None and phase.mask is not None else None,
        share=batch.images.new_full((len(batch.labels), 1, 1, 1), phase.share) if phase.share < 1 else None,
    )
