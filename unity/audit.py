"""`unity audit`: check that a plan follows from its model by proved rules.

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

BUDGET = Budget(seconds=120)
"""For one plan: ours take a few seconds."""


@dataclass(frozen=True)
class Options:
    """Replay how PLAN was derived, and check each rule's certificate and conditions.

    Status 1 where it does not follow, and where model or machine cannot be checked and no option
    says to leave them out.
    """

    plan: Annotated[Path, typer.Argument(help="A plan file.")]
    rules: Annotated[
        Path | None, typer.Option(help="Rule library; by default the generated one.")
    ] = None
    certificates: Annotated[
        Path | None, typer.Option(help="By default certificates.jsonl.xz beside the library.")
    ] = None
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="What the plan has to be of: a model's name or FILE.py:FUNCTION, which is run."
            " By default the name that the plan gives, where that is one of Unity's."
        ),
    ] = None
    machine: Annotated[
        str | None,
        typer.Option(help="What it has to be for; by default the preset that the plan names."),
    ] = None
    solver: Annotated[
        list[str] | None,
        typer.Option(help="z3 (the default) or cvc5; may be repeated."),
    ] = None
    capture: Annotated[bool, typer.Option(help="Capture the model again.")] = True
    proofs: Annotated[bool, typer.Option(help="Check the rules' certificates.")] = True
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for the derivation and the proofs.")
    ] = BUDGET.seconds
    memory: Annotated[int, typer.Option(min=64, help="MiB for these.")] = BUDGET.memory
    hardware: Annotated[
        bool, typer.Option(" /--no-machine", help="Leave out whether the machine is the plan's.")
    ] = True
    jobs: Annotated[int, typer.Option(min=1, max=3, help="Processes.")] = 3
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False

    @property
    def budget(self) -> Budget:
        """For each part of the work that the plan's content may make long."""
        return Budget(self.seconds, self.memory)


app = app_of(Options, "unity.commands.audit")


if __name__ == "__main__":
    run_app(app, "audit")
