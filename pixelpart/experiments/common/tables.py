"""Results as Markdown: accuracies next to the paper's, what differs from the paper, and differences between arms."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pixelpart.experiments.common.results import Cell, Results, mean_of
from pixelpart.runtime.tables import warning_lines

STAR = "(*)"  # a line with * alone would be a list in Markdown
SEED_NOTE = "One seed a side compares two models, not two methods."
PAPER_NOTE = "The paper's numbers are of CIFAR-10 after 80 epochs: at this scale they are not comparable."
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%&_#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "√": r"$\surd$"}
    | {"<": "$<$", ">": "$>$", "|": r"\textbar{}"}
)
MINUS = re.compile(r"(?<![\w$])-(?=[\d.])")


@dataclass(frozen=True)
class Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        rows = [[cell.replace("|", r"\|") for cell in cells] for cells in (self.head, *self.rows)]
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        lines = [f"## {self.title}", "", lines[0], "|" + "---|" * len(self.head), *lines[1:]]
        return "\n".join([*lines, *([""] if self.notes else []), *(f"- {note}" for note in self.notes)])

    def latex(self) -> str:
        """A tabular with the rules of booktabs, and below it the notes."""
        cells = [[_latex(cell) for cell in row] for row in (self.head, *self.rows)]
        head, *rows = [" & ".join(row) + r" \\" for row in cells]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}", r"\toprule", head, r"\midrule", *rows]
        return "\n".join([f"% {self.title}", *lines, r"\bottomrule", r"\end{tabular}", *latex_notes(self.notes)])


def _latex(text: str) -> str:
    return MINUS.sub("$-$", text.translate(LATEX))


def latex_notes(notes: Sequence[str]) -> list[str]:
    """A small paragraph for each note, after an empty line, which ends the line of the tabular."""
    return ["", r"{\footnotesize", *(rf"{_latex(note)}\par" for note in notes), "}"] if notes else []


def all_tables(results: Results, more: Sequence[Table] = ()) -> list[Table]:
    """The tables of every experiment, then its own."""
    return [*([accuracies(results), *minus_paper_table(results), *claims(results)] if results.runs else []), *more]


def latex(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """The whole of table.tex; `notes` are about all tables."""
    parts = ["% needs \\usepackage{booktabs}", *(table.latex() for table in tables)]
    return "\n".join(["\n\n".join(parts), *latex_notes(notes)]) + "\n"


def markdown(results: Results, tables: Sequence[Table]) -> str:
    """The whole of table.md."""
    what = f"{results.number}; " if results.number != "-" else ""
    lead = f"{what}scale {results.scale}, {results.data}" if results.runs else what.rstrip("; ")
    notes = "\n".join(f"- {note}" for note in general_notes(results))
    parts = [f"# {results.title}", lead, *map(str, tables), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def general_notes(results: Results) -> list[str]:
    """Those about the whole experiment."""
    if results.scale != "paper" and results.paper and results.runs:
        return [*results.notes, PAPER_NOTE]
    return results.notes


def accuracies(results: Results) -> Table:
    """A row per arm: seeds, images, mean budget, and each column with its interval next to the paper's number."""
    shown = {c: any(_paper(results.cell(arm, c)) for arm in results.arms) for c in results.columns}
    rows = []
    for arm, runs in results.runs.items():
        budget = mean_of(run.budget for run in runs)
        seeds = [run.seed for run in runs]
        row = [arm, named_seeds(seeds), str(runs[0].n or "") if runs else "", number(budget)]
        for column in results.columns:
            cell = results.cell(arm, column)
            text = written(cell) + (_of_seeds(cell.seeds, seeds) if cell else "")
            row += [text, _paper(cell)] if shown[column] else [text]
        rows.append([*row, number(mean_of(run.seconds for run in runs), 0)])
    head = ["arm", "seeds", "n", "budget, 1/255", *_with_paper(shown), "training, s"]
    notes = [*filter(None, [results.conditions])]
    notes += warning_lines(((c, cell.warnings) for _, c, cell in results.cells()), mark=STAR)
    return Table("Mean [95 % interval]", head, rows, notes)


def minus_paper_table(results: Results) -> list[Table]:
    """Ours minus the paper's, where both are there."""
    apart, warned = dict[tuple[str, str], str](), []
    for arm, column, cell in results.cells():
        if cell.minus_paper:
            apart[arm, column] = signed(*cell.minus_paper) + "*" * bool(cell.warnings)
            warned.append((column, cell.warnings))
    columns = [c for c in results.columns if any(key[1] == c for key in apart)]
    arms = [arm for arm in results.arms if any(key[0] == arm for key in apart)]
    rows = [[arm, *(apart.get((arm, column), "") for column in columns)] for arm in arms]
    title = "Ours minus the paper's, points [95 % interval]"
    return [Table(title, ["arm", *columns], rows, warning_lines(warned, mark=STAR))] if rows else []


def claims(results: Results) -> list[Table]:
    """Each arm minus its baseline on the seeds that both have, next to the same difference in the paper."""
    found = {(claim.arm, claim.baseline, claim.column): claim for claim in results.claims()}
    columns = [c for c in results.columns if any(x.ours or x.paper for x in found.values() if x.column == c)]
    shown = {c: any(x.paper is not None for x in found.values() if x.column == c) for c in columns}
    rows = []
    for arm, base in dict.fromkeys((arm, base) for arm, base, _ in found):
        seeds = sorted({seed for column in columns for seed in found[arm, base, column].seeds})
        row = [f"{arm} - {base}", named_seeds(seeds)]
        for column in columns:
            claim = found[arm, base, column]
            star = "*" * bool(claim.warnings)
            row.append(signed(*claim.ours) + star + _of_seeds(claim.seeds, seeds) if claim.ours else "")
            if shown[column]:
                row.append("" if claim.paper is None else f"{claim.paper:+z.2f}")
        rows.append(row)
    head = ["difference", "seeds", *_with_paper(shown)]
    notes = [SEED_NOTE] * any(len(claim.seeds) == 1 for claim in found.values())
    notes += warning_lines(((claim.column, claim.warnings) for claim in found.values() if claim.ours), mark=STAR)
    return [Table("Differences between arms, points [95 % interval]", head, rows, notes)] if rows and columns else []


def _with_paper(shown: Mapping[str, bool]) -> list[str]:
    """The columns, each followed by "paper" if the paper's numbers are shown next to it."""
    return [name for column, papers in shown.items() for name in ([column, "paper"] if papers else [column])]


def named_seeds(seeds: Sequence[int]) -> str:
    """seed 0; seeds 0, 1; seeds 100 to 107; "" without any."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""


def _of_seeds(seeds: Sequence[int], all_seeds: Sequence[int]) -> str:
    """The seeds of a cell that does not have all, as of runs found with --from and not attacked alike."""
    return f", {named_seeds(seeds)}" if 0 < len(seeds) < len(all_seeds) else ""


def written(cell: Cell | None) -> str:
    """83.42 [82.67, 84.14]; with a star at the end if there are warnings."""
    if cell is None or math.isnan(cell.mean):
        return ""
    interval = f" [{number(cell.interval[0])}, {number(cell.interval[1])}]" if cell.interval else ""
    return number(cell.mean) + interval + "*" * bool(cell.warnings)


def signed(estimate: float, low: float, high: float) -> str:
    """+0.56 [+0.19, +0.93]; a digit more where an end would round to 0 and hide whether the interval includes it."""
    digits = 3 if any(0 < abs(end) < 0.005 for end in (low, high)) else 2
    return f"{estimate:+z.{digits}f} [{low:+z.{digits}f}, {high:+z.{digits}f}]"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _paper(cell: Cell | None) -> str:
    if cell is None or cell.paper is None:
        return ""
    mean, deviation = cell.paper
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")
