"""Options of `unity audit`, which checks that a plan follows from its model by proved rules.

python -m unity.optimize mlp-tiny -o plan.json
python -m unity.audit plan.json
python -m unity.audit plan.json --model my_model.py:make_model --machine my_machine.toml
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pcg.budget import Budget
from unity.support.cli import app_of, run_app
from unity.support.options import AsJson, Memory, Operators, Rules

BUDGET = Budget(seconds=120)
"""For one plan: ours take a few seconds."""


@dataclass(frozen=True)
class Options:
    """Replay how PLAN was derived, and check each rule's certificate and conditions.

    Status 1 where it does not follow, and where model or machine cannot be checked and no option
    says to leave them out.
    """

    plan: Annotated[Path, typer.Argument(help="A plan file.")]
    rules: Rules = None
    certificates: Annotated[
        Path | None, typer.Option(help="By default certificates.jsonl.xz beside the library.")
    ] = None
    operators: Operators = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the plan: a name, or FILE.py:FUNCTION, which is run. By default the one"
            " that the plan names, if that is in the zoo."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="Machine of the plan; by default the preset that it names."),
    ] = None
    solver: Annotated[
        list[str] | None, typer.Option(help="z3 or cvc5; may be repeated. By default z3.")
    ] = None
    capture: Annotated[bool, typer.Option(help="Capture the model again.")] = True
    proofs: Annotated[bool, typer.Option(help="Check the rules' certificates.")] = True
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for each part; with more it is unknown.")
    ] = BUDGET.seconds
    memory: Memory = BUDGET.memory
    hardware: Annotated[
        bool, typer.Option(" /--no-machine", help="Leave out whether the machine is the plan's.")
    ] = True
    jobs: Annotated[int, typer.Option(min=1, max=3, help="Processes.")] = 3
    as_json: AsJson = False

    @property
    def budget(self) -> Budget:
        """For each part of the work that the plan's content may make long."""
        return Budget(self.seconds, self.memory)


app = app_of(Options, "unity.commands.audit")

if __name__ == "__main__":
    run_app(app, "audit")
