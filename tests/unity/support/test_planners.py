"""Planners by name: which of them search pipelines, and what they may cut."""

from __future__ import annotations

import pytest
from support.cases import a_third

from pcg.errors import InputError
from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.choices import IndexRole, Mode
from search.cost.cost import SGD
from search.pipeline.beside import WithPipelines
from search.report.describe import rows
from substitutions.rules.store import Library, load_library
from unity.support.planners import SearchOptions, planner_of


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def layers(count: int, batch: int, width: int) -> Graph:
    """Equal layers, so that stages can be even."""
    lines = [f"h0 = input[{batch}, {width}]"]
    for i in range(count):
        lines += [f"w{i} = weight[{width}, {width}]", f"h{i + 1} = relu(matmul(h{i}, w{i}))"]
    return parse_graph("\n".join([*lines, f"return mean_loss(h{count})"]))


DATA = frozenset({IndexRole.DATA, IndexRole.PIPELINE})


@pytest.mark.parametrize(
    "mode",
    a_third([Mode.PARALLEL, Mode.JOINT, Mode.SEQUENTIAL]),
)
def test_pipelines_are_in_the_space_of_every_mode(mode: Mode, library: Library):
    """Except the algebra mode, which is of data parallelism alone."""
    machine, graph = load_machine("summit").with_nodes(4), layers(4, 1536, 4096)
    planner = planner_of("joint", machine, library, 600.0, SGD, None, SearchOptions(mode, DATA))
    planned = planner.plan("layers", graph)
    assert planned.plan.pipeline is not None
    assert planned.data_parallel_seconds is not None
    assert planned.plan.estimates.step_seconds < planned.data_parallel_seconds


def test_algebra_is_for_data_parallelism_alone(library: Library):
    machine = load_machine("summit")
    given = machine, library, 600.0, SGD, None, SearchOptions(Mode.ALGEBRA)
    assert not isinstance(planner_of("joint", *given), WithPipelines)


def test_micro_batches_are_cut_along_allowed_dimensions_only(library: Library):
    """With few samples and large weights, products are cut in columns and in rows."""
    machine, graph = load_machine("summit").with_nodes(1), layers(2, 24, 4096)
    columns = frozenset({IndexRole.MODEL, IndexRole.PIPELINE})
    cut: dict[frozenset[IndexRole] | None, set[str]] = {}
    for dimensions in (None, columns, DATA):
        given = machine, library, 600.0, SGD, None, SearchOptions(dimensions=dimensions)
        plan = planner_of("pipeline", *given).plan("layers", graph).plan
        words = [row.cut for row in rows(plan) if row.call.startswith("matmul")]
        cut[dimensions] = {word.split()[0] for word in words}
    assert "reduction" in cut[None]
    assert cut[columns] <= {"model", "whole"}
    assert cut[DATA] <= {"data", "whole"}


@pytest.mark.parametrize("planner", ["data-parallel", "zero", "expert", "megatron"])
def test_planners_that_cut_data_need_data_to_be_allowed(planner: str, library: Library):
    asked = SearchOptions(dimensions=frozenset({IndexRole.MODEL}))
    given = load_machine("local"), library, 600.0, SGD, None, asked
    with pytest.raises(InputError, match=f"planner {planner}: cuts along data"):
        planner_of(planner, *given)
