"""An attack as it was requested: its name parsed, with all settings that its outcome depends on."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pixelpart.attacks import ATTACKS, COMBINED, SEARCHES, VERSIONS
from pixelpart.attacks.autoattack import possible_searches
from pixelpart.attacks.search import Search
from pixelpart.config import (
    DEFAULT_EPS,
    DEFAULT_SEED,
    Config,
    MaskConfig,
    default_step_size,
    levels_hint,
    parse_fraction,
    write_fraction,
)
from pixelpart.errors import UserError, did_you_mean, unknown
from pixelpart.evaluation import reference
from pixelpart.evaluation.target import Target
from pixelpart.runtime.precision import PRECISIONS

ENGINES = ("own", "reference")  # whose code runs autoattack
AUTOATTACKS = {"autoattack": "standard", "autoattack-plus": "plus"}
GRADIENT_FREE = ("natural", "square")  # also run on a model without gradients
MASK_BUDGET = {"adaptive-pgd": "pgd", "adaptive-mma": "mma"}  # the attack that gets the mask's budget
ADAPTIVE_IN = "adaptive-in"
ATTACKS_PER_RESTART = 4  # attacks that one restart of ADAPTIVE_IN is made of
ADAPTIVE = (*MASK_BUDGET, ADAPTIVE_IN)
CROSS_ENTROPY_ONLY = {"pgd", "adaptive-pgd", *(name for name in SEARCHES if name.startswith("apgd-ce"))}
ADAPTIVE_HIGH, ADAPTIVE_LOW = 12 / 255, 8 / 255  # of MASK_BUDGET, as in the paper
RADII = {"l2": 0.5, "l1": 12.0}  # default eps in these norms: the usual ones for CIFAR-10


@dataclass(frozen=True)
class AttackSpec:
    """One attack with all its settings; `resolve` adds those that depend on the model and the images."""

    name: str  # as requested: pgd20x5@16/255
    kind: str  # natural, or a key of ATTACKS, SEARCHES, COMBINED, AUTOATTACKS or ADAPTIVE
    eps: float = 0.0
    seed: int = 0
    steps: int = 0
    restarts: int = 0
    step_size: float = 0.0
    searches: Mapping[str, Search] = field(default_factory=dict)  # of an attack that consists of searches
    search: str = "fp32"  # the precision in which the attack looks for errors, or auto; fp32 always decides
    engine: str = "own"
    mask: MaskConfig | None = None  # of an adaptive attack

    @property
    def norm(self) -> str:
        """The norm that eps bounds: linf, l2 or l1."""
        return next((search.norm for search in self.searches.values()), "linf")

    @property
    def bound(self) -> str:
        """The bound in words, such as `eps 8/255`, `l2 eps 0.5`, or `eps 12/255 and 8/255` of a mask's two levels."""
        if self.norm != "linf":
            return f"{self.norm} eps {self.eps:g}"
        levels = (self.eps, ADAPTIVE_LOW) if self.kind in MASK_BUDGET else (self.eps,)
        return f"eps {' and '.join(str(write_fraction(level)) for level in levels)}"

    @property
    def needs_gradient(self) -> bool:
        return self.kind not in GRADIENT_FREE

    @property
    def follows_cross_entropy_only(self) -> bool:
        """Whether no part of the attack follows another loss."""
        return self.kind in CROSS_ENTROPY_ONLY

    @property
    def tries(self) -> int:
        """How often a step attack tries each sample at most."""
        return self.restarts * (ATTACKS_PER_RESTART if self.kind == ADAPTIVE_IN else 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as eval.json has them."""
        if self.kind == "natural":
            return {}
        settings: dict[str, Any] = {"steps": self.steps, "step_size": self.step_size, "restarts": self.restarts}
        if self.searches:
            settings = {"engine": self.engine, "search": self.search}
            settings["parts"] = {
                name: {"steps": search.steps, "targets": search.targets, "restarts": search.restarts}
                for name, search in self.searches.items()
            }
        elif self.search != "fp32":
            settings["search"] = self.search
        if self.mask:
            names = {"cam": "source", "layer": "layer", "rule": "rule", "target": "target"}  # as kept results have them
            settings["mask"] = {name: getattr(self.mask, field) for name, field in names.items()}
        if self.kind in MASK_BUDGET:
            settings["eps_low"] = ADAPTIVE_LOW
        if self.norm != "linf":
            settings["norm"] = self.norm
        return settings

    @property
    def entry_facts(self) -> dict[str, Any]:
        """The fields of an eval.json entry that describe the attack."""
        return {"attack": self.name, "eps": self.eps, "settings": self.settings, "seed": self.seed}

    @property
    def key_facts(self) -> dict[str, Any]:
        """What the outcome depends on besides model and images."""
        facts = {"kind": self.kind, "eps": self.eps, "seed": self.seed, "settings": self.settings}
        return facts | ({"release": reference.release()} if self.engine == "reference" else {})


def parse_attack(
    name: str,
    *,
    eps: float | str = DEFAULT_EPS,
    step_size: float | str | None = None,
    seed: int = DEFAULT_SEED,
    search: str = "auto",
    engine: str = "own",
) -> AttackSpec:
    """The attack of that name, which may end in its own eps: pgd20, pgd20x5@16/255, apgd-l2@0.5; else a UserError.

    Steps are 2/255 long by default, or a quarter of the attack's eps if that is less.
    """
    if search not in ("auto", *PRECISIONS):
        raise unknown("search", search, ("auto", *PRECISIONS))
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if not isinstance(name, str):
        entry = "pp.attacks.ATTACKS['mine'] = pp.attacks.Attack(function)"
        hint = f"; name it by {entry}, and request 'mine20' for 20 steps" if callable(name) else ""
        raise UserError(f"attack {getattr(name, '__name__', repr(name))} is a {type(name).__name__}, not a name{hint}")
    plain, at, own_eps = name.partition("@")
    spec = _parse_plain(plain)
    if spec.kind == "natural":
        if at:
            raise UserError(f"{name!r}: natural changes no pixel and takes no eps")
        return spec
    if spec.searches and engine == "reference" and spec.kind not in AUTOATTACKS:
        raise UserError(f"engine reference runs only {', '.join(AUTOATTACKS)}, not {name}")
    eps = in_range("eps", eps)
    if step_size is not None:
        step_size = in_range("step_size", step_size)
    if spec.kind in MASK_BUDGET:
        if at:
            levels = " and ".join(str(write_fraction(level)) for level in (ADAPTIVE_HIGH, ADAPTIVE_LOW))
            raise UserError(f"{name!r}: {plain} takes no eps; the paper fixes its budget, {levels} by the model's mask")
        eps = ADAPTIVE_HIGH
    elif at:
        try:
            number = parse_fraction(own_eps)
        except ValueError as error:
            raise UserError(f"attack {name!r}: {error}") from None
        eps = in_range(f"{plain}'s eps", number, most=1 if spec.norm == "linf" else math.inf)
    else:
        eps = RADII.get(spec.norm, eps)
    if not spec.searches:
        engine = "own"
    step_size = default_step_size(eps) if step_size is None else step_size
    return dataclasses.replace(spec, name=name, eps=eps, seed=seed, step_size=step_size, search=search, engine=engine)


def _parse_plain(name: str) -> AttackSpec:
    """natural, an attack made of searches, or another with its steps and, after an x, its restarts: pgd20x5."""
    if name == "natural":
        return AttackSpec(name, "natural")
    if name in AUTOATTACKS:
        return AttackSpec(name, name, searches=VERSIONS[AUTOATTACKS[name]])
    if name in SEARCHES:
        return AttackSpec(name, name, searches={name: SEARCHES[name]})
    if name in COMBINED:
        return AttackSpec(name, name, searches=COMBINED[name])
    kinds = "|".join(map(re.escape, sorted((*ATTACKS, *ADAPTIVE), key=len, reverse=True)))
    pattern = rf"({kinds})([1-9][0-9]{{0,5}})(?:x([1-9][0-9]{{0,5}}))?"
    if match := re.fullmatch(pattern, name):
        return AttackSpec(name, match[1], steps=int(match[2]), restarts=int(match[3] or 1))
    steps = re.search(r"[1-9][0-9]*(x[1-9][0-9]*)?", name)
    stepped = {kind: f"{kind}{steps[0] if steps else 20}" for kind in (*ATTACKS, *ADAPTIVE)}
    known = [stepped[name]] if name in stepped else ["natural", *stepped.values(), *SEARCHES, *COMBINED, *AUTOATTACKS]
    similar = did_you_mean(name, known)
    raise UserError(f"unknown attack {name!r}; {similar}choose from {choices()}")


def choices() -> str:
    """The names of all attacks, for messages."""
    stepped = ", ".join(f"{kind}K, {kind}KxR" for kind in ATTACKS)
    named = ", ".join((*(f"{kind}K" for kind in ADAPTIVE), *SEARCHES, *COMBINED, *AUTOATTACKS))
    return f"natural, {stepped} (K steps, R restarts), {named}; NAME@EPS sets an attack's own eps"


def resolve(spec: AttackSpec, target: Target, classes: int, say: Callable[[str], None]) -> AttackSpec:
    """The attack for this model and these images: `search`, `mask`, and the `searches` that its classes allow.

    A UserError if no search is possible, or if an l2 or l1 ball contains all images.
    """
    if spec.kind == "natural":
        return spec
    if spec.norm != "linf":
        values = target.pictures.images[0].numel()
        in_range(f"{spec.kind}'s eps", spec.eps, most=math.sqrt(values) if spec.norm == "l2" else values)
    if not spec.searches:
        mask = mask_of(target.config) if spec.kind in ADAPTIVE else None
        return dataclasses.replace(spec, search="fp32" if spec.search == "auto" else spec.search, mask=mask)
    if spec.engine == "reference":
        reference.check_classes(classes)
        return dataclasses.replace(spec, search="fp32")
    searches = possible_searches(spec.searches, classes)
    if not searches:
        fewest = min(search.min_classes for search in spec.searches.values())
        raise UserError(f"{spec.name} needs at least {fewest} classes, not {classes}")
    for name in spec.searches.keys() - searches.keys():
        least = spec.searches[name].min_classes
        say(f"{spec.name} runs without {name}, which needs {least} classes; there are {classes}")
    if spec.search == "auto":  # bf16 is several times as fast on a GPU, and fp32 decides
        spec = dataclasses.replace(spec, search="bf16" if target.pictures.device.type == "cuda" else "fp32")
    return dataclasses.replace(spec, searches=searches)


def mask_of(config: Config | None) -> MaskConfig:
    """The mask that an adaptive attack uses: the run's own without its control, or gradcam with the rule mean."""
    if config is None or config.mask.rule == "none":
        return MaskConfig(rule="mean")
    mask = config.mask
    if mask.rule == "rank" or mask.source in ("margin", "blobs", "object"):
        what = f"{mask.source}, rule {mask.rule}"
        raise UserError(f"adaptive attacks need a mask computed from each image alone; this run's is not ({what})")
    return mask.model_copy(update={"control": "none", "mean": 0.0})


def in_range(what: str, value: Any, *, most: float = 1) -> float:
    """The value as a float in (0, most]; a tensor is refused, since a reduced budget would flatter a defence."""
    if isinstance(value, str):
        try:
            value = parse_fraction(value)
        except ValueError as error:
            raise UserError(f"{what} {error}") from None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"{what} is a {type(value).__name__}; evaluate takes one number for all pixels, such as 8/255")
    number = float(value)
    if not 0 < number <= most:
        hint = levels_hint(number) if most == 1 else ""
        limit = f" and at most {most:g}" if most < math.inf else ""
        raise UserError(f"{what} {number:g} is out of range: choose a number above 0{limit}{hint}")
    return number
