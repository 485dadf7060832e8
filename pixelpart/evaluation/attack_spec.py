"""An attack as it was asked for: its name taken apart, and all that its outcome depends on besides model and images."""

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pixelpart import draws
from pixelpart.attacks import ATTACKS, COMBINED, SEARCHES, VERSIONS, ball
from pixelpart.attacks.autoattack import autoattack, possible_searches
from pixelpart.attacks.search import Search
from pixelpart.config import Config, parse_fraction, write_fraction
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy, adaptive, identity
from pixelpart.evaluation.reference import check_classes, release, under_reference
from pixelpart.evaluation.searching import under_searches
from pixelpart.evaluation.store import Entry
from pixelpart.view.borrow import borrowed

VERSION = 1  # raised when outcomes change though no source does
ENGINES = ("own", "reference")  # who runs autoattack
GRADIENT_FREE = ("natural", "square")  # what runs on any model, also where no gradient reaches its input
AUTOATTACKS = {"autoattack": "standard", "autoattack-plus": "plus"}
RADII = {"l2": 0.5, "l1": 12.0}  # eps in these norms, unless an attack's name has its own: the usual ones for CIFAR-10


@dataclass(frozen=True)
class AttackSpec:
    """An attack as it was asked for: its name, taken apart."""

    name: str
    kind: str  # natural, a name in ATTACKS, ADAPTIVE or SEARCHES, or autoattack
    steps: int = 0
    restarts: int = 0
    parts: Mapping[str, Search] = field(default_factory=dict)  # of an attack that is made of searches
    eps: float | None = None  # its own, in place of the one for all

    @property
    def plain(self) -> str:
        """The name without an eps."""
        return self.name.partition("@")[0]

    @property
    def norm(self) -> str:
        """In which the change is at most eps: linf, l2 or l1."""
        return next((part.norm for part in self.parts.values()), "linf")


def parse_attack(name: str) -> AttackSpec:
    """An attack by its name, which may end in an eps of its own: pgd20, pgd20@16/255, apgd-l2@0.5."""
    plain, at, eps = name.partition("@") if isinstance(name, str) else (name, "", "")
    attack = parse_plain(plain)
    if not at:
        return dataclasses.replace(attack, eps=RADII.get(attack.norm, attack.eps))
    if attack.kind == "natural":
        raise UserError(f"{name!r}: natural changes nothing, so it has no eps")
    if attack.kind in adaptive.THROUGH_MASK:
        budget = " and ".join(str(write_fraction(level)) for level in (adaptive.EPS_HIGH, adaptive.EPS_LOW))
        raise UserError(f"{name!r}: the paper sets the budget of {plain}, {budget} by the model's mask; it has no eps")
    try:
        number = parse_fraction(eps)
    except ValueError as error:
        raise UserError(f"attack {name!r}: {error}") from None
    most = 1 if attack.norm == "linf" else math.inf
    return dataclasses.replace(attack, name=name, eps=in_range(f"{plain}'s eps", number, most=most))


def parse_plain(name: str) -> AttackSpec:
    """natural, a search by its name, or another attack with its steps and, after an x, its restarts: pgd20x5."""
    if name == "natural":
        return AttackSpec(name, "natural")
    if name in AUTOATTACKS:
        return AttackSpec(name, "autoattack", parts=VERSIONS[AUTOATTACKS[name]])
    if name in SEARCHES:
        return AttackSpec(name, name, parts={name: SEARCHES[name]})
    if name in COMBINED:
        return AttackSpec(name, name, parts=COMBINED[name])
    kinds = "|".join(map(re.escape, sorted((*ATTACKS, *adaptive.ADAPTIVE), key=len, reverse=True)))
    pattern = rf"({kinds})([1-9][0-9]{{0,5}})(?:x([1-9][0-9]{{0,5}}))?"
    if isinstance(name, str) and (match := re.fullmatch(pattern, name)):
        eps = adaptive.EPS_HIGH if match[1] in adaptive.THROUGH_MASK else None
        return AttackSpec(name, match[1], int(match[2]), int(match[3] or 1), eps=eps)
    raise UserError(f"unknown attack {name!r}; choose from {choices()}")


def choices() -> str:
    """What may be asked for, in words."""
    stepped = ", ".join(f"{kind}K, {kind}KxR" for kind in ATTACKS)
    named = ", ".join((*(f"{kind}K" for kind in adaptive.ADAPTIVE), *SEARCHES, *COMBINED, *AUTOATTACKS))
    return f"natural, {stepped} (K steps, R restarts), {named}; NAME@EPS gives an attack an eps of its own"


def fitted(
    attack: AttackSpec, classes: int, *, engine: str, say: Callable[[str], None] = lambda line: None
) -> AttackSpec:
    """The attack without the searches that need more classes than there are; a UserError where none is left."""
    if attack.parts and engine == "reference":
        check_classes(classes)
        return attack
    parts = possible_searches(attack.parts, classes)
    if attack.parts and not parts:
        fewest = min(part.min_classes for part in attack.parts.values())
        raise UserError(f"{attack.name} needs at least {fewest} classes, not {classes}")
    for name in attack.parts.keys() - parts.keys():
        say(f"{attack.name} without {name}, which needs {attack.parts[name].min_classes} classes: there are {classes}")
    return dataclasses.replace(attack, parts=parts)


def facts_of(
    attack: AttackSpec,
    *,
    eps: float,
    step_size: float,
    seed: int,
    search: str,
    engine: str,
    gradients: str = "fp32",
    config: Config | None = None,
) -> Entry:
    """What the outcome depends on besides model and images; nothing is drawn and nothing moved for `natural`.

    `search` is the precision of searches, `gradients` that of attacks by so many steps. Adaptive attacks take the mask
    from the run's config.
    """
    if attack.kind == "natural":
        return {"kind": "natural", "version": VERSION, "eps": 0.0, "seed": 0, "settings": {}}
    settings: dict[str, Any] = {"steps": attack.steps, "step_size": step_size, "restarts": attack.restarts}
    if attack.parts:
        if engine == "reference" and attack.kind != "autoattack":
            raise UserError(f"the engine reference runs {', '.join(AUTOATTACKS)} alone, not {attack.name}")
        settings = {"engine": engine, "search": "fp32" if engine == "reference" else search}
        settings["parts"] = {
            name: {"steps": part.steps, "targets": part.targets, "restarts": part.restarts}
            for name, part in attack.parts.items()
        }
    elif gradients != "fp32":
        settings["search"] = gradients
    if attack.kind in adaptive.ADAPTIVE:
        settings |= adaptive.settings_of(attack.kind, config)
    if attack.norm != "linf":
        settings["norm"] = attack.norm
    eps = eps if attack.eps is None else attack.eps
    return {"kind": attack.kind, "version": VERSION, "eps": eps, "seed": seed, "settings": settings}


def source_of(attack: AttackSpec, *, engine: str = "own") -> list[Any]:
    """What computes an outcome, apart from the model: the text of it, and an attack's entry in the table."""
    shared = [identity.source_of(accuracy), identity.sources_of(borrowed)]
    if attack.kind == "natural":
        return shared
    if attack.parts and engine == "reference":
        return [*shared, identity.sources_of(under_reference), release()]
    if attack.parts:
        return [*shared, identity.sources_of(under_searches), identity.sources_of(autoattack)]
    if attack.kind in adaptive.ADAPTIVE:
        return [*shared, identity.sources_of(adaptive.under_adaptive)]
    parts = [identity.source_of(part) for part in (ball, draws)]
    return [*shared, *parts, ATTACKS[attack.kind].starts, identity.sources_of(ATTACKS[attack.kind].run)]


def in_range(what: str, value: Any, *, most: float = 1) -> float:
    """A number in (0, most]; never a budget: a reduced budget would flatter a defence."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"{what} is a {type(value).__name__}; evaluate takes one number for all pixels, such as 8/255")
    number = float(value)
    if not 0 < number <= most:
        hint = f"; {number:g} of 255 levels is {number:g}/255" if most == 1 and 1 < number <= 255 else ""
        limit = f" and at most {most:g}" if most < math.inf else ""
        raise UserError(f"{what} {number:g} is not above 0{limit}{hint}")
    return number


def check_radius(attack: AttackSpec, pixels: int) -> None:
    """A UserError where an l2 or l1 ball is larger than the cube of all images with so many pixels, colours counted."""
    if attack.norm != "linf":
        most = math.sqrt(pixels) if attack.norm == "l2" else pixels
        in_range(f"{attack.plain}'s eps", attack.eps, most=most)
