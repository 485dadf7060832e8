"""Objects as small tables in a notebook."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[object]], *, head: Sequence[str] = (), notes: Iterable[str] = ()) -> str:
    """A table whose rows begin with a header cell, and lines below it; all text is escaped."""

    def cells(tag: str, texts: Iterable[object]) -> str:
        return "".join(f'<{tag} style="text-align: left">{escape(str(text))}</{tag}>' for text in texts)

    lines = [f"<thead><tr>{cells('th', head)}</tr></thead>"] if head else []
    lines += ["<tbody>", *(f"<tr>{cells('th', row[:1])}{cells('td', row[1:])}</tr>" for row in rows), "</tbody>"]
    return "\n".join(["<table>", *lines, "</table>", *(f"<p>{escape(note)}</p>" for note in notes)])
