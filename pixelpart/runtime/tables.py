"""Small tables: as text, as HTML for notebooks, and the warnings below them."""

from collections.abc import Iterable, Sequence
from html import escape


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines of aligned columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def group_warnings(results: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """The results that each warning is about, by its text; `results` are names of results with their warnings."""
    grouped: dict[str, dict[str, None]] = {}
    for name, warnings in results:
        for warning in warnings:
            grouped.setdefault(warning, {})[name] = None
    return {warning: list(names) for warning, names in grouped.items()}


def warning_lines(results: Iterable[tuple[str, Iterable[str]]], *, mark: str = "*") -> list[str]:
    """What the stars of a table mean: a line for each warning, with the names of the results that it is about."""
    return [f"{mark} {', '.join(names)}: {warning}" for warning, names in group_warnings(results).items()]


def html_table(rows: Iterable[Sequence[object]], *, head: Sequence[str] = (), notes: Iterable[str] = ()) -> str:
    """A table whose rows begin with a header cell, and lines below it; all text is escaped."""

    def cells(tag: str, texts: Iterable[object]) -> str:
        return "".join(f'<{tag} style="text-align: left">{escape(str(text))}</{tag}>' for text in texts)

    lines = [f"<thead><tr>{cells('th', head)}</tr></thead>"] if head else []
    lines += ["<tbody>", *(f"<tr>{cells('th', row[:1])}{cells('td', row[1:])}</tr>" for row in rows), "</tbody>"]
    return "\n".join(["<table>", *lines, "</table>", *(f"<p>{escape(note)}</p>" for note in notes)])
