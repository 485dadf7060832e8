"""The two scales of an experiment, and the arms that several experiments share: same label, same config, one run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pixelpart import recipes
from pixelpart.config import Config

Arms = dict[str, Config]  # by label, without seeds

METHODS = ("AT", "PART", "TRADES", "PART-T", "MART", "PART-M")
BASELINES = {"PART": "AT", "PART-T": "TRADES", "PART-M": "MART"}
EPS = 8 / 255


@dataclass(frozen=True)
class Scale:
    """How large the runs of an experiment are; its methods return the configs of arms."""

    name: str
    data: str
    epochs: int
    burn_in: int  # of arms with a mask
    images: int | None  # the first n test images; None: all
    area: float  # share of the pixels that the rule `mean` marks, as measured
    recipe: str = "{data}-{method}"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of all arms, in place of the recipe's
    keep: tuple[int, ...] = ()  # epochs after which AT and PART keep a checkpoint, for heat-maps

    def config(self, method: str, **overrides: Any) -> Config:
        """A method's recipe with these overrides."""
        first = {"epochs": self.burn_in if method.startswith("part") else 0} | overrides.pop("burn_in", {})
        recipe = recipes.RECIPES[self.recipe.format(data=self.data, method=method)]
        return recipe(**{"epochs": self.epochs, **self.settings, "burn_in": first, **overrides})

    def method(self, label: str, **overrides: Any) -> Config:
        """AT, TRADES, MART; PART, PART-T or PART-M with masks of every batch, or stored: "PART s=10"."""
        name, _, every = label.partition(" s=")
        if label in ("AT", "PART s=1") and not overrides:
            overrides["keep"] = self.keep
        if every:
            overrides["mask"] = {"every": int(every)} | overrides.get("mask", {})
        return self.config(name.lower(), **overrides)

    def methods(self, every: int) -> Arms:
        """The six methods, those with a mask storing it for `every` epochs."""
        labels = [f"{name} s={every}" if name in BASELINES else name for name in METHODS]
        return {label: self.method(label) for label in labels}

    def at_and_part(self) -> Arms:
        return {label: self.method(label) for label in ("AT", "PART s=1")}

    def uniform(self, eps: float, **overrides: Any) -> Config:
        """AT with this eps after PART's burn-in, which has 8/255: U7.5 for 7.5/255; U8 is AT."""
        if eps == EPS:
            return self.method("AT", **overrides)
        return self.config("at", eps=eps, burn_in={"epochs": self.burn_in, "eps": EPS}, **overrides)

    def mean(self, high: float, low: float) -> float:
        """The mean budget, in [0,1] units, of the rule `mean` with these levels of 255."""
        return (low + self.area * (high - low)) / 255


PAPER = Scale("paper", "cifar10", epochs=80, burn_in=20, images=None, area=0.5, keep=(30, 40, 50, 60))
DEMO = Scale(
    "demo", "shapes", epochs=4, burn_in=1, images=500, area=0.4, keep=(2, 3, 4),
    settings={"batch_size": 32},  # twice the recipe's steps, since there are few epochs
)  # fmt: skip
SCALES = {scale.name: scale for scale in (PAPER, DEMO)}
FAST = replace(PAPER, recipe="{data}-{method}-fast", epochs=30, burn_in=8, keep=())  # the recipe for studies


def uniform_label(eps: float) -> str:
    """U7.5 for 7.5/255."""
    return f"U{255 * eps:.4g}"


def masked_pairs(labels: Any) -> list[tuple[str, str]]:
    """Each label with a mask and its baseline: "PART s=10" and AT, and so on."""
    return [(label, base) for label in labels for name, base in BASELINES.items() if label.split(" ")[0] == name]
