"""In which fields runs differ: labels of jobs, of arms (jobs that differ only in their seed) and of listed runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pixelpart.config import NAMING_FIELDS, Config, flat
from pixelpart.sweeps.identity import unused
from pixelpart.sweeps.work import Job

Row = dict[str, Any]


def differing(jobs: Sequence[Job]) -> list[Row]:
    """The fields in which the jobs' configs differ, for each job; None where the job does not use the field."""
    fields = [flat(job.config) for job in jobs]
    names = [
        n for n in (fields[0] if fields else {}) if n not in NAMING_FIELDS and any(f[n] != fields[0][n] for f in fields)
    ]
    skipped = [unused(job.config) - {"init_from", "mask.rule", "burn_in.epochs"} for job in jobs]
    return [{n: None if n in s else f[n] for n in names} for f, s in zip(fields, skipped, strict=True)]


def describe(jobs: Sequence[Job]) -> dict[str, str]:
    """A label for each job, by its id: the fields in which it differs from the others, else its recipe."""
    labels = (_label(fields) for fields in differing(jobs))
    return {job.id: label or job.config.recipe for job, label in zip(jobs, labels, strict=True)}


def arms(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """Jobs that differ only in their seed, by the other fields in which jobs differ."""
    groups: dict[str, list[Job]] = {}
    for job, fields in zip(jobs, differing(jobs), strict=True):
        groups.setdefault(_label(fields, seed=False) or job.config.recipe, []).append(job)
    return groups


def differing_runs(configs: Mapping[Path, Config]) -> dict[Path, Row]:
    """The fields in which the configs of runs differ, by run folder; None where a run does not use the field.

    Forks of a run next to them, as a shared burn-in leaves them, do not count as different.
    """
    jobs = []
    for path, config in configs.items():
        run, epoch = config.fork_source
        parent = Path(run).name
        shared = epoch > 0 and (path.parent / parent).is_dir()
        jobs.append(Job(config.model_copy(update={"init_from": ""}) if shared else config))
    return dict(zip(configs, differing(jobs), strict=True))


def settings_of_runs(configs: Mapping[Path, Config]) -> dict[Path, str]:
    """By run folder, the fields in which runs of one recipe differ, apart from the seed."""
    recipes: dict[str, dict[Path, Config]] = {}
    for path, config in configs.items():
        recipes.setdefault(config.recipe, {})[path] = config
    groups = [differing_runs(group).items() for group in recipes.values()]
    return {path: _label(fields, seed=False) for group in groups for path, fields in group}


def _label(fields: Row, *, seed: bool = True) -> str:
    return " ".join(f"{name}={v}" for name, v in fields.items() if v is not None and (seed or name != "seed"))
