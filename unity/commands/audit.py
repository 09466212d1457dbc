"""Checks that a plan follows from its model by proved rules.

The derivation, the proofs and the programs may take long, depending on the plan's content. They are
checked within a budget, in a fork of this process. At the same time the model is captured, which
takes longest, in a process that imports torch while the plan is still being read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from pcg.errors import InputError, NegativeAnswer, one_line
from pcg.files import read_json
from pcg.graph.opaque import torch_functions
from pcg.machine import load_machine, preset_names
from pcg.plan.naming import NamingFile, batch_of
from pcg.plan.plan import Plan, altered_parts, plan_of
from pcg.plan.schema import PlanFile
from pcg.zoo import MODELS
from runtime.program.lower import Lowering
from runtime.program.validate import ProgramError, validate_lowered
from substitutions.audit.captured import CapturedModel, captured, prepare
from substitutions.audit.errors import Finding
from substitutions.audit.locate import locate_statistics
from substitutions.audit.proofs import check_proofs
from substitutions.audit.provenance import (
    check_library,
    check_machine,
    check_model,
    check_naming,
    check_statistics,
)
from substitutions.audit.replay import replay
from substitutions.rules.limited import LostItem, limited_map
from substitutions.rules.rule import Rule
from substitutions.rules.store import CERTIFICATES, Library, default_path, load_rules
from unity.audit import Options
from unity.support.cli import say, say_json
from unity.support.declarations import load_user_operators
from verifier.bundle import read_bundle
from verifier.solvers import SOLVERS, require

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Audit:
    """The results of an audit, or of a part of one, so far.

    ``done``: lines about parts that were checked. ``skipped``: lines about parts that were not
    checked, because an option says so or because they do not follow from anything. ``unchecked``:
    lines about parts that could not be checked, though no option leaves them out. ``figures``:
    counts and seconds.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    done: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    unchecked: list[str] = field(default_factory=list[str])
    figures: dict[str, float] = field(default_factory=dict[str, float])

    def take(self, part: Audit) -> None:
        """Add the results of a part."""
        self.findings += part.findings
        self.done += part.done
        self.skipped += part.skipped
        self.unchecked += part.unchecked
        self.figures |= part.figures


def run(options: Options) -> None:
    """Audit a plan, and print the results. Raises NegativeAnswer if the plan does not follow from
    its model, or if a part could not be checked."""
    start, path, audit = perf_counter(), options.plan, Audit()
    load_user_operators(options.operators)
    with _capturing(options) as capture:
        list(_within(options, _read, [path]))  # so reading it here keeps to the budget
        content = read_json(path, PlanFile)
        plan = plan_of(content, str(path))
        _check_opaque(plan, str(path))
        name = _model_name(audit, plan, options.model) if options.capture else None
        again = None if name is None else capture(plan, name)
        parts = [AuditPart(check, options, plan) for check in (_follow, _check_programs)]
        for part in _within(options, AuditPart.checked, parts):
            audit.take(part)
        if name is not None and again is not None:
            _check_model(audit, plan, name, again(), options.rules)
    audit.skipped += _left_out(options, plan)
    problem = "was changed after it was written: its hash differs"
    audit.findings += [Finding(part, problem) for part in altered_parts(content)]
    audit.figures["seconds"] = perf_counter() - start
    (_print_json if options.as_json else _print)(audit, plan, path)
    if audit.findings:
        count = len(audit.findings)
        raise NegativeAnswer(f"{path}: does not follow, {count} finding{'s' * (count > 1)}")
    if audit.unchecked:
        raise NegativeAnswer(f"{path}: could not be checked in full: {'; '.join(audit.unchecked)}")


def _left_out(options: Options, plan: Plan) -> Iterator[str]:
    """Lines about parts that were not checked: by option, or because they are decisions."""
    if not options.proofs:
        yield "the proofs of the rules (--no-proofs)"
    if not options.capture:
        yield "the model (--no-capture)"
    if not options.hardware:
        yield "the machine (--no-machine)"
    yield "the optimizer and the recomputed operators, which are decisions"
    if plan.order:
        yield "the order of issue, which is a decision"
    if plan.pipeline is not None:
        yield f"the pipeline's schedule, {plan.pipeline.schedule}, which is a decision"
    yield "the estimates, which are predictions"


@dataclass(frozen=True)
class AuditPart:
    """A part of an audit with a budget of its own."""

    check: Callable[[Audit, Plan, Options], None]
    options: Options
    plan: Plan

    def checked(self) -> Audit:
        """The results of this part."""
        audit = Audit()
        self.check(audit, self.plan, self.options)
        return audit


def _within(options: Options, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the result of ``work`` for each item, each in a fork of this process. Raises
    NegativeAnswer if an item uses up its budget."""
    for result in limited_map(work, items, options.jobs, options.budget, chunk=1):
        if isinstance(result, LostItem):
            raise NegativeAnswer(f"{options.plan}: unknown: {result.spent}")
        yield result


def _read(plan: Path) -> None:
    plan_of(read_json(plan, PlanFile), str(plan))


def _follow(audit: Audit, plan: Plan, options: Options) -> None:
    """Check the derivation, the proofs and the machine."""
    used = _check_derivation(audit, plan, options.rules)
    if options.proofs:
        # By default beside the library.
        rules = options.rules or default_path()
        certificates = options.certificates or rules.with_name(CERTIFICATES)
        _check_proofs(audit, used, certificates, options.solver or ["z3"])
    if options.hardware:
        _check_machine(audit, plan, options.machine)


def _check_opaque(plan: Plan, where: str) -> None:
    """Check that functions without an equation return the types that the model's graph states.
    The derivation shows that the plan's graph has the same functions."""
    for function in torch_functions(plan.model):
        try:
            function.check_results()
        except ValueError as error:
            raise InputError(f"{where}: model.graph", str(error)) from None


def _check_derivation(audit: Audit, plan: Plan, rules: Path | None) -> dict[str, Rule]:
    """Replay the derivation, and return the rules that it applies, by name."""
    library = _library(plan, rules)
    audit.findings += check_library(plan, library, str(rules or default_path()))
    start = perf_counter()
    followed = replay(plan, library.rules)
    audit.findings += followed.findings
    audit.figures |= {
        "steps": followed.steps,
        "rules": len(followed.rules),
        "conditions": followed.conditions,
        "replay_seconds": perf_counter() - start,
    }
    audit.done.append(
        f"{followed.steps:,} steps by {len(followed.rules)} rules, with {followed.conditions:,}"
        " conditions on sizes and types"
    )
    return dict(followed.rules)


def _library(plan: Plan, rules: Path | None) -> Library:
    """Return the rules that a plan names, from the library to check it by."""
    return load_rules({step.applied.rule for step in plan.derivation}, rules)


def _check_proofs(
    audit: Audit, rules: dict[str, Rule], certificates: Path, solvers: Sequence[str]
) -> None:
    chosen = {name: SOLVERS[name] for name in require(solvers)}
    start = perf_counter()
    checked = check_proofs(rules, read_bundle(certificates), chosen)
    audit.findings += checked.findings
    audit.figures |= {
        "side_conditions": checked.conditions,
        "proof_seconds": perf_counter() - start,
    }
    audit.done.append(
        f"the certificates of {len(rules)} rules, with {checked.conditions:,} side conditions that"
        f" {' and '.join(chosen)} solved"
    )


def _check_machine(audit: Audit, plan: Plan, machine: str | None) -> None:
    name = machine or plan.machine.name
    if machine is None and name not in preset_names():
        how = "name it with --machine, or leave it out with --no-machine"
        audit.unchecked.append(f"the machine, because {name} is not a preset ({how})")
        return
    audit.findings += check_machine(plan, load_machine(name))
    audit.done.append(f"the machine, {plan.machine.devices} x {plan.machine.name}")


def _check_programs(audit: Audit, plan: Plan, options: Options) -> None:
    """Lower the plan, and check that the program of each rank does what the plan says."""
    start = perf_counter()
    try:
        lowering = Lowering(plan)
        validate_lowered(lowering)
    except ProgramError as error:
        audit.findings.append(Finding(error.at, error.problem))
    except InputError as error:
        audit.findings.append(Finding("programs", error.problem))
    else:
        audit.done.append(
            f"the programs of {lowering.ranks} ranks: each piece once, each backward pass the"
            " transpose, messages paired, no deadlock"
        )
    audit.figures["programs_seconds"] = perf_counter() - start


def _check_model(
    audit: Audit, plan: Plan, name: str, again: CapturedModel, rules: Path | None
) -> None:
    """Check that the plan begins with the model's graph. If so, check its names, and the tensors of
    which running statistics are kept."""
    other = list(check_model(plan, name, again))
    audit.findings += other
    groups = plan.norm_groups
    norms = f", its batch norms in {groups} groups of samples" if groups > 1 else ""
    audit.done.append(f"the model, captured again from {name}{norms}")
    if plan.naming == NamingFile():
        audit.skipped.append("the names of its parameters, which the plan does not state")
    elif not other:
        audit.findings += check_naming(plan, name, again)
        audit.done.append("the names of its parameters, inputs and buffers")
        expected = locate_statistics(again.statistics, plan, _library(plan, rules).rules)
        audit.findings += check_statistics(plan, name, expected)
        if expected:
            audit.done.append(
                f"the inputs of which {len(expected)} batch norms keep running statistics"
            )


def _model_name(audit: Audit, plan: Plan, model: str | None) -> str | None:
    """Return the model to capture, if it is known. A file is run only if an option names it."""
    name = model or plan.model_name
    if model is None and name not in MODELS:
        how = "name it with --model, or leave it out with --no-capture"
        audit.unchecked.append(f"the model, because {name} is not in the zoo ({how})")
        return None
    return name


Capture = Callable[[Plan, str], Callable[[], CapturedModel]]
"""Starts to capture the model of a plan, by name. The returned function waits for the result."""


@contextmanager
def _capturing(options: Options) -> Generator[Capture]:
    """Yield a function that captures a model in a process beside this one; in this process, if
    ``--jobs`` is 1."""
    if options.jobs == 1 or not options.capture:
        yield lambda plan, name: partial(captured, *_described(plan, name))
        return
    # Spawned and not forked, because this process may have threads.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(prepare)
        try:
            yield lambda plan, name: pool.submit(captured, *_described(plan, name)).result
        finally:
            for process in active_children():  # torch takes long to end
                process.terminate()


def _described(plan: Plan, name: str) -> tuple[str, int | None, int, int]:
    batch = batch_of(plan.model, plan.naming) or None
    return name, batch, plan.machine.devices, plan.norm_groups


def _print_json(audit: Audit, plan: Plan, path: Path) -> None:
    content = {
        "plan": str(path),
        "model": plan.model_name,
        "sound": not audit.findings and not audit.unchecked,
        "findings": [{"where": f.where, "what": f.what} for f in audit.findings],
        "not_checked": audit.skipped,
        "could_not_check": audit.unchecked,
        **audit.figures,
    }
    say_json(content)


def _print(audit: Audit, plan: Plan, path: Path) -> None:
    lines = [f"{path}: {finding}" for finding in audit.findings]
    lines += [f"checked: {line}" for line in audit.done]
    lines += [f"not checked: {line}" for line in audit.skipped]
    lines += [f"could not be checked: {line}" for line in audit.unchecked]
    if not audit.findings and not audit.unchecked:
        seconds = audit.figures["seconds"]
        lines.append(f"{path}: follows from {plan.model_name}, {seconds:.1f} s")
    for line in lines:  # a plan may hold any text
        say(one_line(line))
