"""write_report: the runs' files in, one self-contained HTML page out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pixelpart.config import flat
from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.report import beyond, commands, curves, pictures, table, words
from pixelpart.report.reading import RunFiles, number, read_runs

HERE = Path(__file__).parent


def write_report(run_dirs: Sequence[Path], out: Path, *, title: str = "pixelpart report") -> Path:
    """The path of the page that shows the given run folders side by side."""
    if not run_dirs:
        raise UserError("a report needs at least one run folder")
    out = Path(out)
    if out.is_dir():
        raise UserError(f"cannot write the report to {out}: it is a folder; give a file such as {out / 'report.html'}")
    runs = read_runs([Path(path) for path in run_dirs])
    page = _environment().get_template("report.html").render(content(runs, out), title=title)
    try:
        atomic_write(out, page)
    except OSError as error:
        raise UserError(f"cannot write the report to {out}: {error.strerror}") from None
    return out


def content(runs: Sequence[RunFiles], out: Path) -> dict[str, Any]:
    """All that the template fills in."""
    found = [row for run in runs for row in table.rows(run)]
    checked = [(run.label, report) for run in runs if (report := beyond.checked(run))]
    corrupted = [row for run in runs for row in beyond.corrupted(run)]
    panels = curves.draw_all(runs)
    subjects = pictures.subjects(runs)
    scale = pictures.budget_range(runs)
    return {
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
        "lead": lead(runs, shown=len(subjects)),
        "finding": table.finding(found),
        "runs": [_run(run, place, found) for place, run in enumerate(runs)],
        "attacks": table.columns(runs),
        "rows": found,
        "warnings": beyond.warned(found),
        "checked": checked,
        "corrupted": corrupted,
        "comparisons": table.compare(found),
        "methods": table.methods(runs),
        "panels": [(panel, Markup(panel.svg)) for panel in panels],
        "measured": measured(runs),
        "subjects": subjects,
        "heat_bar": pictures.colour_bar(pictures.HEAT) if subjects else "",
        "budget_bar": pictures.colour_bar(pictures.BUDGET) if subjects else "",
        "budget_levels": [words.fraction(level) for level in scale] if scale else [],
        "three_channels": any(run.arrays and run.arrays["budget"].shape[1] == 3 for run in runs),
        "gains": sorted({f"{0.5 / run.explained.eps:.0f}" for run in runs if run.explained and run.arrays}, key=int),
        "differing": differing(runs),
        "remake": commands.report_command([run.path for run in runs], out),
    }


def lead(runs: Sequence[RunFiles], *, shown: int) -> str:
    """The sentence that opens the page."""
    sets = words.listed(list(dict.fromkeys(run.config.dataset for run in runs)))
    what = ["how often each is right on images as they are and under attack", "how its training went"]
    if shown:
        what.append(f"on which pixels of {words.count(shown, 'test image')} its budget lies")
    return f"{words.sentence(words.count(len(runs), 'classifier'))} of {sets}: {words.listed(what)}."


def measured(runs: Sequence[RunFiles]) -> str:
    """Which images the solid lines were measured on."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        for kind in dict.fromkeys(str(row["measured_on"]) for row in run.metrics if row.get("measured_on")):
            kinds.setdefault(kind, []).append(run.label)
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'held-out')} images"
    return " and ".join(f"{kind} images ({words.listed(labels)})" for kind, labels in kinds.items())


def differing(runs: Sequence[RunFiles]) -> set[str]:
    """Names of the settings in which the runs are not all alike."""
    settings = [flat(run.config) for run in runs]
    return {name for name in settings[0] if any(other[name] != settings[0][name] for other in settings)}


def _run(run: RunFiles, place: int, found: Sequence[table.Row]) -> dict[str, Any]:
    trained = sum(s for row in run.metrics if (s := number(row, "seconds")) == s)
    return {
        "place": place,
        "colour": place % curves.COLOURS,
        "mark": curves.MARKERS[place % len(curves.MARKERS)][1],
        "label": run.label,
        "config": run.config,
        "epochs_done": run.epochs_done,
        "trained": words.seconds(trained) if trained else "",
        "burn_in": curves.burn_in(run),
        "notes": run.notes,
        "train_command": commands.train_command(run.config, run.path),
        "evaluations": [_evaluation(row) for row in found if row.run is run],
        "explained": run.explained,
        "object": on_object(run),
        "settings": flat(run.config),
    }


def _evaluation(row: table.Row) -> dict[str, Any]:
    """A row's commands, by number of images, engine and precision, none for tensors given; and the row's machines."""
    alike: dict[tuple[int, str, str], list] = {}
    for entry in sorted(row.cells.values(), key=lambda entry: entry.attack != "natural"):
        alike.setdefault((entry.n, entry.engine, entry.gradients), []).append(entry)
    made_by = [commands.evaluate_command(row.run.config, row.run.path, entries) for entries in alike.values()]
    return {
        "commands": [command for command in made_by if command],
        "given": not all(made_by),
        "machines": list(dict.fromkeys(entry.machine for entry in row.cells.values() if entry.machine)),
    }


def on_object(run: RunFiles) -> str:
    """How much of the high budget lies on the object, beside the object's share of the area."""
    object_ = run.explained.object if run.explained else None
    if object_ is None:
        return ""
    over = f" (over {object_.n:,} test images)" if object_.n else ""
    area = f"the object covers {words.percent(object_.object_area)} of the area{over}"
    share = object_.high_budget_on_object
    if run.config.mask.rule == "none" or share is None:
        text = f"{area}, and the budget is the same at all pixels"
    else:
        ratio = share / object_.object_area if object_.object_area else 1.0
        times = "just its share" if abs(ratio - 1) < 0.02 else f"{ratio:.1f} times its share"
        text = f"{words.percent(share)} of the high-budget pixels lie on the object; {area}, so it gets {times}"
    if object_.heat_on_object is not None:
        text += f". Of the heat, {words.percent(object_.heat_on_object)} lies on the object"
    if object_.dead:
        text += f". Left out: {words.count(object_.dead, 'image')} whose heat map is all zero"
    return f"{text}."


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": words.percent, "fraction": words.fraction, "seconds": words.seconds}
    return environment
