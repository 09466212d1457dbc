"""Exit statuses of a run: the outcome, and whether to try again.

| status | what | try again? |
|---|---|---|
| 0 | done | |
| 1 | a negative answer: a check that failed | no: the plan computes something else |
| 2 | unusable input: a file, an option, data, too little memory for the plan | once it is mended |
| 3 | loss, gradients or weights are not finite | from a good checkpoint, with other settings |
| 75 | a process died or was silent, the disk is full, another run has the folder | yes, as it is |
| 129, 130, 143 | stopped by SIGHUP, SIGINT or SIGTERM, with a checkpoint | yes, with --resume |

75 is EX_TEMPFAIL of sysexits.h. The last three are 128 + the signal's number, as in shells.
torchrun itself ends with 1, whatever the status of its processes, and restarts them for any
status but 0.
"""

from __future__ import annotations

from pcg.errors import UnityError

NEGATIVE = 1
UNUSABLE = 2
NOT_FINITE = 3
TRY_AGAIN = 75
STOPPED = 128
"""A status above this one means: stopped by the signal whose number is the difference."""


class Ended(UnityError):
    """An error that ends the process with an exit status of its own."""

    def __init__(self, message: str, exit_status: int = UNUSABLE) -> None:
        super().__init__(message, exit_status)
        self.message = message
        self.exit_status = exit_status

    def __str__(self) -> str:
        return self.message


HELP = (
    "Exit status: 0 done; 1 a check failed; 2 unusable input; 3 loss, gradients or weights are not"
    " finite; 75 may be tried again as it is (a process died or was silent, the disk is full,"
    " another run has the folder); 129, 130, 143 stopped by SIGHUP, SIGINT, SIGTERM: with"
    " --checkpoint and --resume it goes on. torchrun ends with 1 instead of these."
)
"""Text for the help of the command."""
