"""`unity verify`: decide the rules of files, our own or of other systems, from the definitions.

python -m unity.verify
python -m unity.verify rules.json foreign.json --jobs 2 --json
python -m unity.verify my_rules.json --operators my_ops.py --snippets build/snippets
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from pcg.budget import Budget
from pcg.errors import NegativeAnswer
from pcg.files import make_folder, write_text_atomic
from substitutions.rules.limited import Lost, limited_map
from substitutions.rules.sources import RuleSource, Statement, StatementOutcome, read_source
from substitutions.rules.store import default_path
from unity.support.cli import PlainConsole, new_app, run_app, say
from unity.support.declarations import load_user_operators
from verifier.certificate import Certificate, certify, write
from verifier.decide import Verdict
from verifier.snippet import snippet

app = new_app()
BUDGET = Budget(seconds=3)
"""For one rule: ours take well under a second, and most a few milliseconds."""


@dataclass(frozen=True)
class Item:
    """A statement of a file. ``label`` is unlike that of any other item."""

    file: str
    statement: Statement
    label: str


@dataclass(frozen=True)
class Result:
    """What was decided of a statement, in how many seconds, as it goes from a worker to us.

    ``degrees``: None for all of them. ``difference``: the counterexample, if there is one, in a
    line; ``program`` shows it when it is run.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...]
    degrees: tuple[int, ...] | None
    seconds: float
    difference: str | None
    program: str | None


@app.command()
def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Rule files, ours or of TASO or FlexFlow; by default our library."),
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default all cores.")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Folder for certificates of the proofs.")
    ] = None,
    snippets: Annotated[
        Path | None, typer.Option(help="Folder for programs that show the counterexamples.")
    ] = None,
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for one rule; then it is unknown.")
    ] = BUDGET.seconds,
    memory: Annotated[int, typer.Option(min=64, help="MiB for one rule.")] = BUDGET.memory,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a rule, a line each.")
    ] = False,
) -> None:
    """Prove or refute the rules of files."""
    if operators is not None:
        load_user_operators(operators)
    sources = [read_source(path) for path in paths or [default_path()]]
    for folder in (certificates, snippets):
        if folder is not None:
            make_folder(folder)
    items = list(_items(sources))
    tally = {source.file: Counter[Verdict]() for source in sources}
    results = limited_map(
        partial(_decide, certificates), items, jobs or _cores(), Budget(seconds, memory)
    )
    for item, result in zip(items, _watched(results, len(items), quiet=as_json), strict=True):
        tally[item.file][result.verdict] += 1
        program = _write_program(snippets, item, result)
        if as_json:
            say(json.dumps(_record(item, result)))
        elif result.verdict is not Verdict.PROVED or result.conditions or result.degrees:
            say(_block(item, result, program))
    if not as_json:
        _print_table(tally)
    _require_proofs(tally)


def _items(sources: Sequence[RuleSource]) -> Iterator[Item]:
    pairs = [(source.file, statement) for source in sources for statement in source.statements]
    names = Counter(statement.name for _, statement in pairs)
    for number, (file, statement) in enumerate(pairs):
        name = statement.name
        label = name if names[name] == 1 else f"{name} ({file}, {number})"
        yield Item(file, statement, label)


def _cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _watched(results: Iterator[Result | Lost], count: int, *, quiet: bool) -> Iterator[Result]:
    """The results in order, each as soon as it and those before it are there."""
    console = PlainConsole(stderr=True)
    with Progress(
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # or what is printed to a file would not get there
        disable=quiet or not console.is_terminal,
    ) as progress:
        for result in progress.track(results, total=count, description="proving"):
            yield _lost(result) if isinstance(result, Lost) else result


def _lost(lost: Lost) -> Result:
    """What can be said of a rule that used up its budget."""
    return Result(Verdict.UNKNOWN, str(lost.spent), (), None, lost.seconds, None, None)


def _decide(certificates: Path | None, item: Item) -> Result:
    """In a worker: proofs stay there, as operators hold functions, which no process can send."""
    start = perf_counter()
    outcome = item.statement.decide()
    seconds = perf_counter() - start
    if certificates is not None:
        _certify(certificates, item, outcome)
    found = outcome.counterexample
    difference, program = (None, None) if found is None else (str(found), snippet(found))
    return Result(
        outcome.verdict,
        outcome.reason,
        outcome.conditions,
        outcome.degrees,
        seconds,
        difference,
        program,
    )


def _certify(directory: Path, item: Item, outcome: StatementOutcome) -> None:
    """Write the certificates of a proved rule: one, or one for each case of sizes."""
    if outcome.verdict is not Verdict.PROVED:
        return
    made: list[Certificate] = []
    for number, decision in enumerate(outcome.proofs, 1):
        assert decision.evidence is not None
        name = item.label if len(outcome.proofs) == 1 else f"{item.label}, case {number}"
        made.append(certify(name, *decision.evidence.witness.pair, decision))
    write(directory, made)


def _write_program(folder: Path | None, item: Item, result: Result) -> Path | None:
    """Where the program that shows a counterexample was written to, if it was."""
    if folder is None or result.program is None:
        return None
    short = re.sub(r"[^\w.-]+", "_", item.statement.name)[:60]
    path = folder / f"{short}-{sha256(item.label.encode()).hexdigest()[:8]}.py"
    write_text_atomic(path, result.program)
    return path


def _record(item: Item, result: Result) -> dict[str, object]:
    return {
        "file": item.file,
        "rule": item.statement.name,
        "verdict": str(result.verdict),
        "conditions": list(result.conditions),
        "degrees": "all" if result.degrees is None else list(result.degrees),
        "seconds": round(result.seconds, 6),
        "counterexample": result.program,
        "reason": result.reason,
    }


def _block(item: Item, result: Result, program: Path | None) -> str:
    """What a reader wants to know of a rule that is not proved, or not without conditions."""
    lines = [f"{result.verdict}: {item.file}: {item.statement.name}"]
    lines += [f"  {item.statement.text}"] if item.statement.text else []
    lines += [f"  if {', '.join(result.conditions)}"] if result.conditions else []
    lines += [f"  at degree {', '.join(map(str, result.degrees))}"] if result.degrees else []
    lines += [f"  {result.reason}"] if result.reason else []
    lines += [f"  {result.difference}"] if result.difference else []
    lines += [f"  run it: {program}"] if program else []
    return "\n".join(lines)


def _print_table(tally: dict[str, Counter[Verdict]]) -> None:
    used = [v for v in Verdict if v is Verdict.PROVED or any(c[v] for c in tally.values())]
    table = Table(title="Verdicts")
    table.add_column("file", overflow="fold")
    for heading in (*used, "rules"):
        table.add_column(str(heading), justify="right")
    for file, counts in tally.items():
        table.add_row(file, *(f"{counts[verdict]:,}" for verdict in used), f"{counts.total():,}")
    if len(tally) > 1:
        whole = sum(tally.values(), Counter[Verdict]())
        table.add_section()
        table.add_row("all", *(f"{whole[verdict]:,}" for verdict in used), f"{whole.total():,}")
    PlainConsole().print(table)


def _require_proofs(tally: dict[str, Counter[Verdict]]) -> None:
    whole = sum(tally.values(), Counter[Verdict]())
    if failed := whole.total() - whole[Verdict.PROVED]:
        where = next(iter(tally)) if len(tally) == 1 else f"{len(tally)} files"
        raise NegativeAnswer(f"{where}: {failed} of {whole.total()} rules are not proved")


if __name__ == "__main__":
    run_app(app, "verify")
