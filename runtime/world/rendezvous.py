"""Agree on a name under which the ranks of one start of a run find each other.

torchrun keeps one store for all starts of its workers. What ranks of an earlier start left there,
their addresses above all, must not be taken for that of their successors, and no number of a start
is known to the ranks of all nodes: so they agree on a name for theirs, under which they then talk.
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
"""Seconds between looks at the store."""


def own_store(rank: int, size: int, timeout: timedelta) -> Any:
    """A part of torchrun's store (one of torch's) for this start alone; None where each start has
    its own store.

    Raises RuntimeError when not all ranks come in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = _agent_store(timeout)
    return PREFIX_STORE(agree(store, rank, size, timeout), store)


def pulse_store(store: Any, timeout: timedelta) -> Any:
    """The store in which ranks say that they live, by a connection of its own; ``store``: what
    ``own_store`` gave. Raises RuntimeError where it cannot be reached."""
    own = _agent_store(timeout) if store is None else store.clone()
    return PREFIX_STORE("pulse", own)


def identity() -> str:
    """What tells a run from all others and is the same for all its starts; for rank 0 to ask.

    It is kept in torchrun's store, which lasts as long as the run: the id that torchrun gives a run
    may be that of another one, and its count of restarts differs from node to node. Where each
    start has its own store, or none, it counts as a run of its own.
    """
    if (given := os.environ.get(RUN)) is not None:  # of our own launcher
        return given
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return uuid4().hex
    return kept_identity(_agent_store(LIMIT), os.environ.get("TORCHELASTIC_RUN_ID", ""))


def kept_identity(store: Store, run_id: str) -> str:
    """The identity that a store has for the run of an id, a new one where it has none."""
    return store.compare_set(f"unity/run/{run_id}", "", uuid4().hex).decode()


def _agent_store(timeout: timedelta) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCP_STORE(address, port, is_master=False, timeout=timeout)


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """A name that all ranks of this start arrive at, and ranks of no other.

    Every rank leaves a nonce. Rank 0 proposes a name for the nonces that it finds; a rank accepts
    what has its own. When all have, rank 0 says go. If it took the nonce of a rank that has ended,
    that never happens, and it proposes anew once the successor's is there.
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
        accepted = (_get(store, f"unity/accepted/{other}") for other in range(size))
        if name is not None and rank == 0 and all(known == name for known in accepted):
            store.set("unity/go", name)
        if name is not None and _get(store, "unity/go") == name:
            return name
        time.sleep(_POLL)
    missing = [rank for rank in range(size) if not _get(store, f"unity/nonce/{rank}")]
    who = f"rank {', '.join(map(str, missing))} of" if missing else "not all"
    said = "has not come" if missing else "ranks have come"
    raise RuntimeError(f"{who} {size} {said} within {timeout.total_seconds():g} s")


def _nonces(store: Store, size: int) -> list[str] | None:
    nonces = [_get(store, f"unity/nonce/{rank}") for rank in range(size)]
    return [nonce for nonce in nonces if nonce] if all(nonces) else None


def _accepted(store: Store, rank: int, nonce: str) -> str | None:
    """The name of the proposal under way, which this rank accepts, if that has its nonce."""
    text = _get(store, "unity/proposal")
    if text is None:
        return None
    name, nonces = json.loads(text)
    if nonces[rank] != nonce:
        return None
    store.set(f"unity/accepted/{rank}", name)
    return str(name)


def _get(store: Store, key: str) -> str | None:
    """What is stored, without waiting for it."""
    return store.get(key).decode() if store.check([key]) else None
