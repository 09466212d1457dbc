"""`unity generate`: generate and prove the rule library from the operator definitions.

python -m unity.generate --certificates
python -m unity.generate --only matmul --only relu --out /tmp
python -m unity.generate --explain rules.json:a_rule
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from pcg.budget import Budget
from pcg.errors import InputError
from pcg.files import make_folder
from pcg.types.operator import Operator
from substitutions.browse.companions import write_companions
from substitutions.generate.algebra.enumerate import computing
from substitutions.generate.library import BUDGET, MAX_OPS, Generated, generate
from substitutions.rules.certificates import write_certificates
from substitutions.rules.store import CERTIFICATES, RULES, default_path, load_library, save_library
from unity.explain import explain_file
from unity.support.cli import PlainConsole, new_app, run_app, say
from unity.support.declarations import load_user_operators

app = new_app()


@app.command(name="generate")
def command(
    out: Annotated[
        Path | None, typer.Option(help="Folder for rules.json; by default the installed library.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this operator, and others so named.")
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    max_ops: Annotated[
        int, typer.Option(min=1, max=4, help="Operators a side in the algebraic enumeration.")
    ] = MAX_OPS,
    derived: Annotated[
        bool,
        typer.Option("--derived", help="Keep rules that follow from smaller ones in one step too."),
    ] = False,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Write what each proof rests on, too.")
    ] = False,
    parallel: Annotated[
        bool,
        typer.Option("--parallel/--algebra", help="Rules about cuts too, or algebraic ones alone."),
    ] = True,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default all cores.")
    ] = None,
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for one candidate; then it is unknown.")
    ] = BUDGET.seconds,
    memory: Annotated[int, typer.Option(min=64, help="MiB for one candidate.")] = BUDGET.memory,
    explain: Annotated[
        str | None,
        typer.Option(
            help="Show how a rule, FILE:NAME, or each of a FILE follows from the library."
        ),
    ] = None,
    show_rejected: Annotated[
        bool, typer.Option("--rejected", help="List the candidates that were not proved.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Enumerate graphs, find pairs that compute the same, prove them, write the library."""
    if operators is not None:
        load_user_operators(operators)
    if explain is not None:
        library = load_library(out / RULES if out is not None else None)
        explain_file(explain, library.concrete, jobs=jobs or 1, as_json=as_json)
        return
    another = {"--only": only, "--operators": operators, "--derived": derived}
    another["--max-ops"], another["--algebra"] = max_ops != MAX_OPS, not parallel
    for option, given in another.items():
        if given and out is None:
            raise InputError(option, "makes another library, expected --out FOLDER for it")
    if out is not None:
        make_folder(out)
    path = default_path() if out is None else out / RULES
    chosen = _chosen(only) if only else None
    console = PlainConsole(stderr=True)
    start = perf_counter()
    with Progress(console=console, transient=True, disable=as_json) as progress:
        bars = {phase: progress.add_task(phase, total=None) for phase in PHASES}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in bars:
                bars[phase] = progress.add_task(phase, total=None)
            progress.update(bars[phase], completed=done, total=total or None)

        found = generate(
            chosen,
            max_ops=max_ops,
            jobs=jobs,
            derived=derived,
            parallel=parallel,
            progress=show,
            budget=Budget(seconds, memory),
        )
    save_library(found.library, path)
    write_companions(found.library, path.parent)
    if certificates:
        write_certificates(found.library, path.parent / CERTIFICATES, jobs or os.cpu_count() or 1)
    if as_json:
        say(json.dumps(_record(found, show_rejected=show_rejected), indent=1))
    else:
        _print_report(found, path, perf_counter() - start, show_rejected=show_rejected)


PHASES = ("typings", "enumeration", "proofs")


def _chosen(names: list[str]) -> list[Operator]:
    known = {operator.name: operator for operator in computing()}
    for name in names:
        if name not in known:
            expected = ", ".join(sorted(known))
            raise InputError(f"--only {name}", f"no such operator, expected one of {expected}")
    return [known[name] for name in names]


def _record(found: Generated, *, show_rejected: bool) -> dict[str, object]:
    record: dict[str, object] = {**asdict(found.report), "rules": len(found.library.rules)}
    if show_rejected:
        record["rejected"] = [
            {"candidate": str(candidate), "verdict": decision.verdict, "reason": decision.reason}
            for candidate, decision in found.rejected
        ]
    return record


def _print_report(found: Generated, path: Path, seconds: float, *, show_rejected: bool) -> None:
    console = PlainConsole()
    table = Table(title="Rule generation")
    table.add_column("")
    table.add_column("", justify="right")
    report = found.report
    table.add_row("typing theorems proved", f"{report.typings:,}")
    table.add_row("graphs enumerated", f"{report.graphs:,}")
    table.add_row("distinct values", f"{report.values:,}")
    table.add_row("candidate rules", f"{report.candidates:,}")
    table.add_row("renamings and instances of others", f"{report.duplicates:,}")
    for verdict, count in report.verdicts.items():
        table.add_row(verdict, f"{count:,}")
    table.add_row("follow from others in one step", f"{report.derived:,}")
    for phase, used in report.seconds.items():
        table.add_row(f"seconds for {phase}", f"{used:.1f}")
    table.add_row("peak memory, MB", f"{report.megabytes:,}")
    console.print(table)
    if show_rejected:
        for candidate, decision in found.rejected:
            console.print(f"{decision.verdict} ({decision.reason}): {candidate}", soft_wrap=True)
    rules = len(found.library.rules)
    console.print(f"{rules} proved rules in {seconds:.0f} s, written to {path}", soft_wrap=True)


if __name__ == "__main__":
    run_app(app, "generate")
