"""Mesh axes of device numbers, strategies as mesh axes, and the views and layouts that follow."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from pcg.machine import load_machine
from pcg.placement.layout import operand_layout, output_layout
from pcg.plan.text import parse_graph
from search.cost.cost import CostModel
from search.map.building import Builder
from search.map.choose.choosing import Choice, Chooser
from search.map.rules.cuts import Cuts
from search.map.space.axes import Mesh
from search.map.space.strategies import IDLE, PARTIAL, REPLICATE
from substitutions.rules.store import load_library

GRAPH = "x = input[24, 12]\nw = weight[12, 36]\nreturn matmul(x, w)"


@pytest.mark.parametrize(
    ("name", "nodes", "primes"),
    [
        ("summit", 4, (2, 2, 2, 3)),
        ("summit", 32, (2, 2, 2, 2, 2, 2, 3)),
        ("dgx-a100", 3, (3, 2, 2, 2)),
    ],
)
def test_mesh_axes_follow_the_levels_of_a_machine(name, nodes, primes):
    mesh = Mesh(load_machine(name).with_nodes(nodes))
    assert mesh.primes == primes
    assert prod(primes) == mesh.machine.devices


@pytest.mark.parametrize(
    ("name", "nodes", "primes"),
    [("summit", 1, (3, 2)), ("summit", 4, (2, 2, 3, 2)), ("dgx-a100", 3, (3, 2, 2, 2))],
)
def test_mesh_axes_may_be_turned_within_a_node(name, nodes, primes):
    assert Mesh(load_machine(name).with_nodes(nodes), turned=True).primes == primes


def test_devices_that_are_no_whole_units_have_mesh_axes_too():
    mesh = Mesh(load_machine("summit").with_devices(4))
    assert prod(mesh.primes) == 4


def test_group_has_the_devices_that_differ_along_some_mesh_axes():
    mesh = Mesh(load_machine("summit").with_nodes(2))
    # Outermost first: bit 0 is the node, bit 1 the socket, bit 2 the device of a socket.
    assert mesh.peers(0b001).members == 2
    assert mesh.peers(0b100).members == 3
    assert mesh.peers(0b111).members == 12
    inside, across = mesh.peers(0b100), mesh.peers(0b001)
    assert inside.inverse_bandwidth < across.inverse_bandwidth


def test_layouts_agree_with_the_codes_of_strategies():
    """Every strategy's view lays out operands and output as its codes state, device by device."""
    machine = load_machine("summit").with_nodes(2)
    graph = parse_graph(GRAPH)
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(load_library().concrete(graph)))
    node = graph.outputs[0].node
    space = chooser.spaces.of(node)
    assert len(space) > 20
    primes, strides = chooser.mesh.primes, chooser.mesh.strides
    for s in range(len(space)):
        choice = Choice(graph, {node: space.strategy(s)}, 0.0)
        cut = Builder(chooser.spaces).cut(choice)
        (inner,) = cut.views
        layouts = [
            *((operand_layout(inner, i, cut.views[inner]), space.operand(i)[s]) for i in (0, 1)),
            (output_layout(inner, 0, cut.views[inner]), space.output(0)[s]),
        ]
        for layout, own in layouts:
            for device, piece in layout.pieces:
                values = [device // stride % p for p, stride in zip(primes, strides, strict=True)]
                assert all(v == 0 for v, entry in zip(values, own, strict=True) if entry == IDLE)
                block, partial = [0] * layout.type.rank, 0
                for value, prime, entry in zip(values, primes, own, strict=True):
                    if entry >= 0:
                        block[entry] = block[entry] * prime + value
                    elif entry == PARTIAL:
                        partial = partial * prime + value
                assert (piece.partial, piece.block) == (partial, tuple(block))
            used = prod(p for p, entry in zip(primes, own, strict=True) if entry != IDLE)
            assert len(layout.pieces) == used
            copies = prod(p for p, entry in zip(primes, own, strict=True) if entry == REPLICATE)
            # An operator that all devices compute makes more copies than its type states.
            assert copies % layout.type.degrees.copies == 0
    assert not np.isin(space.strategies, [PARTIAL]).any()
