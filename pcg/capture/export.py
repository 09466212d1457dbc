"""Export a module as a program of ATen operators without in-place changes."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Collection, Generator
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib import import_module
from io import StringIO
from types import CodeType
from typing import TYPE_CHECKING, Any

from pcg.capture import apart, running
from pcg.capture.apart import returned, taken_apart
from pcg.capture.empty import leave_out_empty
from pcg.capture.regions import ancestors, open_regions, place_of
from pcg.capture.running.attributes import restored
from pcg.capture.running.autograd_functions import is_derivative
from pcg.capture.running.checks import Checks
from pcg.capture.running.compiling import questions
from pcg.capture.running.known import known_constants
from pcg.capture.running.lines import helper_lines
from pcg.capture.running.refusals import refuse_hooks, refuse_kinds
from pcg.capture.running.watch import watched
from pcg.capture.selection.replace import without_selections
from pcg.capture.states import changes_buffers
from pcg.capture.unset import set_unset
from pcg.errors import InputError, UnityError
from pcg.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module


CHOOSES = ("GuardOnDataDependentSymNode", "DataDependentOutputException")
"""Exceptions that torch raises if a program would depend on the values of a tensor."""
SIZES = "DynamicOutputShapeException"
"""The exception for a function, named in its text, with a size that depends on values."""
BUFFER_HOOKS = "_global_buffer_registration_hooks"
"""Torch's name of its hooks for the buffers of all modules."""
HINT = "; decide it before the step, or, for a mixture of experts, there is unity.nn"
_OWN = (__file__, apart.__file__, *running.__path__)


def export(
    module: Module, inputs: tuple[Any, ...], kept: Collection[str], where: str
) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Return the module's program for these inputs, and notes for people, a line each. Operators in
    ``kept`` are not decomposed. A module with autograd functions that are run straight through is
    exported once more for these.

    If no call that the outputs depend on needs decomposition, the result is the program that torch
    exports first. In it, tensors that the outputs do not depend on may be changed in place
    (``pcg.capture.apart``). Where gradients are off, values are detached. Raises InputError with
    torch's first line if torch cannot export the module, and for code that changes gradients
    without a trace in the program: hooks, and functions whose backward a graph cannot have.
    """
    refuse_kinds(module, where)
    refuse_hooks(module, where)
    import_module("torch.export._trace")  # looks at attributes of tensors that are watched below
    checks = Checks()
    straight: set[Any] = set()
    while True:
        with restored(module), watched(module, where, straight) as watching, helper_lines():
            program = _exported(module, inputs, kept, where, checks)
        uses = [(use.function, use, place) for place, use in watching.uses]
        others = {
            function
            for function, use, place in uses
            if not is_derivative(use, place, is_straight=function in straight)
        }
        if others <= straight:
            break
        straight |= others
    _refuse_kinds(program, where)
    leave_out_empty(program)
    set_unset(program)
    for name in program.graph_signature.parameters_to_mutate.values():
        raise InputError(where, f"forward changes parameter {name}, which only optimizers may do")
    return program, (*checks.notes, *watching.notes)


def _exported(
    module: Module, inputs: tuple[Any, ...], kept: Collection[str], where: str, checks: Checks
) -> ExportedProgram:
    # What torch logs before it raises an error is in the error's text too.
    with warnings.catch_warnings(), redirect_stderr(StringIO()), _quiet():
        warnings.simplefilter("ignore")
        try:
            program = _first_program(module, inputs, checks)
            open_regions(program, where)
            without_selections(program, where)
            return taken_apart(program, kept, changes=changes_buffers(program))
        except UnityError:
            raise
        except Exception as error:
            kind = type(error).__name__
            problem = f"torch.export: {kind}: {_first_line(error)}"
            if kind == SIZES:
                sized = "has a size that depends on values, which no graph can follow"
                problem = f"{_first_line(error)} {sized}"
            if kind in CHOOSES:
                branching = "branches on the values of a tensor, which no graph can follow"
                problem = f"{branching} ({kind}){HINT}"
            raise InputError(_line_at_fault(error, where), problem) from error


def _refuse_kinds(program: ExportedProgram, where: str) -> None:
    """Raise InputError for higher-order operators, such as ``torch.cond``, and sparse tensors."""
    programs = import_module("torch._ops").HigherOrderOperator
    live = ancestors(returned(program))
    for node in program.graph.nodes:
        if node not in live:
            continue
        value = node.meta.get("val")
        if isinstance(node.target, programs):
            name = node.target.name()
            problem = f"torch.{name} is a higher-order operator, which no graph can contain"
            raise InputError(place_of(node, where), problem)
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            kind = str(value.layout).removeprefix("torch.")
            problem = f"{node.target} has a tensor of layout {kind}, expected a dense one"
            raise InputError(place_of(node, where), problem)


def _first_program(module: Module, inputs: tuple[Any, ...], checks: Checks) -> ExportedProgram:
    """Return torch's program of a module.

    Attempts, in this order: the module as it is compiled; the same with the values of constants
    known, if it failed or has sizes that depend on values; and, if the module has asked whether it
    is being compiled, the module as it runs eagerly. Raises torch's error if all fail.
    """
    refused: Exception | None = None
    sized: ExportedProgram | None = None
    for follows in (False, True):
        with questions(False) as asked, known_constants(checks) if follows else nullcontext():
            try:
                program = _torch_program(module, inputs)
                if follows or not _sized_by_values(program):
                    return program
                sized = program  # its sizes may come from masks of constants
            except UnityError:
                raise
            except Exception as error:
                if sized is not None:
                    return sized
                refused = error
                if not asked.were_asked and type(error).__name__ not in CHOOSES:
                    break
    assert refused is not None, "it has failed"
    if asked.were_asked and (program := _by_itself(module, inputs, checks)) is not None:
        return program
    raise refused


def _torch_program(module: Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """Return torch's program of a module.

    If an export fails, torch 2.11 leaves a hook behind. It would fail wherever a buffer is set.
    """
    hooks: dict[int, Any] = getattr(import_module("torch.nn.modules.module"), BUFFER_HOOKS, {})
    before = dict(hooks)
    try:
        return torch.export.export(module, _apart(inputs, set()))
    finally:
        for number in hooks.keys() - before.keys():
            del hooks[number]


def _sized_by_values(program: ExportedProgram) -> bool:
    """Whether a tensor of the program has a size that depends on values."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    sizes: list[Any] = [size for tensor in tensors for size in tensor.shape]
    return any(not isinstance(size, int) for size in sizes)


def _by_itself(module: Module, inputs: tuple[Any, ...], checks: Checks) -> ExportedProgram | None:
    """Return the program of a module that is told it is not compiled, or None if there is none."""
    compiled: set[CodeType] = set()
    while True:
        with questions(True, compiled) as asked, known_constants(checks):
            try:
                return _torch_program(module, inputs)
            except UnityError:
                raise
            except Exception as error:
                # Such an error says nothing about why the first export failed.
                asker = asked.led_to(error) if type(error).__name__ in CHOOSES else None
        if asker is None or asker in compiled:
            return None
        compiled.add(asker)


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress torch's logging, which does not go through the redirected stream."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _line_at_fault(error: Exception, where: str) -> str:
    """Return the user's line that led to an error of torch, or ``where`` if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if "/torch/" not in f.filename and f.filename[0] != "<" and not f.filename.startswith(_OWN)
    ]
    return f"{own[-1].filename}: line {own[-1].lineno}" if own else where


def _apart(value: Any, seen: set[int]) -> Any:
    """Return the inputs with a copy in the place of each tensor that occurs a second time.

    Torch would take a tensor that is given twice, such as ids that are labels too, for one input.
    """
    if isinstance(value, dict):
        return {key: _apart(part, seen) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_apart(part, seen) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in seen:
        return value.detach().clone()
    seen.add(id(value))
    return value


def examples(program: ExportedProgram) -> dict[str, Tensor]:
    """Return the tensors with which the program was exported, by the names of placeholders."""
    signature = program.graph_signature
    given = tree_leaves(program.example_inputs)
    named = zip(signature.user_inputs, given, strict=False)
    held = {**program.state_dict, **program.constants}
    buffers = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    tensors = [*named, *((name, held.get(origin)) for name, origin in buffers.items())]
    return {str(n): t.detach() for n, t in tensors if isinstance(t, torch.Tensor)}


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested lists and dictionaries, in torch's order of flattening."""
    return import_module("torch.utils._pytree").tree_leaves(tree)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
