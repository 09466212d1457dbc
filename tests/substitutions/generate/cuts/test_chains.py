"""Rules between chains of parallel operators, against all chains and their types."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product
from random import Random

import pytest

from pcg.errors import OperatorError
from pcg.graph.graph import Graph
from substitutions.generate.cuts.chains import (
    Chain,
    ChainRewriter,
    ParallelOp,
    chain_rules,
    pair,
    type_of,
)
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.degrees import entries, typings
from verifier.trusted.sizes.runs import free_runs, widened

K, K2 = ("k",), ("k2",)


@cache
def rules():
    return chain_rules()


@cache
def texts() -> set[str]:
    return {f"{c.left} == {c.right}" for c in rules().candidates}


def either_way(left: str, right: str) -> bool:
    return f"{left} == {right}" in texts() or f"{right} == {left}" in texts()


@pytest.mark.parametrize(("there", "back"), [("partition", "combine"), ("pipeline", "batch")])
def test_inverse_parallel_operators_cancel(there, back):
    for first, second in ((there, back), (back, there)):
        assert f"{second}({first}(x, dim=1, degree=k), dim=1, degree=k) == x" in texts()


@pytest.mark.parametrize("name", ["partition", "combine", "pipeline", "batch"])
def test_a_cut_commutes_with_all_others(name):
    """On its own dimension and on another, before and after it, for any degrees."""
    for other in ("partition", "combine", "pipeline", "batch"):
        for a, b in ((1, 1), (1, 3), (3, 1)):
            inner = f"{other}(x, dim={b}, degree=%s)", f"{name}(x, dim={a}, degree=%s)"
            left = f"{name}({inner[0]}, dim={a}, degree=%s)"
            right = f"{other}({inner[1]}, dim={b}, degree=%s)"
            assert any(
                either_way(left % (i, o), right % (o, i)) for i, o in (("k", "k2"), ("k2", "k"))
            ), (left, right)
    for other in ("replicate", "reduce"):
        left = f"{name}({other}(x, degree=k), dim=1, degree=k2)"
        assert either_way(left, f"{other}({name}(x, dim=1, degree=k2), degree=k)")


def test_a_degree_splits_into_two():
    for name in ("partition", "combine", "pipeline", "batch"):
        one = f"{name}(x, dim=1, degree=k*k2)"
        assert either_way(one, f"{name}({name}(x, dim=1, degree=k), dim=1, degree=k2)")
    for name in ("replicate", "reduce"):
        assert either_way(f"{name}(x, degree=k*k2)", f"{name}({name}(x, degree=k), degree=k2)")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_all_are_proved_for_any_number_of_axes(step: int):
    for candidate in rules().candidates[::step]:
        left, right = candidate.parse()
        assert decide(left, right).verdict is Verdict.PROVED, candidate
        rank = dict(candidate.inputs)["x"]
        groups = free_runs(left, right)
        assert groups == tuple((("x", dim),) for dim in range(0, rank, 2))
        for count in (0, 2):
            assert decide(*widened(left, right, {groups[-1]: count})).verdict is Verdict.PROVED


def an_op(random: Random, degrees: list[tuple[str, ...]]) -> ParallelOp:
    degree, axis = random.choice(degrees), random.choice((0, 1))
    names = ["partition", "combine", "pipeline", "batch", "replicate", "reduce", "halo"]
    name = random.choice(names)
    if name == "halo":
        return ParallelOp("partition", axis, degree, haloed=True)
    return ParallelOp(name, -1 if name in ("replicate", "reduce") else axis, degree)


def test_types_of_chains_are_those_of_the_verifier():
    random = Random(7)
    reached: dict[object, set[object]] = defaultdict(set)
    untyped = 0
    for _ in range(600):
        word = tuple(an_op(random, [K, K2, (*K, *K2)]) for _ in range(random.randrange(4)))
        # All at one rank, at which both axes exist.
        both = pair((ParallelOp("partition", 0, K), ParallelOp("partition", 1, K)), word)[1]
        try:
            (typing,) = typings(Graph(both).nodes, both)
        except OperatorError:
            untyped += type_of(word) is None
            continue
        halos = tuple(halo.dim for halo in typing.types[0].halos)
        reached[type_of(word)].add((tuple(map(str, entries(typing.types[0]))), halos))
    assert untyped > 5
    assert None not in reached
    assert all(len(types) == 1 for types in reached.values())
    assert len({next(iter(types)) for types in reached.values()}) == len(reached) > 100


def test_chains_of_three_follow_from_the_rules():
    """In both directions. Every class of chains with the same type is connected."""
    rewriter = ChainRewriter([_words(c.left, c.right) for c in rules().candidates])
    names = ("partition", "combine", "pipeline", "replicate", "reduce")
    ops = [
        ParallelOp(name, -1 if name in ("replicate", "reduce") else 0, degree)
        for name, degree in product(names, (K, K2))
    ]
    classes: dict[object, list[Chain]] = defaultdict(list)
    for length in range(4):
        for word in product(ops, repeat=length):
            classes[type_of(word)].append(word)
    assert all(rewriter.joins(word, group[0]) for group in classes.values() for word in group)


def _words(left: str, right: str) -> tuple[Chain, Chain]:
    return _word(left), _word(right)


def _word(text: str) -> Chain:
    """The chain in a text, read from the inside."""
    operators: list[ParallelOp] = []
    while text != "x":
        name, rest = text.split("(", 1)
        end = _end_of_operand(rest)
        values = dict(item.split("=") for item in rest[end + 2 : -1].split(", "))
        axis = {"1": 0, "3": 1}[values["dim"]] if "dim" in values else -1
        degree = () if values["degree"] == "1" else tuple(values["degree"].split("*"))
        operators.append(ParallelOp(name, axis, degree, haloed="before" in values))
        text = rest[:end]
    return tuple(reversed(operators))


def _end_of_operand(text: str) -> int:
    """The position of the comma after the first operand."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            return place
    raise ValueError(text)


def test_no_rule_of_chains_follows_from_earlier_rules():
    every = [_words(c.left, c.right) for c in rules().candidates]
    for i, (left, right) in enumerate(every):
        assert not ChainRewriter(every[:i]).joins(left, right), (left, right)
