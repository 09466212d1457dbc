"""Record the rule applications by which a plan's graph was derived from the model's."""

from __future__ import annotations

from dataclasses import dataclass

from pcg.plan.schema import Symbol


@dataclass(frozen=True)
class AppliedRule:
    """A rule of a library as a plan applies it (``RuleFile``). ``name``: that of the form."""

    name: str
    rule: str
    axes: tuple[int, ...]
    operators: tuple[str, ...]
    reversed: bool
    text: str


@dataclass(frozen=True)
class Application:
    """One rule application of a derivation: a value is replaced wherever it is read.

    Values are known by id. One of the model's graph has the name that it is printed with. Operator
    ``j`` of the rule's right side (operands before users, from 0) as made by step ``i`` of the
    derivation is ``"i.j"``, its further outputs ``"i.j.1"`` and so on.
    """

    applied: AppliedRule
    at: tuple[str, ...]
    """The values that the outputs of the rule's left side are, which are replaced."""
    inputs: tuple[str, ...]
    """The values that the rule's inputs are, in its order."""
    symbols: tuple[tuple[str, Symbol], ...] = ()
    """The values of all its symbols, those that were free to choose among them."""

    @property
    def rule(self) -> str:
        """The name of the rule's form."""
        return self.applied.name

    @property
    def text(self) -> str:
        """The rule itself."""
        return self.applied.text


def made_id(step: int, operator: int, port: int) -> str:
    """The id of a value that a step makes (``Application``)."""
    return f"{step}.{operator}" + (f".{port}" if port else "")
