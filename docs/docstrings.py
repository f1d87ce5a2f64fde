"""How the site shows our docstrings: lists of names, set in columns there, as lists, and the rest as the Markdown that it is."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"(?P<names>\S+(?:, \S+)*) {2,}(?P<text>\S.*)")
ROLE = re.compile(r":\w+:(`[^`]+`)")


def as_markdown(docstring: str) -> str:
    """``name   what it is``, with deeper lines that go on, as ``- `name`: what it is``; names of Sphinx's roles without them."""
    made: list[str] = []
    listing = False
    for line in ROLE.sub(r"\1", docstring).splitlines():
        if found := ENTRY.fullmatch(line):
            if not listing:
                made.append("")
            names = ", ".join("`" + name.strip("`") + "`" for name in found["names"].split(", "))
            made.append(f"- {names}: {found['text']}")
            listing = True
        elif listing and line.startswith("    "):
            made.append(f"  {line.strip()}")
        else:
            if listing and line.strip():
                made.append("")
            listing = False
            made.append(line)
    return "\n".join(made)


class Docstrings(Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
