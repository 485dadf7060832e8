"""`evaluate`: how many images a model classifies correctly, as they are and under attack.

The files that an image passes under AutoAttack, in reading order:

    evaluation/attack_spec.py  the name "autoattack" as four searches
    evaluation/target.py       model and images from the arguments
    evaluation/images.py       a batch in [0,1] on the device; checks before any attack
    evaluation/store.py        the kept result of this model, images and attack, if there is one
    evaluation/partial.py      what a stopped evaluation had settled
    evaluation/measure.py      what is correct without an attack, and is attacked
    view/check.py, view/views.py   the faster network that is searched through: folded, on a GPU in bf16
    attacks/autoattack.py      the searches in turn, each on what is still correct
    attacks/batching.py        rows of a batch, each at its own step; the model itself decides
    attacks/search.py          what all searches have: state, best image so far, targets
    attacks/apgd.py, fab.py, square.py    one step of each search
    attacks/ball.py            the projection into the budget, and the check at the end
    evaluation/statistics.py   the interval of the accuracy
    evaluation/results.py      what is returned, and the entry of eval.json
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from pixelpart.config import DEFAULT_ATTACKS, DEFAULT_EPS, DEFAULT_SEED, Size
from pixelpart.errors import UserError
from pixelpart.evaluation.adaptive import check_mask
from pixelpart.evaluation.attack_spec import choices, parse_attack, resolve
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.images import check_gradient, checked_logits
from pixelpart.evaluation.measure import clean_logits, measure
from pixelpart.evaluation.results import Outcome, Result
from pixelpart.evaluation.store import NOT_STORED, ResultKey, ResultStore
from pixelpart.evaluation.target import load_target
from pixelpart.runs import Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.runtime.world import SINGLE_PROCESS, World
from pixelpart.types import Logits
from pixelpart.view.borrow import borrowed


def evaluate(
    model: Run | str | Path | nn.Module,
    *,
    attacks: str | Iterable[str] = DEFAULT_ATTACKS,
    eps: float | str = DEFAULT_EPS,
    step_size: float | str | None = None,
    split: str = "test",
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = DEFAULT_SEED,
    search: str = "auto",
    engine: str = "own",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: Size = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    world: World = SINGLE_PROCESS,
) -> Result:
    """The accuracy of a model on [0,1] images under each attack, within eps or the attack's own (pgd20@16/255).

    PGD and MMA take steps of `step_size`, by default 2/255, or a quarter of the attack's eps if that is less.

    The model is a Run, an nn.Module, or the name of a run folder, a .safetensors checkpoint, a .pt2 archive of
    torch.export or a `module:function`. `data` is the name of a data set, whose test split is used (`size` and
    `skip_bad` as in `data.load`), or (images, labels); runs and checkpoints use their own by default. With
    `split="held-out"` it is the training images that the run held out, in the data set's order. `images` uses the first
    n.

    A run's results are kept in its folder, those of a checkpoint in `out`, those of any other model in `out` under
    `name`. A kept result is reused for the same model, images and settings, and a killed evaluation continues where it
    stopped. A sample's outcome does not depend on batch_size, apart from rounding.

    Attacks search in fp32 or bf16, and fp32 decides; "auto" is bf16 for AutoAttack and its searches on a GPU, else
    fp32. `engine="reference"` runs autoattack by its authors' code. The processes of a world share the images of each
    attack; all return the same result, and the first writes it.
    """
    if callable(attacks):
        attacks = [attacks]
    names = [attack.strip() for attack in attacks.split(",")] if isinstance(attacks, str) else attacks
    specs = [
        parse_attack(attack, eps=eps, step_size=step_size, seed=seed, search=search, engine=engine)
        for attack in dict.fromkeys(names)
    ]
    if not specs:
        raise UserError(f"no attacks requested; choose from {choices()}")
    target = load_target(
        model, checkpoint=checkpoint, split=split, data=data, size=size, skip_bad=skip_bad, images=images,
        batch_size=batch_size, device=device, root=root, out=out, name=name, say=say,
    )  # fmt: skip
    store, pictures = ResultStore(target, writes=world.leads), target.pictures
    if store.folder is None:
        say(NOT_STORED)
    with ieee_fp32(pictures.device), borrowed(target.model) as net:
        probe = checked_logits(net, pictures)
        specs = [resolve(spec, target, probe.shape[1], say) for spec in specs]
        if any(spec.needs_gradient for spec in specs):
            check_gradient(net, pictures)
        if masks := [spec.mask for spec in specs if spec.mask]:
            check_mask(net, *pictures.first(1), masks[0])
        model_key = ResultKey.of(net, target, probe)
        keys = {spec.name: dataclasses.replace(model_key, attack=spec.key_facts) for spec in specs}
        outcomes = _kept_results(store, keys, world, progress)
        missing = [spec for spec in specs if spec.name not in outcomes]
        warnings = sanity.attack_warnings(net, target, missing)
        clean: Logits | None = None
        for spec in missing:
            with store.partial(keys[spec.name], world) as partial:
                if clean is None or spec.kind == "natural":  # again for natural, whose seconds are those of this pass
                    clean = clean_logits(net, pictures)
                measured = measure(net, pictures, spec, clean, partial=partial, progress=progress, say=say, world=world)
                outcomes[spec.name] = store.add(
                    keys[spec.name],
                    measured.spec.entry_facts,
                    measured.correct.numpy(),
                    warnings=warnings[spec.name] + sanity.square_warnings(measured.left_after, len(pictures)),
                    seconds=partial.write_seconds(),
                )
                if world.leads:
                    partial.discard()
    return Result({spec.name: outcomes[spec.name] for spec in specs})


def _kept_results(
    store: ResultStore, keys: dict[str, ResultKey], world: World, progress: Progress
) -> dict[str, Outcome]:
    """The kept results, by attack; one that some process of the world does not find is measured by all."""
    found = {attack: store.find(key, attack) for attack, key in keys.items()}
    missing = world.any_of(torch.tensor([outcome is None for outcome in found.values()]))
    kept = {}
    for (attack, outcome), absent in zip(found.items(), missing.tolist(), strict=True):
        if outcome is not None and not absent:
            kept[attack] = outcome
            progress(attack, outcome.n, outcome.n, f"{outcome.accuracy:.2%} correct")
    return kept
