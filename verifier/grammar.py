"""Restricts the texts and numbers of a certificate; anything else is refused on load.

A certificate comes from anywhere, and solvers are given scripts about the symbols that it names. So
every name is one of ASCII letters, digits and underscores, a size is such names in bars, and all
that may be long has a length: far more than any proof of ours needs.
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
"""Entries of a list."""
MAX_RANK = 16
MAX_NUMBER = 1_000_000
"""Of sizes and degrees of an example, and of coefficients."""
MAX_LINES, MAX_LINE = 400, 1_000
"""Of a graph; a line is one operator."""

Identifier = Annotated[str, Field(pattern=f"^{_NAME}$")]
SymbolText = Annotated[str, Field(pattern=f"^(?:{_NAME}|{_PART})$")]
"""An attribute, the size of an input, or a size of which others are multiples: ``|N.by.D|``."""
DegreeName = Annotated[str, Field(pattern=rf"^{_NAME}(?:\.(?:[cp]|[dt][0-9]{{1,2}}))?$")]
"""The degree of an operator, or one of an input: ``x.d0``, ``x.t0``, ``x.c``, ``x.p``."""
FreeName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\\\x7f-\uffff]{1,200}$")]
"""What an example gives a value for, quotients of sizes included: ``|'|x.0|' / 4|``."""
EquationText = Annotated[str, Field(pattern="^[ -~]{1,2000}$")]
StepText = Annotated[str, Field(max_length=1_000)]
Text = Annotated[str, Field(max_length=10_000)]
RuleLabel = Annotated[str, Field(min_length=1, max_length=10_000)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]
ListIndex = Annotated[int, Field(ge=0, le=MAX_LIST)]
"""A place in a list, or a dimension."""
RankNumber = Annotated[int, Field(ge=0, le=MAX_RANK)]
SizeNumber = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
DegreeNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Coefficient = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]


DECLARING = frozenset({"opaque", "batched", "elementwise"})
"""What begins a line that declares a function of torch's, of which a certificate says nothing."""


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
"""A graph as it is printed, whose operators all have equations."""

MonomialFile = Annotated[tuple[SymbolText, ...], Field(max_length=16)]
PolyFile = Annotated[tuple[tuple[MonomialFile, Coefficient], ...], Field(max_length=64)]
"""A size, as (symbols, coefficient) pairs."""
