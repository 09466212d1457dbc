"""Halos: the elements of neighbouring blocks that a block holds too, for windows to slide over.

A convolution or a pool whose rows are cut reads a few rows of the blocks above and below. A
partition may therefore state a halo, ``partition(x, dim=2, degree=4, before=1, after=1)``: each
block also holds so many elements before and after its own, as far as the tensor goes. With
``degree=1`` it is the exchange of halos of a dimension that is cut already, and a combine with
``degree=1`` lays them down again. What the tensor means does not change: the elements of a halo are
equal by type to those that the neighbours hold.

A halo has to reach at least as far as the windows read. It may reach further, since what is not
read does no harm and one exchange then serves operators with different windows; and since at
least, unlike exactly, also says what to ask of windows that leave elements unread.

Back-propagation. Each device has a gradient of its block and of its halo, of what it computed
alone, so the gradient of an element is the sum of those of all blocks that hold it. The adjoint of
a partition with a halo thus adds the gradients of halos to those of the elements that they repeat,
in the neighbours' blocks (the exchange of halos, backwards), and then combines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pcg.errors import OperatorError
from pcg.language.poly import Poly
from pcg.types.local import LocalTyping, Reach
from pcg.types.operator import Call
from pcg.types.tensor import Halo, Halos, ParallelTensor


def states_halo(call: Call) -> bool:
    """Whether it is a partition with a halo."""
    return not call.values.keys().isdisjoint(call.operator.optional)


def stated_halo(call: Call) -> Halo | None:
    """The halo that a partition states, if it does. Raises OperatorError for one that is none."""
    if not states_halo(call):
        return None
    widths: list[Poly] = []
    for name in call.operator.optional:
        value = call.values[name]
        number = value.constant if isinstance(value, Poly) else value
        if isinstance(value, float) or (number is not None and number < 0):
            problem = f"attribute {name} is {value}, expected an integer of at least 0"
            raise OperatorError(call.name, "x", call.integer("dim"), problem)
        widths.append(Poly.of(value))
    return Halo(call.integer("dim"), *widths)


def halos_after(call: Call, ranks: Sequence[int], inputs: Sequence[Halos]) -> Halos:
    """The halos of an operator's outputs. Raises OperatorError where an operand has a halo that
    the operator has no use for."""
    match call.operator.parallel:
        case None:
            open_typing(call, ranks, inputs)
            return ()
        case "partition":
            return _partitioned(call, inputs[0])
        case "combine":
            return tuple(halo for halo in inputs[0] if halo.dim != call.integer("dim"))
        case "join" if inputs[0] != inputs[1]:
            raise OperatorError(call.name, "y", None, "halos differ from those of x")
        case _:
            return inputs[0]


def _partitioned(call: Call, x: Halos) -> Halos:
    dim = call.integer("dim")
    if any(halo.dim == dim for halo in x):
        raise OperatorError(call.name, "x", dim, "has a halo already: combine before another cut")
    stated = stated_halo(call)
    return x if stated is None else tuple(sorted((*x, stated), key=lambda halo: halo.dim))


def open_typing(call: Call, ranks: Sequence[int], inputs: Sequence[Halos]) -> LocalTyping:
    """The typing of a compute operator whose windows slide over the halos of its operands. Raises
    OperatorError for a halo where none do."""
    haloed = [(operand, halo.dim) for operand, halos in enumerate(inputs) for halo in halos]
    typing = call.typing(tuple(ranks)).opened(haloed)
    used = {place for window in typing.open_windows for place in window.places}
    for operand, dim in haloed:
        if (operand, dim) not in used:
            problem = "has a halo, but no window that may be cut slides along this dimension"
            raise OperatorError(call.name, call.operator.operand_names[operand], dim, problem)
    return typing


def typing_of(call: Call, inputs: Sequence[ParallelTensor]) -> LocalTyping:
    """The typing of an operator on some operands, with the windows that slide over their halos."""
    ranks = tuple(tensor.rank for tensor in inputs)
    if not any(tensor.degrees.halos for tensor in inputs):
        return call.typing(ranks)
    return open_typing(call, ranks, [tensor.degrees.halos for tensor in inputs])


def least_halo(
    call: Call, ranks: tuple[int, ...], sizes: Mapping[str, int], operand: int, dim: int
) -> tuple[int, int]:
    """How many elements before and after its own a block of windows reads at a dimension of an
    operand, at most."""
    reaches = (reach for window in call.typing(ranks).windows for reach in window.reaches)
    own = [r for r in reaches if (r.operand, r.dim) == (operand, dim)]
    before, after = ([r.before for r in own], [r.after for r in own])
    return max(0, *(n.evaluate(sizes) for n in before)), max(0, *(n.evaluate(sizes) for n in after))


@dataclass(frozen=True)
class Demand:
    """What has to hold for windows to be cut: at a dimension of an operand of size ``size``,
    ``count`` steps of ``reach.stride`` are the size, and the halo reaches as far as ``reach``.

    The halo and the size are those of the operand, the rest is in terms of the equation.
    """

    halo: Halo
    reach: Reach
    count: Poly

    @property
    def covered(self) -> Poly:
        """What has to be the size of the dimension."""
        return self.count * self.reach.stride

    @property
    def widths(self) -> tuple[tuple[str, Poly, Poly], ...]:
        """(side, what the halo has, what it needs at least)."""
        return (
            ("before", self.halo.before, self.reach.before),
            ("after", self.halo.after, self.reach.after),
        )


def demands(call: Call, ranks: Sequence[int], inputs: Sequence[Halos]) -> Iterator[Demand]:
    """What the windows that are cut ask of sizes and halos."""
    if call.operator.parallel is not None or not any(inputs):
        return
    for window in open_typing(call, ranks, inputs).open_windows:
        for reach in window.reaches:
            halo = next(h for h in inputs[reach.operand] if h.dim == reach.dim)
            yield Demand(halo, reach, window.count)


def check_halos(
    call: Call,
    inputs: Sequence[Halos],
    shapes: Sequence[tuple[int, ...]],
    sizes: Mapping[str, int],
) -> None:
    """Raise OperatorError where windows do not fit the blocks that they are cut in."""
    for demand in demands(call, [len(shape) for shape in shapes], inputs):
        reach = demand.reach
        name, size = call.operator.operand_names[reach.operand], shapes[reach.operand][reach.dim]
        covered = demand.covered.evaluate(sizes)
        if covered != size:
            count, stride = demand.count.evaluate(sizes), reach.stride.evaluate(sizes)
            problem = f"{count} windows at steps of {stride} cover {covered}, expected size {size}"
            raise OperatorError(call.name, name, reach.dim, problem)
        for side, have, need in demand.widths:
            least = need.evaluate(sizes)
            if _number(call, name, reach.dim, have) < least:
                problem = f"halo {demand.halo}, but windows read {least} {side} their block"
                raise OperatorError(call.name, name, reach.dim, problem)


def check_widths(call: Call, halos: Halos) -> None:
    """Raise OperatorError where the width of a halo is no number."""
    for halo in halos:
        for width in (halo.before, halo.after):
            _number(call, "x", halo.dim, width)


def _number(call: Call, operand: str, dim: int, width: Poly) -> int:
    if width.constant is None:
        raise OperatorError(call.name, operand, dim, f"halo of {width}, expected a number")
    return width.constant
