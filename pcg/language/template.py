"""Split the text of an equation into operands and definitions, before ranks are known.

    out[a..., n] = sum k: x[a..., k] * w[k, n]

has the operands ``x[a..., k]`` and ``w[k, n]`` and the definition ``out[a..., n]`` with the tokens
after ``=``. ``pcg.language.language`` describes the notation, and reads the values once the lengths
of runs (``a...``) are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)(\.\.\.)?|(->|==|<=|>=|[-+*/()\[\]<>=,:;|@]))")


RESERVED = frozenset({"sum", "max", "where", "and", "if", "else", "let"})


class EquationError(ValueError):
    """An equation that cannot be read. The message says what was expected and where."""


@dataclass(frozen=True)
class DimPattern:
    """A dimension in the brackets of an operand or output, before runs are expanded."""

    names: tuple[str, ...]
    run: bool = False
    position: str | None = None
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """A name with its dimensions and, for an output or a ``let``, the tokens of its value."""

    name: str
    dims: tuple[DimPattern, ...]
    body: tuple[str, ...] = ()
    local: bool = False


@dataclass(frozen=True)
class Template:
    """An equation before its runs are expanded."""

    operands: tuple[Declaration, ...]
    definitions: tuple[Declaration, ...]

    @property
    def placing(self) -> tuple[Declaration, ...]:
        """The operands and outputs, in which an attribute may give the position of an index."""
        return (*self.operands, *(d for d in self.definitions if not d.local))

    @property
    def positions(self) -> tuple[str, ...]:
        """The attributes that give the position of an index, in order of appearance."""
        dims = (dim for part in self.placing for dim in part.dims)
        return tuple(dict.fromkeys(dim.position for dim in dims if dim.position))


def is_index_name(token: str) -> bool:
    return token.isidentifier() and token not in RESERVED


def tokenize(text: str) -> list[str]:
    """Return the tokens of an equation. Raises EquationError at a character that starts none."""
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise EquationError(f"unexpected {text[position:].strip()[:10]!r}")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


def parse_template(text: str) -> Template:
    """Split an equation into operands, ``let`` values and outputs, and check their brackets."""
    tokens = tokenize(text)
    operands: tuple[Declaration, ...] | None = None
    if "->" in tokens:
        arrow = tokens.index("->")
        operands = tuple(_declared(part) for part in _split(tokens[:arrow], ","))
        tokens = tokens[arrow + 1 :]
    definitions = tuple(_definition(part) for part in _split(tokens, ";"))
    if operands is None:
        operands = _operands_read(definitions)
    names = [d.name for d in operands + definitions]
    for name in names:
        if names.count(name) > 1:
            raise EquationError(f"{name!r} is defined twice")
    if all(d.local for d in definitions):
        raise EquationError("no output is defined")
    return Template(operands, definitions)


def _split(tokens: list[str], separator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in "([") - (token in ")]")
        if token == separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _declared(tokens: list[str], *, local: bool = False, body: tuple[str, ...] = ()) -> Declaration:
    if len(tokens) < 3 or not is_index_name(tokens[0]) or tokens[1] != "[" or tokens[-1] != "]":
        raise EquationError(f"expected NAME[...], got {' '.join(tokens)!r}")
    inner = tokens[2:-1]
    dims = tuple(_dim(part) for part in _split(inner, ",")) if inner else ()
    return Declaration(tokens[0], dims, body, local)


def _definition(tokens: list[str]) -> Declaration:
    local = tokens[:1] == ["let"]
    tokens = tokens[local:]
    if "=" not in tokens:
        raise EquationError(f"expected NAME[...] = VALUE, got {' '.join(tokens)!r}")
    equals = tokens.index("=")
    declared = _declared(tokens[:equals], local=local, body=tuple(tokens[equals + 1 :]))
    for dim in declared.dims:
        if dim.position is not None and local:
            raise EquationError(f"'@{dim.position}' in {declared.name}, which is no tensor")
    return declared


def _dim(tokens: list[str]) -> DimPattern:
    if tokens and tokens[0].endswith("...") and len(tokens) == 1:
        return DimPattern((tokens[0][:-3],), run=True)
    bound: tuple[str, ...] = ()
    if "<" in tokens:
        cut = tokens.index("<")
        tokens, bound = tokens[:cut], tuple(tokens[cut + 1 :])
    position = None
    if len(tokens) > 2 and tokens[-2] == "@":
        tokens, position = tokens[:-2], tokens[-1]
    if tokens[:1] == ["("] and tokens[-1:] == [")"]:
        tokens = tokens[1:-1]
    elif len(tokens) != 1:
        raise EquationError(f"expected one index, got {' '.join(tokens)!r}")
    if not tokens or not all(is_index_name(token) for token in tokens):
        raise EquationError(f"expected an index name, got {' '.join(tokens)!r}")
    if len(tokens) > 1 and bound:
        raise EquationError(f"state the sizes of {' and '.join(tokens)} one by one")
    return DimPattern(tuple(tokens), position=position, bound=bound)


def _operands_read(definitions: tuple[Declaration, ...]) -> tuple[Declaration, ...]:
    """Return the operands with the dimensions of their first use in the equation."""
    known = {d.name for d in definitions}
    operands: dict[str, Declaration] = {}
    for body in (d.body for d in definitions):
        for i, (token, after) in enumerate(pairwise(body)):
            if after != "[" or token in known or token in operands:
                continue
            if "]" not in body[i:]:
                raise EquationError(f"expected ']' after {token}[")
            close = body.index("]", i)
            try:
                operands[token] = _declared(list(body[i : close + 1]))
            except EquationError as error:
                message = f"state the shape of {token} before '->': {error}"
                raise EquationError(message) from error
    return tuple(operands.values())
