"""The registry of operators: those that come with Unity, and those from a user's file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pcg.errors import InputError
from pcg.types.operator import Operator, register_operators


class Registry(Mapping[str, Operator]):
    """Operators by name. A name never changes its operator, since graphs and plans refer to
    operators by name."""

    def __init__(self, built_in: Iterable[Operator]) -> None:
        self.built_in = frozenset(built_in)
        """The operators that come with Unity."""
        self._by_name = {operator.name: operator for operator in built_in}
        register_operators(self.built_in)

    def __getitem__(self, name: str) -> Operator:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def check_free(self, operator: Operator, where: str) -> None:
        """Raise InputError if another operator has the name."""
        if self.get(operator.name, operator) != operator:
            raise InputError(where, "the name is taken")

    def add(self, operators: Iterable[Operator]) -> None:
        """Add a user's operators, all or none. Raises InputError for a name that another operator
        has."""
        added = {operator.name: operator for operator in operators}
        for operator in added.values():
            self.check_free(operator, f"operator {operator.name}")
        self._by_name |= added
