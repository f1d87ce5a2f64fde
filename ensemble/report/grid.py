"""A table of a report, as Markdown and as HTML. Texts come from records, so that both forms escape them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Grid:
    """A table under a title."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        return f"### {marked(self.title)}\n\n" + "\n".join(f"| {' | '.join(map(marked, line))} |" for line in lines)

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.headings)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in self.rows)
        caption = f"<caption>{escape(self.title)}</caption>"
        whole = f"{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
        return f'<div class="wide"><table class="sortable">{whole}</table></div>'


def marked(text: str) -> str:
    """A text in one cell or line of Markdown, its marks and HTML escaped."""
    text = " ".join(text.split())
    for mark in "\\|`*[]":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")
