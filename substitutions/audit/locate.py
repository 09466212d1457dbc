"""Completes a plan with the names of its module, and finds the inputs of its batch norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pcg.capture import Captured
from pcg.errors import InputError
from pcg.graph.graph import Graph, Value
from pcg.plan.plan import Plan
from pcg.plan.statistics import RunningFile, named_values
from pcg.plan.text import node_names
from substitutions.audit.errors import Refused
from substitutions.audit.forms import concrete, operators_of, rules_of
from substitutions.audit.replay import DerivationReplay
from substitutions.audit.values import NamedValues
from substitutions.rules.rule import Rule


def of_module(plan: Plan, captured: Captured, library: Sequence[Rule]) -> Plan:
    """A plan of a captured module's graph with the names of the module's parameters and its running
    statistics. With these it can be trained, saved and exported as the module. ``library``: the
    rules that the plan was made with. Raises InputError for a pipeline of a module whose buffers
    change in every step."""
    if captured.states and plan.pipeline is not None:
        name = captured.states[0].names[0]
        problem = f"every step changes buffer {name}, and micro-batches would change it in turn"
        raise InputError(plan.model_name, f"{problem}, expected a planner without a pipeline")
    statistics = locate_statistics(captured.statistics, plan, library)
    return replace(
        plan,
        naming=captured.naming,
        statistics=statistics,
        norm_groups=captured.norm_groups,
    )


def locate_statistics(
    records: Sequence[RunningFile], plan: Plan, library: Sequence[Rule]
) -> tuple[RunningFile, ...]:
    """The records of a model's running statistics, each with the tensor of the plan's graph that
    the batch norm normalises, or None if the plan does not compute it. ``library``: the rules that
    the plan was made with."""
    if not records:
        return ()
    known = named_values(plan.model)
    names = node_names(plan.graph)
    located: list[RunningFile] = []
    images = _images(plan, [known[record.value] for record in records], library)
    for record, image in zip(records, images, strict=True):
        while image.node.is_parallel:
            image = image.node.inputs[0]  # The operand means the same, whatever its type.
        ids = names.get(image.node)
        name = None if ids is None else ids[image.port]
        located.append(record.model_copy(update={"at": name}))
    return tuple(located)


def _images(plan: Plan, values: Sequence[Value], library: Sequence[Rule]) -> tuple[Value, ...]:
    """The values of the plan's graph that values of the model have become. They are kept as outputs
    during the replay, so that each is followed even if nothing reads it in the end."""
    by_name = rules_of(plan, library)
    forms: dict[str, Rule] = {}
    operators = operators_of(plan)
    replay = DerivationReplay(NamedValues(Graph((*plan.model.outputs, *values))))
    try:
        for number, step in enumerate(plan.derivation):
            if step.rule not in forms:
                forms[step.rule] = concrete(step.applied, by_name, operators)
            replay.step(number, step, forms[step.rule])
    except Refused:
        # An audit reports the reason. Here the values are just not found.
        return tuple(values)
    return replay.values.graph().outputs[len(plan.model.outputs) :]
