"""Print the table of public models in the docs: what of each is captured, and what planning gains.

    PYTHONPATH=.:tests python tests/benchmarks/public/models.py [--nodes 1 4] [--results FILE]
        [--attention sdpa] [--limit SECONDS] [NAME ...]

Each model has a process of its own, which ends after ``--limit`` seconds. With ``--results``, lines
that are in the file are printed and not measured again, and further ones are added to it. The
status is 1 where a model is refused, takes longer, or its plan is slower than data parallelism, or
a function that is kept whole takes over 1% of the step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from support.public.compared import compared
from support.public.every import call_of_loss, has_attention, named, public
from support.public.planned import Row, as_data, from_data, gained, headings, line, row

from pcg.errors import UnityError


def main() -> None:
    """One line for each model and way to compute attention."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="models, packages or PACKAGE/MODEL")
    parser.add_argument("--attention", choices=("sdpa", "eager", "both"), default="both")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of a search")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a model")
    parser.add_argument("--results", type=Path, help="a file of measured lines, to go on from")
    parser.add_argument("--alone", action="store_true", help="one model, in this process, as JSON")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measured(given)))
        return
    print(headings(tuple(given.nodes)), flush=True)
    both = ("sdpa", "eager") if given.attention == "both" else (given.attention,)
    passes = [
        shown(name, attention, given)
        for name in named(given.names)
        for attention in (both if has_attention(name) else ("",))
    ]
    sys.exit(not all(passes))


def shown(name: str, attention: str, given: argparse.Namespace) -> bool:
    """Print the line of a model; whether it keeps the promises."""
    found = earlier(name, attention, given)
    if found is None:
        answer = asked(name, attention, given)
        if isinstance(answer, str):
            print(line(name, attention or "-", answer), flush=True)
            return False
        found = answer
        if given.results is not None:
            with given.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(as_data(found))}\n")
    print(found.text, flush=True)
    return found.holds


def earlier(name: str, attention: str, given: argparse.Namespace) -> Row | None:
    """The line in the file of results, where it has these numbers of nodes."""
    if given.results is None or not given.results.exists():
        return None
    lines = given.results.read_text("utf-8").splitlines()
    rows = [from_data(json.loads(text)) for text in lines]
    same = [r for r in rows if (r.name, r.attention) == (name, attention)]
    wanted = [str(nodes) for nodes in given.nodes]
    return next((r for r in reversed(same) if list(r.gained) == wanted), None)


def asked(name: str, attention: str, given: argparse.Namespace) -> Row | str:
    """The line of a model that is measured in a process of its own, or why there is none."""
    options = ["--alone", "--attention", attention or "sdpa", "--budget", str(given.budget)]
    nodes = ["--nodes", *map(str, given.nodes)]
    command = [sys.executable, __file__, name, *options, *nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit)
    except subprocess.TimeoutExpired:
        return f"took longer than {given.limit:g} seconds"
    if done.returncode:
        return f"failed: {done.stderr.splitlines()[-1:]}"
    data = json.loads(done.stdout.splitlines()[-1])
    return f"refused: {data['refused']}" if "refused" in data else from_data(data)


def measured(given: argparse.Namespace) -> dict[str, object]:
    """The line of one model as data."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    (name,) = given.names
    attention = given.attention if has_attention(name) else ""
    try:
        captured, seconds = compared(*call_of_loss(public(name, attention)))
        plans = {
            str(nodes): gained(public(name, attention), nodes, given.budget)
            for nodes in given.nodes
        }
    except UnityError as error:
        return {"refused": str(error)}
    return as_data(row(name, attention, captured, seconds, plans))


if __name__ == "__main__":
    main()
