"""Small tables: as text, and as HTML for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines of aligned columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def html_table(rows: Iterable[Sequence[object]], *, head: Sequence[str] = (), notes: Iterable[str] = ()) -> str:
    """A table whose rows begin with a header cell, and lines below it; all text is escaped."""

    def cells(tag: str, texts: Iterable[object]) -> str:
        return "".join(f'<{tag} style="text-align: left">{escape(str(text))}</{tag}>' for text in texts)

    lines = [f"<thead><tr>{cells('th', head)}</tr></thead>"] if head else []
    lines += ["<tbody>", *(f"<tr>{cells('th', row[:1])}{cells('td', row[1:])}</tr>" for row in rows), "</tbody>"]
    return "\n".join(["<table>", *lines, "</table>", *(f"<p>{escape(note)}</p>" for note in notes)])
