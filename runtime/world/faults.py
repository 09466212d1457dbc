"""Handle signals that ask a run to stop: it finishes the step, writes a checkpoint and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from runtime.world.collectives import CommunicationError, World
from runtime.world.orphans import STOPS, end_undisturbed
from runtime.world.status import STOPPED, Ended


class Stopped(Ended):
    """The run was asked to stop, and did. ``exit_status`` is that of shells: 128 + signal."""


class StopRequests:
    """The signal that asked this rank to stop, if any."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.received: signal.Signals | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. A second one changes nothing: Ctrl-C of a terminal reaches a worker
        twice, from the terminal and from the worker's parent."""
        self.received = signal.Signals(number)
        self._world.asked_to_stop = True

    def stopped(self, what: str) -> Stopped:
        """The error that ends the run. ``what``: when the run stopped, for the message. If only
        other ranks got a signal, the error names SIGTERM."""
        number = self.received or signal.SIGTERM
        return Stopped(f"stopped by {number.name} {what}", STOPPED + number)


@contextmanager
def stop_requests(world: World) -> Generator[StopRequests]:
    """Treat SIGINT, SIGTERM and SIGHUP as requests to stop.

    All ranks learn of a request with the next ``World.total``. A signal that is ignored, as under
    nohup, stays ignored. Python handles signals in the main thread only, so in other threads
    nothing changes. When ranks end because of a request or a lost rank, the first one to end makes
    torchrun send SIGTERM to the others. Those ignore it: they are about to end, and report why.
    """
    requests = StopRequests(world)
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    heeded = [n for n in STOPS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, requests.note) for number in heeded}
    try:
        yield requests
    except (Stopped, CommunicationError):
        if world.size > 1:
            before = {}
            end_undisturbed()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
