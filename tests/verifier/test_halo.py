"""Cuts of windows with halos: their theorems, their rules, and the neighbours of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases import a_third, each
from support.graphs.strategies import parts_of_leaves
from support.rules.rule_files import parse

from pcg.errors import OperatorError
from pcg.graph.graph import Graph
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.plan.text import parse_graph
from pcg.readings.evaluate import evaluate_shards, meaning
from pcg.readings.ring import PrimeField
from pcg.types.local import LocalTyping, Window
from pcg.types.operator import Operator
from substitutions.generate.algebra.enumerate import RankedCall, instances
from verifier.certificate import certify, write
from verifier.decide import Decision, Verdict, decide
from verifier.recheck import Rechecker, certificates
from verifier.solvers import SOLVERS
from verifier.trusted.errors import Unsolvable
from verifier.trusted.proof.local import prove_typing
from verifier.trusted.sizes.degrees import local_typing
from verifier.trusted.sizes.sizes import Sizes

SLIDING = (
    *("conv2d", "grouped_conv2d", "depthwise_conv2d"),
    *("max_pool2d", "avg_pool2d", "avg_pool2d_inside"),
)


def instance_of(name: str) -> RankedCall:
    return next(iter(instances(OPERATORS[name])))


def opened(instance: RankedCall) -> Iterator[tuple[tuple[Window, ...], LocalTyping]]:
    """The typings with one or more windows cut."""
    typing = instance.call.typing(instance.ranks)
    for count in range(1, len(typing.windows) + 1):
        for chosen in combinations(typing.windows, count):
            yield chosen, typing.opened([place for w in chosen for place in w.places])


@pytest.mark.parametrize("name", a_third(SLIDING))
def test_cuts_of_windows_are_proved(name: str):
    """For rows, columns and both, with every set of operands that may carry partials."""
    instance = instance_of(name)
    windows = list(opened(instance))
    assert [[w.axis.name for w in chosen] for chosen, _ in windows] == [["h"], ["w"], ["h", "w"]]
    for chosen, typing in windows:
        assert typing.open_windows == chosen
        theorems = prove_typing(instance.call, instance.ranks, typing)
        assert len(theorems) == 1 + len(typing.carriers)
        assert all(t.proof is not None for t in theorems), [t.reason for t in theorems]


def narrower(typing: LocalTyping, window: Window, side: str) -> LocalTyping:
    """The typing with a halo that is one element narrower on one side of a window."""
    reaches = tuple(replace(r, **{side: getattr(r, side) - 1}) for r in window.reaches)
    less = replace(window, reaches=reaches)
    return replace(typing, windows=tuple(less if w == window else w for w in typing.windows))


@each("side", ["before", "after"])
@pytest.mark.parametrize("name", a_third(SLIDING))
def test_a_narrower_halo_is_not_proved(name: str, side: str):
    instance = instance_of(name)
    for chosen, typing in opened(instance):
        for window in chosen:
            less = narrower(typing, window, side)
            theorems = prove_typing(instance.call, instance.ranks, less)
            assert all(t.proof is None for t in theorems)
            assert "z3 says sat" in theorems[0].reason


@each("side", ["before", "after"])
@pytest.mark.parametrize("name", a_third(SLIDING))
def test_a_wider_halo_is_proved(name: str, side: str):
    """A halo may reach further than windows read."""
    instance = instance_of(name)
    for chosen, typing in opened(instance):
        reaches = (replace(r, **{side: getattr(r, side) + 1}) for r in chosen[0].reaches)
        wider = replace(chosen[0], reaches=tuple(reaches))
        windows = tuple(wider if w == chosen[0] else w for w in typing.windows)
        theorems = prove_typing(instance.call, instance.ranks, replace(typing, windows=windows))
        assert all(t.proof is not None for t in theorems)


@pytest.mark.parametrize("name", a_third(SLIDING))
def test_windows_are_no_plain_cuts(name: str):
    """Without the halo, tasks would read outside of their blocks."""
    instance = instance_of(name)
    for _, typing in opened(instance):
        theorems = prove_typing(instance.call, instance.ranks, replace(typing, windows=()))
        assert all(t.proof is None for t in theorems)


@pytest.mark.parametrize("stride", ["stride_h + 1", "2*stride_h", "1"])
def test_blocks_of_another_size_are_not_proved(stride: str):
    instance = instance_of("conv2d")
    _, typing = next(opened(instance))
    (window,) = typing.open_windows
    other = Poly.of("stride_h") + 1 if "+" in stride else Poly.of("stride_h") * 2
    other = Poly.of(1) if stride == "1" else other
    reaches = tuple(replace(r, stride=other) for r in window.reaches)
    wrong = replace(typing, windows=(replace(window, reaches=reaches),))
    theorems = prove_typing(instance.call, instance.ranks, wrong)
    assert all(t.proof is None for t in theorems)


@pytest.mark.parametrize(
    ("equation", "proved"),
    [
        ("x[i, j] -> out[i, j] = x[i, j] + x[i, j + 1]", True),
        ("x[i], k[a] -> out[h < n] = sum a: x[2*h - a] * k[a]", True),
        ("x[i], k[a, b] -> out[h < n] = sum a, b: x[h - 2*a + 3*b] * k[a, b]", True),
        ("x[i], y[i2] -> out[h < n] = x[h + 1] * y[2*h - 3]", True),
        ("x[i] -> out[h < n] = exp(sum a < 3: x[h + a])", True),
    ],
)
def test_windows_of_other_equations(equation: str, proved: bool):
    operator = Operator("other", equation, sizes=("n",) if "< n" in equation else ())
    ranks = tuple(len(operand.dims) for operand in operator._expand(()).operands)
    call = operator(**dict.fromkeys(operator.sizes, Poly.of("n")))
    (window,) = call.typing(ranks).windows
    typing = call.typing(ranks).opened(window.places)
    assert typing.open_windows == (window,)
    assert all((t.proof is not None) == proved for t in prove_typing(call, ranks, typing))
    for side in ("before", "after"):
        less = narrower(typing, window, side)
        assert all(t.proof is None for t in prove_typing(call, ranks, less))


# Rules.

CONV = "height=n, width=m, stride_h=s, stride_w=t, dilation_h=d, dilation_w=e, top=top, left=left"
THREE = "height=n, width=m, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1, top=1, left=1"
POOL = "height=n, width=m, kernel_h=r, kernel_w=c, stride_h=s, stride_w=t, top=top, left=left"
ROWS = "partition(x, dim=2, degree=k, before=p, after=q)"
HALO = "partition(x, dim=0, degree=k, before=p, after=q)"
EXCHANGE = ROWS.replace("=k", "=1")
AS_PADDED = EXCHANGE.replace("=p", "=top")
BOTH = f"partition({ROWS}, dim=3, degree=j, before=f, after=g)"


def conv_rule(x: str, attributes: str = CONV, w: str = "replicate(w, degree=k)") -> str:
    right = f"combine(conv2d({x}, {w}, {attributes}), dim=2, degree=k)"
    return f"x:4 w:4 | conv2d(x, w, {attributes}) == {right}"


def pool_rule(name: str, x: str = ROWS, attributes: str = POOL) -> str:
    right = f"combine({name}({x}, {attributes}), dim=2, degree=k)"
    return f"x:4 | {name}(x, {attributes}) == {right}"


def decided(line: str) -> Decision:
    return decide(*parse(line))


POOL_BOTH = (
    f"x:4 | max_pool2d(x, {POOL})"
    f" == combine(combine(max_pool2d({BOTH}, {POOL}), dim=2, degree=k), dim=3, degree=j)"
)
UNCHANGED = [
    f"x:1 | x == combine({HALO}, dim=0, degree=k)",
    f"x:1 | x == combine({HALO}, dim=0, degree=k)".replace("degree=k", "degree=1"),
    f"x:1 | {HALO.replace('(x', '(replicate(x, degree=j)')} == replicate({HALO}, degree=j)",
    f"x:4 w:4 | conv2d({EXCHANGE}, w, {CONV}) == conv2d({AS_PADDED}, w, {CONV})",
]
"""Rules that exchange halos and keep the value."""
WIDTHS = f"x:1 | {HALO.replace('=p', '=1')} == {HALO.replace('=q', '=1')}"
BEFORE, AFTER = "p >= top", "q >= -d + d*|w.2| - s - top + 1"


@each(
    ("line", "conditions"),
    [
        (conv_rule(ROWS), ("|x.2| = n*s", BEFORE, AFTER)),
        (conv_rule(ROWS.replace("=p", "=top")), ("|x.2| = n*s", AFTER)),
        (conv_rule(ROWS.replace("k", "2"), w="replicate(w, degree=2)").replace("=k", "=2"),
         ("|x.2| = n*s", BEFORE, AFTER)),
        (conv_rule("partition(x, dim=2, degree=k, before=1, after=1)", THREE),
         ("n = |x.2|", "1 >= |w.2| - 2")),
        *((pool_rule(name), ("|x.2| = n*s", BEFORE, "q >= r - s - top"))
          for name in ("max_pool2d", "avg_pool2d", "avg_pool2d_inside")),
        (POOL_BOTH, ("|x.2| = n*s", "|x.3| = m*t", BEFORE, "q >= r - s - top", "f >= left",
                     "g >= c - left - t")),
        *((line, ()) for line in UNCHANGED),
        (WIDTHS, ("p = 1", "q = 1")),
    ],
)  # fmt: skip
def test_rules_with_halos_are_proved(line: str, conditions: tuple[str, ...]):
    decision = decided(line)
    assert decision.verdict is Verdict.PROVED, decision.reason
    assert tuple(c.replace("s*n", "n*s") for c in decision.conditions) == conditions


@pytest.mark.parametrize(
    ("line", "verdict", "reason"),
    [
        (conv_rule("partition(x, dim=2, degree=k, before=0, after=1)", THREE), Verdict.ILL_TYPED,
         "0 >= 1 has no solution"),
        (conv_rule("partition(x, dim=2, degree=k)"), Verdict.ILL_TYPED, "no degrees fit"),
        (conv_rule(ROWS.replace("dim=2", "dim=3")), Verdict.ILL_TYPED, "no degrees fit"),
        (conv_rule(ROWS, w="w"), Verdict.VACUOUS, "no degrees fit both sides"),
        pytest.param(
            conv_rule(ROWS).replace("top=top, left=left), dim", "top=top, left=top), dim"),
            Verdict.REFUTED, "the values differ", marks=pytest.mark.soak),
        (conv_rule(ROWS).replace("dilation_h=d, dilation_w=e, top=top, left=left), dim",
                                 "dilation_h=e, dilation_w=e, top=top, left=left), dim"),
         Verdict.REFUTED, "the values differ"),
        (pool_rule("max_pool2d").replace("combine(max_pool2d", "combine(avg_pool2d"),
         Verdict.REFUTED, "the values differ"),
        (pool_rule("max_pool2d", BOTH), Verdict.REFUTED, "the types differ"),
        (f"x:1 | x == {HALO}".replace("=k", "=1"), Verdict.ILL_TYPED,
         "output 0 has a halo in dimension 0 on one side only"),
        (WIDTHS.replace("=p", "=2"), Verdict.VACUOUS, "= 2 has no solution"),
        (f"x:1 | relu({HALO}) == {HALO.replace('(x', '(relu(x)')}", Verdict.ILL_TYPED,
         "has a halo"),
    ],
)  # fmt: skip
def test_neighbours_of_rules_with_halos(line: str, verdict: Verdict, reason: str):
    decision = decided(line)
    assert decision.verdict is verdict, decision.reason
    assert reason in decision.reason


NUMBERS = {
    **dict.fromkeys(("n", "s", "d", "top", "p", "q"), st.integers(0, 4)),
    "k": st.integers(2, 3),
    "kernel": st.integers(1, 3),
    "size": st.integers(1, 12),
}


@settings(max_examples=100, deadline=None)
@given(values=st.fixed_dictionaries(NUMBERS), fits=st.booleans(), seed=st.integers(0, 99))
def test_the_conditions_of_a_rule_are_those_of_its_type(
    values: dict[str, int], fits: bool, seed: int
):
    """At random numbers, the right side has a type exactly if the conditions hold. Then both sides
    have the same values."""
    names = {name: values[name] for name in ("n", "s", "d", "top", "p", "q", "k")}
    size = names["n"] * names["s"] if fits else values["size"]
    assume(size > 0)
    leaves = f"x = input[2, 2, {size}, 3]\nw = weight[2, 2, {values['kernel']}, 2]\n"
    sides = [side.split(" | ")[-1] for side in conv_rule(ROWS).split(" == ")]
    for name, value in (names | {"m": 2, "t": 1, "e": 1, "left": 0}).items():
        sides = [side.replace(f"={name},", f"={value},") for side in sides]
        sides = [side.replace(f"={name})", f"={value})") for side in sides]
    left, right = (parse_graph(f"{leaves}return {side}") for side in sides)
    try:
        left.check()
    except OperatorError:
        assume(False)
    known = {**names, "x2": size, "w2": values["kernel"]}
    stated = [c.replace(" = ", " == ").replace("|x.2|", "x2").replace("|w.2|", "w2")
              for c in CONDITIONS]  # fmt: skip
    whole = names["n"] % names["k"] == 0
    assert _is_typed(right) == (whole and all(eval(c, {}, known) for c in stated))
    if _is_typed(right):
        parts, ring = parts_of_leaves(left, seed, PrimeField()), PrimeField()
        results = (meaning(evaluate_shards(g, parts, ring)[0], ring) for g in (left, right))
        np.testing.assert_array_equal(*results)


CONDITIONS = ("|x.2| = n*s", BEFORE, AFTER)


def _is_typed(graph: Graph) -> bool:
    try:
        graph.check()
    except OperatorError:
        return False
    return True


def certified(line: str, directory: Path) -> Path:
    left, right = parse(line)
    write(directory, [certify("rows", left, right, decide(left, right))])
    (path,) = certificates(directory)
    return path


@pytest.mark.parametrize("line", [conv_rule(ROWS), pool_rule("max_pool2d")])
def test_certificates_hold_the_theorems_of_windows(line: str, tmp_path: Path):
    path = certified(line, tmp_path)
    verdict = Rechecker(tmp_path, SOLVERS).check(path)
    assert verdict.accepted, verdict.reason
    text = path.read_text()
    assert '"h"' in text
    path.write_text(text.replace('"h"', '"w"'))
    wrong = Rechecker(tmp_path, SOLVERS).check(path)
    assert not wrong.accepted
    assert "has no theorem for" in wrong.reason


def test_the_typing_of_a_node_has_the_windows_of_its_halos_open():
    _, (right,) = parse(conv_rule(ROWS))
    conv = right.node.inputs[0].node
    assert [w.axis.name for w in local_typing(conv).open_windows] == ["h"]
    (left,), _ = parse(conv_rule(ROWS))
    assert local_typing(left.node).open_windows == ()


def test_halo_widths_are_at_least_the_needed_ones():
    sizes = Sizes()
    p, top = Poly.of("p"), Poly.of("top")
    sizes.at_least(top, top)
    sizes.at_least(p + 2, p + 1)
    assert sizes.naturals == []
    sizes.at_least(p, top)
    assert (sizes.naturals, sizes.least) == ([p - top], [(p, top)])
    with pytest.raises(Unsolvable, match="p >= p \\+ 1 has no solution"):
        sizes.at_least(p, p + 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_two_convolutions_exchanges_halos_between_them(seed: int):
    """The second convolution's halo is stated on the result of the first, without combining."""
    random = Random(seed)
    first, second = (
        "height=n, width=m, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,"
        f" top={random.randint(1, 2)}, left=0"
        for _ in range(2)
    )
    left = f"conv2d(conv2d(x, w, {first}), y, {second})"
    inner = f"conv2d({ROWS}, replicate(w, degree=k), {first})"
    middle = f"partition({inner}, dim=2, degree=1, before=f, after=g)"
    right = f"combine(conv2d({middle}, replicate(y, degree=k), {second}), dim=2, degree=k)"
    decision = decided(f"x:4 w:4 y:4 | {left} == {right}")
    assert decision.verdict is Verdict.PROVED, decision.reason
