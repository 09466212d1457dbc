"""Handle signals that ask a run to stop: finish the step, write a checkpoint, end."""

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
    """A run that was told to stop and did. ``exit_status`` is that of shells: 128 + signal."""


class Requests:
    """The signal that this rank was sent, if any."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.received: signal.Signals | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal. Twice is once: a terminal's Ctrl-C reaches workers from it and from
        their parent."""
        self.received = signal.Signals(number)
        self._world.asked_to_stop = True

    def stopped(self, what: str) -> Stopped:
        """The error that ends the run; where other ranks were asked, as if by SIGTERM."""
        by = self.received or signal.SIGTERM
        return Stopped(f"stopped by {by.name} {what}", STOPPED + by)


@contextmanager
def stop_requests(world: World) -> Generator[Requests]:
    """Take SIGINT, SIGTERM and SIGHUP as requests to stop; all ranks learn of them with the next
    number that they add up. One that is ignored, as under nohup, stays so. Only a main thread can:
    in others nothing changes. Where ranks end for that, or for one that they have lost, the first
    to do so makes torchrun tell the others to end: they are about to, and say why first."""
    requests = Requests(world)
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
