"""`unity audit`: check that a plan follows from its model by proved rules.

python -m unity.optimize mlp-tiny -o plan.json
python -m unity.audit plan.json
python -m unity.audit plan.json --model my_model.py:make_model --machine my_machine.toml
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Annotated, TypeVar

import typer

from pcg.budget import Budget
from pcg.errors import InputError, NegativeAnswer, one_line
from pcg.files import read_json
from pcg.graph.opaque import Opaque, opaque_nodes
from pcg.machine import load_machine, preset_names
from pcg.models import MODELS
from pcg.plan.naming import NamingFile, batch_of
from pcg.plan.plan import Plan, altered_parts, plan_of
from pcg.plan.schema import PlanFile
from runtime.program.lower import Lowering
from runtime.program.validate import ProgramError, validate_lowered
from substitutions.audit.errors import Finding
from substitutions.audit.locate import located
from substitutions.audit.proofs import check_proofs
from substitutions.audit.replay import replay
from substitutions.audit.sources import (
    CapturedModel,
    captured,
    check_library,
    check_machine,
    check_model,
    check_naming,
    check_statistics,
)
from substitutions.rules.limited import Lost, limited_map
from substitutions.rules.rule import Rule
from substitutions.rules.store import CERTIFICATES, default_path, load_library
from unity.support.cli import new_app, run_app, say
from unity.support.declarations import load_user_operators
from verifier.bundle import read_bundle
from verifier.solvers import SOLVERS, require

app = new_app()
BUDGET = Budget(seconds=120)
"""For one plan: ours take a few seconds."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Audit:
    """An audit as it goes on. ``done``: what was checked and what came of it, in words;
    ``skipped``: what was not, because the user said so or because it follows from nothing;
    ``unchecked``: what could not be, which nobody asked for; ``figures``: counts and seconds."""

    plan: Plan
    findings: list[Finding] = field(default_factory=list[Finding])
    done: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    unchecked: list[str] = field(default_factory=list[str])
    figures: dict[str, float] = field(default_factory=dict[str, float])


@app.command()
def audit(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    rules: Annotated[
        Path | None, typer.Option(help="Rule library; by default the generated one.")
    ] = None,
    certificates: Annotated[
        Path | None, typer.Option(help=f"By default {CERTIFICATES} beside the library.")
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A Python file that declares further operators.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What the plan has to be of: a model's name or FILE.py:FUNCTION, which is run."
            " By default the name that the plan gives, where that is one of Unity's."
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(help="What it has to be for; by default the preset that the plan names."),
    ] = None,
    solver: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(SOLVERS)}; may be repeated. By default z3."),
    ] = None,
    capture: Annotated[bool, typer.Option(help="Capture the model again.")] = True,
    proofs: Annotated[bool, typer.Option(help="Check the rules' certificates.")] = True,
    seconds: Annotated[
        int, typer.Option(min=1, help="Processor time for the derivation and the proofs.")
    ] = BUDGET.seconds,
    memory: Annotated[int, typer.Option(min=64, help="MiB for these.")] = BUDGET.memory,
    hardware: Annotated[
        bool, typer.Option(" /--no-machine", help="Leave out whether the machine is the plan's.")
    ] = True,
    jobs: Annotated[int, typer.Option(min=1, max=2, help="Processes.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay how PLAN was derived, and check each rule's certificate and conditions.

    Status 1 where it does not follow, and where model or machine cannot be checked and no option
    says to leave them out.
    """
    start = perf_counter()
    if operators is not None:
        load_user_operators(operators)
    given = Given(plan, rules, certificates, machine, tuple(solver or ["z3"]), proofs, hardware)
    content, found = _first_read(given, Budget(seconds, memory))
    _check_opaque(found.plan, str(plan))
    name = _model_name(found, model) if capture else None
    with _capturing(found.plan, name, jobs) as again:
        _take(found, _within(Budget(seconds, memory), _examined, (given, found.plan), plan))
        if name is not None:
            _check_model(found, name, again(), rules)
    if not proofs:
        found.skipped.append("the proofs of the rules (--no-proofs)")
    if not capture:
        found.skipped.append("the model (--no-capture)")
    if not hardware:
        found.skipped.append("the machine (--no-machine)")
    found.skipped += _undetermined(found.plan)
    problem = "is not as it was written, its hash is another"
    found.findings += [Finding(part, problem) for part in altered_parts(content)]
    found.figures["seconds"] = perf_counter() - start
    (_print_json if as_json else _print)(found, plan)
    if found.findings:
        count = len(found.findings)
        raise NegativeAnswer(f"{plan}: does not follow, {count} finding{'s' * (count > 1)}")
    if found.unchecked:
        raise NegativeAnswer(f"{plan}: could not be checked whole: {'; '.join(found.unchecked)}")


@dataclass(frozen=True)
class Given:
    """What the part of an audit is about that takes place within a budget."""

    plan: Path
    rules: Path | None
    certificates: Path | None
    machine: str | None
    solvers: tuple[str, ...]
    proofs: bool
    hardware: bool

    @property
    def bundle(self) -> Path:
        """Where the certificates are: by default beside the library."""
        return self.certificates or (self.rules or default_path()).with_name(CERTIFICATES)


@dataclass(frozen=True)
class Examined:
    """What came of that part."""

    findings: tuple[Finding, ...]
    done: tuple[str, ...]
    skipped: tuple[str, ...]
    unchecked: tuple[str, ...]
    figures: dict[str, float]


def _first_read(given: Given, budget: Budget) -> tuple[PlanFile, Audit]:
    """Read the plan, in another process first: then it is known to take no more than that."""
    _within(budget, _read, given.plan, given.plan)
    content = read_json(given.plan, PlanFile)
    return content, Audit(plan_of(content, str(given.plan)))


def _within(budget: Budget, work: Callable[[T], R], given: T, plan: Path) -> R:
    """A part of the audit in a process of its own, a fork of this one. Raises NegativeAnswer where
    it does not end."""
    (result,) = limited_map(work, [given], 1, budget)
    if isinstance(result, Lost):
        raise NegativeAnswer(f"{plan}: unknown: {result.spent}")
    return result


def _read(plan: Path) -> None:
    plan_of(read_json(plan, PlanFile), str(plan))


def _examined(asked: tuple[Given, Plan]) -> Examined:
    """Check the derivation, the proofs, the machine and the programs."""
    given, plan = asked
    found = Audit(plan)
    used = _check_derivation(found, given.rules)
    if given.proofs:
        _check_proofs(found, used, given.bundle, given.solvers)
    if given.hardware:
        _check_machine(found, given.machine)
    _check_programs(found)
    return Examined(
        tuple(found.findings),
        tuple(found.done),
        tuple(found.skipped),
        tuple(found.unchecked),
        dict(found.figures),
    )


def _take(found: Audit, part: Examined) -> None:
    found.findings += part.findings
    found.done += part.done
    found.skipped += part.skipped
    found.unchecked += part.unchecked
    found.figures |= part.figures


def _check_opaque(plan: Plan, where: str) -> None:
    """That functions without an equation return what the model's graph says. Those of the plan's
    graph are found to be the same."""
    for node in opaque_nodes(plan.model):
        operator = node.operator_call.operator
        try:
            if isinstance(operator, Opaque):
                operator.check_results()
        except ValueError as error:
            raise InputError(f"{where}: model.graph", str(error)) from None


def _check_derivation(found: Audit, rules: Path | None) -> dict[str, Rule]:
    """Follow the derivation; the rules that it applies."""
    library = load_library(rules)
    found.findings += check_library(found.plan, library, str(rules or default_path()))
    start = perf_counter()
    followed = replay(found.plan, library.rules)
    found.findings += followed.findings
    found.figures |= {
        "steps": followed.steps,
        "rules": len(followed.rules),
        "conditions": followed.conditions,
        "replay_seconds": perf_counter() - start,
    }
    found.done.append(
        f"{followed.steps:,} steps by {len(followed.rules)} rules, with {followed.conditions:,}"
        " conditions on sizes and types"
    )
    return dict(followed.rules)


def _check_proofs(
    found: Audit, rules: dict[str, Rule], certificates: Path, solvers: Sequence[str]
) -> None:
    chosen = {name: SOLVERS[name] for name in require(solvers)}
    start = perf_counter()
    checked = check_proofs(rules, read_bundle(certificates), chosen)
    found.findings += checked.findings
    found.figures |= {
        "side_conditions": checked.conditions,
        "proof_seconds": perf_counter() - start,
    }
    found.done.append(
        f"the certificates of {len(rules)} rules, with {checked.conditions:,} side conditions that"
        f" {' and '.join(chosen)} solved"
    )


def _check_machine(found: Audit, machine: str | None) -> None:
    name = machine or found.plan.machine.name
    if machine is None and name not in preset_names():
        how = "--machine says which, --no-machine leaves it out"
        found.unchecked.append(f"the machine, as {name} is no preset ({how})")
        return
    found.findings += check_machine(found.plan, load_machine(name))
    found.done.append(f"the machine, {found.plan.machine.devices} x {found.plan.machine.name}")


def _check_programs(found: Audit) -> None:
    """Lower the plan, and show that what each rank runs is what it says."""
    start = perf_counter()
    try:
        lowering = Lowering(found.plan)
        validate_lowered(lowering)
    except ProgramError as error:
        found.findings.append(Finding(error.at, error.problem))
    except InputError as error:
        found.findings.append(Finding("programs", error.problem))
    else:
        found.done.append(
            f"the programs of {lowering.ranks} ranks: each piece once, each backward pass the"
            " transpose, messages paired, nobody waits for ever"
        )
    found.figures["programs_seconds"] = perf_counter() - start


def _check_model(found: Audit, name: str, again: CapturedModel, rules: Path | None) -> None:
    """Check the graph that the plan begins with and, if it is that of the model, its names and of
    what running statistics are kept."""
    other = list(check_model(found.plan, name, again))
    found.findings += other
    groups = found.plan.norm_groups
    norms = f", its batch norms in {groups} groups of samples" if groups > 1 else ""
    found.done.append(f"the model, captured again from {name}{norms}")
    if found.plan.naming == NamingFile():
        found.skipped.append("what its parameters are called, of which the plan says nothing")
    elif not other:
        found.findings += check_naming(found.plan, name, again)
        found.done.append("what its parameters, inputs and buffers are called")
        expected = located(again.statistics, found.plan, load_library(rules).rules)
        found.findings += check_statistics(found.plan, name, expected)
        if expected:
            found.done.append(f"of what {len(expected)} batch norms keep running statistics")


def _undetermined(plan: Plan) -> Iterator[str]:
    """What a plan says that follows from nothing."""
    yield "the optimizer and what is recomputed, which are decisions"
    if plan.pipeline is not None:
        yield f"the pipeline's schedule, {plan.pipeline.schedule}, which is a decision"
    yield "the estimates, which are predictions"


def _model_name(found: Audit, model: str | None) -> str | None:
    """The model to capture, if one is known. A file is only run if the caller names it."""
    name = model or found.plan.model_name
    if model is None and name not in MODELS:
        how = "--model says which, --no-capture leaves it out"
        found.unchecked.append(f"the model, as {name} is none of Unity's ({how})")
        return None
    return name


@contextmanager
def _capturing(plan: Plan, name: str | None, jobs: int) -> Generator[Callable[[], CapturedModel]]:
    """Capture a model beside the rest, which it takes longer than; in this process, afterwards,
    where there is to be one only."""
    given = (
        name or "",
        batch_of(plan.model, plan.naming) or None,
        plan.machine.devices,
        plan.norm_groups,
    )
    if jobs == 1 or name is None:
        yield lambda: captured(*given)
        return
    # A process of its own, and not a fork of this one, which may have threads.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool.submit(captured, *given).result


def _print_json(found: Audit, path: Path) -> None:
    content = {
        "plan": str(path),
        "model": found.plan.model_name,
        "sound": not found.findings and not found.unchecked,
        "findings": [{"where": f.where, "what": f.what} for f in found.findings],
        "not_checked": found.skipped,
        "could_not_check": found.unchecked,
        **found.figures,
    }
    say(json.dumps(content, indent=1))


def _print(found: Audit, path: Path) -> None:
    lines = [f"{path}: {finding}" for finding in found.findings]
    lines += [f"checked: {line}" for line in found.done]
    lines += [f"not checked: {line}" for line in found.skipped]
    lines += [f"could not be checked: {line}" for line in found.unchecked]
    if not found.findings and not found.unchecked:
        seconds = found.figures["seconds"]
        lines.append(f"{path}: follows from {found.plan.model_name}, {seconds:.1f} s")
    for line in lines:  # what a plan holds may be anything
        say(one_line(line))


if __name__ == "__main__":
    run_app(app, "audit")
