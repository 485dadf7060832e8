"""`evaluate`: how many test images a model gets right, as they are and under attack."""

import functools
import numbers
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import defaults
from pixelpart.attacks.autoattack import default_slots
from pixelpart.errors import UserError, unknown
from pixelpart.evaluation import accuracy, cache, guards, identity
from pixelpart.evaluation.asked import AUTOATTACKS, ENGINES, Asked, choices, facts_of, parse_attack, source_of
from pixelpart.evaluation.cache import Entry, FlagArray
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.outcome import Outcome, Result
from pixelpart.evaluation.reference import under_reference
from pixelpart.evaluation.searching import choose_search, under_searches
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.subject import Subject, resolve
from pixelpart.frozen import frozen
from pixelpart.precision import full_precision
from pixelpart.run import Run
from pixelpart.types import Flags

Progress = Callable[[str, int, int, float], None]  # attack, how much of it is done, of how much, share still right


def evaluate(
    subject: Run | str | Path | nn.Module,
    *,
    attacks: str | Iterable[str] = defaults.ATTACKS,
    eps: float = defaults.EPS,
    step_size: float = defaults.STEP_SIZE,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = defaults.SEED,
    search: str = "auto",
    engine: str = "own",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
    data: str | tuple[Tensor, Tensor] | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> Result:
    """The accuracy of a model on [0,1] images, under each attack within eps of every pixel.

    The model is a Run or an nn.Module, or it is named: a run folder, a .safetensors checkpoint, a .pt2 archive of
    torch.export, or `module:function`. `data` is a set's name, whose test split is taken, or (images, labels); runs and
    checkpoints bring their own. `images` takes the first so many. A run's results go to its folder, all others to `out`
    if that is given; what is there already for the same model, pixels and settings is reused, and what was stopped
    goes on from the samples it had settled. A sample's outcome does not depend on batch_size, but for rounding.

    AutoAttack and its parts search in fp32 or bf16 ("auto": bf16 on a GPU); fp32 decides. `engine="reference"` hands
    autoattack to its authors' own code.
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
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    them = resolve(subject, checkpoint=checkpoint, data=data, images=images, device=device, root=root, out=out)
    search = choose_search(search, them.pictures.device)
    batch_size = batch_size or default_slots(them.pictures.device)
    entries = cache.read_entries(them.folder) if them.folder else []
    outcomes: dict[str, Outcome] = {}
    with full_precision(them.pictures.device), frozen(them.model) as model:
        signature = identity.signature(accuracy.check_model(model, them.pictures, probes=identity.PROBES))
        if any(attack.kind != "natural" for attack in wanted):
            accuracy.check_gradient(model, them.pictures, probes=identity.PROBES)
        about = {"weights": identity.hash_weights(model), "model": identity.describe(model), "precision": "fp32"}
        about["pixels"] = identity.hash_pixels(them.pictures)
        looked = functools.cache(lambda look: look(model, them.pictures))  # only if something is measured
        clean: FlagArray | None = None
        for attack in wanted:
            facts = facts_of(attack, eps=eps, step_size=step_size, seed=seed, search=search, engine=engine)
            asked = identity.digest([about, facts, source_of(attack)])
            found = cache.find(them.folder, entries, asked=asked, probe=signature) if them.folder else None
            tell = progress or _silent
            if found:
                outcome = _recall(them, *found)
                tell(attack.name, outcome.n, outcome.n, outcome.accuracy)
            else:
                if attack.kind != "natural" and clean is None:
                    clean = accuracy.natural(model, them.pictures, batch_size=batch_size).numpy()
                doubts = [*them.doubts, *looked(guards.of_model)]
                if attack.kind != "natural":
                    doubts += [*looked(guards.of_gradients), *guards.of_settings(eps, facts["settings"])]
                with Journal(_journal_file(them, asked), asked=asked, probe=signature) as journal:
                    work = Work(attack, facts, batch_size, journal, tell, doubts, say)
                    right = _measure(model, them, work, clean).numpy()
                    seconds = journal.note_time()
                    outcome = _record(attack, them, facts, right, seconds, asked=asked, probe=signature, doubts=doubts)
                    journal.discard()
            outcomes[attack.name] = outcome
            if attack.kind == "natural":
                clean = outcome.right
    return Result(outcomes)


@dataclass(frozen=True)
class Work:
    """What is to be done, where it is written down, and who is told."""

    attack: Asked
    facts: Entry
    batch_size: int
    journal: Journal
    tell: Progress
    doubts: list[str]
    say: Callable[[str], None]

    def doubt(self, line: str) -> None:
        """Goes with the figure, and is told once."""
        if line not in self.doubts:
            self.doubts.append(line)
            self.say(line)


def _measure(model: nn.Module, them: Subject, work: Work, clean: FlagArray | None) -> Flags:
    """Which samples one attack leaves right."""
    name, facts, n = work.attack.name, work.facts, len(them.pictures)

    def report(settled: int, right: int) -> None:
        work.tell(name, settled, n, right / max(settled, 1))

    if work.attack.kind == "natural":
        return accuracy.natural(model, them.pictures, batch_size=work.batch_size, report=report)
    assert clean is not None
    right, limits = torch.from_numpy(clean), {"eps": facts["eps"], "seed": facts["seed"]}
    if not work.attack.parts:
        return accuracy.under_attack(
            model,
            them.pictures,
            kind=work.attack.kind,
            right=right,
            **limits,
            **facts["settings"],
            batch_size=work.batch_size,
            journal=work.journal,
            report=report,
        )
    if facts["settings"]["engine"] == "reference":
        version = AUTOATTACKS[name]
        return under_reference(model, them.pictures, right=right, **limits, version=version, batch_size=work.batch_size)
    single = len(work.attack.parts) == 1
    return under_searches(
        model,
        them.pictures,
        work.attack.parts,
        right=right,
        **limits,
        search=facts["settings"]["search"],
        slots=work.batch_size,
        journal=work.journal,
        tell=lambda part, done, total, share: work.tell(name if single else f"{name} {part}", done, total, share),
        say=work.doubt,
    )


def _journal_file(them: Subject, asked: str) -> Path | None:
    return them.folder / "eval" / f"{asked[:32]}.journal" if them.folder else None


def _record(
    attack: Asked,
    them: Subject,
    facts: Entry,
    right: FlagArray,
    seconds: float,
    *,
    asked: str,
    probe: list[float],
    doubts: list[str],
) -> Outcome:
    """The outcome, written down where there is a folder for it."""
    correct, n = int(right.sum()), len(right)
    key = identity.digest([asked, probe])[:32]
    entry = {
        "attack": attack.name, **them.tags, "accuracy": correct / n, "interval": list(wilson(correct, n)),
        "correct": correct, "n": n, "eps": facts["eps"], "settings": facts["settings"], "seed": facts["seed"],
        "precision": "fp32", "doubts": doubts, "seconds": round(seconds, 3),
        "machine": _machine(them.pictures.device),
        "flags": f"eval/{key}.npy" if them.folder else None, "fingerprint": cache.fingerprint(right),
        "key": key, "asked": asked, "probe": probe,
    }  # fmt: skip
    if them.folder:
        cache.add(them.folder, entry, right)
    return Outcome(entry, right, reused=False)


def _recall(them: Subject, entry: Entry, right: FlagArray) -> Outcome:
    """A stored outcome, entered once more if it stands under another name there: best and last may be one model.

    How the model came is told anew; what was found out about it is in the entry.
    """
    kept = [doubt for doubt in entry["doubts"] if doubt != guards.TRAIN_MODE]
    named = entry | them.tags | {"doubts": [*them.doubts, *kept]}
    if named != entry and them.folder:
        cache.add(them.folder, named, right)
    return Outcome(named, right, reused=True)


def _in_range(what: str, value: Any) -> float:
    """A number in (0, 1]; never a budget: a reduced budget would flatter a defence."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"{what} is a {type(value).__name__}; evaluate takes one number for all pixels, such as 8/255")
    number = float(value)
    if not 0 < number <= 1:
        hint = f"; {number:g} of 255 levels is {number:g}/255" if 1 < number <= 255 else ""
        raise UserError(f"{what} {number:g} is not above 0 and at most 1{hint}")
    return number


def _silent(attack: str, done: int, total: int, share: float) -> None:
    pass


def _machine(device: torch.device) -> str:
    """What did the work, in words, without saying whose it is."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
