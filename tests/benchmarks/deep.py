"""A program of its own: a deep model is captured on the meta device and planned.

    python deep.py llama|llama-70b|llama-405b|gpt|mixtral LAYERS NODES [PRECISION]

Llama has the width of Llama 3 8B unless it is named otherwise, GPT that of GPT-3 175B, Mixtral that
of 8x7B. The machine is ``dgx-a100``, in bf16, with a sequence of 2,048 for each device, or for each
fourth device with more than eight nodes. Llama 3 405B is on ``dgx-h100``, with a sequence of 8,192
for each second device: the published 16 million tokens for 4,096. Prints processor seconds by
phase, and the peak memory of the process in GB.
"""

from __future__ import annotations

import json
import resource
import sys
from importlib import import_module
from time import process_time
from typing import Any

import torch

from pcg.capture import capture
from pcg.machine import load_machine
from pcg.plan.precision import Precision, precision_of
from pcg.plan.training import Training
from runtime.module.calls import ForwardSignature, call_of
from search.cost.progress import timed_by
from substitutions.rules.store import load_library
from unity.api.losses import LossSource, with_loss
from unity.support.planners import planner_of

LENGTH = 2048
SECONDS = 3600.0
"""The time limit of a search. No search should end before it has tried all candidates."""
WIDE = 8
"""The number of nodes from which on a sequence is for four devices."""
LLAMAS = {
    "llama": (4096, 14336, 32),
    "llama-70b": (8192, 28672, 64),
    "llama-405b": (16384, 53248, 128),
}
"""Width, inner width, and number of heads (Llama 3, 2024, table 3)."""
MACHINES = {"llama-405b": "dgx-h100"}
"""The machine of models that are not for ``dgx-a100``."""
LENGTHS = {"llama-405b": 8192}
"""The length of sequences that differ from the others' (Llama 3, 2024, section 3.3.2)."""
SHARES = {"llama-405b": 2}
"""The number of devices for a sequence, if it does not depend on nodes."""


def model_of(name: str, layers: int) -> Any:
    """A model of published width, without weights."""
    models: Any = import_module("transformers")
    if name == "gpt":
        sizes: dict[str, Any] = {"n_embd": 12288, "n_head": 96, "n_positions": LENGTH}
        dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
        return models.GPT2LMHeadModel(models.GPT2Config(n_layer=layers, **sizes, **dropouts))
    if name == "mixtral":
        return models.MixtralForCausalLM(models.MixtralConfig(num_hidden_layers=layers))
    hidden, inner, heads = LLAMAS[name]
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "vocab_size": 128256}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": 8}
    config = models.LlamaConfig(num_hidden_layers=layers, rope_theta=5e5, **sizes)
    return models.LlamaForCausalLM(config)


def main(name: str, layers: int, nodes: int, precision: Precision = "bf16") -> None:
    machine = load_machine(MACHINES.get(name, "dgx-a100")).with_nodes(nodes)
    batch = machine.devices // SHARES.get(name, 4 if nodes > WIDE else 1)
    with torch.device("meta"):
        model = model_of(name, layers)
        ids = torch.zeros(batch, LENGTHS.get(name, LENGTH), dtype=torch.long)
    call = call_of(ForwardSignature.of(model), (), {"input_ids": ids, "labels": ids})
    seen = with_loss(model, call, LossSource(None))
    begin = process_time()
    graph = capture(seen, tuple(call.tensors.values())).graph
    captured = process_time()
    planner = planner_of(
        "joint", machine, load_library(), SECONDS, Training("adam", precision), None
    )
    with timed_by(process_time):
        planned = planner.plan(name, graph)
    pipeline = planned.plan.pipeline
    report = {
        "operators": len(graph.operators),
        "capture": captured - begin,
        "plan": process_time() - captured,
        "step_seconds": planned.plan.estimates.step_seconds,
        "phases": {name: round(own, 1) for name, own in planned.report.phases.items()},
        "pipeline": pipeline and f"{pipeline.stages} stages x {pipeline.micro_batches}",
        "data_parallel_seconds": planned.data_parallel_seconds,
        "stop": planned.report.stop,
        "simulated": planned.report.simulated,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    asked = precision_of(sys.argv[4]) if len(sys.argv) > 4 else "bf16"
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), asked)
