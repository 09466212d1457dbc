"""The types of texts and numbers in a certificate; other values are refused on load.

A certificate may come from anywhere, and solvers read scripts about the symbols that it names. So a
name consists of ASCII letters, digits and underscores, a size is such names between bars, and every
text and list has a maximal length, which is far above what proofs need.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_SIZE = rf"\|{_NAME}\.[0-9]{{1,2}}\|"
_PART = r"\|[A-Za-z_][A-Za-z0-9_.]{0,199}\|"
NAME = re.compile(_NAME)
SIZE = re.compile(_SIZE)
PART = re.compile(_PART)
MAX_LIST = 4_096
"""The most entries of a list."""
MAX_RANK = 16
MAX_NUMBER = 1_000_000
"""The largest size or degree of a witness, and the largest coefficient."""
MAX_LINES, MAX_LINE = 400, 1_000
"""The most lines of a graph, one for each operator, and characters of a line."""

Identifier = Annotated[str, Field(pattern=f"^{_NAME}$")]
SymbolText = Annotated[str, Field(pattern=f"^(?:{_NAME}|{_PART})$")]
"""An attribute, the size of an input, or a size of which others are multiples: ``|N.by.D|``."""
DegreeName = Annotated[str, Field(pattern=rf"^{_NAME}(?:\.(?:[cp]|[dt][0-9]{{1,2}}))?$")]
"""The degree of an operator, or one of an input: ``x.d0``, ``x.t0``, ``x.c``, ``x.p``."""
FreeName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\\\x7f-\uffff]{1,200}$")]
"""A symbol that a witness gives a value: also a quotient of sizes, such as ``|'|x.0|' / 4|``."""
EquationText = Annotated[str, Field(pattern="^[ -~]{1,2000}$")]
StepText = Annotated[str, Field(max_length=1_000)]
Text = Annotated[str, Field(max_length=10_000)]
RuleLabel = Annotated[str, Field(min_length=1, max_length=10_000)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]
ListIndex = Annotated[int, Field(ge=0, le=MAX_LIST)]
"""An index into a list, or a dimension."""
RankNumber = Annotated[int, Field(ge=0, le=MAX_RANK)]
SizeNumber = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
DegreeNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Coefficient = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]


DECLARING = frozenset({"opaque", "batched", "elementwise"})
"""The first word of a line that declares a torch function without an equation; no certificate is
about such functions."""


def _is_graph_text(text: str) -> str:
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise ValueError(f"{len(lines)} lines, expected at most {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            problem = f"{len(line)} characters, expected at most {MAX_LINE}"
            raise ValueError(f"line {number} has {problem}")
        if not (line.isascii() and line.isprintable()):
            raise ValueError(f"line {number} has other characters than those of ASCII")
        if line.partition(" ")[0] in DECLARING:
            raise ValueError(f"line {number} declares an operator without an equation")
    return text


GraphText = Annotated[str, AfterValidator(_is_graph_text)]
"""The text of a graph whose operators all have equations."""

MonomialFile = Annotated[tuple[SymbolText, ...], Field(max_length=16)]
PolyFile = Annotated[tuple[tuple[MonomialFile, Coefficient], ...], Field(max_length=64)]
"""A size, as (symbols, coefficient) pairs."""
