"""A sweep as a TOML file: a base recipe, fixed fields, and fields that vary, in every combination or zipped."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelpart.config import DEFAULT_ATTACKS, Config, Section, flat, read_config, validation_message, with_fields
from pixelpart.errors import UserError, choose, unknown
from pixelpart.files import parse_toml, read_text
from pixelpart.recipes import RECIPES
from pixelpart.sweeps.work import Job

Values = dict[str, Any]


class GridFile(Section):
    """The file as it is written."""

    base: str
    attacks: str | tuple[str, ...] = DEFAULT_ATTACKS
    checkpoint: str = Field("best", pattern=r"^(best|last|epoch-\d+)$")
    images: int | None = Field(None, ge=1)
    split: Literal["test", "held-out"] = "test"
    threads: int = Field(1, ge=1)
    set: Values = Field(default_factory=dict)
    grid: Values = Field(default_factory=dict)
    zip: Values = Field(default_factory=dict)
    slurm: Values = Field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    jobs: list[Job]
    threads: int  # of a job
    slurm: Values


def read_grid(path: Path) -> Grid:
    """The jobs of a grid file; every mistake is a UserError of one line."""
    try:
        file = GridFile.model_validate(parse_toml(read_text(path)))
        return Grid(_jobs(file), file.threads, file.slurm)
    except ValidationError as error:
        raise UserError(f"{path}: {validation_message(error, fields=list(GridFile.model_fields))}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _jobs(file: GridFile) -> list[Job]:
    from pixelpart.engine.training_data import with_data_fields
    from pixelpart.evaluation.attack_spec import parse_attack

    attacks = file.attacks.split(",") if isinstance(file.attacks, str) else file.attacks
    attacks = list(dict.fromkeys(attack.strip() for attack in attacks))
    for attack in attacks:
        parse_attack(attack)
    is_path = file.base.endswith((".toml", ".json"))
    base = (
        read_config(Path(file.base))
        if is_path
        else choose(RECIPES, file.base, "recipe", listed="`pixelpart train` lists all")()
    )
    jobs: dict[str, Job] = {}
    labels: dict[str, str] = {}
    for fields in _combinations(file):
        label = " ".join(f"{name}={value}" for name, value in fields.items())
        config = with_fields(base, fields, source=label)
        if config.dataset.startswith("folder:"):
            config = with_data_fields(config)  # what follows from the pictures is part of a run's identity
        job = Job(config, tuple(attacks), file.checkpoint, file.images, file.split)
        if job.id in jobs:
            raise UserError(f"two combinations are the same run: {labels[job.id]} and {label}")
        jobs[job.id], labels[job.id] = job, label
    return list(jobs.values())


def _combinations(file: GridFile) -> list[Values]:
    """The fields that each run sets, by dotted name."""
    fixed, grid, zipped = (_by_name(getattr(file, part), part) for part in ("set", "grid", "zip"))
    if twice := (fixed.keys() & grid.keys()) | (zipped.keys() & (fixed.keys() | grid.keys())):
        raise UserError(f"{', '.join(sorted(twice))}: given twice, in [set], [grid] or [zip]")
    for part, fields in {"grid": grid, "zip": zipped}.items():
        for name, values in fields.items():
            if not isinstance(values, list) or not values:
                raise UserError(f"[{part}] {name} needs a list of values, not {values!r}")
    if len({len(values) for values in zipped.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(values)}" for name, values in zipped.items())
        raise UserError(f"[zip] needs lists of one length: {lengths}")
    together = [dict(zip(zipped, values, strict=True)) for values in zip(*zipped.values(), strict=True)]
    combined = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [fixed | some | others for some in together or [{}] for others in combined]


def _by_name(values: Values, part: str, prefix: str = "") -> Values:
    """The values by dotted name, as in "mask.rule", which may also be written as nested tables or with dashes."""
    known = [name for name in flat(Config()) if name not in ("schema_version", "recipe", "auto")]
    by_name: Values = {}
    for key, value in values.items():
        name = prefix + ("dataset" if key == "data" else key.replace("-", "_"))
        if isinstance(value, dict) and not prefix:
            by_name |= _by_name(value, part, f"{name}.")
        elif name not in known:
            raise unknown(f"field in [{part}]", name, known)
        else:
            by_name[name] = value
    return by_name
