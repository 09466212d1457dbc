"""All graphs up to a size: what the generator looks for rules among.

An instance is an operator at given ranks and positions, with symbols for its other attributes. Two
families of graphs are enumerated: (a) up to two computing operators, all ways to wire them over
four named inputs; (b) one operator with up to one parallel operator on each of its edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pcg.errors import OperatorError
from pcg.graph import Node, Value, tensor
from pcg.language import EquationError
from pcg.operator import Call, Operator
from pcg.operator import Value as Attribute
from pcg.ops import BUILT_IN, OPERATORS
from pcg.poly import Poly

NAMES = ("x", "y", "z", "w")
MAX_RANK = 3
DEGREE = "k"
CORE = frozenset(
    (
        *("matmul", "batch_matmul", "add", "multiply", "scale", "relu", "gelu"),
        *("concat", "split", "transpose", "flatten", "unflatten"),
        *("softmax", "layer_norm", "embedding", "sum_loss", "mean_loss", "join"),
    )
)
"""The operators of family (a), graphs of two operators; a user's own belong to it too."""


@dataclass(frozen=True)
class Instance:
    """An operator at given ranks; ``variant`` tells the symbols of equal operators apart."""

    call: Call
    ranks: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def max_rank(self) -> int:
        return max(*self.ranks, *self.outputs)

    def renamed(self, suffix: str) -> Instance:
        """The instance with other symbols."""
        attributes = tuple(
            (name, Poly.of(f"{value.symbol}{suffix}") if isinstance(value, Poly) else value)
            for name, value in self.call.attributes
        )
        return Instance(Call(self.call.operator, attributes), self.ranks, self.outputs)

    @property
    def has_symbols(self) -> bool:
        return any(isinstance(value, Poly) for _, value in self.call.attributes)


def instances(operator: Operator, max_rank: int = MAX_RANK) -> Iterator[Instance]:
    """A computing operator (or join) at every choice of ranks and positions up to ``max_rank``, or
    up to the least ranks that it has where these are greater."""
    runs = list(
        dict.fromkeys(d.names[0] for o in operator.template.operands for d in o.dims if d.run)
    )
    only_runs = all(d.run for o in operator.template.operands for d in o.dims)
    # One run beside other indices holds batch dimensions: at least one, or it is another operator.
    least = 0 if only_runs or len(runs) > 1 else 1
    fixed = [sum(least if d.run else 1 for d in part.dims) for part in operator.template.placing]
    max_rank = max(max_rank, *fixed)
    for lengths in product(range(least, max_rank + 1), repeat=len(runs)):
        found = _instance(operator, dict(zip(runs, lengths, strict=True)), max_rank)
        if found is not None:
            yield found


def _instance(operator: Operator, lengths: Mapping[str, int], max_rank: int) -> Instance | None:
    ranks: list[int] = []
    positions: dict[str, Attribute] = {}
    for part in operator.template.placing:
        at = 0
        for dim in part.dims:
            if dim.position is not None:
                positions[dim.position] = at
            at += lengths[dim.names[0]] if dim.run else 1
        ranks.append(at)
    ranks = ranks[: operator.arity]
    if max(ranks) > max_rank:
        return None
    symbols: dict[str, Attribute] = {
        name: Poly.of(name) for name in (*operator.sizes, *operator.reals)
    }
    call = operator(**positions, **symbols)
    try:
        equation = call.instance(tuple(ranks))
    except (OperatorError, EquationError):
        return None
    outputs = tuple(len(output.dims) for output in equation.outputs)
    return Instance(call, tuple(ranks), outputs) if max(outputs) <= max_rank else None


def core_instances(operators: Iterable[Operator]) -> list[Instance]:
    """The instances of family (a): ranks 1 and 2, or the smallest rank that an operator has."""
    found: list[Instance] = []
    for operator in operators:
        if operator.name not in CORE and operator in BUILT_IN:
            continue
        options = [i for i in instances(operator) if min(i.ranks) > 0]
        least = min(i.max_rank for i in options)
        found += [i for i in options if i.max_rank <= max(2, least)]
    return found


def computing(operators: Mapping[str, Operator] = OPERATORS) -> list[Operator]:
    """The operators that compute from operands, and join."""
    return [o for o in operators.values() if o.parallel in (None, "join") and o.arity]


def moves(rank: int, degree: Poly | int) -> list[Call]:
    """Every parallel operator on a tensor of a rank."""
    cutting = [OPERATORS[name] for name in ("partition", "combine", "pipeline", "batch")]
    copying = [OPERATORS[name] for name in ("replicate", "reduce")]
    found = [o(dim=dim, degree=degree) for o in cutting for dim in range(rank)]
    return found + [o(degree=degree) for o in copying]


def single(instance: Instance) -> Iterator[tuple[Value, ...]]:
    """One operator over named inputs, in all ways to name them; each output alone."""
    for inputs in _named(instance.ranks):
        yield from _outputs(Node(instance.call, inputs), instance)


def pairs(first: Instance, second: Instance) -> Iterator[tuple[Value, ...]]:
    """Two operators, the second reading the first, over named inputs."""
    suffixes = ("", "2") if first.has_symbols and second.has_symbols else ("",)
    for suffix in suffixes:
        # Symbols of the same name are told apart, either way round.
        a = first.renamed("2" if suffix == "2" else "")
        b = second.renamed("" if suffix == "2" or len(suffixes) == 1 else "2")
        for inputs in _named(a.ranks):
            yield from _second(Node(a.call, inputs), a, b)


def _second(node: Node, first: Instance, second: Instance) -> Iterator[tuple[Value, ...]]:
    made = [(node.value(port), rank) for port, rank in enumerate(first.outputs)]
    used = {value.node.leaf.name: value.node.leaf.rank for value in node.inputs}
    for inputs in _operands(second.ranks, made, used):
        if any(value.node == node for value in inputs):
            yield from _outputs(Node(second.call, inputs), second)


def _outputs(node: Node, instance: Instance) -> Iterator[tuple[Value, ...]]:
    ports = range(len(instance.outputs))
    for port in ports:
        yield (node.value(port),)
    if len(ports) > 1:
        yield tuple(node.value(port) for port in ports)


def _named(ranks: Sequence[int]) -> Iterator[tuple[Value, ...]]:
    return _operands(ranks, [], {})


def _operands(
    ranks: Sequence[int], made: Sequence[tuple[Value, int]], used: Mapping[str, int]
) -> Iterator[tuple[Value, ...]]:
    """All choices of operands: values made before, or named inputs of one rank each."""
    if not ranks:
        yield ()
        return
    for value, rank in made:
        if rank == ranks[0]:
            for rest in _operands(ranks[1:], made, used):
                yield (value, *rest)
    for name in NAMES:
        if used.get(name, ranks[0]) != ranks[0]:
            continue
        for rest in _operands(ranks[1:], made, {**used, name: ranks[0]}):
            yield (tensor(name, ranks[0]), *rest)


def move_chains(rank: int) -> Iterator[tuple[Value, ...]]:
    """Up to two parallel operators on one input."""
    x = tensor("x", rank)
    yield (x,)
    degrees = (Poly.of(DEGREE), Poly.of(f"{DEGREE}2"))
    for inner, outer in ((degrees[0], degrees[0]), degrees, degrees[::-1]):
        for first in moves(rank, inner):
            value = Value(Node(first, (x,)))
            yield (value,)
            for second in moves(rank, outer):
                yield (Value(Node(second, (value,))),)


def decorated(instance: Instance, degree: Poly | int) -> Iterator[tuple[Value, ...]]:
    """One operator with up to one parallel operator on each of its edges."""
    edges: list[list[Value]] = []
    for name, rank in zip(NAMES, instance.ranks, strict=False):
        x = tensor(name, rank)
        edges.append([x, *(Value(Node(move, (x,))) for move in moves(rank, degree))])
    after = [[None, *moves(rank, degree)] for rank in instance.outputs]
    for inputs in product(*edges):
        node = Node(instance.call, inputs)
        for chosen in product(*after):
            yield tuple(
                node.value(port) if move is None else Value(Node(move, (node.value(port),)))
                for port, move in enumerate(chosen)
            )
