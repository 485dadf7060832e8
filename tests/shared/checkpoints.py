"""Checkpoints of untrained runs."""

from pixelpart.config import Config


def facts_of(config: Config, epoch: int = 1) -> dict:
    """What a checkpoint after this epoch says of itself."""
    settings, position = config.model_dump(mode="json"), {"step": epoch, "epoch": epoch}
    return {
        "config": config.hash(), "model": config.model, "settings": settings, "position": position, "epoch": epoch,
    }  # fmt: skip
