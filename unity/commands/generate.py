"""Generates a rule library and writes it, or explains rules by a library."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from rich.progress import Progress
from rich.table import Table

from pcg.budget import Budget
from pcg.errors import InputError
from pcg.files import make_folder
from pcg.fork import cores
from pcg.types.operator import Operator
from substitutions.browse.companions import write_companions
from substitutions.generate.algebra.enumerate import computing
from substitutions.generate.library import GenerationResult, generate
from substitutions.generate.limits import MAX_OPS
from substitutions.rules.certificates import write_certificates
from substitutions.rules.store import CERTIFICATES, RULES, default_path, load_library, save_library
from unity.commands.rule_derivations import explain_file
from unity.generate import Options
from unity.support.cli import say_json
from unity.support.console import PlainConsole
from unity.support.declarations import load_user_operators

PHASES = ("typings", "enumeration", "proofs")


def run(options: Options) -> None:
    """Generate a library, or explain rules. Raises InputError and NegativeAnswer."""
    load_user_operators(options.operators)
    _check(options)
    path = default_path() if options.out is None else options.out / RULES
    if options.explain is not None:
        rules_for = load_library(path).concrete
        explain_file(options.explain, rules_for, jobs=options.jobs or 1, as_json=options.as_json)
        return
    make_folder(path.parent)
    start = perf_counter()
    generated = _generated(options)
    save_library(generated.library, path)
    write_companions(generated.library, path.parent)
    if options.certificates:
        certificates = path.parent / CERTIFICATES
        write_certificates(generated.library, certificates, options.jobs or cores())
    if options.as_json:
        say_json(_record(generated, options))
    else:
        _print_report(generated, path, perf_counter() - start, options)


def _check(options: Options) -> None:
    """Raise InputError for options that make another library than the installed one, if no folder
    is given for it."""
    another = {
        "--only": bool(options.only),
        "--operators": options.operators is not None,
        "--derived": options.derived,
        "--max-ops": options.max_ops != MAX_OPS,
        "--algebra": not options.parallel,
    }
    for option, given in another.items():
        if given and options.out is None:
            raise InputError(
                option, "makes another library than the installed one, expected --out FOLDER"
            )


def _generated(options: Options) -> GenerationResult:
    """Generate the library that the options ask for, with bars of progress."""
    chosen = _chosen(options.only) if options.only else None
    with _bars(quiet=options.as_json) as show:
        return generate(
            chosen,
            max_ops=options.max_ops,
            jobs=options.jobs or cores(),
            derived=options.derived,
            parallel=options.parallel,
            progress=show,
            budget=Budget(options.seconds, options.memory),
        )


@contextmanager
def _bars(*, quiet: bool) -> Generator[Callable[[str, int, int], None]]:
    """A bar for each phase, on the standard error."""
    console = PlainConsole(stderr=True)
    with Progress(console=console, transient=True, disable=quiet) as progress:
        bars = {phase: progress.add_task(phase, total=None) for phase in PHASES}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in bars:
                bars[phase] = progress.add_task(phase, total=None)
            progress.update(bars[phase], completed=done, total=total or None)

        yield show


def _chosen(names: list[str]) -> list[Operator]:
    known = {operator.name: operator for operator in computing()}
    for name in names:
        if name not in known:
            expected = ", ".join(sorted(known))
            raise InputError(f"--only {name}", f"no such operator, expected one of {expected}")
    return [known[name] for name in names]


def _record(generated: GenerationResult, options: Options) -> dict[str, object]:
    record: dict[str, object] = {
        **asdict(generated.report),
        "rules": len(generated.library.rules),
    }
    if options.show_rejected:
        record["rejected"] = [
            {"candidate": str(candidate), "verdict": decision.verdict, "reason": decision.reason}
            for candidate, decision in generated.rejected
        ]
    return record


def _print_report(
    generated: GenerationResult, path: Path, seconds: float, options: Options
) -> None:
    console = PlainConsole()
    table = Table(title="Rule generation")
    table.add_column("")
    table.add_column("", justify="right")
    report = generated.report
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
    if options.show_rejected:
        for candidate, decision in generated.rejected:
            console.print(f"{decision.verdict} ({decision.reason}): {candidate}", soft_wrap=True)
    rules = len(generated.library.rules)
    console.print(f"{rules} proved rules in {seconds:.0f} s, written to {path}", soft_wrap=True)
