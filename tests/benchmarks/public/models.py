"""Print the table of public models in the docs: the captured functions of each, and the gain of
planning.

    PYTHONPATH=.:tests python tests/benchmarks/public/models.py [--nodes 1 4] [--results FILE]
        [--attention sdpa] [--limit SECONDS] [--together] [NAME ...]

Each model has a process of its own, which ends after ``--limit`` seconds. With ``--together`` all
are measured in this process, which is faster for many small models. ``--nodes`` without a number
leaves out planning. With ``--results``, lines in the file are printed and not measured again, and
new lines are added to it. The status is 1 if a model is refused or takes longer, if its plan is
slower than data parallelism, or if a function that is kept whole takes over 1% of the step.
"""

from __future__ import annotations

import argparse
import sys

from support.public.calls import call_of_loss
from support.public.compared import compared
from support.public.every import has_attention, named, public
from support.public.planned import Row, gained, row
from support.public.table import Table, arguments, print_measured


def main() -> None:
    """One line for each model and way to compute attention."""
    parser = arguments(budget=120.0, limit=600.0)
    parser.add_argument("--attention", choices=("sdpa", "eager", "both"), default="both")
    parser.add_argument("--together", action="store_true", help="all models in this process")
    given = parser.parse_args()
    if given.alone:
        print_measured(lambda: measured(given))
        return
    both = ("sdpa", "eager") if given.attention == "both" else (given.attention,)
    models = (
        (name, attention)
        for name in named(given.names)
        for attention in (both if has_attention(name) else ("",))
    )
    table = Table(__file__, given, measured if given.together else None)
    sys.exit(not table.printed(models))


def measured(given: argparse.Namespace) -> Row:
    """The line of one model. Raises UnityError if it is refused."""
    (name,) = given.names
    attention = given.attention if has_attention(name) else ""
    captured, seconds = compared(*call_of_loss(public(name, attention)))
    plans = {
        str(nodes): gained(public(name, attention), nodes, given.budget) for nodes in given.nodes
    }
    return row(name, attention, captured, seconds, plans)


if __name__ == "__main__":
    main()
