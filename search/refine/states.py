"""The tables of ``native.states`` and ``native.tables`` for the plans of one graph."""

from __future__ import annotations

import numpy as np

from search.cost.native.messages import no_messages
from search.refine.device_classes import DeviceClasses
from search.refine.kinds import GraphKinds
from search.refine.mappings import passing_axes
from search.refine.native.states import ALONE, READ_BITS, StateTables
from search.refine.native.tables import ABSENT, Numbers, Shape, Tables, numbered_lists
from search.refine.pieces import ReadForm
from search.refine.rows import SharedTables, TableRows


class GraphTables:
    """What is known of the plans of a graph. Rows of pieces are added to ``rows``. ``by_class``:
    whether classes of devices take the place of devices in durations."""

    def __init__(self, graph: GraphKinds, rows: TableRows, *, by_class: bool = False) -> None:
        self.mappings = rows.mappings
        self._rows, self._kinds = rows, graph.kinds
        self._devices = rows.operators.cost.machine.devices
        self._classes = DeviceClasses(rows.durations, self._devices) if by_class else None
        nodes, spaces = graph.nodes, rows.operators.builder.spaces
        absent = ABSENT, ABSENT
        operands = [
            [(self._whole(graph, value), *graph.makers.get(value, absent)) for value in own]
            for own in graph.reads
        ]
        self._first, _ = numbered_lists(graph.reads)
        every = [operand for own in operands for operand in own]
        self._operands = np.array(every, np.int64).reshape(-1, 3)
        kinds = np.array(graph.kinds, np.int64)
        self._own = kinds, passing_axes(nodes, spaces), self._first, self._operands
        self._state = np.zeros(len(nodes), np.int64)
        self._shape = _shape(graph, rows)
        self._shared: SharedTables | None = None
        self._tables: tuple[Tables, StateTables] | None = None

    def _whole(self, graph: GraphKinds, value: int) -> int:
        """The form of a leaf, as it is read."""
        if value in graph.makers:
            return ABSENT
        return self._rows.operators.forms[ReadForm(graph.values[value].type, ())]

    def tables(self) -> tuple[Tables, StateTables]:
        """The tables as they are now."""
        shared, mappings = self._rows.tables(), self.mappings.table
        now = self._tables
        if now is None or shared is not self._shared or now[1].mappings is not mappings:
            durations, messages = shared.durations, shared.messages
            if self._classes is not None:  # machine code would price messages of devices
                durations, messages = self._classes.table(), no_messages()
            plans = Tables(
                self._shape,
                durations,
                shared.pieces,
                shared.layouts,
                shared.moves,
                shared.moved,
                messages,
                shared.shared,
            )
            states = StateTables(
                mappings,
                *self._own,
                shared.lists,
                shared.used,
                shared.cuts,
                self._state,
            )
            self._shared, self._tables = shared, (now := (plans, states))
        return now

    @property
    def busy(self) -> int:
        """The number of devices, or of classes of devices, in durations."""
        return self._devices if self._classes is None else self._classes.count

    def make_room(self) -> None:
        """Make room for the lists of operands of one more state."""
        self._rows.make_room(len(self._operands))

    def add_piece(self, number: int, second: int) -> None:
        """Cut an operator. ``second``: its mapping and its operands, as they are numbered."""
        mapping, reads = second >> READ_BITS, second & (1 << READ_BITS) - 1
        assert mapping < 1 << READ_BITS, f"{mapping} mappings"
        mapped = self.mappings.mapping(mapping)
        forms, kind = None if reads == ALONE else self._read(number), self._kinds[number]
        self._rows.add_piece(kind, second, self._rows.operators.piece(kind, mapped, forms))

    def _read(self, number: int) -> tuple[int, ...]:
        """The forms of an operator's operands, after the pieces before it."""
        every, pieces = self._rows.pieces.every, self._state
        return tuple(
            leaf if leaf != ABSENT else every[pieces[maker]].outer[port]
            for leaf, maker, port in self._operands[slice(*self._first[number : number + 2])]
        )


def _shape(graph: GraphKinds, rows: TableRows) -> Shape:
    """What all plans of a graph have in common."""
    makers = graph.makers
    edges = [
        [(*makers[value], at) for at, value in enumerate(values) if value in makers]
        for values in graph.reads
    ]
    every = [edge for own in edges for edge in own]
    return Shape(
        *numbered_lists(graph.reads),
        *numbered_lists(graph.makes),
        np.cumsum([0, *map(len, edges)]),
        np.array(every, np.int64).reshape(-1, 3),
        np.array(graph.is_weight, np.int64),
        np.array(graph.is_trained, np.int64),
        _outputs(graph, rows),
        graph.has_loss,
    )


def _outputs(graph: GraphKinds, rows: TableRows) -> Numbers:
    """See ``Shape.outputs``."""
    outputs: list[tuple[int, ...]] = []
    for value in graph.outputs:
        made = graph.makers.get(value)
        if made is not None:
            outputs.append((value, *made, ABSENT, ABSENT, False))
            continue
        leaf = rows.operators.left_leaf(graph.values[value])
        if graph.is_weight[value]:
            rows.price_leaf(leaf)
        assert leaf.home is not None
        outputs.append((value, ABSENT, ABSENT, leaf.layout, leaf.home, leaf.is_input))
    return np.array(outputs, np.int64).reshape(-1, 6)
