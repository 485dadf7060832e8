"""Pixels to logits: `model(x) == model.head(model.features(x))`, x in [0,1], normalisation inside the model."""

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch

from pixelpart.config import Size, height_width, is_user_code, write_size
from pixelpart.errors import UserError, unknown
from pixelpart.models import user_model
from pixelpart.models.classifier import Classifier
from pixelpart.models.loading import load_state
from pixelpart.models.resnet import PreActResNet18, ResNet18
from pixelpart.models.tiny import TinyCNN
from pixelpart.models.vit import Deit, VisionTransformer
from pixelpart.models.wide import WideResNet
from pixelpart.models.wrapping import wrap

__all__ = ["MODELS", "Classifier", "build", "load_state", "use", "wrap"]

# made for one image size
TRANSFORMERS: dict[str, Callable[..., Classifier]] = {
    "deit-small": partial(Deit, width=384, depth=12, heads=6),
    "vit-small": partial(VisionTransformer, width=384, depth=12, heads=6),
    "vit-tiny": partial(VisionTransformer, width=64, depth=3, heads=2),
}

MODELS: dict[str, Callable[..., Classifier]] = {
    "preactresnet18": PreActResNet18,
    "resnet18": ResNet18,
    "tiny-cnn": TinyCNN,
    "wrn-DEPTH-WIDTH": WideResNet,
    **TRANSFORMERS,
}

MOST_WEIGHTS = 10**9  # 4 GB; wrn-106-16 has 415 million

USER_MODELS: set[str] = set()  # module:function names that the caller gave, so that this process may run them


def use(name: str) -> str:
    """Allows `build` to run the user code of that name, and returns the name; other names are returned as they are.

    Call it only with a name from the command line or from the caller's own code, never with one from a file.
    """
    if is_user_code(name):
        user_model.check_function(name)
        USER_MODELS.add(name)
    return name


def require_use(name: str) -> None:
    """UserError if the name is user code that `use` has not allowed."""
    if is_user_code(name) and name not in USER_MODELS:
        raise UserError(
            f"model {name!r} is user code and is never loaded from a config; pass --model {name} or call "
            f"pp.models.use({name!r})"
        )


def build(
    name: str,
    *,
    num_classes: int = 10,
    size: Size = 32,
    channels: int = 3,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    generator: torch.Generator | None = None,
) -> Classifier:
    """A new network on the CPU, in train mode; weights come from the generator (None: a fresh one seeded with 0).

    A transformer takes images of `size` pixels only, in patches of 4 (32 pixels), 8 (64) or 16 (224); other models take
    any size, also (height, width). A module:function needs `use` first, and draws its weights itself.
    """
    if num_classes < 2:
        raise UserError(f"num_classes {num_classes} is below 2")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    require_use(name)
    if is_user_code(name):
        model = user_model.make(name, num_classes, (channels, *height_width(size)), generator)
        if mean is not None and std is not None:  # else its own scaling remains
            model.set_scaling(mean, std)
        return model
    # no weights are drawn on the meta device, so the global generator is unchanged
    with torch.device("meta"):
        model = _builder(name, size)(num_classes, **({} if channels == 3 else {"channels": channels}))
    if (weights := sum(weight.numel() for weight in model.parameters())) > MOST_WEIGHTS:
        raise UserError(f"{name} would have {weights:,} weights; the limit is {MOST_WEIGHTS:,}")
    model.to_empty(device="cpu")
    model.set_scaling(mean or (0.0,) * channels, std or (1.0,) * channels)
    model.draw_weights(generator)
    return model


def _builder(name: str, size: Size) -> Callable[..., Classifier]:
    sizes = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,4})", name, flags=re.ASCII)
    if sizes:
        return partial(MODELS["wrn-DEPTH-WIDTH"], depth=int(sizes[1]), width=int(sizes[2]))
    if name == "wrn-DEPTH-WIDTH":
        raise UserError(f"model {name!r} needs numbers, such as wrn-34-10")
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "module:function"])
    builder = MODELS[name]
    if name not in TRANSFORMERS:
        return builder
    if not isinstance(size, int):
        raise UserError(f"{name} takes square images, not {write_size(size)}; choose another model")
    return partial(builder, size=size)


def __dir__() -> list[str]:
    return __all__
