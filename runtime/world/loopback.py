"""Let the ranks of one computer meet on its loopback device, so that no port is open to others.

torchrun's own rendezvous opens ports on all network interfaces and unpickles the contents of its
store. The ranks of one computer need no such rendezvous. So their store listens on a socket that
this module opens on the loopback device, and gloo and NCCL get that device's name.
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
    """A store that only processes of this computer can reach, at its ``port``."""
    server_socket = socket.create_server((ADDRESS, 0))
    port = server_socket.getsockname()[1]
    # The store owns the socket from here on.
    return TCP_STORE(
        ADDRESS,
        port,
        is_master=True,
        timeout=LIMIT,
        wait_for_workers=False,
        master_listen_fd=server_socket.detach(),
    )


def stay_on_this_computer() -> None:
    """Make this process communicate over the loopback device, if all ranks run on this computer.

    Without this, gloo looks up the computer's host name, which need not lead to a usable address.
    """
    all_local = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    if sys.platform == "linux" and all_local:
        os.environ.update(dict.fromkeys(_INTERFACES, "lo"))


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of a single node. Its store outlives each start of the workers."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._store = loopback_store()

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Workers use this store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # A prefix keeps torchrun's entries for this start apart from those for earlier starts.
        store = PREFIX_STORE(f"{self._run_id}/{uuid4().hex}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, self._store.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no other node."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(parameters.run_id)


def register() -> str:
    """Register the rendezvous with torchrun, and return its name there."""
    # torch accepts a second registration of the same function.
    rendezvous_handler_registry.register(BACKEND, _create)
    return BACKEND
