"""A program of its own: the capture of Llama 3 on the meta device, with transformers' own loss.

    python llama.py 8|70

Prints seconds and CPU seconds of the capture, operators, and the process's peak in GB.
"""

from __future__ import annotations

import json
import resource
import sys
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

import torch

from pcg.capture import capture
from runtime.module.calls import ForwardSignature, call_of
from unity.api.losses import LossSource, with_loss

SIZES = {
    "8": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    "70": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80},
}
HEADS = {"8": 32, "70": 64}
BATCH, LENGTH = 8, 2048


def main(size: str) -> None:
    models: Any = import_module("transformers")
    heads = {"num_attention_heads": HEADS[size], "num_key_value_heads": 8}
    config = models.LlamaConfig(vocab_size=128256, rope_theta=5e5, **SIZES[size], **heads)
    with torch.device("meta"):
        model = models.LlamaForCausalLM(config)
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    call = call_of(ForwardSignature.of(model), (), {"input_ids": ids, "labels": ids})
    seen = with_loss(model, call, LossSource(None))
    begin, busy = perf_counter(), process_time()
    captured = capture(seen, tuple(call.tensors.values()))
    report = {
        "seconds": perf_counter() - begin,
        "cpu_seconds": process_time() - busy,
        "operators": len(captured.graph.operators),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
