"""Let the ranks of one computer meet on its loopback device, and listen nowhere else.

torchrun's own rendezvous opens ports on all interfaces, and unpickles what it finds in its store.
On one computer there is nobody else to meet: so the store listens on a socket that is opened here,
and there is no rendezvous. gloo and NCCL are told which device to use.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from uuid import uuid4

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from runtime.world.store import LIMIT, PREFIX_STORE, TCP_STORE

BACKEND = "unity-loopback"
ADDRESS = "127.0.0.1"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def loopback_store() -> Any:
    """A store that other processes of this computer alone can reach, at its ``port``."""
    listening = socket.create_server((ADDRESS, 0))
    port = listening.getsockname()[1]
    # The store owns the socket from here on.
    return TCP_STORE(
        ADDRESS,
        port,
        is_master=True,
        timeout=LIMIT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def stay_on_this_computer() -> None:
    """Have this process's communication use the loopback device, if all ranks are here.

    Else gloo also looks the computer's own name up, which need not be an address that works.
    """
    alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if sys.platform == "linux" and alone:
        os.environ.update(dict.fromkeys(_INTERFACES, "lo"))


class LoopbackRendezvous(RendezvousHandler):
    """A single node, which meets nobody. Its store lasts over all starts of its workers."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store = loopback_store()

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Workers talk through the same store."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # Torchrun's own entries of a start must not be taken for those of the one before.
        store = PREFIX_STORE(f"{self._run_id}/{uuid4().hex}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, self._store.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """There is nobody to tell."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id)


def register() -> str:
    """Make it known to torchrun's machinery, and return its name there."""
    # The same function each time, which torch takes for one registration.
    rendezvous_handler_registry.register(BACKEND, _create)
    return BACKEND
