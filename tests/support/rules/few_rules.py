"""A small library with rules of every kind, for the tests of files that are made of libraries."""

from __future__ import annotations

from substitutions.rules.rule import Family, Rule, parse_rule
from substitutions.rules.store import LibraryFile, ProofFile, library_of, rule_file
from verifier.trusted.sizes.runs import free_runs

PARTS = "split(concat(x, y, axis=0), axis=0, at=|x.0|)"
GIVEN: tuple[tuple[str, Family, dict[str, int], str, str, tuple[str, ...]], ...] = (
    (
        "associative",
        "algebra",
        {"x": 2, "y": 2, "z": 2},
        "matmul(matmul(x, y), z)",
        "matmul(x, matmul(y, z))",
        (),
    ),
    (
        "merged",
        "algebra",
        {"x": 2, "y": 2, "z": 2},
        "concat(matmul(x, y), matmul(x, z), axis=1)",
        "matmul(x, concat(y, z, axis=1))",
        (),
    ),
    (
        "parts",
        "algebra",
        {"x": 1, "y": 1},
        f"{PARTS}.0, {PARTS}.1",
        "x, y",
        (),
    ),
    (
        "any function",
        "cut",
        {"x": 3},
        "pointwise(partition(x, dim=1, degree=k))",
        "partition(pointwise(x), dim=1, degree=k)",
        (),
    ),
    (
        "along the sum",
        "cut",
        {"x": 2, "y": 2},
        "matmul(x, y)",
        "reduce(matmul(partition(x, dim=1, degree=k), partition(y, dim=0, degree=k)), degree=k)",
        ("x.d1 = y.d0",),
    ),
    (
        "undone",
        "move",
        {"x": 1},
        "combine(partition(x, dim=0, degree=k), dim=0, degree=k)",
        "x",
        (),
    ),
    (
        "one row",
        "decomposition",
        {"x": 2},
        "softmax(x, axis=1)",
        "softmax(scale(x, factor=1.0), axis=1)",
        (),
    ),
)


def few_rules() -> tuple[Rule, ...]:
    """Rules that hold. The last one is marked as if it followed from others in two steps."""
    rules: list[Rule] = []
    for name, family, inputs, left, right, conditions in GIVEN:
        rule = parse_rule(name, inputs, left, right)
        runs = free_runs(rule.left, rule.right)
        derived = 2 if name == "one row" else 0
        rules.append(
            Rule(name, rule.inputs, rule.left, rule.right, conditions, runs, family, derived)
        )
    return tuple(rules)


def few() -> LibraryFile:
    """A library of these rules."""
    proof = ProofFile(side_conditions=3, digest="0123456789abcdef", degrees={})
    return library_of([rule_file(rule, proof) for rule in few_rules()], max_ops=2)
