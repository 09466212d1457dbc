"""Start one process a device on this computer with torchrun's machinery, and report failures.

A worker that fails leaves a note of its error, all others are stopped, and the first cause is
raised in the parent: a user error as itself, anything else with the worker's traceback.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import get_temp_dir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

from pcg.errors import InputError, UnityError, one_line
from runtime.world.blame import ENDED
from runtime.world.orphans import STOPS, end_with_parent
from runtime.world.processes import RUN
from runtime.world.status import STOPPED, TRY_AGAIN, Ended

T = TypeVar("T")

LEAVE = 3.0
"""Seconds until a worker has to have ended after another has failed."""


class WorkerError(Ended):
    """A user error that a worker met, or its sudden end."""


@dataclass(frozen=True)
class _Start:
    """What a worker is told: where to leave notes, which run it is of, the signals that end it."""

    folder: Path
    sockets: Path
    """Of the server that forks workers."""
    run: str
    heeds: frozenset[signal.Signals]
    grace: int


@dataclass(frozen=True)
class _Note:
    """What a failed worker leaves: ``status`` is None for an error that is no user's."""

    rank: int
    time: float
    status: int | None
    text: str
    is_consequence: bool
    """Whether it lost touch with another worker, which then is the one to blame."""

    @property
    def has_stopped(self) -> bool:
        """Whether it was told to, by a signal."""
        return self.status is not None and self.status > STOPPED

    @property
    def is_final(self) -> bool:
        """Whether to start anew would meet the same error."""
        return self.status is not None and not (self.is_consequence or self.has_stopped)


def launch(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    processes: int,
    *,
    restarts: int = 0,
    grace: int = 5,
) -> T:
    """Call a function in ``processes`` new processes and return what rank 0's call returned.

    The function, its arguments and results have to be picklable. It finds torchrun's variables in
    its environment. When one fails, all are started anew, ``restarts`` times at most, unless a
    user error is to blame; the cause of each start is said. ``grace``: seconds that workers have
    for their end when this process is told to stop. Raises WorkerError for a worker's UnityError
    or for one that was killed, and RuntimeError with the worker's traceback for any other failure.
    """
    run = uuid4().hex
    heeds = frozenset(s for s in STOPS if signal.getsignal(s) is not signal.SIG_IGN)
    start_server()
    with _ended_by(heeds):
        for left in range(restarts, -1, -1):
            # A short name: it holds sockets, whose names have to be.
            with TemporaryDirectory(prefix="unity-run-") as folder:
                start = _Start(Path(folder), Path(get_temp_dir()), run, heeds, grace)
                try:
                    return _started(function, arguments, processes, start)
                except _Again as again:
                    if not left:
                        raise again.cause from None
                    of = f"restart {restarts - left + 1} of {restarts}"
                    print(f"unity: {again.line}; {of}", file=sys.stderr, flush=True)
    raise AssertionError("the last start returns or raises")


class _Again(Exception):
    """What may not happen again in another start."""

    def __init__(self, cause: WorkerError | RuntimeError) -> None:
        self.cause = cause

    @property
    def line(self) -> str:
        """What has happened; of a traceback the last line."""
        return one_line(str(self.cause).strip().splitlines()[-1])


def _started(
    function: Callable[..., T], arguments: tuple[Any, ...], processes: int, start: _Start
) -> T:
    """Start the workers once. Raises _Again where that may help."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    _silence()
    before = _killed_for_memory()
    try:
        config = _config(processes, start)
        results = elastic_launch(config, _enter)(function, arguments, start)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        is_short = _killed_for_memory() > before
        raise _cause(_notes(start.folder), rank, failure.exitcode, is_short=is_short) from None
    except SignalException as error:
        if (stopped := _stopped(_notes(start.folder))) is not None:
            raise stopped from None
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        what = f"stopped by {signal.Signals(error.sigval).name}, no checkpoint of it was written"
        raise WorkerError(what, STOPPED + error.sigval) from None
    return results[0]


@contextmanager
def _ended_by(heeds: frozenset[signal.Signals]) -> Generator[None]:
    """End in order, and so remove what is temporary, where a signal comes while no worker is
    there to be told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        name = signal.Signals(number).name
        raise WorkerError(f"stopped by {name}, no checkpoint of it was written", STOPPED + number)

    before = {s: signal.signal(s, end) for s in heeds - {signal.SIGINT}}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def start_server() -> None:
    """Start the server that forks all workers, so that torch is imported once for all of them.

    It starts before our own import of torch, beside which it runs. (Forking this process itself
    would copy torchrun's threads.)
    """
    multiprocessing.set_forkserver_preload(["runtime.world.preload"])
    # These signals may reach all processes of a terminal or a job. The server has to outlive its
    # workers, else their ends go unseen: it inherits that signals wait, and so do its workers until
    # they heed them. It ends when we do, and quietly. So does what tracks resources, which is first
    # because to start it unblocks all but this one.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_computer(kind: str, devices: int) -> None:
    """Raise InputError when this computer lacks GPUs for so many devices."""
    if kind != "gpu":
        return
    import torch

    present = torch.cuda.device_count()
    if present < devices:
        raise InputError("machine", f"the plan needs {devices} GPUs, this computer has {present}")


def _config(processes: int, start: _Start) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    from runtime.world.loopback import ADDRESS, register

    # Seconds until a worker that ignores its end is killed.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(start.grace))
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend=register(),
        rdzv_endpoint=ADDRESS,
        local_addr=ADDRESS,
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(start.folder)),
        # One that is ignored, as under nohup, stays so.
        signals_to_handle=",".join(sorted({s.name for s in start.heeds} | {"SIGQUIT"})),
    )


def _silence() -> None:
    """Keep torchrun from logging failures, which are reported once, by us."""
    sources = ("torch.distributed.elastic", "torch.multiprocessing")
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith(sources) and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)


def _enter(function: Callable[..., T], arguments: tuple[Any, ...], start: _Start) -> T:
    """A worker's life."""
    for sign in set(STOPS) - start.heeds:
        signal.signal(sign, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.environ[RUN] = start.run
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.join, start.grace, (start.folder, start.sockets))
    threading.Thread(target=_end_with_others, args=(start.folder,), daemon=True).start()
    try:
        return function(*arguments)
    except Exception as error:
        _leave_note(error, start.folder)
        sys.exit(1)


def _end_with_others(folder: Path) -> None:
    """A worker that hangs does not heed that it is asked to end once another has failed; nor should
    all wait for as long as one that writes a checkpoint may take."""
    while all(note.has_stopped for note in _notes(folder)):
        time.sleep(1.0)
    time.sleep(LEAVE)
    os._exit(1)


def _leave_note(error: Exception, folder: Path) -> None:
    from runtime.world.collectives import CommunicationError

    rank = int(os.environ["RANK"])
    if isinstance(error, UnityError):
        status, text = error.exit_status, str(error)
    else:
        status, text = None, traceback.format_exc()
    note = _Note(rank, time.time(), status, text, isinstance(error, CommunicationError))
    part = folder / f"note-{rank}.part"
    with contextlib.suppress(OSError):  # who would read it was killed
        part.write_text(json.dumps(vars(note)))
        part.rename(folder / f"note-{rank}.json")


def _notes(folder: Path) -> list[_Note]:
    """What the workers that have failed left."""
    return [_Note(**json.loads(path.read_text())) for path in folder.glob("note-*.json")]


def _order(note: _Note) -> tuple[bool, bool, float]:
    """Causes first. Ranks that stop because another one was told to name SIGTERM."""
    return note.is_consequence, note.status == STOPPED + signal.SIGTERM, note.time


def _stopped(notes: Sequence[_Note]) -> WorkerError | None:
    """What workers say that ended by themselves when they were told to."""
    ended = [note for note in notes if note.has_stopped]
    if not ended:
        return None
    first = min(ended, key=_order)
    return WorkerError(first.text, first.status or 0)


def _cause(notes: Sequence[_Note], rank: int, status: int, *, is_short: bool) -> Exception:
    """The error that came first, losses of touch aside. ``rank`` was seen to end with ``status``,
    negative for a signal; ``is_short``: whether the kernel has killed a process for its memory."""
    # A stopped one is killed by a rank that says so; its end alone would not tell.
    unasked = not any(ENDED in note.text for note in notes)
    consequences = all(note.is_consequence for note in notes)
    if unasked and consequences and rank not in {note.rank for note in notes}:
        return _Again(WorkerError(_sudden_end(rank, status, is_short), TRY_AGAIN))
    first = min(notes, key=_order)
    if first.status is None:
        return _Again(RuntimeError(f"worker {first.rank} failed:\n{first.text}"))
    error = WorkerError(first.text, first.status)
    return error if first.is_final else _Again(error)


def _sudden_end(rank: int, status: int, is_short: bool) -> str:
    """How a worker ended that said nothing."""
    if status >= 0:
        return f"worker {rank} ended suddenly, by status {status}"
    sign = signal.Signals(-status)
    short = sign == signal.SIGKILL and is_short
    why = ": out of memory, the kernel has killed a process for it" if short else ""
    return f"worker {rank} ended suddenly, by signal {sign.name}{why}"


def _killed_for_memory() -> int:
    """How many processes the kernel of this computer has killed because memory was short."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
