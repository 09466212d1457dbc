"""Proves or refutes the rules of files from the definitions, each within a budget."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from rich.table import Table

from pcg.budget import Budget
from pcg.errors import NegativeAnswer
from pcg.files import make_folder, write_text_atomic
from pcg.fork import cores
from substitutions.rules.limited import LostItem, limited_map
from substitutions.rules.sources import RuleSource, Statement, StatementOutcome, read_source
from substitutions.rules.store import default_path
from unity.support.cli import say, say_json
from unity.support.console import PlainConsole
from unity.support.declarations import load_user_operators
from unity.support.processes import tracked
from unity.verify import Options
from verifier.certificate import Certificate, certify, write
from verifier.decide import Verdict
from verifier.snippet import snippet


@dataclass(frozen=True)
class Item:
    """A statement of a file. ``label`` is unique."""

    file: str
    statement: Statement
    label: str


@dataclass(frozen=True)
class Result:
    """The verdict about a statement, as a worker sends it.

    ``degrees``: None for all degrees. ``difference``: the counterexample in a line, if there is
    one. ``program``: a program that shows the counterexample.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...]
    degrees: tuple[int, ...] | None
    seconds: float
    difference: str | None
    program: str | None


def run(options: Options) -> None:
    """Decide all rules. Raises NegativeAnswer unless all are proved."""
    load_user_operators(options.operators)
    sources = [read_source(path) for path in options.paths or [default_path()]]
    for folder in (options.certificates, options.snippets):
        if folder is not None:
            make_folder(folder)
    items = list(_items(sources))
    tally = {source.file: Counter[Verdict]() for source in sources}
    for item, result in zip(items, _results(items, options), strict=True):
        tally[item.file][result.verdict] += 1
        program = _write_program(options.snippets, item, result)
        if options.as_json:
            say_json(_record(item, result), indent=None)
        elif result.verdict is not Verdict.PROVED or result.conditions or result.degrees:
            say(_block(item, result, program))
    if not options.as_json:
        _print_table(tally)
    _require_proofs(tally)


def _items(sources: Sequence[RuleSource]) -> Iterator[Item]:
    pairs = [(source.file, statement) for source in sources for statement in source.statements]
    names = Counter(statement.name for _, statement in pairs)
    for number, (file, statement) in enumerate(pairs):
        name = statement.name
        label = name if names[name] == 1 else f"{name} ({file}, {number})"
        yield Item(file, statement, label)


def _results(items: Sequence[Item], options: Options) -> Iterator[Result]:
    """Yield the result of each item, in order."""
    decide, budget = partial(_decide, options.certificates), Budget(options.seconds, options.memory)
    decided = limited_map(decide, items, options.jobs or cores(), budget)
    for result in tracked(decided, len(items), "proving", quiet=options.as_json):
        yield _lost(result) if isinstance(result, LostItem) else result


def _lost(lost: LostItem) -> Result:
    """The result of a rule that used up its budget."""
    return Result(Verdict.UNKNOWN, str(lost.spent), (), None, lost.seconds, None, None)


def _decide(certificates: Path | None, item: Item) -> Result:
    """Decide an item in a worker. Proofs stay there: they hold functions, which cannot be sent."""
    start = perf_counter()
    outcome = item.statement.decide()
    seconds = perf_counter() - start
    if certificates is not None:
        _certify(certificates, item, outcome)
    example = outcome.counterexample
    difference, program = (None, None) if example is None else (str(example), snippet(example))
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
    """Write the certificates of a proved rule, one for each case of sizes."""
    if outcome.verdict is not Verdict.PROVED:
        return
    made: list[Certificate] = []
    for number, decision in enumerate(outcome.proofs, 1):
        assert decision.evidence is not None
        name = item.label if len(outcome.proofs) == 1 else f"{item.label}, case {number}"
        made.append(certify(name, *decision.evidence.witness.pair, decision))
    write(directory, made)


def _write_program(folder: Path | None, item: Item, result: Result) -> Path | None:
    """Write the program that shows a counterexample, if there is one, and return its path."""
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
    """The text about a rule that is not proved, or has conditions or fixed degrees."""
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
