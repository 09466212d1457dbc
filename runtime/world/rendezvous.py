"""Agree on a name under which the ranks of one start of a run find each other.

Problem. torchrun keeps one store for all starts of its workers. Entries of an earlier start, above
all the addresses of its ranks, must not be taken for those of this start. No number identifies the
start on all nodes.

Method. The ranks of a start agree on a name, and use it as a prefix of all their entries: see
``agree``.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

from runtime.world.processes import RUN
from runtime.world.store import LIMIT, PREFIX_STORE, TCP_STORE, Store

_POLL = 0.01
"""Seconds between two reads of the store."""


def own_store(rank: int, size: int, timeout: timedelta) -> Any:
    """The part of torchrun's store that belongs to this start; a store of torch. None if each start
    has its own store.

    Raises RuntimeError if not all ranks come in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = _agent_store(timeout)
    return PREFIX_STORE(agree(store, rank, size, timeout), store)


def pulse_store(store: Any, timeout: timedelta) -> Any:
    """The store for heartbeats, over a connection of its own. ``store``: the result of
    ``own_store``. Raises RuntimeError if the store cannot be reached."""
    connection = _agent_store(timeout) if store is None else store.clone()
    return PREFIX_STORE("pulse", connection)


def identity() -> str:
    """The identity of this run: different from all other runs, the same for all starts of this one.
    Called on rank 0.

    torchrun's store keeps it, which lasts as long as the run. (Two runs may have the same id in
    torchrun, and its count of restarts differs from node to node.) If each start has its own
    store, or there is no store, each start counts as a run of its own.
    """
    if (from_launcher := os.environ.get(RUN)) is not None:
        return from_launcher
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return uuid4().hex
    return kept_identity(_agent_store(LIMIT), os.environ.get("TORCHELASTIC_RUN_ID", ""))


def kept_identity(store: Store, run_id: str) -> str:
    """The identity in a store for the run with torchrun's id ``run_id``. A new one is stored if
    there is none."""
    return store.compare_set(f"unity/run/{run_id}", "", uuid4().hex).decode()


def _agent_store(timeout: timedelta) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCP_STORE(address, port, is_master=False, timeout=timeout)


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Agree on a name that all ranks of this start share, and no rank of another start.

    Every rank writes a nonce. Rank 0 proposes a name together with the nonces that it has read. A
    rank accepts a proposal that contains its own nonce. When all ranks have accepted, rank 0
    confirms. If the proposal contains the nonce of a rank of an earlier start, not all ranks
    accept, and rank 0 makes another proposal once it has read the new nonce.

    Raises RuntimeError after ``timeout``.
    """
    end = time.monotonic() + timeout.total_seconds()
    nonce = uuid4().hex
    store.set(f"unity/nonce/{rank}", nonce)
    proposed: list[str] = []
    while time.monotonic() < end:
        if rank == 0 and (nonces := _nonces(store, size)) and nonces != proposed:
            proposed = nonces
            store.set("unity/proposal", json.dumps([uuid4().hex, nonces]))
        name = _accepted(store, rank, nonce)
        accepted = (_get(store, f"unity/accepted/{member}") for member in range(size))
        if name is not None and rank == 0 and all(value == name for value in accepted):
            store.set("unity/go", name)
        if name is not None and _get(store, "unity/go") == name:
            return name
        time.sleep(_POLL)
    missing = [rank for rank in range(size) if not _get(store, f"unity/nonce/{rank}")]
    ranks = f"rank {', '.join(map(str, missing))} of" if missing else "not all"
    verb = "has not come" if missing else "ranks have come"
    raise RuntimeError(f"{ranks} {size} {verb} within {timeout.total_seconds():g} s")


def _nonces(store: Store, size: int) -> list[str] | None:
    """The nonces of all ranks. None if any rank has not written one yet."""
    nonces = [_get(store, f"unity/nonce/{rank}") for rank in range(size)]
    return [nonce for nonce in nonces if nonce] if all(nonces) else None


def _accepted(store: Store, rank: int, nonce: str) -> str | None:
    """Accept the current proposal if it contains this rank's nonce. Return its name, else None."""
    text = _get(store, "unity/proposal")
    if text is None:
        return None
    name, nonces = json.loads(text)
    if nonces[rank] != nonce:
        return None
    store.set(f"unity/accepted/{rank}", name)
    return str(name)


def _get(store: Store, key: str) -> str | None:
    """The value of a key. None if it has none yet; does not wait for it."""
    return store.get(key).decode() if store.check([key]) else None
