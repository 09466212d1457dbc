"""The rules around one operator, against all graphs around it and their types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import pytest
from support.cases import a_third

from pcg.graph.graph import Graph, Node, Value, tensor
from pcg.language.poly import Poly
from pcg.ops import OPERATORS
from pcg.ops.stand_ins import STAND_INS
from pcg.types.operator import Operator
from substitutions.generate.algebra.enumerate import NAMES, computing, moves
from substitutions.generate.cuts.cuts import OperatorCuts, cut_rules
from substitutions.generate.cuts.derive import EdgeEntry, Edges, Relation, RelationSteps
from substitutions.rules.rule import side_text
from verifier.decide import Verdict, decide
from verifier.trusted.sizes.degrees import entries, typings
from verifier.trusted.sizes.runs import free_runs, widened

ALL = {**OPERATORS, **STAND_INS}
K = Poly.of("k")
Counts = dict[EdgeEntry, int]
Key = tuple[object, ...]
Classes = Mapping[Key, Sequence[Counts]]


def options(edge: int, rank: int) -> list[tuple[Counts, str, dict[str, int]]]:
    """Nothing, or one parallel operator: the entry that it counts in, its name, and its
    dimension."""
    partial: list[tuple[Counts, str, dict[str, int]]] = [({}, "", {})]
    for call in moves(rank, K):
        dim = call.values.get("dim", 0)
        assert isinstance(dim, int)
        entry, power = {
            "partition": (dim, 1),
            "combine": (dim, -1),
            "pipeline": (rank + dim, 1),
            "batch": (rank + dim, -1),
            "replicate": (2 * rank, 1),
            "reduce": (2 * rank + 1, 1),  # counts partials
        }[call.name]
        partial.append(
            ({(edge, entry): power}, call.name, {} if rank * 2 <= entry else {"dim": dim})
        )
    return partial


def moved(value: Value, option: tuple[Counts, str, dict[str, int]]) -> Value:
    _, name, dim = option
    return Value(Node(OPERATORS[name](**dim, degree=K), (value,))) if name else value


def keys(outputs: tuple[Value, ...]) -> Iterator[Key]:
    """The types of a graph, one for each choice of the operands that carry partials."""
    for number, typing in enumerate(typings(Graph(outputs).nodes, outputs)):
        rows = typing.basis.rows
        # The type needs k = 1, or an input with a k-th of a copy or the like.
        impossible = any(
            symbol == "k" or (value.powers and all(s == "k" and e < 0 for s, e in value.powers))
            for symbol, value in rows
        )
        types = [typing.basis.reduce(entry) for t in typing.types for entry in entries(t)]
        if not impossible:
            yield (number, *map(str, rows), *map(str, types))


def graphs(layout: OperatorCuts) -> Iterator[tuple[Counts, tuple[Value, ...]]]:
    """Every graph around an operator, with its counts."""
    at = layout.at
    leaves = [tensor(name, rank) for name, rank in zip(NAMES, at.ranks, strict=False)]
    for chosen in product(*(options(edge, rank) for edge, rank in enumerate(at.edges))):
        before, after = chosen[: len(leaves)], chosen[len(leaves) :]
        node = Node(at.call, tuple(moved(x, o) for x, o in zip(leaves, before, strict=True)))
        counts = {place: n for own, _, _ in chosen for place, n in own.items()}
        yield counts, tuple(moved(node.value(i), o) for i, o in enumerate(after))


def classes(all_graphs: Iterator[tuple[Counts, tuple[Value, ...]]]) -> Classes:
    """The graphs with equal types, which are therefore equal."""
    by_key: dict[Key, list[Counts]] = defaultdict(list)
    for counts, outputs in all_graphs:
        for key in keys(outputs):
            by_key[key].append(counts)
    return by_key


@cache
def classes_around(name: str, active: int) -> Classes:
    return classes(graphs(layout_of(name, active)))


def difference(edges: Edges, left: Counts, right: Counts) -> Relation:
    """The counts that one graph has and the other lacks. Those of both take part in no rule."""
    powers: Counts = {}
    for place in sorted({*left, *right}):
        sign = -1 if place[1] == 2 * edges.ranks[place[0]] + 1 else 1  # a reduce divides
        if n := sign * (left.get(place, 0) - right.get(place, 0)):
            powers[place] = n
    return tuple(powers.items())


def unreached(
    edges: Edges, classes: Classes, basis: Sequence[Relation], most: int
) -> list[Relation]:
    """The equalities of the classes that do not follow in up to ``most`` steps."""
    steps = RelationSteps(edges)
    every = {difference(edges, g, group[0]) for group in classes.values() for g in group[1:]}
    return [r for r in every if r and steps.distance(r, basis, most) is None]


SMALL = [
    ("pointwise", 2), ("add", 1), ("matmul", 1), ("sum_loss", 3), ("split", 1), ("softmax", 1),
    ("embedding_bag", 1), ("expand", 2), ("gather", 1), ("join", 1),
]  # fmt: skip


def layout_of(name: str, active: int) -> OperatorCuts:
    layout = OperatorCuts.of(ALL[name], active)
    assert layout is not None
    return layout


@pytest.mark.parametrize(("name", "active"), a_third(SMALL))
def test_every_equality_around_an_operator_follows(name, active):
    layout = layout_of(name, active)
    basis = [relation.relation for relation in layout.basis([])]
    edges = Edges(layout.at.edges)
    assert not unreached(edges, classes_around(name, active), basis, 6)


@pytest.mark.parametrize(("name", "active"), SMALL)
def test_no_rule_of_an_operator_follows_from_its_other_rules(name, active):
    """In fewer steps than the number from which equalities are left out."""
    layout = layout_of(name, active)
    basis = [one.relation for one in layout.basis([])]
    steps = RelationSteps(Edges(layout.at.edges))
    for relation in basis:
        others = [other for other in basis if other != relation]
        assert steps.distance(relation, others, 3) is None


@pytest.mark.parametrize(("name", "active"), a_third(SMALL))
def test_each_rule_is_one_of_the_equalities(name, active):
    layout = layout_of(name, active)
    edges = Edges(layout.at.edges)
    every = {
        r
        for group in classes_around(name, active).values()
        for a in group
        for b in group
        if (r := difference(edges, a, b))
    }
    for relation in layout.basis([]):
        if not relation.haloed:
            assert relation.relation in every


@pytest.mark.parametrize(("name", "active"), a_third(SMALL))
def test_graphs_and_types_are_counted(name, active):
    layout = layout_of(name, active)
    classes = classes_around(name, active)
    assert layout.count() == (sum(map(len, classes.values())), len(classes))


def texts(layout: OperatorCuts) -> set[str]:
    pairs = (layout.written(f) for f in layout.found() if not f.steps)
    return {f"{side_text(left)} == {side_text(right)}" for left, right in pairs}


@pytest.mark.parametrize(
    "name", ["pointwise2", "matmul", "softmax", "sum_loss", "concat", "gather"]
)
def test_one_active_axis_of_a_run_is_enough(name):
    """The axes of a run are alike, and no rule is about two of them."""
    one, *more = (texts(layout_of(name, active)) for active in (1, 2, 3))
    assert all(relation == one for relation in more)


def test_rules_of_a_matmul():
    lines = [f"{c.left} == {c.right}" for c in cut_rules(ALL["matmul"]).candidates if not c.steps]
    assert lines == [
        "matmul(x, y) == batch(matmul(pipeline(x, dim=1, degree=k), y), dim=1, degree=k)",
        "matmul(x, y) == batch(matmul(x, pipeline(y, dim=1, degree=k)), dim=1, degree=k)",
        (
            "matmul(x, y) == combine(matmul(partition(x, dim=1, degree=k), replicate(y, degree=k)),"
            " dim=1, degree=k)"
        ),
        (
            "matmul(x, y) == reduce(matmul(partition(x, dim=1, degree=k), partition(y, dim=0,"
            " degree=k)), degree=k)"
        ),
        (
            "matmul(x, y) == combine(matmul(replicate(x, degree=k), partition(y, dim=1, degree=k)),"
            " dim=1, degree=k)"
        ),
        "matmul(reduce(x, degree=k), y) == reduce(matmul(x, replicate(y, degree=k)), degree=k)",
        "matmul(x, reduce(y, degree=k)) == reduce(matmul(replicate(x, degree=k), y), degree=k)",
        (
            "replicate(matmul(x, y), degree=k) == matmul(replicate(x, degree=k), replicate(y,"
            " degree=k))"
        ),
    ]


@pytest.mark.parametrize(
    ("name", "inputs", "left", "right"),
    [
        (
            "embedding",
            "embedding(x, y)",
            "reduce(embedding(replicate(x, degree=k), partition(y, dim=0, degree=k)), degree=k)",
            {"x": 1, "y": 2},
        ),
        (
            "attention",
            "attention(x, y, z)",
            (
                "combine(attention(partition(x, dim=1, degree=k), partition(y, dim=1, degree=k),"
                " partition(z, dim=1, degree=k)), dim=1, degree=k)"
            ),
            {"x": 5, "y": 5, "z": 5},
        ),
        (
            "attention",
            "attention(x, y, z)",
            (
                "combine(attention(partition(x, dim=1, degree=k), replicate(y, degree=k),"
                " replicate(z, degree=k)), dim=1, degree=k)"
            ),
            {"x": 3, "y": 3, "z": 3},
        ),
    ],
)
def test_named_rules_are_found(name, inputs, left, right):
    candidates = {(c.left, c.right, c.inputs) for c in cut_rules(ALL[name]).candidates}
    assert (inputs, left, tuple(right.items())) in candidates


def test_windows_are_cut_with_halos():
    """Rows and columns of a convolution. The sizes of the halo are conditions."""
    candidates = [c for c in cut_rules(ALL["conv2d"]).candidates if "halo_before" in c.right]
    rules = [c for c in candidates if not c.steps]
    assert [f"combine({dim}" for c in rules for dim in (2, 3) if f"dim={dim}" in c.right] == [
        "combine(2",
        "combine(3",
    ]
    for candidate in rules:
        decision = decide(*candidate.parse())
        assert decision.verdict is Verdict.PROVED
        assert any(c.startswith("halo_before >= ") for c in decision.conditions)


@pytest.mark.parametrize(
    "name", a_third(["matmul", "concat", "softmax", "sum_axis", "scale", "pointwise2"])
)
def test_rules_are_proved_for_any_number_of_free_axes(name):
    for candidate in cut_rules(ALL[name]).candidates:
        left, right = candidate.parse()
        assert decide(left, right).verdict is Verdict.PROVED
        for group in free_runs(left, right)[:2] if not candidate.steps else ():
            for count in (0, 2):
                assert decide(*widened(left, right, {group: count})).verdict is Verdict.PROVED


@pytest.mark.parametrize("name", ["pointwise", "matmul", "softmax", "transpose"])
def test_free_axes_stand_around_those_that_a_rule_uses(name):
    """One before, between and after, and no two side by side in every value."""
    operator = ALL[name]
    for candidate in cut_rules(operator).candidates:
        left, right = candidate.parse()
        rank = dict(candidate.inputs)["x"]
        free = {dim for group in free_runs(left, right) for owner, dim in group if owner == "x"}
        last = 1 if name == "matmul" else 0
        assert free == set(range(0, rank - last, 2))


def test_an_element_wise_operator_has_the_rules_of_its_stand_in():
    assert cut_rules(ALL["relu"]).candidates == ()
    assert [f"{c.left} == {c.right}" for c in cut_rules(ALL["add"]).candidates] == [
        "reduce(add(x, y), degree=k) == add(reduce(x, degree=k), reduce(y, degree=k))"
    ]
    assert len(cut_rules(ALL["where"]).candidates) == 1  # linear in both branches together


def test_derived_rules_are_other_ways_to_write_a_relation():
    layout = layout_of("pointwise", 1)
    relations = list(layout.found())
    for one in relations:
        same = [other for other in relations if other.relation == one.relation]
        assert [other.steps for other in same] == [0] + [1] * (len(same) - 1)
    cut = {f"{c.left} == {c.right}" for c in cut_rules(ALL["pointwise"]).candidates if c.steps}
    one = "pointwise(partition(x, dim=1, degree=k))"
    assert f"{one} == partition(pointwise(x), dim=1, degree=k)" in cut


def test_symbols_and_names_of_inputs_are_never_taken_twice():
    operands = [f"v{i}[i...]" for i in range(10)]
    many = Operator("many", f"out[i...] = k * ({' + '.join(operands)})", reals=("k",))
    candidates = cut_rules(many).candidates
    assert len(candidates[0].inputs) == 10
    assert all("degree=k2" in c.right and "k=k" in c.right for c in candidates)
    layout = OperatorCuts.of(many)
    assert layout is not None
    assert decide(*layout.written(layout.basis([])[0])).verdict is Verdict.PROVED
    assert len(candidates) < 100  # not all of the 2**11 ways to write a rule on that many edges


@pytest.mark.parametrize("third", a_third(range(3)))
def test_all_operators_have_rules(third):
    for operator in [*computing()][third::3]:
        rules_of_cuts = cut_rules(operator)
        assert rules_of_cuts.graphs > rules_of_cuts.values > 0
        assert all(c.steps in (0, 1) for c in rules_of_cuts.candidates)


PAIRS = [
    ("pointwise", 1, "pointwise"),
    ("sum_loss", 1, "pointwise"),
    ("pointwise", 1, "softmax"),
    ("add", 1, "scale"),
    ("matmul", 0, "sum_loss"),
    ("expand", 1, "sum_axis"),
]


@pytest.mark.parametrize(("first", "active", "second"), a_third(PAIRS))
def test_chains_of_two_operators_have_no_rules_of_their_own(first, active, second):
    """The second operator has one operand. The edge between them is an output of one and an operand
    of the other, so the relations of both share its places."""
    one = layout_of(first, active)
    (between,) = one.at.outputs
    two = next(
        layout
        for active in (0, 1, 2)
        if (layout := OperatorCuts.of(ALL[second], active)) and layout.at.ranks == (between,)
    )
    start = len(one.at.ranks)
    edges = Edges((*one.at.edges, *two.at.outputs))
    later = [
        tuple(((edge + start, entry), n) for (edge, entry), n in relation.relation)
        for relation in two.basis([])
    ]
    basis = [relation.relation for relation in one.basis([])] + later

    def chains() -> Iterator[tuple[Counts, tuple[Value, ...]]]:
        after = [options(start + 1 + i, rank) for i, rank in enumerate(two.at.outputs)]
        for counts, (value,) in graphs(one):
            node = Node(two.at.call, (value,))
            for chosen in product(*after):
                own = {place: n for more, _, _ in chosen for place, n in more.items()}
                yield counts | own, tuple(moved(node.value(i), o) for i, o in enumerate(chosen))

    assert not unreached(edges, classes(chains()), basis, 6)
