"""An attack as it was asked for: its name taken apart, and all that its outcome depends on besides model and images."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pixelpart import draws
from pixelpart.attacks import ATTACKS, SEARCHES, VERSIONS, ball
from pixelpart.attacks.autoattack import autoattack
from pixelpart.attacks.search import Search
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy, identity
from pixelpart.evaluation.cache import Entry
from pixelpart.evaluation.searching import under_searches
from pixelpart.frozen import frozen

VERSION = 1  # raised when outcomes change though no source does
ENGINES = ("own", "reference")  # who runs autoattack
AUTOATTACKS = {"autoattack": "standard", "autoattack-plus": "plus"}


@dataclass(frozen=True)
class Asked:
    """An attack as it was asked for: its name, taken apart."""

    name: str
    kind: str  # natural, a name in ATTACKS or SEARCHES, or autoattack
    steps: int = 0
    restarts: int = 0
    parts: Mapping[str, Search] = field(default_factory=dict)  # of an attack that is made of searches


def parse_attack(name: str) -> Asked:
    """natural, a search by its name, or an attack in ATTACKS with its steps and, after an x, its restarts: pgd20x5."""
    if name == "natural":
        return Asked(name, "natural")
    if name in AUTOATTACKS:
        return Asked(name, "autoattack", parts=VERSIONS[AUTOATTACKS[name]])
    if name in SEARCHES:
        return Asked(name, name, parts={name: SEARCHES[name]})
    kinds = "|".join(map(re.escape, sorted(ATTACKS, key=len, reverse=True)))
    pattern = rf"({kinds})([1-9][0-9]{{0,5}})(?:x([1-9][0-9]{{0,5}}))?"
    if isinstance(name, str) and (match := re.fullmatch(pattern, name)):
        return Asked(name, match[1], int(match[2]), int(match[3] or 1))
    raise UserError(f"unknown attack {name!r}; choose from {choices()}")


def choices() -> str:
    """What may be asked for, in words."""
    stepped = ", ".join(f"{kind}K, {kind}KxR" for kind in ATTACKS)
    return f"natural, {stepped} (K steps, R restarts), {', '.join(SEARCHES)}, {', '.join(AUTOATTACKS)}"


def facts_of(attack: Asked, *, eps: float, step_size: float, seed: int, search: str, engine: str) -> Entry:
    """What the outcome depends on besides model and images; nothing is drawn and nothing moved for `natural`."""
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
    return {"kind": attack.kind, "version": VERSION, "eps": eps, "seed": seed, "settings": settings}


def source_of(attack: Asked) -> list[Any]:
    """What computes an outcome, apart from the model: the text of it, and an attack's entry in the table."""
    shared = [identity.source_of(accuracy), identity.sources_of(frozen)]
    if attack.kind == "natural":
        return shared
    if attack.parts:
        return [*shared, identity.sources_of(under_searches), identity.sources_of(autoattack)]
    parts = [identity.source_of(part) for part in (ball, draws)]
    return [*shared, *parts, ATTACKS[attack.kind].starts, identity.sources_of(ATTACKS[attack.kind].run)]
