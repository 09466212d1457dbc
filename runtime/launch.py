"""Starting one process a device on this computer, through torchrun's own machinery.

A worker that fails leaves a note of its error, all others are stopped, and the first cause is
raised in the parent: a user error as itself, anything else with the worker's traceback.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

from pcg.errors import InputError, UnityError

T = TypeVar("T")

LEAVE = 3.0
"""Seconds until a worker has to have ended after another has failed."""
STOPPED = 128
"""Exit statuses above are of workers that a signal stopped, which is the rest."""


class WorkerError(UnityError):
    """A user error that a worker met, or its sudden end."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message, exit_status)
        self.message = message
        self.exit_status = exit_status

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class _Note:
    """What a failed worker leaves: ``status`` is None for an error that is no user's."""

    attempt: int
    """How often workers had been started anew before."""
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
    user error is to blame. ``grace``: seconds that workers have for their end when this process is
    told to stop. Raises WorkerError for a worker's UnityError or for one that was killed, and
    RuntimeError with the worker's traceback for any other failure.
    """
    start_server()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    _silence()
    with TemporaryDirectory(prefix="unity-run-") as folder:
        config = _config(processes, folder, restarts, grace)
        try:
            results = elastic_launch(config, _enter)(function, arguments, folder)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _cause(_notes(Path(folder), restarts), rank, failure.exitcode) from None
        except SignalException as error:
            if (stopped := _stopped(_notes(Path(folder)))) is not None:
                raise stopped from None
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            sys.exit(128 + error.sigval)
    return results[0]


def start_server() -> None:
    """Start the server that forks all workers, so that torch is imported once for all of them.

    It starts before our own import of torch, beside which it runs. (Forking this process itself
    would copy torchrun's threads.)
    """
    multiprocessing.set_forkserver_preload(["runtime.preload"])
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    # The server inherits that Ctrl-C is ignored: it ends when we do, and quietly.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


def check_computer(kind: str, devices: int) -> None:
    """Raise InputError when this computer lacks GPUs for so many devices."""
    if kind != "gpu":
        return
    import torch

    present = torch.cuda.device_count()
    if present < devices:
        raise InputError("machine", f"the plan needs {devices} GPUs, this computer has {present}")


def _config(processes: int, folder: str, restarts: int, grace: int) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    from runtime.loopback import ADDRESS, register

    # Seconds until a worker that ignores its end is killed.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(grace))
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend=register(),
        rdzv_endpoint=ADDRESS,
        local_addr=ADDRESS,
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _silence() -> None:
    """Keep torchrun from logging failures, which are reported once, by us."""
    sources = ("torch.distributed.elastic", "torch.multiprocessing")
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith(sources) and isinstance(logger, logging.Logger):
            logger.setLevel(logging.CRITICAL)


def _enter(function: Callable[..., T], arguments: tuple[Any, ...], folder: str) -> T:
    """A worker's life."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    threading.Thread(target=_end_with_others, args=(Path(folder),), daemon=True).start()
    if any(note.is_final for note in _notes(Path(folder))):
        sys.exit(1)
    try:
        return function(*arguments)
    except Exception as error:
        _leave_note(error, Path(folder))
        sys.exit(1)


def _end_with_parent() -> None:
    """Nobody would stop a worker whose parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end_with_others(folder: Path) -> None:
    """A worker that hangs does not heed that it is asked to end once another has failed; nor should
    all wait for as long as one that writes a checkpoint may take."""
    attempt = _attempt()
    while not any(note.attempt == attempt for note in _notes(folder) if not note.has_stopped):
        time.sleep(1.0)
    time.sleep(LEAVE)
    os._exit(1)


def _attempt() -> int:
    """How often this worker had been started before."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _leave_note(error: Exception, folder: Path) -> None:
    from runtime.collectives import CommunicationError

    rank = int(os.environ["RANK"])
    if isinstance(error, UnityError):
        status, text = error.exit_status, str(error)
    else:
        status, text = None, traceback.format_exc()
    attempt = _attempt()
    note = _Note(attempt, rank, time.time(), status, text, isinstance(error, CommunicationError))
    part = folder / f"note-{attempt}-{rank}.part"
    part.write_text(json.dumps(vars(note)))
    part.rename(folder / f"note-{attempt}-{rank}.json")


def _notes(folder: Path, attempt: int | None = None) -> list[_Note]:
    """The notes of an attempt, by default of all; final ones count for all attempts."""
    notes = [_Note(**json.loads(path.read_text())) for path in folder.glob("note-*.json")]
    return [note for note in notes if attempt in (None, note.attempt) or note.is_final]


def _stopped(notes: Sequence[_Note]) -> WorkerError | None:
    """What workers say that ended by themselves when they were told to."""
    ended = [note for note in notes if note.has_stopped]
    return WorkerError(ended[0].text, ended[0].status or 0) if ended else None


def _cause(notes: Sequence[_Note], rank: int, status: int) -> Exception:
    """The error that came first, losses of touch aside. ``rank`` was seen to end with ``status``,
    negative for a signal."""
    if all(note.is_consequence for note in notes) and rank not in {note.rank for note in notes}:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return WorkerError(f"worker {rank} ended suddenly, by {how}")
    first = min(notes, key=lambda note: (note.is_consequence, note.time))
    if first.status is None:
        return RuntimeError(f"worker {first.rank} failed:\n{first.text}")
    return WorkerError(first.text, first.status)
