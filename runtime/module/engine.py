"""The engine behind a parallel module: a rank's program, its shards, its steps, and the gathering
of whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pcg.errors import InputError, UnityError
from pcg.graph.graph import DRAWN
from pcg.placement.region import as_slices
from pcg.plan.naming import NamingFile
from pcg.plan.plan import Plan
from pcg.plan.precision import Precision
from pcg.plan.text import print_graph
from runtime.execute.executor import Executor, PendingBatch
from runtime.execute.precision import RunFormats, allow_tf32, run_formats, unscaled
from runtime.inputs.seeded import LeafRegion, Synthetic
from runtime.job.job import AgreedError
from runtime.module.fed import PassedInputs
from runtime.program.lower import Lowering
from runtime.program.program import Load, Run, Weight, sources
from runtime.program.validate import validate_lowered
from runtime.train.initial import Initial, loaded
from runtime.train.training import is_delayed
from runtime.world.collectives import World

FORMATS: Mapping[torch.dtype, Precision] = {
    **dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), "fp32"),
    torch.float64: "fp64",
}
"""The formats of a module's parameters, with those in which weights are stored. Weights of a module
in a narrow format are stored in float32, since plans count and update them so."""


@dataclass
class PendingLoss:
    """The loss of all ranks together. ``loss`` is valid after ``wait``."""

    loss: Tensor
    _sum: Tensor
    _wait: Callable[[], None] | None

    @torch.no_grad()
    def wait(self) -> None:
        """Wait until the ranks have added up their parts of the loss."""
        if self._wait is not None:
            self._wait()
            self._wait = None
            self.loss.copy_(self._sum.squeeze(0))


class RankEngine:
    """A plan on one rank. All ranks create it together and call its methods in the same order."""

    def __init__(
        self, lowering: Lowering, tensors: Mapping[str, Tensor], world: World, seed: int
    ) -> None:
        """``tensors``: those of the module, by name. The initial values are those of rank 0. Raises
        InputError if plan, module and ranks do not fit together."""
        self.lowering, self.world, self.plan = lowering, world, lowering.plan
        self._check_alike()
        precision = self._precision(tensors)
        self.formats = run_formats(precision, world.device)
        self._validate(self.formats.wide.itemsize)
        _check_ties(self.plan, tensors)
        self.program = lowering.program(world.rank)
        self.weights = {w.leaf.name: w for w in self.program.weights}
        """The weights of which this rank stores a block, by leaf."""
        self._homes = {node.leaf.name: node for node in lowering.schedule.homes}
        initial = Initial(self.plan, None, seed, world, self.formats.wide, given=tensors)
        self.is_filled = not any(world.gather(self._is_unknown(tensors)))
        """Whether the weights have values."""
        self.fed = self._fed(initial, seed)
        self.executor = Executor(
            self.program,
            world,
            precision,
            source=self.fed,
            drawn=False,
            reuses=False,
            turned=self._turned(),
            compiles=self.plan.training.compiled,
        )
        if self.is_filled:
            initial.fill(self.executor.weights, self.program.weights)
            self.executor.running.fill(initial.statistics())
        self._everyone = tuple(range(world.size))
        world.prepare((self._everyone,))
        self.seed, self.number = seed, 0
        """``number``: that of the forward passes so far."""
        self.states: dict[str, Tensor] = {}
        """The new values of buffers that the last forward pass has changed, by name."""
        self.changes = 0
        """How often ``load`` was called."""

    def _precision(self, tensors: Mapping[str, Tensor]) -> Precision:
        """The plan's precision for these tensors. Sets torch's option for tf32 if that is it."""
        weights = [self.naming.parameter(leaf) for leaf in self.naming.parameters]
        precision = _precision(self.plan, [tensors.get(n) for w in weights for n in w.in_module])
        if precision == "tf32":
            allow_tf32(allowed=True)
        return precision

    @property
    def leaves(self) -> Iterable[str]:
        """The weights that the plan reads, by the names of their leaves."""
        return self._homes

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of these whole weights in the graph."""
        return {name: node.leaf.shape for name, node in self._homes.items()}

    @property
    def naming(self) -> NamingFile:
        return self.plan.naming

    @property
    def depends_on_training(self) -> bool:
        """Whether the module in evaluation mode computes something else than the plan: whether it
        has random numbers or batch norms, or changes buffers."""
        drawn = any(node.leaf.name.startswith(DRAWN) for node in self.plan.model.leaves)
        return drawn or bool(self.plan.statistics) or bool(self.naming.states)

    def check_filled(self) -> None:
        """Raise InputError if the weights have no values yet."""
        if not self.is_filled:
            problem = "has no values, as the module had none: expected load_state_dict first"
            raise InputError(self.plan.model_name, problem)

    def forward(
        self, inputs: Mapping[str, Tensor], *, trains: bool, keeps: bool
    ) -> tuple[PendingBatch, PendingLoss]:
        """Run the forward pass of a batch. Return the batch for ``backward``, and the loss.
        ``keeps``: whether to update the running statistics and the buffers that steps change."""
        self.check_filled()
        number = self.number
        self.world.step, self.world.doing = number + 1, "computing"
        self.fed.give(inputs)
        self.number += 1
        batch = self.executor.forward(number, self._formats_now(), trains=trains)
        self.fed.forget()
        if keeps:
            with torch.no_grad():
                self.executor.keep_statistics()
                self._keep_states()
        total = torch.zeros(1, dtype=torch.float64, device=self.world.device)
        if batch.loss is not None:
            total += batch.loss
        wait = self.world.start_all_reduce(total, self._everyone)
        loss = torch.zeros((), dtype=self.formats.wide, device=total.device)
        return batch, PendingLoss(loss, total, wait)

    def backward(self, batch: PendingBatch, scale: Tensor, *, exchanges: bool) -> dict[str, Tensor]:
        """Run the backward pass of a batch. Return the gradients of this rank's blocks, by leaf, of
        the loss times ``scale``. Empty without ``exchanges``, except for a pipeline."""
        by_register = self.executor.backward(batch, scale, exchanges=exchanges)
        if batch.formats.needs_scale and exchanges:
            self._agree_on_overflow(by_register)
        names = {w.register: w.leaf.name for w in self.program.trained}
        return {names[register]: gradient for register, gradient in by_register.items()}

    def _agree_on_overflow(self, gradients: Mapping[str, Tensor]) -> None:
        """Make gradients infinite on all ranks if one rank has a gradient that is not finite, so
        that a GradScaler skips the update on all ranks or on none."""
        bad = unscaled(list(gradients.values()), 1.0)
        if self.world.total(bad) > 0 and not bad:
            for gradient in gradients.values():
                gradient.fill_(torch.inf)

    def piece(self, leaf: str) -> Tensor | None:
        """This rank's block of a weight. None if it stores none."""
        weight = self.weights.get(leaf)
        return None if weight is None else self.executor.weights[weight.register]

    def counts(self, leaf: str) -> bool:
        """Whether this rank is the first of those that store its block of a weight."""
        weight = self.weights.get(leaf)
        return weight is not None and weight.group[0] == self.world.rank

    def whole(self, leaf: str) -> Tensor:
        """A weight, whole, on every rank. All call together."""
        node = self._homes[leaf]
        exchange = self.lowering.collect(self.lowering.home(node), 0, self.world.rank)
        shape = node.leaf.shape
        value = self.executor.collect(exchange, shape, weight=True)
        if self.world.size == 1:
            assert value is not None, "rank 0 collects"
            return value.clone()
        return self._to_all(value, shape)

    @torch.no_grad()
    def load(self, leaf: str, value: Tensor) -> None:
        """Set this rank's block of a weight, of a frozen parameter or of a buffer from a whole
        tensor."""
        self.changes += 1
        weight = self.weights.get(leaf)
        if weight is not None:
            self._copy(self.executor.weights[weight.register], value, weight)
        for piece, kept in self.fed.kept.items():
            if piece.leaf == leaf:
                kept.copy_(value[as_slices(piece.region)])

    def _keep_states(self) -> None:
        """Replace the buffers that every step changes by their new values."""
        for state in self.naming.states:
            slot = self.lowering.schedule.outputs[state.output]
            exchange = self.lowering.collect(slot, 0, self.world.rank)
            shape = slot.layout.type.shape
            value = self._to_all(self.executor.collect(exchange, shape), shape)
            for name in state.names:
                self.states[name] = value
            for piece in self.fed.kept:
                if self.naming.buffers[piece.leaf] in state.names:
                    # Not in place, since a backward pass may still read the old value.
                    self.fed.kept[piece] = value[as_slices(piece.region)].clone()

    def _copy(self, target: Tensor, value: Tensor, weight: Weight) -> None:
        target.copy_(value[as_slices(weight.region)])

    def _to_all(self, value: Tensor | None, shape: Sequence[int]) -> Tensor:
        """Send a tensor from rank 0 to all ranks along a binary tree, and return it."""
        world, dtype = self.world, self.formats.wide
        length = torch.Size(shape).numel()
        if not length:
            return torch.empty(tuple(shape), dtype=dtype, device=world.device)
        if world.rank:
            above = (world.rank - 1) // 2
            flat = world.exchange({}, {above: length}, dtype)[above]
        else:
            assert value is not None, "rank 0 collects"
            flat = value.contiguous().reshape(-1)
        if world.size == 1:
            return flat.clone().view(tuple(shape))
        below = [r for r in (2 * world.rank + 1, 2 * world.rank + 2) if r < world.size]
        if below:
            world.exchange(dict.fromkeys(below, flat), {}, dtype)
            world.settle()
        return flat.view(tuple(shape))

    def _formats_now(self) -> RunFormats:
        """The formats of the next forward pass: with autocast if it is enabled."""
        device = self.world.device.type
        if not torch.is_autocast_enabled(device):
            return self.formats
        return replace(self.formats, autocast=torch.get_autocast_dtype(device))

    def _fed(self, initial: Initial, seed: int) -> PassedInputs:
        plan, read = self.plan, tuple(loaded(self.program))
        names = {name for name in self.naming.inputs if name is not None}
        leaves = {n.leaf.name: n.leaf for n in plan.model.leaves if n.leaf.name in names}
        constants = [piece for piece in read if piece.leaf in self.naming.buffers]
        constants = list(dict.fromkeys(constants))
        kept = initial.constants(constants) if self.is_filled else self._empty(constants)
        inputs = tuple(piece for piece in read if piece.leaf in leaves)
        return PassedInputs(self.world, leaves, inputs, kept, Synthetic(seed))

    def _turned(self) -> set[str]:
        """The weights that are stored in memory as the module stores them: those that are
        transposed in the module, and that only operators read. Their gradients need no copy."""
        pipeline = self.program.pipeline
        later = () if pipeline is None else (*pipeline.slices, pipeline.tail)
        instructions = (i for part in (self.program.instructions, *later) for i in part)
        sent = {name for i in instructions if not isinstance(i, Run | Load) for name in sources(i)}
        moved = {leaf for leaf, weight in self.weights.items() if weight.register in sent}
        # An all_reduce of gradients adds up memory, so all ranks must store them in the same order.
        moved_on_any = set[str]().union(*self.world.gather(moved))
        turned = {leaf for leaf in self._homes if self.naming.parameter(leaf).transposed}
        return turned - moved_on_any

    def _empty(self, pieces: Sequence[LeafRegion]) -> dict[LeafRegion, Tensor]:
        sizes = {p: [stop - start for start, stop in p.region] for p in pieces}
        dtype, device = self.formats.wide, self.world.device
        return {p: torch.zeros(size, dtype=dtype, device=device) for p, size in sizes.items()}

    def _is_unknown(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether this is rank 0, from which values come, and its tensors have none."""
        names = {name for p in self.naming.parameters.values() for name in p.in_module}
        names |= set(self.naming.buffers.values())
        return self.world.rank == 0 and any(
            tensor.is_meta for name, tensor in tensors.items() if name in names
        )

    def _check_alike(self) -> None:
        """Raise InputError for a plan that cannot be used here, and if ranks have different
        plans."""
        plan, size, where = self.plan, self.world.size, self.lowering.where
        if size != plan.machine.devices:
            problem = f"expected {plan.machine.devices} processes, one a device, got {size}"
            raise InputError(where, problem)
        if is_delayed(plan):
            problem = "gradients of its pipeline are of weights one update old (2bw)"
            raise InputError(where, f"{problem}, which no training loop of yours can follow")
        if not plan.naming.parameters:
            raise InputError(where, "names no parameters of a module, expected a module's plan")
        printed = print_graph(plan.graph)
        if len(set(self.world.gather((plan.model.digest, printed, _placing(plan))))) > 1:
            raise AgreedError(where, "ranks have different plans, expected the same")

    def _validate(self, itemsize: int) -> None:
        """Validate all programs against the plan, on rank 0. Raises AgreedError on all ranks."""
        problem = ""
        if self.world.rank == 0:
            try:
                validate_lowered(self.lowering, itemsize)
            except UnityError as error:
                problem = str(error)
        if problem_of_first := self.world.gather(problem)[0]:
            raise AgreedError(self.lowering.where, problem_of_first)


def _check_ties(plan: Plan, tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError if parameters share one tensor in the module and not in the plan, or the
    other way round, as after ``.to("meta")``, which separates shared parameters."""
    first: dict[int, tuple[tuple[str, int], str]] = {}
    weights = plan.naming.parameters.items()
    parts = [((leaf, i), names) for leaf, p in weights for i, names in enumerate(p.parts)]
    for part, names in parts:
        present = [name for name in names if name in tensors]
        for name in present:
            first_part, first_name = first.setdefault(id(tensors[name]), (part, name))
            if first_part != part:
                problem = f"{first_name} and {name} are one tensor, expected two as in the plan"
                raise InputError(f"model {plan.model_name}", problem)
        if len({id(tensors[name]) for name in present}) > 1:
            problem = f"{' and '.join(present)} are several tensors, expected one as in the plan"
            raise InputError(f"model {plan.model_name}", problem)


def _placing(plan: Plan) -> str:
    """The machine views of a plan's operators, and their order of issue, as text."""
    numbers = {node: number for number, node in enumerate(plan.graph.nodes)}
    order = [numbers[node] for node in plan.order]
    return repr(([plan.views.get(node) for node in plan.graph.nodes], order))


def _precision(plan: Plan, tensors: Sequence[Tensor | None]) -> Precision:
    """The plan's precision if parameters are in float32 or a narrower format, fp64 if they are in
    float64. Raises InputError for any other format, or several."""
    formats = {tensor.dtype for tensor in tensors if tensor is not None}
    asked = plan.training.precision
    if not formats:
        return asked  # Missing tensors are reported when values are read.
    if len(formats) == 1 and (stored := FORMATS.get(next(iter(formats)))) is not None:
        return stored if "fp64" in (stored, asked) else asked
    words = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in formats))
    expected = "expected all in one format: the plan's precision is for computing"
    raise InputError(f"model {plan.model_name}", f"its parameters are {words}, {expected}")
