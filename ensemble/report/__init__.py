"""The report of measured times: a summary in JSON, tables, pictures and one page. Needs no GPU."""

from .grids import Grid, Section, sections
from .groups import Group, grouped
from .page import page
from .pictures import Picture, of_curves, of_group
from .summary import summarize

__all__ = ["Grid", "Group", "Picture", "Section", "grouped", "of_curves", "of_group", "page", "sections", "summarize"]
