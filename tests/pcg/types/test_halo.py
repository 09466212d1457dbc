"""Halos as types: how they are stated, the cuts of windows that they allow, and the operators that
refuse them."""

from __future__ import annotations

from math import prod

import pytest
from support.cases import each
from support.plans.walks import steps_from

from pcg.errors import InputError, OperatorError
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.placement.layout import default_layout, grid
from pcg.placement.schedule import Reshard, schedule
from pcg.placement.view import MachineView
from pcg.plan.check import Placement, check_graph, check_placement
from pcg.plan.text import parse_graph, parse_values
from pcg.types.operator import Operator
from pcg.types.tensor import Degrees, Halo, ParallelTensor
from substitutions.rules.match import matches
from substitutions.rules.rule import parse_rule


def typed(text: str) -> ParallelTensor:
    return parse_graph(text).outputs[0].type


ROWS = "height=12, width=10, stride_h=1, stride_w=1, dilation_h=2, dilation_w=1, top=1, left=0"
X, W = "x = input[8, 4, 12/3{}, 10]\n", "w = weight[6, 4, 3, 1] copies=3\n"


@pytest.mark.parametrize("halo", ["(1,3)", "(2,3)", "(1,4)", "(12,20)"])
def test_a_halo_that_reaches_as_far_as_windows_read_is_accepted(halo: str):
    assert str(typed(f"{X.format(halo)}{W}return conv2d(x, w, {ROWS})")) == "[8, 6, 12/3, 10]"


@pytest.mark.parametrize(
    ("halo", "problem"),
    [
        ("", "refuses a cut without a halo: degree 3, expected 1"),
        ("(0,3)", "halo (0,3), but windows read 1 before their block"),
        ("(1,2)", "halo (1,2), but windows read 3 after their block"),
        ("(0,0)", "halo (0,0), but windows read 1 before their block"),
    ],
)
def test_a_halo_that_is_too_small_is_refused(halo: str, problem: str):
    with pytest.raises(OperatorError) as caught:
        typed(f"{X.format(halo)}{W}return conv2d(x, w, {ROWS})")
    error = caught.value
    assert (error.operator, error.operand, error.dimension) == ("conv2d", "x", 2)
    assert problem in error.problem


def pool(size: str, rows: str) -> str:
    x = f"x = input[2, 2, {size}, 4]\n"
    return f"{x}return max_pool2d(x, {rows}, width=4, kernel_w=1, stride_w=1, left=0)"


def test_windows_that_do_not_overlap_need_a_halo_of_nothing():
    rows = "height=6, kernel_h=2, stride_h=2, top=0"
    assert str(typed(pool("12/3(0,0)", rows))) == "[2, 2, 6/3, 4]"
    with pytest.raises(OperatorError, match="without a halo"):
        typed(pool("12/3", rows))


@pytest.mark.parametrize(
    "rows", ["height=5, kernel_h=3, stride_h=2", "height=6, kernel_h=2, stride_h=3"]
)
def test_blocks_of_windows_have_to_be_those_of_the_operand(rows: str):
    with pytest.raises(OperatorError, match=r"windows at steps of \d cover 1\d, expected size 12"):
        typed(pool("12/2(2,2)", f"{rows}, top=0"))


def test_blocks_hold_whole_windows():
    with pytest.raises(OperatorError, match="degree 4 does not divide size 6 of index h"):
        typed(pool("12/4(0,0)", "height=6, kernel_h=2, stride_h=2, top=0"))


def test_slices_in_time_of_windows_are_refused():
    with pytest.raises(OperatorError, match="slices of a window index 2, expected 1"):
        typed(pool("12/2|2(0,0)", "height=12, kernel_h=1, stride_h=1, top=0"))


@pytest.mark.parametrize(
    ("call", "operand", "dimension"),
    [
        ("relu(x)", "x", 0),
        ("add(y, x)", "y", 0),
        ("sum_axis(x, axis=0)", "x", 0),
        ("matmul(x, w)", "x", 0),
        ("softmax(x, axis=0)", "x", 0),
        ("concat(x, x, axis=0)", "x", 0),
    ],
)
def test_other_operators_refuse_a_halo(call: str, operand: str, dimension: int):
    leaves = "x = input[8/2(1,1), 4]\ny = input[8/2, 4]\nw = weight[4, 3] copies=2\n"
    with pytest.raises(OperatorError, match="has a halo") as caught:
        typed(f"{leaves}return {call}")
    assert (caught.value.operand, caught.value.dimension) == (operand, dimension)


@each(
    ("call", "of", "result"),
    [
        ("partition(x, dim=0, degree=2, before=1, after=2)", "[8, 4]", "[8/2(1,2), 4]"),
        ("partition(x, dim=0, degree=2, before=0, after=0)", "[8/2, 4]", "[8/4(0,0), 4]"),
        ("partition(x, dim=0, degree=1, before=3, after=0)", "[8/2, 4]", "[8/2(3,0), 4]"),
        ("partition(x, dim=1, degree=2)", "[8/2(1,2), 4]", "[8/2(1,2), 4/2]"),
        ("partition(x, dim=1, degree=2, before=1, after=1)", "[8/2(1,2), 4]",
         "[8/2(1,2), 4/2(1,1)]"),
        ("partition(x, dim=0, degree=2, before=1, after=1)", "[8, 4/2(1,2)]",
         "[8/2(1,1), 4/2(1,2)]"),
        ("combine(x, dim=0, degree=2)", "[8/4(1,2), 4]", "[8/2, 4]"),
        ("combine(x, dim=0, degree=1)", "[8/4(1,2), 4]", "[8/4, 4]"),
        ("combine(x, dim=1, degree=2)", "[8/4(1,2), 4/2]", "[8/4(1,2), 4]"),
        ("replicate(x, degree=2)", "[8/4(1,2), 4]", "[8/4(1,2), 4] copies=2"),
        ("reduce(x, degree=2)", "[8/4(1,2), 4] partials=2", "[8/4(1,2), 4]"),
        ("join(x, x)", "[8/4(1,2), 4]", "[8/4(1,2), 4] partials=2"),
        ("pipeline(x, dim=0, degree=2)", "[8/2(1,2), 4]", "[8/2|2(1,2), 4]"),
    ],
)  # fmt: skip
def test_parallel_operators(call: str, of: str, result: str):
    text = f"x = input{of}\nreturn {call}"
    assert str(typed(text)) == result
    assert check_graph(parse_graph(text)) == []


@pytest.mark.parametrize(
    ("call", "of", "problem"),
    [
        ("partition(x, dim=0, degree=2, before=1, after=1)", "[8/2(1,1)]", "has a halo already"),
        ("partition(x, dim=0, degree=2)", "[8/2(1,1)]", "has a halo already"),
        ("partition(x, dim=0, degree=2, before=-1, after=1)", "[8]", "before is -1, expected an"),
        ("partition(x, dim=0, degree=2, before=1, after=0.5)", "[8]", "after is 0.5, expected an"),
        ("partition(x, dim=0, degree=2, before=p, after=1)", "[8]", "halo of p, expected a number"),
        ("partition(x, dim=1, degree=2, before=1, after=1)", "[8]", "no such dimension"),
        ("join(x, y)", "[8/2(1,1)]", "halos differ"),
    ],
)
def test_parallel_operators_refuse(call: str, of: str, problem: str):
    with pytest.raises(OperatorError, match=problem):
        typed(f"x = input{of}\ny = input[8/2(1,2)]\nreturn {call}")


def test_a_halo_is_stated_whole_or_not_at_all():
    partition = OPERATORS["partition"]
    assert str(partition(dim=0, degree=2)) == "partition(dim=0, degree=2)"
    stated = partition(dim=0, degree=2, before=1, after=0)
    assert str(stated) == "partition(dim=0, degree=2, before=1, after=0)"
    with pytest.raises(OperatorError, match="expected dim, degree, before, after"):
        partition(dim=0, degree=2, before=1)
    with pytest.raises(OperatorError, match="attributes dim, degree, after, before, expected dim"):
        OPERATORS["combine"](dim=0, degree=2, after=1, before=1)


@pytest.mark.parametrize("entry", ["12/3(1)", "12/3(1,)", "12/3(-1,1)", "12/3(1,1", "12/3(a,1)"])
def test_text_that_is_no_halo(entry: str):
    with pytest.raises(InputError, match="expected SIZE or SIZE/DEGREE"):
        parse_graph(f"x = input[2, {entry}]\nreturn x")


@pytest.mark.parametrize(
    ("call", "of"),
    [
        ("partition(x, dim=0, degree=1)", "[8/2]"),
        ("partition(x, dim=0, degree=1, before=1, after=1)", "[8]"),
        ("combine(x, dim=0, degree=1)", "[8/2]"),
    ],
)
def test_a_degree_of_one_moves_a_halo_or_is_wrong(call: str, of: str):
    (problem,) = check_graph(parse_graph(f"x = input{of}\nreturn {call}"))
    assert "degree 1, expected an integer of at least 2" in problem.what


def test_a_halo_is_part_of_the_type():
    plain, haloed = (ParallelTensor((8,), Degrees((2,), (1,), 1, 1, h)) for h in ((), (HALO,)))
    assert plain != haloed
    assert (str(plain), str(haloed)) == ("[8/2]", "[8/2(1,2)]")
    assert haloed.block == plain.block
    assert haloed.degrees.halo(0) == HALO
    assert haloed.degrees.halo(1) is None


HALO = Halo(0, Poly.of(1), Poly.of(2))


@each(
    ("equation", "reaches"),
    [
        # Neighbours on both sides, each of which has to lie in the halo.
        ("x[i, j] -> out[i, j] = x[i, j] + x[i, j + 1]", [("1", "0", "0"), ("1", "-1", "1")]),
        ("x[i] -> out[h < n] = sum a < r: x[2*h - a]", [("2", "r - 1", "-1")]),
        ("x[i] -> out[h < n] = max a < 3 where 0 <= h + a - 1 < |i|: x[h + a - 1]",
         [("1", "1", "1")]),
        ("x[i], k[a, b] -> out[h < n] = sum a, b: x[h - 2*a + 3*b] * k[a, b]",
         [("1", "2*|a| - 2", "3*|b| - 3")]),
        # Reversed, of two output indices, of two strides, or squared: no blocks correspond.
        ("x[i, j] -> out[i, j] = x[i, |j| - 1 - j]", []),
        ("x[i] -> out[h < n, w < r] = x[h + w]", []),
        ("x[i] -> out[h < n] = x[h] + x[2*h]", []),
        ("x[i] -> out[h < n] = x[h*h]", []),
        ("x[i] -> out[h < n] = sum a < r: x[h + a*a]", []),
        ("x[i] -> out[h < n] = sum a < r: x[h*a]", []),
        ("x[i, j] -> out[h < n] = x[h + 1, h]", []),
        ("x[i] -> out[h < n] = sum h2 < r: x[h2]", []),
    ],
)  # fmt: skip
def test_windows_are_derived_from_the_equation(equation: str, reaches: list[tuple[str, ...]]):
    operator = Operator("other", equation, sizes=tuple(n for n in "nr" if f"< {n}" in equation))
    ranks = tuple(len(operand.dims) for operand in operator._expand(()).operands)
    windows = operator.typing(ranks, ()).windows
    offsets = [(str(r.stride), str(r.before), str(r.after)) for w in windows for r in w.reaches]
    assert offsets == reaches


# The places of blocks with halos, and the search with rules about them.


def test_piece_holds_its_block_and_halo_within_the_tensor():
    layout = default_layout(typed("x = input[8, 12/3(1,3)]\nreturn x"))
    assert [layout.regions[device][1] for device in range(3)] == [(0, 7), (3, 11), (7, 12)]
    assert [layout.without_halos.regions[device][1] for device in range(3)] == [
        (0, 4),
        (4, 8),
        (8, 12),
    ]
    assert layout.type.held == (8, 8)


def test_a_window_that_is_cut_has_tasks():
    graph = parse_graph(f"{X.format('(1,3)')}{W}return conv2d(x, w, {ROWS})")
    node = graph.outputs[0].node
    shape = grid(node)
    assert prod(shape) == 3
    view = MachineView.packed(0, shape)
    assert check_placement(Placement(graph, {node: view}, 3)) == []


def test_a_weight_is_stored_without_halos():
    """An operator that reads its neighbours' elements fetches them, and sends their gradients
    back."""
    x = X.format("(1,3)").replace("input", "weight")
    graph = parse_graph(f"{x}{W}return conv2d(x, w, {ROWS})")
    node = graph.outputs[0].node
    made = schedule(graph, {node: MachineView.packed(0, grid(node))})
    homes = {leaf.leaf.name: layout.type for leaf, layout in made.homes.items()}
    assert not homes["x"].degrees.halos
    assert node.inputs[0].type.degrees.halos
    moves = [step for step in made.steps if isinstance(step, Reshard)]
    assert [move.target.value.node.leaf.name for move in moves] == ["x"]


WINDOWS = "height=n, width=m, kernel_h=2, kernel_w=1, stride_h=1, stride_w=1, top=1, left=0"
RULE = parse_rule(
    "rows",
    {"x": 4},
    f"max_pool2d(x, {WINDOWS})",
    f"combine(max_pool2d(partition(x, dim=2, degree=k, before=1, after=0), {WINDOWS}),"
    " dim=2, degree=k)",
)


def test_rules_with_halos_are_not_applied_by_the_search():
    text = pool("12", "height=12, kernel_h=2, stride_h=1, top=1")
    graph = parse_graph(text)
    assert list(matches(RULE, graph))
    assert not list(steps_from(graph, [RULE], [2]))


def test_a_rule_about_partitions_does_not_match_one_with_a_halo():
    rule = parse_rule(
        "twice", {"x": 1}, "combine(partition(x, dim=0, degree=k), dim=0, degree=k)", "x"
    )
    for halo, matched in (("", 1), (", before=1, after=1", 0)):
        text = f"x = input[8]\nreturn combine(partition(x, dim=0, degree=2{halo}), dim=0, degree=2)"
        assert len(list(matches(rule, parse_graph(text)))) == matched


def test_halos_may_be_symbols_in_a_rule():
    (value,) = parse_values("partition(x, dim=0, degree=k, before=p, after=2*q + 1)", {"x": 1})
    assert value.node.operator_call.values["after"] == Poly.of("q") * 2 + 1
