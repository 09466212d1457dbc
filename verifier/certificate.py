"""Certificates: what a proof rests on, as files that others can check.

A directory holds one JSON file per rule: the definitions of its operators, both graphs, the choices
of the search, and the hashes of the side conditions. Each condition is there once, as an SMT-LIB 2
script. ``verifier.recheck`` derives the conditions again and gives them to several solvers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field, ValidationError

from pcg.errors import InputError
from pcg.files import FileModel, validation_problem, write_text_atomic
from pcg.graph.graph import Graph, Value
from pcg.graph.pairs import GraphPair, both, calls
from pcg.language.poly import Poly
from pcg.plan.text import print_graph
from pcg.types.operator import Operator
from verifier import grammar
from verifier.agreement import typed_sides
from verifier.concrete import Valuation
from verifier.decide import Decision
from verifier.trusted.proof.local import prove_typing
from verifier.trusted.sizes.degrees import local_typing, ranks
from verifier.trusted.sizes.runs import Group
from verifier.trusted.sizes.types import agreement_script

SCRIPTS = "conditions"
"""The folder of the scripts."""
Parallel = Literal["partition", "combine", "replicate", "reduce", "pipeline", "batch", "join"]
"""The kinds of operators that move data."""
HEADER = "(set-logic ALL)\n"
FOOTER = "\n(check-sat)\n"


class OperatorFile(FileModel):
    """The definition of an operator; its meaning is the equation."""

    name: grammar.Identifier
    equation: grammar.EquationText
    sizes: tuple[grammar.Identifier, ...] = Field(strict=False, max_length=grammar.MAX_RANK)
    reals: tuple[grammar.Identifier, ...] = Field(strict=False, max_length=grammar.MAX_RANK)
    commutative: bool
    parallel: Parallel | None

    @staticmethod
    def of(operator: Operator) -> OperatorFile:
        return OperatorFile(
            name=operator.name,
            equation=operator.equation,
            sizes=operator.sizes,
            reals=operator.reals,
            commutative=operator.commutative,
            parallel=cast(Parallel | None, operator.parallel),
        )

    def operator(self) -> Operator:
        """The operator, without a kernel. Raises EquationError."""
        return Operator(
            self.name,
            self.equation,
            self.sizes,
            self.reals,
            commutative=self.commutative,
            parallel=self.parallel,
        )


Hashes = Annotated[tuple[grammar.Hash, ...], Field(strict=False, max_length=grammar.MAX_LIST)]
StepTexts = Annotated[
    tuple[grammar.StepText, ...], Field(strict=False, max_length=grammar.MAX_LIST)
]


class TheoremFile(FileModel):
    """A typing theorem: tasks on their own blocks compute the operator's equation when the operands
    ``carriers`` carry partials. ``steps`` and ``conditions`` are its proof."""

    operator: grammar.Identifier
    ranks: tuple[grammar.RankNumber, ...] = Field(strict=False, max_length=grammar.MAX_RANK)
    positions: tuple[grammar.RankNumber, ...] = Field(strict=False, max_length=grammar.MAX_RANK)
    carriers: tuple[grammar.RankNumber, ...] = Field(strict=False, max_length=grammar.MAX_RANK)
    windows: tuple[grammar.Identifier, ...] = Field(
        strict=False, default=(), max_length=grammar.MAX_RANK
    )
    """The indices of windows that are cut, which is allowed since operands have halos."""
    steps: StepTexts
    conditions: Hashes


class WitnessFile(FileModel):
    """Sizes, degrees and real attributes at which both sides have the same types."""

    sizes: dict[grammar.FreeName, grammar.SizeNumber]
    degrees: dict[grammar.DegreeName, grammar.DegreeNumber]
    reals: dict[grammar.Identifier, float]


Axes = Annotated[
    tuple[tuple[grammar.Identifier, grammar.RankNumber], ...], Field(max_length=grammar.MAX_LIST)
]


class CertificateFile(FileModel):
    """All that the proof of a rule rests on."""

    schema_version: Literal[1]
    rule: grammar.RuleLabel
    operators: tuple[OperatorFile, ...] = Field(strict=False, max_length=64)
    left: grammar.GraphText
    right: grammar.GraphText
    equal: tuple[tuple[grammar.PolyFile, grammar.PolyFile], ...] = Field(
        strict=False, max_length=256
    )
    """Pairs of sizes that are assumed equal."""
    requires: tuple[grammar.Text, ...] = Field(strict=False, max_length=256)
    """The conditions of the right side beyond those of the left."""
    whole: bool
    """Whether the rule is about tensors that are neither cut nor copied only. Types then need no
    proof."""
    typings: tuple[grammar.ListIndex, grammar.ListIndex] = Field(strict=False)
    types: grammar.Hash | Literal[""]
    """The hash of the condition that both sides have the same types."""
    theorems: tuple[TheoremFile, ...] = Field(strict=False, max_length=grammar.MAX_LIST)
    steps: StepTexts
    conditions: Hashes
    witness: WitnessFile
    runs: tuple[Axes, ...] = Field(strict=False, default=(), max_length=256)
    """The groups of (input, dimension) that are one axis, which may be any number of axes."""


@dataclass(frozen=True)
class Certificate:
    """A certificate file and the scripts that it names, by hash."""

    file: CertificateFile
    scripts: Mapping[str, str]


def script_text(condition: str) -> str:
    """A side condition as a complete script. The condition holds if a solver answers ``unsat``."""
    return f"{HEADER}{condition}{FOOTER}"


def script_name(condition: str) -> str:
    """The name of a script: the first 24 digits of its SHA-256 hash."""
    return sha256(script_text(condition).encode()).hexdigest()[:24]


def _witness(valuation: Valuation) -> WitnessFile:
    return WitnessFile(
        sizes={str(symbol): size for symbol, size in valuation.values.items()},
        degrees=dict(valuation.degrees),
        reals=dict(valuation.reals),
    )


def certify(
    name: str,
    left: Sequence[Value],
    right: Sequence[Value],
    decision: Decision,
    runs: Sequence[Group] = (),
) -> Certificate:
    """Return the certificate of a pair whose ``decision`` is PROVED. It is valid for any number of
    axes in the place of each of ``runs``. Raises InputError if it breaks the limits of files."""
    proof, evidence = decision.proof, decision.evidence
    assert proof is not None
    assert evidence is not None
    pair = (tuple(left), tuple(right))
    types = "" if evidence.whole else _types(pair, evidence.typings)
    theorems, theorem_conditions = ([], []) if evidence.whole else _theorems(pair)
    conditions = [*proof.obligations, *([types] if types else []), *theorem_conditions]
    try:
        file = CertificateFile(
            schema_version=1,
            rule=name,
            operators=tuple(map(OperatorFile.of, operators_of(pair))),
            left=print_graph(Graph(pair[0])),
            right=print_graph(Graph(pair[1])),
            equal=tuple((a.terms, b.terms) for a, b in evidence.equal),
            requires=evidence.requires,
            whole=evidence.whole,
            typings=evidence.typings,
            types=script_name(types) if types else "",
            theorems=tuple(theorems),
            steps=proof.steps,
            conditions=tuple(map(script_name, proof.obligations)),
            witness=_witness(evidence.witness),
            runs=tuple(runs),
        )
    except ValidationError as error:
        problem = f"no certificate can be written: {validation_problem(error)}"
        raise InputError(f"rule {name}", problem) from None
    return Certificate(file, {script_name(c): script_text(c) for c in conditions})


def _types(pair: GraphPair, numbers: tuple[int, int]) -> str:
    """The condition that both sides have the same types, under the typings of these numbers."""
    lefts, rights = typed_sides(*pair)
    return agreement_script(lefts[numbers[0]], rights[numbers[1]])


def operators_of(pair: GraphPair) -> list[Operator]:
    """The operators of both sides, by name."""
    by_name = {call.name: call.operator for call in calls(both(pair))}
    return [by_name[name] for name in sorted(by_name)]


def _theorems(
    pair: GraphPair,
) -> tuple[list[TheoremFile], list[str]]:
    """The theorems that the types of both sides rest on, and their conditions."""
    theorems: dict[tuple[object, ...], TheoremFile] = {}
    conditions: list[str] = []
    for node in both(pair).nodes:
        if node.is_leaf or node.operator_call.operator.parallel is not None:
            continue
        call, node_ranks, typing = node.operator_call, ranks(node), local_typing(node)
        windows = tuple(window.axis.name for window in typing.open_windows)
        for theorem in prove_typing(call, node_ranks, typing):
            assert theorem.proof is not None
            file = TheoremFile(
                operator=call.name,
                ranks=node_ranks,
                positions=call.positions,
                carriers=tuple(sorted(theorem.carriers)),
                windows=windows,
                steps=theorem.proof.steps,
                conditions=tuple(map(script_name, theorem.proof.obligations)),
            )
            theorems[call.name, node_ranks, call.positions, file.carriers, windows] = file
            conditions += theorem.proof.obligations
    return list(theorems.values()), conditions


def write(directory: Path, certificates: Iterable[Certificate]) -> None:
    """Write certificates into a folder. A script that several certificates share is written once.

    Raises InputError if a file cannot be written.
    """
    folder = directory / SCRIPTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(directory), f"cannot write: {error.strerror}") from None
    for certificate in certificates:
        rule = certificate.file.rule
        short = re.sub(r"[^\w.-]+", "_", rule)[:60]
        name = f"{short}-{sha256(rule.encode()).hexdigest()[:8]}"
        for script, text in certificate.scripts.items():
            path = folder / f"{script}.smt2"
            if not path.exists():
                write_text_atomic(path, text)
        text = certificate.file.model_dump_json(indent=1)
        write_text_atomic(directory / f"{name}.json", text + "\n")


def polynomial(file: grammar.PolyFile) -> Poly:
    return Poly.collect(file)
