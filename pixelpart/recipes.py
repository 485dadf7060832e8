"""Recipes: functions that return the config of a run, such as `cifar10_part(seed=1, eps_low=6/255)`.

The six methods differ in the objective and in whether a mask sets the budget.
"""

from collections.abc import Callable
from typing import Any

from pixelpart.config import Config, config_from, with_fields

Settings = dict[str, Any]
METHODS = {"at": "at", "trades": "trades", "mart": "mart", "part": "at", "part-t": "trades", "part-m": "mart"}

SHAPES: Settings = {"dataset": "shapes", "batch_size": 64, "holdout": 512, "probe": 512, "ema": 0.99}
CIFAR10: Settings = {
    "dataset": "cifar10",
    "model": "resnet18",
    "augment": "crop-flip",
    "precision": "bf16",
    "ema": 0.999,
}
FOLLOWS = (  # fields of a run on a folder of pictures that `fill_in` sets, unless they are given
    "model", "precision", "holdout", "probe", "batch_size", "epochs", "eps_low", "burn_in.epochs", "burn_in.eps",
    "eps_ramp", "objective.beta", "optim.lr", "ema",
)  # fmt: skip
SMALL_BETA = {"trades": 3.0, "mart": 1.0}  # for fewer than 10,000 images
ADAMW: Settings = {"name": "adamw", "weight_decay": 0.05, "clip": 1.0, "schedule": "cosine", "warmup": 0.1}


def shapes(method: str, **overrides: Any) -> Config:
    """The built-in data set, a small model, few steps: minutes on a laptop."""
    settings = SHAPES | {"model": "tiny-cnn", "epochs": 12, "attack": {"steps": 5, "step_size": "3/255"}}
    optim = {"lr": 0.2, "weight_decay": 5e-4, "schedule": "cyclic", "warmup": 0.25}
    return _config(f"shapes-{method}", method, overrides, settings, optim=optim, burn_in=3)


def shapes_vit(method: str, **overrides: Any) -> Config:
    """A small transformer on the built-in data set, with attention maps; about ten minutes on a laptop.

    With SGD at 8/255 it stays at chance. It learns with AdamW, clipped gradients, normalised pixels and an eps ramp.
    """
    settings = SHAPES | {"model": "vit-tiny", "normalize": True, "epochs": 20, "eps_ramp": 10}
    settings |= {"attack": {"steps": 3, "step_size": "4/255"}, "mask": {"source": "gradient-rollout"}}
    return _config(f"shapes-vit-{method}", method, overrides, settings, optim=ADAMW | {"lr": 2e-3}, burn_in=3)


def cifar10(method: str, **overrides: Any) -> Config:
    """The paper's settings for CIFAR-10: all training images, last epoch; in bf16 by default."""
    return _paper("cifar10", method, overrides)


def cifar100(method: str, **overrides: Any) -> Config:
    """CIFAR-100, which is not in the paper, with its settings for CIFAR-10."""
    return _paper("cifar100", method, overrides)


def svhn(method: str, **overrides: Any) -> Config:
    """The paper's settings for SVHN: shorter steps, more decay, no augmentation. If it collapses, try eps_ramp=5."""
    attack = {"step_size": "1/255"}
    return _paper("svhn", method, overrides, weight_decay=3.5e-3, augment="none", attack=attack)


def tinyimagenet(method: str, **overrides: Any) -> Config:
    """The paper's settings for TinyImageNet-200: a wide model and large batches."""
    return _paper("tinyimagenet", method, overrides, lr=0.02, weight_decay=5e-4, model="wrn-34-10", batch_size=512)


def cifar10_fast(method: str, **overrides: Any) -> Config:
    """A shorter run with a stronger result, used for comparisons."""
    optim = {"lr": 0.1, "weight_decay": 5e-4, "schedule": "cyclic"}
    return _config(f"cifar10-{method}-fast", method, overrides, CIFAR10 | {"epochs": 30}, optim=optim, burn_in=8)


def cifar10_strong(method: str, **overrides: Any) -> Config:
    """A stronger baseline than the paper's; each addition can be switched off on its own.

    Learning rate and weight decay of Pang et al. 2021 ("Bag of tricks for adversarial training"), cosine schedule of
    Rebuffi et al. 2021, who average weights and find that augmentation then helps (`--ema 0`). IDBH of Li and Spratling
    2023 (`--augment crop-flip`). Label smoothing 0.1, in the range of Pang et al. (`--objective.smoothing 0`). AWP of
    Wu et al. 2020 with their gamma for AT and for TRADES, for MART that of TRADES, after ten epochs, as theirs for
    TRADES (`--awp.gamma 0`).
    """
    awp = {"gamma": 0.01 if METHODS[method] == "at" else 0.005, "after": 10}
    settings = CIFAR10 | {"augment": "idbh", "epochs": 80, "objective": {"smoothing": 0.1}, "awp": awp}
    optim = {"lr": 0.1, "weight_decay": 5e-4, "schedule": "cosine", "warmup": 0.05}
    return _config(f"cifar10-{method}-strong", method, overrides, settings, optim=optim, burn_in=20)


def cifar10_vit(method: str, **overrides: Any) -> Config:
    """A transformer on CIFAR-10 with patches of 4 pixels, future work in the paper.

    As in Debenedetti et al. 2023 ("A light recipe to train robust vision transformers"): AdamW, simple augmentation,
    and an eps ramp of ten epochs. Learning rate and weight decay are usual values for transformers, not tuned here.
    """
    settings = CIFAR10 | {"model": "vit-small", "normalize": True, "epochs": 60, "eps_ramp": 10}
    settings |= {"mask": {"source": "gradient-rollout"}}
    return _config(f"cifar10-vit-{method}", method, overrides, settings, optim=ADAMW | {"lr": 5e-4}, burn_in=15)


def folder(method: str, **overrides: Any) -> Config:
    """Your own pictures, folder:PATH or module:function; `fill_in` sets what depends on their number."""
    settings: Settings = {"dataset": "folder:", "auto": FOLLOWS, "model": "tiny-cnn", "augment": "crop-flip"}
    settings |= {"epochs": 100, "attack": {"steps": 5, "step_size": "3/255"}}
    optim = {"weight_decay": 5e-4, "schedule": "cyclic", "warmup": 0.25}
    return _config(f"folder-{method}", method, overrides, settings, optim=optim, burn_in=0)


def fill_in(config: Config, images: int) -> Config:
    """The config with the fields in `auto` set for this number of training images, and `auto` empty.

    The numbers were tried on 48 to 4,000 images of 64x64 pixels. A field that was given decides those after it. Small
    sets start without an attack: on 2,000 digits, AT with 8/255 from the first epoch predicted one class for all. Their
    beta is smaller: on 2,400 digits TRADES and MART with 6 lost natural accuracy and were no more robust than AT.
    """
    held = min(images // 5, 1024) if images >= 100 else 0  # fewer than 20 cannot choose between checkpoints
    large = images >= 10_000  # below that tiny-cnn learns in minutes on a CPU, and resnet18 fits noise
    rules: dict[str, Callable[[Config], Any]] = {
        "model": lambda c: "resnet18" if large else "tiny-cnn",
        "precision": lambda c: "bf16" if large else "fp32",
        "holdout": lambda c: held,
        "probe": lambda c: max(held, 32),  # as many training images as held-out ones
        "batch_size": lambda c: 128 if large else 32 if images - c.holdout >= 8 * 32 else 16,
        "epochs": lambda c: min(max(3600 // _steps(c, images), 30), 100),
        "eps_low": lambda c: c.eps * 7 / 8,
        "burn_in.epochs": lambda c: c.epochs // 3 if not large else c.epochs // 4 if c.mask.rule != "none" else 0,
        "burn_in.eps": lambda c: c.burn_in.eps if large else 0.0,
        "eps_ramp": lambda c: 0 if large else c.epochs * 2 // 3,
        "objective.beta": lambda c: c.objective.beta if large else SMALL_BETA.get(c.objective.name, c.objective.beta),
        "optim.lr": lambda c: round(0.05 * (c.batch_size / 16) ** 0.5, 3),  # at 0.4 for 128 the loss rose
        "ema": lambda c: 0.999 if c.epochs * _steps(c, images) > 5000 else 0.99,
    }
    for name in (name for name in rules if name in config.auto):
        config = with_fields(config, {name: rules[name](config)}, source=config.recipe)
    return config


def _steps(config: Config, images: int) -> int:
    return max((images - config.holdout) // config.batch_size, 1)  # per epoch


def _paper(
    dataset: str, method: str, overrides: Settings, *, lr: float = 0.01, weight_decay: float = 2e-4, **settings: Any
) -> Config:
    """The paper's settings on all data sets: 80 epochs on all images, 20 of them burn-in, lr / 10 from the 60th."""
    settings = CIFAR10 | {"dataset": dataset, "holdout": 0, "epochs": 80, "ema": 0.0} | settings
    optim = {"lr": lr, "weight_decay": weight_decay, "schedule": "step", "decay_at": [60]}
    return _config(f"{dataset}-{method}", method, overrides, settings, optim=optim, burn_in=20)


def _config(
    recipe: str, method: str, overrides: Settings, settings: Settings, *, optim: Settings, burn_in: int
) -> Config:
    """The recipe's settings with the overrides; a dict such as mask={"every": 1} changes only the fields it names."""
    masked = method.startswith("part")
    chosen = {
        "recipe": recipe,
        "objective": {"name": METHODS[method]},
        "mask": {"rule": "mean" if masked else "none"},
        "burn_in": {"epochs": burn_in if masked else 0},
        "optim": optim,
    }
    base = Config.model_validate(_merged(settings, chosen))
    given = overrides.keys() | {f"{k}.{name}" for k, v in overrides.items() if isinstance(v, dict) for name in v}
    auto = [name for name in base.auto if name not in given]
    return config_from(_merged(base.model_dump(), overrides | {"auto": auto}), source=recipe)


def _merged(base: Settings, changes: Settings) -> Settings:
    """The settings with the changes; of a section that is a dict in both, only the named fields change."""
    sections = {k: base[k] | v for k, v in changes.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return base | changes | sections


def _of_method(recipe: Callable[..., Config], method: str, name: str) -> Callable[..., Config]:
    """The recipe of one method, with a name and a text for `help`."""

    def config(**fields: Any) -> Config:
        return recipe(method, **fields)

    config.__name__ = config.__qualname__ = name.replace("-", "_")
    config.__doc__ = f"""{recipe.__doc__}

    `fields` of the config are changed, those of a section by a dict: seed=1, eps_low=6/255, mask={{"rule": "soft"}}.
    """
    return config


RECIPES: dict[str, Callable[..., Config]] = {
    name.format(method): _of_method(recipe, method, name.format(method))
    for name, recipe in {
        "shapes-{}": shapes,
        "shapes-vit-{}": shapes_vit,
        "cifar10-{}": cifar10,
        "cifar10-{}-fast": cifar10_fast,
        "cifar10-{}-strong": cifar10_strong,
        "cifar10-vit-{}": cifar10_vit,
        "cifar100-{}": cifar100,
        "svhn-{}": svhn,
        "tinyimagenet-{}": tinyimagenet,
        "folder-{}": folder,
    }.items()
    for method in METHODS
}


def __dir__() -> list[str]:
    return ["RECIPES", *(name.replace("-", "_") for name in RECIPES)]


def __getattr__(name: str) -> Callable[..., Config]:
    """`recipes.cifar10_part` is RECIPES["cifar10-part"]."""
    recipe = RECIPES.get(name.replace("_", "-"))
    if recipe is None:
        raise AttributeError(f"unknown recipe {name!r}; choose from {', '.join(RECIPES)}")
    return recipe
