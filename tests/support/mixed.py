"""Machines with two kinds of devices."""

from __future__ import annotations

from pcg.machine import Machine


def mixed(first: Machine, second: Machine, *, per_node: int, nodes: int) -> Machine:
    """A machine of ``nodes`` nodes over links of 25 GB/s. The second half of the nodes has the
    devices of another machine."""
    links = [
        {"name": "node", "count": per_node, "latency": 3e-6, "bandwidth": 50e9},
        {"name": "cluster", "count": nodes, "latency": 8e-6, "bandwidth": 25e9},
    ]
    other = {**second.device.model_dump(exclude_none=True), "first_node": nodes // 2}
    return Machine.model_validate(
        {
            "schema_version": 1,
            "name": f"{first.name}-and-{second.name}",
            "device": first.device.model_dump(exclude_none=True),
            "other_device": (other,),
            "level": tuple(links),
        },
        strict=False,
    )
