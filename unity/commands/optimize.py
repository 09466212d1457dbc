"""The command ``optimize``: looks at the model while all that a search needs is loaded.

Torch takes seconds to load, and so do the search, the rules and the machine code. So the model is
captured in a fork, which begins first, and a search needs no torch.
"""

from __future__ import annotations

from functools import partial

from pcg.collection import seldom_collected
from unity.commands.looking import look_at
from unity.optimize import Options
from unity.support.cli import say
from unity.support.processes import WorkBeside, interrupted_by_stops


@seldom_collected()
def run(options: Options) -> None:
    """Find a plan and write it. If the user interrupts this before there is a plan, one line says
    so. Raises InputError and NegativeAnswer."""
    with interrupted_by_stops(), WorkBeside(lambda: look_at(options)) as looking:
        try:
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
        except KeyboardInterrupt:
            say(f"unity: {options.model}: interrupted before a plan was found", error=True)
            raise
        planning.write(options, answer)
