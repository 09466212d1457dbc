"""Blocks of public models in which a rewrite pays only after one that costs something.

Greedy search (threshold 1) makes only rewrites that are no slower alone. Backtracking goes on from
graphs that are up to 5 % slower than the best. The machine has four A100, over which everything may
be cut, and the rewrites of both searches are priced alike.
"""

from __future__ import annotations

import pytest

from pcg.graph.graph import Graph
from pcg.machine import load_machine
from pcg.plan.text import parse_graph
from search.choices import THRESHOLD
from search.cost.cost import CostModel
from search.cost.derivation import Derivation
from search.map.choose.choosing import Chooser
from search.map.rules.cuts import Cuts
from search.substitute.algebra import Algebra
from search.substitute.rewrites import Limits, Rewriter
from substitutions.rules.store import Library, load_library

LLAMA_PROJECTIONS = """
x = input[64, 2048]
wo = weight[2048, 2048]
wq = weight[2048, 2048]
wk = weight[2048, 512]
wv = weight[2048, 512]
y = matmul(x, wo)
return mean_loss(matmul(y, wq)), mean_loss(relu(matmul(y, wk))), mean_loss(gelu(matmul(y, wv)))
"""
"""Queries, keys and values of Llama-3.2 1B, with 32 heads of queries and 8 of keys."""
GATED = """
x = input[64, 256]
w0 = weight[256, 256]
w1 = weight[256, 1024]
w2 = weight[1024, 256]
w3 = weight[256, 1024]
y = matmul(x, w0)
return mean_loss(matmul(multiply(silu(matmul(y, w1)), matmul(y, w3)), w2))
"""
"""A gated feed-forward layer after a projection, as in Llama and T5."""


def lstm_cell() -> str:
    """A step of an LSTM with separate gates, of 512 sequences and 1024 units."""
    lines = [f"{name} = input[512, 1024]" for name in ("x", "h", "c")]
    for gate, function in {"i": "sigmoid", "f": "sigmoid", "g": "tanh", "o": "sigmoid"}.items():
        lines += [f"w{gate} = weight[1024, 1024]", f"u{gate} = weight[1024, 1024]"]
        lines.append(f"{gate} = {function}(add(matmul(x, w{gate}), matmul(h, u{gate})))")
    lines.append("cell = add(multiply(f, c), multiply(i, g))")
    return "\n".join([*lines, "return mean_loss(multiply(o, tanh(cell)))"])


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def seconds(library: Library, graph: Graph, threshold: float) -> float:
    """Seconds of a step after the rewrites of a search with this threshold."""
    machine = load_machine("dgx-a100").with_devices(4)
    rules = library.concrete(graph)
    chooser = Chooser.on(CostModel(machine), Cuts.of_rules(rules))
    limits = Limits(threshold=threshold, together=False)
    rewritten = Rewriter(chooser, Algebra.of(rules), limits).improved(
        graph, Derivation.start(graph)
    )
    return chooser.choose(graph if rewritten is None else rewritten[0]).seconds


@pytest.mark.parametrize(
    ("text", "least"),
    [
        pytest.param(LLAMA_PROJECTIONS, 1.05, id="projections of Llama", marks=pytest.mark.soak),
        pytest.param(GATED, 1.03, id="gated layer"),
        pytest.param(lstm_cell(), 1.02, id="LSTM cell"),
    ],
)
def test_backtracking_finds_rewrites_that_greedy_search_misses(library, text, least):
    graph = parse_graph(text)
    greedy, patient = (seconds(library, graph, threshold) for threshold in (1.0, THRESHOLD))
    assert greedy > least * patient
