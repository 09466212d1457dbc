"""The rule applications by which a plan's graph was derived from the model's graph."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.plan.schema import Symbol


@dataclass(frozen=True)
class AppliedRule:
    """A rule of a library as a plan applies it (``RuleFile``). ``name`` is the name of the form."""

    name: str
    rule: str
    axes: tuple[int, ...]
    operators: tuple[str, ...]
    reversed: bool
    text: str


@dataclass(frozen=True)
class Application:
    """One rule application of a derivation: values are replaced wherever they are read.

    Values have ids. A value of the model's graph has the name under which it is printed. Operator
    ``j`` of the rule's right side (operands before users, from 0), as step ``i`` of the derivation
    makes it, is ``"i.j"``; its further outputs are ``"i.j.1"`` and so on.
    """

    applied: AppliedRule
    at: tuple[str, ...]
    """The values that match the outputs of the rule's left side, and are replaced."""
    inputs: tuple[str, ...]
    """The values that match the rule's inputs, in the rule's order."""
    symbols: tuple[tuple[str, Symbol], ...] = ()
    """The values of all its symbols, including those that are free to choose."""

    @property
    def rule(self) -> str:
        """The name of the rule's form."""
        return self.applied.name

    @property
    def text(self) -> str:
        """The text of the rule."""
        return self.applied.text


def made_id(step: int, operator: int, port: int) -> str:
    """Return the id of a value that a step makes (``Application``)."""
    return f"{step}.{operator}" + (f".{port}" if port else "")
