"""The addresses on which a run on one computer listens: loopback only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runtime.world.collectives import open_world
from runtime.world.launch import launch

pytestmark = pytest.mark.distributed

LISTENS = "0A"
"""The state of a listening socket in the kernel's table."""


def listening(process: int) -> list[str]:
    """The addresses on which a process listens, in the kernel's hexadecimal form, one for each
    socket."""
    own: set[str] = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115  # "socket:[123]" is no path
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    addresses: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in own:
                addresses.append(fields[1].partition(":")[0])
    return addresses


def meet(parent: str) -> list[list[str]]:
    """Talk to the other ranks, and return the addresses on which all of them and their parent
    listen."""
    with open_world("cpu", 60) as world:
        world.prepare([(0, 1)])
        world.total(1.0)
        sockets = world.gather(listening(os.getpid()))
        return [*sockets, listening(int(parent))]


def is_loopback(address: str) -> bool:
    """Whether an address is loopback: 127.0.0.0/8 of IPv4, ::1 of IPv6, and the same in
    ::ffff:0:0/96."""
    if len(address) == 8:
        return address.endswith("7F")
    return address in ("0" * 24 + "01000000", "0" * 16 + "FFFF0000" + "0100007F")


@pytest.mark.parametrize("chosen", [None, "eth0"])
def test_nothing_listens_beyond_loopback(monkeypatch, chosen):
    if chosen is not None:  # for runs across nodes
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    reports = launch(meet, (str(os.getpid()),), 2)
    addresses = {address for own in reports for address in own}
    assert addresses
    assert all(map(is_loopback, addresses)), addresses
    assert reports[-1], "the store of the parent"


def meet_again(parent: str, folder: str, starts: int) -> list[list[list[str]]]:
    """The same in every start. All starts but the last fail once all ranks have met."""
    mine = sorted(Path(folder).glob(f"start-*-{os.environ['RANK']}"))
    sockets = meet(parent)
    (Path(folder) / f"start-{len(mine)}-{os.environ['RANK']}").write_text(json.dumps(sockets))
    if len(mine) + 1 < starts:
        raise RuntimeError("again")
    return [json.loads(path.read_text()) for path in mine] + [sockets]


def test_no_store_outlives_a_restart_or_listens_beyond_loopback(tmp_path):
    """Every start has its own store, and the store of the start before is gone."""
    before = listening(os.getpid())
    reports = launch(meet_again, (str(os.getpid()), str(tmp_path), 3), 2, restarts=2)
    assert len(reports) == 3
    for start in reports:
        assert all(is_loopback(address) for own in start for address in own)
        assert len(start[-1]) == len(before) + 1, "the store of this start alone"
    assert listening(os.getpid()) == before
