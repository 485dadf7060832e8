"""`check`: does a model hide its gradients, so that attacks fail? A verdict on each of five behaviours."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED, Size, default_step_size, split_data_label
from pixelpart.errors import UserError
from pixelpart.evaluation import store
from pixelpart.evaluation.attack_spec import AUTOATTACKS, in_range
from pixelpart.evaluation.checks import behaviours, sanity
from pixelpart.evaluation.checks.behaviours import EXPECTED, STEPS, SUSPICIOUS, BehaviourResult, CheckedModel
from pixelpart.evaluation.checks.surrogate import MAX_TRAINING_IMAGES, train_surrogate
from pixelpart.evaluation.images import check_gradient, checked_logits
from pixelpart.evaluation.measure import natural
from pixelpart.evaluation.partial import agree
from pixelpart.evaluation.target import GIVEN, Target, load_target
from pixelpart.files import atomic_write
from pixelpart.runs import Run
from pixelpart.runtime.device import machine
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.version import code_version
from pixelpart.view.borrow import borrowed

SCHEMA = 1  # layout of check.json
DEFAULT_IMAGES = 1000


@dataclass(frozen=True)
class ObfuscationReport:
    """The results for the five behaviours, warnings, and the settings of the check."""

    behaviours: list[BehaviourResult]
    warnings: list[str]
    facts: dict[str, Any]
    kept: Path | None = None  # the check.json written

    def __getitem__(self, name: str) -> BehaviourResult:
        return next(behaviour for behaviour in self.behaviours if behaviour.name == name)

    @property
    def suspicious(self) -> list[str]:
        """The names of suspicious behaviours, and "warnings" if there are any."""
        names = [behaviour.name for behaviour in self.behaviours if behaviour.verdict == SUSPICIOUS]
        return [*names, "warnings"] if self.warnings else names

    @property
    def verdict(self) -> str:
        return SUSPICIOUS if self.suspicious else EXPECTED

    def as_json(self) -> dict[str, Any]:
        results = [asdict(behaviour) for behaviour in self.behaviours]
        return store.with_checksum({
            "schema_version": SCHEMA, "verdict": self.verdict, **self.facts, "behaviours": results,
            "warnings": self.warnings,
        })  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{one.name:<11}  {one.verdict:<11}  {one.found}" for one in self.behaviours]
        lines += [f"* {warning}" for warning in self.warnings]
        verdict = behaviours.describe_verdict(self.verdict, self.facts["eps"], self["one step"].numbers["pgd20"])
        why = f": {', '.join(self.suspicious)}" if self.suspicious else ""
        return "\n".join([*lines, f"verdict: {verdict}{why}; n = {self.facts['n']}"])

    __repr__ = __str__


def check(
    model: Run | str | Path | nn.Module,
    *,
    surrogate: Run | str | Path | nn.Module | None = None,
    eps: float = DEFAULT_EPS,
    step_size: float | None = None,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = DEFAULT_SEED,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = silent,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: Size = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> ObfuscationReport:
    """Whether a model shows the five behaviours of obfuscated gradients, on the first `images` test images (or 1000).

    `model`, `data`, `checkpoint`, `root` and `out` are as in `evaluate`. `surrogate` is another model for the same
    images. Without it a small model is trained if the training set is small; otherwise the black-box attack is skipped.
    The report of a run is written to check.json in its folder, that of another model to `out` if given.
    """
    start, code = time.perf_counter(), code_version()
    eps = in_range("eps", eps)
    step_size = default_step_size(eps) if step_size is None else in_range("step_size", step_size)
    target = load_target(
        model, checkpoint=checkpoint, data=data, size=size, skip_bad=skip_bad, images=images, batch_size=batch_size,
        device=device, root=root, out=out,
    )  # fmt: skip
    if target.folder and target.folder.exists() and not os.access(target.folder, os.W_OK):
        raise UserError(f"cannot write the report to {target.folder}; choose another out")
    pictures = target.pictures
    if images is None:
        x, y = (part[:DEFAULT_IMAGES] for part in (pictures.images, pictures.labels))
        pictures = replace(pictures, images=x, labels=y)
    with ieee_fp32(pictures.device), borrowed(target.model) as net:
        probe = store.signature(checked_logits(net, pictures))
        check_gradient(net, pictures)
        correct = natural(net, pictures)
        if not correct.any():
            raise UserError(f"the model classifies none of {len(correct)} images correctly; there is nothing to attack")
        checked = CheckedModel(net, pictures, correct, eps, step_size, seed, progress)
        other, description = load_surrogate(checked, target, surrogate, root)
        warnings = [
            *target.warnings,
            *sanity.model_warnings(net, pictures),
            *chain.from_iterable(sanity.gradient_warnings(net, pictures).values()),
            *sanity.settings_warnings(eps, {"steps": STEPS, "step_size": step_size}),
            *(autoattack_warnings(target.folder, probe, eps) if target.folder else []),
        ]
        under_pgd = checked.robust("pgd20", checked.pgd20())
        results = [
            behaviours.one_step(checked, under_pgd),
            behaviours.black_box(checked, under_pgd, other, description),
            behaviours.unbounded(checked),
            behaviours.random_points(checked, under_pgd),
            behaviours.growing_eps(checked, under_pgd),
        ]
    facts = {
        **target.tags, "n": len(pictures), "natural": checked.share(correct), "eps": eps, "step_size": step_size,
        "steps": STEPS, "seed": seed, "seconds": round(time.perf_counter() - start, 3),
        "machine": machine(pictures.device), "code": code,
    }  # fmt: skip
    kept = target.folder / "check.json" if target.folder else None
    report = ObfuscationReport(results, list(dict.fromkeys(warnings)), facts, kept)
    if kept:
        atomic_write(kept, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")
    return report


def autoattack_warnings(folder: Path, probe: Sequence[float], eps: float) -> list[str]:
    """The warnings that eval.json has for AutoAttack on this model with this eps."""
    return [
        warning
        for entry in store.read_entries(folder)
        if entry.get("eps") == eps and agree(entry.get("probe", []), probe)
        if entry["attack"].partition("@")[0] in AUTOATTACKS
        for warning in entry.get("warnings", [])
    ]


def load_surrogate(
    checked: CheckedModel, target: Target, surrogate: Any, root: str | Path | None
) -> tuple[nn.Module | None, str]:
    """Another model for the same images and its description, or None and the reason; a UserError if unsuitable."""
    pictures, name = checked.pictures, target.tags["dataset"]
    if surrogate is None:
        hint = "give another model for the same images (--surrogate RUN)"
        if name == GIVEN:
            return None, f"the images have no training set to train a surrogate on; {hint}"
        plain, options = split_data_label(name)
        dataset = sets.find(plain, **options)
        if "train" not in dataset.counts or (target.dataset and target.dataset.classes != dataset.classes):
            return None, f"{name} has no training images of all classes to train a surrogate on; {hint}"
        if (n := dataset.counts["train"]) > MAX_TRAINING_IMAGES:
            return None, f"{name} has {n} training images, too many to train a surrogate during a check; {hint}"
        trained = train_surrogate(
            name, eps=checked.eps, seed=checked.seed, device=pictures.device, root=root, progress=checked.progress
        )
        return trained, "a tiny-cnn trained for it"
    num_classes = target.dataset.num_classes if target.dataset else None
    images = pictures.images, pictures.labels
    other = load_target(surrogate, data=images, device=pictures.device, num_classes=num_classes)
    if other.config and name != GIVEN and other.config.data_label != name:
        raise UserError(f"the surrogate is for {other.config.data_label}, the model for {name}; give one for {name}")
    with borrowed(other.model) as model:
        probes = [checked_logits(one, pictures) for one in (checked.model, model)]
        classes = [probe.shape[1] for probe in probes]
        if classes[0] != classes[1]:
            raise UserError(f"the surrogate has {classes[1]} classes, the model {classes[0]}")
        check_gradient(model, pictures)
        if store.hash_weights(checked.model) == store.hash_weights(model) and agree(*map(store.signature, probes)):
            raise UserError("the surrogate is the model itself; give another")
    return other.model, "a module" if isinstance(surrogate, nn.Module) else str(getattr(surrogate, "dir", surrogate))
