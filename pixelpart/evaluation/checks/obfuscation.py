"""`check`: does a model resist attacks, or only hide its gradients? Five behaviours as one report, a verdict each."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart.attacks.autoattack import default_slots
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED, DEFAULT_STEP_SIZE, split_data_label
from pixelpart.errors import UserError
from pixelpart.evaluation import store
from pixelpart.evaluation.attack_spec import AUTOATTACKS, in_range
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.checks.behaviours import (
    EXPECTED,
    STEPS,
    SUSPICIOUS,
    Behaviour,
    Trial,
    black_box,
    growing_eps,
    one_step,
    random_points,
    unbounded,
)
from pixelpart.evaluation.checks.surrogate import MAX_TRAINING_IMAGES, train_surrogate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.measure import natural
from pixelpart.evaluation.partial import agree
from pixelpart.evaluation.target import GIVEN, Target, load_target
from pixelpart.evaluation.validate import check_counts, check_gradient, check_model
from pixelpart.files import atomic_write
from pixelpart.runs import Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.view.borrow import borrowed

SCHEMA = 1  # layout of check.json
IMAGES = 1000  # looked at unless told otherwise
WHITE_BOX = ("apgd-ce", "apgd-t", "fab-t")  # AutoAttack's parts that follow gradients


@dataclass(frozen=True)
class ObfuscationReport:
    """The five behaviours, what else speaks against the figures, and what was looked at."""

    behaviours: list[Behaviour]
    warnings: list[str]
    facts: dict[str, Any]
    kept: Path | None = None  # the check.json

    def __getitem__(self, name: str) -> Behaviour:
        return next(one for one in self.behaviours if one.name == name)

    @property
    def verdict(self) -> str:
        """Suspicious if one behaviour is, or if there is a warning."""
        bad = self.warnings or any(one.verdict == SUSPICIOUS for one in self.behaviours)
        return SUSPICIOUS if bad else EXPECTED

    def as_json(self) -> dict[str, Any]:
        found = [asdict(one) for one in self.behaviours]
        return store.sealed({
            "schema_version": SCHEMA, "verdict": self.verdict, **self.facts, "behaviours": found,
            "warnings": self.warnings,
        })  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{one.name:<11}  {one.verdict:<11}  {one.found}" for one in self.behaviours]
        lines += [f"* {warning}" for warning in self.warnings]
        bad = [one.name for one in self.behaviours if one.verdict == SUSPICIOUS]
        why = f": {', '.join([*bad, *(['warnings'] if self.warnings else [])])}" if bad or self.warnings else ""
        return "\n".join([*lines, f"verdict: {self.verdict}{why}; n = {self.facts['n']}"])


def check(
    subject: Run | str | Path | nn.Module,
    *,
    surrogate: Run | str | Path | nn.Module | None = None,
    eps: float = DEFAULT_EPS,
    step_size: float = DEFAULT_STEP_SIZE,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = DEFAULT_SEED,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = silent,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: int = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> ObfuscationReport:
    """Whether a model shows the five behaviours of obfuscated gradients, on the first 1000 test images or `images`.

    `subject`, `data`, `checkpoint`, `root` and `out` are as in `evaluate`. `surrogate` is another model for the same
    images; without one a small one is trained where the training set is small, else the black-box behaviour is skipped.
    The report of a run goes to check.json in its folder, all others to `out` if that is given.
    """
    began = time.perf_counter()
    eps, step_size = in_range("eps", eps), in_range("step_size", step_size)
    check_counts(images=images, batch_size=batch_size)
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
    if target.folder and target.folder.exists() and not os.access(target.folder, os.W_OK):  # told before the work
        raise UserError(f"cannot write the report to {target.folder}; choose another out")
    pictures = target.pictures
    if images is None:
        pictures = ImageSet(pictures.images[:IMAGES], pictures.labels[:IMAGES], pictures.device)
    with ieee_fp32(pictures.device), borrowed(target.model) as model:
        probe = store.signature(check_model(model, pictures))
        check_gradient(model, pictures)
        batch = batch_size or default_slots(pictures.device)
        right = natural(model, pictures, batch_size=batch)
        if not right.any():
            raise UserError(f"the model gets none of {len(right)} images right: there is nothing to attack")
        trial = Trial(model, pictures, right, eps, step_size, seed, batch, progress)
        other, about = another(trial, target, surrogate, root)
        warnings = [
            *target.warnings,
            *sanity.model_warnings(model, pictures),
            *sanity.gradient_warnings(model, pictures),
            *sanity.settings_warnings(eps, {"steps": STEPS, "step_size": step_size}),
            *(stored_square_warnings(target.folder, probe, eps) if target.folder else []),
        ]
        left = trial.after("pgd20", trial.pgd20())
        behaviours = [
            one_step(trial, left),
            black_box(trial, left, other, about),
            unbounded(trial),
            random_points(trial, left),
            growing_eps(trial, left),
        ]
    facts = {
        **target.tags, "n": len(pictures), "natural": trial.share(right), "eps": eps, "step_size": step_size,
        "steps": STEPS, "seed": seed, "seconds": round(time.perf_counter() - began, 3),
        "machine": store.machine(pictures.device),
    }  # fmt: skip
    kept = target.folder / "check.json" if target.folder else None
    report = ObfuscationReport(behaviours, list(dict.fromkeys(warnings)), facts, kept)
    if kept:
        atomic_write(kept, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")
    return report


def stored_square_warnings(folder: Path, probe: list[float], eps: float) -> list[str]:
    """What eval.json tells of AutoAttack on this model: its warnings, and Square's share where the parts ran singly."""
    warnings: list[str] = []
    flags: dict[str, dict[str, store.FlagArray]] = {}
    for entry in store.read_entries(folder):
        if entry.get("eps") != eps or not store.complete(entry) or not agree(entry["probe"], probe):
            continue
        attack = str(entry["attack"]).partition("@")[0]
        if attack in AUTOATTACKS:
            warnings += entry["warnings"]
        elif (found := store.read_flags(folder, entry)) is not None:
            flags.setdefault(str(entry.get("pixels")), {})[attack] = found
    for one in flags.values():
        if one.keys() >= {*WHITE_BOX, "square"}:
            white = one[WHITE_BOX[0]] & one[WHITE_BOX[1]] & one[WHITE_BOX[2]]
            left = {"white-box": int(white.sum()), "square": int((white & one["square"]).sum())}
            warnings += sanity.square_warnings(left, len(white))
    return warnings


def another(trial: Trial, target: Target, surrogate: Any, root: str | Path | None) -> tuple[nn.Module | None, str]:
    """Another model for the same images and words for it, or none and why not; one that will not do is a UserError."""
    pictures, name = trial.pictures, target.tags["dataset"]
    if surrogate is None:
        hint = "give another model for the same images (--surrogate RUN)"
        if name == GIVEN:
            return None, f"the images came without a training set to train a surrogate on; {hint}"
        plain, size, skip_bad = split_data_label(name)
        if (n := sets.find(plain, size=size, skip_bad=skip_bad).counts["train"]) > MAX_TRAINING_IMAGES:
            return None, f"{name} has {n} training images, too many to train a surrogate on the way; {hint}"
        made = train_surrogate(
            name, eps=trial.eps, seed=trial.seed, device=pictures.device, root=root, progress=trial.progress
        )
        return made, "a tiny-cnn trained for it"
    other = load_target(surrogate, data=(pictures.images, pictures.labels), device=pictures.device)
    if other.config and name != GIVEN and other.config.data_label != name:
        raise UserError(f"the surrogate is for {other.config.data_label}, the model for {name}; give one for {name}")
    with borrowed(other.model) as model:
        probes = [check_model(one, pictures) for one in (trial.model, model)]
        classes = [probe.shape[1] for probe in probes]
        if classes[0] != classes[1]:
            raise UserError(f"the surrogate knows {classes[1]} classes, the model {classes[0]}")
        check_gradient(model, pictures)
        if store.hash_weights(trial.model) == store.hash_weights(model) and agree(*map(store.signature, probes)):
            raise UserError("the surrogate is the model itself; give another")
    return other.model, "a module" if isinstance(surrogate, nn.Module) else str(getattr(surrogate, "dir", surrogate))
