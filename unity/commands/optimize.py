"""The command ``optimize``: looks at the model while all that a search needs is loaded.

Torch takes seconds to load, and so do the search, the rules and the machine code. So the model is
captured in a fork, which begins first, and a search needs no torch.
"""

from __future__ import annotations

from functools import partial

from pcg.collection import seldom_collected
from unity.commands.looking import look_at
from unity.optimize import Options
from unity.support.processes import WorkBeside


@seldom_collected()
def run(options: Options) -> None:
    """Find a plan and write it. Raises InputError and NegativeAnswer."""
    with WorkBeside(lambda: look_at(options)) as looking:
        if options.operators is None:  # else the user's operators have to be known before
            looking.begin()
        # Imported here because it takes a second, in which the look has begun.
        from unity.commands import planning

        planning.check(options)
        planning.load(options)
        planning.check_files(options)
        looking.begin()
        get_ready = partial(planning.get_ready, options.rules)
        answer = planning.answered(options, partial(looking.result, get_ready))
    planning.write(options, answer)
