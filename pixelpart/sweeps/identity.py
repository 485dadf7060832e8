"""The identity of a run: a hash of all that decides its result, equal for configs that only spell it differently.

No torch is imported here.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from pixelpart.config import ADDED, NAMING_FIELDS, Config, flat, is_user_code
from pixelpart.runs import RunFolder

Fields = dict[str, Any]  # JSON values by dotted name
NOT_DECISIVE = (*NAMING_FIELDS, "num_classes", "classes", "init_from")  # by themselves

OF_MAPS = {"mask.layer": "features", "mask.target": "predicted"}  # with their defaults
OTHER_SOURCES = ("margin", "centre", "quadrant", "blobs", "object")
NOT_READ = {"gradient": ("mask.layer",), **dict.fromkeys(OTHER_SOURCES, tuple(OF_MAPS))}


def identity(config: Config, *, folder: Path | None = None) -> str:
    """The name of the run's folder in a sweep: 16 hexadecimal digits.

    A fork is identified by its own fields and its parent's identity. If an unforked run with a burn-in would give the
    same weights, the fork gets that run's identity. `folder` is the run's own: the parent may also be found next to it.
    """
    fields = canonical(config)
    if config.init_from:
        parent_folder, epoch = parent_of(config, folder)
        parent = RunFolder(parent_folder).read_config()
        unforked = equivalent_unforked(config, parent, epoch)
        forked = fields | {"init_from": [identity(parent, folder=parent_folder), epoch]}
        fields = canonical(unforked) if unforked else forked
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def canonical(config: Config) -> Fields:
    """The fields that decide the result, apart from init_from; burn-in's eps and objective are spelled out."""
    skipped = unused(config)
    return {name: v for name, v in spelled_out(config).items() if name not in skipped and ADDED.get(name, ...) != v}


def spelled_out(config: Config) -> Fields:
    """All fields, each in one form: what "same" means in burn-in, decays that are reached, what a source reads."""
    fields = flat(config)
    fields |= {name: OF_MAPS[name] for name in NOT_READ.get(config.mask.source.partition(":")[0], ())}
    for name, other in {"burn_in.eps": "eps", "burn_in.objective": "objective.name"}.items():
        if fields[name] == "same":
            fields[name] = fields[other]
    if fields.get("holdout_seed") == config.seed:
        fields["holdout_seed"] = "same"
    fields["optim.decay_at"] = sorted(epoch for epoch in config.optim.decay_at if epoch < config.epochs)
    return fields


def unused(config: Config) -> set[str]:
    """The fields that do not decide the result of this config."""
    fields, masked = spelled_out(config), config.mask.rule != "none"
    main, first = fields["objective.name"], fields["burn_in.objective"]
    # held-out images choose the best checkpoint after burn-in only; eps_from starts there
    same = (main, fields["eps"]) == (first, fields["burn_in.eps"]) and not masked and not config.holdout
    no_burn_in = not config.burn_in.epochs or (same and fields.get("eps_from", "same") == "same")
    rules = {
        "mask.": not masked,
        "mask.mean_over": not config.mask.mean,
        "eps_low": not masked,
        "burn_in.": no_burn_in,
        "objective.beta": {main} | (set() if no_burn_in else {first}) == {"at"},
        "optim.decay_at": config.optim.schedule != "step",
        "optim.warmup": config.optim.schedule not in ("cyclic", "cosine"),
        "awp.": not config.awp.gamma or config.awp.after >= config.epochs,
        "holdout_seed": not config.holdout,
        "size": is_user_code(config.dataset),  # set when training starts
        "channels": is_user_code(config.dataset),
        **dict.fromkeys(NOT_DECISIVE, True),
    }
    return {
        name
        for name in fields
        for rule, skip in rules.items()
        if skip and (name.startswith(rule) if rule.endswith(".") else name == rule)
    }


# -- burn-ins


@functools.cache
def burn_in(config: Config, epochs: int) -> str | None:
    """All that decides the first epochs, as JSON; None for a fork, or if they use a mask or change eps or objective."""
    fields = spelled_out(config)
    main = {"burn_in.eps": fields["eps"], "burn_in.objective": fields["objective.name"]}
    first = _first_phase(config)
    constant = first == main and config.mask.rule == "none" and fields.get("eps_from", "same") == "same"
    if config.init_from or (epochs > config.burn_in.epochs and not constant):
        return None
    fields |= first | {"optim.decay_at": [epoch for epoch in fields["optim.decay_at"] if epoch < epochs]}
    skipped = unused(config) - {*first, "objective.beta"}
    skipped |= {"eps", "eps_low", "eps_from", "objective.name", "probe", "burn_in.epochs"}
    skipped |= set() if config.optim.schedule in ("cyclic", "cosine") else {"epochs"}
    skipped |= {"objective.beta"} if first["burn_in.objective"] == "at" else set()
    skipped |= {"awp.gamma", "awp.after"} if config.awp.after >= epochs else set()
    kept = {name: value for name, value in fields.items() if name not in skipped and not name.startswith("mask.")}
    return json.dumps(kept | {"burn_in.epochs": epochs}, sort_keys=True)


def equivalent_unforked(config: Config, parent: Config, epochs: int) -> Config | None:
    """The config of a run that trains the fork's first epochs itself, as burn-in, with the same result; else None."""
    if not epochs:  # it took only weights
        return None
    values = config.model_dump(mode="json") | {"init_from": ""}
    if config.burn_in.epochs <= epochs:
        counted = canonical(config).get("mask.every") or values.get("eps_from", "same") != "same"  # from its end
        if counted and config.burn_in.epochs < epochs:
            return None
        first = {name.removeprefix("burn_in."): value for name, value in _first_phase(parent).items()}
        values["burn_in"] = first | {"epochs": epochs}
    try:
        unforked = Config.model_validate(values)
    except ValueError:  # such as a burn-in that leaves no epoch
        return None
    theirs = burn_in(parent, epochs)
    return unforked if theirs is not None and burn_in(unforked, epochs) == theirs else None


def _first_phase(config: Config) -> Fields:
    """eps and objective of the first epoch."""
    fields = spelled_out(config)
    names = ("burn_in.eps", "burn_in.objective") if config.burn_in.epochs else ("eps", "objective.name")
    return dict(zip(("burn_in.eps", "burn_in.objective"), (fields[name] for name in names), strict=True))


def parent_of(config: Config, folder: Path | None) -> tuple[Path, int]:
    """The folder and the epoch that a run is forked from."""
    run, epoch = config.fork_source
    paths = [Path(run), *([folder.parent / Path(run).name] if folder else [])]
    return next((path for path in paths if (path / "config.json").exists()), paths[0]), epoch
