"""Halos: elements of neighbouring blocks that a block also holds, for windows to slide over.

A convolution or a pool whose rows are cut reads a few rows of the neighbouring blocks. A partition
may therefore state a halo, ``partition(x, dim=2, degree=4, before=1, after=1)``: each block also
holds so many elements before and after its own, within the tensor. With ``degree=1`` it adds a halo
to a dimension that is already cut, by an exchange between neighbours. A combine with ``degree=1``
drops the halo. The meaning of the tensor does not change: by type, the elements of a halo are equal
to those of the neighbours.

A halo has to reach at least as far as the windows read. It may reach further: additional elements
do no harm, and one exchange can serve operators with different windows. "At least" also covers
windows that leave elements of their own block unread.

Back-propagation. Each device has a gradient of its block and its halo, from its own computation. So
the gradient of an element is the sum over all blocks that hold it. The adjoint of a partition with
a halo adds the gradients of halos to those of the same elements in the neighbours' blocks, which is
the halo exchange backwards, and then combines.
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
    """Whether a call is a partition with a halo."""
    return not call.values.keys().isdisjoint(call.operator.optional)


def stated_halo(call: Call) -> Halo | None:
    """Return the halo that a partition states, if any. Raises OperatorError for invalid widths."""
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
    """Return the halos of an operator's outputs. Raises OperatorError if an operand has a halo that
    the operator does not support."""
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
    """Return the typing of a compute operator whose windows slide over its operands' halos. Raises
    OperatorError for a halo in a dimension without such a window."""
    haloed = [(operand, halo.dim) for operand, halos in enumerate(inputs) for halo in halos]
    typing = call.typing(tuple(ranks)).opened(haloed)
    used = {place for window in typing.open_windows for place in window.places}
    for operand, dim in haloed:
        if (operand, dim) not in used:
            problem = "has a halo, but no window that may be cut slides along this dimension"
            raise OperatorError(call.name, call.operator.operand_names[operand], dim, problem)
    return typing


def typing_of(call: Call, inputs: Sequence[ParallelTensor]) -> LocalTyping:
    """Return the typing of an operator on operands, including windows over their halos."""
    ranks = tuple(tensor.rank for tensor in inputs)
    if not any(tensor.degrees.halos for tensor in inputs):
        return call.typing(ranks)
    return open_typing(call, ranks, [tensor.degrees.halos for tensor in inputs])


def least_halo(
    call: Call, ranks: tuple[int, ...], sizes: Mapping[str, int], operand: int, dim: int
) -> tuple[int, int]:
    """Return the least halo for the windows over an operand's dimension: the most elements that a
    block of windows reads before and after its own."""
    reaches = (reach for window in call.typing(ranks).windows for reach in window.reaches)
    matching = [r for r in reaches if (r.operand, r.dim) == (operand, dim)]
    before, after = ([r.before for r in matching], [r.after for r in matching])
    return max(0, *(n.evaluate(sizes) for n in before)), max(0, *(n.evaluate(sizes) for n in after))


@dataclass(frozen=True)
class Demand:
    """A condition under which windows may be cut. In a dimension of an operand, ``count`` windows
    of ``reach.stride`` have to cover the size, and the halo has to reach as far as ``reach``.

    The halo is the operand's. ``reach`` and ``count`` are in terms of the equation.
    """

    halo: Halo
    reach: Reach
    count: Poly

    @property
    def covered(self) -> Poly:
        """The required size of the dimension."""
        return self.count * self.reach.stride

    @property
    def widths(self) -> tuple[tuple[str, Poly, Poly], ...]:
        """Tuples of a side, the width of the halo, and the least required width."""
        return (
            ("before", self.halo.before, self.reach.before),
            ("after", self.halo.after, self.reach.after),
        )


def demands(call: Call, ranks: Sequence[int], inputs: Sequence[Halos]) -> Iterator[Demand]:
    """Yield the conditions on sizes and halos for the windows that are cut."""
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
    """Raise OperatorError if windows do not fit the blocks into which they are cut."""
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
    """Raise OperatorError if the width of a halo is symbolic."""
    for halo in halos:
        for width in (halo.before, halo.after):
            _number(call, "x", halo.dim, width)


def _number(call: Call, operand: str, dim: int, width: Poly) -> int:
    if width.constant is None:
        raise OperatorError(call.name, operand, dim, f"halo of {width}, expected a number")
    return width.constant
