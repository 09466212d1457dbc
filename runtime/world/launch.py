"""Start one process per device on this computer by torchrun's launcher, and report failures.

A worker that fails leaves a note about its error in a file, and all others are stopped. The parent
raises the first cause: a user error under its own message, any other error with the worker's
traceback.
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
"""After another worker has failed, a worker has this many seconds to end."""


class WorkerError(Ended):
    """A user error of a worker, or the sudden end of a worker."""


@dataclass(frozen=True)
class _Start:
    """The parameters of one start of all workers."""

    folder: Path
    """Where workers leave notes."""
    sockets: Path
    """The folder with the sockets of the server that forks workers."""
    run: str
    """The identity of the run."""
    heeds: frozenset[signal.Signals]
    """The signals that end a worker. It ignores the rest of ``STOPS``."""
    grace: int
    """Seconds that a worker has to end after such a signal."""


@dataclass(frozen=True)
class _Note:
    """A failed worker's note about its error. ``status``: the exit status of a user error; None
    for any other error."""

    rank: int
    time: float
    status: int | None
    text: str
    is_consequence: bool
    """Whether its communication failed: then another worker is to blame."""

    @property
    def has_stopped(self) -> bool:
        """Whether a signal asked the worker to stop."""
        return self.status is not None and self.status > STOPPED

    @property
    def is_final(self) -> bool:
        """Whether the same error would end another start, too."""
        return self.status is not None and not (self.is_consequence or self.has_stopped)


def launch(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    processes: int,
    *,
    restarts: int = 0,
    grace: int = 5,
) -> T:
    """Call a function in ``processes`` new processes and return the result of rank 0.

    The function, its arguments and its results have to be picklable. It finds torchrun's variables
    in its environment. If a worker fails, all are started again, at most ``restarts`` times and not
    for a user error; a line on stderr names the cause of each restart. ``grace``: the seconds that
    workers have to end after this process was asked to stop. Raises WorkerError for a UnityError
    of a worker or a worker that was killed, and RuntimeError with the worker's traceback for any
    other failure.
    """
    run = uuid4().hex
    heeds = frozenset(s for s in STOPS if signal.getsignal(s) is not signal.SIG_IGN)
    start_server()
    with _ended_by(heeds):
        for left in range(restarts, -1, -1):
            # A short name, because the folder holds sockets, and paths of sockets have to be short.
            with TemporaryDirectory(prefix="unity-run-") as folder:
                start = _Start(Path(folder), Path(get_temp_dir()), run, heeds, grace)
                try:
                    return _run_once(function, arguments, processes, start)
                except _MayRestart as failure:
                    if not left:
                        raise failure.cause from None
                    count = f"restart {restarts - left + 1} of {restarts}"
                    print(f"unity: {failure.line}; {count}", file=sys.stderr, flush=True)
    raise AssertionError("the last start returns or raises")


class _MayRestart(Exception):
    """A failure that may be gone in another start. ``cause``: the error to raise otherwise."""

    def __init__(self, cause: WorkerError | RuntimeError) -> None:
        self.cause = cause

    @property
    def line(self) -> str:
        """The failure in one line: the last one of a traceback."""
        return one_line(str(self.cause).strip().splitlines()[-1])


def _run_once(
    function: Callable[..., T], arguments: tuple[Any, ...], processes: int, start: _Start
) -> T:
    """Start the workers once and return the result of rank 0. Raises _MayRestart for a failure
    that another start may avoid."""
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
    """Turn a signal that comes while no worker runs into an exception, so that temporary files are
    removed. SIGINT raises KeyboardInterrupt as usual."""
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

    The server starts before this process imports torch, so that both imports run at the same time.
    (Forking this process itself would copy torchrun's threads.)
    """
    multiprocessing.set_forkserver_preload(["runtime.world.preload"])
    # These signals may be sent to all processes of a terminal or a job. The server must outlive its
    # workers, else nobody notices that they end. So it inherits a mask that blocks the signals, and
    # so do its workers, until they unblock them. The server ends quietly when this process ends.
    # The same holds for Python's resource tracker. It starts first, because its start unblocks
    # SIGINT and SIGTERM.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_computer(kind: str, devices: int) -> None:
    """Raise InputError if the machine's devices are GPUs and this computer has fewer of them."""
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

    # Seconds after which torchrun kills a worker that ignores SIGTERM.
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
        # A signal that is ignored, as under nohup, stays ignored.
        signals_to_handle=",".join(sorted({s.name for s in start.heeds} | {"SIGQUIT"})),
    )


def _silence() -> None:
    """Keep torchrun from logging failures: ``launch`` reports them once."""
    sources = ("torch.distributed.elastic", "torch.multiprocessing")
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith(sources) and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)


def _enter(function: Callable[..., T], arguments: tuple[Any, ...], start: _Start) -> T:
    """The main function of a worker."""
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
    """End this worker ``LEAVE`` seconds after another has failed. A worker that hangs does not
    react to SIGTERM, and torchrun would wait for it as long as a checkpoint may take to write."""
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
    with contextlib.suppress(OSError):  # the parent was killed, and the folder is gone
        part.write_text(json.dumps(vars(note)))
        part.rename(folder / f"note-{rank}.json")


def _notes(folder: Path) -> list[_Note]:
    """The notes of the workers that have failed."""
    return [_Note(**json.loads(path.read_text())) for path in folder.glob("note-*.json")]


def _order(note: _Note) -> tuple[bool, bool, float]:
    """A sort key that puts causes first. Ranks that stop because another rank got a signal name
    SIGTERM, so they come after the rank with the signal."""
    return note.is_consequence, note.status == STOPPED + signal.SIGTERM, note.time


def _stopped(notes: Sequence[_Note]) -> WorkerError | None:
    """The error of workers that a signal asked to stop and that ended by themselves, if any."""
    stopped = [note for note in notes if note.has_stopped]
    if not stopped:
        return None
    first = min(stopped, key=_order)
    return WorkerError(first.text, first.status or 0)


def _cause(notes: Sequence[_Note], rank: int, status: int, *, is_short: bool) -> Exception:
    """The error to raise: that of the first note which is no failed communication.

    torchrun saw ``rank`` end first, with ``status``, which is negative for a signal. ``is_short``:
    whether the kernel has killed a process because memory was short.
    """
    # A rank that kills a silent one says so in its note, which tells more than the exit status.
    killed_by_rank = any(ENDED in note.text for note in notes)
    consequences = all(note.is_consequence for note in notes)
    if not killed_by_rank and consequences and rank not in {note.rank for note in notes}:
        return _MayRestart(WorkerError(_sudden_end(rank, status, is_short), TRY_AGAIN))
    first = min(notes, key=_order)
    if first.status is None:
        return _MayRestart(RuntimeError(f"worker {first.rank} failed:\n{first.text}"))
    error = WorkerError(first.text, first.status)
    return error if first.is_final else _MayRestart(error)


def _sudden_end(rank: int, status: int, is_short: bool) -> str:
    """A message about a worker that ended without a note."""
    if status >= 0:
        return f"worker {rank} ended suddenly, by status {status}"
    sign = signal.Signals(-status)
    short = sign == signal.SIGKILL and is_short
    why = ": out of memory, the kernel has killed a process for it" if short else ""
    return f"worker {rank} ended suddenly, by signal {sign.name}{why}"


def _killed_for_memory() -> int:
    """How many processes the kernel has killed so far because memory was short. 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
