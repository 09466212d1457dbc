"""Rechecks certificates: derives each side condition again and gives it to independent solvers.

The prover's search takes no part, except for operators that claim to commute. Both graphs are
expanded again from the definitions in the certificate. Where there are several ways to go on, the
certificate says which to take. The side conditions that follow have to be those that the
certificate lists, and each has to be unsatisfiable. Solvers read scripts that are written here,
with symbols that were checked; the scripts of a certificate are only compared with these. Before a
claim is accepted it is replayed in numbers (``verifier.replay``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from pcg.errors import OperatorError
from pcg.files import read_json, read_text
from pcg.graph.graph import Graph
from pcg.types.operator import Operator
from verifier.certificate import (
    SCRIPTS,
    CertificateFile,
    TheoremFile,
    script_name,
    script_text,
)
from verifier.claim import Claim, GraphPair, Rejected, claim_of, commutation_pairs
from verifier.concrete import Valuation, real_symbols
from verifier.counterexample import Counterexample
from verifier.instances import free_symbols
from verifier.replay import refutation
from verifier.trusted import smt
from verifier.trusted.errors import TooLarge, Unproved, Unsolvable
from verifier.trusted.proof.expansion import obligations
from verifier.trusted.proof.local import typing_obligations
from verifier.trusted.sizes.degrees import Typing, local_typing, ranks, typings
from verifier.trusted.sizes.sizes import Sizes, pair_sizes
from verifier.trusted.sizes.types import agreement_script, differences, residual
from verifier.trusted.steps import RecordedSteps, SearchSteps
from verifier.witness import value_of

Solvers = Mapping[str, smt.Judge]
REASON = 500
"""The most characters of a reason, since it may quote the text of a certificate."""


@dataclass(frozen=True)
class ProvedStatement:
    """The statement that an accepted certificate proves.

    ``assumed`` and ``requires``: the conditions on sizes and degrees. ``degrees``: the degrees that
    are numbers; all others are arbitrary. ``whole``: whether it is about whole tensors only.
    """

    statement: str
    assumed: tuple[str, ...]
    requires: tuple[str, ...]
    degrees: tuple[int, ...]
    whole: bool


@dataclass(frozen=True)
class CertificateCheck:
    """The result for one certificate: accepted, with the statement that it proves, or the reason
    why not. ``conditions``: how many side conditions were solved."""

    rule: str
    accepted: bool
    reason: str
    conditions: int
    proved: ProvedStatement | None = None


@dataclass
class Rechecker:
    """Checks certificates.

    ``scripts``: a directory of scripts, or scripts by name. A script that several certificates
    share is solved once. A theorem is derived once for each definition of its operator, since the
    same name may have another definition in each certificate.
    """

    scripts: Path | Mapping[str, str]
    solvers: Solvers
    outcomes: dict[tuple[str, str], smt.Answer] = field(
        default_factory=dict[tuple[str, str], smt.Answer]
    )
    theorems: dict[tuple[Operator, TheoremFile], tuple[str, ...]] = field(
        default_factory=dict[tuple[Operator, TheoremFile], tuple[str, ...]]
    )

    def check(self, path: Path) -> CertificateCheck:
        """Check one certificate. Raises InputError if the file is no certificate."""
        return self.check_file(read_json(path, CertificateFile))

    def check_file(self, file: CertificateFile) -> CertificateCheck:
        """Check one certificate that has been read."""
        try:
            claim, conditions = self._derived(file)
            for condition in conditions:
                self._solve(condition)
            proved = ProvedStatement(
                claim.statement, claim.assumed, file.requires, claim.degrees, file.whole
            )
        except Rejected as error:
            return CertificateCheck(
                file.rule, False, shorten(str(error), REASON, placeholder="..."), 0
            )
        return CertificateCheck(file.rule, True, "", len(conditions), proved)

    def _derived(self, file: CertificateFile) -> tuple[Claim, list[str]]:
        """The claim of a certificate, and all its side conditions, derived again. Raises
        Rejected."""
        try:
            claim = claim_of(file)
            _check_witness(claim)
            conditions = list(_equality(claim))
            if claim.types is not None:
                conditions += [_types(file, claim.types), *self._all_theorems(claim)]
            for pair in commutation_pairs(claim):
                self._check_commutes(pair)
            _replay(claim)
        except RecursionError:
            raise Rejected("is nested too deeply") from None
        except (Unproved, TooLarge, Unsolvable, OperatorError, ValueError) as error:
            raise Rejected(f"does not lead to its rule: {error}") from None
        return claim, conditions

    def _all_theorems(self, claim: Claim) -> Iterator[str]:
        """The conditions of the typing theorems of all compute operators. Raises Rejected if the
        certificate lacks a theorem or states another one."""
        known = {
            (t.operator, t.ranks, t.positions, frozenset(t.carriers), t.windows): t
            for t in claim.file.theorems
        }
        for node in claim.computing:
            call, node_ranks, typing = node.operator_call, ranks(node), local_typing(node)
            windows = tuple(window.axis.name for window in typing.open_windows)
            for carriers in (frozenset[int](), *typing.carriers):
                theorem = known.get((call.name, node_ranks, call.positions, carriers, windows))
                if theorem is None:
                    raise Rejected(f"has no theorem for {call.name} at ranks {node_ranks}")
                key = (call.operator, theorem)
                if key not in self.theorems:
                    steps = RecordedSteps(theorem.steps)
                    conditions = typing_obligations(
                        call, node_ranks, typing, carriers, steps, _assume
                    )
                    if not steps.is_done:
                        raise Rejected(f"has more steps for {call.name} than its theorem needs")
                    _compare("theorem", conditions, theorem.conditions)
                    self.theorems[key] = conditions
                yield from self.theorems[key]

    def _check_commutes(self, pair: GraphPair) -> None:
        """Check that an operator that claims to commute does. Raises Rejected.

        A certificate has no proof of that, so the proof is searched for here. All solvers judge
        each condition of it.
        """
        name = pair[0][0].node.name
        sizes, asked = pair_sizes(*pair, ())
        sides = [list(typings(Graph(side).nodes, side)) for side in pair]
        alike = all(any(not residual(a, b).texts for b in sides[1]) for a in sides[0])
        if asked or not alike:
            raise Rejected(f"{name} has other types with its operands exchanged")
        try:
            obligations(*pair, sizes, SearchSteps(), self._judge)
        except Unproved as error:
            raise Rejected(f"{name} is not shown to commute: {error}") from None

    def _judge(self, condition: str) -> smt.Answer:
        """``unsat`` if all solvers say so; else the first other answer."""
        for solver in self.solvers:
            if (outcome := self._ask(solver, condition)) != "unsat":
                return outcome
        return "unsat"

    def _ask(self, solver: str, condition: str) -> smt.Answer:
        key = (script_name(condition), solver)
        if key not in self.outcomes:
            self.outcomes[key] = self.solvers[solver](condition)
        return self.outcomes[key]

    def _solve(self, condition: str) -> None:
        name = script_name(condition)
        if (name, "") not in self.outcomes:
            if self._script(name) != script_text(condition):
                raise Rejected(f"{name}.smt2 is not the condition that it stands for")
            self.outcomes[name, ""] = "unsat"
        for solver in self.solvers:
            if (outcome := self._ask(solver, condition)) != "unsat":
                raise Rejected(f"{solver} says {outcome} to {name}.smt2")

    def _script(self, name: str) -> str:
        """A script by its name. Raises InputError if the directory lacks it, and Rejected if the
        mapping does."""
        if isinstance(self.scripts, Path):
            path = self.scripts / SCRIPTS / f"{name}.smt2"
            return read_text(path, "a script of side conditions")
        if name not in self.scripts:
            raise Rejected(f"has no script {name}")
        return self.scripts[name]


def _assume(condition: str) -> smt.Answer:
    """A judge that accepts every condition: conditions are collected first and solved later."""
    return "unsat"


def _compare(what: str, actual: tuple[str, ...], stated: tuple[str, ...]) -> None:
    if tuple(map(script_name, actual)) != stated:
        raise Rejected(f"the conditions of its {what} are not those that it lists")


def _equality(claim: Claim) -> tuple[str, ...]:
    """The conditions under which both sides are equal. Raises Rejected if they are not those of the
    certificate."""
    steps = RecordedSteps(claim.file.steps)
    conditions = obligations(*claim.pair, claim.sizes, steps, _assume)
    if not steps.is_done:
        raise Rejected("has more steps than its proof needs")
    _compare("proof", conditions, claim.file.conditions)
    return conditions


def _check_witness(claim: Claim) -> None:
    """Check that the witness has sizes and degrees at which both sides have the same types. Raises
    Rejected."""
    witness = claim.file.witness
    _check_degrees(claim, witness.degrees)
    # A quotient of sizes is a symbol that a proof introduces; a file can only have its text.
    free = {str(symbol): symbol for symbol in free_symbols(claim.pair, claim.sizes)}
    if missing := sorted(free.keys() ^ witness.sizes.keys()):
        raise Rejected(f"its witness has no value, or one too many, for {missing[0]}")
    if witness.reals.keys() != real_symbols(claim.pair).keys():
        raise Rejected("its witness has other real numbers than the rule")
    sizes = {free[text]: value for text, value in witness.sizes.items()}
    valuation = Valuation(claim.pair, claim.sizes, sizes, witness.degrees, witness.reals)
    values = valuation.symbols
    solved = {s: claim.sizes.resolve(p) for s, p in claim.sizes.solved.items()}
    given = {s: size.evaluate(sizes) for s, size in solved.items()}
    if any(values[s] != v for s, v in (*sizes.items(), *given.items())):
        raise Rejected("its witness has two values for a symbol")
    _check_sizes(claim.sizes, sizes)
    typed = valuation.typed()
    if typed is None:
        raise Rejected("its witness has no type")
    types = [tuple(value.type for value in side.outputs) for side in typed]
    if types[0] != types[1]:
        raise Rejected("the types of its witness differ")


def _check_degrees(claim: Claim, degrees: Mapping[str, int]) -> None:
    """Check that the conditions of a claim's types hold at the degrees of its witness. Conditions
    that contradict each other would imply everything. Raises Rejected."""
    types = claim.types or ()
    if any(value < 2 for symbol, value in degrees.items() if "." not in symbol):
        raise Rejected("its witness has a degree of less than 2")
    symbols = frozenset[str]().union(*(t.symbols for t in types))
    if missing := sorted(s for s in symbols ^ degrees.keys() if not s.isdigit()):
        raise Rejected(f"its witness has no value, or one too many, for {missing[0]}")
    ones = [e for typing in types for e in typing.equations]
    ones += differences(*types) if claim.types else ()
    if not all(value_of(e, degrees) == 1 for e in ones):
        raise Rejected("its witness has degrees at which its types do not hold")
    if not all(value_of(w, degrees) for typing in types for w in typing.whole):
        raise Rejected("its witness has degrees at which its types do not hold")


def _check_sizes(sizes: Sizes, values: Mapping[str, int]) -> None:
    """Check that the values that the proof assumes positive are at least 1 at the witness, and
    those that it assumes natural at least 0. Raises Rejected."""
    for symbols, least in ((sizes.positive, 1), (sizes.naturals, 0)):
        if any(sizes.resolve(size).evaluate(values) < least for size in symbols):
            raise Rejected(f"its witness has a size or attribute below {least}")


def _types(file: CertificateFile, types: tuple[Typing, Typing]) -> str:
    """The condition that both sides have the same types. Raises Rejected if it is not that of the
    certificate."""
    script = agreement_script(*types)
    if script_name(script) != file.types:
        raise Rejected("the condition of its types is not the one that it lists")
    return script


def _replay(claim: Claim) -> None:
    """Raise Rejected if both sides differ at a shape that is tried, or no shape can be tried."""
    refuting = refutation(claim.pair, claim.sizes, claim.types, claim.file.witness.degrees)
    if isinstance(refuting, Counterexample):
        raise Rejected(f"is refuted by evaluation: {refuting}")
    if refuting:
        raise Rejected(refuting)


def certificates(directory: Path) -> list[Path]:
    """The certificates in a directory, by name."""
    return sorted(directory.glob("*.json"))
