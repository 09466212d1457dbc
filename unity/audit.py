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
"""The budget of one plan. Plans of the zoo take a few seconds."""


@dataclass(frozen=True)
class Options:
    """Check that PLAN follows from its model by proved rules.

    The status is 1 if the plan does not follow. It is also 1 if the model or the machine is not
    known and no option leaves it out.
    """

    plan: Annotated[Path, typer.Argument(help="A plan file, from unity optimize.")]
    rules: Rules = None
    certificates: Annotated[
        Path | None,
        typer.Option(
            help="Certificates of the rules. Default: certificates.jsonl.xz beside the library."
        ),
    ] = None
    operators: Operators = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the plan: a name of the zoo, or FILE.py:FUNCTION, which is run. Default:"
            " the model that the plan names, if it is in the zoo."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="Machine of the plan. Default: the preset that the plan names."),
    ] = None
    solver: Annotated[
        list[str] | None, typer.Option(help="z3 or cvc5; may be repeated. Default: z3.")
    ] = None
    capture: Annotated[bool, typer.Option(help="Whether to capture the model again.")] = True
    proofs: Annotated[
        bool, typer.Option(help="Whether to check the certificates of the rules.")
    ] = True
    seconds: Annotated[
        int, typer.Option(min=1, help="Limit of processor time for each part, in seconds.")
    ] = BUDGET.seconds
    memory: Memory = BUDGET.memory
    hardware: Annotated[
        bool, typer.Option(" /--no-machine", help="Do not check the machine of the plan.")
    ] = True
    jobs: Annotated[int, typer.Option(min=1, max=3, help="Number of processes.")] = 3
    as_json: AsJson = False

    @property
    def budget(self) -> Budget:
        """The budget of each part whose work grows with the content of the plan."""
        return Budget(self.seconds, self.memory)


app = app_of(Options, "unity.commands.audit")

if __name__ == "__main__":
    run_app(app, "audit")
