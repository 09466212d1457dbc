"""A program of its own: ranks that stay connected and run one plan after the other.

    python ranks.py RANKS FOLDER

Each line of the standard input is an order in JSON: a plan file, and either the options of a run or
a folder for the results of plain steps. Each line of the standard output is the reply: the report
of rank 0, the files that the ranks have written, the peak bytes of tensors of each rank (with the
``peaks`` optimizer), or the error of the first rank that has one.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import traceback
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from support.runs.peaks import peak_bytes
from support.runs.plain_steps import save, stepped

from pcg.errors import UnityError
from pcg.plan.plan import load_plan
from runtime.job.job import TrainingOptions
from runtime.program.lower import Lowering
from runtime.train.worker import run_plan
from runtime.world.collectives import World

TIMEOUT = timedelta(seconds=60)
"""Long, because other work may slow the computer down. Only a run that hangs takes it."""


def rank_main(rank: int, ranks: int, folder: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=TIMEOUT,
    )
    world = World(rank, ranks)
    while True:
        order = connection.recv()
        # An end with a traceback is better than a test that never ends.
        faulthandler.dump_traceback_later(4 * TIMEOUT.total_seconds(), exit=True)
        connection.send(answer(world, order))
        faulthandler.cancel_dump_traceback_later()


def answer(world: World, order: dict) -> dict:
    try:
        lowering = Lowering(load_plan(order["plan"]))
        if "results" in order:
            path = str(Path(order["results"]) / f"{world.rank}.pt")
            save(stepped(lowering, world), path)
            return {"results": [path]}
        if "peaks" in order:
            return {"peaks": [peak_bytes(lowering, world, order["peaks"])]}
        options = TypeAdapter(TrainingOptions).validate_python(order["options"])
        report = run_plan(lowering, options, world, lambda step: None)
    except UnityError as error:
        return {"error": f"rank {world.rank}: {error}"}
    except Exception:
        return {"error": f"rank {world.rank}: {traceback.format_exc()}"}
    return {"report": asdict(report) if report else None}


def together(replies: list[dict]) -> dict:
    """The replies of all ranks."""
    for reply in replies:
        if "error" in reply:
            return reply
    for kind in ("results", "peaks"):
        if kind in replies[0]:
            return {kind: [part for reply in replies for part in reply[kind]]}
    return replies[0]


def main() -> None:
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    import_module("torch._dynamo")  # otherwise the first optimizer of each rank imports it
    # Forked, so that torch is imported once. No thread has started yet.
    context = get_context("fork")
    connections: list[Connection] = []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        context.Process(target=rank_main, args=(rank, ranks, folder, theirs), daemon=True).start()
        connections.append(ours)
    for line in sys.stdin:
        for connection in connections:
            connection.send(json.loads(line))
        replies = [connection.recv() for connection in connections]
        print(json.dumps(together(replies)), flush=True)


if __name__ == "__main__":
    main()
