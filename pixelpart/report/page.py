"""write_report: run folders in, one self-contained HTML page out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pixelpart.config import flat
from pixelpart.errors import UserError
from pixelpart.evaluation.checks.obfuscation import SCHEMA
from pixelpart.files import atomic_write
from pixelpart.report import checks, commands, comparisons, curves, explorer, formatting, pictures, table
from pixelpart.report.checks import CheckRecord
from pixelpart.report.pictures import Explanation
from pixelpart.report.run import ReportedRun, number, read_runs

HERE = Path(__file__).parent


def write_report(run_dirs: Sequence[Path], out: Path, *, title: str = "pixelpart report") -> Path:
    """Writes a page that shows the run folders side by side; returns its path."""
    if not run_dirs:
        raise UserError("a report needs at least one run folder")
    out = Path(out)
    if out.is_dir():
        raise UserError(f"cannot write the report to {out}: it is a folder; give a file such as {out / 'report.html'}")
    runs = read_runs([Path(path) for path in run_dirs])
    page = _environment().get_template("report.html").render(page_content(runs, out), title=title)
    try:
        atomic_write(out, page)
    except OSError as error:
        raise UserError(f"cannot write the report to {out}: {error.strerror}") from None
    return out


def page_content(runs: Sequence[ReportedRun], out: Path) -> dict[str, Any]:
    """The variables of the template."""
    rows = [row for run in runs for row in table.result_rows(run)]
    explanations = [pictures.read_explanation(run) for run in runs]
    pixels = explorer.section(runs, explanations)
    return {
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "lead": lead(runs, images=pixels["explorer"]["images"]),
        "summary": comparisons.summary(rows),
        "attacks": table.columns(runs),
        "rows": rows,
        "warnings": checks.group_warnings(rows),
        "checked": [
            (run.label, check) for run in runs if (check := run.read_record("check.json", SCHEMA, CheckRecord))
        ],
        "corrupted": [row for run in runs for row in checks.corruption_rows(run)],
        "about_models": f"{comparisons.ABOUT_MODELS} {comparisons.ABOUT_SEEDS}",
        "run_pairs": comparisons.compare_runs(rows),
        "method_pairs": comparisons.compare_methods(runs),
        "panels": [(panel, Markup(panel.svg)) for panel in curves.draw_panels(runs)],
        "measured": measured_on(runs),
        **pixels,
        "differing": differing_settings(runs),
        "command": commands.report_command([run.path for run in runs], out),
        "runs": [_run(run, place, rows, explanations[place]) for place, run in enumerate(runs)],
    }


def lead(runs: Sequence[ReportedRun], *, images: int) -> str:
    """The sentence at the top of the page."""
    sets = formatting.enumerate_words(list(dict.fromkeys(run.config.dataset for run in runs)))
    what = ["accuracy on clean and attacked images", "training curves"]
    if images:
        what.append(f"the budget of each pixel on {formatting.count(images, 'test image')}")
    return f"{formatting.count(len(runs), 'classifier')} on {sets}: {formatting.enumerate_words(what)}."


def measured_on(runs: Sequence[ReportedRun]) -> str:
    """The images of the solid lines."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        for kind in dict.fromkeys(str(row["measured_on"]) for row in run.metrics if row.get("measured_on")):
            kinds.setdefault(kind, []).append(run.label)
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'held-out')} images"
    return " and ".join(f"{kind} images ({formatting.enumerate_words(labels)})" for kind, labels in kinds.items())


def differing_settings(runs: Sequence[ReportedRun]) -> set[str]:
    settings = [flat(run.config) for run in runs]
    return {name for name in settings[0] if any(other[name] != settings[0][name] for other in settings)}


def _run(
    run: ReportedRun, place: int, rows: Sequence[table.ResultRow], explanation: Explanation | None
) -> dict[str, Any]:
    trained = sum(s for row in run.metrics if (s := number(row, "seconds")) == s)
    return {
        "colour": place % curves.COLOURS,
        "mark": curves.MARKERS[place % len(curves.MARKERS)][1],
        "label": run.label,
        "config": run.config,
        "epochs_done": run.epochs_done,
        "trained": formatting.duration(trained) if trained else "",
        "burn_in": curves.burn_in(run),
        "notes": run.notes,
        "train_command": commands.train_command(run.config, run.path),
        "evaluations": [_evaluation(row) for row in rows if row.run is run],
        "explained": explanation.record if explanation else None,
        "object": on_object(run, explanation),
        "settings": flat(run.config),
    }


def _evaluation(row: table.ResultRow) -> dict[str, Any]:
    """A row's commands, one for each number of images, engine and precision; and the row's machines."""
    groups: dict[tuple[int, str, str], list] = {}
    for m in sorted(row.cells.values(), key=lambda m: m.attack != "natural"):
        groups.setdefault((m.n, m.engine, m.gradients), []).append(m)
    found = [commands.evaluate_command(row.run.config, row.run.path, group) for group in groups.values()]
    return {
        "commands": [command for command in found if command],
        "given": not all(found),
        "machines": list(dict.fromkeys(m.machine for m in row.cells.values() if m.machine)),
    }


def on_object(run: ReportedRun, explanation: Explanation | None) -> str:
    """The share of the high budget on the object, compared with the object's share of the area."""
    found = explanation.record.object if explanation else None
    if found is None:
        return ""
    percent = formatting.percent
    over = f" (over {found.n:,} test images)" if found.n else ""
    area = f"the object covers {percent(found.object_area)} of the area{over}"
    share = found.high_budget_on_object
    if run.config.mask.rule == "none" or share is None:
        text = f"{area}, and the budget is the same at all pixels"
    else:
        ratio = share / found.object_area if found.object_area else 1.0
        text = f"{percent(share)} of the high-budget pixels are on the object; {area}: {ratio:.1f} times its share"
    if found.heat_on_object is not None:
        text += f". {percent(found.heat_on_object)} of the heat is on the object"
    if found.dead:
        text += f". {formatting.count(found.dead, 'image')} with a heat map of zeros left out"
    return f"{text}."


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": formatting.percent, "fraction": formatting.fraction, "duration": formatting.duration,
    }  # fmt: skip
    return environment
