"""Imports TASO's operators, one side of a rule at a time, as operators of the index language.

Sizes are tracked for splits, constants and windows. Windows may need several cases of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcg.graph.graph import apply
from pcg.language.poly import ONE, Poly
from pcg.ops import algebra, constants, elementwise, groups, reindexing, windows
from pcg.types.operator import Call
from substitutions.importers import operators, tensors
from substitutions.importers.imported import (
    IllTypedError,
)
from substitutions.importers.ranks import InputRanks
from substitutions.importers.schema import ForeignOperator, ForeignSide
from substitutions.importers.sizes import KnownSizes
from substitutions.importers.tensors import (
    ForeignAxis,
    ForeignTensor,
    ForeignTensors,
    activated,
    axis_of,
    check_ranks,
    constant,
    input_name,
    input_tensor,
    permutation,
    placed,
    slid,
)
from substitutions.importers.windows import CasesNeeded, ForeignWindows, centred, quotient
from substitutions.importers.windows import windows as find_windows
from verifier.trusted.sizes.sizes import SizeEquation, input_size

ONES = (constants.ones1, constants.ones2, constants.ones3, constants.ones4)


@dataclass(frozen=True)
class ConvolutionDemands:
    """Demands on convolutions: see ``taso.import_rule``."""

    ungrouped: tuple[str, ...]
    same_outputs: bool


@dataclass
class Importer:
    known: KnownSizes
    demanded: ConvolutionDemands
    ranks: InputRanks
    settled: Mapping[str, Poly]
    """The values of the unstated sizes of constants that are known from an earlier round."""
    fresh: set[str] = field(default_factory=set[str])
    """The symbols of the unstated sizes of constants."""
    demands: dict[str, SizeEquation] = field(default_factory=dict[str, SizeEquation])
    """The equations between sizes that ``demanded`` adds and types do not require, by text."""

    def side(self, name: str, side: ForeignSide) -> tuple[ForeignTensor, ...]:
        """Type all operators of a side, and return its mapped outputs."""
        made: dict[int, tuple[ForeignTensor, ...]] = {}
        for number in side.order:
            operator = side.operators[number]
            if operator.name == "OP_CONSTANT_ONE":
                continue  # It is created where it is first used, which gives its rank.
            inputs = self._inputs(name, side, operator, made)
            place = f"{name}{number}"
            try:
                made[number] = _READERS[operator.name](self, place, operator, inputs)
            except CasesNeeded as needed:
                # Sizes at which the left side has no meaning are no condition of the rule.
                bound = "" if name == "left" else needed.bound
                raise CasesNeeded(needed.symbol, needed.options, bound) from None
            except IllTypedError as error:
                reason = f"operator {number} ({operator.name}): {error.reason}"
                raise IllTypedError(reason, name, error.demand) from None
        for reference in side.outputs:
            if reference.op not in made:
                made[reference.op] = (self._ones(f"{name}{reference.op}", 4),)
        return tuple(made[r.op][r.port] for r in side.outputs)

    def _inputs(
        self,
        name: str,
        side: ForeignSide,
        operator: ForeignOperator,
        made: dict[int, tuple[ForeignTensor, ...]],
    ) -> list[ForeignTensor]:
        known = [
            self._input(r.op) if r.op < 0 else made[r.op][r.port] if r.op in made else None
            for r in operator.inputs
        ]
        ranks = [t.rank for t in known if t is not None]
        rank = ranks[0] if ranks else operator.parameters.get(operators.NUM_DIM, 0)
        rank = rank or (2 if operator.name == "OP_MATMUL" else 4)
        for reference in operator.inputs:
            if reference.op >= 0 and reference.op not in made:
                made[reference.op] = (self._ones(f"{name}{reference.op}", rank),)
        return [self._input(r.op) if r.op < 0 else made[r.op][r.port] for r in operator.inputs]

    def _input(self, op: int) -> ForeignTensor:
        return input_tensor(op, self.ranks.of[op])

    def settle(self, inputs: frozenset[int]) -> Mapping[str, Poly]:
        """The unstated sizes of constants, in terms of sizes of inputs where these give them."""
        input_sizes = [
            Poly.of(input_size(input_name(op), dim))
            for op in sorted(inputs)
            for dim in range(self.ranks.of[op])
        ]
        by_value = {self.known.resolve(size): size for size in input_sizes}
        settled: dict[str, Poly] = {}
        for symbol in self.fresh:
            value = self.known.resolve(Poly.of(symbol))
            # Other symbols are parts of sizes, which exist in this round only.
            plain = (
                value if value.symbols <= {str(size) for size in input_sizes} else Poly.of(symbol)
            )
            settled[symbol] = by_value.get(value, plain)
        return settled

    def _unstated(self, place: str, what: str) -> Poly:
        """A size of a constant that the file does not state: its value if known, else a symbol."""
        symbol = f"|{place}.{what}|"
        self.fresh.add(symbol)
        return self.settled.get(symbol, Poly.of(symbol))

    def matmul(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        x, w = inputs
        check_ranks(inputs, 2)
        self.known.equal(x.axes[1].size, w.axes[0].size, "inner sizes")
        value = activated(operator, apply(algebra.matmul(), x.value, w.value))
        return (ForeignTensor(value, (x.axes[0], w.axes[1])),)

    def elementwise(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        return tensors.elementwise(self.known, operator, inputs)

    def function(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (x,) = inputs
        return (replace(x, value=apply(_FUNCTIONS[operator.name], x.value)),)

    def scale(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        x, s = inputs
        if s.rank:
            raise IllTypedError(f"the second input has rank {s.rank}, expected a scalar")
        return (replace(x, value=apply(groups.times_scalar(), x.value, s.value)),)

    def concat(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        return tensors.concatenated(self.known, axis_of(operator, inputs), inputs)

    def split(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        dim = axis_of(operator, inputs)
        return tensors.split(self.known, dim, inputs[0], operator.outputs)

    def transpose(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (x,) = inputs
        order = permutation(operator, x.rank)
        value = reindexing.permute(x.value, order)
        return (ForeignTensor(value, tuple(x.axes[dim] for dim in order)),)

    def conv2d(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        x, k = inputs
        check_ranks(inputs, 4)
        for axis, name in zip(k.axes[2:], operators.KERNEL, strict=True):
            if name in operator.parameters:
                self.known.equal(axis.size, Poly.of(operator.parameters[name]), name)
        groups = self._groups(place, x.axes[1].size, k.axes[1].size)
        self.known.divide(k.axes[0].size, groups, "groups of output channels")
        slides = self._windows(operator, x, [axis.size for axis in k.axes[2:]])
        kind = windows.conv2d if groups == ONE else windows.grouped_conv2d
        call = kind(**placed(operator, slides), dilation_h=1, dilation_w=1)
        value = activated(operator, apply(call, x.value, k.value))
        return (ForeignTensor(value, (x.axes[0], k.axes[0], *slid(operator, x, slides))),)

    def _groups(self, place: str, channels: Poly, each: Poly) -> Poly:
        """The number of groups: the channels of the image over the channels of the kernel."""
        if place.startswith(self.demanded.ungrouped):
            self.demand(each, channels)
        return self.known.divide(channels, each, "channels of a group")

    def demand(self, a: Poly, b: Poly) -> None:
        """Make the equality of two sizes a condition of the rule."""
        if self.known.resolve(a) != self.known.resolve(b):
            self.demands[f"{a} = {b}"] = (a, b)
            self.known.equal(a, b, "channels")

    def equate_outputs(self, inputs: frozenset[int]) -> None:
        """Make it a condition of the rule that all kernels have the same number of output
        channels."""
        kernels = [self._input(op) for op in sorted(inputs & self.ranks.kernels, reverse=True)]
        for k in kernels[1:]:
            self.demand(k.axes[0].size, kernels[0].axes[0].size)

    def pool(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (x,) = inputs
        check_ranks(inputs, 4)
        kernel = [operator.parameters[name] for name in operators.KERNEL]
        slides = self._windows(operator, x, [Poly.of(size) for size in kernel])
        kind = windows.max_pool2d if operator.name == "OP_POOL2D_MAX" else windows.avg_pool2d
        call = kind(**placed(operator, slides), kernel_h=kernel[0], kernel_w=kernel[1])
        value = activated(operator, apply(call, x.value))
        return (ForeignTensor(value, (*x.axes[:2], *slid(operator, x, slides))),)

    def enlarge(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        (k,) = inputs
        check_ranks(inputs, 4)
        new = [operator.parameters[name] for name in operators.KERNEL]
        pairs = zip(k.axes[2:], new, strict=True)
        top, left = (centred(self.known, axis.size, size) for axis, size in pairs)
        call = windows.enlarge(kernel_h=new[0], kernel_w=new[1], top=top, left=left)
        axes = (*k.axes[:2], *(ForeignAxis(Poly.of(size)) for size in new))
        return (ForeignTensor(apply(call, k.value), axes),)

    def identity(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        size = self._unstated(place, "size")
        return (constant(constants.identity_matrix(size=size), size, size),)

    def identity_kernel(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        channels = self._unstated(place, "channels")
        height, width = self._kernel(place, operator)
        call = constants.identity_kernel(
            channels=channels,
            kernel_h=height,
            kernel_w=width,
            top=quotient(self.known, height - 1, 2),
            left=quotient(self.known, width - 1, 2),
        )
        return (constant(call, channels, channels, height, width),)

    def averaging_kernel(
        self, place: str, operator: ForeignOperator, inputs: Sequence[ForeignTensor]
    ) -> ForeignTensors:
        channels = self._unstated(place, "channels")
        height, width = self._kernel(place, operator)
        call = constants.averaging_kernel(channels=channels, kernel_h=height, kernel_w=width)
        return (constant(call, channels, ONE, height, width),)

    def _kernel(self, place: str, operator: ForeignOperator) -> tuple[Poly, Poly]:
        height, width = (
            Poly.of(operator.parameters[name])
            if name in operator.parameters
            else self._unstated(place, name[3:].lower())
            for name in operators.KERNEL
        )
        return height, width

    def _ones(self, place: str, rank: int) -> ForeignTensor:
        sizes = [self._unstated(place, str(dim)) for dim in range(rank)]
        call = ONES[rank - 1](**{f"size{dim}": size for dim, size in enumerate(sizes)})
        return constant(call, *sizes)

    def _windows(
        self, operator: ForeignOperator, x: ForeignTensor, kernel: Sequence[Poly]
    ) -> tuple[ForeignWindows, ForeignWindows]:
        padding = operator.parameters[operators.PADDING]
        rows, columns = (
            find_windows(self.known, axis.size, size, operator.parameters[stride], padding)
            for axis, size, stride in zip(x.axes[2:], kernel, operators.STRIDES, strict=True)
        )
        return rows, columns


_FUNCTIONS: Mapping[str, Call] = {
    "OP_RELU": algebra.relu(),
    "OP_SIGMOID": elementwise.sigmoid(),
    "OP_TANH": elementwise.tanh(),
}

_Reader = Callable[[Importer, str, ForeignOperator, Sequence[ForeignTensor]], ForeignTensors]

_READERS: Mapping[str, _Reader] = {
    "OP_MATMUL": Importer.matmul,
    "OP_EW_ADD": Importer.elementwise,
    "OP_EW_MUL": Importer.elementwise,
    "OP_RELU": Importer.function,
    "OP_SIGMOID": Importer.function,
    "OP_TANH": Importer.function,
    "OP_MUL": Importer.scale,
    "OP_CONCAT": Importer.concat,
    "OP_SPLIT": Importer.split,
    "OP_TRANSPOSE": Importer.transpose,
    "OP_CONV2D": Importer.conv2d,
    "OP_POOL2D_MAX": Importer.pool,
    "OP_POOL2D_AVG": Importer.pool,
    "OP_ENLARGE": Importer.enlarge,
    "OP_CONSTANT_IMM": Importer.identity,
    "OP_CONSTANT_ICONV": Importer.identity_kernel,
    "OP_CONSTANT_POOL": Importer.averaging_kernel,
}
"""OP_CONSTANT_ONE is not here: see ``side``."""
