"""write_report: run folders, a sweep or experiments in, one self-contained HTML page out."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pixelpart.errors import UserError
from pixelpart.evaluation.checks.obfuscation import SCHEMA
from pixelpart.files import atomic_write
from pixelpart.report import commands, comparisons, explorer, formatting, table
from pixelpart.report.arms import collect, find_arms
from pixelpart.report.experiment import experiment_content, experiments_content
from pixelpart.report.explanation import NO_PICTURES
from pixelpart.report.run import ReportedRun, read_runs, shared_settings
from pixelpart.report.sweep import sweep_content
from pixelpart.report.table import CheckRecord
from pixelpart.runtime.tables import group_warnings

HERE = Path(__file__).parent


def write_report(folders: Sequence[Path], out: Path, *, title: str = "") -> Path:
    """Writes a page about run folders, or about one folder of a sweep or of experiments; returns its path."""
    if not folders:
        raise UserError("a report needs at least one run folder")
    folders, out = [Path(folder) for folder in folders], Path(out)
    if out.is_dir():
        raise UserError(f"cannot write the report to {out}: it is a folder; give a file such as {out / 'report.html'}")
    if out.exists() and not (out.is_file() and b"<!doctype html>" in out.read_bytes()[:4096].lower()):
        raise UserError(f"cannot write the report to {out}: it exists and is not a page; give another file")
    template, own_title, content = _content(folders)
    content |= {
        "title": title or own_title,
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "command": commands.report_command(list(dict.fromkeys(folders)), out),
    }
    page = _environment().get_template(template).render(content)
    try:
        atomic_write(out, page)
    except OSError as error:
        raise UserError(f"cannot write the report to {out}: {error.strerror}") from None
    return out


def _content(folders: Sequence[Path]) -> tuple[str, str, dict[str, Any]]:
    """The template for these folders, its title and its variables."""
    kinds = {folder: kind_of(folder) for folder in folders}
    if set(kinds.values()) == {"run"}:
        return "report.html", "pixelpart report", page_content(read_runs(folders))
    folder, kind = next((folder, kind) for folder, kind in kinds.items() if kind != "run")
    if not kind and any(folder.glob("*/config.json")):
        raise UserError(f"{folder} is not a run folder; {folder}/* means the runs below it")
    if not kind:
        raise UserError(
            f"{folder} is not a run folder, nor one of a sweep or an experiment: it has no config.json, "
            "runs/*/config.json or result.json"
        )
    if len(kinds) > 1:
        raise UserError(f"{folder} is the folder of {kind}, which has a page of its own; give it alone")
    name = folder.resolve().name
    if kind == "a sweep":
        return "sweep.html", f"Sweep {name}", sweep_content(folder)
    if kind == "experiments":
        return "experiment.html", f"Experiments {name}", experiments_content(folder)
    content = experiment_content(folder)
    return "experiment.html", content["experiments"][0].record.title, content


def kind_of(folder: Path) -> str:
    """What wrote the folder, by its files: run, a sweep, an experiment, experiments; "" for anything else."""
    files = {
        "run": "config.json", "an experiment": "result.json", "experiments": "*/result.json",
        "a sweep": "runs/*/config.json",
    }  # fmt: skip
    return next((kind for kind, pattern in files.items() if any(folder.glob(pattern))), "")


def page_content(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """The variables of report.html."""
    from pixelpart.report import curves, plots  # import matplotlib

    rows = [row for run in runs for row in table.result_rows(run)]
    measured = collect(find_arms(runs))
    if not any(run.explanation for run in runs):  # the section of the pictures says so, once
        for run in runs:
            run.notes[:] = [note for note in run.notes if not note.startswith(NO_PICTURES)]
    pixels = explorer.section(runs)
    return {
        "lead": lead(runs, images=pixels["explorer"]["images"]),
        "summary": comparisons.summary(rows, measured),
        "attacks": table.columns(runs),
        "rows": rows,
        "warnings": group_warnings(
            (f"{row.run.label}, {attack}", m.warnings) for row in rows for attack, m in row.cells.items()
        ),
        "checked": [(run, check) for run in runs if (check := run.read_record("check.json", SCHEMA, CheckRecord))],
        "corrupted": [row for run in runs for row in table.corruption_rows(run)],
        "about_models": f"{comparisons.ABOUT_MODELS} {comparisons.ABOUT_SEEDS}",
        "run_pairs": comparisons.compare_runs(rows),
        "method_pairs": comparisons.compare_methods(measured),
        **plots.plot_section(measured),
        "panels": curves.draw_panels(runs),
        "measured": curves.measured_on(runs),
        **pixels,
        "shared": shared_settings(runs),
        "runs": runs,
        "objects": {run: text for run in runs if (text := on_object(run))},
        "commands": {run: commands.run_commands(run, [row for row in rows if row.run is run]) for run in runs},
    }


def lead(runs: Sequence[ReportedRun], *, images: int) -> str:
    """The sentence at the top of the page."""
    sets = list(dict.fromkeys(formatting.describe_data(run.config.data_label) for run in runs))
    what = ["accuracy on clean and attacked images", "training curves"]
    if images:
        what.append(f"the budget of each pixel on {formatting.count(images, 'test image')}")
    on, shown = formatting.enumerate_words(sets), formatting.enumerate_words(what)
    return f"{formatting.count(len(runs), 'classifier')} on {on}: {shown}."


def on_object(run: ReportedRun) -> str:
    """The share of the high budget on the object, compared with the object's share of the area."""
    overlap = run.explanation.record.object if run.explanation else None
    if overlap is None:
        return ""
    percent = functools.partial(formatting.percent, digits=1)
    over = f" (over {overlap.n:,} test images)" if overlap.n else ""
    area = f"the object covers {percent(overlap.object_area)} of the area{over}"
    share = overlap.high_budget_on_object
    if run.config.mask.rule == "none" or share is None:
        text = f"{area}, and the budget is the same at all pixels"
    else:
        ratio = share / overlap.object_area if overlap.object_area else 1.0
        text = f"{percent(share)} of the high-budget pixels are on the object; {area}: {ratio:.1f} times its share"
    if overlap.heat_on_object is not None:
        text += f". {percent(overlap.heat_on_object)} of the heat is on the object"
    if overlap.dead:
        text += f". {formatting.count(overlap.dead, 'image')} with a heat map of zeros left out"
    return f"{text}."


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": formatting.percent, "fraction": formatting.fraction, "duration": formatting.duration,
    }  # fmt: skip
    return environment
