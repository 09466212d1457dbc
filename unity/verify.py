"""`unity verify`: decide again every rule of a library, from the operator definitions.

python -m unity.verify
python -m unity.verify rules.json --jobs 2 --json
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from pcg.errors import NegativeAnswer
from pcg.user import load_operators
from substitutions.rule import Rule
from substitutions.store import default_path, load_library
from substitutions.workers import parallel_map
from unity.cli import new_app, run_app
from verifier.decide import Decision, Verdict, decide

app = new_app()


@app.command()
def verify(
    path: Annotated[
        Path | None, typer.Argument(help="A rule library; by default the generated one.")
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a rule, a line each.")
    ] = False,
) -> None:
    """Prove or refute the rules of a library."""
    if operators is not None:
        load_operators(operators)
    where = path or default_path()
    rules = load_library(where).rules
    decisions = track(
        parallel_map(_decide, rules, jobs),
        "proving",
        total=len(rules),
        console=Console(stderr=True),
        transient=True,
        disable=as_json,
    )
    verdicts: Counter[Verdict] = Counter()
    for rule, decision in zip(rules, decisions, strict=True):
        verdicts[decision.verdict] += 1
        if as_json:
            print(json.dumps(_record(where, rule, decision)))
        elif decision.verdict is not Verdict.PROVED:
            print(f"{decision.verdict}: {rule.name}: {rule.text}")
            print(f"  {decision.counterexample or decision.reason}")
    if not as_json:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        print(f"{where}: {counts or 'no rules'}")
    if failed := len(rules) - verdicts[Verdict.PROVED]:
        raise NegativeAnswer(f"{where}: {failed} of {len(rules)} rules are not proved")


def _decide(rule: Rule) -> Decision:
    return decide(rule.left, rule.right)


def _record(where: Path, rule: Rule, decision: Decision) -> dict[str, object]:
    found = decision.counterexample
    return {
        "file": str(where),
        "rule": rule.name,
        "verdict": str(decision.verdict),
        "conditions": list(decision.conditions),
        "counterexample": None if found is None else str(found),
    }


if __name__ == "__main__":
    run_app(app, "verify")
