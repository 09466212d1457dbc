"""Writes a page about a plan for a browser."""

from __future__ import annotations

from collections.abc import Iterator

from pcg.files import check_writable, write_text_atomic
from pcg.machine import Machine
from pcg.plan.plan import Plan, load_plan
from search.cost.cost import CostModel
from search.cost.efficiency import Speed
from search.plan.finish import memory_limit
from search.report.difference import check_comparable
from search.report.page.page import page
from search.report.rivals import Rival
from search.report.trace import price_plan
from unity.report import Options
from unity.support.cli import say
from unity.support.declarations import load_user_operators
from unity.support.origin import machine_and_speed


def run(options: Options) -> None:
    """Write the page. Raises InputError."""
    load_user_operators(options.operators)
    where = str(options.plan)
    plan = load_plan(options.plan)
    machine, speed = machine_and_speed(plan, where, options.machine, options.nodes, options.profile)
    check_writable(options.out)
    others = list(_others(options, plan, machine, speed))
    write_text_atomic(options.out, page(plan, machine, speed, others, options.rules))
    say(f"page written to {options.out}")


def _others(options: Options, plan: Plan, machine: Machine, speed: Speed | None) -> Iterator[Rival]:
    """Yield the predictions of the plans of --against."""
    for path in options.against or ():
        other = load_plan(path)
        check_comparable(plan, other, str(options.plan), str(path))
        price = price_plan(other, CostModel(machine, other.training, speed))
        over = max(price.memory - memory_limit(machine, other.views), 0)
        yield Rival(path.name, price.seconds, price.memory, over)
