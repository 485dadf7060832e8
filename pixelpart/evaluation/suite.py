"""`evaluate`: how many test images a model gets right, as they are and under attack."""

import numbers
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import defaults, draws
from pixelpart.attacks import ATTACKS, ball
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy, cache, identity
from pixelpart.evaluation.cache import Entry, FlagArray
from pixelpart.evaluation.outcome import Outcome, Result
from pixelpart.evaluation.precision import full_precision
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.subject import Subject, resolve
from pixelpart.frozen import frozen
from pixelpart.run import Run

Progress = Callable[[str, int, int, int], None]  # attack, images settled, of how many, right so far
VERSION = 1  # raised when outcomes change though no source does


@dataclass(frozen=True)
class Asked:
    """An attack as it was asked for: its name, taken apart."""

    name: str
    kind: str  # natural, or a name in ATTACKS
    steps: int = 0
    restarts: int = 0


def parse_attack(name: str) -> Asked:
    """natural, or the name of an attack in ATTACKS with its steps and, after an x, its restarts: pgd20, pgd20x5."""
    if name == "natural":
        return Asked(name, "natural")
    kinds = "|".join(map(re.escape, sorted(ATTACKS, key=len, reverse=True)))
    pattern = rf"({kinds})([1-9][0-9]{{0,5}})(?:x([1-9][0-9]{{0,5}}))?"
    if isinstance(name, str) and (match := re.fullmatch(pattern, name)):
        return Asked(name, match[1], int(match[2]), int(match[3] or 1))
    raise UserError(f"unknown attack {name!r}; choose from {choices()}")


def choices() -> str:
    """What may be asked for, in words."""
    return ", ".join(["natural", *(f"{kind}K, {kind}KxR" for kind in ATTACKS)]) + ": K steps, R restarts"


def evaluate(
    subject: Run | str | Path | nn.Module,
    *,
    attacks: str | Iterable[str] = defaults.ATTACKS,
    eps: float = defaults.EPS,
    step_size: float = defaults.STEP_SIZE,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = defaults.SEED,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    data: str | tuple[Tensor, Tensor] | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> Result:
    """The accuracy of a run, a run folder or any module on [0,1] images, under each attack within eps of every pixel.

    `data` is a set's name, whose test split is taken, or (images, labels); a run brings its own. `images` takes the
    first so many. A run's results go to its folder, a module's to `out` if that is given; what is there already for the
    same model, pixels and settings is reused. A sample's outcome does not depend on batch_size, but for rounding.
    """
    names = [name.strip() for name in attacks.split(",")] if isinstance(attacks, str) else attacks
    wanted = [parse_attack(name) for name in dict.fromkeys(names)]
    if not wanted:
        raise UserError(f"no attacks named; choose from {choices()}")
    if any(attack.kind != "natural" for attack in wanted):
        eps, step_size = _in_range("eps", eps), _in_range("step_size", step_size)
    for what, count in (("images", images), ("batch_size", batch_size)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"{what} {count!r} is not a whole number above 0")
    them = resolve(subject, checkpoint=checkpoint, data=data, images=images, device=device, root=root, out=out)
    entries = cache.read_entries(them.folder) if them.folder else []
    outcomes: dict[str, Outcome] = {}
    with full_precision(them.pictures.device), frozen(them.model) as model:
        signature = identity.signature(accuracy.check_model(model, them.pictures, probes=identity.PROBES))
        if any(attack.kind != "natural" for attack in wanted):
            accuracy.check_gradient(model, them.pictures, probes=identity.PROBES)
        about = {"weights": identity.hash_weights(model), "model": identity.describe(model), "precision": "fp32"}
        about["pixels"] = identity.hash_pixels(them.pictures)
        clean: FlagArray | None = None
        for attack in wanted:
            facts = _facts(attack, eps=eps, step_size=step_size, seed=seed)
            asked = identity.digest([about, facts, _source(attack.kind)])
            found = cache.find(them.folder, entries, asked=asked, probe=signature) if them.folder else None
            tell = _teller(progress, attack.name, len(them.pictures))
            if found:
                outcome = _recall(them, *found)
                tell(outcome.n, outcome.correct)
            else:
                if attack.kind != "natural" and clean is None:
                    clean = accuracy.natural(model, them.pictures, batch_size=batch_size, report=_silent).numpy()
                right, seconds = _measure(model, them, facts, clean, batch_size=batch_size, tell=tell)
                outcome = _record(attack, them, facts, right, seconds, asked=asked, probe=signature)
            outcomes[attack.name] = outcome
            if attack.kind == "natural":
                clean = outcome.right
    return Result(outcomes)


def _measure(
    model: nn.Module, them: Subject, facts: Entry, clean: FlagArray | None, *, batch_size: int, tell: accuracy.Report
) -> tuple[FlagArray, float]:
    """Which samples one attack leaves right, and the seconds it took."""
    began = time.perf_counter()
    work: dict[str, Any] = {"batch_size": batch_size, "report": tell}
    if facts["kind"] == "natural":
        right = accuracy.natural(model, them.pictures, **work)
    else:
        assert clean is not None
        limits = {"kind": facts["kind"], "eps": facts["eps"], "seed": facts["seed"], **facts["settings"]}
        right = accuracy.under_attack(model, them.pictures, right=torch.from_numpy(clean), **limits, **work)
    return right.numpy(), time.perf_counter() - began


def _record(
    attack: Asked, them: Subject, facts: Entry, right: FlagArray, seconds: float, *, asked: str, probe: list[float]
) -> Outcome:
    """The outcome, written down where there is a folder for it."""
    correct, n = int(right.sum()), len(right)
    key = identity.digest([asked, probe])[:32]
    entry = {
        "attack": attack.name, **them.tags, "accuracy": correct / n, "interval": list(wilson(correct, n)),
        "correct": correct, "n": n, "eps": facts["eps"], "settings": facts["settings"], "seed": facts["seed"],
        "precision": "fp32", "seconds": round(seconds, 3), "machine": _machine(them.pictures.device),
        "flags": f"eval/{key}.npy" if them.folder else None, "fingerprint": cache.fingerprint(right),
        "key": key, "asked": asked, "probe": probe,
    }  # fmt: skip
    if them.folder:
        cache.add(them.folder, entry, right)
    return Outcome(entry, right, reused=False)


def _recall(them: Subject, entry: Entry, right: FlagArray) -> Outcome:
    """A stored outcome, entered once more if it stands under another name there: best and last may be one model."""
    named = entry | them.tags
    if named != entry and them.folder:
        cache.add(them.folder, named, right)
    return Outcome(named, right, reused=True)


def _facts(attack: Asked, *, eps: float, step_size: float, seed: int) -> Entry:
    """What the outcome depends on besides model and images; nothing is drawn and nothing moved for `natural`."""
    if attack.kind == "natural":
        return {"kind": "natural", "version": VERSION, "eps": 0.0, "seed": 0, "settings": {}}
    settings = {"steps": attack.steps, "step_size": step_size, "restarts": attack.restarts}
    return {"kind": attack.kind, "version": VERSION, "eps": eps, "seed": seed, "settings": settings}


def _source(kind: str) -> list[Any]:
    """What computes an outcome, apart from the model: the text of it, and an attack's entry in the table."""
    shared = [identity.source_of(accuracy), identity.sources_of(frozen)]
    if kind == "natural":
        return shared
    parts = [identity.source_of(part) for part in (ball, draws)]
    return [*shared, *parts, ATTACKS[kind].starts, identity.sources_of(ATTACKS[kind].run)]


def _in_range(what: str, value: Any) -> float:
    """A number in (0, 1]; never a budget: a reduced budget would flatter a defence."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"{what} is a {type(value).__name__}; evaluate takes one number for all pixels, such as 8/255")
    number = float(value)
    if not 0 < number <= 1:
        hint = f"; {number:g} of 255 levels is {number:g}/255" if 1 < number <= 255 else ""
        raise UserError(f"{what} {number:g} is not above 0 and at most 1{hint}")
    return number


def _teller(progress: Progress | None, attack: str, total: int) -> accuracy.Report:
    return _silent if progress is None else lambda settled, right: progress(attack, settled, total, right)


def _silent(settled: int, right: int) -> None:
    pass


def _machine(device: torch.device) -> str:
    """What did the work, in words, without saying whose it is."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
