"""The page of a sweep folder: arms with their means, plots, every run, training curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pixelpart.config import parse_fraction
from pixelpart.report import commands, comparisons, table
from pixelpart.report.arms import ArmResults, Fields, ReportedArm, by_method, collect, name_by_fields, varying
from pixelpart.report.formatting import count, describe_data, enumerate_words
from pixelpart.report.run import ReportedRun, read_runs, shared_settings
from pixelpart.runtime.tables import group_warnings
from pixelpart.sweeps.work import JobFiles, last_line


def sweep_content(folder: Path) -> dict[str, Any]:
    """The variables of sweep.html."""
    runs = read_runs(sorted(path.parent for path in folder.glob("runs/*/config.json")))
    fields = varying(runs)
    arms = sweep_arms(runs, fields)
    for arm in arms:
        for run in arm.runs:
            if error := last_line(JobFiles(folder, run.path.name).error):
                run.notes.insert(0, f"failed: {error}")
    shared = {name: value for name, value in shared_settings(runs).items() if name not in fields[runs[0].path]}
    return {"lead": lead(arms), "shared": shared, **runs_content(collect(arms), fields)}


def runs_content(measured: ArmResults, fields: Mapping[Path, Fields]) -> dict[str, Any]:
    """The variables of the sections that sweeps and experiments share."""
    from pixelpart.report import curves, plots  # import matplotlib

    for arm in measured.arms:
        for run in arm.runs:
            run.label, run.place = f"{arm.label} seed={run.config.seed}", arm.place
    runs = [run for arm in measured.arms for run in arm.runs]
    results = {
        run: result
        for arm in measured.arms
        for run, result in zip(arm.runs, measured.results.runs[arm.label], strict=True)
    }
    return {
        "arms": [(arm, arm_cells(measured, arm)) for arm in measured.arms],
        "columns": list(measured.columns.values()),
        "fields": list(fields[runs[0].path]),
        "context": measured.context,
        **plots.plot_section(measured),
        "method_pairs": comparisons.compare_methods(measured),
        "run_pairs": [],
        "runs": runs,
        "fields_of": {run: fields[run.path] for run in runs},
        "values_of": {run: result.values for run, result in results.items()},
        "warnings_of": {run: result.warnings for run, result in results.items()},
        "warnings": group_warnings(
            (f"{run.label}, {measured.columns[key].name}", warnings)
            for run, result in results.items()
            for key, warnings in result.warnings.items()
        ),
        "commands": {run: commands.run_commands(run, table.result_rows(run)) for run in runs},
        "panels": curves.draw_panels(runs),
        "measured": curves.measured_on(runs),
        "burn_in": any(run.burn_in for run in runs),
    }  # fmt: skip


def sweep_arms(runs: Sequence[ReportedRun], fields: Mapping[Path, Fields]) -> list[ReportedArm]:
    """Runs that differ only in their seed, sorted and named by the other fields in which they differ."""
    groups = [sorted(group, key=lambda run: run.config.seed) for group in by_method(runs)]
    groups.sort(key=lambda group: [_order(v) for name, v in fields[group[0].path].items() if name != "seed"])
    names = name_by_fields(groups, fields)
    return [ReportedArm(name, group, place) for place, (name, group) in enumerate(zip(names, groups, strict=True))]


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers and fractions first, by size; then text; then what is not used."""
    try:
        return (2, 0.0, "") if value is None else (0, float(parse_fraction(value)), "")
    except (TypeError, ValueError):
        return 1, 0.0, str(value)


def arm_cells(measured: ArmResults, arm: ReportedArm) -> dict[str, dict[str, Any]]:
    """Mean and interval, as fractions, number of seeds and warnings, by the key of the column."""
    cells = {key: measured.cell(arm, column) for key, column in measured.columns.items()}
    return {
        key: {
            "mean": cell.mean / 100,
            "interval": [end / 100 for end in cell.interval] if cell.interval else None,
            "seeds": len(cell.values),
            "warnings": cell.warnings,
        }
        for key, cell in cells.items()
        if cell
    }


def lead(arms: Sequence[ReportedArm]) -> str:
    runs = [run for arm in arms for run in arm.runs]
    sets = enumerate_words(list(dict.fromkeys(describe_data(run.config.data_label) for run in runs)))
    numbers = sorted({len(arm.runs) for arm in arms})
    seeds = count(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    text = f"{count(len(runs), 'run')} on {sets}: {count(len(arms), 'arm')} with {seeds} each."
    unfinished = sum(run.epochs_done < run.config.epochs or not run.measurements for run in runs)
    return f"{text} {count(unfinished, 'run')} not finished or not evaluated yet." if unfinished else text
