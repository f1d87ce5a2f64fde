"""The report of measured times: a summary in JSON, tables, pictures and one page. Needs no GPU."""

from .grid import Grid
from .grids import Section, markdown, sections
from .groups import Group, grouped
from .page import page
from .pictures import of_group
from .size_pictures import of_curves, of_sizes
from .summary import summarize

__all__ = ["Grid", "Group", "Section", "grouped", "markdown", "of_curves", "of_group", "of_sizes", "page", "sections", "summarize"]
