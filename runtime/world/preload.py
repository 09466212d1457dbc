"""Import what every worker needs, once, in the server that forks workers."""

from __future__ import annotations

import gc
import signal
from importlib import import_module

from pcg.collection import uncollected

# The second one torch would import in every worker when its optimizer is made, for 0.7 s each.
with uncollected():
    for name in ("torch.distributed", "torch._dynamo", "runtime.train.worker"):
        import_module(name)
gc.freeze()  # all of it stays; workers that do not look at it share its memory

# The server was started with Ctrl-C ignored and ignores it anyway; its workers should end by it
# at once, and not when Python's handler gets its turn after a communication.
signal.signal(signal.SIGINT, signal.SIG_DFL)
