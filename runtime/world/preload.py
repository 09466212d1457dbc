"""Import what every worker needs, once, in the server that forks workers."""

from __future__ import annotations

import signal
from importlib import import_module

# The second one torch would import in every worker when its optimizer is made, for 0.7 s each.
for name in ("torch.distributed", "torch._dynamo", "runtime.train.worker"):
    import_module(name)

# The server was started with Ctrl-C ignored and ignores it anyway; its workers should end by it
# at once, and not when Python's handler gets its turn after a communication.
signal.signal(signal.SIGINT, signal.SIG_DFL)
