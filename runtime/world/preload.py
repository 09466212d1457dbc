"""Import the modules that every worker needs once, in the server that forks workers."""

from __future__ import annotations

import gc
import signal
import sys
from importlib import import_module
from multiprocessing import synchronize
from traceback import walk_tb
from types import TracebackType

from pcg.collection import uncollected

# torch would import torch._dynamo in every worker when it creates an optimizer, in 0.7 s each.
with uncollected():
    for name in ("torch.distributed", "torch._dynamo", "runtime.train.worker"):
        import_module(name)
gc.freeze()  # the modules stay; workers share their memory as long as no collector touches it

# The server itself ignores Ctrl-C. Its workers should end by Ctrl-C at once. Python's own handler
# would run only after the communication under way.
signal.signal(signal.SIGINT, signal.SIG_DFL)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error of a worker that has not started, unless its parent stopped in between and has
    removed the semaphores that the worker opens first."""
    places = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
    if not (kind is FileNotFoundError and places and places[-1] == synchronize.__file__):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
