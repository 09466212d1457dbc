"""Print the table of public models in the docs: what of each is captured, and what planning gains.

    PYTHONPATH=.:tests python tests/benchmarks/public/models.py [--nodes 4] [NAME ...]

The status is 1 where a plan is slower than data parallelism, or a function that is kept whole takes
over 1% of the step.
"""

from __future__ import annotations

import argparse
import sys
import warnings

from support.public.compared import compared
from support.public.every import call_of_loss, has_attention, named, public
from support.public.planned import HEADINGS, holds, planned, row

from pcg.errors import InputError


def main() -> None:
    """One line for each model and way to compute attention."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="models, packages or PACKAGE/MODEL")
    parser.add_argument("--attention", choices=("sdpa", "eager", "both"), default="both")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of a search")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    both = ("sdpa", "eager") if given.attention == "both" else (given.attention,)
    passes = [
        shown(name, attention, given)
        for name in named(given.names)
        for attention in (both if has_attention(name) else ("",))
    ]
    sys.exit(not all(passes))


def shown(name: str, attention: str, given: argparse.Namespace) -> bool:
    """Print the line of a model; whether it keeps the promises."""
    try:
        captured, seconds = compared(*call_of_loss(public(name, attention)))
    except InputError as error:
        print(f"| {name} | {attention} | refused: {error} |", flush=True)
        return False
    made = planned(public(name, attention), given.nodes, given.budget)
    print(row(name, attention, captured, seconds, made), flush=True)
    return holds(made)


if __name__ == "__main__":
    main()
