"""Checks certificates: derives each side condition again and gives it to independent solvers.

Nothing of the prover's search takes part. From the definitions in a certificate both graphs are
expanded again; where there are several ways to go, the certificate says which; the conditions met
on the way have to be those that it lists, and each has to have no solution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pcg.errors import InputError, OperatorError
from pcg.files import read_json, read_text
from pcg.graph import Graph, Node, Value
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.template import EquationError
from pcg.text import parse_graph
from verifier.certificate import (
    SCRIPTS,
    CertificateFile,
    TheoremFile,
    polynomial,
    script_name,
    script_text,
)
from verifier.concrete import Origin
from verifier.trusted import smt
from verifier.trusted.degrees import Typing, local_typing, ranks, typing_at
from verifier.trusted.errors import TooLarge, Unproved, Unsolvable
from verifier.trusted.expansion import obligations
from verifier.trusted.local import typing_obligations
from verifier.trusted.runs import free_runs
from verifier.trusted.sizes import Sizes, different_ranks, pair_sizes
from verifier.trusted.steps import Following
from verifier.trusted.types import agreement_script, residual

Pair = tuple[tuple[Value, ...], tuple[Value, ...]]
Solvers = Mapping[str, smt.Judge]


class Rejected(Exception):
    """A certificate that does not prove its rule; the text says why."""


@dataclass(frozen=True)
class Rechecked:
    """What came of one certificate: accepted, or the reason why not."""

    rule: str
    accepted: bool
    reason: str
    conditions: int


@dataclass
class Rechecker:
    """Checks certificates, whose scripts are those of a directory or given by name; a script that
    several share is solved once."""

    scripts: Path | Mapping[str, str]
    solvers: Solvers
    outcomes: dict[tuple[str, str], smt.Outcome] = field(
        default_factory=dict[tuple[str, str], smt.Outcome]
    )
    theorems: dict[TheoremFile, tuple[str, ...]] = field(
        default_factory=dict[TheoremFile, tuple[str, ...]]
    )

    def check(self, path: Path) -> Rechecked:
        """Check one certificate. Raises InputError where the file is no certificate."""
        return self.check_file(read_json(path, CertificateFile))

    def check_file(self, file: CertificateFile) -> Rechecked:
        """Check one certificate that was read."""
        try:
            conditions = self._conditions(file)
            for condition in conditions:
                self._solve(condition)
        except Rejected as error:
            return Rechecked(file.rule, accepted=False, reason=str(error), conditions=0)
        return Rechecked(file.rule, accepted=True, reason="", conditions=len(conditions))

    def _conditions(self, file: CertificateFile) -> list[str]:
        """Every side condition of a certificate, derived again."""
        pair = _pair(file)
        try:
            sizes, types = _statement(file, pair)
            _check_witness(file, pair, sizes)
            found = [*_equality(file, pair, sizes)]
            if types is None:
                return found
            return [*found, _types(file, types), *self._all_theorems(file, pair)]
        except (Unproved, TooLarge, Unsolvable, OperatorError, ValueError) as error:
            raise Rejected(f"does not lead to its rule: {error}") from None

    def _all_theorems(self, file: CertificateFile, pair: Pair) -> Iterator[str]:
        """The conditions of the theorems that the types of all operators rest on."""
        known = {
            (t.operator, t.ranks, t.positions, frozenset(t.carriers), t.windows): t
            for t in file.theorems
        }
        for node in _computing(pair):
            call, own, typing = node.operator_call, ranks(node), local_typing(node)
            windows = tuple(window.axis.name for window in typing.open_windows)
            for carriers in (frozenset[int](), *typing.carriers):
                theorem = known.get((call.name, own, call.positions, carriers, windows))
                if theorem is None:
                    raise Rejected(f"has no theorem for {call.name} at ranks {own}")
                if theorem not in self.theorems:
                    steps = Following(theorem.steps)
                    found = typing_obligations(call, own, typing, carriers, steps, _assume)
                    _compare("theorem", found, theorem.conditions)
                    self.theorems[theorem] = found
                yield from self.theorems[theorem]

    def _solve(self, condition: str) -> None:
        name = script_name(condition)
        if (name, "") not in self.outcomes:
            if self._script(name) != script_text(condition):
                raise Rejected(f"{name}.smt2 is not the condition that it stands for")
            self.outcomes[name, ""] = "unsat"
        for solver, ask in self.solvers.items():
            if (name, solver) not in self.outcomes:
                self.outcomes[name, solver] = ask(condition)
            if (outcome := self.outcomes[name, solver]) != "unsat":
                raise Rejected(f"{solver} says {outcome} to {name}.smt2")

    def _script(self, name: str) -> str:
        """A script by its name. Raises InputError where a directory does not have it."""
        if isinstance(self.scripts, Path):
            path = self.scripts / SCRIPTS / f"{name}.smt2"
            return read_text(path, "a script of side conditions")
        if name not in self.scripts:
            raise Rejected(f"has no script {name}")
        return self.scripts[name]


def _assume(condition: str) -> smt.Outcome:
    """Conditions are only collected here; solvers see them afterwards."""
    return "unsat"


def _compare(what: str, found: tuple[str, ...], stated: tuple[str, ...]) -> None:
    if tuple(map(script_name, found)) != stated:
        raise Rejected(f"the conditions of its {what} are others")


def _pair(file: CertificateFile) -> Pair:
    """Both sides, by the certificate's own definitions."""
    try:
        operators = {o.name: o.operator() for o in file.operators}
    except EquationError as error:
        raise Rejected(str(error)) from None
    for name, operator in operators.items():
        known = OPERATORS.get(name) or STAND_INS.get(name)
        if known is not None and known != operator:
            raise Rejected(f"defines {name} anew")
    try:
        left, right = (parse_graph(t, file.rule, operators) for t in (file.left, file.right))
    except InputError as error:
        raise Rejected(str(error)) from None
    pair = (left.outputs, right.outputs)
    if len(pair[0]) != len(pair[1]) or different_ranks(*pair):
        raise Rejected("its sides have different outputs")
    leaves = {node.leaf for node in Graph((*pair[0], *pair[1])).leaves}
    if len(leaves) > len({leaf.name for leaf in leaves}):
        raise Rejected("an input has two ranks")
    if not set(file.runs) <= set(free_runs(*pair)):
        raise Rejected("has axes that may not be any number of axes")
    return pair


def _computing(pair: Pair) -> list[Node]:
    nodes = Graph((*pair[0], *pair[1])).nodes
    return [n for n in nodes if not n.is_leaf and n.operator_call.operator.parallel is None]


def _statement(file: CertificateFile, pair: Pair) -> tuple[Sizes, tuple[Typing, Typing] | None]:
    """The sizes and types of both sides, under what the certificate says that it requires; no
    types where it is about whole tensors."""
    equal = tuple((polynomial(a), polynomial(b)) for a, b in file.equal)
    sizes, asked = pair_sizes(*pair, equal, carry=True)
    if file.whole:
        if len(_computing(pair)) < sum(not n.is_leaf for n in Graph((*pair[0], *pair[1])).nodes):
            raise Rejected("is about whole tensors, but moves them")
        if asked != file.requires:
            raise Rejected("requires something else than it says")
        return sizes, None
    try:
        left, right = (
            typing_at(Graph(side).nodes, side, number)
            for number, side in zip(file.typings, pair, strict=True)
        )
    except IndexError:
        raise Rejected("has no such typing") from None
    if (*asked, *residual(left, right).texts) != file.requires:
        raise Rejected("requires something else than it says")
    return sizes, (left, right)


def _equality(file: CertificateFile, pair: Pair, sizes: Sizes) -> tuple[str, ...]:
    """The conditions under which both sides mean the same."""
    steps = Following(file.steps)
    found = obligations(*pair, sizes, steps, _assume)
    if not steps.is_done:
        raise Rejected("says more than its proof needs")
    _compare("proof", found, file.conditions)
    return found


def _check_witness(file: CertificateFile, pair: Pair, sizes: Sizes) -> None:
    """That there are sizes and degrees at which both sides are typed alike."""
    witness = file.witness
    if any(value < 2 for symbol, value in witness.degrees.items() if "." not in symbol):
        raise Rejected("its witness has a degree of less than 2")
    try:
        typed = Origin(pair, sizes, witness.sizes, witness.degrees, witness.reals).typed()
    except KeyError as error:
        raise Rejected(f"its witness has no value for {error.args[0]}") from None
    if typed is None:
        raise Rejected("its witness has no type")
    types = [tuple(value.type for value in side.outputs) for side in typed]
    if types[0] != types[1]:
        raise Rejected("the types of its witness differ")


def _types(file: CertificateFile, types: tuple[Typing, Typing]) -> str:
    """That both sides have the same types."""
    script = agreement_script(*types)
    if script_name(script) != file.types:
        raise Rejected("the condition of its types is another")
    return script


def certificates(directory: Path) -> list[Path]:
    """The certificates in a directory. Raises InputError where there are none."""
    found = sorted(directory.glob("*.json"))
    if not found:
        raise InputError(str(directory), "holds no certificates, expected NAME.json files")
    return found
