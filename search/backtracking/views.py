"""The machine views that the search considers for an operator.

Generators of views propose them: packed ones, those that know of nodes, and a user's own, from a
file given with ``--views``:

    from pcg.placement.view import MachineView, ViewGenerator

    def backwards(shape, machine, devices):
        first, size = devices
        if len(shape) == 1 and shape[0] <= size:
            yield MachineView(first + shape[0] - 1, shape, (-1,))

    generator = ViewGenerator("backwards", backwards)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path

from pcg.errors import InputError
from pcg.files import read_text
from pcg.machine import Machine
from pcg.ops.user import run_file
from pcg.placement.view import MachineView, Range, ViewGenerator

MAX_VIEWS = 8
"""How many packed views of an operator are considered in one range of devices."""
MAX_SPREAD = 6
"""How many views that leave devices of a unit idle."""
MAX_OWN = 64
"""How many views of a user's generator are taken."""


def views_on(machine: Machine, shape: tuple[int, ...], devices: Range) -> tuple[MachineView, ...]:
    """All views of a task grid that are considered within a range of a machine's devices.

    Raises InputError where a user's generator fails or proposes no view of that grid and range.
    """
    found = dict.fromkeys(candidate_views(shape, devices))
    for generator in _generators.values():
        found.update(dict.fromkeys(_proposed(generator, machine, shape, devices)))
    return tuple(found)


def spread_views(shape: tuple[int, ...], machine: Machine, devices: Range) -> Iterator[MachineView]:
    """Views with the outer axes of the grid over the units of a level (sockets, nodes), and the
    inner axes over some of the devices of each (paper, figure 7). Where the inner axes take all
    of a unit's devices, the view is packed, and left to those."""
    first, size = devices
    found: dict[MachineView, None] = {}
    for unit in reversed(machine.units[1:]):
        start = -(-first // unit) * unit
        units = (first + size - start) // unit
        for order in _orders(shape):
            for split in range(1, len(order) + 1):
                outer, inner = order[:split], order[split:]
                tasks = prod(shape[axis] for axis in inner)
                if 1 < prod(shape[axis] for axis in outer) <= units and tasks < unit:
                    found[_spread(start, shape, outer, inner, unit)] = None
    yield from list(found)[:MAX_SPREAD]


def _spread(
    start: int, shape: tuple[int, ...], outer: tuple[int, ...], inner: tuple[int, ...], unit: int
) -> MachineView:
    strides = [0] * len(shape)
    for axes, step in ((inner, 1), (outer, unit)):
        for axis in reversed(axes):
            strides[axis] = step
            step *= shape[axis]
    return MachineView(start, shape, tuple(strides))


_generators: dict[str, ViewGenerator] = {"spread": ViewGenerator("spread", spread_views)}


def register_views(generator: ViewGenerator) -> None:
    """Let a generator take part in searches from now on. Raises InputError if its name is taken."""
    if _generators.setdefault(generator.name, generator) is not generator:
        raise InputError(f"view generator {generator.name}", "the name is taken")


def load_views(path: Path) -> tuple[ViewGenerator, ...]:
    """Run a user's file and register every ``ViewGenerator`` among its names.

    Raises InputError for a file that is missing, fails or has none, and for a name that is taken.
    """
    read_text(path, "a Python file with view generators")
    names = vars(run_file(path, "user_views"))
    found = tuple(v for v in names.values() if isinstance(v, ViewGenerator))
    if not found:
        raise InputError(str(path), "has no view generator, expected NAME = ViewGenerator(...)")
    for generator in found:
        register_views(generator)
    return found


def _proposed(
    generator: ViewGenerator, machine: Machine, shape: tuple[int, ...], devices: Range
) -> list[MachineView]:
    where, (first, size) = f"view generator {generator.name}", devices
    found: list[MachineView] = []
    try:
        for view in generator.views(shape, machine, devices):
            found.append(view)
            if len(found) == MAX_OWN:
                break
    except Exception as error:
        raise InputError(where, f"{type(error).__name__}: {error}") from error
    for view in found:
        # A user's function may return anything.
        if not isinstance(view, MachineView):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(where, f"expected machine views, got {view!r}")
        if view.shape != shape or len(view.strides) != len(shape):
            raise InputError(where, f"expected views of the grid {shape}, got {view}")
        used = view.devices
        if not view.is_injective or min(used) < first or max(used) >= first + size:
            problem = f"expected devices {first} to {first + size - 1}, each once, got {view}"
            raise InputError(where, problem)
    return found


@lru_cache(maxsize=65536)
def candidate_views(shape: tuple[int, ...], devices: Range) -> tuple[MachineView, ...]:
    """Packed views of a task grid within a range of devices; none where it doesn't fit.

    Tasks lie on consecutive devices. Views differ in the order of the grid's axes (all rotations
    of the axes that are cut, and their reversals, hence every order of up to three) and in the
    first device (multiples of the number of tasks, spread over the range if there are many).
    """
    first, size = devices
    tasks = prod(shape)
    starts = range(first, first + size - tasks + 1, tasks)
    if not starts:
        return ()
    orders = _orders(shape)
    kept = min(len(starts), max(1, MAX_VIEWS // len(orders)))
    chosen = [starts[i * len(starts) // kept] for i in range(kept)]
    return tuple(MachineView.packed(start, shape, order) for start in chosen for order in orders)


def _orders(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Orders of the axes from the slowest to the fastest, the given one first."""
    uncut = tuple(axis for axis, length in enumerate(shape) if length == 1)
    cut = tuple(axis for axis, length in enumerate(shape) if length > 1)
    turned = [cut[i:] + cut[:i] for i in range(len(cut))] or [()]
    both = dict.fromkeys(turned + [order[::-1] for order in turned])
    return [uncut + order for order in list(both)[:MAX_VIEWS]]
