"""A plan with its predictions, for users and for ``parallelize``."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from torch.nn import Module

from pcg.errors import InputError
from pcg.plan import plan as plans
from pcg.plan.plan import Plan, save_plan
from runtime.train.eager import ModuleAgreement
from search.cost.planned import Planned
from search.report.describe import overall, rows
from unity.api.placements import DTensorPlan, to_dtensor
from unity.commands.planning import Answer, write_page
from unity.support.console import PlainConsole
from unity.support.plan_text import MAX_ROWS, print_plan, speedup_of


@dataclass(frozen=True, repr=False)
class PlannedModel:
    """The plan of a module. ``answer``: the result of the search, with its question."""

    answer: Answer

    @property
    def plan(self) -> Plan:
        """The content of the plan file."""
        return self.planned.plan

    @property
    def planned(self) -> Planned:
        """The plan with the report of its search."""
        return self.answer.planned

    @property
    def agreement(self) -> ModuleAgreement | None:
        """The result of the comparison of graph and module; None without a comparison."""
        return self.answer.agreement

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a training step."""
        return self.plan.estimates.step_seconds

    @property
    def data_parallel_seconds(self) -> float | None:
        """Predicted seconds of the fastest data-parallel plan; None if that was not priced."""
        return self.planned.data_parallel_seconds

    @property
    def one_device_seconds(self) -> float:
        """Predicted seconds of a step on one device."""
        return self.plan.estimates.one_device_seconds

    @property
    def speedup(self) -> float | None:
        """How many times as fast as data parallelism; None if that was not priced."""
        return speedup_of(self.planned)

    @property
    def memory_bytes(self) -> int:
        """Predicted bytes of the fullest device."""
        return self.plan.estimates.peak_memory_bytes

    def save(self, path: str | Path) -> None:
        """Write the plan file, as a whole or not at all."""
        save_plan(self.plan, path)

    def report(self, path: str | Path, rules: str | Path | None = None) -> None:
        """Write a page about the plan, for a browser. ``rules``: the library of the plan. Default:
        the library of Unity."""
        write_page(self.answer, Path(path), None if rules is None else Path(rules))

    def to_dtensor(self) -> DTensorPlan:
        """Describe the plan in DTensor's terms: placements of parameters and inputs on a mesh."""
        return to_dtensor(self.plan)

    def __repr__(self) -> str:
        machine = self.plan.machine
        where = f"{machine.devices} x {machine.name}"
        step = f"{self.step_seconds * 1e3:.3g} ms a step"
        return f"<PlannedModel {self.plan.model_name} on {where}: {overall(self.plan)}; {step}>"

    def __str__(self) -> str:
        text = StringIO()
        print_plan(PlainConsole(file=text), self.planned, self.answer.whole)
        agreement = [] if self.agreement is None else [str(self.agreement)]
        text.writelines(f"{line}\n" for line in (*self.answer.notes, *agreement))
        return text.getvalue()

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        described = rows(self.plan)
        cells = [(row.name, row.call, row.cut, row.devices) for row in described[:MAX_ROWS]]
        if len(described) > MAX_ROWS:
            cells.append(("...", f"{len(described) - MAX_ROWS} more", "", ""))
        head = "".join(f"<th>{name}</th>" for name in ("tensor", "operator", "cut", "devices"))
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape(repr(self).strip('<>'))}</p>{table}"


def check_module(model: object) -> None:
    """Raise InputError unless ``model`` is a torch module."""
    if not isinstance(model, Module):
        raise InputError("model", f"expected a torch module, got {type(model).__name__}")


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan file. Raises InputError that names the file and the place in it."""
    return plans.load_plan(path)
