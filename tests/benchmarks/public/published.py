"""Print the table of public models at their published sizes: captured without weights, and planned.

    PYTHONPATH=.:tests python tests/benchmarks/public/published.py [--nodes 1 4] [--results FILE]
        [--budget SECONDS] [--limit SECONDS] [NAME ...]

Like ``models.py`` at tiny size, but in bf16. "Alone fits" means that no data-parallel plan fits the
memory of its devices: the gain is then over the time that such a plan would take. The status is 1
if a model is refused, nothing fits, or a promise of ``models.py`` is broken.
"""

from __future__ import annotations

import argparse
import sys
from time import process_time

from support.public.calls import call_of_loss
from support.public.planned import Row, gained_or_not, row
from support.public.published import names_of, published
from support.public.table import Table, arguments, print_measured

from pcg.capture import capture


def main() -> None:
    """One line for each model."""
    given = arguments(budget=300.0, limit=1800.0).parse_args()
    if given.alone:
        print_measured(lambda: measured(given))
        return
    sys.exit(not Table(__file__, given).printed((name, "") for name in names_of(given.names)))


def measured(given: argparse.Namespace) -> Row:
    """The line of one model. Raises UnityError if it is refused."""
    (name,) = given.names
    module, inputs = call_of_loss(published(name))
    begin = process_time()
    captured = capture(module, inputs)
    seconds = process_time() - begin
    plans = {
        str(nodes): gained_or_not(published(name), nodes, given.budget, "bf16")
        for nodes in given.nodes
    }
    return row(name, "", captured, seconds, plans)


if __name__ == "__main__":
    main()
