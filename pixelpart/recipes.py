"""Named runs, each a function that returns a config: `cifar10_part(seed=1, eps_low=6/255)`.

The six methods differ in two words: the objective, and whether a mask decides the budget.
"""

import functools
from collections.abc import Callable
from typing import Any

from pixelpart.config import BurnInConfig, Config, MaskConfig, ObjectiveConfig, OptimConfig, config_from

METHODS = {"at": "at", "trades": "trades", "mart": "mart", "part": "at", "part-t": "trades", "part-m": "mart"}


def shapes(method: str, **overrides: Any) -> Config:
    """The embedded set, a small net, few steps: minutes on a laptop."""
    return _config(
        f"shapes-{method}",
        method,
        overrides,
        burn_in_epochs=3,
        dataset="shapes",
        model="tiny-cnn",
        epochs=12,
        batch_size=64,
        holdout=512,
        probe=512,
        ema=0.99,
        attack={"steps": 5, "step_size": "3/255"},
        optim=OptimConfig(lr=0.2, weight_decay=5e-4, schedule="cyclic", warmup=0.25),
    )


def cifar10(method: str, **overrides: Any) -> Config:
    """The paper's settings for CIFAR-10: all training images, last epoch; computed in bf16 unless told fp32."""
    return _config(
        f"cifar10-{method}",
        method,
        overrides,
        burn_in_epochs=20,
        dataset="cifar10",
        augment="crop-flip",
        holdout=0,
        model="resnet18",
        precision="bf16",
        epochs=80,
        batch_size=128,
        optim=OptimConfig(lr=0.01, weight_decay=2e-4, schedule="step", decay_at=(60,)),
    )


def cifar10_fast(method: str, **overrides: Any) -> Config:
    """A shorter run that ends stronger; comparisons use it."""
    return _config(
        f"cifar10-{method}-fast",
        method,
        overrides,
        burn_in_epochs=8,
        dataset="cifar10",
        augment="crop-flip",
        holdout=1024,
        model="resnet18",
        precision="bf16",
        epochs=30,
        batch_size=128,
        ema=0.999,
        optim=OptimConfig(lr=0.1, weight_decay=5e-4, schedule="cyclic"),
    )


def _config(recipe: str, method: str, overrides: dict[str, Any], *, burn_in_epochs: int, **settings: Any) -> Config:
    """The recipe's settings under the caller's; a dict such as mask={"every": 1} changes only the fields it names."""
    masked = method.startswith("part")
    settings |= {
        "recipe": recipe,
        "objective": ObjectiveConfig(name=METHODS[method]),
        "mask": MaskConfig(rule="mean" if masked else "none"),
        "burn_in": BurnInConfig(epochs=burn_in_epochs if masked else 0),
    }
    base = Config.model_validate(settings).model_dump()
    merged = {
        k: base[k] | v if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in overrides.items()
    }
    return config_from(base | merged, source=recipe)


RECIPES: dict[str, Callable[..., Config]] = {
    **{f"shapes-{method}": functools.partial(shapes, method) for method in METHODS},
    **{f"cifar10-{method}": functools.partial(cifar10, method) for method in METHODS},
    **{f"cifar10-{method}-fast": functools.partial(cifar10_fast, method) for method in METHODS},
}


def __getattr__(name: str) -> Callable[..., Config]:
    """`recipes.cifar10_part` is RECIPES["cifar10-part"]."""
    recipe = RECIPES.get(name.replace("_", "-"))
    if recipe is None:
        raise AttributeError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return recipe
