"""`evaluate`: how many test images a model gets right, as they are and under attack."""

import functools
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart.attacks.autoattack import default_slots
from pixelpart.config import DEFAULT_ATTACKS, DEFAULT_EPS, DEFAULT_SEED, DEFAULT_STEP_SIZE
from pixelpart.errors import UserError, unknown
from pixelpart.evaluation import accuracy, adaptive, identity, store
from pixelpart.evaluation.attack_spec import (
    ENGINES,
    GRADIENT_FREE,
    AttackSpec,
    check_radius,
    choices,
    facts_of,
    fitted,
    in_range,
    parse_attack,
    source_of,
)
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.measuring import Progress, Work, measure
from pixelpart.evaluation.result import Outcome, Result
from pixelpart.evaluation.searching import choose_search
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.store import Entry, FlagArray
from pixelpart.evaluation.target import Target, load_target
from pixelpart.runs import Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.world import World
from pixelpart.view.borrow import borrowed

ALONE = World()


def evaluate(
    subject: Run | str | Path | nn.Module,
    *,
    attacks: str | Iterable[str] = DEFAULT_ATTACKS,
    eps: float = DEFAULT_EPS,
    step_size: float = DEFAULT_STEP_SIZE,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = DEFAULT_SEED,
    search: str = "auto",
    engine: str = "own",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: int = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
    world: World = ALONE,
) -> Result:
    """The accuracy of a model on [0,1] images, under each attack within eps of every pixel, or its own (pgd20@16/255).

    The model is a Run or an nn.Module, or it is named: a run folder, a .safetensors checkpoint, a .pt2 archive of
    torch.export, or `module:function`. `data` is a set's name, whose test split is taken, or (images, labels); runs and
    checkpoints bring their own. `size` and `skip_bad` are those of `data.load`. `images` takes the first so many. A
    run's results go to its folder, all others to `out` if that is given; what is there already for the same model,
    pixels and settings is reused, and what was stopped
    goes on from the samples it had settled. A sample's outcome does not depend on batch_size, but for rounding.

    Processes of one world share the images of each attack; all return the same result, and the first one writes.
    Attacks search in fp32 or bf16, and fp32 decides; "auto" is bf16 on a GPU for AutoAttack and its parts, which go on
    where fp32 does not confirm, and fp32 for all others. `engine="reference"` hands autoattack to its authors' code.
    """
    names = [name.strip() for name in attacks.split(",")] if isinstance(attacks, str) else attacks
    wanted = [parse_attack(name) for name in dict.fromkeys(names)]
    if not wanted:
        raise UserError(f"no attacks named; choose from {choices()}")
    if any(attack.kind != "natural" for attack in wanted):
        eps, step_size = in_range("eps", eps), in_range("step_size", step_size)
    for what, count in (("images", images), ("batch_size", batch_size)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"{what} {count!r} is not a whole number above 0")
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    target = load_target(
        subject,
        checkpoint=checkpoint,
        data=data,
        size=size,
        skip_bad=skip_bad,
        images=images,
        device=device,
        root=root,
        out=out,
    )
    for attack in wanted:
        check_radius(attack, target.pictures.images[0].numel())
    tell_facts = functools.partial(
        facts_of,
        eps=eps,
        step_size=step_size,
        seed=seed,
        search=choose_search(search, target.pictures.device),
        gradients="fp32" if search == "auto" else search,
        engine=engine,
    )
    for attack in wanted:
        tell_facts(attack, config=target.config)  # a mistake in one is told before any is run
    batch_size = batch_size or default_slots(target.pictures.device)
    entries = store.read_entries(target.folder) if target.folder else []
    outcomes: dict[str, Outcome] = {}
    with ieee_fp32(target.pictures.device), borrowed(target.model) as model:
        logits = accuracy.check_model(model, target.pictures, probes=identity.PROBES)
        signature = identity.signature(logits)
        wanted = [fitted(attack, logits.shape[1], engine=engine, say=say) for attack in wanted]
        if any(attack.kind not in GRADIENT_FREE for attack in wanted):
            accuracy.check_gradient(model, target.pictures, probes=identity.PROBES)
        if any(attack.kind in adaptive.ADAPTIVE for attack in wanted):
            adaptive.check_mask(model, target.pictures, target.config)
        about = {"weights": identity.hash_weights(model), "model": identity.describe(model), "precision": "fp32"}
        about["pixels"] = identity.hash_pixels(target.pictures)
        looked = functools.cache(lambda look: look(model, target.pictures))  # only if something is measured
        clean: FlagArray | None = None
        for attack in wanted:
            facts = tell_facts(attack, config=target.config)
            asked = identity.digest([about, facts, source_of(attack, engine=engine)])
            found = store.find(target.folder, entries, asked=asked, probe=signature) if target.folder else None
            if bool(world.any_of(torch.tensor([found is None]))):  # one that came later may have found what came since
                found = None
            tell = progress or _silent
            if found:
                outcome = _recall(attack, target, *found, keep=world.leads)
                tell(attack.name, outcome.n, outcome.n, outcome.accuracy)
            else:
                if attack.kind != "natural" and clean is None:
                    clean = accuracy.natural(model, target.pictures, batch_size=batch_size).numpy()
                warnings = [*target.warnings, *looked(sanity.model_warnings)]
                if attack.kind not in GRADIENT_FREE:
                    warnings += [
                        *looked(sanity.gradient_warnings),
                        *sanity.settings_warnings(facts["eps"], facts["settings"]),
                    ]
                file = _journal_file(target, asked, world) if attack.kind != "natural" else None
                question = _question(attack, target, facts)
                with Journal(file, asked=asked, probe=signature, question=question) as journal:
                    work = Work(attack, facts, batch_size, journal, tell, warnings, say)
                    right = measure(model, target, work, clean, world)
                    key = {"asked": asked, "probe": signature, "pixels": about["pixels"]}
                    outcome = _record(work, target, right, key, keep=world.leads)
                    if world.leads:
                        journal.discard()
            outcomes[attack.name] = outcome
            if attack.kind == "natural":
                clean = outcome.right
    return Result(outcomes)


def _journal_file(target: Target, asked: str, world: World) -> Path | None:
    whose = f".{world.rank}-of-{world.size}" if world.size > 1 else ""
    return target.folder / "eval" / f"{asked[:32]}{whose}.journal" if target.folder else None


def _question(attack: AttackSpec, target: Target, facts: Entry) -> str | None:
    """A hash of what a reader would take for the same question; None where two models cannot be told apart by it."""
    if not target.tags["checkpoint"]:
        return None
    named = [target.tags[name] for name in ("subject", "checkpoint", "dataset", "split")]
    return identity.digest([attack.name, named, len(target.pictures), facts["eps"], facts["settings"], facts["seed"]])


def _record(work: Work, target: Target, right: FlagArray, key: dict[str, Any], *, keep: bool) -> Outcome:
    """The outcome, written down where there is a folder for it."""
    facts, correct, n = work.facts, int(right.sum()), len(right)
    name = identity.digest([key["asked"], key["probe"]])[:32]
    entry = store.sealed({
        "attack": work.attack.name, **target.tags, "accuracy": correct / n, "interval": list(wilson(correct, n)),
        "correct": correct, "n": n, "eps": facts["eps"], "settings": facts["settings"] | work.used,
        "seed": facts["seed"], "precision": "fp32", "warnings": work.warnings,
        "seconds": round(work.journal.note_time(), 3), "machine": machine(target.pictures.device),
        "flags": f"eval/{name}.npy" if target.folder else None, "fingerprint": store.fingerprint(right),
        "key": name, **key,
    })  # fmt: skip
    if target.folder and keep:
        store.add(target.folder, entry, right)
    return Outcome(entry, right, reused=False)


def _recall(attack: AttackSpec, target: Target, entry: Entry, right: FlagArray, *, keep: bool) -> Outcome:
    """A stored outcome, entered once more if it stands under another name there: best and last may be one model.

    How the model came is told anew; what was found out about it is in the entry.
    """
    kept = [warning for warning in entry["warnings"] if warning != sanity.TRAIN_MODE]
    named = store.sealed(entry | target.tags | {"attack": attack.name, "warnings": [*target.warnings, *kept]})
    if named != entry and target.folder and keep:
        store.add(target.folder, named, right)
    return Outcome(named, right, reused=True)


def _silent(attack: str, done: int, total: int, share: float) -> None:
    pass


def machine(device: torch.device) -> str:
    """What did the work, in words, without saying whose it is."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
