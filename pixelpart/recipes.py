"""Recipes: functions that return the config of a run, such as `cifar10_part(seed=1, eps_low=6/255)`.

The six methods differ in the objective and in whether a mask sets the budget.
"""

import functools
from collections.abc import Callable
from typing import Any

from pixelpart.config import AwpConfig, BurnInConfig, Config, MaskConfig, ObjectiveConfig, OptimConfig, config_from

METHODS = {"at": "at", "trades": "trades", "mart": "mart", "part": "at", "part-t": "trades", "part-m": "mart"}


def shapes(method: str, **overrides: Any) -> Config:
    """The built-in data set, a small model, few steps: minutes on a laptop."""
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
    """The paper's settings for CIFAR-10: all training images, last epoch; in bf16 by default."""
    return _paper("cifar10", method, overrides, augment="crop-flip")


def cifar100(method: str, **overrides: Any) -> Config:
    """CIFAR-100, which is not in the paper, with its settings for CIFAR-10."""
    return _paper("cifar100", method, overrides, augment="crop-flip")


def svhn(method: str, **overrides: Any) -> Config:
    """The paper's settings for SVHN: shorter steps, more decay, no augmentation. If it collapses, try eps_ramp=5."""
    step = {"steps": 10, "step_size": "1/255"}
    return _paper("svhn", method, overrides, weight_decay=3.5e-3, augment="none", attack=step)


def tinyimagenet(method: str, **overrides: Any) -> Config:
    """The paper's settings for TinyImageNet-200: a wide model and large batches."""
    settings = {"model": "wrn-34-10", "batch_size": 512, "augment": "crop-flip"}
    return _paper("tinyimagenet", method, overrides, lr=0.02, weight_decay=5e-4, **settings)


def cifar10_fast(method: str, **overrides: Any) -> Config:
    """A shorter run with a stronger result, used for comparisons."""
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


def cifar10_strong(method: str, **overrides: Any) -> Config:
    """A stronger baseline than the paper's; each addition can be switched off on its own.

    Learning rate and weight decay of Pang et al. 2021 ("Bag of tricks for adversarial training"), cosine schedule of
    Rebuffi et al. 2021, who average weights and find that augmentation then helps (`--ema 0`). IDBH of Li and Spratling
    2023 (`--augment crop-flip`). Label smoothing 0.1, in the range of Pang et al. (`--objective.smoothing 0`). AWP of
    Wu et al. 2020 with their gamma for AT and for TRADES, for MART that of TRADES, after ten epochs, as theirs for
    TRADES (`--awp.gamma 0`).
    """
    return _config(
        f"cifar10-{method}-strong",
        method,
        overrides,
        burn_in_epochs=20,
        smoothing=0.1,
        dataset="cifar10",
        augment="idbh",
        holdout=1024,
        model="resnet18",
        precision="bf16",
        epochs=80,
        batch_size=128,
        ema=0.999,
        optim=OptimConfig(lr=0.1, weight_decay=5e-4, schedule="cosine", warmup=0.05),
        awp=AwpConfig(gamma=0.01 if METHODS[method] == "at" else 0.005, after=10),
    )


def shapes_vit(method: str, **overrides: Any) -> Config:
    """A small transformer on the built-in data set, with attention maps; about ten minutes on a laptop.

    With SGD at 8/255 it stays at chance. It learns with AdamW, clipped gradients, normalised pixels and an eps ramp.
    """
    return _config(
        f"shapes-vit-{method}",
        method,
        overrides,
        burn_in_epochs=3,
        cam="gradient-rollout",
        dataset="shapes",
        model="vit-tiny",
        normalize=True,
        epochs=20,
        batch_size=64,
        holdout=512,
        probe=512,
        eps_ramp=10,
        ema=0.99,
        attack={"steps": 3, "step_size": "4/255"},
        optim=OptimConfig(name="adamw", lr=2e-3, weight_decay=0.05, clip=1.0, schedule="cosine", warmup=0.1),
    )


def cifar10_vit(method: str, **overrides: Any) -> Config:
    """A transformer on CIFAR-10 with patches of 4 pixels, future work in the paper.

    As in Debenedetti et al. 2023 ("A light recipe to train robust vision transformers"): AdamW, simple augmentation,
    and an eps ramp of ten epochs. Learning rate and weight decay are usual values for transformers, not tuned here.
    """
    return _config(
        f"cifar10-vit-{method}",
        method,
        overrides,
        burn_in_epochs=15,
        cam="gradient-rollout",
        dataset="cifar10",
        augment="crop-flip",
        holdout=1024,
        model="vit-small",
        normalize=True,
        precision="bf16",
        epochs=60,
        batch_size=128,
        eps_ramp=10,
        ema=0.999,
        optim=OptimConfig(name="adamw", lr=5e-4, weight_decay=0.05, clip=1.0, schedule="cosine", warmup=0.1),
    )


def _paper(
    dataset: str,
    method: str,
    overrides: dict[str, Any],
    *,
    lr: float = 0.01,
    weight_decay: float = 2e-4,
    **settings: Any,
) -> Config:
    """The paper's settings on all data sets: 80 epochs on all images, 20 of them burn-in, lr / 10 from the 60th."""
    common: dict[str, Any] = {"model": "resnet18", "batch_size": 128, "holdout": 0, "precision": "bf16", "epochs": 80}
    optim = OptimConfig(lr=lr, weight_decay=weight_decay, schedule="step", decay_at=(60,))
    settings = common | settings | {"dataset": dataset, "optim": optim}
    return _config(f"{dataset}-{method}", method, overrides, burn_in_epochs=20, **settings)


def _config(
    recipe: str,
    method: str,
    overrides: dict[str, Any],
    *,
    burn_in_epochs: int,
    smoothing: float = 0.0,
    cam: str = "gradcam",
    **settings: Any,
) -> Config:
    """The recipe's settings with the overrides; a dict such as mask={"every": 1} changes only the fields it names."""
    masked = method.startswith("part")
    settings |= {
        "recipe": recipe,
        "objective": ObjectiveConfig(name=METHODS[method], smoothing=smoothing),
        "mask": MaskConfig(rule="mean" if masked else "none", cam=cam),
        "burn_in": BurnInConfig(epochs=burn_in_epochs if masked else 0),
    }
    base = Config.model_validate(settings).model_dump()
    merged = {
        k: base[k] | v if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in overrides.items()
    }
    return config_from(base | merged, source=recipe)


RECIPES: dict[str, Callable[..., Config]] = {
    **{f"shapes-{method}": functools.partial(shapes, method) for method in METHODS},
    **{f"shapes-vit-{method}": functools.partial(shapes_vit, method) for method in METHODS},
    **{f"cifar10-{method}": functools.partial(cifar10, method) for method in METHODS},
    **{f"cifar10-{method}-fast": functools.partial(cifar10_fast, method) for method in METHODS},
    **{f"cifar10-{method}-strong": functools.partial(cifar10_strong, method) for method in METHODS},
    **{f"cifar10-vit-{method}": functools.partial(cifar10_vit, method) for method in METHODS},
    **{f"cifar100-{method}": functools.partial(cifar100, method) for method in METHODS},
    **{f"svhn-{method}": functools.partial(svhn, method) for method in METHODS},
    **{f"tinyimagenet-{method}": functools.partial(tinyimagenet, method) for method in METHODS},
}


def __getattr__(name: str) -> Callable[..., Config]:
    """`recipes.cifar10_part` is RECIPES["cifar10-part"]."""
    recipe = RECIPES.get(name.replace("_", "-"))
    if recipe is None:
        raise AttributeError(f"unknown recipe {name!r}; choose from {', '.join(RECIPES)}")
    return recipe
