"""Certificates as an adversary writes them: complete, consistent, and for any claim at all.

Every condition is listed with its script, and every theorem is there, just as if a solver had found
that no condition has a solution. So solvers and evaluation have to catch a false claim, or nothing
does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcg.graph.graph import Graph
from pcg.graph.pairs import GraphPair, both
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.plan.text import parse_values, print_graph
from pcg.types.operator import Operator
from verifier.agreement import typed_sides
from verifier.certificate import SCRIPTS, OperatorFile, operators_of, script_name, script_text
from verifier.instances import free_symbols, instances
from verifier.trusted import smt
from verifier.trusted.proof.expansion import obligations
from verifier.trusted.proof.local import typing_obligations
from verifier.trusted.sizes.degrees import local_typing, ranks
from verifier.trusted.sizes.sizes import SizeEquation, pair_sizes
from verifier.trusted.sizes.types import agreement_script, residual
from verifier.trusted.steps import SearchSteps
from verifier.witness import solve

Content = dict[str, Any]


def believed(condition: str) -> smt.Answer:
    """A solver that never finds a solution."""
    return "unsat"


@dataclass
class Forgery:
    """A certificate as JSON, and its scripts by name."""

    content: Content
    scripts: dict[str, str]

    def replace(self, old: str, new: str) -> None:
        """Replace a text in all conditions. Each of these then has another name."""
        names: dict[str, str] = {}
        for name, text in list(self.scripts.items()):
            condition = text.removeprefix(script_text("")[: len("(set-logic ALL)\n")])
            condition = condition.removesuffix("\n(check-sat)\n").replace(old, new)
            del self.scripts[name]
            names[name] = script_name(condition)
            self.scripts[names[name]] = script_text(condition)
        changed = json.dumps(self.content)
        for name, other in names.items():
            changed = changed.replace(name, other)
        self.content = json.loads(changed)

    def write(self, folder: Path, name: str = "forged") -> Path:
        (folder / SCRIPTS).mkdir(parents=True, exist_ok=True)
        for script, text in self.scripts.items():
            (folder / SCRIPTS / f"{script}.smt2").write_text(text)
        (folder / f"{name}.json").write_text(json.dumps(self.content))
        return folder


def forge(
    inputs: Mapping[str, int],
    left: str,
    right: str,
    *,
    label: str = "forged",
    equal: Sequence[SizeEquation] = (),
    operators: Iterable[Operator] = (),
    listed: Callable[[Operator], OperatorFile] = OperatorFile.of,
) -> Forgery:
    """A certificate that two sides are equal, whether they are or not."""
    known = {**OPERATORS} | {operator.name: operator for operator in operators}
    sides = [parse_values(text, inputs, "forged", known) for text in (left, right)]
    return forge_pair((sides[0], sides[1]), label=label, equal=equal, listed=listed)


def forge_pair(
    pair: GraphPair,
    *,
    label: str = "forged",
    equal: Sequence[SizeEquation] = (),
    listed: Callable[[Operator], OperatorFile] = OperatorFile.of,
) -> Forgery:
    sizes, asked = pair_sizes(*pair, equal)
    lefts, rights = typed_sides(*pair)
    numbers = min(lefts), min(rights)
    types = lefts[numbers[0]], rights[numbers[1]]
    steps = SearchSteps()
    own = obligations(*pair, sizes, steps, believed)
    agreement = agreement_script(*types)
    theorems, conditions = _theorems(pair)
    equations = [*types[0].equations, *types[1].equations, *residual(*types).equations]
    degrees = solve(
        equations, [*types[0].whole, *types[1].whole], types[0].symbols | types[1].symbols
    )
    valuation = next((i.valuation for i in instances(*pair, sizes, degrees or {})), None)
    values = valuation.values if valuation else dict.fromkeys(free_symbols(pair, sizes), 2)
    content: Content = {
        "schema_version": 1,
        "rule": label,
        "operators": [listed(o).model_dump(mode="json") for o in operators_of(pair)],
        "left": print_graph(Graph(pair[0])),
        "right": print_graph(Graph(pair[1])),
        "equal": [[_poly(a), _poly(b)] for a, b in equal],
        "requires": [*asked, *residual(*types).texts],
        "whole": False,
        "typings": list(numbers),
        "types": script_name(agreement),
        "theorems": theorems,
        "steps": list(steps.taken),
        "conditions": [script_name(c) for c in own],
        "witness": {
            "sizes": dict(values),
            "degrees": dict(degrees or {}),
            "reals": dict(valuation.reals) if valuation else {},
        },
        "runs": [],
    }
    scripts = {script_name(c): script_text(c) for c in (*own, agreement, *conditions)}
    return Forgery(content, scripts)


def _theorems(pair: GraphPair) -> tuple[list[Content], list[str]]:
    theorems: dict[str, Content] = {}
    conditions: list[str] = []
    for node in both(pair).nodes:
        if node.is_leaf or node.operator_call.operator.parallel is not None:
            continue
        call, own, typing = node.operator_call, ranks(node), local_typing(node)
        for carriers in (frozenset[int](), *typing.carriers):
            steps = SearchSteps()
            needed = typing_obligations(call, own, typing, carriers, steps, believed)
            conditions += needed
            theorem: Content = {
                "operator": call.name,
                "ranks": list(own),
                "positions": list(call.positions),
                "carriers": sorted(carriers),
                "windows": [window.axis.name for window in typing.open_windows],
                "steps": list(steps.taken),
                "conditions": [script_name(c) for c in needed],
            }
            theorems[json.dumps(theorem)] = theorem
    return list(theorems.values()), conditions


def _poly(value: Poly) -> list[Any]:
    return [[list(monomial), coefficient] for monomial, coefficient in value.terms]
